"""Footers of Parquet files: a substitute for pyarrow to read, and the final one that replaces pyarrow's own. Pure.

pyarrow cannot express the original writer, nor all that a schema can contain. It reads and writes the *bare* schema:
physical types, with a logical type only where statistics depend on it. The written file then gets the source's schema,
keys and `created_by`, by which readers interpret INT96, old dates and statistics.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from cmroot.store.blocks import Unsupported

# ---- thrift compact --------------------------------------------------------------------------------------------------
# Thrift's compact protocol, parsed into values and written back: the footers of Parquet files. Pure.
#
# A struct is a dict of (type, value) by field id, a list its elements' type and values. No message definitions are
# used, so that fields of later formats are retained as well.


TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
Struct = dict[int, tuple[int, Any]]
Listed = tuple[int, list[Any]]


def read_struct(data: bytes) -> Struct:
    """Parses a struct. Raises Unsupported if it is invalid."""
    try:
        return _Reader(data).struct()
    except (IndexError, struct.error, RecursionError) as error:
        raise Unsupported("the footer cannot be read: it is truncated, or encrypted") from error


def write_struct(value: Struct) -> bytes:
    out = bytearray()
    _write_struct(out, value)
    return bytes(out)


def given(fields: Struct, number: int, default: Any = None) -> Any:
    """Returns the value of a field, or the default if it is not set."""
    found = fields.get(number)
    return default if found is None else found[1]


def elements(fields: Struct, number: int) -> list[Any]:
    """Returns the elements of a list; [] if it is not set."""
    found = fields.get(number)
    return [] if found is None else list(found[1][1])


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def varint(self) -> int:
        shift = found = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7

    def zigzag(self) -> int:
        number = self.varint()
        return (number >> 1) ^ -(number & 1)

    def take(self, length: int) -> bytes:
        if self.at + length > len(self.data):
            raise IndexError
        self.at += length
        return self.data[self.at - length : self.at]

    def struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while head := self.take(1)[0]:
            delta, type_ = head >> 4, head & 0x0F
            number = number + delta if delta else self.zigzag()
            fields[number] = (TRUE, type_ == TRUE) if type_ in (TRUE, FALSE) else (type_, self.value(type_))
        return fields

    def value(self, type_: int) -> Any:
        match type_:
            case 5 | 6 | 4:  # I32, I64, I16
                return self.zigzag()
            case 8:  # BINARY
                return self.take(self.varint())
            case 12:  # STRUCT
                return self.struct()
            case 9 | 10:  # LIST, SET
                head = self.take(1)[0]
                size = self.varint() if head >> 4 == 15 else head >> 4
                return head & 0x0F, [self.value(head & 0x0F) for _ in range(size)]
            case 1 | 2:  # booleans of a list
                return self.take(1)[0] == TRUE
            case 3:  # BYTE
                return self.take(1)
            case 7:  # DOUBLE
                return self.take(8)
            case 11:  # MAP
                size = self.varint()
                types = self.take(1)[0] if size else 0
                return types, [(self.value(types >> 4), self.value(types & 0x0F)) for _ in range(size)]
        raise IndexError


def _varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _zigzag(out: bytearray, number: int) -> None:
    _varint(out, number << 1 if number >= 0 else (-number << 1) - 1)


def _write_struct(out: bytearray, fields: Struct) -> None:
    last = 0
    for number, (type_, value) in sorted(fields.items()):
        written = (TRUE if value else FALSE) if type_ == TRUE else type_
        if 0 < number - last <= 15:
            out.append((number - last) << 4 | written)
        else:
            out.append(written)
            _zigzag(out, number)
        last = number
        if type_ != TRUE:
            _write(out, type_, value)
    out.append(0)


def _write(out: bytearray, type_: int, value: Any) -> None:
    match type_:
        case 5 | 6 | 4:
            _zigzag(out, value)
        case 8:
            _varint(out, len(value))
            out += value
        case 12:
            _write_struct(out, value)
        case 9 | 10:
            of, values = value
            out.append((len(values) if len(values) < 15 else 15) << 4 | of)
            if len(values) >= 15:
                _varint(out, len(values))
            for each in values:
                _write(out, of, each)
        case 1 | 2:
            out.append(TRUE if value else FALSE)
        case 3 | 7:
            out += value
        case _:
            types, pairs = value
            _varint(out, len(pairs))
            if pairs:
                out.append(types)
            for key, each in pairs:
                _write(out, types >> 4, key)
                _write(out, types & 0x0F, each)


# ---- parquet footer --------------------------------------------------------------------------------------------------


MAGIC = b"PAR1"
# fields of FileMetaData
VERSION, SCHEMA, GROUPS, KEYS, CREATED_BY, ENCRYPTION = 1, 2, 4, 5, 6, 8
# of SchemaElement
TYPE, LENGTH, REPETITION, NAME, CHILDREN, CONVERTED, PRECISION, LOGICAL = 1, 2, 3, 4, 5, 6, 8, 10
# of RowGroup; of ColumnChunk; of ColumnMetaData
COLUMNS, SORTING = 1, 4
FILE_PATH, COLUMN, COLUMN_INDEX, CRYPTO = 1, 3, 6, 8
ENCODINGS, PATH, CODEC, BLOOM, BLOOM_LENGTH = 2, 3, 4, 14, 15

INT32, INT64, INT96, BYTE_ARRAY, FIXED = 1, 2, 3, 6, 7
PHYSICAL = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
CODECS = {0: "NONE", 1: "SNAPPY", 2: "GZIP", 4: "BROTLI", 6: "ZSTD", 7: "LZ4"}
"""Codecs that pyarrow writes unchanged: its LZ4 is LZ4_RAW, not Hadoop's framing (5). It does not support LZO (3)."""
DICTIONARIES = {2, 8}
_REQUIRED, _REPEATED = 0, 2
_UINT_32, _UINT_64 = 13, 14
_TYPED_CONVERTED = {0, *range(5, 19)}  # text, decimals, times, integers
_TYPED_LOGICAL = {1, 5, 6, 7, 8, 10}


