"""Walks of a database: all its objects in the metastore, as changes. The first capture of a database is a walk, and
so is the repair after lost events. Reads the metastore only; the known state determines what counts as a change.

Tables are read in parallel, in threads that access only the metastore. One thread reads the known state and yields the
changes, in the order of the server's names.
A scan with a time limit reads some tables per capture, in turns (`Turns`): a capture without changes takes the same
time for many tables as for few. The progress is in the manifest; if it is lost, the current round starts again.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from replicator.captures.manifest import TABLE_BATCH as CONSTRAINTS_TABLES
from replicator.captures.manifest import Manifest, walk_constraints
from replicator.core.grouping import batched
from replicator.core.model import Name, Partition, Statistics, Table
from replicator.core.text import count_text, time_text
from replicator.errors import MetastoreError, ObjectNotFound
from replicator.metastore.client import PARTITION_BATCH, MetastoreReader, answer_about_one
from replicator.metastore.concurrency import TABLE_BATCH, TABLE_WEIGHT, side_by_side
from replicator.metastore.events import scope
from replicator.metastore.events.record import Change, DropTable, SetStatistics, partition_names

ENGINES = "statistics_engines"  # state of a manifest: the engines whose statistics were read for all tables


@dataclass(frozen=True)
class _Plan:
    """The reads that a table requires, and the changes of the table itself. statistics: True if those of the table are
    read; measured: partitions whose statistics are read even if their parameters do not indicate any. constraints: True
    if they are compared."""

    table: Table
    changes: Sequence[Change]
    is_recreated: bool
    partitions: bool
    statistics: bool
    measured: frozenset[str]
    constraints: bool


@dataclass(frozen=True)
class _Contents:
    """The contents of a table in the metastore, other than the table itself. partitions: those of the first call, with
    their statistics; None if there are too many for one call, so that their names are compared first. rest: further
    partitions, not yet read. error: set instead of everything else, for example if the table no longer exists."""

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
    """Yields the differences between a database in the metastore and its known state. `deep` also compares partitions
    and constraints; without it, only those of new tables. `chosen`: selects the tables to compare; dropped tables are
    always found. `refused`: receives the tables that the metastore refuses to return, with its answer. Raises
    ObjectNotFound if the database does not exist.

    Changes must be folded into `known` as they are yielded: later ones depend on earlier ones."""
    database = source.database(db)
    yield from scope.database_change(known.database(db), database)
    if database.connector:  # its tables belong to another system
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
    """Yields the differences of some tables of a database. Used with `deep` after changes that an event does not
    describe completely (a cascade, a rename). Tables dropped since then are left to their events."""
    read = partial(source.tables, db, refused=refused)
    found = side_by_side(source.traffic, read, batched(names, TABLE_BATCH), weigh=lambda _: 0)
    yield from _walk_tables(source, known, itertools.chain.from_iterable(found), refused, deep=deep)


def _walk_tables(
    source: MetastoreReader, known: Manifest, tables: Iterable[Table], refused: dict[str, str], *, deep: bool
) -> Iterator[Change]:
    """Yields the differences of tables, their partitions and their column statistics. A table dropped concurrently is
    left to its drop event; if it was new, the changes yielded for it are revoked, so that a later rename finds it
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
    """A buffer of tables whose constraints are compared together, because foreign keys are requested per database."""

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
    """Returns True if events announce all later changes of the known statistics, for every engine."""
    return source.announces_statistics() and known.recall(ENGINES) == _engines(source)


def note_engines(source: MetastoreReader, known: Manifest) -> None:
    """Records, after a comparison of all tables, that the statistics of these engines have been read."""
    if source.announces_statistics():
        known.remember(ENGINES, _engines(source))


def _engines(source: MetastoreReader) -> str:
    return " ".join(source.statistics_engines())


def _plan(known: Manifest, table: Table, told: bool, *, deep: bool) -> _Plan:
    """Returns the plan for a table. told: True if events announce statistics. If a partition lost both its statistics
    and the parameter that indicates them without an event, only `deep` finds it."""
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
        partitions=table.is_partitioned and (deep or is_recreated or table.is_view),  # few views have any
        statistics=has_columns and ("" in measured or (may_differ and scope.has_column_statistics(table.parameters))),
        measured=measured,
        constraints=not table.is_view and (deep or before is None),
    )


def _nothing_to_read(plan: _Plan) -> _Contents | None:
    return None if plan.partitions or plan.statistics else _Contents(plan)


def _weight(contents: _Contents) -> float:
    return TABLE_WEIGHT + len(contents.partitions or ())


