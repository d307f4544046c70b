"""Conversions generated from the rows of `objects`: thrift structs, and the text inside messages, from and to values.
Pure.

Each is a function whose code is generated from the rows, once: iterating over the rows for each object takes several
times as long. A text is parsed into a shape whose parts remain text, and each distinct part is parsed once. A text that
does not fit its shape (ids sent by a newer server) is parsed field by field, which omits nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from thrift.protocol.TJSONProtocol import TJSONProtocol
from thrift.Thrift import TException, TType
from thrift.transport.TTransport import TMemoryBuffer

from cmroot.errors import FormatError
from cmroot.names import HINT, foreign
from replicator.core.model import Serde, Value
from replicator.metastore import objects
from replicator.metastore.objects import HOMES, OBJECTS, PARTS, Kind, text_map

# ---- tjson -----------------------------------------------------------------------------------------------------------
# thrift's TJSON form of a value, driven by `thrift_spec`: the form of `extra`, of privileges and of column statistics.
#
# A struct is an object keyed by field id, each value tagged with its type: {"17": {"str": "hive"}}. Lists are [type, n,
# ...], maps [key type, value type, n, {...}], booleans 1 and 0, binary values base64.


_TAGS = {
    TType.BOOL: "tf",
    TType.BYTE: "i8",
    TType.I16: "i16",
    TType.I32: "i32",
    TType.I64: "i64",
    TType.DOUBLE: "dbl",
    TType.STRING: "str",
    TType.STRUCT: "rec",
    TType.LIST: "lst",
    TType.SET: "set",
    TType.MAP: "map",
}
_LARGEST = {TType.BYTE: 1 << 7, TType.I16: 1 << 15, TType.I32: 1 << 31, TType.I64: 1 << 63}
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def struct_to_tjson(value: Any) -> dict[str, Any]:
    """Returns the fields of a thrift struct that are set."""
    return fields_to_tjson(value, value.thrift_spec)


def fields_to_tjson(value: Any, rows: Any) -> dict[str, Any]:
    """Returns the fields of `rows` that are set on `value`, by field id."""
    found = {}
    for row in rows:
        if row is not None and (field := getattr(value, row[2])) is not None:
            found[str(row[0])] = {_TAGS[row[1]]: _encode(field, row[1], row[3])}
    return found


def _encode(value: Any, kind: int, args: Any) -> Any:
    if kind == TType.STRUCT:
        return struct_to_tjson(value)
    if kind in (TType.LIST, TType.SET):
        items = sorted(value) if kind == TType.SET else value
        return [_TAGS[args[0]], len(value), *(_encode(item, args[0], args[1]) for item in items)]
    if kind == TType.MAP:
        pairs = {str(_encode(key, args[0], args[1])): _encode(item, args[2], args[3]) for key, item in value.items()}
        return [_TAGS[args[0]], _TAGS[args[2]], len(pairs), pairs]
    if kind == TType.BOOL:
        return int(value)
    if kind == TType.DOUBLE:
        return _NOT_FINITE.get(str(value), value)
    if args == "BINARY":
        return base64.b64encode(value).decode("ascii")
    return value


def struct_from_tjson(cls: Any, fields: dict[str, Any]) -> Any:
    """Returns a struct of class `cls`; fields that its spec does not know, or knows with another type, are omitted."""
    value = cls()
    set_fields(value, fields)
    return value


def set_fields(value: Any, fields: dict[str, Any]) -> None:
    """Sets fields given in TJSON form on a thrift struct, if its spec knows them. Raises FormatError for values that
    are not of the spec's type: sending them would end the connection during a call."""
    try:
        _set_fields(value, fields)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise FormatError(f"{type(value).__name__}: {error!r}: {str(fields)[:200]}", hint=HINT) from error


def _set_fields(value: Any, fields: dict[str, Any]) -> None:
    spec = value.thrift_spec
    for key, tagged in fields.items():
        field = int(key)
        row = spec[field] if field < len(spec) else None
        if row is not None and (tag := _TAGS[row[1]]) in tagged:
            setattr(value, row[2], _decode(tagged[tag], row[1], row[3]))


