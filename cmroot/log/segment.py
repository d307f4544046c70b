"""Reading a segment of the captured log: `log/<first>-<last>/`, positions in 20 digits.

Gzip JSON lines (`records-<n>.jsonl.gz`), Parquet file entries (`files-<n>.parquet`) and the marker `_segment.json`. The
content of a record is not interpreted here, except its key `position`. Listing and writing segments is in `captured`.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.errors import UNREADABLE, FormatError, Superseded
from cmroot.names import check_below, check_entries, foreign, is_checksum
from cmroot.store.checksum import checksum_stream
from cmroot.store.place import Place, join, name_of

# ---- parts -----------------------------------------------------------------------------------------------------------
# A directory of parts with a marker written last: the format of log segments and dumps. Works on any store.
#
# A part is a gzip file of lines, or a Parquet file; each is published atomically, with its rows, size and checksum. The
# marker is a JSON file that lists them. Without the marker the directory is ignored, and its owner may remove it.


LINES = "lines"
PARQUET = "parquet"

ROW_GROUP = 64 * 1024
"""Rows of one Parquet row group: what a reader must hold at once, and the unit of work of a Spark task."""

CHUNK = 256 * 1024


class Part(msgspec.Struct, frozen=True):
    """A finished part: name relative to the directory, `lines` or `parquet`, rows, bytes, checksum of its bytes."""

    name: str
    kind: str
    rows: int
    size: int
    xxh3_128: str


class Marker(msgspec.Struct, frozen=True):
    """The content of a marker. `format` and `version` name the kind of directory; `metadata` is its owner's."""

    format: str
    version: int
    parts: list[Part]
    metadata: dict[str, Any]


class _Versioned(msgspec.Struct, frozen=True):
    format: str
    version: int


def conform(table: Any, schema: Any) -> Any:
    """Returns a table with exactly the columns of a schema: missing ones null, others refused. Raises FormatError."""
    if table.schema.equals(schema):
        return table
    unknown = set(table.column_names) - set(schema.names)
    if unknown:
        raise FormatError(f"columns that the schema does not have: {sorted(unknown)}", hint="report this as a bug")
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def encode_marker(marker: Marker) -> bytes:
    return msgspec.json.format(msgspec.json.encode(marker), indent=1) + b"\n"


def read_marker(path: str, format: str, version: int) -> Marker:
    """Returns the marker at a path. Raises FormatError when it is missing, damaged, or of another format or version."""
    try:
        data = Place(path).read_bytes()
    except FileNotFoundError as error:
        raise FormatError(
            f"{path}: missing, so the files next to it are not used", hint="its directory is unfinished: run again"
        ) from error
    try:
        found = msgspec.json.decode(data, type=_Versioned)
        if found.format != format or found.version != version:
            raise FormatError(
                f"{path}: format {found.format} version {found.version}, expected {format} version {version}",
                hint="use the release that wrote it, or a newer one",
            )
        marker = msgspec.json.decode(data, type=Marker)
    except UNREADABLE as error:
        raise damaged(path, f"cannot be read: {error}") from error
    _check_parts(marker.parts, path)
    return marker


def _check_parts(parts: list[Part], path: str) -> None:
    """Checks that each part is below its directory and listed once. Raises FormatError."""
    check_below(path, "the name of a part", (part.name for part in parts))
    seen = set()
    for part in parts:
        if part.name in seen:
            raise foreign(path, "part", part.name, "is listed twice")
        seen.add(part.name)
        if part.kind not in (LINES, PARQUET):
            raise foreign(path, f"the kind of part {part.name}", part.kind, f"is neither {LINES} nor {PARQUET}")
        if part.rows < 0 or part.size < 0:
            raise foreign(path, f"rows and size of part {part.name}", (part.rows, part.size), "are not valid counts")
        if not is_checksum(part.xxh3_128):
            raise foreign(path, f"the checksum of part {part.name}", part.xxh3_128, "is not a checksum")


def damaged(path: str, what: str) -> FormatError:
    return FormatError(f"{path}: {what}", hint="restore it from a copy, or create its directory again")


LINE_BYTES = 256 << 20
"""The longest valid line, in bytes. A record is about as long as its event's message, and Hive accepts no call above
100 MB (hive.metastore.server.max.message.size), from which a JSON message becomes up to twice as long. A gzip file of a
few hundred KB can hold a line that would exhaust the memory."""


