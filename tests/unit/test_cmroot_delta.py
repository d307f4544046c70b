"""What the names in a Delta log say: a version is read when nothing is missing before it."""

from __future__ import annotations

import pytest

from cmroot.store.delta import LAST_CHECKPOINT, beyond, checkpoints, commit_version, last_version, rank


def commits(*versions: int) -> list[str]:
    return [f"{version:020d}.json" for version in versions]


def parts(version: int, count: int, *there: int) -> list[str]:
    return [f"{version:020d}.checkpoint.{part:010d}.{count:010d}.parquet" for part in there]


WHOLE = "00000000000000000003.checkpoint.parquet"
BY_ID = "00000000000000000003.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"


@pytest.mark.parametrize(
    ("names", "last"),
    [
        ([], None),
        (["_last_checkpoint", "x.json"], None),
        (commits(0, 1, 2), 2),
        (commits(0, 1, 3), 1),
        (commits(5, 6), 6),
        ([WHOLE], 3),
        ([BY_ID, *commits(4, 6)], 4),
        ([WHOLE, *commits(0, 1, 2, 3, 4)], 4),
        ([*parts(3, 2, 1, 2), *commits(4)], 4),
        ([*parts(3, 2, 1), *commits(0, 1)], 1),
    ],
)
def test_the_last_version_is_the_one_before_a_hole(names: list[str], last: int | None) -> None:
    assert last_version(names) == last


def test_a_checkpoint_counts_when_all_of_its_parts_are_there() -> None:
    whole = parts(3, 2, 1, 2)
    assert checkpoints([*whole, *parts(7, 3, 1, 3), WHOLE.replace("3", "9")]) == {
        3: whole,
        9: [WHOLE.replace("3", "9")],
    }


def test_what_a_reader_cannot_use_yet_is_beyond() -> None:
    compacted = [
        "00000000000000000000.00000000000000000001.compacted.json",
        "00000000000000000000.00000000000000000003.compacted.json",
    ]
    late = [*commits(3), WHOLE.replace("3", "4", 1).replace("parquet", "crc"), compacted[1]]
    assert beyond([*commits(0, 1), compacted[0], LAST_CHECKPOINT]) == set()
    assert beyond([*commits(0, 1), compacted[0], LAST_CHECKPOINT, *late]) == {*late, LAST_CHECKPOINT}
    assert beyond([LAST_CHECKPOINT]) == set()


def test_a_log_is_published_after_its_data_in_the_order_of_its_versions() -> None:
    log = [f"t/_delta_log/{name}" for name in (WHOLE, *commits(2, 10), LAST_CHECKPOINT)]
    ranks = [rank(path) for path in log]
    assert None not in ranks and ranks == sorted(ranks, key=lambda each: each or (0, 0))
    assert rank("t/part-0.json") is None
    assert [commit_version(path) for path in log] == [None, 2, 10, None]
