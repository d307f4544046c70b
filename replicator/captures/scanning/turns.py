"""Time-limited scans: a capture with a scan time limit scans only some tables, and the next one continues after them. A
capture without changes therefore takes the same time for many tables as for few.

The progress is stored in the manifest with the capture's position. If it is lost, the current round starts again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from replicator.captures.manifest import Manifest
from replicator.core.grouping import batched
from replicator.core.text import count_text, time_text
from replicator.metastore.concurrency import TABLE_BATCH

_STATE = "scans"


@dataclass(frozen=True)
class ScannedTables:
    """The progress of a scan. tables: number scanned, `of` the total. since: every table was scanned after this second,
    so that earlier changes without an event were found; None: not yet."""

    tables: int
    of: int
    since: int | None

    def __str__(self) -> str:
        since = time_text(self.since)
        until = f"; changes without an event from before {since} were found" if since else ""
        return f"{self.tables:,} of {count_text(self.of, 'table')}{until}"


class Turns:
    """The share of one capture in a round of scans. `now`: its start, in seconds."""

    def __init__(self, manifest: Manifest, now: int) -> None:
        self._manifest, self._now = manifest, now
        state = json.loads(manifest.recall(_STATE) or "{}")
        self._after: int = state.get("after", 0)  # the id of a table, which a rename does not change
        self._began: int = state.get("began", now)  # start of this round
        self._since: int | None = state.get("since")  # start of the last complete round
        self._looked, self._all = 0, 0

    def batches(self) -> Iterator[dict[str, list[str]]]:
        """Yields all tables by database, in batches, once, starting after the last table scanned. The caller must scan
        every batch that it consumes."""
        tables, start = self._manifest.all_tables(), self._after
        self._all = len(tables)
        yield from self._turn([each for each in tables if each[0] > start])
        self._since, self._began = self._began, self._now  # a round is complete, and the next one begins
        yield from self._turn([each for each in tables if each[0] <= start])

    def _turn(self, tables: Sequence[tuple[int, str, str]]) -> Iterator[dict[str, list[str]]]:
        for some in batched(tables, TABLE_BATCH):
            names: dict[str, list[str]] = {}
            for _, db, name in some:
                names.setdefault(db, []).append(name)
            self._after, self._looked = some[-1][0], self._looked + len(some)
            yield names

    def end(self) -> ScannedTables:
        """Stores where the next capture continues."""
        if self._looked == self._all:
            self.all_seen()
        self._remember()
        return ScannedTables(self._looked, self._all, self._since)

    def all_seen(self) -> None:
        """Records that this capture has scanned all tables."""
        self._after, self._began, self._since = 0, self._now, self._now
        self._remember()

    def _remember(self) -> None:
        state = {"after": self._after, "began": self._began, "since": self._since}
        self._manifest.remember(_STATE, json.dumps(state))
