"""The life of a warehouse on S3 that answers 503 to 15 % of all requests, with runs that are killed at a request, and
on one that does not answer. What lies there is looked at by boto3, past the proxy."""

from __future__ import annotations

import json
import os
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from zoneinfo import ZoneInfo

import boto3
import gobblin_examples as examples
import pytest
from command_line import command
from faults import killed_when
from lab import Lab
from plain_tables import PlainDatabase
from s3_path import S3Path
from s3_proxy import Proxy, counting
from stores import s3_server
from stores_table import FEATURES, StoreFeature, housekept, repaired, restored, snapshots, succeeds, synced

from cmroot.root import create_or_open
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

BUCKET = "life"
BUSY = 0.15

Sides = tuple[Running, Running]


@pytest.fixture(scope="module")
def direct() -> Iterator[Any]:
    """A client that asks no proxy."""
    with s3_server() as filesystem:
        filesystem.mkdir(BUCKET)
        yield boto3.Session().client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])


class Tags(dict[str, str]):
    """Of objects as they are now, also of those that came past the proxy."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def get(self, path: str, default: Any = None) -> Any:
        bucket, _, key = unquote(path).lstrip("/").partition("/")
        if not key:
            return default
        return self._client.head_object(Bucket=bucket, Key=key)["ETag"]


@pytest.fixture(scope="module")
def proxy(direct: Any) -> Iterator[Proxy]:
    with counting(os.environ["AWS_ENDPOINT_URL"]) as proxy, pytest.MonkeyPatch.context() as patched:
        proxy.tags = Tags(direct)
        patched.setenv("AWS_ENDPOINT_URL", proxy.url)
        patched.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.01)  # tries at once
        yield proxy


@pytest.fixture
def busy(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    chance = random.Random(1)
    monkeypatch.setattr(proxy, "fails", lambda kind, path: chance.random() < BUSY)
    return proxy


@pytest.fixture(scope="module")
def sides(proxy: Proxy, on_s3a: Callable[[str], Running]) -> Sides:
    return on_s3a("source"), on_s3a("target")


@pytest.fixture
def here(direct: Any) -> S3Path:
    return S3Path(direct, BUCKET, f"/{uuid.uuid4().hex[:8]}")


@pytest.fixture
def story(here: S3Path, sides: Sides) -> Lab:
    """Source, `$cmroot`, dumps and target, all on S3."""
    found = Lab(*sides, here, warehouse=here / "replica")  # type: ignore[arg-type]
    found.source = PlainDatabase(connect(sides[0].uri), found.name, here / "warehouse")
    found.source.create()
    found.source.table("plain", {"f": f"1\t{found.name}\n", "g": f"2\t{found.name}\n"})
    found.source.partitioned("parts", {"x": {"f": f"3\t{found.name}\n"}, "é ü%20": {"f": f"4\t{found.name}\n"}})
    return found


def killed(proxy: Proxy, arguments: Sequence[str], root: S3Path, kind: str, part: str) -> None:
    """A command that dies with its second request of a kind whose path has a part; what it held is free again when its
    time is over, which here is at once."""
    left, fails = 2, proxy.fails

    def dies(end: Callable[[], None]) -> None:
        def kill(asked: str, path: str) -> bool:
            nonlocal left
            left -= asked == kind and part in path
            if left <= 0:
                end()
            return left <= 0 or fails(asked, path)

        proxy.fails = kill

    try:
        ended = killed_when(arguments, dies)
    finally:
        proxy.fails = fails
    assert ended.killed and left <= 0, ended
    for lease in (each for each in root.rglob("*") if each.parent.name == "lease"):
        if lease.name.isdecimal():
            lease.write_text(json.dumps(json.loads(lease.read_bytes()) | {"expires": 1}))


LIVES = [each for each in FEATURES if each.run in (repaired, snapshots, synced, restored, housekept)]


@pytest.mark.long
@pytest.mark.parametrize("feature", LIVES, ids=lambda each: each.run.__name__)
def test_what_s3_does_it_does_when_it_is_busy(feature: StoreFeature, story: Lab, busy: Proxy) -> None:
    """The same as in the table of stores, by the same assertions."""
    feature.run(story)
    assert busy.taken().total() > 50


@pytest.mark.parametrize(("kind", "part"), [("PUT", ".db/"), ("COPY", "/replica/.cmroot/files/")])
def test_a_load_that_dies_at_a_request_is_run_again(story: Lab, busy: Proxy, kind: str, part: str) -> None:
    story.bootstrap()
    story.source.write("plain", {"f": "5\tnew\n", "g": "6\tnew\n"})
    story.source.drop_partitions("parts", ["x"])
    succeeds(story.dump(since=story.last))
    killed(busy, story.load_arguments(story.last), story.target_cmroot, kind, part)
    succeeds(story.load())
    story.is_same()


def test_a_dump_with_data_that_dies_at_a_request_is_completed(story: Lab, busy: Proxy) -> None:
    story.dumps += 1
    arguments = [*story.dump_arguments(story.last), "--with-data"]
    killed(busy, arguments, story.here, "PUT", "/_data/files/")
    there = len(list((story.last / "_data/files").rglob("*")))
    answer = command(*arguments)
    succeeds(answer)
    assert answer.output["data_files_copied"] == 4 - there and there < 4
    assert len(list((story.last / "_data").rglob("*"))) == 4, "nothing but the contents"
    succeeds(command("dumps", "verify", str(story.last)))
    shown = story.source.shown()
    story.source.home.rmtree()
    story.cmroot.rmtree()
    succeeds(story.load())
    assert story.target.shown() == shown


def test_an_expiry_that_dies_at_a_request_is_run_again(story: Lab, busy: Proxy) -> None:
    succeeds(story.capture())
    story.source.drop("parts")
    story.source.drop("plain")
    story.source.table("later", {"f": f"7\t{story.name}\n"})
    succeeds(story.capture())
    expire = ["cm", "expire", "--cmroot", str(story.cmroot), "--older-than", "0s", "--engine", "local"]
    files = story.cmroot / "files"
    assert len(list(files.rglob("*"))) == 5
    killed(busy, expire, story.cmroot, "DELETE many", "")
    succeeds(command(*expire), command("cm", "check", "--cmroot", str(story.cmroot)))
    assert [each.read_bytes() for each in files.rglob("*")] == [f"7\t{story.name}\n".encode()]


def test_retention_dies_at_a_request_and_is_undone(here: S3Path, sides: Sides, busy: Proxy, tmp_path: Path) -> None:
    config, lake = tmp_path / "job.conf", here / "lake"
    config.write_text(examples.SEVERAL_KINDS)
    now = datetime.now(ZoneInfo("America/Los_Angeles"))
    for name, age in {"old": 9, "older": 30, "young": 1}.items():
        day = lake / f"user/gobblin/data/{name}/daily/{now - timedelta(days=age):%Y/%m/%d}"
        for file in ("part-0", ".meta"):
            (day / file).write_text(f"{name} {file}")

    def left() -> dict[str, bytes]:
        return {str(each): each.read_bytes() for each in lake.rglob("*")}

    before, cmroot = left(), here / "cmroot"
    create_or_open(str(cmroot))
    run = ["retention", "run", str(config), "--cmroot", str(cmroot), "--root", str(lake), "--metastore", sides[0].uri]
    planned = command(*run, "--dry-run")
    assert (planned.code, [item["files"] for item in planned.output["items"]]) == (0, [2, 2]), planned
    killed(busy, [*run, "--engine", "local"], cmroot, "DELETE", "/lake/")
    succeeds(command(*run))
    assert left() == {name: text for name, text in before.items() if b"old" not in text}
    for each in {row["run"] for row in command("audit", "ls", "--cmroot", str(cmroot)).output["rows"]}:
        succeeds(command("audit", "undo", "--cmroot", str(cmroot), "--run", each))
    assert left() == before


TOUCHING = [
    "capture --source {source} --db d --cmroot {away}/cm",
    "dump --source {source} --db d --cmroot {away}/cm --out {away}/dump",
    "load {away}/dump --target {source} --warehouse {away}/w",
    "restore --cmroot {away}/cm --db d --to 1 --target {source}",
    "repair --source {source} --target {source} --db default --cmroot {away}/cm",
    "cm expire --cmroot {away}/cm --older-than 1d",
    "cm check --cmroot {away}/cm",
    "cm compact --cmroot {away}/cm",
    "cm ls --cmroot {away}/cm",
    "cm slots --cmroot {away}/cm",
    "housekeeping run --metastore {source} --cmroot {away}/cm --store sqlite:///{tmp}/items",
    "retention run {tmp}/job.conf --metastore {source} --cmroot {away}/cm --root {away}/lake",
    "purge run --metastore {source} --cmroot {away}/cm --ids d.t:c --table-whitelist d --field-path a.b",
    "purge certify --metastore {source} --cmroot {away}/cm --run latest",
    "purge retain --metastore {source} --cmroot {away}/cm",
    "purge backups --cmroot {away}/cm",
    "audit ls --cmroot {away}/cm",
    "audit undo --cmroot {away}/cm --run 1",
    "legal-hold ls --cmroot {away}/cm",
    "show {away}/dump",
]


@pytest.mark.parametrize("line", TOUCHING, ids=lambda line: line.partition(" {")[0].partition(" --")[0])
def test_an_endpoint_that_is_away_is_tried_again(
    line: str, sides: Sides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    (tmp_path / "job.conf").write_text(examples.TIME_BASED)
    away = f"s3a://away-{uuid.uuid4().hex[:8]}"
    answer = command(*line.format(source=sides[0].uri, away=away, tmp=tmp_path).split())
    assert (answer.code, answer.error) == (75, "StorageUnreachable"), answer
    assert away.partition("://")[2] in answer.message and answer.output["hint"]


def test_a_store_that_stays_busy_is_tried_again(here: S3Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "fails", lambda kind, path: True)
    for line in (["cm", "ls"], ["cm", "expire", "--older-than", "1d"], ["audit", "ls"]):
        answer = command(*line, "--cmroot", str(here / "cmroot"))
        assert (answer.code, answer.error) == (75, "StorageUnreachable") and answer.output["hint"], answer
