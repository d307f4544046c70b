"""Output of the program: the report of a command on standard output, and errors, as one JSON object or aligned text;
and log lines as text or JSON, on standard error or in a file, formatted by structlog. Each log line has time (UTC),
level, logger and context (policy, run); the fields of a record (`extra=`) follow. Other libraries log warnings only, at
`debug` also infos: their debug lines contain secrets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import sys
import time as clocks
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from typing import Any, Protocol, TextIO

import click
from structlog.processors import format_exc_info
from structlog.stdlib import ExtraAdder, ProcessorFormatter, add_log_level, add_logger_name

from replicator.core import runtime
from replicator.core.logging import SERVICE_RUN, LogConfig, about, progress_log
from replicator.core.not_replicated import Report
from replicator.core.text import PrintableFormatter, printable, printable_lines, without_credentials
from replicator.core.text import count_text as count_text
from replicator.core.text import duration_text as duration_text
from replicator.core.text import size_text as size_text
from replicator.core.text import time_text as time_text
from replicator.errors import Error, UsageError

# ---- log lines -------------------------------------------------------------------------------------------------------


OURS = ("replicator", "cmroot")
PROGRESS, HEARTBEAT = progress_log.name, runtime.log.name
Line = MutableMapping[str, Any]


def begin_logging(wanted: LogConfig, *, verbose: bool = False) -> None:
    """Configures the logging of this process, in place of an earlier configuration. Raises UsageError for a file that
    cannot be opened."""
    end_logging()
    handler = _handler(wanted)
    handler.addFilter(_Fit(wanted, verbose, handler))
    root = logging.getLogger()
    root.addHandler(handler)
    level = (wanted.level or ("info" if verbose or wanted.file else "warning")).upper()
    root.setLevel("INFO" if level == "DEBUG" else max(logging.getLevelNamesMapping()[level], logging.WARNING))
    for name in (*OURS, "replicator.service"):
        logging.getLogger(name).setLevel(level)
    for name in (PROGRESS, HEARTBEAT):
        logging.getLogger(name).setLevel(logging.INFO)
    spark = logging.getLogger("replicator.core.spark")
    quiet = level == "WARNING" and handler.for_people
    spark.setLevel(logging.INFO if quiet else logging.NOTSET)  # where it runs, when that is not here
    spark.propagate = not quiet
    if quiet:
        bare = _ToStderr()
        bare.setFormatter(PrintableFormatter("%(message)s"))
        spark.addHandler(bare)


def end_logging() -> None:
    """Removes the handlers that `begin_logging` installed, and no others."""
    for logger in (logging.getLogger(), logging.getLogger("replicator.core.spark")):
        for handler in [each for each in logger.handlers if isinstance(each, _ToStderr | _ToFile)]:
            logger.removeHandler(handler)
            handler.close()


def raise_level(name: str) -> None:
    """Raises a logger of this program to `info`, even if the default level is higher and was not set: for programs that
    serve."""
    if any(each.raises(name) for handler in _handlers() for each in handler.filters if isinstance(each, _Fit)):
        logging.getLogger(name).setLevel(logging.INFO)


def _handlers() -> list[_ToStderr | _ToFile]:
    return [each for each in logging.getLogger().handlers if isinstance(each, _ToStderr | _ToFile)]


class _Fit:
    """Filters the records of a log: by its level, even if `--json-lines` requires a lower one; lines of progress at an
    interval, and none on a terminal, which shows bars."""

    def __init__(self, wanted: LogConfig, verbose: bool, handler: logging.Handler) -> None:
        level = wanted.level or ("info" if verbose or wanted.file else "warning")
        self._level = logging.getLevelNamesMapping()[level.upper()]
        self._quiet = wanted.level is None and self._level == logging.WARNING
        self._terminal = isinstance(handler, _ToStderr) and sys.stderr.isatty()
        self._raised = {PROGRESS, HEARTBEAT} if self._quiet else set[str]()

    def raises(self, name: str) -> bool:
        """Enables `info` for a logger and those below it."""
        if self._quiet:
            self._raised.add(name)
        return self._quiet

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == PROGRESS and (self._terminal or record.__dict__.get("often")):
            return False
        return record.levelno >= self._level or (
            record.levelno >= logging.INFO
            and any(record.name == each or record.name.startswith(each + ".") for each in self._raised)
        )


def logged(text: str, level: int, **fields: object) -> bool:
    """Writes a line regardless of the level, if lines are JSON or written to a file. Returns True if standard error
    requires no other line."""
    for handler in _handlers():
        if not handler.for_people:
            record = logging.LogRecord("replicator", level, "", 0, "%s", (text,), None)
            record.__dict__.update(fields)
            with contextlib.suppress(OSError):
                handler.acquire()
                try:
                    handler.emit(record)
                finally:
                    handler.release()
            return isinstance(handler, _ToStderr)
    return False


class _ToStderr(logging.StreamHandler[TextIO]):
    """for_people: its lines are text, not JSON."""

    for_people = True

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def handleError(self, record: logging.LogRecord) -> None:
        """The reader has closed the pipe: the work continues."""


class _ToFile(WatchedFileHandler):
    """A file that may be rotated: it is opened again when it was moved away."""

    for_people = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # it cannot be opened again; the next line tries that once more
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """A log that cannot be written (a full disk) does not stop the work, and is reported once."""
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
    handler.setFormatter(formatter(_as_json if wanted.format == "json" else _as_text))
    return handler


def formatter(last: Callable[[Any, str, Line], str]) -> ProcessorFormatter:
    """Returns a formatter that adds time, context and fields to records; `last` renders them."""
    before: list[Any] = [add_log_level, add_logger_name, ExtraAdder(), _at, _about, format_exc_info, _safe]
    return ProcessorFormatter(foreign_pre_chain=before, processors=[ProcessorFormatter.remove_processors_meta, last])


# ---- from a record to a line --------------------------------------------------------------------------------------


def _at(logger: Any, name: str, line: Line) -> Line:
    at = datetime.fromtimestamp(line["_record"].created, UTC)
    return {"time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), **line}


def _about(logger: Any, name: str, line: Line) -> Line:
    return {**about(), **line}


def _safe(logger: Any, name: str, line: Line) -> Line:
    """Removes passwords of URLs from a line, also from quoted messages of libraries."""
    return {key: without_credentials(value) if isinstance(value, str) else value for key, value in line.items()}


WRITTEN = ("time", "level", "event", "logger", "message", "asctime", "often")


def _as_json(logger: Any, name: str, line: Line) -> str:
    ordered = {"time": line["time"], "level": line["level"], "message": line["event"], "logger": line["logger"]}
    return json.dumps(ordered | {key: value for key, value in line.items() if key not in WRITTEN}, default=str)


def _as_text(logger: Any, name: str, line: Line) -> str:
    """Returns one line, followed by the marked lines of a traceback, with names escaped."""
    trace = line.pop("exception", None)
    fields = "".join(f" {key}={_value(value)}" for key, value in line.items() if key not in WRITTEN)
    text = printable(f"{line['time']} {line['level']:<7} {line['logger']}: {line['event']}{fields}")
    return text if trace is None else f"{text}{os.linesep}  | {printable_lines(str(trace))}"


def _value(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(' "=') else text


# ---- json lines ------------------------------------------------------------------------------------------------------
# `--json-lines`: one JSON object per line on standard output while a command runs; the last one is the report.
#
# Each line but the last has `line`, its kind: `step`, `progress`, `event` (something was done to an event of the log),
# `heartbeat`, `warning`, `note`.


EVERY = 2.0
"""Seconds between two lines of progress."""


@contextmanager
def lines_on_stdout() -> Iterator[None]:
    """Writes lines of JSON for the length of a block, and none after it."""
    handler = _Lines()
    handler.setFormatter(formatter(_as_line))
    loggers = [logging.getLogger(name) for name in OURS]
    before = [each.level for each in loggers]
    logging.getLogger().addHandler(handler)
    for each in loggers:
        each.setLevel(min(each.level or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        for each, level in zip(loggers, before, strict=True):
            each.setLevel(level)
        logging.getLogger().removeHandler(handler)
        handler.end()


def noted(text: str, level: int) -> None:
    """Writes a remark as a line."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Lines):
            handler.handle(logging.LogRecord("replicator", level, "", 0, "%s", (text,), None))


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._open = True

    def emit(self, record: logging.LogRecord) -> None:
        if not self._open or _kind(record.__dict__, record.levelno, record.name) is None:
            return
        try:
            sys.stdout.write(self.format(record) + "\n")
            sys.stdout.flush()
        except (OSError, ValueError):  # the reader has closed the pipe: the exit code reports the result
            self._open = False

    def end(self) -> None:
        self.acquire()  # held by the thread that writes a line
        self._open = False
        self.release()


