"""When a job is due: every so long, or by a cron expression in a time zone; spread by a jitter of its own. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Protocol

from cronsim import CronSim, CronSimError

from replicator.errors import ConfigError

COUNTED = 1000
"""Missed times that are counted one by one."""


class Schedule(Protocol):
    """Times in seconds since 1970. `text`: as configured; a job whose text changes is planned anew."""

    @property
    def text(self) -> str: ...

    def first(self, now: float) -> float:
        """When a job that never ran is due."""
        ...

    def next(self, due: float, now: float) -> tuple[float, int]:
        """After a run that was due then and begins now: the next time, later than now, and how many were missed in
        between."""
        ...

    def latest(self, now: float) -> float:
        """Nothing is due later than this, if it was planned by a clock that did not run ahead."""
        ...


@dataclass(frozen=True)
class Every:
    """From one time to the next, in seconds. A job that never ran is due at once, after its jitter."""

    seconds: float
    shift: float = 0.0

    @property
    def text(self) -> str:
        return f"every {self.seconds:g} s"

    def first(self, now: float) -> float:
        return now + self.shift

    def next(self, due: float, now: float) -> tuple[float, int]:
        missed = max(0, int((now - due) // self.seconds))
        return due + (missed + 1) * self.seconds, missed

    def latest(self, now: float) -> float:
        return now + self.seconds + self.shift


@dataclass(frozen=True)
class Cron:
    """Five fields, as cron of Debian reads them: a time that a change of clocks leaves out is made up at once, one that
    it repeats comes once."""

    expression: str
    zone: tzinfo = UTC
    shift: float = 0.0

    def __post_init__(self) -> None:
        """Raises ConfigError for what is no expression, or never comes."""
        try:
            next(CronSim(self.expression, datetime.now(self.zone)))
        except CronSimError as error:
            hint = "minute, hour, day of month, month, day of week, such as 30 3 * * 1-5"
            raise ConfigError(f"cron: {self.expression!r}: {error}", hint=hint) from error
        except StopIteration as error:
            raise ConfigError(f"cron: {self.expression!r} never comes", hint="name a day that exists") from error

    @property
    def text(self) -> str:
        return f"cron {self.expression} {self.zone}"

    def first(self, now: float) -> float:
        return self._after(now - self.shift) + self.shift

    def next(self, due: float, now: float) -> tuple[float, int]:
        found, missed = self._after(due - self.shift) + self.shift, 0
        while found <= now and missed < COUNTED:
            found, missed = self._after(found - self.shift) + self.shift, missed + 1
        return (found if found > now else self.first(now)), missed

    def latest(self, now: float) -> float:
        return self.first(self.first(now))

    def _after(self, moment: float) -> float:
        """Within an hour that clocks repeat, what comes next by the clock may have been before."""
        coming = (each.timestamp() for each in CronSim(self.expression, datetime.fromtimestamp(moment, self.zone)))
        return next(each for each in coming if each > moment)


def shift_of(name: str, jitter: float) -> float:
    """A job's own part of a jitter, in seconds: always the same, so that two servers agree."""
    return jitter * int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32
