"""Failover: the primary is lost, and its replica becomes the primary. Acts.

    fence     the lost primary is `fenced`, if its metastore answers; there is no wait for it
    finish    interrupted loads are completed from their dumps, or their tables reported as between two states
    loss      the report of changes that are missing at the replica
    promote   the replica is `primary`, at an epoch above every one that is known
    slots     the policy's slot is at the new primary

Without `force` only the loss report is made. Whether or not the fence succeeded: from `promote` on, the higher epoch is
right, and runs from the old primary are refused. When it returns, `failback` makes it a replica.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from cmroot.lease import Lease, patiently
from cmroot.root import ChangeRoot, Format, open_existing
from replicator.core.not_replicated import Report
from replicator.core.policy import Policy
from replicator.core.roles import Role
from replicator.core.text import count_text
from replicator.errors import Error, FormatError, MetastoreUnreachable, NotReached, ObjectNotFound, Refused
from replicator.metastore.client import Metastore
from replicator.policies.direction import Direction, Pair, Sides, survey
from replicator.policies.memory import Memory, RememberedScope, RoleChange
from replicator.policies.role_changes.loss import Absent, Loss, loss_of, lost_root, within
from replicator.policies.role_changes.role_change import (
    Action,
    Details,
    Reporter,
    RoleChanged,
    begin,
    carry_out,
    end,
    forget_checkpoint,
    give,
    highest_epoch,
    ignore,
    open_for_writers,
    reverse_slots,
    side,
    steps_of,
)
from replicator.policies.role_changes.switchover_steps import complete_loads

# ---- candidate -------------------------------------------------------------------------------------------------------
# The failover candidate: which side is lost, which replica is to be promoted, and whether this is allowed. Reads only,
# through clients with timeouts of a few seconds.


VERB = "failover"


@dataclass(frozen=True)
class Seen:
    """The state of the sides that answer. `direction`: from lost side to survivor; its root may be unreadable."""

    direction: Direction
    reverse: bool
    lost_answers: bool


def look(sides: Sides, short_timeouts: tuple[Metastore, Metastore], memory: Memory) -> Seen:
    """Decides which side survives. Raises Refused if no side is a replica that can be promoted."""
    policy, remembered = sides.policy, memory.read_scope()
    source, target = (_answering(each, policy, remembered) for each in short_timeouts)
    pairs = [pair for pair in survey(policy, source, target, remembered) if pair.matches]
    change = memory.unfinished_role_change()
    reverse = change.reverse if change is not None and change.verb != "failback" else _reverse(pairs, source, target)
    lost, survivor, place = (target, sides.source, policy.cmroot) if reverse else (source, sides.target, "")
    missing = source if reverse else target
    if isinstance(missing, Absent):
        raise MetastoreUnreachable(
            f"{survivor.uri}, which is to be the primary, does not answer: {missing.reason}",
            hint="start it, then run this command again; if it is only slow, raise --answer-timeout",
        )
    root = open_existing(place or policy.target_cmroot)
    unread = ChangeRoot(policy.target_cmroot if reverse else policy.cmroot, Format("cmroot", 1, "", ""))
    if reverse:
        pairs = [pair.swapped for pair in pairs]
    direction = Direction(policy, lost, survivor, unread, root, tuple(pairs), reverse)
    found = Seen(
        replace(direction, pairs=tuple(pair for pair in pairs if pair.target is not None)),
        reverse,
        not isinstance(lost, Absent),
    )
    if change is None or change.verb != VERB:
        _refuse(policy, found, memory)
    return found


def _answering(metastore: Metastore, policy: Policy, remembered: RememberedScope | None) -> Metastore | Absent:
    """Returns a metastore that answers all initial queries, or an Absent with the reason."""
    try:
        unqueried = Absent(metastore.uri, "not asked")
        survey(policy, metastore, unqueried, remembered)
        survey(policy, unqueried, metastore, remembered)
    except Error as error:
        return Absent(metastore.uri, str(error))
    return metastore


def _reverse(pairs: Sequence[Pair], source: Metastore | Absent, target: Metastore | Absent) -> bool:
    """Returns True if the source is to be promoted: it is the replica, and the target, the primary, was lost."""
    here = {pair.source_mark.role for pair in pairs if pair.source is not None}
    there = {pair.target_mark.role for pair in pairs if pair.target is not None}
    if isinstance(target, Absent):
        return True
    return Role.PRIMARY in there and Role.REPLICA in here and not isinstance(source, Absent)


def _refuse(policy: Policy, seen: Seen, memory: Memory) -> None:
    pairs = seen.direction.pairs
    if not pairs:
        raise Refused(
            f"policy {policy.name}: {seen.direction.target.uri} has no replica to promote",
            hint="run `replicator role show` on the side that answers",
        )
    primary = [pair.replica for pair in pairs if pair.target_mark.role is Role.PRIMARY]
    if len(primary) == len(pairs):
        last = next((change for change in memory.role_changes() if change.verb == VERB), None)
        said = f": failed over at {last.started} by {last.by}" if last else ""
        change = memory.unfinished_role_change()
        verb = change.verb if change else "failback"
        raise Refused(
            f"policy {policy.name}: {', '.join(primary[:10])} of {seen.direction.target.uri} is the primary "
            f"already{said}",
            hint=f"start the writers there; when the other side is available again: `replicator {verb} {policy.name}`",
        )
    wrong = [
        f"{pair.replica} is {pair.target_mark}"
        for pair in pairs
        if pair.target_mark.role is not Role.REPLICA and not (primary and pair.target_mark.role is Role.PRIMARY)
    ]
    if wrong:
        raise Refused(
            f"policy {policy.name}: not a replica: {', '.join(wrong[:10])}",
            hint="`replicator role show` shows who set this role; `role set --force` can change it",
        )


def known_epoch(seen: Seen, memory: Memory) -> int:
    """Returns the highest known epoch: of the sides that answer, and of earlier role changes, which may have fenced and
    unfenced a side that does not answer now."""
    epochs = [change.epoch + 2 for change in memory.role_changes()]
    last = memory.read_role_change()
    return max([highest_epoch(seen.direction.pairs), *epochs, last.epoch + 2 if last else 0])


# ---- failover --------------------------------------------------------------------------------------------------------


STEPS = ("fence", "finish", "loss", "promote", "slots")


@dataclass(frozen=True)
class FailoverSettings:
    """The options of a failover. force: the loss is accepted. accept_partial: tables that an interrupted load left
    between two states are accepted, too. look: the loss report also lists the lost side's directories. limit: timeout
    for answers of the lost side. reading: timeout for reading its log. patience: how long to wait for a running run.
    reported: called with each completed step."""

    force: bool = False
    accept_partial: bool = False
    look: bool = False
    limit: timedelta = timedelta(seconds=10)
    reading: timedelta = timedelta(seconds=60)
    patience: timedelta = timedelta(0)
    reported: Reporter = ignore


def failover(
    sides: Sides, short_timeouts: tuple[Metastore, Metastore], options: FailoverSettings | None = None
) -> RoleChanged:
    """Promotes the replica, or completes an interrupted failover. May be killed at any step and run again.

    short_timeouts: source and target as the policy names them, with clients whose timeouts are a few seconds, as one of
    the two is lost. Without `force` it reads only, and the report has the status `refused`, with the loss.

    Raises LeaseHeld during a run or role change of the policy, Refused if there is no replica to promote, if a side is
    the primary already, or for tables between two states without consent."""
    began, options = clocks.monotonic(), options or FailoverSettings()
    if not options.force:
        report = _only_reported(sides, short_timeouts, options)
        report.seconds = round(clocks.monotonic() - began, 3)
        return report
    memory = _memory(sides.policy, options)
    with patiently(lambda: memory.lease(VERB), options.patience) as lease:
        seen = look(sides, short_timeouts, memory)
        work = _Failover(sides, options, seen, memory, lease)
        change = memory.unfinished_role_change()
        if change is None or change.verb != VERB:
            loss = asdict(work.loss_now())
            detail: Details = {"loss": loss}
            if change is not None:
                detail["instead_of"] = {"turn": change.id, "verb": change.verb}
                end(memory, change, clock=sides.runtime.clock, given_up=True)
            epoch = known_epoch(seen, memory)
            change = begin(
                memory, VERB, STEPS, epoch=epoch, reverse=seen.reverse, accepted=detail, clock=sides.runtime.clock
            )
        work.change = change
        change = carry_out(
            memory, change, work.actions, lease=lease, clock=sides.runtime.clock, reported=options.reported
        )
        report = work.sum_up(change)
    report.seconds = round(clocks.monotonic() - began, 3)
    return report


def _only_reported(sides: Sides, short_timeouts: tuple[Metastore, Metastore], options: FailoverSettings) -> RoleChanged:
    memory = _memory(sides.policy, options)
    seen = look(sides, short_timeouts, memory)
    work = _Failover(sides, options, seen, memory, None)
    report = RoleChanged(
        sides.policy.name, VERB, "refused", primary=side(seen.direction), uri=seen.direction.target.uri
    )
    report.databases = [pair.replica for pair in seen.direction.pairs]
    report.loss = asdict(work.loss_now())
    report.warnings = list(report.loss["warnings"])
    return report


def _memory(policy: Policy, options: FailoverSettings) -> Memory:
    """Opens the policy's memory, on the surviving side if the other one, which has it, is lost. Creates no root: a
    directory that is empty now may be an unmounted disk."""
    try:
        root = within(options.limit, f"open {policy.target_cmroot}", lambda: open_existing(policy.target_cmroot))
    except Exception:  # any error of a store: it is not available
        try:
            root = within(options.limit, f"open {policy.cmroot}", lambda: open_existing(policy.cmroot))
        except FormatError as error:
            raise Refused(
                f"policy {policy.name}: neither side has a $cmroot, so it was never run ({error})",
                hint="there is no replica to promote; check the locations in the policy",
            ) from error
    return Memory(root, policy.name)


@dataclass(frozen=True)
class LastFailover(Report):
    """A policy's last failover: role change, operator, loss report, and whether the source became the primary."""

    turn: str
    by: str
    loss: Details | None
    reverse: bool
    epoch: int

    def to_dict(self) -> dict[str, Any]:
        return {"status": "shown", "turn": self.turn, "by": self.by, **(self.loss or {})}


