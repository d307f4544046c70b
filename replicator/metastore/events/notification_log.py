"""The notification log: reads its events without a gap, and decodes each into a change.

Reading: the thrift call checks nothing, so ids must continue from the cursor, and an empty answer is accepted only if
the newest id equals the cursor (docs/design.md, invariant 2). A 2.3 server with several writers may assign one id to
two rows, the second of which appears behind a reader: each read looks back and returns such rows as `late`.
Decoding is pure. Messages of Hive 2.3 to 4.2 are JSON text, or base64 of gzip of JSON, with metadata objects as thrift
TJSON strings. An event that changes nothing here becomes a marker; one that cannot be parsed an UnknownEvent.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from cmroot.errors import FormatError
from cmroot.keep.hdfs_keepers import ChangeManager
from cmroot.log.segment import LINE_BYTES
from replicator.core.model import (
    CHECK,
    DEFAULT,
    FOREIGN_KEY,
    NOT_NULL,
    PRIMARY_KEY,
    UNIQUE,
    Column,
    Database,
    NotificationEvent,
    Statistics,
    Table,
    Value,
    partition_name,
)
from replicator.errors import ObjectNotFound, Refused
from replicator.metastore.client import EVENT_BATCH, MetastoreReader
from replicator.metastore.concurrency import is_since_3
from replicator.metastore.constraints import KINDS, of_message
from replicator.metastore.events import record as kinds
from replicator.metastore.events.record import Change
from replicator.metastore.events.scope import is_irrelevant
from replicator.metastore.requests import (
    database_from_text,
    function_from_text,
    partition_from_text,
    place_from_text,
    table_from_text,
)

TRANSACTIONS = ("ALLOC_WRITE_ID_EVENT", "COMMIT_TXN", "ABORT_TXN")  # since Hive 3: who has a write id, and its end

LOOK_BACK = 200  # ids; a row appears behind the reader only while its writer's transaction is open


@dataclass(frozen=True)
class EventsRead:
    """The result of a read: `events` after the cursor in order, new `late` rows at or before it, the ids around the
    first gap, if any (last id before it, first id after it), and True in `more` if there are more events."""

    events: list[NotificationEvent] = field(default_factory=list)
    late: list[NotificationEvent] = field(default_factory=list)
    hole: tuple[int, int] | None = None
    seen: dict[str, int] = field(default_factory=dict)  # digest of each row near the new cursor -> its id
    more: bool = False


def read_events(
    source: MetastoreReader,
    cursor: int,
    seen: dict[str, int],
    settled: Callable[[], int | None] = lambda: None,
    *,
    limit: int | None = None,
) -> EventsRead:
    """Returns all events after `cursor`, up to the newest id now; with `limit`, only some of them: after an outage the
    log may be larger than memory.

    `seen`: the value of `seen` that the last read returned. `settled`: called after the rows are read; returns the last
    id that may be used already (None: all). Raises Refused if the log's newest id is smaller than the cursor."""
    newest = source.current_event_id()
    if newest < cursor:
        raise Refused(
            f"the metastore's newest event is {newest}, but event {cursor} was read from it before: "
            "it is another metastore, or was restored from a backup",
            hint="use another $cmroot for another metastore; after a restore start with a new $cmroot and a bootstrap",
        )
    rows, more = _fetch(source, cursor, newest, limit)
    if more:
        newest = rows[-1].id
    last_settled = settled()
    if last_settled is not None and last_settled < newest:
        newest, more = max(last_settled, cursor), False
        rows = [row for row in rows if row.id <= newest]
    events = [row for row in rows if row.id > cursor]
    late = [row for row in rows if row.id <= cursor and digest(row) not in seen] if seen else []
    last = events[-1].id if events else cursor
    remembered = {digest(row): row.id for row in rows if row.id > last - LOOK_BACK}
    return EventsRead(events=events, late=late, hole=find_hole(cursor, events, newest), seen=remembered, more=more)


def _fetch(
    source: MetastoreReader, cursor: int, newest: int, limit: int | None
) -> tuple[list[NotificationEvent], bool]:
    """Returns the rows from shortly before the cursor up to `newest`, by id, and True if the limit cut them short."""
    rows: list[NotificationEvent] = []
    after, more = max(0, cursor - LOOK_BACK), False
    while after < newest and not more:
        page = source.next_events(after, EVENT_BATCH)
        if not page:
            break
        if len(page) == EVENT_BATCH and page[0].id != page[-1].id:
            page = [row for row in page if row.id < page[-1].id]  # a page may end between rows that share the last id
        rows += page
        after = page[-1].id
        more = limit is not None and len(rows) >= limit and cursor < after < newest
    return sorted((row for row in rows if row.id <= newest), key=lambda row: row.id), more


