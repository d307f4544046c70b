"""The steps of a switchover, from the fence on: each checks whether it is done, does it, and returns details. Acts.

`switchover` explains them and their order.
"""

from __future__ import annotations

import time as clocks
from dataclasses import dataclass, replace
from datetime import timedelta

from cmroot.lease import Lease, patiently
from cmroot.log.captured import segments
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.dumps.layout import DumpReader
from replicator.captures.dumps.selection import resolve_until
from replicator.compare.sampling import memory_of, read_memory
from replicator.core.policy import Policy
from replicator.core.roles import Role
from replicator.core.runtime import Runtime
from replicator.core.text import count_text
from replicator.errors import Error, NotReached, Refused
from replicator.metastore.events.scope import waiting_events
from replicator.policies.direction import Direction, Pair, Sides
from replicator.policies.lag import lag
from replicator.policies.memory import Memory, RoleChange
from replicator.policies.role_changes.loss import lost_root, within
from replicator.policies.role_changes.role_change import (
    Action,
    Details,
    Reporter,
    RoleChanged,
    StepReport,
    forget_checkpoint,
    give,
    highest_epoch,
    ignore,
    open_for_writers,
    reverse_slots,
    seconds_between,
    side,
)
from replicator.policies.roles import read_role
from replicator.policies.run import Remembering, SyncRun, run_once
from replicator.policies.status import Unreplicated
from replicator.policies.steps import SYNC, Steps, SyncSettings, concerned
from replicator.policies.sync_plan import PolicyDumps
from replicator.replay.replica import RESTORING
from replicator.replay.target import read_target, table_position

STEPS = ("fence", "drain", "verify", "promote", "demote", "late", "slots")


@dataclass(frozen=True)
class SwitchoverSettings:
    """The options of a switchover. to: the side that shall be the primary, source or target as the policy names them
    (empty: the current replica), so that a second call does not reverse it. anyway: continue despite tables that differ
    or missing directories. drain: time limit for the last changes. patience: how long to wait for a running run.
    reported: called with each completed step."""

    to: str = ""
    anyway: bool = False
    drain: timedelta = timedelta(minutes=10)
    patience: timedelta = timedelta(seconds=10)
    reported: Reporter = ignore


