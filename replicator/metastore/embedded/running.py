"""A real Hive metastore in a directory: Hive 2.3 from pyspark's jars, or a newer one (see `distributions`); Derby on
disk, or a PostgreSQL database of the user; with a notification log.

    DIR/warehouse       default location of databases and tables
    DIR/metastore_db    Derby's database
    DIR/metastore.json  the process that serves it, written at its start
    DIR/metastore.log   output of that process (metastore.log.1: of the previous one)
    DIR/conf, DIR/tmp   its configuration, written again at each start, and its scratch space

For tests, demonstrations and small work: any client that reaches the port has full access, as in any metastore without
Kerberos.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from replicator.core.not_replicated import Report
from replicator.errors import FormatError, MetastoreStartError, UsageError
from replicator.metastore.embedded import distributions
from replicator.metastore.embedded.distributions import CONNECTION_URL, PYSPARK
from replicator.metastore.embedded.server_process import (
    INSTANCE,
    Runtime,
    answers,
    began,
    end,
    find_runtime,
    free_port,
    spawn,
    wait,
)
from replicator.metastore.embedded.template import ensure_schema, new_database
from replicator.metastore.java import LOOPBACK, locked, write_staged

FORMAT = 1  # of metastore.json
EVERYWHERE = ("", "0.0.0.0", "::")  # hosts that mean all addresses
PATIENCE = timedelta(seconds=90)
GRACE = timedelta(seconds=10)
ATTEMPTS = 3  # at an automatically chosen port, which another process may take before the server does


@dataclass(frozen=True)
class Running:
    """A metastore that answered when this value was created. `warehouse` is a plain path, not a URI."""

    uri: str
    warehouse: Path
    pid: int
    directory: Path
    log: Path
    hive: str = PYSPARK


@dataclass
class MetastoreState(Report):
    """The state of a directory's metastore: running, stopped, or not running; the fields other than the directory are
    set only while it runs."""

    status: str
    uri: str | None
    warehouse: str | None
    pid: int | None
    directory: str
    log: str | None
    hive: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if value is not None}

    @classmethod
    def of(cls, directory: Path, running: Running | None, status: str = "not running") -> MetastoreState:
        """Returns the state. status: of a metastore that does not run."""
        if running is None:
            return cls(status, None, None, None, str(directory.absolute()), None)
        place, log = str(running.directory), str(running.log)
        return cls("running", running.uri, str(running.warehouse), running.pid, place, log, running.hive)


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of metastore.json. `pid`, `began`: None once it was stopped; the port is for the next start."""

    format: int = FORMAT
    hive: str = PYSPARK
    database: str = ""  # if not Derby's database in the directory
    port: int
    uri: str
    host: str = LOOPBACK  # the address that it listens on
    instance: str
    pid: int | None = None
    began: str | None = None


def start(
    directory: Path,
    *,
    port: int | None = None,
    host: str = LOOPBACK,
    settings: Mapping[str, str] = {},
    env: Mapping[str, str],
    hive: str | None = None,
    timeout: timedelta = PATIENCE,
) -> Running:
    """Starts the metastore of `directory`, which is created if it does not exist, and returns when it answers.

    A running one is returned unchanged. Without `port`, its former port is used if free, otherwise any. `host`: the
    address it listens on, 0.0.0.0 for all; any client that reaches it has full access to its data. `hive`: a version of
    `distributions`; None: the directory's, and pyspark's for a new one. `settings` are Hive's, for this start only, and
    override the defaults; if they name a database other than Derby's, its tables are created if it has none. Raises
    UsageError, MetastoreStartError with the log's last lines, JavaError, ChecksumMismatch; then no process is left
    running. May run twice, also concurrently.
    """
    directory = directory.absolute()
    (directory / "warehouse").mkdir(parents=True, exist_ok=True)
    with locked(directory):
        before = _read_state(directory)
        version = _version(directory, before, hive, host)
        if before and before.pid and began(before.pid) == before.began:
            # Also one whose starter was killed while it waited: this process holds the lock, so no other process waits
            # for it.
            try:
                wait(
                    before.pid,
                    before.began,
                    before.port,
                    before.instance,
                    directory / "metastore.log",
                    timeout,
                    _reached(before.host),
                )
                return _as_running(directory, before, before.pid)
            except MetastoreStartError:
                if began(before.pid) == before.began:
                    raise
                # It was ending, for example after a kill: start another one in its place.
        runtime = find_runtime(env, version, settings.get(CONNECTION_URL, ""))
        database = _database(settings)
        if before and before.database and not database:
            raise UsageError(
                f"the metastore of {directory} has its data in {before.database}, which this start does not specify",
                hint=f"give the settings of its first start again: {CONNECTION_URL}, its user and password",
            )
        if database:
            if before is None or before.database != database:
                ensure_schema(runtime, directory, settings)
        elif not (directory / "metastore_db").exists():
            new_database(runtime, directory / "metastore_db")
        for attempt in range(ATTEMPTS):
            chosen = port or free_port(before.port if before and attempt == 0 else None)
            try:
                return _start(runtime, directory, host, chosen, settings, timeout)
            except MetastoreStartError as error:
                if port or attempt == ATTEMPTS - 1 or "Address already in use" not in error.message:
                    raise
        raise AssertionError("unreachable")


