"""The effect of a change in the captured log on housekeeping: from a record and the state before it to operations.
Pure.

Compatible with Beekeeper, except where that loses data; see docs/migrating.md. `schedule` carries the operations out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from cmroot.store.place import normal
from replicator.core.model import Database, Partition, Table, partition_name
from replicator.core.text import Period
from replicator.lifecycle.housekeeping.settings import (
    ALTER_PARTITION,
    ALTER_TABLE,
    DROP_PARTITION,
    DROP_TABLE,
    EXPIRED,
    NOTHING,
    UNREFERENCED,
    LifecycleDefaults,
    LifecycleSettings,
    read_settings,
)
from replicator.lifecycle.housekeeping.store import INVALID_CONFIG, SCHEDULED, SKIPPED, Item
from replicator.lifecycle.housekeeping.writing import NOT_ASKED, TABLES_STAY
from replicator.metastore.events import record as kinds
from replicator.metastore.events.record import ChangeRecord

# ---- operations ------------------------------------------------------------------------------------------------------
# Operations on items that follow from a change in the captured log: values of the decider. Pure.


@dataclass(frozen=True)
class Put:
    """Adds waiting items of one table and one period. restarted: their time begins now, even if it has begun before.
    dropped: they result from a drop, which may be one of housekeeping itself."""

    items: list[Item]
    period: Period
    restarted: bool = False
    dropped: bool = False


@dataclass(frozen=True)
class Detach:
    """Marks these objects as no longer existing; partitions None: the complete table."""

    db: str
    table: str
    partitions: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Disable:
    """Cancels a lifecycle that the table's owner has disabled."""

    db: str
    table: str
    lifecycle: str
    reason: str


@dataclass(frozen=True)
class Revive:
    """Schedules locations that the table left again, this long after `begins`: its owner has enabled the lifecycle."""

    db: str
    table: str
    period: Period
    begins: int


@dataclass(frozen=True)
class Retime:
    """Changes the period."""

    db: str
    table: str
    lifecycle: str
    period: Period


@dataclass(frozen=True)
class Switch:
    """Changes whether the table itself may be dropped."""

    db: str
    table: str
    drops: bool


@dataclass(frozen=True)
class Follow:
    """Renames (db, table, partition or None); moved: its directory was moved as well, from, to."""

    before: tuple[str, str, str | None]
    after: tuple[str, str, str | None]
    moved: tuple[str, str] | None


@dataclass(frozen=True)
class Again:
    """Cancels these paths, as an object refers to them again."""

    paths: tuple[str, ...]
    by: str


@dataclass(frozen=True)
class Trouble:
    """Records invalid properties of a table."""

    item: Item


@dataclass(frozen=True)
class Settle:
    """Resolves a Trouble: the properties are valid again, or removed."""

    db: str
    table: str
    lifecycle: str


Operation = Put | Detach | Disable | Revive | Retime | Switch | Follow | Again | Trouble | Settle


# ---- decide ----------------------------------------------------------------------------------------------------------


LIFECYCLES = (UNREFERENCED, EXPIRED)


class Known(Protocol):
    """The state before a record: the fold of the log."""

    def databases(self) -> list[Database]: ...

    def table(self, db: str, name: str) -> Table | None: ...

    def table_names(self, db: str) -> list[str]: ...

    def partitions(self, db: str, name: str, batch: int = ...) -> Iterator[list[Partition]]: ...

    def partitions_by_name(self, db: str, name: str, names: Sequence[str]) -> dict[str, Partition]: ...


