"""Log records of a running command: begin and end of steps, progress of tasks, and the fields of every line."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import time as clocks
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from replicator.core.runtime import Advance, Amounts, Progress
from replicator.core.text import parse_duration
from replicator.errors import ConfigError

# ---- step logging ----------------------------------------------------------------------------------------------------
# Steps: one log line at the begin, and one with the seconds at the end.


log = logging.getLogger(__name__)
progress_log = logging.getLogger(f"{__name__}.progress")  # the command line shows its lines more often


@contextmanager
def step(name: str, **facts: object) -> Iterator[dict[str, object]]:
    """Logs begin and end of a step. facts: fields of both lines; those added to the yielded value: of the last one."""
    log.info("%s begins", name, extra={"step": name, "state": "begun", **facts})
    began, more = clocks.monotonic(), dict(facts)
    state = "failed"
    try:
        yield more
        state = "ended"
    finally:
        seconds = round(clocks.monotonic() - began, 3)
        log.info("%s %s", name, state, extra={"step": name, "state": state, "seconds": seconds, **more})


def tell_event(what: str, event: int | None, position: int | None = None) -> None:
    """Logs the event and the position of the log up to which something was done."""
    log.info("%s to event %s", what, event, extra={"event_id": event, "position": position})


class Periodic:
    """Logs what may occur many times a second, such as refused connections: one line a period for each text, with the
    count of those that were left out before it. Threads may share it. every: seconds of `clock`."""

    def __init__(
        self, to: logging.Logger, *, every: float = 60.0, clock: Callable[[], float] = clocks.monotonic
    ) -> None:
        self._to, self._every, self._clock = to, every, clock
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}
        self._lock = threading.Lock()

    def warning(self, text: str, *facts: object) -> None:
        """Logs a warning, or counts it. text: a format, constant for a cause."""
        with self._lock:
            now = self._clock()
            if now - self._last.get(text, -math.inf) < self._every:
                self._left_out[text] = self._left_out.get(text, 0) + 1
                return
            self._last[text], more = now, self._left_out.pop(text, 0)
        self._to.warning(text + (f" ({more} more since the last line)" if more else ""), *facts)


# ---- watch -----------------------------------------------------------------------------------------------------------


TOLD = 30.0
"""Seconds between two lines of progress in a log."""


class Watch:
    """A Progress that shows tasks by another Progress and logs them every `every` seconds. Lines that come less than
    `told` seconds of `clock` after the last unmarked line are marked (`often`)."""

    def __init__(
        self, shown: Progress, *, every: float = TOLD, told: float = TOLD, clock: Callable[[], float] = clocks.monotonic
    ) -> None:
        self._shown, self._every, self._told, self._clock = shown, every, told, clock
        self._open: list[Amounts] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._last = clock()

    @contextlib.contextmanager
    def task(
        self,
        title: str,
        total: int | None = None,
        *,
        files: int | None = None,
        size: int | None = None,
        live: Callable[[], int] | None = None,
    ) -> Iterator[Advance]:
        done = Amounts(title, total, files=files, size=size, live=live)
        with (
            step(title) as facts,
            self._shown.task(title, total, files=files, size=size, live=live) as show,
            self._watched(done),
        ):

            def advance(steps: int = 1, *, files: int = 0, size: int = 0) -> None:
                done.advance(steps, files=files, size=size)
                show(steps, files=files, size=size)

            try:
                yield advance
            finally:
                facts |= {name: value for name, value in done.facts().items() if name in ("files", "bytes")}
                self._tell(done, often=True)

    @contextlib.contextmanager
    def _watched(self, done: Amounts) -> Iterator[None]:
        """Runs a thread that logs progress while any task is open."""
        with self._lock:
            self._open.append(done)
            if len(self._open) == 1:
                self._ended = threading.Event()
                self._last = self._clock()
                threading.Thread(target=self._look, args=[self._ended], name="progress", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._open.remove(done)
                if not self._open:
                    self._ended.set()

    def _look(self, ended: threading.Event) -> None:
        while not ended.wait(self._every):
            with self._lock:
                at_work = self._open[-1:]
            often = self._clock() - self._last < self._told * 0.99
            for each in at_work:
                self._tell(each, often=often)
            if not often:
                self._last = self._clock()

    def _tell(self, done: Amounts, *, often: bool) -> None:
        about = {"progress": done.title, "often": often, **done.facts()}
        progress_log.info("%s: %s", done.title, done.text(), extra=about)


# ---- about -----------------------------------------------------------------------------------------------------------
# Fields of the log lines of this process: its run, command and policy. They belong to the process: all threads of a
# command work for one run. A thread that works on one of several jobs adds its own.


SERVICE_RUN = "REPLICATOR_SERVICE_RUN"
"""Environment variable of a run that the service started: its id in the service."""

_about: dict[str, object] = {}
_mine: ContextVar[Mapping[str, object]] = ContextVar("mine", default={})  # noqa: B039 (never changed)


def about() -> Mapping[str, object]:
    """Returns the current fields of a line of this thread."""
    return {**_about, **_mine.get()}


def now_about(**fields: object) -> None:
    """Adds fields to every line, or replaces them, until the block of `lines_about` ends; None leaves one unchanged."""
    _about.update({name: value for name, value in fields.items() if value is not None})


@contextmanager
def lines_about(**fields: object) -> Iterator[None]:
    """Adds fields to every line within a block."""
    before = dict(_about)
    now_about(**fields)
    try:
        yield
    finally:
        _about.clear()
        _about.update(before)


@contextmanager
def own_lines_about(**fields: object) -> Iterator[None]:
    """Adds fields to the lines of this thread within a block."""
    before = _mine.set({**_mine.get(), **fields})
    try:
        yield
    finally:
        _mine.reset(before)


# ---- log config ------------------------------------------------------------------------------------------------------
# `[log]` of the configuration: level, format and destination of the log.


LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[log]`. `file`: replaces standard error. `level`: None: info with a file or `--verbose`, else warning.
    `heartbeat`: a duration, the interval between two log lines of a continuous job."""

    format: LogFormat | None = None
    level: LogLevel | None = None
    file: str | None = None
    heartbeat: str = "1m"

    @property
    def interval(self) -> timedelta:
        """The interval of heartbeats. Raises ConfigError."""
        try:
            found = parse_duration(self.heartbeat)
        except ValueError as error:
            raise ConfigError(f"log.heartbeat: {error}", hint="write a duration such as 30s or 1m") from error
        if not found:
            raise ConfigError("log.heartbeat: is zero", hint="write a duration such as 30s or 1m")
        return found


