"""Switchover: a policy's replica becomes the primary, and the primary its replica, as planned and without loss. Acts.

    check      both sides answer, the replica is complete, and its lag                  changes nothing
    catch up   an ordinary run, so that little is left to do while writers are stopped  may fail without harm
    fence      the primary is `fenced` (epoch + 1): only this switchover replicates it  downtime begins
    drain      runs until there are no new changes
    verify     the replica's checkpoint is the newest position, and both have the same tables
    promote    the replica is `primary` (epoch + 2)                                     downtime ends
    demote     the old primary is `replica`, of the other direction
    late       changes written to the old primary after the drain are captured, retained and listed
    slots      the policy's slot is at the new primary

A role stops replication and not writers: the operator stops them before the fence. Until the replica is promoted, the
switchover can be taken back (`abort`); after that, a second switchover reverses it. Both directions work equally.
"""

from __future__ import annotations

import time as clocks

import msgspec

from cmroot.lease import Lease, patiently
from replicator.core.roles import Role
from replicator.errors import Refused
from replicator.policies.direction import Direction, Sides
from replicator.policies.memory import RoleChange
from replicator.policies.role_changes.role_change import (
    RoleChanged,
    StepReport,
    begin,
    carry_out,
    end,
    give,
    highest_epoch,
    side,
    steps_of,
    unfinished,
)
from replicator.policies.role_changes.switchover_steps import (
    STEPS,
    SwitchoverSettings,
    SwitchoverSteps,
    check_switchover,
)
from replicator.policies.run import Remembering, run_once
from replicator.policies.steps import SYNC

VERB = "switchover"


def switchover(sides: Sides, options: SwitchoverSettings | None = None, *, dry_run: bool = False) -> RoleChanged:
    """Switches a policy over, or completes an interrupted switchover. May be killed at any step and run again.

    dry_run: only the check. Raises LeaseHeld during a run or role change of the policy, Refused for problems found by
    the check (nothing is changed then), NotReached if the drain takes too long (run it again, or abort it), and all
    errors of capture and load."""
    began, options = clocks.monotonic(), options or SwitchoverSettings()
    kept = Remembering(sides.policy)
    with patiently(lambda: kept.memory.lease(VERB), options.patience) as lease:
        change = unfinished(kept.memory, VERB)
        if change is not None and change.detail.get("aborting"):
            raise Refused(
                f"policy {sides.policy.name}: this switchover is being aborted",
                hint=f"run `replicator switchover {sides.policy.name} --abort` again to complete the abort",
            )
        report = RoleChanged(sides.policy.name, VERB)
        if change is None:
            direction = sides.direction(kept.memory)
            if options.to and side(direction) != options.to:
                return _nothing(report, direction, options.to)
            check_switchover(sides, direction, kept.memory, report, options)
            if dry_run:
                return report
            if report.problems:
                raise _refused(report)
            _catch_up(sides, lease, kept, options, report)
            epoch = highest_epoch(sides.direction(kept.memory).matching)
            change = begin(kept.memory, VERB, STEPS, epoch=epoch, reverse=direction.reverse, clock=sides.runtime.clock)
        elif options.to and options.to != ("source" if change.reverse else "target"):
            raise Refused(
                f"policy {sides.policy.name}: a switchover to the other side was begun at {change.started} by "
                f"{change.by}",
                hint="complete it first (without --to), or abort it with --abort",
            )
        elif dry_run:
            return _planned(report, change, sides)
        work = SwitchoverSteps(sides, options, change, lease, kept)
        change = carry_out(
            kept.memory, change, work.actions, lease=lease, clock=sides.runtime.clock, reported=options.reported
        )
        report.steps += steps_of(change, work.actions)
        work.sum_up(change, report)
    report.seconds = round(clocks.monotonic() - began, 3)
    return report


