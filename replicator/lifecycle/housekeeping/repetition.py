"""Housekeeping again and again, until it is to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from replicator.core import following
from replicator.core.following import Stop, Terminated
from replicator.core.report import Report
from replicator.lifecycle.housekeeping.housekept import Housekept

LONGEST_WAIT = timedelta(minutes=5)
"""Between two tries while something is away."""


@dataclass
class Followed(Report):
    """Many runs. rounds: those that came to their end; removed: items, by all of them; failures: runs that failed and
    were tried again. last: what the last one did, whose fields are in the JSON, too."""

    rounds: int = 0
    removed: int = 0
    failures: int = 0
    last: Housekept | None = None

    def to_dict(self) -> dict[str, Any]:
        counts = {"rounds": self.rounds, "removed": self.removed, "failures": self.failures, "status": "stopped"}
        return (self.last.to_dict() if self.last else {}) | counts


def follow(
    once: Callable[[], Housekept],
    interval: timedelta,
    stop: Stop,
    tell: Callable[[Housekept], None],
    tell_failure: Callable[[Exception, float], None],
) -> Followed:
    """Runs until `stop`. A run that fails is tried again after 1 to 300 seconds, which `tell_failure` is called with;
    every failure but those of the configuration. What is interrupted after `stop` has ended, too."""
    done = Followed()

    def run() -> float:
        done.last = once()
        done.rounds, done.removed = done.rounds + 1, done.removed + done.last.removed
        tell(done.last)
        return interval.total_seconds()

    def failed(error: Exception, wait: float) -> None:
        done.failures += 1
        tell_failure(error, wait)

    try:
        following.follow(run, failed, stop=stop, longest=lambda error: LONGEST_WAIT, dice=max)
    except (KeyboardInterrupt, Terminated):
        if not stop.is_set():
            raise
    return done
