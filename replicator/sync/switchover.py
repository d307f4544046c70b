"""Switchover: a policy's replica becomes the primary, and the primary its replica, as planned and without loss. Acts.

    check      both sides answer, the replica is whole, and how far it is behind      changes nothing
    catch up   an ordinary run, so that little is left to do while nobody may write   may fail without harm
    fence      the primary is `fenced` (epoch + 1): nothing but this turn replicates it      downtime begins
    drain      runs until nothing is new
    verify     the replica's checkpoint is the newest position, and both have the same tables
    promote    the replica is `primary` (epoch + 2)                                          downtime ends
    demote     the old primary is `replica`, of the other direction
    late       what was written to the old primary after the drain is captured, kept and listed
    slots      the policy's slot is at the new primary

A role stops replication and not writers: whoever switches over stops them before the fence. Until the replica is
promoted, the turn can be taken back (`abort`); after that, a second switchover turns back. Both directions are alike.
"""

from __future__ import annotations

import time as clocks
from dataclasses import dataclass, replace
from datetime import timedelta

import msgspec

from cmroot.lease import Lease
from cmroot.log import segments
from cmroot.place import join
from cmroot.waiting import patiently
from replicator.dump.points import resolve_until
from replicator.errors import Error, NotReached, Refused
from replicator.events.capture import capture
from replicator.load.replica import RESTORING
from replicator.roles import Role
from replicator.sync.lag import lag
from replicator.sync.memory import Memory, Turn
from replicator.sync.roles import read_role
from replicator.sync.run import Remembering, SyncRun, run_once
from replicator.sync.sampling import memory_of
from replicator.sync.steps import SyncOptions, concerned
from replicator.sync.turn import (
    Action,
    Details,
    Sides,
    StepTold,
    Turned,
    begin,
    carry_out,
    end,
    forget_checkpoint,
    give,
    highest_epoch,
    seconds_between,
    side,
    steps_of,
    turn_slots,
    unfinished,
)
from replicator.sync.unreplicated import Unreplicated
from replicator.sync.verified import read_memory
from replicator.sync.way import Pair, Way

VERB = "switchover"
STEPS = ("fence", "drain", "verify", "promote", "demote", "late", "slots")
SEEN = 10_000  # events that are looked at for one that concerns the policy


@dataclass(frozen=True)
class SwitchoverOptions:
    """How a switchover is made. to: the side that shall be the primary, source or target as the policy names them
    (empty: the one that is not), so that a second call does not turn back. anyway: also where the check finds tables
    that differ, or a run misses directories. drain: how long the last changes may take. patience: how long to wait for
    a run that is at work."""

    to: str = ""
    anyway: bool = False
    drain: timedelta = timedelta(minutes=10)
    patience: timedelta = timedelta(seconds=10)
    jobs: int = 2


def switchover(sides: Sides, options: SwitchoverOptions | None = None, *, dry_run: bool = False) -> Turned:
    """Turns a policy round, or completes what an earlier call began. May be killed anywhere and run again.

    dry_run: the same check, and no more. Raises LeaseHeld while the policy is at work or being turned, Refused for what
    the check finds (nothing is changed then), NotReached when the drain takes too long (the turn is not over: run it
    again, or abort it), and what capture and load raise."""
    began, options = clocks.monotonic(), options or SwitchoverOptions()
    kept = Remembering(sides.policy)
    with patiently(lambda: kept.memory.lease(VERB), options.patience) as lease:
        turn = unfinished(kept.memory, VERB)
        if turn is not None and turn.detail.get("aborting"):
            raise Refused(
                f"policy {sides.policy.name}: this switchover is being taken back",
                hint=f"run `replicator switchover {sides.policy.name} --abort` again, it completes",
            )
        report = Turned(sides.policy.name, VERB)
        if turn is None:
            way = sides.way(kept.memory)
            if options.to and side(way) != options.to:
                return _nothing(report, way, options.to)
            _check(sides, way, kept.memory, options, report)
            if dry_run:
                return report
            if report.problems:
                raise _refused(report)
            _catch_up(sides, lease, kept, options, report)
            epoch = highest_epoch(sides.way(kept.memory).matching)
            turn = begin(kept.memory, VERB, STEPS, epoch=epoch, reverse=way.reverse, clock=sides.clock)
        elif dry_run:
            return _planned(report, turn, sides)
        work = _Switchover(sides, options, turn, lease, kept)
        turn = carry_out(kept.memory, turn, work.actions, lease=lease, clock=sides.clock, told=sides.told)
        report.steps += steps_of(turn, work.actions)
        work.sum_up(turn, report)
    report.seconds = round(clocks.monotonic() - began, 3)
    return report


