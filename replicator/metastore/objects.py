"""The fields of metadata objects: one row per attribute of `model`, from which `codecs` generates the conversions.

A row is the attribute, the id of its field in the thrift struct, and its kind. Name and type of the field are those of
the struct's own description. A field that is set and has no row is stored in the attribute `extra`, if the class has
it. An unset field is read as the attribute's default, and None is not sent: a field of newer servers only requires a
row. Null maps and lists are read as empty ones. A key whose value is null is omitted from a map: the metastore cannot
store it, and thrift's encoder cannot send it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, cast

import msgspec
from hmsclient.genthrift.hive_metastore import ttypes

from cmroot.errors import FormatError
from cmroot.names import HINT
from replicator.core.model import (
    Column,
    ColumnStatistic,
    Database,
    Function,
    NotificationEvent,
    Partition,
    Serde,
    Skew,
    Statistics,
    Storage,
    Table,
)
from replicator.metastore.fields import ids  # extends the structs, before one is described

PRINCIPALS = {1: "USER", 2: "ROLE", 3: "GROUP"}
RESOURCES = {1: "JAR", 2: "FILE", 3: "ARCHIVE"}
FUNCTIONS = {1: "JAVA"}
PARTS = 8192  # distinct columns, serdes and other parts that are cached


class Kind(NamedTuple):
    """The conversion of a field, as expressions: `{x}` is the value, `{d}` the attribute's default, `{c}` the class of
    a struct; other names are those of this module and of `codecs`.

    read: thrift's value -> the attribute's. write: the reverse. tag, type, absent: the form in the text of a message;
    without a tag it is a part, whose text repeats from object to object and is parsed once. text: the text's value ->
    the attribute's, if not as `read`. nested: the class of an object with rows of its own.
    """

    read: str = "{x}"
    write: str = "{x}"
    tag: str = ""
    type: Any = None
    absent: Any = None
    text: str = ""
    nested: type[Any] | None = None


def _enum(names: str) -> Kind:
    return Kind(f"{{d}} if {{x}} is None else named({names}, {{x}})", f"number({names}, {{x}})", "i32", int)


NAME = Kind(tag="str", type=str, absent=msgspec.NODEFAULT)  # required: without it, the text is not that of an object
TEXT = Kind(tag="str", type=str)
TEXT_OR = Kind("{x} or {d}", tag="str", type=str)
NUMBER = Kind("{d} if {x} is None else {x}", tag="i32", type=int)
FLAG = Kind("bool({x})", tag="tf", type=int)
FLAG_OR_NONE = Kind("None if {x} is None else bool({x})", tag="tf", type=int)
PRINCIPAL, FUNCTION = _enum("PRINCIPALS"), _enum("FUNCTIONS")
MAP = Kind(
    "text_map({x})",
    "text_map({x})",
    "map",
    tuple[str, str, int, dict[str, str | None] | None],
    ("", "", 0, None),
    "text_map({x}[3])",
)
TEXTS = Kind("tuple({x} or ())", "list({x})", "lst", tuple[str | int, ...], (), "{x}[2:]")
TEXT_LISTS = Kind("tuple(map(tuple, {x} or ()))", "list(map(list, {x}))")
PLACES = Kind("tuple(sorted((tuple(key), uri) for key, uri in ({x} or {{}}).items()))", "dict({x})")
COLUMNS = Kind("columns(tuple(map(of_column, {x}))) if {x} else ()", "fields({x})")
ORDERS = Kind("tuple(map(of_order, {x})) if {x} else ()", "[ttypes.Order(*each) for each in {x}]")
RESOURCE_URIS = Kind("resources({x} or ())", "[ttypes.ResourceUri(number(RESOURCES, kind), uri) for kind, uri in {x}]")
TJSON = Kind(
    "None if {x} is None else struct_to_tjson({x})",
    "None if {x} is None else struct_from_tjson({c}, {x})",
    "rec",
    dict[str, Any],
    text="{x}",
)
SERDE = Kind("shared_serde({x})", "to_thrift(Serde)({x})", nested=Serde)
SKEW = Kind("from_thrift(Skew)({x}) if {x} and any(vars({x}).values()) else None", "{x} and to_thrift(Skew)({x})")
"""2.3 sends a SkewedInfo without columns for every table: it is read as None."""
STORAGE = Kind("{x} and from_thrift(Storage)({x})", "{x} and to_thrift(Storage)({x})", "rec", nested=Storage)

Rows = Mapping[str, tuple[int, Kind]]

OBJECTS: dict[type[Any], tuple[Any, Rows]] = {
    Database: (
        ttypes.Database,
        {
            "name": (1, NAME),
            "description": (2, TEXT),
            "location": (3, TEXT),
            "parameters": (4, MAP),
            "owner": (6, TEXT),
            "owner_type": (7, PRINCIPAL),
            "managed_location": (10, TEXT),
            "connector": (12, TEXT),
        },
    ),
    Table: (
        ttypes.Table,
        {
            "name": (1, NAME),
            "db": (2, NAME),
            "owner": (3, TEXT),
            "create_time": (4, NUMBER),
            "last_access_time": (5, NUMBER),
            "retention": (6, NUMBER),
            "storage": (7, STORAGE),
            "partition_keys": (8, COLUMNS),
            "parameters": (9, MAP),
            "view_original": (10, TEXT),
            "view_expanded": (11, TEXT),
            "kind": (12, TEXT_OR),
            "privileges": (13, TJSON),
            "temporary": (14, FLAG),
            "rewrite_enabled": (15, FLAG_OR_NONE),
            "owner_type": (18, PRINCIPAL),
        },
    ),
    Partition: (
        ttypes.Partition,
        {
            "values": (1, TEXTS),
            "_db": (2, TEXT),  # names of its table; not attributes
            "_table": (3, TEXT),
            "create_time": (4, NUMBER),
            "last_access_time": (5, NUMBER),
            "storage": (6, STORAGE),
            "parameters": (7, MAP),
        },
    ),
    Storage: (
        ttypes.StorageDescriptor,
        {
            "columns": (1, COLUMNS),
            "location": (2, TEXT),
            "input_format": (3, TEXT),
            "output_format": (4, TEXT),
            "compressed": (5, FLAG),
            "buckets": (6, NUMBER),
            "serde": (7, SERDE),
            "bucket_columns": (8, TEXTS),
            "sort_columns": (9, ORDERS),
            "parameters": (10, MAP),
            "skew": (11, SKEW),
            "subdirectories": (12, FLAG),
        },
    ),
    Serde: (ttypes.SerDeInfo, {"name": (1, TEXT), "library": (2, TEXT), "parameters": (3, MAP)}),
    Skew: (ttypes.SkewedInfo, {"columns": (1, TEXTS), "values": (2, TEXT_LISTS), "locations": (3, PLACES)}),
    Function: (
        ttypes.Function,
        {
            "name": (1, NAME),
            "db": (2, NAME),
            "class_name": (3, NAME),
            "owner": (4, TEXT),
            "owner_type": (5, PRINCIPAL),
            "create_time": (6, NUMBER),
            "kind": (7, FUNCTION),
            "resources": (8, RESOURCE_URIS),
        },
    ),
    Statistics: (
        ttypes.ColumnStatisticsDesc,
        {"db": (2, TEXT), "table": (3, TEXT), "partition": (4, TEXT), "last_analyzed": (5, NUMBER)},
    ),
    ColumnStatistic: (ttypes.ColumnStatisticsObj, {"column": (1, TEXT), "type": (2, TEXT), "data": (3, TJSON)}),
    NotificationEvent: (
        ttypes.NotificationEvent,
        {
            "id": (1, NUMBER),
            "time": (2, NUMBER),
            "type": (3, TEXT),
            "db": (4, TEXT),
            "table": (5, TEXT),
            "message": (6, TEXT),
            "format": (7, TEXT),
            "catalog": (8, TEXT),
        },
    ),
}

HOMES = {model: frozenset(str(field) for field, _ in rows.values()) for model, (_, rows) in OBJECTS.items()}
"""Fields that the `extra` of a value must not contain: written back, they would change the name or the location."""


def text_map(entries: Mapping[str, str | None] | None) -> dict[str, str]:
    """Returns a new map without the keys whose value is null."""
    if not entries:
        return {}
    if None in entries.values():
        return {key: value for key, value in entries.items() if value is not None}
    return dict(cast("Mapping[str, str]", entries))


_SERDE_DETAILS = ids("SerDeInfo", "description", "serializerClass", "deserializerClass", "serdeType")  # since Hive 3


def plain_serde(storage: Storage | None) -> Storage | None:
    """Returns the storage with a serde of the fields that every server stores."""
    if storage is None or not storage.serde.extra.keys() & _SERDE_DETAILS:
        return storage
    extra = {key: value for key, value in storage.serde.extra.items() if key not in _SERDE_DETAILS}
    return msgspec.structs.replace(storage, serde=msgspec.structs.replace(storage.serde, extra=extra))


def named(names: dict[int, str], code: int) -> str:
    """Returns an enum's name; a number that is newer than the names above is returned as its digits."""
    return names.get(code, str(code))


