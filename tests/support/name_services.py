"""A name service of HDFS: two NameNodes with their edits in a shared directory, and a DataNode."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hadoop import DATANODE, NAMENODE, jars, write_settings
from waiting import CEILING, eventually

from replicator.metastore.embedded.server_process import free_port
from replicator.metastore.java import find_java

ADMIN = "org.apache.hadoop.hdfs.tools.DFSHAAdmin"


@dataclass
class NameService:
    """`name` is its authority: `hdfs://<name>`. Servers are `nn1`, `nn2` and `dn`."""

    directory: Path
    name: str
    ports: dict[str, int] = field(default_factory=dict)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"hdfs://{self.name}"

    @property
    def client(self) -> dict[str, str]:
        """What a client needs to know of it, but for `dfs.nameservices`."""
        own = {f"dfs.ha.namenodes.{self.name}": "nn1,nn2"}
        for node in ("nn1", "nn2"):
            own[f"dfs.namenode.rpc-address.{self.name}.{node}"] = f"127.0.0.1:{self.ports[node]}"
            own[f"dfs.namenode.http-address.{self.name}.{node}"] = f"127.0.0.1:{self.ports[node + 'web']}"
        provider = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
        return own | {f"dfs.client.failover.proxy.provider.{self.name}": provider}

    def start(self) -> None:
        for port in ("nn1", "nn2", "nn1web", "nn2web", "data", "dataweb", "dataipc"):
            self.ports[port] = free_port()
        for server in ("nn1", "nn2", "dn"):
            self._configure(server)
        self._run("nn1", NAMENODE, "-format", "-nonInteractive")
        self._serve("nn1", NAMENODE)
        self._answers("nn1")
        self._run("nn2", NAMENODE, "-bootstrapStandby", "-nonInteractive")
        self._serve("nn2", NAMENODE)
        self._serve("dn", DATANODE)
        self._answers("nn2")
        self.activate("nn1")

    def activate(self, node: str) -> None:
        """Makes a NameNode the active one, and waits until it has its DataNode."""
        self._run("dn", ADMIN, "-ns", self.name, "-transitionToActive", "--forceactive", node, said=b"Y\n")
        eventually(
            lambda: self._state(node) == ("Operational", "active", 1), lambda: f"{self._state(node)}: {self._log()}"
        )

    def kill(self, server: str) -> None:
        self._running[server].kill()
        self._running[server].wait()

    def stop(self) -> None:
        for server in self._running.values():
            server.kill()
            server.wait()

    def _answers(self, node: str) -> None:
        def answers() -> bool:
            assert self._running[node].poll() is None, self._log()
            return self._state(node) is not None

        eventually(answers, self._log)

    def _state(self, node: str) -> tuple[str, str, int] | None:
        query = f"http://127.0.0.1:{self.ports[node + 'web']}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystem*"
        with contextlib.suppress(OSError), urllib.request.urlopen(query, timeout=CEILING) as answer:
            found: dict[str, object] = {}
            for bean in json.load(answer)["beans"]:
                found |= bean
            if "FSState" in found and "tag.HAState" in found:
                return str(found["FSState"]), str(found["tag.HAState"]), int(str(found["NumLiveDataNodes"]))
        return None

    def _log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-5000:]

    def _serve(self, server: str, kind: str) -> None:
        with (self.directory / "log").open("ab") as log:
            self._running[server] = subprocess.Popen(self._command(server, kind), stdout=log, stderr=log)

    def _run(self, server: str, *arguments: str, said: bytes = b"") -> None:
        done = subprocess.run(self._command(server, *arguments), input=said, capture_output=True, timeout=CEILING)
        if done.returncode:
            raise RuntimeError(f"{arguments}: {done.stdout[-2000:]!r} {done.stderr[-2000:]!r}")

    def _command(self, server: str, *arguments: str) -> list[str]:
        java = str(find_java(os.environ).executable)
        opened = "--add-opens=java.base/java.lang=ALL-UNNAMED"
        return [java, "-Xmx256m", opened, "-cp", f"{self.directory / server}:{jars()}/*", *arguments]

    def _configure(self, server: str) -> None:
        place = self.directory / server
        place.mkdir(parents=True)
        write_settings(place / "core-site.xml", {"fs.defaultFS": self.url})
        own = {"dfs.ha.namenode.id": server} if server != "dn" else {}
        sites = {
            "dfs.nameservices": self.name,
            "dfs.namenode.name.dir": f"file://{self.directory}/name-{server}",
            "dfs.namenode.shared.edits.dir": f"file://{self.directory}/edits",
            "dfs.ha.fencing.methods": "shell(/bin/true)",
            "dfs.datanode.data.dir": f"file://{self.directory}/data",
            "dfs.replication": "1",
            "dfs.datanode.address": f"127.0.0.1:{self.ports['data']}",
            "dfs.datanode.http.address": f"127.0.0.1:{self.ports['dataweb']}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{self.ports['dataipc']}",
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": "0",
            "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "2",
        }
        write_settings(place / "hdfs-site.xml", sites | self.client | own)


@contextlib.contextmanager
def running_name_service(directory: Path, name: str) -> Iterator[NameService]:
    """A name service of its own; gone afterwards."""
    service = NameService(directory, name)
    try:
        service.start()
        yield service
    finally:
        service.stop()
