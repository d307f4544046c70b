"""Upkeep of a `$cmroot`: checking it, compacting its log, expiry of unneeded entries.

The engine is chosen by the amount of work; the lease of another run is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from cmroot.check import Checked, check
from cmroot.expire.expire import ExpiryPlan, expire, plan_expiry
from cmroot.keep.content import fresh_incoming
from cmroot.lease import acquire, patiently
from cmroot.log.captured import Compacted, compact, finished, plan_compaction, segments
from cmroot.log.references import work
from cmroot.required_contents import FINDINGS
from cmroot.root import ChangeRoot
from cmroot.store.listing import file_state
from cmroot.store.place import Place
from cmroot.store.retained_entries import estimate
from replicator.core.engine import AutoEngine
from replicator.core.not_replicated import Report
from replicator.core.runtime import Runtime
from replicator.core.text import duration_text
from replicator.errors import Refused

# ---- expiries --------------------------------------------------------------------------------------------------------
# Reports of an expiry: planned, and executed.


@dataclass
class _Decided(Report):
    """`kept`, `going`: entries and bytes by reason. `held`: what each slot, hold and dump retains. `given_up`: slots
    that lag. `unknown`: foreign names in `files/`. `going_versions`: versions of buckets, by the log;
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
    """A planned expiry; fields as in `RootExpired`. `warnings`: about a root that does not exist yet."""

    warnings: list[str] = field(default_factory=list)


@dataclass
class RootExpired(_Decided):
    """An executed expiry. `forgotten_dumps`: pins of dumps older than the retention. `removed_*`: removals, of which
    `bytes_freed` used space of their own, without `removed_snapshots`. `taken_back`: entries that were required again
    by then. `removed_versions`: of buckets."""

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
# Plausibility of the local clock before an expiry: it determines the age of everything.
#
# It is compared with the store's own (which is no check for a filesystem on the same machine) and with the newest
# capture, which another machine may have made.


STORE_MARGIN = timedelta(minutes=5)
"""How far a clock may be ahead of the store's: Kerberos allows at most 5 minutes, S3's signatures 15."""

IDLE = timedelta(days=1)
"""Maximum age of the newest capture, unless an operator sets another."""


def refuse_clock_ahead(root: ChangeRoot, clock: Callable[[], float], idle: timedelta = IDLE) -> None:
    """Raises Refused if the clock is ahead of the store's by more than STORE_MARGIN, or of the newest capture by more
    than `idle`. Skips a comparison if the root has no captures, or the store has no times. Writes a small file in
    `incoming/` and removes it."""
    ahead = _ahead_of_store(root.place, clock)
    if ahead > STORE_MARGIN.total_seconds():
        raise Refused(
            f"this machine's clock is {duration_text(ahead)} ahead of that of {root.place}: everything there"
            " appears older than it is, and nothing was removed",
            hint="correct the clock, or run this on a machine whose clock is correct",
            details={"ahead_seconds": ahead},
        )
    newest = _newest_capture(root.place)
    if newest is not None and clock() - newest > idle.total_seconds():
        since = clock() - newest
        raise Refused(
            f"{root.place}: by this machine's clock the newest capture was {duration_text(since)} ago: either the clock"
            " is ahead, or captures have stopped; nothing was removed",
            hint="compare the clock with another machine's, and run a capture; if both are correct, allow it"
            " with --idle",
            details={"newest_capture_seconds_ago": since},
        )


def _ahead_of_store(root: str, clock: Callable[[], float]) -> float:
    probe = Place(fresh_incoming(root, "probe"))
    before = clock()  # before the store reads its own
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
"""How long to wait for the lease of another run, by default."""

AVERAGE = 64 << 20
"""Assumed bytes of an entry when an engine is chosen for reading all of them, as the real size is unknown then."""


class RootChecked(Report, Checked):
    """The result of `cmroot.check`."""


class LogCompacted(Report, Compacted):
    """The result of `cmroot.log.captured.compact`."""


@dataclass
class CompactionPlanned(Report):
    """A planned compaction: `merged` segments become `runs`."""

    status: str
    root: str
    runs: int
    merged: int
    segments_before: int
    segments_after: int


def check_root(root: ChangeRoot, engine: AutoEngine, *, bytes: bool = True, limit: int = FINDINGS) -> RootChecked:
    """Checks a root, see cmroot.check. Changes nothing, takes no lease."""
    entries = estimate(root.place)
    rows = sum(segment.file_count for segment in finished(root.place)[0] if _readable(segment))
    chosen = engine.for_work(max(entries, rows), entries * AVERAGE if bytes else 0)
    return RootChecked(**vars(check(root.place, chosen, bytes=bytes, limit=limit)))


def _readable(segment: Any) -> bool:
    """Returns False for a damaged marker: it is a finding, and does not end a check."""
    from cmroot.errors import Error

    try:
        return bool(segment.marker)
    except Error:
        return False


def plan_log(root: ChangeRoot) -> CompactionPlanned:
    """Plans a compaction."""
    log = segments(root.place)
    runs = plan_compaction(log)
    merged = sum(len(run.segments) for run in runs)
    return CompactionPlanned("planned", root.place, len(runs), merged, len(log), len(log) - merged + len(runs))


def compact_log(root: ChangeRoot, *, patience: timedelta = PATIENCE) -> LogCompacted:
    """Compacts a log, see cmroot.log.captured.compact. `patience`: how long to wait for another run's lease, each
    time."""

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
    """Plans an expiry; changes nothing. Raises Refused as `expire_root`."""
    refuse_clock_ahead(root, runtime.clock, idle)
    with _planned(root, runtime, older_than, max_slot_lag, versions) as plan:
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
    """Plans an expiry and executes it; plans again if another run held the lease in between. See cmroot.expire. Raises
    Refused if the clock is ahead of the store's, or the newest capture is older than `idle`."""
    refuse_clock_ahead(root, runtime.clock, idle)

    def once() -> RootExpired:
        plan = _planned(root, runtime, older_than, max_slot_lag, versions)
        return RootExpired("expired", root.place, **expire(root.place, plan, now=runtime.clock).as_json())

    return patiently(once, patience)


def _planned(
    root: ChangeRoot, runtime: Runtime, older_than: timedelta, max_slot_lag: timedelta | None, versions: bool
) -> ExpiryPlan:
    return plan_expiry(
        root.place,
        older_than=older_than,
        now=runtime.clock,
        engine=runtime.engines.for_work(work(root.place)),
        max_slot_lag=max_slot_lag,
        versions=versions,
    )
