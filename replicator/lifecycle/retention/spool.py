"""A plan on disk: items as lines of JSON in a temporary file, written once and read as often as needed. Acts on its own
file only. A plan of a million items takes no memory."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import TemporaryFile

import msgspec

from replicator.core.batches import batched
from replicator.lifecycle.retention.plan import PlannedItem


class Spool:
    """Items in the order in which they were added. Gone with the process."""

    def __init__(self) -> None:
        self._file = TemporaryFile()  # noqa: SIM115  open as long as the plan is needed
        self.count = 0

    def add(self, item: PlannedItem) -> None:
        self._file.write(msgspec.json.encode(item) + b"\n")
        self.count += 1

    def __iter__(self) -> Iterator[PlannedItem]:
        """From the first to the last; one reader at a time."""
        self._file.seek(0)
        for line in self._file:
            yield msgspec.json.decode(line, type=PlannedItem)
        self._file.seek(0, 2)

    def batches(self, size: int) -> Iterator[list[PlannedItem]]:
        return batched(self, size)

    def close(self) -> None:
        self._file.close()
