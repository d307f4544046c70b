"""Role changes: the execution and the memory of a switchover, failover or failback. Acts.

A role change is a list of steps. It is written to the policy's memory before its first step, and before and after each
one; every step first checks whether it is done. So a role change that was killed at any step is completed by running
its verb again, with the policy's lease. The module of each verb defines its steps.
"""

from __future__ import annotations

import getpass
import os
import socket
import time as clocks
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from cmroot.lease import Lease
from cmroot.pins import Slot, create_slot, drop_slot, find_slot
from cmroot.root import ChangeRoot
from replicator.captures.dumps.dump import BOOTSTRAP
from replicator.core.formats import is_transactional
from replicator.core.grouping import batched
from replicator.core.logging import step as told_step
from replicator.core.not_replicated import Report
from replicator.core.policy import Policy
from replicator.core.roles import Role, RoleMark
from replicator.errors import Error, Refused
from replicator.metastore.client import Metastore
from replicator.metastore.concurrency import TABLE_BATCH
from replicator.policies.direction import Direction, Pair
from replicator.policies.memory import Memory, RoleChange, iso
from replicator.policies.memory import Step as Remembered
from replicator.policies.roles import label, read_role, set_role
from replicator.policies.steps import CHECKPOINT, NO_WAIT
from replicator.replay.replica import for_writers

Details = dict[str, Any]


@dataclass(frozen=True)
class Action:
    """One step of a role change. `does`: a description for the operator. `run` checks whether it is done, does the
    rest, and returns the details to remember."""

    name: str
    does: str
    run: Callable[[], Details]


@dataclass(frozen=True)
class StepReport:
    """The report of a step. `seconds`: its duration, in the run that completed it; None if an earlier run did."""

    name: str
    does: str
    status: str
    seconds: float | None = None
    detail: Details = field(default_factory=dict)


Reporter = Callable[[StepReport], None]


def ignore(step: StepReport) -> None:
    """Does nothing."""


