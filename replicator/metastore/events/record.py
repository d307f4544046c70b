"""ChangeRecord: one change of the warehouse, with its position in the captured log.

Contains the kinds of change and their properties; section `lines` has their JSON. `decode` converts notification events
to changes, `replicator.captures.apply` applies records to the known state, and `replicator.replay.squash` applies
them to a target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from cmroot.errors import UNREADABLE, FormatError
from cmroot.names import HINT, LARGEST, check_below, check_name, foreign
from replicator.core.model import (
    Column,
    Constraint,
    Database,
    Function,
    Name,
    Partition,
    Statistics,
    Table,
    Value,
    partition_name,
)
from replicator.metastore.events.facts import Facts, OfDatabase, OfTable, Unannounced
from replicator.metastore.events.facts import SetGrants as SetGrants
from replicator.metastore.events.facts import SetRoles as SetRoles
from replicator.metastore.events.facts import SetWriteIds as SetWriteIds
from replicator.metastore.objects import HOMES


class CreateDatabase(OfDatabase, frozen=True, omit_defaults=True, tag_field="kind", tag="create_database"):
    """A database exists from here on, with these properties."""

    @property
    def creates(self) -> Database:
        return self.database


class AlterDatabase(OfDatabase, frozen=True, omit_defaults=True, tag_field="kind", tag="alter_database"):
    """A database has these properties from here on."""

    @property
    def altered_database(self) -> Database:
        return self.database


class DropDatabase(Facts, frozen=True, omit_defaults=True, tag_field="kind", tag="drop_database"):
    """A database and all its contents are dropped."""

    db: str

    @property
    def touched_db(self) -> str:
        return self.db


class CreateTable(Facts, frozen=True, omit_defaults=True, tag_field="kind", tag="create_table"):
    """A table or view exists from here on. A table that had its name is dropped, with its partitions and files."""

    table: Table

    @property
    def objects(self) -> tuple[Table]:
        return (self.table,)

    @property
    def touched(self) -> Name:
        return (self.table.db, self.table.name)

    @property
    def creates(self) -> Table:
        return self.table

    @property
    def detail(self) -> str:
        return f"{self.table.kind} {self.table.location or ''}".strip()


class AlterTable(Facts, frozen=True, omit_defaults=True, tag_field="kind", tag="alter_table"):
    """A table is `table` from here on. It is a rename if `db`.`name`, the name before, differs from the table's.

    `moved`: its directory moved along (with partitions below it), so its files are the same at a new location. Without
    it, a new location means other files."""

    db: str
    name: str
    table: Table
    moved: bool = False
    location_before: str | None = None

    @property
    def objects(self) -> tuple[Table]:
        return (self.table,)

    @property
    def touched(self) -> Name:
        return (self.table.db, self.table.name)

    @property
    def rename(self) -> tuple[Name, Name] | None:
        before = (self.db, self.name)
        return (before, self.touched) if before != self.touched else None

    @property
    def renames(self) -> bool:
        return self.rename is not None

    @property
    def object(self) -> str:
        return f"{self.db}.{self.name}"

    @property
    def detail(self) -> str:
        renamed = f"renamed to {'.'.join(self.touched)}" if self.rename else ""
        return " ".join(filter(None, [renamed, "moved" if self.moved else ""]))


class DropTable(Facts, frozen=True, omit_defaults=True, tag_field="kind", tag="drop_table"):
    """A table, its partitions and its files are dropped."""

    db: str
    name: str

    @property
    def touched(self) -> Name:
        return (self.db, self.name)


class AddPartitions(OfTable, frozen=True, omit_defaults=True, tag_field="kind", tag="add_partitions"):
    """These partitions exist from here on. With `replace` (partitions were added) they start without files, even if
    partitions of these names were known; without it (a batch of alters) known files are retained."""

    keys: tuple[str, ...]
    partitions: tuple[Partition, ...]
    replace: bool = True

    @property
    def written_partitions(self) -> tuple[()]:
        return ()

    @property
    def objects(self) -> tuple[Partition, ...]:
        return self.partitions

    @property
    def partition_names(self) -> tuple[str, ...]:
        return tuple(partition_names(self.keys, self.partitions))

    @property
    def size(self) -> int:
        return len(self.partitions)

    @property
    def detail(self) -> str:
        return _some(self.partition_names)


class AlterPartition(OfTable, frozen=True, omit_defaults=True, tag_field="kind", tag="alter_partition"):
    """A partition is `partition` from here on. It is a rename if `before`, its name until now, differs from `name`;
    `moved` as for a table."""

    before: str
    name: str
    partition: Partition
    moved: bool = False
    location_before: str | None = None

    @property
    def objects(self) -> tuple[Partition]:
        return (self.partition,)

    @property
    def rename(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        return ((*self.touched, self.before), (*self.touched, self.name)) if self.before != self.name else None

    @property
    def partition_names(self) -> tuple[str, ...]:
        return (self.before, self.name) if self.rename else (self.name,)

    @property
    def detail(self) -> str:
        return self.before + (f" renamed to {self.name}" if self.rename else "")


class DropPartitions(OfTable, frozen=True, omit_defaults=True, tag_field="kind", tag="drop_partitions"):
    """Partitions, by escaped name, are dropped with their files."""

    names: tuple[str, ...]

    @property
    def partition_names(self) -> tuple[str, ...]:
        return self.names

    @property
    def detail(self) -> str:
        return _some(self.names)


class ChangeFiles(OfTable, frozen=True, omit_defaults=True, tag_field="kind", tag="change_files"):
    """Data was written or removed; the record's file entries contain the files and their partitions. `partition` is the
    one that an INSERT event named; an observed change names none."""

    partition: str | None = None

    @property
    def partition_names(self) -> tuple[str, ...]:
        return (self.partition,) if self.partition is not None else ()

    @property
    def detail(self) -> str:
        return self.partition or ""


class AlterIndex(OfTable, frozen=True, omit_defaults=True, tag_field="kind", tag="alter_index"):
    """A Hive 2.3 index was created or altered (`index`, thrift TJSON) or dropped (None). Recorded, not replicated: Hive
    3 removed indexes, and their tables are ordinary tables."""

    name: str
    index: dict[str, Any] | None = None

    @property
    def detail(self) -> str:
        return f"index {self.name}"


class CreateFunction(Facts, frozen=True, omit_defaults=True, tag_field="kind", tag="create_function"):
    """A function exists from here on with this definition, replacing one of the same name."""

    function: Function

    @property
    def objects(self) -> tuple[Function]:
        return (self.function,)

    @property
    def touched_db(self) -> str:
        return self.function.db

    @property
    def object(self) -> str:
        return f"{self.function.db}.{self.function.name}"

    @property
    def detail(self) -> str:
        return self.function.class_name


class DropFunction(Facts, frozen=True, omit_defaults=True, tag_field="kind", tag="drop_function"):
    """A function is dropped."""

    db: str
    name: str

    @property
    def touched_db(self) -> str:
        return self.db

    @property
    def object(self) -> str:
        return f"{self.db}.{self.name}"


class SetStatistics(OfTable, frozen=True, omit_defaults=True, tag_field="kind", tag="set_statistics"):
    """Column statistics of a table or its partitions are these from here on; without columns there are none. Without
    `whole`, as decoded from events, it only names the objects with changed statistics; captures record all."""

    statistics: tuple[Statistics, ...]
    whole: bool = True

    @property
    def written_partitions(self) -> tuple[str, ...]:
        return tuple(each.partition for each in self.statistics if each.partition is not None)

    @property
    def detail(self) -> str:
        return f"{len(self.statistics)} of table or partitions"


class SetConstraints(OfTable, frozen=True, omit_defaults=True, tag_field="kind", tag="set_constraints"):
    """The constraints of a table are these from here on. Without `whole`, as decoded from events, they are added to the
    existing ones without the `dropped`; captures complete such a change before they record it."""

    constraints: tuple[Constraint, ...] = ()
    whole: bool = True
    dropped: tuple[str, ...] = ()

    @property
    def detail(self) -> str:
        return "; ".join(map(str, self.constraints)) or "none"


class UnknownEvent(Facts, frozen=True, omit_defaults=True, tag_field="kind", tag="unknown_event"):
    """A notification that this release cannot parse, stored unchanged. It is reported; targets do not change."""

    type: str
    db: str | None = None
    table: str | None = None
    message: str | None = None
    format: str | None = None

    @property
    def touched_db(self) -> str | None:
        return self.db

    @property
    def unread(self) -> str:
        return self.type

    @property
    def object(self) -> str:
        return ".".join(filter(None, [self.db, self.table]))

    @property
    def detail(self) -> str:
        return self.type


class EventsRead(Facts, frozen=True, omit_defaults=True, tag_field="kind", tag="events_read"):
    """Events up to the record's `event` were read, and none of them concerned a captured database."""

    @property
    def is_marker(self) -> bool:
        return True


