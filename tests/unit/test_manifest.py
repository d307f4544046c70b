"""Manifests: transactions that a signal cuts off anywhere, and those of older releases."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cmroot.errors import Error, FormatError, StorageUnreachable
from replicator.captures.inventory import last_recorded
from replicator.captures.manifest import Manifest, opened
from replicator.core.model import Column, Storage, Table
from replicator.metastore.events.record import ChangeRecord, CreateTable


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
