"""Emptied directories: what a removal leaves of a file's directory goes with its last file. Acts; may run twice.

The source has no file there, whether or not it has the directory; some readers fail where there is an empty one. Stores
of objects have none. The directories of tables and partitions themselves stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from cmroot.store.emptied import remove_if_empty
from cmroot.store.listing import Listing, list_tree
from cmroot.store.place import is_local, local_path, parent


def remove_emptied(files: Iterable[str], homes: Collection[str]) -> int:
    """How many went of the directories above files that were removed; `homes`: places, ending with a slash, at which
    that ends."""
    count = 0
    for directory in {parent(local_path(file) if is_local(file) else file) for file in files}:
        while f"{directory}/" not in homes and remove_if_empty(directory):
            count += 1
            directory = parent(directory)
    return count


def remove_above(directory: str, levels: int) -> int:
    """How many of so many directories above one that was removed were empty, and went."""
    above, count = parent(directory), 0
    while count < levels and remove_if_empty(above):
        above, count = parent(above), count + 1
    return count


def empty_directories(listing: Listing | None) -> list[str]:
    """Directories of a listing, by their relative names, that hold nothing but such directories: the deepest first."""
    if listing is None or len(listing.directories) < 2:
        return []
    filled = set()
    for file in listing.files:
        above = file.path_relative.rpartition("/")[0]
        while above and above not in filled:
            filled.add(above)
            above = above.rpartition("/")[0]
    names = [each.relative for each in listing.directories if each.relative and each.relative not in filled]
    return sorted(names, key=lambda name: (-name.count("/"), name))


def sweep_empty(directory: str) -> int:
    """Takes away a directory's empty ones; how many."""
    return sum(remove_if_empty(f"{directory}/{name}") for name in empty_directories(list_tree(directory)))
