"""Limits of a metastore's traffic, among clients of one process."""

from __future__ import annotations

import threading

from replicator.metastore.parallel.traffic import Limit, Traffic


class Busy:
    """A client whose connection is in use, or that nobody closed."""

    def has_idle(self) -> bool:
        return False

    def close_idle(self) -> bool:
        return False


def test_the_connection_of_a_client_that_nobody_closed_is_given_to_another() -> None:
    traffic, first, second = Traffic(), Busy(), Busy()
    traffic.limit = Limit(connections=1)
    assert traffic.may_open(first)
    waiter = threading.Thread(target=traffic.may_open, args=(second,), daemon=True)
    waiter.start()
    waiter.join(0.2)
    assert waiter.is_alive()
    del first
    waiter.join(20)
    assert not waiter.is_alive()
