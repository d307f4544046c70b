"""Waiting for a condition: the only place of the tests where a real clock decides how long something may take.

A test waits for what must become true, never for an amount of time. CEILING is reached only by a hang: it is no
statement about speed, and a loaded machine does not come near it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import TypeVar

CEILING = 240.0
"""Seconds. For `eventually`, and for the timeouts of processes, threads and requests that a test waits for."""
_FIRST, _LONGEST = 0.01, 0.2  # seconds between two looks: short at first, then few, since looks cost processor time

T = TypeVar("T")


def eventually(condition: Callable[[], T], explain: Callable[[], object] = lambda: "") -> T:
    """The first true value of `condition`. Raises AssertionError with `explain()` at the ceiling."""
    deadline, pause = time.monotonic() + CEILING, _FIRST
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {CEILING:.0f} s: {explain()}"
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST)
    return found


async def eventually_async(condition: Callable[[], T]) -> T:
    """The same in an event loop."""
    deadline = time.monotonic() + CEILING
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {CEILING:.0f} s"
        await asyncio.sleep(_FIRST)
    return found


@contextmanager
def repeating(step: Callable[[int], object]) -> Iterator[None]:
    """Calls `step(1)`, `step(2)` and so on in a thread until the block ends. Raises its error."""
    over = threading.Event()

    def run() -> None:
        for number in count(1):
            step(number)
            if over.is_set():
                return

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield
        finally:
            over.set()
    running.result()


def pause(seconds: float, why: str) -> None:
    """Lets real time pass, where it is the subject: a token's end at another program, a file's time in whole seconds.
    `why` is for the reader; nothing may be asserted about how long it took."""
    assert why
    time.sleep(seconds)


class Clock:
    """Seconds since the epoch, moved by the test. It is called as `time.time` is."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
