"""Structs of the interface with a value in every field, and what a metastore gives back of them, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thrift.Thrift import TType

Fields = dict[str, list[Any]]  # "Struct.field" -> its values, in the order of the objects


def filled(cls: Any, own: Mapping[str, Any], seed: int) -> Any:
    """A struct with a value in every field, and in those of the structs in it. own: given values, by `Struct.field`;
    None: not set. seed: other values for another one."""
    made = cls()
    for row in filter(None, cls.thrift_spec):
        _, kind, name, arguments, *_ = row
        field = f"{cls.__name__}.{name}"
        setattr(made, name, own[field] if field in own else _value(kind, arguments, name, own, seed))
    return made


def _value(kind: int, arguments: Any, name: str, own: Mapping[str, Any], seed: int) -> Any:
    if kind == TType.STRUCT:
        return filled(arguments[0], own, seed)
    if kind == TType.STRING:
        return f"{seed}".encode() if arguments == "BINARY" else f"{name} größer {seed}"
    if kind == TType.LIST or kind == TType.SET:
        one = _value(arguments[0], arguments[1], name, own, seed)
        return [one] if kind == TType.LIST else {one}
    if kind == TType.MAP:
        key = _value(arguments[0], arguments[1], f"key of {name}", own, seed)
        return {key: _value(arguments[2], arguments[3], name, own, seed)}
    if kind == TType.BOOL:
        return bool(seed % 2)
    return seed + 0.5 if kind == TType.DOUBLE else seed


def fields_of(thing: Any, field: str = "") -> Fields:
    """The values of a struct and of the structs in it."""
    found: Fields = {}
    if hasattr(thing, "thrift_spec"):
        for row in filter(None, thing.thrift_spec):
            _add(found, fields_of(getattr(thing, row[2]), f"{type(thing).__name__}.{row[2]}"))
    elif isinstance(thing, list) and any(hasattr(each, "thrift_spec") for each in thing):
        for each in thing:
            _add(found, fields_of(each))
    else:
        found[field] = [thing]
    return found


def _add(found: Fields, more: Fields) -> None:
    for field, values in more.items():
        found.setdefault(field, []).extend(values)
