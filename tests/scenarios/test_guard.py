"""What every job that removes obeys: rules, legal holds, the living metastore, the record; and what it removed comes
back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from engines import local_engine
from plain_tables import PlainDatabase, text_storage
from waiting import pause

import replicator
from cmroot.errors import Exists, FormatError
from cmroot.pins import iso
from cmroot.root import ChangeRoot, create_or_open
from replicator.cli.main import run as command
from replicator.core.audit import Removal, begin_audit, read_audit
from replicator.core.model import EXTERNAL, Table
from replicator.core.runtime import Runtime
from replicator.errors import ObjectNotFound, Refused, UsageError
from replicator.lifecycle.removal.job import Job, Removals, Remover, bring_back
from replicator.lifecycle.removal.live import LiveLocations
from replicator.lifecycle.removal.removal import (
    LegalHold,
    Limits,
    add_hold,
    judge,
    read_holds,
    refuse_excess,
    release_hold,
)
from replicator.metastore.thrift import ThriftMetastore
from replicator.policies.roles import Role, RoleMark, set_role

NOW = 1_700_000_000.0


def removal(path: str, **more: object) -> Removal:
    return Removal(path=path, what="path", reason="the test says so", **more)  # type: ignore[arg-type]


def hold(name: str, pattern: str, until: str = "") -> LegalHold:
    return LegalHold(name=name, pattern=pattern, reason="case 17", by="me", created="2026-01-01", until=until)


# ---- rules, without a metastore -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "limits", "reported"),
    [
        ("/warehouse", Limits(), "has depth 1"),
        ("s3://bucket/a", Limits(), "has depth 1"),
        ("s3a://bucket/a/b", Limits(protected=("s3://bucket/a/b/c",)), "protected"),
        ("/w/a/b", Limits(protected=("file:/w/a",)), "protected"),
        ("/w/ab", Limits(protected=("/w/a",)), ""),
        ("/w/a", Limits(min_depth=3), "has depth 2"),
        ("file:/nowhere/a/b/../..", Limits(), "has depth 1"),
        ("s3a://bucket/a/b/../c/..", Limits(), "has depth 1"),
    ],
)
def test_depth_and_protected_places(path: str, limits: Limits, reported: str) -> None:
    judged = judge([removal(path)], limits, [])
    assert (reported in judged.refused[0].why) if reported else judged.allowed


@pytest.mark.parametrize(
    ("pattern", "object", "partition", "path", "covered"),
    [
        ("sales.orders", "Sales.Orders", "", "/x/y", True),
        ("sales.orders", "sales.orders", "day=1", "/x/y", True),
        ("sales.*", "sales.orders", "day=1", "/x/y", True),
        ("sales.orders/day=2026-*", "sales.orders", "day=2026-01-01", "/x/y", True),
        ("sales.orders/day=2026-*", "sales.orders", "day=2025-01-01", "/x/y", False),
        ("sales.orders/day=2026-*", "sales.orders", "", "/x/y", True),
        ("sales.orders", "sales.orders_old", "", "/x/y", False),
        ("s3a://lake/claims/", "", "", "s3://lake/claims/2024", True),
        ("/x/y/z", "", "", "/x/y", True),
        ("/x/yy", "", "", "/x/y", False),
        ("sales.orders", "", "", "/x/y", False),
    ],
)
def test_a_legal_hold_covers(pattern: str, object: str, partition: str, path: str, covered: bool) -> None:
    judged = judge([removal(path, object=object, partition=partition)], Limits(), [hold("h", pattern)])
    assert bool(judged.refused) == covered
    assert not covered or "case 17" in judged.refused[0].why


def test_legal_holds_end_are_released_and_a_damaged_one_stops_everything(tmp_path: Path) -> None:
    root = create_or_open(str(tmp_path / "cm")).place
    add_hold(root, msgspec.structs.replace(hold("past", "a.b", until="2020-01-01"), created="2019-01-01"))
    add_hold(root, hold("now", "a.b", until="2030-01-01"))
    assert [each.name for each in read_holds(root, NOW)] == ["now"]
    with pytest.raises(Exists):
        add_hold(root, hold("now", "c.d"))
    for wrong in (
        hold("x/y", "a.b"),
        hold("x", "nonsense"),
        hold("x", "a.b", until="tomorrow"),
        hold("x", "a.b", until="2025-01-01"),
    ):
        with pytest.raises(UsageError):
            add_hold(root, wrong)
    release_hold(root, "now")
    with pytest.raises(ObjectNotFound):
        release_hold(root, "now")
    (tmp_path / "cm" / "legal" / "bad").write_text("{")
    with pytest.raises(FormatError, match="nothing may be removed"):
        read_holds(root, NOW)
    release_hold(root, "bad")
    assert read_holds(root, NOW) == []


def test_a_run_that_would_remove_too_much_is_refused_as_a_whole() -> None:
    found = judge([removal("/w/a/1", bytes=60), removal("/w/a/2", bytes=50)], Limits(), [])
    refuse_excess(found, Limits(max_share=0.5, max_bytes=110), 4, "partitions")
    with pytest.raises(Refused, match="2 of 3 partitions") as refused:
        refuse_excess(found, Limits(max_share=0.5), 3, "partitions")
    assert refused.value.exit_code == 6
    with pytest.raises(Refused, match="110 bytes"):
        refuse_excess(found, Limits(max_bytes=109), 100, "partitions")


# ---- the living metastore -------------------------------------------------------------------------------------------


@pytest.fixture
def db(metastore: ThriftMetastore, tmp_path: Path) -> PlainDatabase:
    made = PlainDatabase(metastore, f"guard_{tmp_path.name.lower()}"[:60].replace("-", "_"), tmp_path / "w")
    made.create()
    return made


@pytest.fixture
def root(tmp_path: Path) -> ChangeRoot:
    return create_or_open(str(tmp_path / "cm"))


def remover(root: ChangeRoot, live: LiveLocations, limits: Limits | None = None) -> Remover:
    engine = local_engine()
    return Remover(root.place, begin_audit(root.place, "test"), live, limits or Limits(), engine)


def move(db: PlainDatabase, table: str, value: str, place: Path) -> None:
    (found,) = next(iter(db.metastore.partitions(db.name, table, [f"p={value}"])))
    storage = msgspec.structs.replace(found.storage, location=f"file:{place}")
    db.metastore.alter_partitions(db.name, table, [msgspec.structs.replace(found, storage=storage)])


KILLED = """
import os, signal, sys
from replicator.metastore.thrift import connect
from replicator.lifecycle.removal.live import LiveLocations
with connect(sys.argv[1]) as metastore, LiveLocations(metastore) as live:
    for number in range(100_000):
        live._put(f"/warehouse/table/p={number}", "data", "db", "table", f"p={number}")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_nothing_of_what_a_metastore_refers_to(db: PlainDatabase, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KILLED, db.metastore.uri], env=environment)
    assert done.returncode == -signal.SIGKILL
    assert list(scratch.iterdir()) == []


