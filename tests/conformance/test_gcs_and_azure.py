"""Capture, dump and load from and to Google Cloud Storage and Azure, where the source drops and overwrites before the
load.

The metastore's buckets are local directories (`s3a_as_directories`). The objects are real ones, on servers of both
kinds, written and removed by the tests as Spark or Hive would.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest
from kept_databases import KeptDatabase, Sides, databases, two_sides  # noqa: F401
from object_servers import ACCOUNT, make_bucket

import replicator
from cmroot.errors import KeepError
from cmroot.keep.versions import old_versions
from cmroot.log.captured import segments
from cmroot.store.drivers import remove_generation
from cmroot.store.place import remote_store
from replicator.errors import FilesMissing

RUN = uuid.uuid4().hex[:8]
VERSIONED, PLAIN = BUCKETS = [f"gs://{name}-{RUN}" for name in ("versioned", "plain")]
CONTAINER = f"abfss://warehouse-{RUN}@{ACCOUNT}.dfs.core.windows.net"

GCS, AZURE = pytest.mark.gcs, pytest.mark.azure


@pytest.fixture(scope="module")
def buckets() -> list[str]:
    """Of what the tests use; a test's own `store` makes them."""
    return [*BUCKETS, CONTAINER]


@pytest.fixture(scope="module")
def gcs_buckets(gcs: str) -> None:
    for bucket in BUCKETS:
        make_bucket(gcs, bucket.removeprefix("gs://"), versioning={"enabled": bucket == VERSIONED})


@pytest.fixture(scope="module")
def container(azure: str) -> None:
    remote_store(CONTAINER).filesystem.mkdir(f"warehouse-{RUN}")


@pytest.fixture
def it(request: pytest.FixtureRequest, fixture: Callable[..., KeptDatabase]) -> Callable[..., KeptDatabase]:
    def make(store: str = "", root_on: str = "") -> KeptDatabase:
        for place in (store, root_on):
            if place.startswith("gs:"):
                request.getfixturevalue("gcs_buckets")
            if place.startswith("abfss:"):
                request.getfixturevalue("container")
        return fixture(store, root_on)

    return make


@pytest.mark.parametrize(
    ("keeper", "store", "root_on", "asked"),
    [
        pytest.param("version", VERSIONED, "", "auto", id="generations, root on a disk", marks=GCS),
        pytest.param("version", VERSIONED, PLAIN, "auto", id="generations, root in another bucket", marks=GCS),
        pytest.param("copy", VERSIONED, VERSIONED, "copy", id="copy within a bucket", marks=GCS),
        pytest.param("copy", PLAIN, "", "auto", id="copy from GCS to a disk", marks=GCS),
        pytest.param("copy", CONTAINER, CONTAINER, "auto", id="copy within a container", marks=AZURE),
        pytest.param("copy", CONTAINER, "", "auto", id="copy from Azure to a disk", marks=AZURE),
        pytest.param("copy", CONTAINER, PLAIN, "auto", id="copy from Azure to GCS", marks=[GCS, AZURE]),
        pytest.param("copy", "", CONTAINER, "copy", id="copy from a disk to Azure", marks=AZURE),
    ],
)
def test_a_dump_of_the_past_shows_what_was_dropped_and_written_over_since(
    it: Callable[..., KeptDatabase], sides: Sides, keeper: str, store: str, root_on: str, asked: str
) -> None:
    """Event 1 adds p=1 with A, event 2 drops it, event 3 adds it again with B at the same place."""
    at = it(store, root_on)
    at.table("t", store or str(sides.outside))
    at.capture(asked)
    at.add("t", "1", "A")
    captured = at.capture(asked)
    before_the_drop = at.source.current_event_id()
    at.drop("t", "1")
    at.capture(asked)
    at.add("t", "1", "B, other")
    at.capture(asked)
    past = at.dump(until=str(before_the_drop))
    loaded = at.load(past)
    assert at.replica("t") == {"p=1/part-0": "A"}
    assert (loaded.files_copied, loaded.files_from_cmroot, captured.keeper) == (1, 1, keeper)
    assert {bool(entry["version"]) for entry in at.entries()} == {keeper == "version"}
    assert bool(at.kept_files()) == (keeper == "copy")
    at.load(at.dump(since=past))
    assert at.replica("t") == {"p=1/part-0": "B, other"}
    assert at.differences() == []


