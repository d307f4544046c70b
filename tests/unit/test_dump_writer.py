"""DumpWriter: entries that come in small pieces, as those of many small tables do."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cmroot.log.captured import FILES
from replicator.captures.dumps import writer as dump_writer
from replicator.captures.dumps.layout import DumpMetadata, Point, Scope
from replicator.captures.dumps.writer import BUCKETS, DumpWriter


def test_entries_of_many_small_tables_are_not_held_one_by_one(tmp_path: Path) -> None:
    with DumpWriter(str(tmp_path / "dump")) as writer:
        before = pa.total_allocated_bytes()
        for number in range(5_000):
            writer.entries(_one_file(number))
        held = pa.total_allocated_bytes() - before
        writer.finish(_metadata(writer))
    assert held < 5_000 * 1_000, "a table of one row costs three times that"


def test_a_dump_of_many_small_tables_has_each_entry_once_and_says_how_many_buckets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump_writer, "SMALL", 2_500)
    count = 2_510
    with DumpWriter(str(tmp_path / "dump")) as writer:
        for number in range(count):
            writer.entries(_one_file(number))
        metadata = _metadata(writer)
        writer.finish(metadata)
    parts = sorted((tmp_path / "dump" / "_files").iterdir())
    assert metadata.buckets == len(parts) == BUCKETS
    found = [name for part in parts for name in pq.read_table(part)["table"].to_pylist()]
    assert sorted(found) == sorted(f"t{number}" for number in range(count))


def _one_file(number: int) -> pa.Table:
    values = {"position": 1, "op": "add", "db": "many", "table": f"t{number}", "partition": "", "kept": True}
    values |= {"location": f"file:/many/t{number}", "path": "part-0.parquet", "size": 20, "mtime_ns": number}
    values |= {"identity": str(number), "checksum": f"xxh3:{number:032x}"}
    return pa.Table.from_pylist([values], schema=FILES)


def _metadata(writer: DumpWriter) -> DumpMetadata:
    end = Point(event=1, position=1, time=1)
    return DumpMetadata(
        id=writer.id,
        kind="bootstrap",
        created="2026-01-01T00:00:00Z",
        scope=Scope(databases=("many",)),
        source="thrift://127.0.0.1:1",
        root="/cmroot",
        root_id="r",
        begin=None,
        end=end,
        locations={},
        records=writer.records,
        files=writer.files,
        removed=writer.removed,
        bytes=writer.bytes,
        observed=writer.observed,
        buckets=writer.buckets,
    )
