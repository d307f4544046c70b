"""Progress as a file, for a program that looks on."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time as clocks
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

VARIABLE = "REPLICATOR_PROGRESS_FILE"
"""Of the environment: where a command writes its progress."""

OFTEN = 0.5
"""Seconds between two states of the file; a task's begin and end are written at once."""


class AdvanceTask(Protocol):
    """Tells that so many steps, files and bytes more are done."""

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
    """Writes one JSON object to `file`, replaced as a whole: `{"tasks": [{"title": "copy", "steps": 3, "of_steps":
    10, "seconds": 1.5}]}`: those that are open, the outermost first; of_steps: null where nobody knows it; files,
    of_files, bytes, of_bytes where they are told. A file that cannot be written is left: the work goes on. Any thread
    may advance a task."""

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
        """As of Progress; live: not looked at."""
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
