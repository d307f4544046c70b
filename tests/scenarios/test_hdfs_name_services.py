"""A whole replication between two name services of HDFS, named by a Hadoop configuration alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from command_line import command
from hadoop import Cluster, write_settings
from hdfs_path import HdfsPath
from metastores import MetastoreFactory
from name_services import NameService, running_name_service
from plain_tables import PlainDatabase

import replicator
from cmroot.store.place import Place
from replicator.core.runtime import Advance, Silent
from replicator.errors import Error
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

pytestmark = pytest.mark.hdfs

PARTITIONS = 16


@pytest.fixture(scope="module")
def two(hdfs: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameService]:
    with running_name_service(tmp_path_factory.mktemp("two"), "two") as service:
        yield service


@pytest.fixture(scope="module")
def known(hdfs: Cluster, two: NameService) -> dict[str, str]:
    """Both: `one` has a single NameNode."""
    one = {"dfs.namenode.rpc-address.one": urlsplit(hdfs.url).netloc, "dfs.namenode.http-address.one": hdfs.web[7:]}
    return {"dfs.nameservices": "one,two"} | one | two.client


@pytest.fixture(scope="module")
def both(metastore_factory: MetastoreFactory, known: dict[str, str]) -> Running:
    return metastore_factory("both", settings={"fs.defaultFS": "hdfs://one"} | known)


@pytest.fixture(autouse=True)
def configured(known: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = {f"fs.viewfs.mounttable.all.link./{name}": f"hdfs://{name}/{tmp_path.name}" for name in ("one", "two")}
    mounts["fs.viewfs.mounttable.all.linkFallback"] = f"hdfs://one/{tmp_path.name}"
    write_settings(tmp_path / "core-site.xml", {"fs.defaultFS": "hdfs://one"} | mounts)
    pauses = {f"dfs.client.failover.sleep.{kind}.millis": "200" for kind in ("base", "max")}  # by default, up to 15 s
    write_settings(tmp_path / "hdfs-site.xml", known | pauses | {"dfs.client.failover.max.attempts": "1000"})
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))


def test_a_mount_table_leads_to_both(hdfs: Cluster, tmp_path: Path) -> None:
    for name in ("one", "two"):
        Place(f"hdfs://{name}/{tmp_path.name}/x").write_bytes(b"old")
        Place(f"viewfs://all/{name}/a/f").write_bytes(name.encode())
        assert Place(f"hdfs://{name}/{tmp_path.name}/a/f").read_bytes() == name.encode()
        assert Place(f"viewfs://all/{name}").list() and Place(f"viewfs://all/{name}/a/f").size() == 3


class FirstFile(Silent):
    """Calls `act` once, when the first file has come and the others have not."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act, self._lock, self.called = act, threading.Lock(), False

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None, **amounts: Any) -> Iterator[Advance]:
        def advance(steps: int = 1, *, files: int = 0, size: int = 0) -> None:
            with self._lock:
                first, self.called = bool(files) and not self.called, self.called or bool(files)
            if first:
                self._act()

        yield advance


def fail_over(service: NameService) -> None:
    service.kill("nn1")
    service.activate("nn2")


def test_a_load_goes_on_at_the_other_name_node(both: Running, hdfs: Cluster, two: NameService, tmp_path: Path) -> None:
    """The active one loses its power while files are copied."""
    metastore = connect(both.uri)
    source = PlainDatabase(metastore, "served", HdfsPath(hdfs, f"/{tmp_path.name}/warehouse"))
    here, replica = f"hdfs://one/{tmp_path.name}", f"hdfs://two/{tmp_path.name}"
    source.create()
    source.partitioned("parts", {f"x{number}": {"f": f"{number}\tx\n"} for number in range(PARTITIONS)})
    sides = ("--db", "served", "--engine", "local")
    dumped = command("dump", "--source", both.uri, "--cmroot", f"{here}/cmroot", "--out", f"{here}/dump", *sides)
    assert dumped.code == 0, dumped
    renamed = ("--rename-db", "served=copy")
    load = ("load", f"{here}/dump", "--target", both.uri, "--warehouse", replica, "--engine", "local", *renamed)
    seen = FirstFile(lambda: fail_over(two))
    try:
        loaded = replicator.load(
            f"{here}/dump",
            target=both.uri,
            warehouse=replica,
            rename_db={"served": "copy"},
            engine="local",
            progress=seen,
        )
        assert loaded.status == "loaded"
    except Error as error:
        assert error.exit_code == 75
        assert command(*load).code == 0
    assert seen.called
    compared = command("verify", "--source", both.uri, "--target", both.uri, *sides, *renamed, "--level", "crc")
    assert (compared.code, compared.output["files"], compared.output["files_read"]) == (0, PARTITIONS, 0), compared
