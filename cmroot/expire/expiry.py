"""What an expiry would do and what it did, as values that print as JSON. Who makes them is `expire`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from cmroot.expire.bucket_versions import NO_VERSIONS, GoingVersions
from cmroot.expire.plans import PlanDirectory
from cmroot.expire.removal import RemovedEntries
from cmroot.expire.retention import Rules


@dataclass(frozen=True)
class Count:
    """So many entries of so many bytes."""

    entries: int = 0
    bytes: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.entries + other.entries, self.bytes + other.bytes)


@dataclass(frozen=True)
class HeldByPin:
    """What a pin (`slot NAME`, `hold NAME`, `dump ID`) holds that the source does not have any more; `alone`: what
    would go without it. `position`: what it needs; `age_seconds`: since it was made, or a slot confirmed."""

    pin: str
    position: int
    age_seconds: float
    all: Count
    alone: Count

    def as_json(self) -> dict[str, object]:
        return {
            "pin": self.pin,
            "position": self.position,
            "age_seconds": round(self.age_seconds),
            "entries": self.all.entries,
            "bytes": self.all.bytes,
            "alone_entries": self.alone.entries,
            "alone_bytes": self.alone.bytes,
        }


@dataclass(frozen=True)
class GivenUp:
    """A slot whose consumer has confirmed nothing for longer than allowed: what it needs is not kept for it."""

    slot: str
    position: int
    confirmed: str
    lag_seconds: float

    def as_json(self) -> dict[str, object]:
        return {
            "slot": self.slot,
            "position": self.position,
            "confirmed": self.confirmed,
            "lag_seconds": round(self.lag_seconds),
        }


@dataclass(frozen=True)
class ExpiryPlan:
    """What an expiry would do, by the log up to `position` and the pins at `made` (seconds since 1970).

    `kept` and `going`: entries by reason. `unknown`: names in `files/` that are none of ours, left alone. `snapshots`:
    on HDFS, by place; nobody knows how many bytes they hold. The rows are on disk; as a `with` block, or by `discard`,
    they go in the end.
    """

    root: str
    made: float
    older_than: timedelta
    max_slot_lag: timedelta | None
    position: int
    rules: Rules
    kept: dict[str, Count]
    going: dict[str, Count]
    held: list[HeldByPin]
    given_up: list[GivenUp]
    forgotten: list[str]
    unknown: int
    directory: PlanDirectory = field(repr=False)
    parts: list[str] = field(repr=False)
    seconds: float = 0.0
    versions: GoingVersions = NO_VERSIONS
    snapshots: list[str] = field(default_factory=list)

    @property
    def keeps(self) -> Count:
        return sum(self.kept.values(), Count())

    @property
    def removes(self) -> Count:
        return sum(self.going.values(), Count())

    def rows(self, *, keep: bool | None = None) -> Iterator[pa.RecordBatch]:
        """One row an entry (cmroot.expire.retention.DECIDED), in flat memory: all, the kept ones, or those that go."""
        kinds = {None: ("keep-", "remove-"), True: ("keep-",), False: ("remove-",)}[keep]
        return self.directory.read(part for part in self.parts if part.startswith(kinds))

    def version_rows(self) -> Iterator[pa.RecordBatch]:
        """One row a version that goes (GOING_VERSIONS)."""
        return self.directory.read(self.versions.parts)

    def as_json(self) -> dict[str, Any]:
        return {
            "older_than_seconds": self.older_than.total_seconds(),
            "position": self.position,
            "kept": {reason: _json(count) for reason, count in sorted(self.kept.items())},
            "going": {reason: _json(count) for reason, count in sorted(self.going.items())},
            "kept_entries": self.keeps.entries,
            "kept_bytes": self.keeps.bytes,
            "going_entries": self.removes.entries,
            "going_bytes": self.removes.bytes,
            "held": [held.as_json() for held in self.held],
            "given_up": [slot.as_json() for slot in self.given_up],
            "unknown": self.unknown,
            "going_versions": {"entries": self.versions.entries, "bytes": self.versions.bytes},
            "going_snapshots": self.snapshots,
            "seconds": round(self.seconds, 3),
        }

    def discard(self) -> None:
        """Safe to run twice."""
        self.directory.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


@dataclass(frozen=True)
class Expired:
    """What an expiry did. `plan`: what was kept and why; `removed`: what went, how many bytes that freed, and what was
    taken back because it was needed by then. `forgotten`: pins of dumps that are older than the retention. `snapshots`:
    that were deleted, by place; their bytes are unknown, and not among the freed. `snapshots_left`: why others were
    not. `unswept`: what killed runs left and this user may not remove."""

    plan: ExpiryPlan
    removed: RemovedEntries
    given_up: list[GivenUp]
    forgotten: list[str]
    seconds: float
    versions: RemovedEntries = field(default_factory=RemovedEntries)
    snapshots: list[str] = field(default_factory=list)
    snapshots_left: list[str] = field(default_factory=list)
    unswept: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        back = {"entries": self.removed.taken_back, "bytes": self.removed.taken_back_bytes}
        return {
            **self.plan.as_json(),
            "given_up": [slot.as_json() for slot in self.given_up],
            "forgotten_dumps": self.forgotten,
            "removed_entries": self.removed.entries,
            "removed_bytes": self.removed.bytes,
            "bytes_freed": self.removed.freed,
            "removed_snapshots": self.snapshots,
            "warnings": [*self.snapshots_left, *self.unswept],
            "taken_back": back,
            "removed_versions": {"entries": self.versions.entries, "bytes": self.versions.bytes},
            "plan_seconds": round(self.plan.seconds, 3),
            "seconds": round(self.seconds, 3),
        }


def _json(count: Count) -> dict[str, int]:
    return {"entries": count.entries, "bytes": count.bytes}
