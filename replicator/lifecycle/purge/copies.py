"""Search for files with given contents below a table's current and former directories, including retained versions in a
bucket. Reads only.

A table may have been stored elsewhere before: next to its directory (by a purge), or in its database's default
location. Files left there belong to no table, and are still on disk.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cmroot.keep.journal import files_at
from cmroot.keep.versions import OldVersion, keeps_versions, old_versions, open_version
from cmroot.log.captured import ADD, RELEASE, Segment, segments
from cmroot.store.checksum import checksum_at, checksum_stream
from cmroot.store.local import is_directory
from cmroot.store.place import is_local, join, local_path, located, name_of, normal, parent
from cmroot.store.spelling import naming
from cmroot.text import shown
from replicator.core.engine import AutoEngine
from replicator.core.model import Table
from replicator.lifecycle.purge.partitions import SIBLING, Part
from replicator.lifecycle.purge.state import RunDirectory

Key = tuple[str, int]
"""Checksum and size of a content."""

BATCH = 50
"""Number of directories or files per task."""


class CopiesTask(msgspec.Struct, frozen=True):
    """Directories, and the sizes of the contents to find; only files of these sizes are read."""

    places: tuple[str, ...]
    sizes: frozenset[int]


class Copy(msgspec.Struct, frozen=True):
    """A file of one of these sizes. `version`: a noncurrent version in a bucket; "" for a file."""

    place: str
    size: int
    checksum: str
    version: str = ""


class KeptTask(msgspec.Struct, frozen=True):
    """Files that are or were retained, as objects whose names contain their checksums."""

    paths: tuple[str, ...]


def run_kept_task(task: KeptTask) -> list[OldVersion]:
    """Returns the noncurrent versions of the files. May run twice."""
    return [old for path in task.paths for old in old_versions(path, named=True)]


def kept_versions(paths: Sequence[str], engines: AutoEngine) -> Iterator[OldVersion]:
    """Yields versions of retained files that an expiry has removed or will remove; none for stores without versions."""
    paths = [path for path in paths if keeps_versions(path)]
    tasks = (KeptTask(tuple(paths[at : at + BATCH])) for at in range(0, len(paths), BATCH))
    for found in engines.for_work(len(paths)).run(run_kept_task, tasks) if paths else ():
        yield from found


def run_copies_task(task: CopiesTask) -> list[Copy]:
    """Includes hidden files; skips files deleted concurrently. May run twice."""
    found = []
    for place in task.places:
        for name, state in files_at(place):
            if state.size in task.sizes:
                path = join(place, name)
                try:
                    found.append(Copy(path, state.size, checksum_at(path)[0]))
                except FileNotFoundError:
                    continue
        found += _old_copies(place, task.sizes)
    return found


def _old_copies(place: str, sizes: frozenset[int]) -> Iterator[Copy]:
    for old in old_versions(place):
        if old.size in sizes:
            with contextlib.suppress(FileNotFoundError), open_version(old.path, old.version, old.size) as source:
                yield Copy(old.path, old.size, checksum_stream(source)[0], old.version)


def copies(places: Iterable[str], contents: Collection[Key], engines: AutoEngine) -> Iterator[Copy]:
    """Yields files at or below the paths with one of the contents, each once."""
    several, sizes, seen = sorted(set(places)), frozenset(size for _, size in contents), set[tuple[str, str]]()
    tasks = (CopiesTask(tuple(several[at : at + BATCH]), sizes) for at in range(0, len(several), BATCH))
    for found in engines.for_work(len(several)).run(run_copies_task, tasks) if sizes else ():
        for copy in found:
            if (copy.checksum, copy.size) in contents and (copy.place, copy.version) not in seen:
                seen.add((copy.place, copy.version))
                yield copy


def directories_of(table: Table, parts: Sequence[Part], home: str) -> Iterator[str]:
    """Yields directories that may contain files of a table: its own, those of these partitions, those that a purge has
    created next to them, and the default location in its database (at `home`). Splits each into its entries. Skips
    directories that do not exist. May yield nested directories."""
    tops = {_unpurged(each) for each in (table.location, join(home, table.name) if home else "") if each}
    tops |= {each for each in map(_unpurged, (part.location for part in parts)) if not is_below(each, tops)}
    for top in sorted(tops):
        for place in (top, *_beside(top)):
            below = _children(place)
            yield from below or [place]


def is_below(place: str, tops: Collection[str]) -> bool:
    """Returns True if a path is equal to or below one of `tops`."""
    return any(place == top or place.startswith(f"{top}/") for top in tops)


def _unpurged(location: str) -> str:
    """Returns the original location, before any purge."""
    location = normal(location)
    above = parent(location)
    return join(parent(above), name_of(location)) if name_of(above).startswith(SIBLING) else location


def _beside(top: str) -> Iterator[str]:
    place = located(top)
    for name in place.parent.list():
        if name.startswith(SIBLING) and place.name in (place.parent / name).list():
            yield str(place.parent / name / place.name)


def _children(place: str) -> list[str]:
    """Returns the entries of a directory, including files that are being written. Returns [] for a bucket with
    versions, because its listing omits objects of which only noncurrent versions remain."""
    if keeps_versions(place):
        return []
    if not is_local(place):
        return [join(place, name) for name in located(place).list()]
    path = local_path(place)
    with naming(path):
        return [join(place, shown(name)) for name in os.listdir(path)] if is_directory(path) else []


# ---- erased contents -------------------------------------------------------------------------------------------------
# The contents that must be gone after a purge: those of files that had rows erased, and of older states of the purged
# tables, which were not searched. Reads only.


ERASED = "rows were erased from it"
UNREAD = "it lay in a purged partition, and has not been searched"
OLDER = "an older state of the table, which was not searched"


class Content(msgspec.Struct, frozen=True):
    """A content that must be removed. path: where it was last seen; why: ERASED, UNREAD or OLDER."""

    checksum: str
    size: int
    table: str
    partition: str
    path: str
    why: str

    @property
    def key(self) -> tuple[str, int]:
        return self.checksum, self.size


def erased_contents(directories: Sequence[RunDirectory]) -> Iterator[Content]:
    """Yields the previous contents of files that these runs have rewritten, and of files that no reader reads; only of
    partitions that were swapped."""
    for directory in directories:
        swapped = {unit.key for unit in directory.units().values() if unit.backup}
        for table in directory.files():
            for row in table.filter(pc.is_valid(table["checksum"])).to_pylist():
                if (row["table"], row["partition"]) in swapped:
                    place, why = join(row["location"], row["name"]), ERASED if row["matched"] else UNREAD
                    yield Content(row["checksum"], row["size"], row["table"], row["partition"], place, why)


def older_contents(root: str, tables: Collection[str]) -> dict[tuple[str, int], Content]:
    """Returns the contents that tables ("db.table") formerly had, according to the captured log. Holds in memory a row
    for each content that they ever had."""
    counts: dict[tuple[str, int], int] = {}
    seen: dict[tuple[str, int], Content] = {}
    for row in _rows(segments(root), {table.lower() for table in tables}):
        key = (row["checksum"], row["size"])
        counts[key] = counts.get(key, 0) + (1 if row["op"] == ADD else -1)
        place = join(row["location"] or "", row["path"] or "")
        seen[key] = Content(*key, f"{row['db']}.{row['table']}", row["partition"] or "", place, OLDER)
    return {key: content for key, content in seen.items() if counts[key] <= 0}


def _rows(log: Sequence[Segment], tables: set[str]) -> Iterator[dict[str, Any]]:
    columns = ["op", "db", "table", "partition", "location", "path", "size", "checksum"]
    wanted = pa.array(sorted(tables), pa.string())
    for segment in log:
        for batch in segment.file_batches(columns):
            rows = pa.Table.from_batches([batch])
            names = pc.binary_join_element_wise(rows["db"], rows["table"], ".")
            fits = pc.and_(pc.is_in(names, wanted), pc.is_in(rows["op"], pa.array([ADD, RELEASE])))
            fits = pc.and_(fits, pc.and_(pc.is_valid(rows["checksum"]), pc.is_valid(rows["size"])))
            yield from rows.filter(pc.fill_null(fits, False)).to_pylist()
