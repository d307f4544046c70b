"""The contents of `files/` in a `$cmroot`: retained entries by the first two digits of their checksum, listed as 256
directories.

A name there that is not a content name, or is in the wrong directory, is counted and left unchanged.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cmroot.store.checksum import ALGORITHM
from cmroot.store.objects import object_time_ns
from cmroot.store.place import Place, remote_store
from cmroot.store.spelling import naming

PREFIXES = tuple(f"{number:02x}" for number in range(256))

ENTRIES = pa.schema(
    [
        ("checksum", pa.string()),
        ("size", pa.int64()),  # as in the name
        ("bytes", pa.int64()),  # as reported by the store
        ("changed_ns", pa.int64()),  # the inode's change time, or the object's time; since 1970; null: unknown
        ("links", pa.int32()),  # names of the inode; 1 on an object store
    ]
)

_CONTENT = re.compile(rf"{ALGORITHM}-([0-9a-f]{{32}})-(0|[1-9]\d{{0,18}})")

SAMPLE = 4
"""Directories that are listed to estimate how many entries all 256 have: checksums are evenly distributed."""


@dataclass(frozen=True)
class ListedEntries:
    """The entries of one prefix (schema ENTRIES), and the number of other names."""

    entries: pa.Table
    unknown: int


def content_of(name: str) -> tuple[str, int] | None:
    """Returns (checksum, size) of a content name; None for any other name."""
    match = _CONTENT.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def list_entries(root: str, prefix: str) -> ListedEntries:
    """Returns the entries below `files/<prefix>/`, in no order; empty when the directory does not exist."""
    rows: dict[str, list[Any]] = {name: [] for name in ENTRIES.names}
    place = Place(root) / "files" / prefix
    unknown = 0
    found = _local(place.local) if place.local else _retained_objects(str(place))
    for name, size, changed_ns, links in found:
        content = content_of(name)
        if content is None or size is None or content[0][:2] != prefix:
            unknown += not name.startswith(".")
            continue
        for column, value in zip(rows.values(), (*content, size, changed_ns, links), strict=True):
            column.append(value)
    return ListedEntries(pa.table(rows, schema=ENTRIES), unknown)


def prefixes(root: str) -> tuple[str, ...]:
    """Returns those of the 256 possible directories in `files/` that exist."""
    return tuple(sorted(_PREFIX_SET.intersection((Place(root) / "files").list())))


def foreign_names(root: str) -> int:
    """Returns the number of names directly in `files/` that are not one of the 256 directories."""
    names = (Place(root) / "files").list()
    return sum(name not in _PREFIX_SET and not name.startswith(".") for name in names)


def estimate(root: str) -> int:
    """Returns the approximate number of entries, from a sample of the directories."""
    step, files = len(PREFIXES) // SAMPLE, Place(root) / "files"
    return sum(len((files / prefix).list()) for prefix in PREFIXES[::step]) * step


_PREFIX_SET = frozenset(PREFIXES)

_Found = list[tuple[str, int | None, int | None, int]]  # name, size (None: not a file), changed_ns, links


def _local(directory: str) -> _Found:
    found: _Found = []
    with naming(directory):
        try:
            scan = os.scandir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return found
        with scan:
            for entry in scan:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # removed concurrently
                    continue
                size = status.st_size if stat.S_ISREG(status.st_mode) else None
                found.append((entry.name, size, status.st_ctime_ns, status.st_nlink))
    return found


def _retained_objects(place: str) -> _Found:
    try:
        listed = remote_store(place).directly_below(place)
    except (FileNotFoundError, NotADirectoryError):
        return []
    sizes = ((name, int(info["size"]) if info.get("type") == "file" else None, info) for name, info in listed)
    return [(name, size, object_time_ns(info) or None, 1) for name, size, info in sizes]