def _read(source: MetastoreReader, plan: _Plan) -> _Contents:
    """Reads a table's contents. Reads the metastore only, because it runs in a thread."""
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
    """Raises ObjectNotFound for a table that no longer exists, MetastoreError for one not returned completely."""
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
        is_absolute = contents.partitions is not None
        names = _names(table, first) if is_absolute else source.partition_names(table.db, table.name)
        yield from scope.dropped_partitions(
            table, sorted(set(known.partition_names(table.db, table.name)).difference(names))
        )
        rest = rest if is_absolute else source.partitions(table.db, table.name, names)
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
    """Returns the names of the partitions whose parameters indicate column statistics, or that had some."""
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
    """Tables and partitions whose statistics are to be read again: an event contains only some columns, and not what
    else changed with them."""

    def __init__(self) -> None:
        self._tables: dict[Name, set[str | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._tables)

    def note(self, change: SetStatistics) -> None:
        """Adds the table or partitions of an event."""
        about = self._tables.setdefault((change.db, change.table), set())
        about.update(each.partition for each in change.statistics)

    def renamed(self, change: Change) -> Name | None:
        """Returns a table, by its name after the change, if the change renames it or one of its partitions and it is
        noted here: it must then be compared entirely. Removes it."""
        if change.rename is None or self._tables.pop((change.rename[0][0], change.rename[0][1]), None) is None:
            return None
        return change.rename[1][0], change.rename[1][1]

    def read(self, source: MetastoreReader, known: Manifest) -> Iterator[Change]:
        """Yields the differences since then, and clears the notes. A dropped table is left to its drop event. Changes
        must be folded into `known` as they are yielded."""
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
    """Yields the differences of the statistics of a table itself."""
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


# ---- turns of scans with a time limit --------------------------------------------------------------------------------


_STATE = "scans"


@dataclass(frozen=True)
class ScannedTables:
    """The progress of a scan. tables: number scanned, `of` the total. since: every table was scanned after this second,
    so that earlier changes without an event were found; None: not yet."""

    tables: int
    of: int
    since: int | None

    def __str__(self) -> str:
        since = time_text(self.since)
        until = f"; changes made without an event before {since} were found" if since else ""
        return f"{self.tables:,} of {count_text(self.of, 'table')}{until}"


class Turns:
    """The share of one capture in a round of scans. `now`: its start, in seconds."""

    def __init__(self, manifest: Manifest, now: int) -> None:
        self._manifest, self._now = manifest, now
        state = json.loads(manifest.recall(_STATE) or "{}")
        self._after: int = state.get("after", 0)  # the id of a table, which a rename does not change
        self._began: int = state.get("began", now)  # start of this round
        self._since: int | None = state.get("since")  # start of the last complete round
        self.last: int | None = state.get("last")  # start of the last capture that scanned
        self._looked, self._all = 0, 0

    def batches(self) -> Iterator[dict[str, list[str]]]:
        """Yields all tables by database, in batches, once, starting after the last table scanned. The caller must scan
        every batch that it consumes."""
        tables, start = self._manifest.all_tables(), self._after
        self._all = len(tables)
        if not start:
            self._began = self._now
        yield from self._turn([each for each in tables if each[0] > start])
        self._since, self._began = self._began, self._now  # a round is complete, and the next one begins
        yield from self._turn([each for each in tables if each[0] <= start])

    def _turn(self, tables: Sequence[tuple[int, str, str]]) -> Iterator[dict[str, list[str]]]:
        for some in batched(tables, TABLE_BATCH):
            names: dict[str, list[str]] = {}
            for _, db, name in some:
                names.setdefault(db, []).append(name)
            self._after, self._looked = some[-1][0], self._looked + len(some)
            yield names

    def end(self) -> ScannedTables:
        """Stores where the next capture continues."""
        if self._looked == self._all:
            self.all_seen()
        self._remember()
        return ScannedTables(self._looked, self._all, self._since)

    def covered(self) -> dict[str, int | None]:
        """Returns, by database, the start of the oldest scan among the last ones of its tables; None: one of them was
        not scanned yet."""
        found: dict[str, int | None] = {}
        for number, db, _ in self._manifest.all_tables():
            at = self._began if number <= self._after else self._since
            before = found.get(db, at)
            found[db] = None if at is None or before is None else min(at, before)
        return found

    def all_seen(self) -> None:
        """Records that this capture has scanned all tables."""
        self._after, self._began, self._since = 0, self._now, self._now
        self._remember()

    def _remember(self) -> None:
        state = {"after": self._after, "began": self._began, "since": self._since, "last": self._now}
        self._manifest.remember(_STATE, json.dumps(state))
