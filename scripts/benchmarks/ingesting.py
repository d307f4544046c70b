"""ingest: a table of a PostgreSQL, landed by eight readers, against Spark's own partitioned JDBC read of it, where the
column is skewed, and where it is even; and against Spark's plain read.

Ours is all of it: connection, catalog, snapshot, sample, figures at the source, copy, and figures of the files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow.parquet as pq
from distance import distant
from postgres import running_postgres

from benchmarks import ground
from benchmarks.measure import Outcome, interleaved, ratio, s, timed
from replicator.core.engine import LocalEngine
from replicator.core.source_config import SourceConfig
from replicator.core.spark import SparkEngine
from replicator.ingestion.ingestion_request import Split
from replicator.ingestion.reading.figures import differences, landed_figures
from replicator.ingestion.reading.source import opened
from replicator.ingestion.reading.source_errors import CLASSES, driver_jars
from replicator.metastore.java import find_java, spark_environment

ROWS = {"small": 1_000_000, "full": 10_000_000}
READERS = 8
FETCH = 1000
AWAY = 0.02
COLUMNS = {
    "near 100, one 0": "CASE WHEN i = 7 THEN 0 ELSE 100 + ((random() + random() + random() - 1.5) * 4)::int END",
    "30% are 0": "CASE WHEN random() < 0.3 THEN 0 ELSE 1000000 + (random() * 1000)::int END",
    "even": "i",
}


def run(size: str, runs: int, directory: Path) -> Outcome:
    headers = [
        "column",
        "source",
        "yardstick",
        "its time",
        "its largest",
        "ours",
        "our largest",
        "its / ours",
        "wanted",
    ]
    outcome = Outcome(headers)
    with running_postgres() as server, _spark() as session:
        url, port = server.database(), server.jdbc()["javax.jdo.option.ConnectionURL"].split(":")[3].split("/")[0]
        for number, column in enumerate(COLUMNS.values()):
            _table(url, f"t{number}", column, ROWS[size])
        with distant(int(port), AWAY) as far:
            for where, at in (("here", int(port)), (f"{AWAY * 1000:.0f} ms away", far)):
                source = SourceConfig(f"jdbc:postgresql://127.0.0.1:{at}{urlsplit(url).path}", "postgres", fetch=FETCH)
                for number, said in enumerate(COLUMNS):
                    if number == 0 and at != far:  # code is compiled, the tables are in memory
                        _warm(session, source, directory)
                    for row in _measure(session, source, f"t{number}", said == "even", directory, runs):
                        outcome.rows.append([said, where, *row])
    outcome.remarks.append(
        f"{ROWS[size]:,} rows, {READERS} readers, {FETCH:,} rows a fetch. The largest: rows of the reader with most, as"
        " a multiple of an equal share."
    )
    return outcome


def _warm(session: Any, source: SourceConfig, directory: Path) -> None:
    for number in range(len(COLUMNS)):
        _land(session, source, f"t{number}", directory / "warm")
        shutil.rmtree(directory / "warm")


def _table(url: str, name: str, column: str, rows: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE {name} AS SELECT i AS id, {column} AS v, md5(i::text) AS token,"
            f" (i * 7 % 100003)::numeric(12,2) AS amount FROM generate_series(1, {rows}::bigint) i"
        )
        connection.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
        connection.execute(f"CREATE INDEX ON {name} (v)")
        connection.execute(f"VACUUM ANALYZE {name}")


def _measure(
    session: Any, source: SourceConfig, table: str, even: bool, directory: Path, runs: int
) -> Iterator[list[str]]:
    """A row for each yardstick."""
    given = {"user": source.user, "driver": CLASSES["postgresql"], "fetchsize": str(source.fetch)}
    least, most = session.read.jdbc(source.url, f"(SELECT min(v) a, max(v) b FROM {table}) t", properties=given).first()

    def parts() -> Any:
        return session.read.jdbc(source.url, table, "v", least, most, READERS, properties=given)

    def plain() -> Any:
        return session.read.jdbc(source.url, table, properties=given)

    largest: dict[str, float] = {}
    place = directory / "landed"

    def clean(name: str) -> None:
        counts = [pq.read_metadata(file).num_rows for file in place.glob("*.parquet")]
        largest[name] = max(counts) * READERS / sum(counts)
        shutil.rmtree(place)

    def sparks(name: str, frame: Callable[[], Any]) -> Callable[[int], float]:
        def turn(_: int) -> float:
            ground.settle(directory)
            seconds = timed(lambda: frame().write.parquet(f"file:{place}"))
            clean(name)
            return seconds

        return turn

    def ours(_: int) -> float:
        ground.settle(directory)
        seconds = timed(lambda: _land(session, source, table, place))
        clean("ours")
        return seconds

    contestants = {"parts": sparks("parts", parts), "ours": ours} | ({"plain": sparks("plain", plain)} if even else {})
    took = interleaved(runs, contestants)
    for name, said in (("parts", "Spark's partitions"), ("plain", "Spark, one reader")):
        if name in took:
            wanted = ">= 0.8" if even else ">= 2"
            yield [
                said,
                s(took[name]),
                f"{largest[name]:.2f}",
                s(took["ours"]),
                f"{largest['ours']:.2f}",
                ratio(took[name], took["ours"]),
                wanted,
            ]


def _land(session: Any, source: SourceConfig, name: str, place: Path) -> None:
    with opened(session, "bench", source) as database:
        with database.snapshot("public", name) as snapshot:
            table = database.table("public", name)
            ranges = database.ranges(table, Split("v"), READERS)
            frame = database.frame(table, ranges, snapshot)
            figures, _ = database.counted(table, snapshot, "", lambda: frame.write.parquet(f"file:{place}"))
        assert not differences(figures, landed_figures(LocalEngine(), str(place), table.columns))


@contextmanager
def _spark() -> Iterator[Any]:
    """As many threads as readers: they wait more than they work."""
    java = find_java(os.environ)
    (jar,) = driver_jars([SourceConfig("jdbc:postgresql://h/d")], java, os.environ)
    engine = SparkEngine(f"local[{READERS}]", {"spark.jars": str(jar)}, spark_environment(java))
    try:
        yield engine._session()
    finally:
        engine.stop()
