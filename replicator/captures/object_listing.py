"""Listing of objects: the current files of a table or partition, and their changes since they were last recorded.

An engine runs `list_objects`, on executors too: it lists directories, hashes and retains new or changed files, and
returns file rows. It accesses no metastore and writes nothing except retained bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from cmroot.errors import FormatError, NotWritable
from cmroot.keep.hdfs_keepers import is_in_snapshot, is_native
from cmroot.keep.keepers import Keeper, Kept
from cmroot.keep.versions import NULL
from cmroot.log.captured import FILES
from cmroot.store.acid import Chosen, State
from cmroot.store.buckets import Listings
from cmroot.store.listing import FileState, Listing, full_identity
from cmroot.store.place import is_local, join
from replicator.captures.inventory import DataObject, KnownFile
from replicator.captures.write_ids import files_of
from replicator.core.grouping import batched

ROWS = 10_000  # rows of one outcome at which a task postpones its other objects: limits the memory of the driver
REQUESTS = 16  # objects of one listing that are read concurrently: a store takes 10 to 100 ms to begin
STABLE_TRIES = 3  # listings of a directory that changes while its files are read


@dataclass(frozen=True)
class ListTask:
    """Objects to list, the known files of each, and the keeper of their bytes. Of transactional tables: `states`: the
    write ids to list, by object; `open`: directories of writers that have not ended, by object."""

    objects: Sequence[DataObject]
    known: Sequence[Mapping[str, KnownFile]]
    keeper: Keeper
    states: Mapping[int, State] = field(default_factory=dict)
    open: Mapping[int, frozenset[str]] = field(default_factory=dict)


@dataclass
class Listed:
    """The outcome: rows for the captured log (the caller sets the positions), the object of each row, each object's
    directories, the objects whose directory could not be read, with the reason ("": it need not exist), and the amount
    read. `postponed`: objects left out because the outcome became too large; another task must list them. `unnamed`:
    per object, its names that are not UTF-8. `same`: (object, path, identity) of files that were read although only
    their identity had changed. Of transactional tables: `unclear`: objects that are not listed, because their write ids
    are too old for some directories; `mixed`: per object, the directories left out because their files have
    committed rows and rows of aborted or open transactions."""

    objects: Sequence[DataObject]
    rows: pa.Table
    owners: list[int]
    directories: list[tuple[int, str, int, int, str]] = field(default_factory=list)  # object, then DirectoryState
    missing: list[tuple[DataObject, str]] = field(default_factory=list)
    postponed: Sequence[DataObject] = ()
    files_hashed: int = 0
    bytes_hashed: int = 0
    unnamed: dict[int, list[str]] = field(default_factory=dict)
    same: list[tuple[int, str, str]] = field(default_factory=list)
    unclear: list[tuple[DataObject, frozenset[str]]] = field(default_factory=list)
    mixed: dict[int, list[str]] = field(default_factory=dict)


def list_objects(task: ListTask) -> Listed:
    """Lists each object and retains new bytes. May run twice: retained bytes are content-addressed."""
    rows = Rows()
    roots = {index for index, obj in enumerate(task.objects) if obj.root}
    listings = Listings([obj.location for obj in task.objects], roots)
    found = Listed([], FILES.empty_table(), rows.owner, same=rows.same)
    done = 0
    shared = dict[str, Listing]()  # of Hudi's tables that have one directory
    for index, (obj, known) in enumerate(zip(task.objects, task.known, strict=True)):
        if len(rows.owner) + len(rows.same) >= ROWS:
            break
        done += 1
        for last_try in (False,) * (STABLE_TRIES - 1) + (True,):
            try:
                listing, state = shared.pop(obj.location, None) or listings.of(index), task.states.get(index)
                files, of_state = files_of(listing, obj.location, state) if listing and state else ([], Chosen())
            except (ConnectionError, TimeoutError):
                raise
            except (OSError, FormatError, NotWritable) as error:  # of one location: the others continue
                if isinstance(error, FileNotFoundError) and not last_try:
                    continue  # a file was removed since it was listed
                found.missing.append((obj, f"its directory cannot be listed: {error}"))
                break
            if listing is None and not known and not is_local(obj.location):
                break  # a store without directories returns nothing if nothing was written yet
            if listing is None and obj.root and not known:  # all of its partitions may be elsewhere
                found.missing.append((obj, ""))
                break
            if listing is None:
                found.missing.append((obj, f"its directory {obj.location} does not exist"))
                break
            if obj.partition and listing.is_one_file:  # no server creates such a partition, but one may become so
                found.missing.append((obj, f"its location {obj.location} is a file, not a directory"))
                break
            if state is not None:
                if too_new := frozenset(of_state.unclear) - task.open.get(index, frozenset()):
                    found.unclear.append((obj, too_new))
                    break
                if left_out := of_state.left_out(state):
                    found.mixed[index] = left_out
                listing = Listing(files, listing.directories, listing.unnamed)
            if listing.is_whole and last_try:
                found.missing.append((obj, "its files were removed while they were read, each time"))
                break
            recorded = _record(rows, index, obj, listing, known, task.keeper, tolerant=last_try)
            if not (recorded and listing.is_whole):
                rows.read.clear()
            if recorded:
                shared = {obj.location: listing} if listing.is_whole else {}
                found.directories += [
                    (index, each.relative, each.mtime_ns, each.listed_ns, each.identity) for each in listing.directories
                ]
                if listing.unnamed:
                    found.unnamed[index] = listing.unnamed
                break
    found.objects, found.postponed = task.objects[:done], task.objects[done:]
    found.rows = rows.table(task.objects)
    found.files_hashed, found.bytes_hashed = rows.files_hashed, rows.bytes_hashed
    return found


def nothing_left(objects: Sequence[DataObject], known: Sequence[Mapping[str, KnownFile]]) -> Listed:
    """Returns the listing of objects that were declared empty: every known file is removed."""
    rows = Rows()
    for index, files in enumerate(known):
        for path in files:
            rows.remove(index, path)
    return Listed(objects=objects, rows=rows.table(objects), owners=rows.owner)


def uncaptured_files(db: str, table: str, partition: str, named: Mapping[str, int]) -> pa.Table:
    """Returns rows for files that an event named (URI -> position) and that were deleted before they could be read: the
    checksum is unknown, no bytes are retained, and a load that requires them reports it."""
    rows = Rows()
    objects: list[DataObject] = []
    for uri in named:
        location, _, path = uri.rpartition("/")
        rows.add(len(objects), "add", path, *_UNREAD)
        objects.append(DataObject(0, 0, db, table, partition, location, 0))
    unplaced = rows.table(objects)
    positions = pa.array(list(named.values()), pa.int64())
    return unplaced.set_column(0, unplaced.schema.field(0), positions)


def _record(
    rows: Rows,
    index: int,
    obj: DataObject,
    listing: Listing,
    known: Mapping[str, KnownFile],
    keeper: Keeper,
    *,
    tolerant: bool,
) -> bool:
    """Adds one object's rows. Returns False, without adding any, if a file vanished; `tolerant` leaves it out."""
    start = len(rows.owner), len(rows.same)
    remaining = dict(known)
    changed = []
    for file in listing.files:
        before = remaining.pop(file.path_relative, None)
        if before is None or not _same(before, file, keeper):
            changed.append((file.path_relative, before))
    places = (join(obj.location, path) for path, _ in changed)
    for (path, before), kept in zip(changed, _each_kept(keeper, places, obj.location, rows.read), strict=True):
        if kept is None and not tolerant:
            rows.cut(*start)
            return False
        if kept is not None and before is not None and is_same_entry(before, kept, keeper):
            rows.same.append((index, path, full_identity(kept.identity, kept.changed_ns)))
        elif kept is not None:
            rows.keep(index, path, kept, keeper)
        elif before is not None:
            remaining[path] = before
    for path in remaining:
        rows.remove(index, path)
    return True


