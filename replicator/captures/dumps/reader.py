"""DumpReader: a finished dump, read in flat memory."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from cmroot.log.parts import PARQUET
from cmroot.names import check_entries, foreign
from cmroot.store.resolve import as_written
from replicator.captures.dumps import layout
from replicator.captures.dumps.signing import Keys, check_parts, signed
from replicator.captures.events.lines import decode_line, decode_table
from replicator.captures.events.record import Change, ChangeRecord
from replicator.core.model import Table


class DumpReader:
    """Raises FormatError at once for an unfinished dump or an unknown version, later where a part is damaged."""

    def __init__(self, place: str, keys: Keys | None = None) -> None:
        """`keys`: the dump must be signed with one of them, else Refused."""
        self.place = str(as_written(place))
        self._parts, self.metadata = layout.open_parts(self.place)
        self._signed = signed(self.place, self.metadata.id, layout.METADATA, keys) if keys else None

    def verify(self) -> None:
        """Reads every part and compares its checksum. Raises FormatError naming the first damaged one."""
        self._parts.verify()
        if self._signed is not None:
            check_parts(self.place, (part.name for part in self._parts.parts), self._signed)
        for _ in self.entries():  # each is looked at, before anything is done with any
            pass

    def records(self, after: int = 0) -> Iterator[ChangeRecord]:
        """Records after a position, in order."""
        for part in self._parts.parts:
            if part.name.startswith("_metadata/records-"):
                for line in self._parts.lines(part.name):
                    record = decode_line(line, self._parts.path(part.name))
                    self._check_scope(record.change, part.name)
                    if record.position > after:
                        yield record

    def tables(self) -> Iterator[Table]:
        """Touched tables as they are at the end of the range."""
        if any(part.name == layout.TABLES for part in self._parts.parts):
            for line in self._parts.lines(layout.TABLES):
                table = decode_table(line, self._parts.path(layout.TABLES))
                self._check_database(table.db, layout.TABLES)
                yield table

    def _check_scope(self, change: Change, part: str) -> None:
        """A dump speaks of the databases that it covers, and of no other one of the target."""
        for name in () if change.unread is not None else change.databases:
            self._check_database(name, part)

    def _check_database(self, name: str, part: str) -> None:
        if name not in self.metadata.scope.databases:
            raise foreign(self._parts.path(part), "database", name, "is not one that the dump covers")

    def buckets(self) -> list[tuple[str, int]]:
        """(place of a Parquet part, its rows) for every bucket."""
        return [(self._parts.path(part.name), part.rows) for part in self._parts.parts if part.kind == PARQUET]

    def entries(self) -> Iterator[pa.RecordBatch]:
        for part in self._parts.parts:
            if part.kind == PARQUET:
                for batch in self._parts.batches(part.name):
                    check_entries(batch, self._parts.path(part.name), complete=True)
                    yield batch
