"""The demo: replication between two real metastores with real Spark tables, by the commands that a user would type.

Each command runs as typed, in a process of its own, and its output is printed. All files, also the temporary ones of
Java, are below one directory, which is removed at the end unless the user keeps it; nothing else is changed.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from replicator.commands.demos.spark_sql import SparkSql
from replicator.core.not_replicated import Report
from replicator.core.text import printable
from replicator.errors import Error, UsageError
from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.server_process import free_port
from replicator.metastore.java import LOOPBACK
from replicator.metastore.thrift import connect

DB = "shop"
_SIDES = ("source", "target")
_BEFORE = (
    f"CREATE DATABASE {DB}",
    f"CREATE TABLE {DB}.orders (id INT, item STRING) PARTITIONED BY (day STRING) STORED AS PARQUET",
    f"INSERT INTO {DB}.orders PARTITION (day='2026-01-01') VALUES (1, 'tea'), (2, 'cup')",
    f"INSERT INTO {DB}.orders PARTITION (day='2026-01-02') VALUES (3, 'pot')",
    f"CREATE TABLE {DB}.items USING orc AS SELECT 'tea' AS item, 3.50 AS price",
    f"CREATE VIEW {DB}.sold AS SELECT day, count(*) AS n FROM {DB}.orders GROUP BY day",
)
_CHANGES = (
    f"INSERT INTO {DB}.orders PARTITION (day='2026-01-01') VALUES (4, 'jam')",
    f"INSERT OVERWRITE {DB}.orders PARTITION (day='2026-01-02') VALUES (5, 'ice')",
    f"ALTER DATABASE {DB} SET DBPROPERTIES ('season' = 'winter')",
    f"INSERT INTO {DB}.orders PARTITION (day='2026-01-03') VALUES (6, 'nut')",
    f"ALTER TABLE {DB}.items RENAME TO {DB}.goods",
)
_MISTAKE = (
    f"ALTER TABLE {DB}.orders DROP PARTITION (day='2026-01-01')",
    f"INSERT INTO {DB}.orders PARTITION (day='2026-01-01') VALUES (7, 'mug')",
)
_QUERY = f"SELECT day, id, item FROM {DB}.orders ORDER BY id"
_RESTORED = "SELECT day, id, item FROM rescue.orders ORDER BY id"
_VIEW = f"SELECT * FROM {DB}.sold ORDER BY day"
_PAGE_ANSWERS = 300.0  # seconds in which the service listens


@dataclass
class DemoReport(Report):
    """The report of the demo: each step with its seconds, and whether both sides were equal at the end."""

    status: str = "done"
    directory: str = ""
    steps: list[dict[str, Any]] = field(default_factory=list)
    differences: int = 0
    seconds: float = 0.0


class Told(Protocol):
    """A running demo: its directory, its finished steps, and the processes that it started."""

    reported: DemoReport

    def run(self) -> None: ...

    def serve(self) -> None:
        """Serves a page until SIGINT, and says what to do next."""
        ...

    def close(self) -> None: ...


def tell(
    keep: Path | None,
    say: Callable[[str], object],
    story_of: Callable[[Path, Callable[[str], object]], Told],
    page: bool = False,
) -> DemoReport:
    """Runs a demo below a new or empty directory, or in a temporary one. page: in a kept directory, then serves a page
    until SIGINT. Raises Error if a step does not give the expected result, UsageError for a directory that is not
    empty."""
    began = time.monotonic()
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageError(f"--keep {keep} is not empty", hint="name a new directory")
    directory = keep.absolute() if keep else Path(tempfile.mkdtemp(prefix="replicator-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    story = story_of(directory, say)
    try:
        story.run()
        story.reported.seconds = round(time.monotonic() - began, 1)
        kept = f" Kept in {printable(str(directory))}." if keep is not None else ""
        say(f"\nBoth sides are equal, after {story.reported.seconds} s.{kept}")
        if keep is not None and page:
            story.serve()
        elif keep is None:
            say("next: the same with a page on both replicas: replicator demo --keep DIR; by hand: docs/tutorial.md")
    finally:
        story.close()
        shutil.rmtree(directory / "tmp" if keep else directory, ignore_errors=True)
    return story.reported


class Story:
    """Replication between two metastores. directory: of all files. say: called with each line of output."""

    def __init__(self, directory: Path, say: Callable[[str], object]) -> None:
        self._directory, self._say = directory, say
        self.reported = DemoReport(directory=str(directory))
        self._environment = own_environment(directory)
        self._sides: list[embedded.Running] = []
        self._open: list[SparkSql] = []

    def run(self) -> None:
        self._step("Two Hive metastores, and a Spark on each", self._start)
        self._why("Real servers: Hive's own metastore, with its notification log, and Spark as your jobs use it.")
        self._step("The source gets a shop: partitions, formats, a view", lambda: self._spark(0, *_BEFORE))
        self._step("A policy: which databases, from where, to where", self._init)
        self._why("One file is all the configuration. Both sides are checked before anything is copied.")
        self._step("The first run copies everything", self._first)
        self._why("Files are copied once and unchanged; only paths in the metadata are rewritten.")
        self._step("The source changes, and the first three statements leave no event", self._change)
        self._why("Most of Spark's writes leave no event. Runs scan for them, so that no row is missing.")
        self._step("A mistake: a partition is dropped and written again at the same path", self._mistake)
        self._why("Files that are dropped or overwritten are kept in $cmroot: earlier states can be restored from it.")
        self._step("Proof: every object and every byte of both sides", self._verify)
        self._why("A replica that is not compared is a hope. The exit code is 4 if anything differs.")

    def serve(self) -> None:
        if importlib.util.find_spec("uvicorn") is None:
            self._say("the page on both replicas needs: pip install '.[server]' (in a checkout)")
            return
        port = free_port(8484)
        line = [*_PROGRAM, "serve", "--listen", f"{LOOPBACK}:{port}"]
        with (self._directory / "serve.log").open("wb") as log:
            served = subprocess.Popen(line, cwd=self._directory, env=self._environment, stdout=log, stderr=log)
        try:
            _wait_for(port, served, self._directory / "serve.log")
            here = shlex.quote(str(self._directory))
            self._say(f"page: http://{LOOPBACK}:{port}/policies/west (Ctrl+C stops it and both metastores)")
            self._say(f"next: in another terminal: cd {here} && replicator history west")
            self._say("      on your own metastores: replicator init; docs/tutorial.md has each step by hand")
            served.wait()
        except KeyboardInterrupt:
            pass
        finally:
            served.send_signal(signal.SIGINT)  # also where the terminal has sent it: the first one counts
            served.wait()

    def close(self) -> None:
        """Ends all that was started. May run twice."""
        with ExitStack() as closing:
            closing.callback(stop_sides, self._directory)
            while self._open:
                closing.callback(self._open.pop().close)

    def _start(self) -> None:
        for side in _SIDES:
            self._say(f"  $ replicator metastore start --dir {side}")
        self._sides = start_sides(self._directory, self._environment)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(self._start_spark, self._sides))
        self._open.sort(key=lambda spark: spark.uri != self._sides[0].uri)

    def _start_spark(self, side: embedded.Running) -> None:
        spark = SparkSql(side.uri, side.warehouse, environment=self._environment)
        self._open.append(spark)
        spark.run("SHOW DATABASES")

    def _init(self) -> None:
        source, target = (each.uri for each in self._sides)
        self._typed(f"init --source {source} --target {target} --policy west --databases {DB}")

    def _first(self) -> None:
        self._typed("sync west")
        self._same_answers()

    def _change(self) -> None:
        self._spark(0, *_CHANGES)
        self._typed("sync west")
        self._same_answers()

    def _mistake(self) -> None:
        wanted = self._open[0].run(_QUERY)
        with connect(self._sides[0].uri) as metastore:
            event = metastore.current_event_id()
        self._spark(0, *_MISTAKE)
        self._typed("sync west")
        self._same_answers()
        self._typed(f"restore west --db {DB} --table orders --to {event} --into rescue")
        self._expect(_RESTORED, self._spark(0, _RESTORED), wanted)

    def _verify(self) -> None:
        self._typed("verify west")

    def _typed(self, command: str) -> None:
        """Runs a command of this program and prints it with its output. Raises Error if it fails."""
        self._say(f"  $ replicator {command}")
        line = [*_PROGRAM, *shlex.split(command)]
        done = subprocess.run(line, cwd=self._directory, env=self._environment, capture_output=True, text=True)
        for text in shortened(done.stdout.splitlines()):
            self._say(f"    {text}")
        if done.returncode:
            self.reported.differences += done.returncode == 4
            told = done.stderr.strip()[-2000:]
            raise Error(f"`replicator {command}` failed: {told}", hint="this is a bug: report it")

    def _spark(self, side: int, *statements: str) -> list[list[Any]]:
        """Runs statements, and prints them with the rows of the last."""
        rows: list[list[Any]] = []
        for each in statements:
            self._say(f"  {_SIDES[side]}> {each}")
            rows = self._open[side].run(each)
        if rows:
            self._say(f"    {_shown(rows)}")
        return rows

    def _same_answers(self) -> None:
        """Queries both sides. Raises Error if the answers differ."""
        for query in (_QUERY, _VIEW):
            wanted = self._open[0].run(query)
            self._open[1].run(f"REFRESH TABLE {DB}.orders")
            self._expect(query, self._spark(1, query), wanted)
        self._say("    The source has the same rows.")

    def _expect(self, query: str, found: Sequence[Sequence[Any]], wanted: Sequence[Sequence[Any]]) -> None:
        if found != wanted:
            self.reported.differences += 1
            told = f"{query}: expected {wanted}, found {found}"
            raise Error(told, hint="this is a bug: report it")

    def _why(self, sentence: str) -> None:
        self._say(f"  {sentence}")

    def _step(self, title: str, work: Callable[[], Any]) -> Any:
        return timed(self.reported, self._say, title, work)


_PROGRAM = (sys.executable, "-m", "replicator")


def own_environment(directory: Path) -> dict[str, str]:
    """Returns an environment whose processes, Java's too, have their temporary files in `directory`/tmp, and which has
    no settings of this program, except where it fetches packages from and stores them."""
    place = directory / "tmp"
    place.mkdir(exist_ok=True)
    fetched = ("REPLICATOR_CACHE", "REPLICATOR_MAVEN_REPOSITORY", "REPLICATOR_LISTENER_JAR")
    theirs = {name: text for name, text in os.environ.items() if name in fetched or not name.startswith("REPLICATOR_")}
    java = f'{os.environ.get("JAVA_TOOL_OPTIONS", "")} "-Djava.io.tmpdir={place}" -XX:-UsePerfData'
    return {**theirs, "TMPDIR": str(place), "JAVA_TOOL_OPTIONS": java.strip()}


def shortened(lines: Sequence[str], most: int = 12) -> list[str]:
    """Returns at most `most` lines: the first and the last ones, and how many are left out between them."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 3], f"... {len(lines) - most + 1} more lines", *lines[-2:]]


