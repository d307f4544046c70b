"""A segment of the captured log, read: `log/<first>-<last>/`, positions in 20 digits.

Gzip JSON lines (`records-<n>.jsonl.gz`), Parquet file entries (`files-<n>.parquet`) and the marker `_segment.json`.
What a record says is not looked at here, but for its key `position`. Which segments there are, and how one is written,
is in `log`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa

from cmroot.errors import FormatError, Superseded
from cmroot.log.parts import LINES, PARQUET, Marker, Part, PartsReader, conform, damaged
from cmroot.names import check_entries
from cmroot.store.place import Place, join, name_of

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


class Capture(msgspec.Struct, frozen=True):
    """What one capture wrote of a segment: positions `first` to `last`, both inclusive, and what it said of them."""

    first: int
    last: int
    about: dict[str, Any]


@dataclass(frozen=True)
class Segment:
    """A finished segment: the records at positions `first` to `last`, both inclusive. Its marker is read when used.

    A reader that takes no lease may come too late: what was merged into another segment is removed after an hour. Then
    reading raises Superseded, and listing the log again helps."""

    place: str
    first: int
    last: int

    @cached_property
    def _reader(self) -> PartsReader:
        with self._present():
            reader = PartsReader(self.place, MARKER, format=FORMAT, version=VERSION)
        if (reader.metadata.get("first"), reader.metadata.get("last")) != (self.first, self.last):
            raise damaged(join(self.place, MARKER), "names other positions than its directory")
        return reader

    @property
    def marker(self) -> Marker:
        return self._reader.marker

    @property
    def metadata(self) -> dict[str, Any]:
        """What the writer said about the segment (event range, time range); opaque here. Of a merged one: what the last
        of its captures said."""
        about = self._reader.metadata.get("about", {})
        assert isinstance(about, dict)
        return about

    @cached_property
    def captures(self) -> list[Capture]:
        """The captures that the segment came from, in order, without gap: one, unless it was merged."""
        merged = self._reader.metadata.get("captures")
        if merged is None:
            return [Capture(self.first, self.last, self.metadata)]
        try:
            return msgspec.convert(merged, list[Capture])
        except msgspec.ValidationError as error:
            raise damaged(join(self.place, MARKER), f"cannot be read: {error}") from error

    @property
    def merged_at(self) -> int | None:
        """When it was merged out of others, in seconds since the epoch; None for one that a capture wrote."""
        when = self._reader.metadata.get("merged_at")
        return int(when) if isinstance(when, int | float) else None

    def covers(self, other: Segment) -> bool:
        """Whether this one was merged out of the other, and maybe more: it says all that the other says."""
        if self == other or not (self.first <= other.first and other.last <= self.last):
            return False
        firsts, lasts = self._bounds
        return other.first in firsts and other.last in lasts

    @cached_property
    def _bounds(self) -> tuple[frozenset[int], frozenset[int]]:
        return frozenset(each.first for each in self.captures), frozenset(each.last for each in self.captures)

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
            with self._present():
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
        """Places of the Parquet parts; their schema is FILES, or an older one that lacks columns at its end."""
        return [self._reader.path(part.name) for part in self.parts if part.kind == PARQUET]

    def file_batches(self, columns: list[str] | None = None) -> Iterator[Any]:
        """The file entries as record batches, in flat memory; columns that an older part lacks are null."""
        schema = FILES if columns is None else pa.schema([field for field in FILES if field.name in columns])
        for part in self.parts:
            if part.kind == PARQUET:
                with self._present():
                    for batch in self._reader.batches(part.name, columns):
                        check_entries(batch, self._reader.path(part.name))
                        if batch.schema.equals(schema):
                            yield batch
                        else:
                            yield from conform(pa.Table.from_batches([batch]), schema).to_batches()

    def verify(self) -> None:
        """Read every part and compare. Raises FormatError naming the damaged part."""
        with self._present():
            self._reader.verify()

    def verify_entries(self) -> None:
        """The same for the file entries alone, once. What may go is decided from them, and nobody else would notice."""
        with self._present():
            self._reader.verify_entries()

    @contextlib.contextmanager
    def _present(self) -> Iterator[None]:
        """Tells a part that is missing because its segment was merged from one that is lost."""
        try:
            yield
        except (FormatError, FileNotFoundError) as error:
            missing = isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError)
            if missing and self._retired():
                raise Superseded(
                    f"{self.place}: was merged into another segment while it was read",
                    hint="run the same command again: it reads the merged one",
                ) from error
            raise

    def _retired(self) -> bool:
        log = Place(self.place).parent
        for name in log.list():
            match = SEGMENT_NAME.fullmatch(name)
            wider = match and int(match[1]) <= self.first and self.last <= int(match[2])
            if wider and name != name_of(self.place) and (log / name / MARKER).exists():
                return True
        return False
