"""`cm expire --versions`, on S3 and on Google Cloud Storage: versions go that nobody needs, and no other."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from kept_databases import KeptDatabase, Sides, databases, s3, set_versioning, two_sides  # noqa: F401
from object_servers import make_bucket
from stores import s3_server

import replicator
from cmroot.keep.versions import drop_versions, old_versions
from cmroot.store.place import Place
from replicator.replay.restore.upkeep import RootExpired

RUN = uuid.uuid4().hex[:8]
S3, GS = f"s3a://expiring-{RUN}", f"gs://outgoing-{RUN}"


@pytest.fixture(scope="module")
def buckets() -> list[str]:
    return [S3, GS]


@pytest.fixture(scope="module")
def s3_bucket() -> Iterator[str]:
    with s3_server():
        s3("create_bucket", S3)
        set_versioning(S3, "Enabled")
        yield S3


@pytest.fixture(scope="module")
def gs_bucket(gcs: str) -> str:
    make_bucket(gcs, GS.removeprefix("gs://"), versioning={"enabled": True})
    return GS


@pytest.fixture(params=["s3_bucket", pytest.param("gs_bucket", marks=pytest.mark.gcs)])
def at(request: pytest.FixtureRequest, fixture: Callable[..., KeptDatabase]) -> KeptDatabase:
    """A table of two partitions, of which one was written three times."""
    made = fixture(store := request.getfixturevalue(request.param))
    made.table("t", store)
    made.add("t", "1", "first")
    made.add("t", "2", "stays")
    made.capture()
    for text in ("second", "third"):
        made.write("t", "1", text)
        made.capture()
    return made


def expire(at: KeptDatabase, **options: object) -> RootExpired:
    given = {"older_than": timedelta(0), "versions": True} | options
    return replicator.cm_expire(cmroot=at.root.place, engine=at.sides.engine, **given)


def texts(at: KeptDatabase) -> list[str]:
    """Of versions that no object shows, but for marks of deletion, in the order of their texts."""
    from cmroot.keep.versions import open_version

    found = []
    for old in old_versions(at.homes["t"]):
        with open_version(old.path, old.version) as file:
            found.append(file.read().decode().removeprefix(f"{at.db}: "))
    return sorted(found)


def test_versions_that_nobody_needs_go_and_only_when_asked(at: KeptDatabase) -> None:
    assert texts(at) == ["first", "second"]
    expire(at, versions=False)
    planned = expire(at, dry_run=True)
    assert (planned.going_versions["entries"], texts(at)) == (2, ["first", "second"])
    expired = expire(at)
    sizes = sum(len(f"{at.db}: {text}") for text in ("first", "second"))
    assert (expired.removed_versions, texts(at)) == ({"entries": 2, "bytes": sizes}, [])
    assert expire(at).removed_versions["entries"] == 0
    at.load(at.dump())
    assert at.replica("t") == {"p=1/part-0": "third", "p=2/part-0": "stays"}
    assert at.differences() == []


def test_what_a_hold_or_the_retention_needs_stays(at: KeptDatabase) -> None:
    replicator.cm_hold("audit", cmroot=at.root.place)
    at.write("t", "1", "fourth")
    at.capture()
    assert expire(at, older_than=timedelta(days=1)).removed_versions["entries"] == 0
    assert (expire(at).removed_versions["entries"], texts(at)) == (2, ["third"])
    replicator.cm_release("audit", cmroot=at.root.place)
    assert (expire(at).removed_versions["entries"], texts(at)) == (1, [])


def test_a_version_that_its_object_shows_stays_though_its_table_is_dropped(at: KeptDatabase) -> None:
    """An external table's files are their owner's."""
    at.source.drop_table(at.db, "t")
    at.capture()
    assert expire(at).removed_versions["entries"] == 2
    assert texts(at) == []
    assert sorted(Place(at.homes["t"]).find()) == ["p=1/part-0", "p=2/part-0"]
    Place(at.place("t", "1")).remove()
    assert (expire(at).removed_versions["entries"], texts(at)) == (1, [])
    assert Place(at.homes["t"]).find() == ["p=2/part-0"]


def test_bytes_that_another_table_has_keep_all_versions_with_them(at: KeptDatabase) -> None:
    store = at.homes["t"].removesuffix(f"/{at.db}/t")
    at.table("u", store)
    at.add("u", "1", "first")
    at.capture()
    assert (expire(at).removed_versions["entries"], texts(at)) == (1, ["first"])
    at.drop("u", "1")
    at.capture()
    assert (expire(at).removed_versions["entries"], texts(at)) == (2, [])


def test_versions_are_dropped_twice_without_error(at: KeptDatabase) -> None:
    found = list(old_versions(at.homes["t"]))
    for _ in range(2):
        drop_versions(found)
    assert texts(at) == []
    assert expire(at).removed_versions["entries"] == 0
