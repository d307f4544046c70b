"""Differences between two metadata objects, field by field, and a limited list of very many of them. Pure.

The fields are those of `model`: a field added there is compared without a change here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cmroot.store.place import relative
from replicator.core.model import Column, ColumnStatistic, Partition, Serde, Skew, Storage, Table, Value
from replicator.replay.placement import is_published
from replicator.replay.replica import own_parameters

LIMIT = 10_000  # differences stored; further ones are only counted
SHORT = 160  # characters of a value that are shown

_KINDS = {
    "columns": "column",
    "partition_keys": "partition key",
    "kind": "kind",
    "view_original": "view text",
    "view_expanded": "expanded view text",
    "class_name": "function class",
    "name": "name",
}
_MAPS = {"Serde": "serde parameter", "Storage": "storage parameter"}
_SERDE = {"name": "serde", "library": "serde name"}


@dataclass(frozen=True)
class Difference:
    """One difference. `object`: its name at the source; `field`: the column, property or file; `source`: the expected
    value on the target, `target`: its actual value; None: it does not exist."""

    object: str
    kind: str
    source: str | None
    target: str | None
    field: str = ""


@dataclass
class Differences:
    """At most LIMIT differences, and their total. `objects`: every table or function with differences, as db.name, and
    every database whose own properties differ."""

    found: list[Difference] = field(default_factory=list)
    count: int = 0
    objects: set[str] = field(default_factory=set)

    def add(self, difference: Difference) -> None:
        self.count += 1
        self.objects.add(difference.object.partition("/")[0])
        if len(self.found) < LIMIT:
            self.found.append(difference)

    def merge(self, other: Differences) -> None:
        self.found += other.found[: LIMIT - len(self.found)]
        self.count += other.count
        self.objects |= other.objects


@dataclass(frozen=True)
class Homes:
    """Locations that must not occur on the target: the source table's and its database's. The target's own database may
    be below the source's (a warehouse directory that is the default database's). All None: the table shares the
    source's data."""

    source_table: str | None
    source_db: str | None
    target_db: str | None

    def cover(self, text: str) -> bool:
        """Returns True if a value is a path that belongs to the source."""
        if not (text.startswith("/") or ":/" in text):
            return False
        if self.source_table and relative(text, self.source_table) is not None:
            return True
        if not self.source_db or relative(text, self.source_db) is None:
            return False
        nested = self.target_db and relative(self.target_db, self.source_db)  # "" is the same location: not nested
        return not (nested and self.target_db and relative(text, self.target_db) is not None)


def compare(name: str, wanted: Value, found: Value, homes: Homes) -> Iterator[Difference]:
    """Yields fields in which `found` differs from `wanted`, and values of it that name the source, one entry each."""
    naming = {(kind, key): value for kind, key, value in _texts(found) if homes.cover(value)}
    for kind, key, a, b in _fields(wanted, found):
        if naming.pop((kind, key), None) is not None:
            yield _named(name, kind, key, a, b)
        else:
            yield difference(name, kind, a, b, key)
    for (kind, key), value in naming.items():
        yield _named(name, kind, key, "a location of the target", value)


