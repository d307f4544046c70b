"""Work on engines: rows grouped by a key, the same in this process and on Spark; and a rate that tasks share."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cmroot.store.checksum import FLOW, SLACK, copy_file
from replicator.core import grouping
from replicator.core.engine import Engine, LocalEngine
from replicator.core.grouping import cut
from replicator.core.spark import SparkEngine
from replicator.errors import KeepError, UsageError
from replicator.metastore.java import find_java, spark_environment

ANSWER = pa.schema([("key", pa.string()), ("rows", pa.int64()), ("total", pa.int64())])
ENGINES = ["local", "spark"]


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, Engine]]:
    workers = {"spark.executorEnv.PYTHONPATH": str(Path(__file__).parent)}  # where the functions below are found
    spark = SparkEngine("local[2]", workers, spark_environment(find_java(os.environ)))
    yield {"local": LocalEngine(2), "spark": spark}
    spark.stop()


def numbers(source: range) -> Iterator[pa.RecordBatch]:
    """Each number under its last two digits, in two batches."""
    middle = (source.start + source.stop) // 2
    for part in (range(source.start, middle), range(middle, source.stop)):
        yield pa.RecordBatch.from_pydict({"number": list(part), "key": [f"{number % 100:02d}" for number in part]})


def damaged(source: range) -> Iterator[pa.RecordBatch]:
    if source.start:
        raise KeepError(f"source {source.start} cannot be read", hint="mend it")
    yield from numbers(source)


def summed(group: pa.Table) -> pa.Table:
    (key,) = set(group.column("key").to_pylist())
    total = pc.sum(group.column("number")).as_py()
    return pa.table({"total": [total], "rows": [group.num_rows], "key": [key]})


def refusing(group: pa.Table) -> pa.Table:
    raise UsageError("not this group", hint="another")


def nothing(group: pa.Table) -> pa.Table:
    return summed(group).slice(0, 0)


@pytest.mark.parametrize("name", ENGINES)
def test_every_group_is_decided_once_with_all_its_rows(engines: dict[str, Engine], name: str) -> None:
    sources = [range(1000), range(1000, 1000), range(1000, 2500)]
    batches = list(engines[name].group(numbers, sources, "key", summed, ANSWER))
    assert all(batch.schema.equals(ANSWER) for batch in batches)
    found = {row["key"]: (row["rows"], row["total"]) for batch in batches for row in batch.to_pylist()}
    totals = Counter[str]()
    for number in range(2500):
        totals[f"{number % 100:02d}"] += number
    assert found == {key: (25, total) for key, total in totals.items()}


@pytest.mark.parametrize("name", ENGINES)
def test_no_sources_and_no_answers_are_no_rows(engines: dict[str, Engine], name: str) -> None:
    assert list(engines[name].group(numbers, [], "key", summed, ANSWER)) == []
    answers = engines[name].group(numbers, [range(50)], "key", nothing, ANSWER)
    assert sum(batch.num_rows for batch in answers) == 0


@pytest.mark.parametrize("name", ENGINES)
def test_errors_of_ours_come_back_as_they_were(engines: dict[str, Engine], name: str) -> None:
    with pytest.raises(KeepError, match="source 7 cannot be read") as caught:
        list(engines[name].group(damaged, [range(5), range(7, 9)], "key", summed, ANSWER))
    assert caught.value.hint == "mend it"
    with pytest.raises(UsageError, match="not this group"):
        list(engines[name].group(numbers, [range(50)], "key", refusing, ANSWER))


@pytest.mark.parametrize("held", [0, 5_000])
def test_rows_beyond_the_memory_wait_in_a_file(monkeypatch: pytest.MonkeyPatch, held: int, tmp_path: Path) -> None:
    monkeypatch.setattr(grouping, "HELD", held)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened: list[int] = []
    monkeypatch.setattr(grouping.os, "pread", lambda *a, pread=os.pread: opened.append(a[1]) or pread(*a))
    sources = [range(start, start + 1000) for start in range(0, 20_000, 1000)]
    batches = list(LocalEngine(2).group(numbers, sources, "key", summed, ANSWER))
    found = {row["key"]: (row["rows"], row["total"]) for batch in batches for row in batch.to_pylist()}
    assert found == {f"{end:02d}": (200, sum(range(end, 20_000, 100))) for end in range(100)}
    assert len(opened) > 1000 and not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(grouping, "HELD", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(OSError, match=str(tmp_path / "none")):
        list(LocalEngine(2).group(numbers, [range(10)], "key", summed, ANSWER))


def test_a_batch_is_cut_into_one_piece_for_each_key() -> None:
    batch = pa.RecordBatch.from_pydict({"key": ["b", "a", "b", "c"], "n": [1, 2, 3, 4]})
    pieces = {key: sorted(piece.column("n").to_pylist()) for key, piece in cut([batch, batch.slice(3)], "key")}
    assert pieces == {"a": [2], "b": [1, 3], "c": [4, 4]}
    assert list(cut([batch.slice(0, 0)], "key")) == []
    with pytest.raises(ValueError, match="null in the key"):
        list(cut([pa.RecordBatch.from_pydict({"key": ["a", None]})], "key"))


def copied(pair: tuple[str, str]) -> int:
    return copy_file(*pair)[1]


def test_tasks_of_spark_share_a_rate(engines: dict[str, Engine], tmp_path: Path) -> None:
    """They are processes of their own: each has its part of the rate, one alone the whole."""

    def taken(name: str, tasks: int) -> float:
        names = [str(tmp_path / f"{name}-{number}") for number in range(tasks)]
        pairs = [(each, f"{each}-copy") for each in names]
        for source, _ in pairs:
            Path(source).write_bytes(os.urandom(1_000_000))
        began = time.monotonic()
        assert list(engines["spark"].run(copied, pairs)) == [1_000_000] * tasks
        assert all(Path(source).read_bytes() == Path(target).read_bytes() for source, target in pairs)
        return time.monotonic() - began

    taken("free", 2)
    with FLOW.limited(1_000_000):
        assert taken("kept", 2) >= 2 - SLACK
        assert taken("alone", 1) >= 1 - SLACK
    assert FLOW.rate is None
