"""Periodic measurement of the lag of all policies, the free space on local disks and the queue of ingestion, so that no
reader waits. Each is measured separately: a metastore, a mount or a store that hangs delays only its own metrics."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from replicator.commands.ingest import ingest_stats
from replicator.commands.policies import history, lag
from replicator.core.config import Config
from replicator.core.text import duration_text
from replicator.errors import Error
from replicator.ingestion.ingestion_shown import IngestionStats
from replicator.policies.lag import Lag
from replicator.policies.memory import Compared
from replicator.service.measuring import Apart, Disk, directories_of, disk_of

log = logging.getLogger(__name__)

PERIOD = 30.0  # seconds between measurements of a policy
STEP = 0.5  # seconds between checks for due measurements
STALE = 300.0
"""Seconds after which a measurement is no longer valid."""

AT_ONCE, PATIENCE = 4, 15.0
"""Maximum concurrent measurements; one that takes longer than PATIENCE (seconds) no longer counts."""

RUNS = 20  # newest runs of a policy that are read

QUEUE_OF = timedelta(hours=1)
"""The time for which published requests of ingestion are queried: this short, as the metrics use the queue only."""


@dataclass(frozen=True)
class MeasuredLag:
    """A measured lag. at: when the measurement started, in seconds since 1970. lag: None if it could not be measured;
    then `error` contains the reason. compared: the result of the newest run that compared anything; success: when the
    newest successful run ended, regardless of who started it; None: not known. stale: older than STALE, so that its
    metrics are invalid; a policy that was never measured has waited since `at`."""

    at: float
    lag: Lag | None
    error: str = ""
    compared: Compared | None = None
    success: float | None = None
    stale: bool = False


@dataclass
class LagWatch:
    """The measurements of a server. `config`: returns the current configuration. stale_after: seconds. Several threads
    may read them."""

    config: Callable[[], Config]
    stopping: threading.Event
    stale_after: float = STALE
    _measured: dict[str, tuple[float, MeasuredLag]] = field(default_factory=dict)
    _wanted: dict[str, tuple[float, float]] = field(default_factory=dict)
    _disks: dict[str, Disk | None] = field(default_factory=dict)
    _queue: tuple[float, IngestionStats | None] = field(default_factory=lambda: (time.monotonic(), None))
    _queue_error: str = ""
    _due: dict[str, float] = field(default_factory=dict)
    _policies: Apart = field(default_factory=lambda: Apart(AT_ONCE, PATIENCE))
    _directories: Apart = field(default_factory=lambda: Apart(AT_ONCE, PATIENCE))

    @property
    def found(self) -> dict[str, MeasuredLag]:
        """The last measurement by policy, without policies that were not measured yet."""
        found, now = {}, time.monotonic()
        for name, (wanted, since) in list(self._wanted.items()):
            begun, each = self._measured.get(name, (wanted, MeasuredLag(since, None, stale=True)))
            age = now - begun
            if age > self.stale_after:
                why = f"not measured for {duration_text(age)}: its metastores or roots respond slowly, or hang"
                found[name] = replace(each, lag=None, error=f"{why}; {each.error}".removesuffix("; "), stale=True)
            elif name in self._measured:
                found[name] = each
        return found

    @property
    def compared(self) -> dict[str, Compared]:
        """The last comparison by policy, as far as this server knows."""
        return {name: each.compared for name, (_, each) in list(self._measured.items()) if each.compared}

    @property
    def disks(self) -> dict[str, Disk]:
        """Disks by their names in messages, without directories that do not exist or hang."""
        oldest = time.time() - self.stale_after
        found = {name: self._disks.get(directory) for name, directory in directories_of(self.config()).items()}
        return {name: each for name, each in found.items() if each is not None and each.at >= oldest}

    @property
    def queue(self) -> IngestionStats | None:
        """The queue of ingestion; None if it is not configured, or its store did not answer."""
        at, found = self._queue
        return found if time.monotonic() - at <= self.stale_after else None

    @property
    def queue_trouble(self) -> str:
        """Why the queue of ingestion is not known; "" if it is known, not configured, or was queried just now."""
        if not self.config().ingestion.sources:
            return ""
        age = time.monotonic() - self._queue[0]
        if age > self.stale_after:
            return f"not counted for {duration_text(age)}: its store responds slowly, or hangs"
        return self._queue_error

    def run(self) -> None:
        """Runs until `stopping` is set."""
        while not self.stopping.is_set():
            self.step()
            self.stopping.wait(STEP)

    def step(self) -> None:
        """Starts the measurements that are due, the longest waiting first; drops what is no longer configured."""
        config = self.config()
        for name in config.policies:
            self._wanted.setdefault(name, (time.monotonic(), time.time()))
        for name in set(self._wanted) - set(config.policies):
            del self._wanted[name]
            self._measured.pop(name, None)
        directories = set(directories_of(config).values())
        policies = {name: partial(self._measure, name, config) for name in config.policies}
        disks = {f"disk {each}": partial(self._look, each) for each in directories}
        queue = {"ingestion/": partial(self._count, config)} if config.ingestion.sources else {}
        self._due = {name: self._due.get(name, 0.0) for name in (*policies, *disks, *queue)}
        self._disks = {each: disk for each, disk in self._disks.items() if each in directories}
        self._begin(self._policies, policies)
        self._begin(self._directories, {**disks, **queue})

    def soon(self, policy: str) -> None:
        """Makes the next measurement of a policy due now, as one of its runs has ended."""
        if policy in self._due:
            self._due[policy] = 0.0

    def keep(self, name: str, found: MeasuredLag) -> None:
        """Stores a new measurement of a policy."""
        now = time.monotonic()
        self._wanted.setdefault(name, (now, found.at))
        self._measured[name] = (now - max(0.0, time.time() - found.at), found)

    def _begin(self, apart: Apart, works: Mapping[str, Callable[[], object]]) -> None:
        now = time.monotonic()
        for name in sorted(works, key=lambda each: self._due[each]):
            if self._due[name] <= now and apart.begin(name, works[name]):
                self._due[name] = now + PERIOD

    def _measure(self, name: str, config: Config) -> None:
        found = measured(name, config)
        if name in self._wanted:
            self.keep(name, found)

    def _count(self, config: Config) -> None:
        try:
            self._queue, self._queue_error = (time.monotonic(), ingest_stats(within=QUEUE_OF, config=config)), ""
        except Error as error:
            self._queue, self._queue_error = (time.monotonic(), None), error.message
            log.warning("the queue of ingestion could not be read: %s", error.message)

    def _look(self, directory: str) -> None:
        self._disks[directory] = disk_of(directory)


def measured(name: str, config: Config) -> MeasuredLag:
    """Measures a policy now. Raises nothing: the result contains the reason of a failure."""
    at = time.time()
    compared, success = _of_runs(name, config)
    try:
        return MeasuredLag(at, lag(name, config=config), "", compared, success)
    except Error as error:
        said = error.message
    except Exception as error:  # the other policies are still measured
        log.exception("the lag of %s could not be measured", name)
        said = f"internal error: {type(error).__name__}: {error}"
    return MeasuredLag(time.time(), None, said, compared, success)


def _of_runs(name: str, config: Config) -> tuple[Compared | None, float | None]:
    """Returns the last comparison by its runs, and when the last successful run ended; None where not known."""
    try:
        runs = history(name, limit=RUNS, config=config).runs
    except (Error, OSError):
        return None, None  # the lag reports the reason
    compared = next((each.compared for each in runs if each.compared), None)
    done = next((each.ended for each in runs if each.status == "done" and each.ended), "")
    return compared, datetime.fromisoformat(done).timestamp() if done else None
