"""What is shown of a log where only one table is asked for."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from replicator.captures.dumps.selection import LogMoment
from replicator.captures.dumps.shown import Narrowing, Shown, narrowed
from replicator.core.model import Table, WriteIds
from replicator.metastore.events.facts import SetWriteIds
from replicator.metastore.events.record import AlterTable, Change, ChangeFiles, ChangeRecord, CreateTable, SetStatistics


def shown(*changes: Change) -> Shown:
    records = [ChangeRecord(number, number, number, each) for number, each in enumerate(changes, 1)]
    files = [{"position": each.position, "op": "add", "db": "d", "table": "t", "path": "part-0"} for each in records]
    return Shown({}, lambda: iter(records), lambda: iter([pa.RecordBatch.from_pylist(files)]))


def table(name: str) -> Table:
    return Table(db="d", name=name)


def renamed(before: str, after: str) -> AlterTable:
    return AlterTable("d", before, table(after))


def test_a_table_is_followed_through_its_names() -> None:
    log = shown(
        CreateTable(table("a")),
        renamed("a", "b"),
        CreateTable(table("other")),
        renamed("b", "c"),
        CreateTable(table("a")),
        renamed("c", "c"),
        renamed("a", "b"),
    )
    found = narrowed(log, Narrowing(("d", "c")))
    assert [each.position for each in found.records()] == [1, 2, 4, 6], "not the later tables of its former names"
    assert [each["position"] for each in found.entries()] == [1, 2, 4, 6]
    late = narrowed(log, replace(Narrowing(("d", "c")), since=LogMoment(event=2)))
    assert [each.position for each in late.records()] == [2, 4, 6]


def test_states_are_named_in_the_terms_of_each_format() -> None:
    pointer = {"metadata_location": "file:/w/d.db/i/metadata/00002-5f.metadata.json"}
    changes = [
        CreateTable(Table(db="d", name="i", parameters=pointer)),
        AlterTable("d", "i", Table(db="d", name="i", parameters={**pointer, "current-snapshot-id": "812"})),
        CreateTable(Table(db="d", name="delta", parameters={"spark.sql.sources.provider": "delta"})),
        ChangeFiles(db="d", table="delta"),
        ChangeFiles(db="d", table="plain"),
        SetWriteIds("d", "acid", WriteIds(7, (6,))),
    ]
    files = [
        (2, "add", "other/_delta_log/00000000000000000007.json"),
        (3, "add", "_delta_log/00000000000000000000.json"),
        (4, "add", "_delta_log/00000000000000000011.json"),
        (4, "add", "_delta_log/00000000000000000012.json"),
        (4, "add", "_delta_log/00000000000000000013.checkpoint.parquet"),
        (4, "remove", "_delta_log/00000000000000000099.json"),
        (5, "add", "part-0"),
    ]
    named = (dict(zip(("position", "op", "path"), each, strict=True)) for each in files)
    batch = pa.RecordBatch.from_pylist([{**each, "db": "d", "table": "delta"} for each in named])
    found = replace(shown(*changes), batches=lambda: iter([batch]))
    moment = found.moments()
    assert [moment(record) for record in found.records()] == [
        "00002-5f.metadata.json",
        "snapshot 812 (00002-5f.metadata.json)",
        "version 0",
        "version 12",
        "",
        "write ids to 7, 1 open, 0 aborted",
    ]
    assert [each.get("moment", "") for each in found.to_dict()["records"]] == list(map(moment, found.records()))


def test_in_a_complete_dump_only_the_tables_own_record_has_its_version() -> None:
    """All records of one have its position."""
    delta = Table(db="d", name="delta", parameters={"spark.sql.sources.provider": "delta"})
    changes = [CreateTable(table("plain")), CreateTable(delta), SetStatistics("d", "delta", ())]
    records = [ChangeRecord(7, 7, 7, each) for each in changes]
    commit = {"position": 7, "op": "add", "db": "d", "table": "delta", "path": f"_delta_log/{3:020}.json"}
    found = Shown({}, lambda: iter(records), lambda: iter([pa.RecordBatch.from_pylist([commit])]))
    assert list(map(found.moments(), found.records())) == ["", "version 3", ""]
