"""Objects above 5 GiB, which S3 copies in parts only: here above 6 MiB, on two servers behind a proxy."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_proxy import Proxy, counting
from stores import S3_SERVERS, s3_of
from waiting import CEILING

from cmroot.expire.plans import ABANDONED, sweep_staging
from cmroot.keep.content import locate
from cmroot.keep.remote_files import keep_object
from cmroot.root import create_or_open
from cmroot.store import objects
from cmroot.store.place import Place
from cmroot.store.remote import FsspecStore
from replicator.replay.apply import staging
from replicator.replay.apply.transfer import CloneTask, run_clone_task

MIB = 1024 * 1024
ON_VERSITYGW_ONLY = pytest.mark.parametrize("endpoint", S3_SERVERS[1:], indirect=True)  # moto: all uploads are of 2010
DATA = random.Random(1).randbytes(12 * MIB)
OTHER = random.Random(2).randbytes(12 * MIB)
LIMITS = {"WHOLE_COPY": 6 * MIB, "PART": 5 * MIB}


@pytest.fixture(scope="module", params=S3_SERVERS)
def endpoint(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    with s3_of(request.param, request), counting(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        yield proxy


@pytest.fixture
def proxy(endpoint: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    for name, value in LIMITS.items():
        monkeypatch.setattr(objects, name, value)
    return endpoint


@pytest.fixture
def bucket(proxy: Proxy) -> str:
    name = f"parts-{uuid.uuid4().hex}"
    filesystem(f"s3a://{name}").mkdir(name)
    return f"s3a://{name}"


def filesystem(place: str) -> Any:
    return FsspecStore(place).filesystem


def uploads(bucket: str) -> list[str]:
    """Keys of unfinished ones."""
    answer = filesystem(bucket).call_s3("list_multipart_uploads", Bucket=bucket.partition("://")[2])
    return [each["Key"] for each in answer.get("Uploads", ())]


def write(place: str, data: bytes = DATA) -> None:
    filesystem(place).call_s3("put_object", **key(place), Body=data, ContentType="text/x-story")


def key(place: str) -> dict[str, str]:
    bucket, _, name = place.partition("://")[2].partition("/")
    return {"Bucket": bucket, "Key": name}


def test_a_large_object_is_moved_in_parts(proxy: Proxy, bucket: str) -> None:
    write(f"{bucket}/t/staged")
    proxy.taken()
    Place(f"{bucket}/t/staged").move(Place(f"{bucket}/t/part-0"))
    counted = proxy.taken()
    assert counted["COPY"] == 3 and counted["GET"] == 0
    assert Place(f"{bucket}/t/part-0").read_bytes() == DATA
    assert filesystem(bucket).call_s3("head_object", **key(f"{bucket}/t/part-0"))["ContentType"] == "text/x-story"
    assert (filesystem(bucket).find(bucket.partition("://")[2]), uploads(bucket)) == (
        [f"{bucket.partition('://')[2]}/t/part-0"],
        [],
    )


def test_a_large_object_is_kept_and_carried_in_parts(proxy: Proxy, bucket: str) -> None:
    root = create_or_open(f"{bucket}/cmroot").place
    write(f"{bucket}/t/part-0")
    kept = keep_object(root, f"{bucket}/t/part-0")
    assert Place(locate(root, kept.checksum, kept.size)).read_bytes() == DATA
    proxy.taken()
    assert not run_clone_task(CloneTask(root, [(f"{bucket}/t", f"{bucket}/published")]))
    assert proxy.taken()["COPY"] == 3
    assert Place(f"{bucket}/published/part-0").read_bytes() == DATA
    assert (uploads(bucket), Place(f"{bucket}/t").find(), Place(f"{root}/copying").find()) == ([], ["part-0"], [])


def at_second_part(act: Callable[[], None]) -> Callable[[str, str], bool]:
    """Does something when the second part is asked for, and lets it pass."""
    copied: list[str] = []

    def seen(kind: str, path: str) -> bool:
        if kind == "COPY" and "uploadId" in path:
            copied.append(path)
            if len(copied) == 2:
                act()
        return False

    return seen


def test_an_object_that_is_replaced_while_its_parts_are_copied_is_not_mixed(
    proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    write(f"{bucket}/t/part-0")
    behind = boto3.session.Session().client("s3", endpoint_url=proxy.endpoint)
    done: list[bool] = []

    def replace() -> None:
        behind.put_object(**key(f"{bucket}/t/part-0"), Body=OTHER)
        done.append(True)

    monkeypatch.setattr(proxy, "fails", at_second_part(replace))
    store = filesystem(bucket)
    old = objects.original(store, f"{bucket.partition('://')[2]}/t/part-0")
    copied = objects.copy(store, old, f"{bucket.partition('://')[2]}/t/copy")
    assert done and not copied
    assert not Place(f"{bucket}/t/copy").exists() and uploads(bucket) == []
    root = create_or_open(f"{bucket}/cmroot").place
    monkeypatch.setattr(proxy, "fails", at_second_part(lambda: behind.put_object(**key(old_place), Body=DATA)))
    old_place = f"{bucket}/t/part-0"
    kept = keep_object(root, old_place)  # again, as it is then
    assert Place(locate(root, kept.checksum, kept.size)).read_bytes() == DATA
    assert len(Place(f"{root}/files").find()) == 1 and uploads(bucket) == []


def test_a_part_that_is_refused_leaves_nothing(proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(f"{bucket}/t/staged")
    with monkeypatch.context() as patch:
        patch.setattr(proxy, "forbids", lambda path: "partNumber=2" in path)
        with pytest.raises(Exception, match=r"t/part-0.*(AccessDenied|Forbidden|403)"):
            Place(f"{bucket}/t/staged").move(Place(f"{bucket}/t/part-0"))
    assert uploads(bucket) == [] and Place(f"{bucket}/t").find() == ["staged"]
    Place(f"{bucket}/t/staged").move(Place(f"{bucket}/t/part-0"))
    assert Place(f"{bucket}/t/part-0").read_bytes() == DATA


def test_an_upload_whose_last_answer_is_lost_is_complete(
    proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    def once(kind: str, path: str) -> bool:
        new = kind == "POST" and "uploadId" in path and not lost
        lost.extend([path] if new else [])
        return new

    write(f"{bucket}/t/staged")
    monkeypatch.setattr(proxy, "loses", once)
    Place(f"{bucket}/t/staged").move(Place(f"{bucket}/t/part-0"))
    assert lost and Place(f"{bucket}/t").find() == ["part-0"] and uploads(bucket) == []
    assert Place(f"{bucket}/t/part-0").read_bytes() == DATA


KILLED = """
import sys
from cmroot.keep.remote_files import keep_object
from cmroot.store import objects as server_copies
from cmroot.store.place import Place
from replicator.replay.apply.staging import noted
server_copies.WHOLE_COPY, server_copies.PART = {WHOLE_COPY}, {PART}
verb, root, target = sys.argv[1:]
if verb == "keep":
    keep_object(root, target)
