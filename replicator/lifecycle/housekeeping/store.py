"""Items of housekeeping, and their store: SQLite next to the log, or PostgreSQL by URL. Opening, migrating, reading.

An item is one path, partition or table with the time of its removal; its states and its JSON form stand here.
`writing` changes items. One run at a time writes (the run's lease); reading requires no lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    Row,
    Select,
    String,
    Table,
    Text,
    func,
    select,
    text,
    tuple_,
)

from cmroot.store.place import is_local, join, local_path
from replicator.core.database import Database
from replicator.errors import UsageError
from replicator.lifecycle.housekeeping.settings import EXPIRED, UNREFERENCED

if TYPE_CHECKING:
    from cmroot.root import ChangeRoot


# ---- items -----------------------------------------------------------------------------------------------------------


SCHEDULED, FAILED, DELETED, DISABLED, SKIPPED, EXHAUSTED, INVALID_CONFIG = (
    "SCHEDULED",
    "FAILED",
    "DELETED",
    "DISABLED",
    "SKIPPED",
    "EXHAUSTED",
    "INVALID_CONFIG",
)
"""States. SCHEDULED: waits for its time. FAILED: could not be removed, is tried again. DELETED: removed, its files are
in `$cmroot`. DISABLED: cancelled, by the owner, an operator, or because an object refers to it again. SKIPPED: will not
be removed, see the reason. EXHAUSTED: failed too often, waits for an operator. INVALID_CONFIG: the table's properties
are invalid; the item represents the table."""

STATES = (SCHEDULED, FAILED, DELETED, DISABLED, SKIPPED, EXHAUSTED, INVALID_CONFIG)
ACTIVE = (SCHEDULED, FAILED)
OPEN = (SCHEDULED, FAILED, SKIPPED, EXHAUSTED)
"""States of which an object has one item at most, which later events continue."""

MAX_ATTEMPTS = 10
FROM_LOG, FROM_VACUUM = "captured-log", "vacuum"
"""Origins of an item."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the store. Times are whole seconds since 1970, UTC. partition: escaped name, empty for a table's own
    item and for paths of tables. place: the normalised path. delay: the ISO period. next_try: not before this time.
    detached: the item's object no longer exists in the metastore, so the current properties of its table do not apply.
    event: the origin of the item. begun, ended: the newest event when its removal began, and when it was completed; 0
    if not yet."""

    id: int = 0
    lifecycle: str
    db: str
    table: str
    partition: str = ""
    path: str
    place: str
    status: str = SCHEDULED
    reason: str = ""
    created: int
    modified: int
    cleanup: int
    delay: str
    attempts: int = 0
    next_try: int = 0
    detached: bool = False
    begun: int = 0
    ended: int = 0
    client: str = FROM_LOG
    event: int = 0

    @property
    def object(self) -> str:
        return f"{self.db}.{self.table}"

    @property
    def name(self) -> str:
        return f"{self.object}/{self.partition}" if self.partition else self.object

    def as_json(self) -> dict[str, Any]:
        """Returns the item in Beekeeper's REST names; added are id, reason, nextTry, event, detached, clientId."""
        return {
            "id": self.id,
            "path": self.path,
            "databaseName": self.db,
            "tableName": self.table,
            "partitionName": self.partition or None,
            "housekeepingStatus": self.status,
            "creationTimestamp": iso(self.created),
            "modifiedTimestamp": iso(self.modified),
            "cleanupTimestamp": iso(self.cleanup),
            "cleanupDelay": self.delay,
            "cleanupAttempts": self.attempts,
            "lifecycleType": self.lifecycle,
            "clientId": self.client,
            "reason": self.reason,
            "nextTry": iso(self.next_try) if self.next_try else None,
            "event": self.event,
            "detached": self.detached,
        }


def object_slot(db: str, table: str, partition: str) -> str:
    return xxhash.xxh3_128_hexdigest("\0".join((EXPIRED, db, table, partition)).encode())


def path_slot(place: str) -> str:
    return xxhash.xxh3_128_hexdigest("\0".join((UNREFERENCED, place)).encode())


def problem_slot(db: str, table: str, lifecycle: str) -> str:
    return xxhash.xxh3_128_hexdigest("\0".join((INVALID_CONFIG, db, table, lifecycle)).encode())


def slot_of(one: Item) -> str | None:
    """Returns the slot that an item occupies: see `item`."""
    if one.status == INVALID_CONFIG:
        return problem_slot(one.db, one.table, one.lifecycle)
    if one.status not in OPEN:
        return None
    if one.lifecycle == UNREFERENCED:
        return path_slot(one.place)
    return None if one.detached else object_slot(one.db, one.table, one.partition)


