"""Avro files lose the records of some ids, and nothing else: byte by byte, and as another reader reads them."""

from __future__ import annotations

import io
import json
import math
import random
import struct
import tracemalloc
import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from record_files import random_type, random_value

from cmroot.errors import FormatError
from cmroot.store.blocks import Unsupported
from replicator.lifecycle.purge.rewrite.avro import count_avro, rewrite_avro
from replicator.lifecycle.purge.rewrite.formats import FileFormat

REFUSED = (FormatError, Unsupported)
GONE = pa.array([0, 7, 8, 500, *range(900, 960)], pa.int64())

NESTED: Any = {
    "type": "record",
    "name": "Event",
    "namespace": "of.tests",
    "doc": 'a name, and \'quotes\' """',
    "fields": [
        {
            "name": "header",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Header",
                    "fields": [
                        {"name": "member", "type": ["null", "long"]},
                        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
                    ],
                },
            ],
        },
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
        {
            "name": "next",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Link",
                    "fields": [{"name": "v", "type": "int"}, {"name": "rest", "type": ["null", "Link"]}],
                },
            ],
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "id", "type": ["null", "long"]},
        {"name": "any", "type": ["null", "double", "boolean", "of.tests.Header", {"type": "array", "items": "Hash"}]},
        {"name": "cost", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 3}},
        {"name": "nothing", "type": {"type": "array", "items": "null"}},
        {"name": "on", "type": {"type": "int", "logicalType": "date"}},
    ],
}


def event(number: int) -> dict[str, Any]:
    link = None
    for each in range(number % 5):
        link = {"v": each, "rest": link}
    header = {"member": None if number % 11 == 0 else number, "at": datetime(2026, 1, 1, 0, 0, number % 60, tzinfo=UTC)}
    return {
        "header": None if number % 13 == 0 else header,
        "tags": {f"k{each}": ["x" * number] * each for each in range(number % 4)},
        "next": link,
        "kind": "AB"[number % 2],
        "hash": struct.pack(">i", number),
        "id": None if number % 17 == 1 else number - 20 if number > 990 else number,
        "any": (None, 1.5, True, header, [b"abcd"] * 3)[number % 5],
        "cost": Decimal(number * 10**20).scaleb(-3),
        "nothing": [None] * (number % 3),
        "on": date(2026, 1, 1),
    }


def written(schema: Any, records: Sequence[Any], codec: str = "null", interval: int = 4000, **more: Any) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, schema, records, codec, interval, **more)
    return out.getvalue()


def read(data: bytes) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(data), handle_unicode_errors="surrogateescape"))


def without(
    data: bytes, keys: pa.Array, field: tuple[str, ...] = ("id",), type_: str = "bigint", spellings: Any = ()
) -> tuple[bytes, tuple[int, int]]:
    out = io.BytesIO()
    rows, dropped = rewrite_avro(
        io.BytesIO(data), nullcontext(out), FileFormat("avro", field=field, type=type_, spellings=spellings), keys
    )
    counts = rows, dropped.total()
    assert (count_avro(io.BytesIO(data)), count_avro(io.BytesIO(out.getvalue()))) == (rows, rows - counts[1])
    return out.getvalue(), counts


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_avro_records_that_stay_are_the_same_bytes(codec: str) -> None:
    sync, notes = random.Random(1).randbytes(16), {"writer.note": "ü"}
    data = written(NESTED, [event(number) for number in range(1000)], codec, sync_marker=sync, metadata=notes)
    gone = set(GONE.to_pylist())

    found, counts = without(data, GONE)

    wanted = [each for each in read(data) if each["id"] not in gone]
    assert counts == (1000, 1000 - len(wanted)) and read(found) == wanted
    header, *blocks, end = data.split(sync)[1:]
    header_found, *blocks_found, end_found = found.split(sync)[1:]
    assert data.split(sync)[0] == found.split(sync)[0] and end == end_found == b""
    pairs = zip([header, *blocks], fastavro.block_reader(io.BytesIO(data)), strict=True)
    same = [raw for raw, block in pairs if not any(each["id"] in gone for each in block)]
    assert len(blocks) > len(blocks_found) > len(same) > 5
    assert [raw for raw in [header_found, *blocks_found] if raw in same] == same


def test_an_avro_id_may_be_a_field_of_a_nullable_struct() -> None:
    data = written(NESTED, [event(number) for number in range(1000)])
    found, _ = without(data, GONE, ("header", "member"))
    wanted = [each for each in read(data) if not each["header"] or each["header"]["member"] not in GONE.to_pylist()]
    assert 0 < len(wanted) < 1000 and read(found) == wanted


