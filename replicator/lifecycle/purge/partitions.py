"""The partitions of a table in a purge: read once, listed before the search, and compared before the swap.

An unpartitioned table is one part, named "".
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import xxhash

from cmroot.keep.journal import files_at
from cmroot.store.listing import FileState, hidden, skipped_directory
from cmroot.store.local import is_directory, status_of
from cmroot.store.place import is_local, join, local_path, located, name_of, parent
from cmroot.store.spelling import naming
from cmroot.text import is_text, shown
from replicator.core.grouping import batched
from replicator.core.model import Partition, Storage, Table, partition_name
from replicator.metastore.client import MetastoreReader

SIBLING = "_purge-"
"""Purged data are stored in `<parent>/_purge-<stamp>/<name>`, next to the old, never above or below it. To Hive and
Spark a directory with a leading underscore is not a partition; the last name is retained: readers skip hidden ones."""

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
    """Returns a location next to the old one, not nested in the directory of an earlier purge."""
    above, name = parent(location.rstrip("/")), name_of(location)
    if name_of(above).startswith(SIBLING):
        above = parent(above)
    return join(above, SIBLING + stamp, name)


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


class LooksTask(msgspec.Struct, frozen=True):
    """Locations to list, and the ones that contain RCFiles."""

    locations: tuple[str, ...]
    of_columns: frozenset[str]


class Looked(msgspec.Struct, frozen=True):
    """The result of listing one location. digest: see Look. nested: a file of rows in a sub-directory, or ""; unread:
    files that readers do not read as rows, as text, or ""; misread: an RCFile of which readers miss rows, or ""."""

    location: str
    digest: str
    nested: str = ""
    unread: str = ""
    misread: str = ""


def run_looks_task(task: LooksTask) -> list[Looked]:
    """Lists the locations of a task, in its order."""
    return [_looked(location, look_at(location), location in task.of_columns) for location in task.locations]


def _looked(location: str, look: Look, of_columns: bool) -> Looked:
    data = [each.path_relative for each in look.files if each.size and is_data(each.path_relative)]
    nested = next((name for name in data if "/" in name), "")
    unread = [*look.unnamed, *look.passed_over]
    more = f" and {len(unread) - 3:,} more" if len(unread) > 3 else ""
    misread = next((name for name in data if _is_misread(join(location, name))), "") if of_columns else ""
    return Looked(location, look.digest, nested, ", ".join(unread[:3]) + more, misread)


def _is_misread(place: str) -> bool:
    """Returns True for an RCFile compressed with bzip2, according to its header. Hive's reader silently misses some or
    all of its rows: it asks the codec how many bytes are available, which the codec knows only at their end."""
    with located(place).open_read() as file:
        return b".BZip2Codec" in file.read(256)


def looks_tasks(parts: Iterable[Part]) -> Iterator[LooksTask]:
    for batch in batched(parts, 200):
        of_columns = (
            part.location for part in batch if (part.storage.input_format or "").endswith("RCFileInputFormat")
        )
        yield LooksTask(tuple(part.location for part in batch), frozenset(of_columns))


def is_data(name: str) -> bool:
    """Returns True if readers read the file as rows; marks such as `_SUCCESS` and `_metadata` are not read."""
    return not any(part.startswith("_") and "=" not in part for part in name.split("/"))
