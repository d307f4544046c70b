"""The crash table of docs/cmroot-format.md: killed at every step, swept, and no byte is lost."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from steps import at_every_step

from cmroot.errors import FormatError
from cmroot.keep.keepers import is_kept, sweep_incoming
from cmroot.lease import acquire
from cmroot.log.captured import SegmentWriter, segments, sweep_log
from cmroot.root import DIRECTORIES, create_or_open
from cmroot.store.checksum import checksum_file

CONTENT = {
    "part-0": b"zero" * 10,
    "p=1/part-1": b"one" * 100_000,
    "p=1/q=2/part-2": b"",
    "p=1/same": b"zero" * 10,
    "p=1/.same.crc": b"crc",
}


class Ground:
    """A root and a table directory, laid again before each kill."""

    def __init__(self, top: Path) -> None:
        self.root, self.table, self.top = str(top / "cmroot"), top / "w" / "t", top

    def lay(self) -> None:
        shutil.rmtree(self.top / "w", ignore_errors=True)
        shutil.rmtree(self.root, ignore_errors=True)
        create_or_open(self.root)
        for name, data in CONTENT.items():
            (self.table / name).parent.mkdir(parents=True, exist_ok=True)
            (self.table / name).write_bytes(data)

    def kept(self) -> list[Path]:
        return [path for path in Path(self.root, "files").rglob("*") if path.is_file()]

    def check_kept_names_are_true(self) -> None:
        for path in self.kept():
            checksum, size = checksum_file(str(path))
            assert path.name == f"xxh3_128-{checksum}-{size}" and path.parent.name == checksum[:2]

    def check_nothing_is_lost(self) -> None:
        self.check_kept_names_are_true()
        for name, data in CONTENT.items():
            source = self.table / name
            if source.exists():
                assert source.read_bytes() == data
            else:
                assert any(path.read_bytes() == data for path in self.kept()), name

    def check_swept(self) -> None:
        assert os.listdir(Path(self.root, "incoming")) == []
        assert sweep_incoming(self.root).finished == []


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def test_a_killed_recycling_of_a_directory_is_finished_by_the_sweep(ground: Ground) -> None:
    reported: set[int] = set()
    notes = ground.top / "notes"

    def lay() -> None:
        ground.lay()
        notes.write_text("")

    def check(_: int) -> None:
        swept = sweep_incoming(ground.root)
        recorded = set(notes.read_text().split()) | {one.path for one in swept.finished}
        gone = {str(ground.table / name) for name in CONTENT if not (ground.table / name).exists()}
        assert recorded == gone
        ground.check_nothing_is_lost()
        ground.check_swept()
        for one in swept.finished:
            assert one.path.startswith(str(ground.table))
            assert one.kept.size == len(CONTENT[one.path.removeprefix(f"{ground.table}/")])
        reported.add(len(swept.finished))
        assert not ground.table.exists() or (ground.table / "p=1/part-1").exists()  # all of it or nothing

    work = f"""
def record(recycled):
    with open({str(notes)!r}, "a") as file:
        file.write("".join(one.path + "\\n" for one in recycled))
