"""Rewriting of one Avro file without the records of some ids. Runs in a task.

Records are parsed by the writer's schema in the file, so fields unknown to the table are retained. Remaining records
are copied byte for byte, blocks without an id in compressed form; the header and its sync marker are retained.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from decimal import Context
from typing import Any, BinaryIO

import pyarrow as pa

from cmroot.errors import FormatError
from cmroot.store.blocks import AvroFile, Input, Unsupported, number
from replicator.lifecycle.purge.rewrite.columnar import Counts, present
from replicator.lifecycle.purge.rewrite.formats import AvroType, FileFormat, Names, find_field, parse_schema

_WIDE = Context(prec=100)  # decimals have 76 digits at most

Locate = Callable[[bytes, int], tuple[int, Any]]
"""(block, start of a record) -> (its end, its id in the form of the keys; None: it has none)."""
Read = Callable[[bytes, int], Any]
"""(block, start of a value) -> the value in the form of the keys."""


def rewrite_avro(
    source: BinaryIO, target: AbstractContextManager[BinaryIO], format_: FileFormat, keys: pa.Array
) -> Counts:
    """Copies a file except the records whose field is one of `keys`; records without an id are retained. Files
    without the field are read by its former column."""
    file = _File(Input(source))
    columns = [each.name for each in file.schema.fields]
    names = format_.spellings or tuple((part,) for part in present(columns, format_.field, format_.former))
    locate = compile_locate(file.schema, names, format_.type, keys.type)
    wanted = {key: position for position, key in enumerate(_canonical(keys))}
    rows, dropped = 0, Counter[int]()
    with target as out:
        out.write(file.header)
        for count, packed in file.blocks():
            kept, left_out = _without(file.codec.decompress(packed), count, locate, wanted)
            rows, left = rows + count, count - len(left_out)
            dropped.update(left_out)
            if left_out:
                packed = file.codec.compress(kept)
            if left:
                out.write(file.block(left, packed))
    return rows, dropped


def read_schema(source: BinaryIO) -> AvroType:
    """Returns the writer's schema of a file. Raises FormatError, Unsupported."""
    return _File(Input(source)).schema


def count_avro(source: BinaryIO) -> int:
    file = Input(source)
    return sum(count for count, _ in _File(file).blocks(read=False)) if file.left else 0


class _File(AvroFile):
    """An Avro file with the writer's schema. Raises Unsupported for one that is not understood."""

    def __init__(self, file: Input) -> None:
        super().__init__(file)
        try:
            self.schema = parse_schema(self.properties.get("avro.schema", b""))
        except ValueError as error:
            raise Unsupported(f"its header cannot be parsed: {error}") from error


def _without(data: bytes, count: int, locate: Locate, wanted: Mapping[Any, int]) -> tuple[bytes, list[int]]:
    """Returns a block's records without those with an id, and the positions of those ids."""
    kept, dropped, begun, at = list[bytes](), list[int](), 0, 0
    if count > len(data):
        raise FormatError(f"{count:,} records do not fit in {len(data):,} bytes")
    try:
        for _ in range(count):
            end, value = locate(data, at)
            if value in wanted:
                kept.append(data[begun:at])
                dropped.append(wanted[value])
                begun = end
            at = end
    except (IndexError, struct.error) as error:
        raise FormatError("a record is longer than its block") from error
    except RecursionError as error:
        raise Unsupported("its records are nested too deeply") from error
    if at != len(data):
        raise FormatError(f"{count:,} records take {at:,} bytes, but their block has {len(data):,}")
    kept.append(data[begun:])
    return b"".join(kept), dropped


# Binary encoding


def _behind(data: bytes, at: int) -> int:
    """Returns the end of bytes or a string."""
    length, at = number(data, at)
    if length < 0:
        raise FormatError(f"a text has {length} bytes")
    return at + length


def _damaged() -> None:
    raise FormatError("a value does not match the file's schema")


# Ends of records, and their ids


