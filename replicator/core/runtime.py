"""Runtime: the engines on which a command runs, its progress reporting, its clock, and its end by a signal."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import select
import signal
import threading
import time
import time as clocks
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from replicator.core.text import count_text, duration_text, printable, size_text
from replicator.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from replicator.core.engine import AutoEngine


# ---- heartbeat -------------------------------------------------------------------------------------------------------
# The heartbeat of continuous jobs: a log line at an interval, even if nothing happens.


log = logging.getLogger(__name__)


class _Interval:
    """The interval of this process."""

    seconds = 60.0


def beat_each(interval: timedelta) -> None:
    """Sets the interval of heartbeats of this process."""
    _Interval.seconds = interval.total_seconds()


@contextmanager
def heartbeat(facts: Callable[[], Mapping[str, object]]) -> Iterator[None]:
    """Logs `facts` at each interval within a block."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(_Interval.seconds):
            found = facts()
            text = ", ".join(f"{name} {value}" for name, value in found.items())
            log.info("running: %s", text, extra={"heartbeat": True, **found})

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# ---- progress --------------------------------------------------------------------------------------------------------
# Progress of long work, by steps, files and bytes; bars on a terminal's standard error.


T = TypeVar("T")

APART = 2.0  # seconds between two samples of the rate, which is computed over the last SAMPLES
SAMPLES = 15


class Advance(Protocol):
    """A callback that adds completed steps, files and bytes to a task. Any thread may call it."""

    def __call__(self, steps: int = 1, *, files: int = 0, size: int = 0) -> None: ...


class Progress(Protocol):
    """An interface that shows the progress of long work to users."""

    def task(
        self,
        title: str,
        total: int | None = None,
        *,
        files: int | None = None,
        size: int | None = None,
        live: Callable[[], int] | None = None,
    ) -> contextlib.AbstractContextManager[Advance]:
        """Opens a task. Calling the yielded value advances it by so many steps of `total`, of `files`, of `size` bytes
        (None: unknown). live: a counter of this process that grows by the bytes of the task before it is advanced."""
        ...


class Silent:
    """A Progress that shows nothing."""

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None, **amounts: Any) -> Iterator[Advance]:
        yield _nothing


def _nothing(steps: int = 1, *, files: int = 0, size: int = 0) -> None:
    """Does nothing."""


def watched(progress: Progress, title: str, things: Sequence[T]) -> Iterator[T]:
    """Yields the items, each as a step of a task."""
    with progress.task(title, total=len(things)) as advance:
        for thing in things:
            yield thing
            advance(1)


class Amounts:
    """The progress of a task. Times are of the monotonic clock."""

    def __init__(
        self,
        title: str,
        total: int | None = None,
        *,
        files: int | None = None,
        size: int | None = None,
        live: Callable[[], int] | None = None,
        clock: Callable[[], float] = clocks.monotonic,
    ) -> None:
        self.title, self.of_steps, self.of_files, self.of_size = title, total, files, size
        self.steps = self.files = self._size = 0
        self._clock = clock
        self.began = clock()
        self._live, self._before = live, live() if live else 0
        self._samples: deque[tuple[float, int]] = deque([(self.began, 0)], SAMPLES)
        self._lock = threading.Lock()

    def advance(self, steps: int = 1, *, files: int = 0, size: int = 0) -> None:
        with self._lock:
            self.steps += steps
            self.files += files
            self._size += size

    @property
    def size(self) -> int:
        """Bytes that were reported, or the live count if that is larger."""
        at_work = self._live() - self._before if self._live else 0
        return max(self._size, at_work if self.of_size is None else min(at_work, self.of_size))

    @property
    def rate(self) -> float:
        """Bytes per second, over about the last half minute."""
        now, size = self._clock(), self.size
        with self._lock:
            since, before = self._samples[0]
            if now - self._samples[-1][0] >= APART:
                self._samples.append((now, size))
        return max(0.0, size - before) / max(now - since, 1e-3)

    @property
    def remaining(self) -> float | None:
        """Remaining seconds at the current rate; None: unknown."""
        if self.of_size and (rate := self.rate):
            return max(0.0, (self.of_size - self.size) / rate)
        for done, of in ((self.files, self.of_files), (self.steps, self.of_steps)):
            if done and of and not self.of_size:
                return max(0.0, (self._clock() - self.began) * (of - done) / done)
        return None

    def facts(self) -> dict[str, object]:
        """Returns the progress for programs, in bytes, seconds and bytes per second, without unknown values."""
        rate, remaining = self.rate, self.remaining
        found: dict[str, object] = {
            "steps": self.steps,
            "of_steps": self.of_steps,
            "files": self.files if self.files or self.of_files else None,
            "of_files": self.of_files,
            "bytes": self.size if self.size or self.of_size else None,
            "of_bytes": self.of_size,
            "bytes_per_second": round(rate) if rate else None,
            "seconds": round(self._clock() - self.began, 3),
            "remaining_seconds": None if remaining is None else round(remaining, 1),
        }
        return {name: value for name, value in found.items() if value is not None}

    def text(self) -> str:
        """Returns the progress as one line for users."""
        said = []
        if size := self.size:
            said.append(size_text(size) + (f" of {size_text(self.of_size)}" if self.of_size else ""))
        if self.files or self.of_files:
            done = f"{self.files:,} of " if self.of_files else ""
            said.append(done + count_text(self.of_files or self.files, "file"))
        if not said:
            said.append(f"{self.steps:,}" + (f" of {self.of_steps:,}" if self.of_steps is not None else ""))
        if size and self.rate:
            said.append(f"{size_text(int(self.rate))}/s")
        if (remaining := self.remaining) is not None:
            said.append(f"{duration_text(remaining)} left")
        return ", ".join(said)


