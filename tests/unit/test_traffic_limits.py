"""Limits of a metastore's traffic, among clients of one process."""

from __future__ import annotations

import threading

import pytest
from waiting import CEILING, eventually

from replicator.metastore import traffic as limiting
from replicator.metastore.traffic import Limit, Traffic


class Busy:
    """A client whose connection is in use, or that nobody closed. asked: how often it had to wait."""

    asked = 0

    def has_idle(self) -> bool:
        self.asked += 1
        return False

    def close_idle(self) -> bool:
        return False


def test_the_connection_of_a_client_that_nobody_closed_is_given_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiting, "FORGOTTEN", 0.01)
    traffic, first, second = Traffic(), Busy(), Busy()
    traffic.limit = Limit(connections=1)
    assert traffic.may_open(first)
    waiter = threading.Thread(target=traffic.may_open, args=(second,), daemon=True)
    waiter.start()
    eventually(lambda: second.asked > 2)
    assert waiter.is_alive()
    del first
    waiter.join(CEILING)
    assert not waiter.is_alive()
