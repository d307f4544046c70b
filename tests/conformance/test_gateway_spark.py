"""Spark with the gateway as its metastore: it notices nothing, and what it drops is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import command
from gateways import Guarded, guarded
from spark_sql import SparkSql

from replicator.metastore.embedded.running import Running


@pytest.fixture(scope="module")
def guard(source_metastore: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(source_metastore, tmp_path_factory.mktemp("guarded")) as made:
        yield made


@pytest.fixture(scope="module")
def spark(guard: Guarded) -> Iterator[SparkSql]:
    settings = {"spark.sql.catalogImplementation": "hive", "spark.hadoop.hive.exec.dynamic.partition": "true"}
    with SparkSql(guard.uri, guard.running.warehouse, settings) as made:
        made.run(f"USE {guard.db}")
        yield made


def test_spark_reads_and_writes_through_the_gateway(guard: Guarded, spark: SparkSql) -> None:
    spark.run(
        "CREATE TABLE plain (a INT, b STRING) STORED AS PARQUET",
        "INSERT INTO plain VALUES (1, 'one'), (2, 'two')",
        "CREATE TABLE parts (a INT) PARTITIONED BY (p INT) STORED AS PARQUET",
        "INSERT INTO parts VALUES (1, 1), (2, 2), (3, 3)",
        "ALTER TABLE plain SET TBLPROPERTIES ('note' = 'x')",
        "ANALYZE TABLE plain COMPUTE STATISTICS FOR ALL COLUMNS",
        "CREATE VIEW shown AS SELECT a FROM plain",
    )
    assert spark.run("SELECT a, b FROM plain ORDER BY a") == [[1, "one"], [2, "two"]]
    assert spark.run("SELECT count(*) FROM parts WHERE p > 1") == [[2]]
    assert {row[1] for row in spark.run("SHOW TABLES")} >= {"parts", "plain", "shown"}
    assert guard.entries() == []


def test_what_spark_drops_is_kept(guard: Guarded, spark: SparkSql) -> None:
    spark.run(
        "CREATE TABLE doomed (a INT) STORED AS PARQUET",
        "INSERT INTO doomed VALUES (1)",
        "CREATE TABLE some (a INT) PARTITIONED BY (p INT) STORED AS PARQUET",
        "INSERT INTO some VALUES (1, 1), (2, 2), (3, 3)",
    )
    before = {path.read_bytes() for path in guard.place("doomed").glob("*.parquet")}
    spark.run("DROP TABLE doomed", "ALTER TABLE some DROP PARTITION (p = 1), PARTITION (p = 2)")
    rows = [row for row, _ in guard.entries()]
    assert {(row["table"], row["partition"]) for row in rows if row["path"] != "_SUCCESS"} == {
        ("doomed", ""),
        ("some", "p=1"),
        ("some", "p=2"),
    }
    kept = [path.read_bytes() for path in Path(guard.root.files).rglob("*") if path.is_file()]
    assert before <= set(kept)
    assert not guard.place("doomed").exists()
    assert spark.run("SELECT a FROM some") == [[3]]
    spark.run("CREATE TABLE doomed (a INT) STORED AS PARQUET")
    assert spark.run("SELECT * FROM doomed") == [], "the name is free, and nothing of the old table shows"


def test_a_database_that_spark_drops_with_all_its_tables_is_kept(guard: Guarded, spark: SparkSql) -> None:
    spark.run(
        "CREATE DATABASE going",
        "CREATE TABLE going.a (a INT) STORED AS PARQUET",
        "INSERT INTO going.a VALUES (1)",
        "CREATE TABLE going.b (a INT) STORED AS PARQUET",
        "INSERT INTO going.b VALUES (2)",
    )
    before = len([path for path in Path(guard.root.files).rglob("*.*") if path.is_file()])
    spark.run("DROP DATABASE going CASCADE")
    assert [row[0] for row in spark.run("SHOW DATABASES") if row[0] == "going"] == []
    assert not (guard.running.warehouse / "going.db").exists()
    assert len([path for path in Path(guard.root.files).rglob("*") if path.is_file()]) >= before + 2


def test_rubber_banding_with_spark_and_no_capture_in_between(
    guard: Guarded, spark: SparkSql, target_metastore: Running, tmp_path: Path
) -> None:
    """p=1 holds A, is dropped, holds B. A load up to the first insert shows A, though nobody captured it."""
    spark.run("CREATE TABLE banded (a STRING) PARTITIONED BY (p INT) STORED AS TEXTFILE")
    source = ["--source", guard.running.uri, "--cmroot", guard.root.place, "--db", guard.db, "--engine", "local"]
    target = ["--target", target_metastore.uri, "--warehouse", str(tmp_path / "target"), "--engine", "local"]
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert command("dump", *source, "--out", first).code == 0
    assert command("load", first, *target).code == 0
    spark.run("INSERT INTO banded PARTITION (p = 1) VALUES ('A')")
    made = guard.direct.current_event_id()
    spark.run("ALTER TABLE banded DROP PARTITION (p = 1)", "INSERT INTO banded PARTITION (p = 1) VALUES ('B')")
    assert command("dump", *source, "--out", second, "--since", first, "--until", str(made)).code == 0
    loaded = command("load", second, *target)
    assert (loaded.code, loaded.output["missing"], loaded.output["files_from_cmroot"]) == (0, [], 1), loaded
    assert [path.read_text() for path in (tmp_path / "target").rglob("banded/p=1/part-*")] == ["A\n"]
    third = str(tmp_path / "third")
    assert command("dump", *source, "--out", third, "--since", second).code == 0
    assert command("load", third, *target).code == 0
    assert [path.read_text() for path in (tmp_path / "target").rglob("banded/p=1/part-*")] == ["B\n"]
