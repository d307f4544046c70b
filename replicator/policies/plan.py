"""Plan, then apply: the next run of a policy and its cost as a value, which is then either carried out or refused.

A plan is a dump (docs/decisions/0006): `make` captures and writes the dumps that the run would, and compares them with
the target. `apply` compares again and, if nothing has changed, loads these dumps and no others.
"""

from __future__ import annotations

import json
import time as clocks
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import msgspec
import xxhash

from replicator.captures.dumps.layout import DumpReader
from replicator.core.config import Brake
from replicator.core.not_replicated import merged
from replicator.core.policy import Policy
from replicator.errors import BootstrapNeeded, FormatError, Refused
from replicator.metastore.transactions import STRICT, is_strict
from replicator.policies.direction import Sides
from replicator.policies.memory import iso
from replicator.policies.replicas import OutOfScope
from replicator.policies.run import (
    Remembering,
    SyncRun,
    clean_up,
    find_out_of_scope,
    leave,
    look,
    recorded,
    refuse_role_change,
    sum_up,
)
from replicator.policies.steps import SYNC, Steps, SyncSettings
from replicator.policies.sync_plan import Copies, Cost, PlannedLoad, SyncPlan
from replicator.replay.apply.planning import CHANGES, Price, describe, planned, price
from replicator.replay.apply.weighing import DROPPED, excess

NAMED = 5_000  # directories of a plan that get copies
_NO_CHANGES = frozenset({"warnings", "files", "bytes", "not_replicated"})

_METASTORES = ("source_metastore", "target_metastore")  # connection settings


def make(sides: Sides, options: SyncSettings = SYNC) -> SyncPlan:
    """Captures, writes the dumps, and compares. The target is not changed; the source's `$cmroot` receives what a run
    would write there. Raises the errors that a run raises before it loads."""
    policy, kept = sides.policy, Remembering(sides.policy)
    with kept.memory.lease("plan"):
        refuse_role_change(kept.memory, options)
        remembered = kept.memory.read_scope()
        direction = look(sides, remembered)
        steps = Steps(direction, options, sides.runtime)
        epochs = steps.roles()
        steps.forget_checkpoints()
        steps.warnings += [
            f"the load of dump {id} began, but has not ended: this plan contains its changes and more"
            for id in sorted({pair.loading for pair in direction.matching if pair.loading})
        ]
        if is_strict(direction.target):
            steps.warnings.append(f"{STRICT} of the target: managed tables that are not transactional become external")
        captured = steps.capture()
        work = steps.decide(remembered)
        loads = []
        if work.batches:
            steps.protect(work)
        for batch in work.batches:
            chosen = {name: epoch for name, epoch in epochs.items() if name in batch.databases}
            slot = policy.slot if batch is work.batches[-1] else ""
            loads.append(_planned(steps, steps.dump(batch, chosen, slot=slot).dump, batch.why))
        out_of_scope = find_out_of_scope(steps, work)
        cost = Cost()
        for each in loads:
            cost = cost.plus(each.cost)
        steps.direction = look(sides, remembered)  # with the roles that this run set
        return SyncPlan(
            id=uuid.uuid4().hex[:12],
            policy=policy.name,
            policy_digest=_digest(_keys(policy)),
            made=iso(sides.runtime.clock()),
            reverse=direction.reverse,
            adopt=options.adopt,
            drop_left=options.drop_left,
            roles=_roles(steps),
            loads=loads,
            left=[name for each in out_of_scope for name in each.names],
            drops=sorted({*_drops(out_of_scope), *(name for each in loads for name in _dropped(each))}),
            position=min([captured.position, *(each.to_position for each in loads)]),
            to_event=captured.through_event,
            cost=cost,
            warnings=list(dict.fromkeys(steps.warnings)),
            not_replicated=merged(captured.not_replicated, steps.left_out(captured)),
        )


