"""Jobs as values: their states and steps, what a controller holds, how one fails and when it is tried again. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from replicator.core.model import Value
from replicator.ingestion.ingestion_request import Mode, Request

State = Literal[
    "queued",
    "running",
    "published",
    "done",
    "failed",
    "failed_user",
    "failed_type",
    "superseded",
    "cancelled",
    "expired",
]
"""published: readers see what it landed, and the steps after that are still to be done. failed: it is tried again;
failed_user, failed_type: it waits for another request. superseded: another request took its place."""

WAITING = ("queued", "failed", "failed_user", "failed_type")
"""States of a job that a new request of its identity takes the place of."""

STEPS = ("describe", "copy", "verify", "settle", "publish", "constrain", "grant", "clean")
"""In their order; each may be repeated."""

UNPUBLISHED_STEPS = ("", *STEPS[: STEPS.index("publish")])
"""A job is at one of these before anything of it can be published: its holder tells the store before it publishes."""

LEFT = ("superseded", "cancelled", "expired", "failed_user", "failed_type")
"""States in which nobody works on a job any more, and that say nothing of a publication."""

Kind = Literal["component", "lock", "user", "type"]
"""component: something between here and there does not work at present. lock: others hold what the job needs, such as
an approval. user: the request, or what it leads to, is wrong. type: a column's values fit no type."""

QUICK = (60.0, 240.0, 960.0)
"""Seconds to the next try after the first failures of a component."""

LATER = 3600.0
"""Seconds to the next try after further ones."""

UNLOCKED = 300.0
"""Seconds to the next try of a job that found a lock."""

JITTER = 0.2
"""The share by which a delay may be longer: what failed together is not tried again together."""


def following(step: str) -> str:
    """The step after `step`; after the last one that one again."""
    return STEPS[min(STEPS.index(step) + 1, len(STEPS) - 1)]


def delay(kind: Kind, failures: int, chance: float) -> float:
    """Seconds from a failure to the next try. failures: of components, in a row, with this one; chance: 0 to 1."""
    if kind == "lock":
        seconds = UNLOCKED
    else:
        seconds = QUICK[failures - 1] if kind == "component" and failures <= len(QUICK) else LATER
    return seconds * (1 + JITTER * chance)


@dataclass(frozen=True)
class Failure:
    """text: for who asked: short, without a stack trace: what, where, why, what to do. detail: all of it."""

    kind: Kind
    text: str
    detail: str = ""


@dataclass(frozen=True)
class Submitted:
    """position: in the queue, from 1. replaces: the job that this one took the place of. unchecked: why the source was
    not asked for its table; empty: it was."""

    job: int
    state: State
    position: int
    replaces: int | None = None
    unchecked: str = ""


@dataclass(frozen=True)
class Claimed:
    """A job that a holder works on. attempt: counts from 1. fence: a number that grows with every claim of any job: of
    two writers the one with the lower number is late. step: the first that is not done, "" when none is. facts: what
    the steps that are done have found. cancelled: somebody has cancelled it when it may have been published: it goes on
    only if it is."""

    job: int
    attempt: int
    fence: int
    holder: str
    request: Request
    step: str
    facts: dict[str, Any]
    cancelled: bool = False


class IngestionJob(Value, frozen=True, omit_defaults=False):
    """A job as it is shown. source: SOURCE:SCHEMA.TABLE. target: DATABASE.TABLE. Times: seconds since 1970. due: when
    it is tried next; None: never. rows, bytes, files: that it landed."""

    job: int
    asset: str
    source: str
    target: str
    mode: Mode
    state: State
    step: str
    attempt: int
    requested_by: str
    approved_by: str
    queued: float
    due: float | None
    begun: float | None
    ended: float | None
    holder: str
    rows: int | None
    bytes: int | None
    files: int | None
    event_id: int | None
    error_kind: str
    error_text: str
    cancelled_by: str


@dataclass(frozen=True)
class JobFilter:
    """Which jobs; what is empty filters nothing. target: DATABASE.TABLE."""

    asset: str = ""
    source: str = ""
    target: str = ""
    requester: str = ""
    states: tuple[str, ...] = ()


class JobChange(Value, frozen=True, omit_defaults=False):
    """A change of a job's state or step, as a row of the log. id: grows in the order of changes. step: that it is at.
    actor: who changed it. schema_hash, checksum, ...: as far as known."""

    id: int
    job: int
    attempt: int
    asset: str
    source: str
    target: str
    requester: str
    approver: str
    mode: str
    state: str
    step: str
    actor: str
    at: float
    rows: int | None
    bytes: int | None
    files: int | None
    splits: int | None
    consistent: bool | None
    erased_rows: int | None
    schema_hash: str | None
    checksum: str | None
    event_id: int | None
    error_kind: str
    error_text: str


class JobDetail(Value, frozen=True, omit_defaults=False):
    """All of a job. facts: what its steps have found. changes: oldest first."""

    job: IngestionJob
    request: Request
    facts: dict[str, Any]
    error_detail: str
    changes: tuple[JobChange, ...]


COUNTED = ("rows", "bytes", "files", "splits", "consistent", "erased_rows", "schema_hash", "checksum")
"""Facts that are columns of the log."""
