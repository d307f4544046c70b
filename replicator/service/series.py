"""Time series in the service's store: all values of the last day, and before that one value per quarter of an hour."""

from __future__ import annotations

import logging
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Table, cast, delete, func, insert, select, tuple_

from cmroot.root import FORMAT
from cmroot.store.place import as_written
from replicator.core.logging import Periodic
from replicator.core.text import parse_duration
from replicator.errors import Error
from replicator.service.measuring import PERIOD, Apart, LagWatch, MeasuredLag
from replicator.service.runs import Child, answer_of
from replicator.service.scheduler import Scheduler
from replicator.service.schema import lag_sample, root_sample
from replicator.service.store import ServiceStore

FINE = 86_400.0
"""Seconds for which all values of the lag are retained."""

COARSE = 900.0
"""After that, one value per this many seconds is retained: the one with the longest lag."""


@dataclass(frozen=True)
class LagSample:
    """A policy's lag at a time (seconds since 1970 by the store's clock). status: "unknown" if it could not be
    measured; then `error` contains the reason and the metrics are None. at_least: a side did not answer.
    seconds_bound: the upper bound of the lag; None if it is not known."""

    policy: str
    at: float
    status: str
    events: int | None
    seconds: float | None
    bytes: int | None
    headroom_seconds: float | None
    at_least: bool
    error: str
    seconds_bound: float | None = None


@dataclass(frozen=True)
class RootSample:
    """The retained contents of a root at a time. shared_bytes: the part that consists of the source's own inodes and
    takes no space. error: why it could not be measured; then the sizes are None."""

    root: str
    at: float
    entries: int | None
    bytes: int | None
    shared_bytes: int | None
    error: str


def record_lag(store: ServiceStore, found: LagSample) -> None:
    """Records a sample. May run twice: there is one value per time."""
    _record(store, lag_sample, found, policy=found.policy)


def record_root(store: ServiceStore, found: RootSample) -> None:
    """Records a sample, as `record_lag`."""
    _record(store, root_sample, found, root=found.root)


def lag_samples(store: ServiceStore, policy: str, *, since: float, after: float, limit: int) -> list[LagSample]:
    """Returns samples, oldest first. since: inclusive. after: only later ones; 0: all."""
    where = (lag_sample.c.policy == policy, lag_sample.c.at >= since, lag_sample.c.at > after)
    return [LagSample(**row) for row in _rows(store, lag_sample, *where, limit=limit)]


def lag_peaks(store: ServiceStore, policy: str, *, since: float, parts: int) -> list[tuple[float, float | None]]:
    """Divides the time since `since` into at most `parts` parts, oldest first: returns the last time and the longest
    lag of each by its upper bound, None if a value is unknown. The database aggregates them: a day has thousands of
    values."""
    mine = (lag_sample.c.policy == policy, lag_sample.c.at >= since)
    with store.transaction() as connection:
        first, last = connection.execute(
            select(func.min(lag_sample.c.at), func.max(lag_sample.c.at)).where(*mine)
        ).one()
        if first is None:
            return []
        part = cast((lag_sample.c.at - first) / max((last - first) / parts, 1e-3), BigInteger)
        rows = connection.execute(
            select(
                func.max(lag_sample.c.at),
                func.max(lag_sample.c.seconds_bound),
                func.count(),
                func.count(lag_sample.c.seconds_bound),
            )
            .where(*mine)
            .group_by(part)
            .order_by(part)
        )
        return [(float(at), longest if all_ == known else None) for at, longest, all_, known in rows]


def root_samples(store: ServiceStore, root: str, *, since: float, after: float, limit: int) -> list[RootSample]:
    """Returns samples, as `lag_samples`."""
    where = (root_sample.c.root == root, root_sample.c.at >= since, root_sample.c.at > after)
    return [RootSample(**row) for row in _rows(store, root_sample, *where, limit=limit)]


def newest_samples(store: ServiceStore, table: Table) -> dict[str, float]:
    """Returns when each policy or root was last measured."""
    what = table.c.policy if "policy" in table.c else table.c.root
    with store.transaction() as connection:
        return {
            str(name): float(at) for name, at in connection.execute(select(what, func.max(table.c.at)).group_by(what))
        }


def thin(store: ServiceStore, keep: float) -> None:
    """Deletes values older than `keep` seconds, and values of the lag older than a day, except one per quarter of an
    hour. May run twice."""
    now = store.now()
    quarter = cast(lag_sample.c.at / COARSE, BigInteger)
    place = func.row_number().over(
        partition_by=(lag_sample.c.policy, quarter),
        order_by=(func.coalesce(lag_sample.c.seconds_bound, -1.0).desc(), lag_sample.c.at.desc()),
    )
    ranked = select(lag_sample.c.policy, lag_sample.c.at, place.label("place")).where(lag_sample.c.at < now - FINE)
    found = ranked.subquery()
    with store.transaction() as connection:
        for table in (lag_sample, root_sample):
            connection.execute(delete(table).where(table.c.at < now - keep))
        worse = select(found.c.policy, found.c.at).where(found.c.place > 1)
        connection.execute(delete(lag_sample).where(tuple_(lag_sample.c.policy, lag_sample.c.at).in_(worse)))


