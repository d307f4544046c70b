"""A MariaDB server of a test module's own, in a temporary directory and on a port of its own; gone afterwards. The
programs are Debian's (mariadb-server)."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from replicator.metastore.embedded.server_process import free_port

USER, PASSWORD = "reader", "a password; it's secret"

_SETTINGS = ("--skip-log-bin", "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M")
_numbers = itertools.count(1)


@dataclass
class MariaDb:
    """A running server. `user`, `password`: of somebody who may do all in each database."""

    socket: Path
    port: int
    process: subprocess.Popen[bytes]
    user: str = USER
    password: str = PASSWORD

    def sql(self, text: str, database: str = "") -> str:
        """Statements by its own client, as root; what it answers."""
        client = [_client(), "--no-defaults", f"--socket={self.socket}", "-uroot", "--batch", "--skip-column-names"]
        asked = [*client, "--default-character-set=utf8mb4", *([database] if database else [])]
        done = subprocess.run(asked, input=text, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    def database(self) -> str:
        """The name of a new, empty one."""
        name = f"m{os.getpid()}_{next(_numbers)}"
        self.sql(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return name

    def url(self, database: str, kind: str = "mariadb") -> str:
        return f"jdbc:{kind}://127.0.0.1:{self.port}/{database}"


@contextlib.contextmanager
def running_mariadb() -> Iterator[MariaDb]:
    """Skips the test where there is no server's program."""
    server, install = _program("mariadbd"), shutil.which("mariadb-install-db")
    if server is None or install is None:
        pytest.skip("no MariaDB (mariadb-server)")
    with tempfile.TemporaryDirectory(prefix="maria-", dir="/tmp", ignore_cleanup_errors=True) as place:
        os.chmod(place, 0o755)
        data, socket, port = Path(place) / "data", Path(place) / "socket", free_port()
        who = ["--user=mysql"] if os.geteuid() == 0 else []
        if who:
            shutil.chown(place, "mysql")
        made = [install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", *who]
        subprocess.run(made, check=True, capture_output=True)
        ours = (f"--datadir={data}", f"--socket={socket}", f"--port={port}", f"--pid-file={place}/pid")
        with open(Path(place) / "log", "wb") as log:
            process = subprocess.Popen(
                [server, "--no-defaults", *ours, "--bind-address=127.0.0.1", *_SETTINGS, *who], stdout=log, stderr=log
            )
        running = MariaDb(socket, port, process)
        try:
            _wait(running, Path(place) / "log")
            text = PASSWORD.replace("'", "''")
            for host in ("%", "localhost"):
                running.sql(
                    f"CREATE USER '{USER}'@'{host}' IDENTIFIED BY '{text}'; GRANT ALL ON *.* TO '{USER}'@'{host}'"
                )
            running.sql(
                "DROP USER IF EXISTS ''@'localhost'; DELETE FROM mysql.global_priv WHERE User = ''; FLUSH PRIVILEGES"
            )
            yield running
        finally:
            process.terminate()
            process.wait(60)


def _program(name: str) -> str | None:
    return shutil.which(name) or next(filter(os.path.exists, [f"/usr/sbin/{name}"]), None)


def _client() -> str:
    return shutil.which("mariadb") or "mysql"


def _wait(server: MariaDb, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            server.sql("SELECT 1")
            return
        except RuntimeError:
            if server.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text(errors="replace")) from None
        time.sleep(0.1)
