"""Captures below a snapshottable directory of HDFS list what the difference of two snapshots names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from command_line import Answer, command
from hadoop import Cluster, running_hdfs
from hdfs_native import Client, WriteOptions
from hdfs_path import HdfsPath
from lab import Lab
from plain_tables import PlainDatabase

import cmroot.keep.hdfs_keepers as keeping
import replicator.captures.capture_snapshots as comparing
from cmroot.keep.content import Query, Reference, find
from cmroot.keep.hdfs_keepers import made_snapshots
from cmroot.keep.versions import open_version, why_versions_unseen
from cmroot.log.captured import segments
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

pytestmark = pytest.mark.hdfs


class SnapshotStory(Lab):
    """The source's warehouse is snapshottable; the rest is local."""

    def __init__(self, cluster: Cluster, source: Running, target: Running, here: Path) -> None:
        super().__init__(source, target, here, warehouse=here / "replica")
        self.home = HdfsPath(cluster, f"/{here.name}")
        self.source = PlainDatabase(connect(source.uri), self.name, self.home / "warehouse")
        self.home.mkdir()
        self.home.allow_snapshots()
        self.source.create()
        self.source.table("plain", {"f": "1\tone\n", "g": "2\ttwo\n"})
        self.source.partitioned("parts", {"x": {"f": "1\tx\n"}, "y": {"f": "2\ty\n"}, "é ü%20": {"f": "3\tz\n"}})

    ALL = ("parts", "parts/p=x", "parts/p=y", "parts/p=é ü%20", "plain")
    """What a complete scan lists: tables, partitions, and the directory of the partitioned table without them."""

    def place(self, path: str) -> HdfsPath:
        return self.source.home / path

    def scan(self, *more: str) -> tuple[Answer, list[str]]:
        """A capture, and the directories of the source that it listed."""
        with self.listed() as found:
            captured = self.capture(*more)
        assert captured.code == 0, captured
        return captured, found

    @contextmanager
    def listed(self) -> Iterator[list[str]]:
        log, found = self.home.cluster.audit, list[str]()
        start = log.stat().st_size
        yield found
        top = self.source.home.path + "/"
        for line in log.read_bytes()[start:].decode().splitlines():
            fields = dict(each.partition("=")[::2] for each in line.split("\t"))
            if fields.get("cmd") == "listStatus" and fields["src"].startswith(top):
                found.append(fields["src"].encode().decode("unicode_escape").removeprefix(top))
        found.sort()

    def base(self) -> str:
        """The name of the newest snapshot; the root knows all that there are."""
        names = self.home.snapshots()
        assert set(names) <= set(entries(self))
        return names[-1]


@pytest.fixture(scope="module")
def sides(on_hdfs: Callable[[str], Running], target_metastore: Running) -> tuple[Running, Running]:
    return on_hdfs("source"), target_metastore


@pytest.fixture
def story(
    hdfs: Cluster, sides: tuple[Running, Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SnapshotStory:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))
    return SnapshotStory(hdfs, *sides, tmp_path)


def test_only_what_changed_without_an_event_is_listed(story: SnapshotStory) -> None:
    story.bootstrap()
    base = story.base()
    idle, listed = story.scan()
    assert (listed, idle.output["files"], idle.output["warnings"]) == ([], 0, [])
    assert story.base() == base

    story.source.write("parts/p=x", {"new": "7\tseven\n"})
    changed, listed = story.scan()
    assert (set(listed), changed.output["files"]) == ({"parts/p=x"}, 1)
    assert story.base() != base

    (story.place("plain") / "g").unlink()
    (story.place("parts") / "p=é ü%20").rename(story.place("aside"))
    story.place("parts/p=y").rename(story.place("parts/p=é ü%20"))
    story.place("aside").rename(story.place("parts/p=y"))
    swapped, listed = story.scan()
    assert set(listed) == {"plain", "parts", "parts/p=y", "parts/p=é ü%20"}  # files may have been renamed there
    assert swapped.output["files"] == 2
    story.catch_up()
    assert story.scan()[1] == []