def test_what_a_metastore_refers_to_blocks_what_is_at_above_and_below_it(db: PlainDatabase, tmp_path: Path) -> None:
    db.partitioned("t", {"1": {"a": "x"}, "2": {"a": "y"}})
    db.table("u", {"a": "z"}, kind=EXTERNAL)
    (tmp_path / "link").symlink_to(db.home)
    with LiveLocations(db.metastore) as live:

        def blocked(place: Path | str, **own: str) -> str:
            found = live.blocking(str(place), **own)
            return found.object if found else ""

        name = db.name
        assert blocked(db.home / "t" / "p=1") == f"{name}.t/p=1"
        assert blocked(f"file:{db.home}/t/p=1/") == f"{name}.t/p=1"
        assert blocked(db.home / "t" / "p=1" / "deeper") == f"{name}.t/p=1", "lies in live data"
        assert blocked(db.home / "u" / "v1") == f"{name}.u", "lies in a table's data"
        assert blocked(db.home / "t" / "p=3") == "", "a partitioned table's directory is not data"
        assert blocked(db.home / "t" / "p=10") == "", "a name that begins alike is another"
        assert blocked(db.home / "t")
        assert blocked(db.home)
        assert blocked(tmp_path / "link" / "t" / "p=2") == f"{name}.t/p=2", "a link leads there"
        assert blocked(db.home / "t" / "p=1", object=f"{name}.T", partition="p=1") == "", "what goes with it"
        assert blocked(db.home / "t" / "p=1", object=f"{name}.t") == ""
        assert blocked(db.home / "t", object=f"{name}.t", partition="p=1") != ""


