"""What a rewritten file says of itself: schema, keys, writer and statistics, and values of which they decide the
meaning."""

from __future__ import annotations

import contextlib
import io
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from parquet_writers import ROWS, WRITERS, change_footer, columns, comparable, footer_of, of_duck
from pyarrow import orc

from cmroot.store.blocks import Unsupported
from replicator.lifecycle.purge.rewrite import columnar, parquet_footer
from replicator.lifecycle.purge.rewrite.columnar import rewrite_orc, rewrite_parquet
from replicator.lifecycle.purge.rewrite.parquet_footer import (
    BINARY,
    I32,
    STRUCT,
    Struct,
    given,
    read_struct,
    write_struct,
)

IDS = pa.array([0, 5, 999, 123456], pa.int64())


def rewritten(path: Path, field: tuple[str, ...] = ("id",), keys: pa.Array = IDS) -> tuple[tuple[int, int], Path]:
    out = io.BytesIO()
    with path.open("rb") as source:
        rows, left_out = rewrite_parquet(source, contextlib.nullcontext(out), field, keys)
    found = path.with_name("rewritten-" + path.name)
    found.write_bytes(out.getvalue())
    return (rows, left_out.total()), found


@pytest.mark.parametrize("writer", WRITERS)
def test_a_parquet_file_keeps_its_footer_and_every_value(writer: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    WRITERS[writer](path)
    (rows, dropped), found = rewritten(path)
    assert dropped == (3 if rows == ROWS else 2)

    before, after = footer_of(path), footer_of(found)
    assert {number: after.get(number) for number in (1, 2, 5, 6)} == {
        number: before.get(number) for number in (1, 2, 5, 6)
    }, "version, schema, keys and writer"
    for index, leaf in enumerate(parquet_footer.leaves(before)):
        ours = list(parquet_footer.columns_of(before, index))
        theirs = list(parquet_footer.columns_of(after, index))
        assert len(ours) == len(theirs), "row groups"
        for mine, other in zip(ours, theirs, strict=True):
            output = [{number: column.get(number) for number in (1, 3, 4)} for column in (mine, other)]
            assert output[0] == output[1], (leaf.name, "type, path and codec")
            assert (14 in mine) == (14 in other), (leaf.name, "bloom filter")
            # of decimals in more bytes than they need, pyarrow would write another order's
            assert 12 not in mine or 12 in other or leaf.name == "d25", (leaf.name, "statistics")
            assert leaf.name != "id" or mine.get(15) == other.get(15), "size of the bloom filter"
    groups = [[given(group, 4) for group in given(footer, 4)[1]] for footer in (before, after)]
    assert groups[0] == groups[1], "sorting"

    whole = pq.read_table(path)
    kept = whole.filter(pc.invert(pc.is_in(whole["id"], IDS)))
    again = pq.read_table(found)
    assert again.schema.equals(kept.schema, check_metadata=True)
    assert comparable(again).equals(comparable(kept))
    assert comparable(of_duck(found)).equals(comparable(of_duck(path, "id NOT IN (0, 5, 999)")))
    check_statistics(found)


def check_statistics(path: Path) -> None:
    """The smallest and largest value of each row group, as the types order them."""
    file = pq.ParquetFile(path)
    for group in range(file.num_row_groups):
        rows = file.read_row_group(group)
        for index in range(file.metadata.num_columns):
            column = file.metadata.row_group(group).column(index)
            statistics, name = column.statistics, column.path_in_schema
            if name not in rows.column_names or statistics is None or not statistics.has_min_max:
                continue
            values = rows[name]
            if values.type == pa.float16():
                output = struct.unpack("<ee", statistics_of(path, group, index))
                assert output == (min(values.to_pylist()), max(values.to_pylist())), name
                continue
            if pa.types.is_floating(values.type):
                values = values.cast(pa.float64()).filter(pc.invert(pc.is_nan(values)))
            if pa.types.is_temporal(values.type):
                values, output = values.cast(pa.int64() if values.type.bit_width == 64 else pa.int32()), None
                if pa.types.is_int64(values.type):
                    output = struct.unpack("<qq", statistics_of(path, group, index))
                assert output in (None, (pc.min(values).as_py(), pc.max(values).as_py())), name
                continue
            if pa.types.is_dictionary(values.type):
                values = values.cast(pa.string())
            if values.type in (pa.string(), pa.binary()) or not isinstance(statistics.min, (bytes, str)):
                assert (statistics.min, statistics.max) == (
                    min(values.drop_null().to_pylist()),
                    max(values.drop_null().to_pylist()),
                ), name


def statistics_of(path: Path, group: int, index: int) -> bytes:
    column = list(parquet_footer.columns_of(footer_of(path), index))[group]
    output = given(column, 12)
    return bytes(given(output, 6) + given(output, 5))


def test_every_int96_keeps_its_twelve_bytes(tmp_path: Path) -> None:
    """Nanoseconds, years that 64 bits of them do not reach, and values below lists."""
    stamps = [struct.pack("<qI", nanos, day) for nanos, day in ((1, 2_440_588), (10**9 - 1, 5_373_484), (0, 1), (7, 0))]
    table = pa.table(
        {
            "id": pa.array(range(8), pa.int64()),
            "t": pa.array(stamps * 2, pa.binary(12)),
            "l": pa.array([[stamp, None] for stamp in stamps * 2], pa.list_(pa.binary(12))),
        }
    )

    def as_times(footer: Struct) -> None:
        for element in given(footer, parquet_footer.SCHEMA)[1]:
            if given(element, parquet_footer.LENGTH) == 12:
                element[parquet_footer.TYPE] = (I32, parquet_footer.INT96)
                del element[parquet_footer.LENGTH]
        for index in (1, 2):
            for column in parquet_footer.columns_of(footer, index):
                column[parquet_footer.TYPE] = (I32, parquet_footer.INT96)
                column.pop(12, None)

    def as_bytes(footer: Struct) -> None:
        for element in given(footer, parquet_footer.SCHEMA)[1]:
            if given(element, parquet_footer.TYPE) == parquet_footer.INT96:
                element |= {parquet_footer.TYPE: (I32, parquet_footer.FIXED), parquet_footer.LENGTH: (I32, 12)}
        for index in (1, 2):
            for column in parquet_footer.columns_of(footer, index):
                assert 12 not in column, "statistics that would be in the order of bytes"
                column[parquet_footer.TYPE] = (I32, parquet_footer.FIXED)

    path = tmp_path / "a.parquet"
    pq.write_table(table, path, store_schema=False)
    change_footer(path, as_times)
    assert pq.read_schema(path).field("t").type == pa.timestamp("ns")
    counts, found = rewritten(path)
    assert counts == (8, 2) and pq.read_schema(found) == pq.read_schema(path)
    change_footer(found, as_bytes)
    assert pq.read_table(found).equals(table.filter(pc.invert(pc.is_in(table["id"], IDS))))


def test_ids_may_be_int96(tmp_path: Path) -> None:
    times = pa.array([0, -1, 86_400_000_000, 1_773_000_000_123_456], pa.timestamp("us"))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": times}), path, use_deprecated_int96_timestamps=True)
    counts, found = rewritten(path, keys=times.take([1, 3]).cast(pa.timestamp("us", "UTC")))
    assert counts == (4, 2) and pq.read_table(found)["id"].cast(pa.int64()).to_pylist() == [0, 86_400_000_000_000]


def test_pages_of_another_shape_are_refused() -> None:
    """Of the same names, as readers would take the pages for something else."""

    def footer(type_: pa.DataType, **how: bool) -> Struct:
        file = io.BytesIO()
        pq.write_table(pa.table({"a": pa.array([], type_)}, pa.schema([pa.field("a", type_, **how)])), file)
        file.seek(0)
        return parquet_footer.read_footer(file)

    plain = footer(pa.int32())
    parquet_footer.check_shape(plain, footer(pa.date32()))
    for other in (
        footer(pa.int64()),
        footer(pa.int32(), nullable=False),
        footer(pa.list_(pa.int32())),
        footer(pa.struct({"x": pa.int32(), "y": pa.int32()})),
    ):
        with pytest.raises(Unsupported):
            parquet_footer.check_shape(plain, other)


def test_a_large_row_group_becomes_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "GROUP_BYTES", 1000)
    path = tmp_path / "a.parquet"
    table = pa.table({"id": pa.array(range(150_000), pa.int64())})
    pq.write_table(table, path, sorting_columns=[pq.SortingColumn(0)])
    _, found = rewritten(path, keys=pa.array([3]))
    metadata = pq.read_metadata(found)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    assert sum(group.num_rows for group in groups) == 149_999 and len(groups) == 3
    assert all(group.sorting_columns for group in groups)


