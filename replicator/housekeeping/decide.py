"""What a change in the captured log means for housekeeping: from a record and the state before it to operations. Pure.

Compatible with Beekeeper, but for what loses data there; see docs/migrating.md. Carrying the operations out is
`schedule`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from cmroot.store.place import normal
from replicator.core.model import Database, Partition, Table, partition_name
from replicator.events.record import (
    AddPartitions,
    AlterPartition,
    AlterTable,
    ChangeRecord,
    CreateTable,
    DropDatabase,
    DropPartitions,
    DropTable,
    EventsRead,
)
from replicator.housekeeping.items import INVALID_CONFIG, SCHEDULED, SKIPPED, Item
from replicator.housekeeping.settings import (
    ALTER_PARTITION,
    ALTER_TABLE,
    DROP_PARTITION,
    DROP_TABLE,
    EXPIRED,
    NOTHING,
    UNREFERENCED,
    Defaults,
    LifecycleSettings,
    read_settings,
)
from replicator.housekeeping.writing import NOT_ASKED, TABLES_STAY
from replicator.text.period import Period

LIFECYCLES = (UNREFERENCED, EXPIRED)


class Known(Protocol):
    """What was there before a record: the fold of the log."""

    def databases(self) -> list[Database]: ...

    def table(self, db: str, name: str) -> Table | None: ...

    def table_names(self, db: str) -> list[str]: ...

    def partitions(self, db: str, name: str, batch: int = ...) -> Iterator[list[Partition]]: ...

    def partitions_by_name(self, db: str, name: str, names: Sequence[str]) -> dict[str, Partition]: ...


@dataclass(frozen=True)
class Put:
    """Items that wait from now on, of one table and one period. again: their time begins now, also where it has begun
    before. dropped: they come of a drop, which may be one of our own."""

    items: list[Item]
    period: Period
    restarted: bool = False
    dropped: bool = False


@dataclass(frozen=True)
class Detach:
    """These objects are gone; partitions None: the whole table."""

    db: str
    table: str
    partitions: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Disable:
    """The owner does not want it any more."""

    db: str
    table: str
    lifecycle: str
    reason: str


@dataclass(frozen=True)
class Revive:
    """The owner wants the locations that it has left to go again, this long after `begins`."""

    db: str
    table: str
    period: Period
    begins: int


@dataclass(frozen=True)
class Retime:
    """The period is another one."""

    db: str
    table: str
    lifecycle: str
    period: Period


@dataclass(frozen=True)
class Switch:
    """Whether the table itself may go is said differently."""

    db: str
    table: str
    drops: bool


@dataclass(frozen=True)
class Follow:
    """(db, table, partition or None) is called differently; moved: its directory went along, from, to."""

    before: tuple[str, str, str | None]
    after: tuple[str, str, str | None]
    moved: tuple[str, str] | None


@dataclass(frozen=True)
class Again:
    """These paths are referred to, by an object."""

    paths: tuple[str, ...]
    by: str


@dataclass(frozen=True)
class Trouble:
    """A table's properties cannot be understood."""

    item: Item


@dataclass(frozen=True)
class Settle:
    """They can be again, or they are gone."""

    db: str
    table: str
    lifecycle: str


Operation = Put | Detach | Disable | Revive | Retime | Switch | Follow | Again | Trouble | Settle


