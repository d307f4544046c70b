"""`status`: how far a target is, and how far behind; of a policy, the same as `lag`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import ClassVar

from cmroot.root import open_existing
from replicator.commands.base import Options, Where, names, verb
from replicator.commands.of_policy import OfPolicy
from replicator.commands.ranges import Natural, Positive
from replicator.errors import UsageError
from replicator.policies import lag as lags
from replicator.policies.checks import check as checks
from replicator.policies.checks.check import PolicyChecked, impatient
from replicator.policies.direction import Direction
from replicator.policies.lag import Lag
from replicator.policies.memory import Memory, ShownHistory, shown_history
from replicator.policies.status import Goal, Status, Waited
from replicator.policies.status import status as ask
from replicator.policies.status import wait as until

# ---- lag -------------------------------------------------------------------------------------------------------------
# `lag` and `history`: how far a policy's target is behind, and what its runs did.


@dataclass(frozen=True, kw_only=True)
class LagOptions(Options):
    """Arguments:

    policy: its name in the configuration.
    """

    policy: str = field(kw_only=False)


@verb(LagOptions)
def lag(options: LagOptions) -> Lag:
    """Measures how far a policy's target is behind, per database and table, in events, seconds and bytes. Reads only.

        replicator.lag("west").seconds

    A side that does not answer is in `unreachable`, and the figures are the last known ones. Raises UsageError where
    there is no such policy."""
    policy = options.settings.policy(options.policy)
    with impatient(policy.source_metastore) as source, impatient(policy.target_metastore) as target:
        return lags.lag(policy, source, target)


@dataclass(frozen=True, kw_only=True)
class HistoryOptions(Options):
    """Arguments:

    policy: its name in the configuration.
    limit: the newest runs, so many; None: all.
    """

    policy: str = field(kw_only=False)
    limit: Positive | None = 20


@verb(HistoryOptions)
def history(options: HistoryOptions) -> ShownHistory:
    """Shows a policy's runs, newest first. One entry stands for all rounds in a row that found nothing new. Reads only.

        replicator.history("west", limit=5).to_arrow()

    Raises UsageError where there is no such policy, FormatError where its target's root is not there."""
    policy = options.settings.policy(options.policy)
    return shown_history(Memory(open_existing(policy.target_cmroot), policy.name), policy, options.limit)


# ---- status ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StatusOptions(Options):
    """Arguments:

    policy: its name in the configuration, instead of all others.
    target: the target's metastore: a thrift URI, several separated by commas, or a configured name.
    catalog, target_catalog: of both sides, on Hive 3 and newer; None: the server's default one.
    db: the database, by its name on the target.
    source: the source's metastore, to tell the lag, too.
    cmroot: the source's root, to tell the time of the target's state, and the lag in bytes.
    source_db: the database's name at the source, where it was renamed.
    """

    policy: str | None = field(default=None, kw_only=False)
    target: Where | None = None
    db: str | None = None
    source: Where | None = None
    catalog: str | None = None
    target_catalog: str | None = None
    cmroot: str | None = None
    source_db: str | None = None


@verb(StatusOptions)
def status(options: StatusOptions) -> Status | Lag:
    """Says how far a replicated database is, and how far behind; of a policy, what `lag` says. Reads only.

        replicator.status(target="thrift://b:9083", db="sales", source="thrift://a:9083").lag_events
        replicator.status("west").seconds

    Raises UsageError for neither policy nor database, and for a $cmroot that is not its source's; ObjectNotFound for a
    database that does not exist."""
    if options.policy is not None:
        return lag(options.policy, config=options.settings)
    if options.target is None or options.db is None:
        raise UsageError("status needs a policy, or --target and --db", hint="see `replicator status --help`")
    with ExitStack() as stack:
        return ask(
            stack.enter_context(options.connected(options.target)),
            options.db.lower(),
            source=stack.enter_context(options.connected(options.source)) if options.source else None,
            root=open_existing(options.cmroot) if options.cmroot else None,
            source_db=options.source_db.lower() if options.source_db else None,
        )


# ---- wait ------------------------------------------------------------------------------------------------------------
# `wait`: until a target has come far enough.


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


# ---- check -----------------------------------------------------------------------------------------------------------
# `check`: what can be proved of a policy.


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    """Arguments:

    policy: its name in the configuration.
    """

    policy: str = field(kw_only=False)


@verb(CheckOptions)
def check(options: CheckOptions) -> PolicyChecked:
    """Proves what can be proved of a policy before its first run, and at any time after: metastores, the notification
    log, clocks, rights, room, roles, lag, the last runs. Writes small hidden files where runs will write, and removes
    them. May run at any time, and again.

        replicator.check("west").status

    A side that does not answer is a finding. Raises UsageError where there is no such policy, ConfigError."""
    settings = options.settings
    others = list(settings.policies.values())
    return checks.check(settings.policy(options.policy), others=others, gateway=settings.gateway)
