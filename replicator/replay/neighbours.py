"""Neighbours: the other objects of the target with a location at, in or above a path. Reads only.

Queried before any removal from the target: files removed with one object must not belong to another. Paths are compared
as normalised by `cmroot.store.place`, and as written, too, as a symbolic link on the way is part of a path.
All tables of the target are read at the first query, and of partitions the locations that do not follow from their
names. A partition in its table's directory by its own name, as most are, is read by that name when a path there is
queried. So the index grows with tables and with partitions at locations of their own.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import tee

from cmroot.errors import Error
from cmroot.keep.recycle import recycle_tree, refuse_link
from cmroot.store.buckets import OWN
from cmroot.store.hdfs import SCHEMES
from cmroot.store.listing import list_tree
from cmroot.store.local import is_directory
from cmroot.store.place import Place, is_local, is_within, join, local_path, located, normal, parent, resolved
from cmroot.store.spelling import scheme
from replicator.core.grouping import batched
from replicator.core.model import Name, Partition, Table, partition_name
from replicator.core.roles import RoleMark, is_shadow, mark_of
from replicator.errors import ObjectNotFound
from replicator.metastore.client import PARTITION_BATCH, MetastoreReader
from replicator.metastore.concurrency import side_by_side
from replicator.metastore.fields import catalog_of, qualified
from replicator.replay.placement import PUBLISHED, is_noted, is_published, lies_by_name, published_name
from replicator.replay.replica import SOURCE

# ---- clearing --------------------------------------------------------------------------------------------------------
# Clearing: moves the files of a directory to a `$cmroot`, except those of other objects. Has side effects; also runs on
# executors.
#
# `neighbours` decides before what belongs to others; here it is only skipped. May run twice.


@dataclass(frozen=True)
class SparedPlace:
    """A path that is not cleared, resolved. `key`: in a partitioned table's own directory, only the directories that
    begin with `<key>=` remain, and the files that `list_root` lists ("": all of it)."""

    place: str
    key: str = ""

    def covers(self, place: str, *, directory: bool = False) -> bool:
        """directory: True if the path is one, not a file."""
        if not is_within(place, self.place):
            return False
        below = place[len(self.place) :].lstrip("/")
        name, inside, _ = below.partition("/")
        own = name in OWN or (bool(name) and not inside and not directory)
        return not self.key or begins_partition(below, self.key) or own


@dataclass(frozen=True)
class Clearing:
    """A directory to clear, and the paths at or below it that remain. above: how many directories above it are removed
    with it, as long as they are empty then. root: only of files that are in no partition, see `list_root`. stays: the
    directory itself is filled again, so it remains, with its rights and attributes."""

    directory: str
    kept: tuple[SparedPlace, ...] = ()
    above: int = 0
    root: bool = False
    stays: bool = False


def begins_partition(below: str, key: str) -> bool:
    """Returns True if a path below a table's directory is at or below a partition's directory."""
    return below.lstrip("/").lower().startswith(f"{key.lower()}=")


def clear(root: str, clearing: Clearing) -> int:
    """Clears a directory and returns how many files were moved to the `$cmroot` at `root`; 0 if the directory does not
    exist. Raises as `recycle_tree`."""
    stays = clearing.stays and _is_directory(clearing.directory)
    if not clearing.kept and not stays and not _holds_published(clearing.directory):
        return len(recycle_tree(root, clearing.directory))
    if is_local(clearing.directory):
        directory = local_path(clearing.directory)
        refuse_link(directory)
        return _clear_around(root, directory, {resolved(directory), os.path.normpath(directory)}, clearing.kept)
    return sum(len(recycle_tree(root, place)) for place in _objects(clearing))


def _is_directory(place: str) -> bool:
    """Returns True for a directory of a disk or HDFS; False for a table's single file, and on object stores."""
    if is_local(place) or scheme(place) not in SCHEMES:
        return is_local(place) and is_directory(local_path(place), follow=False)
    there = Place(place).child()
    return there is not None and there.is_directory


def to_clear(clearing: Clearing) -> tuple[int, int]:
    """Returns the number and bytes of the files that `clear` would remove, without hidden ones. Changes nothing."""
    listing = list_tree(clearing.directory)
    real = resolved(clearing.directory)
    files = [
        file
        for file in (listing.files if listing else ())
        if not any(each.covers(join(real, file.path_relative)) for each in clearing.kept)
    ]
    return len(files), sum(file.size for file in files)


def _holds_published(directory: str) -> bool:
    """Returns True if it contains published files: they may belong to any table, so they are never removed with one."""
    if is_published(f"{normal(directory)}/"):
        return False
    place = located(join(directory, PUBLISHED))
    return place.child() is not None if place.local else bool(place.find())


