"""The objects inside notification messages -> values. Pure; the input is decoded JSON, a dictionary by field id.

Ids without a home in `model` go to `extra` as they are, whether the field table knows them or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hmsclient.genthrift.hive_metastore import ttypes

from replicator.core.model import MANAGED, Column, Database, Function, Partition, Serde, Skew, Storage, Table
from replicator.metastore.convert.homes import (
    FUNCTIONS,
    PRINCIPALS,
    RESOURCES,
    TYPED_KEYS,
    columns,
    named,
    serde,
    text_map,
)

_NONE: dict[str, Any] = {}


def _str(fields: dict[str, Any], key: str) -> str | None:
    text: str | None = fields.get(key, _NONE).get("str")
    return text


def _int(fields: dict[str, Any], key: str, default: int = 0) -> int:
    value: int = fields.get(key, _NONE).get("i32", default)
    return value


def _list(fields: dict[str, Any], key: str) -> Sequence[Any]:
    found = fields.get(key)
    return found["lst"][2:] if found else ()


def _tjson_map(fields: dict[str, Any], key: str) -> dict[str, Any]:
    found = fields.get(key)
    return text_map(found["map"][3]) if found else {}


def _rest(fields: dict[str, Any], cls: Any) -> dict[str, Any]:
    typed = TYPED_KEYS[cls]
    return {} if typed.issuperset(fields) else {key: fields[key] for key in fields if key not in typed}


def _columns_from_tjson(fields: dict[str, Any], key: str) -> tuple[Column, ...]:
    items = _list(fields, key)
    if not items:
        return ()
    return columns(tuple([(i["1"]["str"], i["2"]["str"], i["3"]["str"] if "3" in i else None) for i in items]))


def _serde_from_tjson(found: dict[str, Any] | None) -> Serde:
    if not found:
        return Serde()
    fields = found["rec"]
    parameters = fields.get("3")
    entries = tuple(parameters["map"][3].items()) if parameters else ()
    known = serde(_str(fields, "1"), _str(fields, "2"), entries)
    if extra := _rest(fields, ttypes.SerDeInfo):
        return Serde(name=known.name, library=known.library, parameters=known.parameters, extra=extra)
    return known


def _skew_from_tjson(found: dict[str, Any] | None) -> Skew | None:
    """Without locations: text that has some is not JSON, see `from_text`."""
    fields = found["rec"] if found else _NONE
    columns, values = _list(fields, "1"), _list(fields, "2")
    if not columns and not values:
        return None
    return Skew(columns=tuple(columns), values=tuple(tuple(value[2:]) for value in values))


def storage_from_tjson(found: dict[str, Any] | None) -> Storage | None:
    if not found:
        return None
    fields = found["rec"]
    return Storage(
        columns=_columns_from_tjson(fields, "1"),
        location=_str(fields, "2"),
        input_format=_str(fields, "3"),
        output_format=_str(fields, "4"),
        compressed=bool(fields.get("5", _NONE).get("tf")),
        buckets=_int(fields, "6", -1),
        bucket_columns=tuple(_list(fields, "8")),
        sort_columns=tuple([(_str(item, "1") or "", _int(item, "2")) for item in _list(fields, "9")]),
        serde=_serde_from_tjson(fields.get("7")),
        parameters=_tjson_map(fields, "10"),
        skew=_skew_from_tjson(fields.get("11")),
        subdirectories=bool(fields.get("12", _NONE).get("tf")),
        extra=_rest(fields, ttypes.StorageDescriptor),
    )


def _owner_type(fields: dict[str, Any], key: str) -> str | None:
    return named(PRINCIPALS, fields.get(key, _NONE).get("i32"))


def database_from_tjson(fields: dict[str, Any]) -> Database:
    return Database(
        name=fields["1"]["str"],
        description=_str(fields, "2"),
        location=_str(fields, "3"),
        parameters=_tjson_map(fields, "4"),
        owner=_str(fields, "6"),
        owner_type=_owner_type(fields, "7"),
        extra=_rest(fields, ttypes.Database),
    )


def table_from_tjson(fields: dict[str, Any]) -> Table:
    rewrite = fields.get("15", _NONE).get("tf")
    return Table(
        db=fields["2"]["str"],
        name=fields["1"]["str"],
        kind=_str(fields, "12") or MANAGED,
        owner=_str(fields, "3"),
        owner_type=_owner_type(fields, "18"),
        create_time=_int(fields, "4"),
        last_access_time=_int(fields, "5"),
        retention=_int(fields, "6"),
        storage=storage_from_tjson(fields.get("7")),
        partition_keys=_columns_from_tjson(fields, "8"),
        parameters=_tjson_map(fields, "9"),
        view_original=_str(fields, "10"),
        view_expanded=_str(fields, "11"),
        rewrite_enabled=None if rewrite is None else bool(rewrite),
        temporary=bool(fields.get("14", _NONE).get("tf")),
        privileges=fields.get("13", _NONE).get("rec"),
        extra=_rest(fields, ttypes.Table),
    )


def partition_from_tjson(fields: dict[str, Any]) -> Partition:
    return Partition(
        values=tuple(_list(fields, "1")),
        create_time=_int(fields, "4"),
        last_access_time=_int(fields, "5"),
        storage=storage_from_tjson(fields.get("6")),
        parameters=_tjson_map(fields, "7"),
        extra=_rest(fields, ttypes.Partition),
    )


def function_from_tjson(fields: dict[str, Any]) -> Function:
    return Function(
        db=fields["2"]["str"],
        name=fields["1"]["str"],
        class_name=fields["3"]["str"],
        owner=_str(fields, "4"),
        owner_type=_owner_type(fields, "5"),
        create_time=_int(fields, "6"),
        kind=named(FUNCTIONS, fields.get("7", _NONE).get("i32")) or "JAVA",
        resources=tuple(
            (named(RESOURCES, _int(item, "1", 1)) or "JAR", item["2"]["str"]) for item in _list(fields, "8")
        ),
        extra=_rest(fields, ttypes.Function),
    )
