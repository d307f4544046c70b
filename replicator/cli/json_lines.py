"""`--json-lines`: a JSON object a line on standard output while a command runs; the answer is the last one.

Each line but the last has `line`, its kind: `step`, `progress`, `event` (something was done to an event of the log),
`heartbeat`, `warning`, `note`."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from replicator.cli.logs import OURS, WRITTEN, Line, formatter

EVERY = 2.0
"""Seconds between two lines of progress."""


@contextmanager
def lines_on_stdout() -> Iterator[None]:
    """For the length of a block. When it ends no line comes any more."""
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
    """A remark for people is a line, too."""
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
        except (OSError, ValueError):  # nobody reads it any more: the work goes on, and its end tells
            self._open = False

    def end(self) -> None:
        self.acquire()  # of who writes a line now
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
