"""Avro schemas in the form required by a purge: the extent of each value, and the position of a field. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from cmroot.errors import UNREADABLE

_WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_DIGITS = 1000  # decimal places of a decimal
_PRIMITIVE = (*_WIDTHS, "int", "long", "bytes", "string")

Names = tuple[str, ...]
"""The names by which a writer may know a field: the reader's own name first, then its aliases."""


@dataclass(eq=False)
class AvroType:
    """An Avro type. kind: its name in the specification. inner: the element type of an array or map, or the branches of
    a union; fields: of a record; size: of a fixed; symbols: of an enum; scale: of a decimal, else None."""

    kind: str
    inner: list[AvroType] = field(default_factory=list)
    fields: list[AvroField] = field(default_factory=list)
    size: int = 0
    symbols: tuple[str, ...] = ()
    scale: int | None = None

    def __post_init__(self) -> None:
        self._width: int | Literal["unknown"] | None = "unknown"

    @property
    def width(self) -> int | None:
        """The size of every value in bytes; None if it varies."""
        if self._width == "unknown":
            self._width = None  # during the computation, for recursive types
            self._width = self._widths()
        return self._width

    def _widths(self) -> int | None:
        if self.kind != "record":
            return self.size if self.kind == "fixed" else _WIDTHS.get(self.kind)
        widths = [each.type.width for each in self.fields]
        return None if None in widths else sum(width for width in widths if width)


@dataclass(frozen=True)
class AvroField:
    name: str
    type: AvroType
    aliases: Names = ()


def parse_schema(text: str | bytes) -> AvroType:
    """Parses a schema. Raises ValueError if it is invalid."""
    try:
        return _parse(msgspec.json.decode(text), "", {})
    except (*UNREADABLE, LookupError, TypeError) as error:
        raise ValueError(f"no Avro schema: {error}") from error


def find_field(record: AvroType, names: Names) -> AvroField:
    """Returns the field with one of the names; ignores case if there is no exact match. Raises ValueError if there is
    none, or several."""
    lower = {name.lower() for name in names}
    found = [each for each in record.fields if each.name in names]
    found = found or [each for each in record.fields if each.name.lower() in lower]
    if len(found) != 1:
        fields = ", ".join(each.name for each in record.fields)
        raise ValueError(f"it has {len(found)} fields {' or '.join(names)}, among {fields[:200]}")
    return found[0]


def names_of(reader: AvroType, path: Sequence[str]) -> Iterator[Names]:
    """Yields the names of a column, and of the fields in it. Raises ValueError if the schema does not have it."""
    for part in path:
        records = [each for each in (reader, *reader.inner) if each.kind == "record"]
        if len(records) != 1:
            raise ValueError(f"there is no {part} in a {reader.kind}")
        found = find_field(records[0], (part,))
        yield (found.name, *found.aliases)
        reader = found.type


def _parse(value: Any, namespace: str, named: dict[str, AvroType]) -> AvroType:
    """namespace: of names without one."""
    if isinstance(value, str):
        return AvroType(value) if value in _PRIMITIVE else named.get(_full(value, namespace)) or named[value]
    if isinstance(value, list):
        return AvroType("union", [_parse(each, namespace, named) for each in value])
    kind = value["type"]
    match kind:
        case "record" | "error" | "enum" | "fixed":
            return _parse_named(value, namespace, named)
        case "array" | "map":
            return AvroType(kind, [_parse(value["items" if kind == "array" else "values"], namespace, named)])
        case "bytes" if value.get("logicalType") == "decimal":
            return AvroType("bytes", scale=_number(value.get("scale", 0), _DIGITS))
    return _parse(kind, namespace, named)


def _parse_named(value: Mapping[str, Any], namespace: str, named: dict[str, AvroType]) -> AvroType:
    name = _full(str(value["name"]), str(value.get("namespace", namespace) or ""))
    found = named[name] = AvroType("record" if value["type"] == "error" else value["type"])
    if found.kind == "enum":
        found.symbols = tuple(str(symbol) for symbol in value["symbols"])
    elif found.kind == "fixed":
        found.size = _number(value["size"])
        if value.get("logicalType") == "decimal":
            found.scale = _number(value.get("scale", 0), _DIGITS)
    else:
        inside = name.rpartition(".")[0]
        for each in value["fields"]:
            type_ = _parse(each["type"], inside, named)
            found.fields.append(AvroField(str(each["name"]), type_, tuple(map(str, each.get("aliases", ())))))
    return found


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _number(value: Any, most: int = (1 << 31) - 1) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise TypeError(f"{value!r} is no size")
    return value
