"""What lies in the lost side's directories and no capture has seen: its last writes, when its metastore is gone and its
storage is not. Reads only: the manifest is folded again, in a passing file, as nothing may be written at the lost side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from cmroot.root import ChangeRoot
from cmroot.store.listing import list_tree
from cmroot.store.place import join, normal, scratch
from replicator.captures.events.scope import Patterns
from replicator.captures.fold import manifest_at
from replicator.captures.manifest import Manifest
from replicator.core.batches import batched
from replicator.replay.places.placement import relative

NAMED = 20  # directories of a table that are reported by name
THREADS = 8  # tables listed side by side


@dataclass
class UncapturedFiles:
    """Files of a table that no capture has seen, or that have another size than it saw, without markers and empty ones
    beside them; `directories`: some of those that they lie in."""

    table: str
    files: int = 0
    bytes: int = 0
    directories: list[str] = field(default_factory=list)


def uncaptured_files(
    root: ChangeRoot, databases: Sequence[str], patterns: Patterns, position: int
) -> list[UncapturedFiles]:
    """Lists every directory of the databases' tables, by the log's end (`position`) at the lost side. Tables without
    such files are left out. Holds the names of the files of eight tables at a time."""
    found: list[UncapturedFiles] = []
    with (
        scratch("fold") as here,
        manifest_at(root, position, here) as manifest,
        ThreadPoolExecutor(THREADS) as executor,
    ):
        tables = _tables(manifest, databases, patterns)
        for some in batched(tables, THREADS):
            found += executor.map(lambda each: _compare(*each), some)
    return [each for each in found if each.files]


def _tables(
    manifest: Manifest, databases: Sequence[str], patterns: Patterns
) -> Iterator[tuple[str, list[str], dict[str, int]]]:
    """Each table's name, the directories that hold its files, and its files by whole path, with their sizes."""
    for db in databases:
        for name in manifest.table_names(db):
            table = manifest.table(db, name)
            if table is None or not table.location or table.is_view or not patterns.match(name):
                continue
            homes = {normal(table.location): None}
            known = {}
            for _, location, path, size, *_ in manifest.table_files(db, name):
                known[join(normal(location), path)] = size
                if relative(location, table.location) is None:
                    homes[normal(location)] = None
            yield f"{db}.{name}", list(homes), known


def _compare(table: str, homes: Sequence[str], known: dict[str, int]) -> UncapturedFiles:
    """Markers (`_SUCCESS`) and empty files hold no rows: they count only where nothing else is unseen."""
    found, rowless = UncapturedFiles(table), UncapturedFiles(table)
    for home in homes:
        listing = list_tree(home)
        found.files += len(listing.unnamed) if listing else 0  # their names are not UTF-8: no capture takes them
        for file in listing.files if listing else ():
            place = join(home, file.path_relative)
            if known.get(place) == file.size:
                continue
            directory, _, name = place.rpartition("/")
            side = rowless if file.size == 0 or name.startswith("_") else found
            side.files += 1
            side.bytes += file.size
            if directory not in side.directories and len(side.directories) < NAMED:
                side.directories.append(directory)
    return found if found.files else rowless
