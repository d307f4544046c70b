"""A directory of parts with a marker written last: what log segments and dumps are made of. Works on any store.

A part is a gzip file of lines, or a Parquet file; each is published whole, with its rows, size and checksum. The marker
is a JSON file that lists them. Without the marker the directory says nothing, and whoever owns it may remove it.
"""

from __future__ import annotations

import contextlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from cmroot.errors import UNREADABLE, FormatError
from cmroot.names import check_below, foreign, is_checksum
from cmroot.store.checksum import checksum_stream
from cmroot.store.place import is_local, join, same_device, same_store, store_for

LINES = "lines"
PARQUET = "parquet"

ROW_GROUP = 64 * 1024
"""Rows of one Parquet row group: what a reader must hold at once, and what a Spark task can take."""

_CHUNK = 256 * 1024

LINE_BYTES = 256 << 20
"""The longest line. A record is about as long as its event's message, and Hive takes no call above 100 MB
(hive.metastore.server.max.message.size), of which a message of JSON makes up to twice as much. A gzip file of a few
hundred KB can hold a line that would fill the memory."""


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


class _HashingSink:
    """A file open for writing that hashes and counts what passes; what pyarrow needs of a file object."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = xxhash.xxh3_128()
        self.size = 0
        self.closed = False
        self.discarding = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.discarding:  # pyarrow writes a footer even when its writer is thrown away
            return len(view)
        self._digest.update(view)
        self._file.write(view)
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def checksum(self) -> str:
        return self._digest.hexdigest()


class _PartWriter(ABC):
    """A part being written. The end of a `with` block publishes it and sets `part`; an error leaves nothing."""

    kind = ""

    def __init__(self, owner: PartsWriter, name: str) -> None:
        self._owner = owner
        self._name = name
        self._publishing = contextlib.ExitStack()
        self._sink = _HashingSink(
            self._publishing.enter_context(store_for(owner.place).open_write(join(owner.place, name)))
        )
        self.rows = 0
        self.part: Part | None = None

    @property
    def size(self) -> int:
        """Bytes that have gone to the file so far; what is still in buffers not counted."""
        return self._sink.size

    @abstractmethod
    def _complete(self) -> None:
        """Write what is still in buffers, and the format's own end."""

    def close(self) -> Part:
        """Publish; safe to run twice."""
        if self.part is None:
            try:
                self._complete()
            except BaseException as error:
                self._sink.discarding = True
                self._publishing.__exit__(type(error), error, error.__traceback__)
                raise
            self._publishing.close()
            self.part = Part(self._name, self.kind, self.rows, self._sink.size, self._sink.checksum())
            self._owner.parts.append(self.part)
        return self.part

    def abort(self) -> None:
        """Leave nothing; safe to run twice, and after close does nothing."""
        if self.part is None:
            self._sink.discarding = True
            with contextlib.suppress(_Aborted):
                self._publishing.__exit__(_Aborted, _Aborted(), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class _Aborted(Exception):
    pass


class LinesWriter(_PartWriter):
    """Lines of bytes without line ends, gzip level 1 (higher levels cost more time than they save)."""

    kind = LINES

    def __init__(self, owner: PartsWriter, name: str) -> None:
        super().__init__(owner, name)
        self._gzip = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)  # header without time: same bytes each run
        self._pending = bytearray()

    def write(self, line: bytes) -> None:
        if b"\n" in line:
            raise FormatError(f"{self._name}: a line with a line end in it: {line[:80]!r}", hint="report this as a bug")
        if len(line) > LINE_BYTES:
            raise _too_long(self._name, self.rows + 1)
        self._pending += line
        self._pending += b"\n"
        self.rows += 1
        if len(self._pending) >= _CHUNK:
            self._drain()

    def _drain(self) -> None:
        data = self._gzip.compress(self._pending)
        self._pending.clear()
        if data:
            self._sink.write(data)

    def _complete(self) -> None:
        self._drain()
        self._sink.write(self._gzip.flush())


