"""A source and a target at different S3 servers, each asked as somebody else: `[stores]` of the configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest
from command_line import command
from lab import Lab
from metastores import MetastoreFactory
from plain_tables import PlainDatabase
from s3_path import S3Path
from stores import s3_server, s3a_as_directories
from versity import ON_VERSITYGW, Versity

from cmroot.errors import UnknownPlace
from cmroot.store.drivers import PATIENCE, VARIABLE, driver_options
from cmroot.store.place import Place
from replicator.commands.verify import VerifyOptions
from replicator.metastore.thrift import connect

PROFILES = """
[base]
aws_access_key_id = test
aws_secret_access_key = test
[auditor]
role_arn = arn:aws:iam::123456789012:role/auditor
source_profile = base
[replica]
aws_access_key_id = tester
aws_secret_access_key = secret-of-tester
"""


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of AWS, the files alone; and no endpoints of an earlier test."""
    (tmp_path / "credentials").write_text(PROFILES)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv(VARIABLE, "")


def client_of(**more: Any) -> Any:
    return boto3.Session().client("s3", region_name="us-east-1", **more)


@ON_VERSITYGW[0]
@ON_VERSITYGW[1]
def test_each_bucket_is_at_its_own_endpoint(
    versitygw: Versity, metastore_factory: MetastoreFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server():  # in the environment, with its keys
        here, there = (
            client_of(),
            client_of(endpoint_url=versitygw.url, aws_access_key_id="tester", aws_secret_access_key="secret-of-tester"),
        )
        for client, bucket in ((here, "near"), (there, "far")):
            client.create_bucket(Bucket=bucket)
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        config = tmp_path / "replicator.toml"
        config.write_text(
            '[stores."s3a://near"]\nprofile = "auditor"\n'
            f'[stores."s3a://far"]\nendpoint = "{versitygw.url}"\nprofile = "replica"\nregion = "us-east-1"\n'
        )
        monkeypatch.setenv("REPLICATOR_CONFIG", str(config))
        (tmp_path / "mounts").mkdir()
        settings = s3a_as_directories(tmp_path / "mounts", ["s3a://near", "s3a://far"])
        both = metastore_factory("both", settings=settings)
        found = Lab(both, both, S3Path(here, "near"), warehouse=S3Path(there, "far", "/replica"))  # type: ignore[arg-type]
        found.source = PlainDatabase(connect(both.uri), found.name, S3Path(here, "near", "/warehouse"))
        found.source.create()
        found.source.table("t", {"f": "1\tone\n"})
        renamed = ("--rename-db", f"{found.name}={found.name}_copy")
        for answer in (found.dump(), found.load(None, *renamed)):
            assert answer.code == 0, answer
        sides = ("--source", both.uri, "--target", both.uri, "--db", found.name)
        verified = command("verify", *sides, *renamed, "--engine", "local")
        assert (verified.code, verified.output["files"]) == (0, 1), verified
        replica = S3Path(there, "far", f"/replica/{found.name}_copy.db/t/f")
        assert replica.read_bytes() == b"1\tone\n"
        assert not S3Path(here, "near", "/replica").exists()


def test_executors_are_told(tmp_path: Path) -> None:
    config = tmp_path / "replicator.toml"
    config.write_text('[stores."s3a://far/"]\nendpoint = "http://far:9000"\nanonymous = true\n')
    options = VerifyOptions(source="thrift://a:1", target="thrift://b:1", db="d", config=str(config))
    told = options.own_spark[f"spark.executorEnv.{VARIABLE}"]
    assert msgspec.json.decode(told) == {"s3://far": {"endpoint": "http://far:9000", "anonymous": True}}
    assert os.environ[VARIABLE] == told
    filesystem = Place("s3a://far/x").store.filesystem  # type: ignore[attr-defined]
    assert (filesystem.endpoint_url, filesystem.anon) == ("http://far:9000", True)
    assert Place("s3a://near/x").store.filesystem.endpoint_url != "http://far:9000"  # type: ignore[attr-defined]
    config.write_text("")
    assert VerifyOptions(source="thrift://a:1", target="thrift://b:1", db="d", config=str(config)).settings.stores == {}
    assert Place("s3a://far/x").store.filesystem.endpoint_url != "http://far:9000"  # type: ignore[attr-defined]


def test_a_request_is_tried_as_often_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert driver_options("s3://any", "")["config_kwargs"] == {"retries": PATIENCE}
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    assert driver_options("s3://any", "") == {}


@pytest.mark.parametrize("store", ["s3a://far/below", "hdfs://name", "far"])
def test_what_is_no_bucket_is_refused(store: str, tmp_path: Path) -> None:
    config = tmp_path / "replicator.toml"
    config.write_text(f'[stores."{store}"]\nprofile = "x"\n')
    answer = command("--config", str(config), "cm", "ls", "--cmroot", str(tmp_path))
    assert answer.error == UnknownPlace.__name__ and store in answer.message, answer