def test_row_groups_stay_apart(tmp_path: Path) -> None:
    """Also small and large ones: of two sorted ones together, `sorting_columns` would not be true."""
    path = tmp_path / "a.parquet"
    sizes = [150_000, 10, 70_000]
    with pq.ParquetWriter(path, pa.schema({"id": pa.int64()}), sorting_columns=[pq.SortingColumn(0)]) as writer:
        for size in sizes:
            writer.write_table(pa.table({"id": pa.array(range(size), pa.int64())}), row_group_size=size)
    counts, found = rewritten(path, keys=pa.array([3]))
    metadata = pq.read_metadata(found)
    assert counts == (sum(sizes), 3)
    assert [metadata.row_group(index).num_rows for index in range(3)] == [size - 1 for size in sizes]
    assert all(metadata.row_group(index).sorting_columns for index in range(3))


def codec(number: int) -> Callable[[Struct], None]:
    def change(footer: Struct) -> None:
        for column in parquet_footer.columns_of(footer, 0):
            column[parquet_footer.CODEC] = (I32, number)

    return change


def encrypt_column(footer: Struct) -> None:
    for group in given(footer, parquet_footer.GROUPS)[1]:
        given(group, 1)[1][0][parquet_footer.CRYPTO] = (STRUCT, {})