LONG = datetime(2026, 2, 3, 4, 5, 6, 789000, UTC)
IDS: dict[str, tuple[Any, list[Any], pa.Array, str, list[int]]] = {
    "int": ("int", [-(2**31), 3, 4], pa.array([3], pa.int32()), "int", [1]),
    "int as tinyint": ("int", [-128, 3, 4], pa.array([-128], pa.int8()), "tinyint", [0]),
    "int as bigint": ("int", [2**31 - 1, 3, 4], pa.array([3, 2**40], pa.int64()), "bigint", [1]),
    "long": ("long", [-(2**63), 3, 2**63 - 1], pa.array([2**63 - 1], pa.int64()), "bigint", [2]),
    "long as double": ("long", [5, 3, 2**53 + 1], pa.array([2.0**53]), "double", [2]),
    "int as float": ("int", [5, 3, 2**24 + 1], pa.array([2.0**24], pa.float32()), "float", [2]),
    "float": ("float", [0.1, 3.0, 4.0], pa.array([0.1], pa.float32()), "float", [0]),
    "float as double": ("float", [0.1, 0.5, 4.0], pa.array([0.1, 0.5]), "double", [1]),
    "double": ("double", [math.nan, 3.5, -0.0], pa.array([math.nan, 0.0]), "double", [0, 2]),
    "boolean": ("boolean", [True, False, True], pa.array([False]), "boolean", [1]),
    "string": ("string", ["", "ü'\n", "ü' \n"], pa.array(["ü'\n"]), "string", [1]),
    "string of 64": ("string", ["x" * 64, "x" * 63, "x" * 200], pa.array(["x" * 64, "x" * 200]), "string", [0, 2]),
    "bytes as string": ("bytes", [b"", "ü".encode(), b"u"], pa.array(["ü"]), "string", [1]),
    "string as binary": ("string", ["", "ü", "u"], pa.array(["ü".encode()]), "binary", [1]),
    "char": ("string", ["ab", "ab  ", "ab c", "a"], pa.array(["ab"]), "char(3)", [0, 1, 2]),
    "varchar": ("string", ["äb", "äbc", "äb ", "ab"], pa.array(["äb"]), "varchar(2)", [0, 1, 2]),
    "varchar with a blank": ("string", ["äb", "äb c", "äb "], pa.array(["äb "]), "varchar(3)", [1, 2]),
    "bytes": ("bytes", [b"", b"\0\xff", b"\0"], pa.array([b"\0", b""]), "binary", [0, 2]),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, [b"ab", b"\0\0", b"ba"], pa.array([b"ba"]), "binary", [2]),
    "enum": ({"type": "enum", "name": "E", "symbols": ["x", "y"]}, ["y", "x", "y"], pa.array(["x"]), "string", [1]),
    "decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2},
        [Decimal("-1.25"), Decimal("9" * 36 + ".25"), Decimal("0.00")],
        pa.array([Decimal("9" * 36 + ".25"), Decimal("0.00")], pa.decimal128(38, 2)),
        "decimal(38,2)",
        [1, 2],
    ),
    "decimal in fixed, of another scale": (
        {"type": "fixed", "name": "D", "size": 9, "logicalType": "decimal", "precision": 20, "scale": 3},
        [Decimal("-1.250"), Decimal("1.255"), Decimal("-7.000")],
        pa.array([Decimal("-1.25"), Decimal("1.25"), Decimal("-7")], pa.decimal128(20, 2)),
        "decimal(20,2)",
        [0, 2],
    ),
    "date": (
        {"type": "int", "logicalType": "date"},
        [date(1969, 7, 20), date(2026, 1, 1), date(1970, 1, 1)],
        pa.array([date(1969, 7, 20)]),
        "date",
        [0],
    ),
    "timestamp": (
        {"type": "long", "logicalType": "timestamp-millis"},
        [LONG, datetime(1969, 1, 1, tzinfo=UTC)],
        pa.array([LONG], pa.timestamp("ns")),
        "timestamp",
        [0],
    ),
}


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("nullable", [False, True])
def test_avro_ids_of_every_type(name: str, nullable: bool) -> None:
    type_, values, keys, declared, gone = IDS[name]
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "before", "type": "string"},
            {"name": "ID", "type": ["null", type_] if nullable else type_},
            {"name": "behind", "type": "int"},
        ],
    }
    values = [*values, None] if nullable else values
    data = written(schema, [{"before": "b", "ID": value, "behind": at} for at, value in enumerate(values)])
    found, _ = without(data, keys, type_=declared)
    wanted = [each for each in read(data) if each["behind"] not in gone]
    assert len(wanted) == len(values) - len(gone) and str(read(found)) == str(wanted)


