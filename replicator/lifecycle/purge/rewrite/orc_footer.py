"""Tails of ORC files: properties that pyarrow's writer cannot write are inserted after it. Reads only.

A tail is metadata (stripes' statistics), footer and postscript, each a protobuf message. A message is represented by
its fields in order, (number, wire type, value), so that fields of later formats are retained as well.
"""

from __future__ import annotations

import bisect
import io
import itertools
import zlib
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from cmroot.store.blocks import Unsupported, unpack_lz4, unpack_snappy, unpack_zstd

Message = list[tuple[int, int, Any]]

# of Footer
STRIPES, TYPES, KEYS, STATISTICS, ENCRYPTION, CALENDAR = 3, 4, 5, 7, 10, 11
# of PostScript
FOOTER_LENGTH, COMPRESSION, BLOCK, METADATA_LENGTH = 1, 2, 3, 5
# of Type
KIND, SUBTYPES, FIELD_NAMES, PRECISION, SCALE = 1, 2, 3, 5, 6
ACID_INDEX, ACID_STATS, ACID_VERSION = b"hive.acid.key.index", b"hive.acid.stats", b"hive.acid.version"
"""Keys of files with row ids: the last id of each stripe, the numbers of rows by kind of change, and of the format."""
STRING, TIMES = 7, {9, 18}
_TEXTS = {STRING, 16, 17}  # VARCHAR and CHAR are stored in the same form
_DECIMAL = 14
VARINT, BYTES = 0, 2
_NANOSECONDS_REACH = ((1 << 63) - 1) // 10**6 - 3 * 86_400_000
"""The range, in milliseconds from 1970, of nanoseconds in 64 bits, less the maximum difference of time zones."""


@dataclass(frozen=True)
class Tail:
    """The tail of a file. start: offset of the footer."""

    footer: Message
    postscript: Message
    start: int


def read_tail(file: BinaryIO) -> Tail:
    """Reads the tail. Raises Unsupported if the file is not an ORC file."""
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
    """Returns footer, postscript and its length, as stored at the end of a file. The footer is uncompressed, which
    readers of compressed files accept as well."""
    data = uncompressed(footer, postscript)
    end = write_message([(FOOTER_LENGTH, VARINT, len(data)), *(each for each in postscript if each[0] != 1)])
    return data + end + bytes([len(end)])


def uncompressed(message: Message, postscript: Message) -> bytes:
    """Encodes a message uncompressed, in the framing of the file's codec."""
    data, known = write_message(message), dict_of(postscript)
    if not known.get(COMPRESSION, 0):
        return data
    block = min(known.get(BLOCK, 1 << 18), (1 << 23) - 1)
    parts = [data[at : at + block] for at in range(0, len(data), block)]
    return b"".join((len(part) << 1 | 1).to_bytes(3, "little") + part for part in parts)


def as_source(source: Message, written: Message, keys: Mapping[bytes, bytes]) -> Message:
    """Returns the written footer with the source's types, keys and calendar. keys: values of those that describe rows.
    Raises Unsupported if the written types are stored differently, and for keys that would be false for other rows."""
    ours, theirs = ([value for number, _, value in each if number == TYPES] for each in (source, written))
    if [_stored(type_) for type_ in ours] != [_stored(type_) for type_ in theirs]:
        raise Unsupported("types of the ORC file would be written as other types")
    names = {dict_of(read_message(value)).get(1, b"") for value in all_of(source, KEYS)}
    if any(name.startswith(b"hive.acid.") and name not in keys and name != ACID_VERSION for name in names):
        raise Unsupported("an ORC file of a transactional table can be rewritten only as one of its table")
    if all_of(source, ENCRYPTION):
        raise Unsupported("an encrypted ORC file cannot be rewritten")
    kept = [each for each in written if each[0] not in (TYPES, KEYS, CALENDAR)]
    return [*kept, *(_with_value(each, keys) for each in source if each[0] in (TYPES, KEYS, CALENDAR))]


def _with_value(field: tuple[int, int, Any], keys: Mapping[bytes, bytes]) -> tuple[int, int, Any]:
    name = dict_of(read_message(field[2])).get(1, b"") if field[0] == KEYS else b""
    if name not in keys:
        return field
    return KEYS, BYTES, write_message([(1, BYTES, name), (2, BYTES, keys[name])])


