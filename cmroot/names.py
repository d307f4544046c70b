"""Validation of names read from files: of parts, files, partitions, objects, ids. Pure.

Any user may have written a dump, a segment or a note, and the names in them are opened, written and removed. So each
name is checked where it is read: a relative path must stay below its directory, an id must be a single name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from cmroot.errors import FormatError
from cmroot.text import UNSAFE, unsafe

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_CHECKSUM = r"^[0-9a-f]{32}$"
_is_checksum = re.compile(r"[0-9a-f]{32}").fullmatch
_OPS = pa.array(["add", "remove", "release"])
LARGEST = (1 << 63) - 1
"""The largest valid position, event id and size: columns of file entries have 64 bits."""

HINT = "it is damaged, or another program wrote it; nothing of it is used: get it again from its source"


def is_below(path: str) -> bool:
    """Returns True if a relative path stays below its directory: no part of it is empty, `.` or `..`."""
    return not unsafe(path)


def is_name(text: str) -> bool:
    """Returns True if a text is a single name in a directory, and not the directory itself or its parent."""
    return "/" not in text and not unsafe(text)


def is_id(text: str) -> bool:
    """Returns True if a text is a valid id of a dump, root, run or role change: letters, digits, `.`, `-`, `_`."""
    return _ID.fullmatch(text) is not None


def is_checksum(text: str) -> bool:
    """Returns True if a text is a checksum in the form used in names and entries: 32 hex digits."""
    return _is_checksum(text) is not None


def foreign(place: str, what: str, value: object, why: str) -> FormatError:
    """Returns the error for a file that contains a forbidden name."""
    return FormatError(f"{place}: {what} {value!r} {why}", hint=HINT)


def check_below(place: str, what: str, paths: Iterable[str]) -> None:
    """Raises FormatError, naming the file at `place`, for the first path that may lead outside its directory."""
    for path in paths:
        if unsafe(path):
            raise foreign(place, what, path, "is not a relative path below its directory")


def check_name(place: str, what: str, name: str) -> None:
    """Raises FormatError if `name` is not a single name."""
    if not is_name(name):
        raise foreign(place, what, name, "is not a name")


def check_id(place: str, what: str, id: str) -> None:
    """Raises FormatError if `id` is not a valid id."""
    if not is_id(id):
        raise foreign(place, what, id, "is not an id: up to 128 letters, digits, dots, dashes and underscores")


def check_entries(
    rows: pa.Table | pa.RecordBatch, place: str, *, pending: bool = False, complete: bool = False
) -> None:
    """Validates the columns of file entries that are present: about 0.2 s per million rows. Raises FormatError with the
    file they were read from and the first invalid value. `pending`: rows of an intercept, which have no position yet;
    `complete`: rows of a dump, all of which have an object and a path."""
    try:
        rows.validate(full=True)  # text that is not UTF-8 fails wherever it is used
    except pa.ArrowInvalid as error:
        raise FormatError(f"{place}: is damaged: {error}", hint=HINT) from error
    there = set(rows.schema.names)
    for name, why in _BELOW.items():
        if name in there:
            values = rows[name] if name == "path" else pc.unique(rows[name])
            _refuse(place, name, values, pc.match_substring_regex(values, UNSAFE), why, empty=name in _MAY_BE_EMPTY)
    for name, pattern in (("checksum", _CHECKSUM), ("location", r"^[^\x00]+$")):
        if name in there:
            values = rows[name] if name == "checksum" else pc.unique(rows[name])
            wrong = pc.invert(pc.match_substring_regex(values, pattern))
            _refuse(place, name, values, wrong, f"is not a {name}")
    for name in () if pending else _COMPLETE if complete else _COMPLETE[:2]:
        if name in there and rows[name].null_count:
            raise foreign(place, f"a file entry's {name}", None, "is missing")
    if "op" in there and not pending:
        ops = pc.unique(rows["op"])
        _refuse(place, "op", ops, pc.invert(pc.is_in(ops, _OPS)), "is not add, remove or release")
    for name in ("size", "position", "since"):
        if name in there:
            _refuse(place, name, rows[name], pc.less(rows[name], 0), "is negative")


_COMPLETE = ("op", "position", "db", "table", "partition", "location", "path")

_BELOW = {
    "path": "is not a relative path below its location",
    "partition": "is not the name of a partition",
    "table": "is not the name of a table",
    "db": "is not the name of a database",
}


_MAY_BE_EMPTY = ("partition", "path")  # a table without partitions; a location that is a single file


def _refuse(place: str, name: str, values: pa.Array, wrong: pa.Array, why: str, *, empty: bool = False) -> None:
    if empty:
        wrong = pc.and_(wrong, pc.greater(pc.binary_length(values), 0))
    if pc.any(wrong).as_py():
        first = values.filter(pc.fill_null(wrong, False))[0].as_py()
        raise foreign(place, f"a file entry's {name}", first, why)
