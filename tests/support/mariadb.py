"""A MariaDB server on a port of its own. The
programs are Debian's (mariadb-server)."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from pool import Pool
from waiting import CEILING, eventually

from replicator.metastore.embedded.server_process import free_port

USER, PASSWORD = "reader", "a password; it's secret"

_SETTINGS = ("--skip-log-bin", "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M")
_numbers = itertools.count(1)


@dataclass
class MariaDb:
    """A running server. `user`, `password`: of somebody who may do all in each database."""

    socket: Path
    port: int
    user: str = USER
    password: str = PASSWORD

    def sql(self, text: str, database: str = "") -> str:
        """Statements by its own client, as root; what it answers."""
        client = [_client(), "--no-defaults", f"--socket={self.socket}", "-uroot", "--batch", "--skip-column-names"]
        asked = [*client, "--default-character-set=utf8mb4", *([database] if database else [])]
        done = subprocess.run(asked, input=text, capture_output=True, text=True, timeout=CEILING)
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


@pytest.fixture(scope="session")
def mariadb_server(pool: Pool) -> MariaDb:
    """One for all tests of a run: make databases of your own in it. Skips the test where its programs are missing."""
    server, install = _program("mariadbd"), shutil.which("mariadb-install-db")
    if server is None or install is None:
        pytest.skip("no MariaDB (mariadb-server)")

    def start(place: Path) -> tuple[dict[str, int], list[int]]:
        port = free_port()
        return {"port": port}, [_begin(server, install, place, port)]

    return MariaDb(pool.place("mariadb") / "socket", pool.server("mariadb", start)["port"])


def _begin(server: str, install: str, place: Path, port: int) -> int:
    """The process of a new server that answers."""
    place.chmod(0o755)
    data, socket = place / "data", place / "socket"
    who = ["--user=mysql"] if os.geteuid() == 0 else []
    if who:
        shutil.chown(place, "mysql")
    made = [install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", *who]
    subprocess.run(made, check=True, capture_output=True)
    ours = (f"--datadir={data}", f"--socket={socket}", f"--port={port}", f"--pid-file={place}/pid")
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(
            [server, "--no-defaults", *ours, "--bind-address=127.0.0.1", *_SETTINGS, *who], stdout=log, stderr=log
        )
    running = MariaDb(socket, port)

    def answers() -> bool:
        try:
            running.sql("SELECT 1")
        except RuntimeError:
            assert process.poll() is None, (place / "log").read_text(errors="replace")
            return False
        return True

    eventually(answers, lambda: (place / "log").read_text(errors="replace"))
    text = PASSWORD.replace("'", "''")
    for host in ("%", "localhost"):
        running.sql(f"CREATE USER '{USER}'@'{host}' IDENTIFIED BY '{text}'; GRANT ALL ON *.* TO '{USER}'@'{host}'")
    running.sql("DROP USER IF EXISTS ''@'localhost'; DELETE FROM mysql.global_priv WHERE User = ''; FLUSH PRIVILEGES")
    return process.pid


def _program(name: str) -> str | None:
    return shutil.which(name) or next(filter(os.path.exists, [f"/usr/sbin/{name}"]), None)


def _client() -> str:
    return shutil.which("mariadb") or "mysql"
