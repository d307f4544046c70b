"""Parquet files as programs other than Spark write them, and what readers find in them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from replicator.lifecycle.purge.rewrite import parquet_footer
from replicator.lifecycle.purge.rewrite.parquet_footer import BINARY, I32, LIST, Struct, given

ROWS = 1000


def columns() -> pa.Table:
    """Every kind of column that pyarrow writes."""
    numbers = range(ROWS)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "text": pa.array([f"s{i}" if i % 7 else None for i in numbers]),
            "u8": pa.array([i % 256 for i in numbers], pa.uint8()),
            "u32": pa.array([(i - 150) % 2**32 for i in numbers], pa.uint32()),
            "u64": pa.array([(i - 150) % 2**64 for i in numbers], pa.uint64()),
            "i8": pa.array([i % 100 - 50 for i in numbers], pa.int8()),
            "price": pa.array([Decimal(i - 500) / 4 for i in numbers], pa.decimal128(9, 2)),
            "wide": pa.array([Decimal(500 - i) / 4 for i in numbers], pa.decimal128(38, 2)),
            "half": pa.array([float(i - 150) for i in numbers], pa.float16()),
            "nan": pa.array([float("nan") if i % 2 else -0.0 for i in numbers]),
            "at": pa.array([i * 1001 for i in numbers], pa.timestamp("ns", "UTC")),
            "day": pa.array([i - 500_000 for i in numbers], pa.date32()),
            "hour": pa.array(numbers, pa.time32("ms")),
            "list": pa.array([[i, None] if i % 3 else None for i in numbers], pa.list_(pa.int32())),
            "map": pa.array([[(str(i), i)] for i in numbers], pa.map_(pa.string(), pa.int32())),
            "deep": pa.array([{"a": [{"b": [i], "c": None}]} if i % 5 else None for i in numbers]),
            "lasting": pa.array(numbers, pa.duration("s")),
            "void": pa.nulls(ROWS),
            "few": pa.array(["a", "b"] * (ROWS // 2)).dictionary_encode(),
            "with.dot": pa.array(numbers),
            "bit": pa.array([i % 2 == 0 for i in numbers]),
            "fixed": pa.array([struct.pack(">I", i) for i in numbers], pa.binary(4)),
        },
        metadata={"parquet.avro.schema": '{"type": "record"}', "writer.time.zone": "America/Los_Angeles"},
    )


def of_pyarrow(**options: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        sorting = [pq.SortingColumn(0, descending=True)]
        pq.write_table(columns(), path, row_group_size=300, sorting_columns=sorting, **options)

    return write


def of_duckdb(options: str) -> Callable[[Path], None]:
    rows = """range::BIGINT AS id, 's' || range AS s, make_timestamp_ns(range * 1001) AS ns, uuid() AS u,
        (range / 3)::DECIMAL(9,2) AS d9, range::DECIMAL(18,2) AS d18, range::DECIMAL(25,4) AS d25, [range, NULL] AS l,
        map([range], ['x']) AS m, {'a': {'b': range}} AS st, INTERVAL 1 DAY AS iv, '{}'::JSON AS j,
        range::UTINYINT AS ut, range::UINTEGER AS ui, 'a'::ENUM('a', 'b') AS e, TIME '01:02:03' AS tm,
        range::HUGEINT AS h, 'x'::BLOB AS bl, TIMESTAMPTZ '2026-03-08 12:00:00Z' AS tz"""

    def write(path: Path) -> None:
        duckdb.sql(f"COPY (SELECT {rows} FROM range(200)) TO '{path}' (FORMAT parquet{options})")

    return write


def in_two_levels(path: Path) -> None:
    """As the older writers of Avro and Thrift do: `repeated int32 array` below a list, and a repeated column."""
    required = pa.list_(pa.field("element", pa.int32(), nullable=False))
    values = [[i, i + 1] if i % 3 else None for i in range(ROWS)]
    table = pa.table({"id": pa.array(range(ROWS), pa.int64()), "l": pa.array(values, required)})
    pq.write_table(table, path, store_schema=False)

    def flatten(footer: Struct) -> None:
        schema: list[Struct] = given(footer, parquet_footer.SCHEMA)[1]
        schema[-2:] = [{**schema[-1], 3: (I32, 2), 4: (BINARY, b"array"), 9: (I32, 77)}]
        for group in given(footer, parquet_footer.GROUPS)[1]:
            column = given(given(group, 1)[1][1], parquet_footer.COLUMN)
            column[parquet_footer.PATH] = (LIST, (BINARY, [b"l", b"array"]))

    change_footer(path, flatten)


def change_footer(path: Path, change: Callable[[Struct], None]) -> None:
    start, footer = parquet_footer.of_end(path.read_bytes())
    change(footer)
    path.write_bytes(start + parquet_footer.as_end(footer))


WRITERS: dict[str, Callable[[Path], None]] = {
    "pyarrow": of_pyarrow(),
    "page index, integer decimals": of_pyarrow(store_decimal_as_integer=True, write_page_index=True),
    "INT96, LZ4_RAW": of_pyarrow(use_deprecated_int96_timestamps=True, compression="lz4"),
    "version 1, codecs": of_pyarrow(
        version="1.0",
        coerce_timestamps="us",
        allow_truncated_timestamps=True,
        use_dictionary=["text"],
        compression={"id": "gzip", "text": "zstd"},
        store_schema=False,
    ),
    "bloom filters": of_pyarrow(bloom_filter_options={"id": {"ndv": 30, "fpp": 0.01}, "text": True}),
    "DuckDB": of_duckdb(""),
    "DuckDB, version 2": of_duckdb(", PARQUET_VERSION v2, COMPRESSION zstd"),
    "two levels": in_two_levels,
}


def footer_of(path: Path) -> Struct:
    with path.open("rb") as file:
        return parquet_footer.read_footer(file)


def of_duck(path: Path, where: str = "true") -> pa.Table:
    return duckdb.sql(f"SELECT * FROM read_parquet('{path}') WHERE {where}").to_arrow_table()


def comparable(table: pa.Table) -> pa.Table:
    """Dictionaries as their values, NaN as a text."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type) or field.type == pa.float64():
            table = table.set_column(index, field.name, table[field.name].cast(pa.string()))
    return table