def _stored(type_: bytes) -> tuple[Any, ...]:
    """Returns the properties that determine how a column is stored, and its name."""
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
    """Returns the kinds of the columns, in order."""
    return [dict_of(read_message(type_)).get(KIND, 0) for type_ in all_of(footer, TYPES)]


def times_fit(footer: Message) -> bool:
    """Returns True if the statistics prove that nanoseconds in 64 bits can represent every timestamp."""
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
    """Returns the fields that occur once."""
    return {number: value for number, _, value in message}


def zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def unzigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def read_message(data: bytes) -> Message:
    """Parses a message. Raises IndexError and ValueError if it is invalid."""
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
    """Decompresses chunks, each with a header of 3 bytes: its length, and whether it is stored uncompressed."""
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


# ---- orc stripes -----------------------------------------------------------------------------------------------------
# The time zone of the timestamps in ORC files. Reads only.
#
# A timestamp's seconds count from 2015 in the zone of the stripe's writer, and pyarrow's reader and writer, and every
# Java version, convert them by their own rules. A file is therefore read as if it had been written in GMT, which leaves
# the numbers unchanged, and the written file gets the zone of its source.


GMT = b"GMT"
TIMESTAMP = 9
_LEEWAY = 2 * 86_400_000
# of StripeInformation; of StripeFooter; of Stream
_OFFSET, _INDEX, _DATA, _LENGTH = 1, 2, 3, 4
_STREAMS, _ZONE = 1, 3
_ROW_INDEX = 6
_BLOOM_FILTERS = {7, 8}

Part = tuple[int, int] | bytes


def zones_and_blooms(file: BinaryIO, tail: Tail) -> tuple[set[bytes], set[int]]:
    """Returns the zones of the stripes, b"" for a stripe without one; and the columns that have bloom filters."""
    zones, blooms = set(), set()
    for stripe in all_of(tail.footer, STRIPES):
        message = _stripe_footer(file, tail, dict_of(read_message(stripe)))
        zones.add(dict_of(message).get(_ZONE, b""))
        for stream in all_of(message, _STREAMS):
            known = dict_of(read_message(stream))
            if known.get(1, 0) in _BLOOM_FILTERS:
                blooms.add(known.get(2, 0))
    return zones, blooms


def with_zone(file: BinaryIO, tail: Tail, zone: bytes, footer: Message, widened: bool) -> Pieces:
    """Returns the file with this footer, as if its stripes had been written in this zone; b"": in none. widened:
    statistics of timestamps are widened to hold under any rules of the zone, as readers compare local times."""
    times = {number for number, kind in enumerate(kinds(footer)) if kind == TIMESTAMP} if widened else set()
    parts: list[Part] = []
    stripes = []
    at = grown = 0
    for stripe in all_of(footer, STRIPES):
        known = dict_of(read_message(stripe))
        start = known.get(_OFFSET, 0)
        end = start + known.get(_INDEX, 0) + known.get(_DATA, 0)
        message = _stripe_footer(file, tail, known)
        indexes: list[Part] = [(start, start + known.get(_INDEX, 0))]
        streams = all_of(message, _STREAMS)
        if times:
            indexes, streams = _indexes(file, tail, start, streams, times)
        kept = [field for field in message if field[0] not in (_STREAMS, _ZONE)]
        made = [*((_STREAMS, BYTES, stream) for stream in streams), *kept]
        ending = uncompressed([*made, (_ZONE, BYTES, zone)] if zone else made, tail.postscript)
        parts += [(at, start), *indexes, (start + known.get(_INDEX, 0), end), ending]
        index = sum(map(_size, indexes))
        changed = {_OFFSET: start + grown, _INDEX: index, _LENGTH: len(ending)}
        others = [field for field in read_message(stripe) if field[0] not in changed]
        stripes.append([*((number, VARINT, value) for number, value in changed.items()), *others])
        at = end + known[_LENGTH]
        grown += index - known.get(_INDEX, 0) + len(ending) - known[_LENGTH]
    length = dict_of(tail.postscript).get(METADATA_LENGTH, 0)
    metadata = _metadata(file, tail, length, times)
    postscript = [
        (number, wire, len(metadata) if number == METADATA_LENGTH else value) for number, wire, value in tail.postscript
    ]
    said = _widened(all_of(footer, STATISTICS), times)
    last = [field for field in footer if field[0] not in (STRIPES, STATISTICS)]
    last += [(STRIPES, BYTES, write_message(stripe)) for stripe in stripes]
    last += [(STATISTICS, BYTES, statistics) for statistics in said]
    return Pieces(file, [*parts, (at, tail.start - length), metadata, as_end(last, postscript)])


