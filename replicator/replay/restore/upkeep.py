"""Upkeep of a `$cmroot`: checking it, compacting its log, letting expire what nobody needs.

The engine is chosen by the amount of work; a lease that another run holds is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from cmroot.check import Checked, check
from cmroot.check.finding import FINDINGS
from cmroot.expire.expire import expire, plan_expiry
from cmroot.keep.content import fresh_incoming
from cmroot.lease import acquire, patiently
from cmroot.log.captured import Compacted, compact, finished, plan_compaction, segments
from cmroot.log.references import work
from cmroot.root import ChangeRoot
from cmroot.store.listing import estimate, file_state
from cmroot.store.place import Place
from replicator.core.engine import AutoEngine
from replicator.core.not_replicated import Report
from replicator.core.runtime import Runtime
from replicator.core.text.quantity import duration_text
from replicator.errors import Refused

# ---- expiries --------------------------------------------------------------------------------------------------------
# Reports of an expiry: what it would do, and what it did.


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


# ---- clock -----------------------------------------------------------------------------------------------------------
# Whether the clock of whoever lets things expire can be believed: it decides how old everything is.
#
# It is compared with the store's own (of which a filesystem on the same machine tells nothing) and with the newest
# capture, which another machine may have made.


STORE_MARGIN = timedelta(minutes=5)
"""How far a clock may be ahead of the store's: what Kerberos and S3's signatures allow at most is 5 and 15 minutes."""

IDLE = timedelta(days=1)
"""How long ago the newest capture may have been, unless an operator says otherwise."""


def refuse_clock_ahead(root: ChangeRoot, clock: Callable[[], float], idle: timedelta = IDLE) -> None:
    """Raises Refused when the clock is ahead of the store's by more than STORE_MARGIN, or of the newest capture by more
    than `idle`. A root without captures, and a store that tells no times, say nothing. Writes a small file in
    `incoming/` and removes it."""
    ahead = _ahead_of_store(root.place, clock)
    if ahead > STORE_MARGIN.total_seconds():
        raise Refused(
            f"this machine's clock is {duration_text(ahead)} ahead of that of {root.place}: all that is there seems"
            " older than it is, and nothing was removed",
            hint="set the clock, or run this on a machine whose clock is right",
            details={"ahead_seconds": ahead},
        )
    newest = _newest_capture(root.place)
    if newest is not None and clock() - newest > idle.total_seconds():
        since = clock() - newest
        raise Refused(
            f"{root.place}: by this machine's clock the newest capture was {duration_text(since)} ago: either the clock"
            " is ahead, or captures have stopped; nothing was removed",
            hint="compare the clock with another machine's, and run a capture; if both are as they should be, allow it"
            " with --idle",
            details={"newest_capture_seconds_ago": since},
        )


def _ahead_of_store(root: str, clock: Callable[[], float]) -> float:
    probe = Place(fresh_incoming(root, "probe"))
    before = clock()  # before the store looks at its own
    try:
        probe.write_bytes(b"")
        written = file_state(str(probe)).mtime_ns
    finally:
        probe.remove_own()
    return before - written / 1e9 if written else 0.0


def _newest_capture(root: str) -> float | None:
    log = segments(root)
    times = [capture.about.get("time") for capture in log[-1].captures] if log else []
    return max((float(each) for each in times if isinstance(each, int | float)), default=None)


# ---- upkeep ----------------------------------------------------------------------------------------------------------


PATIENCE = timedelta(minutes=1)
"""How long the lease of another run is waited for, by default."""

AVERAGE = 64 << 20
"""Bytes that an entry is taken for when an engine is chosen for reading all of them; nobody knows before."""


class RootChecked(Report, Checked):
    """What `cmroot.check.check` found."""


class LogCompacted(Report, Compacted):
    """What `cmroot.log.captured.compact` did."""


@dataclass
class CompactionPlanned(Report):
    """What a compaction would do: `merged` segments become `runs`."""

    status: str
    root: str
    runs: int
    merged: int
    segments_before: int
    segments_after: int


def check_root(root: ChangeRoot, engine: AutoEngine, *, bytes: bool = True, limit: int = FINDINGS) -> RootChecked:
    """See cmroot.check.check. Changes nothing, takes no lease."""
    entries = estimate(root.place)
    rows = sum(segment.file_count for segment in finished(root.place)[0] if _readable(segment))
    chosen = engine.for_work(max(entries, rows), entries * AVERAGE if bytes else 0)
    return RootChecked(**vars(check(root.place, chosen, bytes=bytes, limit=limit)))


def _readable(segment: Any) -> bool:
    """A damaged marker is a finding, not the end of a check."""
    from cmroot.errors import Error

    try:
        return bool(segment.marker)
    except Error:
        return False


def plan_log(root: ChangeRoot) -> CompactionPlanned:
    """What a compaction would do."""
    log = segments(root.place)
    runs = plan_compaction(log)
    merged = sum(len(run.segments) for run in runs)
    return CompactionPlanned("planned", root.place, len(runs), merged, len(log), len(log) - merged + len(runs))


def compact_log(root: ChangeRoot, *, patience: timedelta = PATIENCE) -> LogCompacted:
    """See cmroot.log.captured.compact. `patience`: how long the lease of another run is waited for, each time."""

    def take_lease(place: str, purpose: str) -> Any:
        return patiently(partial(acquire, place, purpose), patience)

    return LogCompacted(**vars(compact(root.place, take_lease=take_lease)))


def plan_expired(
    root: ChangeRoot,
    runtime: Runtime,
    older_than: timedelta,
    *,
    max_slot_lag: timedelta | None = None,
    idle: timedelta = IDLE,
    versions: bool = False,
) -> ExpiryPlanned:
    """What an expiry would do, and nothing of it done. Raises Refused as `expire_root`."""
    refuse_clock_ahead(root, runtime.clock, idle)
    chosen = runtime.engines.for_work(work(root.place))
    with plan_expiry(
        root.place,
        older_than=older_than,
        now=runtime.clock,
        engine=chosen,
        max_slot_lag=max_slot_lag,
        versions=versions,
    ) as plan:
        return ExpiryPlanned("planned", root.place, **plan.as_json())


def expire_root(
    root: ChangeRoot,
    runtime: Runtime,
    older_than: timedelta,
    *,
    max_slot_lag: timedelta | None = None,
    patience: timedelta = PATIENCE,
    idle: timedelta = IDLE,
    versions: bool = False,
) -> RootExpired:
    """Plans an expiry and carries it out; plans again when another run held the lease meanwhile. See cmroot.expire.
    Raises Refused when the clock is ahead of the store's, or the newest capture was longer ago than `idle`."""
    refuse_clock_ahead(root, runtime.clock, idle)

    def once() -> RootExpired:
        chosen = runtime.engines.for_work(work(root.place))
        plan = plan_expiry(
            root.place,
            older_than=older_than,
            now=runtime.clock,
            engine=chosen,
            max_slot_lag=max_slot_lag,
            versions=versions,
        )
        return RootExpired("expired", root.place, **expire(root.place, plan, now=runtime.clock).as_json())

    return patiently(once, patience)
