"""Thrift's compact protocol, read into values and written back: the footers of Parquet files. Pure.

A struct is a dict of (type, value) by field id, a list its elements' type and values. Nothing is known of any message,
so that fields of later formats are kept as well.
"""

from __future__ import annotations

import struct
from typing import Any

from replicator.lifecycle.purge.rewrite.formats import Unsupported

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
Struct = dict[int, tuple[int, Any]]
Listed = tuple[int, list[Any]]


def read_struct(data: bytes) -> Struct:
    """Raises Unsupported for anything that is no struct."""
    try:
        return _Reader(data).struct()
    except (IndexError, struct.error, RecursionError) as error:
        raise Unsupported("the footer cannot be read: it is cut off, or encrypted") from error


def write_struct(value: Struct) -> bytes:
    out = bytearray()
    _write_struct(out, value)
    return bytes(out)


def given(fields: Struct, number: int, default: Any = None) -> Any:
    """The value of a field, if it is set."""
    found = fields.get(number)
    return default if found is None else found[1]


def elements(fields: Struct, number: int) -> list[Any]:
    """Of a list; none when it is not set."""
    found = fields.get(number)
    return [] if found is None else list(found[1][1])


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def varint(self) -> int:
        shift = found = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7

    def zigzag(self) -> int:
        number = self.varint()
        return (number >> 1) ^ -(number & 1)

    def take(self, length: int) -> bytes:
        if self.at + length > len(self.data):
            raise IndexError
        self.at += length
        return self.data[self.at - length : self.at]

    def struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while head := self.take(1)[0]:
            delta, type_ = head >> 4, head & 0x0F
            number = number + delta if delta else self.zigzag()
            fields[number] = (TRUE, type_ == TRUE) if type_ in (TRUE, FALSE) else (type_, self.value(type_))
        return fields

    def value(self, type_: int) -> Any:
        match type_:
            case 5 | 6 | 4:  # I32, I64, I16
                return self.zigzag()
            case 8:  # BINARY
                return self.take(self.varint())
            case 12:  # STRUCT
                return self.struct()
            case 9 | 10:  # LIST, SET
                head = self.take(1)[0]
                size = self.varint() if head >> 4 == 15 else head >> 4
                return head & 0x0F, [self.value(head & 0x0F) for _ in range(size)]
            case 1 | 2:  # booleans of a list
                return self.take(1)[0] == TRUE
            case 3:  # BYTE
                return self.take(1)
            case 7:  # DOUBLE
                return self.take(8)
            case 11:  # MAP
                size = self.varint()
                types = self.take(1)[0] if size else 0
                return types, [(self.value(types >> 4), self.value(types & 0x0F)) for _ in range(size)]
        raise IndexError


def _varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _zigzag(out: bytearray, number: int) -> None:
    _varint(out, number << 1 if number >= 0 else (-number << 1) - 1)


def _write_struct(out: bytearray, fields: Struct) -> None:
    last = 0
    for number, (type_, value) in sorted(fields.items()):
        written = (TRUE if value else FALSE) if type_ == TRUE else type_
        if 0 < number - last <= 15:
            out.append((number - last) << 4 | written)
        else:
            out.append(written)
            _zigzag(out, number)
        last = number
        if type_ != TRUE:
            _write(out, type_, value)
    out.append(0)


def _write(out: bytearray, type_: int, value: Any) -> None:
    match type_:
        case 5 | 6 | 4:
            _zigzag(out, value)
        case 8:
            _varint(out, len(value))
            out += value
        case 12:
            _write_struct(out, value)
        case 9 | 10:
            of, values = value
            out.append((len(values) if len(values) < 15 else 15) << 4 | of)
            if len(values) >= 15:
                _varint(out, len(values))
            for each in values:
                _write(out, of, each)
        case 1 | 2:
            out.append(TRUE if value else FALSE)
        case 3 | 7:
            out += value
        case _:
            types, pairs = value
            _varint(out, len(pairs))
            if pairs:
                out.append(types)
            for key, each in pairs:
                _write(out, types >> 4, key)
                _write(out, types & 0x0F, each)
