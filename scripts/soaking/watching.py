"""When a change that was committed at the source is seen on the target, by asking the target's metastore all the time.

A mark is a number. The commit counts from the moment at which the source's metastore had answered; that a mark is seen
is noticed at most one poll (`POLL` and what the two calls take) late, which counts as lag.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from plain_tables import PlainDatabase

from replicator.errors import Error
from replicator.metastore.thrift import ThriftMetastore
from replicator.policies.lag import Lag

POLL = 0.1
METADATA = "metadata"  # an alter of the table `marks`: a property tells the newest mark
PARTITION = "partition with a file"  # `days/p=<mark>`
SPARK = "Spark's insert"  # the same, of the database that Spark writes to


class Marks:
    """Marks that were committed and not seen yet, and the lags of those that were, in seconds, by kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[int, float]] = defaultdict(dict)
        self.lags: dict[str, list[float]] = defaultdict(list)
        self.withdrawn = 0

    def committed(self, kind: str, mark: int) -> None:
        with self._lock:
            self._waiting[kind][mark] = time.monotonic()

    def withdraw(self, kind: str, mark: int) -> None:
        """The writer takes it away itself: a mark that was not seen by now never will be."""
        with self._lock:
            self.withdrawn += self._waiting[kind].pop(mark, None) is not None

    def waiting(self, kind: str) -> list[int]:
        with self._lock:
            return list(self._waiting[kind])

    def seen(self, kind: str, mark: int, when: float) -> None:
        with self._lock:
            began = self._waiting[kind].pop(mark, None)
            if began is not None:
                self.lags[kind].append(max(0.0, when - began))


class Poller(threading.Thread):
    """Looks at the target until it is asked to end. `broken`: partitions that were shown before their file was
    there."""

    def __init__(self, target: ThriftMetastore, marks: Marks, exists: Callable[[str], bool], plain: str, sql: str):
        """exists: whether the target has a file, by its URI."""
        super().__init__(name="poller", daemon=True)
        self._target, self._marks, self._exists, self._plain, self._sql = target, marks, exists, plain, sql
        self._over = threading.Event()
        self.broken: list[str] = []

    def run(self) -> None:
        while not self._over.wait(POLL):
            for look in (self._metadata, self._days, self._spark):
                with contextlib.suppress(Error):  # killed, or not there yet
                    look()

    def end(self) -> None:
        self._over.set()
        self.join()

    def _metadata(self) -> None:
        waiting = self._marks.waiting(METADATA)
        if waiting:
            newest = int(self._target.table(self._plain, "marks").parameters.get("mark", 0))
            now = time.monotonic()
            for mark in waiting:
                if mark <= newest:
                    self._marks.seen(METADATA, mark, now)

    def _days(self) -> None:
        for mark, place in self._partitions(PARTITION, self._plain):
            if not self._exists(f"{place}/day-{mark}"):
                self.broken.append(place)

    def _spark(self) -> None:
        """Without a look at files: an INSERT OVERWRITE of Spark's leaves the source's partition empty for a moment, and
        the replica shows that moment."""
        self._partitions(SPARK, self._sql)

    def _partitions(self, kind: str, db: str) -> list[tuple[int, str]]:
        waiting = self._marks.waiting(kind)
        if not waiting:
            return []
        names = set(self._target.partition_names(db, "days"))
        now = time.monotonic()
        shown = [mark for mark in waiting if f"p={mark}" in names]
        for mark in shown:
            self._marks.seen(kind, mark, now)
        location = self._target.table(db, "days").location
        return [(mark, f"{location}/p={mark}") for mark in shown]


QUIET = "quiet"  # a table that gets files, and no event
BETWEEN = 1.0  # seconds between files, and between measurements of the lag


class BoundWatcher(threading.Thread):
    """Writes files without an event, and compares the lag's upper bound with the age of the oldest file that the target
    lacks, by the writer's own clock. `too_low`: (bound, age) in seconds, where the bound was lower; `unknown`: how
    often there was no bound, as a side did not answer."""

    def __init__(self, source: PlainDatabase, replica: Path, measure: Callable[[], Lag]) -> None:
        super().__init__(name="bounds", daemon=True)
        self._source, self._replica, self._measure = source, replica, measure
        self._written: dict[str, float] = {}
        self._over = threading.Event()
        self.ages: list[float] = []
        self.bounds: list[float] = []
        self.too_low: list[tuple[float, float]] = []
        self.unknown = 0
        self.error: BaseException | None = None

    def begin(self) -> None:
        self._source.table(QUIET)

    def run(self) -> None:
        try:
            while not self._over.wait(BETWEEN):
                name = f"f{len(self._written)}"
                self._source.write(QUIET, {name: f"{name}\n"})
                self._written[name] = time.time()
                with contextlib.suppress(Error):
                    self._compare()
        except BaseException as error:  # reported by who waits for the end
            self.error = error

    def end(self) -> None:
        self._over.set()
        self.join()
        if self.error:
            raise self.error

    def _compare(self) -> None:
        began = time.time()
        bound = self._measure().seconds_bound
        if bound is None:
            self.unknown += 1
            return
        directory = self._replica / QUIET
        there = {each.name for each in directory.iterdir()} if directory.exists() else set()
        missing = [at for name, at in self._written.items() if name not in there]  # also during the measurement
        age = began - min(missing, default=began)
        self.ages.append(max(0.0, age))
        self.bounds.append(bound)
        if bound < age:
            self.too_low.append((bound, age))