def stop(directory: Path) -> bool:
    """Stops the metastore of `directory`; returns False if none was running. Its data are retained."""
    directory = directory.absolute()
    if not directory.is_dir():
        return False
    with locked(directory):
        state = _read_state(directory)
        if state is None or state.pid is None:
            return False
        ended = end(state.pid, state.began, GRACE)
        _write_state(directory, msgspec.structs.replace(state, pid=None, began=None))
        return ended


def status(directory: Path) -> Running | None:
    """Returns the metastore of `directory` if its process runs and answers."""
    directory = directory.absolute()
    return _running(directory, _read_state(directory))


def _database(settings: Mapping[str, str]) -> str:
    """Returns the database other than Derby's, without its URL's parameters; "" for Derby's."""
    return settings.get(CONNECTION_URL, "").partition("?")[0]


def _version(directory: Path, before: _State | None, wanted: str | None, host: str) -> str:
    """Returns Hive's version. Raises UsageError if unknown, not the directory's, or unable to listen on `host`
    alone."""
    had = before and before.hive
    chosen = distributions.hive(wanted or had or PYSPARK)
    if had and chosen.name != had:
        raise UsageError(
            f"{directory} has a metastore of Hive {had}, not {chosen.name}",
            hint="use another directory, or omit the version",
        )
    if not chosen.binds and host not in EVERYWHERE:
        raise UsageError(
            f"a metastore of Hive {chosen.name} listens on all addresses of this machine",
            hint="accept it with --host 0.0.0.0: anyone who can connect has full access to the data",
        )
    return chosen.name


def _reached(host: str) -> str:
    """Returns the address at which a server that listens on `host` is reached from this machine."""
    return LOOPBACK if host in EVERYWHERE else host


def _start(
    runtime: Runtime, directory: Path, host: str, port: int, settings: Mapping[str, str], timeout: timedelta
) -> Running:
    instance, log = uuid.uuid4().hex, directory / "metastore.log"
    pid = spawn(runtime, directory, port, {**settings, INSTANCE: instance}, host=host)
    start = began(pid)
    try:
        uri = f"thrift://{_reached(host)}:{port}"
        state = _State(
            hive=runtime.hive.name,
            database=_database(settings),
            port=port,
            uri=uri,
            host=host,
            instance=instance,
            pid=pid,
            began=start,
        )
        _write_state(directory, state)  # before it answers: if this process dies, `stop` and the next `start` find it
        wait(pid, start, port, instance, log, timeout, _reached(host))
    except BaseException:
        end(pid, start, timedelta(0))
        raise
    return _as_running(directory, state, pid)


def _running(directory: Path, state: _State | None) -> Running | None:
    if state is None or state.pid is None or state.began is None or began(state.pid) != state.began:
        return None
    if not answers(state.port, state.instance, host=_reached(state.host)):
        return None
    return _as_running(directory, state, state.pid)


def _as_running(directory: Path, state: _State, pid: int) -> Running:
    return Running(state.uri, directory / "warehouse", pid, directory, directory / "metastore.log", state.hive)


def _read_state(directory: Path) -> _State | None:
    path = directory / "metastore.json"
    try:
        state = msgspec.json.decode(path.read_bytes(), type=_State)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise FormatError(f"{path}: {error}", hint="if no metastore runs there, remove the file") from None
    if state.format != FORMAT:
        raise FormatError(f"{path} has format {state.format}, this release knows {FORMAT}", hint="use a newer release")
    return state


def _write_state(directory: Path, state: _State) -> None:
    write_staged(directory / "metastore.json", msgspec.json.format(msgspec.json.encode(state)) + b"\n")
