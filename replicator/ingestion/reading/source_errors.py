"""Classification of errors of databases, Spark and drivers: whether to retry, to wait, or to require a change. Depends
on neither py4j nor pyspark: a Java error is an object with a `java_exception` or an `_origin`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cmroot.errors import Error as AnyError
from replicator.core.source_config import SourceConfig
from replicator.errors import (
    ConfigError,
    Error,
    Refused,
    SourceLocked,
    SourceMissing,
    SourceRefused,
    SourceUnreachable,
    TypeRefused,
    UsageError,
)
from replicator.metastore.embedded.distributions import Artifact, fetch
from replicator.metastore.java import Java, cache_directory

Kind = Literal["component", "lock", "user", "type"]

_CLASSES: dict[Kind, type[Error]] = {
    "component": SourceUnreachable,
    "lock": SourceLocked,
    "user": SourceRefused,
    "type": TypeRefused,
}
_STATES: tuple[tuple[str, Kind], ...] = (
    ("55P03", "lock"),  # lock_timeout, NOWAIT
    ("55006", "lock"),
    ("40", "lock"),  # deadlock, serialization, recovery conflicts
    ("08", "component"),
    ("57", "component"),  # shutdown, cancelled
    ("53", "component"),  # too many connections, no space
    ("58", "component"),
    ("XX", "component"),
    ("28", "component"),  # a password may be being rotated
    ("42", "user"),
    ("3D", "user"),
    ("3F", "user"),
    ("0A", "user"),
    ("22", "type"),
)
"""By the prefix of the SQLSTATE; the first match counts."""

_CODES: dict[int, Kind] = {1205: "lock", 1213: "lock", 3572: "lock", 1130: "user", 1040: "component", 1053: "component"}
"""Error codes of MySQL and MariaDB, which have no SQLSTATE of their own for these."""

_NO_LOGIN = r"authentication failed|access denied for user .* \(using password|role .* does not exist"
_WORDS: tuple[tuple[str, Kind], ...] = (
    (r"lock timeout|lock wait timeout|deadlock|could not serialize|conflict with recovery", "lock"),
    (r"snapshot \S+ does not exist|invalid snapshot identifier", "component"),
    (r"connection|terminat|shut(ting)? ?down|starting up|i/o error|timed? ?out|socket|broken pipe", "component"),
    (_NO_LOGIN, "component"),
    (r"permission denied|access denied|does not exist|doesn't exist|unknown column", "user"),
    (r"out of range|overflow|bad value|invalid input syntax|cast_invalid|cannot be (cast|represented)", "type"),
)
"""By the message, where a Spark job has only passed on the text."""

_HINTS: dict[Kind, str] = {
    "component": "check that the database of [ingestion.sources.{name}] responds; this is retried",
    "lock": "this is retried later; check which session holds the lock (pg_locks, SHOW PROCESSLIST)",
    "user": "check user and url of [ingestion.sources.{name}], and the privileges of this user",
    "type": "create a view of the table in which the column fits, and request the view",
}
_LOGIN = "check user and password of [ingestion.sources.{name}]; once they are right, this continues by itself"
_FILES_HINTS: dict[Kind, str] = {
    "component": "check that Spark can read the directory of [ingestion.sources.{name}]; this is retried",
    "lock": "this is retried later",
    "user": "correct the files, or their description; names that differ only in case are equal",
    "type": "correct the files, or describe the column with another type",
}

_SQL_ERROR = re.compile(
    r"(?:org\.postgresql\.util\.PSQL\w*|java\.sql\.\w*Exception|org\.mariadb\.jdbc\.[\w.]*Exception"
    r"|org\.apache\.spark\.Spark\w*(?:Arithmetic|DateTime|NumberFormat)\w*): (.*)"
)
_DEEP = 20


def classify(error: BaseException) -> Kind:
    """Returns an error's kind. component: retry; lock: retry later; user, type: do not retry before a change."""
    if isinstance(error, AnyError):
        return _of_ours(error)
    words = ""
    for throwable in _causes(error):
        words += f"\n{throwable.getClass().getName()}: {throwable.getMessage()}"
        if (kind := _by_state(throwable)) is not None:
            return kind
    text = words or f"{type(error).__name__}: {error}"
    text = match[1] if (match := _SQL_ERROR.search(text)) else text
    return next((kind for words, kind in _WORDS if re.search(words, text, re.IGNORECASE)), "component")