def abort(sides: Sides, options: SwitchoverOptions | None = None) -> Turned:
    """Takes a switchover back that has not promoted the replica: the fenced side is the primary again, at a higher
    epoch. Safe to run twice. Raises Refused when there is none, or when it is too late: then it is to be completed."""
    began, options = clocks.monotonic(), options or SwitchoverOptions()
    kept = Remembering(sides.policy)
    with patiently(lambda: kept.memory.lease(VERB), options.patience):
        turn = unfinished(kept.memory, VERB)
        if turn is None:
            raise Refused(
                f"policy {sides.policy.name}: no switchover is under way",
                hint=f"a second switchover turns back one that has ended: `replicator switchover {sides.policy.name}`",
            )
        way = sides.way(kept.memory, reverse=turn.reverse)
        promoted = [pair.replica for pair in way.matching if pair.there_mark.role is Role.PRIMARY]
        if promoted:
            raise Refused(
                f"policy {sides.policy.name}: {', '.join(promoted)} is the primary already, it is too late to abort",
                hint=f"run `replicator switchover {sides.policy.name}` again: it completes; a second one turns back",
            )
        kept.memory.write_turn(msgspec.structs.replace(turn, detail=turn.detail | {"aborting": True}))
        report = Turned(
            sides.policy.name, VERB, "aborted", turn.id, "target" if way.reverse else "source", way.source.uri,
            turn.epoch + 2,
        )  # fmt: skip
        for pair in way.matching:
            if pair.here is not None and pair.here_mark.epoch > turn.epoch:
                give(way.source, pair.name, Role.PRIMARY, turn.epoch + 2, instead_of=(Role.FENCED,))
                report.databases.append(pair.name)
        end(kept.memory, turn, clock=sides.clock, aborting=True, aborted=True)
    report.seconds = round(clocks.monotonic() - began, 3)
    return report


def _nothing(report: Turned, way: Way, to: str) -> Turned:
    report.status, report.primary, report.uri = "nothing", to, way.source.uri
    report.epoch = highest_epoch(way.matching)
    report.databases = [pair.name for pair in way.matching]
    return report


def _planned(report: Turned, turn: Turn, sides: Sides) -> Turned:
    """A dry run while a turn is under way: what is left to be done."""
    report.status, report.turn = "ready", turn.id
    report.steps = [StepTold(step.name, "", step.status, None, step.detail) for step in turn.steps]
    report.warnings.append(f"a switchover was begun at {turn.started} by {turn.by}: this completes it")
    report.primary = "source" if turn.reverse else "target"
    report.uri = (sides.source if turn.reverse else sides.target).uri
    return report


# ---- before anything is changed -----------------------------------------------------------------------------------


def _check(sides: Sides, way: Way, memory: Memory, options: SwitchoverOptions, report: Turned) -> None:
    """What is in the way goes to `problems`; how far the replica is behind is told."""
    began = clocks.monotonic()
    found = lag(sides.policy, sides.source, sides.target, clock=sides.clock)
    report.status, report.primary, report.uri = "ready", side(way), way.target.uri
    report.epoch = highest_epoch(way.matching) + 2
    report.lag_seconds, report.lag_events = found.seconds, found.events
    report.databases = [pair.replica for pair in way.matching]
    report.warnings += found.warnings
    if not way.matching:
        report.problems.append("no database matches the policy on either side")
    for pair in way.matching:
        report.problems += _problems(pair, way)
        differing = _differing(pair, memory)
        if differing:
            text = f"{pair.replica}: {', '.join(differing[:10])} differed when last compared: repair it first"
            (report.warnings if options.anyway else report.problems).append(text)
    report.warnings += found.blocks  # what made the last run fail, the run that comes now may have behind it
    took = round(clocks.monotonic() - began, 3)
    does = f"{found.events:,} events, {found.seconds:.0f} s behind"
    told = StepTold("check", does, "failed" if report.problems else "done", took, {"problems": report.problems})
    report.steps.append(told)
    sides.told(told)


def _problems(pair: Pair, way: Way) -> list[str]:
    """Why one database cannot be turned."""
    if pair.here is None and pair.made_from != way.root.id:
        return []  # it is only there, nobody's replica, and stays so
    if pair.here is None:
        return [f"{pair.name} is not at {way.source.uri}: run sync, which takes its replica away"]
    if pair.there is None or (pair.position is None and not pair.turned):
        return [f"{pair.replica} is not replicated yet: run sync first"]
    found = []
    if pair.here_mark.role is not Role.PRIMARY:
        found.append(f"{pair.name} is {pair.here_mark}, not the primary")
    if pair.there_mark.role is not Role.REPLICA:
        found.append(f"{pair.replica} is {pair.there_mark}, not the replica")
    elif pair.there_mark.epoch > pair.here_mark.epoch:
        found.append(f"{pair.replica} knows epoch {pair.there_mark.epoch}, {pair.name} is {pair.here_mark}")
    if RESTORING in pair.there.parameters:
        found.append(f"{pair.replica} is being restored")
    return found


