"""Rewriting one file: what is left out is what was searched for, id by id."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from replicator.purge.files import FilesTask, FileWork, run_files_task
from replicator.purge.formats import FileFormat


def found(tmp_path: Path, uri: str, keys: pa.Array, rows: list[int]) -> str:
    """As a search writes it."""
    place = tmp_path / "found"
    place.mkdir(exist_ok=True)
    table = pa.table({"file": [uri] * len(keys), "key": keys, "rows": pa.array(rows, pa.int64())})
    pq.write_table(table, place / "part-0.parquet")
    return str(place)


@pytest.mark.parametrize("kind", ["parquet", "orc", "text", "json"])
def test_ids_that_were_found_otherwise_fail_the_file(tmp_path: Path, kind: str) -> None:
    """Spark's 7 once and 8 twice, where the file has 7 twice and 8 once: the sum is the same."""
    ids, source = [7, 7, 8, 9, None], tmp_path / "source"
    table = pa.table({"id": pa.array(ids, pa.int32()), "v": list("abcde")})
    match kind:
        case "parquet":
            pq.write_table(table, source)
        case "orc":
            orc.write_table(table, source)
        case "text":
            source.write_text("7\x01v\n7\x01v\n8\x01v\n9\x01v\n\\N\x01v\n")
        case _:
            source.write_text("".join(f'{{"id": {json.dumps(each)}}}\n' for each in ids))
    keys = pa.array([7, 8, 1 << 40], pa.int64())
    work = FileWork("p", "source", str(source), str(tmp_path / "target"), "u", source.stat().st_size, 3)
    format_ = FileFormat(kind, field=("id",), type="bigint")  # type: ignore[arg-type]

    (wrong,) = run_files_task(FilesTask(format_, found(tmp_path, "u", keys, [1, 2, 0]), [work]))
    assert wrong.final and "of 2 ids" in wrong.error

    (right,) = run_files_task(FilesTask(format_, found(tmp_path, "u", keys, [2, 1, 0]), [work]))
    assert (right.error, right.rows, right.matched) == ("", 5, 3)


def test_zeros_and_no_numbers_are_one_id_each(tmp_path: Path) -> None:
    """Spark takes -0.0 for 0.0, and each NaN for the other."""
    values = [0.0, -0.0, float("nan"), 1.0]
    pq.write_table(pa.table({"id": values}), tmp_path / "source")
    keys = pa.array([0.0, float("nan")])
    work = FileWork("p", "source", str(tmp_path / "source"), str(tmp_path / "target"), "u", 1, 3)
    format_ = FileFormat("parquet", field=("id",), type="double")
    (done,) = run_files_task(FilesTask(format_, found(tmp_path, "u", keys, [2, 1]), [work]))
    assert (done.error, done.matched) == ("", 3)
    assert pq.read_table(tmp_path / "target")["id"].to_pylist() == [1.0]
