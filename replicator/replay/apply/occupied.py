"""Locations of new objects on the target. A metastore may create a database at another location than requested: Hive 4
moves those in its managed warehouse. A table must not get a location that another object has.

Objects of the same load may be nested as they are at the source. Any other object of the target, including those of
another replica of the same database, would lose files to the new one, or show files of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

import msgspec

from cmroot.store.place import is_local, local_path, normal, remove_if_empty
from replicator.captures.dumps.layout import BOOTSTRAP
from replicator.core.model import Database
from replicator.errors import DatabaseMoved, ObjectExists, ObjectNotFound, Refused
from replicator.metastore.client import MetastoreReader
from replicator.replay.apply.work import Work, exists
from replicator.replay.places.neighbours import Neighbours, Occupant
from replicator.replay.places.placement import relative
from replicator.replay.places.replica import SOURCE
from replicator.replay.plan.plan import Plan, TablePlan


def create_databases(work: Work, loading: Mapping[str, str], apart: Mapping[str, Mapping[str, str]]) -> None:
    """Creates the new databases of a plan, with the marks of its load. `apart`: more properties, by database. May run
    twice. Raises DatabaseMoved, after creating all, if one has another location than the plan uses for its tables."""
    made: list[Database] = []
    for database in work.plan.create_databases:
        parameters = {**work.with_role(database.name, database.parameters), **loading, **apart.get(database.name, {})}
        if database.location and is_local(database.location):
            os.makedirs(local_path(database.location), exist_ok=True)
        with contextlib.suppress(ObjectExists):
            work.target.create_database(msgspec.structs.replace(database, parameters=parameters))
            work.changed.count()
            made.append(database)
    moved = [each for each in made if _is_moved(work, each)]
    if moved:
        names = ", ".join(each.name for each in moved[:5])
        raise DatabaseMoved(
            f"{work.target.uri} has made databases elsewhere than asked for: {names}",
            hint="run it again: it goes where they are now; or place them outside of that metastore's own warehouse",
        )


def _is_moved(work: Work, database: Database) -> bool:
    there = work.target.database(database.name)
    if not database.location or not there.location or normal(there.location) == normal(database.location):
        return False
    if not there.managed_location:
        remove_if_empty(database.location)
    return True


def refuse_occupied(plan: Plan, target: MetastoreReader) -> None:
    """Raises Refused for a new table at, above or below the location of a table that this source's replication did not
    create. Reads all tables of the target if such a table is possible: never for a location in the database's own
    directory at which nothing exists yet."""
    new = [(step, place) for step in plan.tables if (place := _new_place(step))]
    if plan.exact or not new:
        return
    homes = [str(place) for place in plan.placement.target_locations.values()]
    whole = plan.metadata.kind == BOOTSTRAP
    neighbours = Neighbours(target)
    ours = {(table.db, table.name) for table in plan.drops} | {step.name for step in plan.tables}
    for step, place in new:
        inside = any(relative(place, home) for home in homes)
        if not (whole or not inside or exists(place)):
            continue
        for other in neighbours.touching(place):
            if (other.db, other.table) not in ours and not _made_with_it(plan, target, other):
                raise Refused(
                    f"{'.'.join(step.name)} would lie at {place}, where {other} lies ({other.place})",
                    hint="map the location with --map-location, name another --external-base or --warehouse, or move "
                    "what lies there",
                )


def _new_place(step: TablePlan) -> str | None:
    """Returns the new location of a table; None if it is unchanged."""
    if step.table is None or step.table.is_view or step.shared or not step.table.location:
        return None
    there = step.there.location if step.there is not None else None
    same = there is not None and relative(there, step.table.location) == ""
    return None if same else step.table.location


def _made_with_it(plan: Plan, target: MetastoreReader, other: Occupant) -> bool:
    """Returns True if a table was created by loads of the same source: they may be nested as at the source."""
    if other.db not in plan.placement.databases.values():
        return False
    try:
        return target.table(other.db, other.table).parameters.get(SOURCE) == plan.metadata.root_id
    except ObjectNotFound:
        return True
