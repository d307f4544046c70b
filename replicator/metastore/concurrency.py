"""Concurrent calls to a metastore: reads of many objects, and changes at a measured pace.

Reads run on as many connections as improve throughput (see `traffic`). Changes have an order of their own, and may
collide in the server: one with a database across a network requires sixteen connections; one whose writers collide and
sleep requires one. So two widths compete, the wider about twice the other, in four windows of calls: narrow, wide,
wide, narrow, so that a server that only gets warmer or busier favours neither. The wide one wins if it is a tenth
faster. After a contest that changes nothing comes one with the other neighbour, after a pause that doubles each time.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, tee
from threading import Condition, Lock
from typing import Any, Generic, TypeVar, cast

from replicator.core.grouping import batched
from replicator.core.model import Partition, Table
from replicator.errors import ObjectNotFound
from replicator.metastore.client import CHANGES, Metastore, MetastoreReader
from replicator.metastore.fields import ids
from replicator.metastore.traffic import MOST, Traffic

# ---- reads -----------------------------------------------------------------------------------------------------------


TABLE_BATCH = 100  # tables of one call, so that several calls share a database; 25 are not faster, 500 slower
TABLE_WEIGHT = 10  # weight of the calls for one table, in partitions

Item = TypeVar("Item")
Read = TypeVar("Read")


def side_by_side(
    traffic: Traffic,
    read: Callable[[Item], Read],
    items: Iterable[Item],
    *,
    weigh: Callable[[Read], float] = lambda _: 1.0,
    known: Callable[[Item], Read | None] = lambda _: None,
) -> Iterator[Read]:
    """Yields `read(item)` of each item, run in threads, in the order of `items`, which are drawn in the caller's
    thread, few ahead: memory holds the results of at most twice as many as are read concurrently.

    weigh: the size of what was read, to distinguish a busy server from a large table; 0 if it is not comparable with
    the other concurrent reads. known: returns results that require no read. The first error ends it, as does a caller
    that stops: items that have not begun are never read."""
    with _Ahead(traffic, _Walk(traffic, read, weigh), items, known) as ahead:
        yield from ahead


def read_both(
    sides: tuple[MetastoreReader, MetastoreReader],
    read: Callable[[int, Item], Read],
    items: Iterable[Item],
    *,
    weigh: Callable[[Read], float] = lambda _: 1.0,
    known: Callable[[Item], Read | None] = lambda _: None,
) -> Iterator[tuple[Item, Read, Read]]:
    """Same as `side_by_side`, for two metastores concurrently, each at its own width: yields every item with `read(0,
    item)`, which queries the first of `sides`, and `read(1, item)`."""
    given, *drawn = tee(items, 3)
    walks = [
        _Ahead(side.traffic, _Walk(side.traffic, partial(read, number), weigh), drawn[number], known)
        for number, side in enumerate(sides)
    ]
    with walks[0] as here, walks[1] as there:
        here.fill()
        there.fill()
        yield from zip(given, here, there, strict=True)


class _Ahead(Generic[Item, Read]):
    """The results of a walk in order, including those that are read ahead. Not thread-safe."""

    def __init__(
        self, traffic: Traffic, walk: _Walk[Item, Read], items: Iterable[Item], known: Callable[[Item], Read | None]
    ) -> None:
        self._traffic, self._walk, self._items, self._known = traffic, walk, iter(items), known
        self._pool = ThreadPoolExecutor(MOST, thread_name_prefix="read")
        self._results: deque[Future[Read]] = deque()

    def __enter__(self) -> _Ahead[Item, Read]:
        return self

    def __exit__(self, *_: object) -> None:
        self._walk.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)  # a running call ends with its client

    def __iter__(self) -> Iterator[Read]:
        while True:
            self.fill()
            if not self._results:
                return
            yield self._results.popleft().result()

    def fill(self) -> None:
        while len(self._results) <= 2 * self._traffic.at_once:
            drawn = list(islice(self._items, 1))
            if not drawn:
                return
            self._results.append(self._submitted(drawn[0]))

    def _submitted(self, item: Item) -> Future[Read]:
        answer = self._known(item)
        if answer is None:
            return self._pool.submit(self._walk.one, item)
        done: Future[Read] = Future()
        done.set_result(answer)
        return done


class _Walk(Generic[Item, Read]):
    """A walk with as many concurrent reads as the current width."""

    def __init__(self, traffic: Traffic, read: Callable[[Item], Read], weigh: Callable[[Read], float]) -> None:
        self._traffic, self._read, self._weigh = traffic, read, weigh
        self._changed = threading.Condition()
        self._running = 0
        self._stopped = False
        traffic.begin()

    def one(self, item: Item) -> Read:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._running < self._traffic.at_once)
            if self._stopped:
                raise CancelledError
            self._running += 1
        try:
            result = self._read(item)
            self._traffic.answered(self._weigh(result))
            return result
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


def tables_with_partitions(
    source: MetastoreReader, db: str, names: Sequence[str]
) -> Iterator[tuple[Table, Iterable[list[Partition]]]]:
    """Yields tables of a database with their partitions, in batches that must be consumed before the next table. Tables
    that are dropped concurrently, or with their database, are omitted, or have fewer partitions than before."""

    def tables(some: Sequence[str]) -> list[Table]:
        try:
            return source.tables(db, some)
        except ObjectNotFound:
            return []

    def read(table: Table) -> tuple[Table, list[Partition], Iterator[list[Partition]]]:
        rest = _until_gone(source.all_partitions(table.db, table.name))
        return table, next(rest, []), rest

    def known(table: Table) -> tuple[Table, list[Partition], Iterator[list[Partition]]] | None:
        return None if table.is_partitioned else (table, [], iter(()))

    traffic = source.traffic
    pages = side_by_side(traffic, tables, batched(names, TABLE_BATCH), weigh=lambda _: 0.0)
    found = side_by_side(
        traffic, read, chain.from_iterable(pages), weigh=lambda each: TABLE_WEIGHT + len(each[1]), known=known
    )
    for table, first, rest in found:
        yield table, chain([first], rest)


def _until_gone(pages: Iterator[list[Partition]]) -> Iterator[list[Partition]]:
    try:
        yield from pages
    except ObjectNotFound:
        return


# ---- the pace of changes ---------------------------------------------------------------------------------------------


GAIN = 1.1  # times as fast as the narrow width, to be worth the connections
SECONDS = 0.25  # minimum of a window
CALLS = 4  # minimum of a window, on each of its connections
PAUSE, LONGEST_PAUSE = 8, 1024  # windows between contests
_WIDE = (False, True, True, False)  # True for the wide windows of a contest


@dataclass(frozen=True)
class Window:
    """Calls over one width: their number, their weight (in the caller's unit), and the seconds that they took."""

    calls: int = 0
    weight: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Pace:
    """The width of concurrent calls, at most `most`, and the state of the search for the next. `settled`: the best so
    far; `other`: the width that competes with it; `rates`: of the windows of the contest so far; `waits`: windows until
    a contest begins; `pause`: windows between the next two contests."""

    most: int
    settled: int = 1
    other: int = 2
    rates: tuple[float, ...] = ()
    waits: int = 0
    pause: int = PAUSE

    @property
    def contends(self) -> bool:
        """True if this window counts for a contest: none of its calls may extend into the next."""
        return self.most > 1 and not self.waits

    @property
    def width(self) -> int:
        """The number of connections for the calls of this window."""
        if not self.contends:
            return self.settled
        return (max if _WIDE[len(self.rates)] else min)(self.settled, self.other)

    def is_full(self, window: Window) -> bool:
        """Returns True if a window contains enough calls for a measurement."""
        return window.calls >= CALLS * self.width and window.seconds >= SECONDS

    def after(self, window: Window) -> Pace:
        """Returns the pace of the next window."""
        if not self.contends:
            return replace(self, waits=max(0, self.waits - 1))
        rates = (*self.rates, window.weight / window.seconds)
        if len(rates) < len(_WIDE):
            return replace(self, rates=rates)
        wide = sum(rate for rate, is_wide in zip(rates, _WIDE, strict=True) if is_wide)
        is_worth_it = wide >= GAIN * (sum(rates) - wide)
        return self._won((max if is_worth_it else min)(self.settled, self.other))

    def _won(self, width: int) -> Pace:
        """Returns the next pace: a new winner continues in the same direction; else the other neighbour follows."""
        wider, narrower = min(2 * width, self.most), width // 2
        up = self.other > self.settled if width != self.settled else self.other < self.settled
        other = wider if (up and wider > width) or not narrower else narrower
        if width != self.settled and (other > width) == (width > self.settled):
            return Pace(self.most, width, other)
        return Pace(self.most, width, other, (), self.pause, min(2 * self.pause, LONGEST_PAUSE))


# ---- paced -----------------------------------------------------------------------------------------------------------
# A metastore whose changes are sent over as many connections as improve throughput (see `Pace`).


RETRY_INTERVAL = "hive.hmshandler.retry.interval"  # how long a call that has lost a race sleeps in the server
SHORT = 0.2  # seconds of sleep that cost less than a second connection gains
_SLEEP = 2.0  # the servers' default
_UNITS = {"ms": 0.001, "msec": 0.001, "s": 1.0, "sec": 1.0, "": 1.0, "m": 60.0, "min": 60.0}
_ITEM = 0.3  # weight of each object of a call


class Gate:
    """A gate that admits as many concurrent calls as a pace allows, and reports their times to it. For many threads."""

    def __init__(self, pace: Pace, clock: Callable[[], float] = time.monotonic) -> None:
        self._pace, self._clock, self._changed = pace, clock, Condition()
        self._window, self._began = Window(), 0.0
        self._inside, self._closing = 0, False

    @property
    def width(self) -> int:
        return self._pace.width

    @contextmanager
    def passing(self, weight: float = 1.0) -> Iterator[None]:
        """Waits for admission and measures the block. weight: the size of the call, in any unit."""
        with self._changed:
            while self._closing or self._inside >= self._pace.width:
                self._changed.wait()
            self._inside += 1
            self._began = self._began or self._clock()
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._passed(weight)
                self._changed.notify_all()

    def _passed(self, weight: float) -> None:
        window = self._window
        self._window = Window(window.calls + 1, window.weight + weight, self._clock() - self._began)
        if not self._pace.is_full(self._window):
            return
        self._closing = self._pace.contends and self._inside > 0
        if not self._closing:
            self._pace = self._pace.after(self._window)
            self._window, self._began = Window(), 0.0


class Paced:
    """A metastore with a gate, see `paced`."""

    def __init__(self, metastore: Metastore, most: int) -> None:
        self._metastore, self._most = metastore, most
        self._gate, self._asked, self._lock = Gate(Pace(1)), False, Lock()

    def width(self) -> int:
        with self._lock:
            if not self._asked and self._most > 1 and may_write_at_once(self._metastore):
                self._gate = Gate(Pace(self._most))
            self._asked = True
            return self._gate.width

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._metastore, name)
        if not name.startswith(CHANGES):
            return found

        def changed(*arguments: Any, **named: Any) -> Any:
            items = sum(len(each) for each in arguments if isinstance(each, Sized) and not isinstance(each, str))
            with self._gate.passing(1 + _ITEM * items):
                return found(*arguments, **named)

        return changed


