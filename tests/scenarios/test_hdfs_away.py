"""Servers of HDFS that do not answer, and a filesystem that takes no changes: told as such, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from command_line import Answer, command
from hadoop import DATANODE, NAMENODE, Cluster, running_hdfs
from hdfs_path import HdfsPath
from lab import Lab
from metastores import MetastoreFactory
from plain_tables import PlainDatabase

from cmroot.store.place import Place, give_rights, make_inheriting
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

pytestmark = pytest.mark.hdfs


@pytest.fixture(scope="module")
def own(hdfs: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A filesystem that tests may take away; `hdfs` says whether there can be one."""
    with running_hdfs(tmp_path_factory.mktemp("own"), **{"dfs.namenode.acls.enabled": "false"}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def both(metastore_factory: MetastoreFactory, own: Cluster) -> Running:
    return metastore_factory("away", settings={"fs.defaultFS": own.url})


@pytest.fixture(scope="module")
def loaded(both: Running, own: Cluster) -> Lab:
    """A replica, and an increment that waits."""
    here = HdfsPath(own, "/away")
    found = Lab(both, both, here, warehouse=here / "replica")  # type: ignore[arg-type]
    found.source = PlainDatabase(connect(both.uri), found.name, here / "warehouse")
    found.source.create()
    found.source.table("t", {"f": "1\tone\n"})
    assert found.dump().code == 0
    assert load(found).code == 0
    found.source.write("t", {"g": "2\ttwo\n"})
    return found


def test_without_acls_a_file_gets_the_rights_that_there_are(own: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """And none is reported as lacking: its NameNode has them switched off."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(own.conf))
    old, new = f"{own.url}/rights/old", f"{own.url}/rights/new"
    for each in (old, new):
        Place(each).write_bytes(b"bytes")
    own.run("org.apache.hadoop.fs.FsShell", "-chmod", "640", old)
    assert not give_rights(old, new)
    assert "-rw-r-----" in own.run("org.apache.hadoop.fs.FsShell", "-ls", new)
    make_inheriting(f"{own.url}/rights/made", f"{own.url}/rights")
    assert Place(f"{own.url}/rights/made").exists()


def renamed(found: Lab) -> tuple[str, str]:
    return "--rename-db", f"{found.name}={found.name}_copy"


def load(found: Lab) -> Answer:
    return found.load(None, *renamed(found))


def verify(found: Lab) -> Answer:
    sides = ("--source", found.source_uri, "--target", found.target_uri, "--db", found.name)
    return command("verify", *sides, *renamed(found), "--engine", "local")


COMMANDS: dict[str, Callable[[Lab], Answer]] = {
    "capture": lambda found: found.capture(),
    "dump": lambda found: command(*found.dump_arguments(found.here / "more", since=found.last)),
    "load": load,
    "verify": verify,
    "cm ls": lambda found: command("cm", "ls", "--cmroot", str(found.cmroot)),
    "cm expire": lambda found: command("cm", "expire", "--cmroot", str(found.cmroot), "--older-than", "1d"),
}


def test_a_name_node_that_is_away_is_told(own: Cluster, loaded: Lab, impatient: None) -> None:
    own.kill(NAMENODE)
    try:
        answers = {name: run(loaded) for name, run in COMMANDS.items()}
    finally:
        own.start()
    for name, answer in answers.items():
        assert answer.code == 75 and own.url in answer.message, (name, answer)
        assert "run the same command again" in answer.output["hint"]


def test_a_data_node_that_is_away_is_told(own: Cluster, loaded: Lab) -> None:
    own.kill(DATANODE)
    try:
        answers = {name: run(loaded) for name, run in COMMANDS.items()}
    finally:
        own.start()
    for name, answer in answers.items():
        assert answer.code == 75 and own.url in answer.message, (name, answer)


def test_safe_mode_is_told_by_what_writes(own: Cluster, loaded: Lab) -> None:
    own.run("org.apache.hadoop.hdfs.tools.DFSAdmin", "-safemode", "enter")
    try:
        answers = {name: run(loaded) for name, run in COMMANDS.items()}
    finally:
        own.run("org.apache.hadoop.hdfs.tools.DFSAdmin", "-safemode", "leave")
    for name, answer in answers.items():
        if name in ("verify", "cm ls"):
            assert answer.code == (4 if name == "verify" else 0), (name, answer)
        else:
            assert answer.code == 75 and "safe mode" in answer.message, (name, answer)


def test_what_waited_arrives_afterwards(loaded: Lab) -> None:
    assert verify(loaded).code == 4
    assert command(*loaded.dump_arguments(loaded.here / "rest", since=loaded.last)).code == 0
    answer = loaded.load(loaded.here / "rest", *renamed(loaded))
    assert answer.code == 0, answer
    assert verify(loaded).code == 0