def said(error: BaseException) -> str:
    """Returns the database's message, in one line."""
    if isinstance(error, AnyError):
        return error.message
    text = str(error)
    for throwable in _causes(error):
        text = str(throwable.getMessage() or throwable.getClass().getSimpleName())
        if _state(throwable):
            break
    if match := _SQL_ERROR.search(text):
        text = match[1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"^\(conn=\d+\) ", "", lines[0])[:300] if lines else type(error).__name__


def source_error(error: BaseException, name: str, secret: str = "", *, of_files: bool = False) -> Error:
    """Returns the project's error for one of source `name`, a database or a drop zone. `secret` is removed from the
    message, regardless of its origin."""
    if isinstance(error, Error):
        return error
    kind, text = classify(error), said(error)
    if secret:
        text = text.replace(secret, "***")
    hints = _FILES_HINTS if of_files else _HINTS
    hint = _LOGIN if re.search(_NO_LOGIN, text, re.IGNORECASE) else hints[kind]
    return _CLASSES[kind](f"source {name}: {text}", hint=hint.format(name=name))


def _of_ours(error: AnyError) -> Kind:
    if isinstance(error, TypeRefused):
        return "type"
    if isinstance(error, SourceLocked):
        return "lock"
    user = (SourceRefused, SourceMissing, ConfigError, UsageError, Refused)
    return "user" if isinstance(error, user) else "component"


def _causes(error: BaseException) -> Iterator[Any]:
    """Yields the Java exceptions, the outermost first; none if the JVM is gone."""
    throwable = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(_DEEP):
        if throwable is None:
            return
        yield throwable
        throwable = throwable.getCause()


def _state(throwable: Any) -> str:
    """Returns the SQLSTATE of an exception of a driver or of Spark."""
    methods = dir(throwable)
    for method in ("getSQLState", "getSqlState"):
        if method in methods:
            return str(getattr(throwable, method)() or "")
    return ""


def _by_state(throwable: Any) -> Kind | None:
    state = _state(throwable)
    if "getErrorCode" in dir(throwable) and (kind := _CODES.get(throwable.getErrorCode())) is not None:
        return kind
    if state == "42704" and "snapshot" in str(throwable.getMessage()):
        return "component"  # the connection that exported it is closed
    return next((kind for begin, kind in _STATES if state and state.startswith(begin)), None)


# ---- control ---------------------------------------------------------------------------------------------------------
# The control connection of a source: one connection of its JDBC driver in Spark's JVM, by which the catalog and
# statistics are read and a snapshot is held. Results are texts, which the SQL formats.


Row = tuple[str | None, ...]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """Timeouts in seconds. login: for a connection; lock: for a lock held by others; answer: for the first rows of a
    query, also if the database stops responding; open: for running transactions, before rows above their begin have to
    wait for the next job."""

    login: int = 30
    lock: int = 60
    answer: int = 3600
    open: int = 5


