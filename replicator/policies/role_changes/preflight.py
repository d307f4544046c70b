"""Preflight: whether a policy can be switched over now. The check of a switchover and of its dry run. Reads only."""

from __future__ import annotations

import time as clocks

from replicator.compare.sampling import memory_of
from replicator.compare.verified import read_memory
from replicator.core.roles import Role
from replicator.core.text.quantity import count_text
from replicator.policies.direction import Direction, Pair, Sides
from replicator.policies.lag import lag
from replicator.policies.memory import Memory
from replicator.policies.role_changes.role_change import RoleChanged, StepReport, highest_epoch, side
from replicator.policies.role_changes.switchover_steps import SwitchoverSettings
from replicator.replay.places.replica import RESTORING


def check_switchover(
    sides: Sides, direction: Direction, memory: Memory, report: RoleChanged, options: SwitchoverSettings
) -> None:
    """What is in the way goes to the report's `problems`; how far the replica is behind is reported. With `anyway`,
    tables that differed when they were last compared are only warned of."""
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
    report.warnings += found.blocks  # what made the last run fail, the run that comes now may have behind it
    took = round(clocks.monotonic() - began, 3)
    does = f"{count_text(found.events, 'event')}, {found.seconds:.0f} s behind"
    reported = StepReport("check", does, "failed" if report.problems else "done", took, {"problems": report.problems})
    report.steps.append(reported)
    options.reported(reported)


def _problems(pair: Pair, direction: Direction) -> list[str]:
    """Why one database cannot be turned."""
    if pair.is_anothers(direction.root.id):
        return []
    if pair.source is None:
        return [f"{pair.name} is not at {direction.source.uri}: run sync, which takes its replica away"]
    if pair.target is None or (pair.position is None and not pair.turned):
        return [f"{pair.replica} is not replicated yet: run sync first"]
    found = []
    if pair.source_mark.role is not Role.PRIMARY:
        found.append(f"{pair.name} is {pair.source_mark}, not the primary")
    if pair.target_mark.role is not Role.REPLICA:
        found.append(f"{pair.replica} is {pair.target_mark}, not the replica")
    elif pair.target_mark.epoch > pair.source_mark.epoch:
        found.append(f"{pair.replica} knows epoch {pair.target_mark.epoch}, {pair.name} is {pair.source_mark}")
    if RESTORING in pair.target.parameters:
        found.append(f"{pair.replica} is being restored")
    return found


def _differing(pair: Pair, memory: Memory) -> list[str]:
    """Tables whose last comparison found differences."""
    places = (str(memory.place / "verified"), memory_of(str(memory.place.parent.parent)))
    return sorted(
        {
            name
            for place in places
            for name, about in read_memory(place, pair.name)[0].tables.items()
            if about.outcome == "different"
        }
    )
