"""Following: work again and again until it is to stop, with patience for failures that pass."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta

from replicator.core.stopping import Stop
from replicator.errors import ConfigError, UsageError

LONGEST_WAIT = timedelta(minutes=1)
JITTER = 0.1  # of an interval, each way: processes that were started together drift apart

Dice = Callable[[float, float], float]


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
    given the error and these seconds. Raises what does not pass, and what interrupts."""
    failures = 0
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
        stop.wait(wait)


def spread(interval: timedelta, dice: Dice = random.uniform) -> float:
    """Seconds of about an interval."""
    return interval.total_seconds() * dice(1 - JITTER, 1 + JITTER)
