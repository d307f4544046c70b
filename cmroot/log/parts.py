"""A directory of parts with a marker written last: what log segments and dumps are made of. Works on any store.

A part is a gzip file of lines, or a Parquet file; each is published whole, with its rows, size and checksum. The marker
is a JSON file that lists them. Without the marker the directory says nothing, and whoever owns it may remove it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from cmroot.errors import UNREADABLE, FormatError
from cmroot.names import check_below, foreign, is_checksum
from cmroot.store.place import Place

LINES = "lines"
PARQUET = "parquet"

ROW_GROUP = 64 * 1024
"""Rows of one Parquet row group: what a reader must hold at once, and what a Spark task can take."""

CHUNK = 256 * 1024


class Part(msgspec.Struct, frozen=True):
    """A finished part: name relative to the directory, `lines` or `parquet`, rows, bytes, checksum of its bytes."""

    name: str
    kind: str
    rows: int
    size: int
    xxh3_128: str


class Marker(msgspec.Struct, frozen=True):
    """What a marker says. `format` and `version` name the kind of directory; `metadata` is its owner's."""

    format: str
    version: int
    parts: list[Part]
    metadata: dict[str, Any]


class _Versioned(msgspec.Struct, frozen=True):
    format: str
    version: int


def conform(table: Any, schema: Any) -> Any:
    """A table with exactly the columns of a schema: missing ones null, others refused. Raises FormatError."""
    if table.schema.equals(schema):
        return table
    unknown = set(table.column_names) - set(schema.names)
    if unknown:
        raise FormatError(f"columns that the schema does not have: {sorted(unknown)}", hint="report this as a bug")
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def encode_marker(marker: Marker) -> bytes:
    return msgspec.json.format(msgspec.json.encode(marker), indent=1) + b"\n"


def read_marker(path: str, format: str, version: int) -> Marker:
    """The marker at a path. Raises FormatError when missing, damaged, or of another format or version."""
    try:
        data = Place(path).read_bytes()
    except FileNotFoundError as error:
        raise FormatError(
            f"{path}: missing, so nothing beside it counts", hint="it is unfinished: run again"
        ) from error
    try:
        found = msgspec.json.decode(data, type=_Versioned)
        if found.format != format or found.version != version:
            raise FormatError(
                f"{path}: format {found.format} version {found.version}, expected {format} version {version}",
                hint="use the release that wrote it, or a newer one",
            )
        marker = msgspec.json.decode(data, type=Marker)
    except UNREADABLE as error:
        raise damaged(path, f"cannot be read: {error}") from error
    _check_parts(marker.parts, path)
    return marker


def _check_parts(parts: list[Part], path: str) -> None:
    """A part lies below its directory, once. Raises FormatError."""
    check_below(path, "the name of a part", (part.name for part in parts))
    seen = set()
    for part in parts:
        if part.name in seen:
            raise foreign(path, "part", part.name, "is named twice")
        seen.add(part.name)
        if part.kind not in (LINES, PARQUET):
            raise foreign(path, f"the kind of part {part.name}", part.kind, f"is neither {LINES} nor {PARQUET}")
        if part.rows < 0 or part.size < 0:
            raise foreign(path, f"rows and size of part {part.name}", (part.rows, part.size), "are no counts")
        if not is_checksum(part.xxh3_128):
            raise foreign(path, f"the checksum of part {part.name}", part.xxh3_128, "is none")


def damaged(path: str, what: str) -> FormatError:
    return FormatError(f"{path}: {what}", hint="restore it from a copy, or make its directory again")
