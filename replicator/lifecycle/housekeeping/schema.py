"""The tables of the housekeeping store, for SQLite and PostgreSQL, changed only together with a migration; items as
rows."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, MetaData, Row, String, Table, Text, text

from replicator.lifecycle.housekeeping.items import Item, slot_of

HEAD = 400
"""Characters of a place that are indexed, to find what lies below another; PostgreSQL indexes no longer texts whole."""

metadata = MetaData()
_head = String(HEAD).with_variant(String(HEAD, collation="C"), "postgresql")  # bytes in order, as ranges need
_number = BigInteger().with_variant(Integer, "sqlite")  # what SQLite counts up by itself

item = Table(
    "housekeeping_item",
    metadata,
    Column("id", _number, primary_key=True, autoincrement=True),
    Column("lifecycle_type", String(20), nullable=False),
    Column("database_name", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("partition_name", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("place", Text, nullable=False),
    Column("place_head", _head, nullable=False),
    Column("slot", String(32)),
    Column("housekeeping_status", String(20), nullable=False),
    Column("reason", Text, nullable=False),
    Column("creation_timestamp", BigInteger, nullable=False),
    Column("modified_timestamp", BigInteger, nullable=False),
    Column("cleanup_timestamp", BigInteger, nullable=False),
    Column("cleanup_delay", Text, nullable=False),
    Column("cleanup_attempts", Integer, nullable=False),
    Column("next_try", BigInteger, nullable=False),
    Column("detached", Boolean, nullable=False),
    Column("begun", BigInteger, nullable=False),
    Column("ended", BigInteger, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("event", BigInteger, nullable=False),
)
"""`slot`: a digest of what may have one open item only: an attached object, or a path; null for all others."""

ACTIVE_ONLY = text("housekeeping_status IN ('SCHEDULED', 'FAILED')")

Index("housekeeping_item_slot", item.c.slot, unique=True)
Index(
    "housekeeping_item_due", item.c.cleanup_timestamp, item.c.id, sqlite_where=ACTIVE_ONLY, postgresql_where=ACTIVE_ONLY
)
Index("housekeeping_item_below", item.c.place_head, sqlite_where=ACTIVE_ONLY, postgresql_where=ACTIVE_ONLY)
Index("housekeeping_item_object", item.c.database_name, item.c.table_name, item.c.partition_name)
Index("housekeeping_item_lifecycle", item.c.database_name, item.c.table_name, item.c.lifecycle_type, item.c.id)

state = Table(
    "housekeeping_state", metadata, Column("key", String(50), primary_key=True), Column("value", Text, nullable=False)
)
"""`root`: the id of the one `$cmroot` whose log is read; `position`: up to where; `defaults`: with which.
`forgotten`: the day, since 1970, when old items were last removed."""

_BEEKEEPERS = {
    "lifecycle": "lifecycle_type",
    "db": "database_name",
    "table": "table_name",
    "partition": "partition_name",
    "status": "housekeeping_status",
    "created": "creation_timestamp",
    "modified": "modified_timestamp",
    "cleanup": "cleanup_timestamp",
    "delay": "cleanup_delay",
    "attempts": "cleanup_attempts",
    "client": "client_id",
}
_COLUMNS = {name: _BEEKEEPERS.get(name, name) for name in Item.__struct_fields__}
"""By the names of an item's fields."""

VALUES: dict[str, Callable[[Item], Any]] = {column: attrgetter(name) for name, column in _COLUMNS.items()}
"""By columns, of an item."""

VALUES |= {"place_head": lambda one: one.place[:HEAD], "slot": slot_of}
_values = attrgetter(*_COLUMNS.values())


def to_item(row: Row[Any]) -> Item:
    return Item(**dict(zip(_COLUMNS, _values(row), strict=True)))


def to_row(one: Item) -> dict[str, Any]:
    """Without its id, which the store gives."""
    return {column: value(one) for column, value in VALUES.items() if column != "id"}
