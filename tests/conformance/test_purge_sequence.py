"""SequenceFiles lose the records of some ids, and nothing else: byte by byte, and as Hadoop reads them."""

from __future__ import annotations

import bz2
import io
import tracemalloc
import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from purges import Warehouse
from py4j.protocol import Py4JJavaError
from record_files import SequenceFile, vint

from cmroot.errors import FormatError
from cmroot.store.blocks import Unsupported
from replicator.lifecycle.purge.rewrite.formats import FileFormat
from replicator.lifecycle.purge.rewrite.sequence import count_sequence, rewrite_sequence

REFUSED = (FormatError, Unsupported)
ROWS = FileFormat("sequence", column=1, field=("id",), type="bigint")
GONE = [0, 7, 8, 30, 31, 32, 33, 34, 35, 3999]
COMPRESS = "org.apache.hadoop.io.compress."
Pair = tuple[Any, Any]


def row(id: int) -> bytes:
    return b"v%d%s\x01%d\x01line\nof two" % (id, b"x" * (id % 700), id)


def without(data: bytes, ids: Sequence[int], format_: FileFormat = ROWS) -> tuple[bytes, tuple[int, int]]:
    out = io.BytesIO()
    rows, dropped = rewrite_sequence(io.BytesIO(data), nullcontext(out), format_, pa.array(ids, pa.int64()))
    counts = rows, dropped.total()
    assert (count_sequence(io.BytesIO(data)), count_sequence(io.BytesIO(out.getvalue()))) == (rows, rows - counts[1])
    return out.getvalue(), counts


def hadoop_reads(warehouse: Warehouse, path: Path) -> list[Pair]:
    """Keys and values, in their order."""
    found = warehouse.session.sparkContext.sequenceFile(str(path), minSplits=1).collect()
    return [(bytes(key) if isinstance(key, bytearray) else key, value) for key, value in found]


CODECS = ["Default", "Deflate", "Gzip", "BZip2", "Snappy", "Lz4"]
WRITTEN = [("NONE", "Default"), *((kind, codec) for kind in ("RECORD", "BLOCK") for codec in CODECS)]


@pytest.mark.parametrize(("kind", "codec"), WRITTEN)
def test_what_spark_has_written(warehouse: Warehouse, tmp_path: Path, kind: str, codec: str) -> None:
    name = f"s_{kind}_{codec}"
    settings = {"type": kind, "codec": f"{COMPRESS}{codec}Codec"}
    warehouse.sql(
        f"SET hive.exec.compress.output={kind != 'NONE'}",
        *(f"SET mapreduce.output.fileoutputformat.compress.{key}={value}" for key, value in settings.items()),
        f"CREATE TABLE {name} (v STRING, id BIGINT, w STRING) STORED AS SEQUENCEFILE",
        f"INSERT INTO {name} SELECT concat('v', id, repeat('x', int(id % 700))), id, 'line\\nof two'"
        " FROM range(0, 4000, 1, 1)",
    )
    location = warehouse.metastore.table("default", name.lower()).location or ""
    (source,) = [path for path in Path(location.removeprefix("file:")).iterdir() if path.name.startswith("part-")]
    data = source.read_bytes()
    assert (f"{codec}Codec".encode() in data[:200]) == (kind != "NONE")

    found, counts = without(data, GONE)

    (tmp_path / "found").write_bytes(found)
    before, after = hadoop_reads(warehouse, source), hadoop_reads(warehouse, tmp_path / "found")
    assert after == [pair for pair in before if int(pair[1].split("\x01")[1]) not in GONE]
    assert counts == (4000, len(GONE)) and len(after) == 4000 - len(GONE)
    header = data.index(b"\0\0\0\0", data.index(b"Text")) + 20
    assert found[:header] == data[:header]
    everything, _ = without(data, range(4000))
    assert everything.startswith(data[:header]) and len(everything) < header + 20 * 100
    (tmp_path / "none").write_bytes(everything)
    assert hadoop_reads(warehouse, tmp_path / "none") == []


