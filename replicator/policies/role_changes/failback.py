"""Failback: after a failover, the old primary returns and becomes the replica of the new one. Acts.

    fence        the old side is `fenced`, at an epoch below the new primary's
    own          its own changes, which were never replicated, are captured, listed, and held in its `$cmroot`
    demote       it is `replica`, of the other direction
    difference   differences are copied back, and the files that they replace are moved to its `$cmroot`
    slots        the policy's slot is at the new primary, and no longer at the old one

Its own changes are those after the checkpoints that the failover recorded. The hold retains its complete state at its
return, until an operator releases it: `replicator restore` can restore it next to the live databases.
"""

from __future__ import annotations

import time as clocks
from dataclasses import dataclass
from datetime import timedelta

from cmroot.lease import Lease, patiently
from cmroot.log.captured import segments
from cmroot.pins import Hold, hold, iso, read_pins
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.dumps.layout import Point
from replicator.captures.dumps.selection import resolve_until
from replicator.core.roles import Role
from replicator.errors import ObjectNotFound, Refused
from replicator.metastore.events.scope import waiting_events
from replicator.policies.direction import Direction, Pair, Sides, patterns_of
from replicator.policies.memory import Memory, RoleChange
from replicator.policies.role_changes.failover import LastFailover, last_failover
from replicator.policies.role_changes.role_change import (
    Action,
    Details,
    Reporter,
    RoleChanged,
    begin,
    carry_out,
    forget_checkpoint,
    give,
    highest_epoch,
    ignore,
    reverse_slots,
    steps_of,
    unfinished,
)
from replicator.policies.role_changes.switchover import switchover
from replicator.policies.role_changes.switchover_steps import SwitchoverSettings
from replicator.policies.run import Remembering, run_once
from replicator.policies.status import Unreplicated
from replicator.policies.steps import SyncSettings

VERB = "failback"
STEPS = ("fence", "own", "demote", "difference", "slots")
SETTLE = timedelta(seconds=60)  # how long to wait for the lease of the old side's root


@dataclass(frozen=True)
class FailbackSettings:
    """The options of a failback. patience: how long to wait for a running run. reported: called with each completed
    step."""

    patience: timedelta = timedelta(seconds=10)
    reported: Reporter = ignore


def failback(sides: Sides, options: FailbackSettings | None = None, *, dry_run: bool = False) -> RoleChanged:
    """Makes the old primary a replica, or completes an interrupted failback. May be killed at any step and run again.

    dry_run: lists its own changes, as far as they are captured or announced, and changes nothing. Raises LeaseHeld
    during a run or role change of the policy, Refused if it is unknown which side is right, and all errors of capture
    and load."""
    began, options = clocks.monotonic(), options or FailbackSettings()
    kept = Remembering(sides.policy)
    with patiently(lambda: kept.memory.lease(VERB), options.patience) as lease:
        change = unfinished(kept.memory, VERB)
        report = RoleChanged(sides.policy.name, VERB)
        direction = _direction(sides, kept.memory, change)
        _tell(report, direction)
        if change is None and not dry_run and _rejoined(direction):
            report.status = "nothing"
            return report
        last = _last(sides, kept.memory)
        if change is None:
            _refuse(direction, last)
            epoch = max(highest_epoch(direction.pairs), 1)
        else:
            epoch = change.epoch
        work = _Failback(sides, direction.reverse, epoch, last, lease, kept)
        if dry_run:
            report.status, report.own = "ready", work.own_so_far()
            return report
        if change is None:
            change = begin(kept.memory, VERB, STEPS, epoch=epoch, reverse=direction.reverse, clock=sides.runtime.clock)
        change = carry_out(
            kept.memory, change, work.actions, lease=lease, clock=sides.runtime.clock, reported=options.reported
        )
        work.sum_up(change, report)
    report.seconds = round(clocks.monotonic() - began, 3)
    return report


def failback_and_switch(sides: Sides, options: FailbackSettings) -> RoleChanged:
    """Does a failback, then a switchover to the side that returned; running it again completes both. Returns the
    switchover, with the results of the failback. Raises the errors of either."""
    back = failback(sides, options)
    to = "source" if back.primary == "target" else "target"
    done = switchover(sides, SwitchoverSettings(to=to, patience=options.patience, reported=options.reported))
    done.own, done.files_copied, done.bytes_copied = back.own, back.files_copied, back.bytes_copied
    return done


# ---- which side is right ------------------------------------------------------------------------------------------