class SwitchoverSteps:
    """One running switchover. `change.reverse`: the direction before it, which all names here follow."""

    def __init__(
        self, sides: Sides, options: SwitchoverSettings, change: RoleChange, lease: Lease, kept: Remembering
    ) -> None:
        self.sides, self.options, self.change, self.lease, self.kept = sides, options, change, lease, kept
        self.fenced, self.promoted = change.epoch + 1, change.epoch + 2

    @property
    def actions(self) -> list[Action]:
        return [
            Action("fence", f"the primary is fenced at epoch {self.fenced}", self.fence),
            Action("drain", "changes are replicated until none remain", self.drain),
            Action("verify", "the replica is at the newest position", self.verify),
            Action("promote", f"the replica is the primary at epoch {self.promoted}", self.promote),
            Action("demote", "the old primary is the replica", self.demote),
            Action("late", "changes after the drain", self.late),
            Action("slots", "the policy's slot is at the new primary", self.slots),
        ]

    def direction(self) -> Direction:
        """Returns the current state of both sides, of databases that the side to be drained has."""
        direction = self.sides.direction(self.kept.memory, reverse=self.change.reverse)
        return replace(direction, pairs=tuple(pair for pair in direction.matching if pair.source is not None))

    def fence(self) -> Details:
        direction = self.direction()
        names = [pair.name for pair in direction.matching]
        for name in names:
            give(direction.source, name, Role.FENCED, self.fenced, instead_of=(Role.PRIMARY, Role.NONE))
        return {"epoch": self.fenced, "databases": names}

    def drain(self) -> Details:
        """Runs the policy until a run loads nothing. Databases created during the drain are fenced, too."""
        until = clocks.monotonic() + self.options.drain.total_seconds()
        rounds = files = size = 0
        while True:
            self.fence()
            run = run_once(self.sides, self.lease, self.kept, SyncSettings(draining=True))
            rounds, files, size = rounds + 1, files + run.files_copied, size + run.bytes_copied
            if not run.moved and self._quiet(run):
                return {"rounds": rounds, "files_copied": files, "bytes_copied": size, "to_event": run.to_event}
            if clocks.monotonic() > until:
                policy = self.sides.policy.name
                raise NotReached(
                    f"policy {policy}: the fenced side is still being written to after {rounds} rounds",
                    hint=f"stop the writers, then run `replicator switchover {policy}` again; or undo it with --abort",
                )

    def _quiet(self, run: SyncRun) -> bool:
        """Returns True if no later event concerns the policy. Other databases of the metastore continue."""
        direction = self.direction()
        names = {pair.name for pair in direction.matching}
        newest = direction.source.current_event_id()
        waiting = waiting_events(direction.source, run.to_event, newest).events
        return not any((event.db or "").lower() in names for event in waiting)

    def verify(self) -> Details:
        """Raises Refused if the replica differs from the drained primary."""
        direction = self.direction()
        log = segments(direction.root.place)
        newest = resolve_until(log, None)
        wrong = []
        for pair in direction.matching:
            behind = pair.position is None or (
                pair.position < newest.position and concerned(log, pair.position, {pair.name})
            )
            if behind or pair.loading:
                where = f"position {pair.position}" + (f", loading {pair.loading}" if pair.loading else "")
                wrong.append(f"{pair.replica} is at {where}, the log at {newest.position}")
                continue
            here, there = set(direction.source.table_names(pair.name)), set(direction.target.table_names(pair.replica))
            missing = sorted(name for name in here - there if direction.patterns.match(name))
            if missing:
                wrong.append(f"{pair.replica} lacks {', '.join(missing[:10])}")
        if wrong:
            raise Refused(
                f"policy {self.sides.policy.name}: the replica is not equal to the primary: {'; '.join(wrong[:5])}",
                hint="no role was changed: abort with --abort, then run `replicator verify`",
                details={"differences": wrong},
            )
        return {"position": newest.position, "event": newest.event}

    def _verified(self) -> int:
        """Returns the position up to which the replica was proved complete."""
        change = self.kept.memory.read_role_change() or self.change
        return next(int(step.detail["position"]) for step in change.steps if step.name == "verify")

    def promote(self) -> Details:
        direction = self.direction()
        self._refuse_unfenced(direction)
        for pair in direction.matching:
            give(direction.target, pair.replica, Role.PRIMARY, self.promoted, instead_of=(Role.REPLICA,))
            forget_checkpoint(direction.target, pair.replica)
            open_for_writers(direction.target, pair.replica)
        return {"epoch": self.promoted, "databases": [pair.replica for pair in direction.matching]}

    def _refuse_unfenced(self, direction: Direction) -> None:
        """Checks the fence again right before the promotion: two primaries must never exist."""
        for pair in direction.matching:
            mark = read_role(direction.source, pair.name)
            if mark.role is not Role.FENCED or mark.epoch != self.fenced:
                raise Refused(
                    f"{pair.name} is {mark}, not fenced at epoch {self.fenced}: its role was changed concurrently",
                    hint=f"no role was exchanged: run `replicator switchover {self.sides.policy.name} --abort`",
                )

    def demote(self) -> Details:
        direction = self.direction()
        for pair in direction.matching:
            give(direction.source, pair.name, Role.REPLICA, self.promoted, instead_of=(Role.FENCED,))
            forget_checkpoint(direction.source, pair.name)
        return {"epoch": self.promoted, "databases": [pair.name for pair in direction.matching]}

    def late(self) -> Details:
        """Captures and lists changes written after the drain, by writers that were not stopped, into the old primary's
        `$cmroot`; the first run of the other direction removes them. Reports why, if they cannot be determined."""
        direction = self.direction()
        position = self._verified()
        databases = [pair.source for pair in direction.matching if pair.source is not None]
        names, policy = [each.name for each in databases], self.sides.policy
        grants = policy.grants == "replicate"
        chosen = CaptureSettings(names, constraints=True, grants=grants, repair=True, keeper=policy.keeper)
        try:
            patiently(
                lambda: capture(direction.source, direction.root, chosen, self.sides.runtime), timedelta(seconds=60)
            )
        except Error as error:
            return {"unknown": f"{type(error).__name__}: {error}"}
        found = Unreplicated({each.name: position for each in databases}, direction.patterns, databases)
        found.captured(segments(direction.root.place))
        return found.as_json()

    def slots(self) -> Details:
        direction = self.direction()
        return reverse_slots(self.sides.policy, direction.target_root, direction.root, clock=self.sides.runtime.clock)

    def sum_up(self, change: RoleChange, report: RoleChanged) -> None:
        direction = self.direction()
        report.status, report.turn, report.primary, report.uri = (
            "done",
            change.id,
            side(direction),
            direction.target.uri,
        )
        report.epoch, report.databases = self.promoted, [pair.replica for pair in direction.matching]
        report.downtime_seconds = seconds_between(change, "fence", "promote")
        late = next(step.detail for step in change.steps if step.name == "late")
        if late.get("unknown"):
            report.warnings.append(f"changes to the old primary after the drain are unknown: {late['unknown']}")
        elif late.get("changes"):
            tables = ", ".join(each["table"] for each in late["tables"][:10])
            report.warnings.append(
                f"{late['changes']} changes were made to the old primary after the drain, in {tables}: they are kept "
                f"in {direction.root.place}, and the next run removes them from the tables"
            )


