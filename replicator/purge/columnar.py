"""Rewriting one Parquet or ORC file without the rows of some ids: names, order, types and codecs stay. Runs in a task.

The file is read by its own schema, not its table's: columns that the table does not know are kept, and a partition may
have another schema than its table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator.purge.formats import Unsupported

BATCH = 1 << 16
"""Rows decoded at once: memory follows the width of a row, not the file's size."""

Counts = tuple[int, int]
"""Rows read, and rows left out."""


def rewrite_parquet(
    source: BinaryIO,
    target: AbstractContextManager[BinaryIO],
    field: tuple[str, ...],
    keys: pa.Array,
    padded: bool = False,
) -> Counts:
    """Copies a file but for the rows whose field is one of `keys`; null fields stay. Codec of each column,
    dictionaries, size of row groups, physical types of times and decimals, sorting, and the footer's own keys are the
    source's. padded: blanks at the end of a text do not count."""
    file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", page_checksum_verification=True)
    metadata = file.metadata
    path = _path(file.schema_arrow, field)
    rows = dropped = 0
    if metadata.num_row_groups == 0:
        with target as out, pq.ParquetWriter(out, file.schema_arrow):
            return 0, 0
    wanted = _as_type(keys, _type_at(file.schema_arrow, path))
    most = max(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
    with target as out, pq.ParquetWriter(out, file.schema_arrow, **_as_written(file)) as writer:
        for batch in file.iter_batches(BATCH):
            kept, left_out = _without(batch, path, wanted, padded)
            rows, dropped = rows + batch.num_rows, dropped + left_out
            if kept.num_rows:
                writer.write_batch(kept, row_group_size=max(1, most))
    return rows, dropped


def count_parquet(source: BinaryIO) -> int:
    return int(pq.ParquetFile(source).metadata.num_rows)


def _as_written(file: pq.ParquetFile) -> dict[str, Any]:
    """Options of a writer that writes as the file was written."""
    metadata, group = file.metadata, file.metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    codecs = {column.path_in_schema: column.compression for column in columns}
    if strange := {codec for codec in codecs.values() if codec in ("LZO", "LZ4", "UNKNOWN")}:
        raise Unsupported(f"Parquet compressed with {', '.join(sorted(strange))} cannot be written")
    physical = {column.path_in_schema: column.physical_type for column in columns}
    logical = [file.schema.column(index) for index in range(len(physical))]
    times = {column.physical_type for column in logical if _is_time(column)}
    if "INT96" in times and len(times) > 1:
        raise Unsupported("a Parquet file with timestamps of two kinds cannot be written")
    decimals = {column.physical_type for column in logical if column.logical_type.type == "DECIMAL"}
    dictionaries = [
        column.path_in_schema for column in columns if any("DICTIONARY" in encoding for encoding in column.encodings)
    ]
    return {
        "compression": {name: "NONE" if codec == "UNCOMPRESSED" else codec for name, codec in codecs.items()},
        "compression_level": {name: 3 for name, codec in codecs.items() if codec == "ZSTD"} or None,
        "use_dictionary": dictionaries or False,
        "use_deprecated_int96_timestamps": "INT96" in times,
        "store_decimal_as_integer": bool(decimals & {"INT32", "INT64"}),
        "version": "2.6" if str(metadata.format_version) not in ("1.0", "2.4") else str(metadata.format_version),
        "sorting_columns": group.sorting_columns or None,
        "write_page_index": any(column.has_column_index for column in columns),
        "store_schema": b"ARROW:schema" in (metadata.metadata or {}),
    }  # fmt: skip


def _is_time(column: Any) -> bool:
    return bool(column.physical_type == "INT96" or column.logical_type.type == "TIMESTAMP")


def rewrite_orc(
    source: BinaryIO,
    target: AbstractContextManager[BinaryIO],
    field: tuple[str, ...],
    keys: pa.Array,
    padded: bool = False,
) -> Counts:
    """The same for ORC, stripe by stripe."""
    from pyarrow import orc

    file = orc.ORCFile(source)
    for name, type_ in zip(file.schema.names, file.schema.types, strict=True):
        if _has_time(type_):  # their meaning depends on the writer's time zone, which Arrow's writer does not keep
            raise Unsupported(f"ORC with a timestamp ({name}) cannot be rewritten file by file")
    path = _path(file.schema, field)
    wanted = _as_type(keys, _type_at(file.schema, path))
    rows = dropped = 0
    compression = str(file.compression).lower()
    with (
        target as out,
        orc.ORCWriter(
            out, compression="uncompressed" if compression == "uncompressed" else compression,
            compression_block_size=int(file.compression_size) or 65536, row_index_stride=int(file.row_index_stride),
            file_version="0.12", batch_size=1024,
        ) as writer,
    ):  # fmt: skip
        written = False
        for stripe in range(file.nstripes):
            batch = file.read_stripe(stripe)
            kept, left_out = _without(batch, path, wanted, padded)
            rows, dropped = rows + batch.num_rows, dropped + left_out
            if kept.num_rows:
                writer.write(pa.Table.from_batches([kept]))
                written = True
        if not written:
            writer.write(file.schema.empty_table())
    return rows, dropped


def count_orc(source: BinaryIO) -> int:
    from pyarrow import orc

    return int(orc.ORCFile(source).nrows)


def _has_time(type_: pa.DataType) -> bool:
    return pa.types.is_timestamp(type_) or any(_has_time(type_.field(index).type) for index in range(type_.num_fields))


def _path(schema: pa.Schema, field: tuple[str, ...]) -> tuple[str, ...]:
    """The field's names as this file spells them."""
    return tuple(_spelled(schema, field))


def _spelled(schema: pa.Schema, field: tuple[str, ...]) -> Iterator[str]:
    fields: Any = [schema.field(index) for index in range(len(schema.names))]
    for wanted in field:
        found = [each for each in fields if each.name.lower() == wanted]
        if len(found) != 1:
            raise Unsupported(f"the file has {len(found)} columns {wanted}, among {', '.join(schema.names)[:200]}")
        yield found[0].name
        type_ = found[0].type
        fields = [type_.field(index) for index in range(type_.num_fields)] if pa.types.is_struct(type_) else []


def _type_at(schema: pa.Schema, path: tuple[str, ...]) -> pa.DataType:
    type_: pa.DataType = schema.field(path[0]).type
    for name in path[1:]:
        type_ = type_.field(name).type
    return type_


def _as_type(keys: pa.Array, type_: pa.DataType) -> pa.Array:
    """The keys that this file's column can hold, as its type."""
    if keys.type == type_:
        return keys
    try:
        return pc.cast(keys, type_)
    except pa.ArrowInvalid:
        found = []
        for key in keys:
            try:
                found.append(key.cast(type_).as_py())
            except pa.ArrowInvalid:  # out of its range: no row of this file has it
                continue
        return pa.array(found, type_)
    except pa.ArrowNotImplementedError as error:
        raise Unsupported(f"a column of {type_} cannot be compared with ids of {keys.type}") from error


def _without(batch: pa.RecordBatch, path: tuple[str, ...], keys: pa.Array, padded: bool) -> tuple[pa.RecordBatch, int]:
    column: Any = batch.column(batch.schema.get_field_index(path[0]))
    for name in path[1:]:
        column = pc.struct_field(column, name)
    if padded:
        column = pc.utf8_rtrim(column, characters=" ")
    matches = pc.is_in(column, value_set=keys)
    count = int(pc.sum(matches).as_py() or 0)
    return (batch.filter(pc.invert(matches)) if count else batch), count
