"""Watching: what a task's progress is, as a log line now and then, and the begin and end of each as a step."""

from __future__ import annotations

import contextlib
import logging
import threading
import time as clocks
from collections.abc import Callable, Iterator

from replicator.core.logging.step_logging import step
from replicator.core.progress import Advance, Amounts, Progress

log = logging.getLogger(__name__)
TOLD = 30.0
"""Seconds between two lines of progress in a log."""


class Watch:
    """A Progress that shows tasks as another one does, and logs them: each `every` seconds, of which those are marked
    (`often`) that come before `told` seconds of `clock` are over."""

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
        """A thread looks while any task is open."""
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
        log.info("%s: %s", done.title, done.text(), extra=about)