def apply(plan: SyncPlan, sides: Sides, brake: Brake | None = None) -> SyncRun:
    """Carries out a plan, and nothing else. If it is killed, applying the plan again completes it.

    Raises Refused, before anything is changed, if the policy, the roles, the target's checkpoints or the target's
    contents differ from the plan; the details list the differences."""
    began, clock = clocks.monotonic(), sides.runtime.clock
    kept, options = Remembering(sides.policy), SyncSettings(adopt=plan.adopt, drop_left=plan.drop_left, brake=brake)
    report = SyncRun(sides.policy.name, run=uuid.uuid4().hex[:12])
    with kept.memory.lease("apply") as lease, recorded(report, kept, lease, clock):
        refuse_role_change(kept.memory, options)
        remembered = kept.memory.read_scope()
        direction = look(sides, remembered)
        report.reverse = direction.reverse
        steps = Steps(direction, options, sides.runtime)
        work = steps.decide(remembered)
        out_of_scope = find_out_of_scope(steps, work)
        with report.timed("compare"):
            waiting = _compare(plan, steps, out_of_scope)
        lease.check()
        for each in waiting:
            report.kind = "bootstrap" if each.kind == "bootstrap" or report.kind == "bootstrap" else "incremental"
            if each.kind == "bootstrap":
                report.bootstrapped |= dict.fromkeys(each.databases, each.why)
            with report.timed("load"):
                report.add(steps.load(each.dump))
        report.to_event, report.position = plan.to_event, plan.position
        report.not_replicated = merged(plan.not_replicated, report.not_replicated)
        steps.confirm(plan.position)
        leave(steps, out_of_scope, report)
        clean_up(steps, kept, work, remembered, report)
        sum_up(steps, report, began)
    return report


# ---- one load -----------------------------------------------------------------------------------------------------


def _planned(steps: Steps, place: str, why: str) -> PlannedLoad:
    reader = DumpReader(place)
    metadata, direction = reader.metadata, steps.direction
    replay = planned(reader, direction.target, steps.load_options(reader), steps.runtime)
    plan, described, bill = replay.plan, describe(replay.plan, reader), price(replay)
    if steps.options.brake and (refusal := excess(plan, bill.weight, steps.options.brake)):
        steps.warnings.append(f"the load would be refused: {refusal.message}; {refusal.hint}")
    checkpoints = {pair.replica: pair.position for pair in direction.pairs if pair.name in metadata.scope.databases}
    changes = {key: value for key, value in described.items() if value and key not in _NO_CHANGES}
    lists = (len(described[name]) for name in CHANGES)
    begin = metadata.begin.event if metadata.begin else None
    cost = Cost(
        events=metadata.end.event - begin if begin is not None else 0,
        records=plan.squashed.records,
        squashed=plan.squashed.squashed,
        objects=sum(lists) + int(described["partitions_touched"]),
        **{name: getattr(bill, name) for name in Cost.__struct_fields__ if hasattr(bill, name)},
    )
    return PlannedLoad(
        dump=place,
        id=metadata.id,
        kind=metadata.kind,
        databases=list(metadata.scope.databases),
        why=why,
        from_event=begin,
        to_event=metadata.end.event,
        to_position=metadata.end.position,
        checkpoints=checkpoints,
        cost=cost,
        steps=changes,
        gone=bill.weight.gone,
        copies=_copies(bill),
        digest=_digest([checkpoints, described, _settled(bill)]),
    )


def _copies(bill: Price) -> list[Copies]:
    """Returns the directories that get copies, those with the most bytes if there are many, by name."""
    found = [Copies(directory=name, files=files, bytes=size) for name, (files, size) in bill.copies.items()]
    return sorted(sorted(found, key=lambda each: -each.bytes)[:NAMED], key=lambda each: each.directory)


def _settled(bill: Price) -> dict[str, Any]:
    """Returns the price without the sources of the bytes, which may change; the bytes are the same."""
    found = asdict(replace(bill, files_from_source=0, files_from_cmroot=0, files_from_target=0, copies={}))
    return {name: value for name, value in found.items() if name != "copies"}


