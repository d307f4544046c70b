"""Reading both sides of a comparison: tables with their partitions and statistics, several tables at once. Threads
read, and compare nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from replicator.captures.unlistable import REFUSED
from replicator.compare.comparison import Comparison
from replicator.core.batches import batched
from replicator.core.model import Partition, Statistics, Table, partition_name
from replicator.events.compare import has_column_statistics
from replicator.events.scope import matches_name
from replicator.metastore.parallel.side_by_side import TABLE_BATCH, TABLE_WEIGHT, side_by_side
from replicator.text.partition_filter import PartitionFilter


@dataclass(frozen=True)
class PartitionNames:
    """Names that only one side has."""

    missing: frozenset[str] = frozenset()
    extra: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PartitionPages:
    """Partitions that both sides have, some of them. marked: names of those with column statistics on either side;
    statistics: of these, the source's and the target's."""

    source: Sequence[Partition]
    target: Sequence[Partition]
    marked: Sequence[str]
    statistics: tuple[Sequence[Statistics], Sequence[Statistics]]


@dataclass(frozen=True)
class TablePair:
    """A table by its name at the source, as far as the sides have it. left_out: why loads leave it out, if they do, or
    that a side does not give it: then no more of it is read. statistics: those of the table on both sides, None where
    neither says that it has any. pages: further ones are read as they are drawn."""

    name: str
    source: Table | None
    target: Table | None
    left_out: str = ""
    statistics: tuple[Statistics | None, Statistics | None] | None = None
    names: PartitionNames = PartitionNames()
    pages: Iterable[PartitionPages] = field(default=())


def read_tables(
    comparison: Comparison,
    databases: tuple[str, str],
    names: Sequence[str],
    left_out: Callable[[Table, Table | None], str],
) -> Iterator[TablePair]:
    """Tables of one database (its names on both sides), in the order of `names`. left_out: why loads leave a table of
    the source out, asked in the caller's thread. Raises ObjectNotFound for one that goes away meanwhile."""
    traffic = comparison.source.traffic
    both = partial(_both, comparison, *databases)
    batches = side_by_side(traffic, both, batched(names, TABLE_BATCH), weigh=lambda _: 0.0)
    pairs = (
        replace(pair, left_out=left_out(pair.source, pair.target)) if pair.source is not None else pair
        for pair in itertools.chain.from_iterable(batches)
    )
    reader = _Reader(comparison)
    yield from side_by_side(traffic, reader.read, pairs, weigh=_weight, known=reader.nothing_to_read)


def _both(comparison: Comparison, db: str, replica: str, names: Sequence[str]) -> list[TablePair]:
    refused: dict[str, str] = {}
    here = {table.name: table for table in comparison.source.tables(db, names, refused)}
    there = {table.name: table for table in comparison.target.tables(replica, names, refused)}
    return [
        TablePair(name, None, None, f"{REFUSED}: {refused[name]}")
        if name in refused
        else TablePair(name, here.get(name), there.get(name))
        for name in names
    ]


def _weight(pair: TablePair) -> float:
    return TABLE_WEIGHT + sum(len(each.source) for each in pair.pages if isinstance(pair.pages, list))


class _Reader:
    """Reads what a table has on both sides."""

    def __init__(self, comparison: Comparison) -> None:
        self._patterns, self._source, self._target = comparison.patterns, comparison.source, comparison.target

    def nothing_to_read(self, pair: TablePair) -> TablePair | None:
        """The pair, where both tables are all there is to compare."""
        source, target = pair.source, pair.target
        if source is None or target is None or pair.left_out:
            return pair
        return None if _are_partitioned(source, target) or _any_statistics(source, target) else pair

    def read(self, pair: TablePair) -> TablePair:
        source, target = pair.source, pair.target
        assert source is not None and target is not None
        statistics = None
        if _any_statistics(source, target):
            statistics = (
                self._source.table_statistics(source.db, source.name, _columns(source)),
                self._target.table_statistics(target.db, target.name, _columns(target)),
            )
        if not _are_partitioned(source, target):
            return replace(pair, statistics=statistics)
        names, pages = self._partitions(source, target)
        return replace(pair, statistics=statistics, names=names, pages=pages)

    def _partitions(self, source: Table, target: Table) -> tuple[PartitionNames, Iterable[PartitionPages]]:
        held = self._patterns.filter_for(source)  # names are the source's, on both sides
        here = self._source.few_partitions(source.db, source.name)
        there = None if here is None else self._target.few_partitions(target.db, target.name)
        if here is None or there is None:
            return self._many(source, target, held)
        mine, others = dict(_named(source, here, held)), dict(_named(target, there, held))
        names = _only_one(mine.keys(), others.keys())
        common = [name for name in sorted(mine) if name in others]
        if not common:
            return names, []
        page = self._page(source, target, [mine[name] for name in common], [others[name] for name in common])
        return names, [page]

    def _many(
        self, source: Table, target: Table, held: PartitionFilter | None
    ) -> tuple[PartitionNames, Iterable[PartitionPages]]:
        """Of a table with more partitions than one call answers for: names first."""
        wanted, found = (
            {name for name in names if held is None or matches_name(held, name)}
            for names in (
                self._source.partition_names(source.db, source.name),
                self._target.partition_names(target.db, target.name),
            )
        )
        return _only_one(wanted, found), self._pages(source, target, sorted(wanted & found))

    def _pages(self, source: Table, target: Table, names: Sequence[str]) -> Iterator[PartitionPages]:
        here = self._source.partitions(source.db, source.name, names)
        there = self._target.partitions(target.db, target.name, names)
        for some, others in zip(here, there, strict=True):
            yield self._page(source, target, some, others)

    def _page(
        self, source: Table, target: Table, here: Sequence[Partition], there: Sequence[Partition]
    ) -> PartitionPages:
        """Both sides of some partitions, in any order."""
        flagged = {each.values for side in (here, there) for each in side if has_column_statistics(each.parameters)}
        on_both = {each.values for each in there}.intersection(each.values for each in here)
        marked = [
            partition_name(source.partition_keys, each.values)
            for each in here
            if each.values in flagged and each.values in on_both
        ]
        if not marked:
            return PartitionPages(here, there, [], ([], []))
        statistics = (
            self._source.partition_statistics(source.db, source.name, _columns(source), marked),
            self._target.partition_statistics(target.db, target.name, _columns(target), marked),
        )
        return PartitionPages(here, there, marked, statistics)


def _named(
    table: Table, partitions: Sequence[Partition], held: PartitionFilter | None
) -> Iterator[tuple[str, Partition]]:
    for each in partitions:
        name = partition_name(table.partition_keys, each.values)
        if held is None or matches_name(held, name):
            yield name, each


def _only_one(wanted: Iterable[str], found: Iterable[str]) -> PartitionNames:
    here, there = frozenset(wanted), frozenset(found)
    return PartitionNames(here - there, there - here)


def _are_partitioned(source: Table, target: Table) -> bool:
    return source.is_partitioned and target.is_partitioned and not source.is_view


def _any_statistics(source: Table, target: Table) -> bool:
    return has_column_statistics(source.parameters) or has_column_statistics(target.parameters)


def _columns(table: Table) -> list[str]:
    """A side's own: a server without direct SQL refuses to tell statistics of columns that it does not have."""
    return [column.name for column in table.storage.columns] if table.storage else []
