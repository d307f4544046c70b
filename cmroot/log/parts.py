"""A directory of parts with a marker written last: what log segments and dumps are made of. Works on any store.

A part is a gzip file of lines, or a Parquet file; each is published whole, with its rows, size and checksum. The marker
is a JSON file that lists them. Without the marker the directory says nothing, and whoever owns it may remove it.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.errors import UNREADABLE, FormatError
from cmroot.names import check_below, foreign, is_checksum
from cmroot.store.checksum import checksum_stream
from cmroot.store.place import Place, join

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