def abort(sides: Sides, options: SwitchoverSettings | None = None) -> RoleChanged:
    """Aborts a switchover that has not promoted the replica: the fenced side becomes the primary again, at a higher
    epoch. May run twice. Raises Refused if there is none, or if the replica is promoted: then it must be completed."""
    began, options = clocks.monotonic(), options or SwitchoverSettings()
    kept = Remembering(sides.policy)
    with patiently(lambda: kept.memory.lease(VERB), options.patience):
        change = unfinished(kept.memory, VERB)
        if change is None:
            raise Refused(
                f"policy {sides.policy.name}: no switchover is in progress",
                hint=f"a second switchover reverses a completed one: `replicator switchover {sides.policy.name}`",
            )
        direction = sides.direction(kept.memory, reverse=change.reverse)
        promoted = [pair.replica for pair in direction.matching if pair.target_mark.role is Role.PRIMARY]
        if promoted:
            raise Refused(
                f"policy {sides.policy.name}: {', '.join(promoted)} is the primary already, it is too late to abort",
                hint=f"run `replicator switchover {sides.policy.name}` again to complete it; a second one reverses it",
            )
        kept.memory.write_role_change(msgspec.structs.replace(change, detail=change.detail | {"aborting": True}))
        report = RoleChanged(
            sides.policy.name,
            VERB,
            "aborted",
            change.id,
            "target" if direction.reverse else "source",
            direction.source.uri,
            change.epoch + 2,
        )
        for pair in direction.matching:
            if pair.source is not None and pair.source_mark.epoch > change.epoch:
                give(direction.source, pair.name, Role.PRIMARY, change.epoch + 2, instead_of=(Role.FENCED,))
                report.databases.append(pair.name)
        end(kept.memory, change, clock=sides.runtime.clock, aborting=True, aborted=True)
    report.seconds = round(clocks.monotonic() - began, 3)
    return report


def _nothing(report: RoleChanged, direction: Direction, to: str) -> RoleChanged:
    report.status, report.primary, report.uri = "nothing", to, direction.source.uri
    report.epoch = highest_epoch(direction.matching)
    report.databases = [pair.name for pair in direction.matching]
    return report


def _planned(report: RoleChanged, change: RoleChange, sides: Sides) -> RoleChanged:
    """Reports the remaining steps of an interrupted switchover, for a dry run."""
    report.status, report.turn = "ready", change.id
    report.steps = [StepReport(step.name, "", step.status, None, step.detail) for step in change.steps]
    report.warnings.append(f"a switchover was begun at {change.started} by {change.by}: this command completes it")
    report.primary = "source" if change.reverse else "target"
    report.uri = (sides.source if change.reverse else sides.target).uri
    return report


# ---- before anything is changed -----------------------------------------------------------------------------------


def _refused(report: RoleChanged) -> Refused:
    return Refused(
        f"policy {report.policy} cannot be switched over: {'; '.join(report.problems[:5])}",
        hint=f"nothing was changed; `replicator check {report.policy}` and `replicator lag {report.policy}` show more",
        details={"problems": report.problems},
    )


def _catch_up(sides: Sides, lease: Lease, kept: Remembering, options: SwitchoverSettings, report: RoleChanged) -> None:
    """Runs the policy once, before the writers have to stop."""
    began = clocks.monotonic()
    run = run_once(sides, lease, kept, SYNC)
    unseen = [each.name for each in run.not_replicated if each.unknown]
    if unseen and not options.anyway:
        raise Refused(
            f"policy {sides.policy.name}: directories are missing at the primary: {', '.join(unseen[:5])}",
            hint="nothing was changed; create them or drop their tables, or use --force if they may be missing",
            details={"missing_directories": run.missing_directories},
        )
    report.warnings += run.warnings
    detail = {"files_copied": run.files_copied, "bytes_copied": run.bytes_copied, "to_event": run.to_event}
    reported = StepReport("catch up", f"to event {run.to_event}", "done", round(clocks.monotonic() - began, 3), detail)
    report.steps.append(reported)
    options.reported(reported)
