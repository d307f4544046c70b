"""State that all connections of a gateway share: authentication, the upstream metastore, drops, counters, timeouts."""

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
    """The timeouts of each side. `client`: to finish sending a call (also the first one of a connection), and to read a
    chunk of an answer; `answer`: for the metastore, until an answer begins, and between its chunks; `stop`: for running
    calls when the gateway is stopped."""

    client: timedelta = timedelta(minutes=1)
    answer: timedelta = timedelta(minutes=10)  # Hive's own, hive.metastore.client.socket.timeout
    stop: timedelta = timedelta(seconds=20)


@dataclass(frozen=True)
class GatewaySettings:
    """threads: maximum number of connections; pass_unknown: calls unknown to this release are forwarded; grace: see
    `drops.GRACE`; security: what clients must prove."""

    threads: int = 1000
    pass_unknown: bool = False
    grace: timedelta = GRACE
    timeouts: Timeouts = Timeouts()
    security: GatewayConfig = PLAIN


@dataclass(frozen=True)
class Service:
    """State that all connections of a gateway share. `stopping`: a descriptor that becomes readable when the gateway is
    to stop; `large`: permits for large calls, which are read completely."""

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
    """The permit of one connection for large calls; it holds at most one."""

    def __init__(self, places: threading.Semaphore) -> None:
        self._places, self._has = places, False

    def take(self, seconds: float) -> bool:
        """Returns True if the permit is held within this many seconds."""
        self._has = self._has or self._places.acquire(timeout=seconds)
        return self._has

    def leave(self) -> None:
        if self._has:
            self._places.release()
        self._has = False
