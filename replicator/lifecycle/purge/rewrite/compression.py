"""Compressed files as Hadoop reads and writes them: by the end of their name, streams one after the other as one."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, cast

import pyarrow as pa

from replicator.lifecycle.purge.rewrite.formats import Unsupported

PIECE = 1 << 18
"""Compressed bytes read at once."""


def decompressed(name: str, source: BinaryIO) -> BinaryIO:
    """For reading, in pieces of at most the size asked for. Raises Unsupported: here for what cannot be read, and when
    it is read for data that are damaged, or end inside of a stream."""
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
    """For writing; `target` stays open."""
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
    """Damage in words: a store's own errors are distinguished from it."""

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
    """zlib with the methods of bz2."""

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
    """Streams one after the other until the file ends. What follows a stream must be another."""

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
    """A file that its own block closes."""

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
