"""A purge that is killed loses nothing, and the same command takes it up again; two at once exclude each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from faults import Fault, delayed, run_with
from hmsclient.genthrift.hive_metastore import ttypes
from purges import DESCRIPTOR, Warehouse

from cmroot.root import ChangeRoot
from replicator.cli.main import run
from replicator.core.model import ColumnStatistic, Statistics
from replicator.errors import FilesMissing, LeaseHeld, ObjectNotFound, Refused
from replicator.lifecycle.purge import replacing
from replicator.lifecycle.purge.backup_actions import restore_backup
from replicator.lifecycle.purge.backups import backups
from replicator.lifecycle.purge.options import BackupRestoreSettings, PurgeOptions
from replicator.lifecycle.purge.state import runs
from replicator.metastore.codecs import struct_to_tjson


def count(warehouse: Warehouse, db: str, rows: int) -> None:
    """As `ANALYZE TABLE` of Impala and of Spark note it on a partitioned table."""
    table = warehouse.metastore.table(db, "t")
    counts = {
        "numRows": str(rows),
        "spark.sql.statistics.numRows": str(rows),
        "spark.sql.statistics.totalSize": "1000000",
    }
    warehouse.metastore.alter_table(db, "t", msgspec.structs.replace(table, parameters={**table.parameters, **counts}))


def counted(warehouse: Warehouse, db: str) -> tuple[str | None, ...]:
    parameters = warehouse.metastore.table(db, "t").parameters
    return parameters.get("numRows"), parameters.get("spark.sql.statistics.numRows")


@pytest.mark.parametrize(
    "fault",
    [
        Fault("after", "link", "/_purge-"),
        Fault("after", "thrift", r"alter \d+ partition"),
        pytest.param(Fault("before", "thrift", "alter table c"), marks=pytest.mark.long),
        pytest.param(Fault("after", "thrift", "alter table c"), marks=pytest.mark.long),
    ],
    ids=lambda fault: str(fault).replace(" ", "-"),
)
def test_a_killed_purge_is_taken_up_again(warehouse: Warehouse, fault: Fault, request: pytest.FixtureRequest) -> None:
    db = f"c{request.node.callspec.indices['fault']}"
    warehouse.sql(
        f"CREATE DATABASE {db}",
        f"CREATE TABLE {db}.t (id BIGINT) PARTITIONED BY (k INT) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO {db}.t SELECT id, int(id DIV 200) FROM range(0, 400, 1, 4)",
    )
    wanted = [row for row in warehouse.rows(f"{db}.t") if row[0] >= 100 or row[0] % 10]
    count(warehouse, db, 400)
    root = warehouse.root(db)
    arguments = [
        "purge",
        "run",
        "--metastore",
        warehouse.running.uri,
        "--cmroot",
        root.place,
        "--ids",
        warehouse.ids,
        "--table-whitelist",
        db,
        "--field-path",
        "privacy.column",
        "--master",
        "local[2]",
    ]
    assert run_with(fault, arguments).killed
    assert warehouse.rows(f"{db}.t") == wanted or len(warehouse.rows(f"{db}.t")) == 400

    again = warehouse.purge(root, warehouse.ids, db)

    assert again.status == "done" and again.resumed
    assert warehouse.rows(f"{db}.t") == wanted
    assert counted(warehouse, db) == ("390", "390")
    assert [directory.read_run().status for directory in runs(root.place)] == ["done"]
    (unit,) = [unit for unit in runs(root.place)[0].units().values() if unit.backup]
    assert (unit.state, unit.partition) == ("DONE", "k=0")
    home = Path(warehouse.metastore.table(db, "t").location.removeprefix("file:"))  # type: ignore[union-attr]
    assert {path.name for path in home.rglob("_purge-*")} == {Path(unit.aside).parent.name}


IN_PLACE = {
    "not begun": Fault("before", "rename", r"/t/k=0/part-"),
    "first file": Fault("after", "rename", r"/t/k=0/part-"),
    "last file": Fault("before", "rename", r"/t/k=0/part-", 3),
    "all files": Fault("after", "rename", r"/t/k=0/part-", 3),
    "aside": Fault("after", "link", r"/_purge-\d+/k=0/part-", 2),
}


UNREAD = "of a file that no reader reads"


def notes(warehouse: Warehouse, db: str) -> set[str]:
    """What copies of the file have that no reader reads."""
    return {path.read_text() for path in Path(warehouse.home_of(f"{db}.t")).rglob("_notes")}


def three_files(warehouse: Warehouse, db: str) -> list[tuple[object, ...]]:
    """A table with ids in each of three files of one partition. Returns the rows that stay."""
    warehouse.sql(
        f"CREATE DATABASE {db}",
        f"CREATE TABLE {db}.t (id BIGINT) PARTITIONED BY (k INT) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO {db}.t SELECT /*+ REPARTITION_BY_RANGE(3, id) */ id, 0 FROM range(0, 100)",
    )
    (home,) = Path(warehouse.home_of(f"{db}.t")).glob("k=0")
    assert len(list(home.glob("part-*"))) == 3
    (home / "_notes").write_text(UNREAD)
    return [row for row in warehouse.rows(f"{db}.t") if row[0] % 10]


@pytest.mark.parametrize("again", ["purge", "retain"])
@pytest.mark.parametrize("when", IN_PLACE)
def test_a_swap_that_is_killed_between_two_files_shows_each_row_once(
    warehouse: Warehouse, when: str, again: str
) -> None:
    db = f"swap_{when}_{again}".replace(" ", "_")
    staying, root = three_files(warehouse, db), warehouse.root(db)
    place = ["--metastore", warehouse.running.uri, "--cmroot", root.place]
    arguments = ["--table-whitelist", db, "--field-path", "privacy.column", "--master", "local[2]"]
    killed = run_with(IN_PLACE[when], ["purge", "run", *place, "--ids", warehouse.ids, *arguments])
    assert killed.killed and killed.reached, killed
    shown = warehouse.rows(f"{db}.t")
    assert [row for row in shown if row[0] % 10] == staying and len(set(shown)) == len(shown)
    begun = when not in ("not begun", "aside")
    assert (len(shown) < 100) == begun
    with pytest.raises(ObjectNotFound):
        restore_backup(warehouse.metastore, root, BackupRestoreSettings(f"{db}.t", "k=0"))
    if again == "retain":
        assert run(["purge", "retain", *place, "--json"]) == 0
        assert len(warehouse.rows(f"{db}.t")) == (90 if begun else 100)
        assert notes(warehouse, db) == {UNREAD}
    done = warehouse.purge(root, warehouse.ids, db)
    assert (done.status, done.rows_erased) == ("done", 10), "also those that were erased before the kill"
    assert warehouse.rows(f"{db}.t") == staying and notes(warehouse, db) == {UNREAD}
    (backup,) = backups(root.place)
    home = Path(warehouse.home_of(f"{db}.t"))
    assert [path.name for path in home.rglob("_purge-*")] == [Path(backup.place).parent.name]
    assert len(list(Path(backup.place.removeprefix("file:")).glob("part-*"))) == 3
    assert backup.unit.rows_after == 90 and backup.unit.matched == 10
    warehouse.sql(f"ALTER TABLE {db}.t DROP PARTITION (k=0)", f"ALTER TABLE {db}.t ADD PARTITION (k=0)")
    assert warehouse.rows(f"{db}.t") == []


@pytest.mark.parametrize("when", ["first file", "all files", "aside"])
def test_an_undo_that_is_killed_is_completed_by_the_next(warehouse: Warehouse, when: str) -> None:
    db = f"undo_{when}".replace(" ", "_")
    staying, root = three_files(warehouse, db), warehouse.root(db)
    place = ["--metastore", warehouse.running.uri, "--cmroot", root.place]
    assert warehouse.purge(root, warehouse.ids, db).rows_erased == 10
    killed = run_with(IN_PLACE[when], ["purge", "undo", f"{db}.t", "k=0", *place])
    assert killed.killed and killed.reached, killed
    assert [row for row in warehouse.rows(f"{db}.t") if row[0] % 10] == staying
    again = restore_backup(warehouse.metastore, root, BackupRestoreSettings(f"{db}.t", "k=0"))
    assert again.status == "restored" and len(warehouse.rows(f"{db}.t")) == 100
    assert notes(warehouse, db) == {UNREAD}
    revert = BackupRestoreSettings(f"{db}.t", "k=0", undo=True)
    assert restore_backup(warehouse.metastore, root, revert).status == "restored"
    assert warehouse.rows(f"{db}.t") == staying


def test_an_undo_keeps_the_backup_of_a_file_that_another_writer_replaces(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_files(warehouse, "undo_beside")
    root = warehouse.root("undo_beside")
    assert warehouse.purge(root, warehouse.ids, "undo_beside").rows_erased == 10
    (backup,) = backups(root.place)
    before = {path.name: path.read_bytes() for path in Path(backup.place.removeprefix("file:")).glob("part-*")}
    home, real = Path(warehouse.home_of("undo_beside.t")) / "k=0", replacing._run

    def writes(step: Any, *arguments: Any) -> Any:
        if step == "replace":
            (home / "new").write_text("of another writer")
            (home / "new").rename(home / min(before))
        return real(step, *arguments)

    monkeypatch.setattr(replacing, "_run", writes)
    with pytest.raises(Refused, match="1 files were changed concurrently"):
        restore_backup(warehouse.metastore, root, BackupRestoreSettings("undo_beside.t", "k=0"))
    assert {path.name: path.read_bytes() for path in Path(backup.place.removeprefix("file:")).glob("part-*")} == before
    assert (home / min(before)).read_text() == "of another writer"
    assert [(home / name).read_bytes() == before[name] for name in sorted(before)] == [False, True, True]


@pytest.mark.parametrize("again", ["retain", pytest.param("another", marks=pytest.mark.long)])
def test_who_comes_after_a_killed_purge_settles_its_counts(warehouse: Warehouse, again: str) -> None:
    db = f"after_{again}"
    warehouse.sql(
        f"CREATE DATABASE {db}",
        f"CREATE TABLE {db}.t (id BIGINT) PARTITIONED BY (k INT) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO {db}.t SELECT id, int(id DIV 200) FROM range(0, 400, 1, 4)",
    )
    count(warehouse, db, 400)
    root = warehouse.root(db)
    place = ["--metastore", warehouse.running.uri, "--cmroot", root.place]
    arguments = ["--table-whitelist", db, "--field-path", "privacy.column", "--master", "local[2]"]
    killed = ["purge", "run", *place, "--ids", warehouse.ids, *arguments]
    assert run_with(Fault("after", "thrift", r"alter \d+ partition"), killed).killed
    if again == "retain":
        assert run(["purge", "retain", *place, "--json"]) == 0
        assert counted(warehouse, db) == ("390", "390")
        assert warehouse.purge(root, warehouse.ids, db).status == "done"
    else:
        warehouse.sql(f"CREATE TABLE {db}.more AS SELECT 110L AS member")
        assert warehouse.purge(root, f"{db}.more:member", db).status == "done"
        assert counted(warehouse, db) == ("389", "389")
        restore_backup(warehouse.metastore, root, BackupRestoreSettings(f"{db}.t", "k=0"))
        assert counted(warehouse, db) == ("390", "390")


def two_days(warehouse: Warehouse, db: str) -> tuple[ChangeRoot, list[str], list[tuple[object, ...]]]:
    """A table of which both partitions have been purged, with its root, what commands name them by, and its rows."""
    warehouse.sql(
        f"CREATE DATABASE {db}",
        f"CREATE TABLE {db}.t (id BIGINT) PARTITIONED BY (k INT) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO {db}.t SELECT id, int(id DIV 50) FROM range(0, 100, 1, 2)",
    )
    rows, root = warehouse.rows(f"{db}.t"), warehouse.root(db)
    assert warehouse.purge(root, warehouse.ids, db).partitions_swapped == 2
    return root, ["--metastore", warehouse.running.uri, "--cmroot", root.place], rows


def taken_over(root: ChangeRoot) -> None:
    """What an operator does who takes a holder that hangs for dead."""
    Path(root.place, "purge", "lease").unlink()


NOW = ["--grace", "0s", "--days", "0d", "--versions", "0"]


def test_a_retain_that_was_taken_over_removes_nothing_more(warehouse: Warehouse) -> None:
    root, place, rows = two_days(warehouse, "late")

    def meanwhile() -> None:
        taken_over(root)
        for each in ("k=0", "k=1"):
            assert run(["purge", "restore", "late.t", each, *place, "--json"]) == 0

    intended = Fault("after", "rename", r"/audit/purge/.*\.parquet")
    ended = delayed(intended, ["purge", "retain", *place, *NOW], meanwhile)
    assert (ended.code, json.loads(ended.out)["error"]) == (7, "LeaseHeld"), ended
    assert warehouse.rows("late.t") == rows


def test_a_retain_that_was_taken_over_between_two_backups_removes_no_other(warehouse: Warehouse) -> None:
    root, place, _ = two_days(warehouse, "between")
    homes = {Path(each.place.removeprefix("file:")) for each in backups(root.place)}
    assert len(homes) == 2 and all(home.exists() for home in homes)
    first = Fault("after", "link", r"/purge/.*/units/")
    ended = delayed(first, ["purge", "retain", *place, *NOW], lambda: taken_over(root))
    assert (ended.code, json.loads(ended.out)["error"]) == (7, "LeaseHeld"), ended
    recycled = [unit for each in runs(root.place) for unit in each.units().values() if unit.backup == "recycled"]
    assert len(recycled) == 1 and not any(home.exists() for home in homes)
    assert run(["purge", "retain", *place, *NOW, "--json"]) == 0
    assert [unit.backup for each in runs(root.place) for unit in each.units().values()] == ["recycled"] * 2


def test_a_restore_that_was_taken_over_swaps_nothing(warehouse: Warehouse) -> None:
    root, place, _ = two_days(warehouse, "back")
    purged = warehouse.rows("back.t")

    def meanwhile() -> None:
        taken_over(root)
        assert run(["purge", "retain", *place, *NOW, "--json"]) == 0

    decided = Fault("after", "link", r"/purge/.*/units/")
    ended = delayed(decided, ["purge", "restore", "back.t", "k=0", *place], meanwhile)
    assert (ended.code, json.loads(ended.out)["error"]) == (7, "LeaseHeld"), ended
    assert warehouse.rows("back.t") == purged
    assert run(["purge", "restore", "back.t", "k=0", *place, "--json"]) == 0
    assert len(warehouse.rows("back.t")) == 95


def test_a_second_purge_is_told_of_the_first(warehouse: Warehouse, capsys: pytest.CaptureFixture[str]) -> None:
    from cmroot.lease import acquire
    from cmroot.store.place import Place, join

    root = warehouse.root("two")
    (Place(root.place) / "purge").mkdirs()
    with acquire(join(root.place, "purge"), "purge"):
        with pytest.raises(LeaseHeld):
            warehouse.purge(root, warehouse.ids, "nowhere")
        arguments = ["purge", "run", "--metastore", warehouse.running.uri, "--cmroot", root.place, "--ids", "a.b:c"]
        assert run([*arguments, "--json"]) == 7
    assert json.loads(capsys.readouterr().out)["error"] == "LeaseHeld"


DROPS = {
    "files remain": Fault("before", "rename", "/incoming/"),
    "files are gone": Fault("after", "rename", "/incoming/"),
    "before the drop": Fault("before", "thrift", "drop.* partition"),
    "after the drop": Fault("after", "thrift", "drop.* partition"),
}


@pytest.mark.parametrize("when", DROPS)
def test_a_drop_of_partitions_that_is_killed_is_taken_up_again_and_can_be_undone(
    warehouse: Warehouse, when: str
) -> None:
    db = f"drop_{when}".replace(" ", "_")
    warehouse.sql(
        f"CREATE DATABASE {db}",
        f"CREATE TABLE {db}.t (v STRING) PARTITIONED BY (id BIGINT) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO {db}.t SELECT concat('x', id), id FROM range(10, 13)",
    )
    texts = ttypes.StringColumnStatsData(maxColLen=3, avgColLen=3.0, numNulls=0, numDVs=3)
    column = ColumnStatistic("v", "string", struct_to_tjson(ttypes.ColumnStatisticsData(stringStats=texts)))
    warehouse.metastore.set_table_statistics(Statistics(db, "t", None, (column,), 1))
    before, root = warehouse.rows(f"{db}.t"), warehouse.root(db)
    place = ["--metastore", warehouse.running.uri, "--cmroot", root.place]
    arguments = ["--table-whitelist", db, "--field-path", "privacy.column", "--master", "local[2]"]
    killed = run_with(DROPS[when], ["purge", "run", *place, "--ids", warehouse.ids, *arguments])
    assert killed.killed and killed.reached, killed
    asked = PurgeOptions(warehouse.ids, db, "privacy.column")
    of_partition = BackupRestoreSettings(f"{db}.t", "id=10"), BackupRestoreSettings(f"{db}.t", "id=10", undo=True)
    for each in of_partition:
        with pytest.raises(ObjectNotFound):
            restore_backup(warehouse.metastore, root, each)
    early = warehouse.certify(root, asked, run="latest")
    assert early.status != "certified" and "has not ended" in early.gaps[0]["reason"], early

    again = warehouse.purge(root, warehouse.ids, db)
    assert (again.status, again.resumed, again.rows_erased) == ("done", True, 1), again.tables
    assert warehouse.metastore.partition_names(db, "t") == ["id=11", "id=12"]
    assert warehouse.metastore.table_statistics(db, "t", ["v"]) is None
    (unit,) = runs(root.place)[0].units().values()
    assert (unit.state, unit.backup, unit.partition) == ("DONE", "recycled", "id=10")
    found = warehouse.certify(root, asked)
    assert found.searched == [f"{db}.t"] and {each["what"] for each in found.holding} == {"$cmroot"}
    assert found.erased == {f"{db}.t": 1}

    back = restore_backup(warehouse.metastore, root, of_partition[0])
    assert back.status == "restored" and warehouse.rows(f"{db}.t") == before
    with pytest.raises(ObjectNotFound, match="no restore to undo"):
        restore_backup(warehouse.metastore, root, of_partition[1])


@pytest.mark.parametrize(("kind", "settles"), [("", "itself"), ("EXTERNAL", "itself"), ("EXTERNAL", "another")])
def test_a_partition_that_its_owner_drops_after_a_kill_leaves_no_files(
    warehouse: Warehouse, kind: str, settles: str, tmp_path: Path
) -> None:
    db, location = f"owner_{kind.lower()}_{settles}", f"LOCATION '{tmp_path}/t'" if kind else ""
    warehouse.sql(
        f"CREATE DATABASE {db}",
        f"CREATE {kind} TABLE {db}.t (v STRING) PARTITIONED BY (id BIGINT) STORED AS PARQUET {location}"
        f" TBLPROPERTIES ({DESCRIPTOR})",
        f"ALTER TABLE {db}.t ADD PARTITION (id = 10) LOCATION '{tmp_path}/apart'",
        f"INSERT INTO {db}.t SELECT concat('x', id), id FROM range(10, 13)",
        f"CREATE TABLE {db}.more AS SELECT 11L AS member",
    )
    root, whole = warehouse.root(db), PurgeOptions(warehouse.ids, f"{db}.t", "privacy.column")
    place = ["--metastore", warehouse.running.uri, "--cmroot", root.place]
    arguments = ["--table-whitelist", f"{db}.t", "--field-path", "privacy.column", "--master", "local[2]"]
    killed = run_with(DROPS["files remain"], ["purge", "run", *place, "--ids", warehouse.ids, *arguments])
    assert killed.killed and killed.reached and list((tmp_path / "apart").glob("part-*")), killed
    warehouse.sql(f"ALTER TABLE {db}.t DROP PARTITION (id = 10)")
    assert any((tmp_path / "apart").glob("part-*")) == bool(kind)
    if settles == "another":
        assert warehouse.purge(root, f"{db}.more:member", f"{db}.t").rows_erased == 1
        early = warehouse.certify(root, whole, expedited=True)
        assert (early.status, [gap["table"] for gap in early.gaps]) == ("gaps", [f"{db}.t/id=10"]), early

    again = warehouse.purge(root, warehouse.ids, f"{db}.t")
    assert (again.status, again.tables[0].dropped, again.rows_erased) == ("done", 1, 1), again.tables
    assert not (tmp_path / "apart").exists()
    asked = BackupRestoreSettings(f"{db}.t", "id=10")
    if not kind:
        with pytest.raises(FilesMissing, match="1 of 1 files"):
            restore_backup(warehouse.metastore, root, asked)
        return
    for run_ in ("latest", None):
        found = warehouse.certify(root, whole, run=run_)
        assert (found.status, found.gaps, found.erased) == ("remaining", [], {f"{db}.t": 1}), found
        assert {each["what"] for each in found.holding} == {"$cmroot"}, found
    assert restore_backup(warehouse.metastore, root, asked).status == "restored"
    assert ("x10", 10) in warehouse.rows(f"{db}.t")


@pytest.mark.parametrize("when", ["files are gone", "before the drop"])
def test_a_killed_drop_that_another_request_completes_is_proved_and_can_be_undone(
    warehouse: Warehouse, when: str
) -> None:
    db = f"other_{when}".replace(" ", "_")
    warehouse.sql(
        f"CREATE DATABASE {db}",
        f"CREATE TABLE {db}.t (v STRING) PARTITIONED BY (id BIGINT) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO {db}.t SELECT concat('x', id), id FROM range(10, 13)",
        f"CREATE TABLE {db}.more AS SELECT 10L AS member",
    )
    before, root, more = warehouse.rows(f"{db}.t"), warehouse.root(db), f"{db}.more:member"
    place = ["--metastore", warehouse.running.uri, "--cmroot", root.place]
    arguments = ["--table-whitelist", f"{db}.t", "--field-path", "privacy.column", "--master", "local[2]"]
    killed = run_with(DROPS[when], ["purge", "run", *place, "--ids", warehouse.ids, *arguments])
    assert killed.killed and killed.reached, killed

    other = warehouse.purge(root, more, f"{db}.t")
    assert (other.status, other.resumed, other.tables[0].dropped) == ("done", False, 1), other.tables
    assert other.rows_erased == 1, "of the file that the killed run has moved, too"
    assert warehouse.metastore.partition_names(db, "t") == ["id=11", "id=12"]
    for ids in (more, warehouse.ids):
        found = warehouse.certify(root, PurgeOptions(ids, f"{db}.t", "privacy.column"))
        assert (found.status, found.erased) == ("remaining", {f"{db}.t": 1}), found
        assert {each["what"] for each in found.holding} == {"$cmroot"}, found

    back = restore_backup(warehouse.metastore, root, BackupRestoreSettings(f"{db}.t", "id=10"))
    assert (back.status, back.from_cmroot > 0) == ("restored", True) and warehouse.rows(f"{db}.t") == before
