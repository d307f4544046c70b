"""The life of a warehouse on HDFS, with a real NameNode and DataNode: chains of increments, kills, restores, expiry.
What lies there is looked at over WebHDFS."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

import gobblin_examples as examples
import pytest
from command_line import Answer, command
from faults import Fault, delayed, run_with
from hadoop import Cluster
from hdfs_path import HdfsPath
from housekeeping import EXPIRED, UNREFERENCED, LifecycleFixture
from lab import Lab
from metastores import MetastoreFactory
from plain_tables import PlainDatabase
from purges import DESCRIPTOR, Warehouse
from restore_fixture import RestoreFixture, differences, restore, restore_arguments
from waiting import pause

from cmroot.root import create_or_open, open_existing
from cmroot.store.hdfs import HdfsStore
from replicator.lifecycle.purge.backup_actions import restore_backup
from replicator.lifecycle.purge.certificate_file import Certificate
from replicator.lifecycle.purge.certify import Replica
from replicator.lifecycle.purge.options import BackupRestoreSettings, PurgeOptions
from replicator.lifecycle.purge.rewrite import rewrite_task
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
def sides(
    metastore_factory: MetastoreFactory, hdfs: Cluster, on_hdfs: Callable[[str], Running]
) -> tuple[Running, Running]:
    """Two metastores whose default filesystem is HDFS. Jobs that remove read every table of the first."""
    return metastore_factory("source", settings={"fs.defaultFS": hdfs.url}), on_hdfs("target")


@pytest.fixture
def here(hdfs: Cluster, tmp_path: Path) -> HdfsPath:
    return HdfsPath(hdfs, f"/{tmp_path.name}")


@pytest.fixture
def story(here: HdfsPath, sides: tuple[Running, Running]) -> Lab:
    """Source, `$cmroot`, dumps and target, all on HDFS."""
    found = Lab(*sides, here, warehouse=here / "replica")  # type: ignore[arg-type]
    found.source = PlainDatabase(connect(sides[0].uri), found.name, here / "warehouse")
    return found


def succeeds(*answers: Answer) -> None:
    for answer in answers:
        assert answer.code == 0, answer


def killed(fault: Fault, arguments: Sequence[str], root: HdfsPath) -> None:
    """What the killed run held is free again when its time is over, which here is at once."""
    ended = run_with(fault, arguments)
    assert ended.killed, ended
    for lease in (each for each in root.rglob("*") if each.parent.name == "lease"):
        lease.write_text(json.dumps(json.loads(lease.read_bytes()) | {"expires": 1}))


class Killed(BaseException):
    """Nothing of the product catches it."""

    @classmethod
    def now(cls, *_: object) -> NoReturn:
        raise cls


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


def test_a_chain_of_dumps_is_loaded_while_all_of_it_vanishes(story: Lab) -> None:
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


@pytest.mark.long
def test_whoever_is_killed_is_run_again(story: Lab) -> None:
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


def test_what_was_comes_back_and_what_nobody_needs_expires(story: Lab) -> None:
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
    lost = restore(story, then.event, "--into", f"{story.name}_lost", *where)
    assert lost.code != 0 and f"{story.name}_lost" not in then.databases(), lost


def test_a_spoiled_replica_is_repaired(story: Lab) -> None:
    source, target = story.source, story.target
    source.create()
    source.table("plain", {"f": "1\tone\n", "g": "2\ttwo\n", "h": "3\tthree\n"})
    source.partitioned("parts", {"x": {"f": "1\tx\n"}, "y": {"f": "2\ty\n"}})
    story.bootstrap()
    target.write("plain", {"f": "1\tONE\n", "extra": "4\tfour\n"})
    (target.home / "plain" / "g").unlink()
    target.drop_partitions("parts", ["x"])
    both = ("--source", story.source_uri, "--target", story.target_uri, "--db", story.name, "--engine", "local")
    assert command("verify", *both, "--level", "checksum").code == 4
    repair = ["repair", *both, "--cmroot", str(story.cmroot), "--target-cmroot", str(story.target_cmroot)]
    planned = command(*repair, "--dry-run")
    assert planned.output["files_to_copy"] == 3, planned
    killed(Fault("after", "rename", r"\.db/plain/"), repair, story.target_cmroot)
    succeeds(command(*repair), command("verify", *both, "--level", "checksum"))
    story.is_same()
    kept = {each.read_bytes() for each in (story.target_cmroot / "files").rglob("*")}
    assert kept >= {b"1\tONE\n", b"4\tfour\n"}


def test_housekeeping_and_its_undoing(
    here: HdfsPath, sides: tuple[Running, Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an old location, of partitions whose time is over, and of a run that is killed between two of them."""
    url = f"sqlite:///{tmp_path}/items"
    life = LifecycleFixture(connect(sides[0].uri), f"kept_{here.name}"[:60].lower(), here, url)  # type: ignore[arg-type]
    life.table("t", properties=UNREFERENCED)
    life.partitioned("p", ["1", "2", "3"], **EXPIRED)
    life.run()
    life.relocate("t", str(life.write("t_new", "new rows")))
    assert life.run().scheduled == 1
    assert life.run(3.1, rehearse=True).removed == 1 and life.place("t").exists()
    life.db.alter("p", **{"beekeeper.expired.data.retention.period": "PT1S"})
    run = ["housekeeping", "run", "--metastore", sides[0].uri, "--cmroot", str(life.root.place), "--store", url]
    cmroot = here / "cmroot"
    pause(2, "the period of a second, by the clock of a command")
    killed(Fault("after", "rename", r"/recycling/.*/p=2$"), [*run, "--engine", "local"], cmroot)
    done = life.run(3.1)
    assert done.status == "done" and life.values("p") == [], (
        done.failed,
        done.refused,
        done.invalid,
        done.status,
        life.states(),
    )
    assert not life.place("t").exists() and (life.place("t_new") / "a").read_bytes() == b"new rows"
    assert not list(life.place("p").rglob("*"))
    kept = {each.read_bytes() for each in (cmroot / "files").rglob("*")}
    assert kept >= {b"rows of t", *(b"rows of p/%d" % number for number in (1, 2, 3))}
    again = command("audit", "undo", "--cmroot", str(cmroot), "--run", done.run)
    assert again.code == 0 and (life.place("t") / "a").read_bytes() == b"rows of t", again


