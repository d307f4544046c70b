"""`[log]` of the configuration: how much is logged, in which form, and where."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

import msgspec

from replicator.core.text.quantity import parse_duration
from replicator.errors import ConfigError

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`file`: in place of standard error. `level`: None: info with a file or `--verbose`, else warning. `heartbeat`: a
    duration, between two lines of what goes on and on."""

    format: LogFormat | None = None
    level: LogLevel | None = None
    file: str | None = None
    heartbeat: str = "1m"

    @property
    def interval(self) -> timedelta:
        """Of heartbeats. Raises ConfigError."""
        try:
            found = parse_duration(self.heartbeat)
        except ValueError as error:
            raise ConfigError(f"log.heartbeat: {error}", hint="write a duration such as 30s or 1m") from error
        if not found:
            raise ConfigError("log.heartbeat: is nothing", hint="write a duration such as 30s or 1m")
        return found
