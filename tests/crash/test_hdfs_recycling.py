"""Recycling by rename on HDFS: killed at every step, with writers at work, and where a rename is refused."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hadoop import Cluster
from hdfs_native import Client, WriteOptions
from steps import at_every_step

from cmroot.errors import NotWritable
from cmroot.keep.content import locate
from cmroot.keep.hdfs_keepers import create_snapshot, delete_snapshot
from cmroot.keep.keepers import Recycled, recycle, recycle_tree, sweep_incoming
from cmroot.keep.remote_files import DIRECTORY
from cmroot.root import create_or_open
from cmroot.store.checksum import checksum_at
from cmroot.store.hdfs_checksums import ask
from cmroot.store.listing import file_state
from cmroot.store.place import Place, join, parent
from replicator.replay.neighbours import Clearing, clear

pytestmark = pytest.mark.hdfs

CONTENT = {"f": b"one", "p=1/.g": b"two"}

COUNTED = """
from cmroot.store.hdfs import HdfsStore
from cmroot.store.hdfs import Hdfs
for owner, name in ((Hdfs, "mv"), (HdfsStore, "mkdirs")):
    setattr(owner, name, counted(getattr(owner, name)))
"""


class Ground:
    """A root and a table, laid again before each kill."""

    def __init__(self, top: str) -> None:
        self.root, self.table = join(top, "cmroot"), join(top, "t")

    def lay(self) -> None:
        (Place(self.root) / "files").remove_tree()
        create_or_open(self.root)
        with ThreadPoolExecutor(len(CONTENT)) as pool:
            list(pool.map(lambda each: (Place(self.table) / each[0]).write_bytes(each[1]), CONTENT.items()))

    def kept(self) -> list[str]:
        files = Place(self.root) / "files"
        return [str(files / name) for name in files.find()]

    def check(self, names: set[str]) -> None:
        """Those are kept, all other files are where they were, and nothing is left on the way."""
        for path in self.kept():
            assert path == locate(self.root, *checksum_at(path))
        assert {Place(path).read_bytes() for path in self.kept()} >= {CONTENT[name] for name in names}
        left = {name: (Place(self.table) / name).read_bytes() for name in Place(self.table).find()}
        assert left == {name: data for name, data in CONTENT.items() if name not in names}
        assert (Place(self.root) / DIRECTORY).list() == []


@pytest.fixture
def ground(hdfs: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))
    yield (found := Ground(f"{hdfs.url}/{tmp_path.name}"))
    Place(parent(found.root)).remove_tree()


def test_a_killed_recycling_is_finished_by_the_sweep(ground: Ground, tmp_path: Path) -> None:
    """All or nothing is taken, and each file is told at least once."""
    notes = tmp_path / "notes"
    seen: set[int] = set()

    def lay() -> None:
        ground.lay()
        notes.write_text("")

    def check(_: int) -> None:
        swept = sweep_incoming(ground.root)
        told = set(notes.read_text().split()) | {one.path for one in swept.finished}
        gone = {name for name in CONTENT if not (Place(ground.table) / name).exists()}
        assert told == {join(ground.table, name) for name in gone} and gone in (set(), set(CONTENT))
        ground.check(gone)
        assert sweep_incoming(ground.root).finished == []
        seen.add(len(swept.finished))

    work = f"""{COUNTED}
def record(recycled):
    with io.open({str(notes)!r}, "a") as file:
        file.write("".join(one.path + "\\n" for one in recycled))
cmroot.keep.keepers.recycle_tree({ground.root!r}, {ground.table!r}, record=record)
"""
    assert at_every_step(work, lay, check) > 5  # a rename to take them, one for each file
    assert seen == set(range(len(CONTENT) + 1))


def test_no_bytes_are_written_and_what_is_kept_is_young(ground: Ground, hdfs: Cluster) -> None:
    """Also where equal bytes were kept long ago."""
    ground.lay()
    client = Client(hdfs.url)
    again = Place(ground.table).parent / "again"
    again.write_bytes(CONTENT["p=1/.g"])
    before = len(hdfs.audit.read_text().splitlines())
    filed = file_state(str(again)).mtime_ns
    reported: list[Recycled] = []
    recycled = recycle_tree(ground.root, ground.table, record=reported.extend)
    for path in (str(again), *ground.kept()):
        client.set_times(path_of(path), 1000, 1000)
    kept = recycle(ground.root, str(again))
    top = f"src={path_of(parent(ground.root))}/"
    calls = [line for line in hdfs.audit.read_text().splitlines()[before:] if top in line]
    assert not [line for line in calls if "cmd=create" in line]
    assert len([line for line in calls if "cmd=rename" in line]) == 5  # a directory and a file, and each file
    assert reported == recycled and {one.path for one in recycled} == {join(ground.table, name) for name in CONTENT}
    ground.check(set(CONTENT))
    assert len(ground.kept()) == len(CONTENT) and kept.mtime_ns == 10**9
    assert file_state(locate(ground.root, kept.checksum, kept.size)).mtime_ns >= filed > 10**9


def test_a_directory_that_stays_is_emptied_without_a_question_about_each_entry(ground: Ground, hdfs: Cluster) -> None:
    """Its listing has named them."""
    ground.lay()
    before = len(hdfs.audit.read_text().splitlines())
    assert clear(ground.root, Clearing(ground.table, stays=True)) == len(CONTENT)
    asked = [line for line in hdfs.audit.read_text().splitlines()[before:] if "cmd=getfileinfo" in line]
    assert not [line for line in asked if f"src={path_of(ground.table)}/" in line]
    ground.check(set(CONTENT))
    assert Place(ground.table).children() == []


def test_a_file_that_is_being_written_is_taken_from_its_writer(ground: Ground, hdfs: Cluster) -> None:
    """What it writes later would not be what was hashed."""
    ground.lay()
    writer = Client(hdfs.url).create(path_of(join(ground.table, "open")), WriteOptions())
    writer.write(b"begun")
    writer.hsync()
    recycled = recycle_tree(ground.root, ground.table)
    assert {one.path: one.kept.size for one in recycled}[join(ground.table, "open")] == 5
    writer.write(b"later")
    with pytest.raises(RuntimeError):
        writer.close()
    ground.check(set(CONTENT))
    assert b"begun" in {Place(path).read_bytes() for path in ground.kept()}


def test_what_a_snapshot_holds_fast_is_kept_file_by_file(ground: Ground, hdfs: Cluster) -> None:
    ground.lay()
    ask(ground.table, "ALLOWSNAPSHOT", "PUT")
    create_snapshot(ground.table, "s")
    assert {one.path for one in recycle_tree(ground.root, ground.table)} == {
        join(ground.table, name) for name in CONTENT
    }
    ground.check(set(CONTENT))
    assert Place(join(ground.table, ".snapshot", "s", "f")).read_bytes() == CONTENT["f"]
    delete_snapshot(ground.table, "s")
    ask(ground.table, "DISALLOWSNAPSHOT", "PUT")


def test_who_may_not_rename_is_told_so_and_nothing_is_taken(
    ground: Ground, hdfs: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.lay()
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    monkeypatch.setenv("HADOOP_CONF_DIR", f"{hdfs.conf}/.")  # a client of its own
    with pytest.raises(NotWritable):
        recycle_tree(ground.root, ground.table)
    monkeypatch.undo()
    ground.check(set())


def path_of(place: str) -> str:
    return "/" + place.partition("://")[2].partition("/")[2]