def last_failover(policy: Policy, limit: timedelta = timedelta(seconds=10)) -> LastFailover:
    """Reads the memory on either side: if the side that has it was lost, the other one has the role change. Raises
    ObjectNotFound if there was no failover."""
    found: list[RoleChange] = []
    for place in (policy.target_cmroot, policy.cmroot):
        try:
            memory = within(limit, f"open {place}", lambda at=place: Memory(open_existing(at), policy.name))  # type: ignore[misc]
            found += [
                change
                for change in [*memory.role_changes(), memory.read_role_change()]
                if change and change.verb == VERB
            ]
        except (FormatError, NotReached, OSError):  # that side is lost, or never was a root
            continue
    if not found:
        raise ObjectNotFound(f"policy {policy.name}: there was no failover", hint="`replicator history` lists runs")
    last = max(found, key=lambda change: (change.epoch, change.started))
    return LastFailover(last.id, last.by, _loss_of(last), last.reverse, last.epoch)


def _loss_of(change: RoleChange) -> Details | None:
    """Returns the report made before the promotion or, if that step was not reached, at the begin."""
    by_name = {step.name: step for step in change.steps}
    report = by_name["loss"].detail if by_name["loss"].status == "done" else change.detail.get("loss")
    return report and {**report, "between": by_name["finish"].detail.get("between", [])}


