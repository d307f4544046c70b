"""What a bucket with versioning keeps of erased rows is never certified as gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from purges import DESCRIPTOR, Warehouse
from s3_proxy import Proxy, counting
from stores import s3_server

from cmroot.keep.content import locate
from cmroot.keep.journal import files_at
from cmroot.keep.remote_files import keep_object
from cmroot.root import create_or_open
from cmroot.store import objects
from cmroot.store.checksum import checksum_at
from cmroot.store.place import Place
from replicator.lifecycle.purge.options import PurgeOptions
from replicator.lifecycle.purge.rewrite.rewrite_task import ReplaceTask, ReplaceWork, run_replace_task
from replicator.lifecycle.purge.table_files import copies


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with s3_server(), counting(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        yield proxy


@pytest.fixture(scope="module")
def filesystem(proxy: Proxy) -> Any:
    filesystem: Any = Place("s3a://versioned").store.filesystem
    filesystem.mkdir("versioned")
    filesystem.call_s3("put_bucket_versioning", Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    return filesystem


def delete_versions(filesystem: Any, paths: list[str]) -> None:
    for path in paths:
        key, _, version = path.partition("/versioned/")[2].partition("?versionId=")
        filesystem.call_s3("delete_object", Bucket="versioned", Key=key, VersionId=version)


def test_versions_of_removed_files_are_not_certified(
    proxy: Proxy, filesystem: Any, warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root's, of what was kept in it and expired."""
    warehouse.sql(
        f"CREATE DATABASE versions LOCATION '{tmp_path}/versions.db'",
        f"CREATE TABLE versions.t (id BIGINT, v STRING) STORED AS TEXTFILE TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO versions.t SELECT /*+ COALESCE(1) */ id, concat('versions-', id) FROM range(0, 50)",
    )
    (before,) = (tmp_path / "versions.db" / "t").glob("part-*")
    root, replicas = warehouse.root("versions"), create_or_open("s3a://versioned/cmroot").place
    kept = keep_object(replicas, str(before))
    Place(locate(replicas, kept.checksum, kept.size)).remove()
    assert warehouse.purge(root, warehouse.ids, "versions").rows_erased == 5
    asked = PurgeOptions(warehouse.ids, "versions", "privacy.column")
    found = warehouse.certify(root, asked, expedited=True, roots=[replicas])
    held = [each["path"] for each in found.holding]
    assert found.status == "remaining" and [each["what"] for each in found.holding] == ["replica's $cmroot"]
    assert held and all("/cmroot/files/" in path and "?versionId=" in path for path in held)
    delete_versions(filesystem, held)
    with monkeypatch.context() as forbidden:
        forbidden.setattr(proxy, "forbids", lambda path: "versions" in urlsplit(path).query.split("&"))
        unseen = warehouse.certify(root, asked, roots=[replicas])
    assert unseen.status == "gaps" and ["s3:ListBucketVersions" in gap["reason"] for gap in unseen.gaps] == [True]
    assert warehouse.certify(root, asked, roots=[replicas]).status == "certified"


def test_versions_below_directories_of_tables_are_found(filesystem: Any, warehouse: Warehouse) -> None:
    """Overwritten, deleted, and below a directory of which nothing else is left; of a neighbour's name none."""
    home = "s3a://versioned/home/t"
    for name in ("over", "k=1/deleted", "_purge-1/t/left"):
        Place(f"{home}/{name}").write_bytes(b"erased")
    contents = {checksum_at(f"{home}/over")}
    Place(f"{home}/over").write_bytes(b"clean!")
    Place(f"{home}2/other").write_bytes(b"erased")
    for name in ("t/k=1/deleted", "t/_purge-1/t/left", "t2/other"):
        Place(f"s3a://versioned/home/{name}").remove()
    found = list(copies([home], contents, warehouse.engines))
    assert {each.place.partition("/home/t/")[2] for each in found} == {"over", "k=1/deleted", "_purge-1/t/left"}
    assert all(each.version for each in found)
    delete_versions(filesystem, [f"{each.place}?versionId={each.version}" for each in found])
    assert list(copies([home], contents, warehouse.engines)) == []


@pytest.mark.parametrize("whole", [True, False], ids=["one request", "parts"])
def test_replaced_objects_keep_metadata_tags_and_storage_class(
    filesystem: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """The new object, and the old one in the backup."""
    at = f"t-{whole}"
    attributes = {"Metadata": {"team": "risk"}, "ContentType": "text/csv", "StorageClass": "STANDARD_IA"}
    attributes |= {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "key-of-the-writer"}
    filesystem.call_s3(
        "put_object", Bucket="versioned", Key=f"{at}/a", Body=b"old", Tagging="law=gdpr&a+b=1%2B2", **attributes
    )
    filesystem.call_s3("put_object", Bucket="versioned", Key=f"new/{at}/a", Body=b"new")
    home = f"s3a://versioned/{at}"
    if not whole:
        monkeypatch.setattr(objects, "WHOLE_COPY", 0)
    ((_, state),) = files_at(home)
    work = ReplaceWork("", "a", f"{home}/a", f"s3a://versioned/new/{at}/a", f"s3a://versioned/aside/{at}/a", state)
    for step in ("aside", "replace", "replace"):
        (done,) = run_replace_task(ReplaceTask(step, [work]))  # type: ignore[arg-type]
        assert (done.error, done.lacking) == ("", ""), step
    assert not Place(work.new).exists()
    for key, body in ((f"{at}/a", b"new"), (f"aside/{at}/a", b"old")):
        assert Place(f"s3a://versioned/{key}").read_bytes() == body
        found = filesystem.call_s3("head_object", Bucket="versioned", Key=key)
        assert {name: found[name] for name in attributes} == attributes, key
        tags = filesystem.call_s3("get_object_tagging", Bucket="versioned", Key=key)["TagSet"]
        assert {each["Key"]: each["Value"] for each in tags} == {"law": "gdpr", "a b": "1+2"}, key

    changed = msgspec.structs.replace(work, new=f"s3a://versioned/new/{at}/b")
    Place(changed.new).write_bytes(b"newer")
    assert [each.error for each in run_replace_task(ReplaceTask("replace", [changed]))] == ["was changed concurrently"]
    with monkeypatch.context() as forbidden:
        forbidden.setattr(proxy, "forbids", lambda path: "tagging" in urlsplit(path).query.split("&"))
        assert objects.copy_like(filesystem, f"versioned/{at}/a", f"versioned/{at}/c", f"versioned/{at}/a") == [
            "tags (not permitted)"
        ]
