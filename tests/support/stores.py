"""The stores of the conformance suite: a directory, fsspec's memory store, HDFS, S3 of two servers, GCS, Azure."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from metastores import shared
from object_servers import ACCOUNT, environment, make_bucket
from pool import Pool
from versity import ON_VERSITYGW, Versity

from cmroot.root import create_or_open
from cmroot.store.drivers import filesystem_of
from cmroot.store.place import Place, join
from cmroot.store.remote import FsspecStore
from replicator.metastore.embedded.running import Running

STORES: list[Any] = ["local", "memory"]
if find_spec("moto") and find_spec("s3fs"):  # an S3 endpoint in this process, where its packages are installed
    STORES.append("s3")
if find_spec("s3fs"):
    STORES.append(pytest.param("versitygw", marks=ON_VERSITYGW))
if find_spec("hdfs_native"):
    STORES.append(pytest.param("hdfs", marks=pytest.mark.hdfs))
if find_spec("gcsfs"):
    STORES.append(pytest.param("gs", marks=pytest.mark.gcs))
if find_spec("adlfs"):
    STORES.append(pytest.param("abfss", marks=pytest.mark.azure))


ALWAYS = ("local", "memory")
EACH = ("test_cmroot_place.py", "test_cmroot_lease.py")
"""Modules in which every test runs on every store: its operations one by one, and the lease."""

S3_SERVERS = ["moto", pytest.param("versitygw", marks=ON_VERSITYGW)]
"""For tests that run on both: see `s3_of`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of what is built on stores runs on a directory, in memory, and on one of the servers: one test after the
    other takes the next, so that modules are tried on all of them together. The whole product is `long`."""
    servers = [each for each in (getattr(store, "values", (store,))[0] for store in STORES) if each not in ALWAYS]
    for item in items:
        store = item.callspec.params.get("place") if isinstance(item, pytest.Function) and has_params(item) else None
        if store in servers and item.path.name not in EACH and store != servers[_turn(item) % len(servers)]:
            item.add_marker(pytest.mark.long)


def has_params(item: pytest.Function) -> bool:
    return hasattr(item, "callspec")


def _turn(item: pytest.Function) -> int:
    """The number of a test among those of its module, whichever were selected; modules begin with different stores."""
    tests = [name for name in vars(item.module) if name.startswith("test_")]
    return tests.index(item.originalname) + crc32(item.path.name.encode())


@contextmanager
def s3_of(kind: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """An S3 endpoint, which the environment names meanwhile; a filesystem of it. kind: of `S3_SERVERS`."""
    filesystem_of.cache_clear()  # their buckets may have the same names
    if kind == "moto":
        with s3_server() as filesystem:
            yield filesystem
    else:
        server: Versity = request.getfixturevalue("versitygw")
        with environment(server.environment):
            yield new_filesystem()
    filesystem_of.cache_clear()


def new_filesystem() -> Any:
    """Of the S3 server that the environment names."""
    s3fs = pytest.importorskip("s3fs", reason="the s3 extra is not installed")
    return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)


@cache
def one_put_at_a_time() -> None:
    """Makes writes of moto atomic, as those of S3 are: it checks If-None-Match and writes in two steps, and told two
    writers on a busy machine that each had created the object."""
    from moto.s3.responses import S3Response

    put, lock = S3Response.put_object, threading.Lock()

    def locked(self: Any, *given: Any, **named: Any) -> Any:
        with lock:
            return put(self, *given, **named)

    S3Response.put_object = locked


@contextmanager
def s3_server() -> Iterator[Any]:
    """An S3 endpoint in this process, which the environment names meanwhile; a filesystem of it. All of a process have
    the same buckets."""
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    one_put_at_a_time()
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    filesystem_of.cache_clear()  # a bucket that was served by an earlier one has this address now
    host, port = server.get_host_and_port()
    named = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }
    with environment(named):
        yield new_filesystem()
    server.stop()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[None]:
    with s3_server():
        FsspecStore("s3://cmroot-test").filesystem.makedirs("cmroot-test", exist_ok=True)
        yield


@pytest.fixture(scope="session")
def gcs_bucket(gcs: str, pool: Pool) -> str:
    pool.value("gcs-bucket", lambda: make_bucket(gcs, "cmroot-test"))
    return "gs://cmroot-test"


@pytest.fixture(scope="session")
def azure_container(azure: str, pool: Pool) -> str:
    place = f"abfss://cmroot-test@{ACCOUNT}.dfs.core.windows.net"
    pool.value("azure-container", lambda: FsspecStore(place).filesystem.mkdir("cmroot-test"))
    return place


@pytest.fixture(scope="session")
def versitygw_bucket(versitygw: Versity, pool: Pool) -> tuple[str, Versity]:
    with environment(versitygw.environment):
        pool.value("versitygw-bucket", lambda: new_filesystem().mkdir("cmroot-on-versitygw"))
    return "s3a://cmroot-on-versitygw", versitygw


@pytest.fixture(scope="module", params=S3_SERVERS)
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    """A bucket of the module's own: all moto's endpoints of a process have the same ones."""
    with s3_of(request.param, request) as filesystem:
        filesystem.mkdir(name := f"bucket-{uuid.uuid4().hex}")
        yield f"s3a://{name}"


@pytest.fixture(scope="module")
def moto_bucket() -> Iterator[str]:
    """For tests that take long and ask the store for little."""
    with s3_server() as filesystem:
        filesystem.mkdir(name := f"bucket-{uuid.uuid4().hex}")
        yield f"s3a://{name}"


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place of each kind."""
    if request.param == "local":
        yield str(tmp_path)
        return
    if request.param == "hdfs":
        yield (place := f"{request.getfixturevalue('hdfs').url}/{uuid.uuid4().hex}")
        Place(place).remove_tree()
        return
    if request.param == "versitygw":
        bucket, server = request.getfixturevalue("versitygw_bucket")
        with environment(server.environment):
            yield (place := f"{bucket}/{uuid.uuid4().hex}")
            Place(place).remove_tree()
        return
    store = {
        "memory": lambda: "memory:/",
        "s3": lambda: request.getfixturevalue("s3_endpoint") or "s3a://cmroot-test",
        "gs": lambda: request.getfixturevalue("gcs_bucket"),
        "abfss": lambda: request.getfixturevalue("azure_container"),
    }[request.param]()
    place = f"{store}/{uuid.uuid4().hex}"
    yield place
    Place(place).remove_tree()


