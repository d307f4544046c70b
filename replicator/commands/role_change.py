"""`switchover`, `failover` and `failback` exchange the roles of a policy's sides; `loss` shows the loss report, `role`
shows or sets roles. `drill` rehearses a failover, lists the drills, or removes the remains of one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Annotated, ClassVar, Literal

from cmroot.root import open_existing
from replicator.commands.base import Options, verb
from replicator.commands.of_policy import Existing, matching, only_one, opened, refuse_unknown, selected
from replicator.commands.options import (
    Catalog,
    CommitJobs,
    DatabaseMetastore,
    DryRun,
    ExplicitPolicy,
    PolicyName,
    RunWait,
)
from replicator.core.option import Jobs, Natural, Positive, opt, python_only
from replicator.core.policy import Policy
from replicator.core.roles import Role
from replicator.core.runtime import JOBS
from replicator.errors import UsageError
from replicator.metastore.client import Metastore
from replicator.metastore.thrift import ThriftMetastore
from replicator.policies import drill as drills
from replicator.policies.checks.check import impatient
from replicator.policies.drill import QueryEngine, spark_on
from replicator.policies.drill_record import Drill, DrillPlan, Drills, ShownDrills
from replicator.policies.memory import Memory
from replicator.policies.role_changes import failback as failbacks
from replicator.policies.role_changes import failover as failovers
from replicator.policies.role_changes import switchover as switchovers
from replicator.policies.role_changes import switchover_steps
from replicator.policies.role_changes.failover import LastFailover
from replicator.policies.role_changes.role_change import Reporter, RoleChanged, ignore
from replicator.policies.roles import RoleSet, ShownRoles, change_role, shown_roles
from replicator.policies.shadows import ShadowsSwept, clean


@dataclass(frozen=True, kw_only=True)
class SwitchoverOptions(Options):
    renamed: ClassVar = {"anyway": "force", "drain": "drain_timeout"}

    policy: ExplicitPolicy = field(kw_only=False)
    to: Annotated[
        Literal["source", "target"] | None,
        opt(
            "The new primary side, as named by the policy; default: the present replica. With --to a "
            "repeated command does not switch back."
        ),
    ] = None
    abort: Annotated[bool, opt("Undo a switchover that has not promoted the replica yet.")] = False
    force: Annotated[
        bool, opt("Proceed although tables differed in their last comparison, or directories are missing.")
    ] = False
    drain_timeout: Annotated[timedelta, opt("Time limit for replicating the last changes.")] = timedelta(minutes=10)
    wait: RunWait = timedelta(seconds=10)
    dry_run: DryRun = False
    jobs: CommitJobs = JOBS
    reported: Annotated[Reporter | None, python_only("Called with each completed step.")] = None


@verb(SwitchoverOptions)
def switchover(options: SwitchoverOptions) -> RoleChanged:
    """Makes the replica the primary, and the primary its replica: planned, without loss. Stop the writers before. May
    be killed at any step and run again, which completes it. A second switchover switches back.

        replicator.switchover("west", dry_run=True).problems
        replicator.switchover("west", to="target")

    Raises Refused for obstacles found by the check (then nothing is changed), LeaseHeld while the policy is running,
    NotReached if the drain takes too long, and all errors of capture and load."""
    if options.abort and options.dry_run:
        raise UsageError("--abort and --dry-run exclude each other", hint="give one of them")
    wanted = switchover_steps.SwitchoverSettings(
        to=options.to or "",
        anyway=options.force,
        drain=options.drain_timeout,
        patience=options.wait,
        reported=options.reported or ignore,
    )
    with opened(options, options.policy, options.jobs) as sides:
        if options.abort:
            return switchovers.abort(sides, wanted)
        return switchovers.switchover(sides, wanted, dry_run=options.dry_run)


@dataclass(frozen=True, kw_only=True)
class FailoverOptions(Options):
    renamed: ClassVar = {"accept_partial": "allow_partial", "patience": "answer_timeout", "reading": "read_timeout"}

    policy: ExplicitPolicy = field(kw_only=False)
    force: Annotated[bool, opt("Fail over, and accept the loss in the report.")] = False
    allow_partial: Annotated[bool, opt("Proceed although an interrupted load left tables between two states.")] = False
    look: Annotated[
        bool, opt("Also list the lost side's directories, if its storage answers, to find uncaptured files.")
    ] = False
    answer_timeout: Annotated[timedelta, opt("Time limit for each answer of the lost side.")] = timedelta(seconds=5)
    read_timeout: Annotated[
        timedelta, opt("Time limit for reading its log, and with --look for listing its directories.")
    ] = timedelta(minutes=1)
    jobs: CommitJobs = JOBS
    reported: Annotated[Reporter | None, python_only("Called with each completed step.")] = None


@verb(FailoverOptions)
def failover(options: FailoverOptions) -> RoleChanged:
    """Makes the replica the primary when the primary is lost; without `force` only reports the loss. Does not wait for
    the lost side. May be killed at any step and run again, which completes it.

        replicator.failover("west").loss
        replicator.failover("west", force=True)

    Raises Refused if there is no replica to promote, if a side is the primary already, or for tables between two states
    without consent; LeaseHeld during a run or role change of the policy."""
    wanted = failovers.FailoverSettings(
        force=options.force,
        accept_partial=options.allow_partial,
        look=options.look,
        limit=options.answer_timeout,
        reading=options.read_timeout,
        reported=options.reported or ignore,
    )
    with opened(options, options.policy, options.jobs) as sides:
        seconds = options.answer_timeout.total_seconds()
        with (
            ThriftMetastore(sides.policy.source_metastore, timeout=seconds, retries=0) as here,
            ThriftMetastore(sides.policy.target_metastore, timeout=seconds, retries=0) as there,
        ):
            return failovers.failover(sides, (here, there), wanted)


@dataclass(frozen=True, kw_only=True)
class FailbackOptions(Options):
    policy: ExplicitPolicy = field(kw_only=False)
    switch: Annotated[bool, opt("Then switch over, so that the returned side is the primary again.")] = False
    wait: RunWait = timedelta(seconds=10)
    dry_run: DryRun = False
    jobs: CommitJobs = JOBS
    reported: Annotated[Reporter | None, python_only("Called with each completed step.")] = None


@verb(FailbackOptions)
def failback(options: FailbackOptions) -> RoleChanged:
    """Makes the old primary, after a failover, the replica of the new one, by difference. Its own changes are listed
    and retained. Its writers must have stopped. May be killed at any step and run again, which completes it.

        replicator.failback("west", dry_run=True).own
        replicator.failback("west", switch=True)

    Raises Refused if it is unknown which side is right, LeaseHeld during a run or role change of the policy, and all
    errors of capture and load."""
    wanted = failbacks.FailbackSettings(patience=options.wait, reported=options.reported or ignore)
    with opened(options, options.policy, options.jobs) as sides:
        if options.switch and not options.dry_run:
            return failbacks.failback_and_switch(sides, wanted)
        return failbacks.failback(sides, wanted, dry_run=options.dry_run)


@dataclass(frozen=True, kw_only=True)
class LossOptions(Options):
    policy: PolicyName = field(kw_only=False)


@verb(LossOptions)
def loss(options: LossOptions) -> LastFailover:
    """Shows the loss report of a policy's last failover, as of the promotion of the replica. Reads only.

        replicator.loss("west").loss

    Raises ObjectNotFound if there was no failover, UsageError for an unknown policy."""
    return failovers.last_failover(options.settings.policy(options.policy))


# ---- role ------------------------------------------------------------------------------------------------------------
# `role show` and `role set`: which side of a replication a database is, by hand.


@dataclass(frozen=True, kw_only=True)
class RoleShowOptions(Options):
    metastore: DatabaseMetastore
    catalog: Catalog = None
    db: Annotated[
        str | Sequence[str],
        opt("A database, or those whose entire names match; repeatable. Default: all with a role.", metavar="REGEX"),
    ] = ()


@verb(RoleShowOptions)
def role_show(options: RoleShowOptions) -> ShownRoles:
    """Shows roles, their epochs, and who set them. If two sides contradict each other, the higher epoch is valid. Reads
    only.

        replicator.role_show(metastore="dr", db="sales")

    Raises ObjectNotFound for a database that does not exist, FormatError for a role that cannot be parsed."""
    with options.connected(options.metastore) as metastore:
        given = [options.db] if isinstance(options.db, str) else options.db
        return shown_roles(metastore, selected(metastore, given) if given else ())


@dataclass(frozen=True, kw_only=True)
class RoleSetOptions(Options):
    metastore: DatabaseMetastore
    catalog: Catalog = None
    db: Annotated[str, opt("The database, or the only one that matches.", metavar="REGEX")]
    role: Annotated[Role | Literal["primary", "replica", "fenced", "none"], opt("Its new role.", envvar="WANTED")]
    epoch: Annotated[
        Natural | None, opt("The epoch; default: the next one for primary and fenced, else the present one.")
    ] = None
    force: Annotated[bool, opt("Allow a change that can lose data, to a lower epoch, or of an unreadable role.")] = (
        False
    )
    dry_run: DryRun = False


@verb(RoleSetOptions)
def role_set(options: RoleSetOptions) -> RoleSet:
    """Sets a database's role manually, for repairs; switchover, failover and failback set roles in the right order. May
    run twice.

        replicator.role_set(metastore="thrift://a:9083", db="sales", role="fenced")

    Raises Refused, with the consequence, for a change that can lose data, and if another process sets the role
    concurrently; ObjectNotFound; UsageError for an unknown role."""
    with options.connected(options.metastore) as metastore:
        return change_role(
            metastore,
            only_one(selected(metastore, [options.db]), None, options.db),
            Role(options.role),
            options.epoch,
            force=options.force,
            dry_run=options.dry_run,
        )


# ---- drill -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DrillOptions(Options):
    policy: PolicyName = field(kw_only=False)
    queries: Annotated[
        Sequence[str],
        opt(
            "A query, with the replica's database names, to run on the shadows after the policy's "
            "`smoke` queries; repeatable.",
            "--query",
            metavar="SQL",
        ),
    ] = ()
    db: Annotated[
        str | Sequence[str],
        opt(
            "Only this database, by the replica's name, or those whose entire names match; repeatable.", metavar="REGEX"
        ),
    ] = ()
    sample: Annotated[Natural, opt("Also count the rows of N tables, a new random sample each time.", metavar="N")] = 20
    prefix: Annotated[str, opt("Prefix of the shadows' names.", metavar="TEXT")] = drills.PREFIX
    keep: Annotated[
        bool,
        opt(
            "Keep the shadows for inspection, until the next drill or --clean. Read only: a write to "
            "their tables is a write to the replica's files."
        ),
    ] = False
    clean: Annotated[bool, opt("Only drop the shadows left over from drills of the policy.")] = False
    listing: Annotated[bool, opt("Only list past drills.", "--list")] = False
    limit: Annotated[Positive | None, opt("With --list: number of drills, newest first.")] = 20
    jobs: Annotated[Jobs, opt("Number of tables created concurrently.")] = 4
    dry_run: DryRun = False


@verb(DrillOptions)
def drill(options: DrillOptions) -> Drill | DrillPlan | ShownDrills | ShadowsSwept:
    """Rehearses a failover: creates shadow databases over a policy's replica, runs queries on them with Spark, measures
    the time to the first good answer, and drops them. No data is copied, and replication continues. May run again after
    a crash: the next drill removes the remains of a killed one.

        replicator.drill("west", queries=["SELECT max(day) FROM sales.orders"]).first_answer_seconds
        replicator.drill("west", listing=True).to_arrow()

    Raises LeaseHeld while another drill of the policy is running, Refused if there is no replica yet, UsageError for an
    invalid prefix or database."""
    if options.clean and options.listing:
        raise UsageError("--clean and --list exclude each other", hint="give one of them")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", options.prefix):
        raise UsageError(
            f"--prefix {options.prefix!r} cannot be the prefix of a database name", hint="use a-z, 0-9 and _"
        )
    policy = options.settings.policy(options.policy)
    if options.listing:
        return Drills(Memory(open_existing(policy.target_cmroot), policy.name)).shown(policy.name, options.limit)
    wanted = drills.DrillSettings(
        queries=options.queries,
        sample=options.sample,
        prefix=options.prefix,
        keep=options.keep,
        jobs=options.jobs,
        progress=options.teller,
    )
    with ExitStack() as stack:
        source = stack.enter_context(impatient(policy.source_metastore))  # may be unavailable
        target = stack.enter_context(options.connected(policy.target_metastore))
        if options.clean:
            return clean(policy, source, target, jobs=options.jobs)
        wanted = replace(wanted, databases=_chosen(options, policy, source, target))
        if options.dry_run:
            return drills.plan(policy, source, target, wanted)

        def asking(metastore: Metastore) -> QueryEngine:
            return stack.enter_context(spark_on(metastore, options.master, options.own_spark, options.spark))

        return drills.drill(policy, source, target, asking, wanted)


def _chosen(options: DrillOptions, policy: Policy, source: Metastore, target: Metastore) -> list[str]:
    """Returns the replicas that names and patterns select; none given: none. Raises as `matching` and
    `refuse_unknown`."""
    given = [options.db] if isinstance(options.db, str) else list(options.db)
    if not given:
        return []
    replicas = drills.find_replicas(policy, source, target)
    existing = Existing(f"policy {policy.name}", [each.name for each in replicas.databases])
    refuse_unknown(existing, given)
    return matching(existing, given)
