"""`scripts/soak_ingest`: two controllers of ingestion on real Spark, killed and frozen at random, while tables of a
PostgreSQL change and are requested, which crashes, too; in the end every job was published exactly once, and at every
mark of a table that is appended to, the landed rows were those of the source: also of transactions that stay open."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from benchmarks.__main__ import DOCUMENT
from benchmarks.measure import Outcome, record
from postgres import Postgres, running_postgres
from shared_classes import use_shared_classes

import replicator
from replicator.core.config import read_config
from soaking.landed import jobs_of, left_over, publications, wrong_log, wrong_marks, wrong_publications, wrong_rows
from soaking.mortals import Server

LEASE = 15.0
"""Seconds for which a claim holds: after a kill they have to pass."""

FROZEN = 40.0
"""Seconds: its claims run out, the store ends its transactions, another one goes on, and it wakes up too late."""

SETTLE = 420.0
"""Seconds that the end may take: two claims run out, and a wait after a failure."""

PATIENCE = 3.0
"""Seconds for which it waits, again and again, for a job at the step at which it wants to kill."""

STEPS = ("describe", "copy", "verify", "settle", "publish", "constrain", "grant", "clean")
KINDS = ("controller", "controller", "controller with its Java", "controller, frozen")
ASSETS = ("one", "two")


@dataclass
class Soaked:
    """What happened. at: kills by the step at which the store saw a job of the victim's; wrong: what does not hold."""

    seconds: float
    seed: int
    tables: int
    kills: dict[str, int] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    writes: int = 0
    opened: int = 0
    crashes: int = 0
    marks: int = 0
    held_back: int = 0
    attempts: int = 0
    most_attempts: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    published: int = 0
    marked: int = 0
    rows: int = 0
    settled: float = 0.0
    wrong: list[str] = field(default_factory=list)


class Controller:
    """`replicator ingest run --follow`, with its Java in a process group of its own."""

    def __init__(self, name: str, here: Path, config: Path) -> None:
        self.name, self._here, self._config = name, here, config
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        line = [sys.executable, "-m", "replicator", "--config", str(self._config), "ingest", "run", "--follow"]
        with (self._here / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*line, "--master", "local[2]"], stdout=log, stderr=log, cwd=self._here, start_new_session=True
            )

    def signal(self, number: int, *, group: bool = False) -> None:
        assert self.process
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.process.pid, number)

    def end(self) -> int | None:
        """By SIGTERM; None: it had to be killed."""
        assert self.process
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL, group=True)
            return None


