"""Traffic with one metastore: what all clients of this process share, whichever object makes a call.

A metastore has other users: `Limit` says how many connections this process may have to it at a time, and how many calls
it may send in a second. A call that must wait does; a connection that another client has left idle is closed for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

from replicator.core.connections import Address
from replicator.metastore.width import Width

FORGOTTEN = 1.0  # seconds between looks for a client that went away without closing its connections


@dataclass(frozen=True)
class Limit:
    """None: no limit. connections: at a time, at least 1. calls_per_second: more than 0."""

    connections: int | None = None
    calls_per_second: float | None = None

    def strictest(self, other: Limit) -> Limit:
        return Limit(
            min((each.connections for each in (self, other) if each.connections is not None), default=None),
            min((each.calls_per_second for each in (self, other) if each.calls_per_second is not None), default=None),
        )


class Pool(Protocol):
    """A holder of connections."""

    def has_idle(self) -> bool: ...

    def close_idle(self) -> bool:
        """Closes one that nobody uses; whether there was one."""
        ...


class Traffic:
    """With one metastore."""

    def __init__(self) -> None:
        self.limit = Limit()
        self._width = Width()
        self._measuring = threading.Lock()
        self._changed = threading.Condition()
        self._open: WeakKeyDictionary[Pool, int] = WeakKeyDictionary()  # a client that nobody closed takes its own away
        self._turn = threading.Lock()
        self._next = 0.0

    # ---- how many calls at once bring something

    @property
    def at_once(self) -> int:
        return min(self._width.now, self.limit.connections or self._width.now)

    def begin(self) -> None:
        """A walk begins."""
        with self._measuring:
            self._width.begin(time.monotonic())

    def answered(self, weight: float) -> None:
        """So much was read; 0: by a call that is not to be compared with the others."""
        if weight:
            with self._measuring:
                self._width.answered(time.monotonic(), weight)

    def failed(self) -> None:
        """A connection died, or the server was away."""
        with self._measuring:
            self._width.failed(time.monotonic())

    # ---- limits

    def wait_turn(self) -> None:
        """Before a call: waits until it may be sent."""
        rate = self.limit.calls_per_second
        if rate is None:
            return
        with self._turn:
            now = time.monotonic()
            at = max(now, self._next)
            self._next = at + 1 / rate
        time.sleep(at - now)

    def may_open(self, pool: Pool) -> bool:
        """Waits until `pool` may open a connection, which it tells by `closed` in the end. False: it has an idle one
        by now."""
        with self._changed:
            while self._is_full():
                if pool.has_idle():
                    return False
                if not any(each.close_idle() for each in list(self._open)):
                    self._changed.wait(FORGOTTEN)
            self._open[pool] = self._open.get(pool, 0) + 1
            return True

    def closed(self, pool: Pool) -> None:
        with self._changed:
            self._open[pool] -= 1
            self._changed.notify_all()

    def returned(self) -> None:
        """A connection is idle."""
        if self.limit.connections is not None:
            with self._changed:
                self._changed.notify_all()

    def _is_full(self) -> bool:
        most = self.limit.connections
        return most is not None and sum(self._open.values()) >= most


_all: dict[Address, Traffic] = {}
_lock = threading.Lock()


def traffic_with(addresses: Sequence[Address]) -> Traffic:
    """That of the metastore with these addresses: clients that share one of them share it."""
    with _lock:
        found = next((_all[each] for each in addresses if each in _all), None) or Traffic()
        for each in addresses:
            _all.setdefault(each, found)
        return found


def limit_traffic(limits: Iterable[tuple[Sequence[Address], Limit]]) -> None:
    """From now on, also for clients that are open. Of several limits of one metastore the strictest counts."""
    found: dict[Traffic, Limit] = {}
    for addresses, limit in limits:
        traffic = traffic_with(addresses)
        found[traffic] = found.get(traffic, Limit()).strictest(limit)
    for traffic, limit in found.items():
        traffic.limit = limit