def test_files_of_no_partition_are_listed_if_a_difference_names_one(story: SnapshotStory) -> None:
    def changed() -> int:
        captured, listed = story.scan()
        assert set(listed) == {"parts"}
        return int(captured.output["files"])

    story.source.write("parts", {"_SUCCESS": ""})
    story.bootstrap()
    assert (story.target.home / "parts/_SUCCESS").read_text() == ""
    story.source.write("parts", {"notes": "of all\n"})
    assert changed() == 1
    file = Client(story.home.cluster.url).append(story.place("parts/notes").path)
    file.write(b"more\n")
    file.close()
    assert changed() == 1
    (story.place("parts") / "_SUCCESS").unlink()
    assert changed() == 0
    story.catch_up()
    assert (story.target.home / "parts/notes").read_text() == "of all\nmore\n"
    assert not (story.target.home / "parts/_SUCCESS").exists()

    story.source.write("parts/_spark_metadata", {"0": "v1\n"})
    assert set(story.scan()[1]) == {"parts", "parts/_spark_metadata"}
    story.source.write("parts/_spark_metadata", {"1": "v1\n"})
    story.source.write("parts/_temporary/0", {"unfinished": "x"})
    assert set(story.scan()[1]) == {"parts", "parts/_spark_metadata"}
    story.source.write("parts/_temporary/0", {"more": "x"})
    assert story.scan()[1] == []
    story.catch_up()
    assert sorted(path.name for path in (story.target.home / "parts/_spark_metadata").iterdir()) == ["0", "1"]


def test_events_and_their_files_are_captured_beside(story: SnapshotStory) -> None:
    story.bootstrap()
    story.source.add("parts", {"new": {"f": "4\tn\n"}})
    story.source.rename("plain", "plainer")
    story.source.drop_partitions("parts", ["x"])
    story.source.table("other", {"f": "5\to\n"})
    story.catch_up()
    story.base()
    assert story.scan()[1] == []


def test_a_directory_that_went_away_is_named_until_it_is_back(story: SnapshotStory) -> None:
    story.bootstrap()
    story.place("parts/p=x").rename(story.home / "elsewhere")
    for _ in range(2):
        gone = story.capture()
        assert "p=x" in str(gone.output["missing_directories"]), gone
    (story.home / "elsewhere").rename(story.place("parts/p=x"))
    story.catch_up()
    assert story.scan()[1] == []


def test_a_scan_in_turns_lists_what_the_difference_names(story: SnapshotStory) -> None:
    turn = ("--scan-time", "0s")
    assert "parts/p=x" in story.scan(*turn, "--keeper", "none")[1]
    assert story.home.snapshots() == []  # not everything was looked at
    story.bootstrap()
    base = story.base()
    story.source.write("parts/p=x", {"new": "7\tseven\n"})
    changed, listed = story.scan(*turn)
    assert (set(listed), changed.output["files"]) == ({"parts/p=x"}, 1)
    assert story.base() != base
    assert story.scan(*turn)[1] == []


def test_without_its_snapshot_everything_is_listed(story: SnapshotStory) -> None:
    story.bootstrap()
    story.home.delete_snapshot(story.base())
    story.source.write("plain", {"new": "7\tseven\n"})
    captured, listed = story.scan()
    assert listed == [*story.ALL]
    assert "Cannot find the snapshot" in str(captured.output["warnings"]), captured
    story.catch_up()

    story.home.delete_snapshot(story.base())
    story.home.allow_snapshots(False)
    story.source.write("plain", {"newer": "8\teight\n"})
    assert story.scan()[1] == [*story.ALL]
    story.catch_up()
    assert story.scan()[1] == [*story.ALL]


