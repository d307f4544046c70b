"""Thrift's binary protocol as values: the header of a message, its struct as a tree, and the gateway's error answers.

A tree retains every field that was sent, including unknown ones, and is written with the same bytes. `calls` has the
meaning of messages. Nothing here accesses a socket: bytes come from a function.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

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
        raise Garbage("not a message of the binary protocol: no such kind, or no such name")
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
    raise Garbage(f"there is no type {kind}")


def _length(read: Read, limit: int) -> int:
    (length,) = _int(read(4))
    if not 0 <= length <= limit:
        raise Garbage(f"a length of {length}")
    return int(length)


def least(kind: int) -> int:
    """Returns the minimum size of a value in bytes. Raises Garbage for a type that does not exist."""
    found = _LISTED_AS.get(kind)
    if found is None:
        raise Garbage(f"there is no type {kind}")
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


# ---- answers of our own -------------------------------------------------------------------------------------------


def application_error(header: MessageHeader | None, kind: int, message: str) -> bytes:
    """Returns a TApplicationException in answer to a call; without a header, in answer to bytes that are not a call."""
    said = header or MessageHeader(CALL, "", 0, 0)
    fields = (Field(1, STRING, message.encode()), Field(2, I32, _pack_int(kind)))
    return said.encode(EXCEPTION) + write_struct(fields)


def declared_error(header: MessageHeader, field: int, message: str) -> bytes:
    """Returns an answer with the exception that the method declares in this field; Hive's are all one text."""
    return header.encode(REPLY) + write_struct((Field(field, STRUCT, (Field(1, STRING, message.encode()),)),))
