"""Reads of both sides of a comparison: tables with their partitions and statistics, several tables in parallel. The
threads only read; they compare nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from cmroot.store.acid import State
from replicator.captures.unlistable import REFUSED
from replicator.captures.write_ids import state_of
from replicator.core.formats import is_transactional
from replicator.core.formats.interface import INSERT_ONLY
from replicator.core.grouping import batched
from replicator.core.model import Database, Partition, Statistics, Table, WriteIds, partition_name
from replicator.core.not_replicated import SUPPORTED, FormatChoice
from replicator.core.policy import Principals
from replicator.core.text import PartitionFilter
from replicator.errors import ObjectNotFound
from replicator.metastore.client import MetastoreReader
from replicator.metastore.concurrency import TABLE_BATCH, TABLE_WEIGHT, read_both
from replicator.metastore.events.scope import Patterns, has_column_statistics, matches_name
from replicator.metastore.grants import Granted
from replicator.metastore.transactions import not_shown, why_without
from replicator.replay.replica import PUBLISH, has_replicated_data

# ---- write ids -------------------------------------------------------------------------------------------------------
# Write ids of transactional tables: which files of the source are compared, and which rows the target does not show.


class WriteIdComparison:
    """Write ids as of one moment of the source. `states`: by table, by the source's name."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self.states: dict[str, State] = {}

    @cached_property
    def unknown(self) -> str:
        """The reason why transactional tables are not replicated; empty if they are."""
        return why_without(self._comparison.source, self._comparison.target)

    @cached_property
    def _snapshot(self) -> str:
        return self._comparison.source.snapshot()

    def hidden(self, source: Table, target: Table) -> list[str]:
        """Reads the ids of a table. Returns those that are committed at the source, and whose rows the target does not
        show, as text: all or nothing."""
        own, other = (source.db, source.name), (target.db, target.name)
        ids = self._comparison.source.write_ids([own], self._snapshot).get(own, WriteIds(0))
        self.states[".".join(own)] = state_of(ids, insert_only=is_transactional(source) == INSERT_ONLY)
        there = self._comparison.target
        lacking = not_shown(ids, there.write_ids([other], there.snapshot()).get(other, WriteIds(0)))
        return [f"{', '.join(map(str, lacking[:5]))}: committed"] if lacking else []


# ---- comparison ------------------------------------------------------------------------------------------------------
# Comparison: both sides, and the names, locations and patterns that map one to its replica.


Level = Literal["metadata", "size", "crc", "checksum"]


@dataclass(frozen=True)
class Comparison:
    """Parameters of a comparison. rename: (source database, target database) pairs. map_locations: (source prefix,
    target prefix) pairs, required only for partitions and properties with a path outside their table and database.
    These, patterns, formats, grants and principals must be the same as for the loads. level: how thoroughly files are
    compared. granted: the grants of both sides by database, read once for several comparisons; None: read by each."""

    source: MetastoreReader
    target: MetastoreReader
    rename: Sequence[tuple[str, str]] = ()
    map_locations: Sequence[tuple[str, str]] = ()
    patterns: Patterns = field(default_factory=Patterns)
    level: Level = "checksum"
    formats: FormatChoice = SUPPORTED
    grants: bool = True
    principals: Principals = field(default_factory=dict)
    granted: dict[str, tuple[Granted, Granted]] | None = None

    @cached_property
    def renamed(self) -> dict[str, str]:
        return {before.lower(): after.lower() for before, after in self.rename}

    def replica(self, db: str) -> str:
        """Returns the name of a source database on the target."""
        return self.renamed.get(db, db)

    @cached_property
    def homes_of_databases(self) -> list[tuple[str | None, str | None]]:
        """The locations of all databases that both sides have: logs may name files of any of their tables."""
        names, there = self.source.database_names(), set(self.target.database_names())
        both = [(name, self.replica(name)) for name in names if self.replica(name) in there]
        return [(self.source.database(one).location, self.target.database(other).location) for one, other in both]

    def homes_of_tables(self, db: str) -> list[tuple[str | None, str | None]]:
        """Returns the locations on both sides that files which list places may name: those of mappings, and of tables
        of their database of which the target has the data. None are translated if loads publish by snapshots."""
        name = self.replica(db)
        if self.target.database(name).parameters.get(PUBLISH) == "snapshot":
            return []
        here = {each.name: each.location for each in self.source.tables(db, self.source.table_names(db))}
        there = filter(has_replicated_data, self.target.tables(name, self.target.table_names(name)))
        return [*self.map_locations, *((here.get(each.name), each.location) for each in there)]

    def returns(self, side: int, setting: str) -> bool:
        """Returns True if a setting of the source's server (0), or the target's (1), is turned on."""
        return (self.source, self.target)[side].setting(setting).strip().lower() == "true"


@dataclass(frozen=True)
class DatabasePair:
    """One database on both sides."""

    source: Database
    target: Database


