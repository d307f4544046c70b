"""Refusals of a plan: tables that a load must not replace, and places where it must not put one. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from replicator.core.model import Table
from replicator.errors import Refused
from replicator.replay.places.placement import relative
from replicator.replay.plan.plan import Plan
from replicator.replay.plan.target import TargetDatabase, table_position


def refuse_table(plan: Plan, there: Table) -> None:
    position = table_position(there)
    if position is None:
        raise Refused(
            f"table {there.db}.{there.name} of the target was not created by replication",
            hint="rename or drop it, or --overwrite to let the load replace it (its data goes to the target's $cmroot)",
        )
    if position > plan.metadata.end.position:
        raise Refused(
            f"table {there.db}.{there.name} of the target is at position {position}, newer than the dump's end "
            f"{plan.metadata.end.position}",
            hint="load a newer dump, or --overwrite to return to this one",
        )


def refuse_source_location(plan: Plan, source: Table, final: Table) -> None:
    if plan.exact:
        return
    if source.location and final.location and relative(final.location, source.location) == "":
        raise Refused(
            f"table {final.db}.{final.name} would lie at the source's own location {source.location}",
            hint="name another warehouse with --warehouse, or map the location with --map-location",
        )


def refuse_occupied(plan: Plan, target: Mapping[str, TargetDatabase]) -> None:
    """What lies where a table is put goes to `$cmroot`: it must not be another table that stays."""
    leaving = {(table.db, table.name) for table in plan.drops} | {step.name for step in plan.tables}
    staying = [
        table
        for name in plan.placement.databases.values()
        for table in target[name].tables.values()
        if table.location and not table.is_view and (table.db, table.name) not in leaving
    ]
    for step in plan.tables:
        place = step.table.location if step.table and not step.table.is_view else None
        for other in staying if place else ():
            assert place and other.location
            if relative(place, other.location) is not None or relative(other.location, place) is not None:
                raise Refused(
                    f"{'.'.join(step.name)} lay at {place}, where {other.db}.{other.name} lies now ({other.location})",
                    hint="restore into another database with --into",
                )