def find_hole(cursor: int, events: Sequence[NotificationEvent], newest: int) -> tuple[int, int] | None:
    """Returns the first gap in the ids between the cursor and the newest event; None if every id exists."""
    last = cursor
    for event in events:
        if event.id > last + 1:
            return last, event.id
        last = event.id
    return (last, newest + 1) if last < newest else None


def digest(event: NotificationEvent) -> str:
    """Returns the identity of a row, because ids may repeat."""
    text = "\0".join(str(part) for part in (event.id, event.type, event.db, event.table, event.message))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


# ---- recycling -------------------------------------------------------------------------------------------------------
# Settings of the metastore's own change manager, which retains dropped files (`hive.repl.cm.enabled`).


SOURCE_FOR = "repl.source.for"


def change_manager(metastore: MetastoreReader, databases: Collection[str]) -> ChangeManager:
    """Returns its root and retention, or why it would not retain these databases' files; one call per database."""
    if metastore.setting("hive.repl.cm.enabled").strip().lower() != "true":
        return ChangeManager(why_not=f"hive.repl.cm.enabled of {metastore.uri} is not true")
    place, retain = metastore.setting("hive.repl.cmrootdir"), metastore.setting("hive.repl.cm.retain")
    since_3 = is_since_3(metastore)
    if since_3 and (unmarked := [name for name in databases if not _is_marked(metastore, name)]):
        return ChangeManager(
            why_not=f"since Hive 3 databases need the property {SOURCE_FOR}: {', '.join(unmarked[:10])}"
        )
    return ChangeManager(place, retain, managed_only=since_3)


def _is_marked(metastore: MetastoreReader, name: str) -> bool:
    try:
        return bool(metastore.database(name).parameters.get(SOURCE_FOR))
    except ObjectNotFound:  # dropped
        return True


# ---- decoding of an event into a change ------------------------------------------------------------------------------


_GZIP_FORMATS = ("gzip", "gzip(json-2.0)")
MESSAGE_BYTES = LINE_BYTES
"""Maximum bytes of a message that is parsed, uncompressed. A longer one is stored unchanged, and its table compared."""
_PIECE = 4 << 20
KEPT_MESSAGE = 16 << 20
"""The maximum length stored of a message that cannot be parsed, in characters."""
_read_json = msgspec.json.Decoder().decode
Message = dict[str, Any]


class NamedFile(Value, frozen=True, omit_defaults=True):
    """A file named in a message: its partition (None for the table's own), URI and the store's checksum."""

    uri: str
    partition: str | None = None
    checksum: str = ""


class Decoded(Value, frozen=True, omit_defaults=True):
    """A decoded event: the change, and the files that its message names (often incomplete, see the lab notes)."""

    change: Change
    files: tuple[NamedFile, ...] = ()


def decode(event: NotificationEvent) -> Decoded:
    """Returns the change that an event announces: a marker if it changes nothing in this catalog, an UnknownEvent if
    its type or message cannot be parsed. Never raises."""
    if is_irrelevant(event):
        return Decoded(change=kinds.EventsRead())
    reader = _READERS.get(event.type)
    if reader is None and event.type not in _STATISTICS:
        return Decoded(change=_unknown(event))
    try:
        message = _read_json(message_text(event))
        return reader(message) if reader else _statistics(event, message)
    except (
        FormatError,
        msgspec.DecodeError,
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        AttributeError,
        RecursionError,
    ):
        return Decoded(change=_unknown(event))


def message_of(event: NotificationEvent) -> Message | None:
    """Returns the message of an event; None if it cannot be parsed."""
    with suppress(FormatError, msgspec.DecodeError, RecursionError):
        message = _read_json(message_text(event))
        return message if isinstance(message, dict) else None
    return None


def message_text(event: NotificationEvent) -> str | bytes:
    """Returns the JSON text of an event's message. Raises FormatError if it cannot be decompressed."""
    message = event.message or ""
    if event.format not in _GZIP_FORMATS and message[:100].lstrip()[:1] == "{":
        if len(message) > MESSAGE_BYTES:
            raise _too_long(event)
        return message
    try:
        return _unpacked(base64.b64decode(message, validate=True), event)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise FormatError(f"event {event.id}: message is neither JSON nor base64-encoded gzip: {error}") from error


def _unpacked(packed: bytes, event: NotificationEvent) -> bytes:
    """Decompresses a message in chunks, so that memory never exceeds the maximum length of a message."""
    unpacking, pieces, length = zlib.decompressobj(47), [], 0
    while not unpacking.eof:
        piece = unpacking.decompress(packed, _PIECE)
        packed = unpacking.unconsumed_tail
        if not piece and not packed and not unpacking.eof:
            raise FormatError(f"event {event.id}: message is truncated")
        pieces.append(piece)
        length += len(piece)
        if length > MESSAGE_BYTES:
            raise _too_long(event)
    return b"".join(pieces)


