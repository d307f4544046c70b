"""Following: work again and again, with patience for failures that pass, until it is asked to stop."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from replicator.core.logging.heartbeat import heartbeat
from replicator.errors import ConfigError, UsageError

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
"""Exit codes of work that a signal ended."""

LONGEST_WAIT = timedelta(minutes=1)
JITTER = 0.1  # of an interval, each way: processes that were started together drift apart

Dice = Callable[[float, float], float]


class Stop(Protocol):
    """Says when to stop; a `threading.Event` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool:
        """Waits so many seconds, or until it is time to stop; whether it is."""
        ...


class Terminated(BaseException):
    """The work is to end at once: SIGTERM arrived, or it had time to come to its end and did not."""


def follow(
    once: Callable[[], float],
    failed: Callable[[Exception, float], None],
    *,
    stop: Stop,
    passes: Callable[[Exception], bool] = lambda error: not isinstance(error, ConfigError | UsageError),
    longest: Callable[[Exception], timedelta] = lambda error: LONGEST_WAIT,
    dice: Dice = random.uniform,
) -> None:
    """Calls `once`, which returns the seconds to the next time, until `stop`. After an error that `passes` it is tried
    again after 1 s, twice as long after each failure in a row, up to `longest`, less up to half of it; `failed` is
    given the error and these seconds. Meanwhile the log has a heartbeat. Raises what does not pass, and what
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
    """Seconds of about an interval."""
    return interval.total_seconds() * dice(1 - JITTER, 1 + JITTER)