_KINDS = {"progress": "progress", "step": "step", "event_id": "event", "heartbeat": "heartbeat"}


def _kind(fields: Any, level: int, name: str) -> str | None:
    if level >= logging.WARNING:
        return "warning"
    found = next((kind for field, kind in _KINDS.items() if field in fields), None)
    return found or ("note" if name == "replicator" else None)


def _as_line(logger: Any, name: str, line: Line) -> str:
    level = logging.getLevelNamesMapping()[line["level"].upper()]
    kind = _kind(line, level, line["logger"])
    fields = {key: value for key, value in line.items() if key not in (*WRITTEN, "heartbeat")}
    return json.dumps({"line": kind, "time": line["time"], "message": line["event"]} | fields, default=str)


# ---- answers ---------------------------------------------------------------------------------------------------------
# All of standard output passes through here.


SHOWN = 20  # number of items shown individually as text; JSON has all of them
BROKEN_PIPE = 141  # 128 + SIGPIPE


def emit(value: Mapping[str, Any] | Any, as_json: bool, lines: Iterable[str] | None = None) -> None:
    """Writes a command's report: `value` (a mapping or a dataclass) as one JSON object, or `lines` as text (None: the
    value's fields, aligned)."""
    if isinstance(value, Report):
        fields: Mapping[str, Any] = value.to_dict()
    else:
        fields = value if isinstance(value, Mapping) else dataclasses.asdict(value)
    if as_json:
        write([json.dumps(fields)])
    else:
        write(aligned(fields.items()) if lines is None else lines)


