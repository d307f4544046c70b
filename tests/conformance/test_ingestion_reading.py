"""Databases as ingestion reads them: a real PostgreSQL and a real MariaDB, by their drivers in one Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from mariadb import MariaDb, running_mariadb
from postgres import Postgres

from replicator.core.connections.source_config import SourceConfig
from replicator.core.engine import LocalEngine
from replicator.core.spark import SparkEngine
from replicator.ingestion.ingestion_request import Split
from replicator.ingestion.reading.control import Patience
from replicator.ingestion.reading.drivers import driver_jars
from replicator.ingestion.reading.figures import differences, landed_figures
from replicator.ingestion.reading.source import SourceDatabase, opened
from replicator.ingestion.reading.source_table import Ranges, SourceTable
from replicator.metastore.java import find_java, spark_environment

PASSWORD = "REPLICATOR_TEST_SOURCE"
POSTGRES_PASSWORD = "not asked for, and not told"
PATIENCE = Patience(login=10, lock=1, answer=60)
ROWS = 100_000


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    jars = driver_jars(
        [SourceConfig("jdbc:postgresql://h/d"), SourceConfig("jdbc:mysql://h/d")], find_java(os.environ), os.environ
    )
    settings = {"spark.jars": ",".join(map(str, jars)), "spark.sql.session.timeZone": "America/Lima"}
    engine = SparkEngine("local[2]", settings, spark_environment(find_java(os.environ)))
    yield engine._session()
    engine.stop()


class Pg:
    """A database of its own, as a source."""

    def __init__(self, server: Postgres) -> None:
        self.url = server.database()
        path, port = urlsplit(self.url), server._port
        self.source = SourceConfig(
            f"jdbc:postgresql://127.0.0.1:{port}{path.path}", "postgres", f"env:{PASSWORD}", fetch=1000
        )

    def sql(self, text: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(text)  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def pg(postgres: Postgres) -> Pg:
    if postgres._port is None:
        pytest.skip("somebody else's PostgreSQL")
    return Pg(postgres)


@pytest.fixture(scope="module")
def maria() -> Iterator[MariaDb]:
    with running_mariadb() as server:
        yield server


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, POSTGRES_PASSWORD)


def landed(database: SourceDatabase, table: SourceTable, ranges: Ranges, place: Path, where: str = "") -> list[int]:
    """Writes the table, compares its figures, and returns the rows that each reader had."""
    with database.snapshot() as snapshot:
        expected = database.figures(table, snapshot, where)
        frame = database.frame(table, ranges, snapshot, where)
        counts = sorted(frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect())
        frame.write.parquet(str(place))
    assert differences(expected, landed_figures(LocalEngine(2), str(place), table.columns)) == []
    return [int(count) for count in counts]


# ---- ranges -------------------------------------------------------------------------------------------------------


SKEWED = {
    "near": "CASE WHEN i = 7 THEN 0 ELSE 100 + round(((random() + random() + random() - 1.5) * 4)::numeric)::int END",
    "sentinel": "CASE WHEN random() < 0.3 THEN 0 ELSE (random() * 1e6)::int END",
    "real": "CASE WHEN i = 7 THEN 'NaN' ELSE 100 + random() END::float8",
    "label": "CASE WHEN i % 10 = 0 THEN NULL ELSE chr(97 + i % 3) || repeat('é''\\;', i % 2) || i % 50 END",
    "day": "CASE WHEN i % 3 = 0 THEN DATE '9999-12-31' ELSE DATE '2020-01-01' + i % 700 END",
    "code": "md5(i::text)::uuid",
}


def test_skewed_columns_are_read_in_equal_shares_each_row_once(session: Any, pg: Pg, tmp_path: Path) -> None:
    columns = ", ".join(f"{sql} AS {name}" for name, sql in SKEWED.items())
    pg.sql(f"CREATE TABLE skewed AS SELECT i AS id, {columns} FROM generate_series(1, {ROWS}) i")
    pg.sql("ALTER TABLE skewed ADD PRIMARY KEY (id)")
    with opened(session, "crm", pg.source, PATIENCE) as database:
        table = database.table("public", "skewed")
        for name in ("id", *SKEWED):
            ranges = database.ranges(table, Split(name), 8)
            assert len(ranges.predicates) == 8, name
            asked = ", ".join(f"count(*) FILTER (WHERE {predicate})" for predicate in ranges.predicates)
            hidden = ", ".join(f'{sql} AS "{alias}"' for alias, sql in ranges.hidden)
            (counts,) = database.control.rows(f"SELECT {asked} FROM (SELECT {hidden} FROM skewed) t")
            assert sum(map(int, counts)) == ROWS, name
            assert max(map(int, counts)) <= 1.5 * ROWS / 8, (name, counts)
        counts = landed(database, table, database.ranges(table, Split("near"), 8), tmp_path / "t")
        assert sum(counts) == ROWS and max(counts) <= 1.5 * ROWS / 8