def _differing(pair: Pair, memory: Memory) -> list[str]:
    """Tables whose last comparison found differences."""
    places = (join(memory.place, "verified"), memory_of(memory.place.rpartition("/policies/")[0]))
    return sorted(
        {
            name
            for place in places
            for name, about in read_memory(place, pair.name)[0].tables.items()
            if about.outcome == "different"
        }
    )


def _refused(report: Turned) -> Refused:
    return Refused(
        f"policy {report.policy} cannot be switched over: {'; '.join(report.problems[:5])}",
        hint=f"nothing was changed; `replicator check {report.policy}` and `replicator lag {report.policy}` tell more",
        details={"problems": report.problems},
    )


def _catch_up(sides: Sides, lease: Lease, kept: Remembering, options: SwitchoverOptions, report: Turned) -> None:
    """An ordinary run, before anybody has to stop writing."""
    began = clocks.monotonic()
    run = run_once(
        sides.policy, sides.source, sides.target, lease=lease, engines=sides.engines, progress=sides.progress,
        options=SyncOptions(jobs=options.jobs), others=sides.others, remembering=kept, clock=sides.clock,
    )  # fmt: skip
    if run.missing_directories and not options.anyway:
        raise Refused(
            f"policy {sides.policy.name}: directories are missing at the primary: "
            f"{', '.join(run.missing_directories[:5])}",
            hint="nothing was changed; make them or drop their tables, or --anyway if they may be missing",
            details={"missing_directories": run.missing_directories},
        )
    report.warnings += run.warnings
    detail = {"files_copied": run.files_copied, "bytes_copied": run.bytes_copied, "to_event": run.to_event}
    told = StepTold("catch up", f"to event {run.to_event}", "done", round(clocks.monotonic() - began, 3), detail)
    report.steps.append(told)
    sides.told(told)


# ---- the turn -----------------------------------------------------------------------------------------------------


