"""DumpReader: a finished dump, read in flat memory."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from cmroot.parts import PARQUET
from cmroot.place import normal
from replicator.dump import layout
from replicator.events.record import ChangeRecord, decode_line
from replicator.model import Table


class DumpReader:
    """Raises FormatError at once for an unfinished dump or an unknown version, later where a part is damaged."""

    def __init__(self, place: str) -> None:
        self.place = normal(place)
        self._parts, self.metadata = layout.open_parts(self.place)

    def verify(self) -> None:
        """Reads every part and compares its checksum. Raises FormatError naming the first damaged one."""
        self._parts.verify()

    def records(self, after: int = 0) -> Iterator[ChangeRecord]:
        """Records after a position, in order."""
        for part in self._parts.parts:
            if part.name.startswith("_metadata/records-"):
                for line in self._parts.lines(part.name):
                    record = decode_line(line)
                    if record.position > after:
                        yield record

    def tables(self) -> Iterator[Table]:
        """Touched tables as they are at the end of the range."""
        if any(part.name == layout.TABLES for part in self._parts.parts):
            decoder = msgspec.json.Decoder(Table)
            for line in self._parts.lines(layout.TABLES):
                yield decoder.decode(line)

    def buckets(self) -> list[tuple[str, int]]:
        """(place of a Parquet part, its rows) for every bucket."""
        return [(self._parts.path(part.name), part.rows) for part in self._parts.parts if part.kind == PARQUET]

    def entries(self) -> Iterator[pa.RecordBatch]:
        for part in self._parts.parts:
            if part.kind == PARQUET:
                yield from self._parts.batches(part.name)
