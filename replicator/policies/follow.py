"""Following: runs of a policy, repeated until stopped. The schedule, and the decision which rounds scan beyond the
events; `run` contains a single run.

Every failure except one of the configuration is retried: a restarting metastore, a crashed Spark, a lease held by
another process, a table in the way that an operator will move. Each is recorded in the history and reported.
"""

from __future__ import annotations

import random
import time as clocks
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum

from replicator.core import runtime
from replicator.core.not_replicated import NotReplicated, Report
from replicator.core.runtime import Stop, Terminated
from replicator.errors import LeaseHeld, MetastoreError, MetastoreUnreachable, Refused
from replicator.policies.direction import Sides
from replicator.policies.memory import Compared
from replicator.policies.replicas import Background, compare_now
from replicator.policies.run import Remembering, SyncRun, record_unreached, sync_once
from replicator.policies.steps import SyncSettings

AWAY_WAIT = timedelta(seconds=10)  # the longest while a metastore is away: a try costs nothing, and lag grows
SCAN_SHARE = 5  # scanning directories for changes without events may take one part in so many of the time
COMPARE_SHARE = 20  # comparing every table with the metastore, as changes without events are rare


class Scan(Enum):
    """The extent of a round's scan for changes without an event."""

    NOTHING = "nothing"
    FILES = "files"
    ALL = "all"


@dataclass
class RunsFollowed(Report):
    """The report over all rounds. `rounds`: completed runs, `synced` of which loaded something; `skipped`: rounds in
    which the source had no new event and no scan was due; `failures`: runs that failed, `last_error` from the newest
    one. `last`: the newest run that loaded something. `compared`: the newest verification, of `sampled` tables in
    total. `not_replicated`: as of the newest run."""

    policy: str
    status: str = "stopped"
    rounds: int = 0
    synced: int = 0
    skipped: int = 0
    failures: int = 0
    last_error: str = ""
    to_event: int = 0
    position: int = 0
    records: int = 0
    files_copied: int = 0
    bytes_copied: int = 0
    last: SyncRun | None = None
    compared: Compared | None = None
    sampled: int = 0
    not_replicated: list[NotReplicated] = field(default_factory=list)
    exit_code: int = 0
    warnings: list[str] = field(default_factory=list)

    def add(self, run: SyncRun) -> None:
        self.rounds += 1
        self.not_replicated = run.not_replicated
        self.to_event, self.position = run.to_event, run.position
        self.records += run.records
        self.files_copied += run.files_copied
        self.bytes_copied += run.bytes_copied
        self.warnings += [text for text in run.warnings if text not in self.warnings][: 100 - len(self.warnings)]
        if run.compared:
            self.compared = run.compared
            self.sampled += run.compared.sampled
        if run.moved:
            self.synced += 1
            self.last = run


class Pace:
    """The schedule of rounds and scans. Pure but for its clock and its random numbers."""

    def __init__(
        self, schedule: timedelta, *, now: Callable[[], float] = clocks.monotonic, dice: runtime.Dice = random.uniform
    ) -> None:
        self._schedule, self._now, self.dice = schedule, now, dice
        self._began = now()
        self._next_scan = self._next_comparison = 0.0

    def begin(self) -> Scan:
        """Starts a round and returns how far it scans. In a large warehouse, long scans are done less often."""
        self._began = self._now()
        if self._began >= max(self._next_scan, self._next_comparison):
            return Scan.ALL
        return Scan.FILES if self._began >= self._next_scan else Scan.NOTHING

    def scanned(self, scan: Scan, run: SyncRun) -> None:
        """Schedules the next scan by the duration of this one, except a first capture, which lists everything."""
        if scan is not Scan.NOTHING and not run.bootstrapped:
            self._next_scan = self._began + SCAN_SHARE * run.scan_seconds
        if scan is Scan.ALL:
            self._next_comparison = self._began + COMPARE_SHARE * run.compare_seconds

    def rest(self) -> float:
        """Returns the seconds until the next round, from the schedule between two starts."""
        return max(0.0, self._began + runtime.spread(self._schedule, self.dice) - self._now())


