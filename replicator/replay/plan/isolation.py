"""Isolation: a plan for `publish = "snapshot"`: each change of a load is stored in a directory of its own, and the
metastore switches to it in one call. Pure, except for reading a dump's file entries.

Derived from the plan for the source's layout. A table remains at its location unless its files change; so does a
partition, which is decided at commit. Tables that were dropped and created again are replaced without a gap between.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from cmroot.store.place import normal
from replicator.replay.places.replica import replica_table
from replicator.replay.plan.deciding import can_become
from replicator.replay.plan.plan import Name, Plan, TablePlan
from replicator.replay.plan.rules import FileRules, home_of, is_moved_by_renaming, place_of, staging_of, with_table_at

_ABOUT = ["position", "db", "table", "partition", "location"]


def touched_objects(rows: Iterable[pa.Table], rules: FileRules) -> dict[Name, set[str]]:
    """Returns the objects whose files a range changes: table of the target -> names of its partitions at the end ("":
    the table itself). Memory: one entry for every table and partition. `rows`: file entries."""
    found: dict[Name, set[str]] = {}
    seen: set[tuple[object, ...]] = set()
    for batch in rows:
        for row in batch.select(_ABOUT).group_by(_ABOUT).aggregate([]).to_pylist():
            key = tuple(row[name] for name in _ABOUT[:4])
            if key not in seen:
                seen.add(key)
                about = rules.object_at(*key)
                if about is not None:
                    found.setdefault(about[0], set()).add(about[1])
        seen.clear()
    return found


def isolate(plan: Plan, touched: dict[Name, set[str]]) -> None:
    """Turns a plan that keeps the source's layout into one that publishes by snapshots."""
    plan.snapshot = plan.metadata.id
    for step in plan.tables:
        if step.table is not None and not step.table.is_view and not step.shared and step.table.location:
            _isolate(plan, step, touched.get(step.name, set()))


def _isolate(plan: Plan, step: TablePlan, touched: set[str]) -> None:
    source = step.lineage.table
    assert source is not None and step.table is not None and step.table.location and plan.snapshot
    home = home_of(plan.placement, source.db, step.table.location)
    step.place, step.touched = place_of(home, plan.snapshot, *step.name), touched
    if not step.exists:
        _replace(plan, step)
    there = step.there if step.exists else None
    changed = bool(touched) or step.recreated
    stays = there is not None and there.location and (source.is_partitioned or not changed)
    location = str(there.location) if there is not None and stays else step.place
    if there is not None and stays and step.rename_from is not None and is_moved_by_renaming(there):
        location = staging_of(plan.snapshot, there)
    step.placement = with_table_at(plan.placement, source, location)
    step.table = replica_table(source, step.placement, plan.mark)


def _replace(plan: Plan, step: TablePlan) -> None:
    """Drops an existing table of the same name at commit only; if altering suffices, in that one call."""
    assert step.table is not None
    dropped = next((table for table in plan.drops if (table.db, table.name) == step.name), None)
    if dropped is None:
        return
    plan.drops.remove(dropped)
    step.there = dropped
    own = dropped.location is not None and normal(dropped.location) == normal(step.place or "")
    if own or (can_become(dropped, step.table) and not step.table.is_partitioned):
        step.exists = True
    else:
        step.replaces = dropped