else:
    with noted(root, [target]) as attempt:
        staged = attempt.staging(target.rpartition("/")[0])
        Place(target + "-origin").move(Place(staged))
        print("moving", flush=True)
        Place(staged).move(Place(target))
""".format(**LIMITS)


def kill_at_second_part(proxy: Proxy, monkeypatch: pytest.MonkeyPatch, *arguments: str, wait_for: str = "") -> None:
    """The process is killed when it asks for the second part; with `wait_for`: once it has written this line."""
    started: list[subprocess.Popen[str]] = []
    killed: list[int] = []

    def kill() -> None:
        started[0].send_signal(signal.SIGKILL)
        killed.append(started[0].pid)

    command = [sys.executable, "-c", KILLED, *arguments]
    if not wait_for:
        monkeypatch.setattr(proxy, "fails", at_second_part(kill))
    started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]))
    if wait_for:
        assert started[0].stdout is not None and started[0].stdout.readline().strip() == wait_for
        monkeypatch.setattr(proxy, "fails", at_second_part(kill))
    assert started[0].wait(CEILING) == -signal.SIGKILL and killed
    monkeypatch.setattr(proxy, "fails", lambda kind, path: False)


@ON_VERSITYGW_ONLY
def test_what_a_killed_keeping_leaves_is_swept_from_the_root(
    proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = create_or_open(f"{bucket}/cmroot").place
    write(f"{bucket}/t/part-0")
    kill_at_second_part(proxy, monkeypatch, "keep", root, f"{bucket}/t/part-0")
    (left,) = uploads(bucket)
    assert left.startswith("cmroot/files/")
    others = filesystem(bucket).call_s3("create_multipart_upload", **key(f"{bucket}/cmroot-of-others/f"))
    sweep_staging(root, time.time())  # too young: it may be somebody's
    assert len(uploads(bucket)) == 2
    sweep_staging(root, time.time() + ABANDONED.total_seconds() + 60)
    assert uploads(bucket) == [others["Key"]]


@ON_VERSITYGW_ONLY
def test_what_a_killed_attempt_leaves_is_swept_from_its_directories(
    proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = create_or_open(f"{bucket}/cmroot").place
    write(f"{bucket}/t/part-0-origin")
    others = filesystem(bucket).call_s3("create_multipart_upload", **key(f"{bucket}/t/part-00"))
    kill_at_second_part(proxy, monkeypatch, "place", root, f"{bucket}/t/part-0", wait_for="moving")
    assert sorted(uploads(bucket)) == ["t/part-0", "t/part-00"]
    names = [name for name in Place(f"{bucket}/t").list() if name.startswith(staging.STAGING)]
    assert len(names) == 2 and any(name.endswith(objects.NOTE) for name in names)
    assert staging.sweep_staging(root) == 2
    assert uploads(bucket) == [others["Key"]] and Place(f"{bucket}/t").list() == []
    staging.sweep_staging(root)


@pytest.mark.parametrize("size", [5 * 1024**3 + 1, 300 * 1024**3, 5 * 1024**4, 50 * 1000**4])
def test_no_object_has_more_parts_than_an_upload_may(size: int) -> None:
    step = objects.part_size(size)
    assert 5 * MIB <= step <= 5 * 1024**3 and -(-size // step) <= 10_000
