"""Progress of long work: bars on a terminal's standard error, a file for a program that looks on, else nothing."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from replicator.text.printable import printable

VARIABLE = "REPLICATOR_PROGRESS_FILE"
"""Of the environment: where a command writes its progress."""

OFTEN = 0.5
"""Seconds between two states of the file; a task's begin and end are written at once."""


class Progress(Protocol):
    """Tells a person how far long work is."""

    def task(self, title: str, total: int | None = None) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        """While open, calling the value advances the task by so many steps of `total` (None: unknown)."""
        ...


class Silent:
    """Shows nothing."""

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        yield lambda steps: None


class Bars:
    """Bars drawn by rich on standard error; the caller chooses it only for a terminal."""

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with RichProgress(*columns, console=Console(stderr=True), transient=True) as display:
            number = display.add_task(printable(title), total=total)
            yield lambda steps: display.advance(number, steps)


@dataclass(eq=False)
class _Task:
    title: str
    total: int | None
    begun: float
    done: int = 0


@dataclass
class ProgressFile:
    """Writes one JSON object to `file`, replaced as a whole, for a program that looks on: `{"tasks": [{"title": "copy
    files", "done": 3, "total": 10, "seconds": 1.5}]}`, those that are open, the outermost first; total: null where
    nobody knows it. A file that cannot be written is left: the work goes on. Several threads may advance tasks."""

    file: Path
    _tasks: list[_Task] = field(default_factory=list)
    _written: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        task = _Task(title, total, time.monotonic())

        def advance(steps: int) -> None:
            with self._lock:
                task.done += steps
                if time.monotonic() - self._written >= OFTEN:
                    self._write()

        with self._lock:
            self._tasks.append(task)
            self._write()
        try:
            yield advance
        finally:
            with self._lock:
                self._tasks.remove(task)
                self._write()

    def _write(self) -> None:
        now = self._written = time.monotonic()
        said = [
            {"title": each.title, "done": each.done, "total": each.total, "seconds": round(now - each.begun, 3)}
            for each in self._tasks
        ]
        aside = self.file.with_name(self.file.name + ".new")
        with contextlib.suppress(OSError):
            aside.write_text(json.dumps({"tasks": said}))
            os.replace(aside, self.file)
