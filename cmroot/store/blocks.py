"""Common parts of containers of records (Avro, SequenceFile): reading an exact number of bytes, and codecs of blocks.

A length in a file is accepted only up to the file's size; inconsistent lengths raise FormatError before memory is
allocated.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from cmroot.errors import FormatError

MOST = (1 << 31) - 1
"""The maximum size of a block or record, in bytes: the limit of readers in Java."""
PIECE = 1 << 22
_TEXT = 1 << 12  # bytes of a record's first field that count
_FRAMED = 1 << 16  # bytes in a Hadoop frame: less than the buffer of any reader
_AVRO_MAGIC, _AVRO_SYNC = b"Obj\x01", 16  # Avro Specification, Object Container Files
_HADOOP = "org.apache.hadoop.io.compress."


class Unsupported(Exception):
    """Raised for files that cannot be rewritten; the message is a sentence that explains why."""


class Input:
    """A file read from its beginning, never beyond its size."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.size = source.seek(0, os.SEEK_END)
        self.at = 0
        source.seek(0)

    @property
    def left(self) -> int:
        return self.size - self.at

    def take(self, count: int) -> bytes:
        self._claim(count)
        found = self._source.read(count)
        if len(found) != count:
            raise FormatError("the file ended while it was read")
        return found

    def skip(self, count: int) -> None:
        self._claim(count)
        self._source.seek(self.at)

    def before(self) -> bytes:
        """Returns all bytes read so far."""
        self._source.seek(0)
        return self._source.read(self.at)

    def again(self) -> Input:
        """Returns the same file, from its beginning."""
        return Input(self._source)

    def _claim(self, count: int) -> None:
        if not 0 <= count <= min(self.left, MOST):
            raise FormatError(f"{count:,} bytes are declared at byte {self.at:,}, where {self.left:,} remain")
        self.at += count


@dataclass(frozen=True)
class Codec:
    """A codec of one block. `decompress` raises FormatError for anything but one complete compressed block."""

    name: str
    compress: Callable[[bytes], bytes]
    unpack: Callable[[bytes], bytes]

    def decompress(self, data: bytes) -> bytes:
        try:
            return self.unpack(data)
        except (zlib.error, lzma.LZMAError, pa.ArrowException, OSError, ValueError, LookupError, struct.error) as error:
            raise FormatError(f"data compressed with {self.name} is damaged: {error}") from error


def avro_codec(name: str) -> Codec:
    """Returns the codec. Raises Unsupported."""
    return _named(_AVRO, name, f"Avro compressed with {name}")


def hadoop_codec(name: str) -> Codec:
    """Returns the codec for the class named in a SequenceFile. Raises Unsupported."""
    known = name.removeprefix(_HADOOP) if name.startswith(_HADOOP) else ""
    return _named(_OF_HADOOP, known, f"a SequenceFile compressed with {name}")


def _named(codecs: dict[str, Codec], name: str, what: str) -> Codec:
    if name not in codecs:
        raise Unsupported(f"{what[:200]} cannot be rewritten")
    return codecs[name]


# Streams


def _streams(make: Callable[[], Any]) -> Callable[[bytes], bytes]:
    """make: a decompressor of one stream; several consecutive streams are one block."""

    def unpack(data: bytes) -> bytes:
        found, size = list[bytes](), 0
        while data or not found:
            stream = make()
            found.append(stream.decompress(data, MOST - size))
            if not stream.eof:
                raise ValueError("it ends inside a stream")
            size += len(found[-1])
            data = stream.unused_data
        return b"".join(found)

    return unpack


def _unpack_deflate(data: bytes) -> bytes:
    """Decompresses a stream and ignores bytes after it: writers in Python leave a part of its checksum there."""
    stream = zlib.decompressobj(-15)
    found = stream.decompress(data, MOST)
    if not stream.eof:
        raise ValueError("it ends inside its stream")
    return found


def _zlib(bits: int) -> Callable[[bytes], bytes]:
    def compress(data: bytes) -> bytes:
        stream = zlib.compressobj(wbits=bits)
        return stream.compress(data) + stream.flush()

    return compress


def unpack_zstd(data: bytes) -> bytes:
    stream, found, size = pa.CompressedInputStream(pa.BufferReader(data), "zstd"), [], 0
    while piece := stream.read(PIECE):
        found.append(piece)
        size += len(piece)
        if size > MOST:
            raise ValueError(f"it holds more than {MOST:,} bytes")
    return b"".join(found)


def _packed(name: str) -> Callable[[bytes], bytes]:
    return lambda data: pa.Codec(name).compress(data, asbytes=True)


# Snappy and LZ4


def unpack_snappy(data: bytes) -> bytes:
    size = shift = at = 0
    while True:
        size |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128 or shift > 28:
            break
    if size > min(MOST, 64 * len(data)):  # 3 bytes expand to 64 at most
        raise ValueError(f"{len(data):,} bytes cannot hold {size:,}")
    return bytes(pa.Codec("snappy").decompress(data, size, asbytes=True))