class Bars:
    """Progress bars drawn by rich on standard error; the caller uses them only for a terminal."""

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None, **amounts: Any) -> Iterator[Advance]:
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress
        from rich.text import Text

        done = Amounts(title, total, **amounts)
        if done.of_size:
            whole: int | None = done.of_size
        else:
            whole = done.of_files or total

        class Said(ProgressColumn):
            def render(self, task: Task) -> Text:
                task.completed = done.size if done.of_size else done.files if done.of_files else done.steps
                return Text(done.text())

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), Said(), TimeElapsedColumn())
        with RichProgress(*columns, console=Console(stderr=True), transient=True) as display:
            display.add_task(printable(title), total=whole)
            yield done.advance


# ---- runtime ---------------------------------------------------------------------------------------------------------


JOBS = 16


@dataclass(frozen=True)
class Runtime:
    """The environment of a command. `engines`: threads and Spark. `clock`: seconds since 1970. `jobs`: the maximum of
    concurrent changes of a target's metastore; as many run as improve throughput."""

    engines: AutoEngine
    progress: Progress = field(default_factory=Silent)
    clock: Callable[[], float] = time.time
    jobs: int = JOBS


# ---- following -------------------------------------------------------------------------------------------------------
# Following: repeats work, tolerating transient failures, until it is stopped.


INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
"""Exit codes of commands that a signal ended."""

LONGEST_WAIT = timedelta(minutes=1)
JITTER = 0.1  # share of an interval, each way: processes that were started together drift apart

Dice = Callable[[float, float], float]


class Stop(Protocol):
    """A stop signal; a `threading.Event` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool:
        """Waits for so many seconds, or until the stop is signalled. Returns True if it is."""
        ...


class Terminated(BaseException):
    """The command must end at once: SIGTERM arrived, or its grace period to end by itself is over."""


def follow(
    once: Callable[[], float],
    failed: Callable[[Exception, float], None],
    *,
    stop: Stop,
    passes: Callable[[Exception], bool] = lambda error: not isinstance(error, ConfigError | UsageError),
    longest: Callable[[Exception], timedelta] = lambda error: LONGEST_WAIT,
    dice: Dice = random.uniform,
) -> None:
    """Calls `once`, which returns the seconds until the next call, until `stop`. After an error that `passes` it
    retries after 1 s, doubling with each failure in a row, up to `longest`, less up to half of it; `failed` receives
    the error and these seconds. The log has a heartbeat concurrently. Raises errors that do not pass, and
    interrupts."""
    failures = rounds = 0
    with heartbeat(lambda: {"rounds": rounds, "failures_in_a_row": failures}):
        while not stop.is_set():
            try:
                wait = once()
                failures = 0
            except Exception as error:
                if not passes(error):
                    raise
                wait = min(longest(error).total_seconds(), 2.0 ** min(failures, 20)) * dice(0.5, 1.0)
                failures += 1
                failed(error, wait)
            rounds += 1
            stop.wait(wait)


def spread(interval: timedelta, dice: Dice = random.uniform) -> float:
    """Returns the seconds of an interval with random jitter."""
    return interval.total_seconds() * dice(1 - JITTER, 1 + JITTER)


# ---- signals: as exceptions, so that every `finally` runs: leases end, half-written files go -------------------------


def raise_on_sigterm() -> None:
    """Makes SIGTERM raise Terminated in the main thread, once: `timeout` and service managers send it twice, and the
    second one must not interrupt the cleanup. SIGKILL still ends a process that hangs."""

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)


class Stopping:
    """Defers SIGINT and SIGTERM for a block: the running work may end within the given time; after it, or at a second
    signal, Terminated is raised. `code`: the exit code of the first signal, else 0."""

    def __init__(self, grace: timedelta) -> None:
        self._grace = grace.total_seconds()
        self._before: dict[int, object] = {}
        self.code = 0

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()  # no Event: setting one in a handler may meet its own lock
        for number, handler in (
            (signal.SIGINT, self._setting),
            (signal.SIGTERM, self._setting),
            (signal.SIGALRM, self._insist),
        ):
            self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self._reader)
        os.close(self._writer)

    def is_set(self) -> bool:
        return bool(self.code)

    def wait(self, timeout: float) -> bool:
        """Waits the seconds, or until a signal. Returns True if there was one."""
        select.select([self._reader], [], [], max(0.0, timeout))
        return self.is_set()

    def _setting(self, number: int, frame: FrameType | None) -> None:
        if self.code:
            self._insist(number, frame)
        self.code = 128 + number
        os.write(self._writer, b"x")
        signal.setitimer(signal.ITIMER_REAL, self._grace)

    def _insist(self, number: int, frame: FrameType | None) -> None:
        for each in self._before:
            signal.signal(each, signal.SIG_IGN)  # the cleanup is not interrupted; SIGKILL ends a process that hangs
        raise Terminated
