"""Records in the log files of Hudi, and in HFiles, of which its table of metadata consists. Reads only, without Hudi.

A log file is a sequence of blocks (Hudi's specification, Log File Format): rows in Avro, Parquet or HFile, or the keys
of deleted rows. An HFile is read by its blocks from the beginning, not by its indices (HBase Reference, HFile format).
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.errors import FormatError
from cmroot.store.blocks import Input

Records = Iterator[tuple[str, Mapping[str, Any]]]
"""Records, each with its key: "" where the file has records only."""

_MAGIC = b"#HUDI#"
_HFILE = b"DATABLK*"
_COMMAND, _DELETE, _CORRUPT, _AVRO, _HFILE_BLOCK, _PARQUET, _CDC = range(7)
_SCHEMA = 2  # `HeaderMetadataType`
_PLAIN = ("Boolean:boolean", "Int:int", "Long:long", "Float:float", "Double:double", "Bytes:bytes", "String:string")
_ENCODED = ("Date:int", "Decimal:bytes", "TimeMicros:long", "TimestampMicros:long")


def _wrapper(text: str) -> dict[str, Any]:
    name, _, type_ = text.partition(":")
    return {"type": "record", "name": f"{name}Wrapper", "fields": [{"name": "value", "type": type_}]}


def _deletes() -> Any:
    """Returns the schema of the keys in a block of deletes (HoodieDeleteRecordList.avsc)."""
    names = [f"{each.partition(':')[0]}Wrapper" for each in (*_PLAIN, *_ENCODED)]
    items = ["null", *names, _wrapper("LocalDate:int")]
    several = {"name": "wrappedValues", "type": ["null", {"type": "array", "items": items}]}
    array = {"type": "record", "name": "ArrayWrapper", "fields": [several]}
    order = ["null", *map(_wrapper, (*_PLAIN, *_ENCODED)), array]
    key, partition = ({"name": each, "type": ["null", "string"]} for each in ("recordKey", "partitionPath"))
    record = {"type": "record", "name": "Delete", "fields": [key, partition, {"name": "orderingVal", "type": order}]}
    field = {"name": "deleteRecordList", "type": {"type": "array", "items": record}}
    return {"type": "record", "name": "Deletes", "fields": [field]}


def log_records(path: str, source: BinaryIO) -> Records:
    """Yields the rows of a log file's blocks, without a key, and the keys of deleted rows, each with an empty record.
    Rows of rolled back blocks count. Raises FormatError for a block that cannot be read."""
    file = Input(source)
    while file.left:
        if file.take(len(_MAGIC)) != _MAGIC:
            raise FormatError(f"{path} has no block at byte {file.at - len(_MAGIC):,}", hint="check it with Hudi")
        (size,) = struct.unpack(">q", file.take(8))
        block = Input(io.BytesIO(file.take(size)))
        version, kind = struct.unpack(">ii", block.take(8))
        if version < 1:
            raise FormatError(f"{path} has blocks of version {version}, which Hudi has not written for years")
        headers = dict(_headers(block))
        content = block.take(struct.unpack(">q", block.take(8))[0])
        try:
            yield from _of_block(path, kind, headers, content)
        except (ValueError, LookupError, EOFError, struct.error, zlib.error, pa.ArrowException) as error:
            raise FormatError(f"{path} has a block that cannot be read: {error}") from error


def _headers(block: Input) -> Iterator[tuple[int, bytes]]:
    (count,) = struct.unpack(">i", block.take(4))
    for _ in range(count):
        key, size = struct.unpack(">ii", block.take(8))
        yield key, block.take(size)


def _of_block(path: str, kind: int, headers: Mapping[int, bytes], content: bytes) -> Records:
    if kind in (_AVRO, _CDC):
        yield from (("", each) for each in _avro_rows(headers[_SCHEMA].decode(), content))
    elif kind == _DELETE:
        version, size = struct.unpack(">ii", content[:8])
        if version < 3:
            raise FormatError(f"{path} has deletes of version {version}, which only Java reads")
        record = _reader_of(_deletes())(content[8 : 8 + size])
        yield from ((each["recordKey"] or "", {}) for each in record["deleteRecordList"])
    elif kind == _HFILE_BLOCK:
        yield from hfile_records(path, io.BytesIO(content))
    elif kind == _PARQUET:
        for batch in pq.ParquetFile(io.BytesIO(content)).iter_batches():
            yield from (("", each) for each in batch.to_pylist())
    elif kind != _COMMAND:
        raise FormatError(f"{path} has a block that is corrupt, or of the unknown kind {kind}")


def _avro_rows(schema: str, content: bytes) -> Iterator[Mapping[str, Any]]:
    read, at = _reader_of(json.loads(schema)), 8
    _, count = struct.unpack(">ii", content[:8])
    for _ in range(count):
        (size,) = struct.unpack(">i", content[at : at + 4])
        yield read(content[at + 4 : at + 4 + size])
        at += 4 + size


def _reader_of(schema: Any) -> Any:
    import fastavro  # by purges of Hudi tables only

    parsed = fastavro.parse_schema(schema)
    return lambda data: fastavro.schemaless_reader(io.BytesIO(data), parsed, None)


# ---- HFiles ----------------------------------------------------------------------------------------------------------


def hfile_records(path: str, source: BinaryIO) -> Records:
    """Yields the records of an HFile with their keys. Raises FormatError for one that cannot be read."""
    data, cells, read = source.read(), list[tuple[str, bytes]](), None
    for magic, content in _hfile_blocks(path, data):
        if magic == _HFILE:
            cells += _cells(content)
        elif magic == b"FILEINF2":
            schema = dict(_pairs(content)).get(b"schema")
            read = _reader_of(json.loads(schema)) if schema else None
    if cells and read is None:
        raise FormatError(f"{path} has no schema")
    yield from ((key, read(value) if value and read else {}) for key, value in cells)


def _hfile_blocks(path: str, data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the magic and the content of each block before the trailer."""
    at = 0
    while at + 33 <= len(data) and data[at : at + 8] != b'TRABLK"$':
        magic = data[at : at + 8]
        on_disk, size = struct.unpack(">ii", data[at + 8 : at + 16])
        (with_header,) = struct.unpack(">i", data[at + 29 : at + 33])
        if not 33 <= with_header <= on_disk + 33 <= len(data) - at:
            raise FormatError(f"{path} has no block of an HFile at byte {at:,}")
        content = data[at + 33 : at + with_header]
        if content[:2] == b"\x1f\x8b":
            content = zlib.decompress(content, 31)
        if len(content) != size:
            raise FormatError(f"{path} is compressed by a codec that is not known")
        yield magic, content
        at += on_disk + 33
    if data[at : at + 8] != b'TRABLK"$':
        raise FormatError(f"{path} has no trailer of an HFile")


def _cells(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields keys and values of a block: lengths of both, the row's length and text in the key, a time behind it."""
    at = 0
    while at < len(content):
        key_size, value_size, row_size = struct.unpack(">iih", content[at : at + 10])
        value = at + 8 + key_size
        yield content[at + 10 : at + 10 + row_size].decode("utf-8", "replace"), content[value : value + value_size]
        at = value + value_size + 1  # a version of one byte, always 0


def _pairs(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the pairs of a block of information: `PBUF`, and a message of pairs of bytes, with its size."""
    data = content.removeprefix(b"PBUF")
    size, at = _varint(data, 0)
    end = at + size
    while at < end:
        at += 1  # the field's tag
        length, at = _varint(data, at)
        key_size, key = _varint(data, at + 1)
        value_size, value = _varint(data, key + key_size + 1)
        yield data[key : key + key_size], data[value : value + value_size]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns a number of a message, and where the next one begins."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return value, at
