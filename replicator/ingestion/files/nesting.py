"""Flattening of nested rows: structures become columns; lists and maps become tables of their own, which join back.

A row has a `row_id`; a row of a list has the `parent_id` of the row that contains the list, and its `position` in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from replicator.core.text import quoted_name
from replicator.errors import TypeRefused

ROW, PARENT, POSITION = "row_id", "parent_id", "position"

DEEPEST = 20
"""Maximum nesting depth of lists."""

Type = str | Mapping[str, Any]
"""A type in Spark's JSON representation."""

_TYPES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp",
    "void": "string",  # it has no values
}
_SIZED = re.compile(r"decimal\(\d+,\d+\)|(char|varchar)\(\d+\)", re.ASCII)


@dataclass(frozen=True)
class PartColumn:
    """name: as landed, except for its case. path: fields from the part's row. type: as written in Hive and Spark."""

    name: str
    path: tuple[str, ...]
    type: str

    @property
    def summed(self) -> bool:
        return self.type in ("tinyint", "smallint", "int", "bigint") or self.type.startswith("decimal")


@dataclass(frozen=True)
class Part:
    """One of the tables into which rows are flattened. name: "" for the rows themselves. parent: the part whose rows
    contain the list or map at the path `via`."""

    name: str
    parent: str
    via: tuple[str, ...]
    is_map: bool
    columns: tuple[PartColumn, ...]


def parts_of(schema: Mapping[str, Any]) -> list[Part]:
    """Returns the parts of a schema, each after its parent. schema: of a DataFrame, in Spark's JSON. Raises
    TypeRefused, naming the column, also for two lists whose tables would have the same name."""
    parts, seen = list(_parts("", "", (), False, schema, 0)), dict[str, Part]()
    for part in parts:
        other = seen.setdefault(part.name.lower(), part)
        if other is not part:
            told = " and ".join(".".join(filter(None, (each.parent, *each.via))) for each in (other, part))
            raise TypeRefused(f"{told} would both land in a table {part.name}", hint="write one by another name")
    return parts


def _parts(name: str, parent: str, via: tuple[str, ...], is_map: bool, type_: Type, depth: int) -> Iterator[Part]:
    if depth > DEEPEST:
        raise TypeRefused(f"lists lie too deep in each other: {name[:200]}", hint=f"{DEEPEST} at most")
    columns, lists = list[PartColumn](), list[tuple[tuple[str, ...], Type]]()
    for path, found in _leaves((), type_):
        if isinstance(found, str):
            columns.append(PartColumn("_".join(path) or "value", path, _type(found, path)))
        else:
            lists.append((path, found))
    yield Part(name, parent, via, is_map, tuple(columns))
    for path, found in lists:
        assert isinstance(found, Mapping)
        below = "_".join(path) or "elements"
        yield from _parts(
            f"{name}__{below}" if name else below, name, path, found["type"] == "map", _row_of(found), depth + 1
        )


def _leaves(path: tuple[str, ...], type_: Type) -> Iterator[tuple[tuple[str, ...], Type]]:
    """Yields single values, lists and maps below a type."""
    if isinstance(type_, Mapping) and type_["type"] == "struct":
        for each in type_["fields"]:
            yield from _leaves((*path, each["name"]), each["type"])
    elif isinstance(type_, Mapping) and type_["type"] not in ("array", "map"):
        raise TypeRefused(f"column {'.'.join(path)} has the type {type_['type']}", hint="write it as a string")
    else:
        yield path, type_


def _row_of(type_: Mapping[str, Any]) -> Type:
    if type_["type"] == "array":
        return type_["elementType"]  # type: ignore[no-any-return]
    fields = [{"name": "key", "type": type_["keyType"]}, {"name": "value", "type": type_["valueType"]}]
    return {"type": "struct", "fields": fields}


def _type(found: str, path: tuple[str, ...]) -> str:
    if found in _TYPES:
        return _TYPES[found]
    if _SIZED.fullmatch(found):
        return found if found.startswith("decimal") else "string"
    raise TypeRefused(f"column {'.'.join(path)} has the type {found[:80]}", hint="write it as a string")


def frames_of(rows: Any, parts: list[Part], also: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns DataFrames of the parts, by name. rows: with `row_id` if there are several parts. also: columns of the
    rows that are added to each part."""
    kept = [quoted_name(each) for each in also]
    if len(parts) == 1:
        return {"": rows.selectExpr(*_columns(parts[0], ()), *kept)}
    data = [quoted_name(each) for each in rows.columns if each not in (ROW, *also)]
    raw = {"": rows.selectExpr(ROW, f"struct({', '.join(data)}) AS element", *kept)}
    found = {"": raw[""].selectExpr(ROW, *_columns(parts[0], ("element",)), *kept)}
    for part in parts[1:]:
        place = quoted_name("element", *part.via)
        each = f"posexplode({f'map_entries({place})' if part.is_map else place}) AS ({POSITION}, element)"
        some = raw[part.parent].selectExpr(f"{ROW} AS {PARENT}", each, *kept)
        raw[part.name] = some.selectExpr(f"concat({PARENT}, '.', {POSITION}) AS {ROW}", *some.columns)
        found[part.name] = raw[part.name].selectExpr(ROW, PARENT, POSITION, *_columns(part, ("element",)), *kept)
    return found


def _columns(part: Part, below: tuple[str, ...]) -> list[str]:
    return [
        f"CAST({quoted_name(*below, *column.path)} AS {column.type}) AS {quoted_name(column.name.lower())}"
        for column in part.columns
    ]


def keys_of(part: Part, has_lists: bool) -> list[tuple[str, str]]:
    """Returns the columns of a part's table in addition to those of its rows: names and types."""
    if part.name:
        return [(ROW, "string"), (PARENT, "string"), (POSITION, "int")]
    return [(ROW, "string")] if has_lists else []
