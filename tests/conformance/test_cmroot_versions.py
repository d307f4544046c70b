"""Keeping by version, on a real S3 endpoint: what the bucket keeps itself is read back by its version."""

from __future__ import annotations

import functools
import json
import os
import pickle
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("moto.server", reason="moto is not installed")
pytest.importorskip("s3fs", reason="the s3 extra is not installed")

from s3_users import few_rights
from stores import S3_SERVERS, s3_of

from cmroot.errors import KeepError, NotWritable
from cmroot.keep.keepers import CopyKeeper, LinkKeeper, NoKeeper, VersionKeeper, choose_keeper, is_kept
from cmroot.keep.versions import BLOCK, NULL, noncurrent_days, open_version, version_size, why_unversioned
from cmroot.root import create_or_open
from cmroot.store.checksum import checksum_stream
from cmroot.store.listing import list_tree, object_state
from cmroot.store.place import Place
from cmroot.store.remote import FsspecStore

pytestmark = pytest.mark.usefixtures("s3_endpoint")


@pytest.fixture(scope="module", params=S3_SERVERS)
def s3_endpoint(request: pytest.FixtureRequest) -> Iterator[None]:
    with s3_of(request.param, request) as filesystem:
        filesystem.makedirs("cmroot-test", exist_ok=True)
        yield


ON_MOTO = pytest.mark.parametrize("s3_endpoint", ["moto"], indirect=True)
"""What versitygw lacks: users with few rights, policies that bind its root, rules of lifecycles."""


def s3(operation: str, **arguments: Any) -> Any:
    return FsspecStore("s3://cmroot-test").filesystem.call_s3(operation, **arguments)


def make_bucket(versioning: str | None) -> str:
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    s3("create_bucket", Bucket=name)
    if versioning:
        set_versioning(f"s3a://{name}", versioning)
    return f"s3a://{name}"


def set_versioning(bucket: str, status: str) -> None:
    name = bucket.rpartition("/")[2]
    s3("put_bucket_versioning", Bucket=name, VersioningConfiguration={"Status": status})


def forbid(bucket: str, action: str, below: str = "/*") -> None:
    name = bucket.rpartition("/")[2]
    denied = {"Effect": "Deny", "Principal": "*", "Action": action, "Resource": f"arn:aws:s3:::{name}{below}"}
    s3("put_bucket_policy", Bucket=name, Policy=json.dumps({"Version": "2012-10-17", "Statement": [denied]}))


@pytest.fixture
def versioned(s3_endpoint: None) -> str:
    return make_bucket("Enabled")


@pytest.fixture
def user() -> Iterator[Callable[..., None]]:
    """From its call on, this process is a user who may do the given actions and nothing else."""
    with few_rights() as become:
        yield become


def text(path: str, version: str) -> bytes:
    with open_version(path, version) as file:
        return file.read()


# ---- reading ------------------------------------------------------------------------------------------------------


def test_a_version_is_read_after_its_object_was_overwritten_and_deleted(versioned: str) -> None:
    path = f"{versioned}/t/f"
    keeper = VersionKeeper(f"{versioned}/cmroot")
    versions = {}
    for data in (b"one", b"two, longer", b""):
        Place(path).write_bytes(data)
        kept = keeper.keep(path)
        assert kept.version
        versions[data] = kept.version
    Place(path).remove()
    assert not Place(path).exists()
    for data, version in versions.items():
        assert (text(path, version), version_size(path, version)) == (data, len(data))


def test_a_large_version_is_read_piece_by_piece(versioned: str) -> None:
    path = f"{versioned}/large"
    data = os.urandom(BLOCK + 12345)
    Place(path).write_bytes(data)
    kept = VersionKeeper("").keep(path)
    Place(path).write_bytes(b"")
    with open_version(path, kept.version or "") as file:
        assert file.read(10) == data[:10]
        assert file.read() == data[10:]
    with open_version(path, kept.version or "") as file:
        assert checksum_stream(file) == (kept.checksum, len(data))


@pytest.mark.parametrize("version", ["00000000-0000-0000-0000-000000000000", "nonsense", NULL])
def test_a_version_that_is_not_there_is_a_missing_file(versioned: str, version: str) -> None:
    path = f"{versioned}/f"
    Place(path).write_bytes(b"data")
    for read in (lambda: text(path, version), lambda: version_size(path, version)):
        with pytest.raises(FileNotFoundError):
            read()