def _compare(plan: SyncPlan, steps: Steps, out_of_scope: Sequence[OutOfScope]) -> list[PlannedLoad]:
    """Returns the loads that remain. Raises Refused if source or target have changed."""
    moved = []
    if plan.policy_digest != _digest(_keys(steps.policy)):
        moved.append("the policy was edited")
    if plan.reverse != steps.direction.reverse:
        moved.append("source and target have exchanged their roles")
    roles = _roles(steps)
    moved += [
        f"{name}: was {plan.roles.get(name, 'absent')}, is {roles.get(name, 'absent')}"
        for name in sorted(plan.roles.keys() | roles.keys())
        if plan.roles.get(name) != roles.get(name) and not _made_by(plan, steps, name)
    ]
    waiting = []
    for each in plan.loads if not moved else ():
        pairs = [pair for pair in steps.direction.pairs if pair.name in each.databases]
        if all(pair.position == each.to_position and not pair.loading for pair in pairs):
            continue  # loaded by an apply that was killed later
        waiting.append(each)
        if any(pair.loading == each.id for pair in pairs):
            continue  # an apply that was killed during this load had compared already
        moved += _moved(each, steps)
    if plan.drop_left and not set(_drops(out_of_scope)) <= set(plan.drops):
        moved.append(f"out-of-scope replicas are now {', '.join(_drops(out_of_scope)) or 'nothing'}")
    if moved:
        raise Refused(
            f"source or target have changed since the plan was created at {plan.made}: {'; '.join(moved[:5])}",
            hint=f"create a new plan: replicator plan {plan.policy} --out FILE",
            details={"moved": moved},
        )
    return waiting


def _moved(load: PlannedLoad, steps: Steps) -> list[str]:
    now = {pair.replica: pair.position for pair in steps.direction.pairs if pair.name in load.databases}
    positions = [
        f"{db} is at position {now.get(db)}, was at {position}"
        for db, position in load.checkpoints.items()
        if now.get(db) != position
    ]
    if positions:
        return positions
    try:
        again = _planned(steps, load.dump, load.why)
    except FormatError as error:
        return [f"its dump can no longer be read: {error.message}"]
    except (Refused, BootstrapNeeded) as error:
        return [error.message]
    if again.id != load.id:
        return [f"{load.dump} is another dump"]
    if again.digest == load.digest:
        return []
    differing = [
        f"{key}: {again.steps.get(key, 'nothing')} instead of {load.steps.get(key, 'nothing')}"
        for key in sorted(load.steps.keys() | again.steps.keys())
        if load.steps.get(key) != again.steps.get(key)
    ]
    return differing or [f"the target's files in {', '.join(load.databases)} have changed"]


def _made_by(plan: SyncPlan, steps: Steps, name: str) -> bool:
    """Returns True for a replica that this plan's own loads have created or begun to create; its role is expected."""
    side, _, db = name.partition(" ")
    ours = {load.id: load for load in plan.loads}
    return side == "target" and any(
        pair.replica == db and (pair.loading in ours or _loaded(pair.position, pair.name, plan))
        for pair in steps.direction.pairs
    )


def _loaded(position: int | None, db: str, plan: SyncPlan) -> bool:
    return any(position == load.to_position and db in load.databases for load in plan.loads)


def _roles(steps: Steps) -> dict[str, str]:
    found = {}
    for pair in steps.direction.matching:
        if pair.source is not None:
            found[f"source {pair.name}"] = str(pair.source_mark)
        if pair.target is not None:
            found[f"target {pair.replica}"] = str(pair.target_mark)
    return found


def _dropped(load: PlannedLoad) -> Iterator[str]:
    for each in load.gone:
        if each.why == DROPPED and (each.partition or not each.partitions or each.object in _drop_tables(load)):
            yield f"{each.object}/{each.partition}" if each.partition else each.object


def _drop_tables(load: PlannedLoad) -> list[str]:
    return list(load.steps.get("drop_tables", []))


def _drops(out_of_scope: Sequence[OutOfScope]) -> list[str]:
    tables = (f"{each.db}.{table.name}" for each in out_of_scope for table in each.tables)
    partitions = (
        f"{each.db}.{table}/{name}" for each in out_of_scope for table, some in each.partitions.items() for name in some
    )
    return sorted([*tables, *partitions, *(each.db for each in out_of_scope if each.whole)])


def _keys(policy: Policy) -> dict[str, Any]:
    """Returns the keys of a policy that a plan depends on; schedule and verification are not among them."""
    written = msgspec.to_builtins(policy)
    return {
        key: value
        for key, value in written.items()
        if key not in ("schedule", "max_lag", "verify", "engine", "key_file", "s3_events", *_METASTORES)
    }


def _digest(value: Any) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True, default=str).encode())
