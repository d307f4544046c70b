"""YARN: a ResourceManager and two NodeManagers of Hadoop, from a Maven repository, in a directory of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sysconfig
import tarfile
import urllib.request
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hadoop import Cluster, jars, write_settings
from spark_cluster import HOME, bare_python, command_line
from waiting import CEILING, eventually

import replicator
import replicator.__main__ as program
from replicator.metastore.embedded.server_process import free_port
from replicator.metastore.java import find_java

PACKAGE = "org.apache.hadoop.yarn.server"
MANAGER = f"{PACKAGE}.resourcemanager.ResourceManager"
NODE = f"{PACKAGE}.nodemanager.NodeManager"
NODES = ("node1", "node2")
SMALL = {
    "spark.yarn.jars": f"local:{HOME}/jars/*",
    "spark.yarn.am.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.instances": "2",
}
"""An application that fits, and finds Spark's jars where they are."""

LOG = """\
log4j.rootLogger=WARN,CONSOLE
log4j.appender.CONSOLE=org.apache.log4j.ConsoleAppender
log4j.appender.CONSOLE.layout=org.apache.log4j.PatternLayout
log4j.appender.CONSOLE.layout.ConversionPattern=%d %p %c: %m%n
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended: `code` and `printed` of the process that was called, and `application` as the
    ResourceManager has it (`id`, `finalStatus`, `diagnostics` ...)."""

    code: int
    printed: str
    application: dict[str, Any]