def field_from_tjson(row: Any, tagged: dict[str, Any]) -> Any:
    """Returns the value of a field that thrift describes by `row`. Raises KeyError, TypeError or ValueError."""
    return _decode(tagged[_TAGS[row[1]]], row[1], row[3])


def _decode(data: Any, kind: int, args: Any) -> Any:
    if kind == TType.STRUCT:
        return struct_from_tjson(args[0], data)
    if kind == TType.STRING and args != "BINARY" and not isinstance(data, str):
        raise TypeError(f"{data!r} is not text")
    if kind in _LARGEST and not (isinstance(data, int) and -_LARGEST[kind] <= data < _LARGEST[kind]):
        raise ValueError(f"{data!r} is not of type {_TAGS[kind]}")
    if kind == TType.LIST:
        return [_decode(item, args[0], args[1]) for item in data[2:]]
    if kind == TType.SET:
        return {_decode(item, args[0], args[1]) for item in data[2:]}
    if kind == TType.MAP:
        items = ((key, item) for key, item in data[3].items() if item is not None)
        return {_key(key, args[0]): _decode(item, args[2], args[3]) for key, item in items}
    if kind == TType.BOOL:
        return bool(data)
    if kind == TType.DOUBLE:
        return float(data)
    if args == "BINARY":
        return base64.b64decode(data + "=" * (-len(data) % 4))
    return data


def _key(text: str, kind: int) -> Any:
    """Parses the key of a map: in JSON all keys are strings, whatever their type."""
    return text if kind == TType.STRING else int(text)


# ---- codecs ----------------------------------------------------------------------------------------------------------


T = TypeVar("T", bound=Value)
F = TypeVar("F", bound=Callable[..., Any])
_UNREADABLE = (msgspec.DecodeError, TException, EOFError, KeyError, TypeError, ValueError, AttributeError, IndexError)
_read_any = msgspec.json.Decoder().decode
_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _once(function: F) -> F:
    """Applies `cache`, preserving the function's types."""
    return cast(F, cache(function))


class _Row(NamedTuple):
    """One field. id, field: in thrift; `spec`: thrift's description of it. default: the attribute's."""

    attribute: str
    id: int
    field: str
    spec: Any
    kind: Kind
    default: Any

    def filled(self, expression: str, x: str) -> str:
        cls = f"ttypes.{self.spec[3][0].__name__}" if "{c}" in expression else ""
        return expression.format(x=x, d=repr(self.default), c=cls)

    @property
    def required(self) -> bool:
        return self.kind.absent is msgspec.NODEFAULT


@_once
def _all_rows(model: type[Any]) -> tuple[_Row, ...]:
    cls, rows = OBJECTS[model]
    defaults = {each.name: each.default for each in msgspec.structs.fields(model)}
    defaults = {name: None if default is msgspec.NODEFAULT else default for name, default in defaults.items()}
    specs = {name: cls.thrift_spec[field] for name, (field, _) in rows.items()}
    return tuple(
        _Row(name, field, specs[name][2], specs[name], kind, defaults.get(name)) for name, (field, kind) in rows.items()
    )


def _rows(model: type[Any]) -> list[_Row]:
    """Returns the rows of the fields that are attributes."""
    return [row for row in _all_rows(model) if row.attribute in model.__struct_fields__]


def _others(model: type[Any]) -> list[Any]:
    """Returns thrift's descriptions of the fields that are stored in `extra`."""
    if "extra" not in model.__struct_fields__:
        return []
    return [spec for spec in OBJECTS[model][0].thrift_spec if spec and str(spec[0]) not in HOMES[model]]


def _made(*lines: str, **names: Any) -> Callable[..., Any]:
    """Generates a function of `x` that returns its last line. It may use the names of this module and of `objects`."""
    scope = vars(objects) | globals() | names
    exec("\n    ".join(["def made(x):", *lines[:-1], f"return {lines[-1]}"]), scope)
    made: Callable[..., Any] = scope["made"]
    return made


