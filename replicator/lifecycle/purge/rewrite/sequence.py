"""Rewriting of one SequenceFile without the rows of some ids. Runs in a task.

Remaining records are copied byte for byte, blocks without an id in compressed form; header, sync markers and keys are
retained. A row is the value of a record: the bytes of a Text or a BytesWritable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate, compress, pairwise
from typing import BinaryIO

import msgspec
import pyarrow as pa

from cmroot.errors import FormatError
from cmroot.store.blocks import Codec, Input, Unsupported, hadoop_codec
from replicator.lifecycle.purge.rewrite.columnar import Counts
from replicator.lifecycle.purge.rewrite.formats import FileFormat
from replicator.lifecycle.purge.rewrite.line_files import row_keys

_MAGIC = b"SEQ"
_WITH_METADATA = 6
_VERSIONS = (5, _WITH_METADATA)
_SYNC = 16
_ESCAPE = b"\xff\xff\xff\xff"
"""Replaces a record's length: a sync marker follows."""

KeyOf = Callable[[bytes], int | None]
"""A record's serialized value -> the position of its id; None if it has none."""
Part = tuple[int, list[int], bytes]
"""A part of a file after its header: number of records, positions of erased records' ids, remaining bytes."""


def rewrite_sequence(
    source: BinaryIO, target: AbstractContextManager[BinaryIO], format_: FileFormat, keys: pa.Array
) -> Counts:
    """Copies a file except the records whose row has one of `keys`."""
    file = _SequenceFile(Input(source))
    key_of = _key_of(file.said.value_class, format_, keys)
    rows, dropped = 0, Counter[int]()
    with target as out:
        out.write(file.header)
        for count, left_out, kept in file.blocks(key_of) if file.said.in_blocks else file.records(key_of):
            rows += count
            dropped.update(left_out)
            out.write(kept)
    return rows, dropped


def count_sequence(source: BinaryIO) -> int:
    return _SequenceFile(file).count() if (file := Input(source)).left else 0


@dataclass(frozen=True)
class SequenceHeader:
    """The header of a SequenceFile. notes: the file's own metadata."""

    value_class: str
    in_blocks: bool
    codec: Codec | None
    notes: Mapping[str, str]


def read_header(file: Input) -> SequenceHeader:
    """Reads up to the sync marker. Raises Unsupported, FormatError."""
    magic = file.take(4)
    if magic[:3] != _MAGIC:
        raise FormatError("it is not a SequenceFile")
    version = magic[3]
    if version not in _VERSIONS:
        raise Unsupported(f"a SequenceFile of version {version} cannot be rewritten")
    read_text(file)  # the class of keys
    value_class = read_text(file)
    is_compressed, in_blocks = (file.take(1) != b"\0" for _ in range(2))
    codec = hadoop_codec(read_text(file)) if is_compressed else None
    if in_blocks and codec is None:
        raise FormatError("blocks are compressed, but no codec is named")
    many = read_int(file) if version >= _WITH_METADATA else 0
    return SequenceHeader(value_class, in_blocks, codec, {read_text(file): read_text(file) for _ in range(many)})


