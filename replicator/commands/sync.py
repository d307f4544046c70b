"""`sync`, `plan` and `apply`: run a policy, or look at what a run would do and then do exactly that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event
from typing import Annotated, ClassVar

from cmroot.store.place import as_written
from replicator.commands.base import Braked, Options, verb
from replicator.commands.of_policy import opened
from replicator.commands.options import Adoption, CommitJobs, DeclaredEmpty, DropLeft, PolicyName
from replicator.core.config import brake_of
from replicator.core.option import arg, opt, python_only
from replicator.core.runtime import JOBS, Stop
from replicator.errors import UsageError
from replicator.policies import plan as plans
from replicator.policies import steps
from replicator.policies.follow import Listeners, RunsFollowed, follow_policy
from replicator.policies.lineage import Lineage
from replicator.policies.run import SyncRun, sync_once
from replicator.policies.sync_plan import SyncPlan, encode_plan, read_plan


def _nobody(*about: object) -> None:
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
    stop: Annotated[
        Stop | None, python_only("Ends --follow when set, such as a `threading.Event`; None: nothing does.")
    ] = None
    reported: Annotated[
        Callable[[SyncRun], None],
        python_only(
            "Called while following, with each run that loaded something, or found differences or "
            "objects that are not replicated."
        ),
    ] = _nobody
    failed: Annotated[
        Callable[[Exception, float], None],
        python_only("Called while following, with each error and the seconds until the next try."),
    ] = _nobody


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
        raise UsageError("--empty applies to one run", hint="run once with it, then follow without")
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
    policy: PolicyName = field(kw_only=False)
    out: Annotated[
        str | None,
        opt("File for the plan, for apply; an existing one is replaced. Default: only show it.", metavar="FILE"),
    ] = None
    adopt: Adoption = False
    drop_left: DropLeft = False


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
    plan: Annotated[SyncPlan | str, arg("The result of `plan`, or the file that it wrote.", "PLAN")] = field(
        kw_only=False
    )
    jobs: CommitJobs = JOBS


@verb(ApplyOptions)
def apply(options: ApplyOptions) -> SyncRun:
    """Does what a plan says, and nothing else. May run again after a crash.

        replicator.apply("plan.json")

    Raises Refused, and nothing is changed, when the world has moved since: the policy, the roles, the target's
    checkpoint, or what it holds; FormatError for a file that is no plan; LeaseHeld while the policy is running."""
    wanted = options.plan if isinstance(options.plan, SyncPlan) else read_plan(options.plan)
    with opened(options, wanted.policy, options.jobs) as sides:
        return plans.apply(wanted, sides, options.limits)
