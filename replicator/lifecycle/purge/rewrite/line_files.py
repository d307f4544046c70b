"""Rewriting one file of lines (delimited text, CSV, JSON) without the rows of some ids. Runs in a task.

What stays is copied byte for byte; a line that cannot be read has no id, and stays.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import BinaryIO

import pyarrow as pa

from replicator.lifecycle.purge.rewrite.columnar import Counts
from replicator.lifecycle.purge.rewrite.compression import compressed, decompressed
from replicator.lifecycle.purge.rewrite.formats import FileFormat
from replicator.lifecycle.purge.rewrite.id_fields import identify
from replicator.lifecycle.purge.rewrite.text_values import canonical

CHUNK = 1 << 22


def rewrite_lines(
    name: str, source: BinaryIO, target: AbstractContextManager[BinaryIO], format_: FileFormat, keys: pa.Array
) -> Counts:
    """Copies a file but for the lines whose field is one of `keys`. name: its ending says how it is compressed."""
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
    """From a row's bytes, without an end, to the position of its key; None when it has none of them."""
    wanted = {key: position for position, key in enumerate(canonical(keys, format_.type))}
    read_id = identify(format_, keys.type)
    return lambda row: wanted.get(read_id(row))


def _without_start(lines: list[bytes], write: BinaryIO, header: bool) -> list[bytes]:
    """The lines of a file's beginning; what is none of them (a byte order mark, a line of names) is written."""
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
    """Lines with their ends, many at once; as Hadoop does, they end with LF, CR or both."""
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
