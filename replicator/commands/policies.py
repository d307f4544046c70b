"""Commands of a policy: `sync` runs it; `plan` shows the next run, and `apply` executes exactly that plan; `lag`,
`status`, `wait`, `history` and `check` report its state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event
from typing import Annotated, Any, ClassVar

from cmroot.root import open_existing
from cmroot.store.place import as_written
from replicator.commands.base import Braked, Options, names, verb
from replicator.commands.of_policy import OfPolicy, is_pattern, only_one, opened, selected
from replicator.commands.options import (
    Adoption,
    CommitJobs,
    DeclaredEmpty,
    DropLeft,
    PolicyName,
    ReplicaDatabases,
    SourceCatalog,
    Target,
    TargetCatalog,
)
from replicator.core.config import brake_of
from replicator.core.not_replicated import Rows
from replicator.core.option import Natural, Positive, Where, arg, opt, python_only
from replicator.core.runtime import JOBS, Stop
from replicator.errors import NotReached, UsageError
from replicator.metastore.client import MetastoreReader
from replicator.policies import lag as lags
from replicator.policies import plan as plans
from replicator.policies import steps
from replicator.policies.checks import check as checks
from replicator.policies.checks.check import PolicyChecked, impatient
from replicator.policies.direction import Direction
from replicator.policies.follow import Listeners, RunsFollowed, follow_policy
from replicator.policies.lag import Lag
from replicator.policies.lineage import Lineage
from replicator.policies.memory import Memory, ShownHistory, shown_history
from replicator.policies.run import SyncRun, sync_once
from replicator.policies.status import Goal, SourceSide, Status, Waited
from replicator.policies.status import status as ask
from replicator.policies.status import wait as until
from replicator.policies.sync_plan import SyncPlan, encode_plan, read_plan

# ---- runs ------------------------------------------------------------------------------------------------------------


def _ignore(*about: object) -> None:
    """Does nothing."""


@dataclass(frozen=True, kw_only=True)
class SyncOptions(Braked):
    renamed: ClassVar = {"schedule": "interval"}

    policy: PolicyName = field(kw_only=False)
    once: Annotated[bool, opt("One run (default), or repeated runs until stopped.", "--once/--follow")] = True
    interval: Annotated[
        timedelta | None, opt("With --follow: interval between the starts of two runs; default: the policy's schedule.")
    ] = None
    adopt: Adoption = False
    drop_left: DropLeft = False
    empty: DeclaredEmpty = ()
    deep: Annotated[bool, opt("Also compare each partition with the metastore.")] = False
    jobs: CommitJobs = JOBS
    stop: Annotated[Stop | None, python_only("Ends --follow when set, such as a `threading.Event`; None: no end.")] = (
        None
    )
    reported: Annotated[
        Callable[[SyncRun], None],
        python_only(
            "Called while following, with each run that loaded something, or found differences or "
            "objects that are not replicated."
        ),
    ] = _ignore
    failed: Annotated[
        Callable[[Exception, float], None],
        python_only("Called while following, with each error and the seconds until the next try."),
    ] = _ignore


@verb(SyncOptions)
def sync(options: SyncOptions) -> SyncRun | RunsFollowed:
    """Runs a policy: a bootstrap if necessary, else the changes since the last run; or follows it. May be killed at any
    step and run again.

        replicator.sync("west")
        replicator.sync("west", once=False, stop=event, reported=print)

    Raises LeaseHeld while another run of the policy holds the lease; Refused because of roles, an unfinished role
    change, objects that replication did not create, or too many removals; and all errors of capture and load. With
    --follow, all errors but UsageError and ConfigError are retried."""
    if options.empty and not options.once:
        raise UsageError("--empty applies to one run", hint="run once with it, then follow without")
    wanted = steps.SyncSettings(
        adopt=options.adopt,
        drop_left=options.drop_left,
        paced=True,
        deep=options.deep,
        empty=options.empty,
        brake=options.limits,
    )
    with opened(options, options.policy, options.jobs) as sides:
        lineage = Lineage(options.settings.lineage, sides.policy)
        if options.once:
            return lineage.told(lambda: sync_once(sides, wanted))

        def reported(run: SyncRun) -> None:
            lineage.done(run)
            options.reported(run)

        def failed(error: Exception, wait: float) -> None:
            lineage.failed(error)
            options.failed(error, wait)

        return follow_policy(
            sides,
            wanted,
            Listeners(reported, failed),
            schedule=options.interval or sides.policy.schedule,
            stop=options.stop or Event(),
        )


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Options):
    policy: PolicyName = field(kw_only=False)
    out: Annotated[
        str | None,
        opt("File for the plan, for apply; an existing one is replaced. Default: only show it.", metavar="FILE"),
    ] = None
    adopt: Adoption = False
    drop_left: DropLeft = False


@verb(PlanOptions)
def plan(options: PlanOptions) -> SyncPlan:
    """Shows what the next run of a policy would do, and its cost. Captures, and writes the dumps that the run would;
    the target is not changed. May run again: each plan has dumps of its own.

        replicator.plan("west", out="plan.json").cost.bytes

    Raises the errors that `sync` raises before it loads."""
    with opened(options, options.policy) as sides:
        brake = brake_of(options.settings.guard)
        made = plans.make(sides, steps.SyncSettings(adopt=options.adopt, drop_left=options.drop_left, brake=brake))
    if options.out is not None:
        as_written(options.out).write_bytes(encode_plan(made))
    return made


@dataclass(frozen=True, kw_only=True)
class ApplyOptions(Braked):
    plan: Annotated[SyncPlan | str, arg("The result of `plan`, or the file that it wrote.", "PLAN")] = field(
        kw_only=False
    )
    jobs: CommitJobs = JOBS


@verb(ApplyOptions)
def apply(options: ApplyOptions) -> SyncRun:
    """Executes a plan, and nothing else. May run again after a crash.

        replicator.apply("plan.json")

    Raises Refused, before any change, if the policy, the roles, the target's checkpoint or its contents have changed
    since the plan was created; FormatError for a file that is not a plan; LeaseHeld while the policy is running."""
    wanted = options.plan if isinstance(options.plan, SyncPlan) else read_plan(options.plan)
    with opened(options, wanted.policy, options.jobs) as sides:
        return plans.apply(wanted, sides, options.limits)


# ---- status ----------------------------------------------------------------------------------------------------------


# ---- lag -------------------------------------------------------------------------------------------------------------
# `lag` and `history`: how far a policy's target is behind, and the results of its runs.


@dataclass(frozen=True, kw_only=True)
class LagOptions(Options):
    policy: PolicyName = field(kw_only=False)


@verb(LagOptions)
def lag(options: LagOptions) -> Lag:
    """Measures the lag of a policy's target, per database and table, in events, seconds and bytes. Reads only.

        replicator.lag("west").seconds

    A side that does not answer is listed in `unreachable`, and the metrics are the last known ones. Raises UsageError
    for an unknown policy."""
    policy = options.settings.policy(options.policy)
    with impatient(policy.source_metastore) as source, impatient(policy.target_metastore) as target:
        return lags.lag(policy, source, target)


@dataclass(frozen=True, kw_only=True)
class HistoryOptions(Options):
    policy: PolicyName = field(kw_only=False)
    limit: Annotated[Positive | None, opt("Number of runs, newest first.")] = 20


@verb(HistoryOptions)
def history(options: HistoryOptions) -> ShownHistory:
    """Shows a policy's runs, newest first. Successive rounds without changes share one entry. Reads only.

        replicator.history("west", limit=5).to_arrow()

    Raises UsageError for an unknown policy, FormatError if its target's root does not exist."""
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
    """Reports the checkpoint and the lag of a replicated database; for a policy, the same as `lag`. Reads only.

        replicator.status(target="thrift://b:9083", db="sales", source="thrift://a:9083").lag_events
        replicator.status("west").seconds

    Raises UsageError without policy and database, and for a $cmroot that is not its source's; ObjectNotFound for a
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
# `wait`: returns when a target has reached an event or a lag.


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


@dataclass
class WaitedDatabases(Rows):
    """The states of several databases when each had reached the goal, in turn; `seconds` in all."""

    listed: ClassVar = "databases"

    databases: list[Waited]
    seconds: float
    status: str = "reached"


@verb(WaitOptions)
def wait(options: WaitOptions) -> Waited | WaitedDatabases:
    """Waits until a replicated database, or each of several, has reached an event, or its lag is small enough. Reads
    only; may run again.

        replicator.wait(target="thrift://b:9083", db="sales", until_event=4711)
        replicator.wait("west", until_lag=timedelta(seconds=30))

    Raises NotReached at the time limit; UsageError for a condition that cannot be evaluated."""
    with ExitStack() as stack:
        target = stack.enter_context(options.connected(options.target))
        source = stack.enter_context(options.connected(options.source)) if options.source else None
        goal = Goal(options.until_event, options.until_lag)
        root = open_existing(options.cmroot) if options.cmroot and options.until_lag is not None else None

        def side(db: str) -> SourceSide:
            given = options.source_db
            return SourceSide(source, root, (given.lower() if isinstance(given, str) else given.get(db, "")) or None)

        return _each(target, names(options.db), goal, options.timeout, side)


def _each(
    target: MetastoreReader, databases: Sequence[str], goal: Goal, timeout: timedelta, side: Callable[[str], SourceSide]
) -> Waited | WaitedDatabases:
    """Waits for several databases, each of which is queried at least once. Of one, returns or raises the same."""
    began, waited, failed = time.monotonic(), list[Waited](), dict[str, NotReached]()
    for db in databases:
        left = max(timedelta(0), timeout - timedelta(seconds=time.monotonic() - began))
        try:
            waited.append(until(target, db, goal, timeout=left, source=side(db)))
        except NotReached as error:
            if len(databases) == 1:
                raise
            failed[db] = error
    if failed:
        raise NotReached(
            "; ".join(each.message for each in failed.values()),
            hint=next(iter(failed.values())).hint,
            details={
                "reached": [each.db for each in waited],
                "not_reached": [{"db": db, **each.details} for db, each in failed.items()],
            },
        )
    return waited[0] if len(waited) == 1 else WaitedDatabases(waited, round(sum(each.seconds for each in waited), 3))


# ---- check -----------------------------------------------------------------------------------------------------------
# `check`: verifies that a policy can run.


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    policy: PolicyName = field(kw_only=False)


@verb(CheckOptions)
def check(options: CheckOptions) -> PolicyChecked:
    """Checks a policy before its first run, or at any time: metastores, the notification log, clocks, permissions, disk
    space, roles, lag, the last runs. Writes small hidden files to the directories that runs write, and removes them.
    May run again at any time.

        replicator.check("west").status

    A side that does not answer is a finding. Raises UsageError for an unknown policy, ConfigError."""
    settings = options.settings
    others = list(settings.policies.values())
    alone = settings.ingestion.single_user
    return checks.check(settings.policy(options.policy), others=others, gateway=settings.gateway, single_user=alone)
