"""All bytes of a data file, decompressed, by separate parsers: with dictionaries, statistics, indexes and footers."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def all_bytes(path: Path) -> bytes:
    """The file as it is, and everything in it decompressed. For Parquet, ORC, Avro, and lines with gzip or without."""
    raw = path.read_bytes()
    if raw[:4] == b"PAR1":
        found = _pages(path, raw)
    elif raw[:3] == b"ORC":
        found = _chunks(raw)
    elif raw[:4] == b"Obj\x01":
        found = _blocks(raw)
    else:
        found = iter([gzip.decompress(raw)] if raw[:2] == b"\x1f\x8b" else [])
    return b"\0".join([raw, *found])


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


# Parquet: a page is a header in Thrift's compact protocol, and its bytes


def _pages(path: Path, raw: bytes) -> Iterator[bytes]:
    metadata = pq.read_metadata(path)
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            first = [column.data_page_offset]
            if column.has_dictionary_page and column.dictionary_page_offset:
                first.append(column.dictionary_page_offset)
            at = min(first)
            end = at + column.total_compressed_size
            while at < end:
                header, at = _struct(raw, at)
                body = raw[at : at + header[3]]
                at += header[3]
                plain, v2 = b"", header.get(8)
                if v2:
                    levels = v2.get(5, 0) + v2.get(6, 0)
                    plain, body = body[:levels], body[levels:]
                size = header[2] - len(plain)
                yield plain + (_inflated(column.compression.lower(), body, size) if body else b"")


def _inflated(codec: str, body: bytes, size: int) -> bytes:
    if codec == "uncompressed":
        return body
    if codec == "gzip":
        return zlib.decompress(body, 47)
    return bytes(pa.Codec(codec).decompress(body, size))


def _struct(raw: bytes, at: int) -> tuple[dict[int, object], int]:
    found: dict[int, object] = {}
    field = 0
    while raw[at]:
        delta, kind = raw[at] >> 4, raw[at] & 15
        at += 1
        if delta:
            field += delta
        else:
            number, at = _varint(raw, at)
            field = number >> 1 ^ -(number & 1)
        found[field], at = _value(raw, at, kind)
    return found, at + 1


def _value(raw: bytes, at: int, kind: int) -> tuple[object, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind == 3:
        return raw[at], at + 1
    if kind in (4, 5, 6):
        number, at = _varint(raw, at)
        return number >> 1 ^ -(number & 1), at
    if kind == 8:
        size, at = _varint(raw, at)
        return raw[at : at + size], at + size
    assert kind == 12, kind
    return _struct(raw, at)


# ORC: streams, indexes and footers are chunks, each behind three bytes with its length


def _chunks(raw: bytes) -> Iterator[bytes]:
    length = raw[-1]
    end, script, at = len(raw) - 1 - length, dict[int, int](), len(raw) - 1 - length
    while at < len(raw) - 1:
        tag, at = _varint(raw, at)
        if tag & 7 == 0:
            script[tag >> 3], at = _varint(raw, at)
        else:
            size, at = _varint(raw, at)
            at += size
    codec = {0: "", 1: "zlib", 2: "snappy", 4: "lz4", 5: "zstd"}[script.get(2, 0)]
    at = 3
    while codec and at + 3 <= end:
        header = int.from_bytes(raw[at : at + 3], "little")
        body = raw[at + 3 : at + 3 + (header >> 1)]
        at += 3 + len(body)
        if header & 1 or not body:
            continue
        if codec == "zlib":
            yield zlib.decompress(body, -15)
        else:
            size = _varint(body, 0)[0] if codec == "snappy" else script.get(3, 1 << 18)
            yield (
                bytes(pa.CompressedInputStream(pa.BufferReader(body), "zstd").read())
                if codec == "zstd"
                else bytes(pa.Codec(codec).decompress(body, size))
            )


# Avro: blocks between sync markers


def _blocks(raw: bytes) -> Iterator[bytes]:
    at, notes = 4, dict[bytes, bytes]()
    while count := _long(raw, at)[0]:
        at = _long(raw, at)[1]
        if count < 0:
            at = _long(raw, at)[1]
        for _ in range(abs(count)):
            pair = []
            for _ in range(2):
                size, at = _long(raw, at)
                pair.append(raw[at : at + size])
                at += size
            notes[pair[0]] = pair[1]
    at = _long(raw, at)[1] + 16
    codec = notes.get(b"avro.codec", b"null")
    while at < len(raw):
        at = _long(raw, at)[1]
        size, at = _long(raw, at)
        body = raw[at : at + size]
        at += size + 16
        if codec == b"deflate":
            yield zlib.decompress(body, -15)
        elif codec == b"snappy":
            yield bytes(pa.Codec("snappy").decompress(body[:-4], _varint(body, 0)[0]))
        else:
            assert codec == b"null", codec


def _long(raw: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(raw, at)
    return number >> 1 ^ -(number & 1), at