@dataclass(frozen=True)
class Leaf:
    """A column of the file. path: names below the root; element: its index in the schema; levels: the repetition of
    each node on its path that is not required, which is all that its pages record of the tree."""

    path: tuple[str, ...]
    element: int
    physical: int
    length: int
    levels: tuple[int, ...]

    @property
    def stored(self) -> str:
        physical, length = (FIXED, 12) if self.physical == INT96 else (self.physical, self.length)
        return f"{PHYSICAL[physical]}({length})" if physical == FIXED else PHYSICAL[physical]

    @property
    def name(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True)
class Bare:
    """A footer for pyarrow to read. footer: the file's, with the bare schema; uncounted: indexes of columns whose
    statistics would have another order than their type's; integers: decimals are stored as integers."""

    footer: Struct
    uncounted: frozenset[int]
    integers: bool


def read_footer(file: BinaryIO) -> Struct:
    """Reads the footer. Raises Unsupported if it is not a Parquet file, is encrypted, or has columns in other files."""
    size = file.seek(0, 2)
    if size < 12:
        raise Unsupported(f"not a Parquet file: it has {size} bytes")
    file.seek(size - 8)
    length, magic = struct.unpack("<I4s", file.read(8))
    if magic == b"PARE":
        raise Unsupported("an encrypted Parquet file cannot be rewritten")
    if magic != MAGIC or length + 12 > size:
        raise Unsupported("not a Parquet file: its end is missing")
    file.seek(size - 8 - length)
    footer = read_struct(file.read(length))
    chunks = [chunk for _, chunk in _chunks(footer)]
    if ENCRYPTION in footer or any(CRYPTO in chunk for chunk in chunks):
        raise Unsupported("a Parquet file with encrypted columns cannot be rewritten")
    if any(given(chunk, FILE_PATH) or COLUMN not in chunk for chunk in chunks):
        raise Unsupported("a Parquet file whose columns are in other files cannot be rewritten")
    return footer