def number(names: dict[int, str], name: str | None) -> int | None:
    """Returns the number of an enum's name. Raises FormatError for neither a known name nor a number of 32 bits."""
    if name is None:
        return None
    code = next((code for code, known in names.items() if known == name), None)
    if code is None and not (name.isascii() and name.isdecimal() and int(name[:11]) < 1 << 31):
        raise FormatError(f"{name!r} is not one of {', '.join(names.values())}", hint=HINT)
    return int(name) if code is None else code


of_column = attrgetter("name", "type", "comment")
of_order = attrgetter("col", "order")


@lru_cache(PARTS)
def columns(rows: tuple[tuple[str, str, str | None], ...]) -> tuple[Column, ...]:
    """Returns columns; equal ones are one object. Raises FormatError for a column without a name or a type."""
    if any(name is None or type_ is None for name, type_, _ in rows):
        raise FormatError(f"a column has no name or no type: {rows}", hint=HINT)
    return tuple([Column(*row) for row in rows])


def fields(columns: Iterable[Column]) -> list[Any]:
    return [ttypes.FieldSchema(*of_column(column)) for column in columns]


def resources(uris: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    """Converts resources. Raises FormatError for a resource without an address."""
    found = tuple((named(RESOURCES, each.resourceType or 1), each.uri) for each in uris)
    if any(uri is None for _, uri in found):
        raise FormatError("a function's resource has no address", hint=HINT)
    return found
