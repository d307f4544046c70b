"""Slow measurements by the scheduling server, stored for all servers: roots once an hour, and when each policy was last
compared."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial

import msgspec

from replicator.core.config import Config
from replicator.errors import Error
from replicator.policies.memory import Compared
from replicator.service.lag_watch import LagWatch
from replicator.service.measuring.apart import Apart
from replicator.service.measuring.families import Sample, remember, samples
from replicator.service.measuring.root_sizes import SECONDS, RootSample, sample_root
from replicator.service.store import ServiceStore

ROOT, COMPARED = "root", "compared"
HOURLY = 3600.0
STEP = 5.0  # seconds

log = logging.getLogger(__name__)


@dataclass
class SlowWatch:
    """The slow measurements. leads: returns True if this server schedules. watch: of the lag, which has the
    comparisons."""

    store: ServiceStore
    config: Callable[[], Config]
    leads: Callable[[], bool]
    watch: LagWatch
    stopping: threading.Event
    _tried: dict[str, float] = field(default_factory=dict)
    _sampled: deque[tuple[str, RootSample | str]] = field(default_factory=deque)
    _apart: Apart = field(default_factory=lambda: Apart(1, 3 * SECONDS))

    def run(self) -> None:
        """Runs until `stopping` is set."""
        while not self.stopping.wait(STEP):
            try:
                if self.leads():
                    self.step()
            except Error as error:
                log.warning("measuring: %s", error.message)
            except Exception:  # continues, as the scheduler does
                log.exception("measuring: internal error")

    def step(self) -> None:
        """Starts measurements that are due, and stores results. Raises StoreUnreachable."""
        now = self.store.now()
        with self.store.transaction() as connection:
            roots, compared = samples(connection, ROOT), samples(connection, COMPARED)
        for name, found in list(self.watch.found.items()):
            if found.compared is not None:
                self._remember(COMPARED, name, msgspec.json.decode(msgspec.json.encode(found.compared)), now, compared)
        for place in roots_of(self.config()):
            due = now - roots[place].at >= HOURLY if place in roots else True
            tried = time.monotonic() - self._tried.get(place, float("-inf")) < HOURLY
            if due and not tried and self._apart.begin(place, partial(self._sample, place)):
                self._tried[place] = time.monotonic()
        while self._sampled:
            place, sample = self._sampled.popleft()
            if isinstance(sample, RootSample):
                self._remember(ROOT, place, asdict(sample), now, {})
            else:
                log.info("the size of %s is not known: %s", place, sample)
                self._tried[place] -= HOURLY - 60

    def _sample(self, place: str) -> None:
        try:
            self._sampled.append((place, sample_root(place)))
        except (Error, OSError) as error:
            self._sampled.append((place, str(error)))

    def _remember(self, kind: str, subject: str, value: object, now: float, known: Mapping[str, Sample]) -> None:
        if subject not in known or known[subject].value != value:
            with self.store.transaction() as connection:
                remember(connection, Sample(kind, subject, now, value))


def roots_of(config: Config) -> list[str]:
    """Returns the roots of all policies, on both sides, and of `[defaults]`."""
    found = [place for each in config.policies.values() for place in (each.cmroot, each.target_cmroot)]
    return list(dict.fromkeys([*found, *([config.defaults.cmroot] if config.defaults.cmroot else [])]))


def remembered_roots(store: ServiceStore) -> dict[str, tuple[float, RootSample]]:
    """Returns for each root when it was measured, and the result."""
    with store.transaction() as connection:
        return {place: (each.at, RootSample(**each.value)) for place, each in samples(connection, ROOT).items()}


def remembered_comparisons(store: ServiceStore) -> dict[str, Compared]:
    """Returns the last comparison of each policy."""
    with store.transaction() as connection:
        found = samples(connection, COMPARED)
    return {name: msgspec.convert(each.value, Compared) for name, each in found.items()}
