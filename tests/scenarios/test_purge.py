"""Purging on a real metastore with tables that Spark made: what goes, what stays, and what is reported."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from purges import DESCRIPTOR, Warehouse

from replicator.cli.output import begin_logging, end_logging, lines_on_stdout
from replicator.core.logging import LogConfig, Watch
from replicator.core.runtime import Silent
from replicator.errors import ObjectNotFound, Refused
from replicator.lifecycle.purge.backup_actions import restore_backup
from replicator.lifecycle.purge.backups import backups
from replicator.lifecycle.purge.options import BackupRestoreSettings, PurgeOptions, RetainOptions
from replicator.lifecycle.purge.state import runs


def test_rows_with_an_id_go_and_all_others_stay(warehouse: Warehouse, capsys: pytest.CaptureFixture[str]) -> None:
    """And what is told meanwhile, of a table at work, too."""
    warehouse.sql(
        "CREATE DATABASE a",
        f"CREATE TABLE a.p (id BIGINT, v STRING, d DECIMAL(10,2), t TIMESTAMP) PARTITIONED BY (k STRING)"
        f" STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO a.p SELECT id, concat('v', id), id / 3, timestamp '2026-01-01 12:00:00',"
        " concat('x y:', id DIV 300) FROM range(0, 1000, 1, 4)",
        "INSERT INTO a.p SELECT null, 'nobody', null, null, 'x y:0'",
        "CREATE TABLE a.uncharted (id BIGINT)",
    )
    before = warehouse.sql("SELECT * FROM a.p ORDER BY 1, 2")
    root = warehouse.root("first")
    planned = warehouse.purge(root, warehouse.ids, "a", dry_run=True)
    assert (planned.status, planned.rows_erased, planned.partitions_swapped) == ("planned", 10, 1)
    assert warehouse.sql("SELECT * FROM a.p ORDER BY 1, 2") == before

    begin_logging(LogConfig())
    with lines_on_stdout():
        done = warehouse.purge(root, warehouse.ids, "a", progress=Watch(Silent()))
    end_logging()

    assert (done.status, done.rows_erased, done.partitions_swapped, done.ids) == ("done", 10, 1, 10), done.tables
    assert [gap["table"] for gap in done.gaps] == ["a.uncharted"]
    kept = [row for row in before if row[0] is None or row[0] >= 100 or row[0] % 10]
    warehouse.sql("REFRESH TABLE a.p")
    assert warehouse.sql("SELECT * FROM a.p ORDER BY 1, 2") == kept
    (table,) = done.tables
    (unit,) = table.units
    assert (unit["rows"], unit["matched"], unit["rows_after"]) == (301, 10, 291)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = {each["progress"]: each for each in lines if each["line"] == "progress"}
    of_table = [f"{what} a.p, table 1 of 1" for what in ("list", "search", "purge")]
    assert list(told) == ["start Spark", "read ids", *of_table, "count ids that no table has"]
    written = told["purge a.p, table 1 of 1"]
    assert (written["steps"], written["of_steps"]) == (1, 1), "partitions with an id"
    assert written["files"] == written["of_files"] == table.files_rewritten and written["bytes"] > 0
    assert warehouse.purge(root, warehouse.ids, "a").rows_erased == 0


def test_a_run_is_certified_by_its_own_ids_only(warehouse: Warehouse) -> None:
    """Also when its copy of them is gone, and its table has others now."""
    warehouse.sql(
        "CREATE DATABASE own",
        f"CREATE TABLE own.t (id BIGINT) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO own.t SELECT id FROM range(0, 20)",
        "CREATE TABLE own.gone (member BIGINT) STORED AS PARQUET",
        "INSERT INTO own.gone VALUES (1), (2)",
    )
    root, asked = warehouse.root("own"), PurgeOptions("own.gone:member", "own.t", "privacy.column")
    assert warehouse.purge(root, asked.ids, asked.whitelist).rows_erased == 2
    warehouse.sql("INSERT OVERWRITE own.gone VALUES (3)", "REFRESH TABLE own.gone")
    found = warehouse.certify(root, asked, run="latest", expedited=True)
    assert (found.status, found.count) == ("certified", 2), "by its own copy, which goes with the last backup"
    assert not list(Path(runs(root.place)[0].place).glob("ids/*"))
    for others in ("(3)", "(30), (40)"):
        warehouse.sql(f"INSERT OVERWRITE own.gone VALUES {others}", "REFRESH TABLE own.gone")
        with pytest.raises(Refused, match="other ids now"):
            warehouse.certify(root, asked, run="latest")
    warehouse.sql("INSERT OVERWRITE own.gone VALUES (2), (1)", "REFRESH TABLE own.gone")
    assert warehouse.certify(root, asked, run="latest").status == "certified"
    (directory,) = runs(root.place)
    directory.write_run(msgspec.structs.replace(directory.read_run(), ids_digest=""))  # as earlier releases did
    with pytest.raises(Refused, match="earlier release"):
        warehouse.certify(root, asked, run="latest")


def test_a_backup_can_be_put_back_and_that_undone_and_goes_in_the_end(warehouse: Warehouse) -> None:
    warehouse.sql(
        "CREATE DATABASE b",
        f"CREATE TABLE b.t (id BIGINT, v STRING) PARTITIONED BY (k INT) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO b.t SELECT id, 'x', int(id DIV 100) FROM range(0, 200, 1, 2)",
    )
    metastore, root = warehouse.metastore, warehouse.root("backups")
    before = warehouse.rows("b.t")
    assert warehouse.purge(root, warehouse.ids, "b").rows_erased == 10
    after = warehouse.rows("b.t")
    for _ in range(2):
        back = restore_backup(metastore, root, BackupRestoreSettings("b.t", "k=0"))
        assert back.status == "restored" and "10 rows" in back.warnings[0]
        assert warehouse.rows("b.t") == before
        assert restore_backup(metastore, root, BackupRestoreSettings("b.t", "k=0", undo=True)).status == "restored"
        assert warehouse.rows("b.t") == after

    # a writer that had begun before the swap ends after it: its rows are in the table
    (kept,) = [each for each in backups(root.place) if each.unit.backup == "kept" and not each.trash]
    old, new = Path(kept.place.removeprefix("file:")), Path(kept.unit.new.removeprefix("file:"))
    assert new != old and str(new) == f"{warehouse.home_of('b.t')}/k=0"
    pq.write_table(pa.table({"id": pa.array([5000], pa.int64()), "v": ["late"]}), new / "late.parquet")
    week = RetainOptions(readers=timedelta(0), days=timedelta(0), trash=timedelta(0))
    planned = warehouse.retain(root, week, dry_run=True)
    assert planned.removed and old.exists()
    done = warehouse.retain(root, week)
    assert done.status == "done" and not done.adopted and not old.exists(), done
    assert warehouse.rows("b.t") == sorted([*after, (5000, "late", 0)], key=str)
    assert warehouse.retain(root, week).removed == []

    # what was recycled comes back from $cmroot
    back = restore_backup(metastore, root, BackupRestoreSettings("b.t", "k=0"))
    assert back.from_cmroot and warehouse.rows("b.t") == sorted([*before, (5000, "late", 0)], key=str)
    with pytest.raises(ObjectNotFound):
        restore_backup(metastore, root, BackupRestoreSettings("b.t", "k=7"))
