"""The effect of a drop: the directories that the metastore would delete, the tables that own their data, and,
afterwards, the outcome. Queries the metastore, and changes nothing.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from cmroot.keep.journal import InterceptSource, Journal, Owner
from cmroot.store.place import is_local, normal, parent
from replicator.captures.gateways.messages import (
    DEPTH_LIMIT,
    FIXED,
    LIST,
    MAP,
    SET,
    STOP,
    STRING,
    STRING_LIMIT,
    STRUCT,
    Drop,
    Garbage,
    least,
)
from replicator.core.connections import MetastoreConfig
from replicator.core.formats import format_of
from replicator.core.model import DEFAULT_PARTITION, Database, NotificationEvent, Partition, Table, partition_name
from replicator.core.named_files import ON_NODES, is_on_nodes
from replicator.errors import FormatError, ObjectNotFound, Refused
from replicator.metastore.client import EVENT_BATCH, MetastoreReader, warehouse_of
from replicator.metastore.events.notification_log import decode, message_text
from replicator.metastore.events.record import DropDatabase, DropPartitions, DropTable

VIEW = "VIRTUAL_VIEW"
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")


class Upstream(MetastoreReader, Protocol):
    """The metastore as used by the gateway."""

    @property
    def config(self) -> MetastoreConfig: ...

    def partitions_by_expression(self, db: str, table: str, expression: bytes) -> list[Partition]: ...


@dataclass(frozen=True)
class Targets:
    """The targets of a drop. `sources`: directories that the server would delete. `partitions`: names of the partitions
    that a call drops one by one. `emptied`: directories to remove if they are empty afterwards, in this order.
    `must_delete`: the call is forwarded unchanged, and its server finds nothing to delete: for a transactional table,
    Hive 4 reads the option to delete nothing as an instruction to write an empty base, which was not requested.
    `staying`: local directories on the nodes of the cluster, which are neither kept nor removed."""

    sources: Sequence[InterceptSource] = ()
    owners: Sequence[Owner] = ()
    partitions: Sequence[str] = ()
    emptied: Sequence[str] = ()
    must_delete: bool = False
    staying: Sequence[str] = ()

    def about(self) -> dict[str, object]:
        """Returns the values stored in the journal for later."""
        return {"partitions": list(self.partitions), "emptied": list(self.emptied)}


def find_targets(upstream: Upstream, drop: Drop) -> Targets:
    """Returns what the server would delete for a call now, without local directories of a warehouse on another
    filesystem, which are on the nodes of the cluster. Raises ObjectNotFound if the object does not exist,
    MetastoreError if the metastore cannot answer, Refused for a truncation of data on the nodes."""
    found = _targets(upstream, drop)
    places = [*(each.place for each in found.sources), *found.emptied]
    homes = (upstream.database(drop.db).location, warehouse_of(upstream)) if any(map(is_local, places)) else ()
    foreign = {place for place in places if is_on_nodes(place, *homes)}
    if not foreign:
        return found
    if drop.kind == "truncate":
        raise Refused(
            f"{drop.db}.{drop.table}: {min(foreign)}: {ON_NODES}, so its files cannot be kept",
            hint="truncate it at the metastore itself",
        )
    return replace(
        found,
        staying=sorted(foreign),
        sources=[each for each in found.sources if each.place not in foreign],
        owners=[each for each in found.owners if not is_on_nodes(each.location, *homes)],
        emptied=[each for each in found.emptied if each not in foreign],
    )


def _targets(upstream: Upstream, drop: Drop) -> Targets:
    match drop.kind:
        case "database":
            return _of_database(upstream, drop)
        case "truncate":
            return _of_truncation(upstream, drop)
        case "partitions":
            return _of_partitions(upstream, drop)
        case "table":
            return _of_tables(upstream, [upstream.table(drop.db, drop.table)])


def server_deletes(table: Table) -> bool:
    """Returns True if dropping a table deletes its data: it is managed, or has external.table.purge=true, which Hive 4
    honours. As in the server, `EXTERNAL` decides, and not the type. Materialized views have data."""
    if table.kind == VIEW or table.storage is None or not table.storage.location:
        return False
    external = table.parameters.get("EXTERNAL", "").lower() == "true"
    return not external or table.parameters.get("external.table.purge", "").lower() == "true"


def _of_database(upstream: Upstream, drop: Drop) -> Targets:
    database = upstream.database(drop.db)
    tables = upstream.tables(drop.db, upstream.table_names(drop.db)) if drop.cascade else []
    found = _of_tables(upstream, tables)
    return Targets(found.sources, found.owners, emptied=homes_of(database))


def homes_of(database: Database) -> list[str]:
    """Returns its tables' directories: its location, and that of managed ones (Hive 4: managedLocationUri)."""
    return [place for place in (database.location, database.managed_location) if place]


