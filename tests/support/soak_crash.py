"""Kills dumps and loads at every step there is, one after the other: `scripts/soak_crash`, half an hour."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crash_story import Crashing, crashing, keep, run_again
from faults import Fault, run_with
from slot_histories import History

from replicator.metastore.embedded.running import Running

__all__ = ["crashing", "keep"]

STRIDE = 1  # every so many steps


def every_step(attempt: Callable[[Fault], bool]) -> None:
    """`attempt` runs into a fault, mends, compares; False when the run came to its end first."""
    for number in itertools.count(1, STRIDE):
        if not attempt(Fault("before", "any", "", number)):
            assert number > 20
            return


def test_every_step_of_a_dump(crashing: Crashing) -> None:
    def attempt(fault: Fault) -> bool:
        arguments = crashing.next_dump()
        killed = run_with(fault, arguments, must=False).killed
        crashing.finish_dump(arguments)
        crashing.finish_load(crashing.fixture.load_arguments(crashing.fixture.last))
        return killed

    every_step(attempt)


def test_every_step_of_a_load(crashing: Crashing) -> None:
    def attempt(fault: Fault) -> bool:
        run_again(crashing.next_dump())
        arguments = crashing.fixture.load_arguments(crashing.fixture.last)
        killed = run_with(fault, arguments, must=False).killed
        crashing.finish_load(arguments)
        return killed

    every_step(attempt)


def test_every_step_of_a_first_load(crashing: Crashing) -> None:
    def attempt(fault: Fault) -> bool:
        replica, arguments = crashing.fresh_replica()
        killed = run_with(fault, arguments, must=False).killed
        run_again(arguments)
        assert replica.shown() == crashing.fixture.source.shown()
        return killed

    every_step(attempt)


def test_every_step_of_a_load_and_then_a_newer_dump(crashing: Crashing) -> None:
    """The dump that was being loaded is forgotten; the next one begins where the target is."""

    def attempt(fault: Fault) -> bool:
        fixture = crashing.fixture
        loaded = fixture.last
        run_again(crashing.next_dump())
        killed = run_with(fault, fixture.load_arguments(fixture.last), must=False).killed
        crashing.source.change()
        assert fixture.dump(since=loaded).code == 0
        crashing.finish_load(fixture.load_arguments(fixture.last))
        return killed

    every_step(attempt)


@pytest.mark.parametrize("seed", range(5))
def test_kill_upon_kill(crashing: Crashing, seed: int) -> None:
    """Several kills of one load, each at any step."""
    chance = random.Random(seed)

    def faults() -> Iterator[Fault]:
        while True:
            yield Fault(chance.choice(["before", "after"]), "any", "", chance.randint(1, 120))

    for _ in range(5):
        run_again(crashing.next_dump())
        arguments = crashing.fixture.load_arguments(crashing.fixture.last)
        for fault in itertools.islice(faults(), 4):
            if not run_with(fault, arguments, must=False).killed:
                break
        crashing.finish_load(arguments)


@pytest.mark.parametrize("seed", range(100, 110))
def test_long_random_histories_of_writers_expiries_and_slots(
    source_metastore: Running, target_metastore: Running, tmp_path: Path, seed: int
) -> None:
    history = History(source_metastore, target_metastore, tmp_path, seed)
    history.begin()
    for _ in range(20):
        history.turn()
    history.every_slot_can_be_loaded()
    history.without_slots_nothing_unneeded_is_kept()