class EventsLost(Facts, frozen=True, omit_defaults=True, tag_field="kind", tag="events_lost"):
    """Events after `after` and before `next` were deleted by the server before they were read. `repaired`: every
    captured database was compared with the metastore afterwards, and the differences follow as observed changes."""

    after: int
    next: int
    repaired: bool = False

    @property
    def lost(self) -> range:
        return range(self.after + 1, self.next)

    @property
    def is_repaired(self) -> bool:
        return self.repaired

    @property
    def detail(self) -> str:
        return f"events {self.after + 1} to {self.next - 1}" + (", repaired" if self.repaired else "")


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
    | SetConstraints
    | Unannounced
    | UnknownEvent
    | EventsRead
    | EventsLost
)

Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Moment = Annotated[int, msgspec.Meta(ge=0, le=253402300799)]  # to the end of the year 9999, the maximum of calendars


class ChangeRecord(Value, frozen=True, omit_defaults=True):
    """A change with its position: `position` orders all records of one captured log, without gaps, from 1.

    `event` is the id of its notification, or, for an observed change, of the last one read before it; `time` is the
    time of the event or of the observation, in seconds."""

    position: Number
    event: Number
    time: Moment
    change: Change
    observed: bool = False


def partition_names(keys: Iterable[str], partitions: Iterable[Partition]) -> Iterator[str]:
    """Returns the escaped names of partitions. `keys`: the names of the partition keys."""
    columns = tuple(Column(name=key, type="string") for key in keys)
    return (partition_name(columns, partition.values) for partition in partitions)


