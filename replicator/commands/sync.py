"""`sync`, `plan` and `apply`: run a policy, or look at what a run would do and then do exactly that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event
from typing import ClassVar

from cmroot.store.place import as_written
from replicator.commands.base import Braked, Options, verb
from replicator.commands.of_policy import opened
from replicator.commands.ranges import Jobs
from replicator.core.runtime import JOBS, Stop
from replicator.errors import UsageError
from replicator.policies import plan as plans
from replicator.policies import steps
from replicator.policies.follow import Listeners, RunsFollowed, follow_policy
from replicator.policies.lineage import Lineage
from replicator.policies.run import SyncRun, sync_once
from replicator.policies.sync_plan import SyncPlan, encode_plan, read_plan
from replicator.replay.apply.weighing import brake_of


def _nobody(*about: object) -> None:
    """Does nothing."""


@dataclass(frozen=True, kw_only=True)
class SyncOptions(Braked):
    """Arguments:

    policy: its name in the configuration.
    once: one run; else one after the other, until `stop` is set or an exception such as KeyboardInterrupt ends it.
    interval: while following, from the begin of one run to the next; None: the policy's schedule.
    adopt: take over what the target holds under the replicas' names and replication did not make.
    drop_left: drop replicas of databases that the policy does not name any more; data goes to the target's root.
    empty: objects ("db.table", "db.table/day=1") whose directory is missing and which are really empty.
    deep: scan partitions one by one, too.
    jobs: the most tables committed side by side; as many are as make it faster.
    stop: says when a following is to end, such as a `threading.Event`; None: nobody does.
    reported: while following, is given each run that loaded something, or found what differs or is not replicated.
    failed: while following, is given each error, and the seconds to the next try.
    """

    renamed: ClassVar = {"schedule": "interval"}

    policy: str = field(kw_only=False)
    once: bool = True
    interval: timedelta | None = None
    adopt: bool = False
    drop_left: bool = False
    empty: Sequence[str] = ()
    deep: bool = False
    jobs: Jobs = JOBS
    stop: Stop | None = None
    reported: Callable[[SyncRun], None] = _nobody
    failed: Callable[[Exception, float], None] = _nobody


@verb(SyncOptions)
def sync(options: SyncOptions) -> SyncRun | RunsFollowed:
    """Runs a policy: a bootstrap if it must, else what has changed since the last run; or follows it. May be killed
    anywhere and run again.

        replicator.sync("west")
        replicator.sync("west", once=False, stop=event, reported=print)

    Raises LeaseHeld while another run of the policy is running; Refused where roles, an unfinished turn, what
    replication did not make, or too many removals are in the way; and what capture and load raise. A following tries
    again after all but UsageError and ConfigError."""
    if options.empty and not options.once:
        raise UsageError("--empty is about one run", hint="run once with it, then follow without")
    wanted = steps.SyncSettings(
        adopt=options.adopt, drop_left=options.drop_left, deep=options.deep, empty=options.empty, brake=options.limits
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
    """Arguments:

    policy: its name in the configuration.
    out: a file for the plan; what is there is replaced. None: the plan is only returned.
    adopt: take over what the target holds under the replicas' names and replication did not make.
    drop_left: drop replicas of databases that the policy does not name any more; data goes to the target's root.
    """

    policy: str = field(kw_only=False)
    out: str | None = None
    adopt: bool = False
    drop_left: bool = False


@verb(PlanOptions)
def plan(options: PlanOptions) -> SyncPlan:
    """Shows what the next run of a policy would do, with its price. Captures, and writes the dumps that the run would;
    the target is not changed. May run again: each plan has dumps of its own.

        replicator.plan("west", out="plan.json").cost.bytes

    Raises what `sync` raises before it loads."""
    with opened(options, options.policy) as sides:
        brake = brake_of(options.settings.guard)
        made = plans.make(sides, steps.SyncSettings(adopt=options.adopt, drop_left=options.drop_left, brake=brake))
    if options.out is not None:
        as_written(options.out).write_bytes(encode_plan(made))
    return made


@dataclass(frozen=True, kw_only=True)
class ApplyOptions(Braked):
    """Arguments:

    plan: what `plan` returned, or the file that it wrote.
    jobs: the most tables committed side by side; as many are as make it faster.
    """

    plan: SyncPlan | str = field(kw_only=False)
    jobs: Jobs = JOBS


@verb(ApplyOptions)
def apply(options: ApplyOptions) -> SyncRun:
    """Does what a plan says, and nothing else. May run again after a crash.

        replicator.apply("plan.json")

    Raises Refused, and nothing is changed, when the world has moved since: the policy, the roles, the target's
    checkpoint, or what it holds; FormatError for a file that is no plan; LeaseHeld while the policy is running."""
    wanted = options.plan if isinstance(options.plan, SyncPlan) else read_plan(options.plan)
    with opened(options, wanted.policy, options.jobs) as sides:
        return plans.apply(wanted, sides, options.limits)
