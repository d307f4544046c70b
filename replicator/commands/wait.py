"""`wait`: until a target has come far enough."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta

from replicator.commands.base import Options, verb
from replicator.policies.wait import Goal, Waited
from replicator.policies.wait import wait as until


@dataclass(frozen=True, kw_only=True)
class WaitOptions(Options):
    """Arguments:

    target: the target's metastore: a thrift URI, several separated by commas, or a configured name.
    db: the database, by its name on the target.
    source: the source's metastore, for until_lag.
    until_event: until the target has this event of the source.
    until_lag: until the oldest event that the target lacks is at most this old.
    timeout: give up after this long; zero asks once.
    """

    target: str
    db: str
    source: str | None = None
    until_event: int | None = None
    until_lag: timedelta | None = None
    timeout: timedelta = timedelta(minutes=10)


@verb(WaitOptions)
def wait(options: WaitOptions) -> Waited:
    """Waits until a replicated database has come to an event, or close enough behind its source. Reads only; may run
    again.

        replicator.wait(target="thrift://b:9083", db="sales", until_event=4711)

    Raises NotReached when the time is over; UsageError for a goal that cannot be told."""
    with ExitStack() as stack:
        target = stack.enter_context(options.connected(options.target))
        source = stack.enter_context(options.connected(options.source)) if options.source else None
        goal = Goal(options.until_event, options.until_lag)
        return until(target, options.db.lower(), goal, timeout=options.timeout, source=source)
