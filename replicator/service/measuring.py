"""Measurements of the lag of all policies, the queue of ingestion, the free space of disks and the size of roots,
repeated so that no reader waits; and threads for those that may hang.

Each is measured separately: a metastore, a mount or a store that hangs delays only its own metrics. The size of a
change-management root, and the pin that holds its oldest contents, are those of a sample, in limited time.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from cmroot.pins import Pins, read_pins
from cmroot.pins import seconds as seconds_of
from cmroot.root import open_existing
from cmroot.store.place import is_local, local_path
from cmroot.store.retained_entries import list_entries, prefixes
from replicator.commands.ingest import ingest_stats
from replicator.commands.policies import history, lag
from replicator.core.config import Config
from replicator.core.policy import Policy
from replicator.core.text import duration_text
from replicator.errors import Error
from replicator.ingestion.ingestion_shown import IngestionStats
from replicator.policies.lag import Lag
from replicator.policies.memory import Compared, Run

# ---- threads ---------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)


@dataclass
class Apart:
    """Threads for work that may hang. at_once: maximum concurrent work. patience: seconds after which work no longer
    counts; its thread remains, at most one per name."""

    at_once: int
    patience: float
    _at_work: dict[str, tuple[float, threading.Thread]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, name: str, work: Callable[[], object]) -> bool:
        """Starts the work and returns True. Returns False while work of the same name is running, and if no capacity or
        thread is free. `work` must store its failures as values, not raise them."""
        with self._lock:
            recent = time.monotonic() - self.patience
            if name in self._at_work or sum(begun > recent for begun, _ in self._at_work.values()) >= self.at_once:
                return False

            def run() -> None:
                try:
                    work()
                finally:
                    with self._lock:
                        del self._at_work[name]

            thread = threading.Thread(target=run, name=f"apart {name}", daemon=True)
            try:
                thread.start()  # its end waits for the lock
            except RuntimeError as error:  # too many threads or processes exist
                log.warning("%s could not be started: %s", name, error)
                return False
            self._at_work[name] = (time.monotonic(), thread)
        return True

    def wait(self, name: str, seconds: float) -> bool:
        """Waits up to `seconds` for the work of this name. Returns True if it has ended."""
        with self._lock:
            _, thread = self._at_work.get(name, (0.0, None))
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()


# ---- disks of roots, and of the service's logs -----------------------------------------------------------------------


@dataclass(frozen=True)
class Disk:
    """The disk of a directory. free: bytes available to users other than root; size: total bytes. at: seconds since
    1970."""

    at: float
    directory: str
    free: int
    size: int


def disk_of(directory: str) -> Disk | None:
    """Returns the disk of a directory; None: the directory does not exist, or cannot be queried."""
    at = time.time()
    try:
        found = os.statvfs(directory)
    except OSError:
        return None  # the code that requires it reports it
    return Disk(at, directory, found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def directories_of(config: Config) -> dict[str, str]:
    """Returns the directories of the service's logs and of policies' local roots, by their names in messages."""
    return {"service.logs": config.service.logs, **_of_roots(config.policies)}


def _of_roots(policies: Mapping[str, Policy]) -> dict[str, str]:
    found = {}
    for name, policy in policies.items():
        for side, place in (("cmroot", policy.cmroot), ("target_cmroot", policy.target_cmroot)):
            if is_local(place):
                found[f"{name}/{side}"] = local_path(place)
    return found


# ---- sizes of roots --------------------------------------------------------------------------------------------------


ENTRIES = 50_000
SECONDS = 20.0
"""A sample ends at either limit. Names are checksums, so that all directories are of similar size."""


@dataclass(frozen=True)
class RootSample:
    """The size of a root. bytes, files: of retained contents; estimates unless `exact`. oldest: when the pin that holds
    back most was created or last moved, in seconds since 1970; None: there is none. consumer: its name."""

    bytes: int
    files: int
    exact: bool
    oldest: float | None
    consumer: str


def sample_root(place: str, *, entries: int = ENTRIES, seconds: float = SECONDS) -> RootSample:
    """Measures a sample of a root. Reads only. Raises FormatError if the root does not exist, OSError if it is
    unreachable."""
    root = open_existing(place)
    began, found = time.monotonic(), prefixes(root.place)
    looked = files = size = 0
    for prefix in found:
        listed = list_entries(root.place, prefix).entries
        looked, files = looked + 1, files + listed.num_rows
        size += sum(each or 0 for each in listed.column("bytes").to_pylist())
        if files > entries or time.monotonic() - began > seconds:
            break
    share = len(found) / looked if looked else 1.0
    pins = sorted(_moments(read_pins(root.place)))
    oldest, consumer = pins[0] if pins else (None, "")
    return RootSample(round(size * share), round(files * share), looked == len(found), oldest, consumer)


def _moments(pins: Pins) -> Iterator[tuple[float, str]]:
    """Yields for each pin since when it holds its contents, and its name."""
    for slot in pins.slots:
        if not slot.given_up:
            yield seconds_of(slot.confirmed or slot.created), f"slot {slot.consumer or slot.name}"
    for hold in pins.holds:
        yield seconds_of(hold.created), f"hold {hold.name}"
    for dump in pins.dumps:
        yield seconds_of(dump.created), f"dump {dump.name}"


# ---- the lag of all policies -----------------------------------------------------------------------------------------


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
    newest successful run ended, regardless of who started it;
    None: not known. by_hand: those of its newest runs that no service started. stale: older than STALE, so that its
    metrics are invalid; a policy that was never measured has waited since `at`."""

    at: float
    lag: Lag | None
    error: str = ""
    compared: Compared | None = None
    success: float | None = None
    by_hand: tuple[Run, ...] = ()
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
        """The reason why the queue of ingestion is not known; "" if it is known, not configured, or was queried just
        now."""
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
    about = _of_runs(name, config)
    try:
        return MeasuredLag(at, lag(name, config=config), "", *about)
    except Error as error:
        said = error.message
    except Exception as error:  # the other policies are still measured
        log.exception("the lag of %s could not be measured", name)
        said = f"internal error: {type(error).__name__}: {error}"
    return MeasuredLag(time.time(), None, said, *about)


def _of_runs(name: str, config: Config) -> tuple[Compared | None, float | None, tuple[Run, ...]]:
    """Returns the last comparison by its runs, and when the last successful run ended, None where not known; and the
    newest runs that no service started."""
    try:
        runs = history(name, limit=RUNS, config=config).runs
    except (Error, OSError):
        return None, None, ()  # the lag reports the reason
    compared = next((each.compared for each in runs if each.compared), None)
    done = next((each.ended for each in runs if each.status == "done" and each.ended), "")
    by_hand = tuple(each for each in runs if each.service_run == "")
    return compared, datetime.fromisoformat(done).timestamp() if done else None, by_hand
