"""Tails of ORC files: what pyarrow's writer cannot say, put in after it. Reads only.

A tail is metadata (stripes' statistics), footer and postscript, each a protobuf message; a message here is its fields
in their order, (number, wire type, value), so that what later formats add is kept as well.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from replicator.lifecycle.purge.rewrite.blocks import unpack_lz4, unpack_snappy, unpack_zstd
from replicator.lifecycle.purge.rewrite.formats import Unsupported

Message = list[tuple[int, int, Any]]

# of Footer
STRIPES, TYPES, KEYS, STATISTICS, ENCRYPTION, CALENDAR = 3, 4, 5, 7, 10, 11
# of PostScript
FOOTER_LENGTH, COMPRESSION, BLOCK, METADATA_LENGTH = 1, 2, 3, 5
# of Type
KIND, SUBTYPES, FIELD_NAMES, PRECISION, SCALE = 1, 2, 3, 5, 6
STRING, TIMES = 7, {9, 18}
_TEXTS = {STRING, 16, 17}  # VARCHAR and CHAR are stored alike
_DECIMAL = 14
VARINT, BYTES = 0, 2
_NANOSECONDS_REACH = ((1 << 63) - 1) // 10**6 - 3 * 86_400_000
"""Milliseconds from 1970 that nanoseconds in 64 bits reach, less what zones may differ by."""


@dataclass(frozen=True)
class Tail:
    """start: where the footer stands in the file."""

    footer: Message
    postscript: Message
    start: int


def read_tail(file: BinaryIO) -> Tail:
    """Raises Unsupported for what is no ORC file."""
    size = file.seek(0, 2)
    file.seek(max(0, size - 256))
    data = file.read()
    try:
        postscript = read_message(data[-1 - data[-1] : -1])
        if dict_of(postscript).get(8000) != b"ORC":
            raise ValueError
        length = dict_of(postscript)[FOOTER_LENGTH]
        start = size - 1 - data[-1] - length
        file.seek(start)
        codec = dict_of(postscript).get(COMPRESSION, 0)
        footer = read_message(decompressed(file.read(length), codec))
    except (IndexError, KeyError, ValueError, zlib.error, pa.ArrowException) as error:
        raise Unsupported("the tail of the ORC file cannot be read") from error
    return Tail(footer, postscript, start)


def as_end(footer: Message, postscript: Message) -> bytes:
    """Footer, postscript and its length, as they stand at the end of a file: the footer uncompressed, which readers of
    compressed files take as well."""
    data = uncompressed(footer, postscript)
    end = write_message([(FOOTER_LENGTH, VARINT, len(data)), *(each for each in postscript if each[0] != 1)])
    return data + end + bytes([len(end)])


def uncompressed(message: Message, postscript: Message) -> bytes:
    """As it may stand in a file of this codec."""
    data, known = write_message(message), dict_of(postscript)
    if not known.get(COMPRESSION, 0):
        return data
    block = min(known.get(BLOCK, 1 << 18), (1 << 23) - 1)
    parts = [data[at : at + block] for at in range(0, len(data), block)]
    return b"".join((len(part) << 1 | 1).to_bytes(3, "little") + part for part in parts)


def as_source(source: Message, written: Message) -> Message:
    """The written footer with the source's types, keys and calendar. Raises Unsupported when the types that were
    written are stored otherwise, and for keys that would not be true of other rows."""
    ours, theirs = ([value for number, _, value in each if number == TYPES] for each in (source, written))
    if [_stored(type_) for type_ in ours] != [_stored(type_) for type_ in theirs]:
        raise Unsupported("types of the ORC file that would be written as others")
    if any(dict_of(read_message(value)).get(1, b"").startswith(b"hive.acid.") for value in all_of(source, KEYS)):
        raise Unsupported("an ORC file of a transactional table cannot be rewritten")
    if all_of(source, ENCRYPTION):
        raise Unsupported("an encrypted ORC file cannot be rewritten")
    kept = [each for each in written if each[0] not in (TYPES, KEYS, CALENDAR)]
    return [*kept, *(each for each in source if each[0] in (TYPES, KEYS, CALENDAR))]


def _stored(type_: bytes) -> tuple[Any, ...]:
    """What decides how a column is stored, and its name."""
    fields = read_message(type_)
    kind = dict_of(fields).get(KIND, 0)
    below: list[int] = []
    for wire, value in ((wire, value) for number, wire, value in fields if number == SUBTYPES):
        at = 0
        while wire == BYTES and at < len(value):  # packed
            number, at = _varint(value, at)
            below.append(number)
        if wire == VARINT:
            below.append(value)
    size = tuple(dict_of(fields).get(number, 0) for number in (PRECISION, SCALE)) if kind == _DECIMAL else ()
    return STRING if kind in _TEXTS else kind, below, all_of(fields, FIELD_NAMES), size


def all_of(message: Message, number: int) -> list[Any]:
    return [value for each, _, value in message if each == number]


def kinds(footer: Message) -> list[int]:
    """Of the columns, in their order."""
    return [dict_of(read_message(type_)).get(KIND, 0) for type_ in all_of(footer, TYPES)]


def times_fit(footer: Message) -> bool:
    """Whether the statistics prove that 64 bits of nanoseconds hold every timestamp."""
    said = all_of(footer, STATISTICS)
    for statistics in (value for kind, value in zip(kinds(footer), said, strict=False) if kind in TIMES):
        column = dict_of(read_message(statistics))
        if column.get(1, 0) == 0:
            continue
        times = dict_of(read_message(column.get(9, b"")))
        known = [unzigzag(value) for number, value in times.items() if number in (1, 2, 3, 4)]
        if len(known) < 2 or max(map(abs, known)) > _NANOSECONDS_REACH:
            return False
    return len(said) == len(kinds(footer)) or not TIMES & set(kinds(footer))


# Protobuf


def dict_of(message: Message) -> dict[int, Any]:
    """Fields that stand once."""
    return {number: value for number, _, value in message}


def zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def unzigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def read_message(data: bytes) -> Message:
    """Raises IndexError and ValueError for what is none."""
    found: Message = []
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                value, at = _varint(data, at)
                found.append((key >> 3, VARINT, value))
                continue
            case 1:
                length = 8
            case 5:
                length = 4
            case 2:
                length, at = _varint(data, at)
            case _:
                raise ValueError(f"wire type {key & 7}")
        if at + length > len(data):
            raise IndexError(at)
        found.append((key >> 3, key & 7, data[at : at + length]))
        at += length
    return found


def write_message(message: Message) -> bytes:
    out = bytearray()
    for number, wire, value in message:
        out += _as_varint(number << 3 | wire)
        if wire == VARINT:
            out += _as_varint(value)
        else:
            out += (_as_varint(len(value)) if wire == BYTES else b"") + value
    return bytes(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    shift = found = 0
    while True:
        byte = data[at]
        found |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return found, at
        shift += 7


def _as_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


# Compression


def decompressed(data: bytes, codec: int) -> bytes:
    """A stream of chunks, each with a header of 3 bytes: its length, and whether it is stored as it is."""
    if codec == 0:
        return data
    decompress = _CODECS.get(codec)
    if decompress is None:
        raise Unsupported(f"ORC compressed with {'LZO' if codec == 3 else f'codec {codec}'} cannot be written")
    out, at = bytearray(), 0
    while at < len(data):
        head = int.from_bytes(data[at : at + 3], "little")
        chunk = data[at + 3 : at + 3 + (head >> 1)]
        at += 3 + len(chunk)
        out += chunk if head & 1 else decompress(chunk)
    return bytes(out)


_CODECS: dict[int, Callable[[bytes], bytes]] = {
    1: lambda chunk: zlib.decompress(chunk, -15),
    2: unpack_snappy,
    4: unpack_lz4,
    5: unpack_zstd,
}
