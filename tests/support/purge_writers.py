"""Rows of people, and files of them as programs other than Spark write them. What is random is the caller's."""

from __future__ import annotations

import base64
import bz2
import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

TYPES: dict[str, tuple[str, pa.DataType]] = {
    "b": ("BOOLEAN", pa.bool_()),
    "n": ("INT", pa.int32()),
    "x": ("DOUBLE", pa.float64()),
    "c": ("DECIMAL(20,4)", pa.decimal128(20, 4)),
    "d": ("DATE", pa.date32()),
    "t": ("TIMESTAMP", pa.timestamp("us", "UTC")),
    "w": ("STRING", pa.string()),
    "r": ("BINARY", pa.binary()),
    "l": ("ARRAY<STRING>", pa.list_(pa.string())),
    "m": ("MAP<STRING,INT>", pa.map_(pa.string(), pa.int32())),
    "s": ("STRUCT<p:INT,q:STRING>", pa.struct({"p": pa.int32(), "q": pa.string()})),
    "e": ("ARRAY<STRUCT<p:BIGINT,q:STRING>>", pa.list_(pa.struct({"p": pa.int64(), "q": pa.string()}))),
}
"""Columns that a table may have beside its id and its `v`: in Spark's words, and in Arrow's."""

NESTED = ("l", "m", "s", "e")
IDS = {"BIGINT": pa.int64(), "INT": pa.int32(), "STRING": pa.string(), "DECIMAL(12,0)": pa.decimal128(12, 0)}
WORDS = ("", "plain", "a,b;c|d", 'q"uo"te', "it's", "back\\slash", "ä€😀", " blanks ", "x\ty", "{}", "NULL", "#%=/:?")


def table_of(random: Random, types: Mapping[str, str], people: list[int | None]) -> pa.Table:
    """One row for each person (None: nobody's), whose `v` no other row has."""
    columns: dict[str, pa.Array] = {}
    for name, type_ in types.items():
        if name == "id":
            of = IDS[type_]
            columns[name] = pa.array([each if each is None else _id(of, each) for each in people], of)
        elif name == "v":
            columns[name] = pa.array([marker(each, random) for each in people])
        else:
            columns[name] = pa.array([_value(random, name) for _ in people], TYPES[name][1])
    return pa.table(columns)


def marker(person: int | None, random: Random) -> str:
    return f"person-{'nobody' if person is None else person}-{random.getrandbits(64):016x}"


def _id(type_: pa.DataType, person: int) -> Any:
    if pa.types.is_string(type_):
        return str(person)
    return Decimal(person) if pa.types.is_decimal(type_) else person


def _value(random: Random, name: str) -> Any:
    if random.random() < 0.2:
        return None
    number, some = random.randrange(-(1 << 31), 1 << 31), random.choices(WORDS, k=random.randrange(3))
    match name:
        case "b":
            return random.random() < 0.5
        case "n":
            return number
        case "x":
            return random.choice((0.5, -1.25, 1e300, 3.0, number / 8))
        case "c":
            return Decimal(number).scaleb(-4)
        case "d":
            return date(1400, 1, 1) + timedelta(random.randrange(300_000))
        case "t":
            return datetime(1901, 1, 1, tzinfo=UTC) + timedelta(seconds=random.randrange(6_000_000_000))
        case "w":
            return random.choice(WORDS)
        case "r":
            return random.randbytes(random.randrange(6))
        case "l":
            return some
        case "m":
            return dict.fromkeys(some, number)
        case "s":
            return {"p": number, "q": random.choice(WORDS)}
        case _:
            return [{"p": number, "q": word} for word in some]


# ---- files: each function writes one below `place` and says which --------------------------------------------------

Write = Callable[[Path, pa.Table, Random, Mapping[str, str]], Path]


def parquet_of_arrow(place: Path, table: pa.Table, random: Random, options: Mapping[str, str]) -> Path:
    pq.write_table(
        table,
        place,
        compression=random.choice(("none", "snappy", "gzip", "zstd", "lz4")),
        version=random.choice(("1.0", "2.4", "2.6")),
        data_page_version=random.choice(("1.0", "2.0")),
        use_dictionary=random.random() < 0.5,
        row_group_size=random.choice((3, 1000)),
        use_deprecated_int96_timestamps=random.random() < 0.3 or None,
        store_schema=random.random() < 0.5,
        coerce_timestamps=None,
        write_page_index=random.random() < 0.5,
    )
    return place


def parquet_of_duckdb(place: Path, table: pa.Table, random: Random, options: Mapping[str, str]) -> Path:
    codec = random.choice(("uncompressed", "snappy", "gzip", "zstd", "lz4_raw"))
    with duckdb.connect() as connection:
        connection.register("made", table)
        connection.execute(f"COPY (FROM made) TO '{place}' (FORMAT parquet, CODEC {codec})")
    return place


def orc_of_arrow(place: Path, table: pa.Table, random: Random, options: Mapping[str, str]) -> Path:
    if "t" in table.column_names:  # Hive has no times with a zone in ORC
        table = table.set_column(table.column_names.index("t"), "t", table["t"].cast(pa.timestamp("us")))
    orc.write_table(
        table,
        place,
        compression=random.choice(("uncompressed", "zlib", "snappy", "zstd", "lz4")),
        dictionary_key_size_threshold=random.choice((0.0, 1.0)),
    )
    return place


