"""Every keeper through the whole path: capture, dump, load, where the source drops and overwrites before the load.

The metastore's `s3a:` are local directories (`s3a_as_directories`). The objects are real ones, on an S3 endpoint of
this process, written and removed by the tests as Spark or Hive would.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import pytest
from kept_databases import KeptDatabase, Sides, databases, s3, set_versioning, two_sides  # noqa: F401
from plain_tables import text_storage
from stores import S3_SERVERS, s3_of
from versity import ON_VERSITYGW

from cmroot.errors import KeepError, NotWritable
from cmroot.keep.keepers import recycle_tree
from cmroot.log.captured import segments
from cmroot.store.place import Place, is_local, join
from replicator.core.model import Column, Table
from replicator.errors import FilesMissing

VERSIONED, PLAIN, OTHER, LATE = BUCKETS = [f"s3a://{name}-bucket" for name in ("versioned", "plain", "other", "late")]


# ---- what the tests run on ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def buckets() -> list[str]:
    """Of what the tests use."""
    return BUCKETS


@pytest.fixture(scope="module", params=["moto"])
def s3_buckets(request: pytest.FixtureRequest) -> Iterator[None]:
    with s3_of(request.param, request):
        for bucket in BUCKETS:
            with contextlib.suppress(FileExistsError):
                s3("create_bucket", bucket)
        set_versioning(VERSIONED, "Enabled")
        yield


@pytest.fixture(autouse=True)
def served(s3_buckets: None) -> None:
    """Other modules that use `fixture` have servers of their own."""


on_both_servers = pytest.mark.parametrize("s3_buckets", S3_SERVERS, indirect=True)
on_versitygw = partial(pytest.param, "versitygw", marks=ON_VERSITYGW)
long = partial(pytest.param, marks=pytest.mark.long)


def local(sides: Sides) -> str:
    return str(sides.outside)


# ---- rubber-banding -----------------------------------------------------------------------------------------------

LOCAL = ""


@pytest.mark.parametrize(
    ("s3_buckets", "keeper", "store", "root_on", "asked"),
    [
        long("moto", "link", LOCAL, LOCAL, "auto", id="link, found out"),
        pytest.param("moto", "copy", LOCAL, LOCAL, "copy", id="copy, as asked"),
        pytest.param("moto", "copy", LOCAL, PLAIN, "auto", id="copy from a disk to a bucket"),
        long("moto", "copy", PLAIN, LOCAL, "auto", id="copy from a bucket to a disk"),
        pytest.param("moto", "copy", PLAIN, OTHER, "auto", id="copy from a bucket to another"),
        long("moto", "copy", VERSIONED, VERSIONED, "copy", id="copy within a bucket"),
        long("moto", "version", VERSIONED, LOCAL, "auto", id="version, root on a disk"),
        long("moto", "version", VERSIONED, OTHER, "auto", id="version, root in another bucket"),
        pytest.param("moto", "recycle", LOCAL, LOCAL, "none", id="recycle on a disk"),
        pytest.param("moto", "recycle", PLAIN, LOCAL, "none", id="recycle from a bucket to a disk"),
        long("moto", "recycle", PLAIN, PLAIN, "none", id="recycle within a bucket"),
        on_versitygw("copy", VERSIONED, VERSIONED, "copy", id="copy within a bucket of versitygw"),
        on_versitygw("version", VERSIONED, OTHER, "auto", id="version on versitygw"),
        on_versitygw("recycle", PLAIN, PLAIN, "none", id="recycle within a bucket of versitygw"),
    ],
    indirect=["s3_buckets"],
)
def test_a_dump_of_the_past_shows_what_was_dropped_and_written_over_since(
    fixture: Callable[..., KeptDatabase], sides: Sides, keeper: str, store: str, root_on: str, asked: str
) -> None:
    """Event 1 adds p=1 with A, event 2 drops it, event 3 adds it again with B at the same place."""
    it = fixture(store, root_on)
    it.table("t", store or local(sides))
    it.capture(asked)
    it.add("t", "1", "A")
    captured = it.capture(asked)
    before_the_drop = it.source.current_event_id()
    it.drop("t", "1", (lambda place: recycle(it, place)) if keeper == "recycle" else None)
    it.capture(asked)
    it.add("t", "1", "B, other")
    it.capture(asked)

    past = it.dump(until=str(before_the_drop))
    loaded = it.load(past)

    assert it.replica("t") == {"p=1/part-0": "A"}
    assert (loaded.files_copied, loaded.files_from_cmroot) == (1, 1)
    assert captured.keeper == ("none" if keeper == "recycle" else keeper)
    assert {bool(entry["version"]) for entry in it.entries()} == {keeper == "version"}
    if keeper == "version":
        assert it.kept_files() == []
    it.load(it.dump(since=past))
    assert it.replica("t") == {"p=1/part-0": "B, other"}
    assert it.differences() == []


def recycle(it: KeptDatabase, place: str) -> None:
    if is_local(place):
        recycle_tree(it.root.place, place)
        return
    from cmroot.keep.keepers import recycle as recycle_file

    for name in Place(place).find():
        recycle_file(it.root.place, join(place, name))


@on_both_servers
def test_each_state_of_a_file_that_is_written_over_without_an_event_can_be_loaded(
    fixture: Callable[..., KeptDatabase],
) -> None:
    """On a bucket only a listing tells; what did not change is not read again."""
    it = fixture(VERSIONED)
    it.table("t", VERSIONED)
    it.add("t", "1", "first")
    it.add("t", "2", "stays")
    assert it.capture().files == 2
    dumps = [it.dump()]
    for text in ("second, longer", "third"):
        it.write("t", "1", text)
        assert it.capture().files == 1
        dumps.append(it.dump(since=dumps[-1]))
    assert it.capture().files == 0
    for dump, text in zip(dumps, ("first", "second, longer", "third"), strict=True):
        it.load(dump)
        assert it.replica("t") == {"p=1/part-0": text, "p=2/part-0": "stays"}


def test_a_capture_of_several_stores_keeps_each_in_its_own_way(
    fixture: Callable[..., KeptDatabase], sides: Sides
) -> None:
    it = fixture()
    stores = {"linked": local(sides), "versioned": VERSIONED, "copied": PLAIN}
    for table, store in stores.items():
        it.table(table, store)
        it.add(table, "1", f"A of {table}")
    captured = it.capture()
    assert (captured.keeper, captured.files, captured.warnings) == ("copy, link, version", 3, [])
    first = it.dump()
    for table in stores:
        it.drop(table, "1")
        it.add(table, "1", f"B of {table}")
    it.capture()
    assert it.load(first).files_from_cmroot == 3
    assert {table: it.replica(table) for table in stores} == {t: {"p=1/part-0": f"A of {t}"} for t in stores}
    assert {entry["table"] for entry in it.entries() if entry["version"]} == {"versioned"}
    assert len(it.kept_files()) == 4
    it.load(it.dump(since=first))
    assert it.differences() == []


def test_a_renamed_table_is_kept_under_the_names_its_objects_have_now(fixture: Callable[..., KeptDatabase]) -> None:
    """The metastore's rename gives every object another key: the versions of the old ones are not theirs."""
    it = fixture(VERSIONED)
    it.homes["t"] = f"{VERSIONED}/{it.db}.db/t"
    keys = (Column("p", "string"),)
    managed = Table(db=it.db, name="t", storage=text_storage(it.homes["t"]), partition_keys=keys)
    it.source.create_table(managed)
    it.add("t", "1", "A")
    it.capture()
    before = it.dump()
    it.source.alter_table(it.db, "t", msgspec.structs.replace(it.source.table(it.db, "t"), name="u"))
    renamed = it.source.table(it.db, "u").location or ""
    assert renamed.endswith("/u")
    it.homes["u"] = renamed
    old = Place(it.place("t", "1"))
    Place(it.place("u", "1")).write_bytes(old.read_bytes())
    old.remove()
    it.capture()
    after = it.dump()
    it.drop("u", "1")
    it.capture()
    assert [entry["location"] for entry in it.entries()] == [f"{it.homes['t']}/p=1", f"{renamed}/p=1"]
    for dump, table in ((after, "u"), (before, "t")):
        replica = f"{it.db}_{table}"
        assert it.load(dump, rename_db=[f"{it.db}={replica}"]).files_from_cmroot == 1
        assert it.replica(table, replica) == {"p=1/part-0": "A"}


