"""Intercepted files: moved into `$cmroot` before the event of their drop, recorded by the capture that reads it.

A table that is made, filled and dropped between two captures is recorded with its bytes, if who dropped it went
through the gateway. What was taken is known by the id of the event (cmroot.log.intercepted).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from cmroot.log.captured import ADD
from cmroot.log.intercepted import Intercepted, read_intercepted, remove_intercepted
from replicator.captures.inventory import KnownFile


class Intercepts:
    """What lies ready for the events of one capture."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._found: list[Intercepted] = []

    def look(self, until: int) -> None:
        """Finds what was taken for events up to one; after these were read, so that nothing is missed."""
        self._found = read_intercepted(self._root, until)

    def of(self, event: int, db: str, table: str) -> Iterator[tuple[str, pa.Table]]:
        """(partition, file entries) of what was taken of a table before an event."""
        for taken in self._found:
            if taken.event == event:
                rows = taken.rows()
                rows = rows.set_column(1, rows.schema.field("op"), pa.array([ADD] * rows.num_rows, pa.string()))
                rows = rows.filter(pc.and_(pc.equal(rows["db"], db), pc.equal(rows["table"], table)))
                for partition in pc.unique(rows["partition"]).to_pylist():
                    yield partition, rows.filter(pc.equal(rows["partition"], partition))

    def finish(self) -> None:
        """After the segment is published: what its events brought is recorded, or was nobody's business here."""
        for taken in self._found:
            remove_intercepted(taken)


def not_known(rows: pa.Table, known: Mapping[str, KnownFile]) -> pa.Table:
    """The entries whose bytes are not recorded for their path already."""
    fresh = [
        path not in known or known[path].checksum != checksum
        for path, checksum in zip(rows["path"].to_pylist(), rows["checksum"].to_pylist(), strict=True)
    ]
    return rows.filter(pa.array(fresh, pa.bool_()))