# ---- thrift -------------------------------------------------------------------------------------------------------


@_once
def from_thrift(model: type[T]) -> Callable[[Any], T]:
    """Returns a function that converts a thrift struct to a `model`."""
    given = [f"{row.attribute}={row.filled(row.kind.read, f'x.{row.field}')}" for row in _rows(model)]
    if others := _others(model):
        given.append(f"extra={{}} if {_unset(others)} else fields_to_tjson(x, others)")
    return _made(f"model({', '.join(given)})", model=model, others=others)


@_once
def to_thrift(model: type[T]) -> Callable[[T], Any]:
    """Returns a function that converts a `model` to a thrift struct, with the ids of its `extra` that the field table
    knows. The function raises FormatError for a value that cannot be sent."""
    lines = [f"struct.{row.field} = {row.filled(row.kind.write, f'x.{row.attribute}')}" for row in _rows(model)]
    if "extra" in model.__struct_fields__:
        lines.append("if x.extra: set_extra(struct, x.extra, homes)")
    names = {"cls": OBJECTS[model][0], "set_extra": _set_extra, "homes": HOMES[model]}
    return _made("struct = cls()", *lines, "struct", **names)


def _unset(others: list[Any]) -> str:
    return " is ".join(["None", *(f"x.{spec[2]}" for spec in others)])


def _set_extra(struct: Any, extra: dict[str, Any], homes: frozenset[str]) -> None:
    if not homes.isdisjoint(extra):
        raise foreign(type(struct).__name__, "extra fields", sorted(extra), "have fields of their own")
    set_fields(struct, extra)


_of_serde = attrgetter(*(row.field for row in _rows(Serde)))
_is_plain = _made(_unset(_others(Serde)))


def shared_serde(info: Any) -> Serde:
    """Converts a serde; equal ones are one object, because a million partitions have the same."""
    if info is None:
        return Serde()
    if not _is_plain(info):
        return from_thrift(Serde)(info)
    name, library, parameters = _of_serde(info)
    return _serde(name, library, tuple(parameters.items()) if parameters else ())


@lru_cache(PARTS)
def _serde(name: str | None, library: str | None, parameters: tuple[tuple[str, str | None], ...]) -> Serde:
    return Serde(name=name, library=library, parameters=text_map(dict(parameters)))


# ---- the text inside messages -------------------------------------------------------------------------------------


@_once
def from_text(model: type[T]) -> Callable[[str | bytes], T]:
    """Returns a parser of the text of an object inside a message to a `model`. The function raises FormatError."""
    read, build = msgspec.json.Decoder(_shape(model)).decode, _from_shape(model)

    def made(text: str | bytes) -> T:
        try:
            return build(read(text))
        except _UNREADABLE:
            return _slowly(model, text)

    return made


@_once
def partial_shape(model: type[Any], only: frozenset[str]) -> Callable[[str], Any]:
    """Returns a parser of `only` these attributes of a text, each as `.value`. The function raises DecodeError."""
    return msgspec.json.Decoder(_shape(model, only)).decode


@_once
def _shape(model: type[Any], only: frozenset[str] = frozenset()) -> Any:
    """Returns the shape of an object. An id without a row is not allowed, unless `only` some attributes are parsed."""
    fields = [_field(row, only) for row in _all_rows(model) if not only or row.attribute in only]
    fields.sort(key=lambda field: field[2].default is not msgspec.NODEFAULT)
    return msgspec.defstruct(model.__name__, fields, frozen=True, gc=False, forbid_unknown_fields=not only)


def _field(row: _Row, only: frozenset[str]) -> tuple[str, Any, Any]:
    shape = _leaf(row.kind, only) if row.kind.tag else msgspec.Raw
    return row.attribute, shape, msgspec.field(name=str(row.id), default=msgspec.NODEFAULT if row.required else shape())