@dataclass(frozen=True)
class Decider:
    """Decides about one record after the other; `now` is when, in seconds since 1970."""

    defaults: Defaults
    now: int

    def operations(self, record: ChangeRecord, known: Known) -> Iterator[Operation]:
        """Those that a record leads to, in order. `known`: as of before the record, while this is iterated."""
        match record.change:
            case CreateTable(table=table):
                yield from self._gone(record, known, table.db, table.name)
                yield from self._table(record, known, None, table, NOTHING)
                yield Again(_paths(table.location), _name(table))
            case AlterTable() as change:
                yield from self._altered(record, known, change)
            case DropTable(db=db, name=name):
                yield from self._gone(record, known, db, name)
            case DropDatabase(db=db):
                for name in known.table_names(db):
                    yield from self._gone(record, known, db, name)
            case AddPartitions() as change:
                yield from self._added(record, known, change)
            case AlterPartition() as change:
                yield from self._altered_partition(record, known, change)
            case DropPartitions(db=db, table=name, names=names):
                yield from self._dropped_partitions(record, known, db, name, names)
            case _:
                return

    def reconsidered(self, known: Known, before: Defaults, event: int) -> Iterator[Operation]:
        """The defaults were others before: what that changes for every table that there is."""
        record = ChangeRecord(position=0, event=event, time=self.now, change=EventsRead())
        for database in known.databases():
            for name in known.table_names(database.name):
                table = known.table(database.name, name)
                old = read_settings(table, before)
                if table is not None and old != read_settings(table, self.defaults):
                    yield from self._table(record, known, table, table, old)

    # ---- tables ---------------------------------------------------------------------------------------------------

    def _table(
        self, record: ChangeRecord, known: Known, before: Table | None, table: Table, old: LifecycleSettings
    ) -> Iterator[Operation]:
        """What a table's properties ask for that they did not before (`old`). Items have the name of before until
        `Follow`."""
        new = read_settings(table, self.defaults)
        db, name = (before.db, before.name) if before else (table.db, table.name)
        for lifecycle in LIFECYCLES:
            problem = new.problems.get(lifecycle)
            if problem:
                if problem != old.problems.get(lifecycle):
                    yield Trouble(self._trouble(record, lifecycle, db, name, table, problem))
                continue
            if lifecycle in old.problems:
                yield Settle(db, name, lifecycle)
            period, earlier = new.period(lifecycle), old.period(lifecycle)
            if period is None:
                if earlier or lifecycle in old.problems:
                    yield Disable(db, name, lifecycle, f"event {record.event}: {NOT_ASKED}")
            elif earlier is not None and earlier.text != period.text:
                yield Retime(db, name, lifecycle, period)
            elif earlier is None and lifecycle == UNREFERENCED and before is not None:
                yield from self._revived(record, known, before, table, period)
        if new.expired is not None and EXPIRED not in new.problems:
            yield from self._expiring(record, known, before, table, old, new)

    def _revived(
        self, record: ChangeRecord, known: Known, before: Table, table: Table, period: Period
    ) -> Iterator[Operation]:
        """What it left before it did not ask, without what it refers to by now."""
        yield Revive(before.db, before.name, period, record.time)
        yield Again(_paths(before.location, table.location), _name(table))
        for partitions in known.partitions(before.db, before.name):
            yield Again(_paths(*(each.location for each in partitions)), _name(table))

    def _expiring(
        self,
        record: ChangeRecord,
        known: Known,
        before: Table | None,
        table: Table,
        old: LifecycleSettings,
        new: LifecycleSettings,
    ) -> Iterator[Operation]:
        db, name = (before.db, before.name) if before else (table.db, table.name)
        assert new.expired is not None
        begins = old.expired is None
        if begins or (before is not None and before.location != table.location):
            created = (table.create_time or record.time) if before is None else record.time
            own = self._item(record, EXPIRED, db, name, "", table.location or "", created, new.expired)
            if own.path:
                if not new.drops_table:
                    own = replace(own, status=SKIPPED, reason=TABLES_STAY)
                yield Put([own], new.expired)
        if not begins and old.drops_table != new.drops_table:
            yield Switch(db, name, new.drops_table)
        if begins and before is not None:
            for partitions in known.partitions(before.db, before.name):
                named = [(partition_name(table.partition_keys, each.values), each) for each in partitions]
                yield from self._lives(record, db, name, named, new.expired, restarted=False)

    def _altered(self, record: ChangeRecord, known: Known, change: AlterTable) -> Iterator[Operation]:
        table, before = change.table, known.table(change.db, change.name)
        if change.renames:
            yield from self._gone(record, known, table.db, table.name)  # whoever had the name
        yield from self._table(record, known, before, table, read_settings(before, self.defaults))
        old = change.location_before or (before.location if before else None)
        if change.renames:
            moved = (old, table.location) if change.moved and old and table.location else None
            yield Follow((change.db, change.name, None), (table.db, table.name, None), moved)
        if _differ(old, table.location) and not table.is_view:
            settings = read_settings(table, self.defaults)
            if not change.moved and settings.unreferenced and ALTER_TABLE in settings.events:
                assert old is not None
                one = self._item(
                    record, UNREFERENCED, table.db, table.name, "", old, record.time, settings.unreferenced
                )
                yield Put([one], settings.unreferenced)
            yield Again(_paths(table.location), _name(table))

    def _gone(self, record: ChangeRecord, known: Known, db: str, name: str) -> Iterator[Operation]:
        table = known.table(db, name)
        if table is None:
            return
        settings = read_settings(table, self.defaults)
        if settings.unreferenced and DROP_TABLE in settings.events and table.location:
            own = self._item(record, UNREFERENCED, db, name, "", table.location, record.time, settings.unreferenced)
            yield Put([own], settings.unreferenced, dropped=True)
            below = own.place + "/"
            for partitions in known.partitions(db, name):
                elsewhere = [
                    self._item(
                        record,
                        UNREFERENCED,
                        db,
                        name,
                        partition_name(table.partition_keys, each.values),
                        each.location or "",
                        record.time,
                        settings.unreferenced,
                    )
                    for each in partitions
                    if each.location and not normal(each.location).startswith(below)
                ]
                if elsewhere:
                    yield Put(_distinct(elsewhere), settings.unreferenced, dropped=True)
        yield Detach(db, name)
        for lifecycle in settings.problems:
            yield Settle(db, name, lifecycle)

    # ---- partitions -----------------------------------------------------------------------------------------------

    def _added(self, record: ChangeRecord, known: Known, change: AddPartitions) -> Iterator[Operation]:
        table = known.table(change.db, change.table)
        named = list(zip(change.partition_names, change.partitions, strict=True))
        settings = read_settings(table, self.defaults)
        if settings.unreferenced and ALTER_PARTITION in settings.events:
            before = known.partitions_by_name(change.db, change.table, [name for name, _ in named])
            left = [
                (name, old)
                for name, each in named
                if name in before and (old := before[name].location) and _differ(old, each.location)
            ]
            yield from self._left(record, change.db, change.table, left, settings.unreferenced)
        if settings.expired:
            yield from self._lives(record, change.db, change.table, named, settings.expired, restarted=change.replace)
        yield Again(_paths(*(each.location for each in change.partitions)), f"{change.db}.{change.table}")

    def _altered_partition(self, record: ChangeRecord, known: Known, change: AlterPartition) -> Iterator[Operation]:
        db, name, partition = change.db, change.table, change.partition
        settings = read_settings(known.table(db, name), self.defaults)
        before = known.partitions_by_name(db, name, [change.before]).get(change.before)
        old = change.location_before or (before.location if before else None)
        if change.before != change.name:
            yield Detach(db, name, (change.name,))  # whoever had the name
            moved = (old, partition.location) if change.moved and old and partition.location else None
            yield Follow((db, name, change.before), (db, name, change.name), moved)
        if not _differ(old, partition.location):
            return
        if not change.moved and settings.unreferenced and ALTER_PARTITION in settings.events:
            assert old is not None
            yield from self._left(record, db, name, [(change.name, old)], settings.unreferenced)
        if settings.expired:
            yield from self._lives(record, db, name, [(change.name, partition)], settings.expired, restarted=False)
        yield Again(_paths(partition.location), f"{db}.{name}/{change.name}")

    def _dropped_partitions(
        self, record: ChangeRecord, known: Known, db: str, name: str, names: tuple[str, ...]
    ) -> Iterator[Operation]:
        settings = read_settings(known.table(db, name), self.defaults)
        if settings.unreferenced and DROP_PARTITION in settings.events:
            gone = known.partitions_by_name(db, name, names)
            left = [(part, each.location) for part, each in gone.items() if each.location]
            yield from self._left(record, db, name, left, settings.unreferenced, dropped=True)
        yield Detach(db, name, names)

    def _lives(
        self,
        record: ChangeRecord,
        db: str,
        table: str,
        named: Sequence[tuple[str, Partition]],
        period: Period,
        *,
        restarted: bool,
    ) -> Iterator[Operation]:
        """Partitions that have a time to live, from when they were made."""
        items = [
            self._item(record, EXPIRED, db, table, name, each.location, each.create_time or record.time, period)
            for name, each in dict(named).items()
            if each.location
        ]
        if items:
            yield Put(items, period, restarted)

    def _left(
        self,
        record: ChangeRecord,
        db: str,
        table: str,
        left: Sequence[tuple[str, str]],
        period: Period,
        dropped: bool = False,
    ) -> Iterator[Operation]:
        """Locations that partitions have left behind."""
        items = [self._item(record, UNREFERENCED, db, table, part, old, record.time, period) for part, old in left]
        if items:
            yield Put(_distinct(items), period, dropped=dropped)

    # ---- items ----------------------------------------------------------------------------------------------------

    def _item(
        self,
        record: ChangeRecord,
        lifecycle: str,
        db: str,
        table: str,
        partition: str,
        path: str,
        created: int,
        period: Period,
    ) -> Item:
        return Item(
            lifecycle=lifecycle,
            db=db,
            table=table,
            partition=partition,
            path=path,
            place=normal(path) if path else "",
            status=SCHEDULED,
            created=created,
            modified=self.now,
            cleanup=period.end(created),
            delay=period.text,
            event=record.event,
        )

    def _trouble(self, record: ChangeRecord, lifecycle: str, db: str, name: str, table: Table, problem: str) -> Item:
        path = table.location or ""
        return Item(
            lifecycle=lifecycle,
            db=db,
            table=name,
            path=path,
            place=normal(path) if path else "",
            status=INVALID_CONFIG,
            reason=problem,
            created=record.time,
            modified=self.now,
            cleanup=record.time,
            delay="",
            event=record.event,
        )


def _distinct(items: Sequence[Item]) -> list[Item]:
    """One item a place: partitions may share one."""
    return list({each.place: each for each in items}.values())


def _differ(old: str | None, new: str | None) -> bool:
    return bool(old and new and normal(old) != normal(new))


def _paths(*locations: str | None) -> tuple[str, ...]:
    return tuple(normal(each) for each in locations if each)


def _name(table: Table) -> str:
    return f"{table.db}.{table.name}"
