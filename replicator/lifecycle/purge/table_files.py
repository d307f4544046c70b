"""The files of a table in a purge: those of its partitions, and copies elsewhere. Reads only.

Partitions are read once, listed before the search, and compared before the swap; an unpartitioned table is one part,
named "". Copies are files with given contents below the table's current and former directories, including retained
versions in a bucket: a table may have been stored next to its directory (by a purge), or in its database's default
location. Files left there belong to no table, and are still on disk.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from cmroot.keep.journal import files_at
from cmroot.keep.versions import OldVersion, keeps_versions, old_versions, open_version
from cmroot.log.captured import ADD, RELEASE, Segment, segments
from cmroot.store.checksum import checksum_at, checksum_stream
from cmroot.store.listing import FileState, hidden, skipped_directory
from cmroot.store.local import is_directory, status_of
from cmroot.store.place import is_local, join, local_path, located, name_of, normal, parent
from cmroot.store.spelling import naming
from cmroot.text import is_text, shown
from replicator.core.engine import AutoEngine
from replicator.core.model import Partition, Storage, Table, partition_name
from replicator.lifecycle.purge.state import RunDirectory
from replicator.metastore.client import MetastoreReader

# ---- partitions ------------------------------------------------------------------------------------------------------


SIBLING = "_purge-"
"""Replaced files are stored in `<parent>/_purge-<stamp>/<name>`, next to the location, never above or below it. To Hive
and Spark a directory with a leading underscore is not a partition; the last name is retained: readers skip hidden ones.
"""

_MARKS = ("_SUCCESS", "_committed_", "_started_")
"""Name prefixes of committers' files, which list files and contain no rows."""


@dataclass(frozen=True)
class Part:
    """A partition, or an unpartitioned table. obj: as the metastore returned it, for later comparison."""

    name: str
    obj: Table | Partition

    @property
    def storage(self) -> Storage:
        assert self.obj.storage is not None
        return self.obj.storage

    @property
    def location(self) -> str:
        return self.obj.location or ""


class Look(msgspec.Struct, frozen=True):
    """The listing of a location. links: symbolic links. `unnamed`: files and directories whose names are not UTF-8,
    which neither Spark nor a record can represent. passed_over: non-empty files that readers do not read as rows,
    except sidecars and marks. `digest`: equal as long as nothing has changed."""

    files: tuple[FileState, ...]
    links: tuple[str, ...] = ()
    missing: bool = False
    unnamed: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        lines = [f"{each.path_relative}\0{each.size}\0{each.mtime_ns}\0{each.identity}\n" for each in self.files]
        text = "".join([*lines, *self.links, str(self.missing), *self.unnamed])
        return xxhash.xxh3_128_hexdigest(text.encode())


def parts_of(metastore: MetastoreReader, table: Table, names: Sequence[str] | None = None) -> Iterator[Part]:
    """Yields the parts of a table. names: only these partitions; those that no longer exist are omitted."""
    if not table.is_partitioned:
        yield Part("", table)
        return
    found = (
        metastore.all_partitions(table.db, table.name)
        if names is None
        else metastore.partitions(table.db, table.name, names)
    )
    for batch in found:
        for partition in batch:
            yield Part(partition_name(table.partition_keys, partition.values), partition)


def new_location(location: str, stamp: str) -> str:
    """Returns a directory next to a location, not nested in that of an earlier purge: of its backup."""
    above, name = parent(location.rstrip("/")), name_of(location)
    if name_of(above).startswith(SIBLING):
        above = parent(above)
    return join(above, SIBLING + stamp, name)


def new_files_location(location: str, stamp: str) -> str:
    """Returns the directory next to a location in which its new files are written; it is removed after the swap."""
    return new_location(location, f"new-{stamp}")


def look_at(location: str) -> Look:
    """Lists a location. Reads only. Lists symbolic links and does not follow them."""
    if not is_local(location):
        return _sorted(files_at(location), (), ())
    top, found, links, unnamed = local_path(location), list[tuple[str, FileState]](), list[str](), list[str]()
    status = status_of(top, follow=False)
    if status is not None and stat.S_ISLNK(status.st_mode):
        return Look((), (top,))
    with naming(top):
        if not is_directory(top):
            return Look((), missing=True)
        waiting = [""]
        while waiting:
            relative = waiting.pop()
            with os.scandir(join(top, relative)) as entries:
                for entry in entries:
                    name = f"{relative}/{entry.name}" if relative else entry.name
                    if not is_text(entry.name):
                        unnamed.append(shown(name))
                    elif entry.is_symlink():
                        links.append(name)
                    elif entry.is_dir():
                        waiting.append(name)
                    else:
                        status = entry.stat()
                        found.append((name, FileState("", status.st_size, status.st_mtime_ns, str(status.st_ino))))
    links = [name for name in links if not _is_hidden(name)]
    return msgspec.structs.replace(_sorted(found, links, unnamed), missing=False)


def _sorted(found: Iterable[tuple[str, FileState]], links: Iterable[str], unnamed: Iterable[str]) -> Look:
    files, passed_over = list[FileState](), list[str]()
    for name, state in found:
        if not _is_hidden(name):
            files.append(msgspec.structs.replace(state, path_relative=name))
        if state.size and not name.endswith(".crc") and (_is_hidden(name) or not is_data(name)) and not _is_mark(name):
            passed_over.append(name)
    files.sort(key=lambda each: each.path_relative)
    return Look(tuple(files), tuple(sorted(links)), not files, tuple(sorted(unnamed)), tuple(sorted(passed_over)))


def _is_hidden(name: str) -> bool:
    *above, last = name.split("/")
    return hidden(last) or any(skipped_directory(part) for part in above)


def _is_mark(name: str) -> bool:
    return name.rpartition("/")[2].startswith(_MARKS)


def is_data(name: str) -> bool:
    """Returns True if readers read the file as rows; marks such as `_SUCCESS` and `_metadata` are not read."""
    return not any(part.startswith("_") and "=" not in part for part in name.split("/"))


# ---- copies ----------------------------------------------------------------------------------------------------------


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
UNREAD = "it was in a purged partition, and has not been searched"
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