class Control:
    """A control connection, for one thread at a time. Raises the project's errors (see `source_errors`)."""

    def __init__(self, connection: Any, name: str, secret: str, patience: Patience) -> None:
        self._connection, self._name, self._secret, self._patience = connection, name, secret, patience

    def run(self, statement: str) -> None:
        with self._ours(), self._statement() as asked:
            asked.execute(statement)

    def rows(self, query: str, *parameters: str) -> list[Row]:
        """Returns the rows of a query with `?` for each parameter; without parameters, `?` is a plain character."""
        with self._ours():
            if not parameters:
                with self._statement() as asked:
                    return _texts(asked.executeQuery(query))
            prepared = self._connection.prepareStatement(query)
            try:
                prepared.setQueryTimeout(self._patience.answer)
                for number, parameter in enumerate(parameters, 1):
                    prepared.setString(number, parameter)
                return _texts(prepared.executeQuery())
            finally:
                prepared.close()

    def first_rows(self, query: str, most: int) -> list[Row]:
        """Returns at most that many rows of a query."""
        with self._ours(), self._statement() as asked:
            asked.setMaxRows(most)
            return _texts(asked.executeQuery(query))

    def described(self, schema: str, table: str) -> list[Row]:
        """Returns the driver's description of the columns of a table, in their order: name, code and name of the type,
        digits, decimal places, and "0" for a column without NULL. A database without schemas has catalogs of their
        names, or neither."""
        labels = ("COLUMN_NAME", "DATA_TYPE", "TYPE_NAME", "COLUMN_SIZE", "DECIMAL_DIGITS", "NULLABLE")
        for catalog, of in ((None, schema), (schema, None), (None, None)):
            with self._ours():
                about = self._connection.getMetaData()
                answer = about.getColumns(catalog, self._pattern(about, of), self._pattern(about, table), None)
                also = ("TABLE_SCHEM", "TABLE_CAT", "TABLE_NAME", "ORDINAL_POSITION")
                found = _labelled(answer, (*also, *labels))
            mine = [
                (int(at or 0), row)
                for in_schema, in_catalog, name, at, *row in found
                if name == table and (of or catalog or not (in_schema or in_catalog)) and (not of or in_schema == of)
            ]
            if mine:
                return [tuple(row) for _, row in sorted(mine)]
        return []

    def table_names(self, schema: str) -> list[str]:
        """Returns the tables and views of a schema, by the driver's description."""
        with self._ours():
            about = self._connection.getMetaData()
            found = _labelled(
                about.getTables(None, None, "%", None), ("TABLE_SCHEM", "TABLE_CAT", "TABLE_NAME", "TABLE_TYPE")
            )
        kinds = ("TABLE", "BASE TABLE", "VIEW")
        return sorted(name or "" for of, catalog, name, kind in found if (of or catalog) == schema and kind in kinds)

    def key(self, schema: str, table: str) -> list[str | None]:
        """Returns the columns of a table's primary key, by the driver's description."""
        for catalog, of in ((None, schema), (schema, None), (None, None)):
            with self._ours():
                answer = self._connection.getMetaData().getPrimaryKeys(catalog, of, table)
                found = _labelled(answer, ("KEY_SEQ", "COLUMN_NAME"))
            if found:
                return [name for _, name in sorted(found, key=lambda row: int(row[0] or 0))]
        return []

    @staticmethod
    def _pattern(about: Any, name: str | None) -> str | None:
        """Returns a pattern that matches a name, and little else."""
        escape = str(about.getSearchStringEscape() or "")
        return name and re.sub(r"([_%])", lambda match: escape + match[1], name)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction that changes nothing, and is rolled back at its end."""
        with self._ours():
            self._connection.setAutoCommit(False)
        try:
            yield
        finally:
            try:
                self._connection.rollback()
                self._connection.setAutoCommit(True)
            except Exception as error:  # the server is gone, and with it the transaction
                log.info("source %s: a transaction ended unexpectedly: %s", self._name, said(error))

    def close(self) -> None:
        """Closes the connection, also if the server is gone."""
        try:
            self._connection.close()
        except Exception as error:
            log.info("source %s: the connection ended unexpectedly: %s", self._name, said(error))

    @contextmanager
    def _ours(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise source_error(error, self._name, self._secret) from None

    @contextmanager
    def _statement(self) -> Iterator[Any]:
        asked = self._connection.createStatement()
        try:
            asked.setQueryTimeout(self._patience.answer)
            yield asked
        finally:
            asked.close()


def connect(
    session: Any, driver: str, url: str, properties: Mapping[str, str], name: str, patience: Patience
) -> Control:
    """Connects to a source. session: the SparkSession whose jars have the class `driver`. Raises ConfigError if they do
    not."""
    jvm, secret = session.sparkContext._jvm, properties.get("password", "")
    given = jvm.java.util.Properties()
    for key, value in properties.items():
        given.setProperty(key, value)
    try:
        loader = session._jsparkSession.sharedState().jarClassLoader()
        made = loader.loadClass(driver).newInstance()
    except Exception as error:
        raise ConfigError(
            f"source {name}: Spark has no class {driver}", hint="add the driver to `spark.jars` of [spark]"
        ) from error
    try:
        connection = made.connect(url, given)
    except Exception as error:
        raise source_error(error, name, secret) from None
    if connection is None:
        raise ConfigError(f"source {name}: its driver does not accept its URL", hint="check url and jar")
    return Control(connection, name, secret, patience)


def _labelled(answer: Any, labels: tuple[str, ...]) -> list[Row]:
    found = []
    while answer.next():
        found.append(tuple(answer.getString(label) for label in labels))
    return found


def _texts(answer: Any) -> list[Row]:
    count = answer.getMetaData().getColumnCount()
    found = []
    while answer.next():
        found.append(tuple(answer.getString(number) for number in range(1, count + 1)))
    return found


# ---- drivers ---------------------------------------------------------------------------------------------------------
# The JDBC drivers of sources: downloaded once into the cache, or those that the configuration names.
#
# MySQL is read by MariaDB's driver, too: it streams rows on demand (MySQL's own reads an entire result into memory
# first), and its licence permits distribution with this program. It accepts MySQL URLs only if they permit it
# explicitly.


POSTGRES = Artifact(
    "org.postgresql:postgresql:42.7.14", "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c"
)
MARIADB = Artifact(
    "org.mariadb.jdbc:mariadb-java-client:3.5.11", "42604178b9e57ec08ee0035079961516f086e455d0141f0b22c6eff29fb2fff4"
)
CLASSES = {
    "postgresql": "org.postgresql.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "mysql": "org.mariadb.jdbc.Driver",
}
"""Driver classes by kind of source."""


def driver_class(source: SourceConfig) -> str:
    return source.driver or CLASSES[source.kind]


_ARTIFACTS = {"postgresql": POSTGRES, "mariadb": MARIADB, "mysql": MARIADB}
_HINT = "give the driver's jar as `jar` of the source, or a mirror as REPLICATOR_MAVEN_REPOSITORY"


def driver_jars(sources: Iterable[SourceConfig], java: Java, env: Mapping[str, str]) -> list[Path]:
    """Returns the jars for `spark.jars`; drop zones require none. Raises ConfigError for a missing jar, and as `fetch`
    does."""
    wanted: dict[Path, Artifact | None] = {}
    kept = cache_directory(env) / "jars"
    for source in sources:
        if source.path:
            continue
        if source.jar:
            if not (given := Path(source.jar).expanduser()).is_file():
                raise ConfigError(f"the driver {given} of a source does not exist", hint="check `jar` of the source")
            wanted[given.absolute()] = None
        else:
            artifact = _ARTIFACTS[source.kind]
            wanted[kept / artifact.file_name] = artifact
    if missing := [artifact for artifact in wanted.values() if artifact]:
        fetch(missing, kept, java, env, _HINT)
    return list(wanted)


def give_drivers(session: Any, jars: Iterable[Path]) -> None:
    """Makes the drivers available to this thread's reads with a session, also if another program started Spark, or if
    it is the second session of a JVM: there `spark.jars` applies to the executors only. May run twice."""
    for jar in map(str, jars):
        session._jsparkSession.sessionState().resourceLoader().addJar(jar)


def spark_url(source: SourceConfig) -> str:
    """Returns the URL by which both Spark and the driver recognise the database: Spark quotes names as in MySQL only
    for `jdbc:mysql`; otherwise it reads a column as the text of its name."""
    if source.kind in ("postgresql", "jdbc"):
        return source.url
    url = "jdbc:mysql:" + source.url.split(":", 2)[2]
    if "permitMysqlScheme" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}permitMysqlScheme"