# ---- the steps ----------------------------------------------------------------------------------------------------


class _Failover:
    """One running failover."""

    change: RoleChange

    def __init__(
        self, sides: Sides, options: FailoverSettings, seen: Seen, memory: Memory, lease: Lease | None
    ) -> None:
        self.sides, self.options, self.seen, self.memory, self.lease = sides, options, seen, memory, lease

    @property
    def promoted(self) -> int:
        return self.change.epoch + 2

    @property
    def actions(self) -> list[Action]:
        return [
            Action("fence", "the lost primary, if it answers", self.fence),
            Action("finish", "interrupted loads", self.finish),
            Action("loss", "changes that the replica lacks", self.loss),
            Action("promote", f"the replica is the primary at epoch {self.promoted}", self.promote),
            Action("slots", "the policy's slot is at the new primary", self.slots),
        ]

    def direction(self) -> Direction:
        """Returns the direction with the current databases of the replica."""
        direction = self.seen.direction
        names = set(direction.target.database_names())
        pairs = (
            replace(pair, target=direction.target.database(pair.replica))
            for pair in direction.pairs
            if pair.replica in names
        )
        return replace(direction, pairs=tuple(pairs))

    def fence(self) -> Details:
        if not self.seen.lost_answers:
            return {"fenced": [], "why": "its metastore does not answer"}
        fenced: list[str] = []
        for pair in self.seen.direction.pairs:
            if pair.source is None:
                continue
            try:
                allowed = (Role.PRIMARY, Role.NONE, Role.FENCED)
                give(self.seen.direction.source, pair.name, Role.FENCED, self.change.epoch + 1, instead_of=allowed)
                fenced.append(pair.name)
            except Error as error:  # the higher epoch decides
                return {"fenced": fenced, "why": str(error)}
        return {"fenced": fenced}

    def finish(self) -> Details:
        """Completes interrupted loads. Raises Refused, listing the tables between two states, for loads that cannot be
        completed, unless that is accepted."""
        found = complete_loads(self.direction(), self.sides.runtime, self.options.limit)
        if found.between and not self.options.accept_partial:
            tables = [each["table"] for each in found.between]
            raise Refused(
                f"policy {self.sides.policy.name}: an interrupted load left "
                f"{count_text(len(tables), 'table')} between two states, and cannot be "
                f"completed ({'; '.join(found.reasons)}): {', '.join(tables[:10])}",
                hint="--allow-partial continues with them as they are; `details` lists the state of each",
                details={"between": found.between, "reasons": found.reasons},
            )
        return asdict(found)

    def loss_now(self, *, completing: bool = True) -> Loss:
        """Returns the current loss report. Reads only. completing: interrupted loads are still to be completed."""
        direction = self.direction()
        return loss_of(
            direction,
            lost_root(direction.root.place, self.options.limit),
            self.memory,
            completing=completing,
            look=self.options.look,
            limit=self.options.reading,
            clock=self.sides.runtime.clock,
        )

    def loss(self) -> Details:
        """Returns the report with the checkpoints that a failback begins from, as `promote` removes them."""
        return asdict(self.loss_now(completing=False))

    def promote(self) -> Details:
        direction = self.direction()
        for pair in direction.pairs:
            give(direction.target, pair.replica, Role.PRIMARY, self.promoted, instead_of=(Role.REPLICA, Role.PRIMARY))
            forget_checkpoint(direction.target, pair.replica)
            open_for_writers(direction.target, pair.replica)
        return {"epoch": self.promoted, "databases": [pair.replica for pair in direction.pairs]}

    def slots(self) -> Details:
        return reverse_slots(self.sides.policy, self.seen.direction.target_root, None, clock=self.sides.runtime.clock)

    def sum_up(self, change: RoleChange) -> RoleChanged:
        by_name = {step.name: step.detail for step in change.steps}
        report = RoleChanged(
            self.sides.policy.name,
            VERB,
            "done",
            change.id,
            side(self.seen.direction),
            self.seen.direction.target.uri,
            self.promoted,
            databases=by_name["promote"]["databases"],
            steps=steps_of(change, self.actions),
        )
        report.loss = _loss_of(change) or {}
        report.warnings = list(report.loss["warnings"])
        if why := by_name["fence"].get("why"):
            report.warnings.append(
                f"the lost primary was not fenced ({why}): when it answers again, its writers must stop until failback"
            )
        return report
