"""The server that schedules records the lag of policies as often as it is measured, and the size of roots now and
then."""

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

from cmroot.root import FORMAT
from cmroot.store.resolve import as_written
from replicator.core.text.quantity import parse_duration
from replicator.errors import Error
from replicator.service.children import Child, answer_of
from replicator.service.lag_watch import PERIOD, LagWatch, MeasuredLag
from replicator.service.measuring.apart import Apart
from replicator.service.scheduler import Scheduler
from replicator.service.schema import root_sample
from replicator.service.series.series_store import LagSample, RootSample, newest_samples, record_lag, record_root, thin
from replicator.service.store import ServiceStore

STEP = 1.0  # seconds from one look to the next
THIN = 3600.0  # seconds from one thinning to the next
LONGEST = 600.0  # seconds for the size of one root
THEN = 10.0  # seconds in which a root's size is recorded, before it may be measured again
AGAIN = 60.0  # seconds to the next look at a root that is not there, or cannot be measured
GRACE = 5.0

log = logging.getLogger(__name__)


@dataclass
class LagRecorder:
    """Writes what the watch has measured, once."""

    store: ServiceStore
    scheduler: Scheduler
    watch: LagWatch
    _written: dict[str, float] = field(default_factory=dict)
    _thinned: float = float("-inf")

    def run(self) -> None:
        """Until the scheduler stops."""
        _repeat(self.scheduler, self.step, STEP)

    def step(self) -> None:
        """Raises StoreUnreachable."""
        for name, found in self.watch.found.items():
            at = time.time() // PERIOD * PERIOD if found.stale else found.at  # that it is not known, too
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
    return LagSample(policy, at, lag.status, lag.events, lag.seconds, lag.bytes, lag.headroom_seconds, lag.at_least, "")


@dataclass
class SizeRecorder:
    """Measures each root when it is time, by `cm ls` in a process of its own; one that hangs does not hold up others.
    places: the roots as the configuration has them now."""

    store: ServiceStore
    scheduler: Scheduler
    places: Callable[[], set[str]]
    _not_before: dict[str, float] = field(default_factory=dict)
    _found: deque[RootSample] = field(default_factory=deque)
    _apart: Apart = field(default_factory=lambda: Apart(1, LONGEST))

    def run(self) -> None:
        """Until the scheduler stops."""
        _repeat(self.scheduler, self.step, 3 * STEP)

    def step(self) -> None:
        """Raises StoreUnreachable."""
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
            log.warning("series: the size of %s: %s", place, error)
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
            log.warning("series: %s", error.message)
        except Exception:  # goes on, as the scheduler does
            log.exception("series: internal error")
