"""A metastore whose changes go over as many connections as make them faster (see `pace`)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from threading import Condition, Lock
from typing import Any, cast

from replicator.errors import ObjectNotFound
from replicator.metastore.client import Metastore, MetastoreReader
from replicator.metastore.convert.fields import ids
from replicator.metastore.pace import Pace, Window

CHANGES = ("create_", "alter_", "drop_", "add_", "rename_", "set_")
RETRY_INTERVAL = "hive.hmshandler.retry.interval"  # how long a call sleeps in the server that has lost a race
SHORT = 0.2  # seconds of it that cost less than a second connection brings
_SLEEP = 2.0  # the servers' default
_UNITS = {"ms": 0.001, "msec": 0.001, "s": 1.0, "sec": 1.0, "": 1.0, "m": 60.0, "min": 60.0}
_ITEM = 0.3  # of a call's weight, for each object that it carries


class Gate:
    """Lets as many calls pass at once as a pace says, and reports their time to it. For many threads."""

    def __init__(self, pace: Pace, clock: Callable[[], float] = time.monotonic) -> None:
        self._pace, self._clock, self._changed = pace, clock, Condition()
        self._window, self._began = Window(), 0.0
        self._inside, self._closing = 0, False

    @property
    def width(self) -> int:
        return self._pace.width

    @contextmanager
    def passing(self, weight: float = 1.0) -> Iterator[None]:
        """weight: what the call carries, in any unit."""
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
    """See `paced`."""

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
    """The same metastore, whose changes wait for each other; and how many of them, at most `most`, pass at once now:
    one, until somebody asks."""
    found = Paced(metastore, most)
    return cast(Metastore, found), found.width


def may_write_at_once(metastore: MetastoreReader) -> bool:
    """Whether two connections may be faster than one. Where writers race for an event id, the one that comes too late
    sleeps; a server of our own does so shortly."""
    return locks_event_ids(metastore) or _seconds(metastore.setting(RETRY_INTERVAL)) <= SHORT


def locks_event_ids(metastore: MetastoreReader) -> bool:
    """Whether writers get their event ids in turn (`SELECT FOR UPDATE`), as since Hive 3. Before, two at once read the
    same next id: one fails where the database keeps ids unique, and both have it where not."""
    return is_since_3(metastore)


def is_since_3(metastore: MetastoreReader) -> bool:
    """Whether the server is of Hive 3 or newer."""
    try:
        return bool(metastore.database("default").extra.keys() & _SINCE_3)
    except ObjectNotFound:
        return False


_SINCE_3 = ids("Database", "catalogName")


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    return int(match[1]) * _UNITS.get(match[2], _SLEEP) if match else _SLEEP
