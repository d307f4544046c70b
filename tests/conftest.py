"""Real metastores for tests, each the server of pyspark's jars on a directory of its own; and filesystems that fill."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gateways import Guarded, guarded
from hypothesis import settings
from lab import Lab
from metastores import MetastoreFactory, borrow, drop_databases, emptied, shared
from pool import Pool
from purges import Warehouse
from shared_classes import use_shared_classes

from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore, connect

# A server of a test lives for a minute: the second compiler costs it a third of that and never pays.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

if "PYTEST_XDIST_WORKER" not in os.environ:  # its workers find them in their environment
    use_shared_classes(os.environ)

# REPLICATOR_TEST_HIVE=4.2: what a module's metastores are, where it does not say so itself.
VERSION: dict[str, object] = (
    {"hive": os.environ["REPLICATOR_TEST_HIVE"]} if "REPLICATOR_TEST_HIVE" in os.environ else {}
)
if VERSION.get("hive") == "3.1":
    VERSION["host"] = "0.0.0.0"

# The same examples each time where a run gates a change; new ones everywhere else.
settings.register_profile("new", deadline=None)
settings.register_profile("gate", deadline=None, derandomize=True)
settings.load_profile("gate" if os.environ.get("CI") else "new")


pytest_plugins = [
    "filesystems",
    "long_tests",
    "run_order",
    "pool",
    "object_servers",
    "versity",
    "postgres",
    "mariadb",
    "stores",
    "kerberos",
    "hadoop",
    "key_server",
    "spark_cluster",
    "yarn",
    "browser",
    "running_service",
]


@pytest.fixture(scope="module")
def metastore_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetastoreFactory]:
    """`metastore_factory(name="source", **settings of start) -> Running`; all are stopped when the module ends: an idle
    server takes 300 MB, and some of the processor."""
    directories: list[Path] = []

    def start(name: str = "metastore", directory: Path | None = None, **options: object) -> Running:
        place = directory or tmp_path_factory.mktemp(name)
        directories.append(place)
        return embedded.start(place, **{"env": os.environ, **VERSION, **options})  # type: ignore[arg-type]

    yield start
    for directory in directories:
        embedded.stop(directory)


@pytest.fixture(scope="module")
def hives(pool: Pool, request: pytest.FixtureRequest) -> Iterator[Callable[..., Running]]:
    """`hives("4.2")`, `hives("4.2", "target", "postgres")`: a metastore of this version of Hive, the same one for all
    tests of a run that ask for the same names. Make databases of your own in it (`unique`); they are dropped when the
    module ends."""

    def start(hive: str, name: str = "source", database: str = "derby") -> Running:
        host = "0.0.0.0" if hive == "3.1" else "127.0.0.1"
        key = f"hive-{hive}-{name}-{database}"
        if database == "derby":
            return metastore(key, hive=hive, host=host)
        settings = pool.value(key, lambda: request.getfixturevalue("postgres").jdbc())
        return metastore(key, hive=hive, host=host, settings=settings)

    with shared(pool) as metastore:
        yield start


@pytest.fixture(scope="module")
def without_log(pool: Pool) -> Iterator[Running]:
    """A metastore that writes no notification log, the same one for all tests of a run. Make databases of your own."""
    with shared(pool) as metastore:
        listeners = ("hive.metastore.transactional.event.listeners", "hive.metastore.event.listeners")
        yield metastore("without-log", settings=dict.fromkeys(listeners, ""), **VERSION)


@pytest.fixture(scope="module")
def source_metastore(pool: Pool, request: pytest.FixtureRequest) -> Iterator[Running]:
    """A metastore to replicate from. Earlier tests have used it: make databases of your own (`unique`)."""
    yield from emptied_side(request, pool, "source")


@pytest.fixture(scope="module")
def target_metastore(pool: Pool, request: pytest.FixtureRequest) -> Iterator[Running]:
    """A second one, to replicate to."""
    yield from emptied_side(request, pool, "target")


def emptied_side(request: pytest.FixtureRequest, pool: Pool, name: str) -> Iterator[Running]:
    """A metastore whose databases are dropped when the module ends."""
    running = started_or_borrowed(request, pool, name)
    yield running
    if not request.node.get_closest_marker("own_metastores"):
        emptied(running)


def started_or_borrowed(request: pytest.FixtureRequest, pool: Pool, name: str) -> Running:
    """A new server for modules marked `own_metastores`, else this worker's of the pool."""
    if request.node.get_closest_marker("own_metastores"):
        started: Running = request.getfixturevalue("metastore_factory")(name)
        return started
    return borrow(pool, name, **VERSION)


