"""thrift's TJSON form of a value, driven by `thrift_spec`: the form of `extra`, of privileges and of column statistics.

A struct is an object keyed by field id, each value tagged with its type: {"17": {"str": "hive"}}. Lists are
[type, n, ...], maps [key type, value type, n, {...}], booleans 1 and 0, binary values base64.
"""

from __future__ import annotations

import base64
from typing import Any

from thrift.Thrift import TType

from cmroot.errors import FormatError
from cmroot.names import HINT

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
    """The fields of a thrift struct that are set, unset ones left out."""
    return fields_to_tjson(value, value.thrift_spec)


def fields_to_tjson(value: Any, rows: Any) -> dict[str, Any]:
    """Those of `rows` that are set on `value`, by field id."""
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
    """A struct of class `cls`; fields that its spec does not know, or knows with another type, are left out."""
    value = cls()
    set_fields(value, fields)
    return value


def set_fields(value: Any, fields: dict[str, Any]) -> None:
    """Set fields given in TJSON form on a thrift struct, as far as its spec knows them. Raises FormatError for what is
    not of the spec's type: sent, it would end the connection in the middle of a call."""
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
    """The value of a field that thrift describes by `row`. Raises KeyError, TypeError or ValueError for another."""
    return _decode(tagged[_TAGS[row[1]]], row[1], row[3])


def _decode(data: Any, kind: int, args: Any) -> Any:
    if kind == TType.STRUCT:
        return struct_from_tjson(args[0], data)
    if kind == TType.STRING and args != "BINARY" and not isinstance(data, str):
        raise TypeError(f"{data!r} is no text")
    if kind in _LARGEST and not (isinstance(data, int) and -_LARGEST[kind] <= data < _LARGEST[kind]):
        raise ValueError(f"{data!r} is no {_TAGS[kind]}")
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
    """Keys of maps are strings in JSON, whatever their type."""
    return text if kind == TType.STRING else int(text)
