"""Witnesses of a service's day that share nothing with it: processes as the kernel lists them, and runs by SQL.

Each returns what is wrong, as texts; nothing: it saw no fault.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

OFTEN = 0.05  # seconds from one look at the processes to the next
AFTER = 10.0  # seconds from the end of a kill until nothing more comes of it
ENDS = ("done", "partial", "differs", "failed", "cancelled", "lost")
OF_SERVICE = ("the service was stopped", "the server lost its lease")
"""Messages of runs that the service ended by itself."""

KILLED, HELD, TRANSIENT = (-9, 137), 7, 75
"""Exit codes: of SIGKILL, of a lease that another run has, and of what another try may get over."""


class Processes:
    """Looks at all runs of a service's servers: who is at work, and whether two are at once of one policy. `seen`: runs
    by policy; `twice`: policies of which two were; `looks`: how often it looked, and `blind` the longest time, in
    seconds, that it did not."""

    def __init__(self, configuration: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._mark, self._clock = str(configuration), clock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.seen: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self.twice: list[str] = []
        self.looks, self.blind = 0, 0.0

    def start(self) -> None:
        self._last = self._clock()
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._looked()  # a thread that died was blind from then on

    def _looked(self) -> None:
        self.blind, self._last = max(self.blind, self._clock() - self._last), self._clock()

    def at_work(self) -> dict[int, str]:
        """Leaders of the runs' sessions, and the command line of each."""
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                words = (place / "cmdline").read_bytes().split(b"\0")
                if b"replicator.service.child" not in words or self._mark.encode() not in words:
                    continue
                fields = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX" and fields[3] == place.name:
                found[int(place.name)] = " ".join(word.decode() for word in words)
        return found

    def of_servers(self) -> list[int]:
        """Everything that was begun for this configuration, and lives."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (place / "cmdline").read_bytes():
                    found.append(int(place.name))
            except OSError:
                continue
        return found

    def _watch(self) -> None:
        while not self._ended.wait(OFTEN):
            now: Counter[str] = Counter()
            for pid, line in self.at_work().items():
                _, found, name = line.partition(" sync ")
                if found:
                    name = name.split()[0]
                    now[name] += 1
                    self.seen[name].add((pid, _began(pid)))
            self._looked()
            self.looks += 1
            self.twice += [f"{time.strftime('%T')} {name}" for name, count in now.items() if count > 1]


def _began(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


@dataclass(frozen=True)
class Run:
    """A row of the store."""

    job: str
    due: float
    queued: float
    missed: int
    asked_by: str
    state: str
    begun: float | None
    ended: float | None
    message: str
    exit_code: int | None

    @property
    def by_schedule(self) -> bool:
        return self.asked_by == "schedule"

    @property
    def of_service(self) -> bool:
        """Whether it ended with its server, or by it: then it is made up for."""
        return self.state == "lost" or (self.state == "cancelled" and self.message in OF_SERVICE)


@dataclass(frozen=True)
class Kill:
    """What was ended: a "run", a "server" or the "store". Times are seconds since 1970; `ended`: when it was there
    again."""

    what: str
    began: float
    ended: float

    def meets(self, run: Run) -> bool:
        """Whether the run was there while it happened, or came just after."""
        return (run.begun or run.queued) <= self.ended + AFTER and (run.ended or self.ended) >= self.began


def read_runs(store: str) -> list[Run]:
    """In the order in which they were queued."""
    names = ", ".join(Run.__dataclass_fields__)
    with psycopg.connect(store) as connection:
        rows = connection.execute(f"SELECT {names} FROM service_run ORDER BY queued, due").fetchall()
    return [Run(*row) for row in rows]


def gaps(runs: Iterable[Run], period: float, began: float, ended: float, patience: float) -> list[str]:
    """Times of a job's schedule that nobody accounts for, or two do: each run by it stands for its own time and for
    those it says it missed. The time of a run that the service ended is due again, once, in the next run. runs: of one
    job, as they were queued. patience: seconds that the first and the last may be late."""
    wrong, following = [], None
    for run in runs:
        if not run.by_schedule:
            continue
        if following is None and run.due > began + period + patience:
            wrong.append(f"the first one was due {run.due - began:.0f} s after the service began")
        if following is not None and abs(run.due - following) > 0.01:
            wrong.append(f"{(run.due - following) / period:+.2f} periods from {following:.1f} to {run.due:.1f}")
        again = run.of_service and run.ended is not None and run.ended < ended
        following = run.due if again else run.due + (run.missed + 1) * period
    if following is None:
        wrong.append("none")
    elif following < ended - patience:
        wrong.append(f"none since {ended - following:.0f} s before the end")
    return wrong


def unexplained(runs: Sequence[Run], kills: Sequence[Kill], away: str, waiting: float) -> list[str]:
    """Runs without an end, but for those that were queued since `waiting` and wait for a place; and those that did not
    end well and whose reason is none of these: the service ended it as it or its store was killed; it was killed
    itself; a run before it, that did not end well, had the lease; something was away for a while. away: a job whose
    target always is. runs: as they were queued."""
    found, before = list[str](), dict[str, Run]()
    for run in runs:
        if run.state == "queued" and run.queued > waiting:
            pass
        elif run.state not in ENDS or run.ended is None:
            found.append(f"{run.job}: {run.state}, no end")
        elif run.state != "done" and not _is_expected(run, before.get(run.job), kills, away):
            found.append(f"{run.job}: {run.state} with {run.exit_code}: {run.message[:200] or 'no reason'}")
        elif run.state == "done" and run.job == away:
            found.append(f"{run.job}: done, and its target is away")
        before[run.job] = run
    return found


def _is_expected(run: Run, before: Run | None, kills: Sequence[Kill], away: str) -> bool:
    if not run.message:
        return False
    met = {kill.what for kill in kills if kill.meets(run)}
    if run.of_service:
        return not met.isdisjoint(("server", "store"))
    if run.state != "failed":
        return False
    if run.exit_code in KILLED:
        return "run" in met
    if run.exit_code == HELD:
        return before is not None and before.state != "done"
    return run.exit_code == TRANSIENT


def begun_meanwhile(runs: Iterable[Run], since: float, until: float, step: float) -> list[str]:
    """Runs by schedule of one job that began between two times, in which it was paused. step: seconds that the
    scheduler may have been at work with what it knew before."""
    return [
        f"{run.job}: began {run.begun - since:.1f} s after it was paused"
        for run in runs
        if run.by_schedule and run.begun is not None and since + step < run.begun < until
    ]


def lacking(kinds: Iterable[str], done: Mapping[str, int]) -> list[str]:
    """Kinds of which none was done."""
    return [each for each in kinds if not done.get(each)]


def overlapping(runs: Sequence[Run]) -> list[str]:
    """Runs of one job that were at work at once, by the store's times."""
    found, before = [], dict[str, Any]()
    for run in sorted((each for each in runs if each.begun), key=lambda each: each.begun or 0):
        last = before.get(run.job)
        if last is not None and (last.ended is None or (run.begun or 0) < last.ended):
            found.append(f"{run.job} at {run.begun}")
        before[run.job] = run
    return found
