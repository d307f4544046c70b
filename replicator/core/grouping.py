"""Batches of items, and groups of rows by a key.

Batches are for calls that take many names at once and for tasks. Rows are grouped as engines do it: Arrow batches are
split by the key, serialised, and merged again. The caller defines what is read and decided; the engine defines where it
runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from tempfile import TemporaryFile, gettempdir
from threading import Lock
from typing import IO, Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from replicator.errors import Error

# ---- batches ---------------------------------------------------------------------------------------------------------


T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields the items in order, `size` at a time; the last batch may be smaller. Reads no further than that batch."""
    waiting = iter(items)
    while batch := list(islice(waiting, size)):
        yield batch


def shared(items: Sequence[T], workers: int, most: int) -> Iterator[list[T]]:
    """Yields batches for `workers` workers: an equal share of the items each, and at most `most` items in a batch."""
    return batched(items, max(1, min(most, -(-len(items) // workers))))


# ---- groups ----------------------------------------------------------------------------------------------------------


READ_AHEAD = 256 * 1024
"""Rows that a task collects before it splits them by key: fewer and larger batches are shuffled."""

HELD = 64 << 20
"""Bytes of rows that wait in memory, in this process."""

Pieces = Iterator[tuple[str, pa.RecordBatch]]


class EngineRun(Protocol):
    """An engine's `run`."""

    def __call__(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]: ...


@dataclass(frozen=True)
class BatchReader:
    """A reader of a source that splits its batches by the key."""

    read: Callable[[Any], Iterator[pa.RecordBatch]]
    key: str
    ahead: int = READ_AHEAD

    def pieces(self, source: Any) -> Pieces:
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in self.read(source):
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= self.ahead:
                yield from cut(waiting, self.key)
                waiting, rows = [], 0
        if rows:
            yield from cut(waiting, self.key)

    def partition(self, sources: Iterator[Any]) -> Iterator[tuple[str, bytes | Error]]:
        """Yields serialised batches. Errors of this program are shuffled like a group: a retry would not help."""
        for source in sources:
            try:
                for value, batch in self.pieces(source):
                    yield value, pack(batch)
            except Error as error:
                yield "", error


@dataclass(frozen=True)
class Deciding:
    """A function that decides over one group, given as its batches."""

    decide: Callable[[pa.Table], pa.Table]
    schema: pa.Schema

    def group(self, pieces: list[pa.RecordBatch]) -> pa.Table:
        return self.decide(pa.Table.from_batches(pieces)).select(self.schema.names).cast(self.schema)

    def partition(self, packed: Iterator[tuple[str, bytes | Error]]) -> Iterator[bytes | Error]:
        groups: dict[str, list[bytes]] = {}
        for value, piece in packed:
            if isinstance(piece, Error):
                yield piece
                return
            groups.setdefault(value, []).append(piece)
        while groups:
            _, pieces = groups.popitem()
            try:
                answer = self.group([batch for piece in pieces for batch in unpack(piece)])
            except Error as error:
                yield error
                return
            yield from map(pack, answer.combine_chunks().to_batches())


def decide_local(
    run: EngineRun, reading: BatchReader, sources: Iterable[Any], deciding: Deciding
) -> Iterator[pa.RecordBatch]:
    """Runs both steps in this process. Rows beyond HELD bytes wait in a temporary file between them."""
    with Waiting() as waiting:

        def read(source: Any) -> None:
            for value, batch in reading.pieces(source):
                waiting.add(value, batch)

        for _ in run(read, sources):
            pass
        for answer in run(lambda value: deciding.group(waiting.pop(value)), waiting.values()):
            yield from answer.to_batches()


class Waiting:
    """Serialised pieces of groups: up to HELD bytes in memory, more in a file that has no name. For many threads."""

    def __init__(self) -> None:
        self._groups: dict[str, list[bytes | tuple[int, int]]] = {}
        self._lock, self._held, self._end = Lock(), 0, 0
        self._file: IO[bytes] | None = None

    def add(self, value: str, batch: pa.RecordBatch) -> None:
        """Raises OSError with the temporary directory if it has no space."""
        piece = pack(batch)
        with self._lock:
            pieces = self._groups.setdefault(value, [])
            if self._held + len(piece) <= HELD:
                self._held += len(piece)
                pieces.append(piece)
                return
            self._append(piece)
            pieces.append((self._end - len(piece), len(piece)))

    def values(self) -> list[str]:
        return list(self._groups)

    def pop(self, value: str) -> list[pa.RecordBatch]:
        """Returns a group. Not before the last `add`."""
        return [
            batch
            for piece in self._groups.pop(value)
            for batch in unpack(piece if isinstance(piece, bytes) else self._read(*piece))
        ]

    def _read(self, begin: int, size: int) -> bytes:
        assert self._file
        piece = os.pread(self._file.fileno(), size, begin)
        if len(piece) < size:
            raise OSError(errno.EIO, "a temporary file was truncated", gettempdir())
        return piece

    def _append(self, piece: bytes) -> None:
        try:
            if self._file is None:
                self._file = TemporaryFile()  # noqa: SIM115  closed at the end
            self._file.write(piece)
            self._file.flush()  # it is read through its descriptor
        except OSError as error:
            raise OSError(error.errno, error.strerror, gettempdir()) from error
        self._end += len(piece)

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self._groups.clear()
        if self._file:
            with contextlib.suppress(OSError):  # what could not be written
                self._file.close()


def cut(batches: list[pa.RecordBatch], key: str) -> Pieces:
    """Yields batches that each contain one value of the key. Raises ValueError for a null."""
    table = pa.Table.from_batches(batches)
    if table.column(key).null_count:
        raise ValueError(f"null in the key column {key}")
    together = table.take(pc.sort_indices(table.column(key))).combine_chunks()
    for batch in together.to_batches():
        runs = pc.run_end_encode(batch.column(key))
        begin = 0
        for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield value, batch.slice(begin, end - begin)
            begin = end


def by_partition(value: str) -> int:
    """Returns a hash of the value; Spark's own hash of strings differs between Python processes."""
    return zlib.crc32(value.encode())


def pack(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpack(packed: bytes) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream(packed) as reader:
        return list(reader)
