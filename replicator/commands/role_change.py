"""`switchover`, `failover`, `failback` and `loss`: turn a policy round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar, Literal

from replicator.commands.base import Options, Where, names, verb
from replicator.commands.of_policy import opened
from replicator.commands.ranges import Jobs, Natural
from replicator.core.roles import Role
from replicator.core.runtime import JOBS
from replicator.errors import UsageError
from replicator.metastore.thrift import ThriftMetastore
from replicator.policies.role_changes import failback as failbacks
from replicator.policies.role_changes import failover as failovers
from replicator.policies.role_changes import switchover as switchovers
from replicator.policies.role_changes import switchover_steps
from replicator.policies.role_changes.failover import LastFailover
from replicator.policies.role_changes.role_change import Reporter, RoleChanged, nobody
from replicator.policies.roles import RoleSet, ShownRoles, change_role, shown_roles


@dataclass(frozen=True, kw_only=True)
class SwitchoverOptions(Options):
    """Arguments:

    policy: its name in the configuration.
    to: who shall be the primary, "source" or "target" as the policy names them; then running it again does not turn
      back. None: who is not.
    abort: take a switchover back that has not promoted the replica yet.
    force: also when tables differed in their last comparison, or directories are missing.
    drain_timeout: how long the last changes may take.
    wait: how long to wait for a run that is running.
    dry_run: only look what is in the way; the answer is `ready`, with `problems`.
    jobs: the most tables committed side by side; as many are as make it faster.
    reported: is given each step when it is done.
    """

    renamed: ClassVar = {"anyway": "force", "drain": "drain_timeout"}

    policy: str = field(kw_only=False)
    to: Literal["source", "target"] | None = None
    abort: bool = False
    force: bool = False
    drain_timeout: timedelta = timedelta(minutes=10)
    wait: timedelta = timedelta(seconds=10)
    dry_run: bool = False
    jobs: Jobs = JOBS
    reported: Reporter | None = None


@verb(SwitchoverOptions)
def switchover(options: SwitchoverOptions) -> RoleChanged:
    """Makes the replica the primary, and the primary its replica: planned, without loss. Stop the writers before. May
    be killed anywhere and run again: it completes. Once it is over, another one turns back.

        replicator.switchover("west", dry_run=True).problems
        replicator.switchover("west", to="target")

    Raises Refused for what the check finds (nothing is changed then), LeaseHeld while the policy is running, NotReached
    when the drain takes too long, and what capture and load raise."""
    if options.abort and options.dry_run:
        raise UsageError("--abort and --dry-run exclude each other", hint="give one of them")
    wanted = switchover_steps.SwitchoverSettings(
        to=options.to or "",
        anyway=options.force,
        drain=options.drain_timeout,
        patience=options.wait,
        reported=options.reported or nobody,
    )
    with opened(options, options.policy, options.jobs) as sides:
        if options.abort:
            return switchovers.abort(sides, wanted)
        return switchovers.switchover(sides, wanted, dry_run=options.dry_run)


@dataclass(frozen=True, kw_only=True)
class FailoverOptions(Options):
    """Arguments:

    policy: its name in the configuration.
    force: fail over: what the loss report lists is given up. Without it the answer is `refused`, with that report.
    allow_partial: also with tables that an interrupted load left between two states.
    look: list the lost side's directories, too: files that no capture has seen, where its storage answers.
    answer_timeout: how long anything of the lost side may take to answer.
    read_timeout: how long its log may take to be read, and with look its directories to be listed.
    jobs: the most tables committed side by side; as many are as make it faster.
    reported: is given each step when it is done.
    """

    renamed: ClassVar = {"accept_partial": "allow_partial", "patience": "answer_timeout", "reading": "read_timeout"}

    policy: str = field(kw_only=False)
    force: bool = False
    allow_partial: bool = False
    look: bool = False
    answer_timeout: timedelta = timedelta(seconds=5)
    read_timeout: timedelta = timedelta(minutes=1)
    jobs: Jobs = JOBS
    reported: Reporter | None = None


@verb(FailoverOptions)
def failover(options: FailoverOptions) -> RoleChanged:
    """Makes the replica the primary while the primary is lost; without `force` only tells what is lost. Nobody waits
    for the lost side. May be killed anywhere and run again: it completes.

        replicator.failover("west").loss
        replicator.failover("west", force=True)

    Raises Refused when there is no replica to promote, when a side is the primary already, or for what lies between two
    states without consent; LeaseHeld while the policy is running or being turned."""
    wanted = failovers.FailoverSettings(
        force=options.force,
        accept_partial=options.allow_partial,
        look=options.look,
        limit=options.answer_timeout,
        reading=options.read_timeout,
        reported=options.reported or nobody,
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
    """Arguments:

    policy: its name in the configuration.
    switch: then switch over, so that the side that came back is the primary again.
    wait: how long to wait for a run that is running.
    dry_run: only list its own changes, as far as they are captured or announced.
    jobs: the most tables committed side by side; as many are as make it faster.
    reported: is given each step when it is done.
    """

    policy: str = field(kw_only=False)
    switch: bool = False
    wait: timedelta = timedelta(seconds=10)
    dry_run: bool = False
    jobs: Jobs = JOBS
    reported: Reporter | None = None


@verb(FailbackOptions)
def failback(options: FailbackOptions) -> RoleChanged:
    """Takes the old primary back after a failover: it becomes the replica of the new one, by difference. Its own
    changes are listed and kept. Its writers must have stopped. May be killed anywhere and run again: it completes.

        replicator.failback("west", dry_run=True).own
        replicator.failback("west", switch=True)

    Raises Refused where it is not known who is right, LeaseHeld while the policy is running or being turned, and what
    capture and load raise."""
    wanted = failbacks.FailbackSettings(patience=options.wait, reported=options.reported or nobody)
    with opened(options, options.policy, options.jobs) as sides:
        if options.switch and not options.dry_run:
            return failbacks.failback_and_switch(sides, wanted)
        return failbacks.failback(sides, wanted, dry_run=options.dry_run)


@dataclass(frozen=True, kw_only=True)
class LossOptions(Options):
    """Arguments:

    policy: its name in the configuration.
    """

    policy: str = field(kw_only=False)


@verb(LossOptions)
def loss(options: LossOptions) -> LastFailover:
    """Shows the loss report of a policy's last failover, as it was when the replica was promoted. Reads only.

        replicator.loss("west").loss

    Raises ObjectNotFound where there was no failover, UsageError where there is no such policy."""
    return failovers.last_failover(options.settings.policy(options.policy))


# ---- role ------------------------------------------------------------------------------------------------------------
# `role show` and `role set`: which side of a replication a database is, by hand.


@dataclass(frozen=True, kw_only=True)
class RoleShowOptions(Options):
    """Arguments:

    metastore: whose databases they are: a thrift URI, or a configured name.
    catalog: the metastore's, on Hive 3 and newer; None: the server's default one.
    db: a database, or several; none: all that have had a role.
    """

    metastore: Where
    catalog: str | None = None
    db: str | Sequence[str] = ()


@verb(RoleShowOptions)
def role_show(options: RoleShowOptions) -> ShownRoles:
    """Shows roles and epochs, and who set them. Of two sides that contradict each other, the highest epoch is right.
    Reads only.

        replicator.role_show(metastore="dr", db="sales")

    Raises ObjectNotFound for a database that is not there, FormatError for a role that cannot be understood."""
    with options.connected(options.metastore) as metastore:
        return shown_roles(metastore, names(options.db))


@dataclass(frozen=True, kw_only=True)
class RoleSetOptions(Options):
    """Arguments:

    metastore: whose database it is: a thrift URI, or a configured name.
    catalog: the metastore's, on Hive 3 and newer; None: the server's default one.
    db: the database.
    role: its new role: primary, replica, fenced or none.
    epoch: None: the next one for primary and fenced, else the one it has.
    force: also a change that can lose data, to a lower epoch, or of an unreadable role.
    dry_run: only tell what the change would mean.
    """

    metastore: Where
    catalog: str | None = None
    db: str
    role: Role | Literal["primary", "replica", "fenced", "none"]
    epoch: Natural | None = None
    force: bool = False
    dry_run: bool = False


@verb(RoleSetOptions)
def role_set(options: RoleSetOptions) -> RoleSet:
    """Sets a database's role by hand, for repairs; switchover, failover and failback do it in the right order. May run
    again: the same role stays.

        replicator.role_set(metastore="thrift://a:9083", db="sales", role="fenced")

    Raises Refused, with the consequence, for what can lose data, and where somebody else sets it at the same time;
    ObjectNotFound; UsageError for another role."""
    with options.connected(options.metastore) as metastore:
        return change_role(
            metastore,
            options.db.lower(),
            Role(options.role),
            options.epoch,
            force=options.force,
            dry_run=options.dry_run,
        )
