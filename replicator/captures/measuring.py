"""Column statistics that events tell of: an event has some columns of a partition, and not what else changed with them,
so that the metastore is asked for all of them, once per capture and batch of partitions.
"""

from __future__ import annotations

from collections.abc import Iterator

from replicator.captures.manifest import Manifest
from replicator.core.batches import batched
from replicator.core.model import Table
from replicator.errors import ObjectNotFound
from replicator.events import compare
from replicator.events import record as kinds
from replicator.events.facts import Name
from replicator.events.record import Change, partition_names
from replicator.metastore.client import PARTITION_BATCH, MetastoreReader


class Measured:
    """Tables and partitions whose statistics are to be read again."""

    def __init__(self) -> None:
        self._tables: dict[Name, set[str | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._tables)

    def note(self, change: kinds.SetStatistics) -> None:
        """Of an event: what it is about."""
        about = self._tables.setdefault((change.db, change.table), set())
        about.update(each.partition for each in change.statistics)

    def renamed(self, change: Change) -> Name | None:
        """A table, by the name it has after the change, of which a part that is noted here has another name now: all of
        it is to be compared instead."""
        if change.rename is None or self._tables.pop((change.rename[0][0], change.rename[0][1]), None) is None:
            return None
        return change.rename[1][0], change.rename[1][1]

    def read(self, source: MetastoreReader, known: Manifest) -> Iterator[Change]:
        """What is different now; afterwards nothing is noted. A table that is gone is left to the event that says so.
        Changes must be folded into `known` as they come."""
        noted, self._tables = self._tables, {}
        for (db, name), about in noted.items():
            before = known.table(db, name)
            if before is None:
                continue
            try:
                table = source.table(db, name)
                if not table.is_partitioned:
                    yield from compare.table_change(before, table)
                    yield from table_statistics(source, known, table)
                else:
                    yield from _partitions(source, known, table, sorted(each for each in about if each))
            except ObjectNotFound:
                continue


def table_statistics(source: MetastoreReader, known: Manifest, table: Table) -> Iterator[Change]:
    """Differences of the statistics of a table without partitions."""
    columns = [column.name for column in table.storage.columns] if table.storage else []
    before = known.statistics(table.db, table.name)
    if columns and (before or compare.has_column_statistics(table.parameters)):
        now = source.table_statistics(table.db, table.name, columns)
        yield from compare.statistics_change(table.db, table.name, before, [now] if now else [], [None])


def _partitions(source: MetastoreReader, known: Manifest, table: Table, names: list[str]) -> Iterator[Change]:
    columns = [column.name for column in table.storage.columns] if table.storage else []
    keys = [key.name for key in table.partition_keys]
    known_statistics = known.statistics(table.db, table.name)
    for some in batched(names, PARTITION_BATCH):
        before = known.partitions_by_name(table.db, table.name, some)
        for page in source.partitions(table.db, table.name, list(before)):
            yield from compare.partition_changes(table, before, page)
            there = list(partition_names(keys, page))
            now = source.partition_statistics(table.db, table.name, columns, there)
            yield from compare.statistics_change(table.db, table.name, known_statistics, now, there)
