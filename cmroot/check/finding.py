"""The results of checking a root: findings, the kinds of them that are damage, and the bounded list of them."""

from __future__ import annotations

from collections import Counter

import msgspec

FINDINGS = 1000
"""The maximum number of findings listed individually; the others are counted."""

DAMAGE = frozenset({"damaged", "missing", "misplaced", "unreadable", "segment", "log", "pin", "version"})
"""The kinds that require action. The others are `leftover`, `right` and `stray`."""

Content = tuple[str, int]


class RootFinding(msgspec.Struct, frozen=True):
    """One problem: its object, what is wrong with it, and how to repair it. `needed_by`: who requires the bytes
    (`live`: the source has them now)."""

    kind: str
    what: str
    found: str
    repair: str
    needed_by: str = ""


class RootFindings:
    """The findings so far: the number of all, the first ones, and the damaged entries among them by the content that
    their name indicates, so that details can be added later."""

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
        """Adds findings of which only the number is known."""
        if count:
            self._counts[kind] += count

    @property
    def counts(self) -> dict[str, int]:
        return dict(sorted(self._counts.items()))

    def reported(self) -> list[RootFinding]:
        """Returns the most severe first, up to the limit."""
        every = [*self._first, *self.damaged.values()]
        every.sort(key=lambda finding: (finding.kind not in DAMAGE, finding.kind, finding.what))
        return every[: self._limit]