def test_an_avro_field_is_found_by_its_names() -> None:
    """A partition's files may be older than the table's schema: an alias says what the column was called."""

    def one(*names: str) -> bytes:
        fields = [{"name": name, "type": "long"} for name in names]
        return written({"type": "record", "name": "R", "fields": fields}, [dict.fromkeys(names, at) for at in range(9)])

    keys, aliased = pa.array([3], pa.int64()), (("Id", "old_id"),)
    assert without(one("Id", "v"), keys)[1] == without(one("v", "old_id"), keys, spellings=aliased)[1] == (9, 1)
    assert without(one("id", "ID"), keys)[1] == (9, 1)  # the one that is spelled so
    for names, spellings in ((("Id", "iD"), ()), (("Id", "old_id"), aliased), (("v", "old_id"), ())):
        with pytest.raises(Unsupported, match="does not define the id: it has"):
            without(one(*names), keys, spellings=spellings)


@pytest.mark.parametrize("seed", range(100))
def test_avro_of_any_schema(seed: int) -> None:
    chance = random.Random(seed)
    named: dict[str, Any] = {"Top": None}
    fields = [{"name": f"f{at}", "type": random_type(chance, 3, named)} for at in range(chance.randrange(1, 8))]
    path: tuple[str, ...] = ("id",)
    own: Any = {"name": "id", "type": chance.choice(["int", ["null", "int"], ["string", "int", "null"]])}
    for at in range(chance.randrange(3)):
        inside: Any = {"type": "record", "name": f"In{at}", "fields": [{"name": "b", "type": "bytes"}, own]}
        own = {"name": f"in{at}", "type": chance.choice([inside, ["null", inside], [inside, "null"]])}
        path = (f"in{at}", *path)
    fields.insert(chance.randrange(len(fields) + 1), own)
    schema = named["Top"] = {"type": "record", "name": "Top", "fields": fields}
    records = [random_value(chance, schema, named) for _ in range(60)]
    data = written(schema, records, chance.choice(["null", "deflate"]), chance.choice([10, 1000]))

    def id_of(record: Any) -> Any:
        for part in path:
            record = record and record[part]
        return record

    gone = pa.array([0, 63, 8192, -(2**31)], pa.int32())
    if "string" in str(own):  # which no id of this type is
        with pytest.raises(Unsupported, match="an Avro string cannot be compared with ids of type int32"):
            without(data, gone, path)
        return
    found, counts = without(data, gone, path)
    wanted = [each for each in read(data) if id_of(each) not in gone.to_pylist()]
    assert str(read(found)) == str(wanted) and counts == (60, 60 - len(wanted))


SMALL: Any = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": {"type": "array", "items": "int"}},
        {"name": "id", "type": ["null", "long"]},
        {"name": "b", "type": "bytes"},
        {"name": "m", "type": {"type": "map", "values": "boolean"}},
        {"name": "f", "type": ["float", "null"]},
    ],
}


def small(codec: str, count: int = 20) -> bytes:
    records = [
        {"a": list(range(at % 4)), "id": at, "b": b"b" * (at % 3), "m": {"k": True}, "f": None} for at in range(count)
    ]
    return written(SMALL, records, codec, 40, sync_marker=b"0123456789abcdef")


def attempt(data: bytes, keys: pa.Array) -> bytes | None:
    """None: refused, in one of the ways that a task expects."""
    try:
        return without(data, keys)[0]
    except REFUSED:
        return None


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_truncated_avro_file_is_refused(codec: str) -> None:
    data, keys = small(codec), pa.array([3, 12], pa.int64())
    whole = []
    for end in range(len(data)):
        if (found := attempt(data[:end], keys)) is not None:
            assert read(found) == [each for each in read(data[:end]) if each["id"] not in (3, 12)]
            whole.append(end)
    assert 3 < len(whole) < 20 and all(data[:end].endswith(b"0123456789abcdef") for end in whole if end)


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_damaged_avro_file_is_refused_or_keeps_what_it_says(codec: str) -> None:
    data, keys, refused = small(codec), pa.array([3, 12], pa.int64()), 0
    for at in range(data.index(b"0123456789abcdef"), len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            found = attempt(bytes(changed), keys)
            refused += found is None
            if found is not None:
                assert read(found) == [each for each in read(bytes(changed)) if each["id"] not in (3, 12)], (at, bit)
    assert refused > 1000


def test_a_damaged_avro_header_is_refused_or_stays_as_it_is() -> None:
    data, keys = small("null"), pa.array([3, 12], pa.int64())
    header = data.index(b"0123456789abcdef")
    for at in range(header):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            if (found := attempt(bytes(changed), keys)) is not None:
                assert found[:header] == changed[:header] and len(found) < len(data), (at, bit)


def container(schema: str, *blocks: tuple[int, bytes], codec: bytes = b"null") -> bytes:
    """An Avro file by hand: (count, bytes) of each block, and of the last one no more than is given."""
    meta = b"".join(zigzag(len(each)) + each for each in (b"avro.schema", schema.encode(), b"avro.codec", codec))
    found = b"Obj\x01" + zigzag(2) + meta + zigzag(0) + b"s" * 16
    return found + b"".join(zigzag(count) + zigzag(len(data)) + data + b"s" * 16 for count, data in blocks)


def zigzag(value: int) -> bytes:
    value, found = (value << 1) ^ (value >> 63), bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))


def record(*fields: Any) -> str:
    named = [{"name": f"f{at}", "type": type_} for at, type_ in enumerate(fields)]
    return json.dumps({"type": "record", "name": "R", "fields": [*named, {"name": "id", "type": "long"}]})


ONE = pa.array([1], pa.int64())


def test_arrays_in_blocks_of_known_size() -> None:
    """As writers that skip have them: a negative count, and the bytes."""
    schema = record({"type": "array", "items": "long"}, {"type": "map", "values": "string"})
    items = zigzag(-2) + zigzag(3) + zigzag(64) + zigzag(1) + zigzag(1) + zigzag(5) + zigzag(0)
    pairs = zigzag(-1) + zigzag(4) + b"\x02k\x02v" + zigzag(0)
    data = container(schema, (3, b"".join(items + pairs + zigzag(id) for id in range(3))))
    found, counts = without(data, ONE)
    assert counts == (3, 1) and read(found) == [each for each in read(data) if each["id"] != 1] != []
    with pytest.raises(FormatError, match="does not match the file's schema"):
        without(container(schema, (1, items + pairs.replace(b"\x08", b"\x06", 1) + zigzag(1))), ONE)


LIST = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
HOSTILE: dict[str, tuple[bytes, str]] = {
    "no file": (b"PAR1" * 20, "it is not an Avro file"),
    "a block of more bytes than there are": (container(record()) + zigzag(1) + zigzag(1 << 40), "bytes are declared"),
    "a block of less than none": (container(record()) + zigzag(1) + zigzag(-1), "bytes are declared"),
    "records without bytes": (container(record(), (1 << 60, b"\x02\x02")), "records do not fit in 2 bytes"),
    "less than no records": (container(record(), (-1, b"\x02")), "does not end"),
    "more records than are counted": (container(record(), (1, b"\x02\x02")), "records take 1 bytes"),
    "a text of more bytes than there are": (container(record("string"), (1, zigzag(1 << 40) + b"\2")), "is longer"),
    "a text of less than none": (container(record("string"), (1, b"\x01\x02")), "a text has -1 bytes"),
    "nothing, very often": (
        container(record({"type": "array", "items": "null"}), (1, zigzag(1 << 60) + b"\0\2\2")),
        "records take 11 bytes",
    ),
    "another branch": (container(record(["null", "int"]), (1, b"\x04\x02")), "does not match the file's schema"),
    "a number without an end": (container(record(), (1, b"\xff" * 20)), "64 bits"),
    "records in records": (container(record(["null", LIST]), (1, b"\2" * 5000 + b"\0\2")), "nested too deep"),
    "no schema": (container('{"type": "record"}'), "header cannot be parsed: not a valid Avro schema"),
    "a schema of itself": (container('{"type": ' * 5000), "header cannot be parsed: not a valid Avro schema"),
    "no record": (container('"long"', (1, b"\x02")), "a long has no field id"),
    "another codec": (container(record(), codec=b"lzo"), "compressed with lzo cannot be rewritten"),
    "snappy that claims": (container(record(), (1, b"\xff\xff\xff\xff\x07aaaa"), codec=b"snappy"), "cannot hold"),
    "snappy of another checksum": (container(record(), (1, b"\1\0\2aaaa"), codec=b"snappy"), "its checksum differs"),
    "half of a stream": (container(record(), (1, zlib.compress(b"\2" * 99)[2:-9]), codec=b"deflate"), "inside its"),
    "half of a zstandard": (container(record(), (1, b"(\xb5/\xfd\x04\0"), codec=b"zstandard"), "is damaged"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_avro_file_is_refused_in_no_memory(name: str) -> None:
    data, output = HOSTILE[name]
    tracemalloc.start()
    try:
        with pytest.raises(REFUSED, match=output):
            without(data, ONE)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
