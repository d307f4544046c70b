"""Signals as exceptions, so that every `finally` between here and the work runs: leases end, half-written files go."""

from __future__ import annotations

import os
import select
import signal
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Self

from replicator.core.runtime import INTERRUPTED as INTERRUPTED
from replicator.core.runtime import TERMINATED as TERMINATED
from replicator.core.runtime import Terminated as Terminated


def raise_on_sigterm() -> None:
    """From here on SIGTERM raises Terminated in the main thread, once: `timeout` and service managers send it twice,
    and the second one must not interrupt the cleaning up. SIGKILL stays for what hangs."""

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)


class Stopping:
    """For the length of a block SIGINT and SIGTERM are a wish: what is running may come to its end, for so long; then,
    or at a second signal, Terminated is raised in it. `code`: the exit code that the first signal means, else 0."""

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
        """Waits so many seconds, or until a signal; whether one came."""
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
            signal.signal(each, signal.SIG_IGN)  # cleaning up is not interrupted; SIGKILL stays for what hangs
        raise Terminated
