"""The search of a Delta table: columns by their names in files, and values of ids in the log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cmroot.keep.journal import files_at
from replicator.lifecycle.purge.delta_search import Bounds, Keys, LogReader, columns_of
from replicator.lifecycle.purge.lake_search import run_search_task, task_for

MAPPED = {
    "type": "struct",
    "fields": [
        {
            "name": "Person",
            "type": {
                "type": "struct",
                "fields": [
                    {
                        "name": "Who",
                        "type": "string",
                        "metadata": {"delta.columnMapping.physicalName": "col-2", "delta.columnMapping.id": 2},
                    }
                ],
            },
            "metadata": {"delta.columnMapping.physicalName": "col-1", "delta.columnMapping.id": 1},
        },
        {
            "name": "tags",
            "type": {"type": "array", "elementType": "string"},
            "metadata": {"delta.columnMapping.physicalName": "col-3", "delta.columnMapping.id": 3},
        },
    ],
}
BELOW = ("col-1", "col-2")


def metadata(mode: str = "name", **more: str) -> dict[str, Any]:
    return {"schemaString": json.dumps(MAPPED), "configuration": {"delta.columnMapping.mode": mode, **more}}


def read(place: Path, name: str) -> Any:
    (place / "_delta_log").mkdir(exist_ok=True)
    states = dict(files_at(str(place / "_delta_log")))
    return LogReader(str(place), BELOW).read(name, states[name])


def commit(place: Path, *actions: Mapping[str, Any], name: str = f"{3:020}.json") -> Any:
    (place / "_delta_log").mkdir(exist_ok=True)
    (place / "_delta_log" / name).write_text("".join(json.dumps(each) + "\n" for each in actions))
    return read(place, name)


def stats(low: str, high: str) -> str:
    return json.dumps(
        {"numRecords": 1, "minValues": {"col-1": {"col-2": low}}, "maxValues": {"col-1": {"col-2": high}}}
    )


def test_a_column_has_its_name_in_files_and_its_number_where_files_are_read_by_it() -> None:
    by_name, by_number = columns_of(metadata(), ("person", "who")), columns_of(metadata("id"), ("person", "who"))
    assert by_name is not None and by_number is not None
    assert (by_name.path, by_name.type, by_name.number) == (BELOW, "string", None)
    assert by_name.known >= {BELOW, ("col-3", "element")} and by_number.number == 2 and 3 in by_number.known
    assert columns_of(metadata(), ("who",)) is None
    tags = columns_of(metadata(), ("tags",))
    assert tags is not None and tags.type == "array"
    tracked = columns_of(metadata(**{"delta.rowTracking.materializedRowIdColumnName": "_Row-Id"}), ("tags",))
    assert tracked is not None and ("_row-id",) in tracked.known


def test_a_file_is_searched_by_the_name_of_the_column_in_it(tmp_path: Path) -> None:
    columns = columns_of(metadata(), ("person", "who"))
    assert columns is not None
    people, tags = [{"col-2": "ann"}, {"col-2": "bob"}, None], [["ann"], [], None]
    path = tmp_path / "1.parquet"
    pq.write_table(pa.table({"col-1": people, "col-3": tags}), path)
    pq.write_table(pa.table({"col-1": people, "earlier": ["x", "ann", None]}), tmp_path / "2.parquet")
    pq.write_table(pa.table({"earlier": tags}), tmp_path / "3.parquet")
    task = task_for((columns.path,), columns.known, pa.array(["ann", "eve"]))
    files = tuple((str(tmp_path / f"{each}.parquet"), "PARQUET") for each in (1, 2, 3))
    one, two, three = run_search_task(type(task)(files, task.ids, task.known, task.keys))
    assert (one.rows, one.keys, one.records, one.why, one.is_stray) == (1, ("ann",), 3, "", False)
    assert two.rows == 1 and two.is_stray and two.why.endswith("holds ids") and two.checksum
    assert three.rows == 0 and not three.is_stray and "which the table does not have" in three.why


def test_a_commit_has_bounds_names_and_conditions(tmp_path: Path) -> None:
    about = {
        "operationParameters": {"predicate": "[\"(who#7 = 'ann b')\"]", "mode": "Append"},
        "userMetadata": "case 9",
    }
    found = commit(
        tmp_path,
        {"commitInfo": about},
        {"metaData": {"partitionColumns": ["Day"]}},
        {"add": {"path": "day=x%20y/1.parquet", "stats": stats("a", "c")}},
        {"add": {"path": "2.parquet", "stats": '{"numRecords":1}'}},
        {"remove": {"path": "file:/other/3.parquet"}},
        {"cdc": {"path": "_change_data/4.parquet"}},
    )
    assert found.version == 3 and found.why == "" and found.partitions == {"day"}
    assert found.bounds == (Bounds(f"{tmp_path}/day=x y/1.parquet", "a", "c"),)
    own = {f"{tmp_path}/{each}" for each in ("day=x y/1.parquet", "2.parquet", "_change_data/4.parquet")}
    assert found.named == own | {"/other/3.parquet"}
    keys = Keys(pa.array(["ann b", "9"]))
    assert [keys.is_in(each) for each in found.texts] == [True, True]
    assert not Keys(pa.array(["7", "Append"])).is_in(found.texts[0])


@pytest.mark.parametrize("with_json", [True, False])
def test_a_checkpoint_has_the_same_bounds_in_both_forms(tmp_path: Path, with_json: bool) -> None:
    parsed = {"minValues": {"col-1": {"col-2": "a"}}, "maxValues": {"col-1": {"col-2": "c"}}}
    add = {"path": "1.parquet", "stats_parsed": parsed} | ({"stats": stats("a", "c")} if with_json else {})
    rows = [{"add": add, "metaData": None}, {"add": None, "metaData": {"partitionColumns": ["who"]}}]
    (tmp_path / "_delta_log").mkdir()
    name = f"{5:020}.checkpoint.parquet"
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "_delta_log" / name)
    found = read(tmp_path, name)
    assert (found.why, found.version, found.partitions) == ("", 5, {"who"})
    assert found.bounds == (Bounds(f"{tmp_path}/1.parquet", "a", "c"),)


def test_other_files_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / f"{3:020}.crc").write_text(json.dumps({"allFiles": [{"path": "1.parquet", "stats": stats("a", "c")}]}))
    (log / f".{3:020}.json.crc").write_bytes(b"crc\x00\x01")
    (log / "_last_checkpoint").write_text("{}")
    (log / f"{4:020}.json").write_text("{")
    (log / "notes.txt").write_text("ann")
    assert read(tmp_path, f"{3:020}.crc").bounds == (Bounds(f"{tmp_path}/1.parquet", "a", "c"),)
    assert [read(tmp_path, each).why for each in (f".{3:020}.json.crc", "_last_checkpoint")] == ["", ""]
    assert "cannot be read" in read(tmp_path, f"{4:020}.json").why
    assert read(tmp_path, "notes.txt").why == "it is no file of a log that is known"


def test_a_file_that_is_gone_may_have_had_an_id_between_its_bounds() -> None:
    texts, numbers = Keys(pa.array(["m", "x"])), Keys(pa.array([7, 20], pa.int64()))
    assert [texts.may_have(Bounds("", *each)) for each in (("a", "l"), ("a", "m"), ("n", "o"))] == [False, True, False]
    assert [numbers.may_have(Bounds("", *each)) for each in ((8, 19), (7, 7), (None, None))] == [False, True, True]
    days = Keys(pa.array([3], pa.int32()).cast(pa.date32()))
    assert days.may_have(Bounds("", "1970-01-04", "1970-01-04")) and not days.may_have(
        Bounds("", "1971-01-01", "1971-01-02")
    )
