"""The demo: replication between two real metastores with real Spark tables, with a line of output for each step.

All files are below one directory, which is removed at the end unless the user keeps it; nothing else is changed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import replicator
from replicator.captures.dumps.dump import Dumped
from replicator.commands.demos.spark_sql import SparkSql
from replicator.compare.verify import Verified
from replicator.core.not_replicated import Report
from replicator.core.text import printable
from replicator.errors import Error, UsageError
from replicator.metastore.embedded import running as embedded
from replicator.replay.apply.load import Loaded

DB = "shop"
_SIDES = ("source", "target")
_BEFORE = (
    f"CREATE DATABASE {DB} COMMENT 'the demo shop'",
    f"CREATE TABLE {DB}.orders (id INT, item STRING) PARTITIONED BY (day STRING) STORED AS PARQUET",
    f"INSERT INTO {DB}.orders PARTITION (day='2026-01-01') VALUES (1, 'tea'), (2, 'cup')",
    f"INSERT INTO {DB}.orders PARTITION (day='2026-01-02') VALUES (3, 'pot')",
    f"CREATE TABLE {DB}.items USING parquet AS SELECT 'tea' AS item, 3.50 AS price",
    f"CREATE TABLE {DB}.notes (text STRING) STORED AS TEXTFILE",
    f"INSERT INTO {DB}.notes VALUES ('größer')",
    f"CREATE VIEW {DB}.sold AS SELECT day, count(*) AS n FROM {DB}.orders GROUP BY day",
)
_CHANGES = (
    (
        "append to an existing partition (no event)",
        f"INSERT INTO {DB}.orders PARTITION (day='2026-01-01') VALUES (4,'jam')",
    ),
    (
        "overwrite a partition (no event)",
        f"INSERT OVERWRITE {DB}.orders PARTITION (day='2026-01-02') VALUES (5, 'ice')",
    ),
    ("add a partition", f"INSERT INTO {DB}.orders PARTITION (day='2026-01-03 ü/%') VALUES (6, 'nut')"),
    ("rename a table", f"ALTER TABLE {DB}.notes RENAME TO {DB}.remarks"),
    ("add a column", f"ALTER TABLE {DB}.items ADD COLUMNS (stock INT)"),
    ("create a table", f"CREATE TABLE {DB}.clients (name STRING) USING orc"),
    ("fill it", f"INSERT INTO {DB}.clients VALUES ('Ada')"),
    ("set a database property (no event)", f"ALTER DATABASE {DB} SET DBPROPERTIES ('season' = 'winter')"),
)
_QUERIES = (
    f"SELECT day, count(*), max(item) FROM {DB}.orders GROUP BY day ORDER BY day",
    f"SELECT * FROM {DB}.sold ORDER BY day",
)


@dataclass
class DemoReport(Report):
    """The report of the demo: each step with its seconds, and whether both sides were equal at the end."""

    status: str = "done"
    directory: str = ""
    steps: list[dict[str, Any]] = field(default_factory=list)
    files_from_cmroot: int = 0
    differences: int = 0
    seconds: float = 0.0


class Told(Protocol):
    """A running demo: its directory, its finished steps, and the processes that it started."""

    reported: DemoReport

    def run(self, engine: Any) -> None: ...

    def close(self) -> None: ...


def tell(
    keep: Path | None, say: Callable[[str], object], story_of: Callable[[Path, Callable[[str], object]], Told]
) -> DemoReport:
    """Runs a demo below a new or empty directory, or in a temporary one. Raises Error if a step does not give the
    expected result, UsageError for a directory that is not empty."""
    began = time.monotonic()
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageError(f"--keep {keep} is not empty", hint="name a new directory")
    directory = keep.absolute() if keep else Path(tempfile.mkdtemp(prefix="replicator-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    story = story_of(directory, say)
    try:
        with replicator.engines("spark", "local[2]") as engine:
            story.run(engine)
    finally:
        story.close()
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    story.reported.seconds = round(time.monotonic() - began, 1)
    say(
        f"\nBoth sides are equal, after {story.reported.seconds} s."
        + (f" Kept in {printable(str(directory))}." if keep is not None else "")
    )
    return story.reported


class Story:
    """Replication between two metastores."""

    def __init__(self, directory: Path, say: Callable[[str], object]) -> None:
        self._directory, self._say = directory, say
        self.reported = DemoReport(directory=str(directory))
        self._sides: list[embedded.Running] = []
        self._sparks: list[SparkSql] = []
        self._open: list[SparkSql] = []
        self._dumps = 0

    def run(self, engine: Any) -> None:
        self._engine = engine
        self._step("start two Hive metastores and a Spark for each", self._start)
        self._step(
            "write a shop on the source: Hive and Spark tables, partitions, a view", lambda: self._source(*_BEFORE)
        )
        first = self._step("bootstrap: dump names the files, load copies them once", self._replicate)
        self._same_answers()
        for what, statement in _CHANGES:
            self._step(f"source: {what}", lambda statement=statement: self._source(statement))  # type: ignore[misc]
        second = self._step("incremental: events, and changes without an event", lambda: self._replicate(since=first))
        self._same_answers()
        self._step(
            "rubber-banding: p=1 with data A, dropped, added again with data B", lambda: self._rubber_band(second)
        )
        self._step("verify: every object and every byte", self._verify)

    def _start(self) -> None:
        self._sides = start_sides(self._directory)
        with ThreadPoolExecutor(2) as pool:
            self._sparks = list(pool.map(self._start_spark, self._sides))

    def _start_spark(self, side: embedded.Running) -> SparkSql:
        spark = SparkSql(side.uri, side.warehouse)
        self._open.append(spark)
        spark.run("SHOW DATABASES")
        return spark

    def _source(self, *statements: str) -> None:
        self._sparks[0].run(*statements)

    def _dump(self, **options: Any) -> str:
        self._dumps += 1
        out = self._directory / "dumps" / str(self._dumps)
        report = replicator.dump(
            source=self._sides[0].uri,
            cmroot=str(self._directory / "cmroot"),
            out=str(out),
            db=DB,
            engine=self._engine,
            **options,
        )
        assert isinstance(report, Dumped)
        self._say(
            f"    dump {out.name}: {report.kind}, events up to {report.to_event}, {report.records} records, "
            f"{report.observed} observed, {report.files} files named, {report.bytes} bytes"
        )
        return report.dump

    def _load(self, dump: str) -> Loaded:
        report = replicator.load(dump, target=self._sides[1].uri, engine=self._engine)
        assert isinstance(report, Loaded)
        self._say(
            f"    load: {report.objects_changed} objects changed, {report.files_copied} files copied "
            f"({report.files_from_source} from the source, {report.files_from_cmroot} from $cmroot), "
            f"{report.squashed} records squashed"
        )
        return report

    def _replicate(self, **options: Any) -> str:
        dump = self._dump(**options)
        self._load(dump)
        return dump

    def _same_answers(self) -> None:
        source, target = self._sparks
        target.run(f"REFRESH TABLE {DB}.orders")
        for query in _QUERIES:
            wanted, found = source.run(query), target.run(query)
            if wanted != found:
                raise Error(
                    f"{query}: the source returned {wanted}, the target {found}", hint="this is a bug: report it"
                )
        self._say(f"    both Sparks return the same: {_shown(source.run(_QUERIES[0]))}")

    def _rubber_band(self, since: str) -> None:
        table = f"{DB}.bands"
        self._source(
            f"CREATE TABLE {table} (data STRING) PARTITIONED BY (p INT) STORED AS TEXTFILE",
            f"INSERT INTO {table} PARTITION (p=1) VALUES ('A')",
        )
        with_a = self._dump(since=since)
        self._source(f"ALTER TABLE {table} DROP PARTITION (p=1)", f"INSERT INTO {table} PARTITION (p=1) VALUES ('B')")
        with_b = self._dump(since=with_a)
        self._say("    now the dump that ends before the drop is loaded, long after:")
        report = self._load(with_a)
        self.reported.files_from_cmroot = report.files_from_cmroot
        self._expect(table, [["A"]])
        if not report.files_from_cmroot:
            raise Error("data A did not come from $cmroot", hint="this is a bug: report it")
        self._say("    the target shows A, copied from $cmroot; the source has B at that path. Then the next dump:")
        self._load(with_b)
        self._expect(table, [["B"]])

    def _expect(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        self._sparks[1].run(f"REFRESH TABLE {table}")
        found = self._sparks[1].run(f"SELECT data FROM {table} WHERE p = 1")
        if found != list(rows):
            raise Error(f"{table}: expected {rows}, the target shows {found}", hint="this is a bug: report it")

    def _verify(self) -> Verified:
        report = replicator.verify(source=self._sides[0].uri, target=self._sides[1].uri, db=DB, engine=self._engine)
        assert isinstance(report, Verified)
        self._say(
            f"    {report.objects} objects and {report.files} files compared, {len(report.differences)} differences"
        )
        self.reported.differences = len(report.differences)
        if report.differences:
            raise Error(f"the two sides differ: {report.differences[:5]}", hint="this is a bug: report it")
        return report

    def _step(self, title: str, work: Callable[[], Any]) -> Any:
        return timed(self.reported, self._say, title, work)

    def close(self) -> None:
        for spark in self._open:
            spark.close()
        stop_sides(self._directory)


def start_sides(directory: Path) -> list[embedded.Running]:
    """Two metastores below a directory, the source's first."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda name: embedded.start(directory / name, env=os.environ), _SIDES))


def stop_sides(directory: Path) -> None:
    for name in _SIDES:
        embedded.stop(directory / name)


def timed(reported: DemoReport, say: Callable[[str], object], title: str, work: Callable[[], Any]) -> Any:
    """Runs a step of the demo, prints its title, and records its seconds."""
    began = time.monotonic()
    say(title)
    result = work()
    reported.steps.append({"step": title, "seconds": round(time.monotonic() - began, 1)})
    return result


def _shown(rows: Sequence[Sequence[Any]]) -> str:
    return printable(", ".join("/".join(map(str, row)) for row in rows))
