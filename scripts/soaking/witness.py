"""Witnesses of a service's day that share nothing with it: processes as the kernel lists them, and runs by SQL."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

OFTEN = 0.05  # seconds from one look at the processes to the next
AGAIN = (
    *("its server went away", "the store went away while it began"),
    *("the service was stopped", "the server lost its lease"),
)
"""Messages of runs that are made up for."""

ENDS = ("done", "partial", "differs", "failed", "cancelled", "lost")


class Processes:
    """Looks at all runs of a service's servers: who is at work, and whether two are at once of one policy. `seen`: runs
    by policy; `twice`: policies of which two were."""

    def __init__(self, configuration: Path) -> None:
        self._mark = str(configuration)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.seen: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self.twice: list[str] = []
        self.looks = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

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
    missed: int
    asked_by: str
    state: str
    begun: float | None
    ended: float | None
    message: str
    exit_code: int | None


def read_runs(store: str) -> list[Run]:
    """In the order in which they were due, and came."""
    names = ", ".join(Run.__dataclass_fields__)
    with psycopg.connect(store) as connection:
        found = connection.execute(f"SELECT {names} FROM service_run ORDER BY due, queued")
        return [Run(*row) for row in found.fetchall()]


def gaps(runs: Iterable[Run], period: float, began: float, ended: float, patience: float) -> list[str]:
    """Times of a schedule that nobody accounts for, or two do: each run by it stands for its own time and for those it
    says it missed; the time of one that its server ended comes again. patience: seconds that the first and the last may
    be late."""
    wrong, following = [], None
    for run in runs:
        if run.asked_by != "schedule":
            continue
        if following is None and run.due > began + period + patience:
            wrong.append(f"the first one was due {run.due - began:.0f} s after the service began")
        if following is not None and abs(run.due - following) > 0.01:
            wrong.append(f"{(run.due - following) / period:+.2f} periods from {following:.1f} to {run.due:.1f}")
        following = run.due if run.message in AGAIN else run.due + (run.missed + 1) * period
    if following is None:
        wrong.append("none")
    elif following < ended - patience:
        wrong.append(f"none since {ended - following:.0f} s before the end")
    return wrong


def unexplained(runs: Sequence[Run]) -> list[str]:
    """Runs without an end, and without a reason for a bad one."""
    found = [f"{run.job}: {run.state}" for run in runs if run.state not in ENDS or run.ended is None]
    return found + [f"{run.job}: {run.state}, no reason" for run in runs if run.state in ENDS[3:] and not run.message]


def overlapping(runs: Sequence[Run]) -> list[str]:
    """Runs of one job that were at work at once, by the store's times."""
    found, before = [], dict[str, Any]()
    for run in sorted((each for each in runs if each.begun), key=lambda each: each.begun or 0):
        last = before.get(run.job)
        if last is not None and (last.ended is None or (run.begun or 0) < last.ended):
            found.append(f"{run.job} at {run.begun}")
        before[run.job] = run
    return found
