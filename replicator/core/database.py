"""A database of this program, SQLite in a file or PostgreSQL by URL: connections, migrations, translated errors."""

from __future__ import annotations

import functools
import sqlite3
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Engine, create_engine, event, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import NullPool, QueuePool

from replicator.errors import ConfigError, Error, FormatError, NoSpace, StoreUnreachable

WROTE = "replicator.wrote"
"""Key in a connection's info: its transaction has changed something."""

LITTLE = 256
"""KiB of SQLite's page cache of one of several connections: each fills its own, and the system caches pages, too."""

WAIT = 10.0  # seconds to wait for one of several connections while all are in use
PATIENCE = 30.0
"""Seconds that a writer of SQLite waits for other writers."""

LOOK = 0.001
"""Seconds between two attempts to begin a write in SQLite. SQLite's own handler sleeps longer each time, up to 0.1 s,
while later writers proceed: of 400 changes concurrent with another process, the slowest took 0.4 s that way."""

ANSWER = 20.0
"""Seconds for one query of a client that sends queries all the time: PostgreSQL aborts the query then, and its client a
quarter later, even if the server hangs."""

IDLE = 30.0
"""Seconds after which PostgreSQL ends a transaction whose process sends no more queries: a stopped process, or a
machine that sleeps, would block all others with its locks."""

LIVELY = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
"""Settings of connections to PostgreSQL, unless its URL sets them: the loss of a host is detected after a minute."""

AWAY = ("SQLITE_BUSY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_LOCKED", "40001", "40P01", "57P01", "57014")
"""Error codes after which the same query may be repeated."""

_ALEMBIC = threading.Lock()
"""Alembic has one context for an entire process."""

UNANSWERED = ("OperationalError", "ConnectionTimeout")
"""Errors of PostgreSQL's client that have no code."""


