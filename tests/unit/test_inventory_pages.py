"""Pages of an inventory: what reading a table costs grows with its partitions, not with their square."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from replicator.captures import inventory
from replicator.captures.inventory import Inventory
from replicator.captures.manifest import Manifest


def test_pages_of_partitions_are_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(inventory, "_PAGE", 10)
    some, many = (_steps(tmp_path / str(count), count) for count in (400, 4_000))
    assert many < 15 * some, "of SQLite's machine, for ten times as many partitions"


def _steps(path: Path, count: int) -> int:
    names = [f"p={number:06d}" for number in range(count)]
    Manifest(path).close()
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO tables (id, db, name) VALUES (1, 'd', 't')")
        body = '{"values":["a"]}'
        rows = [(1, name, 0, body) for name in reversed(names)]
        db.executemany("INSERT INTO partitions (table_id, name, columns, body) VALUES (?, ?, ?, ?)", rows)
        counted = 0

        def count_steps() -> int:
            nonlocal counted
            counted += 1
            return 0

        db.set_progress_handler(count_steps, 100)
        assert sorted(Inventory(db).partition_names("d", "t")) == names
        assert sum(len(page) for page in Inventory(db).partitions("d", "t")) == count
    return counted
