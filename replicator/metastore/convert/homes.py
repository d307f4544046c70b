"""What the conversions share: which thrift fields have a home in `model`, names of enums, values built once.

Null maps are read as empty ones. A key whose value is null is left out of a map: the metastore cannot store it, and
thrift's encoder cannot send it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from hmsclient.genthrift.hive_metastore import ttypes

import replicator.metastore.convert.fields  # noqa: F401  the field table must be in place before a spec is read
from cmroot.errors import FormatError
from cmroot.names import HINT
from replicator.core.model import Column, Database, Function, Partition, Serde, Storage, Table

ENGINE = "hive"  # whose statistics: some 4.x releases require it, older ones skip it

PRINCIPALS = {1: "USER", 2: "ROLE", 3: "GROUP"}
RESOURCES = {1: "JAR", 2: "FILE", 3: "ARCHIVE"}
FUNCTIONS = {1: "JAVA"}

# The fields that have a home in `model`, by thrift id; every other one that is set goes to `extra`.
TYPED: dict[Any, frozenset[int]] = {
    ttypes.Database: frozenset({1, 2, 3, 4, 6, 7}),
    ttypes.Table: frozenset({*range(1, 16), 18}),
    ttypes.Partition: frozenset(range(1, 8)),
    ttypes.StorageDescriptor: frozenset(range(1, 13)),
    ttypes.SerDeInfo: frozenset(range(1, 4)),
    ttypes.Function: frozenset(range(1, 9)),
}
EXTRA_ROWS = {cls: tuple(row for row in cls.thrift_spec if row and row[0] not in typed) for cls, typed in TYPED.items()}
TYPED_KEYS = {cls: frozenset(map(str, typed)) for cls, typed in TYPED.items()}
NEVER_EXTRA = {
    Database: TYPED_KEYS[ttypes.Database],
    Table: TYPED_KEYS[ttypes.Table],
    Partition: TYPED_KEYS[ttypes.Partition],
    Storage: TYPED_KEYS[ttypes.StorageDescriptor],
    Serde: TYPED_KEYS[ttypes.SerDeInfo],
    Function: TYPED_KEYS[ttypes.Function],
}
"""What the `extra` of a value must not hold: written back, it would be another name, or another location."""


def text_map(entries: Mapping[str, str | None] | None) -> dict[str, str]:
    """A new map without the keys whose value is null."""
    if not entries:
        return {}
    if None in entries.values():
        return {key: value for key, value in entries.items() if value is not None}
    return dict(cast("Mapping[str, str]", entries))


def named(names: dict[int, str], code: int | None) -> str | None:
    """An enum's name; a number that is newer than the names above stays a number."""
    return None if code is None else names.get(code, str(code))


def number(names: dict[int, str], name: str | None) -> int | None:
    """The other way round. A name that is neither known nor a number of 32 bits raises FormatError."""
    if name is None:
        return None
    code = next((code for code, known in names.items() if known == name), None)
    if code is None and not (name.isascii() and name.isdecimal() and int(name[:11]) < 1 << 31):
        raise FormatError(f"{name!r} is none of {', '.join(names.values())}", hint=HINT)
    return int(name) if code is None else code


@lru_cache(maxsize=8192)
def columns(rows: tuple[tuple[str, str, str | None], ...]) -> tuple[Column, ...]:
    return tuple(Column(name=name, type=type_, comment=comment) for name, type_, comment in rows)


@lru_cache(maxsize=8192)
def serde(name: str | None, library: str | None, parameters: tuple[tuple[str, str | None], ...]) -> Serde:
    return Serde(name=name, library=library, parameters=text_map(dict(parameters)))
