"""`replicator serve` in processes of its own, its clients, and a job that hangs."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import web
from waiting import CEILING, eventually

from replicator.cli.main import run
from replicator.service.api_tokens import Role, create_token
from replicator.service.store import ServiceStore

Tables = dict[str, dict[str, Any]]


class Service:
    """A server and its clients. here: its working directory, which several servers may share. grace: for a run to end
    after SIGTERM; nothing waits for it but who does not heed that."""

    def __init__(self, here: Path, store: str = "") -> None:
        self.here, self.store = here, store or f"sqlite:///{here}/service.sqlite"
        self.grace = "2m"
        self.servers: list[subprocess.Popen[bytes]] = []
        self.urls: list[str] = []

    def configure(self, jobs: Tables, policies: Tables | None = None, more: Tables | None = None) -> None:
        """Writes the configuration in one step."""
        tables = {"service": {"store": self.store, "logs": str(self.here / "logs"), "grace": self.grace}}
        tables |= {f"service.jobs.{name}": keys for name, keys in jobs.items()}
        tables |= {f"policies.{name}": keys for name, keys in (policies or {}).items()}
        tables |= more or {}
        text = ""
        for table, keys in tables.items():
            text += f"[{table}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in keys.items())
        (self.here / "new.toml").write_text(text)
        (self.here / "new.toml").rename(self.here / "replicator.toml")

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One of replicator's with the service's configuration, in this process."""
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            code = run(["--config", str(self.here / "replicator.toml"), *arguments])
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), error.getvalue())

    def token(self, name: str, role: Role = "viewer", *policies: str) -> dict[str, str]:
        """The headers of a new one, made without a process."""
        with ServiceStore(self.store) as store:
            store.prepare()
            return {"Authorization": f"Bearer {create_token(store, name, role, policies, 3600.0)}"}

    def start(self, *more: str, first: str = "") -> str:
        """Its URL. first: statements that the process runs before anything else."""
        number = len(self.servers)
        file, said = self.here / f"url-{number}", self.here / f"server-{number}.log"
        program = ["-c", f"{first}\nfrom replicator.cli.main import main; main()"] if first else ["-m", "replicator"]
        line = [sys.executable, *program, "serve", "--listen", "127.0.0.1:0", "--ready-file", str(file)]
        with said.open("wb") as log:
            self.servers.append(subprocess.Popen([*line, *more], cwd=self.here, stdout=log, stderr=log))

        def ready() -> bool:
            assert self.servers[-1].poll() is None, said.read_text()
            return file.exists() and file.read_text().endswith("\n")

        eventually(ready, said.read_text)
        self.urls.append(file.read_text().strip())
        return self.urls[-1]

    def get(self, path: str, server: int = -1, **more: Any) -> Any:
        answer = web.get(f"{self.urls[server]}/api/v1/{path}", **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def runs(self, job: str, server: int = -1, **more: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(f"runs?job={job}", server, **more)["items"]
        return found

    def at_work(self, job: str, server: int = -1) -> dict[str, Any]:
        """Its run at work; waits for it."""
        found: dict[str, Any] = eventually(
            lambda: next((each for each in self.runs(job, server) if each["state"] == "running"), None),
            lambda: self.runs(job, server),
        )
        return found

    def ended(self, run: str) -> dict[str, Any]:
        """A run, when it has ended."""
        found: dict[str, Any] = eventually(lambda: (found := self.get(f"runs/{run}"))["ended"] and found)
        return found

    def stop(self, server: int = -1, number: int = signal.SIGTERM) -> int:
        self.servers[server].send_signal(number)
        return self.servers[server].wait(CEILING)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    return f"'{value}'" if isinstance(value, str) else str(value).lower()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Of one test; its servers are killed."""
    made = Service(tmp_path)
    yield made
    for server in made.servers:
        server.kill()
        server.wait()


@pytest.fixture
def silent() -> Iterator[str]:
    """A metastore that takes a connection, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"thrift://127.0.0.1:{listening.getsockname()[1]}"


def hanging(silent: str, here: Path) -> dict[str, Any]:
    """A job that is at work until it is ended."""
    return {"command": ["capture", "--source", silent, "--db", "d", "--cmroot", f"{here}/cm"], "every": "1d"}


def processes(of: str) -> list[int]:
    """Those whose command line names something."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if of.encode() in (place / "cmdline").read_bytes() and int(place.name) != os.getpid():
                found.append(int(place.name))
        except OSError:
            continue
    return found
