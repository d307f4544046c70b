"""The width of reading, on models of servers: the rate that so many calls at once have."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from replicator.metastore.traffic import MOST, Width


def _read(width: Width, rate: Callable[[int], float], seconds: float, noise: float = 0.1, at: float = 0.0) -> list[int]:
    """Reads for so long; the widths in turn. rate: answers a second of so many calls at once."""
    dice, widths, end = random.Random(1), [], at + seconds
    width.begin(at)
    while at < end:
        at += dice.uniform(1 - noise, 1 + noise) / rate(width.now)
        width.answered(at, 1.0)
        widths.append(width.now)
    return widths


def _across_a_network(width: int) -> float:
    return 50.0 * min(width, 16)


def _embedded(width: int) -> float:
    return 100.0 * min(width, 2) / (1 + 0.02 * width)


def _worse_with_each(width: int) -> float:
    return 100.0 / width


@pytest.mark.parametrize(
    ("rate", "least", "most"), [(_across_a_network, 13, MOST), (_embedded, 2, 3), (_worse_with_each, 1, 2)]
)
def test_the_width_is_what_brings_something(rate: Callable[[int], float], least: int, most: int) -> None:
    width = Width()
    _read(width, rate, 10.0)
    widths = _read(width, rate, 60.0, at=10.0)
    share = sum(least <= each <= most for each in widths) / len(widths)
    assert share > 0.8


def test_a_server_that_becomes_slower_is_asked_less() -> None:
    width = Width()
    _read(width, _across_a_network, 20.0)
    assert width.now > 8
    later = _read(width, lambda now: 200.0 / now, 60.0, at=20.0)
    assert later[-1] <= 3


def test_errors_halve_and_the_walk_recovers() -> None:
    width = Width()
    _read(width, _across_a_network, 20.0)
    width.failed(20.0)
    assert width.now <= MOST // 2
    assert _read(width, _across_a_network, 60.0, at=20.0)[-1] >= 13


def test_time_between_walks_is_no_slowness() -> None:
    width = Width()
    _read(width, _across_a_network, 20.0)
    before = width.now
    assert _read(width, _across_a_network, 1.0, at=5000.0)[-1] >= before - 1