@dataclass(frozen=True)
class Decider:
    """A decider for one record. known: the state before it, while operations are iterated; now: in seconds since
    1970."""

    defaults: LifecycleDefaults
    now: int
    known: Known
    record: ChangeRecord

    def operations(self) -> Iterator[Operation]:
        """Yields the operations of the record, in order."""
        match self.record.change:
            case kinds.CreateTable(table=table):
                yield from self._gone(table.db, table.name)
                yield from self._table(None, table, NOTHING)
                yield Again(_paths(table.location), _name(table))
            case kinds.AlterTable() as change:
                yield from self._altered(change)
            case kinds.DropTable(db=db, name=name):
                yield from self._gone(db, name)
            case kinds.DropDatabase(db=db):
                for name in self.known.table_names(db):
                    yield from self._gone(db, name)
            case kinds.AddPartitions() as change:
                yield from self._added(change)
            case kinds.AlterPartition() as change:
                yield from self._altered_partition(change)
            case kinds.DropPartitions(db=db, table=name, names=names):
                yield from self._dropped_partitions(db, name, names)
            case _:
                return

    def reconsidered(self, before: LifecycleDefaults) -> Iterator[Operation]:
        """Yields the operations for every known table after a change of the defaults, which were `before`."""
        for database in self.known.databases():
            for name in self.known.table_names(database.name):
                table = self.known.table(database.name, name)
                old = read_settings(table, before)
                if table is not None and old != read_settings(table, self.defaults):
                    yield from self._table(table, table, old)

    # ---- tables ---------------------------------------------------------------------------------------------------

    def _table(self, before: Table | None, table: Table, old: LifecycleSettings) -> Iterator[Operation]:
        """Yields the operations for properties that differ from `old`. Items have the previous name of the table until
        `Follow`."""
        new = read_settings(table, self.defaults)
        db, name = (before.db, before.name) if before else (table.db, table.name)
        for lifecycle in LIFECYCLES:
            problem = new.problems.get(lifecycle)
            if problem:
                if problem != old.problems.get(lifecycle):
                    one = self._item(lifecycle, db, name, "", table.location or "", self.record.time)
                    yield Trouble(replace(one, status=INVALID_CONFIG, reason=problem))
                continue
            if lifecycle in old.problems:
                yield Settle(db, name, lifecycle)
            period, earlier = new.period(lifecycle), old.period(lifecycle)
            if period is None:
                if earlier or lifecycle in old.problems:
                    yield Disable(db, name, lifecycle, f"event {self.record.event}: {NOT_ASKED}")
            elif earlier is not None and earlier.text != period.text:
                yield Retime(db, name, lifecycle, period)
            elif earlier is None and lifecycle == UNREFERENCED and before is not None:
                yield from self._revived(before, table, period)
        if new.expired is not None and EXPIRED not in new.problems:
            yield from self._expiring(before, table, old, new)

    def _revived(self, before: Table, table: Table, period: Period) -> Iterator[Operation]:
        """Revives locations that the table left while the lifecycle was off, except those that it refers to now."""
        yield Revive(before.db, before.name, period, self.record.time)
        yield Again(_paths(before.location, table.location), _name(table))
        for partitions in self.known.partitions(before.db, before.name):
            yield Again(_paths(*(each.location for each in partitions)), _name(table))

    def _expiring(
        self, before: Table | None, table: Table, old: LifecycleSettings, new: LifecycleSettings
    ) -> Iterator[Operation]:
        db, name = (before.db, before.name) if before else (table.db, table.name)
        assert new.expired is not None
        begins = old.expired is None
        if begins or (before is not None and before.location != table.location):
            created = (table.create_time or self.record.time) if before is None else self.record.time
            own = self._item(EXPIRED, db, name, "", table.location or "", created, new.expired)
            if own.path:
                if not new.drops_table:
                    own = replace(own, status=SKIPPED, reason=TABLES_STAY)
                yield Put([own], new.expired)
        if not begins and old.drops_table != new.drops_table:
            yield Switch(db, name, new.drops_table)
        if begins and before is not None:
            for partitions in self.known.partitions(before.db, before.name):
                named = [(partition_name(table.partition_keys, each.values), each) for each in partitions]
                yield from self._lives(db, name, named, new.expired, restarted=False)

    def _altered(self, change: kinds.AlterTable) -> Iterator[Operation]:
        table, before = change.table, self.known.table(change.db, change.name)
        if change.renames:
            yield from self._gone(table.db, table.name)  # any table that had the name
        yield from self._table(before, table, read_settings(before, self.defaults))
        old = change.location_before or (before.location if before else None)
        if change.renames:
            moved = (old, table.location) if change.moved and old and table.location else None
            yield Follow((change.db, change.name, None), (table.db, table.name, None), moved)
        if _differ(old, table.location) and not table.is_view:
            settings = read_settings(table, self.defaults)
            if not change.moved and settings.unreferenced and ALTER_TABLE in settings.events:
                assert old is not None
                one = self._item(UNREFERENCED, table.db, table.name, "", old, self.record.time, settings.unreferenced)
                yield Put([one], settings.unreferenced)
            yield Again(_paths(table.location), _name(table))

    def _gone(self, db: str, name: str) -> Iterator[Operation]:
        table = self.known.table(db, name)
        if table is None:
            return
        settings = read_settings(table, self.defaults)
        if settings.unreferenced and DROP_TABLE in settings.events and table.location:
            own = self._item(UNREFERENCED, db, name, "", table.location, self.record.time, settings.unreferenced)
            yield Put([own], settings.unreferenced, dropped=True)
            below = own.place + "/"
            for partitions in self.known.partitions(db, name):
                elsewhere = [
                    self._item(
                        UNREFERENCED,
                        db,
                        name,
                        partition_name(table.partition_keys, each.values),
                        each.location or "",
                        self.record.time,
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

    def _added(self, change: kinds.AddPartitions) -> Iterator[Operation]:
        table = self.known.table(change.db, change.table)
        named = list(zip(change.partition_names, change.partitions, strict=True))
        settings = read_settings(table, self.defaults)
        if settings.unreferenced and ALTER_PARTITION in settings.events:
            before = self.known.partitions_by_name(change.db, change.table, [name for name, _ in named])
            left = [
                (name, old)
                for name, each in named
                if name in before and (old := before[name].location) and _differ(old, each.location)
            ]
            yield from self._left(change.db, change.table, left, settings.unreferenced)
        if settings.expired:
            yield from self._lives(change.db, change.table, named, settings.expired, restarted=change.replace)
        yield Again(_paths(*(each.location for each in change.partitions)), f"{change.db}.{change.table}")

    def _altered_partition(self, change: kinds.AlterPartition) -> Iterator[Operation]:
        db, name, partition = change.db, change.table, change.partition
        settings = read_settings(self.known.table(db, name), self.defaults)
        before = self.known.partitions_by_name(db, name, [change.before]).get(change.before)
        old = change.location_before or (before.location if before else None)
        if change.before != change.name:
            yield Detach(db, name, (change.name,))  # any partition that had the name
            moved = (old, partition.location) if change.moved and old and partition.location else None
            yield Follow((db, name, change.before), (db, name, change.name), moved)
        if not _differ(old, partition.location):
            return
        if not change.moved and settings.unreferenced and ALTER_PARTITION in settings.events:
            assert old is not None
            yield from self._left(db, name, [(change.name, old)], settings.unreferenced)
        if settings.expired:
            yield from self._lives(db, name, [(change.name, partition)], settings.expired, restarted=False)
        yield Again(_paths(partition.location), f"{db}.{name}/{change.name}")

    def _dropped_partitions(self, db: str, name: str, names: tuple[str, ...]) -> Iterator[Operation]:
        settings = read_settings(self.known.table(db, name), self.defaults)
        if settings.unreferenced and DROP_PARTITION in settings.events:
            gone = self.known.partitions_by_name(db, name, names)
            left = [(part, each.location) for part, each in gone.items() if each.location]
            yield from self._left(db, name, left, settings.unreferenced, dropped=True)
        yield Detach(db, name, names)

    def _lives(
        self, db: str, table: str, named: Sequence[tuple[str, Partition]], period: Period, *, restarted: bool
    ) -> Iterator[Operation]:
        """Schedules partitions with a time to live, from their creation."""
        items = [
            self._item(EXPIRED, db, table, name, each.location, each.create_time or self.record.time, period)
            for name, each in dict(named).items()
            if each.location
        ]
        if items:
            yield Put(items, period, restarted)

    def _left(
        self, db: str, table: str, left: Sequence[tuple[str, str]], period: Period, dropped: bool = False
    ) -> Iterator[Operation]:
        """Schedules locations that partitions no longer use."""
        items = [self._item(UNREFERENCED, db, table, part, old, self.record.time, period) for part, old in left]
        if items:
            yield Put(_distinct(items), period, dropped=dropped)

    # ---- items ----------------------------------------------------------------------------------------------------

    def _item(
        self, lifecycle: str, db: str, table: str, partition: str, path: str, created: int, period: Period | None = None
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
            cleanup=period.end(created) if period else created,
            delay=period.text if period else "",
            event=self.record.event,
        )


def _distinct(items: Sequence[Item]) -> list[Item]:
    """Returns one item a path, which several partitions may share."""
    return list({each.place: each for each in items}.values())


def _differ(old: str | None, new: str | None) -> bool:
    return bool(old and new and normal(old) != normal(new))


def _paths(*locations: str | None) -> tuple[str, ...]:
    return tuple(normal(each) for each in locations if each)


def _name(table: Table) -> str:
    return f"{table.db}.{table.name}"
