"""Captures that list what a bucket's notifications name: an S3 endpoint with queues, and a proxy that counts
listings. Where anything is unsure, all is listed."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto.server", reason="moto is not installed")
pytest.importorskip("s3fs", reason="the s3 extra is not installed")

import boto3
from engines import local_engine
from metastores import MetastoreFactory
from object_servers import environment
from plain_tables import text_storage
from s3_proxy import Proxy, counting
from stores import s3_server, s3a_as_directories

import replicator
from cmroot.store.place import Place
from replicator.captures.recording import Captured
from replicator.core.engine import AutoEngine
from replicator.core.model import Column, Database, Partition, Table
from replicator.errors import UsageError
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

BUCKET = f"s3a://noticed-{uuid.uuid4().hex[:8]}"
NAME = BUCKET.partition("://")[2]
EVENTS = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*", "s3:LifecycleExpiration:*"]


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with s3_server(), counting(os.environ["AWS_ENDPOINT_URL"]) as made:
        boto3.client("s3").create_bucket(Bucket=NAME)
        with environment({"AWS_ENDPOINT_URL": made.url}):
            yield made


@pytest.fixture(scope="module")
def source(metastore_factory: MetastoreFactory, tmp_path_factory: pytest.TempPathFactory) -> Running:
    return metastore_factory("source", settings=s3a_as_directories(tmp_path_factory.mktemp("mounts"), [BUCKET]))


@pytest.fixture(scope="module")
def engine() -> Iterator[AutoEngine]:
    made = local_engine()
    yield made
    made.stop()


class Noticed:
    """A table of five partitions on a bucket that sends notifications to a queue."""

    def __init__(self, proxy: Proxy, source: Running, engine: AutoEngine, root: Path) -> None:
        self.proxy, self.source, self.engine, self.root = proxy, source, engine, str(root / "cmroot")
        self.db = f"db{uuid.uuid4().hex[:8]}"
        self.home = f"{BUCKET}/{self.db}/t"
        self.sqs = boto3.client("sqs")
        self.queue = self.sqs.create_queue(QueueName=self.db)["QueueUrl"]
        self.send(EVENTS)
        keys = (Column("p", "string"),)
        with connect(source.uri) as metastore:
            metastore.create_database(Database(name=self.db, location=f"{BUCKET}/{self.db}.db"))
            metastore.create_table(Table(db=self.db, name="t", storage=text_storage(self.home), partition_keys=keys))
            parts = [Partition(values=(str(n),), storage=text_storage(f"{self.home}/p={n}")) for n in range(5)]
            metastore.add_partitions(self.db, "t", parts)
        for number in range(5):
            self.write(number, "first")

    def send(self, events: list[str], **more: Any) -> None:
        arn = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=["All"])["Attributes"]["QueueArn"]
        queues = [{"QueueArn": arn, "Events": events, **more}] if events else []
        boto3.client("s3").put_bucket_notification_configuration(
            Bucket=NAME, NotificationConfiguration={"QueueConfigurations": queues}
        )

    def place(self, number: int, name: str = "part-0") -> Place:
        return Place(f"{self.home}/p={number}/{name}")

    def write(self, number: int, text: str, name: str = "part-0") -> None:
        self.place(number, name).write_bytes(f"{self.db} {number} {text}".encode())

    def capture(self, **options: Any) -> Captured:
        given = {"s3_events": {BUCKET: self.queue}, "db": self.db} | options
        captured = replicator.capture(source=self.source.uri, cmroot=self.root, engine=self.engine, **given)
        self.listings = self.proxy.taken()["LIST"]
        return captured

    def settle(self) -> None:
        """Captures until the bucket is trusted."""
        self.capture()
        self.proxy.taken()


@pytest.fixture
def at(proxy: Proxy, source: Running, engine: AutoEngine, tmp_path: Path) -> Noticed:
    return Noticed(proxy, source, engine, tmp_path)


def test_only_what_notifications_name_is_listed(at: Noticed) -> None:
    first = at.capture()
    assert (first.files, first.warnings) == (5, []) and at.listings >= 1
    idle = at.capture()
    assert (idle.files, idle.warnings, at.listings) == (0, [], 0)
    at.write(3, "second, longer")
    at.write(3, "beside", "p=x+y z#1?%2F")
    assert at.capture().files == 2
    assert at.listings == 1
    at.place(3, "p=x+y z#1?%2F").remove()
    assert at.capture().records == 1 and at.listings == 1
    assert (at.capture().files, at.listings) == (0, 0)
    assert at.capture(s3_events={}).files == 0 and at.listings >= 1
    at.write(0, "once more")
    assert (at.capture().files, at.listings) == (1, 1)


def test_what_an_event_of_the_metastore_names_is_listed_all_the_same(at: Noticed) -> None:
    at.settle()
    with connect(at.source.uri) as metastore:
        metastore.add_partitions(at.db, "t", [Partition(values=("9",), storage=text_storage(f"{at.home}/p=9"))])
    at.write(9, "new")
    at.sqs.purge_queue(QueueUrl=at.queue)
    assert at.capture().files == 1


def unheard(at: Noticed) -> None:
    at.send(EVENTS[:1])


def filtered(at: Noticed) -> None:
    rules = [{"Name": "prefix", "Value": "elsewhere/"}]
    at.send(EVENTS, Filter={"Key": {"FilterRules": rules}})


def another(at: Noticed) -> None:
    at.queue = at.sqs.create_queue(QueueName=f"{at.db}-other")["QueueUrl"]
    at.send(EVENTS)


def strange(at: Noticed) -> None:
    at.sqs.send_message(QueueUrl=at.queue, MessageBody="what is this?")


def taken(at: Noticed) -> None:
    at.place(4, "other").write_bytes(b"other")
    assert at.sqs.receive_message(QueueUrl=at.queue)["Messages"]


def forgetful(at: Noticed) -> None:
    at.sqs.set_queue_attributes(QueueUrl=at.queue, Attributes={"MessageRetentionPeriod": "60"})


def gone(at: Noticed) -> None:
    at.sqs.delete_queue(QueueUrl=at.queue)


@pytest.mark.parametrize(
    ("doubtful", "why"),
    [
        (unheard, "does not send s3:ObjectRemoved"),
        (filtered, "for all its keys"),
        (another, "its queue is another one"),
        (strange, "none of S3: what is this"),
        (taken, "1 of its messages are hidden"),
        (forgetful, "holds messages for 60 s"),
        (gone, "NonExistentQueue|does not exist"),
    ],
)
def test_all_is_listed_where_anything_is_unsure(at: Noticed, doubtful: Callable[[Noticed], None], why: str) -> None:
    at.settle()
    at.send([])  # a change of which nobody hears
    at.write(2, "unheard of")
    at.send(EVENTS)
    assert at.capture().files == 0
    doubtful(at)
    captured = at.capture()
    assert at.listings >= 1 and captured.files >= 1
    (warning,) = captured.warnings
    assert "all of it was listed" in warning
    assert re.search(why, warning)


@pytest.mark.parametrize("options", [{"deep": True}, {"keeper": "copy"}])
def test_all_is_listed_when_asked_for_or_kept_otherwise(at: Noticed, options: dict[str, Any]) -> None:
    at.settle()
    at.sqs.purge_queue(QueueUrl=at.queue)
    at.capture()
    assert at.listings == 0
    assert at.capture(**options).warnings == []
    assert at.listings >= 1


def test_all_is_listed_once_a_day(at: Noticed, monkeypatch: pytest.MonkeyPatch) -> None:
    from replicator.captures.scanning import bucket_notices

    at.settle()
    at.capture()
    assert at.listings == 0
    monkeypatch.setattr(bucket_notices, "PROVED", timedelta(0))
    captured = at.capture()
    assert (captured.warnings, at.listings >= 1) == ([], True)


def test_a_capture_that_fails_gives_its_messages_back(at: Noticed) -> None:
    at.settle()
    at.write(1, "again")
    with pytest.raises(UsageError):
        at.capture(empty=["nosuch.table"])
    at.proxy.taken()
    assert at.capture().files == 1
    assert at.listings == 1
    assert (at.capture().files, at.listings) == (0, 0)


@pytest.mark.parametrize(
    "queues",
    [
        {"gs://b": "https://q"},
        {"s3://b/below": "https://q"},
        {"s3://b": "q"},
        {"s3://b": "https://q", "s3://c": "https://q"},
    ],
)
def test_queues_of_nothing_are_refused(at: Noticed, queues: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--s3-events"):
        at.capture(s3_events=queues)
