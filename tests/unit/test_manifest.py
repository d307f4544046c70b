"""Manifests: transactions that a signal cuts off anywhere, those of older releases, and files outside of a location."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from cmroot.errors import Error, FormatError, StorageUnreachable
from cmroot.log.captured import FILES
from replicator.captures import trees
from replicator.captures.inventory import last_recorded
from replicator.captures.manifest import Manifest, opened
from replicator.captures.trees import remember_log_file
from replicator.core.model import Column, Partition, Storage, Table
from replicator.metastore.events.record import AddPartitions, AlterTable, ChangeRecord, CreateTable, DropTable


def interrupted(work: Callable[[], None], line: int) -> bool:
    """Raises KeyboardInterrupt in front of so many lines of a function, as a signal does; whether it was that long."""
    code = getattr(work, "__func__", work).__code__  # type: ignore[attr-defined]
    seen = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal seen
        if frame.f_code is not code:
            return None
        if event in ("line", "return"):
            seen += 1
            if seen == line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_a_transaction_that_a_signal_cut_off_is_taken_back_or_whole(tmp_path: Path, verb: str) -> None:
    line = 0
    again = True
    while again:
        line += 1
        manifest = Manifest(tmp_path / f"{line}.sqlite")
        manifest.advance(7, 7, 7)
        manifest.commit()
        manifest.advance(8, 8, 8)
        again = interrupted(getattr(manifest, verb), line)
        manifest.rollback()
        assert manifest.position in ({7, 8} if verb == "commit" else {7})
        manifest.advance(9, 9, 9)
        manifest.commit()
        manifest.close()
        assert Manifest(tmp_path / f"{line}.sqlite").position == 9
    assert line > 3


def test_objects_that_an_older_release_did_not_list_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "manifest.sqlite"
    manifest = Manifest(path)
    view = Table(db="d", name="mv", kind="MATERIALIZED_VIEW", storage=Storage(location="file:/w/d.db/mv"))
    parted = Table(db="d", name="t", storage=Storage(location="file:/w/d.db/t"), partition_keys=(Column("p", "int"),))
    for position, table in enumerate((view, parted)):
        manifest.apply(ChangeRecord(position=position, event=1, time=1, change=CreateTable(table=table)))
    manifest.mark_listed([each for objects in manifest.unlisted() for each in objects])
    manifest.commit()
    manifest.close()
    with sqlite3.connect(path) as older:
        older.execute("DELETE FROM state WHERE key = 'roots'")
    for wanted in ([("mv", False), ("t", True)], []):  # once
        manifest = Manifest(path)
        found = [each for objects in manifest.unlisted() for each in objects]
        assert [(each.table, each.root) for each in found] == wanted
        manifest.mark_listed(found)
        manifest.commit()
        manifest.close()


def test_files_that_an_older_release_recorded_with_partitions_of_a_hudi_table_end(tmp_path: Path) -> None:
    path, reader = tmp_path / "m.sqlite", "org.apache.hudi.hadoop.HoodieParquetInputFormat"
    manifest = Manifest(path)
    storage = Storage(location="file:/w/t", input_format=reader)
    table = Table(db="d", name="t", storage=storage, partition_keys=(Column("p", "string"),))
    partition = Partition(values=("1",), storage=Storage(location="file:/w/t/p=1", input_format=reader))
    changes = (CreateTable(table=table), AddPartitions(db="d", table="t", keys=("p",), partitions=(partition,)))
    for at, change in enumerate(changes, 1):
        manifest.apply(ChangeRecord(position=at, event=at, time=at, change=change))
    manifest.advance(2, 2, 2)
    assert [each.label for some in manifest.unlisted() for each in some] == ["d.t at file:/w/t"]
    manifest.change("UPDATE partitions SET location = ?", ("file:/w/t/p=1",))
    manifest.change("UPDATE tables SET listed = ?", (1,))
    row = (1, 1, "a.parquet", 5, 0, "i", "00" * 16, 1, None, 2)
    manifest.change(f"INSERT INTO files VALUES ({', '.join('?' * len(row))})", row)
    manifest.change("DELETE FROM state WHERE key = ?", ("whole",))
    manifest.commit()
    manifest.close()
    manifest = Manifest(path)
    assert [each.label for some in manifest.unlisted() for each in some] == ["d.t at file:/w/t"]
    assert manifest.files(1, 1) == {}
    (ended,) = [each for rows in manifest.ended() for each in rows.to_pylist()]
    assert (ended["op"], ended["table"], ended["partition"], ended["path"]) == ("release", "t", "p=1", "a.parquet")


def test_only_a_damaged_manifest_is_to_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "manifest.sqlite"
    Manifest(path).close()

    def failed() -> Error:
        with pytest.raises(Error) as found, last_recorded(path) as read:
            assert read is not None
            read.scope()
        return found.value

    with contextlib.closing(sqlite3.connect(path, timeout=0)) as other:
        other.executescript("PRAGMA journal_mode=DELETE; PRAGMA locking_mode=EXCLUSIVE; BEGIN EXCLUSIVE")
        busy = failed()
    assert isinstance(busy, StorageUnreachable) and "database is locked" in busy.message and "delete" not in busy.hint

    path.unlink()
    path.mkdir()
    failing = failed()  # its read, as of a disk
    assert isinstance(failing, StorageUnreachable) and failing.hint.startswith("check its disk")

    path.rmdir()
    path.write_bytes(b"no database" * 1000)
    damaged = failed()
    assert isinstance(damaged, FormatError) and damaged.hint.startswith("delete it")
    with pytest.raises(FormatError, match=str(path)), opened(path):
        pass


# ---- files outside of the location of an Iceberg table ------------------------------------------------------------


class Outside:
    """A manifest with a table `d.t`, and its file entries. The location of those outside is the root of a store."""

    def __init__(self, path: Path, location: str = "s3a://lake/t", **parameters: str) -> None:
        self.manifest, self.at = Manifest(path), 0
        self.apply(CreateTable(table=self.table(location, **parameters)))

    def table(self, location: str, name: str = "t", **parameters: str) -> Table:
        return Table(db="d", name=name, storage=Storage(location=location), parameters=parameters)

    def apply(self, change: Any) -> None:
        self.at += 1
        self.manifest.apply(ChangeRecord(position=self.at, event=1, time=1, change=change))

    def files(self, *places: tuple[str, str], op: str = "add", table: str = "t") -> None:
        about = {"position": self.at, "op": op, "db": "d", "table": table, "partition": "", "size": 1, "mtime_ns": 1}
        about |= {"identity": "1", "checksum": "0" * 32, "kept": True}
        rows = [about | {"location": location, "path": path} for location, path in places]
        self.manifest.apply_files(pa.Table.from_pylist(rows, FILES))

    def known(self, name: str = "t") -> list[tuple[str, str]]:
        return sorted((row[1], row[2]) for row in self.manifest.table_files("d", name))

    def ended(self) -> list[tuple[str, str]]:
        rows = [row for page in self.manifest.ended() for row in page.to_pylist()]
        return sorted((row["location"], row["path"]) for row in rows)


ICEBERG = {"table_type": "ICEBERG", "metadata_location": "s3a://lake/t/metadata/1.metadata.json"}
OWN, ONE, TWO = ("s3a://lake/t", "data/x"), ("s3://lake/", "data/x"), ("s3://other/", "data/x")


def test_files_of_one_path_in_several_stores_are_several_files(tmp_path: Path) -> None:
    found = Outside(tmp_path / "m.sqlite", **ICEBERG)
    found.files(OWN, ONE, TWO)
    assert found.known() == sorted([OWN, ONE, TWO])
    found.files(ONE, op="remove")
    assert (found.known(), found.ended()) == (sorted([OWN, TWO]), [ONE])
    found.files(TWO)  # other bytes
    assert (found.known(), found.ended()) == (sorted([OWN, TWO]), [TWO])


def test_a_rename_keeps_files_outside_and_a_drop_ends_them(tmp_path: Path) -> None:
    found = Outside(tmp_path / "m.sqlite", **ICEBERG)
    found.files(OWN, ONE)
    moved = found.table("s3a://lake/u", "u", **ICEBERG)
    found.apply(AlterTable(db="d", name="t", table=moved, location_before="s3a://lake/t", moved=True))
    assert found.known("u") == sorted([("s3a://lake/u", "data/x"), ONE])
    assert found.ended() == []
    found.apply(DropTable(db="d", name="u"))
    assert found.ended() == sorted([("s3a://lake/u", "data/x"), ONE])


def test_another_location_begins_without_files_outside(tmp_path: Path) -> None:
    found = Outside(tmp_path / "m.sqlite", **ICEBERG)
    found.files(OWN, ONE)
    found.apply(AlterTable(db="d", name="t", table=found.table("s3a://lake/v", **ICEBERG), location_before=OWN[0]))
    ended = found.ended()
    assert (found.known(), len(ended)) == ([], 2) and ONE in ended


@pytest.mark.parametrize("parameters", [{}, ICEBERG])
def test_a_table_at_the_root_of_a_bucket_has_its_own_files(tmp_path: Path, parameters: dict[str, str]) -> None:
    found = Outside(tmp_path / "m.sqlite", "s3a://lake/", **parameters)
    found.files(("s3a://lake/", "data/x"))
    (obj,) = (each for objects in found.manifest.unlisted() for each in objects)
    assert list(found.manifest.files(obj.table_id, 0)) == ["data/x"]


def test_logs_that_an_earlier_release_read_are_read_again_for_what_they_name(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    manifest = Manifest(path)
    remember_log_file(manifest, "0" * 32, "s3a://lake/t", "its file s3a://x/y is outside of its location", [])
    manifest.commit()
    manifest.close()
    assert Manifest(path).select("SELECT count(*) FROM log_files") == [(1,)]
    with contextlib.closing(sqlite3.connect(path)) as older:
        older.execute("DELETE FROM state WHERE key = 'trees'")
        older.commit()
    assert Manifest(path).select("SELECT count(*) FROM log_files") == [(0,)]


@pytest.mark.parametrize("name", ["_UNLISTED", "_LEVEL", "_EXPAND", "_UNREAD", "_UNREACHED", "_UNUSED"])
def test_queries_about_trees_read_each_file_once(tmp_path: Path, name: str) -> None:
    """A plan without an index would compare each file of a table with each other one."""
    manifest, query = Manifest(tmp_path / "m.sqlite"), getattr(trees, name)
    manifest.change(trees.REACHED, ())
    about = [1] * (2 if "?1" in query else query.count("?"))
    steps = [row[3] for row in manifest.select(f"EXPLAIN QUERY PLAN {query}", *about)]
    assert steps and not [each for each in steps if each.startswith("SCAN")], steps