def _too_long(event: NotificationEvent) -> FormatError:
    return FormatError(f"event {event.id}: message is longer than {MESSAGE_BYTES >> 20} MiB")


def _unknown(event: NotificationEvent) -> kinds.UnknownEvent:
    message = event.message[:KEPT_MESSAGE] if event.message else event.message
    return kinds.UnknownEvent(type=event.type, db=event.db, table=event.table, message=message, format=event.format)


@lru_cache(maxsize=256)
def _table(text: str) -> Table:
    return table_from_text(text)


def _name(keys: tuple[Column, ...], values: Mapping[str, str]) -> str:
    """Returns the name of a partition that a message contains as a map; if `keys` is empty, in the map's own order."""
    keys = keys or tuple(Column(name=key, type="string") for key in values)
    by_key = {key.lower(): value for key, value in values.items()}
    return partition_name(keys, tuple(by_key[key.name.lower()] or "" for key in keys))


def _files(encoded: list[str] | None, partition: str | None = None) -> tuple[NamedFile, ...]:
    """Parses file strings `uri#checksum[#cmroot#subdirectory]`; the URI itself cannot contain an unescaped `#`."""
    named = []
    for text in encoded or ():
        uri, _, rest = text.partition("#")
        named.append(NamedFile(uri=uri, partition=partition, checksum=rest.partition("#")[0]))
    return tuple(named)


def _create_database(message: Message) -> Decoded:
    if "dbJson" in message:
        return Decoded(change=kinds.CreateDatabase(database=database_from_text(message["dbJson"])))
    return Decoded(change=kinds.CreateDatabase(database=Database(name=message["db"])))


def _alter_database(message: Message) -> Decoded:
    return Decoded(change=kinds.AlterDatabase(database=database_from_text(message["dbObjAfterJson"])))


def _drop_database(message: Message) -> Decoded:
    return Decoded(change=kinds.DropDatabase(db=message["db"]))


def _create_table(message: Message) -> Decoded:
    return Decoded(change=kinds.CreateTable(table=_table(message["tableObjJson"])), files=_files(message.get("files")))


def _drop_table(message: Message) -> Decoded:
    return Decoded(change=kinds.DropTable(db=message["db"], name=message["table"]))


def _alter_table(message: Message) -> Decoded:
    before, after = _table(message["tableObjBeforeJson"]), _table(message["tableObjAfterJson"])
    renamed = (before.db, before.name) != (after.db, after.name)
    moved = renamed and before.moves_with_name and before.location != after.location
    change = kinds.AlterTable(db=before.db, name=before.name, table=after, moved=moved, location_before=before.location)
    return Decoded(change=change)


def _add_partition(message: Message) -> Decoded:
    table = _table(message["tableObjJson"])
    partitions = tuple(partition_from_text(text) for text in message["partitionListJson"])
    if not partitions:  # MSCK REPAIR and ifNotExists announce empty lists
        return Decoded(change=kinds.ChangeFiles(db=message["db"], table=message["table"]))
    files: tuple[NamedFile, ...] = ()
    for entry in message.get("partitionFiles") or ():
        files += _files(entry.get("files"), entry.get("partitionName"))
    keys = tuple(key.name for key in table.partition_keys)
    return Decoded(
        change=kinds.AddPartitions(db=message["db"], table=message["table"], keys=keys, partitions=partitions),
        files=files,
    )


def _drop_partition(message: Message) -> Decoded:
    keys = _table(message["tableObjJson"]).partition_keys if message.get("tableObjJson") else ()
    names = tuple(_name(keys, values) for values in message["partitions"])
    return Decoded(change=kinds.DropPartitions(db=message["db"], table=message["table"], names=names))


def _alter_partition(message: Message) -> Decoded:
    table = _table(message["tableObjJson"])
    before, location_before = place_from_text(message["partitionObjBeforeJson"])
    after = partition_from_text(message["partitionObjAfterJson"])
    old = partition_name(table.partition_keys, before)
    new = partition_name(table.partition_keys, after.values)
    moved = old != new and table.moves_with_name and location_before != after.location
    change = kinds.AlterPartition(
        db=message["db"],
        table=message["table"],
        before=old,
        name=new,
        partition=after,
        moved=moved,
        location_before=location_before,
    )
    return Decoded(change=change)


def _alter_partitions(message: Message) -> Decoded:
    """Decodes a batch of alters (Hive 4.1 and newer): the state afterwards, never a rename, like partitions added."""
    keys = tuple(key.name for key in _table(message["tableObjJson"]).partition_keys)
    partitions = tuple(partition_from_text(text) for text in message["partitionListJson"])
    return Decoded(
        change=kinds.AddPartitions(
            db=message["db"], table=message["table"], keys=keys, partitions=partitions, replace=False
        )
    )


