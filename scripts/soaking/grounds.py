"""Where a soak's data lies, who serves it, and readers of it that share nothing with the product."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hadoop import DATANODE, running_hdfs
from hdfs_path import HdfsPath
from spark_cluster import SparkCluster, bare_python
from stores import s3a_as_directories
from versity import Versity, running_versity

from replicator.metastore.embedded.server_process import free_port
from soaking.mortals import Mortal

BUCKET = "replica"
_PATIENCE = 20.0  # seconds that a kill waits for an executor


class DiskGround:
    """Both sides on this machine's disk. `data`: of the source's databases. `keys`: of the policy."""

    def __init__(self, here: Path) -> None:
        self.data: Any = here / "data"
        self.metastore_settings: Mapping[str, Mapping[str, str]] = {"source": {}, "target": {}}
        self.mortals: list[Mortal] = []
        self.keys = {
            "cmroot": f"{here}/cmroot",
            "target_cmroot": f"{here}/replica/.cmroot",
            "dumps": f"{here}/dumps",
            "warehouse": f"{here}/replica",
        }

    def exists(self, uri: str) -> bool:
        return Path(uri.removeprefix("file:")).exists()

    def walk(self, uri: str) -> Iterator[tuple[str, bytes]]:
        yield from read_below(Path(uri.removeprefix("file:")))


class ClusterGround:
    """The source on HDFS, the replica on S3, the work on a Spark cluster of two workers; all of them die. Tells this
    process' environment of them."""

    def __init__(self, here: Path, stack: contextlib.ExitStack, dice: random.Random) -> None:
        self._hdfs = stack.enter_context(running_hdfs(here / "hdfs"))
        self._s3 = stack.enter_context(running_versity(here / "s3"))
        (self._s3.directory / "objects" / BUCKET).mkdir()
        os.environ |= self._s3.environment | {"HADOOP_CONF_DIR": str(self._hdfs.conf), "SPARK_CONF_DIR": str(here)}
        packages = [f"{name}=={version(name)}" for name in ("hdfs-native", "s3fs")]
        spark = SparkCluster(here / "spark", bare_python(*packages), free_port())
        spark.directory.mkdir()
        stack.callback(spark.stop)
        spark.start()
        (here / "spark-defaults.conf").write_text(f"spark.master {spark.url}\nspark.executor.memory 512m\n")
        mounts = here / "mounts"
        mounts.mkdir()
        replica, top = f"s3a://{BUCKET}", HdfsPath(self._hdfs, "/soak")
        self.data: Any = top / "data"
        self.metastore_settings: Mapping[str, Mapping[str, str]] = {
            "source": {"fs.defaultFS": self._hdfs.url},
            "target": s3a_as_directories(mounts, [replica]),
        }
        self.mortals: list[Mortal] = [_DataNode(self), _S3(self._s3), _Executor(spark, dice)]
        self.keys = {
            "cmroot": f"{top}/cmroot",
            "target_cmroot": f"{replica}/warehouse/.cmroot",
            "dumps": f"{top}/dumps",
            "warehouse": f"{replica}/warehouse",
            "engine": "spark",
        }

    def exists(self, uri: str) -> bool:
        return self._object(uri).exists()

    def walk(self, uri: str) -> Iterator[tuple[str, bytes]]:
        if uri.startswith("s3a:"):
            yield from read_below(self._object(uri))
            return
        top = HdfsPath(self._hdfs, uri.removeprefix(self._hdfs.url))
        for file in top.rglob("*"):
            yield file.relative_to(top), file.read_bytes()

    def kill_data_node(self) -> None:
        self._hdfs.kill(DATANODE)

    def start_data_node(self) -> None:
        self._hdfs.start()

    def _object(self, uri: str) -> Path:
        """The server's own file of an object."""
        return self._s3.directory / "objects" / uri.removeprefix("s3a://")


class _DataNode:
    name = "DataNode"

    def __init__(self, ground: ClusterGround) -> None:
        self.kill, self.start = ground.kill_data_node, ground.start_data_node


class _S3:
    name = "S3 server"

    def __init__(self, server: Versity) -> None:
        self.kill, self.start = server.kill, server.start


class _Executor:
    """One of those that work, which Spark itself replaces."""

    name = "executor"

    def __init__(self, cluster: SparkCluster, dice: random.Random) -> None:
        self._cluster, self._dice = cluster, dice

    def kill(self) -> bool:
        deadline = time.monotonic() + _PATIENCE
        while not (found := sorted(self._cluster.executors())):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._dice.choice(found), signal.SIGKILL)
            return True
        return False

    def start(self) -> None:
        pass


def read_below(home: Path) -> Iterator[tuple[str, bytes]]:
    """Files below a directory, without those in hidden ones."""
    for above, directories, names in os.walk(home):
        directories[:] = [each for each in directories if not each.startswith(".")]
        for path in (Path(above) / each for each in names):
            yield str(path.relative_to(home)), path.read_bytes()
