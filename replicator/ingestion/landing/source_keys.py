"""Constraints of a source as those of its landing table: nobody enforces them, and planners profit."""

from __future__ import annotations

from collections.abc import Sequence

from replicator.core.model import FOREIGN_KEY, PRIMARY_KEY, Constraint
from replicator.errors import MetastoreError, ObjectNotFound
from replicator.ingestion.ingestion_request import Request
from replicator.ingestion.reading.source_table import SourceTable
from replicator.metastore.client import Metastore


def constraints_of(source: SourceTable, request: Request) -> list[Constraint]:
    """Of a landing table: its primary key, and foreign keys to tables of the same source schema, which land beside
    it. A table to which rows are appended has none: a row that has changed stands there twice."""
    if request.mode == "append":
        return []
    db, table = request.target
    found = []
    if source.primary_key:
        columns = tuple(each.lower() for each in source.primary_key)
        found.append(Constraint(kind=PRIMARY_KEY, name=f"{db}_{table}_pk", columns=columns, rely=True))
    for number, key in enumerate(source.foreign_keys, 1):
        if key.schema == source.schema:
            found.append(
                Constraint(
                    kind=FOREIGN_KEY,
                    name=f"{db}_{table}_fk{number}",
                    columns=tuple(each.lower() for each in key.columns),
                    parent=(db, key.table.lower()),
                    parent_columns=tuple(each.lower() for each in key.references),
                    rely=True,
                )
            )
    return found


def keep_constraints(metastore: Metastore, request: Request, wanted: Sequence[Constraint]) -> list[str]:
    """Makes a table's constraints the wanted ones; those that its metastore refuses now, such as a foreign key to a
    table that has not landed yet. May run twice."""
    db, table = request.target
    there = metastore.constraints(db, [table]).get(table, ())
    refused = []
    for old in there:
        if _facts(old) not in map(_facts, wanted):
            metastore.drop_constraint(db, table, old.name)
    for new in wanted:
        if _facts(new) in map(_facts, there) or not _has_parent(metastore, new):
            continue
        try:
            metastore.add_constraint(db, table, new)
        except MetastoreError as error:
            if error.transient:
                raise
            refused.append(f"{new.name}: {error.message}")
    return refused


def _has_parent(metastore: Metastore, constraint: Constraint) -> bool:
    if constraint.parent is None:
        return True
    try:
        metastore.table(*constraint.parent)
    except ObjectNotFound:
        return False
    return True


def _facts(one: Constraint) -> tuple[object, ...]:
    return one.kind, one.name, one.columns, one.parent, one.parent_columns
