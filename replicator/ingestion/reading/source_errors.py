"""Errors of databases, Spark and drivers, told apart: whether to try again, to wait, or to ask somebody. Knows neither
py4j nor pyspark: an error of Java is what has a `java_exception`, or an `_origin`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from cmroot.errors import Error as AnyError
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
    ("57", "component"),  # shut down, cancelled
    ("53", "component"),  # too many connections, no space
    ("58", "component"),
    ("XX", "component"),
    ("28", "user"),
    ("42", "user"),
    ("3D", "user"),
    ("3F", "user"),
    ("0A", "user"),
    ("22", "type"),
)
"""By the beginning of the SQLSTATE; the first that fits."""

_CODES: dict[int, Kind] = {1205: "lock", 1213: "lock", 3572: "lock", 1130: "user", 1040: "component", 1053: "component"}
"""Of MySQL and MariaDB, which have no SQLSTATE of their own for these."""

_WORDS: tuple[tuple[str, Kind], ...] = (
    (r"lock timeout|lock wait timeout|deadlock|could not serialize|conflict with recovery", "lock"),
    (r"snapshot \S+ does not exist|invalid snapshot identifier", "component"),
    (r"connection|terminat|shut(ting)? ?down|starting up|i/o error|timed? ?out|socket|broken pipe", "component"),
    (r"permission denied|authentication failed|access denied|does not exist|doesn't exist|unknown column", "user"),
    (r"out of range|overflow|bad value|invalid input syntax|cast_invalid|cannot be (cast|represented)", "type"),
)
"""By what is said, where a job of Spark has only told the text."""

_HINTS: dict[Kind, str] = {
    "component": "check that the database of [ingestion.sources.{name}] answers; this is tried again",
    "lock": "this is tried again later; see who holds the lock (pg_locks, SHOW PROCESSLIST)",
    "user": "check user, password and url of [ingestion.sources.{name}], and what this user may read",
    "type": "make a view of the table in which the column fits, and request that",
}
_FILES_HINTS: dict[Kind, str] = {
    "component": "check that Spark reads the directory of [ingestion.sources.{name}]; this is tried again",
    "lock": "this is tried again later",
    "user": "correct the files, or their description; names that differ in case only are one name",
    "type": "correct the files, or describe the column by another type",
}

_SQL_ERROR = re.compile(
    r"(?:org\.postgresql\.util\.PSQL\w*|java\.sql\.\w*Exception|org\.mariadb\.jdbc\.[\w.]*Exception"
    r"|org\.apache\.spark\.Spark\w*(?:Arithmetic|DateTime|NumberFormat)\w*): (.*)"
)
_DEEP = 20


def classify(error: BaseException) -> Kind:
    """component: try again; lock: try again later; user, type: not before something was changed."""
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
    """What the database said, in a line."""
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
    """The error of ours for one of source `name`, a database or a drop zone; what is `secret` is left out, whoever said
    it."""
    if isinstance(error, Error):
        return error
    kind, text = classify(error), said(error)
    if secret:
        text = text.replace(secret, "***")
    hints = _FILES_HINTS if of_files else _HINTS
    return _CLASSES[kind](f"source {name}: {text}", hint=hints[kind].format(name=name))


def _of_ours(error: AnyError) -> Kind:
    if isinstance(error, TypeRefused):
        return "type"
    if isinstance(error, SourceLocked):
        return "lock"
    user = (SourceRefused, SourceMissing, ConfigError, UsageError, Refused)
    return "user" if isinstance(error, user) else "component"


def _causes(error: BaseException) -> Iterator[Any]:
    """The Java exceptions, the outermost first; none where Java is gone."""
    throwable = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(_DEEP):
        if throwable is None:
            return
        yield throwable
        throwable = throwable.getCause()


def _state(throwable: Any) -> str:
    """The SQLSTATE of a driver's exception, or of one of Spark's."""
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
        return "component"  # the connection that exported it is gone
    return next((kind for begin, kind in _STATES if state and state.startswith(begin)), None)
