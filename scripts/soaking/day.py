"""`scripts/soak_serve`: a day of the service in minutes. Policies on real metastores, writers, kills of servers, runs
and the store; in the end every run that should have been is accounted for, and nothing ran twice at once."""

from __future__ import annotations

import argparse
import contextlib
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
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from plain_tables import PlainDatabase
from postgres import Postgres, running_postgres

from replicator.metastore.embedded.server_process import free_port
from replicator.metastore.thrift import connect
from soaking.mortals import Server
from soaking.witness import Processes, gaps, overlapping, read_runs, unexplained

PERIOD = 100.0  # seconds from a policy's run to its next
MINUTE = 60.0
LATE = 75.0  # seconds that a run may be due and not queued: a lease, and a step
GRACE = 10.0
SETTLE = 300.0  # seconds that the end may take
NEVER, IMPOSSIBLE, PAUSED = "away", "hasty", "p00"
"""A policy whose target never answers; one whose schedule cannot be kept; one that is paused for a while."""


@dataclass
class Day:
    """What happened. `wrong`: claims that do not hold; empty: it passed. `leaderless`: the longest time, in seconds,
    from a kill of who scheduled to another that did."""

    seconds: float = 0.0
    seed: int = 0
    policies: int = 0
    runs: dict[str, int] = field(default_factory=dict)
    missed: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    kills: dict[str, int] = field(default_factory=dict)
    leaderless: list[float] = field(default_factory=list)
    writes: int = 0
    processes: int = 0
    looks: int = 0
    wrong: list[str] = field(default_factory=list)


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

    def __init__(self, here: Path, stack: contextlib.ExitStack, number: int, postgres: Postgres) -> None:
        self.here, self.postgres = here, postgres
        self._servers = [Server(side, here / side) for side in ("source", "target")]
        for each in self._servers:
            stack.callback(each.stop)
        self.source, self.target = (stack.enter_context(self._connect(each)) for each in self._servers)
        self.names = [f"p{each:02d}" for each in range(number)] + [IMPOSSIBLE]
        self.databases = [PlainDatabase(self.source, f"db_{name}", here / "data") for name in self.names]
        for each in self.databases:
            each.create()
            each.table("t", {"f": "1\n"})
            each.partitioned("days", {"1": {"f": "1\n"}})
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
        text += '[service.jobs.minutely]\ncommand = ["cm", "ls", "--cmroot", "' + f'{self.here}/p00/cmroot"]\n'
        text += 'cron = "* * * * *"\njitter = "20s"\n'
        for name in [*self.names, NEVER]:
            target = "thrift://127.0.0.1:1" if name == NEVER else uris[1]
            schedule = "1s" if name == IMPOSSIBLE else f"{PERIOD:.0f}s"
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
    """Ends one thing after the other; what it ended is begun again by the time that it ends the next."""

    def __init__(self, world: World, processes: Processes, dice: random.Random, day: Day) -> None:
        self._world, self._processes, self._dice, self._day = world, processes, dice, day
        self._kills: list[Callable[[], str]] = [
            self._child,
            self._leader,
            self._child,
            self._store_away,
            self._other,
            self._store_hangs,
            self._orderly,
        ]
        self._number = 0

    def kill(self) -> None:
        done = self._kills[self._number % len(self._kills)]()
        self._number += 1
        self._day.kills[done] = self._day.kills.get(done, 0) + 1
        print(f"{time.strftime('%T')} {done}", file=sys.stderr)

    def _child(self) -> str:
        if not (found := wait(lambda: sorted(self._processes.at_work()), MINUTE)):
            return "no run to kill"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._dice.choice(found), signal.SIGKILL)
        return "run"

    def _leader(self) -> str:
        return self._end_leader(signal.SIGKILL, "server that schedules")

    def _orderly(self) -> str:
        return self._end_leader(signal.SIGTERM, "server, stopped by SIGTERM")

    def _end_leader(self, number: int, what: str) -> str:
        first = next((each for each in self._world.services if each.leads), None)
        if first is None:
            return "no leader to kill"
        other = next(each for each in self._world.services if each is not first)
        began = time.monotonic()
        first.end(number)
        if not wait(lambda: other.leads, 2 * MINUTE):
            self._day.wrong.append(f"nobody scheduled for {2 * MINUTE:.0f} s after a server was ended")
        self._day.leaderless.append(round(time.monotonic() - began, 1))
        first.start()
        return what

    def _other(self) -> str:
        found = next((each for each in self._world.services if not each.leads), None)
        if found is None:
            return "no other server to kill"
        found.end(signal.SIGKILL)
        found.start()
        return "server that waits"

    def _store_away(self) -> str:
        self._world.postgres.stop()
        time.sleep(self._dice.uniform(3, 28))
        self._world.postgres.start()
        return "store, stopped"

    def _store_hangs(self) -> str:
        self._world.postgres.freeze()
        time.sleep(self._dice.uniform(3, 28))
        self._world.postgres.thaw()
        return "store, frozen"