def test_a_lost_manifest_costs_a_listing(story: SnapshotStory) -> None:
    story.bootstrap()
    story.source.write("plain", {"new": "7\tseven\n"})
    for each in story.cmroot.glob("manifest.sqlite*"):
        each.unlink()
    assert story.scan()[1] == [*story.ALL]
    story.catch_up()
    story.base()
    assert story.scan()[1] == []


def test_now_and_then_everything_is_listed(story: SnapshotStory, monkeypatch: pytest.MonkeyPatch) -> None:
    story.bootstrap()
    assert story.scan()[1] == []
    assert story.scan("--deep")[1] == [*story.ALL]
    monkeypatch.setattr(comparing, "PROVED", timedelta())
    assert story.scan()[1] == [*story.ALL]
    monkeypatch.undo()


@pytest.mark.parametrize("made", [False, True], ids=["before it is made", "after it is made"])
def test_a_snapshot_of_a_capture_that_died_is_swept(
    story: SnapshotStory, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.bootstrap()
    base = story.base()
    story.source.write("plain", {"new": "7\tseven\n"})
    create = keeping.create_snapshot

    def die(directory: str, name: str) -> None:
        if made:
            create(directory, name)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(keeping, "create_snapshot", die)
        assert story.capture().code == 130
    assert len(story.home.snapshots()) == 1 + made and len(made_snapshots(str(story.cmroot))) == 2
    story.catch_up()
    assert story.base() != base


def written(place: HdfsPath, data: bytes) -> object:
    """A file that is still open."""
    file = Client(place.cluster.url).create(place.path, WriteOptions(overwrite=True, create_parent=True))
    file.write(data)
    return file


def test_a_file_that_was_open_is_found_when_it_is_complete(story: SnapshotStory) -> None:
    story.bootstrap()
    file = written(story.place("plain/open"), b"8\teight\n")
    story.source.write("parts/p=x", {"other": "7\tseven\n"})
    assert set(story.scan()[1]) == {"plain", "parts/p=x"}
    file.close()  # type: ignore[attr-defined]
    assert set(story.scan()[1]) == {"plain"}
    story.catch_up()


def test_where_snapshots_do_not_tell_of_open_files_everything_is_listed(
    sides: tuple[Running, Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hdfs").mkdir()
    with running_hdfs(tmp_path / "hdfs", **{"dfs.namenode.snapshot.capture.openfiles": "false"}) as cluster:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(cluster.conf))
        story = SnapshotStory(cluster, *sides, tmp_path)
        story.bootstrap()
        file = written(story.place("plain/open"), b"8\teight\n")
        story.scan()
        file.close()  # type: ignore[attr-defined]
        captured, listed = story.scan()
        assert listed == [*story.ALL] and "capture.openfiles" in str(captured.output["warnings"])
        story.catch_up()
        assert story.home.snapshots() == []


def kept(story: SnapshotStory) -> list[str]:
    """What was copied into the root."""
    return [path.name for path in (story.cmroot / "files").rglob("*") if "xxh3" in path.name]


def found(story: SnapshotStory, table: str) -> list[Reference]:
    """The files of a table that the log names."""
    return find(str(story.cmroot), segments(str(story.cmroot)), Query(table=f"{story.name}.{table}")).references


def read(reference: Reference) -> bytes:
    assert reference.version
    with open_version(reference.place, reference.version, reference.size) as file:
        return file.read()


def entries(story: SnapshotStory) -> list[str]:
    return [each.name for each in made_snapshots(str(story.cmroot))]


def test_what_the_source_dropped_comes_from_its_snapshot(story: SnapshotStory) -> None:
    captured = story.capture()
    assert captured.output["keeper"] == "snapshot", captured
    dumped = story.dump()
    assert dumped.code == 0, dumped
    assert str(story.home) in why_versions_unseen(str(story.place("parts/p=x")))
    shown = story.source.shown()
    story.source.drop("plain")
    story.source.drop_partitions("parts", ["x"])
    story.source.write("parts/p=y", {"f": "9\treplaced\n"})
    loaded = story.load()
    assert loaded.code == 0, loaded
    assert story.target.shown() == shown
    assert not kept(story)
    story.catch_up()


def test_files_of_a_snapshot_that_expired_are_in_a_later_one(story: SnapshotStory) -> None:
    story.bootstrap()
    (first,) = story.home.snapshots()
    for number in range(3):
        story.source.write("parts/p=x", {f"new{number}": f"{number}\tnew\n"})
        story.catch_up()
    assert story.home.snapshots() == entries(story) and len(entries(story)) == 4
    held = command("cm", "expire", "--cmroot", str(story.cmroot), "--older-than", "0s", "--dry-run")
    assert held.code == 0, held
    assert len(story.home.snapshots()) == 4
    expired = command("cm", "expire", "--cmroot", str(story.cmroot), "--older-than", "0s")
    assert expired.code == 0, expired
    assert len(expired.output["removed_snapshots"]) == 3 and first in str(expired.output["removed_snapshots"])
    assert story.home.snapshots() == entries(story) and len(entries(story)) == 1
    assert all(first in str(each.version) for each in found(story, "plain"))
    story.source.drop("plain")
    assert {read(each) for each in found(story, "plain")} == {b"1\tone\n", b"2\ttwo\n"}


def test_what_a_hold_needs_stays_in_its_snapshot(story: SnapshotStory) -> None:
    story.bootstrap()
    (first,) = story.home.snapshots()
    held = command("cm", "hold", "before", "--cmroot", str(story.cmroot))
    assert held.code == 0, held
    story.source.drop("plain")
    story.catch_up()
    story.source.write("parts/p=x", {"new": "7\tnew\n"})
    story.catch_up()
    kept = command("cm", "expire", "--cmroot", str(story.cmroot), "--older-than", "0s")
    assert kept.code == 0 and first in story.home.snapshots(), kept
    released = command("cm", "release", "before", "--cmroot", str(story.cmroot))
    assert released.code == 0, released
    expired = command("cm", "expire", "--cmroot", str(story.cmroot), "--older-than", "0s")
    assert expired.code == 0 and first not in story.home.snapshots(), expired


def test_what_came_after_the_snapshot_is_copied(story: SnapshotStory, monkeypatch: pytest.MonkeyPatch) -> None:
    create = keeping.create_snapshot

    def late(directory: str, name: str) -> None:
        create(directory, name)
        story.source.write("plain", {"late": "5\tlate\n", "g": "6\treplaced\n"})

    with monkeypatch.context() as patch:
        patch.setattr(keeping, "create_snapshot", late)
        dumped = story.dump()
    assert dumped.code == 0 and len(kept(story)) == 2, dumped
    shown = story.source.shown()
    story.source.drop("plain")
    loaded = story.load()
    assert loaded.code == 0, loaded
    assert story.target.shown() == shown


def test_snapshots_that_somebody_deleted_are_made_again(story: SnapshotStory) -> None:
    dumped = story.dump()
    assert dumped.code == 0, dumped
    story.home.delete_snapshot(story.base())
    story.place("plain/f").unlink()
    loaded = story.load()
    assert loaded.code == 1, loaded
    assert [each["file"].rpartition("/")[2] for each in loaded.output["missing"]] == ["f"]
    assert story.capture().code == 0
    story.place("plain/g").unlink()
    (g,) = (each for each in found(story, "plain") if each.path == "g")
    assert read(g) == b"2\ttwo\n"

    story.home.delete_snapshot(story.base())
    story.home.allow_snapshots(False)
    assert story.capture().output["keeper"] == "copy"
    assert len(kept(story)) == 3  # all that the source has still


def test_the_snapshot_keeper_is_refused_where_there_are_none(story: SnapshotStory) -> None:
    story.home.allow_snapshots(False)
    refused = story.capture("--keeper", "snapshot")
    assert refused.code != 0 and "allowSnapshot" in str(refused.output["hint"]), refused
