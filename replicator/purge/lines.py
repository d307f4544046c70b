"""Rewriting one file of lines (delimited text, CSV, JSON) without the rows of some ids. Runs in a task.

What stays is copied byte for byte; a line that cannot be read has no id, and stays.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa

from replicator.purge.columnar import Counts
from replicator.purge.compression import compressed, decompressed
from replicator.purge.formats import FileFormat, Unsupported

CHUNK = 1 << 22
_UNREADABLE = object()

Identify = Callable[[bytes], Any]
"""The id of a line without its end, as the keys are written; something that is no key when it has none."""


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
            if number == 0 and format_.header and lines:
                write.write(lines.pop(0))
            found = [key_of(line.rstrip(b"\r\n")) for line in lines]
            rows += len(lines)
            dropped.update(position for position in found if position is not None)
            write.write(b"".join(line for line, position in zip(lines, found, strict=True) if position is None))
    return rows, dropped


def row_keys(format_: FileFormat, keys: pa.Array) -> Callable[[bytes], int | None]:
    """From a row's bytes, without an end, to the position of its key; None when it has none of them."""
    wanted = {_canonical(key): position for position, key in enumerate(keys.to_pylist())}
    identify = _identify(format_, _reader(keys.type))
    return lambda row: wanted.get(identify(row))


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


# What a line says


def _identify(format_: FileFormat, read: Callable[[str], Any]) -> Identify:
    if format_.kind == "json":
        return _json_identify(format_.field, read)
    separator, index, null = format_.separator.encode("latin-1"), format_.column, format_.null.encode()
    if format_.kind == "csv":
        return _csv_identify(format_, read)
    escape = format_.escape.encode("latin-1")

    def plain(line: bytes) -> Any:
        fields = line.split(separator, index + 1)
        if len(fields) <= index or fields[index] == null:
            return _UNREADABLE
        return read(fields[index].decode("utf-8", "surrogateescape"))

    if not escape:
        return plain
    field = re.compile(rb"((?:%b.|[^%b%b])*)" % ((re.escape(escape), re.escape(escape), re.escape(separator))), re.S)
    unescape = re.compile(re.escape(escape) + rb"(.)", re.S)

    def escaped(line: bytes) -> Any:
        if escape not in line:
            return plain(line)
        at = 0
        for number in range(index + 1):
            match = field.match(line, at)
            if match is None:
                return _UNREADABLE
            if number == index:
                found = match[0]
                return _UNREADABLE if found == null else read(unescape.sub(rb"\1", found).decode("utf-8", "replace"))
            at = match.end() + len(separator)
            if at > len(line):
                return _UNREADABLE
        return _UNREADABLE

    return escaped


def _csv_identify(format_: FileFormat, read: Callable[[str], Any]) -> Identify:
    separator, index, quote = format_.separator, format_.column, format_.quote
    doubled = format_.escape == quote
    escape = None if doubled or not format_.escape else format_.escape

    def identify(line: bytes) -> Any:
        text = line.decode("utf-8", "surrogateescape")
        if (quote and quote in text) or (escape and escape in text):
            try:
                row = next(
                    csv.reader(
                        [text], delimiter=separator, quotechar=quote or None, escapechar=escape, doublequote=True,
                        quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
                    )
                )  # fmt: skip
            except (csv.Error, StopIteration):
                return _UNREADABLE
        else:
            row = text.split(separator)
        if len(row) <= index or row[index] == format_.null:
            return _UNREADABLE
        return read(row[index])

    return identify


def _json_identify(field: tuple[str, ...], read: Callable[[str], Any]) -> Identify:
    decode = msgspec.json.Decoder().decode

    def identify(line: bytes) -> Any:
        try:
            value = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return _UNREADABLE
        for name in field:
            if not isinstance(value, dict):
                return _UNREADABLE
            value = next((each for key, each in value.items() if key.lower() == name), None)
        if value is None or isinstance(value, dict | list):
            return _UNREADABLE
        if isinstance(value, bool):
            return read("true" if value else "false")
        return read(value if isinstance(value, str) else str(value))

    return identify


# Values


def _canonical(key: Any) -> Any:
    return key.rstrip(" ") if isinstance(key, str) else key


def _reader(type_: pa.DataType) -> Callable[[str], Any]:
    """From a field's text to the value that a key has; a text that is none gives what no key equals."""
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return lambda text: text.rstrip(" ")
    parse: Callable[[str], Any]
    if pa.types.is_integer(type_):
        parse = int
    elif pa.types.is_floating(type_):
        parse = float
    elif pa.types.is_decimal(type_):
        parse = Decimal
    elif pa.types.is_date(type_):
        parse = date.fromisoformat
    elif pa.types.is_timestamp(type_):
        parse = datetime.fromisoformat
    elif pa.types.is_boolean(type_):
        parse = _boolean
    elif pa.types.is_binary(type_):
        parse = str.encode
    else:
        raise Unsupported(f"ids of type {type_} cannot be found in text")

    def read(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, InvalidOperation):
            return _UNREADABLE

    return read


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else bool(int(text))
