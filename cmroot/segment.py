"""A segment of the captured log, read: `log/<first>-<last>/`, positions in 20 digits.

Gzip JSON lines (`records-<n>.jsonl.gz`), Parquet file entries (`files-<n>.parquet`) and the marker `_segment.json`.
What a record says is not looked at here, but for its key `position`. Which segments there are, and how one is written,
is in `log`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa

from cmroot.parts import LINES, PARQUET, Marker, Part, PartsReader, damaged
from cmroot.place import join

MARKER = "_segment.json"
FORMAT = "cmroot-segment"
VERSION = 1

ADD, REMOVE, RELEASE = "add", "remove", "release"

FILES = pa.schema(
    [
        ("position", pa.int64()),
        ("op", pa.string()),  # add | remove | release
        ("db", pa.string()),
        ("table", pa.string()),
        ("partition", pa.string()),  # empty: an unpartitioned table
        ("location", pa.string()),
        ("path", pa.string()),  # relative to the location
        ("size", pa.int64()),  # bytes; null for a remove
        ("mtime_ns", pa.int64()),
        ("identity", pa.string()),
        ("checksum", pa.string()),  # hex; null: not known
        ("kept", pa.bool_()),
        ("since", pa.int64()),  # of a release: the position of the add that it ends
        ("version", pa.string()),  # under which a versioned store keeps the bytes
    ]
)
"""One row per file entry. A release says that the record ended what an earlier add began: the bytes are no longer the
source's; it replays nothing. Strings that repeat are dictionaries inside the Parquet file, plain strings to readers."""

DICTIONARY = ("op", "db", "table", "partition", "location")

SEGMENT_NAME = re.compile(r"(\d{20})-(\d{20})")


class _Positioned(msgspec.Struct, frozen=True):
    position: int


@dataclass(frozen=True)
class Segment:
    """A finished segment: the records at positions `first` to `last`, both inclusive. Its marker is read when used."""

    place: str
    first: int
    last: int

    @cached_property
    def _reader(self) -> PartsReader:
        reader = PartsReader(self.place, MARKER, format=FORMAT, version=VERSION)
        if (reader.metadata.get("first"), reader.metadata.get("last")) != (self.first, self.last):
            raise damaged(join(self.place, MARKER), "names other positions than its directory")
        return reader

    @property
    def marker(self) -> Marker:
        return self._reader.marker

    @property
    def metadata(self) -> dict[str, Any]:
        """What the writer said about the segment (event range, time range); opaque here."""
        about = self._reader.metadata.get("about", {})
        assert isinstance(about, dict)
        return about

    @property
    def parts(self) -> list[Part]:
        return self._reader.parts

    @property
    def record_count(self) -> int:
        return sum(part.rows for part in self.parts if part.kind == LINES)

    @property
    def file_count(self) -> int:
        return sum(part.rows for part in self.parts if part.kind == PARQUET)

    def records(self, after: int = -1, until: int | None = None) -> Iterator[bytes]:
        """The records with after < position <= until, in order, as the bytes that were appended."""
        last = self.last if until is None else until
        whole = after < self.first and last >= self.last
        decoder = msgspec.json.Decoder(_Positioned)
        for part in self.parts:
            if part.kind != LINES:
                continue
            for line in self._reader.lines(part.name):
                if whole:
                    yield line
                    continue
                position = decoder.decode(line).position
                if position > last:
                    return
                if position > after:
                    yield line

    def files_parts(self) -> list[str]:
        """Places of the Parquet parts; their schema is FILES."""
        return [self._reader.path(part.name) for part in self.parts if part.kind == PARQUET]

    def file_batches(self, columns: list[str] | None = None) -> Iterator[Any]:
        """The file entries as record batches, in flat memory."""
        for part in self.parts:
            if part.kind == PARQUET:
                yield from self._reader.batches(part.name, columns)

    def verify(self) -> None:
        """Read every part and compare. Raises FormatError naming the damaged part."""
        self._reader.verify()
