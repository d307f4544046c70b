"""Rewriting of one file of lines (delimited text, CSV, JSON) without the rows of some ids. Runs in a task.

Remaining lines are copied byte for byte; a line that cannot be read has no id, and is retained.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, BinaryIO, cast

import pyarrow as pa

from replicator.lifecycle.purge.rewrite.columnar import Counts
from replicator.lifecycle.purge.rewrite.formats import FileFormat, Unsupported
from replicator.lifecycle.purge.rewrite.id_fields import identify
from replicator.lifecycle.purge.rewrite.text_values import canonical

# ---- compression -----------------------------------------------------------------------------------------------------
# Compressed files in Hadoop's format: codec by file name extension, concatenated streams read as one.


PIECE = 1 << 18
"""The number of compressed bytes per read."""


def decompressed(name: str, source: BinaryIO) -> BinaryIO:
    """Returns a decompressing reader; each read returns at most the requested size. Raises Unsupported: immediately for
    unsupported codecs, and during reads for data that are damaged or end inside a stream."""
    match name.rpartition(".")[2]:
        case "gz":
            return cast("BinaryIO", _Checked(cast("BinaryIO", gzip.GzipFile(fileobj=source))))
        case "bz2":
            return cast("BinaryIO", _Checked(_Streams(source, bz2.BZ2Decompressor)))
        case "zst":
            return cast("BinaryIO", _Checked(cast("BinaryIO", pa.CompressedInputStream(source, "zstd"))))
        case "deflate":
            return cast("BinaryIO", _Checked(_Streams(source, _Inflate)))
        case "snappy" | "lz4" | "lzo" | "lzo_deflate" | "lzma" | "xz" as ending:
            raise Unsupported(f"text compressed as .{ending} cannot be rewritten")
    return source


def compressed(name: str, target: BinaryIO) -> AbstractContextManager[BinaryIO]:
    """Returns a compressing writer; `target` remains open."""
    match name.rpartition(".")[2]:
        case "gz":
            return cast("AbstractContextManager[BinaryIO]", gzip.GzipFile("", "wb", 6, target, mtime=0))
        case "bz2":
            return cast("AbstractContextManager[BinaryIO]", bz2.BZ2File(target, "wb"))
        case "zst":
            return cast("AbstractContextManager[BinaryIO]", pa.CompressedOutputStream(target, "zstd"))
        case "deflate":
            return cast("AbstractContextManager[BinaryIO]", _Deflating(target))
    return _Open(target)


class _Checked:
    """A reader that raises Unsupported for damaged data, as distinct from I/O errors of the store."""

    def __init__(self, read: Any) -> None:
        self._read = read

    def read(self, size: int) -> bytes:
        try:
            return bytes(self._read.read(size))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Unsupported(f"its compressed data are damaged: {error}") from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise Unsupported(f"its compressed data are damaged: {error}") from error


class _Inflate:
    """A zlib decompressor with the methods of bz2."""

    def __init__(self) -> None:
        self._one = zlib.decompressobj()

    def decompress(self, data: bytes, most: int) -> bytes:
        return self._one.decompress(self._one.unconsumed_tail + data, most)

    @property
    def needs_input(self) -> bool:
        return not self._one.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._one.eof

    @property
    def unused_data(self) -> bytes:
        return self._one.unused_data


class _Streams:
    """A reader of concatenated streams up to the end of the file. Only another stream may follow a stream."""

    def __init__(self, source: BinaryIO, begin: Callable[[], Any]) -> None:
        self._source, self._begin = source, begin
        self._one: Any = None

    def read(self, size: int) -> bytes:
        while True:
            data = b""
            if self._one is None or self._one.eof:
                data = (self._one.unused_data if self._one else b"") or self._source.read(PIECE)
                if not data:
                    return b""
                self._one = self._begin()
            elif self._one.needs_input:
                data = self._source.read(PIECE)
            last = not data and self._one.needs_input
            if found := self._one.decompress(data, size):
                return bytes(found)
            if last and not self._one.eof:
                raise EOFError("they end in the middle of a stream")


class _Open:
    """A context manager for a file that its own block closes."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target

    def __enter__(self) -> BinaryIO:
        return self._target

    def __exit__(self, *_: object) -> None:
        pass


class _Deflating(_Open):
    def __init__(self, target: BinaryIO) -> None:
        super().__init__(target)
        self._deflate = zlib.compressobj()

    def __enter__(self) -> Any:
        return self

    def write(self, data: bytes) -> None:
        self._target.write(self._deflate.compress(data))

    def __exit__(self, *_: object) -> None:
        self._target.write(self._deflate.flush())


# ---- line files ------------------------------------------------------------------------------------------------------


CHUNK = 1 << 22


def rewrite_lines(
    name: str, source: BinaryIO, target: AbstractContextManager[BinaryIO], format_: FileFormat, keys: pa.Array
) -> Counts:
    """Copies a file except the lines whose field is one of `keys`. name: its extension determines the compression."""
    key_of = row_keys(format_, keys)
    rows, dropped = 0, Counter[int]()
    with ExitStack() as stack:
        read = decompressed(name, source)
        write = stack.enter_context(compressed(name, stack.enter_context(target)))
        for number, lines in enumerate(_lines(read)):
            if number == 0:
                lines = _without_start(lines, write, format_.header)
            found = [key_of(line.rstrip(b"\r\n")) for line in lines]
            rows += len(lines)
            dropped.update(position for position in found if position is not None)
            write.write(b"".join(line for line, position in zip(lines, found, strict=True) if position is None))
    return rows, dropped


def row_keys(format_: FileFormat, keys: pa.Array) -> Callable[[bytes], int | None]:
    """Returns a function from a row's bytes, without line end, to the position of its key; None if it has none."""
    wanted = {key: position for position, key in enumerate(canonical(keys, format_.type))}
    read_id = identify(format_, keys.type)
    return lambda row: wanted.get(read_id(row))


def _without_start(lines: list[bytes], write: BinaryIO, header: bool) -> list[bytes]:
    """Returns the first lines of a file that are rows; writes a byte order mark and a header line unchanged."""
    if lines and lines[0].startswith(codecs.BOM_UTF8):
        write.write(codecs.BOM_UTF8)
        lines = [lines[0].removeprefix(codecs.BOM_UTF8), *lines[1:]]
    if header and lines:
        write.write(lines[0])
        lines = lines[1:]
    return lines


def count_lines(name: str, source: BinaryIO, format_: FileFormat) -> int:
    total = sum(len(lines) for lines in _lines(decompressed(name, source)))
    return total - 1 if format_.header and total else total


def _lines(read: BinaryIO) -> Iterator[list[bytes]]:
    """Yields batches of lines with their ends; as in Hadoop, lines end with LF, CR or both."""
    rest = b""
    while chunk := read.read(CHUNK):
        lines = (rest + chunk).splitlines(keepends=True)
        rest = lines.pop()
        if rest.endswith(b"\n"):
            lines.append(rest)
            rest = b""
        yield lines
    if rest:
        yield [rest]
