"""Calls that make a metastore delete data: their parameters, and the same calls with deletion turned off. Pure.

Field numbers are those of Hive's public interface definition, 2.3 to 4.x; a `..._req` call has one struct as its
argument. The handling of other calls is in section `interface` of `upstream`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from replicator.captures.gateways.messages import (
    BOOL,
    LIST,
    MAP,
    STRING,
    STRUCT,
    Fields,
    ListValue,
    Mapped,
    MessageHeader,
    find,
    flag,
    text,
    texts,
    with_field,
    write_struct,
)

Kind = Literal["table", "partitions", "database", "truncate"]

DEFAULT_CATALOG = "hive"
SKIP_DELETION = "truncateSkipDataDeletion"  # Hive 4: hive_metastoreConstants.TRUNCATE_SKIP_DATA_DELETION


@dataclass(frozen=True)
class _Shape:
    """The field numbers of a call's arguments; 0 means that it does not have the argument."""

    kind: Kind
    meta: int  # the field of the result that declares MetaException
    db: int = 1
    table: int = 2
    delete: int = 0
    absent: bool = False  # the server's default for `delete`
    request: bool = False  # all in one struct, the call's only argument
    catalog: int = 0
    values: int = 0  # a partition by its values
    name: int = 0  # a partition by its name
    names: int = 0  # partitions by name
    parts: int = 0  # a RequestPartsSpec: names or expressions
    cascade: int = 0
    context: int = 0  # an EnvironmentContext


SHAPES: Mapping[str, _Shape] = {
    "drop_table": _Shape("table", 2, delete=3),
    "drop_table_with_environment_context": _Shape("table", 2, delete=3),
    "drop_table_req": _Shape("table", 2, request=True, catalog=1, db=2, table=3, delete=4),
    "drop_partition": _Shape("partitions", 2, values=3, delete=4),
    "drop_partition_with_environment_context": _Shape("partitions", 2, values=3, delete=4),
    "drop_partition_by_name": _Shape("partitions", 2, name=3, delete=4),
    "drop_partition_by_name_with_environment_context": _Shape("partitions", 2, name=3, delete=4),
    "drop_partition_req": _Shape("partitions", 2, request=True, catalog=1, db=2, table=3, name=4, values=5, delete=6),
    "drop_partitions_req": _Shape("partitions", 2, request=True, parts=3, delete=4, absent=True, catalog=9),
    "drop_database": _Shape("database", 3, table=0, delete=2, cascade=3),
    "drop_database_req": _Shape("database", 3, request=True, table=0, catalog=2, delete=4, cascade=5),
    "truncate_table": _Shape("truncate", 1, names=3),
    "truncate_table_req": _Shape("truncate", 1, request=True, names=3, context=6),
}


class NotUnderstood(Exception):
    """Raised for a call that would delete data and cannot be protected. The message contains the reason."""


@dataclass(frozen=True)
class Drop:
    """A call that deletes data: the objects to drop or empty. `deletes`: True if it requests deletion of the data.

    For partitions, one of `values`, `name`, `names`, `expressions` selects them; for a truncation, `names` does (None:
    the entire table)."""

    call: str
    kind: Kind
    db: str
    table: str = ""
    deletes: bool = True
    cascade: bool = False
    values: tuple[str, ...] | None = None
    name: str | None = None
    names: tuple[str, ...] | None = None
    expressions: tuple[bytes, ...] | None = None


def meta_exception_field(name: str) -> int | None:
    """Returns the field of a call's result that declares a MetaException; None for an unknown call."""
    shape = SHAPES.get(name)
    return shape.meta if shape else None


def understand(name: str, arguments: Fields, default: str = DEFAULT_CATALOG) -> Drop:
    """Returns the objects that a call is to drop. Names are in lower case, as in the server. default: the server's
    catalog for calls that name none. Raises NotUnderstood, also for a call that a server may read differently."""
    shape = SHAPES[name]
    _refuse_ambiguous(name, arguments)
    fields = _inside(shape, arguments)
    catalogs, db = _database(text(fields, shape.db) or "", text(fields, shape.catalog) if shape.catalog else None)
    if other := ", ".join(sorted(catalogs - {default})):
        raise NotUnderstood(f"{name} in the catalog {other}: only that of the name {default} is protected")
    table = (text(fields, shape.table) or "").strip().lower() if shape.table else ""
    if not db or (shape.table and not table):
        raise NotUnderstood(f"{name} names no {'table' if db else 'database'}")
    drop = Drop(
        name, shape.kind, db, table, _deletes(shape, fields), bool(shape.cascade and flag(fields, shape.cascade))
    )
    return _with_selection(drop, shape, fields)