class Database:
    """Connections to one database. Several threads may use it. All methods raise StoreUnreachable (try again), NoSpace,
    or Error with the database's text.

    url: without its password. file: of SQLite; None for PostgreSQL. changes: transactions of this object that wrote."""

    def __init__(self, url: str, name: str, given_by: str, connections: int = 0) -> None:
        """Sends nothing before the first query. name, given_by: for messages, the database and the option or key of its
        URL. connections: how many stay open, for a client that queries all the time; they cache little and wait no
        longer than `ANSWER`; 0: few. Raises ConfigError for a URL of an unknown database."""
        try:
            parsed = make_url(url)
            if parsed.drivername in ("postgresql", "postgres"):
                parsed = parsed.set(drivername="postgresql+psycopg")
            if parsed.get_backend_name() not in ("sqlite", "postgresql"):
                raise ConfigError(f"{given_by}: {parsed.drivername}: only sqlite and postgresql are supported")
            self._engine = _engine(parsed, connections)
        except (ArgumentError, NoSuchModuleError, ValueError) as error:  # ValueError: a port that is not a number
            raise ConfigError(f"{given_by}: {error}", hint="e.g. postgresql://user@host/replicator") from error
        except ModuleNotFoundError as error:
            raise ConfigError(f"{given_by}: {error}", hint="pip install 'replicator[postgres]'") from error
        self._name = name
        self.url = _without_secrets(parsed)
        self.file = Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None
        self._open = threading.local()
        self.changes, self._counting = 0, threading.Lock()

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Runs the block in one transaction: all of its changes become durable together, or none."""
        if (shared := getattr(self._open, "connection", None)) is not None:
            yield shared
            return
        with self._named(), self._engine.begin() as connection:
            yield connection
            wrote = connection.info.pop(WROTE, False)
        if wrote:
            with self._counting:
                self.changes += 1

    @contextmanager
    def together(self) -> Iterator[None]:
        """Runs all queries of this thread in the block in one transaction: for many small queries, begin and commit
        cost more than the queries."""
        with self.transaction() as connection:
            before, self._open.connection = getattr(self._open, "connection", None), connection
            try:
                yield
            finally:
                self._open.connection = before

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Same as `together`, for writers: in SQLite it first waits until no other write transaction is open, and makes
        others wait. PostgreSQL locks row by row itself."""
        within = getattr(self._open, "connection", None) is not None
        with self.together(), self.transaction() as connection:
            if self.file is not None and not within:
                _await_writers(connection)
            yield connection

    @contextmanager
    def uncounted(self) -> Iterator[Connection]:
        """Same as `transaction`, for writes that change nothing a user sees: `changes` stays."""
        with self.transaction() as connection:
            before = connection.info.get(WROTE, False)
            yield connection
            connection.info[WROTE] = before

    def damage(self) -> str:
        """Returns what SQLite's own check finds wrong with the file; empty: nothing, or PostgreSQL. Reads all of it."""
        if self.file is None:
            return ""
        try:
            with self.transaction() as connection:
                found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        except Error as error:
            if type(error) is not Error:  # it does not answer now
                raise
            return error.message
        return "" if found == "ok" else f"{self._name} {self.url} is damaged: {str(found).splitlines()[-1]}"

    def revision(self, table: str, newest: str) -> str | None:
        """Returns the revision of its migrations, which is stored in `table`; None without tables. Raises FormatError
        for a revision above `newest`."""
        if self.file is not None and not self.file.exists():
            return None
        with self.transaction() as connection:
            if not inspect(connection).has_table(table):
                return None
            found = connection.exec_driver_sql(f"SELECT version_num FROM {table}").scalar()
        if found is not None and str(found) > newest:
            raise FormatError(f"{self.url}: revision {found}, this release knows {newest}", hint="use a newer release")
        return None if found is None else str(found)

    def migrate(self, migrations: Path, revisions: str) -> None:
        """Migrates its tables to the newest revision of a directory of migrations, or leaves them unchanged. revisions:
        the table that stores the current one."""
        from alembic import command  # takes half a second, and readers do not require it
        from alembic.config import Config

        config = Config()
        entry = Path(__file__).parent / "migrations"
        for option, path in (("script_location", entry), ("version_locations", migrations)):
            config.set_main_option(option, str(path).replace("%", "%%"))
        config.set_main_option("path_separator", "newline")  # a path may contain spaces
        with _ALEMBIC, self.writing() as connection, unhurried(connection):
            config.attributes |= {"connection": connection, "revisions": revisions}
            command.upgrade(config, "head")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Translates errors of the database to those of this program."""
        try:
            yield
        except DBAPIError as error:
            raise self._error(error) from error
        except PoolTimeout as error:
            message = f"{self._name} {self.url}: all connections are in use"
            raise StoreUnreachable(message, hint="try again; check its load, and whether it hangs") from error
        except SQLAlchemyError as error:
            raise Error(f"{self.url}: {error}") from error

    def _error(self, error: DBAPIError) -> Error:
        said = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
        message = f"{self._name} {self.url}: {said}"
        code = getattr(error.orig, "sqlite_errorname", "") or getattr(error.orig, "sqlstate", None) or ""
        if code in ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "53100"):
            return NoSpace(message, hint="free space, then run the same command again")
        away = error.connection_invalidated or code in AWAY
        if away or (type(error.orig).__name__ in UNANSWERED and self.file is None):
            return StoreUnreachable(message, hint="nothing is lost; run the same command again when it answers")
        return Error(message, hint="check the rights of the file, or the URL, user and database")


def _without_secrets(url: URL) -> str:
    """Returns the URL without passwords; libpq accepts passwords in the query as well."""
    hidden = {key: "***" if "password" in key.lower() else value for key, value in url.query.items()}
    return url.set(query=hidden).render_as_string(hide_password=True)


@functools.lru_cache(maxsize=16)
def _engine(url: URL, connections: int) -> Engine:
    """Returns the same engine for the same database: it caches compiled queries, which take longer to compile than to
    run. Closing it closes the idle connections."""
    engine = _made(url, connections)

    @event.listens_for(engine, "after_cursor_execute")
    def executed(connection: Connection, *given: Any) -> None:
        context = given[-2]
        if context is not None and (context.isinsert or context.isupdate or context.isdelete):
            connection.info[WROTE] = True

    return engine


def _made(url: URL, connections: int) -> Engine:
    if url.get_backend_name() != "sqlite":
        given = {name: value for name, value in {"connect_timeout": 10, **LIVELY}.items() if name not in url.query}
        size = {"pool_size": connections or 2, "pool_timeout": WAIT}
        engine = create_engine(url, pool_pre_ping=True, connect_args=given, **size)
        if connections:
            _hurry(engine, ANSWER)
        _end_idle(engine, IDLE)
        return engine
    if connections:
        size = {"pool_size": connections, "max_overflow": 2 * connections, "pool_timeout": WAIT}
        engine = create_engine(url, poolclass=QueuePool, **size)
        _watch_file(engine, url)
    else:
        engine = create_engine(url, poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # SQLAlchemy begins transactions
        cache = f"cache_size=-{LITTLE if connections else 65536}"
        for pragma in (f"busy_timeout={PATIENCE * 1000:.0f}", "journal_mode=WAL", "synchronous=FULL", cache):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _watch_file(engine: Engine, url: URL) -> None:
    """Refuses transactions after the file of open connections was removed or replaced: they would write to one that no
    name leads to, and a new connection would begin an empty one."""
    file, first = Path(url.database or ""), list[tuple[int, int]]()

    def check(*_: object) -> None:
        if first and first[0] != _identity(file):
            hint = "put it back and restart: what this process wrote since is lost"
            raise StoreUnreachable(f"{file} was removed or replaced while it was open", hint=hint)

    def connected(*_: object) -> None:
        if not first and (found := _identity(file)) is not None:
            first.append(found)

    event.listen(engine, "do_connect", check)
    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", check)
    event.listen(engine, "commit", check)
    event.listen(engine, "engine_disposed", lambda _: first.clear())


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _end_idle(engine: Engine, seconds: float) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.execute(f"SET idle_in_transaction_session_timeout = {seconds * 1000:.0f}")
        connection.commit()


def _hurry(engine: Engine, seconds: float) -> None:
    """Ends queries to PostgreSQL that take longer, on the server and on the client. A hung process sends nothing while
    its machine still accepts packets: only the client's own clock ends that."""
    import psycopg

    class Impatient(psycopg.Connection[Any]):
        """A connection that is closed when a query takes longer than `patience`."""

        patience: float | None = 1.25 * seconds

        def wait(self, gen: Generator[Any, Any, Any], *arguments: Any, **more: Any) -> Any:
            return super().wait(gen if self.patience is None else self._in_time(gen, self.patience), *arguments, **more)

        def _in_time(self, asking: Generator[Any, Any, Any], patience: float) -> Generator[Any, Any, Any]:
            """Wraps a generator of psycopg: yields what it waits for, and receives what is ready, sometimes nothing."""
            deadline = time.monotonic() + patience
            try:
                wanted = next(asking)
                while True:
                    ready = yield wanted
                    if not ready and time.monotonic() > deadline:
                        self.close()
                        raise psycopg.OperationalError(f"it did not answer for {patience:g} s")
                    wanted = asking.send(ready)
            except StopIteration as end:
                return end.value

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, more: Any) -> Any:
        made = Impatient.connect(*arguments, **more)
        made.execute(f"SET statement_timeout = {seconds * 1000:.0f}")
        made.commit()
        return made


def _await_writers(connection: Connection) -> None:
    """Restarts a transaction of SQLite as a write: one that read before another process wrote must not write."""
    driver: Any = connection.connection.driver_connection
    driver.execute("COMMIT")
    driver.execute("PRAGMA busy_timeout=0")
    deadline = time.monotonic() + PATIENCE
    try:
        while True:
            try:
                driver.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > deadline:
                    break
            time.sleep(LOOK)
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # raises its error as all other errors are raised
    finally:
        driver.execute(f"PRAGMA busy_timeout={PATIENCE * 1000:.0f}")


@contextmanager
def unhurried(connection: Connection) -> Iterator[None]:
    """Lifts the time limit: a migration may take long, and may wait for that of another server."""
    driver: Any = connection.connection.driver_connection
    before = getattr(driver, "patience", None)
    if before is None:
        yield
        return
    driver.patience = None
    try:
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        yield
    finally:
        driver.patience = before
