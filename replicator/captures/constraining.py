"""Constraints as captures record them: a table's complete list, even if an event describes only part of it.

Reads the metastore and the manifest; the caller records the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from replicator.captures.events import record as kinds
from replicator.captures.events.record import Change
from replicator.captures.manifest import Manifest
from replicator.core.grouping import batched
from replicator.core.model import PRIMARY_KEY, UNIQUE, Constraint, Table
from replicator.metastore.client import MetastoreReader
from replicator.metastore.constraints import ordered

TABLE_BATCH = 500
KNOWN = "constraints"  # state of a manifest, and of a segment that leads to it: they have been read once
Name = tuple[str, str]


def completed(known: Manifest, change: kinds.SetConstraints) -> kinds.SetConstraints:
    """Returns all constraints of a table after an event that adds some or drops one."""
    if change.whole:
        return change
    replaced = {(each.kind, each.name) for each in change.constraints}
    kept = (
        each
        for each in known.constraints(change.db, change.table)
        if (each.kind, each.name) not in replaced and each.name not in change.dropped
    )
    return kinds.SetConstraints(db=change.db, table=change.table, constraints=ordered([*kept, *change.constraints]))


def consequences(known: Manifest, change: Change) -> list[kinds.SetConstraints]:
    """Returns the constraints that a change affects, as they are after it. Called before the change is folded. Foreign
    keys follow a parent table that is renamed, and end with one that is dropped. The constraints of a table whose
    columns change are repeated, because a target may have to drop them in order to change the columns."""
    found: list[kinds.SetConstraints] = []
    match change:
        case kinds.AlterTable(table=table):
            old, new = (change.db, change.name), change.touched
            before = known.table(*old)
            if change.renames:
                found += _without_parent(known, new, but=old)
                found += _renamed(known, old, new)
            elif before and table.storage and before.storage and before.storage.columns != table.storage.columns:
                found += [_same(known, name) for name in dict.fromkeys([*_having(known, old), *known.children(*old)])]
        case kinds.CreateTable(table=table) if known.table(table.db, table.name) is not None:
            found += _without_parent(known, (table.db, table.name))
        case kinds.DropTable(db=db, name=name):
            found += _without_parent(known, (db, name))
        case kinds.DropDatabase(db=db):
            for name in known.table_names(db):
                found += [each for each in _without_parent(known, (db, name)) if each.db != db]
    return found


def _having(known: Manifest, name: Name) -> list[Name]:
    return [name] if known.constraints(*name) else []


def _same(known: Manifest, name: Name) -> kinds.SetConstraints:
    return kinds.SetConstraints(db=name[0], table=name[1], constraints=known.constraints(*name))


def _renamed(known: Manifest, old: Name, new: Name) -> Iterator[kinds.SetConstraints]:
    """Includes the table's own, under the new name: a target reports those that it cannot create by that name."""
    for child in dict.fromkeys([*_having(known, old), *known.children(*old)]):
        db, table = new if child == old else child
        constraints = tuple(
            msgspec.structs.replace(each, parent=new) if each.parent == old else each
            for each in known.constraints(*child)
        )
        yield kinds.SetConstraints(db=db, table=table, constraints=constraints)


def _without_parent(known: Manifest, gone: Name, *, but: Name | None = None) -> Iterator[kinds.SetConstraints]:
    for child in known.children(*gone):
        if child not in (gone, but):
            kept = tuple(each for each in known.constraints(*child) if each.parent != gone)
            yield kinds.SetConstraints(db=child[0], table=child[1], constraints=kept)


def walk_constraints(
    source: MetastoreReader, known: Manifest, db: str, tables: Sequence[str]
) -> Iterator[kinds.SetConstraints]:
    """Yields the constraints of tables for which the metastore and the manifest differ."""
    for names in batched(tables, TABLE_BATCH):
        now = source.constraints(db, names)
        for name in names:
            if now.get(name, ()) != known.constraints(db, name):
                yield kinds.SetConstraints(db=db, table=name, constraints=now.get(name, ()))


def unannounced(source: MetastoreReader, known: Manifest, change: Change) -> Name | None:
    """Returns the table whose constraints an event does not include, or None. Servers before 4.0 announce no
    constraints of some kinds, and no server announces how an alteration of columns affects them."""
    if isinstance(change, kinds.CreateTable) and _may_have(change.table):
        return None if source.announces_constraints() else change.touched
    if isinstance(change, kinds.AlterTable) and known.constraints(change.db, change.name):
        return change.touched
    return None


def loses_or_gets_key(known: Manifest, change: Change) -> Name | None:
    """Returns the table to which a change adds keys or from which it removes them, or None. Called before the change is
    folded. Servers show the foreign keys to a table only while it has a key."""
    if not isinstance(change, kinds.SetConstraints):
        return None
    before, after = known.constraints(change.db, change.table), change.constraints
    return change.touched if _keys(before) != _keys(after) else None


def _keys(constraints: Sequence[Constraint]) -> set[Constraint]:
    return {each for each in constraints if each.kind in (PRIMARY_KEY, UNIQUE)}


def children_now(source: MetastoreReader, known: Manifest, parents: Sequence[Name]) -> Iterator[Name]:
    """Yields the tables that had, or now have, foreign keys to `parents`; in other databases only those that had."""
    for parent in parents:
        yield from known.children(*parent)
    for db in {db for db, _ in parents}:
        for table, constraints in source.foreign_keys(db).items():
            if any(each.parent in parents for each in constraints):
                yield db, table


def _may_have(table: Table) -> bool:
    return not table.is_view and not table.temporary


def is_known(known: Manifest) -> bool:
    return known.recall(KNOWN) is not None


def note_known(known: Manifest) -> None:
    known.remember(KNOWN, "read")