def iso(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


# ---- schema ----------------------------------------------------------------------------------------------------------
# The tables of the housekeeping store, for SQLite and PostgreSQL, changed only together with a migration; items as
# rows.


HEAD = 400
"""Characters of a path that are indexed, to find paths below another; PostgreSQL limits the length of indexed texts."""

metadata = MetaData()
_head = String(HEAD).with_variant(String(HEAD, collation="C"), "postgresql")  # in byte order, as ranges require
_number = BigInteger().with_variant(Integer, "sqlite")  # the type that SQLite increments automatically

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
"""`slot`: a digest of what may have one open item only, an attached object or a path; null for all others."""

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
"""`root`: the id of the only `$cmroot` whose log is read; `position`: up to where; `defaults`: those in use.
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
"""Columns by the names of an item's fields."""

VALUES: dict[str, Callable[[Item], Any]] = {column: attrgetter(name) for name, column in _COLUMNS.items()}
"""Values of an item by column."""

VALUES |= {"place_head": lambda one: one.place[:HEAD], "slot": slot_of}
_values = attrgetter(*_COLUMNS.values())


def to_item(row: Row[Any]) -> Item:
    return Item(**dict(zip(_COLUMNS, _values(row), strict=True)))


def to_row(one: Item) -> dict[str, Any]:
    """Returns a row without the id, which the store assigns."""
    return {column: value(one) for column, value in VALUES.items() if column != "id"}


# ---- store -----------------------------------------------------------------------------------------------------------


REVISION = "0002"
REVISIONS = "alembic_version"
"""The newest migration that this release knows."""

FILE = "housekeeping.sqlite"
PAGE = 5000
"""Items that are decided together: each page reads new events of the metastore, which takes a 2.3 server 0.1 s."""


def store_url(root: str, url: str | None) -> str:
    """Returns the URL of a root's items: `url`, or an SQLite file in a local root. Raises UsageError without either."""
    if url:
        return url
    if not is_local(root):
        raise UsageError(
            f"{root}: items cannot be stored on an object store",
            hint="give --store postgresql://user@host/db, or sqlite:////path/file",
        )
    return f"sqlite:///{join(local_path(root), FILE)}"


class ItemStore(Database):
    """A store of items. Raises StoreUnreachable (try again), NoSpace, or Error with the database's message."""

    def __init__(self, url: str, connections: int = 0) -> None:
        """Prepares the connection; nothing is sent before the first query. connections: as `Database`. Raises
        ConfigError for a URL of an unknown database."""
        super().__init__(url, "housekeeping store", "--store", connections)

    # ---- opening --------------------------------------------------------------------------------------------------

    def prepare(self, root: ChangeRoot) -> None:
        """Creates or migrates the tables, under the run's lease. Raises UsageError for the store of another root."""
        if self._revision() != REVISION:
            self._migrate()
        with self.transaction() as connection:
            known = _state(connection, "root")
            if known is None:
                connection.execute(state.insert().values(key="root", value=root.id))
            elif known != root.id:
                raise UsageError(
                    f"{self.url}: holds the items of another $cmroot ({known}), not those of {root.place}",
                    hint="use a separate store for each $cmroot",
                )

    def is_new(self) -> bool:
        """Returns True if no run has created the tables yet."""
        return self._revision() is None

    def check(self) -> None:
        """Checks the tables before reads, or changes of single items. Raises UsageError if missing or not migrated."""
        found = self._revision()
        if found is None:
            raise UsageError(f"{self.url}: no items yet", hint="`replicator housekeeping run` creates them")
        if found != REVISION:
            raise UsageError(
                f"{self.url}: its schema is of an older release", hint="`replicator housekeeping run` migrates it"
            )

    def is_made(self) -> bool:
        """Returns True if a run has created the tables."""
        return self._revision() is not None

    def _revision(self) -> str | None:
        return self.revision(REVISIONS, REVISION)

    def _migrate(self) -> None:
        self.migrate(Path(__file__).parent / "migrations", REVISIONS)

    def copied(self, path: Path) -> ItemStore:
        """Copies the items to an SQLite file, for trials; this store is only read."""
        copy = ItemStore(f"sqlite:///{path}")
        if self._revision() is None:
            return copy
        if self.file is not None:
            with self.transaction() as connection:
                connection.exec_driver_sql("COMMIT")  # VACUUM does not run in a transaction
                connection.exec_driver_sql("VACUUM INTO ?", (str(path),))
                connection.exec_driver_sql("BEGIN")
            return copy
        copy._migrate()
        with self.transaction() as source, copy.transaction() as target:
            for row in source.execute(select(state)):
                target.execute(state.insert().values(key=row.key, value=row.value))
            rows = source.execution_options(yield_per=PAGE).execute(select(item))
            for some in rows.mappings().partitions(PAGE):
                target.execute(item.insert(), [dict(row) for row in some])
        return copy

    # ---- reading --------------------------------------------------------------------------------------------------

    def position(self) -> int:
        """Returns the position of the captured log up to which everything is scheduled."""
        return int(self.state("position") or 0)

    def state(self, key: str) -> str | None:
        """Returns a value: see `state`."""
        with self.transaction() as connection:
            return _state(connection, key)

    def due(self, now: int, *, tables: bool, page: int = PAGE) -> Iterator[list[Item]]:
        """Yields active items whose time has come, in pages, earliest first. tables: the items of complete tables, else
        all others. Items that change concurrently are neither skipped nor returned twice."""
        of_table = (item.c.lifecycle_type == EXPIRED) & (item.c.partition_name == "")
        query = (
            select(item)
            .where(ACTIVE_ONLY, item.c.cleanup_timestamp <= now, item.c.next_try <= now)
            .where(of_table if tables else ~of_table)
            .order_by(item.c.cleanup_timestamp, item.c.id)
            .limit(page)
        )
        after: tuple[int, int] | None = None
        while True:
            rows = self._items(query if after is None else query.where(tuple_(*_DUE_KEY) > tuple_(*after)))
            if not rows:
                return
            yield rows
            after = (rows[-1].cleanup, rows[-1].id)

    def find(self, *conditions: Any, offset: int = 0, limit: int = PAGE, order: Sequence[Any] = ()) -> list[Item]:
        """Returns items that meet all conditions (over `item`), in an order, then by id."""
        return self._items(select(item).where(*conditions).order_by(*order, item.c.id).offset(offset).limit(limit))

    def count(self, *conditions: Any) -> int:
        with self.transaction() as connection:
            return int(connection.execute(select(func.count()).select_from(item).where(*conditions)).scalar_one())

    def places(self, *conditions: Any) -> Iterator[str]:
        """Yields the paths of items, each once."""
        query = select(item.c.place).where(*conditions).distinct()
        with self.transaction() as connection:
            for row in connection.execution_options(yield_per=PAGE).execute(query):
                yield str(row.place)

    def counts(self) -> dict[str, int]:
        """Returns the number of items by state."""
        query = select(item.c.housekeeping_status, func.count()).group_by(item.c.housekeeping_status)
        with self.transaction() as connection:
            return {str(status): int(number) for status, number in connection.execute(query)}

    def waiting_below(self, items: Sequence[Item], now: int) -> dict[int, str]:
        """Finds items with an active item below their path whose time has not come. Returns id -> that item's path."""
        due, other = item.alias("due"), item.alias("other")
        beginning = func.substr(other.c.place, 1, func.length(due.c.place) + 1, type_=Text)
        first = (  # in the order of the index, so that a database uses it
            select(other.c.path)
            .where(text(f"other.{ACTIVE_ONLY.text}"), beginning == due.c.place + "/")
            .where(other.c.cleanup_timestamp + 0 > now)
            .order_by(other.c.place_head)
            .limit(1)
        )
        head = func.substr(due.c.place, 1, HEAD - 1, type_=Text)
        below = first.where(other.c.place_head >= head + "/", other.c.place_head < head + "0")  # "0" follows "/"
        long = first.where(other.c.place_head == due.c.place_head)
        found: dict[int, str] = {}
        for query, chosen in (
            (below, [one.id for one in items if len(one.place) < HEAD]),
            (long, [one.id for one in items if len(one.place) >= HEAD]),
        ):
            if chosen:
                statement = select(due.c.id, query.scalar_subquery()).where(due.c.id.in_(chosen))
                with self.transaction() as connection:
                    found |= {int(row[0]): str(row[1]) for row in connection.execute(statement) if row[1] is not None}
        return found

    def _items(self, query: Select[Any]) -> list[Item]:
        with self.transaction() as connection:
            return [to_item(row) for row in connection.execute(query)]


_DUE_KEY = (item.c.cleanup_timestamp, item.c.id)


def _state(connection: Connection, key: str) -> str | None:
    value = connection.execute(select(state.c.value).where(state.c.key == key)).scalar()
    return None if value is None else str(value)
