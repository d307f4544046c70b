"""Captures again and again, as one report; what one of them does is `capture`."""

from __future__ import annotations

from typing import Any

from replicator.captures.recording import Captured
from replicator.core.report import Report
from replicator.errors import Error, LeaseHeld


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


def can_pass(error: Exception) -> bool:
    """Whether a following tries again: the metastore is away, or a dump holds the lease."""
    return isinstance(error, LeaseHeld) or (isinstance(error, Error) and error.transient)