class ParquetWriter(_PartWriter):
    """Tables of one schema, zstd, in row groups of `row_group` rows whatever the size of the tables given."""

    kind = PARQUET

    def __init__(
        self, owner: PartsWriter, name: str, schema: Any, dictionary: Sequence[str] | bool = True,
        row_group: int = ROW_GROUP,
    ) -> None:  # fmt: skip
        super().__init__(owner, name)
        self._schema = schema
        self._row_group = row_group
        self._parquet = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"), schema, compression="zstd", use_dictionary=dictionary
        )
        self._waiting: list[Any] = []
        self._waiting_rows = 0

    def write(self, table: Any) -> None:
        """Append a table with the columns of the schema; columns it lacks are null, their order does not matter."""
        self._waiting.append(conform(table, self._schema))
        self._waiting_rows += table.num_rows
        self.rows += table.num_rows
        if self._waiting_rows >= self._row_group:
            whole = pa.concat_tables(self._waiting)
            full = whole.num_rows // self._row_group * self._row_group
            self._parquet.write_table(whole.slice(0, full), row_group_size=self._row_group)
            rest = whole.slice(full)
            self._waiting, self._waiting_rows = ([rest] if rest.num_rows else []), rest.num_rows

    def _complete(self) -> None:
        if self._waiting:
            self._parquet.write_table(pa.concat_tables(self._waiting), row_group_size=self._row_group)
        self._parquet.close()


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


class PartsWriter:
    """Writes parts below a place, then the marker. Parts may be written side by side; names may have directories."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.parts: list[Part] = []

    def lines(self, name: str) -> LinesWriter:
        return LinesWriter(self, name)

    def parquet(
        self, name: str, schema: Any, dictionary: Sequence[str] | bool = True, row_group: int = ROW_GROUP
    ) -> ParquetWriter:
        """`row_group`: smaller where many parts are written side by side, as each holds one in memory."""
        return ParquetWriter(self, name, schema, dictionary, row_group)

    def adopt(self, path: str, name: str) -> Part:
        """Move a Parquet file that somebody else wrote (an executor) to a part of this directory.

        A rename on one device or store, else a copy whose source is then removed.
        """
        store = store_for(self.place)
        target = join(self.place, name)
        if same_device(path, self.place) or (not is_local(path) and same_store(path, self.place)):
            store.move(path, target)
        else:
            with store_for(path).open_read(path) as source, store.open_write(target) as copy:
                while block := source.read(_CHUNK):
                    copy.write(block)
            store_for(path).remove(path)
        with store.open_read(target) as file:
            checksum, size = checksum_stream(file)
        with store.open_read(target) as file, reading(target):
            rows = pq.ParquetFile(file).metadata.num_rows
        part = Part(name, PARQUET, rows, size, checksum)
        self.parts.append(part)
        return part

    def finish(self, marker_name: str, metadata: dict[str, Any], *, format: str = "parts", version: int = 1) -> Marker:
        """Write the marker, after everything it names is durable. This is the last write of the directory."""
        marker = Marker(format, version, sorted(self.parts, key=lambda part: part.name), metadata)
        store = store_for(self.place)
        if self.parts:
            store.sync(self.place)  # adopted parts were written by others, who may not have synced
        store.write_bytes(join(self.place, marker_name), encode_marker(marker))
        return marker


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
            raise damaged(self.path(part.name), f"has {size} bytes with checksum {checksum}, the marker says "
                          f"{part.size} and {part.xxh3_128}")  # fmt: skip
        self._whole.add(name)

    def _open(self, name: str) -> BinaryIO:
        try:
            return store_for(self.place).open_read(self.path(name))
        except FileNotFoundError as error:
            raise damaged(self.path(name), "is missing, and the marker names it") from error


def encode_marker(marker: Marker) -> bytes:
    return msgspec.json.format(msgspec.json.encode(marker), indent=1) + b"\n"


def read_marker(path: str, format: str, version: int) -> Marker:
    """The marker at a path. Raises FormatError when missing, damaged, or of another format or version."""
    try:
        data = store_for(path).read_bytes(path)
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
    return FormatError(f"{path}: {what}", hint="restore it from a copy, or make the directory it is in anew")


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
    while chunk := gunzip.unconsumed_tail or file.read(_CHUNK):
        # Bounded: zeros expand a thousandfold.
        head, *lines = gunzip.decompress(chunk, 4 * _CHUNK).split(b"\n")
        length += len(head)
        if length > LINE_BYTES:
            raise _too_long(path, number)
        begun.append(head)
        if lines:
            yield b"".join(begun)
            yield from lines[:-1]
            begun, length, number = [lines[-1]], len(lines[-1]), number + len(lines)
        if gunzip.eof:
            break
    if not gunzip.eof or gunzip.unused_data or file.read(1) or length:
        raise damaged(path, "does not end where its content does")


def _too_long(path: str, number: int) -> FormatError:
    return FormatError(
        f"{path}: line {number} is longer than {LINE_BYTES >> 20} MiB",
        hint="no record of a metastore is: it was damaged or made by somebody else",
    )
