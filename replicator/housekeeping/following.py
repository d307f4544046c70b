"""Housekeeping again and again, until it is to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from replicator.core.report import Report
from replicator.errors import ConfigError, UsageError
from replicator.housekeeping.run import Housekept

LONGEST_WAIT = 300.0
"""Seconds between two tries while something is away."""


class Stop(Protocol):
    """The wish that something ends; a `threading.Event` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


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
    """Runs until `stop`. A run that fails is tried again, after 1 to 300 seconds, which `tell_failure` is told; every
    failure but those of the configuration. What is interrupted after `stop` has ended, too."""
    done, wait = Followed(), 1.0
    try:
        while not stop.is_set():
            try:
                done.last = once()
                done.rounds, done.removed, wait = done.rounds + 1, done.removed + done.last.removed, 1.0
                tell(done.last)
                stop.wait(interval.total_seconds())
            except (ConfigError, UsageError):
                raise
            except Exception as error:
                done.failures += 1
                tell_failure(error, wait)
                stop.wait(wait)
                wait = min(LONGEST_WAIT, wait * 2)
    except Exception:
        raise
    except BaseException:
        if not stop.is_set():
            raise
    return done
