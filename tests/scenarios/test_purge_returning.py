"""What was erased is not read again: whatever statement reads the place where a purged table or partition was."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from purges import DESCRIPTOR, Warehouse

from replicator.errors import Refused
from replicator.lifecycle.purge.backup_actions import restore_backup
from replicator.lifecycle.purge.backups import backups
from replicator.lifecycle.purge.options import BackupRestoreSettings, PurgeOptions, RetainOptions
from replicator.lifecycle.purge.table_files import parts_of

ERASED = set(range(0, 100, 10))
WAYS = {
    "add partition": ["ALTER TABLE {t} DROP PARTITION (k=0)", "ALTER TABLE {t} ADD PARTITION (k=0)"],
    "insert": ["ALTER TABLE {t} DROP PARTITION (k=0)", "INSERT INTO {t} PARTITION (k=0) VALUES (7000)"],
    "repair": ["ALTER TABLE {t} DROP PARTITION (k=0)", "MSCK REPAIR TABLE {t}"],
    "create": ["DROP TABLE {t}", "CREATE", "MSCK REPAIR TABLE {t}"],
    "rename": ["ALTER TABLE {t} RENAME TO {t}_other", "ALTER TABLE {t}_other RENAME TO {t}"],
    "rename partition": ["ALTER TABLE {t} PARTITION (k=0) RENAME TO PARTITION (k=5)"],
    "new location": ["ALTER TABLE {t} PARTITION (k=0) SET LOCATION '{home}/k=0'"],
}


def create(table: str, kind: str, home: Path, *, parts: bool = True) -> str:
    location = f" LOCATION '{home}'" if kind == "EXTERNAL" else ""
    by = " PARTITIONED BY (k INT)" if parts else ""
    return f"CREATE {kind} TABLE {table} (id BIGINT){by} STORED AS PARQUET{location} TBLPROPERTIES ({DESCRIPTOR})"


def ids_by_files(warehouse: Warehouse, table: str) -> set[int]:
    """What a reader finds that shares no code with Spark, in the directories that the metastore names."""
    found = set[int]()
    for part in parts_of(warehouse.metastore, warehouse.metastore.table(*table.split("."))):
        place = Path(part.location.removeprefix("file:"))
        for file in place.glob("part-*"):
            found |= set(pq.read_table(file, partitioning=None)["id"].to_pylist())
    return found


def ids_by_spark(warehouse: Warehouse, table: str) -> set[int]:
    return {row[0] for row in warehouse.rows(table)}


@pytest.mark.parametrize("kind", ["", "EXTERNAL"], ids=["managed", "external"])
@pytest.mark.parametrize("way", WAYS)
def test_no_statement_reads_the_erased_rows_again(warehouse: Warehouse, tmp_path: Path, way: str, kind: str) -> None:
    db = f"again_{way}_{kind}".replace(" ", "_")
    table = f"{db}.t"
    made = create(table, kind, tmp_path / "t")
    warehouse.sql(f"CREATE DATABASE {db}", made)
    warehouse.sql(f"INSERT INTO {table} SELECT id, int(id DIV 50) FROM range(0, 200, 1, 2)")
    root, home = warehouse.root(db), warehouse.home_of(table)
    before = {part.location for part in parts_of(warehouse.metastore, warehouse.metastore.table(*table.split(".")))}
    assert warehouse.purge(root, warehouse.ids, db).rows_erased == 10
    parts = parts_of(warehouse.metastore, warehouse.metastore.table(*table.split(".")))
    assert {part.location for part in parts} == before, "the new state is where the old one was"

    for statement in WAYS[way]:
        warehouse.sql(made if statement == "CREATE" else statement.format(t=table, home=home))

    read = ids_by_files(warehouse, table)
    assert read == ids_by_spark(warehouse, table) and not read & ERASED
    if kind or way in ("rename", "new location"):  # else the first statement has removed the data
        assert set(range(200)) - ERASED <= read


@pytest.mark.parametrize("kind", ["", "EXTERNAL"], ids=["managed", "external"])
def test_a_table_without_partitions_does_not_show_them_again(warehouse: Warehouse, tmp_path: Path, kind: str) -> None:
    db = f"flat_again_{kind}"
    made = create(f"{db}.t", kind, tmp_path / "t", parts=False)
    warehouse.sql(f"CREATE DATABASE {db}", made, f"INSERT INTO {db}.t SELECT id FROM range(0, 200, 1, 2)")
    root, home = warehouse.root(db), warehouse.home_of(f"{db}.t")
    assert warehouse.purge(root, warehouse.ids, db).rows_erased == 10
    warehouse.sql(f"ALTER TABLE {db}.t RENAME TO {db}.u", f"ALTER TABLE {db}.u RENAME TO {db}.t")
    assert ids_by_files(warehouse, f"{db}.t") == ids_by_spark(warehouse, f"{db}.t") == set(range(200)) - ERASED
    warehouse.sql(f"DROP TABLE {db}.t", made)
    assert warehouse.home_of(f"{db}.t") == home
    assert ids_by_files(warehouse, f"{db}.t") == (set(range(200)) - ERASED if kind else set())
    asked = PurgeOptions(warehouse.ids, db, "privacy.column")
    assert {each["what"] for each in warehouse.certify(root, asked).holding} >= {"backup"}
    certified = warehouse.certify(root, asked, expedited=True)
    assert certified.status == "certified", certified.holding
    assert not list(Path(home).parent.rglob("_purge-*"))


def test_rows_of_writers_that_began_before_a_purge_are_in_the_table(warehouse: Warehouse) -> None:
    """They know the location, which stays the table's; files without an id are not touched."""
    warehouse.sql(
        "CREATE DATABASE writing",
        create("writing.t", "", Path()),
        "INSERT INTO writing.t SELECT /*+ REPARTITION_BY_RANGE(4, id) */ id, 0 FROM range(0, 400)",
    )
    home = Path(warehouse.home_of("writing.t")) / "k=0"
    files = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in home.glob("part-*")}
    root = warehouse.root("writing")
    assert warehouse.purge(root, warehouse.ids, "writing").rows_erased == 10
    after = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in home.glob("part-*")}
    kept = [name for name in files if after.get(name) == files[name]]
    assert after.keys() == files.keys() and len(kept) == 3
    (backup,) = backups(root.place)
    aside = Path(backup.place.removeprefix("file:"))
    assert {path.name for path in aside.glob("part-*")} == set(files) - set(kept)
    pq.write_table(pq.read_table(home / kept[0], partitioning=None), home / "late.parquet")
    assert len(warehouse.rows("writing.t")) == 390 + 100


