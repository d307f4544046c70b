"""A listing task on real directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmroot.keep.keepers import NoKeeper
from replicator.captures import object_listing
from replicator.captures.inventory import DataObject
from replicator.captures.object_listing import ListTask, list_objects


def test_a_task_whose_outcome_grows_large_leaves_whole_objects_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = []
    for number in range(4):
        directory = tmp_path / f"day={number}"
        directory.mkdir()
        for name in ("a", "b"):
            (directory / name).write_text(f"{number}{name}")
        objects.append(DataObject(1, number + 1, "db", "t", directory.name, str(directory), 1))
    monkeypatch.setattr(object_listing, "ROWS", 3)
    listed = list_objects(ListTask(objects, [{}] * 4, NoKeeper()))
    assert (listed.objects, listed.postponed) == (objects[:2], objects[2:])
    assert listed.rows["partition"].to_pylist() == ["day=0", "day=0", "day=1", "day=1"]
    assert {index for index, *_ in listed.directories} == {0, 1}


def test_a_partition_on_one_file_is_named_and_a_table_on_one_is_listed(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    of_table, of_partition = (DataObject(1, n, "db", "t", "p=1" if n else "", str(tmp_path / "one"), 1) for n in (0, 1))
    listed = list_objects(ListTask([of_table, of_partition], [{}] * 2, NoKeeper()))
    assert listed.rows["path"].to_pylist() == [""]
    assert [obj for obj, _ in listed.missing] == [of_partition]
    assert "is a file, not a directory" in listed.missing[0][1]
