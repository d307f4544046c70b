"""Keeping by generation, on a server of Google Cloud Storage: what the bucket keeps itself is read back."""

from __future__ import annotations

import functools
import os
import pickle
import uuid
from collections.abc import Callable

import pytest
from object_servers import environment, make_bucket, set_bucket
from s3_proxy import counting

from cmroot.errors import KeepError
from cmroot.keep.keepers import CopyKeeper, NoKeeper, VersionKeeper, choose_keeper, is_kept
from cmroot.keep.versions import (
    BLOCK,
    noncurrent_days,
    old_versions,
    open_version,
    version_size,
    why_unversioned,
    why_versions_unseen,
)
from cmroot.root import create_or_open
from cmroot.store.checksum import checksum_stream
from cmroot.store.drivers import days_of_rules, remove_generation
from cmroot.store.listing import list_tree
from cmroot.store.place import Place, remote_store

pytestmark = pytest.mark.gcs


@pytest.fixture
def made(gcs: str) -> Callable[[bool], str]:
    @functools.cache
    def make(versioning: bool) -> str:
        make_bucket(gcs, name := f"bucket-{uuid.uuid4().hex[:12]}", versioning={"enabled": versioning})
        return f"gs://{name}"

    return make


@pytest.fixture
def versioned(made: Callable[[bool], str]) -> str:
    return made(True)


def text(path: str, version: str | None) -> bytes:
    with open_version(path, version or "") as file:
        return file.read()


def test_a_generation_is_read_after_its_object_was_overwritten_and_deleted(versioned: str) -> None:
    path, keeper, versions = f"{versioned}/t/f", VersionKeeper(f"{versioned}/cmroot"), {}
    for data in (b"one", b"two, longer", b""):
        Place(path).write_bytes(data)
        versions[data] = keeper.keep(path).version
    Place(path).remove()
    assert not Place(path).exists() and len(set(versions.values())) == 3
    for data, version in versions.items():
        assert (text(path, version), version_size(path, version or "")) == (data, len(data))
    assert sorted((old.path, old.version, old.size) for old in old_versions(versioned)) == sorted(
        (path, version, len(data)) for data, version in versions.items()
    )


def test_a_large_generation_is_read_piece_by_piece(versioned: str) -> None:
    path, data = f"{versioned}/large", os.urandom(BLOCK + 12345)
    Place(path).write_bytes(data)
    kept = VersionKeeper("").keep(path)
    Place(path).write_bytes(b"")
    with open_version(path, kept.version or "") as file:
        assert (file.read(10), file.read()) == (data[:10], data[10:])
    with open_version(path, kept.version or "") as file:
        assert checksum_stream(file) == (kept.checksum, len(data))


@pytest.mark.parametrize("version", ["1", "1795456211204499", "nonsense", "null"])
def test_a_generation_that_is_not_there_is_a_missing_file(versioned: str, version: str) -> None:
    path = f"{versioned}/f"
    Place(path).write_bytes(b"data")
    for read in (lambda: text(path, version), lambda: version_size(path, version)):
        with pytest.raises(FileNotFoundError):
            read()


def test_keeping_by_generation_copies_nothing_and_looks_as_the_next_listing_will_show_it(versioned: str) -> None:
    root = create_or_open(f"{versioned}/cmroot").place
    path = f"{versioned}/t/f#1"
    Place(path).write_bytes(b"data")
    keeper = pickle.loads(pickle.dumps(VersionKeeper(root)))
    kept = keeper.keep(path)
    assert kept == keeper.keep(path)
    assert not is_kept(root, kept.checksum, kept.size)
    assert (Place(root) / "files").find() == (Place(root) / "incoming").find() == []
    listing = list_tree(f"{versioned}/t")
    assert listing is not None
    (file,) = listing.files
    assert (kept.size, kept.mtime_ns, kept.identity) == (file.size, file.mtime_ns, file.identity)


def test_what_is_overwritten_in_a_bucket_that_keeps_none_any_more_is_copied(gcs: str, versioned: str) -> None:
    root, path = create_or_open(f"{versioned}/cmroot").place, f"{versioned}/t/f"
    Place(path).write_bytes(b"data")
    kept = VersionKeeper(root).keep(path)
    set_bucket(gcs, versioned.removeprefix("gs://"), versioning={"enabled": False})
    assert why_unversioned(path) == "the bucket has no versioning"
    assert choose_keeper(root, f"{versioned}/t") == CopyKeeper(root)
    Place(path).write_bytes(b"other")
    again = CopyKeeper(root).keep(path)
    assert again.version is None and is_kept(root, again.checksum, 5)
    with pytest.raises(FileNotFoundError):
        text(path, kept.version)