class PartsReader:
    """A reader of a finished directory. Raises FormatError if the marker is missing, damaged or of another version."""

    def __init__(
        self, place: str, marker_name: str, *, format: str = "parts", version: int = 1, marker: Marker | None = None
    ) -> None:
        """marker: one that is not written yet."""
        self.place = place
        self.marker = marker or read_marker(join(place, marker_name), format, version)
        self._whole: set[str] = set()  # names of parts whose checksums were verified

    @property
    def parts(self) -> list[Part]:
        return self.marker.parts

    @property
    def metadata(self) -> dict[str, Any]:
        return self.marker.metadata

    def path(self, name: str) -> str:
        return join(self.place, name)

    def lines(self, name: str) -> Iterator[bytes]:
        """Yields the lines of a part, without line ends, in constant memory. Raises FormatError if it is damaged."""
        path = self.path(name)
        rows = next((part.rows for part in self.parts if part.name == name), None)
        with self._open(name) as file, reading(path):
            number = 0
            for line in _gunzip_lines(file, path):
                number += 1
                yield line
            if rows is not None and number != rows:
                raise damaged(path, f"has {number} lines, but {rows} according to the marker")

    def batches(
        self, name: str, columns: Sequence[str] | None = None, positions: Collection[int] | None = None
    ) -> Iterator[Any]:
        """Yields the row groups of a Parquet part as record batches, one at a time. positions: without row groups that
        have no row of these positions. Verifies the part's checksum first, because Parquet would not detect changed
        bytes of a path, a size or a checksum."""
        self._check(name)
        with self._open(name) as file, reading(self.path(name)):
            parquet = pq.ParquetFile(file)
            groups = None if positions is None else _groups_with(parquet.metadata, positions)
            yield from parquet.iter_batches(ROW_GROUP, row_groups=groups, columns=columns)

    def table(self, name: str, columns: Sequence[str] | None = None) -> Any:
        self._check(name)
        with self._open(name) as file, reading(self.path(name)):
            return pq.ParquetFile(file).read(columns=columns)

    def verify(self) -> None:
        """Reads every part and verifies size and checksum. Raises FormatError naming the first damaged one."""
        for part in self.parts:
            self._whole.discard(part.name)
            self._check(part.name)

    def verify_entries(self) -> None:
        """Verifies the Parquet parts only; those that were verified already are not read again."""
        for part in self.parts:
            if part.kind == PARQUET:
                self._check(part.name)

    def _check(self, name: str) -> None:
        part = next((part for part in self.parts if part.name == name), None)
        if part is None or name in self._whole:
            return
        with self._open(part.name) as file:
            checksum, size = checksum_stream(file)
        if (checksum, size) != (part.xxh3_128, part.size):
            raise damaged(
                self.path(part.name),
                f"has {size} bytes with checksum {checksum}, but {part.size} and {part.xxh3_128} in the marker",
            )
        self._whole.add(name)

    def _open(self, name: str) -> BinaryIO:
        try:
            return Place(self.path(name)).open_read()
        except FileNotFoundError as error:
            raise damaged(self.path(name), "is missing, but the marker lists it") from error