def _some(names: tuple[str, ...]) -> str:
    """Formats partition names for display."""
    if len(names) < 2:
        return "".join(names)
    return f"{len(names)} partitions, {names[0]} to {names[-1]}"


# ---- lines -----------------------------------------------------------------------------------------------------------
# Records as lines of JSON, in the captured log and in dumps, and the checks of lines from untrusted writers.

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ChangeRecord)
_table_decoder = msgspec.json.Decoder(Table)


def encode(record: ChangeRecord) -> bytes:
    """Returns one line of JSON, without the line end."""
    return _encoder.encode(record)


def decode_line(line: bytes, place: str = "") -> ChangeRecord:
    """Returns the record in a line of the file at `place`. Raises FormatError if it is none, or names lead outside."""
    try:
        record = _decoder.decode(line)
    except UNREADABLE as error:
        raise FormatError(f"{place}: not a change record: {error}: {line[:200]!r}", hint=HINT) from error
    _check_change(record.change, place)
    return record


def decode_table(line: bytes, place: str) -> Table:
    """Returns the table in one line. Raises FormatError as `decode_line` does."""
    try:
        table = _table_decoder.decode(line)
    except UNREADABLE as error:
        raise FormatError(f"{place}: not a table: {error}: {line[:200]!r}", hint=HINT) from error
    _check_table(place, table.db, table.name)
    _check_fields(table, place)
    return table


def _check_change(change: Change, place: str) -> None:
    """Checks the names of databases, tables and partitions: they become parts of paths, here and on the target."""
    if change.unread is not None:  # stored unchanged, its names are not used
        return
    tables = change.tables
    for table in tables:
        _check_table(place, *table)
    if not tables and change.touched_db is not None:
        check_name(place, "database", change.touched_db)
    check_below(place, "partition", change.written_partitions)
    for obj in change.objects:
        _check_fields(obj, place)


def _check_fields(obj: Database | Table | Partition | Function, place: str) -> None:
    """Checks that the unmapped fields of an object do not contain a second name or location."""
    storage = obj.storage if isinstance(obj, Table | Partition) else None
    for value in (obj, storage, storage.serde if storage else None):
        if value is not None and value.extra and not HOMES[type(value)].isdisjoint(value.extra):
            raise foreign(place, "the fields", sorted(value.extra), "are stored in fields of their own")


@lru_cache(maxsize=1024)  # most records of a file are about few tables; exceptions are not cached
def _check_table(place: str, db: str, name: str) -> None:
    """A table's name may contain a slash (hive.support.special.characters.tablename); a database's may not."""
    check_name(place, "database", db)
    check_below(place, "table", (name,))
