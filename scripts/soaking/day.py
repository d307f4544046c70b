"""`scripts/soak_serve`: a day of the service in minutes. Policies on real metastores, writers, kills of servers, runs
and the store; in the end every run that should have been is accounted for, and nothing ran twice at once."""

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
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from benchmarks.__main__ import DOCUMENT
from benchmarks.measure import record
from plain_tables import PlainDatabase
from postgres import Postgres, running_postgres

from cmroot.root import create_or_open
from replicator.metastore.embedded.server_process import free_port
from replicator.metastore.thrift import connect
from soaking.mortals import Server
from soaking.verdict import KINDS, MINUTE, NEVER, PAUSED, Day, judge, outcome_of
from soaking.witness import Kill, Processes, lacking, read_runs

PERIOD = 100.0  # seconds from a policy's run to its next
GRACE = 10.0
SETTLE = 300.0  # seconds that the end may take
OVERTIME = 300.0  # seconds that a day may be longer, until each kind of kill has come
IMPOSSIBLE = "hasty"
"""A policy whose schedule cannot be kept."""


class Service:
    """A server of the service that can be killed, and begun again."""

    def __init__(self, here: Path, name: str, configuration: Path) -> None:
        self.name, self._here, self._configuration = name, here, configuration
        self.url = f"http://127.0.0.1:{free_port()}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        line = [sys.executable, "-m", "replicator", "--config", str(self._configuration), "serve"]
        with (self._here / f"{self.name}.log").open("ab") as log:
            line += ["--listen", self.url.removeprefix("http://")]
            self.process = subprocess.Popen(line, stdout=log, stderr=log, cwd=self._here)

    def end(self, number: int) -> None:
        assert self.process
        self.process.send_signal(number)
        self.process.wait(60)

    def status(self) -> dict[str, Any]:
        try:
            answer = httpx.get(f"{self.url}/api/v1/status", timeout=5)
            return dict(answer.json()) if answer.status_code == 200 else {}
        except (httpx.HTTPError, ValueError):
            return {}

    @property
    def leads(self) -> bool:
        found = self.status()
        return bool(found) and found["leader"] == found["here"] and bool(found["led"])


class World:
    """Both metastores, their databases, the store, the servers."""

    def __init__(self, here: Path, stack: contextlib.ExitStack, day: Day, postgres: Postgres) -> None:
        self.here, self.postgres, self.period = here, postgres, day.period
        self._servers = [Server(side, here / side) for side in ("source", "target")]
        for each in self._servers:
            stack.callback(each.stop)
        self.source, self.target = (stack.enter_context(self._connect(each)) for each in self._servers)
        self.names = [f"p{each:02d}" for each in range(day.policies - 2)] + [IMPOSSIBLE]
        self.databases = [PlainDatabase(self.source, f"db_{name}", here / "data") for name in self.names]
        for each in self.databases:
            each.create()
            each.table("t", {"f": "1\n"})
            each.partitioned("days", {"1": {"f": "1\n"}})
        create_or_open(str(here / "root"))
        self.store = postgres.database()
        self.configuration = here / "replicator.toml"
        self.configuration.write_text(self._text())
        self.services = [Service(here, name, self.configuration) for name in ("one", "other")]

    @staticmethod
    def _connect(server: Server) -> Any:
        return connect(server.running.uri)

    def _text(self) -> str:
        uris = [each.running.uri for each in self._servers]
        text = f'[service]\nstore = "{self.store}"\nlogs = "{self.here}/logs"\nat_once = 3\ngrace = "{GRACE:.0f}s"\n'
        text += '[service.jobs.minutely]\ncommand = ["cm", "ls", "--cmroot", "' + f'{self.here}/root"]\n'
        text += 'cron = "* * * * *"\njitter = "20s"\n'
        for name in [*self.names, NEVER]:
            target = "thrift://127.0.0.1:1" if name == NEVER else uris[1]
            schedule = "1s" if name == IMPOSSIBLE else f"{self.period:.0f}s"
            text += f'[policies.{name}]\nsource = "{uris[0]}"\ntarget = "{target}"\n'
            text += f'databases = ["db_{name}"]\nschedule = "{schedule}"\nengine = "local"\n'
            places = {"cmroot": "cmroot", "target_cmroot": "warehouse/.cmroot", "dumps": "dumps"}
            for key, place in {**places, "warehouse": "warehouse"}.items():
                text += f'{key} = "{self.here}/{name}/{place}"\n'
        return text

    def write(self, dice: random.Random) -> None:
        """A change somewhere."""
        db, name = dice.choice(self.databases), f"f{dice.randrange(10**9)}"
        match dice.randrange(4):
            case 0:
                db.table(f"t{name}", {name: "1\n"})
            case 1:
                db.write("t", {name: "2\n"})
            case 2:
                db.add("days", {name: {name: "3\n"}})
            case _:
                db.alter("t", note=name)

    def differences(self) -> list[str]:
        """Databases whose replica shows other objects or files."""
        found = []
        for name, db in zip(self.names, self.databases, strict=True):
            replica = PlainDatabase(self.target, db.name, self.here / name / "warehouse")
            if not replica.exists() or replica.shown() != db.shown():
                found.append(db.name)
        return found