def as_file(footer: Struct) -> bytes:
    """Returns a file without rows that ends with this footer."""
    return MAGIC + as_end(footer)


def as_end(footer: Struct) -> bytes:
    data = write_struct(footer)
    return data + struct.pack("<I", len(data)) + MAGIC


def of_end(data: bytes) -> tuple[bytes, Struct]:
    """Returns the bytes before a footer that was just written, and the footer."""
    start = len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]
    return data[:start], read_struct(data[start:-8])


def leaves(footer: Struct) -> list[Leaf]:
    """Returns the columns, in order."""
    schema = elements(footer, SCHEMA)
    found: list[Leaf] = []

    def walk(at: int, path: tuple[str, ...], levels: tuple[int, ...]) -> int:
        element = schema[at]
        if at:
            path = (*path, given(element, NAME).decode("utf-8", "surrogateescape"))
            repetition = given(element, REPETITION, _REQUIRED)
            levels = levels if repetition == _REQUIRED else (*levels, repetition)
        if TYPE in element:
            found.append(Leaf(path, at, given(element, TYPE), given(element, LENGTH, 0), levels))
            return at + 1
        below = at + 1
        for _ in range(given(element, CHILDREN, 0)):
            below = walk(below, path, levels)
        return below

    try:
        walk(0, (), ())
    except IndexError as error:
        raise Unsupported("the footer's schema is incomplete") from error
    return found


def top_columns(footer: Struct) -> dict[str, bool]:
    """Returns the names of the columns, in order, with True for scalars; of equal names, the last one counts."""
    found: dict[str, bool] = {}
    for leaf in leaves(footer):
        found[leaf.path[0]] = len(leaf.path) == 1
    return found


def columns_of(footer: Struct, index: int) -> Iterator[Struct]:
    """Returns the metadata of one column in each row group."""
    return (given(chunk, COLUMN) for number, chunk in _chunks(footer) if number == index)


def has_page_index(footer: Struct) -> bool:
    return any(COLUMN_INDEX in chunk for _, chunk in _chunks(footer))


def _chunks(footer: Struct) -> Iterator[tuple[int, Struct]]:
    for group in elements(footer, GROUPS):
        yield from enumerate(elements(group, COLUMNS))


def bare(footer: Struct, field: Sequence[str]) -> Bare:
    """Returns the bare footer. field: the column of ids, by lower-case names, which retains its type."""
    columns = leaves(footer)
    schema = [_untyped(element) for element in elements(footer, SCHEMA)]
    ids = {leaf.element for leaf in columns if [name.lower() for name in leaf.path] == list(field)}
    wholes = elements(footer, SCHEMA)
    integers = any(_kind(wholes[at]) == "decimal" and given(wholes[at], TYPE) in (INT32, INT64) for at in ids)
    uncounted = set()
    for index, leaf in enumerate(columns):
        whole = wholes[leaf.element]
        if leaf.element in ids and leaf.physical != INT96 and _is_typed(whole):
            schema[leaf.element] = whole
            continue
        schema[leaf.element], counted = _ordered(whole, leaf, integers)
        if not counted:
            uncounted.add(index)
    made = {**footer, SCHEMA: (LIST, (STRUCT, schema))}
    made.pop(KEYS, None)
    times = {index for index, leaf in enumerate(columns) if leaf.physical == INT96}
    if times:
        made[GROUPS] = _each_column(
            footer, lambda index, column: {**column, TYPE: (I32, FIXED)} if index in times else column
        )
    return Bare(made, frozenset(uncounted), integers)


def _untyped(element: Struct) -> Struct:
    return {number: element[number] for number in (TYPE, LENGTH, REPETITION, NAME, CHILDREN) if number in element}


def _is_typed(element: Struct) -> bool:
    if LOGICAL in element:
        return bool(set(given(element, LOGICAL)) & _TYPED_LOGICAL)
    return given(element, CONVERTED) in _TYPED_CONVERTED