ZSTD = pa.Codec("zstd")
OTHERS = {
    "plain": SequenceFile(),
    "bytes": SequenceFile(values="BytesWritable"),
    "version 5": SequenceFile(version=5, codec=f"{COMPRESS}BZip2Codec", pack=bz2.compress),
    "blocks of 7": SequenceFile(codec=f"{COMPRESS}DefaultCodec", pack=zlib.compress, in_blocks=7),
    "bytes in blocks": SequenceFile(
        values="BytesWritable", codec=f"{COMPRESS}DefaultCodec", pack=zlib.compress, in_blocks=1
    ),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("gone", [[], [0], [2, 3, 4, 5], [47, 48, 49], range(49)])
def test_what_others_have_written(warehouse: Warehouse, tmp_path: Path, name: str, gone: Sequence[int]) -> None:
    """Two sync markers in a row would be the end for Hadoop."""
    data = OTHERS[name].written([row(id) for id in range(50)])
    (tmp_path / "before").write_bytes(data)
    found, counts = without(data, gone)
    (tmp_path / "after").write_bytes(found)
    before = hadoop_reads(warehouse, tmp_path / "before")
    assert len(before) == 50 and counts == (50, len(gone))
    assert hadoop_reads(warehouse, tmp_path / "after") == [pair for at, pair in enumerate(before) if at not in gone]
    if not gone:
        assert found == data


def test_zstandard_which_hadoop_has_only_natively() -> None:
    kept = [row(id) for id in range(50) if id % 10]
    for in_blocks in (0, 7):
        file = SequenceFile(
            codec=f"{COMPRESS}ZStandardCodec", pack=lambda data: ZSTD.compress(data, asbytes=True), in_blocks=in_blocks
        )
        found, counts = without(file.written([row(id) for id in range(50)]), range(0, 50, 10))
        assert counts == (50, 5) and found.startswith(file.header)
        again, counts = without(found, [])
        assert counts == (45, 0) and again == found
        if not in_blocks:
            assert all(ZSTD.compress(file.value(each), asbytes=True) in found for each in kept)


def read_until_it_fails(warehouse: Warehouse, path: Path, data: bytes) -> tuple[list[Pair], bool]:
    """With Hadoop's own reader: what it reads, and whether it comes to the end."""
    path.write_bytes(data)
    jvm = warehouse.session.sparkContext._jvm
    conf, hadoop = jvm.org.apache.hadoop.conf.Configuration(), jvm.org.apache.hadoop.io
    place, found = jvm.org.apache.hadoop.fs.Path(str(path)), list[Pair]()
    try:
        reader = getattr(hadoop, "SequenceFile$Reader")(place.getFileSystem(conf).getRaw(), place, conf)
        key, value = hadoop.LongWritable(), hadoop.Text()
        while reader.next(key, value):
            found.append((key.get(), bytes(value.copyBytes())))
    except Py4JJavaError:
        return found, False
    return found, True


FUZZED = [
    OTHERS["plain"],
    SequenceFile(codec=f"{COMPRESS}DefaultCodec", pack=zlib.compress),
    SequenceFile(codec=f"{COMPRESS}DefaultCodec", pack=zlib.compress, in_blocks=4),
]


@pytest.mark.parametrize("kind", range(3))
def test_a_damaged_file_is_refused_or_keeps_what_it_says(warehouse: Warehouse, tmp_path: Path, kind: int) -> None:
    """Every byte that a file may end at, and a bit of every byte."""
    data = FUZZED[kind].written([b"v\x01%d" % id for id in range(9)])
    begin, refused = len(FUZZED[kind].header), 0
    ends = [data[:end] for end in range(begin, len(data))]
    flips = [data[:at] + bytes((data[at] ^ (1 << at % 8),)) + data[at + 1 :] for at in range(begin, len(data))]
    for changed in [*ends, *flips]:
        try:
            found, _ = without(changed, [1, 5])
        except REFUSED:
            refused += 1
            continue
        before, whole = read_until_it_fails(warehouse, tmp_path / "before", changed)
        after, whole_after = read_until_it_fails(warehouse, tmp_path / "after", found)
        gone = [pair for pair in before if pair[1].split(b"\x01")[1:2] in ([b"1"], [b"5"])]
        assert after == [pair for pair in before if pair not in gone] and whole == whole_after, changed
    assert refused > len(data) // 2


def plain(*parts: bytes, file: SequenceFile = OTHERS["plain"]) -> bytes:
    return file.header + b"".join(parts)


def number(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "big", signed=True) for value in values)


