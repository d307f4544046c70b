"""The files of a table in a purge: those of its partitions, and copies elsewhere. Reads only.

Partitions are read once, listed before the search, and compared before the swap; an unpartitioned table is one part,
named "". Copies are files with given contents below the table's current and former directories, including retained
versions in a bucket: a table may have been stored next to its directory (by a purge), or in its database's default
location. Files left there belong to no table, and are still on disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import xxhash

from cmroot.keep.journal import files_at
from cmroot.keep.versions import OldVersion, keeps_versions, old_versions, open_version
from cmroot.store.checksum import checksum_at, checksum_stream
from cmroot.store.listing import FileState, hidden, skipped_directory
from cmroot.store.local import is_directory, status_of
from cmroot.store.place import is_local, join, local_path, located, name_of, normal, parent
from cmroot.store.spelling import naming
from cmroot.text import is_text, shown
from replicator.core.engine import AutoEngine
from replicator.core.model import Partition, Storage, Table, partition_name
from replicator.errors import Error, ObjectNotFound
from replicator.lifecycle.purge.options import is_sparks
from replicator.lifecycle.purge.state import Unit
from replicator.lifecycle.purge.transactional_files import is_note
from replicator.metastore.client import MetastoreReader
from replicator.replay.placement import PUBLISHED, is_published

# ---- partitions ------------------------------------------------------------------------------------------------------


SIBLING = "_purge-"
"""Replaced files are stored in `<parent>/_purge-<stamp>/<name>`, next to the location, never above or below it. To Hive
and Spark a directory with a leading underscore is not a partition; the last name is retained: readers skip hidden ones.
"""

_MARK_NAME = re.compile(r"_SUCCESS|_(committed|started)_[\w-]+")
"""Names of committers' files, which list files and contain no rows."""