def _insert(message: Message) -> Decoded:
    """Decodes an insert. The partition is a map in 2.3, an object later; replaced files are never included."""
    keys = _table(message["tableObjJson"]).partition_keys if message.get("tableObjJson") else ()
    partition = None
    if message.get("ptnObjJson"):
        partition = partition_name(keys, partition_from_text(message["ptnObjJson"]).values)
    elif message.get("partKeyVals"):
        partition = _name(keys, message["partKeyVals"])
    return Decoded(
        change=kinds.ChangeFiles(db=message["db"], table=message["table"], partition=partition),
        files=_files(message.get("files"), partition),
    )


def _allocated(message: Message) -> Decoded:
    """Decodes the begin of a write to a transactional table."""
    return Decoded(change=kinds.ChangeFiles(db=message["dbName"], table=message["tableName"]))


def _create_function(message: Message) -> Decoded:
    return Decoded(change=kinds.CreateFunction(function=function_from_text(message["functionObjJson"])))


def _drop_function(message: Message) -> Decoded:
    return Decoded(change=kinds.DropFunction(db=message["db"], name=message["functionName"]))


def _index(message: Message) -> Decoded:
    """Decodes an event of an index; indexes exist up to Hive 2.3 only. Thrift Index: 1 name, 4 table."""
    text = message.get("afterIndexObjJson") or message.get("indexObjJson")
    index = _read_json(text) if text else {}
    name = message.get("indexName") or index["1"]["str"]
    table = message.get("origTableName") or index["4"]["str"]
    return Decoded(change=kinds.AlterIndex(db=message["db"], table=table, name=name, index=index or None))


def _add_constraints(kind: str) -> Callable[[Message], Decoded]:
    """The event's row names the table that a foreign key refers to, its message the table that has the key."""

    def read(message: Message) -> Decoded:
        ((db, table), constraints) = next(iter(of_message(kind, message[KINDS[kind].message]).items()))
        change = kinds.SetConstraints(db=db, table=table, constraints=tuple(constraints), whole=False)
        return Decoded(change=change)

    return read


def _drop_constraint(message: Message) -> Decoded:
    name = message["constraintName"]
    change = kinds.SetConstraints(db=message["dbName"], table=message["tableName"], whole=False, dropped=(name,))
    return Decoded(change=change)


def _statistics(event: NotificationEvent, message: Message) -> Decoded:
    """Decodes updated or deleted statistics. Only the event's row always names the table. A message contains some
    columns, of one engine, so captures read the complete statistics from the metastore before they record them."""
    name = message.get("partName")
    if "colStatsJson" in message:
        description = _read_json(message["colStatsJson"])["1"]["rec"]
        name = description["4"]["str"] if "4" in description else None
    if event.db is None or event.table is None:
        raise FormatError(f"event {event.id}: statistics without a table")
    about = (Statistics(db=event.db, table=event.table, partition=name),)
    return Decoded(change=kinds.SetStatistics(db=event.db, table=event.table, statistics=about, whole=False))


_STATISTICS = (
    "UPDATE_TBL_COL_STAT_EVENT",
    "DELETE_TBL_COL_STAT_EVENT",
    "UPDATE_PART_COL_STAT_EVENT",
    "DELETE_PART_COL_STAT_EVENT",
)
_READERS: dict[str, Callable[[Message], Decoded]] = {
    "CREATE_DATABASE": _create_database,
    "ALTER_DATABASE": _alter_database,
    "DROP_DATABASE": _drop_database,
    "CREATE_TABLE": _create_table,
    "ALTER_TABLE": _alter_table,
    "DROP_TABLE": _drop_table,
    "ADD_PARTITION": _add_partition,
    "ALTER_PARTITION": _alter_partition,
    "ALTER_PARTITIONS": _alter_partitions,
    "DROP_PARTITION": _drop_partition,
    "INSERT": _insert,
    "ALLOC_WRITE_ID_EVENT": _allocated,
    "CREATE_FUNCTION": _create_function,
    "DROP_FUNCTION": _drop_function,
    "CREATE_INDEX": _index,
    "ALTER_INDEX": _index,
    "DROP_INDEX": _index,
    "ADD_PRIMARYKEY": _add_constraints(PRIMARY_KEY),
    "ADD_FOREIGNKEY": _add_constraints(FOREIGN_KEY),
    "ADD_UNIQUECONSTRAINT": _add_constraints(UNIQUE),
    "ADD_NOTNULLCONSTRAINT": _add_constraints(NOT_NULL),
    "ADD_DEFAULTCONSTRAINT": _add_constraints(DEFAULT),
    "ADD_CHECKCONSTRAINT": _add_constraints(CHECK),
    "DROP_CONSTRAINT": _drop_constraint,
}