@pytest.mark.parametrize(
    "store", [pytest.param(VERSIONED, marks=GCS), pytest.param(CONTAINER, marks=AZURE)], ids=["gs", "abfss"]
)
def test_each_state_of_a_file_that_is_written_over_without_an_event_can_be_loaded(
    it: Callable[..., KeptDatabase], store: str
) -> None:
    """Only a listing tells; what did not change is not read again."""
    at = it(store)
    at.table("t", store)
    at.add("t", "1", "first")
    at.add("t", "2#", "stays")
    assert at.capture().files == 2
    dumps = [at.dump()]
    for text in ("second, longer", "third"):
        at.write("t", "1", text)
        assert at.capture().files == 1
        dumps.append(at.dump(since=dumps[-1]))
    assert at.capture().files == 0
    for dump, text in zip(dumps, ("first", "second, longer", "third"), strict=True):
        at.load(dump)
        assert at.replica("t") == {"p=1/part-0": text, "p=2#/part-0": "stays"}


@pytest.mark.parametrize(
    "store", [pytest.param(PLAIN, marks=GCS), pytest.param(CONTAINER, marks=AZURE)], ids=["gs", "abfss"]
)
def test_a_dump_lies_on_the_store_and_is_loaded_from_there(it: Callable[..., KeptDatabase], store: str) -> None:
    at = it(store, store)
    at.table("t", store)
    at.add("t", "1", "A")
    at.capture()
    dump = at.dump(out=f"{store}/dumps/{at.db}")
    at.drop("t", "1")
    assert at.load(dump).files_from_cmroot == 1
    assert at.replica("t") == {"p=1/part-0": "A"}


@pytest.mark.gcs
def test_a_generation_that_somebody_deleted_is_named_as_missing(it: Callable[..., KeptDatabase]) -> None:
    at = it(VERSIONED)
    at.table("t", VERSIONED)
    at.add("t", "1", "A")
    at.capture()
    dump = at.dump()
    (entry,) = at.entries()
    place = at.place("t", "1")
    at.drop("t", "1")
    assert [(old.path, old.version) for old in old_versions(place, named=True)] == [(place, entry["version"])]
    store = remote_store(place)
    remove_generation(store.filesystem, store.key(place), entry["version"])
    with pytest.raises(FilesMissing, match="t/p=1/part-0"):
        at.load(dump)


@pytest.mark.parametrize(
    ("store", "why"),
    [
        pytest.param(PLAIN, "the bucket has no versioning", marks=GCS),
        pytest.param(CONTAINER, "only S3 and GCS versions", marks=AZURE),
    ],
    ids=["gs", "abfss"],
)
def test_versions_that_a_store_cannot_have_are_refused_by_name(
    it: Callable[..., KeptDatabase], store: str, why: str
) -> None:
    at = it(store)
    at.table("t", store)
    at.add("t", "1", "A")
    with pytest.raises(KeepError, match=f"cannot be kept by version: {why}"):
        at.capture("version")
    assert segments(at.root.place) == []


@pytest.mark.parametrize(
    "store", [pytest.param(PLAIN, marks=GCS), pytest.param(CONTAINER, marks=AZURE)], ids=["gs", "abfss"]
)
def test_what_is_kept_there_expires(it: Callable[..., KeptDatabase], store: str) -> None:
    at = it(store, store)
    at.table("t", store)
    at.add("t", "1", "A")
    at.capture()
    at.drop("t", "1")
    at.capture()
    assert len(at.kept_files()) == 1
    expired = replicator.cm_expire(cmroot=at.root.place, older_than=timedelta(0), engine=at.sides.engine)
    assert (expired.removed_entries, at.kept_files()) == (1, [])