def _record(store: ServiceStore, table: Table, found: Any, **key: str) -> None:
    with store.uncounted() as connection:  # a page with a chart loads again by itself
        same = [table.c[name] == value for name, value in key.items()]
        connection.execute(delete(table).where(*same, table.c.at == found.at))
        connection.execute(insert(table).values(**vars(found)))


def _rows(store: ServiceStore, table: Table, *where: Any, limit: int) -> list[dict[str, Any]]:
    with store.transaction() as connection:
        rows = connection.execute(select(table).where(*where).order_by(table.c.at).limit(limit))
        return [dict(row) for row in rows.mappings()]


# ---- recorders -------------------------------------------------------------------------------------------------------
# The scheduling server records each measurement of the lag of policies, and periodically the size of roots.


STEP = 1.0  # seconds between checks
THIN = 3600.0  # seconds between thinnings
LONGEST = 600.0  # seconds to measure the size of one root
THEN = 10.0  # seconds to record a root's size before it may be measured again
AGAIN = 60.0  # seconds before a root that does not exist or cannot be measured is retried
GRACE = 5.0

log = logging.getLogger(__name__)
repeated = Periodic(log, every=600.0)


@dataclass
class LagRecorder:
    """A recorder of the lag: stores each measurement of the watch once."""

    store: ServiceStore
    scheduler: Scheduler
    watch: LagWatch
    _written: dict[str, float] = field(default_factory=dict)
    _thinned: float = float("-inf")

    def run(self) -> None:
        """Runs until the scheduler stops."""
        _repeat(self.scheduler, self.step, STEP)

    def step(self) -> None:
        """Records new measurements. Raises StoreUnreachable."""
        for name, found in self.watch.found.items():
            at = time.time() // PERIOD * PERIOD if found.stale else found.at  # also records that it is unknown
            if self._written.get(name) != at:
                record_lag(self.store, _sample(name, found, self.store.now() - (time.time() - at)))
                self._written[name] = at
        if time.monotonic() - self._thinned > THIN:
            thin(self.store, parse_duration(self.scheduler.config.service.keep).total_seconds())
            self._thinned = time.monotonic()


def _sample(policy: str, found: MeasuredLag, at: float) -> LagSample:
    lag = found.lag
    if lag is None:
        return LagSample(policy, at, "unknown", None, None, None, None, True, found.error)
    sizes = lag.events, lag.seconds, lag.bytes, lag.headroom_seconds
    return LagSample(policy, at, lag.status, *sizes, lag.at_least, "", lag.seconds_bound)


@dataclass
class SizeRecorder:
    """A recorder of the size of roots: measures each root when it is due, by `cm ls` in a process of its own; one that
    hangs does not delay others. places: returns the roots of the current configuration."""

    store: ServiceStore
    scheduler: Scheduler
    places: Callable[[], set[str]]
    _not_before: dict[str, float] = field(default_factory=dict)
    _found: deque[RootSample] = field(default_factory=deque)
    _apart: Apart = field(default_factory=lambda: Apart(1, LONGEST))

    def run(self) -> None:
        """Runs until the scheduler stops."""
        _repeat(self.scheduler, self.step, 3 * STEP)

    def step(self) -> None:
        """Starts measurements that are due, and records results. Raises StoreUnreachable."""
        every = parse_duration(self.scheduler.config.service.measure_roots).total_seconds()
        newest = newest_samples(self.store, root_sample)
        for place in sorted(self.places()):
            due = every and self.store.now() - newest.get(place, 0.0) >= every
            if due and time.monotonic() >= self._not_before.get(place, 0.0) and not self.scheduler.stopping.is_set():
                self._apart.begin(place, partial(self._measure, place))
        while self._found:
            record_root(self.store, self._found.popleft())

    def _measure(self, place: str) -> None:
        try:
            found = self._measured(place) if (as_written(place) / FORMAT).exists() else None
        except (Error, OSError) as error:
            log.warning("series: the size of %s could not be measured: %s", place, error)
            found = None
        good = found is not None and not found.error
        self._not_before[place] = time.monotonic() + (THEN if good else AGAIN)
        if found is not None and not self.scheduler.stopping.is_set():
            self._found.append(found)

    def _measured(self, place: str) -> RootSample:
        line = ["--config", str(self.scheduler.config_file)]
        line += ["cm", "ls", f"--cmroot={place}", "--limit=0", "--engine=local", "--json"]
        with tempfile.TemporaryDirectory(prefix="replicator-size-") as made:
            child, deadline = Child("size", line, Path(made), GRACE), time.monotonic() + LONGEST
            while child.ended() is None:
                time.sleep(0.1)
                if self.scheduler.stopping.is_set() or time.monotonic() > deadline:
                    child.stop("it took too long")
            said: Any = answer_of(Path(made))
        now = self.store.now()
        if said.get("status") != "listed":
            why = str(said.get("message", "")) or child.wanted or "no answer"
            return RootSample(place, now, None, None, None, why[:1000])
        total, shared = said["total"], said["shared"]
        return RootSample(place, now, total["entries"], total["bytes"], shared["bytes"], "")


def _repeat(scheduler: Scheduler, step: Callable[[], None], seconds: float) -> None:
    while not scheduler.stopping.wait(seconds):
        try:
            if scheduler.health.leads:
                step()
        except Error as error:
            repeated.warning("series: %s", error.message)
        except Exception:  # continues, as the scheduler does
            log.exception("series: internal error")
