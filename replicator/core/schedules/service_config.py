"""`[service]` of the configuration: which jobs run when, and where the service keeps its state."""

from __future__ import annotations

import msgspec

from replicator.core.schedules.entrance_config import LimitConfig, ProxyConfig, check_limits, check_proxy
from replicator.core.text.quantity import parse_duration
from replicator.errors import ConfigError


class JobConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """command: a command line without `replicator`. One of every (a duration) and cron is given. zone: of cron, a name
    of the time zone database. timeout: a run that takes longer is cancelled."""

    command: tuple[str, ...]
    every: str | None = None
    cron: str | None = None
    zone: str = "UTC"
    jitter: str = "0s"
    timeout: str | None = None


class ServiceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """store: a database's URL. logs: a directory for the output of runs. at_once: runs at a time. policies: each runs
    by its `schedule`, unless a job does it. keep: how long ended runs are remembered. grace: time for a run to end
    after SIGTERM. measure_roots: from one measurement of what roots keep to the next; 0s: never. asked_timeout: of runs
    that somebody asked for over HTTP, beside all jobs. Durations as everywhere."""

    listen: str = "127.0.0.1:8484"
    store: str = "sqlite:///service.sqlite"
    logs: str = "service-logs"
    at_once: int = 4
    policies: bool = True
    keep: str = "30d"
    grace: str = "1m"
    measure_roots: str = "1h"
    asked_timeout: str = "1d"
    jobs: dict[str, JobConfig] = {}
    proxy: ProxyConfig = ProxyConfig()
    limits: LimitConfig = LimitConfig()


def check_service(service: ServiceConfig) -> None:
    """Raises ConfigError naming the key that is wrong; those of jobs are checked where they are read."""
    for key in ("keep", "grace", "measure_roots", "asked_timeout"):
        try:
            parse_duration(getattr(service, key))
        except ValueError as error:
            raise ConfigError(f"service.{key}: {error}", hint="write a duration such as 30d or 1m") from error
    if service.at_once < 1:
        raise ConfigError("service.at_once: is less than 1")
    check_proxy(service.proxy)
    check_limits(service.limits)
