"""The search of an Iceberg table's files: by the ids of fields, whatever columns are called, and what is not read."""

from __future__ import annotations

import struct
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replicator.lifecycle.purge.iceberg_search import Entry, Keys, Tree, field_of
from replicator.lifecycle.purge.lake_search import SearchTask, run_search_task

WHO, HOME, OTHER = 2, 7, 9
SCHEMA: dict[str, Any] = {
    "type": "struct",
    "fields": [
        {"id": WHO, "name": "Who", "type": "long"},
        {"id": 3, "name": "at", "type": {"type": "struct", "fields": [{"id": HOME, "name": "home", "type": "string"}]}},
    ],
}


def field(name: str, type_: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, type_, metadata={"PARQUET:field_id": str(number)})


def task(path: Path | str, keys: pa.Array, ids: int = WHO, form: str = "PARQUET") -> SearchTask:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("key", keys.type)])) as writer:
        writer.write_batch(pa.record_batch([keys], names=["key"]))
    return SearchTask(((str(path), form),), (ids,), frozenset({WHO, 3, HOME}), sink.getvalue().to_pybytes())


def write(path: Path, columns: dict[str, tuple[int, list[Any], pa.DataType]]) -> Path:
    schema = pa.schema([field(name, type_, number) for name, (number, _, type_) in columns.items()])
    pq.write_table(pa.table([values for _, values, _ in columns.values()], schema=schema), path)
    return path


def test_a_column_is_found_by_its_id_and_promoted(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", {"earlier name": (WHO, [1, 7, None, 7], pa.int32())})
    (held,) = run_search_task(task(path, pa.array([7, 8], pa.int64())))
    assert (held.rows, held.keys, held.size, held.why) == (2, (7,), path.stat().st_size, "")
    assert len(held.checksum) == 32


def test_a_field_of_a_struct_is_searched(tmp_path: Path) -> None:
    home = pa.struct([field("home", pa.string(), HOME)])
    path = write(tmp_path / "f.parquet", {"at": (3, [{"home": "a"}, None, {"home": "b"}], home)})
    (held,) = run_search_task(task(path, pa.array(["b"]), HOME))
    assert (held.rows, held.keys, held.why) == (1, ("b",), "")


def test_a_column_that_the_table_lacks_is_named_if_it_has_ids(tmp_path: Path) -> None:
    columns = {"who": (WHO, [1], pa.int64()), "dropped": (OTHER, ["7"], pa.string()), "of none": (10, [5], pa.int32())}
    (held,) = run_search_task(task(write(tmp_path / "f.parquet", columns), pa.array([7], pa.int64())))
    assert held.rows == 0
    assert held.why == "the column dropped of it, which the table does not have, holds ids"


def test_an_equality_delete_has_ids_too(tmp_path: Path) -> None:
    path = write(tmp_path / "d.parquet", {"who": (WHO, [7], pa.int64())})
    (held,) = run_search_task(task(path, pa.array([7], pa.int64())))
    assert held.rows == 1


def test_what_is_not_read_is_named(tmp_path: Path) -> None:
    keys = pa.array([7], pa.int64())
    (without,) = run_search_task(task(tmp_path / "none.parquet", keys))
    assert without.is_missing
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 and no more")
    (damaged,) = run_search_task(task(tmp_path / "damaged.parquet", keys))
    assert "cannot be read" in damaged.why
    pq.write_table(pa.table({"who": [7]}), tmp_path / "added.parquet")
    (added,) = run_search_task(task(tmp_path / "added.parquet", keys))
    assert "no ids of Iceberg" in added.why
    (orc,) = run_search_task(task(tmp_path / "f.orc", keys, form="ORC"))
    assert "only Parquet is searched" in orc.why


@pytest.mark.parametrize(("path", "found"), [(("who",), (WHO, "long")), (("at", "home"), (HOME, "string"))])
def test_a_field_has_an_id_by_its_path(path: tuple[str, ...], found: tuple[int, str]) -> None:
    assert field_of({"schema": SCHEMA}, path) == found
    assert field_of(
        {"schemas": [{"schema-id": 0, "fields": []}, SCHEMA | {"schema-id": 1}], "current-schema-id": 1}, path
    )
    assert field_of({"schema": SCHEMA}, (*path, "more")) is None


def test_snapshots_hold_what_their_manifests_describe_also_of_removed_files() -> None:
    old, new = Entry("a", True, 0, "PARQUET", 1, 1), Entry("b", True, 0, "PARQUET", 1, 1)
    gone = Entry("a", False, 0, "PARQUET", 1, 1)
    metadata = {"current-snapshot-id": 2, "refs": {"kept": {"snapshot-id": 1, "type": "tag"}}}
    tree = Tree(
        "p",
        metadata,
        {1: "l1", 2: "l2", 3: "l3"},
        {1: ("m1",), 2: ("m2",), 3: ("m3",)},
        {"m1": (old,), "m2": (new, gone), "m3": (new,)},
    )
    assert (tree.refs, tree.tags) == ({"main": 2, "kept": 1}, {"kept"})
    assert tree.holding({"a"}) == {1, 2} and tree.holding({"b"}) == {2, 3}
    assert set(tree.live([2])) == {"b"} and set(tree.live()) == {"a", "b"}
    assert tree.only_in({1}) == {"l1", "m1", "a"}


def test_a_bound_is_an_id_or_the_begin_of_one() -> None:
    """Of a text from 16 characters on, which may be truncated; an upper bound then is the next text."""
    texts = Keys(pa.array(["ann", "bernadette@example.org"]))
    found = ("ann", "bernadette@examp", "bernadette@examq", "bernadette@example.org")
    assert all(texts.has(each.encode()) for each in found)
    assert not any(texts.has(each.encode()) for each in ("an", "bernadette@exam", "bernadette@examr", "z" * 16, ""))
    numbers = Keys(pa.array([7, -1], pa.int64()))
    assert numbers.has(struct.pack("<q", 7)) and numbers.has(struct.pack("<i", -1))
    assert not numbers.has(struct.pack("<q", 8))
    days = Keys(pa.array([date(1970, 1, 3)]))
    assert days.has(struct.pack("<i", 2)) and not days.has(struct.pack("<i", 3))
    money = Keys(pa.array([Decimal("12.50")], pa.decimal128(9, 2)))
    assert money.has((1250).to_bytes(2, "big")) and not money.has((1251).to_bytes(2, "big"))