def _each_kept(keeper: Keeper, places: Iterable[str], location: str, read: dict[str, Kept]) -> Iterator[Kept | None]:
    """Retains files one after another (on remote stores, several at once); yields None for one that vanished."""
    if is_local(location):
        for place in places:
            yield _kept(keeper, read, place)
        return
    with ThreadPoolExecutor(REQUESTS) as pool:
        for some in batched(places, 16 * REQUESTS):
            yield from pool.map(_kept, itertools.repeat(keeper), itertools.repeat(read), some)


def _kept(keeper: Keeper, read: dict[str, Kept], place: str) -> Kept | None:
    try:
        if place not in read:
            read[place] = keeper.keep(place)
        return read[place]
    except FileNotFoundError:
        return None


def _same(before: KnownFile, now: FileState, keeper: Keeper) -> bool:
    """Returns True if a file need not be read: size, times and identity are as recorded, and it is retained."""
    return is_kept_by(before, keeper) and now.is_recorded(before.size, before.mtime_ns, before.identity)


def is_kept_by(before: KnownFile, keeper: Keeper) -> bool:
    """Returns True if a file is retained as required. A null version is safe only while its bucket has versioning;
    native retention is less safe than any other keeper. A snapshot is safe only while there are later ones."""
    return (
        before.checksum is not None
        and (before.kept or keeper.name == "none")
        and (before.version != NULL or keeper.name in ("version", "none"))
        and (not is_native(before.version) or keeper.name in ("native", "none"))
        and (not is_in_snapshot(before.version) or keeper.name in ("snapshot", "none"))
    )