# ---- keeping ------------------------------------------------------------------------------------------------------


def test_keeping_by_version_copies_nothing_and_may_run_twice(versioned: str) -> None:
    root = create_or_open(f"{versioned}/cmroot").place
    path = f"{versioned}/t/f"
    Place(path).write_bytes(b"data")
    keeper = pickle.loads(pickle.dumps(VersionKeeper(root)))
    kept = keeper.keep(path)
    assert kept == keeper.keep(path)
    assert (kept.size, kept.checksum) == checksum_stream(Place(path).open_read())[::-1]
    assert not is_kept(root, kept.checksum, kept.size)
    assert (Place(root) / "files").find() == (Place(root) / "incoming").find() == []


def test_what_is_kept_by_version_looks_as_the_next_listing_will_show_it(versioned: str) -> None:
    path = f"{versioned}/t/f"
    Place(path).write_bytes(b"data")
    kept = VersionKeeper("").keep(path)
    listing = list_tree(f"{versioned}/t")
    assert listing is not None
    (file,) = listing.files
    assert (kept.size, kept.mtime_ns, kept.identity) == (file.size, file.mtime_ns, file.identity)


def test_a_listing_with_finer_times_than_a_single_answer_shows_the_same_file() -> None:
    from datetime import UTC, datetime

    about = {"size": 1, "ETag": '"e"'}
    listed = object_state("f", about | {"LastModified": datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)})
    asked = object_state("f", about | {"LastModified": datetime(2026, 1, 2, 3, 4, 5, 0, UTC), "VersionId": "v"})
    assert listed == asked


def test_an_object_from_before_versioning_is_kept_as_the_null_version(s3_endpoint: None) -> None:
    bucket = make_bucket(None)
    path = f"{bucket}/f"
    Place(path).write_bytes(b"old")
    set_versioning(bucket, "Enabled")
    kept = VersionKeeper("").keep(path)
    Place(path).write_bytes(b"newer")
    assert (kept.version, text(path, NULL)) == (NULL, b"old")


def test_a_missing_object_is_file_not_found(versioned: str) -> None:
    Place(f"{versioned}/t/f/below").write_bytes(b"")  # a prefix of that name is no object
    with pytest.raises(FileNotFoundError):
        VersionKeeper("").keep(f"{versioned}/t/f")


