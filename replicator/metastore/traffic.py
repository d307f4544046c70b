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

# ---- width -----------------------------------------------------------------------------------------------------------
# The width of reading: the number of concurrent calls at which a metastore answers fastest. Pure.
#
# An embedded server answers two calls at once hardly faster than four; one with a database across a network needs
# sixteen before its rate stops growing. So the width is found while reading: wider and narrower ones are tried in turn,
# and the narrowest is kept than which no wider one brings much. Answers that become slower or fail make it narrower at
# once.


MOST = 16
FIRST = 2
EPOCH = 0.25  # seconds of one measurement, at least
ANSWERS = 4  # per call at a time, of one measurement, at least
WORTH = 0.25  # of the gain that a step would bring if calls did not hinder each other
SLOWER = 0.6  # of the rate that this width had
PATIENCE = 2, 16  # measurements before the next trial, after one that brought nothing: at first, and at last


class Width:
    """`now`: calls at once. One per metastore, whoever reads; not locked."""

    def __init__(self, first: int = FIRST, most: int = MOST) -> None:
        self.now, self._most = first, most
        self._rate: float | None = None  # at this width
        self._base: tuple[int, float] | None = None  # while another width is tried: the former one, and its rate
        self._up = True  # which way the next trial goes
        self._wait, self._patience = 0, PATIENCE[0]
        self.begin(0.0)

    def begin(self, at: float) -> None:
        """A walk begins at this second: nothing was measured between walks."""
        self._since, self._weight, self._answers = at, 0.0, 0

    def answered(self, at: float, weight: float) -> None:
        """At this second one item of work was read, of so much weight."""
        self._weight += weight
        self._answers += 1
        if at - self._since >= EPOCH and self._answers >= ANSWERS * self.now:
            self._judge(self._weight / (at - self._since))
            self.begin(at)

    def failed(self, at: float) -> None:
        """The server is away, or overloaded: half of the calls at once."""
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
        """The next wider or narrower one."""
        if self.now == (self._most if self._up else 1):
            self._up = not self._up
        step = max(1, self.now // 2) if self._up else -max(1, self.now // 3)
        assert self._rate is not None
        self._base = self.now, self._rate
        self.now = min(self._most, self.now + step)

    def _choose(self, before: int, rate_before: float, rate: float) -> None:
        """Between the former width and the one that was tried: the wider one if it is worth it."""
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
