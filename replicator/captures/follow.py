"""Following: captures again and again, with patience for what passes; what one of them does is `capture`."""

from __future__ import annotations

import random
import time as clocks
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import tenacity

from replicator.captures.recording import Captured
from replicator.core.report import Report
from replicator.errors import Error, LeaseHeld

LONGEST_WAIT = timedelta(minutes=1)  # between tries while the metastore is away


class Followed(Report):
    """All captures of a following: counts are added, places and what is missing are the newest one's."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}

    @property
    def rounds(self) -> int:
        return int(self._fields.get("rounds", 0))

    def add(self, captured: Captured) -> None:
        before, total = dict(self._fields), self._fields
        total.update(captured.to_dict())
        total["rounds"] = self.rounds + 1
        for name in ("events", "records", "observed", "files", "bytes", "seconds"):
            total[name] = round(total[name] + before.get(name, 0), 3)
        for name in ("unknown", "warnings"):
            total[name] = [*before.get(name, []), *(each for each in total[name] if each not in before.get(name, []))]
        total["keeper"] = captured.keeper or before.get("keeper", "")
        total["first_position"] = before.get("first_position", captured.first_position)

    def to_dict(self) -> dict[str, Any]:
        return dict(self._fields)


def follow(
    once: Callable[[], Captured],
    interval: timedelta,
    *,
    reported: Callable[[Captured], None],
    failed: Callable[[BaseException, float], None],
) -> NoReturn:
    """Captures until an exception ends it: that of a signal, or an error that trying again does not help. told: is
    given each capture; failed: each error that can pass, and the seconds to the next try."""
    while True:
        reported(_patiently(once, failed))
        clocks.sleep(interval.total_seconds() * random.uniform(0.9, 1.1))


def _patiently(once: Callable[[], Captured], failed: Callable[[BaseException, float], None]) -> Captured:
    """Tries again, ever less often, while the metastore is away or a dump holds the lease."""

    def report(state: tenacity.RetryCallState) -> None:
        error = state.outcome and state.outcome.exception()
        assert error and state.next_action
        failed(error, state.next_action.sleep)

    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception(_can_pass),
        before_sleep=report,
        reraise=True,
        wait=tenacity.wait_exponential_jitter(initial=1, max=LONGEST_WAIT.total_seconds()),
    )
    return attempts(once)


def _can_pass(error: BaseException) -> bool:
    return isinstance(error, LeaseHeld) or (isinstance(error, Error) and error.transient)