@pytest.fixture
def root(place: str) -> str:
    """A change-management root in each kind of place."""
    return create_or_open(join(place, "cmroot")).place


@pytest.fixture
def local_root(tmp_path: Path) -> str:
    return create_or_open(str(tmp_path / "cmroot")).place


S3A_BUCKETS = [
    f"s3a://{name}" for name in ("noticed", "noticed-target", "life", "counted", "own-moto", "own-versitygw", "iceberg")
]
"""Buckets of the metastores of `on_s3a`."""


@pytest.fixture(scope="module")
def on_s3a(pool: Pool) -> Iterator[Callable[[str], Running]]:
    """`on_s3a("source")`: a metastore with S3A_BUCKETS (`s3a_as_directories`), for all tests of a run. Make databases
    of your own in it; they are dropped when the module ends."""
    mounts = pool.place("s3a-mounts")
    mounts.mkdir(parents=True, exist_ok=True)
    with shared(pool) as metastore:
        yield lambda name: metastore(f"s3a-{name}", settings=s3a_as_directories(mounts, S3A_BUCKETS))


def s3a_as_directories(mounts: Path, buckets: Sequence[str]) -> dict[str, str]:
    """Settings of a metastore that has the schemes of these buckets and, as a stock one, no `s3:`. Its buckets are
    local directories, by Hadoop's own mount table, in which it makes and removes directories; objects are ours to
    write and remove."""
    settings = {"fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.LocalFileSystem"}
    for bucket in buckets:
        scheme, _, authority = bucket.partition("://")
        settings[f"fs.{scheme}.impl"] = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
        (mounts / authority).mkdir(exist_ok=True)
        settings[f"fs.viewfs.mounttable.{authority}.linkFallback"] = f"file://{mounts / authority}/"
    return settings