def _groups_with(about: Any, positions: Collection[int]) -> list[int]:
    """Returns the row groups of a Parquet file that may have rows of some positions, by their statistics."""
    found = []
    column = about.schema.names.index("position")
    for number in range(about.num_row_groups):
        known = about.row_group(number).column(column).statistics
        if known is None or not known.has_min_max or any(known.min <= each <= known.max for each in positions):
            found.append(number)
    return found


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Raises FormatError naming the file if data read from a part cannot be decoded."""
    try:
        yield
    except (zlib.error, pa.ArrowException, UnicodeDecodeError) as error:
        raise damaged(path, f"is damaged: {str(error).strip()}") from error
    except OSError as error:
        if error.errno is None:  # pyarrow raises OSError for bytes it cannot decode
            raise damaged(path, f"is damaged: {str(error).strip()}") from error
        raise


def _gunzip_lines(file: BinaryIO, path: str) -> Iterator[bytes]:
    gunzip = zlib.decompressobj(16 + zlib.MAX_WBITS)
    begun: list[bytes] = []  # of the line that has not ended yet
    length, number = 0, 1
    while chunk := gunzip.unconsumed_tail or file.read(CHUNK):
        # Bounded: zeros expand a thousandfold.
        head, *lines = gunzip.decompress(chunk, 4 * CHUNK).split(b"\n")
        length += len(head)
        if length > LINE_BYTES:
            raise too_long(path, number)
        begun.append(head)
        if lines:
            yield b"".join(begun)
            yield from lines[:-1]
            begun, length, number = [lines[-1]], len(lines[-1]), number + len(lines)
        if gunzip.eof:
            break
    if not gunzip.eof or gunzip.unused_data or file.read(1) or length:
        raise damaged(path, "is truncated, or has data after its end")


def too_long(path: str, number: int) -> FormatError:
    return FormatError(
        f"{path}: line {number} is longer than {LINE_BYTES >> 20} MiB",
        hint="no metastore record is that long: the file is damaged, or another program wrote it",
    )


# ---- segment ---------------------------------------------------------------------------------------------------------


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
        ("checksum", pa.string()),  # hex; null: unknown
        ("kept", pa.bool_()),
        ("since", pa.int64()),  # of a release: the position of the add that it ends
        ("version", pa.string()),  # by which a versioned store retains the bytes
    ]
)
"""One row per file entry. A release records that an earlier add has ended: the source does not have the bytes any more;
it replays nothing. Repeated strings are dictionaries inside the Parquet file, plain strings for readers."""

DICTIONARY = ("op", "db", "table", "partition", "location")

SEGMENT_NAME = re.compile(r"(\d{20})-(\d{20})")


class _Positioned(msgspec.Struct, frozen=True):
    position: int


class Capture(msgspec.Struct, frozen=True):
    """The part of a segment written by one capture: positions `first` to `last`, both inclusive, and its metadata."""

    first: int
    last: int
    about: dict[str, Any]


@dataclass(frozen=True)
class Segment:
    """A finished segment: the records at positions `first` to `last`, both inclusive. Its marker is read on first use.

    A reader without the lease may be too late: a segment that was merged into another is removed after an hour. Reading
    then raises Superseded, and the log must be listed again."""

    place: str
    first: int
    last: int

    @cached_property
    def _reader(self) -> PartsReader:
        with self._present():
            reader = PartsReader(self.place, MARKER, format=FORMAT, version=VERSION)
        if (reader.metadata.get("first"), reader.metadata.get("last")) != (self.first, self.last):
            raise damaged(join(self.place, MARKER), "has other positions than the name of its directory")
        return reader

    @property
    def marker(self) -> Marker:
        return self._reader.marker

    @property
    def metadata(self) -> dict[str, Any]:
        """Returns the writer's metadata of the segment (event range, time range); opaque here. Of a merged segment: the
        metadata of its last capture."""
        about = self._reader.metadata.get("about", {})
        assert isinstance(about, dict)
        return about

    @cached_property
    def captures(self) -> list[Capture]:
        """Returns the captures that the segment came from, in order, without gap: one, unless it was merged."""
        merged = self._reader.metadata.get("captures")
        if merged is None:
            return [Capture(self.first, self.last, self.metadata)]
        try:
            return msgspec.convert(merged, list[Capture])
        except msgspec.ValidationError as error:
            raise damaged(join(self.place, MARKER), f"cannot be read: {error}") from error

    @property
    def merged_at(self) -> int | None:
        """Returns when it was merged, in seconds since the epoch; None for a segment written by a capture."""
        when = self._reader.metadata.get("merged_at")
        return int(when) if isinstance(when, int | float) else None

    def covers(self, other: Segment) -> bool:
        """Returns True if this segment was merged from the other one, and maybe more: it contains all of the other."""
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
        """Yields the records with after < position <= until, in order, as the bytes that were appended."""
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
        """Returns the paths of the Parquet parts; their schema is FILES, or an older one without columns at the end."""
        return [self._reader.path(part.name) for part in self.parts if part.kind == PARQUET]

    def file_batches(self, columns: list[str] | None = None, positions: Collection[int] | None = None) -> Iterator[Any]:
        """Yields the file entries as record batches, in constant memory; columns missing from older parts are null.
        positions: only row groups that may have entries of these."""
        schema = FILES if columns is None else pa.schema([field for field in FILES if field.name in columns])
        for part in self.parts:
            if part.kind == PARQUET:
                with self._present():
                    for batch in self._reader.batches(part.name, columns, positions):
                        check_entries(batch, self._reader.path(part.name))
                        if batch.schema.equals(schema):
                            yield batch
                        else:
                            yield from conform(pa.Table.from_batches([batch]), schema).to_batches()

    def verify(self) -> None:
        """Reads every part and verifies it. Raises FormatError naming the damaged part."""
        with self._present():
            self._reader.verify()

    def verify_entries(self) -> None:
        """Verifies the file entries only, once. Removals are decided from them; damage would remain undetected."""
        with self._present():
            self._reader.verify_entries()

    @contextlib.contextmanager
    def _present(self) -> Iterator[None]:
        """Distinguishes a part that is missing because its segment was merged (Superseded) from one that is lost."""
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