# ---- progress file ---------------------------------------------------------------------------------------------------
# Progress as a file, for a program that monitors the command.


VARIABLE = "REPLICATOR_PROGRESS_FILE"
"""Environment variable: the path to which a command writes its progress."""

OFTEN = 0.5
"""Seconds between two writes of the file; begin and end of a task are written at once."""


class AdvanceTask(Protocol):
    """A callback that adds completed steps, files and bytes."""

    def __call__(self, steps: int = 1, *, files: int = 0, size: int = 0) -> None: ...


class _OpenTask:
    def __init__(self, title: str, **of: int | None) -> None:
        self.title, self.of, self.begun = title, of, clocks.monotonic()
        self.done = dict.fromkeys(of, 0)

    def said(self, now: float) -> dict[str, object]:
        amounts = {
            name: value
            for kind, done in self.done.items()
            for name, value in ((kind, done), (f"of_{kind}", self.of[kind]))
            if kind == "steps" or done or self.of[kind]
        }
        return {"title": self.title, **amounts, "seconds": round(now - self.begun, 3)}


class ProgressFile:
    """A writer of one JSON object to `file`, which is replaced atomically: `{"tasks": [{"title": "copy", "steps": 3,
    "of_steps": 10, "seconds": 1.5}]}`: the open tasks, the outermost first; of_steps: null if unknown; files, of_files,
    bytes, of_bytes if they are reported. If the file cannot be written, the work continues without it. Any thread may
    advance a task."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._open: list[_OpenTask] = []
        self._written = float("-inf")
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def task(
        self,
        title: str,
        total: int | None = None,
        *,
        files: int | None = None,
        size: int | None = None,
        live: Callable[[], int] | None = None,
    ) -> Iterator[AdvanceTask]:
        """Same as Progress.task; `live` is ignored."""
        task = _OpenTask(title, steps=total, files=files, bytes=size)

        def advance(steps: int = 1, *, files: int = 0, size: int = 0) -> None:
            with self._lock:
                task.done["steps"] += steps
                task.done["files"] += files
                task.done["bytes"] += size
                if clocks.monotonic() - self._written >= OFTEN:
                    self._write()

        with self._lock:
            self._open.append(task)
            self._write()
        try:
            yield advance
        finally:
            with self._lock:
                self._open.remove(task)
                self._write()

    def _write(self) -> None:
        now = self._written = clocks.monotonic()
        aside = self._file.with_name(self._file.name + ".new")
        with contextlib.suppress(OSError):
            aside.write_text(json.dumps({"tasks": [each.said(now) for each in self._open]}))
            os.replace(aside, self._file)
