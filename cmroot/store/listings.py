"""Listings of several locations in few requests, and of the directories of partitioned tables. Reads only."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence

from cmroot.errors import NotWritable
from cmroot.store.buckets import lists_ranges, trees
from cmroot.store.delta import LOG
from cmroot.store.listing import Listing, key_prefix, list_local, list_tree, listed_objects
from cmroot.store.place import is_local, join, local_path, normal, remote_store, split_authority
from cmroot.store.spelling import naming

OWN = frozenset({"_spark_metadata"})
"""Directories in that of a partitioned table which are the table's own. Others may be partitions, or unfinished."""


def list_root(location: str, *, now_ns: Callable[[], int] = time.time_ns) -> Listing | None:
    """Returns the files in the directory of a partitioned table that are in none of its partitions: those directly in
    it, and those below directories of its own. None when the directory does not exist, or is a file."""
    if is_local(location):
        listing = list_local(local_path(location), now_ns, within=OWN.__contains__)
    else:
        listing = _list_root_objects(location)
    return None if listing is None or listing.is_one_file else listing


def _list_root_objects(location: str) -> Listing | None:
    store, prefix = remote_store(location), key_prefix(location)
    try:
        with naming(location):
            infos = store.filesystem.ls(prefix[:-1], detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    found = {}
    for info in infos:
        name = info["name"].rstrip("/")[len(prefix) :]
        if info.get("type") != "directory":
            found[info["name"]] = info
        elif name in OWN:
            found |= store.tree(join(location, name))
    return listed_objects(prefix, found)


class Listings:
    """Listings of several locations, for a caller that requests them in turn. The first ones of a store that lists
    ranges are made together, in few requests; at most one page ahead of the requested one, if locations are sorted."""

    def __init__(self, locations: Sequence[str], roots: Collection[int] = ()) -> None:
        """roots: the indexes of those that are directories of partitioned tables, listed by `list_root`."""
        self._locations, self._roots = locations, roots
        self._coming = _together(locations, roots)
        self._here: dict[int, Listing | None] = {}
        self._unasked = set(range(len(locations)))

    def of(self, index: int) -> Listing | None:
        """Returns the listing of a location like `list_tree` or `list_root`; a new listing each time."""
        if index in self._roots:
            return list_root(self._locations[index])
        if index in self._unasked:
            self._unasked.discard(index)
            while index not in self._here and (came := self._next()):
                self._here[came[0]] = came[1]
        return self._here.pop(index, None) or list_tree(self._locations[index])

    def _next(self) -> tuple[int, Listing | None] | None:
        """Returns the next listing; None after an error: listing that location separately reports it better."""
        try:
            return next(self._coming, None)
        except (ConnectionError, TimeoutError):
            raise
        except (OSError, NotWritable):
            return None


def _together(locations: Sequence[str], without: Collection[int]) -> Iterator[tuple[int, Listing | None]]:
    """Yields the locations (by index) whose store lists ranges, by bucket and in the order of their keys. None: must be
    listed separately."""
    buckets: dict[str, list[int]] = {}
    for index, location in enumerate(locations):
        if index not in without and lists_ranges(location):
            buckets.setdefault(split_authority(normal(location))[0], []).append(index)
    for indexes in buckets.values():
        places = [locations[index] for index in indexes]
        for nth, found in trees(places):
            prefix = key_prefix(places[nth])
            alone = not found or any(key.startswith(f"{prefix}{LOG}/") for key in found)
            yield indexes[nth], None if alone else listed_objects(prefix, found)