cmroot.keep.keepers.recycle_tree({ground.root!r}, {str(ground.table)!r}, record=record)
"""
    assert at_every_step(work, lay, check) > 15
    assert reported == set(range(len(CONTENT) + 1))


def test_a_killed_recycling_of_a_file_is_finished_by_the_sweep(ground: Ground) -> None:
    def check(_: int) -> None:
        swept = sweep_incoming(ground.root)
        ground.check_nothing_is_lost()
        ground.check_swept()
        assert [one.path for one in swept.finished] in ([], [str(ground.table / "p=1/part-1")])

    work = f"cmroot.keep.keepers.recycle({ground.root!r}, {str(ground.table / 'p=1/part-1')!r})"
    assert at_every_step(work, ground.lay, check) >= 5


def test_a_killed_recycling_of_bytes_that_are_kept_already_loses_nothing(ground: Ground) -> None:
    from cmroot.keep.keepers import LinkKeeper

    def lay() -> None:
        ground.lay()
        for name in CONTENT:
            LinkKeeper(ground.root).keep(str(ground.table / name))

    def check(_: int) -> None:
        sweep_incoming(ground.root)
        ground.check_nothing_is_lost()
        ground.check_swept()

    work = f"cmroot.keep.keepers.recycle_tree({ground.root!r}, {str(ground.table)!r})"
    assert at_every_step(work, lay, check) > 10


@pytest.mark.parametrize("keeper", ["LinkKeeper", "CopyKeeper"])
def test_a_killed_keeper_leaves_the_source_and_true_names(ground: Ground, keeper: str) -> None:
    path = str(ground.table / "p=1/part-1")

    def check(_: int) -> None:
        sweep_incoming(ground.root)
        ground.check_swept()
        ground.check_kept_names_are_true()
        assert all((ground.table / name).read_bytes() == data for name, data in CONTENT.items())

    work = f"cmroot.keep.keepers.{keeper}({ground.root!r}).keep({path!r})"
    assert at_every_step(work, ground.lay, check) >= 2
    assert is_kept(ground.root, *checksum_file(path))


def test_a_killed_refiling_of_a_damaged_kept_file_loses_neither_content(ground: Ground) -> None:
    """A kept link was written into through its source; then the right bytes arrive again as another file."""
    from cmroot.keep.keepers import LinkKeeper

    again = ground.top / "w" / "again"

    def lay() -> None:
        ground.lay()
        LinkKeeper(ground.root).keep(str(ground.table / "part-0"))
        with open(ground.table / "part-0", "r+b") as file:
            file.write(b"EVIL")
        again.write_bytes(CONTENT["part-0"])
        (ground.table / "part-0").unlink()

    def check(number: int) -> None:
        sweep_incoming(ground.root)
        ground.check_swept()
        contents = {path.read_bytes() for path in (*ground.kept(), again)}
        assert contents >= {b"EVIL" + CONTENT["part-0"][4:], CONTENT["part-0"]}

    assert at_every_step(f"cmroot.keep.keepers.LinkKeeper({ground.root!r}).keep({str(again)!r})", lay, check) >= 4
    ground.check_kept_names_are_true()


@pytest.mark.long
def test_a_killed_recycling_onto_another_device_keeps_the_source_or_the_copy(ground: Ground) -> None:
    """The rename is refused as it would be between devices."""
    refuse = """
import errno
def refused(*ignored, **named): raise OSError(errno.EXDEV, "Invalid cross-device link")
os.rename = refused
"""

    def check(_: int) -> None:
        sweep_incoming(ground.root)
        ground.check_nothing_is_lost()
        ground.check_swept()

    work = refuse + f"cmroot.keep.keepers.recycle_tree({ground.root!r}, {str(ground.table)!r})"
    assert at_every_step(work, ground.lay, check) > 20
    assert not ground.table.exists()


def test_a_killed_lease_is_free_and_its_epoch_grows(ground: Ground) -> None:
    epochs: list[int] = []

    def check(_: int) -> None:
        with acquire(ground.root, "check") as lease:
            epochs.append(lease.epoch)
        with acquire(ground.root, "check again") as lease:
            assert lease.epoch == epochs[-1] + 1

    work = f"cmroot.lease.acquire({ground.root!r}, 'die')"
    assert at_every_step(work, ground.lay, check) >= 4
    assert epochs == sorted(epochs) and set(epochs) == {1, 2}


@pytest.mark.long
def test_a_killed_making_of_a_root_is_made_by_the_next(tmp_path: Path) -> None:
    place = str(tmp_path / "a" / "root")

    def check(_: int) -> None:
        root = create_or_open(place)
        assert sorted(name for name in os.listdir(place) if not name.startswith(".")) == [
            "FORMAT",
            *sorted(DIRECTORIES),
        ]
        assert create_or_open(place) == root

    work = f"cmroot.root.create_or_open({place!r})"
    assert at_every_step(work, lambda: shutil.rmtree(tmp_path / "a", ignore_errors=True), check) > 8


def test_a_killed_segment_is_whole_or_not_there(ground: Ground) -> None:
    def lay() -> None:
        ground.lay()
        with SegmentWriter(ground.root, 1) as writer:
            writer.append_record(b'{"position":1}')
            writer.finish(1)

    seen: set[int] = set()

    def check(_: int) -> None:
        found = segments(ground.root)
        for segment in found:
            segment.verify()
        last = found[-1].last
        seen.add(last)
        assert list(segments(ground.root)[0].records()) == [b'{"position":1}']
        if last == 3:
            assert [json.loads(line)["position"] for line in found[1].records()] == [2, 3]
            assert found[1].file_count == 1
        sweep_log(ground.root)
        assert len(os.listdir(Path(ground.root, "log"))) == len(found)
        with SegmentWriter(ground.root, last + 1) as writer:
            writer.finish(last + 1)
        with pytest.raises(FormatError):
            SegmentWriter(ground.root, last + 1)

    work = f"""
import pyarrow
from cmroot.log.captured import SegmentWriter
writer = SegmentWriter({ground.root!r}, 2)
writer.append_record(b'{{"position":2}}')
writer.append_record(b'{{"position":3}}')
writer.append_files(pyarrow.table({{"position": [2], "op": ["add"]}}))
writer.finish(3)
"""
    assert at_every_step(work, lay, check, imports=", cmroot.log.captured, pyarrow") > 10
    assert seen == {1, 3}