def count_tables(comparison: Comparison, databases: Sequence[str]) -> int:
    """Returns the number of tables of these databases on either side now, counted by name. Raises ObjectNotFound for a
    database that the source does not have."""
    found = 0
    for name in databases:
        source = comparison.source.database(name)
        with suppress(ObjectNotFound):  # missing on the target: one difference, without tables
            target = comparison.target.database(comparison.replica(name))
            found += len(all_names(comparison, DatabasePair(source, target)))
    return found


def all_names(comparison: Comparison, sides: DatabasePair) -> list[str]:
    """Returns the tables of a database on either side; none for a database of another system."""
    if sides.source.connector:
        return []
    both = ((comparison.source, sides.source.name), (comparison.target, sides.target.name))
    return sorted({name for side, db in both for name in side.table_names(db) if comparison.patterns.match(name)})


# ---- both sides ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartitionNames:
    """Names of partitions that exist on one side only."""

    missing: frozenset[str] = frozenset()
    extra: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PartitionPages:
    """Some of the partitions that both sides have. marked: names of those with column statistics on either side;
    statistics: the source's and the target's statistics of these."""

    source: Sequence[Partition]
    target: Sequence[Partition]
    marked: Sequence[str]
    statistics: tuple[Sequence[Statistics], Sequence[Statistics]]


@dataclass(frozen=True)
class TablePair:
    """A table by its name at the source, with the objects that each side has. left_out: the reason why loads leave it
    out, or why a side refuses to return it; nothing more is read of it then. statistics: those of the table on both
    sides, None if neither side indicates any. pages: further ones are read on iteration."""

    name: str
    source: Table | None
    target: Table | None
    left_out: str = ""
    statistics: tuple[Statistics | None, Statistics | None] | None = None
    names: PartitionNames = PartitionNames()
    pages: Iterable[PartitionPages] = field(default=())


@dataclass(frozen=True)
class _Tables:
    """Some tables of one side by name, and its answers for those that it refuses to return."""

    found: dict[str, Table]
    refused: dict[str, str]


@dataclass(frozen=True)
class _Contents:
    """One side's contents of a table. partitions: None if there are too many for one call."""

    statistics: Statistics | None = None
    partitions: Sequence[Partition] | None = ()


@dataclass(frozen=True)
class _Rest:
    """The second reading of one side, once the contents of both are known."""

    statistics: Sequence[Statistics] = ()
    names: Sequence[str] = ()


@dataclass(frozen=True)
class _Joined:
    """A table with its contents. page: its partitions, without the statistics of the marked ones; is_large: the
    partition names must be read instead."""

    pair: TablePair
    page: PartitionPages | None = None
    is_large: bool = False


_NOTHING, _NO_REST = _Contents(), _Rest()


def read_tables(
    comparison: Comparison,
    databases: tuple[str, str],
    names: Sequence[str],
    left_out: Callable[[Table, Table | None], str],
) -> Iterator[TablePair]:
    """Yields tables of one database (`databases`: its names on both sides), in the order of `names`, reading both sides
    in parallel. left_out: returns the reason why loads leave out a table of the source; called in the caller's thread.
    Raises ObjectNotFound for a table that is dropped concurrently."""
    reader = _Reader(comparison, databases)
    tables = read_both(reader.sides, reader.tables, batched(names, TABLE_BATCH), weigh=lambda _: 0.0)
    pairs = (
        replace(pair, left_out=left_out(pair.source, pair.target)) if pair.source is not None else pair
        for some, here, there in tables
        for pair in _pairs(some, here, there)
    )
    contents = read_both(reader.sides, reader.contents, pairs, weigh=_weight, known=_nothing_to_read)
    joined = (reader.joined(*each) for each in contents)
    rest = read_both(reader.sides, reader.rest, joined, weigh=lambda _: 0.0, known=_no_rest)
    return (reader.whole(*each) for each in rest)


def _pairs(names: Sequence[str], here: _Tables, there: _Tables) -> Iterator[TablePair]:
    refused = here.refused | there.refused
    for name in names:
        if name in refused:
            yield TablePair(name, None, None, f"{REFUSED}: {refused[name]}")
        else:
            yield TablePair(name, here.found.get(name), there.found.get(name))


def _weight(contents: _Contents) -> float:
    return TABLE_WEIGHT + len(contents.partitions or ())


def _nothing_to_read(pair: TablePair) -> _Contents | None:
    """Returns empty contents for a pair without partitions and statistics to compare; otherwise None."""
    source, target = pair.source, pair.target
    if source is None or target is None or pair.left_out:
        return _NOTHING
    return None if _are_partitioned(source, target) or _any_statistics(source, target) else _NOTHING


def _no_rest(joined: _Joined) -> _Rest | None:
    return None if joined.is_large or (joined.page and joined.page.marked) else _NO_REST