def difference(name: str, kind: str, source: Any, target: Any, key: str = "") -> Difference:
    """Returns a difference with both values as short text that includes the first differing character."""
    a, b = _text(source), _text(target)
    start = 0
    if a is not None and b is not None and max(len(a), len(b)) > SHORT:
        start = max(0, _common(a, b) - SHORT // 4)
    return Difference(name, kind, _cut(a, start), _cut(b, start), key)


def _named(name: str, kind: str, key: str, a: Any, b: Any) -> Difference:
    return difference(name, "names the source", a, b, f"{kind} {key}".strip())


def _fields(wanted: Value, found: Value) -> Iterator[tuple[str, str, Any, Any]]:
    """Yields (kind, key, wanted value, found value) of every field that differs."""
    owner = type(wanted).__name__
    for attribute in wanted.__struct_fields__:
        a, b = getattr(wanted, attribute), getattr(found, attribute)
        if a == b:
            continue
        kind = _kind(owner, attribute)
        if attribute in ("columns", "partition_keys") and isinstance(wanted, Value) and not isinstance(wanted, Skew):
            yield from _columns(kind, a, b)
        elif isinstance(a, dict) and isinstance(b, dict):
            for key in sorted(a.keys() | b.keys()):
                if a.get(key) != b.get(key):
                    yield *_map_kind(kind, key), a.get(key), b.get(key)
        elif isinstance(a, Storage | Serde) and type(b) is type(a):
            yield from _fields(a, b)
        else:
            yield kind, "", a, b


def _kind(owner: str, attribute: str) -> str:
    if attribute == "parameters":
        return _MAPS.get(owner, "property")
    if owner == "Serde":
        return _SERDE.get(attribute, f"serde {attribute}")
    return _KINDS.get(attribute, attribute.replace("_", " "))


def _map_kind(kind: str, key: str) -> tuple[str, str]:
    return ("comment", "") if (kind, key) == ("property", "comment") else (kind, key)


def _columns(kind: str, wanted: Sequence[Column], found: Sequence[Column]) -> Iterator[tuple[str, str, Any, Any]]:
    names, others = [column.name for column in wanted], [column.name for column in found]
    if names != others:
        yield f"{kind}s", "", names, others
    there = {column.name: column for column in found}
    for column in wanted:
        other = there.get(column.name, column)
        if column.type != other.type:
            yield f"{kind} type", column.name, column.type, other.type
        if (column.comment or "") != (other.comment or ""):
            yield f"{kind} comment", column.name, column.comment, other.comment


def _texts(obj: Value) -> Iterator[tuple[str, str, str]]:
    """Yields (kind, key, value) of every value in an object that may contain a path."""
    owner = type(obj).__name__
    for attribute in obj.__struct_fields__:
        value = getattr(obj, attribute)
        kind = _kind(owner, attribute)
        if isinstance(value, Storage | Serde):
            yield from _texts(value)
        elif attribute == "location" and value:
            yield kind, "", value
        elif isinstance(value, Mapping):
            yield from ((*_map_kind(kind, key), text) for key, text in value.items() if isinstance(text, str))
        elif isinstance(value, Skew):
            yield from ((kind, "", place) for _, place in value.locations)
        elif attribute == "resources":
            yield from ((kind, "", place) for _, place in value)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    return msgspec.json.encode(value).decode()


def _common(a: str, b: str) -> int:
    """Returns the length of the common prefix."""
    return next((index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _cut(text: str | None, start: int) -> str | None:
    if text is None:
        return None
    end = start + SHORT
    return ("..." if start else "") + text[start:end] + ("..." if len(text) > end else "")


_BIT_VECTORS, _HISTOGRAM = "hive.stats.fetch.bitvector", "hive.stats.fetch.kll"
_SHORT_STATISTICS = frozenset(("1", "5"))  # of booleans and binaries, by their field in ColumnStatisticsData


def without_unreturned(
    wanted: ColumnStatistic, found: ColumnStatistic, returns: Callable[[int, str], bool]
) -> tuple[ColumnStatistic, ColumnStatistic]:
    """Leaves out bit vectors and histograms that only one side has, if the other's server returns them to no client.
    returns: True if a side (0: wanted, 1: found) has a setting of this name turned on."""
    sides = [wanted.data, found.data]
    for kind in wanted.data.keys() & found.data.keys():
        fields = {"4": _BIT_VECTORS} if kind in _SHORT_STATISTICS else {"5": _BIT_VECTORS, "6": _HISTOGRAM}
        for key, setting in fields.items():
            having = [key in side[kind]["rec"] for side in sides]
            if having[0] != having[1] and not returns(having.index(False), setting):
                sides = [{**side, kind: {"rec": _without(side[kind]["rec"], key)}} for side in sides]
    return msgspec.structs.replace(wanted, data=sides[0]), msgspec.structs.replace(found, data=sides[1])


def _without(fields: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != key}


# ---- alike -----------------------------------------------------------------------------------------------------------
# Proof by text comparison that a partition equals the one that a load creates. It covers most partitions, at a
# tenth of the cost of creating the replica's object and comparing it. Pure.


NO_STATISTICS = "DO_NOT_UPDATE_STATS"  # an instruction to the server, which removes it when it creates a table


@dataclass(frozen=True)
class Alike:
    """The proof for partitions of one table, with the table's location on both sides, without a slash at the end."""

    source: str
    target: str

    def proves(self, source: Partition, target: Partition) -> bool:
        """Returns True if the target's partition is as required, and does not contain a path that a load rewrites.
        False: undecided."""
        here, there = source.location, target.location
        if not (here and there and here.startswith(f"{self.source}/") and there.startswith(f"{self.target}/")):
            return False
        below = here[len(self.source) :]
        if below != there[len(self.target) :] or "/." in below:
            return False
        if _may_hold_places(source) or not _are_same(source.parameters, target.parameters):
            return False
        assert source.storage is not None
        wanted = msgspec.structs.replace(
            source,
            storage=msgspec.structs.replace(source.storage, location=there),
            parameters=target.parameters,
            create_time=target.create_time,
            last_access_time=target.last_access_time,
            extra=target.extra,
        )
        return wanted == target


def alike_partitions(source: Table, target: Table) -> Alike | None:
    """Returns the proof for partitions of a table; None if their texts are not sufficient."""
    here, there = source.location, target.location
    if not here or not there or is_published(here) or is_published(there) or here[-1] == "/" or there[-1] == "/":
        return None
    return Alike(here, there)


def _may_hold_places(partition: Partition) -> bool:
    storage = partition.storage
    assert storage is not None
    if storage.skew is not None and storage.skew.locations:
        return True
    maps = (partition.parameters, storage.parameters, storage.serde.parameters)
    return any("/" in value for values in maps for value in values.values())


def _are_same(here: Mapping[str, str], there: Mapping[str, str]) -> bool:
    return here == there or without_marks(here) == without_marks(there)


def without_marks(parameters: Mapping[str, str]) -> dict[str, str]:
    """Removes properties set by replication, and those that a server removes."""
    found = own_parameters(parameters)
    found.pop(NO_STATISTICS, None)
    return found