class Killer:
    """Ends one thing after the other; what it ended is begun again by the time that it ends the next. Raises
    AssertionError where there is nothing to end for a minute."""

    def __init__(self, world: World, processes: Processes, dice: random.Random, day: Day) -> None:
        self._world, self._processes, self._dice, self._day = world, processes, dice, day
        self._turns = itertools.cycle(KINDS)
        self._acts: dict[str, Callable[[], None]] = {
            "run": self._run,
            "server that schedules": lambda: self._end_leader(signal.SIGKILL),
            "store, stopped": self._store_away,
            "server that waits": self._other,
            "store, frozen": self._store_hangs,
            "server, stopped by SIGTERM": lambda: self._end_leader(signal.SIGTERM),
        }
        self.done: list[Kill] = []

    def kill(self) -> None:
        """Those that never came are first."""
        owed = lacking(KINDS, self._day.kills)
        kind = owed[0] if owed else next(self._turns)
        began = time.time()
        self._acts[kind]()
        self.done.append(Kill(kind.partition(" ")[0].strip(","), began, time.time()))
        self._day.kills[kind] = self._day.kills.get(kind, 0) + 1
        print(f"{time.strftime('%T')} {kind}", file=sys.stderr)

    def _run(self) -> None:
        assert wait(self._killed, MINUTE), "no run was at work for a minute"

    def _killed(self) -> bool:
        """Whether a run of a policy was at work, and was ended."""
        found = sorted(pid for pid, line in self._processes.at_work().items() if " sync " in line)
        if not found:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._dice.choice(found), signal.SIGKILL)
            return True
        return False

    def _leader(self) -> tuple[Service, Service]:
        """Who schedules, and who waits."""
        first = wait(lambda: next((each for each in self._world.services if each.leads), None), MINUTE)
        assert first, "no server scheduled for a minute"
        return first, next(each for each in self._world.services if each is not first)

    def _end_leader(self, number: int) -> None:
        first, other = self._leader()
        began = time.monotonic()
        first.end(number)
        if not wait(lambda: other.leads, 2 * MINUTE):
            self._day.wrong.append(f"nobody scheduled for {2 * MINUTE:.0f} s after a server was ended")
        self._day.leaderless.append(round(time.monotonic() - began, 1))
        first.start()

    def _other(self) -> None:
        _, other = self._leader()
        other.end(signal.SIGKILL)
        other.start()

    def _store_away(self) -> None:
        self._world.postgres.stop()
        time.sleep(self._dice.uniform(3, 28))
        self._world.postgres.start()

    def _store_hangs(self) -> None:
        self._world.postgres.freeze()
        time.sleep(self._dice.uniform(3, 28))
        self._world.postgres.thaw()


def wait(true: Callable[[], Any], seconds: float) -> Any:
    """What is true in the end; false: it did not come in time."""
    deadline = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


@contextlib.contextmanager
def writing(world: World, day: Day, dice: random.Random) -> Iterator[None]:
    """A writer that dies is in `day.wrong`."""
    ended = threading.Event()

    def write() -> None:
        try:
            while not ended.wait(dice.uniform(0.2, 1.0)):
                world.write(dice)
                day.writes += 1
        except Exception as error:  # the day goes on, and says so
            day.wrong.append(f"the writer ended: {type(error).__name__}: {error}")

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(MINUTE)
        if thread.is_alive():
            day.wrong.append("the writer hangs")


