"""Emptied directories: those that hold nothing go, what stays for no good reason is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cmroot.errors import NotWritable
from cmroot.keep.recycle import recycle_tree
from cmroot.store.place import Place, remove_if_empty, scheme


def test_only_an_empty_directory_goes(tmp_path: Path, small: Callable[[str], Path]) -> None:
    for name in ("empty", "full", "linked"):
        (tmp_path / name).mkdir()
    (tmp_path / "full/.hidden").touch()
    (tmp_path / "link").symlink_to(tmp_path / "linked")
    (tmp_path / "file").touch()
    names = ("empty", "empty", "full", "link", "file", "gone/below", "file/below")
    found = [remove_if_empty(str(tmp_path / name)) for name in names]
    assert found == [True, False, False, False, False, False, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "link", "linked"]
    assert not remove_if_empty(str(small("size=1m")))  # it is empty, and a mount point


def test_one_that_may_not_go_is_told(tmp_path: Path, immutable: Callable[[Path], None]) -> None:
    (tmp_path / "above/empty").mkdir(parents=True)
    immutable(tmp_path / "above")
    with pytest.raises(NotWritable, match="above/empty"):
        remove_if_empty(str(tmp_path / "above/empty"))


def test_emptied_directories_go_from_every_store_that_has_some(place: str, root: str) -> None:
    table = Place(place) / "table"
    for name in ("f", "sub/deep/f"):
        (table / name).write_bytes(b"1")
    assert not remove_if_empty(str(table)) and not remove_if_empty(str(table / "f"))
    (table / "sub/deep/f").remove()
    went = [remove_if_empty(str(table / name)) for name in ("sub", "sub/deep", "sub")]
    assert went == ([False, True, True] if scheme(place) in ("file", "hdfs") else [False] * 3)
    (table / "empty/below").mkdirs()
    assert recycle_tree(root, str(table / "empty")) == [] and "empty" not in table.list()
    assert table.find() == ["f"]
