"""A copying task on real files: the entries of one bucket become files of the target, every one of them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from copy_tasks import bucket, task
from hypothesis import given
from hypothesis import strategies as st

from cmroot.keep.content import locate
from cmroot.keep.keepers import CopyKeeper
from cmroot.log.captured import FILES
from cmroot.root import create_or_open
from replicator.replay.apply.copy_task import CopyReport, run_copy_task, share_of
from replicator.replay.apply.origins import Wanted


@pytest.mark.parametrize("shares", [1, 3])
def test_shares_copy_every_file_between_them_and_a_second_run_leaves_them_alone(tmp_path: Path, shares: int) -> None:
    count = 200
    part = bucket(tmp_path, count)
    for again in (False, True):
        total = CopyReport()
        for share in range(shares):
            total.add(run_copy_task(task(tmp_path, part, share, shares)))
        assert (total.files_copied, total.files_skipped) == ((0, count) if again else (count, 0))
    copied = tmp_path / "target" / "db.db" / "t"
    assert sorted(path.name for path in copied.iterdir()) == sorted(f"part-{number}" for number in range(count))
    assert (copied / "part-7").read_bytes() == b"content 7"
    assert (copied / "part-7").stat().st_mtime == 1_700_000_000


def bytes_read() -> int:
    """By this process so far, from anywhere (rchar of proc(5))."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_what_a_load_has_published_is_not_read_again_and_nothing_else_is_trusted(tmp_path: Path) -> None:
    part = bucket(tmp_path, 1)
    source, target = tmp_path / "source" / "db.db" / "t" / "part-0", tmp_path / "target" / "db.db" / "t" / "part-0"
    content = os.urandom(8 << 20)
    source.write_bytes(content)
    rows = pq.read_table(part).to_pylist()
    rows[0] |= {"size": len(content), "checksum": xxhash.xxh3_128_hexdigest(content)}
    pq.write_table(pa.Table.from_pylist(rows, FILES), part)
    copying = task(tmp_path, part, 0, 1)

    def run() -> tuple[int, bool]:
        before = bytes_read()
        return run_copy_task(copying).files_copied, bytes_read() - before >= len(content)

    assert run() == (1, True)
    assert run() == (0, False)
    target.unlink()
    target.write_bytes(content)  # brought there by other means: read once
    os.utime(target, ns=(source.stat().st_mtime_ns, rows[0]["mtime_ns"]))
    assert run() == (0, True)
    assert run() == (0, False)
    target.unlink()
    target.write_bytes(content[::-1])
    os.utime(target, ns=(source.stat().st_mtime_ns, rows[0]["mtime_ns"]))
    assert run() == (1, True)
    assert target.read_bytes() == content


@given(st.lists(st.integers(0, 1 << 34), max_size=60), st.integers(1, 9))
def test_every_file_is_in_exactly_one_share_and_no_share_is_much_larger(sizes: list[int], shares: int) -> None:
    files = [Wanted(f"/s/{n}", f"/t/{n}", size, 0, "00", 1) for n, size in enumerate(sizes)]
    parts = [share_of(files, share, shares) for share in range(shares)]
    assert sorted(file.target for part in parts for file in part) == sorted(file.target for file in files)
    costs = [sum((file.size or 0) + (256 << 10) for file in part) for part in parts]
    largest = max(sizes, default=0) + (256 << 10)
    assert max(costs) - sum(costs) / shares <= 2 * largest


def test_copies_have_the_mode_and_owner_of_what_was_copied(tmp_path: Path) -> None:
    part = bucket(tmp_path, 2)
    source, target = (tmp_path / side / "db.db" / "t" for side in ("source", "target"))
    owner = (1234, 1235) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    for name, mode in (("part-0", 0o600), ("part-1", 0o664)):
        (source / name).chmod(mode)
        os.chown(source / name, *owner)
    run_copy_task(task(tmp_path, part, 0, 1))
    found = {path.name: path.stat() for path in target.iterdir()}
    assert {name: stat.S_IMODE(each.st_mode) for name, each in found.items()} == {"part-0": 0o600, "part-1": 0o664}
    assert {(each.st_uid, each.st_gid) for each in found.values()} == {owner}
    root = str(tmp_path / "other-root")
    create_or_open(root)
    kept = CopyKeeper(root).keep(str(source / "part-0"))
    assert stat.S_IMODE(os.stat(locate(root, kept.checksum, kept.size)).st_mode) == 0o600


def test_a_file_that_is_replaced_goes_to_the_targets_root(tmp_path: Path) -> None:
    part = bucket(tmp_path, 1)
    target = tmp_path / "target" / "db.db" / "t" / "part-0"
    target.parent.mkdir(parents=True)
    target.write_bytes(b"what a writer of the target put here")
    assert run_copy_task(task(tmp_path, part, 0, 1)).files_copied == 1 and target.read_bytes() == b"content 0"
    had = xxhash.xxh3_128_hexdigest(b"what a writer of the target put here")
    kept = Path(locate(f"{tmp_path}/target-kept", had, 36))
    assert kept.read_bytes() == b"what a writer of the target put here"
