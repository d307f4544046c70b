"""Scans in turns: a capture that may look for changes without an event for a short time only looks at some tables, and
the next one continues after them. So a capture without changes takes as long for very many tables as for few.

Where the scans are is remembered in the manifest, with the capture that got there. Losing it costs a round.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from replicator.captures.manifest import Manifest
from replicator.core.batches import batched
from replicator.core.text.quantity import count_text, time_text
from replicator.metastore.parallel import TABLE_BATCH

_STATE = "scans"


@dataclass(frozen=True)
class ScannedTables:
    """How far a scan came. tables: looked at, `of` how many. since: every table was looked at after this second, so
    that changes without an event from before it were found; None: not yet."""

    tables: int
    of: int
    since: int | None

    def __str__(self) -> str:
        since = time_text(self.since)
        until = f"; changes without an event from before {since} were found" if since else ""
        return f"{self.tables:,} of {count_text(self.of, 'table')}{until}"


class Turns:
    """The turn of one capture, which begins at the second `now`."""

    def __init__(self, manifest: Manifest, now: int) -> None:
        self._manifest, self._now = manifest, now
        state = json.loads(manifest.recall(_STATE) or "{}")
        self._after: int = state.get("after", 0)  # a table's id, which a rename leaves as it is
        self._began: int = state.get("began", now)  # of this round
        self._since: int | None = state.get("since")  # the begin of the last complete round
        self._looked, self._all = 0, 0

    def batches(self) -> Iterator[dict[str, list[str]]]:
        """All tables by database, some at a time, once around, those first that follow the last one that was looked at.
        What is drawn is to be looked at."""
        tables, start = self._manifest.all_tables(), self._after
        self._all = len(tables)
        yield from self._turn([each for each in tables if each[0] > start])
        self._since, self._began = self._began, self._now  # a round is complete, and one begins
        yield from self._turn([each for each in tables if each[0] <= start])

    def _turn(self, tables: Sequence[tuple[int, str, str]]) -> Iterator[dict[str, list[str]]]:
        for some in batched(tables, TABLE_BATCH):
            names: dict[str, list[str]] = {}
            for _, db, name in some:
                names.setdefault(db, []).append(name)
            self._after, self._looked = some[-1][0], self._looked + len(some)
            yield names

    def end(self) -> ScannedTables:
        """Remembers where the next turn begins."""
        if self._looked == self._all:
            self.all_seen()
        self._remember()
        return ScannedTables(self._looked, self._all, self._since)

    def all_seen(self) -> None:
        """This capture has looked at all tables."""
        self._after, self._began, self._since = 0, self._now, self._now
        self._remember()

    def _remember(self) -> None:
        state = {"after": self._after, "began": self._began, "since": self._since}
        self._manifest.remember(_STATE, json.dumps(state))
