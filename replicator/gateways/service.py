"""What all connections of a gateway share: the metastore's addresses, drops, counts, limits of time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from replicator.gateways.drops import Counts, Drops


@dataclass(frozen=True)
class Timeouts:
    """How long each side may take. `client`: to send a call that it has begun (a connection begins with one), and to
    read a piece of an answer; `answer`: the metastore, until an answer begins, and between its pieces; `stop`: calls
    under way when the gateway is stopped."""

    client: timedelta = timedelta(minutes=1)
    answer: timedelta = timedelta(minutes=10)  # Hive's own, hive.metastore.client.socket.timeout
    stop: timedelta = timedelta(seconds=20)


@dataclass(frozen=True)
class Service:
    """What all connections of a gateway share. `stopping`: a descriptor that becomes readable when it is to stop;
    `large`: places for large calls that are read whole."""

    addresses: Sequence[tuple[str, int]]
    drops: Drops
    counts: Counts
    stopping: int
    pass_unknown: bool
    timeouts: Timeouts
    large: threading.Semaphore
