"""The captured log: which segments there are, and how the next is written; one after the other, immutable.

A segment is `log/<first>-<last>/`; what is in it, and reading it, is in `segment`. It is written in
`log/<first>-writing/` and renamed when done.
"""

from __future__ import annotations

import os
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import pyarrow.parquet as pq

from cmroot.errors import FormatError
from cmroot.parts import LinesWriter, ParquetWriter, Part, PartsWriter
from cmroot.place import is_local, join, local_path, naming, store_for, sync_directory
from cmroot.segment import ADD, DICTIONARY, FILES, FORMAT, MARKER, RELEASE, REMOVE, SEGMENT_NAME, VERSION, Segment

__all__ = [
    "ADD", "DICTIONARY", "FILES", "FILES_PART", "FORMAT", "MARKER", "RECORDS_PART", "RELEASE", "REMOVE", "VERSION",
    "Segment", "SegmentWriter", "segments", "sweep_log",
]  # fmt: skip

RECORDS_PART = 256 * 1024 * 1024
FILES_PART = 4 * 1024 * 1024
"""A new part is begun after this many bytes of lines before compression, or this many rows of file entries."""


def segments(root: str) -> list[Segment]:
    """The finished segments in order, each beginning where the one before ended; else FormatError."""
    log = join(root, "log")
    store = store_for(root)
    found = []
    for name in store.list(log):
        match = SEGMENT_NAME.fullmatch(name)
        if match and store.exists(join(log, name, MARKER)):  # without it: unfinished, and swept by the next writer
            found.append(Segment(join(log, name), int(match[1]), int(match[2])))
    found.sort(key=lambda segment: segment.first)
    for before, after in pairwise(found):
        if after.first != before.last + 1:
            raise FormatError(
                f"{log}: positions {before.last + 1} to {after.first - 1} are missing"
                if after.first > before.last
                else f"{after.place}: overlaps {before.place}",
                hint="restore the segment from a copy of the root; until then consumers need a new bootstrap",
            )
    return found


def sweep_log(root: str) -> list[str]:
    """Remove unfinished segments, which no reader has ever seen; under the lease. Returns their names."""
    log = join(root, "log")
    store = store_for(root)
    swept = []
    for name in store.list(log):
        if not (SEGMENT_NAME.fullmatch(name) and store.exists(join(log, name, MARKER))):
            store.remove_tree(join(log, name))
            swept.append(name)
    return swept


class SegmentWriter:
    """Writes the next segment, under the lease. Nothing of it is visible before `finish` returns; memory stays flat.

    Records are appended in order of position. As a `with` block: an error aborts.
    """

    def __init__(self, root: str, first_position: int) -> None:
        before = segments(root)
        if before and before[-1].last + 1 != first_position:
            raise FormatError(
                f"{root}: the log ends at position {before[-1].last}, a segment cannot begin at {first_position}",
                hint="another writer has been here: read the log again",
            )
        self._root = root
        self._first = first_position
        self._place = join(root, "log", f"{first_position:020d}-writing")
        store_for(root).remove_tree(self._place)
        store_for(root).mkdirs(self._place)
        self._writer = PartsWriter(self._place)
        self._records: LinesWriter | None = None
        self._records_bytes = 0
        self._records_parts = 0
        self._files: ParquetWriter | None = None
        self._files_parts = 0
        self._done = False

    def append_record(self, line: bytes) -> None:
        """One JSON record with a key `position`, no line end in it."""
        if self._records is None:
            self._records = self._writer.lines(f"records-{self._records_parts:05d}.jsonl.gz")
            self._records_parts += 1
        self._records.write(line)
        self._records_bytes += len(line)
        if self._records_bytes >= RECORDS_PART:
            self._records.close()
            self._records, self._records_bytes = None, 0

    def append_files(self, table: Any) -> None:
        """File entries: an Arrow table with columns of FILES; those left out are null."""
        if self._files is None:
            self._files = self._writer.parquet(self._next_files(), FILES, DICTIONARY)
        self._files.write(table)
        if self._files.rows >= FILES_PART:
            self._files.close()
            self._files = None

    def adopt_files(self, path: str) -> Part:
        """Take over a Parquet file of schema FILES that an executor wrote; it is moved."""
        with store_for(path).open_read(path) as file:
            schema = pq.read_schema(file)
        if not schema.equals(FILES):
            raise FormatError(f"{path}: its columns are not those of file entries", hint="report this as a bug")
        return self._writer.adopt(path, self._next_files())

    def _next_files(self) -> str:
        self._files_parts += 1
        return f"files-{self._files_parts - 1:05d}.parquet"

    def finish(self, last_position: int, **metadata: Any) -> Segment:
        """Publish: parts durable, kept bytes durable, marker, then the name that readers look for."""
        if last_position < self._first:
            raise FormatError(f"{self._place}: ends at {last_position}, before it begins", hint="report this as a bug")
        for part in (self._records, self._files):
            if part is not None:
                part.close()
        if is_local(self._root):
            store_for(self._root).sync(self._root)  # links in files/ that these records name
        self._writer.finish(
            MARKER,
            {"first": self._first, "last": last_position, "about": metadata},
            format=FORMAT,
            version=VERSION,
        )
        final = join(self._root, "log", f"{self._first:020d}-{last_position:020d}")
        self._publish(final)
        self._done = True
        return Segment(final, self._first, last_position)

    def _publish(self, final: str) -> None:
        """Locally one rename. On object stores part by part, the marker last, as nothing counts without it."""
        store = store_for(self._root)
        if is_local(self._root):
            with naming(final):
                os.rename(local_path(self._place), local_path(final))
                sync_directory(os.path.dirname(local_path(final)))
            return
        store.remove_tree(final)  # part of an attempt that a crash ended here
        for part in self._writer.parts:
            store.move(join(self._place, part.name), join(final, part.name))
        store.move(join(self._place, MARKER), join(final, MARKER))
        store.remove_tree(self._place)

    def abort(self) -> None:
        """Leave nothing; safe to run twice, and after `finish` does nothing."""
        if self._done:
            return
        for part in (self._records, self._files):
            if part is not None:
                part.abort()
        store_for(self._root).remove_tree(self._place)
        self._done = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