class World:
    """A metastore, a source with tables that change, a store of jobs, two controllers."""

    def __init__(
        self, here: Path, stack: contextlib.ExitStack, postgres: Postgres, source: Postgres, soaked: Soaked
    ) -> None:
        self.server = source
        self.here, self._soaked, self._dice = here, soaked, random.Random(soaked.seed)
        self.metastore = Server("metastore", here / "metastore")
        stack.callback(self.metastore.stop)
        self.source, self.store = source.database(), postgres.database()
        self._at_source = psycopg.connect(self.source, autocommit=True)
        stack.callback(lambda: self._at_source.close())
        self.at_store = stack.enter_context(psycopg.connect(self.store, autocommit=True))
        host, _, _ = source.jdbc()["javax.jdo.option.ConnectionURL"].rpartition("/")
        self.landing, self.config = here / "landing", here / "replicator.toml"
        self.config.write_text(
            f'[ingestion]\nmetastore = "{self.metastore.running.uri}"\nlanding = "{self.landing}"\n'
            f'store = "{self.store}"\nslots = 6\nlease = "{LEASE:.0f}s"\n[spark]\n"sql.shuffle.partitions" = 2\n'
            f'[ingestion.sources.crm]\nurl = "{host}/{self._at_source.info.dbname}"\nuser = "postgres"\nreaders = 2\n'
        )
        self._given = read_config(self.config)
        self.modes = {f"t{n}": ("overwrite", "append")[n % 2] for n in range(soaked.tables)}
        for name in self.modes:
            self._sql(f"CREATE TABLE {name} (id bigserial PRIMARY KEY, v text, n numeric(10, 2))")
            self._sql(f"INSERT INTO {name} (v, n) SELECT md5(i::text), i / 4.0 FROM generate_series(1, 3000) i")
        for each in ASSETS:
            known: dict[str, Any] = {"config": self._given, "owner": "ann", "sources": ["crm"], "by": "ann"}
            replicator.asset_create(each, **known)
            replicator.asset_approve(each, config=self._given, by="bob")
        self.controllers = [Controller(name, here, self.config) for name in ("first", "second")]

    def _sql(self, text: str) -> None:
        self._at_source.execute(text)  # type: ignore[call-overload]

    def asset_of(self, table: str) -> str:
        return ASSETS[int(table[1:]) // 2 % len(ASSETS)]

    @property
    def landed(self) -> dict[str, str]:
        """The source's tables, by those in which they land."""
        return {f"{self.asset_of(name)}_public.{name}": name for name in self.modes}

    def connected(self) -> psycopg.Connection[Any]:
        """A new connection to the source, as soon as it answers."""
        while True:
            try:
                return psycopg.connect(self.source, connect_timeout=5)
            except psycopg.Error:
                time.sleep(0.5)

    def write(self) -> None:
        """A change of a table; after a crash of the source, by a new connection."""
        try:
            self._write()
        except psycopg.Error:
            self._at_source.close()
            self._at_source = self.connected()
            self._at_source.autocommit = True

    def _write(self) -> None:
        """A change of a table; those that are appended to only grow."""
        name, number = self._dice.choice([*self.modes]), self._dice.randrange(1, 200)
        self._sql(f"INSERT INTO {name} (v, n) SELECT md5(random()::text), i FROM generate_series(1, {number}) i")
        if self.modes[name] == "overwrite":
            self._sql(f"UPDATE {name} SET v = 'changed', n = n + 1 WHERE id % {number + 1} = 1")
            self._sql(f"DELETE FROM {name} WHERE id % 97 = {number % 97}")
        self._soaked.writes += 1

    def request(self, name: str) -> None:
        more: dict[str, Any] = {"mode": "append", "watermark": "id"} if self.modes[name] == "append" else {}
        replicator.ingest_request(f"crm:public.{name}", asset=self.asset_of(name), config=self._given, by="ann", **more)

    def request_some(self) -> None:
        """What nobody waits for; now and then what somebody works on already."""
        asked = "SELECT target FROM ingestion_job WHERE state IN ('queued', 'running', 'failed')"
        at_work = {row[0].partition(".")[2] for row in self.at_store.execute(asked)}
        for name in self.modes:
            if name not in at_work or self._dice.random() < 0.01:
                self.request(name)

    def open_jobs(self) -> int:
        asked = "SELECT count(*) FROM ingestion_job WHERE state NOT IN ('done', 'superseded')"
        return int(self.at_store.execute(asked).fetchone()[0])  # type: ignore[index]

    def has_begun(self, controller: Controller) -> bool:
        """Whether its Spark has: a step of a job was done by it."""
        assert controller.process
        asked = "SELECT 1 FROM ingestion_change WHERE actor LIKE %s AND step != '' LIMIT 1"
        return self.at_store.execute(asked, (f"%:{controller.process.pid}:%",)).fetchone() is not None

    def steps_of(self, controller: Controller) -> list[str]:
        """The steps of jobs that it holds now, as the store says."""
        assert controller.process
        asked = "SELECT step FROM ingestion_job WHERE holder LIKE %s AND lease > extract(epoch FROM now())"
        return [row[0] or "describe" for row in self.at_store.execute(asked, (f"%:{controller.process.pid}:%",))]


class OpenWriters:
    """Writers of tables that are appended to: each transaction inserts rows, stays open, inserts more, and ends."""

    def __init__(self, world: World, soaked: Soaked, longest: float, count: int = 3) -> None:
        self._world, self._soaked, self._longest = world, soaked, longest
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(count)]
        for each in self._threads:
            each.start()

    def _write(self, number: int) -> None:
        dice = random.Random(self._soaked.seed + 100 + number)
        while not self._over.is_set():
            with contextlib.suppress(psycopg.Error), self._world.connected() as connection:
                self._transaction(connection, dice)

    def _transaction(self, connection: psycopg.Connection[Any], dice: random.Random) -> None:
        names = [name for name, mode in self._world.modes.items() if mode == "append"]
        for name in dice.sample(names, 2):
            for _ in range(2):
                connection.execute(f"INSERT INTO {name} (v, n) VALUES ('open', {dice.randrange(99)})")  # type: ignore[call-overload]
                self._over.wait(self._longest * dice.random() ** 2 / 4)
        if dice.random() < 0.1:
            connection.rollback()
        else:
            connection.commit()
        self._soaked.opened += 1

    def end(self) -> None:
        self._over.set()
        for each in self._threads:
            each.join()


class Crasher:
    """Crashes the source now and then; it is started again at once, and recovers."""

    def __init__(self, world: World, soaked: Soaked, every: float) -> None:
        self._world, self._soaked, self._every = world, soaked, every
        self._next = time.monotonic() + every

    def turn(self) -> None:
        if not self._every or time.monotonic() < self._next:
            return
        self._world.server.crash()
        self._world.server.start()
        self._soaked.crashes += 1
        self._next = time.monotonic() + self._every
        print(f"{time.strftime('%T')} the source crashed", file=sys.stderr)


