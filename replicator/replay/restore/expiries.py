"""Reports of an expiry: what it would do, and what it did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from replicator.core.report import Report


@dataclass
class _Decided(Report):
    """`kept`, `going`: entries and bytes by reason. `held`: what each slot, hold and dump holds back. `given_up`: slots
    that lag. `unknown`: names in `files/` that are none of ours. `going_versions`: versions of buckets, by the log;
    `going_snapshots`: on HDFS; of unknown bytes."""

    status: str
    root: str
    older_than_seconds: float
    position: int
    kept: dict[str, dict[str, int]]
    going: dict[str, dict[str, int]]
    kept_entries: int
    kept_bytes: int
    going_entries: int
    going_bytes: int
    held: list[dict[str, Any]]
    given_up: list[dict[str, Any]]
    unknown: int
    going_versions: dict[str, int]
    going_snapshots: list[str]
    seconds: float


@dataclass
class ExpiryPlanned(_Decided):
    """What an expiry would do; fields as of `RootExpired`. `warnings`: of a root that is not there yet."""

    warnings: list[str] = field(default_factory=list)


@dataclass
class RootExpired(_Decided):
    """What an expiry did. `forgotten_dumps`: pins of dumps older than the retention. `removed_*`: what went, of which
    `bytes_freed` took room of their own, without `removed_snapshots`. `taken_back`: what was needed by then.
    `removed_versions`: of buckets."""

    forgotten_dumps: list[str]
    removed_entries: int
    removed_bytes: int
    bytes_freed: int
    removed_snapshots: list[str]
    taken_back: dict[str, int]
    removed_versions: dict[str, int]
    plan_seconds: float
    warnings: list[str] = field(default_factory=list)
