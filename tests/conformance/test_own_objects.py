"""What the product writes for itself to a bucket with versions, and removes, leaves no version and no delete marker."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from engines import local_engine
from names import unique
from plain_tables import PlainDatabase
from s3_proxy import Proxy, counting
from small_root import ENGINE
from stores import S3_SERVERS, s3_of

import replicator
from cmroot.expire.expire import expire, plan_expiry
from cmroot.keep.keepers import why_no_copy
from cmroot.lease import acquire
from cmroot.root import create_or_open
from cmroot.store.place import Place
from cmroot.store.remote import FsspecStore
from replicator.core.engine import AutoEngine
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.policies.checks.places import judge_place

WAREHOUSES = {server: f"s3a://own-{server}" for server in ("moto", "versitygw")}


@pytest.fixture(scope="module", params=[pytest.param(S3_SERVERS[0], marks=pytest.mark.long), *S3_SERVERS[1:]])
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    with s3_of(request.param, request), counting(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        yield proxy


@pytest.fixture
def bucket(proxy: Proxy) -> str:
    return made_bucket(f"s3a://versioned-{uuid.uuid4().hex}")


def made_bucket(bucket: str) -> str:
    """One with versions."""
    s3("create_bucket", bucket)
    s3("put_bucket_versioning", bucket, VersioningConfiguration={"Status": "Enabled"})
    return bucket


def s3(operation: str, bucket: str, **arguments: Any) -> Any:
    name = bucket.partition("://")[2]
    return FsspecStore(bucket).filesystem.call_s3(operation, Bucket=name, **arguments)


def hidden(bucket: str) -> list[str]:
    """Keys of versions that are not the current one, and of delete markers."""
    found: list[dict[str, Any]] = []
    more: dict[str, str] = {}
    while True:
        answer = s3("list_object_versions", bucket, **more)
        found += [each for each in answer.get("Versions", ()) if not each["IsLatest"]]
        found += answer.get("DeleteMarkers", ())
        if not answer.get("IsTruncated"):
            return sorted(each["Key"] for each in found)
        more = {"KeyMarker": answer["NextKeyMarker"], "VersionIdMarker": answer["NextVersionIdMarker"]}


def later() -> float:
    return time.time() + 7200


def visible(bucket: str) -> list[str]:
    return Place(bucket).find()


def test_what_is_ours_goes_with_its_versions_and_what_is_not_stays(bucket: str) -> None:
    """Names that begin alike are others', and a plain removal is one that a bucket's owner may take back."""
    for name in ("own", "own-2", "tree/a", "tree/b/c", "tree-2"):
        for data in (b"1", b"2"):
            Place(f"{bucket}/{name}").write_bytes(data)
    assert Place(f"{bucket}/own").remove_own()
    assert Place(f"{bucket}/tree").remove_own_tree()
    Place(f"{bucket}/own-2").replace_own(b"3")
    assert (visible(bucket), hidden(bucket)) == (["own-2", "tree-2"], ["tree-2"])
    Place(f"{bucket}/tree-2").remove()
    assert (visible(bucket), hidden(bucket)) == (["own-2"], ["tree-2", "tree-2", "tree-2"])
    assert Place(f"{bucket}/own").remove_own() and Place(f"{bucket}/tree").remove_own_tree()  # again
    assert hidden(bucket) == ["tree-2", "tree-2", "tree-2"]
    s3("put_bucket_versioning", bucket, VersioningConfiguration={"Status": "Suspended"})
    for data in (b"4", b"5"):
        Place(f"{bucket}/own-2").replace_own(data)
    assert Place(f"{bucket}/own-2").remove_own()
    assert hidden(bucket) == ["tree-2", "tree-2", "tree-2"]


def test_more_objects_than_a_request_names_go_with_their_versions(bucket: str) -> None:
    filesystem: Any = FsspecStore(bucket).filesystem
    name = bucket.partition("://")[2]
    filesystem.pipe({f"{name}/tree/{number:04d}": b"1" for number in range(1203)})
    assert Place(f"{bucket}/tree").remove_own_tree()
    assert (visible(bucket), hidden(bucket)) == ([], [])


def test_trials_leave_nothing(bucket: str) -> None:
    for key in ("cmroot", "dumps"):
        finding, probed = judge_place(key, f"{bucket}/{key}", root=key == "cmroot")
        assert (finding.health, probed is not None) == ("ok", True)
    assert why_no_copy(f"{bucket}/cmroot") == ""
    store = FsspecStore(bucket)
    store.heeds(f"{bucket}/probe")
    assert (visible(bucket), hidden(bucket)) == ([], [])


def test_a_lease_leaves_one_version_of_itself(bucket: str) -> None:
    root = create_or_open(f"{bucket}/cmroot").place
    for _ in range(3):
        with acquire(root, "write", renew=False) as lease:
            lease.publish("published", b"1")
    assert len(Place(f"{root}/lease").list()) == 1
    assert [key for key in hidden(bucket) if "published" not in key] == []


def test_a_user_who_may_not_remove_versions_removes_the_name_and_is_told(
    proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for denied, right in (("?versions", "s3:ListBucketVersions"), ("?delete", "s3:DeleteObjectVersion")):
        monkeypatch.setattr(proxy, "forbids", lambda path, denied=denied: denied in path)
        finding, _ = judge_place("dumps", f"{bucket}/dumps", root=False)
        assert finding.health == "warning" and finding.hint == f"grant this user {right}"
        assert visible(bucket) == []
    assert len(hidden(bucket)) == 4


def test_a_bucket_without_versions_is_asked_nothing_more(proxy: Proxy) -> None:
    plain = f"s3a://plain-{uuid.uuid4().hex}"
    s3("create_bucket", plain)
    for name in ("own", "tree/a", "tree/b"):
        Place(f"{plain}/{name}").write_bytes(b"1")
    proxy.taken()
    Place(f"{plain}/own").replace_own(b"2")
    assert Place(f"{plain}/own").remove_own() and Place(f"{plain}/tree").remove_own_tree()
    assert proxy.taken() == {"PUT": 1, "DELETE": 1, "LIST": 1, "DELETE many": 1}
    assert visible(plain) == []


@pytest.fixture(scope="module")
def engine() -> Iterator[AutoEngine]:
    engine = local_engine()
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def target(on_s3a: Callable[[str], Running]) -> Running:
    return on_s3a("target")


def test_a_replication_leaves_no_version_of_what_it_wrote_for_itself(
    proxy: Proxy, request: pytest.FixtureRequest, source_metastore: Running, target: Running, engine: AutoEngine
) -> None:
    """Bootstrap, an increment, loads and an expiry. What a bucket keeps of replaced data is its owner's affair."""
    bucket = made_bucket(WAREHOUSES[request.node.callspec.params["proxy"]])
    root, target_root = f"{bucket}/cmroot", f"{bucket}/target-cmroot"
    name = unique("own")
    with connect(source_metastore.uri) as client:
        db = PlainDatabase(client, name, source_metastore.warehouse)
        db.create()
        db.table("t", {"one": f"{name} one", "two": f"{name} two"})
    home = source_metastore.warehouse / f"{name}.db" / "t"
    since = None
    for number in range(2):
        (home / "one").unlink()
        (home / "one").write_text(f"{name} one, {number}")
        dumped = replicator.dump(
            source=source_metastore.uri,
            cmroot=root,
            db=name,
            out=f"{bucket}/dumps/{number}",
            since=since,
            engine=engine,
        )
        loaded = replicator.load(
            dumped.dump, target=target.uri, target_cmroot=target_root, warehouse=f"{bucket}/warehouse", engine=engine
        )
        assert loaded.files_copied >= 1
        since = dumped.dump
    plan = plan_expiry(root, older_than=timedelta(0), engine=ENGINE, now=later)
    assert expire(root, plan, now=later).removed.entries
    ours = [
        key for key in hidden(bucket) if not key.startswith(("warehouse/", "cmroot/files/", "target-cmroot/files/"))
    ]
    assert ours == []
    assert [key for key in hidden(bucket) if "/." in key] == []  # written aside, also in the warehouse
