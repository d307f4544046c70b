"""Rewriting of one Parquet or ORC file without the rows of some ids: values, names, order, types and codecs are
retained. Runs in a task.

The file is read by its own schema, not its table's: columns unknown to the table are retained, and a partition's schema
may differ from its table's.
"""

from __future__ import annotations

import functools
import inspect
import io
import re
import shutil
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cmroot.store.blocks import Unsupported
from replicator.lifecycle.purge.rewrite import orc_footer, parquet_footer
from replicator.lifecycle.purge.rewrite.formats import OnlyBySpark
from replicator.lifecycle.purge.rewrite.orc_footer import GMT, TIMESTAMP, with_zone, zones_and_blooms
from replicator.lifecycle.purge.rewrite.parquet_footer import Bare, Struct, elements, given
from replicator.lifecycle.purge.transactional_files import COLUMNS

BATCH = 1 << 16
"""The number of rows decoded at once."""
GROUP_BYTES = 256 << 20
"""The maximum size of decoded rows of one row group that are held until they are written."""

ORC_BLOCK = 1 << 16
"""The unit of the writer's memory, of which the size of its compressed blocks is a multiple."""
INSERT, UPDATE, DELETE = 0, 1, 2  # values of `operation` in files with row ids

Counts = tuple[int, Counter[int]]
"""Rows read, and rows erased by the position of their key."""
Rewrite = Callable[..., Counts]


@dataclass
class RowTally:
    """The same counts in mutable form, during counting."""

    rows: int = 0
    left_out: Counter[int] = field(default_factory=Counter)


def _refusing_damaged(rewrite: Rewrite) -> Rewrite:
    """Raises Unsupported for damaged files: their footers, parsed here field by field, may contain anything."""

    @functools.wraps(rewrite)
    def guarded(*arguments: Any, **options: Any) -> Counts:
        try:
            return rewrite(*arguments, **options)
        except (pa.ArrowException, OSError):
            raise
        except (LookupError, TypeError, ValueError, AttributeError, EOFError, struct.error, zlib.error) as error:
            raise Unsupported(f"the file is damaged, or of an unknown kind: {error!r}") from error

    return guarded


@_refusing_damaged
def rewrite_parquet(
    source: BinaryIO,
    target: AbstractContextManager[BinaryIO],
    field: tuple[str, ...],
    keys: pa.Array,
    padded: bool = False,
    former: Sequence[str] = (),
) -> Counts:
    """Copies a file except the rows whose field is one of `keys`; null fields are retained. former: names of the field,
    if the file does not have it. Schema, keys and writer in
    the footer equal the source's, byte for byte, and so do the codec of each column, dictionaries, row groups (those
    larger than GROUP_BYTES are split), sorting, and which columns have bloom filters and page indexes. Every remaining
    value has the same bytes. padded: ignores blanks at the end of a text. Raises Unsupported."""
    footer = parquet_footer.read_footer(source)
    field = present(list(parquet_footer.top_columns(footer)), field, former)
    bare = parquet_footer.bare(footer, field)
    metadata = pq.read_metadata(io.BytesIO(parquet_footer.as_file(bare.footer)))
    file = pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True)
    path = _path(file.schema_arrow, field)
    wanted = _as_type(keys, _type_at(file.schema_arrow, path))
    options = _as_written(footer, bare, file.schema_arrow)
    tally, origins = RowTally(), list[int]()
    with target as out:
        held = _HeldEnd(out)
        writer = pq.ParquetWriter(held, file.schema_arrow, **options)
        for group in range(metadata.num_row_groups):
            for table in _bundles(file.iter_batches(BATCH, row_groups=[group]), path, wanted, padded, tally):
                writer.write_table(table, row_group_size=table.num_rows)
                origins.append(group)
        held.holding = True
        writer.close()
        before, written = parquet_footer.of_end(bytes(held.end))
        out.write(before)
        out.write(parquet_footer.as_end(parquet_footer.as_source(footer, written, origins)))
    return tally.rows, tally.left_out