@dataclass
class Yarn:
    """hdfs: its default filesystem. settings: of yarn-site.xml, beside its own. env: of clients."""

    hdfs: Cluster
    directory: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = field(default_factory=lambda: tuple(free_port() for _ in range(5)))
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        """A Hadoop configuration directory for clients."""
        return self.directory / "conf"

    @property
    def python(self) -> Path:
        """A Python with this program, outside of which nothing leads to it."""
        return self.directory / "venv" / "bin" / "python"

    def start(self) -> None:
        """Starts what does not run, and waits until both nodes take containers."""
        if not self.conf.exists():
            self._configure()
            self._make_python()
        for name in ("manager", *NODES):
            if name not in self._running or self._running[name].poll() is not None:
                self._running[name] = self._java(name)
        eventually(lambda: self._has_nodes() or self._has_died(), self._log)
        if self._has_died():
            raise RuntimeError(self._log())

    def kill(self, node: str) -> None:
        """With its containers, as a machine that loses its power."""
        if node in self._running:
            self._end(node)
        for process in self.containers(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def stop(self) -> None:
        for node in NODES:
            self.kill(node)
        if "manager" in self._running:
            self._end("manager")

    def containers(self, node: str) -> dict[int, bytes]:
        """Processes of containers of a node, and their command lines."""
        place, found = f"{self.directory}/{node}/local/", {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(process / "cwd").startswith(place):
                    found[int(process.name)] = command_line(int(process.name))
        return found

    def applications(self) -> dict[str, dict[str, Any]]:
        """By id."""
        return {each["id"]: each for each in (self._ask("apps")["apps"] or {}).get("app", [])}

    def printed(self, application: str) -> str:
        """By its first container: in cluster mode, the driver."""
        (found,) = self.directory.glob(f"node*/log/{application}/*_01_000001/stdout")
        return found.read_text()

    # ---- the two ways to call this program -------------------------------------------------------------------------

    def client(self, *arguments: str, **settings: str) -> Ended:
        """As on an edge node; the executors' Python has pyarrow and nothing else."""
        given = {**SMALL, "spark.pyspark.python": str(bare_python()), "spark.driver.host": self.hdfs.host, **settings}
        options = [word for key, value in given.items() for word in ("--spark-conf", f"{key}={value}")]
        return self._call(self.python, "-m", "replicator", *arguments, "--master", "yarn", *options, "--json")

    def cluster(self, *arguments: str, **settings: str) -> Ended:
        """By spark-submit, as docs/on-a-cluster.md has it: the program and its Python are in an archive."""
        given = {
            "spark.yarn.appMasterEnv.PYSPARK_PYTHON": "./venv/bin/python",
            "spark.yarn.am.waitTime": "1d",
            "spark.yarn.maxAppAttempts": "1",
            **SMALL,
            **settings,
        }
        options = [word for key, value in given.items() for word in ("--conf", f"{key}={value}")]
        begin = [HOME / "bin/spark-submit", "--master", "yarn", "--deploy-mode", "cluster"]
        archive = f"{self.directory}/venv.tar.gz#venv"
        return self._call(*begin, "--archives", archive, *options, program.__file__, *arguments, "--json")

    def _call(self, *command: object) -> Ended:
        before = self.applications()
        env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYSPARK", "SPARK"))}
        env |= {"JAVA_HOME": str(self._java_home), "HADOOP_CONF_DIR": str(self.conf), **self.env}
        done = subprocess.run(
            [str(each) for each in command], env=env, capture_output=True, text=True, timeout=CEILING * 2
        )

        def ended() -> list[dict[str, Any]]:
            new = [each for key, each in self.applications().items() if key not in before]
            return new if all(each["finalStatus"] != "UNDEFINED" for each in new) else []

        (application,) = eventually(ended, lambda: done.stdout + done.stderr[-5000:])
        return Ended(done.returncode, done.stdout + done.stderr, application)

    # ---- servers ---------------------------------------------------------------------------------------------------

    def _end(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def _ask(self, what: str) -> dict[str, Any]:
        url = f"http://{self.hdfs.host}:{self.ports[4]}/ws/v1/cluster/{what}"
        with urllib.request.urlopen(urllib.request.Request(url, headers=self.hdfs.headers()), timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _has_nodes(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self._ask("metrics")["clusterMetrics"]["activeNodes"] == len(NODES))
        return False

    def _has_died(self) -> bool:
        return any(each.poll() is not None for each in self._running.values())

    def _log(self) -> str:
        return "\n".join(each.read_text(errors="replace")[-4000:] for each in self.directory.glob("*.log"))

    @property
    def _java_home(self) -> Path:
        java = self.hdfs.java[0] if self.hdfs.java else find_java(os.environ).executable
        return Path(java).parent.parent

    def _java(self, name: str) -> subprocess.Popen[bytes]:
        """A server in an environment of its own, which leads to Java and to nothing of a client."""
        theirs = ("PYTHON", "PYSPARK", "SPARK", "VIRTUAL", "HADOOP", "KRB5")
        env = {key: value for key, value in os.environ.items() if not key.startswith(theirs)}
        options = ["-Xmx384m", "--add-opens=java.base/java.lang=ALL-UNNAMED", *self.hdfs.java[1:]]
        conf = self.conf if name == "manager" else self.directory / name / "conf"
        env |= {"JAVA_HOME": str(self._java_home), "HADOOP_CONF_DIR": str(conf)}
        command = [f"{self._java_home}/bin/java", *options, "-cp", f"{conf}:{jars()}/*"]
        with (self.directory / f"{name}.log").open("ab") as log:
            command.append(MANAGER if name == "manager" else NODE)
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env)

    def _configure(self) -> None:
        host, names = self.hdfs.host, ("", "scheduler.", "resource-tracker.", "admin.", "webapp.")
        settings = {
            f"yarn.resourcemanager.{name}address": f"{host}:{port}"
            for name, port in zip(names, self.ports, strict=True)
        }
        settings |= {
            "yarn.resourcemanager.scheduler.class": f"{PACKAGE}.resourcemanager.scheduler.fifo.FifoScheduler",
            "yarn.nm.liveness-monitor.expiry-interval-ms": "5000",
            "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "200",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.nodemanager.resource.memory-mb": "2048",
            "yarn.nodemanager.resource.cpu-vcores": "2",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.env-whitelist": "HADOOP_CONF_DIR,JAVA_HOME,JAVA_TOOL_OPTIONS,PATH",
            **self.settings,
        }
        for name in ("", *NODES):
            place = self.directory / name
            (place / "conf").mkdir(parents=True)
            for file in ("core-site.xml", "hdfs-site.xml"):
                shutil.copy(self.hdfs.conf / file, place / "conf")
            (place / "conf/log4j.properties").write_text(LOG)
            own = {f"yarn.nodemanager.{each}-dirs": f"{place}/{each}" for each in ("local", "log")}
            for each in ("", "localizer.", "webapp."):
                own[f"yarn.nodemanager.{each}address"] = f"{host}:{free_port()}"
            write_settings(place / "conf/yarn-site.xml", settings | (own if name else {}))

    def _make_python(self) -> None:
        """Its packages are those of the tests' Python, and its archive has links to them."""
        place = self.directory / "venv"
        venv.create(place)
        (lib,) = place.glob("lib/python*/site-packages")
        mine = (str(Path(replicator.__file__).parent.parent), sysconfig.get_path("purelib"))
        (lib / "of-tests.pth").write_text("\n".join(mine))
        with tarfile.open(f"{place}.tar.gz", "w:gz") as archive:
            archive.add(place, ".")


@contextlib.contextmanager
def running_yarn(hdfs: Cluster, directory: Path, env: Mapping[str, str], **settings: str) -> Iterator[Yarn]:
    """One of its own; gone afterwards."""
    found = Yarn(hdfs, directory, settings, env)
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="module")
def yarn(hdfs: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    """One for all tests of a module; a test that kills something of it starts it again."""
    with running_yarn(hdfs, tmp_path_factory.mktemp("yarn"), {}) as found:
        yield found