def paced(metastore: Metastore, most: int) -> tuple[Metastore, Callable[[], int]]:
    """Returns the same metastore, whose changes wait for each other, and a function that returns how many of them, at
    most `most`, are admitted concurrently: one, until the function is first called."""
    found = Paced(metastore, most)
    return cast(Metastore, found), found.width


def may_write_at_once(metastore: MetastoreReader) -> bool:
    """Returns True if two connections may be faster than one. If writers race for an event id, the loser sleeps; a
    server started by this program sleeps only briefly."""
    return locks_event_ids(metastore) or _seconds(metastore.setting(RETRY_INTERVAL)) <= SHORT


def locks_event_ids(metastore: MetastoreReader) -> bool:
    """Returns True if writers get their event ids in turn (`SELECT FOR UPDATE`), as since Hive 3. Before, two
    concurrent writers read the same next id: one fails if the database enforces unique ids, otherwise both use it."""
    return is_since_3(metastore)


def is_since_3(metastore: MetastoreReader) -> bool:
    """Returns True if the server is of Hive 3 or newer."""
    try:
        return bool(metastore.database("default").extra.keys() & _SINCE_3)
    except ObjectNotFound:
        return False


_SINCE_3 = ids("Database", "catalogName")


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    return int(match[1]) * _UNITS.get(match[2], _SLEEP) if match else _SLEEP
