"""ChangeRecord: one change of the warehouse in our words, with its place in the captured log.

Here are the kinds of change and their JSON. What a notification event means is in `decode`, what a record does to the
known state in `manifest`, what it does to a target in `replicator.replay.plan.squash`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec

from cmroot.errors import UNREADABLE, FormatError
from cmroot.names import HINT, LARGEST, check_below, check_name, foreign
from replicator.core.model import Column, Database, Function, Partition, Statistics, Table, Value, partition_name
from replicator.metastore.convert.homes import NEVER_EXTRA


class CreateDatabase(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="create_database"):
    """A database exists from here on, with these properties."""

    database: Database


class AlterDatabase(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="alter_database"):
    """A database has these properties from here on."""

    database: Database


class DropDatabase(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="drop_database"):
    """A database and all in it is gone."""

    db: str


class CreateTable(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="create_table"):
    """A table or view exists from here on; whatever had its name before is gone, its partitions and files too."""

    table: Table


class AlterTable(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="alter_table"):
    """A table is `table` from here on. A rename when `db`.`name`, the name before, differs from the table's.

    `moved`: its directory moved along (partitions below it too), so its files are the same ones at a new place.
    Without it a new location means other files."""

    db: str
    name: str
    table: Table
    moved: bool = False
    location_before: str | None = None

    @property
    def renames(self) -> bool:
        return (self.db, self.name) != (self.table.db, self.table.name)


class DropTable(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="drop_table"):
    """A table, its partitions and its files are gone."""

    db: str
    name: str


class AddPartitions(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="add_partitions"):
    """These partitions exist from here on. With `replace` (a partition was added) their files begin anew, even where
    one of that name was known; without it (a batch of alters) known files stay."""

    db: str
    table: str
    keys: tuple[str, ...]
    partitions: tuple[Partition, ...]
    replace: bool = True

    def names(self) -> list[str]:
        return list(partition_names(self.keys, self.partitions))


class AlterPartition(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="alter_partition"):
    """A partition is `partition` from here on. A rename when `before`, its name until now, differs from `name`;
    `moved` as for a table."""

    db: str
    table: str
    before: str
    name: str
    partition: Partition
    moved: bool = False
    location_before: str | None = None


class DropPartitions(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="drop_partitions"):
    """Partitions, by escaped name, and their files are gone."""

    db: str
    table: str
    names: tuple[str, ...]


class ChangeFiles(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="change_files"):
    """Data was written or removed; the record's file entries say which, and in which partitions. `partition` is the one
    that an INSERT event named; an observed change names none."""

    db: str
    table: str
    partition: str | None = None


class AlterIndex(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="alter_index"):
    """A Hive 2.3 index was created or altered (`index`, thrift TJSON) or dropped (None). Recorded, not replicated:
    Hive 3 removed indexes, and their tables are ordinary tables."""

    db: str
    table: str
    name: str
    index: dict[str, Any] | None = None


class CreateFunction(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="create_function"):
    """A function exists from here on as given, replacing one of the same name."""

    function: Function


class DropFunction(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="drop_function"):
    """A function is gone."""

    db: str
    name: str


class SetStatistics(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="set_statistics"):
    """Column statistics of a table, or of partitions of it, are these from here on; without columns there are none."""

    db: str
    table: str
    statistics: tuple[Statistics, ...]


class UnknownEvent(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="unknown_event"):
    """A notification this release cannot read, kept as it came. It is reported, and changes nothing on a target."""

    type: str
    db: str | None = None
    table: str | None = None
    message: str | None = None
    format: str | None = None


class EventsRead(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="events_read"):
    """Events up to the record's `event` were read and none of them concerned a captured database."""


class EventsLost(Value, frozen=True, omit_defaults=True, tag_field="kind", tag="events_lost"):
    """Events after `after` and before `next` were cleaned away before they were read. `repaired`: every captured
    database was compared with the metastore afterwards and the differences follow as observed changes."""

    after: int
    next: int
    repaired: bool = False


Change = (
    CreateDatabase
    | AlterDatabase
    | DropDatabase
    | CreateTable
    | AlterTable
    | DropTable
    | AddPartitions
    | AlterPartition
    | DropPartitions
    | ChangeFiles
    | AlterIndex
    | CreateFunction
    | DropFunction
    | SetStatistics
    | UnknownEvent
    | EventsRead
    | EventsLost
)


Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Moment = Annotated[int, msgspec.Meta(ge=0, le=253402300799)]  # to the end of the year 9999, where calendars end