# ---- preflight -------------------------------------------------------------------------------------------------------
# Preflight: the check that a policy can be switched over now, for a switchover and its dry run. Reads only.


def check_switchover(
    sides: Sides, direction: Direction, memory: Memory, report: RoleChanged, options: SwitchoverSettings
) -> None:
    """Adds obstacles to the report's `problems`, and reports the replica's lag. With `anyway`, tables that differed in
    their last comparison are only warnings."""
    began = clocks.monotonic()
    found = lag(sides.policy, sides.source, sides.target, clock=sides.runtime.clock)
    report.status, report.primary, report.uri = "ready", side(direction), direction.target.uri
    report.epoch = highest_epoch(direction.matching) + 2
    report.lag_seconds, report.lag_events = found.seconds, found.events
    report.databases = [pair.replica for pair in direction.matching]
    report.warnings += found.warnings
    report.problems += [f"the {name} does not answer: {why}" for name, why in found.unreachable.items()]
    if not direction.matching:
        report.problems.append("no database matches the policy on either side")
    for pair in direction.matching:
        report.problems += _problems(pair, direction)
        differing = _differing(pair, memory)
        if differing:
            text = f"{pair.replica}: {', '.join(differing[:10])} differed when last compared: repair it first"
            (report.warnings if options.anyway else report.problems).append(text)
    report.warnings += found.blocks  # the coming run may clear the cause of the last failure
    took = round(clocks.monotonic() - began, 3)
    does = f"{count_text(found.events, 'event')}, {found.seconds:.0f} s behind"
    reported = StepReport("check", does, "failed" if report.problems else "done", took, {"problems": report.problems})
    report.steps.append(reported)
    options.reported(reported)


def _problems(pair: Pair, direction: Direction) -> list[str]:
    """Returns the reasons why one database cannot be switched over."""
    if pair.is_anothers(direction.root.id):
        return []
    if pair.source is None:
        return [f"{pair.name} is not at {direction.source.uri}: run sync, which removes its replica"]
    if pair.target is None or (pair.position is None and not pair.turned):
        return [f"{pair.replica} is not replicated yet: run sync first"]
    found = []
    if pair.source_mark.role is not Role.PRIMARY:
        found.append(f"{pair.name} is {pair.source_mark}, not the primary")
    if pair.target_mark.role is not Role.REPLICA:
        found.append(f"{pair.replica} is {pair.target_mark}, not the replica")
    elif pair.target_mark.epoch > pair.source_mark.epoch:
        found.append(f"{pair.replica} has epoch {pair.target_mark.epoch}, {pair.name} is {pair.source_mark}")
    if RESTORING in pair.target.parameters:
        found.append(f"{pair.replica} is being restored")
    return found