# ---- what versions do not protect against -------------------------------------------------------------------------


@on_both_servers
def test_a_version_that_somebody_deleted_is_named_as_missing(fixture: Callable[..., KeptDatabase]) -> None:
    it = fixture(VERSIONED)
    it.table("t", VERSIONED)
    it.add("t", "1", "A")
    it.capture()
    dump = it.dump()
    (entry,) = it.entries()
    it.drop("t", "1")
    key = it.place("t", "1").removeprefix(VERSIONED + "/")
    s3("delete_object", VERSIONED, Key=key, VersionId=entry["version"])
    with pytest.raises(FilesMissing, match="t/p=1/part-0"):
        it.load(dump)


@on_both_servers
def test_what_was_there_before_versioning_is_copied_once_versioning_is_suspended(
    fixture: Callable[..., KeptDatabase],
) -> None:
    """A null version is overwritten in a suspended bucket; one with a name of its own stays."""
    it = fixture(LATE)
    it.table("t", LATE)
    it.add("t", "1", "from before versioning")
    set_versioning(LATE, "Enabled")
    it.add("t", "2", "with a version")
    assert (it.capture().keeper, it.kept_files()) == ("version", [])
    assert [entry["partition"] for entry in it.entries() if entry["version"] == "null"] == ["p=1"]
    set_versioning(LATE, "Suspended")
    captured = it.capture()
    assert (captured.keeper, captured.files, len(it.kept_files())) == ("copy", 1, 1)
    dump = it.dump()
    it.write("t", "1", "written over")
    assert it.load(dump).files_from_cmroot == 1
    assert it.replica("t") == {"p=1/part-0": "from before versioning", "p=2/part-0": "with a version"}


