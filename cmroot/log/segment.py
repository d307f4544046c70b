"""A segment of the captured log, read: `log/<first>-<last>/`, positions in 20 digits.

Gzip JSON lines (`records-<n>.jsonl.gz`), Parquet file entries (`files-<n>.parquet`) and the marker `_segment.json`.
What a record says is not looked at here, but for its key `position`. Which segments there are, and how one is written,
is in `log`.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Iterator, Sequence
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
# A directory of parts with a marker written last: what log segments and dumps are made of. Works on any store.
#
# A part is a gzip file of lines, or a Parquet file; each is published whole, with its rows, size and checksum. The
# marker is a JSON file that lists them. Without the marker the directory says nothing, and whoever owns it may remove
# it.


LINES = "lines"
PARQUET = "parquet"

ROW_GROUP = 64 * 1024
"""Rows of one Parquet row group: what a reader must hold at once, and what a Spark task can take."""

CHUNK = 256 * 1024


class Part(msgspec.Struct, frozen=True):
    """A finished part: name relative to the directory, `lines` or `parquet`, rows, bytes, checksum of its bytes."""

    name: str
    kind: str
    rows: int
    size: int
    xxh3_128: str


class Marker(msgspec.Struct, frozen=True):
    """What a marker says. `format` and `version` name the kind of directory; `metadata` is its owner's."""

    format: str
    version: int
    parts: list[Part]
    metadata: dict[str, Any]


class _Versioned(msgspec.Struct, frozen=True):
    format: str
    version: int


def conform(table: Any, schema: Any) -> Any:
    """A table with exactly the columns of a schema: missing ones null, others refused. Raises FormatError."""
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
    """The marker at a path. Raises FormatError when missing, damaged, or of another format or version."""
    try:
        data = Place(path).read_bytes()
    except FileNotFoundError as error:
        raise FormatError(
            f"{path}: missing, so nothing beside it counts", hint="it is unfinished: run again"
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
    """A part lies below its directory, once. Raises FormatError."""
    check_below(path, "the name of a part", (part.name for part in parts))
    seen = set()
    for part in parts:
        if part.name in seen:
            raise foreign(path, "part", part.name, "is named twice")
        seen.add(part.name)
        if part.kind not in (LINES, PARQUET):
            raise foreign(path, f"the kind of part {part.name}", part.kind, f"is neither {LINES} nor {PARQUET}")
        if part.rows < 0 or part.size < 0:
            raise foreign(path, f"rows and size of part {part.name}", (part.rows, part.size), "are no counts")
        if not is_checksum(part.xxh3_128):
            raise foreign(path, f"the checksum of part {part.name}", part.xxh3_128, "is none")


def damaged(path: str, what: str) -> FormatError:
    return FormatError(f"{path}: {what}", hint="restore it from a copy, or make its directory again")


LINE_BYTES = 256 << 20
"""The longest line. A record is about as long as its event's message, and Hive takes no call above 100 MB
(hive.metastore.server.max.message.size), of which a message of JSON makes up to twice as much. A gzip file of a few
hundred KB can hold a line that would fill the memory."""


class PartsReader:
    """Reads a finished directory. Raises FormatError when the marker is missing, damaged or of an unknown version."""

    def __init__(self, place: str, marker_name: str, *, format: str = "parts", version: int = 1) -> None:
        self.place = place
        self.marker = read_marker(join(place, marker_name), format, version)
        self._whole: set[str] = set()  # names of parts that were compared with their checksums

    @property
    def parts(self) -> list[Part]:
        return self.marker.parts

    @property
    def metadata(self) -> dict[str, Any]:
        return self.marker.metadata

    def path(self, name: str) -> str:
        return join(self.place, name)

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of a part, without line ends; in flat memory. FormatError when it is damaged or ends early."""
        path = self.path(name)
        rows = next((part.rows for part in self.parts if part.name == name), None)
        with self._open(name) as file, reading(path):
            number = 0
            for line in _gunzip_lines(file, path):
                number += 1
                yield line
            if rows is not None and number != rows:
                raise damaged(path, f"has {number} lines, the marker says {rows}")

    def batches(self, name: str, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The row groups of a Parquet part as record batches, one at a time. The part is compared with its checksum
        first, as Parquet would not tell that bytes of a path, a size or a checksum are others."""
        self._check(name)
        with self._open(name) as file, reading(self.path(name)):
            yield from pq.ParquetFile(file).iter_batches(ROW_GROUP, columns=columns)

    def table(self, name: str, columns: Sequence[str] | None = None) -> Any:
        self._check(name)
        with self._open(name) as file, reading(self.path(name)):
            return pq.ParquetFile(file).read(columns=columns)

    def verify(self) -> None:
        """Read every part and compare size and checksum. Raises FormatError naming the first damaged one."""
        for part in self.parts:
            self._whole.discard(part.name)
            self._check(part.name)

    def verify_entries(self) -> None:
        """The same for Parquet parts; those that were compared already are not read again."""
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
                f"has {size} bytes with checksum {checksum}, the marker says {part.size} and {part.xxh3_128}",
            )
        self._whole.add(name)

    def _open(self, name: str) -> BinaryIO:
        try:
            return Place(self.path(name)).open_read()
        except FileNotFoundError as error:
            raise damaged(self.path(name), "is missing, and the marker names it") from error


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Raises FormatError naming the file where what is read of a part cannot be understood."""
    try:
        yield
    except (zlib.error, pa.ArrowException, UnicodeDecodeError) as error:
        raise damaged(path, f"is damaged: {str(error).strip()}") from error
    except OSError as error:
        if error.errno is None:  # pyarrow says OSError for bytes it cannot decode
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
        raise damaged(path, "does not end where its content does")


def too_long(path: str, number: int) -> FormatError:
    return FormatError(
        f"{path}: line {number} is longer than {LINE_BYTES >> 20} MiB",
        hint="no record of a metastore is: it was damaged or made by somebody else",
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