def live(world: World, day: Day, kills: float) -> None:
    """The day itself, its end, and what is claimed of it."""
    processes = Processes(world.configuration)
    program = [sys.executable, "-m", "replicator", "--config", str(world.configuration)]
    create = [*program, "token", "create", "me", "--role", "operator"]
    token = subprocess.run(create, cwd=world.here, capture_output=True, text=True, check=True).stdout.strip()
    headers = {"Authorization": f"Bearer {token}"}
    killer = Killer(world, processes, random.Random(day.seed), day)
    began = time.time()
    for each in world.services:
        each.start()
    processes.start()
    try:
        wait(lambda: any(each.leads for each in world.services), MINUTE)
        with writing(world, day, random.Random(day.seed + 1)):
            _kill(world, day, killer, kills, headers)
        settled = time.time()
        wanted = {*world.names}

        def quiet() -> bool:
            """Whether each policy had a good run that began after the last write."""
            runs = read_runs(world.store)
            good = {each.job for each in runs if each.state == "done" and (each.begun or 0) > settled}
            return wanted <= good

        if not wait(quiet, SETTLE + day.period):
            day.wrong.append("not every policy had a good run after the last write")
        ended = time.time()
    finally:
        stopped = time.time()
        for each in world.services:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.end(signal.SIGTERM)
        processes.stop()
    killer.done.append(Kill("server", stopped, time.time()))
    periods = dict.fromkeys([*world.names, NEVER], day.period) | {IMPOSSIBLE: 1.0, "minutely": MINUTE}
    judge(day, read_runs(world.store), killer.done, processes, periods, (began, ended))
    day.wrong += [f"not the same: {each}" for each in world.differences()]
    if not wait(lambda: not processes.of_servers(), GRACE + 10):
        day.wrong.append(f"processes are left: {processes.of_servers()}")


def _kill(world: World, day: Day, killer: Killer, kills: float, headers: dict[str, str]) -> None:
    """Kills, and pauses a policy meanwhile: until the day is over, each kind has come, and a time of the policy has
    passed."""
    dice, deadline, paused = random.Random(day.seed + 2), time.monotonic() + day.seconds, 0.0
    while time.monotonic() < deadline or (
        (lacking(KINDS, day.kills) or time.time() - paused < 2 * day.period) and time.monotonic() < deadline + OVERTIME
    ):
        time.sleep(kills * dice.uniform(0.5, 1.5))
        try:
            killer.kill()
        except AssertionError as error:
            day.wrong.append(str(error))
            break
        if not paused and (paused := _act(world, f"jobs/{PAUSED}:pause", headers, day)):
            day.paused = (paused, float("inf"))
    until = time.time()
    if paused and _act(world, f"jobs/{PAUSED}:resume", headers, day):
        day.paused = (paused, until)


def _act(world: World, path: str, headers: dict[str, str], day: Day) -> float:
    """When it was done; 0: it was not, within a minute."""

    def done() -> bool:
        for each in world.services:
            with contextlib.suppress(httpx.HTTPError):
                url = f"{each.url}/api/v1/{path}"
                if httpx.post(url, headers=headers, json={"reason": "the soak"}, timeout=20).is_success:
                    return True
        return False

    if wait(done, MINUTE):
        return time.time()
    day.wrong.append(f"no server did {path} for a minute")
    return 0.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak_serve", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long it writes and kills (600)")
    parser.add_argument("--policies", type=int, default=18, help="beside two that are out of the ordinary (18)")
    parser.add_argument("--kills", type=float, default=25.0, help="seconds from one to the next (25)")
    parser.add_argument("--period", type=float, default=PERIOD, help="seconds from a policy's run to its next (100)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--record", action="store_true", help="put the outcome into docs/performance.md")
    options = parser.parse_args()
    day = Day(options.seconds, options.seed, options.policies + 2, options.period)
    with contextlib.ExitStack() as stack:
        here = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True)))
        postgres = stack.enter_context(running_postgres())
        live(World(here, stack, day, postgres), day, options.kills)
    print(json.dumps(asdict(day), indent=1))
    if options.record:
        given = " ".join(each for each in sys.argv[1:] if each != "--record")
        record(DOCUMENT, "soak", "day", f"scripts/soak_serve {given}".strip(), outcome_of(day))
    return 1 if day.wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:+UseSerialGC")
    sys.exit(main())
