"""versitygw: an S3 server that keeps real versions, heeds digests and conditions, and has directories beneath."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from pool import Pool
from waiting import eventually

from replicator.metastore.embedded.server_process import free_port

BUILDING = 900  # seconds that a test may take, in which the server is perhaps built
ON_VERSITYGW = (pytest.mark.versitygw, pytest.mark.timeout(BUILDING))


@cache
def binary() -> str:
    """The server's program, built when it is not there. RuntimeError says why it cannot be."""
    done = subprocess.run([str(Path(__file__).with_name("versity.sh"))], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"versitygw cannot be built here: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()


@dataclass
class Versity:
    """Buckets are directories in `directory`, older versions of their objects beside them."""

    directory: Path
    port: int
    _running: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """For its clients."""
        return {
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "secret-of-tester",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
        }

    def start(self) -> None:
        """Starts it, also again with what it had, and waits until it answers."""
        for name in ("objects", "versions"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        env = os.environ | {"ROOT_ACCESS_KEY": "tester", "ROOT_SECRET_KEY": "secret-of-tester"}
        places = ["--versioning-dir", str(self.directory / "versions"), str(self.directory / "objects")]
        command = [binary(), "--quiet", "--health", "/health", "--port", f"127.0.0.1:{self.port}", "posix", *places]
        with (self.directory / "log").open("ab") as log:
            self._running = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env)
        running = self._running
        eventually(lambda: self._answers() or running.poll() is not None, self._log)
        if running.poll() is not None:
            raise RuntimeError(self._log())

    def _log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-5000:]

    @property
    def processes(self) -> list[int]:
        return [] if self._running is None else [self._running.pid]

    def kill(self) -> None:
        """As a machine that loses its power."""
        if self._running is not None:
            self._running.send_signal(signal.SIGKILL)
            self._running.wait()
            self._running = None

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(self.url + "/health"):
            return True
        return False


@contextlib.contextmanager
def running_versity(directory: Path) -> Iterator[Versity]:
    """A server of its own; gone afterwards."""
    server = Versity(directory, free_port())
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def versitygw(pool: Pool) -> Versity:
    """One for all tests of a run: make buckets of your own in it."""
    try:
        binary()
    except RuntimeError as error:
        pytest.skip(f"versitygw is absent: {error}")

    def start(directory: Path) -> tuple[dict[str, int], list[int]]:
        server = Versity(directory, free_port())
        server.start()
        return {"port": server.port}, server.processes

    return Versity(pool.place("versitygw"), pool.server("versitygw", start)["port"])