_AVRO: dict[str, Any] = {
    "BOOLEAN": "boolean",
    "INT": "int",
    "BIGINT": "long",
    "DOUBLE": "double",
    "STRING": "string",
    "BINARY": "bytes",
    "DECIMAL(20,4)": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4},
    "DECIMAL(12,0)": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 0},
    "DATE": {"type": "int", "logicalType": "date"},
    "TIMESTAMP": {"type": "long", "logicalType": "timestamp-millis"},
    "ARRAY<STRING>": {"type": "array", "items": "string"},
    "MAP<STRING,INT>": {"type": "map", "values": "int"},
}


def _record(name: str, **fields: Any) -> dict[str, Any]:
    wanted = [{"name": key, "type": ["null", type_], "default": None} for key, type_ in fields.items()]
    return {"type": "record", "name": name, "fields": wanted}


def avro_of_python(place: Path, table: pa.Table, random: Random, options: Mapping[str, str]) -> Path:
    known = {
        **_AVRO,
        TYPES["s"][0]: _record("s", p="int", q="string"),
        TYPES["e"][0]: {"type": "array", "items": _record("e", p="long", q="string")},
    }
    schema = _record("person", **{name: known[options[name]] for name in table.column_names})
    rows = table.to_pylist(maps_as_pydicts="strict")
    with place.open("wb") as file:
        fastavro.writer(
            file, fastavro.parse_schema(schema), rows, random.choice(("null", "deflate", "snappy", "bzip2"))
        )
    return place


def text_of_python(place: Path, table: pa.Table, random: Random, options: Mapping[str, str]) -> Path:
    """Hive's delimited text. options: `separator`, and `escape` or ""."""
    separator, escape = options["separator"], options["escape"]

    def output(value: Any, level: int) -> str:
        match value:
            case None:
                return "\\N"
            case bool():
                return str(value).lower()
            case bytes():
                return base64.b64encode(value).decode()
            case datetime():
                return f"{value:%Y-%m-%d %H:%M:%S}"
            case list():
                return chr(level).join(output(each, level + 1) for each in value)
            case dict():
                return chr(level).join(output(each, level + 1) for each in value.values())
            case tuple():
                return chr(level).join(output(each, level) for each in value)
        text = str(value)
        for letter in (escape, separator) if escape else ():
            text = text.replace(letter, escape + letter)
        return text

    def cell(name: str, value: Any) -> str:
        if name == "m" and value is not None:
            return "\x02".join(f"{key}\x03{each}" for key, each in value)
        return output(value, 2)

    rows = (separator.join(cell(*each) for each in row.items()) for row in _oddly(table.to_pylist(), random))
    return _packed(place, "".join(f"{row}\n" for row in rows), random)


def csv_of_python(place: Path, table: pa.Table, random: Random, options: Mapping[str, str]) -> Path:
    """options: `separator`, and `header` when each file has one."""
    text = io.StringIO()
    writer = csv.writer(
        text,
        delimiter=options["separator"],
        escapechar="\\",
        doublequote=False,
        lineterminator="\n",
        quoting=random.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL)),
    )
    if options.get("header"):
        writer.writerow(table.column_names)
    for row in _oddly(table.to_pylist(), random):
        writer.writerow(["" if each is None else _plain(each) for each in row.values()])
    return _packed(place, text.getvalue(), random)


def json_of_python(place: Path, table: pa.Table, random: Random, options: Mapping[str, str]) -> Path:
    lines = []
    for row in _oddly(table.to_pylist(maps_as_pydicts="strict"), random):
        items = [(key, value) for key, value in row.items() if value is not None or random.random() < 0.5]
        random.shuffle(items)
        lines.append(json.dumps(dict(items), default=_number_or_text, ensure_ascii=random.random() < 0.5))
    return _packed(place, "".join(f"{line}\n" for line in lines), random)


ODD = (" {}", "{} ", "{}.9", "0{}", "+{}", "0_{}", "{}.0", "{}e0", "\u0663{}", "'{}'")
"""What resembles an id; readers say whether it is one."""


def _oddly(rows: list[dict[str, Any]], random: Random) -> list[dict[str, Any]]:
    for row in rows:
        if row["id"] is not None and random.random() < 0.1:
            row["id"] = random.choice(ODD).format(row["id"])
            row["v"] = row["v"].replace("person-", "person-odd")
    return rows


def _number_or_text(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == int(value) else float(value)
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, (date, datetime)) else str(value)


_PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".deflate": zlib.compress,
}


def _packed(place: Path, text: str, random: Random) -> Path:
    """Of several streams, as `cat` makes them, half of the time."""
    ending = random.choice(tuple(_PACKERS))
    lines = text.encode().splitlines(keepends=True)
    cut = random.randrange(len(lines) + 1)
    halves = [b"".join(lines[:cut]), b"".join(lines[cut:])]
    place = place.with_name(place.name + ending)
    place.write_bytes(b"".join(_PACKERS[ending](half) for half in halves if half))
    return place
