"""Validation of foreign names: of parts, files, partitions, objects, ids. Pure.

A dump, a segment, a note are files that anybody may have made, and what they name is opened, written, removed. So a
name is looked at where it is read: a relative one stays below the directory it is joined to, an id is one name.
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
"""The largest position, event id and size there can be: columns of file entries have 64 bits."""

HINT = "it was damaged or made by somebody else: nothing of it is used; take it anew from its source"


def is_below(path: str) -> bool:
    """Whether a relative path stays below what it is joined to: no part of it is empty, `.` or `..`."""
    return not unsafe(path)


def is_name(text: str) -> bool:
    """Whether a text is one name in a directory, and not the directory or the one above."""
    return "/" not in text and not unsafe(text)


def is_id(text: str) -> bool:
    """Whether a text can be the id of a dump, a root, a run, a turn: letters, digits, dots, dashes, underscores."""
    return _ID.fullmatch(text) is not None


def is_checksum(text: str) -> bool:
    """Whether a text is a checksum as it stands in names and entries: 32 hex digits."""
    return _is_checksum(text) is not None


def foreign(place: str, what: str, value: object, why: str) -> FormatError:
    """A file names something that it must not."""
    return FormatError(f"{place}: {what} {value!r} {why}", hint=HINT)


def check_below(place: str, what: str, paths: Iterable[str]) -> None:
    """Raises FormatError, naming the file at `place`, for the first path that may lead elsewhere."""
    for path in paths:
        if unsafe(path):
            raise foreign(place, what, path, "is not a relative path below its directory")


def check_name(place: str, what: str, name: str) -> None:
    """Raises FormatError for what is not one name."""
    if not is_name(name):
        raise foreign(place, what, name, "is not a name")


def check_id(place: str, what: str, id: str) -> None:
    """Raises FormatError for what cannot be an id."""
    if not is_id(id):
        raise foreign(place, what, id, "is not an id: up to 128 letters, digits, dots, dashes and underscores")


def check_entries(
    rows: pa.Table | pa.RecordBatch, place: str, *, pending: bool = False, complete: bool = False
) -> None:
    """Looks at file entries, those columns that are there: about 0.2 s a million rows. Raises FormatError naming the
    file they were read from and the first bad value. `pending`: rows of an intercept, which have no position yet;
    `complete`: of a dump, whose rows all name an object and a path."""
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


_MAY_BE_EMPTY = ("partition", "path")  # of a table without partitions; of a location that is the file itself


def _refuse(place: str, name: str, values: pa.Array, wrong: pa.Array, why: str, *, empty: bool = False) -> None:
    if empty:
        wrong = pc.and_(wrong, pc.greater(pc.binary_length(values), 0))
    if pc.any(wrong).as_py():
        first = values.filter(pc.fill_null(wrong, False))[0].as_py()
        raise foreign(place, f"a file entry's {name}", first, why)
