"""Jobs of the service: the configured command lines and policies, and their schedules."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from importlib import import_module
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from replicator.core.policy import Policy
from replicator.core.service_config import JobConfig, ServiceConfig
from replicator.core.text import parse_duration
from replicator.errors import ConfigError, UsageError
from replicator.service.store import ALL, is_ad_hoc

# ---- timetable -------------------------------------------------------------------------------------------------------
# When a job is due: at a fixed interval, or by a cron expression in a time zone; shifted by its own jitter. Pure.


COUNTED = 1000
"""Maximum missed times that are counted one by one."""


class Schedule(Protocol):
    """A schedule. Times are seconds since 1970. `text`: as configured; a job whose text changes is planned again."""

    @property
    def text(self) -> str: ...

    def first(self, now: float) -> float:
        """Returns when a job that never ran is due."""
        ...

    def next(self, due: float, now: float) -> tuple[float, int]:
        """Returns the next time after `now` for a run that was due at `due` and starts now, and how many were missed in
        between."""
        ...

    def latest(self, now: float) -> float:
        """Returns the latest time at which a job can be due, unless a clock that ran ahead planned it."""
        ...


@dataclass(frozen=True)
class Every:
    """A fixed interval in seconds. A job that never ran is due immediately, after its jitter."""

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
    """A cron expression of five fields, as Debian's cron reads it: a time that a clock change skips is made up for
    immediately, one that it repeats occurs once."""

    expression: str
    zone: tzinfo = UTC
    shift: float = 0.0

    def __post_init__(self) -> None:
        """Raises ConfigError if the expression is invalid or never matches."""
        try:
            next(CronSim(self.expression, datetime.now(self.zone)))
        except CronSimError as error:
            hint = "write minute, hour, day of month, month, day of week, such as 30 3 * * 1-5"
            raise ConfigError(f"cron: {self.expression!r}: {error}", hint=hint) from error
        except StopIteration as error:
            raise ConfigError(f"cron: {self.expression!r} never matches", hint="use a date that exists") from error

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
        """Returns the first time after `moment`. Within an hour that clocks repeat, the next time by the clock may be
        earlier."""
        coming = (each.timestamp() for each in CronSim(self.expression, datetime.fromtimestamp(moment, self.zone)))
        return next(each for each in coming if each > moment)


def shift_of(name: str, jitter: float) -> float:
    """Returns a job's share of a jitter, in seconds: always the same, so that two servers agree."""
    return jitter * int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32


# ---- jobs ------------------------------------------------------------------------------------------------------------


SCHEDULED = frozenset(
    {
        "capture",
        "check",
        "cm",
        "drill",
        "dump",
        "dumps",
        "housekeeping",
        "ingest",
        "load",
        "purge",
        "repair",
        "retention",
        "sync",
        "verify",
    }
)
"""Commands that a job may run."""

UNADDRESSED = frozenset({"", ".", "..", ALL})
"""Invalid names of jobs: not addressable in a URL, or the name of all jobs."""

SEPARATORS = "/?#"
"""Separators of URLs: invalid in a job's name."""

SPREAD = (0.1, 60.0)
"""The jitter of policies: this fraction of their schedule, at most this many seconds."""


@dataclass(frozen=True)
class Job:
    """A command and its schedule. policy: the one that it runs; else empty. timeout: seconds; None: no limit. asset:
    the one whose tables it requests to land; else empty."""

    name: str
    arguments: tuple[str, ...]
    schedule: Schedule
    policy: str = ""
    timeout: float | None = None
    asset: str = ""

    @property
    def syncs(self) -> bool:
        """Returns True if it brings its policy's target up to date."""
        return self.arguments[0] == "sync"


def jobs_of(service: ServiceConfig, policies: Mapping[str, Policy]) -> dict[str, Job]:
    """Returns all jobs by name: those of `[service.jobs]`, and one named after each policy that none of them syncs.
    Raises ConfigError naming the invalid key."""
    found = {name: _job(name, each, policies) for name, each in service.jobs.items()}
    if service.policies:
        run = {each.policy for each in found.values() if each.syncs}
        for name, policy in policies.items():
            if name not in run:
                if name in found:
                    raise ConfigError(f"service.jobs.{name}: a policy has this name", hint="give the job another name")
                every = policy.schedule.total_seconds()
                found[name] = Job(
                    name, ("sync", name), Every(every, shift_of(name, min(every * SPREAD[0], SPREAD[1]))), name
                )
    return found


def _job(name: str, given: JobConfig, policies: Mapping[str, Policy]) -> Job:
    key = f"service.jobs.{name}"
    if name in UNADDRESSED or set(name) & set(SEPARATORS):
        raise ConfigError(f"{key}: {name!r} is not a valid job name", hint="give the job another name")
    if is_ad_hoc(name):
        raise ConfigError(f"{key}: a job name must not contain a colon", hint="give the job another name")
    if not given.command or given.command[0] not in SCHEDULED:
        raise ConfigError(f"{key}.command: must begin with one of {', '.join(sorted(SCHEDULED))}")
    if "--follow" in given.command:
        raise ConfigError(
            f"{key}.command: a run with --follow never ends", hint="remove it: the schedule repeats the run"
        )
    shift = shift_of(name, _seconds(f"{key}.jitter", given.jitter))
    if (given.every is None) == (given.cron is None):
        raise ConfigError(f"{key}: exactly one of every and cron is required")
    schedule: Schedule
    if given.cron is not None:
        schedule = Cron(given.cron, _zone(f"{key}.zone", given.zone), shift)
    else:
        every = _seconds(f"{key}.every", given.every or "")
        if every <= 0:
            raise ConfigError(f"{key}.every: must be longer than zero")
        schedule = Every(every, shift)
    policy, asset = _subjects(f"{key}.command", given.command, policies)
    timeout = None if given.timeout is None else _seconds(f"{key}.timeout", given.timeout)
    return Job(name, given.command, schedule, policy, timeout, asset)


def _subjects(key: str, line: tuple[str, ...], policies: Mapping[str, Policy]) -> tuple[str, str]:
    """Returns the policy that a command runs, and the asset whose tables it requests; each may be empty."""
    table = import_module("replicator.cli.table")  # a higher floor: see docs/design.md
    try:
        found, asset = str(table.policy_of(line)), str(table.asset_of(line))
    except UsageError as error:
        raise ConfigError(f"{key}: {error.message}", hint=f"see `replicator {line[0]} --help`") from error
    if found and found not in policies:
        raise ConfigError(
            f"{key}: policy {found!r} is not configured", hint=f"policies: {', '.join(policies) or 'none'}"
        )
    return found, asset


def _seconds(key: str, text: str) -> float:
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise ConfigError(f"{key}: {error}", hint="write a duration such as 15m, 2h or 1d") from error


def _zone(key: str, name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ConfigError(
            f"{key}: {name!r} is not a time zone", hint="use a name such as Europe/Berlin or UTC"
        ) from error
