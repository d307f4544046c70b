"""Loads that a lost primary interrupted: completed from their dumps, or reported table by table. Acts.

A load that has begun leaves tables between two states, so a replica with one cannot simply become the primary. Its dump
names all that it needs; the bytes are at the lost side, in its `$cmroot`, or copied already.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from replicator.captures.dumps.reader import DumpReader
from replicator.core.policy import Policy
from replicator.core.runtime import Runtime
from replicator.errors import Refused
from replicator.policies.direction import Direction, Pair
from replicator.policies.dumps import PolicyDumps
from replicator.policies.role_changes.loss import lost_root, within
from replicator.policies.role_changes.role_change import Details
from replicator.policies.steps import SYNC, Steps
from replicator.replay.plan.target import read_target, table_position


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
