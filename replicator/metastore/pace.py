"""The pace of writing: the number of connections over which changes are sent concurrently, found by measuring. Pure.

A server with a database across a network requires sixteen; one whose writers collide and sleep requires one. Two widths
compete, the wider about twice the other, in four windows of calls: narrow, wide, wide, narrow, so that a server that
only gets warmer or busier favours neither. The wide one wins if it is a tenth faster. A contest that changes nothing is
followed by one with the other neighbour, after a pause that doubles each time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Condition, Lock
from typing import Any, cast

from replicator.errors import ObjectNotFound
from replicator.metastore.client import CHANGES, Metastore, MetastoreReader
from replicator.metastore.convert.fields import ids

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
# A metastore whose changes are sent over as many connections as improve throughput (see `pace`).


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