def removers(cmroot: HdfsPath) -> set[str]:
    """The runs that have removed anything."""
    answer = command("audit", "ls", "--cmroot", str(cmroot), "--outcome", "removed")
    return {row["run"] for row in answer.output["rows"]}


@pytest.mark.parametrize("job", ["times", "dates"])
def test_retention_and_its_undoing(here: HdfsPath, sides: tuple[Running, Running], tmp_path: Path, job: str) -> None:
    """By the times of directories, or by dates in their names, with a run that is killed between two files."""
    config, lake = tmp_path / "job.conf", here / "lake" / "user" / "gobblin"
    config.write_text(examples.TIME_BASED if job == "times" else examples.SEVERAL_KINDS)
    now = datetime.now(ZoneInfo("America/Los_Angeles"))
    for name, age in {"a/old": 7.1, "a/young": 6.9, "b/older": 30.0, "b/new": 0.0}.items():
        day = f"{now - timedelta(days=20 if 'old' in name else 1):%Y/%m/%d}"
        place = lake / name if job == "times" else lake / f"data/{name.replace('/', '-')}/daily/{day}"
        for file in ("part-0", ".meta"):
            (place / file).write_text(f"{name} {file}")
        place.touch(time.time() - age * 86_400)

    def left() -> dict[str, bytes]:
        return {str(each): each.read_bytes() for each in lake.rglob("*")}

    before, cmroot = left(), here / "cmroot"
    create_or_open(str(cmroot))
    run = ["retention", "run", str(config), "--cmroot", str(cmroot), "--root", str(here / "lake")]
    run += ["--metastore", sides[0].uri, "--engine", "local"]
    planned = command(*run, "--dry-run")
    assert (planned.code, [item["files"] for item in planned.output["items"]]) == (0, [2, 2]), planned
    killed(Fault("after", "rename", r"/cmroot/files/"), run, cmroot)
    assert sum(b"old" in text for text in left().values()) < 4
    succeeds(command(*run))
    assert left() == {name: text for name, text in before.items() if b"old" not in text}
    assert not list((cmroot / "retention").rglob("removing-*"))
    for run_id in sorted(removers(cmroot)):
        succeeds(command("audit", "undo", "--cmroot", str(cmroot), "--run", run_id))
    for run_id in sorted(removers(cmroot)):  # that of the first undo, too, for what the killed run had not recorded
        succeeds(command("audit", "undo", "--cmroot", str(cmroot), "--run", run_id))
    assert left() == before


