"""What is shown of a log where only one table is asked for."""

from __future__ import annotations

from dataclasses import replace

from replicator.captures.dumps.selection import LogMoment
from replicator.captures.dumps.shown import Narrowing, Shown, narrowed
from replicator.core.model import Table
from replicator.metastore.events.record import AlterTable, Change, ChangeRecord, CreateTable


def shown(*changes: Change) -> Shown:
    records = [ChangeRecord(number, number, number, each) for number, each in enumerate(changes, 1)]
    return Shown({}, lambda: iter(records), lambda: iter([{"position": each.position} for each in records]))


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
