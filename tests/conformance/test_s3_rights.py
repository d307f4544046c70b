"""Rights on S3 that a user lacks, and what is said of it: on a server whose users have few."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

pytest.importorskip("moto.server", reason="moto is not installed")
pytest.importorskip("s3fs", reason="the s3 extra is not installed")

import boto3
from s3_users import few_rights
from small_root import ENGINE
from stores import s3_server

from cmroot.check import check
from cmroot.expire.expire import expire, plan_expiry
from cmroot.keep.keepers import VersionKeeper, choose_keeper
from cmroot.root import create_or_open
from cmroot.store.place import Place, remote_store
from replicator.policies.checks.places import judge_place
from replicator.replay.apply.staging import sweep_staging

MOST = {"s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket", "s3:GetBucketVersioning"}
VERSIONS = {"s3:ListBucketVersions", "s3:DeleteObjectVersion"}
UPLOADS = {"s3:ListBucketMultipartUploads", "s3:AbortMultipartUpload"}
ALL = MOST | VERSIONS | UPLOADS


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with s3_server():
        yield


@pytest.fixture
def user() -> Iterator[Callable[..., None]]:
    with few_rights() as become:
        yield become


@pytest.fixture
def root() -> str:
    """With an upload that nobody ends, in a bucket with versions."""
    name = f"rights-{uuid.uuid4().hex[:8]}"
    s3 = boto3.Session().client("s3")
    s3.create_bucket(Bucket=name)
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    made = create_or_open(f"s3a://{name}/cmroot").place
    s3.create_multipart_upload(Bucket=name, Key="cmroot/incoming/left")
    return made


def uploads(root: str) -> int:
    bucket = root.partition("://")[2].partition("/")[0]
    answer = remote_store(root).filesystem.call_s3("list_multipart_uploads", Bucket=bucket)
    return len(answer.get("Uploads", ()))


def lacking(root: str) -> list[str]:
    found = [each for each in check(root, ENGINE).findings if each["kind"] == "right"]
    assert all("remain" in each["found"] and each["what"] == root for each in found)
    return [each["repair"].split()[1] for each in found]


@pytest.mark.parametrize("lacks", sorted(UPLOADS | VERSIONS))
def test_the_checks_name_a_right_that_is_lacking(root: str, user: Callable[..., None], lacks: str) -> None:
    user(*ALL)
    assert lacking(root) == []
    assert judge_place("cmroot", root, root=True)[0].health == "ok"
    user(*ALL - {lacks})
    assert lacking(root) == [lacks]
    finding, _ = judge_place("cmroot", root, root=True)
    assert (finding.health, finding.hint) == ("warning", f"grant this user {lacks}")
    assert "remain" in finding.text


def test_a_place_that_may_be_written_and_not_removed_is_critical(root: str, user: Callable[..., None]) -> None:
    user(*ALL - {"s3:DeleteObject"})
    finding, _ = judge_place("dumps", root, root=False)
    assert finding.health == "critical" and "s3:DeleteObject" in finding.hint


@pytest.mark.parametrize("lacks", sorted(UPLOADS))
def test_an_expiry_says_that_uploads_stay(root: str, user: Callable[..., None], lacks: str) -> None:
    user(*ALL - {lacks})
    (said,) = expired(root)
    assert f"({lacks})" in said and "unfinished uploads" in said
    user(*ALL)
    assert expired(root) == [] and uploads(root) == 0


def expired(root: str) -> list[str]:
    plan = plan_expiry(root, older_than=timedelta(0), engine=ENGINE)
    found: list[str] = expire(root, plan).as_json()["warnings"]
    return found


@pytest.mark.parametrize("lacks", sorted(UPLOADS))
def test_a_load_says_that_uploads_of_a_killed_one_stay(root: str, user: Callable[..., None], lacks: str) -> None:
    bucket, table = root.partition("://")[2].partition("/")[0], root.replace("cmroot", "t")
    boto3.Session().client("s3").create_multipart_upload(Bucket=bucket, Key="t/.replicating-x")
    (Place(root) / "copying" / uuid.uuid4().hex).write_bytes(f'["{table}"]'.encode())
    user(*ALL - {lacks})
    for _ in range(2):  # the next load looks again
        said: list[str] = []
        sweep_staging(root, said.append)
        assert said and f"({lacks})" in said[0]
    user(*ALL)
    said = []
    sweep_staging(root, said.append)
    assert not said and uploads(root) == 1  # the root's own


def test_rules_of_a_bucket_that_may_not_be_asked_for_are_told(root: str, user: Callable[..., None]) -> None:
    said: list[str] = []
    user(*MOST, "s3:GetLifecycleConfiguration")
    assert choose_keeper(root, root, "version", tell=said.append) == VersionKeeper(root) and said == []
    user(*MOST)
    assert choose_keeper(root, root, "version", tell=said.append) == VersionKeeper(root)
    assert len(said) == 1 and "s3:GetLifecycleConfiguration" in said[0]