class Killer:
    """Ends or freezes one that is at a step of a job, each time another; a moment later it is begun again."""

    def __init__(self, world: World, soaked: Soaked, every: float) -> None:
        self._world, self._soaked, self._every = world, soaked, every
        self._dice = random.Random(soaked.seed + 1)
        self._kinds = itertools.cycle(KINDS)
        self._away: dict[Controller, threading.Timer] = {}
        self._next = time.monotonic() + every

    def turn(self) -> None:
        """Ends one if it is time and one is at the step."""
        now = time.monotonic()
        free = [each for each in self._world.controllers if each not in self._away]
        if now < self._next or not free:
            return
        step, patience = self._dice.choice(STEPS), now + PATIENCE
        while time.monotonic() < patience:
            for each in free:
                if self._world.has_begun(each) and step in self._world.steps_of(each):
                    self._end(each, next(self._kinds))
                    self._next = time.monotonic() + self._every * self._dice.uniform(0.5, 1.5)
                    return
            time.sleep(0.01)

    def _end(self, victim: Controller, kind: str) -> None:
        steps = self._world.steps_of(victim)
        wait = self._dice.uniform(0, 3)
        if kind.endswith("frozen"):
            victim.signal(signal.SIGSTOP, group=True)
            wait = FROZEN
        else:
            victim.signal(signal.SIGKILL, group=kind.endswith("Java"))
            assert victim.process
            victim.process.wait()
        self._away[victim] = threading.Timer(wait, self._again, (victim, kind))
        self._away[victim].start()
        self._soaked.kills[kind] = self._soaked.kills.get(kind, 0) + 1
        for each in steps or ["between two"]:
            self._soaked.at[each] = self._soaked.at.get(each, 0) + 1
        print(f"{time.strftime('%T')} {victim.name}: {kind}, at {steps}", file=sys.stderr)

    def _again(self, victim: Controller, kind: str) -> None:
        if kind.endswith("frozen"):
            victim.signal(signal.SIGCONT, group=True)
        else:
            victim.start()
        self._away.pop(victim)

    def end(self) -> None:
        """All are at work again."""
        for each in [*self._away.values()]:
            each.join()


@dataclass(frozen=True)
class Pace:
    """Seconds: between kills of controllers, between crashes of the source (0: none), of the longest transaction."""

    kills: float
    crashes: float
    longest: float


def live(world: World, soaked: Soaked, pace: Pace) -> None:
    """The soak, its end, and what is claimed of it."""
    for each in world.controllers:
        each.start()
    killer, ended = Killer(world, soaked, pace.kills), time.monotonic() + soaked.seconds
    crasher, writers = Crasher(world, soaked, pace.crashes), OpenWriters(world, soaked, pace.longest)
    try:
        while time.monotonic() < ended:
            world.write()
            world.request_some()
            killer.turn()
            crasher.turn()
            time.sleep(0.3)
        killer.end()
        writers.end()
        began = time.monotonic()
        _settle(world, soaked, began)
        for name in world.modes:
            world.request(name)
        _settle(world, soaked, began)
        soaked.settled = round(time.monotonic() - began, 1)
    finally:
        writers.end()
        codes = {each.name: each.end() for each in world.controllers}
    soaked.wrong += [f"{name} ended with {code}" for name, code in codes.items() if code not in (0, 3, 143)]
    judge(world, soaked)


def _settle(world: World, soaked: Soaked, began: float) -> None:
    while world.open_jobs():
        if time.monotonic() - began > SETTLE:
            soaked.wrong.append(f"{world.open_jobs()} jobs had not ended after {SETTLE:.0f} s")
            return
        if gone := [each.name for each in world.controllers if each.process and each.process.poll() is not None]:
            soaked.wrong.append(f"ended by itself: {gone}")
            return
        time.sleep(0.5)


