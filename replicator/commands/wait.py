"""`wait`: until a target has come far enough."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import ClassVar

from replicator.commands.base import Where, names, verb
from replicator.commands.of_policy import OfPolicy
from replicator.commands.ranges import Natural
from replicator.policies.direction import Direction
from replicator.policies.status import Goal, Waited
from replicator.policies.status import wait as until


@dataclass(frozen=True, kw_only=True)
class WaitOptions(OfPolicy):
    """Arguments:

    target: the target's metastore: a thrift URI, several separated by commas, or a configured name.
    catalog, target_catalog: of both sides, on Hive 3 and newer; None: the server's default one.
    db: the database, by its name on the target; none: all of the policy, and the report is of the last one.
    source: the source's metastore, for until_lag.
    until_event: until the target has this event of the source.
    until_lag: until the oldest event that the target lacks is at most this old.
    timeout: give up after this long; zero asks once.
    """

    needed: ClassVar = ("target", "db")

    policy: str | None = field(default=None, kw_only=False)
    target: Where = ""
    db: str | Sequence[str] = ()
    source: Where = ""
    catalog: str | None = None
    target_catalog: str | None = None
    until_event: Natural | None = None
    until_lag: timedelta | None = None
    timeout: timedelta = timedelta(minutes=10)

    def databases(self, direction: Direction) -> Sequence[str]:
        return [pair.replica for pair in direction.matching if pair.source is not None]


@verb(WaitOptions)
def wait(options: WaitOptions) -> Waited:
    """Waits until a replicated database has come to an event, or close enough behind its source. Reads only; may run
    again.

        replicator.wait(target="thrift://b:9083", db="sales", until_event=4711)
        replicator.wait("west", until_lag=timedelta(seconds=30))

    Raises NotReached when the time is over; UsageError for a goal that cannot be determined."""
    with ExitStack() as stack:
        target = stack.enter_context(options.connected(options.target))
        source = stack.enter_context(options.connected(options.source)) if options.source else None
        goal = Goal(options.until_event, options.until_lag)
        began, waited = time.monotonic(), []
        for db in names(options.db):
            spent = timedelta(seconds=time.monotonic() - began)
            left = max(timedelta(0), options.timeout - spent)
            waited.append(until(target, db, goal, timeout=left, source=source))
    return replace(waited[-1], seconds=round(sum(each.seconds for each in waited), 3))