def _bundles(
    batches: Iterator[pa.RecordBatch], path: tuple[str, ...], keys: pa.Array, padded: bool, tally: RowTally
) -> Iterator[pa.Table]:
    """Yields the remaining rows, in tables of at most about GROUP_BYTES; updates the tally."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        kept, left_out = _without(batch, path, keys, padded)
        tally.rows += batch.num_rows
        tally.left_out.update(left_out)
        if kept.num_rows:
            waiting.append(kept)
            size += kept.nbytes
        if size >= GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


class _HeldEnd:
    """A file to write to that retains the bytes written while it is `holding`: the end, which is to be replaced."""

    closed = False

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._at = out, 0
        self.holding, self.end = False, bytearray()

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._at += size
        if self.holding:
            self.end += data
        else:
            self._out.write(data)
        return size

    def tell(self) -> int:
        return self._at

    def writable(self) -> bool:
        return True

    def flush(self) -> None: ...

    def close(self) -> None: ...


def count_parquet(source: BinaryIO) -> int:
    return int(pq.ParquetFile(source).metadata.num_rows)


def _as_written(footer: Struct, bare: Bare, schema: pa.Schema) -> dict[str, Any]:
    """Returns options of a writer that writes as the file was written. Raises Unsupported if it cannot."""
    options: dict[str, Any] = {"version": "2.6", "store_schema": False, "store_decimal_as_integer": bare.integers}
    example = io.BytesIO()
    pq.ParquetWriter(example, schema, **options).close()
    _, written = parquet_footer.of_end(example.getvalue())
    parquet_footer.check_shape(footer, written)
    names = [leaf.name for leaf in parquet_footer.leaves(written)]
    columns = [list(parquet_footer.columns_of(footer, index)) for index in range(len(names))]
    codecs = {name: _codec(column) for name, column in zip(names, columns, strict=True) if column}
    blooms = {name: _bloom(column) for name, column in zip(names, columns, strict=True) if _bloom(column)}
    if blooms:
        if "bloom_filter_options" not in inspect.signature(pq.ParquetWriter).parameters:
            raise Unsupported(f"this pyarrow ({pa.__version__}) cannot write the file's bloom filters")
        options["bloom_filter_options"] = blooms
    return {
        **options,
        "compression": codecs or "NONE",
        "compression_level": {name: 3 for name, codec in codecs.items() if codec == "ZSTD"} or None,
        "use_dictionary": [
            name
            for name, column in zip(names, columns, strict=True)
            if any(set(elements(chunk, parquet_footer.ENCODINGS)) & parquet_footer.DICTIONARIES for chunk in column)
        ]
        or False,
        "write_statistics": [name for index, name in enumerate(names) if index not in bare.uncounted] or False,
        "write_page_index": parquet_footer.has_page_index(footer),
    }


def _codec(column: list[Struct]) -> str:
    for codec in {given(chunk, parquet_footer.CODEC) for chunk in column}:
        if codec == 5:
            raise Unsupported("Parquet compressed with Hadoop's LZ4 cannot be written, only read")
        if codec not in parquet_footer.CODECS:
            raise Unsupported(f"Parquet compressed with {'LZO' if codec == 3 else f'codec {codec}'} cannot be written")
    return parquet_footer.CODECS[given(column[0], parquet_footer.CODEC)]


def _bloom(column: list[Struct]) -> dict[str, Any] | None:
    """Returns options with the size of the column's largest bloom filter, as far as the file records it."""
    if not any(parquet_footer.BLOOM in chunk for chunk in column):
        return None
    values = max(given(chunk, 5) for chunk in column)
    sizes = [given(chunk, parquet_footer.BLOOM_LENGTH, 0) for chunk in column]
    bits = 8 << max(0, max(sizes).bit_length() - 1)  # a power of two, apart from a short header
    distinct = min(values, int(bits / 9.7)) if all(sizes) else values
    return {"ndv": max(1, distinct), "fpp": 0.01}


