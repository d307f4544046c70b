"""Walking a database: everything the metastore holds of it, as changes. The first capture of a database is a walk, and
so is the repair after lost events. Reads the metastore only; what is already known decides what counts as a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from replicator.captures.constraining import walk_constraints
from replicator.captures.manifest import Manifest
from replicator.core.batches import batched
from replicator.core.model import Table
from replicator.errors import ObjectNotFound
from replicator.events import compare
from replicator.events.record import Change, DropTable, partition_names
from replicator.metastore.client import PARTITION_BATCH, MetastoreReader

TABLE_BATCH = 500


def walk_database(source: MetastoreReader, known: Manifest, db: str, *, deep: bool) -> Iterator[Change]:
    """Differences between the metastore's database and the known one. `deep` compares partitions and constraints too;
    without it only those of tables that are new. Raises ObjectNotFound when the database does not exist.

    Changes must be folded into `known` as they come: later ones depend on it."""
    yield from compare.database_change(known.database(db), source.database(db))
    yield from compare.function_changes(known.functions(db), source.functions(db))
    names = source.table_names(db)
    yield from compare.dropped_tables(db, known.table_names(db), names)
    for some in batched(names, TABLE_BATCH):
        looked_at = []
        for table in source.tables(db, some):
            if not table.is_view and (deep or known.table(db, table.name) is None):
                looked_at.append(table.name)
            yield from walk_table(source, known, table, deep=deep)
        yield from walk_constraints(source, known, db, looked_at)


def walk_table(source: MetastoreReader, known: Manifest, table: Table, *, deep: bool) -> Iterator[Change]:
    """Differences of one table: itself, its partitions, its column statistics. One that goes away meanwhile is left to
    the event that says so; if it was new, what was reported of it is taken back, so that a rename finds it unknown."""
    changes = list(compare.table_change(known.table(table.db, table.name), table))
    is_recreated = any(change.creates for change in changes)
    yield from changes
    try:
        yield from _walk_contents(source, known, table, is_recreated=is_recreated, deep=deep)
    except ObjectNotFound:
        if is_recreated:
            yield DropTable(db=table.db, name=table.name)


def _walk_contents(
    source: MetastoreReader, known: Manifest, table: Table, *, is_recreated: bool, deep: bool
) -> Iterator[Change]:
    if table.is_partitioned and not table.is_view and (deep or is_recreated):
        yield from _walk_partitions(source, known, table, is_recreated)
    columns = table.storage.columns if table.storage else ()
    if compare.has_column_statistics(table.parameters) and columns and not table.is_partitioned:
        known_statistics = [] if is_recreated else known.statistics(table.db, table.name)
        now = source.table_statistics(table.db, table.name, [column.name for column in columns])
        yield from compare.statistics_change(table.db, table.name, known_statistics, [now] if now else [], [None])


def _walk_partitions(source: MetastoreReader, known: Manifest, table: Table, is_recreated: bool) -> Iterator[Change]:
    names = source.partition_names(table.db, table.name)
    if not is_recreated:
        gone = set(known.partition_names(table.db, table.name)) - set(names)
        yield from compare.dropped_partitions(table, sorted(gone))
    known_statistics = [] if is_recreated else known.statistics(table.db, table.name)
    for batch in source.partitions(table.db, table.name, names):
        before = {}
        batch_names = list(partition_names([key.name for key in table.partition_keys], batch))
        if not is_recreated:
            before = known.partitions_by_name(table.db, table.name, batch_names)
        yield from compare.partition_changes(table, before, batch)
        marked = [
            name
            for name, partition in zip(batch_names, batch, strict=True)
            if compare.has_column_statistics(partition.parameters)
        ]
        if marked and table.storage:
            columns = [column.name for column in table.storage.columns]
            now = source.partition_statistics(table.db, table.name, columns, marked)
            yield from compare.statistics_change(table.db, table.name, known_statistics, now, marked)


def refresh_tables(source: MetastoreReader, known: Manifest, tables: Sequence[tuple[str, str]]) -> Iterator[Change]:
    """Differences of some tables, deeply: after changes that an event does not tell whole (a cascade, a rename)."""
    for db, name in tables:
        try:
            table = source.table(db, name)
        except ObjectNotFound:
            continue  # dropped since; its event follows
        yield from walk_table(source, known, table, deep=True)
        if not table.is_view:
            yield from walk_constraints(source, known, db, [name])


__all__ = ["PARTITION_BATCH", "refresh_tables", "walk_database", "walk_table"]