def test_what_events_say_since_is_known_at_the_next_look(db: PlainDatabase, tmp_path: Path) -> None:
    db.partitioned("t", {"1": {"a": "x"}})
    elsewhere = tmp_path / "w" / "elsewhere"
    with LiveLocations(db.metastore) as live:

        def blocked(place: Path) -> bool:
            live.refresh()
            return live.blocking(str(place)) is not None

        home = db.home / "t"
        assert not blocked(elsewhere)
        move(db, "t", "1", elsewhere)
        assert blocked(elsewhere) and not blocked(home / "p=1")
        move(db, "t", "1", home / "p=1")
        assert blocked(home / "p=1") and not blocked(elsewhere)
        db.add("t", {"2": {"a": "y"}})
        assert blocked(home / "p=2")
        db.metastore.drop_partitions(db.name, "t", ["p=2"])
        assert not blocked(home / "p=2")
        db.table("u", {"a": "z"})
        assert blocked(db.home / "u")
        table = db.metastore.table(db.name, "u")
        db.metastore.alter_table(db.name, "u", msgspec.structs.replace(table, name="renamed"))
        there = db.metastore.table(db.name, "renamed").location
        assert there and blocked(Path(there.removeprefix("file:")))
        db.metastore.drop_table(db.name, "renamed")
        assert not blocked(Path(there.removeprefix("file:")))
        rows = len(live)
    with LiveLocations(db.metastore) as again:
        assert len(again) == rows, "what events said is what a walk finds"


@pytest.mark.parametrize(
    "spelled", ["{home}/sales/../held/t", "{home}//held/./t", "{home}/link/t", "{home}/../wh/held"]
)
@pytest.mark.parametrize("rule", ["file:{home}/held", "{home}/link", "file://{home}/sales/../held/t/p=1"])
def test_a_held_place_is_held_by_every_name(tmp_path: Path, spelled: str, rule: str) -> None:
    """Holds and protected places were compared as text, so `..` and links passed by them."""
    home = tmp_path / "wh"
    (home / "held" / "t" / "p=1").mkdir(parents=True)
    (home / "sales").mkdir()
    (home / "link").symlink_to(home / "held")
    asked, reported = removal(f"file:{spelled.format(home=home)}"), rule.format(home=home)
    assert "legal hold" in judge([asked], Limits(), [hold("h", reported)]).refused[0].why
    assert "protected" in judge([asked], Limits(protected=(reported,)), []).refused[0].why
    beside = removal(f"{home}/sales/../held2")
    assert judge([beside], Limits(protected=(reported,)), [hold("h", reported)]).allowed == [beside]


