"""The partitions of a table as a purge sees them: read once, listed before the search, and compared before the swap.

An unpartitioned table is one part, named "".
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec
import xxhash

from cmroot.listing import FileState, hidden, skipped_directory
from cmroot.place import is_directory, is_local, join, local_path, name_of, naming, normal, parent, status_of
from cmroot.safely import files_at
from cmroot.text import is_text, shown
from replicator.metastore.client import PARTITION_BATCH, MetastoreReader
from replicator.model import Partition, Storage, Table, partition_name

SIBLING = "_purge-"
"""Purged data lie in `<parent>/_purge-<stamp>/<name>`, beside the old: never above or below it. Hive and Spark take no
directory that begins with an underscore for a partition; the last name stays, as readers skip hidden ones there."""


@dataclass(frozen=True)
class Part:
    """thing: as the metastore told it, to compare with later."""

    name: str
    thing: Table | Partition

    @property
    def storage(self) -> Storage:
        assert self.thing.storage is not None
        return self.thing.storage

    @property
    def location(self) -> str:
        return self.thing.location or ""


class Look(msgspec.Struct, frozen=True):
    """What lies at a location. links: symbolic links. `unnamed`: files and directories whose names are not UTF-8, which
    neither Spark nor a record could name. `digest`: equal as long as nothing changed."""

    files: tuple[FileState, ...]
    links: tuple[str, ...] = ()
    missing: bool = False
    unnamed: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        lines = [f"{each.path_relative}\0{each.size}\0{each.mtime_ns}\0{each.identity}\n" for each in self.files]
        text = "".join([*lines, *self.links, str(self.missing), *self.unnamed])
        return xxhash.xxh3_128_hexdigest(text.encode())


def parts_of(metastore: MetastoreReader, table: Table, names: Sequence[str] | None = None) -> Iterator[Part]:
    """names: only these partitions; those that are gone are left out."""
    if not table.is_partitioned:
        yield Part("", table)
        return
    if names is None:
        names = metastore.partition_names(table.db, table.name)
    for batch in metastore.partitions(table.db, table.name, names):
        for partition in batch:
            yield Part(partition_name(table.partition_keys, partition.values), partition)


def new_location(location: str, stamp: str) -> str:
    """Beside the old one; the directory of a purge before is not nested in."""
    above, name = parent(location.rstrip("/")), name_of(location)
    if name_of(above).startswith(SIBLING):
        above = parent(above)
    return join(above, SIBLING + stamp, name)


def look_at(location: str) -> Look:
    """Reads only. Files but hidden ones and those of unfinished jobs, by name."""
    if not is_local(location):
        files = tuple(sorted(_named(files_at(location)), key=lambda each: each.path_relative))
        return Look(files, missing=not files)
    top, found, links, unnamed = local_path(location), list[FileState](), list[str](), list[str]()
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
                        if not skipped_directory(entry.name):
                            waiting.append(name)
                    elif not hidden(entry.name):
                        status = entry.stat()
                        found.append(FileState(name, status.st_size, status.st_mtime_ns, str(status.st_ino)))
    files = tuple(sorted(found, key=lambda each: each.path_relative))
    return Look(files, tuple(sorted(links)), unnamed=tuple(sorted(unnamed)))


def _named(found: Iterable[tuple[str, FileState]]) -> Iterator[FileState]:
    for name, state in found:
        *above, last = name.split("/")
        if not (hidden(last) or any(skipped_directory(part) for part in above)):
            yield FileState(name, state.size, state.mtime_ns, state.identity)


class LooksTask(msgspec.Struct, frozen=True):
    """Locations whose digests are wanted."""

    locations: tuple[str, ...]


def run_looks_task(task: LooksTask) -> list[tuple[str, str]]:
    """(location, digest), in the order given."""
    return [(location, look_at(location).digest) for location in task.locations]


def looks_tasks(locations: Iterable[str], size: int = 200) -> Iterator[LooksTask]:
    waiting = iter(locations)
    while batch := tuple(islice(waiting, size)):
        yield LooksTask(batch)


def is_data(name: str) -> bool:
    """Whether readers take a file for rows: marks such as `_SUCCESS` and `_metadata` they do not."""
    return not any(part.startswith("_") and "=" not in part for part in name.split("/"))


def by_location(parts: Iterable[Part]) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for part in parts:
        found.setdefault(normal(part.location), []).append(part)
    return found


def batched(items: Iterable[Part], size: int = PARTITION_BATCH) -> Iterator[list[Part]]:
    waiting = iter(items)
    while batch := list(islice(waiting, size)):
        yield batch