def test_an_undo_replaces_no_file_that_was_changed_since(warehouse: Warehouse) -> None:
    warehouse.sql(
        "CREATE DATABASE since",
        create("since.t", "", Path()),
        "INSERT INTO since.t SELECT /*+ COALESCE(1) */ id, 0 FROM range(0, 200)",
        "CREATE TABLE since.more AS SELECT 101L AS member",
    )
    root = warehouse.root("since")
    first = warehouse.purge(root, warehouse.ids, "since").run
    second = warehouse.purge(root, "since.more:member", "since")
    assert second.rows_erased == 1
    asked = BackupRestoreSettings("since.t", "k=0", first)
    with pytest.raises(Refused, match="has changed since the purge") as refused:
        restore_backup(warehouse.metastore, root, asked)
    assert "newer purges first" in (refused.value.hint or "")
    assert len(warehouse.rows("since.t")) == 189
    for left in (190, 200):
        assert restore_backup(warehouse.metastore, root, BackupRestoreSettings("since.t", "k=0")).status == "restored"
        assert len(warehouse.rows("since.t")) == left
    now = timedelta(0)
    done = warehouse.retain(root, RetainOptions(readers=now, days=now, trash=now))
    assert done.status == "done" and not done.refused, done
    assert not list(Path(warehouse.home_of("since.t")).rglob("_purge-*"))
    assert len(warehouse.rows("since.t")) == 200
