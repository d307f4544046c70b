"""The life of a warehouse on HDFS, with a real NameNode and DataNode: chains of increments, kills, restores, expiry.
What lies there is looked at over WebHDFS."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from faults import Fault, delayed, run_with
from hadoop import Cluster
from hdfs_path import HdfsPath
from metastores import MetastoreFactory
from plain_tables import PlainDatabase
from replication_fixture import Answer, ReplicationFixture, command
from restore_fixture import RestoreFixture, differences, restore, restore_arguments

from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

pytestmark = pytest.mark.hdfs

CAPTURER = [
    Fault("after", "rename", r"/cmroot/files/"),  # kept, and no log names it yet
    Fault("before", "rename", r"-writing.*/_segment\.json"),
    Fault("before", "commit", "manifest"),  # the segment counts, the manifest does not know it
]
DUMPER = [Fault("before", "rename", r"/_dumpmetadata$"), Fault("before", "rename", r"/_finished_dump$")]
LOADER = [
    Fault("after", "thrift", "alter database"),  # the database says that a load has begun
    Fault("after", "rename", r"/\.cmroot/files/"),  # what is removed is kept
    Fault("before", "thrift", "drop 1 partition"),
    Fault("after", "rename", r"\.db/plain/"),  # one file is new, the other is not
    Fault("before", "thrift", "alter database", 2),  # all is committed, and no checkpoint says so
]


@pytest.fixture(scope="module")
def sides(metastore_factory: MetastoreFactory, far_hdfs: Cluster) -> tuple[Running, Running]:
    """Two metastores whose default filesystem is HDFS."""
    default = {"fs.defaultFS": far_hdfs.url}
    return metastore_factory("source", settings=default), metastore_factory("target", settings=default)


@pytest.fixture
def here(far_hdfs: Cluster, tmp_path: Path) -> HdfsPath:
    return HdfsPath(far_hdfs, f"/{tmp_path.name}")


@pytest.fixture
def story(here: HdfsPath, sides: tuple[Running, Running]) -> ReplicationFixture:
    """Source, `$cmroot`, dumps and target, all on HDFS."""
    found = ReplicationFixture(*sides, here, warehouse=here / "replica")  # type: ignore[arg-type]
    found.source = PlainDatabase(connect(sides[0].uri), found.db, here / "warehouse")
    return found


def succeeds(*answers: Answer) -> None:
    for answer in answers:
        assert answer.code == 0, answer


def killed(fault: Fault, arguments: Sequence[str], root: HdfsPath) -> None:
    """What the killed run held is free again when its time is over, which here is at once."""
    ended = run_with(fault, arguments)
    assert ended.killed, ended
    for lease in (root / "lease").iterdir():
        lease.write_text(json.dumps(json.loads(lease.read_bytes()) | {"expires": 1}))


class Then(RestoreFixture):
    """On HDFS."""

    def state(self, db: str | None = None, uri: str | None = None) -> dict[str, Any]:
        warehouse = self.fixture.warehouse if db else self.source.home.parent
        found = PlainDatabase(self.source.metastore, db or self.source.name, warehouse).shown()
        assert (found["ext"].pop("place") == str(self.outside)) == (db is None)  # a restore has its own copy
        return found

    def kept(self, text: str) -> Any:
        place = super().kept(text)
        return self.fixture.cmroot / "files" / place.parent.name / place.name


def test_a_chain_of_dumps_is_loaded_while_all_of_it_vanishes(story: ReplicationFixture) -> None:
    source, shown = story.source, []
    source.create()
    source.table("plain", {"f": "1\tone\n", "g": "2\ttwo\n"})
    source.partitioned("parts", {"x": {"f": "1\tx\n"}, "y": {"f": "2\ty\n"}})
    for number in range(3):
        succeeds(story.dump(since=story.last if number else None))
        shown.append(source.shown())
        source.write("plain", {"f": f"{number}\tanother\n", f"new{number}": "3\tthree\n"})
        source.drop_partitions("parts", ["xyz"[number]])
        source.add("parts", {"zuv"[number]: {"f": f"{number}\tz\n"}})
    loads = [story.here / f"dump{number}" for number in (1, 2, 3)]

    def vanish() -> None:
        source.drop("plain")
        source.drop("parts")

    fault = Fault("before", "rename", r"/replica/.*/plain/")
    ended = delayed(fault, story.load_arguments(loads[0]), vanish)
    assert ended.reached and ended.code == 0, ended
    assert story.target.shown() == shown[0]
    for dump, wanted in zip(loads[1:], shown[1:], strict=True):
        succeeds(story.load(dump))
        assert story.target.shown() == wanted
    story.catch_up()
    assert story.target.shown() == {}


def test_whoever_is_killed_is_run_again(story: ReplicationFixture) -> None:
    """Capture, dump and load, each killed between two lines, again and again."""
    source = story.source
    source.create()
    source.table("plain", {"f": "1\tone\n", "g": "2\ttwo\n"})
    source.partitioned("parts", {"x": {"f": "1\tx\n"}, "y": {"f": "2\ty\n"}})
    story.bootstrap()
    source.write("plain", {"f": "1\tanother\n", "g": "2\tthe other\n"})
    source.drop_partitions("parts", ["x"])
    source.add("parts", {"z": {"f": "3\tz\n"}})
    for fault in CAPTURER:
        killed(fault, story.capture_arguments(), story.cmroot)
    succeeds(story.capture())
    before = story.last
    story.dumps += 1
    for fault in DUMPER:
        killed(fault, story.dump_arguments(story.last, since=before), story.cmroot)
    succeeds(story.dump(out=story.last, since=before))
    for fault in LOADER:
        killed(fault, story.load_arguments(story.last), story.target_cmroot)
    succeeds(story.load())
    story.is_same()
    kept = {each.read_bytes() for each in (story.target_cmroot / "files").rglob("*")}
    assert kept == {b"1\tone\n", b"2\ttwo\n", b"1\tx\n"}


def test_what_was_comes_back_and_what_nobody_needs_expires(story: ReplicationFixture) -> None:
    then = Then(story)

    def kept() -> int:
        return len(list((story.cmroot / "files").rglob("*")))

    where = ("--warehouse", str(story.warehouse), "--target-cmroot", str(story.target_cmroot))
    arguments = restore_arguments(story, then.event, *where)
    killed(Fault("after", "rename", rf"/{then.into}\.db/"), arguments, story.target_cmroot)
    succeeds(restore(story, then.event, "--force", *where))
    assert not differences(then.state(then.into), then.before)
    every = kept()
    expire = ["cm", "expire", "--cmroot", str(story.cmroot), "--older-than", "0s", "--engine", "local"]
    planned = command(*expire, "--dry-run")
    assert planned.code == 0 and kept() == every
    killed(Fault("after", "unlink", r"/cmroot/files/"), expire, story.cmroot)
    succeeds(command(*expire))
    gone = [each for each in ("1", "dropped", "a", "outside") if not then.kept(each).exists()]
    assert gone == ["1", "dropped", "a", "outside"]
    assert all(then.kept(each).exists() for each in ("new", "2", "3", "b", "later", "outside, other"))
    lost = restore(story, then.event, "--into", f"{story.db}_lost", *where)
    assert lost.code != 0 and f"{story.db}_lost" not in then.databases(), lost


def test_a_spoiled_replica_is_repaired(story: ReplicationFixture) -> None:
    source, target = story.source, story.target
    source.create()
    source.table("plain", {"f": "1\tone\n", "g": "2\ttwo\n", "h": "3\tthree\n"})
    source.partitioned("parts", {"x": {"f": "1\tx\n"}, "y": {"f": "2\ty\n"}})
    story.bootstrap()
    target.write("plain", {"f": "1\tONE\n", "extra": "4\tfour\n"})
    (target.home / "plain" / "g").unlink()
    target.drop_partitions("parts", ["x"])
    both = ("--source", story.source_uri, "--target", story.target_uri, "--db", story.db, "--engine", "local")
    assert command("verify", *both, "--level", "checksum").code == 4
    repair = ["repair", *both, "--cmroot", str(story.cmroot), "--target-cmroot", str(story.target_cmroot)]
    planned = command(*repair, "--dry-run")
    assert planned.output["files_to_copy"] == 3, planned
    killed(Fault("after", "rename", r"\.db/plain/"), repair, story.target_cmroot)
    succeeds(command(*repair), command("verify", *both, "--level", "checksum"))
    story.is_same()
    kept = {each.read_bytes() for each in (story.target_cmroot / "files").rglob("*")}
    assert kept >= {b"1\tONE\n", b"4\tfour\n"}
