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
from replicator.core.model import Partition, Table
from replicator.metastore.events.record import AlterPartition, AlterTable, Change, ChangeRecord

RENAMES: tuple[Change, ...] = (
    AlterPartition("many", "new", before="p=1", name="p=2", partition=Partition(values=("2",))),
    AlterTable("many", "t", Table(db="many", name="old")),
    AlterTable("many", "new", Table(db="many", name="t")),
)


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


def test_a_file_remains_in_its_bucket_when_others_get_the_names_of_its_table_and_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump_writer, "SMALL", 10)
    names = [f"{number:06d}_0" for number in range(20)]
    with DumpWriter(str(tmp_path / "dump")) as writer:
        for position, change in enumerate(RENAMES, 2):
            writer.record(ChangeRecord(position, position, 1, change))
        for name in names:
            for position, table, partition in ((1, "t", "p=1"), (5, "old", "p=1"), (1, "new", "p=1"), (5, "t", "p=2")):
                writer.entries(_one_file(0, position=position, table=table, partition=partition, path=name))
        writer.finish(_metadata(writer))
    buckets: dict[tuple[str, str], set[str]] = {}
    for part in (tmp_path / "dump" / "_files").iterdir():
        for row in pq.read_table(part).to_pylist():
            first = "t" if (row["position"], row["table"]) in ((1, "t"), (5, "old")) else "new"
            buckets.setdefault((first, row["path"]), set()).add(part.name)
    assert len(buckets) == 2 * len(names)
    assert all(len(some) == 1 for some in buckets.values()), "one task reads all of a file"


def _one_file(number: int, **given: object) -> pa.Table:
    values = {"position": 1, "op": "add", "db": "many", "table": f"t{number}", "partition": "", "kept": True}
    values |= {"location": f"file:/many/t{number}", "path": "part-0.parquet", "size": 20, "mtime_ns": number} | given
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