def _wait_for(port: int, served: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until the service listens. Raises Error with the end of its log if it does not."""
    deadline = time.monotonic() + _PAGE_ANSWERS
    while True:
        try:
            socket.create_connection((LOOPBACK, port), timeout=5).close()
            return
        except OSError:
            if served.poll() is not None or time.monotonic() > deadline:
                raise Error(f"the page: {log.read_text(errors='replace')[-500:]}") from None
        time.sleep(0.05)


def start_sides(directory: Path, environment: Mapping[str, str]) -> list[embedded.Running]:
    """Two metastores below a directory, the source's first."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda name: embedded.start(directory / name, env=environment), _SIDES))


def stop_sides(directory: Path) -> None:
    """Stops the two metastores, the second one also if the first does not end."""
    with ExitStack() as stopping:
        for name in _SIDES:
            stopping.callback(embedded.stop, directory / name)


def timed(reported: DemoReport, say: Callable[[str], object], title: str, work: Callable[[], Any]) -> Any:
    """Runs a step of the demo, prints its title, and records its seconds."""
    began = time.monotonic()
    say(f"\n{len(reported.steps) + 1}. {title}")
    result = work()
    reported.steps.append({"step": title, "seconds": round(time.monotonic() - began, 1)})
    return result


def _shown(rows: Sequence[Sequence[Any]]) -> str:
    return printable(", ".join(" ".join(map(str, row)) for row in rows))
