"""Captures that list what a bucket's notifications name: an S3 endpoint with queues, and a proxy that counts
listings. Where anything is unsure, all is listed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto.server", reason="moto is not installed")
pytest.importorskip("s3fs", reason="the s3 extra is not installed")

import boto3
from engines import local_engine
from lab import Lab
from names import unique
from object_servers import environment
from plain_tables import text_storage
from s3_proxy import Proxy, counting
from s3_users import few_rights
from stores import s3_server
from waiting import eventually

import replicator
from cmroot.errors import NotWritable, StorageUnreachable
from cmroot.store.place import Place
from replicator.captures.recording import Captured
from replicator.core.engine import AutoEngine
from replicator.core.model import Column, Database, Partition, Table
from replicator.errors import UsageError
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.policies import follow
from replicator.policies.checks.metastores import judge_queues
from replicator.policies.follow import Listeners, follow_policy
from replicator.policies.run import SyncRun
from replicator.policies.steps import SYNC

BUCKET = "s3a://noticed"
NAME = BUCKET.partition("://")[2]
EVENTS = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*", "s3:LifecycleExpiration:*"]


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with s3_server(), counting(os.environ["AWS_ENDPOINT_URL"]) as made:
        boto3.Session().client("s3").create_bucket(Bucket=NAME)
        with environment({"AWS_ENDPOINT_URL": made.url}):
            yield made


@pytest.fixture(scope="module")
def source(on_s3a: Callable[[str], Running]) -> Running:
    return on_s3a("source")


@pytest.fixture(scope="module")
def engine() -> Iterator[AutoEngine]:
    made = local_engine()
    yield made
    made.stop()


class Noticed:
    """A table of five partitions on a bucket that sends notifications to a queue."""

    def __init__(self, proxy: Proxy, source: Running, engine: AutoEngine, root: Path) -> None:
        self.proxy, self.source, self.engine, self.root = proxy, source, engine, str(root / "cmroot")
        self.db = unique("db")
        self.home = f"{BUCKET}/{self.db}/t"
        self.sqs = boto3.Session().client("sqs")
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
        boto3.Session().client("s3").put_bucket_notification_configuration(
            Bucket=NAME, NotificationConfiguration={"QueueConfigurations": queues}
        )

    def place(self, number: int, name: str = "part-0") -> Place:
        return Place(f"{self.home}/p={number}/{name}")

    def write(self, number: int, text: str, name: str = "part-0") -> None:
        self.place(number, name).write_bytes(f"{self.db} {number} {text}".encode())

    def arrived(self) -> None:
        """Waits until the queue has a message."""
        kind = "ApproximateNumberOfMessages"
        asked = {"QueueUrl": self.queue, "AttributeNames": [kind]}
        eventually(lambda: int(self.sqs.get_queue_attributes(**asked)["Attributes"][kind]))

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
    at.arrived()
    assert at.capture().files == 2
    assert at.listings == 1
    at.place(3, "p=x+y z#1?%2F").remove()
    at.arrived()
    assert at.capture().records == 1 and at.listings == 1
    assert (at.capture().files, at.listings) == (0, 0)
    assert at.capture(s3_events={}).files == 0 and at.listings >= 1
    at.write(0, "once more")
    at.arrived()
    assert (at.capture().files, at.listings) == (1, 1)


def test_files_of_no_partition_are_listed_if_a_notification_names_one(at: Noticed) -> None:
    at.settle()
    for number, name in enumerate(("_SUCCESS", "_spark_metadata/0")):
        Place(f"{at.home}/{name}").write_bytes(b"")
        at.arrived()
        assert (at.capture().files, at.listings) == (1, 1 + number)  # one more for the log of a streaming sink
        assert (at.capture().files, at.listings) == (0, 0)
    Place(f"{at.home}/_temporary/0/part").write_bytes(b"unfinished")
    at.arrived()
    assert (at.capture().files, at.listings) == (0, 0)


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
        (another, "its queue is not the one that was read before"),
        (strange, "not sent by S3: what is this"),
        (taken, "1 of its messages are hidden"),
        (forgetful, "retains messages for 60 s"),
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
    assert "listed completely" in warning
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
    from replicator.captures import scanning

    at.settle()
    at.capture()
    assert at.listings == 0
    monkeypatch.setattr(scanning, "PROVED", timedelta(0))
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
        {"s3://b": "https://q", "s3a://b": "https://r"},
    ],
)
def test_queues_of_nothing_are_refused(at: Noticed, queues: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--s3-events"):
        at.capture(s3_events=queues)


# ---- policies -----------------------------------------------------------------------------------------------------

TARGET = f"{BUCKET}-target"
RIGHTS = Path(__file__).parents[2] / "docs" / "s3-rights.md"
AWAY = "http://127.0.0.1:1/1/queue"


@pytest.fixture(scope="module")
def target(on_s3a: Callable[[str], Running]) -> Running:
    return on_s3a("target")


class Replicated:
    """A policy of that table."""

    def __init__(self, at: Noticed, target: Running, here: Path) -> None:
        self.at = at
        self.pair = Lab(at.source, target, here, databases=at.db, cmroot=at.root)
        self.home = here / "target" / f"{at.db}.db"
        self.queue(at.queue)

    def queue(self, url: str) -> None:
        self.pair.keys["s3_events"] = {BUCKET: url}

    def sync(self, **options: Any) -> SyncRun:
        run = self.pair.sync(**options)
        self.at.listings = self.at.proxy.taken()["LIST"]
        return run

    def has(self, number: int) -> str:
        (found,) = self.home.parent.rglob(f"p={number}/part-0")
        return found.read_text().rpartition(" ")[2]


@pytest.fixture
def replicated(at: Noticed, target: Running, tmp_path: Path) -> Replicated:
    made = Replicated(at, target, tmp_path)
    assert (made.sync().files_copied, made.has(3)) == (5, "first")
    return made


def test_a_run_of_a_policy_lists_what_notifications_name(replicated: Replicated) -> None:
    idle = replicated.sync()
    assert (idle.status, idle.warnings, replicated.at.listings) == ("nothing", [], 0)
    replicated.at.write(3, "second")
    run = replicated.sync()
    assert (run.files_copied, run.warnings, replicated.at.listings) == (1, [], 1)
    assert replicated.has(3) == "second"
    assert (replicated.sync().status, replicated.at.listings) == ("nothing", 0)


def test_a_following_lists_nothing_until_a_notification_comes(
    replicated: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "SCAN_SHARE", 0)  # each round scans
    lists: list[int] = []

    class Rounds:
        """Stops it after the round that loaded; the change comes after two that found nothing."""

        loaded = False

        def is_set(self) -> bool:
            return self.loaded

        def wait(self, timeout: float | None = None) -> bool:
            lists.append(replicated.at.proxy.taken()["LIST"])
            if len(lists) == 2:
                replicated.at.write(2, "followed")
            assert len(lists) < 10
            return self.loaded

    rounds, errors = Rounds(), list[Exception]()

    def reported(run: SyncRun) -> None:
        rounds.loaded = True

    listeners = Listeners(reported, lambda error, wait: errors.append(error))
    total = follow_policy(replicated.pair.sides(), SYNC, listeners, schedule=timedelta(milliseconds=1), stop=rounds)
    assert (total.synced, total.files_copied, errors, lists[:2]) == (1, 1, [], [0, 0])
    assert replicated.has(2) == "followed"


def test_a_run_whose_queue_is_away_takes_nothing_and_says_so(replicated: Replicated) -> None:
    replicated.at.write(1, "meanwhile")
    replicated.queue(AWAY)
    with pytest.raises(StorageUnreachable, match=AWAY) as caught:
        replicated.sync()
    assert caught.value.exit_code == 75 and "address" in caught.value.hint
    replicated.queue(replicated.at.queue)
    with pytest.raises(UsageError):
        replicated.sync(empty=["nosuch.table"])  # its capture has taken the messages, and gives them back
    replicated.at.proxy.taken()
    replicated.sync()
    assert (replicated.has(1), replicated.at.listings) == ("meanwhile", 1)


def test_check_tells_of_a_policys_queue(at: Noticed) -> None:
    def said(url: str) -> tuple[str, str]:
        (finding,) = judge_queues({BUCKET: url})
        return finding.health, finding.text

    assert said(at.queue) == ("ok", f"{at.queue} receives notifications of all changes")
    at.send(EVENTS[1:])
    health, text = said(at.queue)
    assert health == "warning" and "does not send s3:ObjectCreated" in text
    gone(at)
    assert said(at.queue)[0] == "warning" and at.queue in said(at.queue)[1]
    assert said(AWAY)[0] == "critical" and AWAY in said(AWAY)[1]


def test_a_replica_that_became_primary_has_no_queue_of_the_policy(replicated: Replicated) -> None:
    pair = replicated.pair
    forward = pair.sides().direction(pair.memory)
    backward = pair.sides().direction(pair.memory, reverse=True)
    assert forward.s3_events == {BUCKET: replicated.at.queue} and backward.s3_events == {}


def test_a_user_with_the_rights_of_the_manual_replicates_between_buckets_with_versions(
    at: Noticed, target: Running, tmp_path: Path
) -> None:
    (text,) = re.findall(r"```json\n(.*?)```", RIGHTS.read_text(), re.DOTALL)
    here, there = BUCKET.partition("://")[2], TARGET.partition("://")[2]
    policy = json.loads(text.replace("SOURCE", here).replace("TARGET", there))
    buckets = [f"arn:aws:s3:::{bucket}" for bucket in (here, there)]  # moto asks removals of many objects for this
    policy["Statement"].append({"Effect": "Allow", "Action": ["s3:DeleteObject"], "Resource": buckets})
    s3 = boto3.Session().client("s3")
    s3.create_bucket(Bucket=there)
    for bucket in (here, there):
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    roots = {"cmroot": f"{BUCKET}/.cmroot", "target_cmroot": f"{TARGET}/.cmroot"}
    places = {"dumps": f"{TARGET}/dumps", "warehouse": f"{TARGET}/warehouse"}
    pair = Lab(at.source, target, tmp_path, databases=at.db)
    pair.keys |= roots | places
    for copied in (5, 1):
        with few_rights() as become:
            become(policy=policy)
            with pytest.raises(NotWritable):
                at.write(0, "not allowed")
            run = pair.sync()
            assert (run.files_copied, run.not_replicated, run.warnings) == (copied, [], [])
            for root in roots.values() if copied == 1 else ():
                assert replicator.cm_check(cmroot=root, engine=at.engine).counts == {}
                expired = replicator.cm_expire(cmroot=root, engine=at.engine, older_than=timedelta(0))
                assert (expired.status, expired.warnings) == ("expired", [])
        at.write(3, "second")