def _of_tables(upstream: Upstream, tables: Iterable[Table]) -> Targets:
    sources, owners = [], []
    for table in tables:
        if not server_deletes(table):
            continue
        assert table.storage and table.storage.location
        sources.append(InterceptSource(table.storage.location, table.name))
        owners.append(Owner(table.name, "", table.storage.location, root=table.has_files_by_partition))
        if not table.has_files_by_partition:
            continue
        for partition, location in _located(table, _all_partitions(upstream, table)):
            sources.append(InterceptSource(location, table.name))
            owners.append(Owner(table.name, partition, location))
    return Targets(sources, owners)


def _of_partitions(upstream: Upstream, drop: Drop) -> Targets:
    table = upstream.table(drop.db, drop.table)
    if not server_deletes(table):
        return Targets()
    located = _located(table, _chosen(upstream, drop, table))
    return Targets(
        [InterceptSource(location, table.name) for _, location in located],
        _owners(table, located),
        [name for name, _ in located],
        _above(table, [location for _, location in located]),
    )


def _above(table: Table, locations: Iterable[str]) -> list[str]:
    """Returns the directories between a table's own and its partitions', the deepest first."""
    home = normal(table.storage.location) if table.storage and table.storage.location else ""
    found = set()
    for location in locations:
        place = parent(normal(location))
        while home and place.startswith(home + "/"):
            found.add(place)
            place = parent(place)
    return sorted(found, key=len, reverse=True)


def _chosen(upstream: Upstream, drop: Drop, table: Table) -> list[Partition]:
    if drop.expressions is not None:
        by_name = {
            partition.values: partition
            for expression in drop.expressions
            for partition in upstream.partitions_by_expression(drop.db, drop.table, expression)
        }
        return list(by_name.values())
    if drop.values is not None:
        names = [_name(table, drop.values)]
    elif drop.name is not None:
        names = [_name(table, values_of(drop.name))]
    else:
        names = list(dict.fromkeys(_name(table, values_of(name)) for name in drop.names or ()))
    return [each for batch in upstream.partitions(drop.db, drop.table, names) for each in batch]


def _name(table: Table, values: Sequence[str]) -> str:
    if len(values) != len(table.partition_keys):
        raise ObjectNotFound(f"{table.db}.{table.name} has no partition {list(values)}")
    return partition_name(table.partition_keys, tuple(values))


def values_of(name: str) -> tuple[str, ...]:
    """Returns the values in an escaped partition name, in its order."""
    parts = (part.partition("=")[2] for part in name.split("/"))
    return tuple(
        "" if part == DEFAULT_PARTITION else _ESCAPE.sub(lambda hex: chr(int(hex[1], 16)), part) for part in parts
    )


def _of_truncation(upstream: Upstream, drop: Drop) -> Targets:
    """Returns the targets of a truncation, which empties managed and external tables."""
    table = upstream.table(drop.db, drop.table)
    acid = format_of(table).write_ids
    if table.kind == VIEW or table.storage is None or not table.storage.location:
        return Targets()
    if drop.names is None and not table.has_files_by_partition:
        location = table.storage.location
        return Targets([InterceptSource(location, table.name)], [Owner(table.name, "", location)], must_delete=acid)
    partitions = _all_partitions(upstream, table) if drop.names is None else _chosen(upstream, drop, table)
    located = _located(table, partitions)
    return Targets(
        [InterceptSource(location, table.name) for _, location in located],
        _owners(table, located),
        [name for name, _ in located],
        must_delete=acid,
    )


