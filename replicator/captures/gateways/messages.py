"""Messages of metastore clients as values: thrift's binary protocol, and the calls that delete data. Pure.

A message is a header and its struct as a tree. A tree retains every field that was sent, including unknown ones, and is
written with the same bytes; they come from a function, not a socket. Calls that delete data have their parameters, and
the same call with deletion turned off. Field numbers are those of Hive's public interface definition, 2.3 to 4.x; a
`..._req` call has one struct as its argument. Other calls are handled in section `interface` of `upstream`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

CALL, REPLY, EXCEPTION, ONEWAY = 1, 2, 3, 4
STOP, BOOL, BYTE, DOUBLE, I16, I32, I64, STRING, STRUCT, MAP, SET, LIST = 0, 2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15
"""Type codes. 16 is excluded: it is a UUID in the newest libraries, and has no size in those of Hive."""
UNKNOWN_METHOD, INTERNAL_ERROR, PROTOCOL_ERROR = 1, 6, 7  # of TApplicationException
NAME_LIMIT = 256  # bytes of a method's name
STRING_LIMIT = 1 << 30
DEPTH_LIMIT = 64

_VERSION_1 = 0x8001
FIXED = {BOOL: 1, BYTE: 1, DOUBLE: 8, I16: 2, I32: 4, I64: 8}
_LISTED_AS = {BOOL: 1, BYTE: 1, DOUBLE: 8, I16: 2, I32: 4, I64: 8, STRING: 4, STRUCT: 1, MAP: 6, SET: 5, LIST: 5}
"""Minimum bytes of an element: a length that cannot fit into any message raises an error before allocating memory."""

_short = struct.Struct(">h").unpack
_int = struct.Struct(">i").unpack
_pack_int = struct.Struct(">i").pack

Read = Callable[[int], bytes]
"""Reads exactly this many of the following bytes. Raises EOFError if there are not enough."""


class Garbage(Exception):
    """Raised for bytes that are not a message of the strict binary protocol."""


@dataclass(frozen=True)
class MessageHeader:
    """The header of a message: its kind, the method's name, the caller's sequence number. `size`: its bytes."""

    kind: int
    name: str
    sequence: int
    size: int

    def encode(self, kind: int | None = None) -> bytes:
        name = self.name.encode()
        first = (_VERSION_1 << 16) | (self.kind if kind is None else kind)
        return struct.pack(">Ii", first, len(name)) + name + _pack_int(self.sequence)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct. `value`: the raw bytes of a fixed-size type or a string; the fields of a struct; otherwise
    a ListValue or a Mapped."""

    id: int
    type: int
    value: Any


Fields = tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class ListValue:
    """A list or a set."""

    type: int
    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Mapped:
    """A map."""

    key_type: int
    value_type: int
    items: tuple[tuple[Any, Any], ...]


def parse_header(data: bytes | bytearray) -> MessageHeader | None:
    """Returns the header at the beginning of the bytes received so far; None if it is incomplete. Raises Garbage as
    soon as the bytes cannot be a header."""
    if data[:2] != b"\x80\x01"[: len(data[:2])]:
        raise Garbage("not the strict binary protocol")
    if len(data) < 8:
        return None
    kind = data[3]
    (length,) = _int(data[4:8])
    if not CALL <= kind <= ONEWAY or not 0 <= length <= NAME_LIMIT:
        raise Garbage("not a message of the binary protocol: invalid kind or name")
    if len(data) < 12 + length:
        return None
    try:
        name = data[8 : 8 + length].decode()
    except UnicodeDecodeError as error:
        raise Garbage("a method's name is not UTF-8") from error
    (sequence,) = _int(data[8 + length : 12 + length])
    return MessageHeader(kind, name, sequence, 12 + length)


# ---- reading ------------------------------------------------------------------------------------------------------


def read_struct(read: Read, depth: int = 0) -> Fields:
    """Returns the fields of a struct. Raises Garbage, or EOFError if the bytes end too early."""
    if depth > DEPTH_LIMIT:
        raise Garbage("structs are nested too deeply")
    fields = []
    while (kind := read(1)[0]) != STOP:
        (number,) = _short(read(2))
        fields.append(Field(number, kind, _read_value(read, kind, depth + 1)))
    return tuple(fields)