def _refuse_ambiguous(name: str, fields: Fields) -> None:
    """Raises NotUnderstood for ambiguous fields. If a field occurs twice, the server uses the last one. It reads a list
    or a map as declared, in these calls as texts and structs, regardless of the types sent before it."""
    if len({field.id for field in fields}) < len(fields):
        raise NotUnderstood(f"{name} says something twice")
    for field in fields:
        _refuse_ambiguous_value(name, field.type, field.value)


def _refuse_ambiguous_value(name: str, kind: int, value: Any) -> None:
    if kind == STRUCT:
        _refuse_ambiguous(name, value)
    elif isinstance(value, ListValue):
        if value.items and value.type not in (STRING, STRUCT):
            raise NotUnderstood(f"{name} has a list of neither texts nor structs")
        for item in value.items:
            _refuse_ambiguous_value(name, value.type, item)
    elif isinstance(value, Mapped) and value.items and (value.key_type, value.value_type) != (STRING, STRING):
        raise NotUnderstood(f"{name} has a map of something else than texts")


def without_deletion(header: MessageHeader, arguments: Fields) -> bytes:
    """Returns the message of the same call with the server's deletion of data turned off. (Without such an option, as
    in 2.3 for a truncation, the server finds nothing to delete.)"""
    shape = SHAPES[header.name]
    fields = _inside(shape, arguments)
    if shape.delete:
        fields = with_field(fields, shape.delete, BOOL, b"\0")
    if shape.context:
        fields = with_field(fields, shape.context, STRUCT, _with_property(fields, shape.context, SKIP_DELETION, "true"))
    changed = with_field(arguments, 1, STRUCT, fields) if shape.request else fields
    return header.encode() + write_struct(changed)


def _inside(shape: _Shape, arguments: Fields) -> Fields:
    if not shape.request:
        return arguments
    inside = find(arguments, 1, STRUCT)
    return inside if inside is not None else ()


def _database(name: str, catalog: str | None) -> tuple[set[str], str]:
    """Returns (named catalogs, database). Clients of 3.x and newer write `@catalog#database`."""
    before = ""
    if name.startswith("@"):
        before, _, name = name[1:].partition("#")
    return {each.strip().lower() for each in (before, catalog) if each}, name.strip().lower()


def _deletes(shape: _Shape, fields: Fields) -> bool:
    if shape.kind == "truncate":
        return not (shape.context and _properties(fields, shape.context).get(SKIP_DELETION, "").lower() == "true")
    given = flag(fields, shape.delete)
    return shape.absent if given is None else given


def _with_selection(drop: Drop, shape: _Shape, fields: Fields) -> Drop:
    """Returns the drop with the partitions that the call names."""
    if shape.kind == "truncate":
        names = texts(fields, shape.names)
        if names is None and any(field.id == shape.names for field in fields):
            raise NotUnderstood(f"{drop.call} does not say which partitions in a way that this release knows")
        return replace(drop, names=None if names is None else tuple(names))
    if shape.kind != "partitions":
        return drop
    if shape.parts:
        parts = find(fields, shape.parts, STRUCT) or ()
        if len(parts) > 1:  # a union, of which the server reads one member, and the following bytes as something else
            raise NotUnderstood(f"{drop.call} says in two ways which partitions")
        names, listed = texts(parts, 1), find(parts, 2, LIST)
        if names is not None:
            return replace(drop, names=tuple(names))
        if listed is not None and listed.type == STRUCT:
            expressions = [find(each, 1, STRING) for each in listed.items]
            if all(each is not None for each in expressions):
                return replace(drop, expressions=tuple(expressions))
    else:
        values = texts(fields, shape.values) if shape.values else None
        name = text(fields, shape.name) if shape.name else None
        if values or name:
            return replace(drop, values=tuple(values) if values else None, name=name or None)
    raise NotUnderstood(f"{drop.call} does not say which partitions in a way that this release knows")


def _properties(fields: Fields, number: int) -> dict[str, str]:
    found = find(find(fields, number, STRUCT) or (), 1, MAP)
    if found is None or (found.items and (found.key_type, found.value_type) != (STRING, STRING)):
        return {}
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in found.items}


def _with_property(fields: Fields, number: int, key: str, value: str) -> Fields:
    context: Fields = find(fields, number, STRUCT) or ()
    before = find(context, 1, MAP)
    kept = [pair for pair in before.items if pair[0] != key.encode()] if before else []
    return with_field(context, 1, MAP, Mapped(STRING, STRING, (*kept, (key.encode(), value.encode()))))
