"""Wait: until a target has come to an event, or close enough behind its source. For scripts. Reads only.

Asks `status` at growing intervals. A metastore that does not answer, or a database that does not exist yet, is waited
for like everything else: the time limit decides.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from replicator.core.report import Report
from replicator.core.text.quantity import count_text
from replicator.errors import MetastoreUnreachable, NotReached, ObjectNotFound, UsageError
from replicator.metastore.client import MetastoreReader
from replicator.policies.status import Status, status

FIRST, LONGEST, GROWTH = 0.1, 5.0, 1.5  # seconds between two questions, and how that grows


@dataclass(frozen=True)
class Goal:
    """What is waited for; all that is given must hold. event: the target's event is this one or later. lag: the oldest
    event that the target lacks is at most this old."""

    event: int | None = None
    lag: timedelta | None = None

    def reached(self, now: Status) -> bool:
        if now.event is None or (self.event is not None and now.event < self.event):
            return False
        return self.lag is None or (now.lag_seconds is not None and now.lag_seconds <= self.lag.total_seconds())

    def __str__(self) -> str:
        parts = [f"event {self.event}"] if self.event is not None else []
        return " and ".join(parts + ([f"a lag of {self.lag.total_seconds():g} s"] if self.lag is not None else []))


@dataclass
class Waited(Report):
    """The target as it was when the goal was reached, after `seconds`."""

    db: str
    target: str
    event: int
    lag_events: int | None
    lag_seconds: float | None
    seconds: float
    status: str = "reached"


def wait(
    target: MetastoreReader,
    db: str,
    goal: Goal,
    *,
    timeout: timedelta,
    source: MetastoreReader | None = None,
    clock: Callable[[], float] = clocks.monotonic,
    sleep: Callable[[float], object] = clocks.sleep,
) -> Waited:
    """Returns when the target's database `db` has reached the goal; asks at least once.

    Raises NotReached when the time is over first, UsageError for a goal that cannot be determined: none, or a lag
    without a source. Safe to stop and to run again."""
    if goal == Goal():
        raise UsageError("nothing to wait for", hint="give --until-event or --until-lag")
    if goal.lag is not None and source is None:
        raise UsageError("a lag is told by comparing with the source", hint="give --source")
    began = clock()
    pause = FIRST
    while True:
        now, trouble = _ask(target, db, source if goal.lag is not None else None)
        spent = clock() - began
        if now is not None and goal.reached(now):
            assert now.event is not None
            return Waited(db, target.uri, now.event, now.lag_events, now.lag_seconds, round(spent, 3))
        left = timeout.total_seconds() - spent
        if left <= 0:
            raise _not_reached(target, db, goal, timeout, now, trouble)
        sleep(min(pause, left))
        pause = min(pause * GROWTH, LONGEST)


def _ask(target: MetastoreReader, db: str, source: MetastoreReader | None) -> tuple[Status | None, str]:
    """The status, or why there is none."""
    try:
        return status(target, db, source=source), ""
    except (MetastoreUnreachable, ObjectNotFound) as error:
        return None, error.message


def _not_reached(
    target: MetastoreReader, db: str, goal: Goal, timeout: timedelta, now: Status | None, trouble: str
) -> NotReached:
    there = trouble
    if now is not None:
        there = "it is no replica" if now.event is None else f"it is at event {now.event}"
        if now.lag_seconds is not None:
            there += f", {count_text(now.lag_events or 0, 'event')} and {now.lag_seconds:.0f} s behind"
    return NotReached(
        f"database {db} of {target.uri} has not come to {goal} within {timeout.total_seconds():g} s: {there}",
        hint="wait again with a longer --timeout; `replicator status` tells whether a load is under way",
        details={
            "event": now.event if now else None,
            "lag_events": now.lag_events if now else None,
            "lag_seconds": now.lag_seconds if now else None,
        },
    )
