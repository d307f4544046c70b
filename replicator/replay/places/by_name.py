"""By name: whether a partition lies where its name says, and a table's word that all of its do. Pure.

A partition lies by its name in its table's directory, or where a load has published it under that name. A loader that
sees to it that all of a table's do so notes that on the table, and no one needs to read millions of partitions to find
the few that lie elsewhere. The note holds for the role that its database had: who is the primary writes as he likes.
"""

from __future__ import annotations

import msgspec

from cmroot.store.place import join, normal
from replicator.core.model import Table
from replicator.core.roles import Role, RoleMark
from replicator.replay.places.placement import PUBLISHED, is_published
from replicator.replay.places.replica_constraints import LACKING

BY_NAME = "replicator.partitions"  # of a table: "by-name@<epoch of its database>"


def lies_by_name(table: Table, partition: str, location: str) -> bool:
    """partition: its escaped name."""
    if table.location and normal(location) == normal(join(table.location, partition)):
        return True
    return published_name(location) == (table.db, table.name, partition)


def published_name(place: str) -> tuple[str, str, str] | None:
    """Of a partition's published place: database, table and partition as they were called when it was made."""
    if not is_published(place):
        return None
    _, _, rest = normal(place).partition(f"/{PUBLISHED}/")
    _, _, named = rest.partition("/")
    table, _, partition = named.partition("/")
    db, _, name = table.partition(".")
    return (db, name, partition) if name and partition else None


def noted(table: Table, role: RoleMark) -> Table:
    """A table that has no partition elsewhere, with the note."""
    if not table.is_partitioned:
        return table
    return msgspec.structs.replace(table, parameters=table.parameters | {BY_NAME: _note(role)})


def not_noted(table: Table) -> Table:
    parameters = {key: value for key, value in table.parameters.items() if key != BY_NAME}
    return msgspec.structs.replace(table, parameters=parameters)


def is_noted(table: Table, role: RoleMark) -> bool:
    return role.role in (Role.REPLICA, Role.NONE) and table.parameters.get(BY_NAME) == _note(role)


def noted_like(table: Table, there: Table) -> Table:
    """A table that replaces what is there, with the notes of that: of what it lacks, and of this, unless its directory
    is another."""
    if (lack := there.parameters.get(LACKING)) is not None:
        table = msgspec.structs.replace(table, parameters=table.parameters | {LACKING: lack})
    note = there.parameters.get(BY_NAME)
    same = (there.location and normal(there.location)) == (table.location and normal(table.location))
    if note is None or not same:
        return not_noted(table)
    return msgspec.structs.replace(table, parameters=table.parameters | {BY_NAME: note})


def _note(role: RoleMark) -> str:
    return f"by-name@{role.epoch}"