def _direction(sides: Sides, memory: Memory, change: RoleChange | None) -> Direction:
    """Returns the direction from the new primary to the old one. Raises Refused if no side is the primary."""
    if change is not None:
        return sides.direction(memory, reverse=change.reverse)
    forwards = sides.direction(memory, reverse=False)
    here = [pair.source_mark for pair in forwards.matching if pair.source_mark.role is Role.PRIMARY]
    there = [pair.target_mark for pair in forwards.matching if pair.target_mark.role is Role.PRIMARY]
    if not here and not there:
        raise Refused(
            f"policy {sides.policy.name}: neither side is the primary, so there is no primary to replicate from",
            hint=f"if the other side is lost: `replicator failover {sides.policy.name}`",
        )
    newest = max((mark.epoch for mark in here), default=-1), max((mark.epoch for mark in there), default=-1)
    return sides.direction(memory, reverse=newest[1] > newest[0]) if newest[1] > newest[0] else forwards


def _rejoined(direction: Direction) -> bool:
    """Returns True if the other side is the replica already."""
    return all(
        pair.target_mark.role is Role.REPLICA and pair.position is not None
        for pair in direction.matching
        if pair.source is not None and pair.target is not None
    )


def _last(sides: Sides, memory: Memory) -> LastFailover | None:
    """Returns the failover that this failback follows; None if a later role change took place."""
    try:
        last = last_failover(sides.policy)
    except ObjectNotFound:
        return None
    newest = max((change.epoch for change in memory.role_changes()), default=0)
    return last if newest <= last.epoch else None


def _refuse(direction: Direction, last: LastFailover | None) -> None:
    """Raises Refused if both sides claim to be the primary and no failover decides between them."""
    wrong = [
        f"{pair.name} of {direction.source.uri} is {pair.source_mark}"
        for pair in direction.matching
        if pair.source is not None and pair.source_mark.role is not Role.PRIMARY
    ]
    if wrong:
        raise Refused(
            f"not the primary: {'; '.join(wrong[:5])}",
            hint="complete the unfinished role change, then run this command again",
        )
    if (
        last is not None
        and last.reverse == direction.reverse
        and any(p.target_mark.role is Role.PRIMARY for p in direction.pairs)
    ):
        raise Refused(
            f"the last failover made {direction.target.uri} the primary, but {direction.source.uri} has the higher "
            "epoch",
            hint="`replicator role show` on both sides shows who changed it; `role set` with a higher epoch decides "
            "which side is valid",
        )


def _tell(report: RoleChanged, direction: Direction) -> None:
    report.primary, report.uri = "target" if direction.reverse else "source", direction.source.uri
    report.epoch = highest_epoch(direction.pairs)
    report.databases = [pair.replica for pair in direction.matching if pair.target is not None]


# ---- the steps ----------------------------------------------------------------------------------------------------