class ChangeRecord(Value, frozen=True, omit_defaults=True):
    """A change with its place: `position` orders all records of one captured log, without holes, from 1.

    `event` is the id of the notification it comes from, or, for an observed change, of the last one read before it;
    `time` is the event's, or the moment of observation, in seconds."""

    position: Number
    event: Number
    time: Moment
    change: Change
    observed: bool = False


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ChangeRecord)
_table_decoder = msgspec.json.Decoder(Table)


def encode(record: ChangeRecord) -> bytes:
    """One line of JSON, without the line end."""
    return _encoder.encode(record)


def decode_line(line: bytes, place: str = "") -> ChangeRecord:
    """The record of one line of the file at `place`. Raises FormatError for anything that is not one, and for one
    whose names lead elsewhere than below their database."""
    try:
        record = _decoder.decode(line)
    except UNREADABLE as error:
        raise FormatError(f"{place}: not a change record: {error}: {line[:200]!r}", hint=HINT) from error
    _check_change(record.change, place)
    return record


def decode_table(line: bytes, place: str) -> Table:
    """The table of one line. Raises FormatError as `decode_line`."""
    try:
        table = _table_decoder.decode(line)
    except UNREADABLE as error:
        raise FormatError(f"{place}: not a table: {error}: {line[:200]!r}", hint=HINT) from error
    _check_table(place, table.db, table.name)
    _check_fields(table, place)
    return table


def _check_change(change: Change, place: str) -> None:
    """Names of databases, tables and partitions become parts of paths, here and on the target."""
    if isinstance(change, UnknownEvent):  # kept as it came, nothing is called by it
        return
    match change:
        case AlterTable(db=db, name=name):
            _check_table(place, db, name)
        case AlterPartition(before=before, name=after):
            check_below(place, "partition", (before, after))
        case DropPartitions(names=names):
            check_below(place, "partition", names)
        case ChangeFiles(partition=str(partition)):
            check_below(place, "partition", (partition,))
        case SetStatistics(statistics=statistics):
            check_below(place, "partition", (each.partition for each in statistics if each.partition is not None))
    _check_extra(change, place)
    if (table := touched_table(change)) is not None:
        _check_table(place, *table)
    elif (database := touched_db(change)) is not None:
        check_name(place, "database", database)


def _check_extra(change: Change, place: str) -> None:
    match change:
        case CreateDatabase(database=thing) | AlterDatabase(database=thing):
            _check_fields(thing, place)
        case CreateTable(table=table) | AlterTable(table=table):
            _check_fields(table, place)
        case AlterPartition(partition=partition):
            _check_fields(partition, place)
        case CreateFunction(function=function):
            _check_fields(function, place)
        case AddPartitions(partitions=partitions):
            for partition in partitions:
                _check_fields(partition, place)


def _check_fields(thing: Database | Table | Partition | Function, place: str) -> None:
    """What a value keeps of fields without a home must not be a second name, or a second location."""
    storage = thing.storage if isinstance(thing, Table | Partition) else None
    for value in (thing, storage, storage.serde if storage else None):
        if value is not None and value.extra and not NEVER_EXTRA[type(value)].isdisjoint(value.extra):
            raise foreign(place, "the fields", sorted(value.extra), "have a home of their own")


def _check_table(place: str, db: str, name: str) -> None:
    """A table's name may hold a slash (hive.support.special.characters.tablename); a database's may not."""
    check_name(place, "database", db)
    check_below(place, "table", (name,))


def partition_names(keys: Iterable[str], partitions: Iterable[Partition]) -> Iterator[str]:
    """Escaped names of partitions, given the names of the partition keys."""
    columns = tuple(Column(name=key, type="string") for key in keys)
    return (partition_name(columns, partition.values) for partition in partitions)


def touched_table(change: Change) -> tuple[str, str] | None:
    """The table a change is about, by the name it has afterwards; None for databases, functions and markers."""
    match change:
        case CreateTable(table=table) | AlterTable(table=table):
            return table.db, table.name
        case DropTable(db=db, name=name):
            return db, name
        case (
            AddPartitions(db=db, table=name)
            | AlterPartition(db=db, table=name)
            | DropPartitions(db=db, table=name)
            | ChangeFiles(db=db, table=name)
            | AlterIndex(db=db, table=name)
            | SetStatistics(db=db, table=name)
        ):
            return db, name
        case _:
            return None


def touched_db(change: Change) -> str | None:
    """The database a change is about; None for markers."""
    table = touched_table(change)
    if table is not None:
        return table[0]
    match change:
        case CreateDatabase(database=database) | AlterDatabase(database=database):
            return database.name
        case CreateFunction(function=function):
            return function.db
        case DropDatabase(db=db) | DropFunction(db=db):
            return db
        case UnknownEvent(db=db):
            return db
        case _:
            return None