@pytest.fixture(scope="module")
def metastore(source_metastore: Running) -> Iterator[ThriftMetastore]:
    """A client of the source's metastore."""
    with connect(source_metastore.uri) as client:
        yield client


@pytest.fixture(scope="module")
def warehouse(source_metastore: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """The source's metastore, with a Spark session."""
    made = Warehouse(source_metastore, tmp_path_factory.mktemp("purge"))
    before = set(made.metastore.database_names())
    yield made
    for name in set(made.metastore.database_names()) - before:  # tests of removals have short names for them
        made.drop(name)
    made.close()


@pytest.fixture
def fixture(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Iterator[Lab]:
    """An empty database of the source, and nothing captured yet."""
    made = Lab(source_metastore, target_metastore, tmp_path)
    made.source.create()
    yield made
    drop_databases(target_metastore, re.compile(made.name))


@pytest.fixture
def pair(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Iterator[Lab]:
    """A policy without databases yet."""
    made = Lab(source_metastore, target_metastore, tmp_path)
    yield made
    drop_databases(target_metastore, re.compile(made.name))


@pytest.fixture
def two_databases(pair: Lab) -> Lab:
    """Two databases in step, one of them called otherwise on the target."""
    pair.keys["rename_db"] = {f"{pair.name}_b": f"{pair.name}_renamed"}
    pair.db("a").table("t", {"first": "1"})
    pair.db("a").partitioned("days", {"1": {"x": "one"}})
    pair.db("b").table("u", {"first": "1"})
    pair.sync()
    return pair


@pytest.fixture
def guard(source_metastore: Running, tmp_path: Path) -> Iterator[Guarded]:
    """A gateway before the source's metastore, with a database to drop from."""
    with guarded(source_metastore, tmp_path) as made:
        yield made


@pytest.fixture
def forgetful(metastore_factory: MetastoreFactory, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts a third metastore, again with other settings for the same data. It runs only while it is needed."""
    directory = tmp_path / "forgetful"

    def start(**settings: str) -> Running:
        embedded.stop(directory)
        return metastore_factory(directory=directory, settings=settings)

    yield start
    embedded.stop(directory)


@pytest.fixture
def immutable() -> Iterator[Callable[[Path], None]]:
    """`immutable(directory)`: no name in it comes or goes, not even for root, for the length of the test."""
    frozen: list[Path] = []

    def freeze(directory: Path) -> None:
        done = subprocess.run(["chattr", "+i", str(directory)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no directory can be made immutable here: {done.stderr.strip()}")
        frozen.append(directory)

    yield freeze
    for directory in frozen:
        subprocess.run(["chattr", "-i", str(directory)], check=True)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """`small("size=2m")`: a filesystem with these options, mounted for the length of the test; again: remounted."""
    place = tmp_path / "small"

    def mount(options: str) -> Path:
        again = ["-o", f"remount,{options}"] if place.is_mount() else ["-t", "tmpfs", "-o", options]
        place.mkdir(exist_ok=True)
        command = ["mount", *again, "none", str(place)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
        return place

    yield mount
    if place.is_mount():
        subprocess.run(["umount", "--lazy", str(place)], check=True)