def wait(true: Callable[[], Any], seconds: float) -> Any:
    """What is true in the end; false: it did not come in time."""
    deadline = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


@contextlib.contextmanager
def writing(world: World, day: Day, dice: random.Random) -> Iterator[None]:
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(dice.uniform(0.2, 1.0)):
            world.write(dice)
            day.writes += 1

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def live(world: World, day: Day, kills: float) -> None:
    """The day itself, its end, and what is claimed of it."""
    processes = Processes(world.configuration)
    program = [sys.executable, "-m", "replicator", "--config", str(world.configuration)]
    create = [*program, "token", "create", "me", "--role", "operator"]
    token = subprocess.run(create, cwd=world.here, capture_output=True, text=True, check=True).stdout.strip()
    headers = {"Authorization": f"Bearer {token}"}
    began = time.time()
    for each in world.services:
        each.start()
    processes.start()
    try:
        wait(lambda: any(each.leads for each in world.services), MINUTE)
        killer = Killer(world, processes, random.Random(day.seed), day)
        deadline, paused = time.monotonic() + day.seconds, False
        with writing(world, day, random.Random(day.seed + 1)):
            while time.monotonic() < deadline:
                time.sleep(kills * killer._dice.uniform(0.5, 1.5))
                killer.kill()
                if paused is False:
                    paused = bool(_act(world, f"jobs/{PAUSED}:pause", headers))
        _act(world, f"jobs/{PAUSED}:resume", headers)
        settled = time.time()
        wanted = {*world.names}

        def quiet() -> bool:
            """Whether each policy had a good run that began after the last write."""
            runs = read_runs(world.store)
            good = {each.job for each in runs if each.state == "done" and (each.begun or 0) > settled}
            return wanted <= good

        if not wait(quiet, SETTLE + PERIOD):
            day.wrong.append("not every policy had a good run after the last write")
        ended = time.time()
    finally:
        for each in world.services:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.end(signal.SIGTERM)
        processes.stop()
    judge(world, day, processes, began, ended)


def judge(world: World, day: Day, processes: Processes, began: float, ended: float) -> None:
    """Puts what does not hold into `day.wrong`."""
    runs = read_runs(world.store)
    states = Counter(each.state for each in runs)
    day.runs, day.missed = dict(states), sum(each.missed for each in runs)
    day.reasons = dict(Counter(f"{each.state}: {short(each.message)}" for each in runs if each.state != "done"))
    day.processes, day.looks = sum(map(len, processes.seen.values())), processes.looks
    day.wrong += [f"twice at once: {each}" for each in [*processes.twice, *overlapping(runs)]]
    day.wrong += [f"no end or no reason: {each}" for each in unexplained(runs)]
    periods = dict.fromkeys([*world.names, NEVER], PERIOD) | {IMPOSSIBLE: 1.0, "minutely": MINUTE}
    for job, period in periods.items():
        late = LATE + MINUTE  # a run may wait for its place
        found = gaps([each for each in runs if each.job == job], period, began, ended, late + (period == 1.0) * MINUTE)
        day.wrong += [f"not accounted for: {job}: {each}" for each in found]
    if not any(each.state == "failed" for each in runs if each.job == NEVER):
        day.wrong.append(f"{NEVER} did not fail")
    if any(each > MINUTE for each in day.leaderless):
        day.wrong.append(f"nobody scheduled for {max(day.leaderless)} s")
    day.wrong += [f"not the same: {each}" for each in world.differences()]
    if left := wait(lambda: not processes.of_servers(), GRACE + 10) or processes.of_servers():
        day.wrong += [f"processes are left: {left}"] if left is not True else []


def short(message: str) -> str:
    return message.partition(": ")[0][:60] if "took longer" not in message else message[:60]


def _act(world: World, path: str, headers: dict[str, str]) -> bool:
    for each in world.services:
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.post(f"{each.url}/api/v1/{path}", headers=headers, json={"reason": "the soak"}, timeout=20)
            if answer.is_success:
                return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak_serve", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long it writes and kills (600)")
    parser.add_argument("--policies", type=int, default=18, help="beside two that are out of the ordinary (18)")
    parser.add_argument("--kills", type=float, default=25.0, help="seconds from one to the next (25)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    day = Day(options.seconds, options.seed, options.policies + 2)
    with contextlib.ExitStack() as stack:
        here = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True)))
        postgres = stack.enter_context(running_postgres())
        live(World(here, stack, options.policies, postgres), day, options.kills)
    print(json.dumps(asdict(day), indent=1))
    return 1 if day.wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:+UseSerialGC")
    sys.exit(main())