# ---- nothing can be kept ------------------------------------------------------------------------------------------


def test_a_root_that_takes_nothing_fails_the_capture_and_says_so(fixture: Callable[..., KeptDatabase]) -> None:
    it = fixture(PLAIN, PLAIN)
    it.table("t", PLAIN)
    it.add("t", "1", "A")
    forbid_writing(it.root.place, "incoming")
    try:
        with pytest.raises(KeepError, match=r"no link .*no versions .*no copy .*Forbidden") as caught:
            it.capture()
        assert "--keeper none" in caught.value.hint
        assert segments(it.root.place) == []
        assert it.capture("none").keeper == "none"
    finally:
        s3("delete_bucket_policy", PLAIN)


def test_a_root_that_cannot_be_written_at_all_fails_the_capture_and_says_so(
    fixture: Callable[..., KeptDatabase],
) -> None:
    it = fixture(PLAIN, PLAIN)
    forbid_writing(it.root.place, "")
    try:
        with pytest.raises(NotWritable, match=it.root.place):
            it.capture()
    finally:
        s3("delete_bucket_policy", PLAIN)


@pytest.mark.parametrize(
    ("asked", "store", "output"),
    [
        ("link", PLAIN, "cannot be linked into .*: links need a local filesystem"),
        ("version", PLAIN, "cannot be kept by version: the bucket has no versioning"),
        ("version", LOCAL, "cannot be kept by version: only S3 and GCS"),
    ],
)
def test_a_keeper_that_a_store_cannot_have_is_refused_by_name(
    fixture: Callable[..., KeptDatabase], sides: Sides, asked: str, store: str, output: str
) -> None:
    it = fixture(store)
    it.table("t", store or local(sides))
    it.add("t", "1", "A")
    with pytest.raises(KeepError, match=output):
        it.capture(asked)
    assert segments(it.root.place) == []


def forbid_writing(root: str, below: str) -> None:
    resource = f"arn:aws:s3:::{join(root, below).partition('://')[2].rstrip('/')}/*"
    denied = {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": resource}
    s3("put_bucket_policy", PLAIN, Policy=json.dumps({"Version": "2012-10-17", "Statement": [denied]}))
