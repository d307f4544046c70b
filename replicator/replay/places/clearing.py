"""Clearing: the files of a directory go to a `$cmroot`, except what others have in it. Acts; runs on executors, too.

What others have is decided before, by `neighbours`; here it is only walked around. May run twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cmroot.keep.recycle import recycle_tree, refuse_link
from cmroot.store.listing import list_tree
from cmroot.store.place import Place, is_local, join, local_path, normal
from cmroot.store.resolve import is_within, located, resolved
from replicator.replay.places.placement import PUBLISHED, is_published


@dataclass(frozen=True)
class SparedPlace:
    """A place that stays, resolved. `key`: of a partitioned table's own directory, which holds no data but that of
    partitions, only the directories that begin with `<key>=` stay ("": all of it)."""

    place: str
    key: str = ""

    def covers(self, place: str) -> bool:
        if not is_within(place, self.place):
            return False
        return not self.key or begins_partition(place[len(self.place) :], self.key)


@dataclass(frozen=True)
class Clearing:
    """A directory to clear, and the places at or below it that stay. above: so many directories above it go with it, as
    long as they are empty then."""

    directory: str
    kept: tuple[SparedPlace, ...] = ()
    above: int = 0


def begins_partition(below: str, key: str) -> bool:
    """Whether a path below a table's directory leads into a partition's."""
    return below.lstrip("/").lower().startswith(f"{key.lower()}=")


def clear(root: str, clearing: Clearing) -> int:
    """Number of files that went to the root at `root`. A directory that is gone has none. Raises as `recycle_tree`."""
    if not clearing.kept and not _holds_published(clearing.directory):
        return len(recycle_tree(root, clearing.directory))
    if is_local(clearing.directory):
        directory = local_path(clearing.directory)
        refuse_link(directory)
        return _clear_around(root, directory, {resolved(directory), os.path.normpath(directory)}, clearing.kept)
    return sum(len(recycle_tree(root, place)) for place in _objects(clearing) if Place(place).exists())


def to_clear(clearing: Clearing) -> tuple[int, int]:
    """Files and bytes that `clear` would take away, hidden ones not counted. Changes nothing."""
    listing = list_tree(clearing.directory)
    real = resolved(clearing.directory)
    files = [
        file
        for file in (listing.files if listing else ())
        if not any(each.covers(join(real, file.path_relative)) for each in clearing.kept)
    ]
    return len(files), sum(file.size for file in files)


def _holds_published(directory: str) -> bool:
    """Whether what loads have published lies in it: of whichever tables, so it never goes with one of them."""
    if is_published(f"{normal(directory)}/"):
        return False
    place = located(join(directory, PUBLISHED))
    return place.child() is not None if place.local else bool(place.find())


def _clear_around(root: str, directory: str, spellings: set[str], kept: Sequence[SparedPlace]) -> int:
    """`spellings`: of the directory, its real one among them, as `kept` may have either."""
    try:
        entries = sorted(os.scandir(directory), key=lambda each: each.name)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    count = 0
    for entry in entries:
        there = {f"{spelling.rstrip('/')}/{entry.name}" for spelling in spellings}
        if entry.name == PUBLISHED or any(each.covers(place) for each in kept for place in there):
            continue
        if any(is_within(each.place, place) for each in kept for place in there):
            if entry.is_dir(follow_symlinks=False):
                count += _clear_around(root, entry.path, there, kept)
        elif entry.is_symlink():
            os.unlink(entry.path)  # as with the whole directory: the bytes behind it are somebody else's
        else:
            count += len(recycle_tree(root, entry.path))
    return count


def _objects(clearing: Clearing) -> Iterator[str]:
    real = resolved(clearing.directory)
    for name in Place(real).find():
        place = f"{real}/{name}"
        if f"/{PUBLISHED}/" not in f"/{name}" and not any(each.covers(place) for each in clearing.kept):
            yield join(clearing.directory, name)