def _read_value(read: Read, kind: int, depth: int) -> Any:
    if size := FIXED.get(kind):
        return read(size)
    if kind == STRING:
        return read(_length(read, STRING_LIMIT))
    if depth > DEPTH_LIMIT:
        raise Garbage("values are nested too deeply")
    if kind == STRUCT:
        return read_struct(read, depth)
    if kind in (LIST, SET):
        element = read(1)[0]
        count = _length(read, STRING_LIMIT // least(element))
        return ListValue(element, tuple([_read_value(read, element, depth + 1) for _ in range(count)]))
    if kind == MAP:
        key, value = read(2)
        count = _length(read, STRING_LIMIT)
        if count:
            least(key), least(value)
        pairs = [(_read_value(read, key, depth + 1), _read_value(read, value, depth + 1)) for _ in range(count)]
        return Mapped(key, value, tuple(pairs))
    raise Garbage(f"unknown type {kind}")


def _length(read: Read, limit: int) -> int:
    (length,) = _int(read(4))
    if not 0 <= length <= limit:
        raise Garbage(f"invalid length {length}")
    return int(length)


def least(kind: int) -> int:
    """Returns the minimum size of a value in bytes. Raises Garbage for a type that does not exist."""
    found = _LISTED_AS.get(kind)
    if found is None:
        raise Garbage(f"unknown type {kind}")
    return found


def read_from(data: bytes | bytearray | memoryview, start: int) -> tuple[Read, Callable[[], int]]:
    """Returns a reader of bytes in memory, and a function that returns its offset."""
    view, at, end = memoryview(data), start, len(data)

    def read(size: int) -> bytes:
        nonlocal at
        if at + size > end:
            raise EOFError
        at += size
        return bytes(view[at - size : at])

    return read, lambda: at


# ---- writing ------------------------------------------------------------------------------------------------------


def write_struct(fields: Fields) -> bytes:
    """Returns the bytes of a struct; for a tree that was read, exactly the original ones."""
    parts: list[bytes] = []
    _write_struct(fields, parts)
    return b"".join(parts)


def _write_struct(fields: Fields, parts: list[bytes]) -> None:
    for field in fields:
        parts.append(struct.pack(">Bh", field.type, field.id))
        _write_value(field.type, field.value, parts)
    parts.append(b"\0")


def _write_value(kind: int, value: Any, parts: list[bytes]) -> None:
    if kind == STRING:
        parts += (_pack_int(len(value)), value)
    elif kind == STRUCT:
        _write_struct(value, parts)
    elif kind in (LIST, SET):
        parts += (bytes([value.type]), _pack_int(len(value.items)))
        for item in value.items:
            _write_value(value.type, item, parts)
    elif kind == MAP:
        parts += (bytes([value.key_type, value.value_type]), _pack_int(len(value.items)))
        for key, item in value.items:
            _write_value(value.key_type, key, parts)
            _write_value(value.value_type, item, parts)
    else:
        parts.append(value)


# ---- looking into a tree, and changing it -------------------------------------------------------------------------


def find(fields: Fields, number: int, kind: int) -> Any:
    """Returns the value of the field with this number and type; None if it does not exist."""
    return next((field.value for field in fields if field.id == number and field.type == kind), None)


def text(fields: Fields, number: int) -> str | None:
    value = find(fields, number, STRING)
    return None if value is None else value.decode(errors="surrogateescape")


def texts(fields: Fields, number: int) -> list[str] | None:
    value = find(fields, number, LIST)
    if value is None or value.type != STRING:
        return None
    return [item.decode(errors="surrogateescape") for item in value.items]


def flag(fields: Fields, number: int) -> bool | None:
    value = find(fields, number, BOOL)
    return None if value is None else value != b"\0"


def with_field(fields: Fields, number: int, kind: int, value: Any) -> Fields:
    """Returns the struct with the field set, in place or appended."""
    if any(field.id == number for field in fields):
        return tuple(replace(field, type=kind, value=value) if field.id == number else field for field in fields)
    return (*fields, Field(number, kind, value))


# ---- responses of the gateway -------------------------------------------------------------------------------------


def application_error(header: MessageHeader | None, kind: int, message: str) -> bytes:
    """Returns a TApplicationException in answer to a call; without a header, in answer to bytes that are not a call."""
    said = header or MessageHeader(CALL, "", 0, 0)
    fields = (Field(1, STRING, message.encode()), Field(2, I32, _pack_int(kind)))
    return said.encode(EXCEPTION) + write_struct(fields)


def declared_error(header: MessageHeader, field: int, message: str) -> bytes:
    """Returns an answer with the exception that the method declares in this field; Hive's are all one text."""
    return header.encode(REPLY) + write_struct((Field(field, STRUCT, (Field(1, STRING, message.encode()),)),))


# ---- calls that delete data ------------------------------------------------------------------------------------------


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
        raise NotUnderstood(f"{name} in catalog {other}: only catalog {default} is protected")
    table = (text(fields, shape.table) or "").strip().lower() if shape.table else ""
    if not db or (shape.table and not table):
        raise NotUnderstood(f"{name} does not name a {'table' if db else 'database'}")
    drop = Drop(
        name, shape.kind, db, table, _deletes(shape, fields), bool(shape.cascade and flag(fields, shape.cascade))
    )
    return _with_selection(drop, shape, fields)


def _refuse_ambiguous(name: str, fields: Fields) -> None:
    """Raises NotUnderstood for ambiguous fields. If a field occurs twice, the server uses the last one. It reads a list
    or a map as declared, in these calls as texts and structs, regardless of the types sent before it."""
    if len({field.id for field in fields}) < len(fields):
        raise NotUnderstood(f"{name} contains a field twice")
    for field in fields:
        _refuse_ambiguous_value(name, field.type, field.value)


def _refuse_ambiguous_value(name: str, kind: int, value: Any) -> None:
    if kind == STRUCT:
        _refuse_ambiguous(name, value)
    elif isinstance(value, ListValue):
        if value.items and value.type not in (STRING, STRUCT):
            raise NotUnderstood(f"{name} contains a list of neither strings nor structs")
        for item in value.items:
            _refuse_ambiguous_value(name, value.type, item)
    elif isinstance(value, Mapped) and value.items and (value.key_type, value.value_type) != (STRING, STRING):
        raise NotUnderstood(f"{name} contains a map of other types than strings")


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
            raise NotUnderstood(f"{drop.call} does not name its partitions in a way that this release knows")
        return replace(drop, names=None if names is None else tuple(names))
    if shape.kind != "partitions":
        return drop
    if shape.parts:
        parts = find(fields, shape.parts, STRUCT) or ()
        if len(parts) > 1:  # a union, of which the server reads one member, and the following bytes as something else
            raise NotUnderstood(f"{drop.call} names its partitions in two ways")
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
    raise NotUnderstood(f"{drop.call} does not name its partitions in a way that this release knows")


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
