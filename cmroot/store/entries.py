"""What lies in `files/`: kept entries by the first two digits of their checksum, 256 stretches to list apart.

A name there that is no content name, or lies in the wrong directory, is nobody's business: it is counted and left.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cmroot.store.checksum import ALGORITHM
from cmroot.store.objects.told import object_time_ns
from cmroot.store.place import Place
from cmroot.store.spelling import naming
from cmroot.store.stores import remote_store

PREFIXES = tuple(f"{number:02x}" for number in range(256))

ENTRIES = pa.schema(
    [
        ("checksum", pa.string()),
        ("size", pa.int64()),  # as the name says
        ("bytes", pa.int64()),  # as the store says
        ("changed_ns", pa.int64()),  # the inode's change time, or the object's time; since 1970; null: unknown
        ("links", pa.int32()),  # names of the inode; 1 on an object store
    ]
)

_CONTENT = re.compile(rf"{ALGORITHM}-([0-9a-f]{{32}})-(0|[1-9]\d{{0,18}})")

SAMPLE = 4
"""Directories that are listed to guess how many entries all 256 have: checksums spread evenly."""


@dataclass(frozen=True)
class ListedEntries:
    """The entries of one prefix (schema ENTRIES), and how many other names were there."""

    entries: pa.Table
    unknown: int


def content_of(name: str) -> tuple[str, int] | None:
    """(checksum, size) of a content name; None for any other name."""
    match = _CONTENT.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def list_entries(root: str, prefix: str) -> ListedEntries:
    """The entries below `files/<prefix>/`, in no order; empty when there is no such directory."""
    rows: dict[str, list[Any]] = {name: [] for name in ENTRIES.names}
    place = Place(root) / "files" / prefix
    unknown = 0
    found = _local(place.local) if place.local else _objects(str(place))
    for name, size, changed_ns, links in found:
        content = content_of(name)
        if content is None or size is None or content[0][:2] != prefix:
            unknown += not name.startswith(".")
            continue
        for column, value in zip(rows.values(), (*content, size, changed_ns, links), strict=True):
            column.append(value)
    return ListedEntries(pa.table(rows, schema=ENTRIES), unknown)


def prefixes(root: str) -> tuple[str, ...]:
    """The directories in `files/` that are there, of the 256 there can be."""
    return tuple(sorted(_PREFIX_SET.intersection((Place(root) / "files").list())))


def foreign_names(root: str) -> int:
    """How many names directly in `files/` are none of the 256 directories."""
    names = (Place(root) / "files").list()
    return sum(name not in _PREFIX_SET and not name.startswith(".") for name in names)


def estimate(root: str) -> int:
    """About how many entries there are, from a sample of the directories."""
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
                except FileNotFoundError:  # removed this moment
                    continue
                size = status.st_size if stat.S_ISREG(status.st_mode) else None
                found.append((entry.name, size, status.st_ctime_ns, status.st_nlink))
    return found


def _objects(place: str) -> _Found:
    try:
        listed = remote_store(place).directly_below(place)
    except (FileNotFoundError, NotADirectoryError):
        return []
    sizes = ((name, int(info["size"]) if info.get("type") == "file" else None, info) for name, info in listed)
    return [(name, size, object_time_ns(info) or None, 1) for name, size, info in sizes]