@dataclass(frozen=True)
class Listeners:
    """The callbacks of a following. reported: each run that loaded something, that brought a difference found in the
    background, or after which other objects are not replicated; failed: each error, and the seconds to the next try;
    unreached: an error before a run began, which no run's record contains."""

    reported: Callable[[SyncRun], None]
    failed: Callable[[Exception, float], None]
    unreached: Callable[[Exception], None] = lambda error: None


def follow(
    total: RunsFollowed,
    once: Callable[[Scan], SyncRun],
    newest_event: Callable[[bool], int],
    listeners: Listeners,
    *,
    pace: Pace,
    stop: Stop,
    background: Background | None = None,
) -> None:
    """Runs `once(scan)` until `stop`, and counts in `total`. newest_event(reverse): of the side that is replicated;
    while it is unchanged and no scan is due, a round is skipped. background: the concurrent verification, whose results
    the runs record.

    Raises ConfigError and UsageError, which retrying does not fix, and interruptions of a round."""
    seen: int | None = None
    reverse = False

    def one() -> float:
        nonlocal seen, reverse
        scan = pace.begin()
        try:
            newest = newest_event(reverse)
        except Exception as error:
            listeners.unreached(error)
            raise
        if scan is Scan.NOTHING and newest == seen and not (background and background.has_news):
            total.skipped += 1
            return pace.rest()
        run, lacked = once(scan), {each.name for each in total.not_replicated}
        total.add(run)
        reverse = run.reverse
        seen = newest  # from before the run: later events are fetched at once
        pace.scanned(scan, run)
        lacks = {each.name for each in run.not_replicated} != lacked
        if run.moved or lacks or (run.compared and run.compared.differing):
            listeners.reported(run)
        return pace.rest()

    def missed(error: Exception, wait: float) -> None:
        nonlocal seen
        seen = None
        total.failures += 1
        total.last_error = f"{type(error).__name__}: {error}"
        listeners.failed(error, wait)

    runtime.follow(one, missed, stop=stop, longest=_longest_wait, dice=pace.dice)


def _longest_wait(error: Exception) -> timedelta:
    return AWAY_WAIT if isinstance(error, MetastoreUnreachable) else runtime.LONGEST_WAIT


def follow_policy(
    sides: Sides, options: SyncSettings, listeners: Listeners, *, schedule: timedelta, stop: Stop
) -> RunsFollowed:
    """Runs a policy repeatedly, with its verification in the background; arguments as `sync_once` and `follow`.
    `schedule`: from the start of one run to the next. options: of a round with a full scan. If terminated during a run,
    which the next one completes, it ends as `interrupted`. Raises as `follow`."""
    remembering = Remembering(sides.policy)

    def once(scan: Scan) -> SyncRun:
        whole = scan is Scan.ALL
        chosen = replace(
            options, scan=scan is not Scan.NOTHING, paced=False, compare=whole, deep=options.deep and whole
        )
        return sync_once(sides, chosen, remembering)

    def compare(enough: Callable[[], bool]) -> Compared | None:
        return compare_now(sides, remembering.memory, enough=enough)

    def failed(error: Exception, wait: float) -> None:
        if not isinstance(error, MetastoreError | LeaseHeld | Refused):
            sides.runtime.engines.stop()  # Spark may have died: the next round that requires it gets a new session
        listeners.failed(error, wait)

    total = RunsFollowed(sides.policy.name)
    with ExitStack() as stack:
        if sides.policy.verify is not None:
            remembering.background = Background(compare, pause=schedule.total_seconds())
            stack.enter_context(remembering.background.running())
        try:
            follow(
                total,
                once,
                lambda reverse: (sides.target if reverse else sides.source).current_event_id(),
                Listeners(listeners.reported, failed, lambda error: record_unreached(remembering, error)),
                pace=Pace(schedule),
                stop=stop,
                background=remembering.background,
            )
        except Terminated:
            total.status = "interrupted"
    return total