def test_a_place_of_which_nobody_can_tell_where_it_leads_stays(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    lost = removal(str(tmp_path / "a" / "x"))
    assert "cannot resolve" in judge([lost], Limits(), []).refused[0].why
    with pytest.raises(OSError, match="levels"):
        judge([removal("/w/a/b")], Limits(), [hold("h", str(tmp_path / "a" / "x"))])


def test_a_partition_in_use_by_another_name_is_in_use(db: PlainDatabase) -> None:
    db.table("t", {"a": "x"})
    (db.home / "link").symlink_to(db.home / "t")
    db.metastore.create_table(linked := Table(db=db.name, name="u", storage=text_storage(db.home / "x/../link")))
    assert linked.location
    with LiveLocations(db.metastore) as live:
        for place in (f"{db.home}/x/../t", f"{db.home}/link", f"file:{db.home}/./t"):
            assert {each.table for each in live.references(place)} == {"t", "u"}


def test_removed_directories_are_in_cmroot_are_recorded_and_come_back(
    db: PlainDatabase, root: ChangeRoot, capsys: pytest.CaptureFixture[str]
) -> None:
    db.partitioned("t", {"1": {"a": "live"}})
    db.write("t/old-1", {"a": "one", "sub": "two"})
    db.write("t/old-2", {"b": "three"})
    db.write("t/held", {"c": "four"})
    add_hold(root.place, hold("h", f"file:{db.home}/t/held"))
    with LiveLocations(db.metastore) as live:
        hands = remover(root, live)
        wanted = [
            removal(str(db.home / "t" / name), object=f"{db.name}.t")
            for name in ("old-1", "old-2", "held", "p=1", "gone")
        ]
        judged = hands.look(wanted)
        assert [Path(each.path).name for each in judged.allowed] == ["old-1", "old-2", "gone"]
        assert list(read_audit(root.place)) == [], "a look records nothing"
        done = hands.remove(wanted)
    assert (done.files, done.bytes, len(done.removals)) == (3, 11, 3)
    assert {Path(each.removal.path).name for each in done.refused} == {"held", "p=1"}
    assert not (db.home / "t" / "old-1").exists()
    assert (db.home / "t" / "p=1" / "a").read_text() == "live"
    assert (db.home / "t" / "held" / "c").exists()

    rows = list(read_audit(root.place, job="test"))
    assert [row.outcome for row in rows if row.what == "path"].count("intended") == 3
    files = [row for row in rows if row.what == "file"]
    assert sum(row.bytes or 0 for row in files) == 11 and all(row.checksum for row in files)
    assert all(row.reason == "the test says so" and "@" in row.who for row in rows)
    directory = Path(root.place) / "audit" / "test" / hands.audit.run
    assert pq.read_table(directory).num_rows == len(rows), "one Parquet dataset"

    assert command(["audit", "ls", "--cmroot", root.place, "--path", f"{db.home}/t/old-1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {row["what"] for row in shown["rows"]} == {"path", "file"}
    arguments = ["audit", "restore", "--cmroot", root.place, "--run", hands.audit.run, "--json"]
    assert command([*arguments, "--dry-run"]) == 0
    assert not (db.home / "t" / "old-1").exists()
    assert command(arguments) == 0
    assert (db.home / "t" / "old-1" / "sub").read_text() == "two"
    assert bring_back(root.place, hands.audit.run).files == 0, "what is there stays"
    with pytest.raises(ObjectNotFound):
        bring_back(root.place, "no-such-run")


def next_second() -> int:
    begun = int(time.time()) + 1
    pause(begun - time.time(), "moments of backups are whole seconds, and tasks have no clock of a test")
    return begun


def test_files_of_an_earlier_directory_at_the_same_place_stay_away(db: PlainDatabase, root: ChangeRoot) -> None:
    place = db.home / "t" / "old"
    runs = []
    for name in ("erased", "kept"):
        begun = next_second()
        db.write("t/old", {name: name})
        with LiveLocations(db.metastore) as live:
            hands = remover(root, live)
            assert hands.remove([removal(str(place), object=f"{db.name}.t")]).files == 1
        runs.append(iso(begun))
    back = bring_back(root.place, None, job="test", path=str(place), since=runs[1])
    assert back.files == 1 and [each.name for each in place.iterdir()] == ["kept"]
    assert bring_back(root.place, None, job="test", path=str(place), since=runs[0]).files == 1
    assert {each.name for each in place.iterdir()} == {"erased", "kept"}


def test_holds_and_the_record_are_reports_in_python(root: ChangeRoot, capsys: pytest.CaptureFixture[str]) -> None:
    added = replicator.legal_hold_add("case-17", cmroot=root.place, pattern="sales.*", reason="case 17")
    assert added.hold in read_holds(root.place, NOW)
    assert command(["legal-hold", "ls", "--cmroot", root.place, "--json"]) == 0
    listed = replicator.legal_hold_ls(cmroot=root.place)
    assert json.loads(capsys.readouterr().out) == listed.to_dict() and listed.holds == [added.hold]
    with pytest.raises(Exists):
        replicator.legal_hold_add("case-17", cmroot=root.place, pattern="sales.*", reason="again")
    assert replicator.legal_hold_release("case-17", cmroot=root.place).to_dict() == {
        "status": "released",
        "root": root.place,
        "name": "case-17",
    }
    begin_audit(root.place, "test").intended([removal("/w/a", object="sales.t"), removal("/w/b", object="sales.u")])
    shown = replicator.audit_ls(cmroot=root.place, object="SALES.T")
    assert shown.to_arrow().select(["path", "outcome"]).to_pylist() == [{"path": "/w/a", "outcome": "intended"}]
    none = replicator.audit_ls(cmroot=root.place, object="no.t").to_arrow()
    assert none.num_rows == 0 and none.column_names == shown.to_arrow().column_names
    assert replicator.audit_ls(cmroot=root.place, limit=1).more
    later = begin_audit(root.place, "earlier in the alphabet")
    later.intended([removal("/w/c", object="sales.v")])
    first, last = (replicator.audit_ls(cmroot=root.place, newest=each, limit=1) for each in (False, True))
    assert (first.found[0].run, last.more) == (later.run, True)
    assert last.found[0].time == max(row.time for row in replicator.audit_ls(cmroot=root.place).found)
    assert command(["audit", "ls", "--cmroot", root.place, "--object", "sales.t", "--json"]) == 0
    assert capsys.readouterr().out == json.dumps(shown.to_dict()) + "\n"
    with pytest.raises(ObjectNotFound):
        replicator.audit_undo(cmroot=root.place, run=shown.found[0].run)


def test_nothing_of_a_replica_is_removed(db: PlainDatabase, root: ChangeRoot) -> None:
    db.write("t/old", {"a": "x"})
    with LiveLocations(db.metastore) as live:
        hands, old = remover(root, live), removal(str(db.home / "t" / "old"), object=f"{db.name}.t")
        assert hands.look([old]).allowed
        set_role(db.metastore, db.name, RoleMark(Role.REPLICA, 1), expect=RoleMark(), settle=timedelta(0))
        assert "replica" in hands.look([old]).refused[0].why


def test_a_lost_directory_of_legal_holds_stops_all_removals(db: PlainDatabase, root: ChangeRoot) -> None:
    db.write("old", {"a": "x"})
    add_hold(root.place, hold("h", "sales.*"))
    shutil.rmtree(Path(root.place, "legal"))
    create_or_open(root.place)
    with LiveLocations(db.metastore) as live:
        for act in (remover(root, live).look, remover(root, live).remove):
            with pytest.raises(FormatError, match="legal: missing"):
                act([removal(str(db.home / "old"))])
    with pytest.raises(FormatError, match="legal: missing"):
        add_hold(root.place, hold("i", "sales.*"))
    Path(root.place, "legal").mkdir()
    assert read_holds(root.place, NOW) == []


@dataclass
class Dropped(Removals):
    status: str = ""
    run: str = ""
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_whole(self) -> bool:
        return True


class Careless(Job[Table, Dropped]):
    """Acts when it should only show."""

    name = purpose = "careless"
    tables: list[Table]

    def report(self) -> Dropped:
        return Dropped()

    def pages(self) -> list[Table]:
        return self.tables

    def carry_out(self, page: Table) -> None:
        assert self.metastore
        self.metastore.drop_table(page.db, page.name)

    show = carry_out


def test_a_rehearsal_cannot_change_the_metastore(db: PlainDatabase, root: ChangeRoot) -> None:
    db.table("t", {"a": "x"})
    engine = local_engine()
    with Careless(root=root, metastore=db.metastore, runtime=Runtime(engine)) as job:
        job.tables = [db.metastore.table(db.name, "t")]
        with pytest.raises(AssertionError):
            job.run(dry_run=True)
        assert db.metastore.table_names(db.name) == ["t"]
        assert not Path(root.place, "careless").exists(), "nor is a lease taken"
        done = job.run()
    assert (done.status, done.run[:2], db.metastore.table_names(db.name)) == ("done", "20", [])


def test_a_symbolic_link_is_not_removed(db: PlainDatabase, root: ChangeRoot, tmp_path: Path) -> None:
    db.write("other", {"a": "theirs"})
    (db.home / "link").symlink_to(db.home / "other")
    with LiveLocations(db.metastore) as live:
        done = remover(root, live).remove([removal(str(db.home / "link"))])
    assert "symbolic link" in done.refused[0].why
    assert (db.home / "other" / "a").read_text() == "theirs"


def test_a_killed_task_leaves_its_record_line_by_line(root: ChangeRoot, tmp_path: Path) -> None:
    from cmroot.keep.recycle import recycle_tree

    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("bytes")
    audit = begin_audit(root.place, "test", clock=time.time)
    with pytest.raises(KeyboardInterrupt), audit.recorder() as recorder:
        recorder.finish = lambda name: None  # type: ignore[method-assign]  # what a kill -9 leaves undone
        recycle_tree(root.place, str(tmp_path / "d"), record=recorder.of(removal(str(tmp_path / "d"))))
        raise KeyboardInterrupt
    (row,) = read_audit(root.place, run=audit.run)
    assert (row.path, row.bytes, row.outcome) == (str(tmp_path / "d" / "f"), 5, "removed")