def test_a_missing_object_is_file_not_found(versioned: str) -> None:
    Place(f"{versioned}/t/f/below").write_bytes(b"")  # a prefix of that name is no object
    with pytest.raises(FileNotFoundError):
        VersionKeeper("").keep(f"{versioned}/t/f")


def test_old_generations_are_listed_by_name_page_by_page_and_removed(versioned: str) -> None:
    for name in ("t/a", "t/a", "t/a", "t/ab", "t/ab", "t2/a", "t2/a"):
        Place(f"{versioned}/{name}").write_bytes(uuid.uuid4().bytes)
    assert [old.path.removeprefix(versioned) for old in old_versions(f"{versioned}/t/a", named=True)] == ["/t/a"] * 2
    assert sorted(old.path.removeprefix(versioned) for old in old_versions(f"{versioned}/t")) == [
        "/t/a",
        "/t/a",
        "/t/ab",
    ]
    first = next(old_versions(f"{versioned}/t/a", named=True))
    store = remote_store(first.path)
    remove_generation(store.filesystem, store.key(first.path), first.version)
    with pytest.raises(FileNotFoundError):
        remove_generation(store.filesystem, store.key(first.path), first.version)
    assert len(list(old_versions(f"{versioned}/t/a", named=True))) == 1
    assert why_versions_unseen(versioned) == ""


def test_a_bucket_is_asked_whether_it_keeps_generations(made: Callable[[bool], str]) -> None:
    assert why_unversioned(made(True) + "/warehouse/db.db") == ""
    assert why_unversioned(made(False) + "/warehouse/db.db") == "the bucket has no versioning"
    assert why_unversioned("gs://no-such-bucket-anywhere/t") == "the bucket does not exist"
    assert noncurrent_days(made(True)) is None
    assert list(old_versions("gs://no-such-bucket-anywhere/t")) == []


@pytest.mark.parametrize("warehouse", [True, False])
@pytest.mark.parametrize("root_on", [True, False, "directory"])
def test_each_bucket_gets_the_keeper_it_can_have(
    made: Callable[[bool], str], tmp_path: object, warehouse: bool, root_on: bool | str
) -> None:
    root = create_or_open(f"{tmp_path if root_on == 'directory' else made(bool(root_on))}/cmroot").place
    location = made(warehouse) + "/w"
    can = {"copy": CopyKeeper(root), "none": NoKeeper()} | ({"version": VersionKeeper(root)} if warehouse else {})
    assert choose_keeper(root, location) == can.get("version", can["copy"])
    for requested in ("link", "version", "copy", "none"):
        if requested in can:
            assert choose_keeper(root, location, requested) == can[requested]
        else:
            with pytest.raises(KeepError, match=location):
                choose_keeper(root, location, requested)


def test_rules_of_a_bucket_say_when_the_first_old_generation_may_go() -> None:
    """The server of these tests has no rules."""

    def rule(action: str = "Delete", **condition: object) -> dict[str, object]:
        return {"action": {"type": action}, "condition": condition}

    def days(*rules: dict[str, object]) -> int | None:
        return days_of_rules({"lifecycle": {"rule": list(rules)}})

    assert days_of_rules({}) is None
    assert days(rule("SetStorageClass", daysSinceNoncurrentTime=3), rule(age=5, isLive=True)) is None
    assert days(rule(daysSinceNoncurrentTime=30), rule(daysSinceNoncurrentTime=9, isLive=False)) == 9
    assert days(rule(daysSinceNoncurrentTime=30), rule(numNewerVersions=3)) == 0


def test_rules_of_a_bucket_that_may_not_be_read_are_reported(gcs: str, versioned: str) -> None:
    """The bucket is read twice: its versioning, then its rules."""
    said: list[str] = []
    with counting(gcs) as proxy, environment({"STORAGE_EMULATOR_HOST": proxy.url}):
        root, name = f"{versioned}/cmroot", versioned.removeprefix("gs://")
        reads: list[str] = []

        def forbids(path: str) -> bool:
            if not path.partition("?")[0].endswith(f"/b/{name}"):
                return False
            reads.append(path)
            return len(reads) > 1

        proxy.forbids = forbids
        assert choose_keeper(root, f"{versioned}/w", "version", tell=said.append) == VersionKeeper(root)
    assert len(said) == 1 and "storage.buckets.get" in said[0]