def test_a_published_snapshot_stays_for_its_readers(here: HdfsPath, sides: tuple[Running, Running]) -> None:
    pair = Lab(*sides, here, publish="snapshot", publish_delay="1h")  # type: ignore[arg-type]
    source = pair.db("a")
    source.table("plain", {"one": "1", "two": "2"})
    source.partitioned("days", {"1": {"x": "1x"}, "2": {"y": "2y"}})
    pair.sync()

    def place(table: str) -> HdfsPath:
        location = pair.target.metastore.table(source.name, table).location
        return HdfsPath(here.cluster, str(location).removeprefix(here.cluster.url))

    def read(place: HdfsPath) -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in place.rglob("*")}

    before = place("plain")
    source.write("plain", {"two": "22", "three": "3"})
    source.drop_partitions("days", ["1"])
    pair.sync()
    assert read(before) == {"one": b"1", "two": b"2"}
    assert read(place("plain")) == {"one": b"1", "two": b"22", "three": b"3"} and place("plain") != before
    pair.keys["publish_delay"] = "1ms"
    pair.sync()
    assert not before.exists()
    kept = {each.read_bytes() for each in (here / "target" / ".cmroot" / "files").rglob("*")}
    assert {b"2", b"1x"} <= kept <= {b"1", b"2", b"1x"}
    assert pair.target.metastore.partition_names(source.name, "days") == ["p=2"]


@pytest.mark.long
def test_a_purge_reaches_replicas_and_roots_and_is_certified(
    here: HdfsPath, sides: tuple[Running, Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before it changes the table; undone and done again."""
    warehouse = Warehouse(sides[0], tmp_path)
    pair = Lab(*sides, here)  # type: ignore[arg-type]
    db, name = f"{pair.name}_a", b"member-of-the-club-40"
    try:
        warehouse.sql(
            f"CREATE DATABASE {db} LOCATION '{here}/source/{db}.db'",
            f"CREATE TABLE {db}.t (id BIGINT, v STRING) PARTITIONED BY (k INT) ROW FORMAT DELIMITED FIELDS"
            f" TERMINATED BY ',' STORED AS TEXTFILE TBLPROPERTIES ({DESCRIPTOR})",
            f"INSERT INTO {db}.t SELECT id, concat('member-of-the-club-', id), int(id DIV 100)"
            " FROM range(0, 200, 1, 2)",
        )
        pair.sync()

        def having(place: HdfsPath) -> list[str]:
            return [str(each) for each in place.rglob("*") if name in each.read_bytes()]

        root = open_existing(str(here / "cmroot"))
        before = warehouse.rows(f"{db}.t")
        old = here / "source" / f"{db}.db" / "t" / "k=0"
        client_of = HdfsStore(str(old)).filesystem.client
        client_of.set_permission(HdfsStore(str(old)).key(str(old)), 0o750)
        client_of.set_owner(HdfsStore(str(old)).key(str(old)), "ann", "risk")
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(rewrite_task, "_replace", Killed.now)
            warehouse.purge(root, warehouse.ids, db)
        assert warehouse.rows(f"{db}.t") == before
        done = warehouse.purge(root, warehouse.ids, db)
        assert (done.status, done.rows_erased) == ("done", 10), done
        after = [row for row in before if row[0] >= 100 or row[0] % 10]
        assert warehouse.rows(f"{db}.t") == after
        (unit,) = done.tables[0].units
        for place in (unit["new"], unit["aside"]):
            given = client_of.get_file_info(HdfsStore(place).key(place))
            assert (given.permission, given.owner, given.group) == (0o750, "ann", "risk")
        assert unit["new"].endswith(f"{old}".partition("/source/")[2]) and not having(old), "the location is the same"
        assert unit["reason"].startswith("the new files lack rights of the old ones: xattr ("), "WebHDFS is off here"
        client, of = warehouse.metastore, f"{db}.t"
        assert restore_backup(client, root, BackupRestoreSettings(of, "k=0")).status == "restored"
        assert warehouse.rows(of) == before
        assert restore_backup(client, root, BackupRestoreSettings(of, "k=0", undo=True)).status == "restored"
        assert warehouse.rows(of) == after

        def prove(expedited: bool) -> Certificate:
            policy = pair.policy
            replica = Replica(
                policy.name, connect(policy.target), policy.target_cmroot, policy.target_name, lambda *_: True
            )
            asked = PurgeOptions(warehouse.ids, db, "privacy.column")
            return warehouse.certify(root, asked, replica, expedited=expedited)

        pair.sync()
        assert (
            prove(False).status == "remaining" and having(here / "cmroot") and not having(here / "target" / f"{db}.db")
        )
        prove(True)
        pair.sync()
        certified = prove(True)
        assert certified.status == "certified", certified.holding
        assert having(here) == []
    finally:
        warehouse.close()