def judge(world: World, soaked: Soaked) -> None:
    uri, log = world.metastore.running.uri, world.landing / "_ingestion_log"
    jobs = jobs_of(world.store)
    found = publications(uri, tuple(f"{each}_public" for each in ASSETS))
    soaked.jobs = dict(Counter(f"{job.state} {job.mode}" for job in jobs))
    soaked.attempts, soaked.most_attempts = sum(job.attempt for job in jobs), max(job.attempt for job in jobs)
    soaked.rows = sum(job.rows for job in jobs if job.state == "done")
    soaked.published, soaked.marked = sum(map(len, found.appeared.values())), found.marked.total()
    errors = world.at_store.execute("SELECT error_text FROM ingestion_change WHERE error_text != ''")
    soaked.errors = dict(Counter(row[0][:100] for row in errors))
    appended = {landed: name for landed, name in world.landed.items() if world.modes[name] == "append"}
    asked = "SELECT facts::json->'late'->>'held_back' FROM ingestion_job WHERE mode = 'append' AND state = 'done'"
    late = [row[0] for row in world.at_store.execute(asked)]
    soaked.marks, soaked.held_back = len(late), sum(int(each or 0) > 0 for each in late)
    soaked.wrong += [
        *wrong_publications(jobs, found),
        *wrong_rows(uri, world.source, world.landed),
        *wrong_marks(uri, world.source, appended),
        *(each.replace(f"{world.landing}/", "") for each in left_over(world.landing, log, found.named)),
        *wrong_log(log, world.store),
    ]
    if not soaked.kills or {*KINDS} - {*soaked.kills}:
        soaked.wrong.append(f"not every kind of kill came: {soaked.kills}")


def outcome_of(soaked: Soaked) -> Outcome:
    outcome = Outcome(["claim", "found", "wanted", ""])

    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{count:,} {name.replace('|', ' ')}" for name, count in counts.items()) or "none"

    def claim(what: str, found: str, wanted: str, *bad: str) -> None:
        holds = not any(each.startswith(bad) for each in soaked.wrong)
        outcome.rows.append([what, found, wanted, "met" if holds else "missed"])

    claim("kills", listed(soaked.kills), "each kind", "not every kind")
    claim("crashes of the source", str(soaked.crashes), "some", "no crash")
    claim("jobs", f"{listed(soaked.jobs)}; {soaked.attempts} attempts", "each done, or replaced", "job ", "published")
    claim("appeared in the metastore", f"{soaked.published} times, by an event each", "once for each job", "job ")
    changes = f"{soaked.rows:,}, from {soaked.writes:,} changes and {soaked.opened:,} open transactions"
    held = f"{soaked.marks}, {soaked.held_back} with rows that waited for a transaction"
    claim("marks of appended tables", held, "the source's rows up to each", "at the mark")
    claim("rows landed", changes, "the source's, each once", *(f"{each}_public" for each in ASSETS))
    claim("directories that nobody named", "none" if not _left(soaked) else str(_left(soaked)), "none", "left")
    claim("the log's table", "each change", "once", "the log", "twice in the log")
    outcome.remarks.append(
        f"{soaked.tables} tables, {soaked.seconds:.0f} s, seed {soaked.seed}; all was done {soaked.settled:.0f} s after"
        f" the last kill. At the kills, jobs were at {listed(soaked.at)}; one had {soaked.most_attempts} attempts."
        f" Marked again by a later claim: {soaked.marked}. Failures on the way: {listed(soaked.errors)}."
        f" What does not hold: {'; '.join(soaked.wrong) or 'nothing'}."
    )
    return outcome


def _left(soaked: Soaked) -> int:
    return sum(each.startswith("left") for each in soaked.wrong)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak_ingest", description=__doc__)
    parser.add_argument("--seconds", type=float, default=360.0, help="how long it writes, requests and kills (360)")
    parser.add_argument("--tables", type=int, default=8, help="half overwritten, half appended to (8)")
    parser.add_argument("--kills", type=float, default=15.0, help="seconds from one to the next, on average (15)")
    parser.add_argument(
        "--crashes", type=float, default=90.0, help="seconds between crashes of the source (90); 0: none"
    )
    parser.add_argument("--open", type=float, default=60.0, help="seconds of the longest transaction (60)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--directory", type=Path, help="where to work; kept then, else a fresh directory, removed")
    parser.add_argument("--record", action="store_true", help="put the outcome into docs/performance.md")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended then, too
    soaked = Soaked(asked.seconds, asked.seed, asked.tables)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True))
        postgres, source = stack.enter_context(running_postgres()), stack.enter_context(running_postgres())
        world = World(asked.directory or Path(scratch), stack, postgres, source, soaked)
        live(world, soaked, Pace(asked.kills, asked.crashes, asked.open))
    print(json.dumps(asdict(soaked), indent=1))
    if asked.record:
        given = f"--seconds {asked.seconds:.0f} --tables {asked.tables} --seed {asked.seed}"
        record(DOCUMENT, "soak", "ingest", f"scripts/soak_ingest {given}".strip(), outcome_of(soaked))
    return 1 if soaked.wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    use_shared_classes(os.environ)
    sys.exit(main())