def _clear_around(root: str, directory: str, spellings: set[str], kept: Sequence[SparedPlace]) -> int:
    """Clears a directory except for `kept`; returns the number of files. `spellings`: its paths, one of them resolved,
    as `kept` may have either."""
    try:
        entries = sorted(os.scandir(directory), key=lambda each: each.name)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    count = 0
    for entry in entries:
        there = {f"{spelling.rstrip('/')}/{entry.name}" for spelling in spellings}
        is_tree = entry.is_dir(follow_symlinks=False)
        if entry.name == PUBLISHED or any(each.covers(place, directory=is_tree) for each in kept for place in there):
            continue
        if any(is_within(each.place, place) for each in kept for place in there):
            if is_tree:
                count += _clear_around(root, entry.path, there, kept)
        elif is_tree or entry.is_file(follow_symlinks=False):
            count += len(recycle_tree(root, entry.path))
        else:  # as with the entire directory: a link, whose bytes belong to others, or a pipe or socket without bytes
            os.unlink(entry.path)
    return count


def _objects(clearing: Clearing) -> Iterator[str]:
    """Yields the paths to clear: files, or if only the directory itself remains, all that is in it."""
    if clearing.stays and not clearing.kept and not _holds_published(clearing.directory):
        yield from (each.path for each in Place(clearing.directory).children())
        return
    real = resolved(clearing.directory)
    for name in Place(real).find():
        place = f"{real}/{name}"
        if f"/{PUBLISHED}/" not in f"/{name}" and not any(each.covers(place) for each in clearing.kept):
            yield join(clearing.directory, name)


# ---- neighbours ------------------------------------------------------------------------------------------------------


_TABLES = 500  # tables per read


@dataclass(frozen=True)
class Occupant:
    """A table or partition and its location, in one of its spellings. `key`: the first partition key of a partitioned
    table, which has no data of its own. `source`: id of the root that it replicates, "" for none."""

    db: str
    table: str
    partition: str
    place: str
    key: str = ""
    source: str = ""

    def __str__(self) -> str:
        return f"{self.db}.{self.table}" + (f"/{self.partition}" if self.partition else "")

    @property
    def why(self) -> str:
        """The reason why the directory remains."""
        return f"{self} also uses them"


@dataclass(frozen=True)
class Link:
    """The occupant of a directory that is a symbolic link: the unknown owner of the directory that it names."""

    why: str = "it is a symbolic link, and no removal follows one"
    source: str = ""


Holder = Occupant | Link


@dataclass(frozen=True)
class Leaving:
    """Tables, with all their partitions, and partitions (db, table, name) that are dropped or recreated: their
    locations do not prevent a clearing."""

    tables: Collection[Name] = frozenset()
    partitions: Collection[tuple[str, str, str]] = frozenset()

    def has(self, db: str, table: str, partition: str = "") -> bool:
        return (db, table) in self.tables or (db, table, partition) in self.partitions


@dataclass
class Free:
    """The clearings that are allowed, and the paths that may not be cleared, with their occupants."""

    clearings: list[Clearing] = field(default_factory=list)
    held: list[tuple[str, Holder]] = field(default_factory=list)


