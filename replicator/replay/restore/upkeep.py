"""Upkeep of a `$cmroot`: checking it, compacting its log, letting expire what nobody needs.

The engine is chosen by the amount of work; a lease that another run holds is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from cmroot.check import Checked, check
from cmroot.check.finding import FINDINGS
from cmroot.expire.expire import expire, plan_expiry
from cmroot.lease import acquire
from cmroot.log.captured import finished, segments
from cmroot.log.compact import Compacted, compact, plan_compaction
from cmroot.log.references import work
from cmroot.root import ChangeRoot
from cmroot.store.entries import estimate
from cmroot.waiting import patiently
from replicator.core.engine import AutoEngine
from replicator.core.report import Report
from replicator.core.runtime import Runtime
from replicator.replay.restore.clock import IDLE, refuse_clock_ahead
from replicator.replay.restore.expiries import ExpiryPlanned, RootExpired

PATIENCE = timedelta(minutes=1)
"""How long the lease of another run is waited for, by default."""

AVERAGE = 64 << 20
"""Bytes that an entry is taken for when an engine is chosen for reading all of them; nobody knows before."""


class RootChecked(Report, Checked):
    """What `cmroot.check.check` found."""


class LogCompacted(Report, Compacted):
    """What `cmroot.log.compact.compact` did."""


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
    """See cmroot.log.compact.compact. `patience`: how long the lease of another run is waited for, each time."""

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
