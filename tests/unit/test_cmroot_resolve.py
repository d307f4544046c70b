"""Real places: one spelling for each directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cmroot.errors import UnknownPlace
from cmroot.root import create_or_open, open_existing
from cmroot.store.place import Place, as_written, is_within, located, resolved, touches


def test_a_local_place_has_one_spelling(tmp_path: Path) -> None:
    (tmp_path / "held" / "t").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "held")
    for spelling in (f"{tmp_path}/sales/../held/t", f"file://{tmp_path}//link/./t/", f"file:{tmp_path}/link/../held/t"):
        assert resolved(spelling) == f"{tmp_path}/held/t"


def test_what_is_missing_resolves_below_its_nearest_parent(tmp_path: Path) -> None:
    (tmp_path / "held").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "held")
    (tmp_path / "dangling").symlink_to("held/later")
    (tmp_path / "file").write_text("")
    assert resolved(f"{tmp_path}/link/new/p=1") == f"{tmp_path}/held/new/p=1"
    assert resolved(f"{tmp_path}/link/new/../p=1") == f"{tmp_path}/held/p=1"
    assert resolved(f"{tmp_path}/dangling/x") == f"{tmp_path}/held/later/x"
    assert resolved(f"{tmp_path}/file/x") == f"{tmp_path}/file/x"


def test_a_circle_of_links_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError):
        resolved(f"{tmp_path}/a/x")


def test_object_stores_fold_as_hadoop_does() -> None:
    assert resolved("s3a://bucket/a//../b/./c/") == resolved("s3://bucket/b/c") == "s3://bucket/b/c"
    assert resolved("s3://bucket/../..") == "s3://bucket"


def test_places_touch_when_one_lies_in_the_other() -> None:
    assert touches("/a/b", "/a") and touches("/a", "/a/b") and touches("/a", "/a") and touches("/", "/a")
    assert not touches("/a/b", "/a/bc") and not touches("s3://a/b", "/a/b")
    assert is_within("/a/b", "/a") and not is_within("/a", "/a/b") and os.sep == "/"


def test_a_root_that_a_person_writes_with_dots_is_where_the_system_finds_it(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    made = create_or_open(f"{tmp_path}/link/../root")
    assert made.place == f"{tmp_path}/a/root" and Path(made.place, "FORMAT").exists()
    assert open_existing(f"file:{tmp_path}/a/b/../root").place == made.place
    assert as_written("s3a://b/k/") == Place("s3://b/k") and str(as_written("s3a://b/k/")) == "s3://b/k"
    for text in ("", "/w\0", "s3://b/../k"):
        with pytest.raises(UnknownPlace):
            as_written(text)


def test_a_location_is_where_its_readers_find_it_and_keeps_its_spelling(tmp_path: Path) -> None:
    assert located(f"file:{tmp_path}/a/../b") == Place(f"{tmp_path}/b")
    assert located("s3a://b/k/../l") == Place("s3://b/l")
    assert located("s3a://b/k").text == "s3a://b/k"
    for text in ("", "/w\0"):
        with pytest.raises(UnknownPlace):
            located(text)