def _owners(table: Table, located: Sequence[tuple[str, str]]) -> list[Owner]:
    if table.has_files_by_partition or not table.location:
        return [Owner(table.name, name, location) for name, location in located]
    return [Owner(table.name, "", table.location)]


def _all_partitions(upstream: Upstream, table: Table) -> list[Partition]:
    return [each for batch in upstream.all_partitions(table.db, table.name) for each in batch]


def _located(table: Table, partitions: Iterable[Partition]) -> list[tuple[str, str]]:
    """Returns (escaped name, location) of partitions that have a location, which may be that of files of the table."""
    found = ((each, each.storage.location) for each in partitions if each.storage)
    return [(partition_name(table.partition_keys, each.values), place) for each, place in found if place]


# ---- afterwards ---------------------------------------------------------------------------------------------------


@dataclass
class DropOutcome:
    """The outcome of a drop: each table that was dropped (lost the partitions, was emptied) -> the id of the event that
    announces it, or of the newest one; `announced`: tables with an event of their own."""

    events: dict[str, int] = field(default_factory=dict)
    announced: set[str] = field(default_factory=set)


def find_outcome(upstream: MetastoreReader, journal: Journal, kind: str) -> DropOutcome:
    """Returns the outcome of a drop, from the events since then and from the objects that still exist. May run again.
    For a truncation, only events count."""
    outcome = DropOutcome()
    tables = {source.table for source in journal.sources}
    newest = upstream.current_event_id()
    for event in _events(upstream, journal.before_event):
        for table in _reported(event, journal, kind, tables) - outcome.announced:
            outcome.events[table] = event.id
            outcome.announced.add(table)
    if kind != "truncate":
        for table in tables - outcome.announced:
            if not _exists(upstream, journal, table):
                outcome.events[table] = newest
    return outcome


def _events(upstream: MetastoreReader, after: int) -> Iterable[NotificationEvent]:
    while page := upstream.next_events(after, EVENT_BATCH):
        yield from page
        after = page[-1].id


def _reported(event: NotificationEvent, journal: Journal, kind: str, tables: set[str]) -> set[str]:
    """Returns those of the tables that an event announces as dropped, as having lost one of the partitions, or as
    truncated."""
    if (event.db or "").lower() != journal.db:
        return set()
    if kind == "truncate":
        return {(event.table or "").lower()} & tables if is_truncation(event) else set()
    match decode(event).change:
        case DropTable(name=name):
            return {name} & tables
        case DropPartitions(table=table, names=names):
            return {table} & tables if kind == "partitions" and set(names) & set(_partitions(journal)) else set()
        case DropDatabase():
            return set(tables)
    return set()


def is_truncation(event: NotificationEvent) -> bool:
    """Returns True for a truncation: an alter with a flag. One without it may be another client's alter."""
    try:
        message = msgspec.json.decode(message_text(event)) if event.type.startswith("ALTER_") else {}
    except (FormatError, msgspec.DecodeError):
        return False
    return isinstance(message, dict) and str(message.get("isTruncateOp")).lower() == "true"


def _exists(upstream: MetastoreReader, journal: Journal, table: str) -> bool:
    """Returns True if the object to be dropped, or some of it, still exists."""
    try:
        there = upstream.table(journal.db, table)
        if not _partitions(journal):
            return True
        return any(batch for batch in upstream.partitions(journal.db, there.name, _partitions(journal)))
    except ObjectNotFound:
        return False


def _partitions(journal: Journal) -> list[str]:
    return list(journal.about.get("partitions", ()))


# ---- extent ----------------------------------------------------------------------------------------------------------
# Detection of a message's end while its bytes are forwarded: nothing is buffered except a head that was split.
#
# A message that cannot be parsed to its end is never forwarded, because a server may read its rest in any way.


_short = struct.Struct(">h").unpack_from
_int = struct.Struct(">i").unpack_from
_HEADS = {STRING: 4, STRUCT: 0, LIST: 5, SET: 5, MAP: 6}

Bytes = bytes | bytearray | memoryview