class _Reader:
    """A reader of tables' contents, separately for each side; a side is 0, the source, or 1, the target."""

    def __init__(self, comparison: Comparison, databases: tuple[str, str]) -> None:
        self.sides = (comparison.source, comparison.target)
        self._databases, self._patterns = databases, comparison.patterns

    def tables(self, side: int, names: Sequence[str]) -> _Tables:
        refused: dict[str, str] = {}
        found = {table.name: table for table in self.sides[side].tables(self._databases[side], names, refused)}
        return _Tables(found, refused)

    def contents(self, side: int, pair: TablePair) -> _Contents:
        source, target = _both(pair)
        table, metastore = (source, target)[side], self.sides[side]
        statistics, partitions = None, None
        if _any_statistics(source, target):
            statistics = metastore.table_statistics(table.db, table.name, _columns(table))
        if _are_partitioned(source, target):
            partitions = metastore.few_partitions(table.db, table.name)
        return _Contents(statistics, partitions)

    def joined(self, pair: TablePair, here: _Contents, there: _Contents) -> _Joined:
        if here is _NOTHING:
            return _Joined(pair)
        source, target = _both(pair)
        if _any_statistics(source, target):
            pair = replace(pair, statistics=(here.statistics, there.statistics))
        if not _are_partitioned(source, target):
            return _Joined(pair)
        held = self._patterns.filter_for(source)  # names are the source's, on both sides
        if here.partitions is None or there.partitions is None:
            return _Joined(pair, is_large=True)
        mine, others = _wanted(source, here.partitions, held), _wanted(target, there.partitions, held)
        common = [values for values in sorted(mine) if values in others]
        page = _unmeasured(source, [mine[values] for values in common], [others[values] for values in common])
        names = PartitionNames(
            frozenset(partition_name(source.partition_keys, values) for values in mine.keys() - others.keys()),
            frozenset(partition_name(target.partition_keys, values) for values in others.keys() - mine.keys()),
        )
        return _Joined(replace(pair, names=names), page)

    def rest(self, side: int, joined: _Joined) -> _Rest:
        """Reads the statistics of marked partitions; for a table with too many partitions for one call, their names."""
        table = _both(joined.pair)[side]
        if joined.is_large:
            return _Rest(names=self.sides[side].partition_names(table.db, table.name))
        return _Rest(self._statistics(side, table, joined.page.marked if joined.page else ()))

    def whole(self, joined: _Joined, here: _Rest, there: _Rest) -> TablePair:
        pair, page = joined.pair, joined.page
        if page is not None:
            return replace(pair, pages=[replace(page, statistics=(here.statistics, there.statistics))])
        if not joined.is_large:
            return pair
        source, target = _both(pair)
        held = self._patterns.filter_for(source)
        wanted, found = (
            {name for name in side.names if held is None or matches_name(held, name)} for side in (here, there)
        )
        names = PartitionNames(frozenset(wanted - found), frozenset(found - wanted))
        return replace(pair, names=names, pages=self._pages(source, target, sorted(wanted & found)))

    def _pages(self, source: Table, target: Table, names: Sequence[str]) -> Iterator[PartitionPages]:
        here = self.sides[0].partitions(source.db, source.name, names)
        there = self.sides[1].partitions(target.db, target.name, names)
        for some, others in zip(here, there, strict=True):
            page = _unmeasured(source, some, others)
            measured = (self._statistics(0, source, page.marked), self._statistics(1, target, page.marked))
            yield replace(page, statistics=measured)

    def _statistics(self, side: int, table: Table, marked: Sequence[str]) -> Sequence[Statistics]:
        if not marked:
            return ()
        return self.sides[side].partition_statistics(table.db, table.name, _columns(table), marked)


def _both(pair: TablePair) -> tuple[Table, Table]:
    assert pair.source is not None and pair.target is not None
    return pair.source, pair.target


def _unmeasured(source: Table, here: Sequence[Partition], there: Sequence[Partition]) -> PartitionPages:
    """Returns both sides of some partitions, in any order, without their statistics."""
    flagged = {each.values for side in (here, there) for each in side if has_column_statistics(each.parameters)}
    on_both = flagged and {each.values for each in there}.intersection(each.values for each in here)
    marked = [
        partition_name(source.partition_keys, each.values)
        for each in here
        if each.values in flagged and each.values in on_both
    ]
    return PartitionPages(here, there, marked, ((), ()))


def _wanted(
    table: Table, partitions: Sequence[Partition], held: PartitionFilter | None
) -> dict[tuple[str, ...], Partition]:
    """Returns the partitions that a filter selects, or all, by their values."""
    keys = table.partition_keys
    return {
        each.values: each
        for each in partitions
        if held is None or matches_name(held, partition_name(keys, each.values))
    }


def _are_partitioned(source: Table, target: Table) -> bool:
    return source.is_partitioned and target.is_partitioned


def _any_statistics(source: Table, target: Table) -> bool:
    return has_column_statistics(source.parameters) or has_column_statistics(target.parameters)


def _columns(table: Table) -> list[str]:
    """A side's own: a server without direct SQL refuses to return statistics of columns that do not exist."""
    return [column.name for column in table.storage.columns] if table.storage else []