def _differing(pair: Pair, memory: Memory) -> list[str]:
    """Returns tables whose last comparison found differences."""
    places = (str(memory.place / "verified"), memory_of(str(memory.place.parent.parent)))
    return sorted(
        {
            name
            for place in places
            for name, about in read_memory(place, pair.name)[0].tables.items()
            if about.outcome == "different"
        }
    )


# ---- interrupted -----------------------------------------------------------------------------------------------------
# Loads that a lost primary interrupted: completed from their dumps, or reported table by table. Acts.
#
# An interrupted load leaves tables between two states, so its replica cannot simply become the primary. Its dump names
# all files that it requires; the bytes are at the lost side, in its `$cmroot`, or copied already.


@dataclass
class Interrupted:
    """The result for interrupted loads. `completed`: dumps whose loads are completed now. `between`: tables of the
    others, with their `state`: `new` as in the dump (partitions may be missing), `missing`, or `between` if the load
    was changing it or this is unknown. `reasons`: why they could not be completed."""

    completed: list[str]
    between: list[Details]
    reasons: list[str]


def complete_loads(direction: Direction, runtime: Runtime, limit: timedelta) -> Interrupted:
    """Completes every interrupted load for which this is possible. `direction`: from the lost side; limit: how long its
    locations may take to answer. May run twice."""
    loading = list(dict.fromkeys(pair.loading for pair in direction.pairs if pair.loading))
    if not loading:
        return Interrupted([], [], [])
    root, _ = lost_root(direction.root.place, limit)
    steps = Steps(replace(direction, root=root or direction.root), SYNC, runtime)
    completed, reasons = [], []
    for id in loading:
        try:
            completed.append(_complete(steps, id, limit))
        except Exception as error:  # any error of the lost side's storage
            reasons.append(f"{type(error).__name__}: {error}")
    pairs = [replace(pair, target=direction.target.database(pair.replica)) for pair in direction.pairs]
    between = [each for pair in pairs if pair.loading for each in _between(direction, pair, limit)]
    return Interrupted(completed, between, reasons)


def _complete(steps: Steps, id: str, limit: timedelta) -> str:
    place = within(limit, f"look for the dump {id}", lambda: steps.dumps.find(id))
    if place is None:
        raise Refused(f"the dump {id} is not in {steps.dumps.place}", hint="it was removed, or never finished")
    steps.load(place)
    return place


def _between(direction: Direction, pair: Pair, limit: timedelta) -> list[Details]:
    """Returns tables of a database whose load is incomplete."""
    tables = read_target(direction.target, [pair.replica])[pair.replica].tables
    dump = _reader(direction.policy, pair.loading, limit)
    named = None if dump is None else {table.name for table in dump.tables() if table.db == pair.name}
    found: list[Details] = []
    for name, table in sorted(tables.items()):
        position = table_position(table) or 0
        if position > (pair.position or 0):
            found.append({"table": f"{pair.replica}.{name}", "state": "new", "position": position})
        elif named is None or name in named:
            found.append({"table": f"{pair.replica}.{name}", "state": "between", "position": position})
    missing = sorted((named or set()) - set(tables))
    return [*found, *({"table": f"{pair.replica}.{name}", "state": "missing", "position": None} for name in missing)]


def _reader(policy: Policy, id: str, limit: timedelta) -> DumpReader | None:
    def read() -> DumpReader | None:
        place = PolicyDumps(policy.dumps, policy.name).find(id)
        return DumpReader(place) if place else None

    try:
        return within(limit, f"look for the dump {id}", read)
    except Exception:  # it is not available
        return None
