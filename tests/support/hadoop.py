"""A NameNode and a DataNode of Hadoop, from a Maven repository, in a directory of their own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest
from distance import far_away
from fetched_jars import fetched_jars
from metastores import shared
from pool import Pool
from waiting import CEILING, eventually

from replicator.errors import JavaError
from replicator.metastore.embedded.running import Running
from replicator.metastore.embedded.server_process import free_port
from replicator.metastore.java import find_java

VERSION = "3.4.2"
NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
FAR, WAY = 0.004, "way"  # seconds to a NameNode that is not near; the process that takes them
KEY_PROVIDER = "hadoop.security.key.provider.path"
AUDIT = """\
log4j.rootLogger=WARN,CONSOLE
log4j.appender.CONSOLE=org.apache.log4j.ConsoleAppender
log4j.appender.CONSOLE.layout=org.apache.log4j.PatternLayout
log4j.appender.CONSOLE.layout.ConversionPattern=%d %p %c: %m%n
log4j.logger.org.apache.hadoop.hdfs.server.namenode.FSNamesystem.audit=INFO,AUDIT
log4j.additivity.org.apache.hadoop.hdfs.server.namenode.FSNamesystem.audit=false
log4j.appender.AUDIT=org.apache.log4j.FileAppender
log4j.appender.AUDIT.File={file}
log4j.appender.AUDIT.layout=org.apache.log4j.PatternLayout
log4j.appender.AUDIT.layout.ConversionPattern=%m%n
"""


def jars() -> Path:
    """The directory of Hadoop's jars, fetched when they are not there."""
    return fetched_jars(f"hadoop/{VERSION}", "hadoop_jars.txt")


