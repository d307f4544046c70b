"""Traffic with one metastore: the limits and measurements that all clients in this process share.

A metastore has other users: `Limit` defines how many connections this process may have at a time, and how many calls it
may send per second. A call waits until it is within the limits; another client's idle connection is closed for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

from replicator.core.connections import Address

# ---- width -----------------------------------------------------------------------------------------------------------
# The width of reading: the number of concurrent calls at which a metastore answers fastest. Pure.
#
# An embedded server answers two concurrent calls hardly faster than four; one with a database across a network requires
# sixteen before its rate stops growing. So the width is found while reading: wider and narrower ones are tried in turn,
# and the narrowest is chosen that no wider one improves much. Slower responses or failures make it narrower at once.


MOST = 16
FIRST = 2
EPOCH = 0.25  # minimum seconds of one measurement
ANSWERS = 4  # minimum responses of one measurement, per concurrent call
WORTH = 0.25  # share of the gain that a step would bring if calls did not hinder each other
SLOWER = 0.6  # share of the former rate of this width
PATIENCE = 2, 16  # measurements before the next trial, after one without gain: first, and maximum


class Width:
    """The number of concurrent calls, `now`. One per metastore, for all readers; not locked."""

    def __init__(self, first: int = FIRST, most: int = MOST) -> None:
        self.now, self._most = first, most
        self._rate: float | None = None  # at this width
        self._base: tuple[int, float] | None = None  # the former width and its rate, while another is tried
        self._up = True  # whether the next trial is wider
        self._wait, self._patience = 0, PATIENCE[0]
        self.begin(0.0)

    def begin(self, at: float) -> None:
        """Begins a walk at this second: nothing was measured between walks."""
        self._since, self._weight, self._answers = at, 0.0, 0

    def answered(self, at: float, weight: float) -> None:
        """Records that one item of this weight was read at this second."""
        self._weight += weight
        self._answers += 1
        if at - self._since >= EPOCH and self._answers >= ANSWERS * self.now:
            self._judge(self._weight / (at - self._since))
            self.begin(at)

    def failed(self, at: float) -> None:
        """Halves the width: the server is away, or overloaded."""
        self.now, self._rate, self._base = max(1, self.now // 2), None, None
        self._rest()
        self.begin(at)

    def _judge(self, rate: float) -> None:
        if self._base is not None:
            self._choose(*self._base, rate)
            return
        if self._rate is not None and rate < SLOWER * self._rate:
            self._rate, self._up, self._wait = rate, False, 0
        self._rate = rate if self._rate is None else (self._rate + rate) / 2
        if self._wait > 0:
            self._wait -= 1
        else:
            self._try()

    def _try(self) -> None:
        """Tries the next wider or narrower width."""
        if self.now == (self._most if self._up else 1):
            self._up = not self._up
        step = max(1, self.now // 2) if self._up else -max(1, self.now // 3)
        assert self._rate is not None
        self._base = self.now, self._rate
        self.now = min(self._most, self.now + step)

    def _choose(self, before: int, rate_before: float, rate: float) -> None:
        """Chooses between the former width and the one that was tried: the wider one if it is worth it."""
        (narrow, slow), (wide, fast) = sorted([(before, rate_before), (self.now, rate)])
        best, best_rate = (wide, fast) if fast / slow - 1 >= WORTH * (wide / narrow - 1) else (narrow, slow)
        self._base, self._rate = None, best_rate
        if best == before:
            self.now, self._up = before, not self._up
            self._rest()
        else:
            self._patience = PATIENCE[0]
            self._try()

    def _rest(self) -> None:
        self._wait, self._patience = self._patience, min(2 * self._patience, PATIENCE[1])


# ---- traffic ---------------------------------------------------------------------------------------------------------


FORGOTTEN = 1.0  # seconds between checks for a client that disappeared without closing its connections


@dataclass(frozen=True)
class Limit:
    """Limits of one metastore; None: no limit. connections: concurrent, at least 1. calls_per_second: more than 0."""

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
        """Closes an idle connection. Returns True if there was one."""
        ...


class Traffic:
    """The traffic with one metastore."""

    def __init__(self) -> None:
        self.limit = Limit()
        self._width = Width()
        self._measuring = threading.Lock()
        self._changed = threading.Condition()
        self._open: WeakKeyDictionary[Pool, int] = WeakKeyDictionary()  # collected clients drop their count
        self._turn = threading.Lock()
        self._next = 0.0

    # ---- concurrent calls

    @property
    def at_once(self) -> int:
        return min(self._width.now, self.limit.connections or self._width.now)

    def begin(self) -> None:
        """Begins a walk."""
        with self._measuring:
            self._width.begin(time.monotonic())

    def answered(self, weight: float) -> None:
        """Records that an item of this weight was read; 0: by a call that is not comparable with the others."""
        if weight:
            with self._measuring:
                self._width.answered(time.monotonic(), weight)

    def failed(self) -> None:
        """Records that a connection died, or that the server was away."""
        with self._measuring:
            self._width.failed(time.monotonic())

    # ---- limits

    def wait_turn(self) -> None:
        """Waits until a call may be sent."""
        rate = self.limit.calls_per_second
        if rate is None:
            return
        with self._turn:
            now = time.monotonic()
            at = max(now, self._next)
            self._next = at + 1 / rate
        time.sleep(at - now)

    def may_open(self, pool: Pool) -> bool:
        """Waits until `pool` may open a connection, which it must report by `closed` at the end. Returns False if the
        pool has an idle one by then."""
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
        """Notifies waiting pools that a connection is idle."""
        if self.limit.connections is not None:
            with self._changed:
                self._changed.notify_all()

    def _is_full(self) -> bool:
        most = self.limit.connections
        return most is not None and sum(self._open.values()) >= most


_all: dict[Address, Traffic] = {}
_lock = threading.Lock()


def traffic_with(addresses: Sequence[Address]) -> Traffic:
    """Returns the traffic of the metastore with these addresses: clients that share an address share it."""
    with _lock:
        found = next((_all[each] for each in addresses if each in _all), None) or Traffic()
        for each in addresses:
            _all.setdefault(each, found)
        return found


def limit_traffic(limits: Iterable[tuple[Sequence[Address], Limit]]) -> None:
    """Sets limits from now on, including for open clients. Of several limits of one metastore the strictest applies."""
    found: dict[Traffic, Limit] = {}
    for addresses, limit in limits:
        traffic = traffic_with(addresses)
        found[traffic] = found.get(traffic, Limit()).strictest(limit)
    for traffic, limit in found.items():
        traffic.limit = limit
