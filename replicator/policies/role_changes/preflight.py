"""Preflight: whether a policy can be switched over now. The check of a switchover and of its dry run. Reads only."""

from __future__ import annotations

import time as clocks
from dataclasses import dataclass, replace
from datetime import timedelta

from replicator.captures.dumps.layout import DumpReader
from replicator.compare.sampling import memory_of, read_memory
from replicator.core.policy import Policy
from replicator.core.roles import Role
from replicator.core.runtime import Runtime
from replicator.core.text.quantity import count_text
from replicator.errors import Refused
from replicator.policies.direction import Direction, Pair, Sides
from replicator.policies.lag import lag
from replicator.policies.memory import Memory
from replicator.policies.role_changes.loss import lost_root, within
from replicator.policies.role_changes.role_change import Details, RoleChanged, StepReport, highest_epoch, side
from replicator.policies.role_changes.switchover_steps import SwitchoverSettings
from replicator.policies.steps import SYNC, Steps
from replicator.policies.sync_plan import PolicyDumps
from replicator.replay.places.replica import RESTORING
from replicator.replay.plan.target import read_target, table_position


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


# ---- interrupted -----------------------------------------------------------------------------------------------------
# Loads that a lost primary interrupted: completed from their dumps, or reported table by table. Acts.
#
# A load that has begun leaves tables between two states, so a replica with one cannot simply become the primary. Its
# dump names all that it needs; the bytes are at the lost side, in its `$cmroot`, or copied already.


@dataclass
class Interrupted:
    """`completed`: dumps whose loads have ended now. `between`: tables of those that could not be, with their `state`:
    `new` as the dump has it (its partitions may lack some), `missing`, or `between` where the load was at work or
    nobody knows. `reasons`: why they could not."""

    completed: list[str]
    between: list[Details]
    reasons: list[str]


def complete_loads(direction: Direction, runtime: Runtime, limit: timedelta) -> Interrupted:
    """Ends every interrupted load that can be ended. `direction`: from the lost side; limit: how long its places may
    take to answer. Safe to run twice."""
    loading = list(dict.fromkeys(pair.loading for pair in direction.pairs if pair.loading))
    if not loading:
        return Interrupted([], [], [])
    root, _ = lost_root(direction.root.place, limit)
    steps = Steps(replace(direction, root=root or direction.root), SYNC, runtime)
    completed, reasons = [], []
    for id in loading:
        try:
            completed.append(_complete(steps, id, limit))
        except Exception as error:  # whatever the lost side's storage raises
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
    """Tables of a database whose load did not end."""
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
    except Exception:  # it is not to be had
        return None