class _SequenceFile:
    def __init__(self, file: Input) -> None:
        self._file = file
        self.said = read_header(file)
        self._codec = self.said.codec
        self._sync = file.take(_SYNC)
        self.header = file.before()

    # ---- one record after the other ---------------------------------------------------------------------------------

    def records(self, key_of: KeyOf) -> Iterator[Part]:
        """Writes a sync marker only before a remaining record: two in a row are the end for readers."""
        marker = b""
        for synced, length, keys in self._heads():
            marker = _ESCAPE + self._sync if synced else marker
            if length < 0:
                break
            body = self._file.take(length)
            value = body[keys:]
            key = key_of(self._codec.decompress(value) if self._codec else value)
            if key is not None:
                yield 1, [key], b""
            else:
                yield 1, [], marker + length.to_bytes(4, "big") + keys.to_bytes(4, "big") + body
                marker = b""
        yield 0, [], marker

    def _heads(self) -> Iterator[tuple[bool, int, int]]:
        """Yields for each record whether a sync marker precedes it, its length and its key's length. A marker at the
        end of the file yields length -1."""
        while self._file.left:
            length, synced = read_int(self._file), False
            if length == -1:
                self._check_sync()
                if not self._file.left:
                    yield True, -1, 0
                    return
                length, synced = read_int(self._file), True
            keys = read_int(self._file)
            if not 0 <= keys <= length:
                raise FormatError(f"a record of {length:,} bytes has a key of {keys:,}")
            yield synced, length, keys

    # ---- blocks -----------------------------------------------------------------------------------------------------

    def blocks(self, key_of: KeyOf) -> Iterator[Part]:
        assert self._codec is not None
        for count, packed in self._blocks():
            lengths = _lengths(self._codec.decompress(packed[2]))
            values = _cut(self._codec.decompress(packed[3]), lengths, count)
            found = [key_of(value) for value in values]
            left_out = [key for key in found if key is not None]
            if left_out:
                stays = [key is None for key in found]
                key_lengths = _lengths(self._codec.decompress(packed[0]))
                keys = _cut(self._codec.decompress(packed[1]), key_lengths, count)
                kept = ((raw for _, raw in key_lengths), keys, (raw for _, raw in lengths), values)
                packed = [self._codec.compress(b"".join(compress(each, stays))) for each in kept]
            if len(left_out) == count:
                yield count, left_out, b""
                continue
            buffers = b"".join(as_vint(len(each)) + each for each in packed)
            yield count, left_out, _ESCAPE + self._sync + as_vint(count - len(left_out)) + buffers

    def _blocks(self, read: bool = True) -> Iterator[tuple[int, list[bytes]]]:
        """Yields (number of records, lengths of keys, keys, lengths of values and values in compressed form). read:
        False omits the bytes."""
        while self._file.left:
            if self._file.take(4) != _ESCAPE:
                raise FormatError(f"no block begins before byte {self._file.at:,}")
            self._check_sync()
            count = read_vint(self._file)
            if count < 0:
                raise FormatError(f"a block has {count:,} records")
            packed = []
            for _ in range(4):
                size = read_vint(self._file)
                if read:
                    packed.append(self._file.take(size))
                else:
                    self._file.skip(size)
            yield count, packed

    def count(self) -> int:
        if self.said.in_blocks:
            return sum(count for count, _ in self._blocks(read=False))
        found = 0
        for _, length, _ in self._heads():
            if length >= 0:
                self._file.skip(length)
                found += 1
        return found

    # ---- pieces -----------------------------------------------------------------------------------------------------

    def _check_sync(self) -> None:
        if self._file.take(_SYNC) != self._sync:
            raise FormatError(f"no sync marker before byte {self._file.at:,}")


def _key_of(value_class: str, format_: FileFormat, keys: pa.Array) -> KeyOf:
    """Raises Unsupported for values that are neither text nor bytes."""
    key_of = row_keys(msgspec.structs.replace(format_, kind=format_.rows), keys)
    match value_class:
        case "org.apache.hadoop.io.Text":
            return lambda value: key_of(_content(value, *vint(value, 0)))
        case "org.apache.hadoop.io.BytesWritable":
            return lambda value: key_of(_content(value, int.from_bytes(value[:4], "big", signed=True), 4))
    raise Unsupported(f"a SequenceFile with values of {value_class[:200]} cannot be rewritten")


def _content(value: bytes, length: int, at: int) -> bytes:
    if at + length != len(value):
        raise FormatError(f"a value of {len(value):,} bytes declares {length:,} bytes")
    return value[at:]


def _lengths(data: bytes) -> list[tuple[int, bytes]]:
    """Returns numbers, each with its encoding."""
    found, at = [], 0
    while at < len(data):
        value, end = vint(data, at)
        found.append((value, data[at:end]))
        at = end
    return found


def _cut(data: bytes, lengths: list[tuple[int, bytes]], count: int) -> list[bytes]:
    ends = list(accumulate((length for length, _ in lengths), initial=0))
    if len(lengths) != count or ends[-1] != len(data) or any(length < 0 for length, _ in lengths):
        raise FormatError(
            f"{count:,} records are declared, but {len(lengths):,} found, with {ends[-1]:,} of {len(data):,} bytes"
        )
    return [data[start:end] for start, end in pairwise(ends)]


# Numbers and names, as encoded by Hadoop's WritableUtils


def read_int(file: Input) -> int:
    return int.from_bytes(file.take(4), "big", signed=True)


def read_vint(file: Input) -> int:
    first = file.take(1)
    return vint(first + file.take(_vint_size(first[0]) - 1), 0)[0]


def read_text(file: Input) -> str:
    return file.take(read_vint(file)).decode("utf-8", "replace")


def _vint_size(first: int) -> int:
    first = first - 256 if first > 127 else first
    return 1 if first >= -112 else -111 - first if first >= -120 else -119 - first


def vint(data: bytes, at: int) -> tuple[int, int]:
    """Returns a number, and its end."""
    if at >= len(data) or (end := at + _vint_size(data[at])) > len(data):
        raise FormatError("a number is incomplete")
    first = data[at] - 256 if data[at] > 127 else data[at]
    if first >= -112:
        return first, end
    found = int.from_bytes(data[at + 1 : end], "big")
    return ~found if first < -120 else found, end


def as_vint(value: int) -> bytes:
    """value: not negative."""
    if value <= 127:
        return bytes((value,))
    found = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes((144 - len(found), *found))
