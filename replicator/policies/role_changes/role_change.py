"""Role changes: how a switchover, failover or failback is carried out and remembered. Acts.

A turn is a list of steps. It is written to the policy's memory before its first step, and before and after each one;
every step first looks whether it has been done. So a turn that was killed anywhere is completed by running its verb
again, by whoever holds the policy's lease. Which steps there are is each verb's own module.
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
from replicator.core.logging import step as told_step
from replicator.core.not_replicated import Report
from replicator.core.policy import Policy
from replicator.core.roles import Role, RoleMark
from replicator.errors import Error, Refused
from replicator.metastore.client import Metastore
from replicator.policies.direction import Direction, Pair
from replicator.policies.memory import Memory, RoleChange, iso
from replicator.policies.memory import Step as Remembered
from replicator.policies.roles import label, read_role, set_role
from replicator.policies.steps import CHECKPOINT, NO_WAIT

Details = dict[str, Any]


@dataclass(frozen=True)
class Action:
    """One step of a turn. `does`: for a person. `run` looks whether it has been done, does what is missing, and returns
    what is to be remembered of it."""

    name: str
    does: str
    run: Callable[[], Details]


@dataclass(frozen=True)
class StepReport:
    """A step as it is reported. `seconds`: it took, in the run that ended it; None: it was done by an earlier run."""

    name: str
    does: str
    status: str
    seconds: float | None = None
    detail: Details = field(default_factory=dict)


Reporter = Callable[[StepReport], None]


def nobody(step: StepReport) -> None:
    """Does nothing."""


@dataclass
class RoleChanged(Report):
    """What a turn did. `status`: done, ready (a dry run), nothing (the side is the primary already), aborted.
    `primary`: the side that is the primary now, source or target as the policy names them; `uri`: its metastore.
    `epoch`: the primary's. downtime_seconds: from fencing the old primary to the new one; None where that cannot be
    reported, as the two were done on different machines. `problems`: what a dry run found in the way. `loss`, `own`:
    the reports of a failover and a failback."""

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
    """Writes the list, under the policy's lease. The turn before it, if any, has been kept among the ended ones.
    accepted: what a forced one gives up."""
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
    """Carries out what is not done, in order, and writes each step before and after. Returns the turn, ended.

    Raises what a step raises, which is remembered with the step: running the verb again continues there. LeaseHeld when
    the lease was lost: then somebody else continues."""
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
    """A turn that is over: done, aborted, or replaced by another one. Safe to run twice."""
    ended = msgspec.structs.replace(change, ended=change.ended or iso(clock()), detail=change.detail | detail)
    memory.write_role_change(ended)
    return ended


def unfinished(memory: Memory, verb: str) -> RoleChange | None:
    """The turn of this verb that is to be completed. Raises Refused while one of another verb is."""
    change = memory.unfinished_role_change()
    if change is not None and change.verb != verb:
        raise Refused(
            f"policy {memory.policy}: a {change.verb} was begun at {change.started} by {change.by} and has not ended",
            hint=f"run `replicator {change.verb} {memory.policy}` again, it completes",
            details={"turn": change.id, "verb": change.verb},
        )
    return change


def steps_of(change: RoleChange, actions: Sequence[Action]) -> list[StepReport]:
    """All steps with what became of them."""
    does = {action.name: action.does for action in actions}
    return [
        StepReport(step.name, does.get(step.name, ""), step.status, step.detail.get("seconds"), step.detail)
        for step in change.steps
    ]


def operator() -> str:
    """Who is running, for those who read it later."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} process {os.getpid()}"


def _why(error: Exception) -> Details:
    hint = error.hint if isinstance(error, Error) else ""
    return {"error": type(error).__name__, "message": str(error), "hint": hint}


# ---- what several verbs do ----------------------------------------------------------------------------------------


def highest_epoch(pairs: Iterable[Pair]) -> int:
    return max((max(pair.source_mark.epoch, pair.target_mark.epoch) for pair in pairs), default=0)


def give(metastore: Metastore, db: str, role: Role, epoch: int, *, instead_of: Sequence[Role]) -> bool:
    """Sets a database's role where it has another one; whether it had. The policy's lease excludes others who obey it.

    Raises Refused when it is none of `instead_of`, or at a higher epoch: then somebody decided otherwise."""
    found, wanted = read_role(metastore, db), RoleMark(role, epoch)
    if found == wanted:
        return False
    if found.role not in instead_of or found.epoch > epoch:
        raise Refused(
            f"{label(metastore, db)} is {found}, it cannot become {wanted}: somebody else changed its role",
            hint="run `replicator role show` on both sides; if nobody else changes roles, `role set` repairs it",
            details={"role": found.role.value, "epoch": found.epoch, "by": found.by},
        )
    set_role(metastore, db, wanted, expect=found, settle=NO_WAIT)
    return True


def forget_checkpoint(metastore: Metastore, db: str) -> None:
    """What a database says of how far it is as a replica, when it becomes a primary (its writers change it from now on)
    or a replica of the other direction. Safe to run twice."""
    there = metastore.database(db)
    if there.parameters.keys() & CHECKPOINT:
        kept = {key: value for key, value in there.parameters.items() if key not in CHECKPOINT}
        metastore.alter_database(db, msgspec.structs.replace(there, parameters=kept))


def reverse_slots(policy: Policy, new: ChangeRoot, old: ChangeRoot | None, *, clock: Callable[[], float]) -> Details:
    """The policy's slot is at its new source from now on, where it awaits a bootstrap, and no more at the old one
    (None: not to be touched), which would keep for nobody what it recycles. Safe to run twice."""
    if find_slot(new.place, policy.slot) is None:
        now = iso(clock())
        create_slot(new.place, Slot(policy.slot, 0, 0, created=now, confirmed=now, awaits=BOOTSTRAP))
    if old is not None and find_slot(old.place, policy.slot) is not None:
        drop_slot(old.place, policy.slot)
    return {"slot": policy.slot, "root": new.place}


def side(direction: Direction) -> str:
    """Which side of the policy is the one that a way leads to."""
    return "source" if direction.reverse else "target"


def seconds_between(change: RoleChange, first: str, last: str) -> float | None:
    """From the begin of one step to the end of another; None where they were not carried out on one machine, as two
    clocks tell nothing."""
    by_name = {step.name: step for step in change.steps}
    one, other = by_name[first], by_name[last]
    if not one.started or not other.ended or one.detail.get("host") != other.detail.get("host"):
        return None
    return max(0.0, round(_seconds(other.ended) - _seconds(one.started), 3))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