def _kind(element: Struct) -> str:
    """Returns what determines the order of a column's values, in addition to its physical type."""
    if LOGICAL in element:
        logical: Struct = given(element, LOGICAL)
        number = next(iter(logical), 0)
        if number == 10:
            return "" if given(given(logical, 10), 2, True) else "unsigned"
        return {5: "decimal", 15: "float16", 16: "none", 17: "none", 18: "none"}.get(number, "")
    converted = given(element, CONVERTED)
    if converted in range(11, 15):
        return "unsigned"
    return {5: "decimal", 21: "none"}.get(converted, "")


def _ordered(element: Struct, leaf: Leaf, integers: bool) -> tuple[Struct, bool]:
    """Returns the bare column, and True if the statistics that pyarrow writes for it have the order of its type."""
    made = _untyped(element)
    if leaf.physical == INT96:
        return {**made, TYPE: (I32, FIXED), LENGTH: (I32, 12)}, False
    match _kind(element):
        case "unsigned":
            return {**made, CONVERTED: (I32, _UINT_32 if leaf.physical == INT32 else _UINT_64)}, True
        case "float16":
            return {**made, LOGICAL: element[LOGICAL]}, True
        case "decimal" if leaf.physical == FIXED and not integers and leaf.length == _narrowest(element):
            return {number: value for number, value in element.items() if number != 9}, True
        case "decimal" if leaf.physical in (INT32, INT64):
            return made, True
        case "decimal" | "none":
            return made, False
    return made, True


def _narrowest(element: Struct) -> int:
    """Returns the size in bytes that pyarrow uses for a decimal."""
    precision = int(given(element, PRECISION) or given(given(given(element, LOGICAL, {}), 5, {}), 2, 0))
    return (int(10**precision - 1).bit_length() + 8) // 8


def _each_column(footer: Struct, change: Any) -> tuple[int, Any]:
    groups = []
    for group in elements(footer, GROUPS):
        chunks = [
            {**chunk, COLUMN: (STRUCT, change(index, given(chunk, COLUMN)))}
            for index, chunk in enumerate(elements(group, COLUMNS))
        ]
        groups.append({**group, COLUMNS: (LIST, (STRUCT, chunks))})
    return LIST, (STRUCT, groups)


def check_shape(source: Struct, written: Struct) -> None:
    """Raises Unsupported unless the pages that pyarrow writes are valid under the source's schema: the same columns, of
    the same physical types, with the same levels."""
    ours, theirs = leaves(source), leaves(written)
    if len(ours) != len(theirs):
        raise Unsupported(f"{len(ours)} Parquet columns would be written as {len(theirs)}")
    for wanted, found in zip(ours, theirs, strict=True):
        if wanted.stored != found.stored:
            raise Unsupported(f"column {wanted.name} of type {wanted.stored} would be written as {found.stored}")
        if wanted.levels != found.levels:
            raise Unsupported(f"column {wanted.name} would be written with different nesting")


def as_source(source: Struct, written: Struct, groups: Sequence[int]) -> Struct:
    """Returns the written footer with the source's version, schema, keys, writer and sorting. groups: the source's row
    group of each written one. Raises Unsupported if the pages do not fit."""
    check_shape(source, written)
    made = {number: value for number, value in written.items() if number not in (VERSION, SCHEMA, KEYS, CREATED_BY)}
    made |= {number: source[number] for number in (VERSION, SCHEMA, KEYS, CREATED_BY) if number in source}
    columns = leaves(source)

    def named(index: int, column: Struct) -> Struct:
        path = [name.encode("utf-8", "surrogateescape") for name in columns[index].path]
        return {**column, TYPE: (I32, columns[index].physical), PATH: (LIST, (BINARY, path))}

    made[GROUPS] = _each_column(written, named)
    theirs, ours = elements(source, GROUPS), elements(made, GROUPS)
    for group, origin in zip(ours, groups, strict=True):
        if SORTING in theirs[origin]:
            group[SORTING] = theirs[origin][SORTING]
    return made