def compile_locate(schema: AvroType, path: Sequence[Names], declared: str, ids: pa.DataType) -> Locate:
    """Compiles the function that locates ids. path: names of a column, and of the fields in it. declared: the column's
    type in the table; ids: that of the keys. Raises Unsupported if the field is missing or cannot be compared."""
    compiler = _Compiler(lambda type_: _reader(type_, declared, ids))
    try:
        found = compiler.locate(schema, path)
    except ValueError as error:
        raise Unsupported(f"the file's own schema does not define the id: {error}") from error
    except RecursionError as error:
        raise Unsupported("its schema is nested too deeply") from error
    locate: Locate = compiler.compiled()[found]
    return locate


class _Compiler:
    """A compiler of Python functions of (d: a block, p: start of a value), one for each record, array and map, for
    speed. No text of a schema enters the source: only sizes, and names generated here."""

    def __init__(self, reader: Callable[[AvroType], Read]) -> None:
        self._reader = reader
        self._lines: list[str] = []
        self._names: dict[AvroType, str] = {}
        self._known: dict[str, Any] = {"number": number, "behind": _behind, "damaged": _damaged}

    def compiled(self) -> dict[str, Any]:
        exec(compile("\n".join(self._lines), "<Avro schema>", "exec"), self._known)
        return self._known

    def locate(self, record: AvroType, path: Sequence[Names]) -> str:
        """Returns the name of a function that returns (end of a record, its field's value)."""
        if record.kind != "record":
            raise ValueError(f"a {record.kind} has no field {path[0][0]}")
        wanted, lines = find_field(record, path[0]), []
        for each in record.fields:
            lines += self._value(each.type, path[1:]) if each is wanted else self._skip(each.type)
        return self._function([*lines, "return p, v"])

    def _value(self, type_: AvroType, path: Sequence[Names]) -> list[str]:
        """Returns statements that read a value into `v`, and advance `p` past it."""
        if type_.kind == "union":
            return self._union([self._value(branch, path) for branch in type_.inner])
        if type_.kind == "null":
            return ["v = None"]
        if path:
            return [f"p, v = {self.locate(type_, path)}(d, p)"]
        name = f"read{len(self._known)}"
        self._known[name] = self._reader(type_)
        return [f"v = {name}(d, p)", *self._skip(type_)]

    def _skip(self, type_: AvroType) -> list[str]:
        """Returns statements that advance `p` past a value."""
        width = type_.width
        if width is not None:
            return [f"p += {width}"]
        match type_.kind:
            case "int" | "long" | "enum":
                return ["while d[p] > 127:", " p += 1", "p += 1"]
            case "bytes" | "string":  # usually shorter than 64 bytes
                return ["n = d[p]", "p = behind(d, p) if n & 129 else p + 1 + (n >> 1)"]
            case "union":
                return self._union([self._skip(branch) for branch in type_.inner])
        return [f"p = {self._named(type_)}(d, p)"]

    def _union(self, branches: list[list[str]]) -> list[str]:
        few = len(branches) <= 64  # the branch index is a single byte, twice its number
        lines = ["n = d[p]", "p += 1"] if few else ["n, p = number(d, p)"]
        for index, branch in enumerate(branches):
            said = 2 * index if few else index
            lines += [f"{'elif' if index else 'if'} n == {said}:", *(f" {line}" for line in branch)]
        return [*lines, "else:", " damaged()"] if branches else ["damaged()"]

    def _named(self, type_: AvroType) -> str:
        """Returns the name of a function that returns the end of a record, array or map. The name is assigned before
        the function is generated, because it may be recursive."""
        if type_ in self._names:
            return self._names[type_]
        name = self._names[type_] = f"skip{len(self._names)}"
        if type_.kind == "record":
            lines = [line for each in type_.fields for line in self._skip(each.type)]
            self._function([*lines, "return p"], name)
        else:
            self._function(self._items(type_), name)
        return name

    def _items(self, type_: AvroType) -> list[str]:
        """Returns statements that skip blocks of items; a block with a negative count also contains its size."""
        width = type_.inner[0].width if type_.kind == "array" else None
        if width is None:
            key = ["p = behind(d, p)"] if type_.kind == "map" else []
            item = ["for _ in range(c):", *(f" {line}" for line in [*key, *self._skip(type_.inner[0])])]
        else:
            item = [f"p += {width} * c"]
        block = [
            "c, p = number(d, p)",
            "if c == 0:",
            " return p",
            "if c < 0:",
            " c, (e, p) = -c, number(d, p)",
            " e += p",
            "else:",
            " e = -1",
            *item,
            "if e not in (-1, p):",
            " damaged()",
        ]
        return ["while True:", *(f" {line}" for line in block)]

    def _function(self, lines: list[str], name: str = "") -> str:
        name = name or f"locate{len(self._lines)}"
        self._lines += [f"def {name}(d, p):", *(f" {line}" for line in lines)]
        return name


