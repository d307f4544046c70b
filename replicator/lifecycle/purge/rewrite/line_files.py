"""Rewriting of one file of lines (delimited text, CSV, JSON) without the rows of some ids. Runs in a task.

Remaining lines are copied byte for byte; a line that cannot be read has no id, and is retained. The id of a line is
the value that the format's reader would return.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, BinaryIO, cast

import msgspec
import pyarrow as pa

from cmroot.store.blocks import Unsupported
from replicator.lifecycle.purge.rewrite.columnar import Counts
from replicator.lifecycle.purge.rewrite.formats import FileFormat
from replicator.lifecycle.purge.rewrite.text_values import NONE, Read, canonical, lazy, of_csv, of_json, unquoted

# ---- ids of lines ----------------------------------------------------------------------------------------------------


Identify = Callable[[bytes], Any]
"""A line without its end -> its id, in the form of `text_values.canonical`; NONE if it has none."""


def identify(format_: FileFormat, type_: pa.DataType) -> Identify:
    """Returns an extractor of ids. type_: of the keys. Raises Unsupported for ids that cannot be found in text."""
    match format_.kind, format_.by:
        case "json", _:
            return _json(format_, of_json(format_, type_))
        case "csv", "spark":
            return _spark_csv(format_, of_csv(format_, type_))
        case "csv", _:
            return _open_csv(format_, of_csv(format_, type_))
    return _delimited(format_, lazy(format_, type_))


def _delimited(format_: FileFormat, read: Callable[[bytes, bytes], Any]) -> Identify:
    separator, escape = format_.separator.encode("latin-1"), format_.escape.encode("latin-1")
    index, null = format_.column, format_.null.encode()

    def plain(line: bytes) -> Any:
        fields = line.split(separator, index + 1)
        return read(fields[index], fields[index]) if len(fields) > index and fields[index] != null else NONE

    if not escape:
        return plain
    sign, end = re.escape(escape), re.escape(separator)
    field = re.compile(rb"(?:%b.|[^%b%b])*%b?" % (sign, sign, end, sign), re.DOTALL)
    unescape = re.compile(sign + rb"(.)", re.DOTALL)
    letters = {b"n": b"\n", b"r": b"\r"}

    def escaped(line: bytes) -> Any:
        if escape not in line:
            return plain(line)
        at = 0
        for _ in range(index):
            match = field.match(line, at)
            assert match
            at = match.end() + 1
            if at > len(line):
                return NONE
        match = field.match(line, at)
        assert match
        if match[0] == null:
            return NONE
        return read(match[0], unescape.sub(lambda found: letters.get(found[1], found[1]), match[0]))

    return escaped


def _spark_csv(format_: FileFormat, read: Read) -> Identify:
    separator, index, null = format_.separator, format_.column, format_.null

    def identified(line: bytes) -> Any:
        text = line.decode("utf-8", "replace")
        if not text.strip():
            return NONE  # Spark skips such lines
        if not format_.quote or format_.quote not in text:
            fields = text.split(separator, index + 1)
            value = fields[index] if len(fields) > index and fields[index] else None
        else:
            value = _univocity(text, format_)
        return NONE if value is None or value == null else read(value)

    return identified


def _univocity(text: str, format_: FileFormat) -> str | None:
    """Returns the field of a line that contains quotes; None: null."""
    at, separator = 0, format_.separator
    for number in range(format_.column + 1):
        if at > len(text):
            return None
        if text.startswith(format_.quote, at):
            value, at = _quoted(text, at, format_)
        else:
            end = text.find(separator, at)
            end = len(text) if end < 0 else end
            value, at = text[at:end] or None, end + len(separator)
        if number == format_.column:
            return value
    return None


def _quoted(text: str, begin: int, format_: FileFormat) -> tuple[str | None, int]:
    """Returns the value of a quoted field, and the offset of the next field. An unescaped quote inside it makes it a
    plain field up to the next separator; without a closing quote, it is the rest of the line. Spark's reader has more
    rules for these two cases: if it reads an id by them, the counts differ, and the file fails."""
    quote, escape, separator = format_.quote, format_.escape, format_.separator
    found, at = [], begin + 1
    if at == len(text):
        return quote, at + len(separator)
    while at < len(text):
        letter, after = text[at], text[at + 1 : at + 2]
        if letter == escape and (after == quote or (after == escape and escape != quote)):
            found.append(after)
            at += 2
        elif letter == quote:
            end = at + 1
            while end < len(text) and text[end] <= " " and not text.startswith(separator, end):
                end += 1
            if end == len(text) or text.startswith(separator, end):
                return "".join(found), end + len(separator)
            end = text.find(separator, at)
            if end < 0:
                return text[begin + 1 :], len(text) + len(separator)
            return text[begin:end], end + len(separator)
        else:
            found.append(letter)
            at += 1
    return "".join(found), len(text) + len(separator)


def _open_csv(format_: FileFormat, read: Read) -> Identify:
    separator, quote, escape, index = format_.separator, format_.quote, format_.escape, format_.column

    def identified(line: bytes) -> Any:
        text = line.decode("utf-8", "replace")
        if quote in text or escape in text:
            fields = _opencsv(text, separator, quote, escape)
        else:
            fields = text.split(separator, index + 1) if text else []
        return read(fields[index]) if len(fields) > index else NONE

    return identified


def _opencsv(text: str, separator: str, quote: str, escape: str) -> list[str]:
    """Returns the fields that opencsv 2.3 returns: a field with an open quote at the end of the line is dropped."""
    fields, found = [], ""
    quoted = inside = False
    at = 0
    while at < len(text):
        letter, after = text[at], text[at + 1 : at + 2]
        if letter == escape:
            if (quoted or inside) and after and after in (quote, escape):
                found += after
                at += 1
        elif letter == quote:
            if (quoted or inside) and after == quote:
                found += after
                at += 1
            else:
                if at > 2 and text[at - 1] != separator and after and after != separator:
                    found = "" if found and found.isspace() else found + letter
                quoted = not quoted
            inside = not inside
        elif letter == separator and not quoted:
            fields.append(found)
            found, inside = "", False
        else:
            found += letter
            inside = True
        at += 1
    return fields if quoted else [*fields, found]


_TOKEN = re.compile(
    r'[ \t\r\n]*([{}\[\]:,]|"(?:[^"\\\x00-\x1f]|\\.)*"|' + r"'(?:[^'\\\x00-\x1f]|\\.)*'"
    r"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.+-])|(?:true|false|null|NaN|[+-]?Infinity)(?!\w))"
)
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _json(format_: FileFormat, read: Read) -> Identify:
    *above, last = format_.field

    def identified(line: bytes) -> Any:
        try:
            text = line.decode()
            for name in above:
                text = _members(text, format_.by).get(name, "")
            members = _members(text, format_.by)
            found = (read(members[name]) for name in (last, *format_.former) if name in members)
            return next((value for value in found if value is not NONE), NONE)
        except (UnicodeDecodeError, RecursionError):
            return NONE

    return identified


def _members(text: str, by: str) -> dict[str, str]:
    """Returns the members of an object: name -> text of the value. Names are case-sensitive for Spark; the last of
    equal names counts."""
    try:
        found = {name: bytes(value).decode().strip(" \t\r\n") for name, value in _decode(text).items()}
    except msgspec.DecodeError:
        found = _lenient(text)
    return found if by == "spark" else {name.lower(): value for name, value in found.items()}


def _lenient(text: str) -> dict[str, str]:
    """Parses non-standard JSON that Spark accepts: apostrophes as quotes, invalid numbers, text after the end."""
    tokens = _TOKEN.finditer(text)
    found: dict[str, str] = {}
    at, name, begin, depth = 0, "", -1, 0
    for match in tokens:
        token, gap = match[1], match.start() - at
        at = match.end()
        if gap:
            return {}
        if token in "{[":
            begin = match.start(1) if depth == 1 else begin
            depth += 1
            if depth == 1 and token == "[":
                return {}
        elif depth == 0:
            return {}
        elif depth == 1 and token in ",}":
            if name and (value := text[begin : match.start()].strip(" \t\r\n")):
                found[unquoted(name)] = value
            if token == "}":
                return found
            name = ""
        elif depth == 1 and token == ":":
            begin = match.end()
        elif depth == 1 and not name:
            if token[0] not in "\"'":
                return {}
            name = token
        depth -= token in "}]"
    return {}


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
            raise Unsupported(f"its compressed data is damaged: {error}") from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise Unsupported(f"its compressed data is damaged: {error}") from error


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
                raise EOFError("it ends in the middle of a stream")


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

        def copy(lines: Sequence[bytes]) -> None:
            if not format_.header and any(key_of(line.rstrip(b"\r\n")) is not None for line in lines):
                raise Unsupported("a line of its header or footer, which Hive does not read as a row, has an id")
            write.write(b"".join(lines))

        for lines in _rows(_marked(lines_of(read), write), *format_.around, copy):
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


def _marked(batches: Iterable[list[bytes]], write: BinaryIO) -> Iterator[list[bytes]]:
    """Yields the lines of a file without a byte order mark, which is written unchanged."""
    begins = True
    for lines in batches:
        if begins and lines and lines[0].startswith(codecs.BOM_UTF8):
            write.write(codecs.BOM_UTF8)
            lines = [lines[0].removeprefix(codecs.BOM_UTF8), *lines[1:]]
        begins = begins and not lines
        yield lines


def _rows(
    batches: Iterable[list[bytes]], head: int, foot: int, copy: Callable[[Sequence[bytes]], None]
) -> Iterator[list[bytes]]:
    """Yields the lines that are rows, and calls `copy` with the others: the first `head` and the last `foot` ones."""
    held: list[bytes] = []
    for lines in batches:
        if head and lines:
            copy(lines[:head])
            head, lines = head - len(lines[:head]), lines[head:]
        if foot:
            lines = held + lines
            held, lines = lines[-foot:], lines[:-foot]
        yield lines
    copy(held)


def count_lines(name: str, source: BinaryIO, format_: FileFormat) -> int:
    """Returns the number of rows of a file: its lines without those of a header and a footer."""
    total = sum(len(lines) for lines in lines_of(decompressed(name, source)))
    return max(0, total - sum(format_.around))


def lines_of(read: BinaryIO) -> Iterator[list[bytes]]:
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
