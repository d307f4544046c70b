"""Listings, and the proof that a directory is unchanged."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import CEILING

import cmroot.store.listing as listing_module
from cmroot.store.buckets import Listings, list_root
from cmroot.store.listing import (
    TRIES,
    Cleaned,
    DirectoryState,
    Listing,
    changed_directories,
    file_state,
    list_tree,
    unchanged,
)
from cmroot.store.place import Place, is_local, join
from cmroot.store.remote import FsspecStore

SECOND = 10**9  # nanoseconds
TREE = ["part-0", "_SUCCESS", "p=1/part-1", "p=1/q=a%20b/part-2", "_delta_log/0.json"]
NOISE = [".part-0.crc", "p=1/.hidden", "_temporary/0/x", "_scratch/y", ".hive-staging_1/z", "p=1/_temporary/w"]


def later() -> int:
    """A clock far enough ahead that what was just written counts as old."""
    return time.time_ns() + 10_000_000_000


def listed(location: Path, now: Callable[[], int] = later) -> dict[str, DirectoryState]:
    listing = list_tree(str(location), now_ns=now)
    assert listing is not None
    return {directory.relative: directory for directory in listing.directories}


def test_a_listing_has_the_data_and_none_of_the_noise(place: str) -> None:
    began = time.time_ns() - 2 * SECOND  # some stores count whole seconds
    for name in TREE + NOISE:
        (Place(place) / "t" / name).write_bytes(name.encode())
    listing = list_tree(join(place, "t"))
    assert listing is not None
    assert [file.path_relative for file in listing.files] == sorted(TREE)
    assert [file.size for file in listing.files] == [len(name) for name in sorted(TREE)]
    assert all(file.identity for file in listing.files)
    hours = began + 100 * CEILING * SECOND  # of no other unit, of no other zone
    assert all(began < file.mtime_ns < hours for file in listing.files)
    expected = ["", "_delta_log", "p=1", "p=1/q=a%20b"] if is_local(place) else []
    assert [directory.relative for directory in listing.directories] == expected
    again = list_tree(join(place, "t"))
    assert again is not None and again.files == listing.files
    for file in listing.files:
        state = file_state(join(place, "t", file.path_relative))
        assert (state.size, state.mtime_ns, state.identity) == (file.size, file.mtime_ns, file.identity)


def test_the_directory_of_a_partitioned_table_has_what_no_partition_has(place: str) -> None:
    own = ["_SUCCESS", "_spark_metadata/0", "_spark_metadata/1/x", "part-0"]
    for name in [*own, "p=1/part-1", "_p=1/part-1", "q/part-2", "_purge-1/part-3", "_delta_log/0.json", *NOISE]:
        (Place(place) / "t" / name).write_bytes(name.encode())
    listing, tree = list_root(join(place, "t")), list_tree(join(place, "t"))
    assert listing is not None and tree is not None
    assert listing.files == [file for file in tree.files if file.path_relative in own]
    assert {each.relative for each in listing.directories} <= {"", "_spark_metadata", "_spark_metadata/1"}
    assert list_root(join(place, "t/part-0")) is None or list_root(join(place, "t/part-0")) == Listing([], [])
    assert list_root(join(place, "nothing")) in (None, Listing([], []))


def test_a_delta_log_is_listed_up_to_the_first_missing_version(place: str) -> None:
    """Also by listings of several tables, and with the data, which is listed after it."""
    names = [f"_delta_log/{version:020}.json" for version in (0, 1, 3)]
    names += [f"_delta_log/{3:020}.checkpoint.{1:010}.{2:010}.parquet", "_delta_log/_last_checkpoint", "part-3"]
    for name in names:
        (Place(place) / "t" / name).write_bytes(b"{}")
    for listing in list_tree(join(place, "t")), Listings([join(place, "t"), join(place, "u")]).of(0):
        assert listing is not None
        assert [file.path_relative for file in listing.files] == [*names[:2], "part-3"]
    (Place(place) / "t" / f"_delta_log/{2:020}.json").write_bytes(b"{}")
    listing = list_tree(join(place, "t"))
    assert listing is not None and len(listing.files) == len(names) + 1


HUDI = [
    ".hoodie/hoodie.properties",
    ".hoodie/metadata/.hoodie/timeline/20260101000000001_20260101000000002.deltacommit",
    ".hoodie/metadata/files/.files-0000-0_20260101000000001.log.1_0-1-2",
    ".hoodie/timeline/20260101000000001_20260101000000003.deltacommit",
    "d=x/.a_20260101000000001.log.1_0-1-2",
    "d=x/.hoodie_partition_metadata",
    "d=x/a_0-1-2_20260101000000001.parquet",
]
HUDI_UNFINISHED = [
    ".hoodie/metadata/files/.files-0000-0_20260101000000004.log.1_0-1-2",
    ".hoodie/timeline/20260101000000004.deltacommit.inflight",
    "d=x/.a_20260101000000004.log.1_0-1-2",
]
HUDI_NOISE = [".hoodie/.temp/1/d=x/a.marker", "d=x/.a.crc", ".hoodie/.heartbeat/20260101000000004"]


def make_hudi(place: str) -> None:
    for name in (*HUDI, *HUDI_UNFINISHED, *HUDI_NOISE):
        (Place(place) / "t" / name).write_bytes(b"x")


def test_a_hudi_table_has_the_hidden_files_of_its_completed_instants(place: str) -> None:
    make_hudi(place)
    table = join(place, "t")
    for listing in list_tree(table), Listings([table, join(place, "u")]).of(0):
        assert listing is not None and listing.is_whole
        assert [file.path_relative for file in listing.files] == HUDI
    everything = list_tree(table, unfinished=True)
    assert everything is not None
    assert [file.path_relative for file in everything.files] == sorted([*HUDI, *HUDI_UNFINISHED])
    partition = list_tree(join(table, "d=x"))
    assert partition is not None and not partition.is_whole
    assert [file.path_relative for file in partition.files] == ["a_0-1-2_20260101000000001.parquet"]


@pytest.mark.parametrize("cleans, listings", [(0, 1), (2, 3), (TRIES, TRIES)])
def test_a_hudi_table_that_is_cleaned_while_it_is_listed_is_listed_again(
    place: str, cleans: int, listings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_hudi(place)
    name = "list_local" if is_local(place) else "_list_objects"
    really, count = getattr(listing_module, name), 0

    def listed(*arguments: Any) -> Listing | None:
        nonlocal count
        found: Listing | None = really(*arguments)
        count += 1
        if count <= cleans:
            (Place(place) / "t" / f".hoodie/timeline/2026010100000010{count}.clean.requested").write_bytes(b"x")
        return found

    monkeypatch.setattr(listing_module, name, listed)
    if cleans < TRIES:
        found = list_tree(join(place, "t"))
        assert found is not None and [file.path_relative for file in found.files] == HUDI
    else:
        with pytest.raises(Cleaned):
            list_tree(join(place, "t"))
    assert count == listings


def test_a_missing_directory_has_no_listing_and_an_empty_one_has(place: str, tmp_path: Path) -> None:
    assert list_tree(join(place, "missing")) is None
    (tmp_path / "empty").mkdir()
    listing = list_tree("file:" + str(tmp_path / "empty"))
    assert listing is not None and (listing.files, len(listing.directories)) == ([], 1)


def test_a_location_that_is_one_file_has_that_file(place: str, tmp_path: Path) -> None:
    one = join(place, "one.csv")
    Place(one).write_bytes(b"1")
    listing = list_tree(one)
    assert listing is not None and listing.is_one_file
    state = file_state(one)
    assert [(file.path_relative, file.identity) for file in listing.files] == [("", state.identity)]
    os.mkfifo(tmp_path / "pipe")
    assert list_tree(str(tmp_path / "pipe")) is None
    if not is_local(place):  # an object of no bytes is a directory's mark
        (Place(place) / "mark").write_bytes(b"")
        marked = list_tree(join(place, "mark"))
        assert marked is not None and marked.files == []


def test_a_location_that_is_one_file_changes_when_it_is_replaced(tmp_path: Path) -> None:
    one, next_one = tmp_path / "one.csv", tmp_path / "next"
    one.write_text("1")
    next_one.write_text("2")
    status = one.stat()
    before = listed(one)[""]
    assert unchanged(before, str(one))
    os.utime(next_one, ns=(status.st_mtime_ns, status.st_mtime_ns))
    next_one.rename(one)
    assert not unchanged(before, str(one))


def test_a_file_replaced_by_another_of_the_same_size_has_another_identity(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1")
    (tmp_path / ".g").write_bytes(b"2")
    before = list_tree(str(tmp_path))
    (tmp_path / ".g").rename(tmp_path / "f")
    after = list_tree(str(tmp_path))
    assert before and after and before.files[0].identity != after.files[0].identity


def test_links_and_pipes_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"1")
    (tmp_path / "d/round").symlink_to(tmp_path)
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    listing = list_tree(str(tmp_path))
    assert listing is not None and [file.path_relative for file in listing.files] == ["d/f"]


@pytest.mark.parametrize("change", ["add", "remove", "replace", "directory", "staged rename"])
def test_a_change_of_names_is_noticed(tmp_path: Path, change: str) -> None:
    location = tmp_path / "t"
    location.mkdir()
    (location / "f").write_bytes(b"1")
    (tmp_path / "new").write_bytes(b"2")
    before = listed(location)[""]
    assert unchanged(before, str(location))
    match change:
        case "add":
            (location / "g").write_bytes(b"")
        case "remove":
            (location / "f").unlink()
        case "replace":
            (tmp_path / "new").rename(location / "f")
        case "directory":
            (location / "p=1").mkdir()
        case "staged rename":
            staged = tmp_path / "staged"
            staged.mkdir()
            (staged / "f").write_bytes(b"2")
            os.utime(staged, ns=(before.mtime_ns, before.mtime_ns))
            location.rename(tmp_path / "old")
            staged.rename(location)
    os.utime(location, ns=(before.mtime_ns, before.mtime_ns))  # even when somebody sets the time back
    assert not unchanged(before, str(location))


def test_a_directory_changed_just_before_it_was_listed_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1")

    def just_after() -> int:
        return tmp_path.stat().st_ctime_ns + 1

    assert not unchanged(listed(tmp_path, just_after)[""], str(tmp_path))
    os.utime(tmp_path, ns=(1, just_after() - 3 * SECOND))
    state = listed(tmp_path, just_after)[""]
    assert not unchanged(state, str(tmp_path))  # the time is old, but was set just now
    assert unchanged(DirectoryState("", state.mtime_ns, state.listed_ns), str(tmp_path))  # identity was not recorded


def test_the_margin_is_more_than_two_seconds_old(tmp_path: Path) -> None:
    mtime = tmp_path.stat().st_mtime_ns
    assert not unchanged(DirectoryState("", mtime, mtime + 2_000_000_000), str(tmp_path))
    assert unchanged(DirectoryState("", mtime, mtime + 2_000_000_001), str(tmp_path))


def test_a_directory_that_is_gone_or_elsewhere_is_not_unchanged(tmp_path: Path) -> None:
    state = DirectoryState("", 1, 10_000_000_000)
    assert not unchanged(state, str(tmp_path / "missing"))
    assert not unchanged(state, "memory://x/y")


def test_many_directories_are_compared_in_one_call(tmp_path: Path) -> None:
    states = []
    for number in range(50):
        directory = tmp_path / f"p={number}"
        directory.mkdir()
        states.append(listed(directory)[""])
    (tmp_path / "p=7/f").write_bytes(b"")
    (tmp_path / "p=9").rmdir()
    paths = [("file:" if number % 2 else "") + str(tmp_path / f"p={number}") for number in range(50)]
    arguments = [state.mtime_ns for state in states], [state.listed_ns for state in states]
    assert changed_directories(paths, *arguments) == [7, 9]
    assert changed_directories(paths, *arguments, [state.identity for state in states]) == [7, 9]


def test_an_object_that_no_path_can_name_is_reported_and_not_listed(s3_endpoint: None) -> None:
    """A bucket takes any name. One with an empty part would make a segment of the log that nobody reads."""
    objects = f"s3a://cmroot-test/{uuid.uuid4().hex}"
    store = FsspecStore(objects)
    for name in ("t/a", "t//b", "t/p=1//c", "t/p=1/d", "t/../e", "t/x/../../f"):
        store.filesystem.pipe_file(f"{store.key(objects)}/{name}", b"1")
    listing = list_tree(join(objects, "t"))
    assert listing is not None and [file.path_relative for file in listing.files] == ["a", "p=1/d"]
    assert {"/b", "p=1//c"} <= set(listing.unnamed)
