"""Runs of the service as values: how they are, how they ended, and which are asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sqlalchemy import Row

SCHEDULE = "schedule"
"""Who asks for the runs that begin by themselves."""

TELLING = ("done", "partial", "differs", "failed", "lost")
"""States of a run that say how its job is; a cancelled one does not, unless it took too long."""

TOO_LONG = "took longer than its timeout"
"""How the message of a run begins that was cancelled by its timeout."""

RunState = Literal["queued", "running", "done", "partial", "differs", "failed", "cancelled", "lost"]


@dataclass(frozen=True, kw_only=True)
class ServiceRun:
    """A run of a job. Times are seconds since 1970. asked_by: "schedule", or who wanted it. missed: times of the
    schedule that it makes up for, beside its own. state: "partial" and "differs" stand for the exit codes 3 and 4,
    "lost" for a server that died. exit_code, message, hint: its end's, as the command line gives them. server, epoch:
    who ran it."""

    id: str
    job: str
    policy: str
    arguments: tuple[str, ...]
    asked_by: str
    reason: str
    missed: int
    due: float
    queued: float
    begun: float | None
    ended: float | None
    state: RunState
    cancelled_by: str
    exit_code: int | None
    message: str
    hint: str
    server: str
    epoch: int


@dataclass(frozen=True)
class RunFilter:
    """Which runs; what is empty filters nothing. since, until: seconds since 1970 between which they were queued."""

    jobs: Sequence[str] = ()
    policy: str = ""
    states: Sequence[str] = ()
    since: float = 0.0
    until: float = 0.0


@dataclass(frozen=True)
class Ended:
    """How a run ended. error: its class; said: its whole answer, which is counted. again: it was not its own fault, nor
    anybody's wish: where it was for a time of a schedule, that is due again."""

    state: RunState
    exit_code: int | None = None
    message: str = ""
    hint: str = ""
    error: str = ""
    said: Mapping[str, Any] = field(default_factory=dict)
    again: bool = False


def run_of(row: Row[Any]) -> ServiceRun:
    """Of a row of the store."""
    fields = {name: value for name, value in row._mapping.items() if name != "active"}
    return ServiceRun(**{**fields, "arguments": tuple(json.loads(fields["arguments"]))})