def encrypt(footer: Struct) -> None:
    footer[parquet_footer.ENCRYPTION] = (STRUCT, {})


def elsewhere(footer: Struct) -> None:
    for group in given(footer, parquet_footer.GROUPS)[1]:
        given(group, 1)[1][0][parquet_footer.FILE_PATH] = (BINARY, b"other.parquet")


@pytest.mark.parametrize(
    ("change", "output"),
    [
        (codec(5), "Hadoop's LZ4"),
        (codec(3), "LZO"),
        (encrypt, "encrypted"),
        (encrypt_column, "encrypted"),
        (elsewhere, "other files"),
    ],
)
def test_a_parquet_file_that_cannot_be_written_as_it_was_is_refused(
    change: Callable[[Struct], None], output: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": pa.array(range(10), pa.int64())}), path)
    change_footer(path, change)
    with pytest.raises(Unsupported, match=output):
        rewritten(path)


def test_no_footer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for content in (b"", b"PAR1", b"x" * 100, b"x" * 92 + struct.pack("<I", 50) + b"PAR1", b"x" * 96 + b"PARE"):
        path.write_bytes(content)
        with pytest.raises(Unsupported):
            rewritten(path)


def test_a_damaged_footer_is_told(tmp_path: Path) -> None:
    """Whatever it says, so that the other files of a purge go on."""
    whole = {"parquet": tmp_path / "a.parquet", "orc": tmp_path / "a.orc"}
    table = columns().select(["id", "text", "at", "list"])
    pq.write_table(table, whole["parquet"])
    orc.write_table(table, whole["orc"])
    sizes = {kind: path.stat().st_size for kind, path in whole.items()}
    reported = 0
    for seed in range(600):
        chance = random.Random(seed)
        kind, rewrite = chance.choice([("parquet", rewrite_parquet), ("orc", rewrite_orc)])
        data = bytearray(whole[kind].read_bytes())
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(sizes[kind] - 500, sizes[kind])] = chance.randrange(256)
        try:
            rewrite(io.BytesIO(bytes(data)), contextlib.nullcontext(io.BytesIO()), ("id",), IDS)
        except (Unsupported, OSError, pa.ArrowException):
            reported += 1
    assert reported > 100


def test_a_footer_is_written_as_it_was_read() -> None:
    value: Struct = {
        1: (1, True),
        2: (1, False),
        3: (5, -7),
        40: (6, 2**62),
        41: (8, b"x" * 300),
        42: (7, b"12345678"),
        43: (9, (5, list(range(40)))),
        44: (12, {1: (3, b"a")}),
        45: (11, (0x85, [(b"k", -1)])),
        46: (9, (1, [True])),
        400: (10, (12, [{}, {1: (5, 1)}])),
        401: (11, (0, [])),
    }
    assert read_struct(write_struct(value)) == value
    for end in range(len(write_struct(value))):
        with pytest.raises(Unsupported):
            read_struct(write_struct(value)[:end])
