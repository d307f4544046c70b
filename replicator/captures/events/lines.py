"""Records as lines of JSON, of the captured log and of dumps, and what is checked of those that others wrote."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from cmroot.errors import UNREADABLE, FormatError
from cmroot.names import HINT, check_below, check_name, foreign
from replicator.captures.events.record import Change, ChangeRecord
from replicator.core.model import Database, Function, Partition, Table
from replicator.metastore.convert.objects import HOMES

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
    if change.unread is not None:  # kept as it came, nothing is called by it
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
    """What a value keeps of fields without a home must not be a second name, or a second location."""
    storage = obj.storage if isinstance(obj, Table | Partition) else None
    for value in (obj, storage, storage.serde if storage else None):
        if value is not None and value.extra and not HOMES[type(value)].isdisjoint(value.extra):
            raise foreign(place, "the fields", sorted(value.extra), "have a home of their own")


@lru_cache(maxsize=1024)  # most records of a file are about few tables; a refusal is not remembered
def _check_table(place: str, db: str, name: str) -> None:
    """A table's name may hold a slash (hive.support.special.characters.tablename); a database's may not."""
    check_name(place, "database", db)
    check_below(place, "table", (name,))