class _Switchover:
    """One switchover at work. `turn.reverse`: the direction before it, which all names here follow."""

    def __init__(
        self, sides: Sides, options: SwitchoverOptions, turn: Turn, lease: Lease, kept: Remembering
    ) -> None:  # fmt: skip
        self.sides, self.options, self.turn, self.lease, self.kept = sides, options, turn, lease, kept
        self.fenced, self.promoted = turn.epoch + 1, turn.epoch + 2

    @property
    def actions(self) -> list[Action]:
        return [
            Action("fence", f"the primary is fenced at epoch {self.fenced}", self.fence),
            Action("drain", "until nothing is new", self.drain),
            Action("verify", "the replica is at the newest position", self.verify),
            Action("promote", f"the replica is the primary at epoch {self.promoted}", self.promote),
            Action("demote", "the old primary is the replica", self.demote),
            Action("late", "what came after the drain", self.late),
            Action("slots", "the policy's slot is at the new primary", self.slots),
        ]

    def way(self) -> Way:
        """What both sides have now, of databases that the side to be drained has."""
        way = self.sides.way(self.kept.memory, reverse=self.turn.reverse)
        return replace(way, pairs=tuple(pair for pair in way.matching if pair.here is not None))

    def fence(self) -> Details:
        way = self.way()
        names = [pair.name for pair in way.matching]
        for name in names:
            give(way.source, name, Role.FENCED, self.fenced, instead_of=(Role.PRIMARY, Role.NONE))
        return {"epoch": self.fenced, "databases": names}

    def drain(self) -> Details:
        """A run that loads nothing ends it. Databases that were made meanwhile are fenced, too."""
        until = clocks.monotonic() + self.options.drain.total_seconds()
        rounds = files = size = 0
        while True:
            self.fence()
            run = self._run()
            rounds, files, size = rounds + 1, files + run.files_copied, size + run.bytes_copied
            if not run.moved and self._quiet(run):
                return {"rounds": rounds, "files_copied": files, "bytes_copied": size, "to_event": run.to_event}
            if clocks.monotonic() > until:
                policy = self.sides.policy.name
                raise NotReached(
                    f"policy {policy}: somebody still writes to the fenced side after {rounds} rounds",
                    hint=f"stop the writers, then run `replicator switchover {policy}` again; or take it back with "
                    "--abort",
                )

    def _run(self) -> SyncRun:
        return run_once(
            self.sides.policy, self.sides.source, self.sides.target, lease=self.lease, engines=self.sides.engines,
            progress=self.sides.progress, options=SyncOptions(draining=True, jobs=self.options.jobs),
            others=self.sides.others, remembering=self.kept, clock=self.sides.clock,
        )  # fmt: skip

    def _quiet(self, run: SyncRun) -> bool:
        """Whether no event since concerns the policy. Other databases of the metastore go on."""
        way = self.way()
        names = {pair.name for pair in way.matching}
        return not any((event.db or "").lower() in names for event in way.source.next_events(run.to_event, SEEN))

    def verify(self) -> Details:
        """Raises Refused where the replica is not what was drained."""
        way = self.way()
        log = segments(way.root.place)
        newest = resolve_until(log, None)
        wrong = []
        for pair in way.matching:
            behind = pair.position is None or (
                pair.position < newest.position and concerned(log, pair.position, {pair.name})
            )
            if behind or pair.loading:
                where = f"position {pair.position}" + (f", loading {pair.loading}" if pair.loading else "")
                wrong.append(f"{pair.replica} is at {where}, the log at {newest.position}")
                continue
            here, there = set(way.source.table_names(pair.name)), set(way.target.table_names(pair.replica))
            missing = sorted(name for name in here - there if way.patterns.match(name))
            if missing:
                wrong.append(f"{pair.replica} lacks {', '.join(missing[:10])}")
        if wrong:
            raise Refused(
                f"policy {self.sides.policy.name}: the replica is not the primary's equal: {'; '.join(wrong[:5])}",
                hint="nothing was flipped: take it back with --abort, then look with `replicator verify`",
                details={"differences": wrong},
            )
        return {"position": newest.position, "event": newest.event}

    def _verified(self) -> int:
        """The position up to which the replica was proved to have everything."""
        turn = self.kept.memory.read_turn() or self.turn
        return next(int(step.detail["position"]) for step in turn.steps if step.name == "verify")

    def promote(self) -> Details:
        way = self.way()
        self._refuse_unfenced(way)
        for pair in way.matching:
            give(way.target, pair.replica, Role.PRIMARY, self.promoted, instead_of=(Role.REPLICA,))
            forget_checkpoint(way.target, pair.replica)
        return {"epoch": self.promoted, "databases": [pair.replica for pair in way.matching]}

    def _refuse_unfenced(self, way: Way) -> None:
        """Two primaries must never be: asked again right before the flip."""
        for pair in way.matching:
            mark = read_role(way.source, pair.name)
            if mark.role is not Role.FENCED or mark.epoch != self.fenced:
                raise Refused(
                    f"{pair.name} is {mark}, not fenced at epoch {self.fenced}: somebody changed its role meanwhile",
                    hint=f"nothing was flipped: `replicator switchover {self.sides.policy.name} --abort`",
                )

    def demote(self) -> Details:
        way = self.way()
        for pair in way.matching:
            give(way.source, pair.name, Role.REPLICA, self.promoted, instead_of=(Role.FENCED,))
            forget_checkpoint(way.source, pair.name)
        return {"epoch": self.promoted, "databases": [pair.name for pair in way.matching]}

    def late(self) -> Details:
        """Writers that were not stopped: what they wrote after the drain is in the old primary's `$cmroot` and listed
        here; the first run of the other direction takes it away. Where it cannot be told, that is said."""
        way = self.way()
        position = self._verified()
        databases = [pair.here for pair in way.matching if pair.here is not None]
        try:
            patiently(
                lambda: capture(
                    way.source, way.root, databases=[each.name for each in databases], repair=True,
                    keeper=self.sides.policy.keeper, engine=self.sides.engines, progress=self.sides.progress,
                    clock=self.sides.clock,
                ),
                timedelta(seconds=60),
            )  # fmt: skip
        except Error as error:
            return {"unknown": f"{type(error).__name__}: {error}"}
        found = Unreplicated({each.name: position for each in databases}, way.patterns, databases)
        found.captured(segments(way.root.place))
        return found.as_json()

    def slots(self) -> Details:
        way = self.way()
        return turn_slots(self.sides.policy, way.target_root, way.root, clock=self.sides.clock)

    def sum_up(self, turn: Turn, report: Turned) -> None:
        way = self.way()
        report.status, report.turn, report.primary, report.uri = "done", turn.id, side(way), way.target.uri
        report.epoch, report.databases = self.promoted, [pair.replica for pair in way.matching]
        report.downtime_seconds = seconds_between(turn, "fence", "promote")
        late = next(step.detail for step in turn.steps if step.name == "late")
        if late.get("unknown"):
            report.warnings.append(
                f"what was written to the old primary after the drain is not known: {late['unknown']}"
            )
        elif late.get("changes"):
            tables = ", ".join(each["table"] for each in late["tables"][:10])
            report.warnings.append(
                f"{late['changes']} changes were made to the old primary after the drain, in {tables}: they are kept "
                f"in {way.root.place}, and the next run takes them away there"
            )