def test_an_object_whose_version_is_gone_when_it_is_read_is_copied(
    versioned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody purges versions while we look: the name may still hold bytes, and those are kept."""
    from cmroot.keep import versions

    root = create_or_open(f"{versioned}/cmroot").place
    path, name = f"{versioned}/f", versioned.rpartition("/")[2]
    Place(path).write_bytes(b"data")

    def purged(place: str, version: str, size: int | None = None) -> Any:
        s3("delete_object", Bucket=name, Key="f", VersionId=version)
        Place(path).write_bytes(b"data")
        return open_version(place, version, size)

    monkeypatch.setattr(versions, "open_version", purged)
    kept = VersionKeeper(root).keep(path)
    assert kept.version is None
    assert is_kept(root, kept.checksum, 4)


@ON_MOTO
def test_versions_that_may_not_be_read_are_an_error_when_they_are_kept(
    versioned: str, user: Callable[..., None]
) -> None:
    path = f"{versioned}/f"
    Place(path).write_bytes(b"data")
    user("s3:GetObject", "s3:ListBucket", "s3:GetBucketVersioning")
    with pytest.raises(KeepError, match="cannot be read at its version") as caught:
        VersionKeeper("").keep(path)
    assert "s3:GetObjectVersion" in caught.value.hint


# ---- what a bucket can do -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("versioning", "reason"),
    [("Enabled", ""), ("Suspended", "the bucket's versioning is suspended"), (None, "the bucket has no versioning")],
)
def test_a_bucket_is_asked_whether_it_keeps_versions(s3_endpoint: None, versioning: str | None, reason: str) -> None:
    place = make_bucket(versioning) + "/warehouse/db.db"
    assert why_unversioned(place) == reason


def test_places_without_versions_say_why() -> None:
    assert why_unversioned("s3://no-such-bucket-anywhere/t") == "the bucket does not exist"
    assert "only S3" in why_unversioned("memory://w/t")
    assert "only S3" in why_unversioned("/w/t")


@ON_MOTO
def test_not_being_allowed_to_ask_counts_as_no_versions(versioned: str, user: Callable[..., None]) -> None:
    root = create_or_open(f"{versioned}/cmroot").place
    user("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket")
    reported: list[str] = []
    assert "s3:GetBucketVersioning" in why_unversioned(versioned)
    assert choose_keeper(root, f"{versioned}/t", tell=reported.append) == CopyKeeper(root)
    assert len(reported) == 1 and "s3:GetBucketVersioning" in reported[0]
    with pytest.raises(KeepError, match="s3:GetBucketVersioning"):
        choose_keeper(root, f"{versioned}/t", "version")


@ON_MOTO
def test_a_rule_that_expires_old_versions_is_told(versioned: str) -> None:
    assert noncurrent_days(versioned) is None
    rules = [
        {
            "ID": str(days),
            "Status": status,
            "Filter": {"Prefix": ""},
            "NoncurrentVersionExpiration": {"NoncurrentDays": days},
        }
        for days, status in ((30, "Enabled"), (9, "Enabled"), (1, "Disabled"))
    ]
    name = versioned.rpartition("/")[2]
    s3("put_bucket_lifecycle_configuration", Bucket=name, LifecycleConfiguration={"Rules": rules})
    reported: list[str] = []
    assert choose_keeper("/r", f"{versioned}/t", tell=reported.append) == VersionKeeper("/r")
    assert len(reported) == 1 and "after 9 days" in reported[0]


@pytest.fixture(scope="module")
def made(s3_endpoint: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A place of each kind, one of each for all tests."""

    @functools.cache
    def make(kind: str) -> str:
        if kind == "directory":
            return str(tmp_path_factory.mktemp("w"))
        if kind == "memory":
            return f"memory://{uuid.uuid4().hex}"
        return make_bucket({"versioned": "Enabled", "suspended": "Suspended", "plain": None}[kind])

    return make


@pytest.mark.parametrize("warehouse", ["directory", "versioned", "suspended", "plain", "memory"])
@pytest.mark.parametrize("root_on", ["directory", "versioned", "plain"])
def test_each_store_gets_the_keeper_it_can_have(made: Callable[[str], str], warehouse: str, root_on: str) -> None:
    root, location = create_or_open(made(root_on) + "/cmroot").place, made(warehouse) + "/w"
    can = {"copy": CopyKeeper(root), "none": NoKeeper()}
    if warehouse == root_on == "directory":
        can["link"] = LinkKeeper(root)
    if warehouse == "versioned":
        can["version"] = VersionKeeper(root)
    best = next(name for name in ("link", "version", "copy") if name in can)
    for requested in ("auto", "link", "version", "copy", "none"):
        wanted = best if requested == "auto" else requested
        if wanted in can:
            assert choose_keeper(root, location, requested) == can[wanted]
        else:
            with pytest.raises(KeepError, match=location):
                choose_keeper(root, location, requested)
    assert (Place(root) / "incoming").find() == []


# ---- nothing can be kept ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("requested", ["auto", "copy"])
@ON_MOTO
def test_a_root_that_takes_no_bytes_is_an_error_that_says_so(s3_endpoint: None, requested: str) -> None:
    bucket = make_bucket(None)
    root = create_or_open(f"{bucket}/cmroot").place
    forbid(bucket, "s3:PutObject", "/cmroot/incoming/*")
    with pytest.raises(KeepError, match="Forbidden") as caught:
        choose_keeper(root, f"{bucket}/w", requested)
    assert "writable" in caught.value.hint
    assert choose_keeper(root, f"{bucket}/w", "none") == NoKeeper()


@ON_MOTO
def test_versions_need_no_root_that_takes_bytes(versioned: str) -> None:
    root = create_or_open(f"{versioned}/cmroot").place
    forbid(versioned, "s3:PutObject", "/cmroot/*")
    assert choose_keeper(root, f"{versioned}/w") == VersionKeeper(root)


@ON_MOTO
def test_a_refused_object_is_not_writable_rather_than_a_bare_error(s3_endpoint: None) -> None:
    bucket = make_bucket(None)
    forbid(bucket, "s3:PutObject")
    with pytest.raises(NotWritable, match="Forbidden"):
        Place(f"{bucket}/f").write_bytes(b"data")
