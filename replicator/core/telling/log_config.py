"""`[log]` of the configuration: how much is logged, in which form, and where."""

from __future__ import annotations

from typing import Literal

import msgspec

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`file`: in place of standard error. `level`: None: info with a file or `--verbose`, else warning."""

    format: LogFormat | None = None
    level: LogLevel | None = None
    file: str | None = None