@dataclass
class Cluster:
    """url: of the filesystem. web: of the NameNode's HTTP server. conf: a Hadoop configuration directory.

    The first port is the way of clients to the NameNode. It is 4 ms long (`distance`) where a sixth is the NameNode's
    own: a client that asks at once whether a file has ended is faster than the only DataNode's report, and then waits
    for half a second."""

    directory: Path
    ports: tuple[int, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    java: tuple[str, ...] = ()  # its executable and options; the first one found if empty
    headers: Callable[[], dict[str, str]] = dict
    """Of a request to the NameNode's HTTP server: proof of identity, where it wants one."""
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"hdfs://{self.host}:{self.ports[0]}"

    @property
    def web(self) -> str:
        return f"http://{self.host}:{self.ports[1]}"

    @property
    def conf(self) -> Path:
        return self.directory / "conf"

    @property
    def audit(self) -> Path:
        """The NameNode's log of calls: `cmd=listStatus src=/a/b`, one a line."""
        return self.directory / "audit.log"

    def start(self) -> None:
        """Starts what does not run, and waits until files can be written."""
        if not self.conf.exists():
            self._configure()
            self._java(NAMENODE, "-format", "-nonInteractive").wait(CEILING)
        for server in (NAMENODE, DATANODE):
            if server not in self._running or self._running[server].poll() is not None:
                self._running[server] = self._java(server)
        if self.ports[0] != self._own_port and WAY not in self._running:
            self._running[WAY] = far_away(self._own_port, FAR, self.ports[0])
        eventually(lambda: self._ready() or self._has_died(), self._log)
        if self._has_died():
            raise RuntimeError(self._log())

    def _has_died(self) -> bool:
        return any(each.poll() is not None for each in self._running.values())

    def _log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-5000:]

    def kill(self, server: str) -> None:
        """`server` is NAMENODE or DATANODE; as a machine that loses its power."""
        for name in (WAY, server) if server == NAMENODE and WAY in self._running else (server,):
            process = self._running.pop(name)
            process.kill()
            process.wait()

    def stop(self) -> None:
        for server in self._running.values():
            server.kill()
        for server in self._running.values():
            server.wait()

    @property
    def _own_port(self) -> int:
        return self.ports[5] if len(self.ports) > 5 else self.ports[0]

    @property
    def processes(self) -> list[int]:
        return [server.pid for server in self._running.values()]

    def run(self, *arguments: str, user: str | None = None) -> str:
        """One of Hadoop's own commands, such as `org.apache.hadoop.fs.FsShell -ls /`; what it printed."""
        more = {"HADOOP_USER_NAME": user} if user else {}
        return subprocess.run(
            self._command(*arguments), check=True, capture_output=True, text=True, env={**os.environ, **more}
        ).stdout

    def _ready(self) -> bool:
        query = f"{self.web}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        request = urllib.request.Request(query, headers=self.headers())
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5) as answer:
            said = answer.read().decode()
            if '"NumLiveDataNodes" : 1' in said and '"FSState" : "Operational"' in said:
                with socket.create_connection(("127.0.0.1", self.ports[2])):  # one that was killed is live for minutes
                    return True
        return False

    def _command(self, *arguments: str) -> list[str]:
        java = self.java or (str(find_java(os.environ).executable),)
        opened = "--add-opens=java.base/java.lang=ALL-UNNAMED"
        return [*java, "-Xmx384m", opened, "-cp", f"{self.conf}:{jars()}/*", *arguments]

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(self._command(*arguments), stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _configure(self) -> None:
        self.conf.mkdir(parents=True)
        rpc, web, data, data_web, data_ipc = self.ports[:5]
        write_settings(self.conf / "core-site.xml", {"fs.defaultFS": f"hdfs://{self.host}:{rpc}"} | dict(self.settings))
        sites = {
            "dfs.namenode.rpc-address": f"{self.host}:{self._own_port}",
            "dfs.namenode.name.dir": f"file://{self.directory}/name",
            "dfs.datanode.data.dir": f"file://{self.directory}/data",
            "dfs.replication": "1",
            "dfs.namenode.http-address": f"{self.host}:{web}",
            "dfs.datanode.address": f"127.0.0.1:{data}",
            "dfs.datanode.http.address": f"{self.host}:{data_web}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{data_ipc}",
            "dfs.datanode.hostname": self.host,
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.acls.enabled": "true",
            "dfs.namenode.snapshot.capture.openfiles": "true",
            "dfs.namenode.safemode.extension": "0",
            "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "2",  # of the DataNode, for WebHDFS
        }
        write_settings(self.conf / "hdfs-site.xml", sites | dict(self.settings))
        (self.conf / "log4j.properties").write_text(AUDIT.format(file=self.audit))


def write_settings(path: Path, settings: Mapping[str, str]) -> None:
    rows = (f"<property><name>{escape(k)}</name><value>{escape(v)}</value></property>" for k, v in settings.items())
    path.write_text(f"<configuration>\n{chr(10).join(rows)}\n</configuration>\n")


@contextlib.contextmanager
def running_hdfs(directory: Path, **settings: str) -> Iterator[Cluster]:
    """A filesystem of its own; gone afterwards."""
    cluster = Cluster(directory, tuple(free_port() for _ in range(6)), settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def hdfs(pool: Pool) -> Cluster:
    """One for all tests of a run: make directories of your own in it."""
    pytest.importorskip("hdfs_native", reason="the hdfs extra is not installed")
    try:
        jars()
    except JavaError as error:
        pytest.skip(f"Hadoop cannot be run here: {error}")

    def start(directory: Path) -> tuple[dict[str, Any], list[int]]:
        keys = f"kms://http@127.0.0.1:{free_port()}/kms"  # a port that only tests of encryption zones serve
        cluster = Cluster(directory, tuple(free_port() for _ in range(6)), {KEY_PROVIDER: keys})
        cluster.start()
        return {"ports": cluster.ports, "settings": dict(cluster.settings)}, cluster.processes

    found = pool.server("hdfs", start)
    return Cluster(pool.place("hdfs"), tuple(found["ports"]), found["settings"])


@pytest.fixture(scope="module")
def on_hdfs(pool: Pool, hdfs: Cluster) -> Iterator[Callable[[str], Running]]:
    """`on_hdfs("source")`: a metastore whose default filesystem is `hdfs`, for all tests of a run. Make databases of
    your own in it; they are dropped when the module ends."""
    with shared(pool) as metastore:
        yield lambda name: metastore(f"hdfs-{name}", settings={"fs.defaultFS": hdfs.url})


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration by which clients try a NameNode once: by default, 4 times within 15 seconds."""
    write_settings(tmp_path / "hdfs-site.xml", {"dfs.client.failover.max.attempts": "0"})
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
