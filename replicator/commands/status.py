"""`status`: how far a target is, and how far behind; of a policy, the same as `lag`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Annotated, Any, ClassVar

from cmroot.root import open_existing
from replicator.commands.base import Options, names, verb
from replicator.commands.of_policy import OfPolicy, is_pattern, only_one, selected
from replicator.commands.options import PolicyName, ReplicaDatabases, SourceCatalog, Target, TargetCatalog
from replicator.core.not_replicated import Rows
from replicator.core.option import Natural, Positive, Where, arg, opt
from replicator.errors import UsageError
from replicator.policies import lag as lags
from replicator.policies.checks import check as checks
from replicator.policies.checks.check import PolicyChecked, impatient
from replicator.policies.direction import Direction
from replicator.policies.lag import Lag
from replicator.policies.memory import Memory, ShownHistory, shown_history
from replicator.policies.status import Goal, SourceSide, Status, Waited
from replicator.policies.status import status as ask
from replicator.policies.status import wait as until

# ---- lag -------------------------------------------------------------------------------------------------------------
# `lag` and `history`: how far a policy's target is behind, and what its runs did.


@dataclass(frozen=True, kw_only=True)
class LagOptions(Options):
    policy: PolicyName = field(kw_only=False)


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
    policy: PolicyName = field(kw_only=False)
    limit: Annotated[Positive | None, opt("Number of runs, newest first.")] = 20


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
    policy: Annotated[
        str | None, arg("The policy's name in the configuration, instead of all other options.", "[POLICY]")
    ] = field(default=None, kw_only=False)
    target: Annotated[
        Where | None,
        opt(
            "The target: thrift://host:port, several separated by commas for failover, or a name of "
            "the configuration file.",
            metavar="METASTORE",
        ),
    ] = None
    db: ReplicaDatabases = ()
    source: Annotated[
        Where | None,
        opt(
            "Also show the lag. The source: thrift://host:port, several separated by commas for "
            "failover, or a name of the configuration file.",
            metavar="METASTORE",
        ),
    ] = None
    catalog: SourceCatalog = None
    target_catalog: TargetCatalog = None
    cmroot: Annotated[
        str | None,
        opt("The source's root: adds the time of the target's state, and the lag in bytes.", metavar="PLACE"),
    ] = None
    source_db: Annotated[str | None, opt("The database's name at the source, if renamed.", metavar="NAME")] = None


@dataclass(frozen=True)
class Statuses(Rows):
    """The states of several replicas. `status`: the worst of theirs."""

    listed: ClassVar[str] = "databases"

    status: str
    databases: list[Status]


WORSE = ("current", "replica", "behind", "loading", "no replica")
"""The states of a replica, the best first."""


@verb(StatusOptions)
def status(options: StatusOptions) -> Status | Statuses | Lag:
    """Says how far a replicated database is, and how far behind; of a policy, what `lag` says. Reads only.

        replicator.status(target="thrift://b:9083", db="sales", source="thrift://a:9083").lag_events
        replicator.status("west").seconds

    Raises UsageError for neither policy nor database, and for a $cmroot that is not its source's; ObjectNotFound for a
    database that does not exist."""
    if options.policy is not None:
        return lag(options.policy, config=options.settings)
    if options.target is None or not options.db:
        raise UsageError("status needs a policy, or --target and --db", hint="see `replicator status --help`")
    given = [options.db] if isinstance(options.db, str) else list(options.db)
    with ExitStack() as stack:
        target = stack.enter_context(options.connected(options.target))
        source = stack.enter_context(options.connected(options.source)) if options.source else None
        root, found = open_existing(options.cmroot) if options.cmroot else None, selected(target, given)
        if options.source_db and only_one(found, None):
            return ask(target, found[0], source=source, root=root, source_db=options.source_db.lower())
        states = [ask(target, db, source=source, root=root) for db in found]
    if len(given) == 1 and not is_pattern(given[0]):
        return states[0]
    return Statuses(max((each.status for each in states), key=WORSE.index), states)


# ---- wait ------------------------------------------------------------------------------------------------------------
# `wait`: until a target has come far enough.


@dataclass(frozen=True, kw_only=True)
class WaitOptions(OfPolicy):
    chooses: ClassVar = "target"
    within: ClassVar = True
    needed: ClassVar = ("target", "db")

    policy: Annotated[
        str | None, arg("The policy's name in the configuration, instead of a target and its databases.", "[POLICY]")
    ] = field(default=None, kw_only=False)
    target: Target = ""
    db: ReplicaDatabases = ()
    source: Annotated[
        Where,
        opt(
            "For --until-lag. The source: thrift://host:port, several separated by commas for "
            "failover, or a name of the configuration file.",
            metavar="METASTORE",
        ),
    ] = ""
    catalog: SourceCatalog = None
    target_catalog: TargetCatalog = None
    cmroot: Annotated[str, opt("For --until-lag. The source's root.", metavar="PLACE")] = ""
    source_db: Annotated[
        str | Mapping[str, str],
        opt("With --cmroot. The database's name at the source, if renamed.", metavar="NAME", multiple=False),
    ] = ""
    until_event: Annotated[Natural | None, opt("Wait until the target has this event of the source.", metavar="N")] = (
        None
    )
    until_lag: Annotated[
        timedelta | None,
        opt(
            "Wait until the lag is at most this long. With the source's root, as with a policy, the lag counts from "
            "the last complete scan, as changes without an event may have followed it; otherwise only events count.",
            metavar="DURATION",
        ),
    ] = None
    timeout: Annotated[timedelta, opt("Time-out, with exit code 75; 0s checks once.", metavar="DURATION")] = timedelta(
        minutes=10
    )

    def databases(self, direction: Direction) -> Sequence[str]:
        return [pair.replica for pair in direction.matching if pair.source is not None]

    def known(self, direction: Direction) -> dict[str, Any]:
        names_at_source = {pair.replica: pair.name for pair in direction.matching}
        return {**super().known(direction), "source_db": names_at_source}


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
        root = open_existing(options.cmroot) if options.cmroot and options.until_lag is not None else None
        began, waited = time.monotonic(), []
        for db in names(options.db):
            spent = timedelta(seconds=time.monotonic() - began)
            left = max(timedelta(0), options.timeout - spent)
            given = options.source_db
            name = (given.lower() if isinstance(given, str) else given.get(db, "")) or None
            waited.append(until(target, db, goal, timeout=left, source=SourceSide(source, root, name)))
    return replace(waited[-1], seconds=round(sum(each.seconds for each in waited), 3))


# ---- check -----------------------------------------------------------------------------------------------------------
# `check`: what can be proved of a policy.


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    policy: PolicyName = field(kw_only=False)


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
