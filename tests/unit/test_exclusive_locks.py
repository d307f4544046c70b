"""Locks of partitions: those in use are found among many, and a metastore that gives none is named."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from replicator.core.model import Part
from replicator.errors import MetastoreError
from replicator.metastore.exclusive_locks import IN_USE, ExclusiveLocks


class Server:
    """A metastore on which some partitions are in use. held: locks, by their ids."""

    def __init__(self, *used: str, error: MetastoreError | None = None) -> None:
        self.used, self.error, self.held, self.asked = set(used), error, dict[int, list[str]](), 0

    def lock_parts(self, parts: Sequence[Part], holder: str) -> int | None:
        self.asked += 1
        if self.error:
            raise self.error
        partitions = [partition for _, _, partition in parts]
        if self.used & set(partitions):
            return None
        self.held[self.asked] = partitions
        return self.asked

    def unlock(self, lock: int) -> None:
        del self.held[lock]


PARTS = [("d", "t", f"p={each}") for each in range(200)]


def test_what_is_in_use_is_found_among_many_and_all_others_are_locked() -> None:
    server: Any = Server("p=7", "p=150")
    with ExitStack() as stack:
        locks = ExclusiveLocks(server, stack, "tests")
        locks.take(PARTS)
        assert locks.unlocked == {("d", "t", "p=7"): IN_USE, ("d", "t", "p=150"): IN_USE}
        held = {each for some in server.held.values() for each in some}
        assert held == {partition for _, _, partition in PARTS} - {"p=7", "p=150"}
        assert server.asked < 40
    assert server.held == {}


def test_a_metastore_that_gives_no_locks_leaves_all_with_its_answer() -> None:
    server: Any = Server(error=MetastoreError("no such table: HIVE_LOCKS"))
    with ExitStack() as stack:
        locks = ExclusiveLocks(server, stack, "tests")
        locks.take(PARTS)
    assert (server.asked, len(locks.unlocked)) == (1, 200)
    assert "no such table" in locks.unlocked[PARTS[0]]


def test_a_metastore_that_is_away_ends_the_run() -> None:
    class Away(MetastoreError):
        transient = True

    server: Any = Server(error=Away("it does not answer"))
    with ExitStack() as stack, pytest.raises(Away):
        ExclusiveLocks(server, stack, "tests").take(PARTS)