# Values


def _canonical(keys: pa.Array) -> list[Any]:
    """Returns the keys in the form in which `_reader` returns values."""
    if pa.types.is_timestamp(keys.type):
        keys = keys.cast(pa.timestamp("ms", keys.type.tz)).cast(pa.int64())
    elif pa.types.is_date(keys.type):
        keys = keys.cast(pa.int32())
    found = keys.to_pylist()
    if pa.types.is_decimal(keys.type):
        return [int(_WIDE.scaleb(key, keys.type.scale)) for key in found]
    if pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type):
        return [key.encode() for key in found]
    return [_real(key) for key in found] if pa.types.is_floating(keys.type) else found


def _real(value: float) -> float | str:
    """Makes all NaNs equal, as in the engine's joins."""
    return value if value == value else "NaN"


def _reader(type_: AvroType, declared: str, ids: pa.DataType) -> Read:
    """Returns a reader of values with Hive's semantics: a date is days, a timestamp milliseconds, regardless of the
    file's logical type. Raises Unsupported."""
    kind, of = type_.kind, pa.types
    if kind in ("int", "long") and (of.is_integer(ids) or of.is_date(ids) or of.is_timestamp(ids)):
        return lambda data, at: number(data, at)[0]
    if kind == "boolean" and of.is_boolean(ids):
        return lambda data, at: data[at] == 1
    if kind in ("int", "long", "float", "double") and of.is_floating(ids):
        return _real_reader(kind, single=of.is_float32(ids))
    if kind in ("bytes", "string", "fixed"):
        raw = _raw_reader(type_)
        if type_.scale is not None and of.is_decimal(ids):
            return _decimal_reader(raw, ids.scale - type_.scale)
        if of.is_binary(ids):
            return raw
        if (of.is_string(ids) or of.is_large_string(ids)) and kind != "fixed":
            return _text_reader(raw, declared)
    if kind == "enum" and (of.is_string(ids) or of.is_large_string(ids)):
        symbols = dict(enumerate(symbol.encode() for symbol in type_.symbols))
        return lambda data, at: symbols.get(number(data, at)[0])
    raise Unsupported(f"an Avro {kind} cannot be compared with ids of type {ids}")


def _raw_reader(type_: AvroType) -> Read:
    if type_.kind == "fixed":
        return lambda data, at: data[at : at + type_.size]

    def read(data: bytes, at: int) -> bytes:
        length, at = number(data, at)
        return data[at : at + length]

    return read


def _decimal_reader(raw: Read, more: int) -> Read:
    """Returns a reader of decimals as integers at the ids' scale. more: the ids' scale less the file's."""
    factor = 10 ** abs(more)

    def read(data: bytes, at: int) -> int | None:
        digits: int = int.from_bytes(raw(data, at), "big", signed=True)
        if more >= 0:
            return digits * int(factor)
        whole, rest = divmod(digits, factor)
        return None if rest else whole

    return read


def _real_reader(kind: str, *, single: bool) -> Read:
    if kind in ("float", "double"):
        unpack = struct.Struct("<f" if kind == "float" else "<d").unpack_from
        return lambda data, at: _real(unpack(data, at)[0])
    if single:
        return lambda data, at: struct.unpack("<f", struct.pack("<f", number(data, at)[0]))[0]
    return lambda data, at: float(number(data, at)[0])


def _text_reader(raw: Read, declared: str) -> Read:
    """Returns a reader that truncates a char or varchar to its length, and strips a char's trailing blanks."""
    kind, _, length = declared.partition("(")
    if kind not in ("char", "varchar"):
        return raw
    most = int(length.rstrip(")"))

    def read(data: bytes, at: int) -> bytes:
        text = raw(data, at).decode("utf-8", "replace")[:most]
        return bytes((text.rstrip(" ") if kind == "char" else text).encode())

    return read