@dataclass
class RoleChanged(Report):
    """The report of a role change. `status`: done, ready (a dry run), nothing (the side is the primary already),
    aborted. `primary`: the side that is the primary now, source or target as the policy names them; `uri`: its
    metastore. `epoch`: the primary's. downtime_seconds: from fencing the old primary to promoting the new one; None if
    the two were done on different machines. `problems`: obstacles found by a dry run. `loss`, `own`: the reports of a
    failover and a failback."""

    policy: str
    verb: str
    status: str = "done"
    turn: str = ""
    primary: str = ""
    uri: str = ""
    epoch: int = 0
    downtime_seconds: float | None = None
    lag_seconds: float | None = None
    lag_events: int | None = None
    databases: list[str] = field(default_factory=list)
    steps: list[StepReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    loss: Details | None = None
    own: Details | None = None
    files_copied: int = 0
    bytes_copied: int = 0
    seconds: float = 0.0


# ---- the list of steps --------------------------------------------------------------------------------------------


def begin(
    memory: Memory,
    verb: str,
    actions: Iterable[str],
    *,
    epoch: int,
    reverse: bool,
    accepted: Details | None = None,
    clock: Callable[[], float],
) -> RoleChange:
    """Writes the list of steps, under the policy's lease. The previous role change, if any, is archived already.
    accepted: the losses accepted by a forced one."""
    change = RoleChange(
        id=uuid.uuid4().hex[:12],
        policy=memory.policy,
        verb=verb,
        started=iso(clock()),
        by=operator(),
        epoch=epoch,
        forced=accepted is not None,
        reverse=reverse,
        steps=tuple(Remembered(name=name) for name in actions),
        detail=accepted or {},
    )
    memory.write_role_change(change)
    return change


def carry_out(
    memory: Memory,
    change: RoleChange,
    actions: Sequence[Action],
    *,
    lease: Lease,
    clock: Callable[[], float],
    reported: Reporter,
) -> RoleChange:
    """Carries out the steps that are not done, in order, and writes each before and after. Returns the ended role
    change.

    Raises the error of a step, which is remembered: running the verb again continues there. Raises LeaseHeld if the
    lease was lost: another process continues."""
    for action in actions:
        remembered = next(step for step in change.steps if step.name == action.name)
        if remembered.status == "done":
            reported(StepReport(action.name, action.does, "done", None, remembered.detail))
            continue
        lease.check()
        change = change.with_step(action.name, status="running", started=remembered.started or iso(clock()), detail={})
        memory.write_role_change(change)
        began = clocks.monotonic()
        try:
            with told_step(action.name):
                detail = action.run()
        except Exception as error:
            memory.write_role_change(
                change.with_step(action.name, status="failed", ended=iso(clock()), detail=_why(error))
            )
            raise
        seconds = round(clocks.monotonic() - began, 3)
        detail = {**detail, "seconds": seconds, "host": socket.gethostname()}
        change = change.with_step(action.name, status="done", ended=iso(clock()), detail=detail)
        memory.write_role_change(change)
        reported(StepReport(action.name, action.does, "done", seconds, detail))
    return end(memory, change, clock=clock)


def end(memory: Memory, change: RoleChange, *, clock: Callable[[], float], **detail: Any) -> RoleChange:
    """Ends a role change: done, aborted, or replaced by another one. May run twice."""
    ended = msgspec.structs.replace(change, ended=change.ended or iso(clock()), detail=change.detail | detail)
    memory.write_role_change(ended)
    return ended


def unfinished(memory: Memory, verb: str) -> RoleChange | None:
    """Returns this verb's unfinished role change, if any. Raises Refused while one of another verb is unfinished."""
    change = memory.unfinished_role_change()
    if change is not None and change.verb != verb:
        raise Refused(
            f"policy {memory.policy}: a {change.verb} was begun at {change.started} by {change.by} and has not ended",
            hint=f"run `replicator {change.verb} {memory.policy}` again to complete it",
            details={"turn": change.id, "verb": change.verb},
        )
    return change


def steps_of(change: RoleChange, actions: Sequence[Action]) -> list[StepReport]:
    """Returns all steps with their results."""
    does = {action.name: action.does for action in actions}
    return [
        StepReport(step.name, does.get(step.name, ""), step.status, step.detail.get("seconds"), step.detail)
        for step in change.steps
    ]


def operator() -> str:
    """Returns the user, host and process, for later readers."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} process {os.getpid()}"


def _why(error: Exception) -> Details:
    hint = error.hint if isinstance(error, Error) else ""
    return {"error": type(error).__name__, "message": str(error), "hint": hint}


# ---- steps of several verbs ---------------------------------------------------------------------------------------


def highest_epoch(pairs: Iterable[Pair]) -> int:
    return max((max(pair.source_mark.epoch, pair.target_mark.epoch) for pair in pairs), default=0)


def give(metastore: Metastore, db: str, role: Role, epoch: int, *, instead_of: Sequence[Role]) -> bool:
    """Sets a database's role if it differs. Returns True if it did. The policy's lease excludes others that honour it.

    Raises Refused if the role is not one of `instead_of`, or is at a higher epoch, as it was then changed elsewhere."""
    found, wanted = read_role(metastore, db), RoleMark(role, epoch)
    if found == wanted:
        return False
    if found.role not in instead_of or found.epoch > epoch:
        raise Refused(
            f"{label(metastore, db)} is {found}, it cannot become {wanted}: another process changed its role",
            hint="run `replicator role show` on both sides; if no other process changes roles, `role set` repairs it",
            details={"role": found.role.value, "epoch": found.epoch, "by": found.by},
        )
    set_role(metastore, db, wanted, expect=found, settle=NO_WAIT)
    return True


def forget_checkpoint(metastore: Metastore, db: str) -> None:
    """Removes the checkpoint of a database that becomes a primary (its writers change it from now on) or a replica of
    the other direction. May run twice."""
    there = metastore.database(db)
    if there.parameters.keys() & CHECKPOINT:
        kept = {key: value for key, value in there.parameters.items() if key not in CHECKPOINT}
        metastore.alter_database(db, msgspec.structs.replace(there, parameters=kept))


def open_for_writers(metastore: Metastore, db: str) -> None:
    """Ends the transactions of the former source in a database that becomes a primary, and lets its metastore compact
    its transactional tables. May run twice."""
    if not metastore.keeps_transactions():
        return
    metastore.abort_replicated(db)
    for names in batched(metastore.table_names(db), TABLE_BATCH):
        for table in metastore.tables(db, names):
            if is_transactional(table) and (opened := for_writers(table)) != table:
                metastore.alter_table(db, table.name, opened)


def reverse_slots(policy: Policy, new: ChangeRoot, old: ChangeRoot | None, *, clock: Callable[[], float]) -> Details:
    """Creates the policy's slot at its new source, where it awaits a bootstrap, and drops it at the old one (None:
    leave unchanged), where it would retain recycled files without use. May run twice."""
    if find_slot(new.place, policy.slot) is None:
        now = iso(clock())
        create_slot(new.place, Slot(policy.slot, 0, 0, created=now, confirmed=now, awaits=BOOTSTRAP))
    if old is not None and find_slot(old.place, policy.slot) is not None:
        drop_slot(old.place, policy.slot)
    return {"slot": policy.slot, "root": new.place}


def side(direction: Direction) -> str:
    """Returns the side of the policy that a direction leads to."""
    return "source" if direction.reverse else "target"


def seconds_between(change: RoleChange, first: str, last: str) -> float | None:
    """Returns the time from the begin of one step to the end of another; None if they ran on different machines, as
    their clocks are not comparable."""
    by_name = {step.name: step for step in change.steps}
    one, other = by_name[first], by_name[last]
    if not one.started or not other.ended or one.detail.get("host") != other.detail.get("host"):
        return None
    return max(0.0, round(_seconds(other.ended) - _seconds(one.started), 3))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
