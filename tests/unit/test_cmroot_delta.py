"""What the names in a Delta log say: a version is read when nothing is missing before it."""

from __future__ import annotations

import json

import pytest

from cmroot.errors import FormatError
from cmroot.store.delta import (
    LAST_CHECKPOINT,
    Unreadable,
    beyond,
    checkpoints,
    commit_version,
    equal,
    last_version,
    rank,
    translated,
)


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
    log = [f"t/_delta_log/{name}" for name in ("_sidecars/a.parquet", WHOLE, *commits(2, 10), LAST_CHECKPOINT)]
    ranks = [rank(path) for path in log]
    assert None not in ranks and ranks == sorted(ranks, key=lambda each: each or (0, 0))
    assert rank("t/part-0.json") is None
    assert len(set(ranks)) == len(ranks)
    assert [commit_version(path) for path in log] == [None, None, 2, 10, None]


# ---- translation --------------------------------------------------------------------------------------------------

COMMIT = f"t/_delta_log/{commits(1)[0]}"


def moved(content: str, path: str = COMMIT) -> str:
    found = translated(path, content.encode(), lambda place: place.replace("file:/a", "file:/b"), lambda name: 7)
    return found.decode()


def test_only_absolute_paths_of_a_log_change() -> None:
    """Everything else keeps its bytes: order, spaces, numbers, and texts that look like paths."""
    line = '{ "add": {"size" :1.50, "path":"%s","tags":{"x":"file:/a/t"}, "stats":"{\\"a\\": \\"file:/a\\"}"}}\r\n'
    assert moved(line % "p=a%2520b/x.parquet") == line % "p=a%2520b/x.parquet"
    found = moved(line % "file:/a/p=a%2520b/x.parquet")
    assert found.endswith("\r\n") and json.loads(found) == json.loads(line % "file:/b/p=a%2520b/x.parquet")
    assert '"size":1.50' in found and '"stats":"{\\"a\\": \\"file:/a\\"}"' in found
    other = '{"commitInfo":{"path":"file:/a"}}\n\n{"metaData":{"path":"file:/a"}}'
    assert moved(other) == other


def test_vectors_removed_files_changes_and_checksums_are_translated() -> None:
    vector = {"path": "x", "deletionVector": {"storageType": "p", "pathOrInlineDv": "file:/a/v.bin", "offset": 1}}
    inline = {"path": "x", "deletionVector": {"storageType": "i", "pathOrInlineDv": "file:/a/v.bin"}}
    for kind in ("add", "remove", "cdc"):
        for about in (vector, inline, {"path": "file:/a/x", "deletionVector": None}):
            text = json.dumps({kind: about})
            wanted = text if about is inline else text.replace("file:/a", "file:/b")
            assert json.loads(moved(text)) == json.loads(wanted)
    text = json.dumps({"numFiles": 1, "allFiles": [vector]})
    assert json.loads(moved(text, f"t/_delta_log/{1:020}.crc")) == json.loads(text.replace("file:/a", "file:/b"))
    assert moved('{"numFiles": 1}', f"t/_delta_log/{1:020}.crc") == '{"numFiles": 1}'


def test_sizes_of_translated_files_are_those_of_the_target() -> None:
    sidecar = '{"sidecar":{"path":"5f.parquet","sizeInBytes":9}}'
    assert json.loads(moved(sidecar, f"t/_delta_log/{BY_ID}"))["sidecar"]["sizeInBytes"] == 7
    last = '{"version":3,"size":5,"parts":2,"sizeInBytes":9,"checksum":"5f","v2Checkpoint":{}}'
    assert json.loads(moved(last, f"t/_delta_log/{LAST_CHECKPOINT}")) == {"version": 3, "size": 5, "parts": 2}


@pytest.mark.parametrize("path", ["../u/x.parquet", "file:/a/t/../u/x.parquet", "file:/a/%2E%2E/x.parquet"])
def test_a_path_that_does_not_show_where_it_leads_is_not_translated(path: str) -> None:
    with pytest.raises(FormatError):
        moved(json.dumps({"add": {"path": path}}))


def test_a_damaged_file_of_a_log_is_not_translated() -> None:
    for path, content in ((COMMIT, "{"), (COMMIT, '{"add":{"size":1}}'), (f"t/_delta_log/{WHOLE}", "PAR1")):
        with pytest.raises(Unreadable):
            moved(content, path)
    assert not equal(f"t/_delta_log/{WHOLE}", b"PAR1", b"PAR2")
