"""The zone of the timestamps of ORC files. Reads only.

A timestamp's seconds count from 2015 in the zone of the stripe's writer, and pyarrow's reader and writer, and every
Java, turn them by their own rules. So a file is read as if it had been written in GMT, which gives and takes the
numbers as they are, and what was written gets the zone of its source.
"""

from __future__ import annotations

import bisect
import io
import itertools
from collections.abc import Set
from typing import BinaryIO

from replicator.lifecycle.purge.rewrite.orc_footer import (
    BYTES,
    COMPRESSION,
    METADATA_LENGTH,
    STATISTICS,
    STRIPES,
    VARINT,
    Message,
    Tail,
    all_of,
    as_end,
    decompressed,
    dict_of,
    kinds,
    read_message,
    uncompressed,
    unzigzag,
    write_message,
    zigzag,
)

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
    """The zones that the stripes say, b"" where one says none; and the columns that have bloom filters."""
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
    """The same file with this footer, as if its stripes had been written in this zone; b"": in none. widened: the
    statistics of timestamps are made to hold whatever the zone's rules make of them, as readers compare wall clocks."""
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
    """The streams before a stripe's data, and all its streams as the footer tells them. Those of the indexes come
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
    """The statistics of the stripes."""
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
    """Smallest and largest timestamps, each as an instant and as a wall clock, in milliseconds."""
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
    """A file put together of ranges of another one, (from, to), and of bytes."""

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