def is_same_entry(before: KnownFile, kept: Kept, keeper: Keeper) -> bool:
    """Returns True if a file that was read again equals its entry: a change of owner or mode, or a hard link to it,
    updates the change time."""
    now = (kept.size, kept.mtime_ns, kept.checksum, keeper.name != "none", kept.version)
    return (before.size, before.mtime_ns, before.checksum, bool(before.kept), before.version) == now


class Rows:
    """Columns of file rows under construction. read: what was retained, by place; nothing in it is read again."""

    def __init__(self) -> None:
        self.read: dict[str, Kept] = {}
        self.owner: list[int] = []
        self.same: list[tuple[int, str, str]] = []
        self.columns: dict[str, list[object]] = {name: [] for name in _WRITTEN}
        self.files_hashed = 0
        self.bytes_hashed = 0

    def add(self, owner: int, *values: object) -> None:
        self.owner.append(owner)
        for name, value in zip(_WRITTEN, values, strict=True):
            self.columns[name].append(value)
        if values[0] == "add" and values[5] is not None:
            self.files_hashed += 1
            self.bytes_hashed += int(values[2])  # type: ignore[call-overload]

    def keep(self, owner: int, path: str, kept: Kept, keeper: Keeper) -> None:
        """Adds the row of a file that was retained."""
        identity, is_kept = full_identity(kept.identity, kept.changed_ns), keeper.name != "none"
        self.add(owner, "add", path, kept.size, kept.mtime_ns, identity, kept.checksum, is_kept, kept.version)

    def remove(self, owner: int, path: str) -> None:
        self.add(owner, "remove", path, *_NOTHING)

    def cut(self, length: int, same: int) -> None:
        del self.owner[length:], self.same[same:]
        for column in self.columns.values():
            del column[length:]

    def table(self, objects: Sequence[DataObject]) -> pa.Table:
        names = {
            "db": [obj.db for obj in objects],
            "table": [obj.table for obj in objects],
            "partition": [obj.partition for obj in objects],
            "location": [obj.location for obj in objects],
        }
        columns: dict[str, list[object]] = {"position": [0] * len(self.owner)}
        for name, values in names.items():
            columns[name] = [values[owner] for owner in self.owner]
        columns |= self.columns
        return pa.table({name: pa.array(values, FILES.field(name).type) for name, values in columns.items()})


_WRITTEN = ("op", "path", "size", "mtime_ns", "identity", "checksum", "kept", "version")
_NOTHING = (None, None, None, None, None, None)
_UNREAD = (None, None, None, None, False, None)