@_once
def _leaf(kind: Kind, only: frozenset[str] = frozenset()) -> Any:
    """Returns the shape of a tagged value: {"str": "a"}."""
    shape = _shape(kind.nested, only) if kind.nested else kind.type
    shape = shape if kind.absent is msgspec.NODEFAULT else shape | None
    value = ("value", shape, msgspec.field(name=kind.tag, default=kind.absent))
    return msgspec.defstruct(kind.tag, [value], frozen=True, gc=False, forbid_unknown_fields=not only)


@_once
def _from_shape(model: type[T]) -> Callable[[Any], T]:
    lines, given = [], [f"{row.attribute}={_of_leaf(row, f'x.{row.attribute}.value')}" for row in _rows(model)]
    if parts := [row for row in _rows(model) if not row.kind.tag]:
        texts = ", ".join(f"bytes(x.{row.attribute})" for row in parts)
        lines = [f"{', '.join(row.attribute for row in parts)}, = parts({texts})"]
    nested = {f"a_{row.attribute}": _from_shape(row.kind.nested) for row in _rows(model) if row.kind.nested}
    return _made(*lines, f"model({', '.join(given)})", model=model, parts=_parts(parts), **nested)


def _of_leaf(row: _Row, x: str) -> str:
    if not row.kind.tag:
        return row.attribute
    if row.kind.nested:
        return f"{x} and a_{row.attribute}({x})"
    return row.filled(row.kind.text or row.kind.read, x)


def _parts(rows: list[_Row]) -> Callable[..., list[Any]]:
    """Returns a function that parses parts, each given as its text."""
    reads = [_part(row) for row in rows]
    return lru_cache(PARTS)(lambda *texts: [read(text) for read, text in zip(reads, texts, strict=True)])


def _reader(row: _Row) -> Callable[[Any], Any]:
    """Returns a function that parses the text of one tagged value to the attribute; None: an absent value."""
    if not row.kind.tag:
        part = lru_cache(PARTS)(_part(row))
        return lambda text: part(bytes(text or b""))
    if row.kind.nested:
        whole = from_text(row.kind.nested)
        return lambda text: whole(_read_fields(text)["rec"]) if text else None
    leaf, of_leaf = msgspec.json.Decoder(_leaf(row.kind)).decode, _made(_of_leaf(row, "x"))
    return lambda text: of_leaf(leaf(text or b"{}").value)


def _part(row: _Row) -> Callable[[bytes], Any]:
    read = _made(row.filled(row.kind.read, "x"))
    nested = row.kind.nested
    if not nested:
        return lambda text: read(field_from_tjson(row.spec, _read_any(text)) if text else None)
    whole, back = from_text(nested), to_thrift(nested)

    def part(text: bytes) -> Any:
        value = whole(_read_fields(text)["rec"]) if text else None
        return value if value and value.extra else read(value and back(value))  # the shared object

    return part


@_once
def _readers(model: type[Any]) -> list[tuple[str, str, Callable[[Any], Any]]]:
    return [(row.attribute, str(row.id), _reader(row)) for row in _all_rows(model)]


def _slowly(model: type[T], text: str | bytes) -> T:
    """Parses field by field. Skew locations have lists as keys, which thrift writes so: `{["str",1,"a"]:"file:/..."}`.
    Only thrift's own decoder parses that, thirty times slower than JSON's, without ids missing in the field table."""
    try:
        try:
            fields = _read_fields(text)
        except msgspec.DecodeError:
            struct = OBJECTS[model][0]()
            struct.read(TJSONProtocol(TMemoryBuffer(text if isinstance(text, bytes) else text.encode())))
            return from_thrift(model)(struct)
        given = {name: read(fields.pop(field, None)) for name, field, read in _readers(model)}
        given = {name: value for name, value in given.items() if name in model.__struct_fields__}
        return model(**given, extra={key: _read_any(value) for key, value in fields.items()})
    except _UNREADABLE as error:
        raise FormatError(f"not a {model.__name__.lower()} in thrift's JSON form: {error!r}", hint=HINT) from error