SIDECAR = b"crc\0"
"""The first bytes of Hadoop's checksums of a local file: `.<its name>.crc`."""


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
    except sidecars and marks; marks: those, with their sizes. `digest`: equal as long as nothing has changed."""

    files: tuple[FileState, ...]
    links: tuple[str, ...] = ()
    missing: bool = False
    unnamed: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    marks: tuple[tuple[str, int], ...] = ()

    @property
    def why_skipped(self) -> str:
        """Returns why its files are not rewritten, or ""."""
        if self.links:
            return f"it contains a symbolic link: {self.links[0]}"
        return f"the name of a file is not UTF-8: {self.unnamed[0]}" if self.unnamed else ""

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
        return _sorted(location, files_at(location), (), ())
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
    return msgspec.structs.replace(_sorted(top, found, links, unnamed), missing=False)


def look_above(table: Table, locations: Iterable[str]) -> tuple[Look, list[str]]:
    """Lists a partitioned table's directory down to its partitions, at these locations. Returns the files outside of
    them, and the directories that belong to none, but for those of purges."""
    top, homes = normal(table.location or ""), {normal(each) for each in locations}
    if not table.is_partitioned or not top or not located(top).exists() or is_below(top, homes):
        return Look(()), []
    above, found, others, waiting = set[str](), list[tuple[str, FileState]](), list[str](), [""]
    for home in homes:
        while is_below(home := parent(home), [top]) and home not in above:
            above.add(home)
    while waiting:
        relative = waiting.pop()
        for child in located(join(top, relative) if relative else top).children():
            name = join(relative, name_of(child.path)) if relative else name_of(child.path)
            place = join(top, name)
            if not child.is_directory:
                found.append((name, FileState("", child.size, 0, "")))
            elif place in above and place not in homes:
                waiting.append(name)
            elif place not in homes and not name_of(place).startswith(SIBLING):
                others.append(place)
    return _sorted(top, found, (), ()), sorted(others)


def _sorted(place: str, found: Iterable[tuple[str, FileState]], links: Iterable[str], unnamed: Iterable[str]) -> Look:
    files, passed_over, marks = list[FileState](), list[str](), list[tuple[str, int]]()
    for name, state in found:
        if _is_mark(name):
            marks.append((name, state.size))
        if not _is_hidden(name):
            files.append(msgspec.structs.replace(state, path_relative=name))
        is_unread = (_is_hidden(name) or not is_data(name)) and not _is_mark(name) and not is_note(name, state.size)
        if state.size and is_unread and not _is_sidecar(place, name, state.size):
            passed_over.append(name)
    files.sort(key=lambda each: each.path_relative)
    return Look(
        tuple(files), tuple(sorted(links)), not files, tuple(sorted(unnamed)), tuple(sorted(passed_over)), tuple(marks)
    )


def _is_hidden(name: str) -> bool:
    *above, last = name.split("/")
    return hidden(last) or any(skipped_directory(part) for part in above)


def _is_mark(name: str) -> bool:
    return _MARK_NAME.fullmatch(name_of(name)) is not None


def _is_sidecar(place: str, name: str, size: int) -> bool:
    """Returns True for checksums that Hadoop's local filesystem has written, by their first bytes: rows may have such a
    name, too."""
    last = name_of(name)
    if not (last.startswith(".") and last.endswith(".crc")) or size % 4:
        return False
    with contextlib.suppress(FileNotFoundError), located(join(place, name)).open_read() as source:
        return source.read(len(SIDECAR)) == SIDECAR
    return True  # deleted concurrently


def is_data(name: str) -> bool:
    """Returns True if readers read the file as rows; marks such as `_SUCCESS` and `_metadata` are not read."""
    return not any(part.startswith("_") and "=" not in part for part in name.split("/"))


# ---- copies ----------------------------------------------------------------------------------------------------------


Key = tuple[str, int]
"""Checksum and size of a content."""

BATCH = 50
"""Number of directories or files per task."""


class CopiesTask(msgspec.Struct, frozen=True):
    """Directories, and the sizes of the contents to find; only files of these sizes are read. reports: a directory that
    cannot be read is in the result, and does not end the task."""

    places: tuple[str, ...]
    sizes: frozenset[int]
    reports: bool = False


class Copy(msgspec.Struct, frozen=True):
    """A file of one of these sizes. `version`: a noncurrent version in a bucket; "" for a file. error: why a directory
    cannot be read."""

    place: str
    size: int
    checksum: str
    version: str = ""
    error: str = ""


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
    found = list[Copy]()
    for place in task.places:
        try:
            found += _copies_at(place, task.sizes)
        except NotADirectoryError:  # a file has taken the place of a directory above
            continue
        except (Error, OSError) as error:
            if not task.reports:
                raise
            found.append(Copy(place, 0, "", error=getattr(error, "message", "") or str(error)))
    return found


def _copies_at(place: str, sizes: frozenset[int]) -> Iterator[Copy]:
    for name, state in files_at(place):
        if state.size in sizes:
            path = join(place, name)
            with contextlib.suppress(FileNotFoundError):
                yield Copy(path, state.size, checksum_at(path)[0])
    yield from _old_copies(place, sizes)


def _old_copies(place: str, sizes: frozenset[int]) -> Iterator[Copy]:
    for old in old_versions(place):
        if old.size in sizes:
            with contextlib.suppress(FileNotFoundError), open_version(old.path, old.version, old.size) as source:
                yield Copy(old.path, old.size, checksum_stream(source)[0], old.version)


def copies(
    places: Iterable[str], contents: Collection[Key], engines: AutoEngine, unread: dict[str, str] | None = None
) -> Iterator[Copy]:
    """Yields files at or below the paths with one of the contents, each once. unread: gets the reasons why directories
    cannot be read, by path; without it, the first raises its error."""
    several, sizes, seen = sorted(set(places)), frozenset(size for _, size in contents), set[tuple[str, str]]()
    reports = unread is not None
    tasks = (CopiesTask(tuple(several[at : at + BATCH]), sizes, reports) for at in range(0, len(several), BATCH))
    for found in engines.for_work(len(several)).run(run_copies_task, tasks) if sizes else ():
        for copy in found:
            if copy.error and unread is not None:
                unread[copy.place] = copy.error
            elif (copy.checksum, copy.size) in contents and (copy.place, copy.version) not in seen:
                seen.add((copy.place, copy.version))
                yield copy


def directories_of(table: Table, parts: Sequence[Part], home: str, others: Collection[str]) -> Iterator[str]:
    """Yields directories that may contain files of a table: its own, those of these partitions, those that a purge has
    created next to them, the default location in its database (at `home`), and those that snapshots have published for
    it, also under a former name: one that is not of the database's tables (`others`). Splits each into its entries.
    Skips directories that do not exist. May yield nested directories."""
    tops = {_unpurged(each) for each in (table.location, join(home, table.name) if home else "") if each}
    tops |= {each for each in map(_unpurged, (part.location for part in parts)) if not is_below(each, tops)}
    places = [each for top in sorted(tops) for each in (top, *_beside(top))]
    for place in (*places, *_published(table, home, others)):
        below = _children(place)
        yield from below or [place]


def _published(table: Table, home: str, others: Collection[str]) -> Iterator[str]:
    """Yields the directories of a table in the layout of snapshots, the present one and those that it replaced."""
    own = table.location or ""
    tops = {home, own.partition(f"/{PUBLISHED}/")[0] if is_published(own) else parent(own) if own else ""}
    for top in sorted({normal(each) for each in tops if each}):
        for load in located(join(top, PUBLISHED)).list():
            for name in located(join(top, PUBLISHED, load)).list():
                db, _, called = name.partition(".")
                if db == table.db and (called == table.name or called not in others):
                    yield join(top, PUBLISHED, load, name)


def is_below(place: str, tops: Collection[str]) -> bool:
    """Returns True if a path is equal to or below one of `tops`."""
    while place not in tops:
        if (above := parent(place)) == place:
            return False
        place = above
    return True


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
# Contents that must be gone after a purge, and those of dropped partitions that readers still read. Reads only.


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


def rows_of_files(
    unit: Unit, look: Look, matched: Mapping[str, int], checksums: Mapping[str, tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """Yields the files of a partition before its swap. Rows for files that no reader reads include checksums of their
    contents, by which a certificate finds them. checksums: of the old and the new contents of rewritten files."""
    for state in look.files:
        name = state.path_relative
        checksum, after = checksums.get(name, (None, None))
        yield unit.file_row(state, matched=matched.get(name, 0), checksum=checksum, after=after)
    for name in look.passed_over:
        checksum, size = checksum_at(join(unit.old, name))
        yield unit.file_row(FileState(name, size, 0, ""), checksum=checksum) | {"mtime_ns": None, "identity": None}


def shared_contents(
    metastore: MetastoreReader, swapped: Mapping[str, Sequence[Unit]], erased: Sequence[Content], engines: AutoEngine
) -> set[tuple[str, Key]]:
    """Returns the contents of dropped partitions only that readers read in partitions of the same table, too, with the
    table: no id of it is in them, whatever other tables have. Hidden files, other versions, and those that no reader
    reads prove nothing; see `_role`."""
    dropped = {unit.key for units in swapped.values() for unit in units if unit.dropped}
    rewritten = {each.key for each in erased if (each.table, each.partition) not in dropped}
    wanted, found = dict[str, dict[Key, set[str]]](), set[tuple[str, Key]]()
    for each in erased:
        if each.key not in rewritten:
            wanted.setdefault(each.table, {}).setdefault(each.key, set()).add(_role(name_of(each.path), nested=True))
    for name, roles in wanted.items():
        with contextlib.suppress(ObjectNotFound):
            table = metastore.table(*name.split(".", 1))
            tops = {normal(part.location) for part in parts_of(metastore, table)}
            for copy in copies(tops, roles, engines):
                key = copy.checksum, copy.size
                if (name, key) in found or copy.version:
                    continue
                top = copy.place
                while top not in tops:
                    top = parent(top)
                role = _role(copy.place[len(top) :].lstrip("/"), nested=not is_sparks(table))
                if role and (role == _DATA or role in roles[key]) and _is_described(copy.place, role):
                    found.add((name, key))
    return found


_DATA, _MARK, _SIDECAR = "data", "mark", "sidecar"


def _role(name: str, *, nested: bool) -> str:
    """Returns the role of a file of a partition: rows, marks (searched for ids), or checksums of these; "" of others.
    name: relative to its location; nested: whether readers read sub-directories."""
    above, _, last = name.rpartition("/")
    if last.startswith(".") and last.endswith(".crc"):
        return _SIDECAR if _role(join(above, last[1:-4]) if above else last[1:-4], nested=nested) else ""
    if _is_mark(name):
        return _MARK
    return _DATA if not _is_hidden(name) and is_data(name) and (nested or not above) else ""


def _is_described(place: str, role: str) -> bool:
    """Returns False for the sidecar of a file that does not exist."""
    return role != _SIDECAR or located(join(parent(place), name_of(place)[1:-4])).exists()
