"""Codecs, numbers and schemas of Avro and SequenceFile, at their edges."""

from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest
from record_files import vint as written

from cmroot.errors import FormatError
from cmroot.store.blocks import avro_codec, hadoop_codec
from replicator.lifecycle.purge.rewrite.formats import parse_schema
from replicator.lifecycle.purge.rewrite.sequence import as_vint, vint

AVRO = ("null", "deflate", "snappy", "bzip2", "zstandard", "xz")
HADOOP = ("Default", "Deflate", "Gzip", "BZip2", "ZStandard", "Snappy", "Lz4")
SIZES = (0, 1, 2, 14, 15, 16, 18, 19, 20, 269, 270, 271, 525, 65535, 65536, 65537, 300_000)


@pytest.mark.parametrize(
    "codec", [*map(avro_codec, AVRO), *(hadoop_codec(f"org.apache.hadoop.io.compress.{name}Codec") for name in HADOOP)]
)
def test_what_is_compressed_is_the_same_again(codec: object) -> None:
    chance = random.Random(1)
    for size in SIZES:
        for data in (chance.randbytes(size), bytes(size), b"ab" * (size // 2), chance.randbytes(size // 2) * 2):
            packed = codec.compress(data)  # type: ignore[attr-defined]
            assert isinstance(packed, bytes) and codec.decompress(packed) == data  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "raw"), [("Snappy", "snappy"), ("Lz4", "lz4_raw")])
def test_frames_as_hadoop_has_them(name: str, raw: str) -> None:
    """Several pieces in a frame, several frames, and what does not add up."""
    data, codec = random.Random(2).randbytes(900) * 90, hadoop_codec(f"org.apache.hadoop.io.compress.{name}Codec")
    pieces = [pa.Codec(raw).compress(data[at : at + 30_000], asbytes=True) for at in range(0, len(data), 30_000)]
    frame = struct.pack(">i", len(data)) + b"".join(struct.pack(">i", len(piece)) + piece for piece in pieces)
    assert codec.decompress(frame + frame) == data * 2 and codec.decompress(bytes(4)) == codec.decompress(b"") == b""
    for damaged in (
        frame[:-1],
        frame[: len(frame) // 2],
        frame + b"\0",
        bytes(4) + frame,
        struct.pack(">i", 9) + frame[4:],
    ):
        with pytest.raises(FormatError, match=f"{name}Codec is damaged"):
            codec.decompress(damaged)


def test_numbers_of_variable_length() -> None:
    for value in (0, 1, 127, 128, 255, 256, 65535, 65536, 2**31 - 1):
        output = written(value)
        assert as_vint(value) == output and vint(b"x" + output + b"x", 1) == (value, 1 + len(output))
    assert [vint(data, 0)[0] for data in (b"\xff", b"\x90", b"\x87\x70", b"\x86\1\0")] == [-1, -112, -113, -257]
    for data in (b"", b"\x8f", b"\x8e\1"):
        with pytest.raises(FormatError, match="a number is incomplete"):
            vint(data, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        '"Missing"',
        '{"type": "array"}',
        '{"type": "fixed", "name": "f", "size": -1}',
        '{"type": 5}',
        "[[[7]]]",
        '{"type": "fixed", "name": "f", "size": true}',
        '{"type": "fixed", "name": "f", "size": 2147483648}',
        '{"type": "bytes", "logicalType": "decimal", "scale": 1001}',
        '{"type": "record", "name": "r", "fields": [7]}',
    ],
)
def test_what_is_no_schema(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid Avro schema"):
        parse_schema(text)
