"""What all connections of a gateway share: the door, the way to the metastore, drops, counts, limits of time."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import timedelta

from replicator.captures.gateways.auth.door import Door
from replicator.captures.gateways.auth.tokens import Tokens
from replicator.captures.gateways.drops import GRACE, Counts, Drops
from replicator.captures.gateways.upstream import Asked
from replicator.core.connections import GatewayConfig

PLAIN = GatewayConfig()


@dataclass(frozen=True)
class Timeouts:
    """How long each side may take. `client`: to send a call that it has begun (a connection begins with one), and to
    read a piece of an answer; `answer`: the metastore, until an answer begins, and between its pieces; `stop`: calls
    under way when the gateway is stopped."""

    client: timedelta = timedelta(minutes=1)
    answer: timedelta = timedelta(minutes=10)  # Hive's own, hive.metastore.client.socket.timeout
    stop: timedelta = timedelta(seconds=20)


@dataclass(frozen=True)
class GatewaySettings:
    """threads: connections at once; pass_unknown: calls that this release does not know are forwarded; grace: see
    `drops.GRACE`; security: what is asked of clients."""

    threads: int = 1000
    pass_unknown: bool = False
    grace: timedelta = GRACE
    timeouts: Timeouts = Timeouts()
    security: GatewayConfig = PLAIN


@dataclass(frozen=True)
class Service:
    """What all connections of a gateway share. `stopping`: a descriptor that becomes readable when it is to stop;
    `large`: places for large calls that are read whole."""

    door: Door
    metastore: Asked
    tokens: Tokens | None
    drops: Drops
    counts: Counts
    stopping: int
    pass_unknown: bool
    timeouts: Timeouts
    large: threading.Semaphore


class Place:
    """Of one connection among the large calls; it has one at most."""

    def __init__(self, places: threading.Semaphore) -> None:
        self._places, self._has = places, False

    def take(self, seconds: float) -> bool:
        """Whether it has one within so many seconds."""
        self._has = self._has or self._places.acquire(timeout=seconds)
        return self._has

    def leave(self) -> None:
        if self._has:
            self._places.release()
        self._has = False
