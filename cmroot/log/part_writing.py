"""Writing parts: gzip lines and Parquet files, hashed while written, each published atomically; then the marker."""

from __future__ import annotations

import contextlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, BinaryIO, Self

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from cmroot.errors import FormatError
from cmroot.log.segment import (
    CHUNK,
    LINE_BYTES,
    LINES,
    PARQUET,
    ROW_GROUP,
    Marker,
    Part,
    conform,
    encode_marker,
    too_long,
)
from cmroot.store.local import LocalStore
from cmroot.store.place import Place
from cmroot.store.remote import FsspecStore

AT_ONCE = 16
"""The number of parts that are published concurrently: each is an upload, or on HDFS a close of half a second."""


class _HashingSink:
    """A file open for writing that hashes and counts its bytes; implements what pyarrow requires of a file object."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = xxhash.xxh3_128()
        self.size = 0
        self.closed = False
        self.discarding = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.discarding:  # pyarrow writes a footer even when its writer is discarded
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
        self._sink = _HashingSink(self._publishing.enter_context((Place(owner.place) / name).open_write()))
        self.rows = 0
        self.part: Part | None = None

    @property
    def store(self) -> LocalStore | FsspecStore:
        return Place(self._owner.place).store

    @property
    def size(self) -> int:
        """Returns the bytes written to the file so far, without buffered ones."""
        return self._sink.size

    @abstractmethod
    def _complete(self) -> None:
        """Writes the buffered data, and the end of the format."""

    def close(self) -> Part:
        """Publishes the part. May run twice."""
        if self.part is None:
            self._owner.parts.append(self._published())
        assert self.part is not None
        return self.part

    def _published(self) -> Part:
        if self.part is None:
            try:
                self._complete()
            except BaseException as error:
                self._sink.discarding = True
                self._publishing.__exit__(type(error), error, error.__traceback__)
                raise
            self._publishing.close()
            self.part = Part(self._name, self.kind, self.rows, self._sink.size, self._sink.checksum())
        return self.part

    def abort(self) -> None:
        """Removes everything written. May run twice; does nothing after close."""
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


def close_together(writers: Sequence[_PartWriter]) -> None:
    """Publishes parts of one place, concurrently where a store takes long to close a file. The first error is raised
    when all have ended."""
    waiting = [each for each in writers if each.part is None]
    if not waiting or waiting[0].store.at_once == 1:
        for each in waiting:
            each.close()
        return
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="publishing") as pool:
        parts = [pool.submit(each._published) for each in waiting]
    for each, part in zip(waiting, parts, strict=True):
        each._owner.parts.append(part.result())


class LinesWriter(_PartWriter):
    """Lines of bytes without line ends, gzip level 1 (higher levels cost more time than they save)."""

    kind = LINES

    def __init__(self, owner: PartsWriter, name: str) -> None:
        super().__init__(owner, name)
        self._gzip = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)  # header without time: same bytes each run
        self._pending = bytearray()

    def write(self, line: bytes) -> None:
        if b"\n" in line:
            raise FormatError(f"{self._name}: a line contains a line break: {line[:80]!r}", hint="report this as a bug")
        if len(line) > LINE_BYTES:
            raise too_long(self._name, self.rows + 1)
        self._pending += line
        self._pending += b"\n"
        self.rows += 1
        if len(self._pending) >= CHUNK:
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
    """Tables of one schema, zstd, in row groups of `row_group` rows regardless of the size of the tables written."""

    kind = PARQUET

    def __init__(
        self,
        owner: PartsWriter,
        name: str,
        schema: Any,
        dictionary: Sequence[str] | bool = True,
        row_group: int = ROW_GROUP,
    ) -> None:
        super().__init__(owner, name)
        self._schema = schema
        self._row_group = row_group
        self._parquet = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"), schema, compression="zstd", use_dictionary=dictionary
        )
        self._waiting: list[Any] = []
        self._waiting_rows = 0

    def write(self, table: Any) -> None:
        """Appends a table with columns of the schema, in any order; missing columns are null."""
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


class PartsWriter:
    """A writer of parts below a place, then of the marker. Parts may be concurrent; names may have directories."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.parts: list[Part] = []

    def lines(self, name: str) -> LinesWriter:
        return LinesWriter(self, name)

    def parquet(
        self, name: str, schema: Any, dictionary: Sequence[str] | bool = True, row_group: int = ROW_GROUP
    ) -> ParquetWriter:
        """`row_group`: smaller where many parts are written concurrently, because each holds one in memory."""
        return ParquetWriter(self, name, schema, dictionary, row_group)

    def finish(self, marker_name: str, metadata: dict[str, Any], *, format: str = "parts", version: int = 1) -> Marker:
        """Writes the marker, after everything it lists is durable. This is the last write to the directory."""
        marker = Marker(format, version, sorted(self.parts, key=lambda part: part.name), metadata)
        if self.parts:
            Place(self.place).sync()
        (Place(self.place) / marker_name).write_bytes(encode_marker(marker))
        return marker
