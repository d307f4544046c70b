"""Which job is next: first come, first served, and no asset has more than its share. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A job that is due and that nobody works on. place: in the queue. held: it still has a slot, of a holder whose
    lease has ended."""

    job: int
    place: int
    asset: str
    held: bool = False


def most(slots: int, share: float) -> int:
    """Jobs at a time that one asset may have, also when it is alone."""
    return max(1, math.floor(slots * share + 1e-9))  # 100 * 0.29 is a little less than 29


def pick(candidates: Iterable[Candidate], at_work: Mapping[str, int], slots: int, share: float) -> Candidate | None:
    """The candidate to begin with now. at_work: jobs that have a slot, by asset, with those whose lease has ended.

    Slots whose holder is gone are taken over first: they are used already, so nothing waits longer for it. No job waits
    for ever: only those with an earlier place, of which there are finitely many, and jobs at work go before it."""
    total, limit = sum(at_work.values()), most(slots, share)

    def fits(one: Candidate) -> bool:
        return total - one.held < slots and at_work.get(one.asset, 0) - one.held < limit

    return min(filter(fits, candidates), key=lambda one: (not one.held, one.place), default=None)
