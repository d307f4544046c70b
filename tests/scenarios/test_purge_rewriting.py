"""Rewriting one file: what is left out is what was searched for, id by id."""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from replicator.lifecycle.purge.rewrite.formats import FileFormat
from replicator.lifecycle.purge.rewrite.line_files import decompressed
from replicator.lifecycle.purge.rewrite.rewrite_task import FilesTask, FileWork, carry, run_files_task

TEXT = FileFormat("text", field=("id",), type="bigint")


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
    assert wrong.final and "for 2 ids" in wrong.error

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


def deflated(data: bytes) -> bytes:
    return zlib.compress(data)


def zstd(data: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(data)
    return bytes(out.getvalue())


PACKED = {"deflate": deflated, "gz": gzip.compress, "bz2": bz2.compress, "zst": zstd}


@pytest.mark.parametrize("ending", PACKED)
def test_streams_one_after_the_other_are_one_file(tmp_path: Path, ending: str) -> None:
    """As `cat a b` and a writer that appends make them; large enough for many pieces, and one that is empty."""
    pack, lines = PACKED[ending], [[b"%d\n" % (each * 7919 % 100_003) for each in range(200_000)], [b"3\n", b"4\n"]]
    source = tmp_path / f"source.{ending}"
    source.write_bytes(b"".join(pack(b"".join(part)) for part in (lines[0], [], lines[1], [b"5"])))
    wanted = [line for line in lines[0] if int(line) not in (3, 5)] + [b"4\n"]
    counts = [sum(int(line) == key for part in [*lines, [b"5"]] for line in part) for key in (3, 5)]
    keys = pa.array([3, 5], pa.int64())
    work = FileWork("p", source.name, str(source), str(tmp_path / f"t.{ending}"), "u", 1, sum(counts))
    (done,) = run_files_task(FilesTask(TEXT, found(tmp_path, "u", keys, counts), [work]))
    assert (done.error, done.rows, done.matched) == ("", 200_003, sum(counts))
    with open(work.target, "rb") as file:
        stream = decompressed(work.target, file)
        assert b"".join(iter(lambda: stream.read(1 << 20), b"")) == b"".join(wanted)


@pytest.mark.parametrize("ending", PACKED)
def test_damaged_compression_fails_its_file_in_words(tmp_path: Path, ending: str) -> None:
    pack = PACKED[ending]
    one, two = pack(b"3\n" * 1000), pack(b"4\n" * 1000)
    damaged = {
        "cut": one + two[: len(two) // 2],
        "cut at its last byte": one + two[:-1],
        "followed": one + b"some text",
        "none": b"some text",
        "with a wrong byte": one + two[:12] + b"\xff" + two[13:],
    }
    keys = found(tmp_path, "u", pa.array([3], pa.int64()), [1000])
    for what, data in damaged.items():
        source = tmp_path / f"source.{ending}"
        source.write_bytes(data)
        works = [
            FileWork("p", source.name, str(source), str(tmp_path / f"t.{ending}"), "u", len(data), matched)
            for matched in (1000, 0)
        ]
        for done in run_files_task(FilesTask(TEXT, keys, works)):
            assert done.final and "damaged" in done.error, (what, done)
    source.write_bytes(b"")
    (empty,) = run_files_task(FilesTask(TEXT, keys, works[1:]))
    assert (empty.error, empty.rows) == ("", 0)


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("start", [b"", codecs.BOM_UTF8])
def test_the_beginning_of_a_file_stays_and_its_first_row_is_one(tmp_path: Path, start: bytes, header: bool) -> None:
    """A line of names that says an id, too."""
    names = b"3,name\n" if header else b""
    (tmp_path / "source").write_bytes(start + names + b"3,goes\n4,stays\n3,goes\n")
    work = FileWork("p", "source", str(tmp_path / "source"), str(tmp_path / "target"), "u", 1, 2)
    format_ = FileFormat("csv", field=("id",), type="bigint", separator=",", quote='"', header=header, by="spark")
    (done,) = run_files_task(FilesTask(format_, found(tmp_path, "u", pa.array([3], pa.int64()), [2]), [work]))
    assert (done.error, done.rows, done.matched) == ("", 3, 2)
    assert (tmp_path / "target").read_bytes() == start + names + b"4,stays\n"


def test_attempts_that_carry_one_file_at_once_leave_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other's link comes to be between this one's look at an older file and its own link."""
    source, target = tmp_path / "source", tmp_path / "there" / "target"
    target.parent.mkdir()
    source.write_text("3\n")
    target.write_text("of a task that was killed")
    real = os.path.samestat

    def other_comes(one: os.stat_result, two: os.stat_result) -> bool:
        monkeypatch.setattr(os.path, "samestat", real)
        is_same = real(one, two)
        carry(work)
        return is_same

    work = FileWork("p", "source", str(source), str(target), "", 2, 0)
    monkeypatch.setattr(os.path, "samestat", other_comes)
    carry(work)
    assert os.path.samefile(source, target) and os.listdir(target.parent) == ["target"]


def test_a_file_is_carried_by_copy_where_no_link_can_be(tmp_path: Path, small: Callable[[str], Path]) -> None:
    place = small("size=8m")
    (tmp_path / "source").write_bytes(b"3\n4\n" * 1_500_000)  # of two pieces
    work = FileWork("p", "source", str(tmp_path / "source"), str(place / "target"), "", 2, 0)
    (done,) = run_files_task(FilesTask(TEXT, str(tmp_path), [work]))
    assert (done.error, done.rows) == ("", 3_000_000)
    assert (place / "target").read_bytes() == (tmp_path / "source").read_bytes()
    assert os.listdir(place) == ["target"]