class Extent:
    """The extent of one struct. `ended`: its last byte was seen; `values`: the number of values so far; `fields`: the
    numbers of its own fields."""

    def __init__(self) -> None:
        self.ended = False
        self.values = 0
        self.fields: list[int] = []
        self._open: list[list[int]] = [[]]  # open containers: a struct, or [kind, kind of the other, how many]
        self._skip = 0  # bytes of a value that are still to come
        self._cut = b""  # of a head

    def feed(self, data: Bytes) -> int:
        """Returns how many of these bytes belong to the struct: all, unless it ends before. Raises Garbage."""
        size = len(data)
        if self._skip >= size:
            self._skip -= size
            return size
        at, self._skip, before = self._skip, 0, 0
        if self._cut:
            before, self._cut, data = len(self._cut), b"", self._cut + bytes(data)
        at = self._follow(data, at)
        return at - before if self.ended else size

    def _follow(self, data: Bytes, at: int) -> int:
        """Parses one value after another; strings, the most frequent type, without a function call."""
        end, open_, fixed = len(data), self._open, FIXED
        while open_:
            if at > end:
                self._skip = at - end
                return end
            top, start = open_[-1], at
            if top:
                if not top[2]:
                    open_.pop()
                    continue
                kind = top[top[2] & 1]
            else:
                if at == end:
                    return end
                kind = data[at]
                if kind == STOP:
                    at += 1
                    open_.pop()
                    continue
                at += 3
            size = fixed.get(kind)
            if size is None:
                size = _HEADS.get(kind, 0)
                if at + size > end:
                    self._cut = bytes(data[start:])
                    return end
                at += size
                if kind == STRING:
                    (size,) = _int(data, at - 4)
                    if not 0 <= size <= STRING_LIMIT:
                        raise Garbage(f"invalid length {size}")
            elif at > end:
                self._cut = bytes(data[start:])
                return end
            self.values += 1
            if top:
                top[2] -= 1
            elif len(open_) == 1:
                self.fields.append(_short(data, start + 1)[0])
            at += size if kind in fixed or kind == STRING else self._enter(kind, data, at)
        self.ended = True
        return at

    def _enter(self, kind: int, data: Bytes, at: int) -> int:
        """Returns the bytes to skip after the head of a container; elements that are not skipped are parsed next."""
        if kind not in _HEADS:
            raise Garbage(f"unknown type {kind}")
        if len(self._open) > DEPTH_LIMIT:
            raise Garbage("values are nested too deeply")
        if kind == STRUCT:
            self._open.append([])
            return 0
        at -= _HEADS[kind]
        first, second = data[at], data[at + (kind == MAP)]
        count: int = _int(data, at + 1 + (kind == MAP))[0]
        if not count:
            return 0
        if count < 0:
            raise Garbage(f"invalid length {count}")
        each = least(first) + (least(second) if kind == MAP else 0)
        if count > STRING_LIMIT // each:
            raise Garbage(f"invalid length {count}")
        width = FIXED.get(first, 0)
        if kind != MAP and width:
            self.values += count
            return count * width
        # Counted down: the key of a pair has an even number, its value an odd one.
        self._open.append([first, second, 2 * count if kind == MAP else count])
        return 0


class MethodNames:
    """A search for method names in forwarded bytes, encoded as in the head of a message, at any offset.

    A server reads a value as its own declaration requires, regardless of the type sent before it, so one call may
    contain another one that only the server sees as a call, while other readers see an argument. But no server can read
    a call whose name is not in the bytes."""

    def __init__(self, names: Iterable[str]) -> None:
        heads = [struct.pack(">i", len(name)) + name.encode() for name in names]
        self._pattern = re.compile(b"|".join(map(re.escape, heads)))
        self._overlap = max(map(len, heads)) - 1

    def find(self, before: Bytes, data: Bytes) -> str | None:
        """Returns the first such name that ends in `data`. `before`: the bytes just before it, see `tail`."""
        found = self._pattern.search(bytes(before) + bytes(data) if before else data)
        return found[0][4:].decode() if found else None

    def tail(self, before: Bytes, data: Bytes) -> bytes:
        """Returns the last forwarded bytes, which the next search requires."""
        if len(data) >= self._overlap:
            return bytes(data[-self._overlap :])
        return (bytes(before) + bytes(data))[-self._overlap :]
