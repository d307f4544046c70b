"""Batches of items, and groups of rows by a key.

Batches are for calls that take many names at once and for tasks. Rows are grouped as engines do it: Arrow batches are
split by the key, serialised, and merged again. The caller defines what is read and decided; the engine defines where it
runs.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

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

Pieces = Iterator[tuple[str, pa.RecordBatch]]


class EngineRun(Protocol):
    """An engine's `run`."""

    def __call__(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]: ...


@dataclass(frozen=True)
class BatchReader:
    """A reader of a source that splits its batches by the key."""

    read: Callable[[Any], Iterator[pa.RecordBatch]]
    key: str

    def pieces(self, source: Any) -> Pieces:
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in self.read(source):
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= READ_AHEAD:
                yield from cut(waiting, self.key)
                waiting, rows = [], 0
        if rows:
            yield from cut(waiting, self.key)

    def collect(self, source: Any) -> list[tuple[str, pa.RecordBatch]]:
        return list(self.pieces(source))

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
    """Runs both steps in this process, and holds all rows in memory between them."""
    groups: dict[str, list[pa.RecordBatch]] = {}
    for pieces in run(reading.collect, sources):
        for value, batch in pieces:
            groups.setdefault(value, []).append(batch)
    for answer in run(deciding.group, (groups.pop(value) for value in list(groups))):
        yield from answer.to_batches()


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