HUGE, SYNC, PACKED = 2**31 - 1, b"\xff\xff\xff\xff" + SequenceFile().sync, FUZZED[2]
HOSTILE: dict[str, tuple[bytes, str]] = {
    "no file": (b"PAR1" * 20, "it is not a SequenceFile"),
    "an older version": (b"SEQ\4" + bytes(99), "version 4 cannot be rewritten"),
    "a name without an end": (b"SEQ\6" + vint(HUGE), "bytes are declared"),
    "notes without an end": (b"SEQ\6\1k\x19org.apache.hadoop.io.Text\0\0" + number(HUGE), "bytes are declared"),
    "a record of more bytes than there are": (plain(number(HUGE, 8)), "bytes are declared"),
    "a record of less than none": (plain(number(-2, 0), bytes(99)), "a record of -2 bytes"),
    "a key of more than its record": (plain(number(4, 5), bytes(99)), "a record of 4 bytes has a key of 5"),
    "two sync markers": (plain(SYNC, SYNC, number(2, 0), b"\1v"), "a record of -1 bytes"),
    "another sync marker": (plain(SYNC[:-1], b"!", number(2, 0), b"\1v"), "no sync marker"),
    "a text of more bytes than its record": (plain(number(3, 0), b"\5ab"), "a value of 3 bytes declares 5 bytes"),
    "a text without its length": (plain(number(0, 0)), "a number is incomplete"),
    "no block": (plain(number(0), bytes(20), file=PACKED), "no block begins"),
    "a block of more bytes than there are": (plain(SYNC, b"\1", vint(HUGE), file=PACKED), "bytes are declared"),
    "blocks of less than none": (plain(SYNC, b"\xff", bytes(9), file=PACKED), "a block has -1 records"),
    "blocks of nothing": (plain(SYNC, b"\1", bytes(4), file=PACKED), "is damaged: it ends inside a stream"),
    "another codec": (plain(file=SequenceFile(codec="com.hadoop.compression.lzo.LzoCodec")), "lzo.LzoCodec cannot be"),
    "other values": (plain(file=SequenceFile(values="MapWritable")), "values of org.apache.hadoop.io.MapWritable"),
    **{
        f"{codec} that {what}": (
            SequenceFile(codec=f"{COMPRESS}{codec}Codec", pack=lambda _, data=data: data).written([b"v"]),
            "is damaged",
        )
        for codec, what, data in (
            ("Snappy", "claims", number(HUGE, 8) + b"\xff\xff\xff\xff\x07aaaa"),
            ("Lz4", "ends", number(99, 2) + b"\xf0\xff"),
            ("Lz4", "has no piece", number(99, HUGE)),
            ("Snappy", "says less", number(1, 4) + b"\2\4ab"),
            ("Lz4", "has more", number(2, 3) + b"\x20\1v" + number(0, 0)),
            ("BZip2", "ends", bz2.compress(b"\1v")[:-3]),
        )
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_no_memory(name: str) -> None:
    data, output = HOSTILE[name]
    tracemalloc.start()
    try:
        with pytest.raises(REFUSED, match=output):
            without(data, [1])
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