@_refusing_damaged
def rewrite_orc(
    source: BinaryIO,
    target: AbstractContextManager[BinaryIO],
    field: tuple[str, ...],
    keys: pa.Array,
    padded: bool = False,
    former: Sequence[str] = (),
) -> Counts:
    """Does the same for ORC, stripe by stripe: types with their attributes, keys, calendar and the zone of timestamps
    equal the source's. Raises OnlyBySpark for data that pyarrow cannot represent, Unsupported if no writer can."""
    from pyarrow import orc

    tail = orc_footer.read_tail(source)
    if not orc_footer.times_fit(tail.footer):
        raise OnlyBySpark("ORC with timestamps outside the range of nanoseconds in 64 bits")
    kinds = orc_footer.kinds(tail.footer)
    zones, blooms = zones_and_blooms(source, tail)
    if TIMESTAMP in kinds and len(zones) > 1:
        raise Unsupported("ORC with stripes of several time zones cannot be rewritten")
    zone = next(iter(zones), GMT)
    same = zone in (GMT, b"UTC")
    file = orc.ORCFile(source if zone == GMT else with_zone(source, tail, GMT, tail.footer, False))
    if all(re.fullmatch(r"_col\d+", name) for name in file.schema.names):
        raise OnlyBySpark("ORC without column names")
    path = _path(file.schema, present(file.schema.names, field, former))
    wanted = _as_type(keys, _type_at(file.schema, path))
    rows, dropped = 0, Counter[int]()
    with target as out, tempfile.TemporaryFile() as staged:
        with orc.ORCWriter(
            staged,
            compression=str(file.compression).lower(),
            row_index_stride=int(file.row_index_stride),
            compression_block_size=-(-int(file.compression_size) // ORC_BLOCK) * ORC_BLOCK or ORC_BLOCK,
            file_version="0.12",
            batch_size=1024,
            bloom_filter_columns=[each for each in blooms if same or kinds[each] != TIMESTAMP],
        ) as writer:
            written = False
            for stripe in range(file.nstripes):
                batch = file.read_stripe(stripe)
                kept, left_out = _without(batch, path, wanted, padded)
                rows += batch.num_rows
                dropped.update(left_out)
                if TIMESTAMP in kinds and any(map(_has_early_fraction, kept.columns)):
                    raise OnlyBySpark("ORC with fractional seconds before 1970")
                if kept.num_rows:
                    writer.write(pa.Table.from_batches([kept]))
                    written = True
            if not written:
                writer.write(file.schema.empty_table())
        made = orc_footer.read_tail(staged)
        keys = _keys_of_rows(staged) if tuple(file.schema.names) == COLUMNS else {}
        footer = orc_footer.as_source(tail.footer, made.footer, keys)
        shutil.copyfileobj(with_zone(staged, made, zone, footer, not same), out, 1 << 20)
    return rows, dropped


def _keys_of_rows(file: BinaryIO) -> dict[bytes, bytes]:
    """Returns what Hive writes about the ids of a file's rows (OrcRecordUpdater): it finds rows of a split by them."""
    from pyarrow import orc

    source, kinds, last = orc.ORCFile(file), Counter[int](), list[str]()
    operation, *ids = source.schema.names[:4]
    for stripe in range(source.nstripes):
        batch = source.read_stripe(stripe, columns=[operation, *ids])
        found = pc.value_counts(batch.column(operation)).to_pylist()
        kinds.update({each["values"]: each["counts"] for each in found})
        last.append(",".join(str(batch.column(name)[-1]) for name in ids if batch.num_rows))
    index = "".join(f"{each};" for each in last)
    stats = ",".join(str(kinds[each]) for each in (INSERT, UPDATE, DELETE))
    return {orc_footer.ACID_INDEX: index.encode(), orc_footer.ACID_STATS: stats.encode()}


def _has_early_fraction(array: pa.Array) -> bool:
    """Returns True if a timestamp, at any depth, is before 1970 and has a fraction of a second: for these, pyarrow's
    ORC writer writes negative nanoseconds, which Java does not read."""
    if pa.types.is_timestamp(array.type):
        numbers = array.cast(pa.int64())
        early = numbers.filter(pc.less(numbers, 0))
        seconds = pc.multiply(pc.divide(early, 10**9), 10**9)
        return bool(pc.any(pc.not_equal(early, seconds)).as_py())
    if pa.types.is_map(array.type):
        return _has_early_fraction(array.keys) or _has_early_fraction(array.items)
    if pa.types.is_list(array.type):
        return _has_early_fraction(array.values)
    if pa.types.is_struct(array.type):
        return any(_has_early_fraction(array.field(index)) for index in range(array.type.num_fields))
    return False


def count_orc(source: BinaryIO) -> int:
    from pyarrow import orc

    return int(orc.ORCFile(source).nrows)


def present(names: Sequence[str], field: tuple[str, ...], former: Sequence[str]) -> tuple[str, ...]:
    """Returns the field, or its former column if a file with columns of these names has only that."""
    lower = [name.lower() for name in names]
    earlier = [name for name in former if name in lower]
    return (earlier[0],) if len(earlier) == 1 and field[0] not in lower else field


def _path(schema: pa.Schema, field: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the field's names as written in this file."""
    return tuple(_spelled(schema, field))


def _spelled(schema: pa.Schema, field: tuple[str, ...]) -> Iterator[str]:
    fields: Any = [schema.field(index) for index in range(len(schema.names))]
    for wanted in field:
        found = [each for each in fields if each.name.lower() == wanted]
        if len(found) != 1:
            raise Unsupported(
                f"the file has {len(found)} columns named {wanted}, among {', '.join(schema.names)[:200]}"
            )
        yield found[0].name
        type_ = found[0].type
        fields = [type_.field(index) for index in range(type_.num_fields)] if pa.types.is_struct(type_) else []


def _type_at(schema: pa.Schema, path: tuple[str, ...]) -> pa.DataType:
    type_: pa.DataType = schema.field(path[0]).type
    for name in path[1:]:
        type_ = type_.field(name).type
    return type_


def _as_type(keys: pa.Array, type_: pa.DataType) -> pa.Array:
    """Returns the keys as the type of this file's column, at their positions; null if it cannot represent them."""
    if keys.type == type_:
        return keys
    if pa.types.is_timestamp(keys.type) and type_ == pa.binary(12):
        return _as_int96(keys)
    try:
        return pc.cast(keys, type_)
    except pa.ArrowInvalid:
        found = []
        for key in keys:
            try:
                found.append(key.cast(type_).as_py())
            except pa.ArrowInvalid:  # out of its range: no row of this file has it
                found.append(None)
        return pa.array(found, type_)
    except pa.ArrowNotImplementedError as error:
        raise Unsupported(f"a column of {type_} cannot be compared with ids of {keys.type}") from error


def _as_int96(keys: pa.Array) -> pa.Array:
    """Returns INT96 values: nanoseconds of the day, and the Julian day."""
    micros = keys.cast(pa.timestamp("us", keys.type.tz)).cast(pa.int64()).to_pylist()
    split = [divmod(each, 86_400_000_000) for each in micros]
    return pa.array([struct.pack("<qi", rest * 1000, day + 2_440_588) for day, rest in split], pa.binary(12))


def _without(
    batch: pa.RecordBatch, path: tuple[str, ...], keys: pa.Array, padded: bool
) -> tuple[pa.RecordBatch, dict[int, int]]:
    """Returns a batch without the rows of the keys, and the number of erased rows for each key."""
    column: Any = batch.column(batch.schema.get_field_index(path[0]))
    for name in path[1:]:
        column = pc.struct_field(column, name)
    if padded:
        column = pc.utf8_rtrim(column, characters=" ")
    if pa.types.is_floating(column.type):
        column = pc.add(column, pa.scalar(0, column.type))  # -0.0 is 0.0 to Spark
    positions = pc.index_in(column, value_set=keys, skip_nulls=True)
    found = {each["values"]: each["counts"] for each in pc.value_counts(positions.drop_null()).to_pylist()}
    return (batch.filter(positions.is_null()) if found else batch), found
