"""What a check of a root tells: findings, which kinds of them are damage, and the bounded list of them."""

from __future__ import annotations

from collections import Counter

import msgspec

FINDINGS = 1000
"""Findings listed one by one; the others are counted."""

DAMAGE = frozenset({"damaged", "missing", "misplaced", "unreadable", "segment", "log", "pin", "version"})
"""The kinds that need somebody. The others are `leftover`, `right` and `stray`."""

Content = tuple[str, int]


class RootFinding(msgspec.Struct, frozen=True):
    """One thing that is not as it should be: what, what is wrong with it, and what a repair would do. `needed_by`: who
    needs the bytes (`live`: the source has them now)."""

    kind: str
    what: str
    found: str
    repair: str
    needed_by: str = ""


class RootFindings:
    """The findings so far: the number of all, the first ones, and the damaged entries among them by the content that
    their name promises, so that more can be said of them later."""

    def __init__(self, limit: int) -> None:
        self.damaged: dict[Content, RootFinding] = {}
        self._limit = limit
        self._counts: Counter[str] = Counter()
        self._first: list[RootFinding] = []

    def add(self, finding: RootFinding) -> None:
        self._counts[finding.kind] += 1
        if len(self._first) < self._limit:
            self._first.append(finding)

    def add_damaged(self, content: Content, finding: RootFinding) -> None:
        self._counts[finding.kind] += 1
        if len(self.damaged) < self._limit:
            self.damaged[content] = finding

    def add_untold(self, kind: str, count: int) -> None:
        """Findings of which only the number is known."""
        if count:
            self._counts[kind] += count

    @property
    def counts(self) -> dict[str, int]:
        return dict(sorted(self._counts.items()))

    def reported(self) -> list[RootFinding]:
        """The gravest first, at most as many as the limit."""
        every = [*self._first, *self.damaged.values()]
        every.sort(key=lambda finding: (finding.kind not in DAMAGE, finding.kind, finding.what))
        return every[: self._limit]
