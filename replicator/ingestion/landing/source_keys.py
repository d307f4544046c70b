"""Constraints of a source as those of its landing table: nobody enforces them, and planners profit of those that hold
(RELY)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from replicator.core.model import FOREIGN_KEY, PRIMARY_KEY, Constraint, Table
from replicator.errors import MetastoreError, ObjectNotFound
from replicator.ingestion.ingestion_request import Request
from replicator.ingestion.reading.source_table import SourceTable
from replicator.metastore.client import Metastore

log = logging.getLogger(__name__)


def constraints_of(source: SourceTable, request: Request) -> list[Constraint]:
    """Of a landing table: its primary key, and foreign keys to tables of the same source schema, which land beside
    it. A table to which rows are appended has none: a row that has changed stands there twice. A planner may rely on
    the primary key where all rows are replaced, or merged by it; on no foreign key: the other table lands at another
    moment."""
    if request.mode == "append":
        return []
    db, table = request.target
    found = []
    if source.primary_key:
        columns = tuple(each.lower() for each in source.primary_key)
        holds = request.mode == "overwrite" or {each.lower() for each in request.key} == set(columns)
        found.append(Constraint(kind=PRIMARY_KEY, name=f"{db}_{table}_pk", columns=columns, rely=holds))
    for number, key in enumerate(source.foreign_keys, 1):
        if key.schema == source.schema:
            found.append(
                Constraint(
                    kind=FOREIGN_KEY,
                    name=f"{db}_{table}_fk{number}",
                    columns=tuple(each.lower() for each in key.columns),
                    parent=(db, key.table.lower()),
                    parent_columns=tuple(each.lower() for each in key.references),
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


@contextmanager
def without_keys(metastore: Metastore, table: Table, changes: bool) -> Iterator[None]:
    """changes: whether the table's columns change meanwhile: a metastore refuses that for a table that has keys, or to
    which keys of others refer. The others' keys are there again afterwards, where they still can be, and its own where
    the change failed; else these are made by the step after the publication. Keys that a crash here has left out come
    with the next landing of their table."""
    dropped = list[tuple[str, Constraint]]()
    if changes:
        for name, found in metastore.constraints(table.db, metastore.table_names(table.db)).items():
            keys = [key for key in found if name == table.name or key.parent == (table.db, table.name)]
            for key in sorted(keys, key=lambda key: key.kind != FOREIGN_KEY):
                metastore.drop_constraint(table.db, name, key.name)
                dropped.append((name, key))
    changed = False
    try:
        yield
        changed = True
    finally:
        for name, key in reversed(dropped):
            if name != table.name or not changed:
                _put_back(metastore, table.db, name, key)


def _put_back(metastore: Metastore, db: str, table: str, key: Constraint) -> None:
    """Not where the metastore refuses it: the landing goes on, and the table's next one makes its keys."""
    try:
        metastore.add_constraint(db, table, key)
    except MetastoreError as error:
        log.warning("%s.%s: its key %s is not there any more: %s", db, table, key.name, error.message)


def _has_parent(metastore: Metastore, constraint: Constraint) -> bool:
    if constraint.parent is None:
        return True
    try:
        metastore.table(*constraint.parent)
    except ObjectNotFound:
        return False
    return True


def _facts(one: Constraint) -> tuple[object, ...]:
    return one.kind, one.name, one.columns, one.parent, one.parent_columns, one.rely