class Neighbours:
    """An index of all locations of the target's tables, as of the first query, kept current by the caller's
    notifications. For one load or sweep, under the lease of the target's root. Not thread-safe."""

    def __init__(self, target: MetastoreReader, *, shadows: bool = False) -> None:
        """shadows: True if the databases of drills count. They show the replica's own files, and are removed with
        them."""
        self._target, self._shadows = target, shadows
        self._all = target  # with other catalogs, after the first read
        self._at: dict[str, list[Occupant]] = {}
        self._places: dict[Name, set[str]] = {}  # paths of a table and its partitions
        self._catalogs: set[str] = set()  # other catalogs
        self._depth: dict[Name, int] = {}  # number of partition keys
        self._sources: dict[Name, str] = {}
        self._sorted: list[str] | None = None
        self._read = False
        self._again: set[Name] = set()
        self.by_name: set[Name] = set()  # large tables whose partitions are located by name, without a note of it
        _resolved.cache_clear()  # links may have changed since

    # ---- notifications of changes by the caller -------------------------------------------------------------------

    def look_again(self, *names: Name) -> None:
        """Marks dropped, created, renamed or moved tables to be reread, by the names from before and after."""
        self._again |= set(names)

    def replaced(self, table: Table, names: Collection[str], partitions: Iterable[Partition] = ()) -> None:
        """Records that partitions of these names were removed, and new ones added."""
        if self._read:
            self._forget((table.db, table.name), set(names))
            self._add_partitions(table, _apart(table, partitions))

    # ---- queries --------------------------------------------------------------------------------------------------

    def removable(self, places: Iterable[str], leaving: Leaving) -> Free:
        """Returns the same as `free`, for directories that are removed with all files: symbolic links are not."""
        linked, others = list[str](), list[str]()
        for place in dict.fromkeys(places):
            (linked if is_link(place) else others).append(place)
        answer = self.free(others, leaving)
        answer.held += [(place, Link()) for place in linked]
        return answer

    def free(self, places: Iterable[str], leaving: Leaving) -> Free:
        """Returns which directories may be cleared, and which paths in them may not."""
        answer = Free()
        for place, holders in self.others(list(places), leaving).items():
            real = _spellings(place)
            above = next(
                (each for each in holders if not each.key and any(is_within(r, each.place) for r in real)), None
            )
            if above is not None:
                answer.held.append((place, above))
            else:
                answer.clearings.append(
                    Clearing(place, tuple({SparedPlace(each.place, each.key): None for each in holders}))
                )
        return answer

    def others(self, places: Sequence[str], leaving: Leaving = Leaving()) -> dict[str, list[Occupant]]:
        """Returns, by path, the occupants at, in or above it, without those that leave. A partitioned table's own
        directory counts if the path is above it; for a path below it only its partitions count."""
        self._refresh()
        found: dict[str, list[Occupant]] = {}
        asked: dict[Name, dict[str, list[str]]] = {}  # table -> partition -> places
        for place in dict.fromkeys(places):
            mine = found.setdefault(place, [])
            for real in _spellings(place):
                for holder in (*self._at_or_below(real), *self._above(real)):
                    if leaving.has(holder.db, holder.table) or leaving.has(holder.db, holder.table, holder.partition):
                        continue
                    if not holder.key or is_within(holder.place, real):
                        mine.append(holder)
                    elif begins_partition(below := real[len(holder.place) :], holder.key):
                        asked.setdefault((holder.db, holder.table), {}).setdefault(below.strip("/"), []).append(place)
            published = published_name(place)
            if published is not None:
                for name in self._named(*published[:2]):
                    if not leaving.has(*name):
                        asked.setdefault(name, {}).setdefault(published[2], []).append(place)
        for name, belows in asked.items():
            for place, holder in self._asked_by_name(name, belows, leaving):
                found[place].append(holder)
        return found

    def touching(self, place: str) -> list[Occupant]:
        """Returns the occupants at, in or above a path, including every partitioned table's own directory."""
        self._refresh()
        return [each for real in _spellings(place) for each in (*self._at_or_below(real), *self._above(real))]

    def depth(self, place: str) -> int | None:
        """Returns the number of directories above a path up to the nearest occupied one; None if there is none."""
        self._refresh()
        found = [real[len(holder.place) :].count("/") - 1 for real in _spellings(place) for holder in self._above(real)]
        return min(found, default=None)

    # ---- internals ------------------------------------------------------------------------------------------------

    def _at_or_below(self, real: str) -> Iterator[Occupant]:
        yield from self._at.get(real, ())
        top = real.rstrip("/") + "/"
        if self._sorted is None:
            self._sorted = sorted(self._at)
        for index in range(bisect_left(self._sorted, top), len(self._sorted)):
            if not self._sorted[index].startswith(top):
                return
            yield from self._at.get(self._sorted[index], ())

    def _above(self, real: str) -> Iterator[Occupant]:
        while (above := parent(real)) != real:
            yield from self._at.get(above, ())
            real = above

    def _named(self, db: str, table: str) -> list[Name]:
        """Returns the tables of this name in all catalogs: a path published under it may belong to each of them."""
        others = ((qualified(catalog, db), table) for catalog in self._catalogs)
        return [(db, table), *(name for name in others if name in self._depth)]

    def _asked_by_name(
        self, name: Name, belows: Mapping[str, Sequence[str]], leaving: Leaving
    ) -> Iterator[tuple[str, Occupant]]:
        """Yields, of the paths in a table's directory, those occupied by a partition located there by its name."""
        depth = self._depth.get(name, 0)
        wanted: dict[str, list[str]] = {}
        for below, places in belows.items():
            parts = below.split("/")
            if len(parts) < depth:  # above the partitions of some of the keys, whichever exist
                for place in places:
                    yield place, Occupant(*name, below, _spellings(place)[0], source=self._sources[name])
            elif depth and not leaving.has(*name, partition := "/".join(parts[:depth])):
                wanted.setdefault(partition, []).extend(places)
        for partition, each in self._partitions(name, list(wanted)):
            for place in wanted.get(partition, ()):
                for spelt in _spellings(each.location) if each.location else ():
                    if any(is_within(real, spelt) or is_within(spelt, real) for real in _spellings(place)):
                        yield place, Occupant(*name, partition, spelt, source=self._sources.get(name, ""))

    def _partitions(self, name: Name, names: Sequence[str]) -> Iterator[tuple[str, Partition]]:
        with contextlib.suppress(ObjectNotFound):
            keys = self._all.table(*name).partition_keys if names else ()
            for page in self._all.partitions(*name, names) if names else ():
                yield from ((partition_name(keys, each.values), each) for each in page)

    # ---- reading --------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        if not self._read:
            self._again.clear()
            self._all = self._target.everywhere()
            names = self._all.database_names()
            self._catalogs = {catalog for catalog in map(catalog_of, names) if catalog}
            for db in names:
                self._add_tables(db)
            self._read = True
        elif self._again:
            for name in self._again:
                self._forget(name)
            for db in {db for db, _ in self._again}:
                self._add_tables(db, sorted(name for other, name in self._again if other == db))
            self._again.clear()

    def _forget(self, name: Name, partitions: Collection[str] | None = None) -> None:
        """Removes some partitions of a table from the index, or the entire table."""
        for place in self._places.get(name, ()):
            self._at[place] = [
                each
                for each in self._at[place]
                if (each.db, each.table) != name or (partitions is not None and each.partition not in partitions)
            ]
        if partitions is None:
            self._places.pop(name, None)
            self._depth.pop(name, None)

    def _add_tables(self, db: str, names: Sequence[str] | None = None) -> None:
        """Reads tables of a database. names: None for all."""
        with contextlib.suppress(ObjectNotFound):
            database = self._all.database(db)
            if is_shadow(database) and not self._shadows:
                return
            role = mark_of(database.parameters, db, repair=True)
            names = self._all.table_names(db) if names is None else names
            found = (table for some in batched(names, _TABLES) for table in self._all.tables(db, some))
            tables, again = tee(table for table in found if not table.is_view)
            read = partial(self._elsewhere, role)
            for table, elsewhere in zip(tables, side_by_side(self._target.traffic, read, again), strict=True):
                self._add_table(table, *elsewhere)

    def _elsewhere(self, role: RoleMark, table: Table) -> tuple[int, list[Partition]]:
        """Returns the number of partitions of a table of others, and those not located by their names. Runs in a
        thread."""
        name = (table.db, table.name)
        with contextlib.suppress(ObjectNotFound):
            if table.has_files_by_partition and not is_noted(table, role):
                if (few := self._all.few_partitions(*name)) is not None:
                    return len(few), _apart(table, few)
                names = self._all.partition_names(*name)
                pages = self._all.partitions(*name, names)
                return len(names), [each for page in pages for each in _apart(table, page)]
        return 0, []

    def _add_table(self, table: Table, partitions: int, elsewhere: Sequence[Partition]) -> None:
        name = (table.db, table.name)
        key = table.partition_keys[0].name if table.has_files_by_partition else ""
        self._depth[name] = len(table.partition_keys) if table.has_files_by_partition else 0
        self._sources[name] = table.parameters.get(SOURCE, "")
        if table.location:
            self._add(Occupant(*name, "", "", key), table.location)
        self._add_partitions(table, elsewhere)
        if partitions > PARTITION_BATCH and not elsewhere:
            self.by_name.add(name)

    def _add_partitions(self, table: Table, apart: Iterable[Partition]) -> None:
        for each in apart:
            name = partition_name(table.partition_keys, each.values)
            self._add(Occupant(table.db, table.name, name, ""), each.location or "")

    def _add(self, holder: Occupant, location: str) -> None:
        for place in _spellings(location):
            if place not in self._at:
                self._sorted = None
            holder = replace(holder, place=place, source=self._sources.get((holder.db, holder.table), ""))
            self._at.setdefault(place, []).append(holder)
            self._places.setdefault((holder.db, holder.table), set()).add(place)


def _apart(table: Table, partitions: Iterable[Partition]) -> list[Partition]:
    """Returns the partitions with a location that their names do not tell."""
    named = ((each, partition_name(table.partition_keys, each.values)) for each in partitions if each.location)
    return [each for each, name in named if not lies_by_name(table, name, each.location or "")]


def is_link(place: str) -> bool:
    """Returns True if a directory or file is a symbolic link; the links above it are part of its path."""
    return is_local(place) and os.path.islink(local_path(place))


def _spellings(place: str) -> tuple[str, ...]:
    """Returns the path with links resolved, and the path as written, if they differ. One that cannot be resolved (no
    permission, a store that is unavailable) is used as written."""
    written = os.path.normpath(local_path(place)) if is_local(place) else place
    try:
        real = _resolved(normal(place))
    except Error:
        return (written,)
    return (real,) if real == written or not is_local(place) else (real, written)


@lru_cache(maxsize=1 << 16)
def _resolved(place: str) -> str:
    return resolved(place)
