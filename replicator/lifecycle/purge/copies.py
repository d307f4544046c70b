"""Files below a table's directories, those of today and those it had, that hold certain contents; of a bucket that
keeps versions, these, too. Reads only.

A table may have lain elsewhere before: beside its directory (a purge), or where its database puts it. What was left
there is in no table, and still on the disk.
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
"""Directories that a task looks through."""


class CopiesTask(msgspec.Struct, frozen=True):
    """Directories, and the sizes of what is looked for; only files of such a size are read."""

    places: tuple[str, ...]
    sizes: frozenset[int]


class Copy(msgspec.Struct, frozen=True):
    """A file of a size that was looked for. `version`: of the bucket, which is not current; "" for a file."""

    place: str
    size: int
    checksum: str
    version: str = ""


class KeptTask(msgspec.Struct, frozen=True):
    """Files that are kept, or were: names of objects that say their contents."""

    paths: tuple[str, ...]


def run_kept_task(task: KeptTask) -> list[OldVersion]:
    """Their versions that are not current. Safe to run twice."""
    return [old for path in task.paths for old in old_versions(path, named=True)]


def kept_versions(paths: Sequence[str], engines: AutoEngine) -> Iterator[OldVersion]:
    """Versions of kept files that an expiry has removed, or is to remove; none of places without versions."""
    paths = [path for path in paths if keeps_versions(path)]
    tasks = (KeptTask(tuple(paths[at : at + BATCH])) for at in range(0, len(paths), BATCH))
    for found in engines.for_work(len(paths)).run(run_kept_task, tasks) if paths else ():
        yield from found


def run_copies_task(task: CopiesTask) -> list[Copy]:
    """Hidden files, too; a file that vanishes meanwhile is gone. Safe to run twice."""
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
    """Files at or below the places with one of the contents, each once."""
    several, sizes, seen = sorted(set(places)), frozenset(size for _, size in contents), set[tuple[str, str]]()
    tasks = (CopiesTask(tuple(several[at : at + BATCH]), sizes) for at in range(0, len(several), BATCH))
    for found in engines.for_work(len(several)).run(run_copies_task, tasks) if sizes else ():
        for copy in found:
            if (copy.checksum, copy.size) in contents and (copy.place, copy.version) not in seen:
                seen.add((copy.place, copy.version))
                yield copy


def directories_of(table: Table, parts: Sequence[Part], home: str) -> Iterator[str]:
    """Where files of a table may lie: its directory, those of these partitions, those that a purge has put beside them,
    and where its database (at `home`) puts it; a large one by the directories in it. Those that are not there are left
    out. A directory that lies in another may come, too."""
    tops = {_unpurged(each) for each in (table.location, join(home, table.name) if home else "") if each}
    tops |= {each for each in map(_unpurged, (part.location for part in parts)) if not is_below(each, tops)}
    for top in sorted(tops):
        for place in (top, *_beside(top)):
            below = _children(place)
            yield from below or [place]


def is_below(place: str, tops: Collection[str]) -> bool:
    """Whether a place is one of the others, or lies in one."""
    return any(place == top or place.startswith(f"{top}/") for top in tops)


def _unpurged(location: str) -> str:
    """The location that purges began with."""
    location = normal(location)
    above = parent(location)
    return join(parent(above), name_of(location)) if name_of(above).startswith(SIBLING) else location


def _beside(top: str) -> Iterator[str]:
    place = located(top)
    for name in place.parent.list():
        if name.startswith(SIBLING) and place.name in (place.parent / name).list():
            yield str(place.parent / name / place.name)


def _children(place: str) -> list[str]:
    """Files and directories in a directory, with those that are being written; none in a bucket, where one of which
    only versions are left is in no listing."""
    if keeps_versions(place):
        return []
    if not is_local(place):
        return [join(place, name) for name in located(place).list()]
    path = local_path(place)
    with naming(path):
        return [join(place, shown(name)) for name in os.listdir(path)] if is_directory(path) else []


# ---- erased contents -------------------------------------------------------------------------------------------------
# Which bytes must be gone once a purge is over: the contents of files that had rows erased, and of older states of the
# purged tables, which nobody has searched. Reads only.


ERASED = "rows were erased from it"
UNREAD = "it lay in a purged partition, and has not been searched"
OLDER = "an older state of the table, which was not searched"


class Content(msgspec.Struct, frozen=True):
    """Bytes that must go. path: where they were seen last; why: ERASED, UNREAD or OLDER."""

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
    """Of the files that these runs have written again, as they were before, and of those that nobody reads; only of
    partitions that were swapped."""
    for directory in directories:
        swapped = {unit.key for unit in directory.units().values() if unit.backup}
        for table in directory.files():
            for row in table.filter(pc.is_valid(table["checksum"])).to_pylist():
                if (row["table"], row["partition"]) in swapped:
                    place, why = join(row["location"], row["name"]), ERASED if row["matched"] else UNREAD
                    yield Content(row["checksum"], row["size"], row["table"], row["partition"], place, why)


def older_contents(root: str, tables: Collection[str]) -> dict[tuple[str, int], Content]:
    """What tables ("db.table") had once and have no more, as the captured log knows it. Holds a row for each content
    that they ever had."""
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