def _stripe_footer(file: BinaryIO, tail: Tail, known: dict[int, int]) -> Message:
    file.seek(known.get(_OFFSET, 0) + known.get(_INDEX, 0) + known.get(_DATA, 0))
    return read_message(_decompressed(file, tail, known[_LENGTH]))


def _decompressed(file: BinaryIO, tail: Tail, length: int) -> bytes:
    return decompressed(file.read(length), dict_of(tail.postscript).get(COMPRESSION, 0))


def _indexes(
    file: BinaryIO, tail: Tail, start: int, streams: list[bytes], times: Set[int]
) -> tuple[list[Part], list[bytes]]:
    """Returns the streams before a stripe's data, and all its streams as listed in the footer. Streams of indexes come
    first, in the footer's order."""
    parts: list[Part] = []
    reported = []
    for stream in streams:
        message = read_message(stream)
        known = dict_of(message)
        kind, length = known.get(1, 0), known.get(3, 0)
        if kind == _ROW_INDEX or kind in _BLOOM_FILTERS:
            part: Part = (start, start + length)
            if kind == _ROW_INDEX and known.get(2, 0) in times:
                file.seek(start)
                part = _row_index(read_message(_decompressed(file, tail, length)), tail)
                message = [field if field[0] != 3 else (3, VARINT, len(part)) for field in message]
            parts.append(part)
        start += length
        reported.append(write_message(message))
    return parts, reported


def _row_index(index: Message, tail: Tail) -> bytes:
    entries: Message = []
    for number, wire, entry in index:
        fields = [(field, kind, _widen(value) if field == 2 else value) for field, kind, value in read_message(entry)]
        entries.append((number, wire, write_message(fields)))
    return uncompressed(entries, tail.postscript)


def _metadata(file: BinaryIO, tail: Tail, length: int, times: Set[int]) -> bytes:
    """Returns the statistics of the stripes."""
    file.seek(tail.start - length)
    if not times:
        return file.read(length)
    made: Message = []
    for number, wire, stripe in read_message(_decompressed(file, tail, length)):
        columns = _widened(all_of(read_message(stripe), 1), times)
        made.append((number, wire, write_message([(1, BYTES, column) for column in columns])))
    return uncompressed(made, tail.postscript)


def _widened(columns: list[bytes], times: Set[int]) -> list[bytes]:
    return [_widen(column) if number in times else column for number, column in enumerate(columns)]


def _widen(statistics: bytes) -> bytes:
    """Widens minima and maxima of timestamps, each as an instant and as a local time, in milliseconds."""
    made: Message = []
    for number, wire, value in read_message(statistics):
        if number == 9:
            found = [
                (field, VARINT, zigzag(unzigzag(each) + (-_LEEWAY if field in (1, 3) else _LEEWAY)))
                for field, _, each in read_message(value)
                if field in (1, 2, 3, 4)
            ]
            value = write_message(found)
        made.append((number, wire, value))
    return write_message(made)


class Pieces(io.RawIOBase):
    """A file composed of ranges of another one, (from, to), and of bytes."""

    def __init__(self, file: BinaryIO, parts: list[Part]) -> None:
        self._file, self._parts = file, [part for part in parts if _size(part)]
        self._starts = list(itertools.accumulate(map(_size, self._parts), initial=0))
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._starts[-1])[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        out = bytearray()
        end = self._starts[-1] if size < 0 else min(self._at + size, self._starts[-1])
        while self._at < end:
            index = bisect.bisect_right(self._starts, self._at) - 1
            part, skip = self._parts[index], self._at - self._starts[index]
            length = min(end, self._starts[index + 1]) - self._at
            if isinstance(part, bytes):
                found = part[skip : skip + length]
            else:
                self._file.seek(part[0] + skip)
                found = self._file.read(length)
            if not found:
                raise EOFError("the file became shorter")
            out += found
            self._at += len(found)
        return bytes(out)


def _size(part: Part) -> int:
    return len(part) if isinstance(part, bytes) else part[1] - part[0]
