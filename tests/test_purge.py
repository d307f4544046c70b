"""Purging on a real metastore with tables that Spark made: what goes, what stays, and what is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from purges import DESCRIPTOR, Warehouse

from replicator.metastore.embedded import Running


@pytest.fixture(scope="module")
def warehouse(source_metastore: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    found = Warehouse(source_metastore, tmp_path_factory.mktemp("purge"))
    yield found
    found.close()


def test_rows_with_an_id_go_and_all_others_stay(warehouse: Warehouse) -> None:
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

    done = warehouse.purge(root, warehouse.ids, "a")

    assert (done.status, done.rows_erased, done.partitions_swapped, done.ids) == ("done", 10, 1, 10), done.tables
    assert [gap["table"] for gap in done.gaps] == ["a.uncharted"]
    kept = [row for row in before if row[0] is None or row[0] >= 100 or row[0] % 10]
    warehouse.sql("REFRESH TABLE a.p")
    assert warehouse.sql("SELECT * FROM a.p ORDER BY 1, 2") == kept
    (table,) = done.tables
    (unit,) = table.units
    assert (unit["rows"], unit["matched"], unit["rows_after"]) == (301, 10, 291)
    assert warehouse.purge(root, warehouse.ids, "a").rows_erased == 0