def unpack_lz4(data: bytes) -> bytes:
    size = at = 0
    while at < len(data):
        token = data[at]
        literals, at = _lz4_length(data, at + 1, token >> 4)
        size, at = size + literals, at + literals
        if at == len(data):  # the last sequence has no match
            break
        repeated, at = _lz4_length(data, at + 2, token & 15)
        size += repeated + 4
    if at != len(data):
        raise ValueError("it ends inside a sequence")
    return bytes(pa.Codec("lz4_raw").decompress(data, size, asbytes=True))


def _lz4_length(data: bytes, at: int, length: int) -> tuple[int, int]:
    more = 255 if length == 15 else 0
    while more == 255:
        more, at = data[at], at + 1
        length += more
    return length, at


def _checked_snappy(data: bytes) -> bytes:
    """Decompresses Avro's variant, which appends the checksum of the uncompressed data."""
    found = unpack_snappy(data[:-4])
    if zlib.crc32(found).to_bytes(4, "big") != data[-4:]:
        raise ValueError("its checksum differs")
    return found


def _framed(compress: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Compresses like Hadoop's BlockCompressorStream: (uncompressed size, (compressed size, compressed)+)*."""

    def pack(data: bytes) -> bytes:
        found = []
        for at in range(0, len(data), _FRAMED):
            piece = data[at : at + _FRAMED]
            packed = compress(piece)
            found += [struct.pack(">ii", len(piece), len(packed)), packed]
        return b"".join(found) or bytes(4)

    return pack


def _unframed(unpack: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def unpack_all(data: bytes) -> bytes:
        found, at, left = [], 0, 0
        while at < len(data):
            (left,) = struct.unpack_from(">i", data, at)
            at += 4
            if left <= 0 and at < len(data):  # readers treat an empty frame as the end
                raise ValueError("data follows its end")
            while left > 0:
                (size,) = struct.unpack_from(">i", data, at)
                if not 0 < size <= len(data) - at - 4:
                    raise ValueError(f"a piece of {size:,} bytes does not exist")
                found.append(unpack(data[at + 4 : at + 4 + size]))
                at, left = at + 4 + size, left - len(found[-1])
            if left < 0:
                raise ValueError("its pieces are longer than declared")
        return b"".join(found)

    return unpack_all


_AVRO = {
    codec.name: codec
    for codec in (
        Codec("null", lambda data: data, lambda data: data),
        Codec("deflate", _zlib(-15), _unpack_deflate),
        Codec("snappy", lambda data: _packed("snappy")(data) + zlib.crc32(data).to_bytes(4, "big"), _checked_snappy),
        Codec("bzip2", bz2.compress, _streams(bz2.BZ2Decompressor)),
        Codec("zstandard", _packed("zstd"), unpack_zstd),
        Codec("xz", lzma.compress, _streams(lzma.LZMADecompressor)),
    )
}
_OF_HADOOP = {
    codec.name: codec
    for codec in (
        Codec("DefaultCodec", _zlib(15), _streams(lambda: zlib.decompressobj(15))),
        Codec("DeflateCodec", _zlib(15), _streams(lambda: zlib.decompressobj(15))),
        Codec("GzipCodec", _zlib(31), _streams(lambda: zlib.decompressobj(31))),
        Codec("BZip2Codec", bz2.compress, _AVRO["bzip2"].unpack),
        Codec("ZStandardCodec", _packed("zstd"), unpack_zstd),
        Codec("SnappyCodec", _framed(_packed("snappy")), _unframed(unpack_snappy)),
        Codec("Lz4Codec", _framed(_packed("lz4_raw")), _unframed(unpack_lz4)),
    )
}


# ---- Avro ------------------------------------------------------------------------------------------------------------


class AvroFile:
    """An object container file: header (magic, metadata, sync marker), then blocks. Raises FormatError for one that is
    damaged, Unsupported for an unknown codec."""

    def __init__(self, file: Input) -> None:
        self._file = file
        if file.take(len(_AVRO_MAGIC)) != _AVRO_MAGIC:
            raise FormatError("it is not an Avro file")
        self.properties = dict(self._metadata())
        self.sync = file.take(_AVRO_SYNC)
        self.header = file.before()
        self.codec = avro_codec(self.properties.get("avro.codec", b"null").decode("utf-8", "replace"))

    def _metadata(self) -> Iterator[tuple[str, bytes]]:
        while count := self._number():
            if count < 0:
                self._number()  # size in bytes
            for _ in range(abs(count)):
                yield self._file.take(self._number()).decode("utf-8", "replace"), self._file.take(self._number())

    def blocks(self, read: bool = True) -> Iterator[tuple[int, bytes]]:
        """Yields (number of records, their compressed bytes). read: False omits the bytes."""
        file = self._file
        while file.left:
            count, size = self._number(), self._number()
            packed = file.take(size) if read else b""
            if not read:
                file.skip(size)
            if file.take(_AVRO_SYNC) != self.sync or count < 0:
                raise FormatError(f"a block does not end at byte {file.at:,} as declared")
            yield count, packed

    def _number(self) -> int:
        found = self._file.take(1)
        while found[-1] > 127:
            found += self._file.take(1)
        return number(found, 0)[0]

    def block(self, count: int, packed: bytes) -> bytes:
        """Returns a block of this file, with its sync marker."""
        return _long(count) + _long(len(packed)) + packed + self.sync


def number(data: bytes, at: int) -> tuple[int, int]:
    """Returns an int or long, and its end."""
    found = shift = 0
    while True:
        byte = data[at]
        found |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return (found >> 1) ^ -(found & 1), at
        if shift > 63:
            raise FormatError("a number has more than 64 bits")


def _long(found: int) -> bytes:
    found, out = (found << 1) ^ (found >> 63), bytearray()
    while found > 127:
        out.append(found & 127 | 128)
        found >>= 7
    return bytes([*out, found])


# ---- records of Avro -------------------------------------------------------------------------------------------------
# The header of a file is the source's, byte by byte: fastavro would write attributes of a schema in any order.


Known = dict[bytes, tuple[bytes, bytes]]
"""Records as they were and as they are now, by their first field."""


class AvroRecords:
    """An Avro file in memory. Raises FormatError for one that cannot be read."""

    def __init__(self, data: bytes, path: str) -> None:
        import fastavro  # by runs with Iceberg tables only
        from fastavro.schema import SchemaParseException

        self.path, self._read, self._write = path, fastavro.schemaless_reader, fastavro.schemaless_writer
        try:
            self._file = AvroFile(Input(io.BytesIO(data)))
            written = json.loads(self._file.properties["avro.schema"])
            self.fields: list[dict[str, Any]] = written.get("fields") or []
            self._schema = fastavro.parse_schema(_bare(written))
        except (FormatError, Unsupported, ValueError, LookupError, AttributeError, SchemaParseException) as error:
            raise self._damaged(error) from error

    @property
    def properties(self) -> Mapping[str, bytes]:
        return self._file.properties

    def records(self) -> Iterator[dict[str, Any]]:
        for count, data in self._blocks():
            stream = io.BytesIO(data)
            for _ in range(count):
                yield self._record(stream)

    def written(self, fix: Callable[[dict[str, Any]], None], known: Known | None = None) -> bytes:
        """Returns the file with changed records, in the same blocks. known: of files with the same schema, by the same
        `fix`, which is not called for these again; gets this file's."""
        found = [self._file.header]
        for count, data in self._blocks():
            new = self._changed(count, data, fix) if known is None else self._changed_once(count, data, fix, known)
            found.append(self._file.block(count, self._file.codec.compress(new)))
        return b"".join(found)

    def _changed(self, count: int, data: bytes, fix: Callable[[dict[str, Any]], None]) -> bytes:
        stream, new = io.BytesIO(data), io.BytesIO()
        for _ in range(count):
            record = self._record(stream)
            fix(record)
            self._write(new, self._schema, record)
        return new.getvalue()

    def _changed_once(self, count: int, data: bytes, fix: Callable[[dict[str, Any]], None], known: Known) -> bytes:
        """Like `_changed`. Bytes that begin with all those of a known record are that record: the schema alone says
        where it ends."""
        stream, at, found = io.BytesIO(data), 0, list[bytes]()
        for _ in range(count):
            key = _first_text(data, at)
            before, after = known.get(key, (b"", b""))
            if not before or not data.startswith(before, at):
                stream.seek(at)
                record = self._record(stream)
                before = data[at : stream.tell()]
                fix(record)
                new = io.BytesIO()
                self._write(new, self._schema, record)
                after = new.getvalue()
                known[key] = before, after
            found.append(after)
            at += len(before)
        return b"".join(found)

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yields the number of records of each block, and their bytes; once."""
        blocks = self._file.blocks()
        while True:
            try:
                if (block := next(blocks, None)) is None:
                    return
                count, packed = block
                data = self._file.codec.decompress(packed)
                if count > len(data):
                    raise ValueError(f"{count:,} records do not fit in {len(data):,} bytes")
            except (FormatError, EOFError, ValueError, LookupError) as error:
                raise self._damaged(error) from error
            yield count, data

    def _record(self, stream: io.BytesIO) -> Any:
        try:
            return self._read(stream, self._schema, None)
        except (EOFError, ValueError, LookupError, RecursionError, struct.error) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> FormatError:
        return FormatError(
            f"{self.path} is not an Avro file that can be read: {error}",
            hint="check the table with its own tools, at the source",
        )


def _first_text(data: bytes, at: int) -> bytes:
    """Returns the bytes of a record's first field if that is a text; otherwise some bytes of the record."""
    try:
        size, end = number(data, at)
    except (LookupError, FormatError):
        return b""
    return data[at : end + min(max(size, 0), _TEXT)]


def _bare(schema: Any) -> Any:
    """Returns a schema without logical types, so that values of partitions and bounds pass unchanged."""
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if isinstance(schema, dict):
        return {
            key: _bare(value) if key in ("type", "fields", "items", "values") else value
            for key, value in schema.items()
            if key not in ("logicalType", "adjust-to-utc", "default", "precision", "scale")
        }
    return schema
