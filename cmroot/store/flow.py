"""Flow: the bytes that this process copies and reads, as they pass, and the most that it may copy in a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

SLACK = 0.25
"""Seconds of the rate that may be made up for at once: a sleep is never as long as it should be."""


class Flow:
    """Bytes of contents that were copied, and that were read to be compared, since the process began. Counted without
    a lock, for those who watch: reports have the exact numbers. rate: bytes a second that may be copied by all threads
    together; None: as fast as it goes."""

    def __init__(self) -> None:
        self.copied = 0
        self.read = 0
        self.rate: float | None = None
        self._lock = threading.Lock()
        self._due = 0.0  # of the monotonic clock: when what has passed would have passed at the rate

    def passed(self, size: int) -> None:
        """So many bytes were copied; waits until they might have been."""
        self.copied += size
        if self.rate is not None:
            self._wait(size, self.rate)

    @contextmanager
    def limited(self, rate: float | None) -> Iterator[None]:
        """Copies of this process keep to a rate for the length of a block; None: to that of before."""
        before = self.rate
        self.rate = before if rate is None else rate
        try:
            yield
        finally:
            self.rate = before

    def _wait(self, size: int, rate: float) -> None:
        with self._lock:
            now = time.monotonic()
            self._due = max(self._due, now - SLACK) + size / rate
            wait = self._due - now
        if wait > 0:
            time.sleep(wait)


FLOW = Flow()
"""Of this process."""


class Shared(Generic[Task, Result]):
    """A function of a task, for processes elsewhere: each of `tasks` that are at work at once has its part of this
    process's rate."""

    def __init__(self, function: Callable[[Task], Result], tasks: int) -> None:
        self._function = function
        self._rate = None if FLOW.rate is None else FLOW.rate / max(1, tasks)

    def __call__(self, task: Task) -> Result:
        with FLOW.limited(self._rate):
            return self._function(task)