class _Failback:
    """One running failback. Its direction leads from the new primary (`source`) to the old one (`target`)."""

    def __init__(
        self, sides: Sides, reverse: bool, epoch: int, last: LastFailover | None, lease: Lease, kept: Remembering
    ) -> None:
        self.sides, self.reverse, self.epoch = sides, reverse, epoch
        self.last, self.lease, self.kept = last, lease, kept

    @property
    def actions(self) -> list[Action]:
        return [
            Action("fence", "replication from the old primary is refused", self.fence),
            Action("own", "its own changes are captured, listed and held", self.own),
            Action("demote", "the old primary is the replica", self.demote),
            Action("difference", "differences are copied back", self.difference),
            Action("slots", "the policy's slot is at the new primary", self.slots),
        ]

    def direction(self) -> Direction:
        return self.sides.direction(self.kept.memory, reverse=self.reverse)

    def _old(self, direction: Direction) -> list[Pair]:
        """Returns databases that the old side has."""
        return [pair for pair in direction.matching if pair.target is not None]

    def fence(self) -> Details:
        """Fences the old side, after raising the new primary's epoch above it, so that the old one is never right."""
        direction = self.direction()
        old = self._old(direction)
        least = max((pair.target_mark.epoch for pair in old if pair.target_mark.role is not Role.REPLICA), default=0)
        for pair in direction.matching:
            if pair.source is not None and pair.source_mark.epoch <= least:
                give(direction.source, pair.name, Role.PRIMARY, self.epoch + 1, instead_of=(Role.PRIMARY,))
        for pair in old:
            if pair.target_mark.role not in (Role.FENCED, Role.REPLICA):
                epoch = max(pair.target_mark.epoch, 1)
                give(direction.target, pair.replica, Role.FENCED, epoch, instead_of=(Role.PRIMARY, Role.NONE))
        return {"databases": [pair.replica for pair in old]}

    # ---- its own changes ------------------------------------------------------------------------------------------

    def own(self) -> Details:
        direction = self.direction()
        databases = [pair.replica for pair in self._old(direction)]
        if databases:
            policy = self.sides.policy
            grants = policy.grants == "replicate"
            chosen = CaptureSettings(databases, constraints=True, grants=grants, repair=True, keeper=policy.keeper)
            patiently(lambda: capture(direction.target, direction.target_root, chosen, self.sides.runtime), SETTLE)
        found, unknown = self._counted(direction)
        end = resolve_until(segments(direction.target_root.place), None)
        report = {
            **found.as_json(),
            "unknown": unknown,
            "root": direction.target_root.place,
            "event": end.event,
            "hold": "",
        }
        if report["changes"] or unknown:
            report["hold"] = self._hold(direction, end)
        return report

    def own_so_far(self) -> Details:
        """Reports the changes that are captured or announced already. Reads only."""
        direction = self.direction()
        found, unknown = self._counted(direction)
        log = segments(direction.target_root.place)
        if log:
            newest = direction.target.current_event_id()
            found.announced(waiting_events(direction.target, resolve_until(log, None).event, newest).events)
        return {**found.as_json(), "unknown": unknown, "root": direction.target_root.place, "event": None, "hold": ""}

    def _counted(self, direction: Direction) -> tuple[Unreplicated, list[str]]:
        """Returns the changes after the failover's checkpoints, and the databases without a known checkpoint."""
        recorded = (
            (self.last.loss or {}).get("databases", []) if self._after_a_failover(direction) and self.last else []
        )
        after, unknown = {}, []
        by_name = {each["db"]: each for each in recorded}
        for pair in self._old(direction):
            known = by_name.get(pair.replica)
            if known and known["position"] is not None and known["source"] == direction.target_root.id:
                after[pair.replica] = int(known["position"])
            elif known is None and pair.source is None and recorded:
                after[pair.replica] = 0  # created there, and never replicated
            else:
                unknown.append(pair.replica)
        databases = [pair.target for pair in self._old(direction) if pair.target]
        found = Unreplicated(after, patterns_of(self.sides.policy, self._turned(direction)), databases)
        found.captured(segments(direction.target_root.place))
        return found, unknown

    def _after_a_failover(self, direction: Direction) -> bool:
        """Returns True if the last failover made this direction's source the primary."""
        return self.last is not None and self.last.reverse != direction.reverse

    def _turned(self, direction: Direction) -> list[Pair]:
        """Returns the pairs by the old side's names, as patterns use them."""
        return [pair.swapped for pair in direction.matching]

    def _hold(self, direction: Direction, end: Point) -> str:
        """Holds the complete state of the old side at its return until an operator releases it. May run twice."""
        change = self.kept.memory.unfinished_role_change()
        assert change is not None
        name, root = f"failback-{change.id}", direction.target_root.place
        if name not in [each.name for each in read_pins(root).holds]:
            reason = (
                f"changes of {direction.target.uri} that were never replicated, before the failback of {change.started}"
            )
            hold(root, Hold(name, end.position, end.event, iso(self.sides.runtime.clock()), reason))
        return name

    # ---- it is the replica ----------------------------------------------------------------------------------------

    def demote(self) -> Details:
        """Makes the old side's databases replicas. One that exists only there is retained without a role."""
        direction = self.direction()
        alone = []
        for pair in self._old(direction):
            if pair.source is None:
                alone.append(pair.replica)
                give(direction.target, pair.replica, Role.NONE, pair.target_mark.epoch, instead_of=(Role.FENCED,))
            elif pair.target_mark.role is not Role.REPLICA:
                forget_checkpoint(direction.target, pair.replica)
                give(direction.target, pair.replica, Role.REPLICA, pair.source_mark.epoch, instead_of=(Role.FENCED,))
        return {"databases": [pair.replica for pair in self._old(direction) if pair.source], "alone": alone}

    def difference(self) -> Details:
        """Runs the new direction: a bootstrap, loaded by difference."""
        run = run_once(self.sides, self.lease, self.kept, SyncSettings(draining=True))
        if run.reverse != self.reverse:
            raise Refused(
                f"policy {self.sides.policy.name}: the roles imply another direction than that of this failback",
                hint="run `replicator role show` on both sides",
            )
        names = ("files_copied", "bytes_copied", "files_skipped", "files_removed", "objects_changed", "to_event")
        return {name: getattr(run, name) for name in names} | {"warnings": run.warnings}

    def slots(self) -> Details:
        direction = self.direction()
        return reverse_slots(self.sides.policy, direction.root, direction.target_root, clock=self.sides.runtime.clock)

    def sum_up(self, change: RoleChange, report: RoleChanged) -> None:
        direction = self.direction()
        _tell(report, direction)
        by_name = {step.name: step.detail for step in change.steps}
        report.status, report.turn, report.steps = "done", change.id, steps_of(change, self.actions)
        report.own = by_name["own"]
        report.files_copied = by_name["difference"]["files_copied"]
        report.bytes_copied = by_name["difference"]["bytes_copied"]
        report.warnings += by_name["difference"]["warnings"]
        for name in by_name["demote"]["alone"]:
            report.warnings.append(f"{name} exists only at {direction.target.uri}: it remains there, without a role")
        for name in by_name["own"]["unknown"]:
            report.warnings.append(
                f"{name}: its last replicated position is unknown; its entire state is held, and differing files were "
                f"moved to {direction.target_root.place}"
            )
