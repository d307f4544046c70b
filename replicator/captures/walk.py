"""Walking a database: everything the metastore holds of it, as changes. The first capture of a database is a walk, and
so is the repair after lost events. Reads the metastore only; what is already known decides what counts as a change.

Tables are read side by side, in threads that see the metastore alone; the known side is looked at, and changes are
given, in one thread and in the order of the server's names.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from replicator.captures.constraining import TABLE_BATCH as CONSTRAINTS_TABLES
from replicator.captures.constraining import walk_constraints
from replicator.captures.events import scope
from replicator.captures.events.facts import Name
from replicator.captures.events.record import Change, DropTable, SetStatistics, partition_names
from replicator.captures.manifest import Manifest
from replicator.core.batches import batched
from replicator.core.model import Partition, Statistics, Table
from replicator.errors import MetastoreError, ObjectNotFound
from replicator.metastore.client import PARTITION_BATCH, MetastoreReader, answer_about_one
from replicator.metastore.parallel import TABLE_BATCH, TABLE_WEIGHT, side_by_side

ENGINES = "statistics_engines"  # state of a manifest: whose statistics were read of all tables


@dataclass(frozen=True)
class _Plan:
    """What is to be read of a table, and the changes of the table itself. statistics: whether those of the table are
    read; measured: partitions whose statistics are read although they do not say that they have any. constraints:
    whether they are compared."""

    table: Table
    changes: Sequence[Change]
    is_recreated: bool
    partitions: bool
    statistics: bool
    measured: frozenset[str]
    constraints: bool


@dataclass(frozen=True)
class _Contents:
    """What the metastore holds of a table beside itself. partitions: those of the first call, with their statistics;
    None: there are too many for one, and their names are to be compared first; rest: further ones, to be read;
    error: instead of all that, such as that the table is there no more."""

    plan: _Plan
    statistics: Statistics | None = None
    partitions: Sequence[Partition] | None = ()
    partition_statistics: Sequence[Statistics] = ()
    rest: Iterable[list[Partition]] = ()
    error: MetastoreError | None = None


def walk_database(
    source: MetastoreReader,
    known: Manifest,
    db: str,
    refused: dict[str, str],
    *,
    deep: bool,
    chosen: Callable[[str], bool] = lambda name: True,
) -> Iterator[Change]:
    """Differences between the metastore's database and the known one. `deep` compares partitions and constraints too;
    without it only those of tables that are new. `chosen`: tables that are compared; all that are gone are found.
    `refused`: gets tables that the metastore does not give, with its answer. Raises ObjectNotFound when the database
    does not exist.

    Changes must be folded into `known` as they come: later ones depend on it."""
    database = source.database(db)
    yield from scope.database_change(known.database(db), database)
    if database.connector:  # its tables are another system's
        return
    yield from scope.function_changes(known.functions(db), source.functions(db))
    names = source.table_names(db)
    yield from scope.dropped_tables(db, known.table_names(db), names)
    batches = batched(list(filter(chosen, names)), TABLE_BATCH)
    pages = side_by_side(
        source.traffic,
        partial(source.tables, db, refused=refused),
        batches,
        weigh=lambda page: 0 if deep else len(page),
    )
    yield from _walk_tables(source, known, itertools.chain.from_iterable(pages), refused, deep=deep)


def refresh_tables(
    source: MetastoreReader,
    known: Manifest,
    db: str,
    names: Sequence[str],
    refused: dict[str, str],
    *,
    deep: bool = True,
) -> Iterator[Change]:
    """Differences of some tables of a database, deeply after changes that an event does not tell whole (a
    cascade, a rename). Those that were dropped since are left to their events."""
    read = partial(source.tables, db, refused=refused)
    found = side_by_side(source.traffic, read, batched(names, TABLE_BATCH), weigh=lambda _: 0)
    yield from _walk_tables(source, known, itertools.chain.from_iterable(found), refused, deep=deep)


def _walk_tables(
    source: MetastoreReader, known: Manifest, tables: Iterable[Table], refused: dict[str, str], *, deep: bool
) -> Iterator[Change]:
    """Differences of tables: themselves, their partitions, their column statistics. One that goes away meanwhile is
    left to the event that says so; if it was new, what was reported of it is taken back, so that a rename finds it
    unknown."""
    told = announces_statistics(source, known)
    plans = (_plan(known, table, told, deep=deep) for table in tables)
    looked_at = _LookedAt(source, known)
    read = partial(_read, source)
    for contents in side_by_side(source.traffic, read, plans, weigh=_weight, known=_nothing_to_read):
        plan, table = contents.plan, contents.plan.table
        yield from plan.changes
        try:
            yield from _content_changes(source, known, contents)
        except MetastoreError as error:
            if not isinstance(error, ObjectNotFound):
                refused[table.name] = answer_about_one(error, refused)
            if plan.is_recreated:
                yield DropTable(db=table.db, name=table.name)
            continue
        if plan.constraints:
            yield from looked_at.add(table)
    yield from looked_at.finish()


class _LookedAt:
    """Tables whose constraints are compared, many at once: foreign keys are asked for by the database."""

    def __init__(self, source: MetastoreReader, known: Manifest) -> None:
        self._source, self._known = source, known
        self._db, self._names = "", list[str]()

    def add(self, table: Table) -> Iterator[Change]:
        if table.db != self._db or len(self._names) == CONSTRAINTS_TABLES:
            yield from self.finish()
            self._db, self._names = table.db, []
        self._names.append(table.name)

    def finish(self) -> Iterator[Change]:
        yield from walk_constraints(self._source, self._known, self._db, self._names)


def announces_statistics(source: MetastoreReader, known: Manifest) -> bool:
    """Whether events tell how the statistics of every engine differ from the known ones."""
    return source.announces_statistics() and known.recall(ENGINES) == _engines(source)


def note_engines(source: MetastoreReader, known: Manifest) -> None:
    """After a comparison of all tables: the statistics of these engines have been read."""
    if source.announces_statistics():
        known.remember(ENGINES, _engines(source))


def _engines(source: MetastoreReader) -> str:
    return " ".join(source.statistics_engines())


def _plan(known: Manifest, table: Table, told: bool, *, deep: bool) -> _Plan:
    """told: events tell of statistics. What has lost both its statistics and their mark without one, only `deep`
    finds."""
    before = known.table(table.db, table.name)
    changes = list(scope.table_change(before, table))
    is_recreated = any(change.creates for change in changes)
    has_columns = bool(table.storage and table.storage.columns) and not table.is_view
    measured = known.measured(table.db, table.name) if deep and not is_recreated else frozenset[str]()
    may_differ = deep or bool(changes) or not told
    return _Plan(
        table,
        changes,
        is_recreated,
        partitions=table.is_partitioned and not table.is_view and (deep or is_recreated),
        statistics=has_columns and ("" in measured or (may_differ and scope.has_column_statistics(table.parameters))),
        measured=measured,
        constraints=not table.is_view and (deep or before is None),
    )


def _nothing_to_read(plan: _Plan) -> _Contents | None:
    return None if plan.partitions or plan.statistics else _Contents(plan)


def _weight(contents: _Contents) -> float:
    return TABLE_WEIGHT + len(contents.partitions or ())


def _read(source: MetastoreReader, plan: _Plan) -> _Contents:
    """Reads the metastore only: it runs in a thread."""
    table, own = plan.table, None
    try:
        if plan.statistics:
            own = source.table_statistics(table.db, table.name, _columns(table))
        if not plan.partitions:
            return _Contents(plan, own)
        if not plan.is_recreated:
            few = source.few_partitions(table.db, table.name)
            return _Contents(plan, own, few, _statistics(source, plan, few or ()))
        rest = source.all_partitions(table.db, table.name)
        first = next(rest, [])
        return _Contents(plan, own, first, _statistics(source, plan, first), rest)
    except MetastoreError as error:
        return _Contents(plan, error=error)


def _content_changes(source: MetastoreReader, known: Manifest, contents: _Contents) -> Iterator[Change]:
    """Raises ObjectNotFound for a table that is gone, MetastoreError for one of which it does not give all."""
    plan, table = contents.plan, contents.plan.table
    if contents.error:
        raise contents.error
    known_statistics = [] if plan.is_recreated else known.statistics(table.db, table.name)
    if plan.statistics:
        now = [contents.statistics] if contents.statistics else []
        yield from scope.statistics_change(table.db, table.name, known_statistics, now, [None])
    if not plan.partitions:
        return
    first, rest = contents.partitions or (), contents.rest
    if not plan.is_recreated:
        is_whole = contents.partitions is not None
        names = _names(table, first) if is_whole else source.partition_names(table.db, table.name)
        yield from scope.dropped_partitions(
            table, sorted(set(known.partition_names(table.db, table.name)).difference(names))
        )
        rest = rest if is_whole else source.partitions(table.db, table.name, names)
    yield from _batch_changes(known, plan, first, contents.partition_statistics, known_statistics)
    for batch in rest:
        yield from _batch_changes(known, plan, batch, _statistics(source, plan, batch), known_statistics)


def _batch_changes(
    known: Manifest,
    plan: _Plan,
    batch: Sequence[Partition],
    statistics: Sequence[Statistics],
    known_statistics: Sequence[Statistics],
) -> Iterator[Change]:
    table = plan.table
    before = {} if plan.is_recreated else known.partitions_by_name(table.db, table.name, _names(table, batch))
    yield from scope.partition_changes(table, before, batch)
    if marked := _marked(plan, batch):
        yield from scope.statistics_change(table.db, table.name, known_statistics, statistics, marked)


def _statistics(source: MetastoreReader, plan: _Plan, batch: Sequence[Partition]) -> list[Statistics]:
    table, marked = plan.table, _marked(plan, batch)
    return source.partition_statistics(table.db, table.name, _columns(table), marked) if marked else []


def _marked(plan: _Plan, batch: Sequence[Partition]) -> list[str]:
    """Names of those that say that they have column statistics, or had some."""
    table, measured = plan.table, plan.measured
    if table.storage is None:
        return []
    if not measured and not any(scope.has_column_statistics(each.parameters) for each in batch):
        return []
    return [
        name
        for name, partition in zip(_names(table, batch), batch, strict=True)
        if name in measured or scope.has_column_statistics(partition.parameters)
    ]


def _names(table: Table, batch: Sequence[Partition]) -> list[str]:
    return list(partition_names([key.name for key in table.partition_keys], batch))


def _columns(table: Table) -> list[str]:
    return [column.name for column in table.storage.columns] if table.storage else []


class Measured:
    """Tables and partitions whose statistics are to be read again: an event has some columns of one, and not what else
    changed with them."""

    def __init__(self) -> None:
        self._tables: dict[Name, set[str | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._tables)

    def note(self, change: SetStatistics) -> None:
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
                if None in about:
                    yield from scope.table_change(before, table)
                    yield from _table_statistics(source, known, table)
                if table.is_partitioned:
                    yield from _some_partitions(source, known, table, sorted(each for each in about if each))
            except ObjectNotFound:
                continue


def _table_statistics(source: MetastoreReader, known: Manifest, table: Table) -> Iterator[Change]:
    """Differences of the statistics of a table itself."""
    columns = _columns(table)
    before = [each for each in known.statistics(table.db, table.name) if each.partition is None]
    if columns and (before or scope.has_column_statistics(table.parameters)):
        now = source.table_statistics(table.db, table.name, columns)
        yield from scope.statistics_change(table.db, table.name, before, [now] if now else [], [None])


def _some_partitions(source: MetastoreReader, known: Manifest, table: Table, names: list[str]) -> Iterator[Change]:
    known_statistics = known.statistics(table.db, table.name)
    for some in batched(names, PARTITION_BATCH):
        before = known.partitions_by_name(table.db, table.name, some)
        for page in source.partitions(table.db, table.name, list(before)):
            yield from scope.partition_changes(table, before, page)
            there = _names(table, page)
            now = source.partition_statistics(table.db, table.name, _columns(table), there)
            yield from scope.statistics_change(table.db, table.name, known_statistics, now, there)
