"""A Spark standalone cluster: a master and two workers, whose Python has pyarrow and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
import pytest
from waiting import eventually

from replicator.metastore.embedded.server_process import free_port
from replicator.metastore.java import cache_directory, find_java, locked, spark_environment

HOSTS = ("127.0.0.1", "127.0.0.2")  # speculation never picks the same host
HOME = Path(pyspark.__file__).parent


def bare_python(*packages: str) -> Path:
    """A Python with pyarrow, perhaps these packages, and without replicator, as the nodes of a cluster have; made when
    it is not there."""
    import pyarrow

    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = [f"pyarrow=={pyarrow.__version__}", *packages]
    directory = cache_directory(os.environ) / "nodes" / "-".join([f"python-{minor}", *wanted]).replace("==", "-")
    directory.mkdir(parents=True, exist_ok=True)
    python = directory / "bin" / "python3"
    with locked(directory):
        if not (directory / "ready").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True, stderr=subprocess.PIPE)
            (directory / "ready").touch()
    return python


@dataclass
class SparkCluster:
    """url: of the master. Its executors run `python`, in `directory`."""

    directory: Path
    python: Path
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)
    _master: subprocess.Popen[bytes] | None = None
    _workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts what does not run, and waits until all workers are there."""
        if self._master is None or self._master.poll() is not None:
            self._master = self._java("master.Master", "--host", "127.0.0.1", "--port", str(self.port))
        for host in HOSTS:
            if host not in self._workers or self._workers[host].poll() is not None:
                places = ("--work-dir", str(self.directory / host), "--host", host)
                self._workers[host] = self._java("worker.Worker", *places, "-c", "1", "-m", "1g", self.url)
        eventually(lambda: self._log().count("Registering worker") >= self._started, lambda: self._log()[-5000:])

    def worker(self, host: str) -> int:
        """Its process."""
        return self._workers[host].pid

    def executors(self) -> dict[int, str]:
        """Processes of executors and their hosts."""
        return {
            process: host
            for host in HOSTS
            for process in children(self.worker(host))
            if b"CoarseGrainedExecutorBackend" in command_line(process)
        }

    def pythons(self) -> list[int]:
        """Processes of Python workers, without the daemons that fork them."""
        daemons = [child for executor in self.executors() for child in children(executor)]
        return [worker for daemon in daemons for worker in children(daemon)]

    def kill_worker(self, host: str) -> None:
        """With its executors, as a machine that loses its power."""
        for process in (*[each for each, at in self.executors().items() if at == host], self.worker(host)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._workers[host].wait()

    def stop(self) -> None:
        for host, worker in self._workers.items():
            if worker.poll() is None:
                self.kill_worker(host)
        if self._master is not None:
            self._master.kill()
            self._master.wait()

    _started = 0

    def _java(self, server: str, *arguments: str) -> subprocess.Popen[bytes]:
        self._started += server.startswith("worker")
        # a node's own environment, in which nothing leads to the driver's Python
        env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "SPARK", "VIRTUAL"))}
        env |= spark_environment(find_java(os.environ)) | {"SPARK_HOME": str(HOME), "SPARK_DAEMON_MEMORY": "256m"}
        env.pop("PYSPARK_PYTHON", None)
        env["PATH"] = f"{self.python.parent}:{os.environ['PATH']}"
        command = [str(HOME / "bin/spark-class"), f"org.apache.spark.deploy.{server}", *arguments]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, cwd="/")

    def _log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")


def children(process: int) -> list[int]:
    """Of all its threads."""
    found: list[int] = []
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += [int(each) for each in thread.read_text().split()]
    return found


def command_line(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@contextlib.contextmanager
def running_cluster(directory: Path) -> Iterator[SparkCluster]:
    cluster = SparkCluster(directory, bare_python(), free_port())
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """One for all tests of a worker; a test that kills something of it starts it again."""
    try:
        bare_python()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no Python for the nodes of a cluster can be made here: {error}")
    with running_cluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster
