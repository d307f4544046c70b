"""The lag of all policies, the room on local disks and the queue of ingestion, measured again and again, so that who
asks waits for nothing. Each is measured apart: a metastore, a mount or a store that hangs keeps only its own figures
from being new."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from replicator.commands.ingest import ingest_stats
from replicator.commands.status import history, lag
from replicator.core.config import Config
from replicator.core.text.quantity import duration_text
from replicator.errors import Error
from replicator.ingestion.adapters.ingestion_shown import IngestionStats
from replicator.policies.lag import Lag
from replicator.policies.memory import Compared
from replicator.service.measuring.apart import Apart
from replicator.service.measuring.disks import Disk, directories_of, disk_of

log = logging.getLogger(__name__)

PERIOD = 30.0  # seconds from one measurement of a policy to the next
STEP = 0.5  # seconds from one look for what is due to the next
STALE = 300.0
"""Seconds after which figures count no more."""

AT_ONCE, PATIENCE = 4, 15.0
"""So many policies are measured at a time; one that takes longer (seconds) leaves its place to others."""

RUNS = 20  # the newest of a policy

QUEUE_OF = timedelta(hours=1)
"""Of ingestion, what was published is asked of so little: the metrics have the queue only."""


@dataclass(frozen=True)
class MeasuredLag:
    """at: when its measurement began, in seconds since 1970. lag: None where it could not be measured, and `error` says
    why. compared: what the newest run that compared anything found; success: when the newest good run ended, whoever
    began it; None: not known. stale: it is older than STALE, and its figures count no more; one that was never measured
    has waited since `at`."""

    at: float
    lag: Lag | None
    error: str = ""
    compared: Compared | None = None
    success: float | None = None
    stale: bool = False


@dataclass
class LagWatch:
    """`config`: gives the configuration as it is now. Several threads may ask. stale_after: seconds."""

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
        """What was measured last, by policy; none of one that is not measured yet."""
        found, now = {}, time.monotonic()
        for name, (wanted, since) in list(self._wanted.items()):
            begun, each = self._measured.get(name, (wanted, MeasuredLag(since, None, stale=True)))
            age = now - begun
            if age > self.stale_after:
                why = f"not measured for {duration_text(age)}: its metastores or roots take that long, or hang"
                found[name] = replace(each, lag=None, error=f"{why}; {each.error}".removesuffix("; "), stale=True)
            elif name in self._measured:
                found[name] = each
        return found

    @property
    def compared(self) -> dict[str, Compared]:
        """What was compared last, by policy, as far as this server knows."""
        return {name: each.compared for name, (_, each) in list(self._measured.items()) if each.compared}

    @property
    def disks(self) -> dict[str, Disk]:
        """By their names in messages; none of a directory that is not there, or hangs."""
        oldest = time.time() - self.stale_after
        found = {name: self._disks.get(directory) for name, directory in directories_of(self.config()).items()}
        return {name: each for name, each in found.items() if each is not None and each.at >= oldest}

    @property
    def queue(self) -> IngestionStats | None:
        """Of ingestion; None where it is not configured, or its store did not answer."""
        at, found = self._queue
        return found if time.monotonic() - at <= self.stale_after else None

    @property
    def queue_trouble(self) -> str:
        """Why nobody knows the queue of ingestion; "" where it is known, not configured, or asked for just now."""
        if not self.config().ingestion.sources:
            return ""
        age = time.monotonic() - self._queue[0]
        if age > self.stale_after:
            return f"not counted for {duration_text(age)}: its store takes that long, or hangs"
        return self._queue_error

    def run(self) -> None:
        """Until `stopping` is set."""
        while not self.stopping.is_set():
            self.step()
            self.stopping.wait(STEP)

    def step(self) -> None:
        """Begins to measure what is due, what waits longest first; forgets what is configured no more."""
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

    def keep(self, name: str, found: MeasuredLag) -> None:
        """What was measured of a policy just now."""
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
            log.warning("the queue of ingestion: %s", error.message)

    def _look(self, directory: str) -> None:
        self._disks[directory] = disk_of(directory)


def measured(name: str, config: Config) -> MeasuredLag:
    """A policy as it is now. Raises nothing: what could not be measured says why."""
    at = time.time()
    compared, success = _of_runs(name, config)
    try:
        return MeasuredLag(at, lag(name, config=config), "", compared, success)
    except Error as error:
        said = error.message
    except Exception as error:  # the other policies are measured
        log.exception("the lag of %s", name)
        said = f"internal error: {type(error).__name__}: {error}"
    return MeasuredLag(time.time(), None, said, compared, success)


def _of_runs(name: str, config: Config) -> tuple[Compared | None, float | None]:
    """What its runs compared last, and when the last good one ended; None where nobody knows."""
    try:
        runs = history(name, limit=RUNS, config=config).runs
    except (Error, OSError):
        return None, None  # the lag says what is wrong
    compared = next((each.compared for each in runs if each.compared), None)
    done = next((each.ended for each in runs if each.status == "done" and each.ended), "")
    return compared, datetime.fromisoformat(done).timestamp() if done else None
