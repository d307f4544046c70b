"""Purging on a real metastore with tables that Spark made: what goes, what stays, and what is told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cmroot.root import ChangeRoot, create_or_open
from replicator.engine import AutoEngine, LocalEngine, SparkEngine, hive_settings
from replicator.metastore.embedded import Running
from replicator.metastore.java import find_java, spark_environment
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.progress import Silent
from replicator.purge.options import PurgeOptions
from replicator.purge.run import Purged, purge

DESCRIPTOR = """'dataset.descriptor'='{"privacy": {"column": "id"}}'"""


class Warehouse:
    """A metastore, and the one Spark session that makes its tables and purges them."""

    def __init__(self, running: Running, home: Path) -> None:
        self.running, self.home = running, home
        self.metastore: ThriftMetastore = connect(running.uri)
        self.engines = AutoEngine(
            LocalEngine(2), SparkEngine("local[2]", {"spark.sql.shuffle.partitions": "2"}, _java), "auto"
        )
        self.session: Any = self.engines.session(hive_settings(running.uri, str(running.warehouse)))
        self.session.conf.set("hive.exec.dynamic.partition.mode", "nonstrict")

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        rows: list[Any] = []
        for statement in statements:
            rows = self.session.sql(statement).collect()
        return [tuple(row) for row in rows]

    def root(self, name: str) -> ChangeRoot:
        return create_or_open(str(self.home / name))

    def purge(self, root: ChangeRoot, ids: str, whitelist: str, **options: Any) -> Purged:
        asked = PurgeOptions(ids, whitelist, options.pop("field_path", "privacy.column"), **options.pop("more", {}))
        return purge(self.metastore, root, asked, engines=self.engines, progress=Silent(), **options)

    def close(self) -> None:
        self.engines.stop()
        self.metastore.close()


def _java() -> dict[str, str]:
    return spark_environment(find_java(os.environ))


@pytest.fixture(scope="module")
def warehouse(source_metastore: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    found = Warehouse(source_metastore, tmp_path_factory.mktemp("purge"))
    found.sql("CREATE DATABASE ids", "CREATE TABLE ids.gone AS SELECT id AS member FROM range(0, 100, 10)")
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
    planned = warehouse.purge(root, "ids.gone:member", "a", dry_run=True)
    assert (planned.status, planned.rows_erased, planned.partitions_swapped) == ("planned", 10, 1)
    assert warehouse.sql("SELECT * FROM a.p ORDER BY 1, 2") == before

    done = warehouse.purge(root, "ids.gone:member", "a")

    assert (done.status, done.rows_erased, done.partitions_swapped, done.ids) == ("done", 10, 1, 10), done.tables
    assert [gap["table"] for gap in done.gaps] == ["a.uncharted"]
    kept = [row for row in before if row[0] is None or row[0] >= 100 or row[0] % 10]
    warehouse.sql("REFRESH TABLE a.p")
    assert warehouse.sql("SELECT * FROM a.p ORDER BY 1, 2") == kept
    (table,) = done.tables
    (unit,) = table.units
    assert (unit["rows"], unit["matched"], unit["rows_after"]) == (301, 10, 291)
    assert warehouse.purge(root, "ids.gone:member", "a").rows_erased == 0
