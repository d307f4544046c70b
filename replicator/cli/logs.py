"""Log lines of the program: for people or as JSON, to standard error or to a file, made by structlog of what the
standard `logging` is given.

Each line has time (UTC), level, logger and what it is about; the fields of a record (`extra=`) follow. Other libraries
say warnings only, and at `debug` what is worth an `info`: their debug lines hold what is secret."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from typing import Any, TextIO

from structlog.processors import format_exc_info
from structlog.stdlib import ExtraAdder, ProcessorFormatter, add_log_level, add_logger_name

from replicator.core.telling.about import about
from replicator.core.telling.log_config import LogConfig
from replicator.errors import UsageError
from replicator.text.credentials import without_credentials
from replicator.text.printable import PrintableFormatter, printable, printable_lines

OURS = ("replicator", "cmroot")
Line = MutableMapping[str, Any]


def begin_logging(wanted: LogConfig, *, verbose: bool = False) -> None:
    """From here on this process logs as it is wanted; what was wanted before ends. Raises UsageError for a file that
    cannot be opened."""
    end_logging()
    handler = _handler(wanted)
    root = logging.getLogger()
    root.addHandler(handler)
    level = (wanted.level or ("info" if verbose or wanted.file else "warning")).upper()
    root.setLevel("INFO" if level == "DEBUG" else max(logging.getLevelNamesMapping()[level], logging.WARNING))
    for name in OURS:
        logging.getLogger(name).setLevel(level)
    spark = logging.getLogger("replicator.core.spark")
    quiet = level == "WARNING" and handler.for_people
    spark.setLevel(logging.INFO if quiet else logging.NOTSET)  # where it runs, when that is not here
    spark.propagate = not quiet
    if quiet:
        bare = _ToStderr()
        bare.setFormatter(PrintableFormatter("%(message)s"))
        spark.addHandler(bare)


def end_logging() -> None:
    """Takes away the handlers that `begin_logging` has given; others' stay."""
    for logger in (logging.getLogger(), logging.getLogger("replicator.core.spark")):
        for handler in [each for each in logger.handlers if isinstance(each, _ToStderr | _ToFile)]:
            logger.removeHandler(handler)
            handler.close()


def raise_level(name: str) -> None:
    """A logger of ours says what is worth an `info`, also where others say less: of a program that serves."""
    logger = logging.getLogger(name)
    if logger.getEffectiveLevel() == logging.WARNING:
        logger.setLevel(logging.INFO)


def logged(text: str, level: int, **fields: object) -> bool:
    """Writes a line whatever the level, where lines are JSON or go to a file; whether standard error needs no other."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _ToStderr | _ToFile) and not handler.for_people:
            record = logging.LogRecord("replicator", level, "", 0, "%s", (text,), None)
            record.__dict__.update(fields)
            handler.handle(record)
            return isinstance(handler, _ToStderr)
    return False


class _ToStderr(logging.StreamHandler[TextIO]):
    """for_people: its lines are no JSON, and so not what programs read."""

    for_people = True

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def handleError(self, record: logging.LogRecord) -> None:
        """Nobody reads it any more: the work goes on."""


class _ToFile(WatchedFileHandler):
    """A file that may be rotated: it is opened again when it was moved away."""

    for_people = False

    def handleError(self, record: logging.LogRecord) -> None:
        """A log that cannot be written (a full disk) ends no work, and is told once."""
        error = sys.exc_info()[1]
        if not self._told:
            self._told = True
            print(f"warning: {self.baseFilename}: the log cannot be written: {error}", file=sys.stderr)

    _told = False


def _handler(wanted: LogConfig) -> _ToStderr | _ToFile:
    handler: _ToStderr | _ToFile
    if wanted.file:
        try:
            handler = _ToFile(wanted.file, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UsageError(
                f"{wanted.file}: the log cannot be written there: {error.strerror}", hint="name another --log-file"
            ) from error
    else:
        handler = _ToStderr()
        handler.for_people = wanted.format != "json"
    before: list[Any] = [add_log_level, add_logger_name, ExtraAdder(), _at, _about, format_exc_info, _safe]
    last = _as_json if wanted.format == "json" else _as_text
    handler.setFormatter(
        ProcessorFormatter(foreign_pre_chain=before, processors=[ProcessorFormatter.remove_processors_meta, last])
    )
    return handler


# ---- from a record to a line --------------------------------------------------------------------------------------


def _at(logger: Any, name: str, line: Line) -> Line:
    at = datetime.fromtimestamp(line["_record"].created, UTC)
    return {"time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), **line}


def _about(logger: Any, name: str, line: Line) -> Line:
    return {**about(), **line}


def _safe(logger: Any, name: str, line: Line) -> Line:
    """Passwords in URLs do not get into a log, whoever quotes them."""
    return {key: without_credentials(value) if isinstance(value, str) else value for key, value in line.items()}


_FIRST = ("time", "level", "event", "logger", "message", "asctime")


def _as_json(logger: Any, name: str, line: Line) -> str:
    ordered = {"time": line["time"], "level": line["level"], "message": line["event"], "logger": line["logger"]}
    return json.dumps(ordered | {key: value for key, value in line.items() if key not in _FIRST}, default=str)


def _as_text(logger: Any, name: str, line: Line) -> str:
    """One line, and after it the lines of a traceback, marked; whatever names are in it."""
    trace = line.pop("exception", None)
    fields = "".join(f" {key}={_value(value)}" for key, value in line.items() if key not in _FIRST)
    text = printable(f"{line['time']} {line['level']:<7} {line['logger']}: {line['event']}{fields}")
    return text if trace is None else f"{text}{os.linesep}  | {printable_lines(str(trace))}"


def _value(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(' "=') else text