def write(lines: Iterable[str]) -> None:
    """Writes lines to standard output. A closed pipe (`| head`) ends the command without an error. In a run of the
    service, a full disk does not: the work is done, and the exit code says how. Elsewhere it raises OSError."""
    try:
        for line in lines:  # JSON is written in ASCII, and stays as it is
            sys.stdout.write(printable(line) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  the interpreter flushes it once more at its end
        raise SystemExit(BROKEN_PIPE) from None
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        note(f"the report cannot be written: {error.strerror}", logging.ERROR)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or SERVICE_RUN not in os.environ:
            raise


def note(text: str, level: int = logging.INFO) -> None:
    """Writes a remark to standard error, and to the log if that is a file."""
    noted(text, level)
    if not logged(text, level):
        _to_stderr(text)


def _to_stderr(text: str) -> None:
    """Writes to standard error, if that is possible: a full disk must not end the work."""
    with contextlib.suppress(OSError):
        click.echo(printable_lines(text), err=True)


def show_error(fields: Mapping[str, Any], as_json: bool) -> None:
    """Writes an error: `message`, `hint` and the other fields of `failure`."""
    about = {key: fields[key] for key in ("error", "hint", "exit_code") if fields.get(key) not in (None, "")}
    said = logged(fields["message"], logging.ERROR, **about)
    if as_json:
        write([json.dumps(fields)])
        return
    if said:
        return
    _to_stderr(f"error: {fields['message']}")
    if fields["hint"]:
        _to_stderr(f"hint: {fields['hint']}")


def failure(error: Error) -> dict[str, Any]:
    return {**error.as_json(), "exit_code": error.exit_code}


def aligned(pairs: Iterable[tuple[str, Any]]) -> list[str]:
    """`name  value` lines, names padded to one width; None is left out, a list takes a line for each entry."""
    rows = [(name, value) for name, value in pairs if value is not None and value != []]
    width = max((len(name) for name, _ in rows), default=0)
    lines = []
    for name, value in rows:
        values = [printable(str(each)) for each in (value if isinstance(value, list | tuple) else [value])]
        lines += [f"{name if index == 0 else '':<{width}}  {text}" for index, text in enumerate(values)]
    return lines


def value_text(value: Any) -> str:
    """Formats a value as text, without a program's notation: none, yes, `a = 1, b = 2`; quotes only around text with
    spaces at its ends."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case str():
            return value if value and value == value.strip() else f'"{value}"'
        case Mapping():
            return ", ".join(f"{name} = {value_text(each)}" for name, each in value.items()) or "none"
        case list() | tuple() | set() | frozenset():
            return ", ".join(map(value_text, value)) or "none"
        case _:
            return str(value)


def columns(head: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[str] = ()) -> list[str]:
    """A table: a line of headings, then a line for each row, padded; columns named in `right` are aligned there."""
    lines = [list(head), *([("" if cell is None else printable(str(cell))) for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(head))]
    aligns = [">" if name in right else "<" for name in head]
    return [
        "  ".join(f"{cell:{align}{width}}" for cell, align, width in zip(line, aligns, widths, strict=True)).rstrip()
        for line in lines
    ]


def shortened(things: Iterable[str]) -> list[str]:
    """Returns the first items, and the number of the others."""
    all_ = list(things)
    return all_ if len(all_) <= SHOWN else [*all_[:SHOWN], f"... and {len(all_) - SHOWN} more (--json lists all)"]


class _Copied(Protocol):
    """The numbers of copied files in a report, by the source of their bytes."""

    @property
    def files_from_source(self) -> int: ...

    @property
    def files_from_cmroot(self) -> int: ...

    @property
    def files_from_target(self) -> int: ...


def sources_text(copied: _Copied, *, target: str = "the target itself", dump: int = 0) -> str:
    """Returns the number of copied files by the source of their bytes, in parentheses; "" if none were copied.
    target: the name of the target's own source; dump: the number from a dump with data."""
    counts = {
        "the source": copied.files_from_source,
        "$cmroot": copied.files_from_cmroot,
        target: copied.files_from_target,
        "the dump": dump,
    }
    shown = ", ".join(f"{number:,} from {source}" for source, number in counts.items() if number)
    return f" ({shown})" if shown else ""


def took(seconds: float) -> str:
    """Formats the duration since the command was started, including imports, connections and Spark's start. seconds:
    the duration of the work, used if no command runs."""
    context = click.get_current_context(silent=True)
    began = getattr(context.obj, "began", None) if context else None
    return f"{clocks.monotonic() - began if began else seconds:.1f} s"
