"""Listing of objects: the current files of a table or partition, and their changes since they were last recorded; and
the objects on HDFS that need not be listed, because no difference of snapshots names them.

An engine runs `list_objects`, on executors too: it lists directories, hashes and retains new or changed files, and
returns file rows. It accesses no metastore and writes nothing except retained bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache

import msgspec
import pyarrow as pa

from cmroot.errors import FormatError, NotWritable
from cmroot.keep.hdfs_keepers import (
    CAPTURES_OPEN,
    DIRECTORY,
    Named,
    SnapshotKeeper,
    captures_open_files,
    differences,
    is_in_snapshot,
    is_native,
    make_snapshot,
    snapshottable,
    sweep_snapshots,
)
from cmroot.keep.keepers import Keeper, Kept
from cmroot.keep.versions import NULL
from cmroot.log.captured import FILES
from cmroot.store.acid import Chosen, State
from cmroot.store.buckets import Listings
from cmroot.store.listing import FileState, Listing, full_identity
from cmroot.store.place import is_local, join, scheme
from cmroot.store.spelling import normal, split_authority, upwards
from replicator.captures.inventory import DataObject, KnownFile
from replicator.captures.manifest import Manifest
from replicator.captures.recording import Recording
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
    for index, (obj, known) in enumerate(zip(task.objects, task.known, strict=True)):
        if len(rows.owner) + len(rows.same) >= ROWS:
            break
        done += 1
        for last_try in (False,) * (STABLE_TRIES - 1) + (True,):
            try:
                listing, state = listings.of(index), task.states.get(index)
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
            if _record(rows, index, obj, listing, known, task.keeper, tolerant=last_try):
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
    for (path, before), kept in zip(changed, _each_kept(keeper, places, obj.location), strict=True):
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


def _each_kept(keeper: Keeper, places: Iterable[str], location: str) -> Iterator[Kept | None]:
    """Retains files one after another (on remote stores, several at once); yields None for one that vanished."""
    if is_local(location):
        for place in places:
            yield _kept(keeper, place)
        return
    with ThreadPoolExecutor(REQUESTS) as pool:
        for some in batched(places, 16 * REQUESTS):
            yield from pool.map(_kept, itertools.repeat(keeper), some)


def _kept(keeper: Keeper, place: str) -> Kept | None:
    try:
        return keeper.keep(place)
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
    """Columns of file rows under construction."""

    def __init__(self) -> None:
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


# ---- capture snapshots -----------------------------------------------------------------------------------------------
# The snapshots of one capture on HDFS: at most one per snapshottable directory, created on first use.


_ODD = frozenset({".", "..", DIRECTORY})  # names that lead elsewhere


class CaptureSnapshots:
    """`silent`: stores that do not report their snapshottable directories, with the reason."""

    def __init__(self, root: str, after: int, *, keeps: bool) -> None:
        """after: the log's position before the capture; keeps: True if file entries may name these snapshots."""
        self._root, self._after, self._keeps = root, after, keeps
        self._made: dict[str, str] = {}
        self.silent: dict[str, OSError] = {}
        self._allowed = cache(self._asked)
        self._captures_open = cache(captures_open_files)

    def top(self, location: str) -> str:
        """Returns the snapshottable directory at or above a location; empty if there is none or it is unknown."""
        if scheme(location) != "hdfs":
            return ""
        store, path = split_authority(normal(location))
        if "//" in path or _ODD.intersection(path.split("/")):
            return ""
        allowed = self._allowed(store)
        return next((store + each for each in upwards(path) if each in allowed), "") if allowed else ""

    def why_not(self, top: str) -> str:
        """Returns the reason why snapshots of a directory cannot be compared; empty if they can."""
        return "" if self._captures_open(split_authority(top)[0]) else f"{CAPTURES_OPEN} is not true, or unknown"

    def of(self, top: str) -> str:
        """Returns the name of this capture's snapshot, creating it if necessary. Raises OSError if that fails."""
        if top not in self._made:
            self._made[top] = make_snapshot(self._root, top, self._after, keeps=self._keeps)
        return self._made[top]

    def keeper(self, location: str) -> SnapshotKeeper | str:
        """Returns the keeper of files at a location, or the reason why there is none."""
        top = self.top(location)
        if not top:
            silent = self.silent.get(split_authority(normal(location))[0])
            return f"{silent.strerror or silent}" if silent else "no directory above is snapshottable by this user"
        if reason := self.why_not(top):
            return reason
        try:
            return SnapshotKeeper(self._root, top, self.of(top))
        except OSError as error:
            return f"{error.strerror or error}"

    def _asked(self, store: str) -> Collection[str]:
        try:
            return frozenset(snapshottable(store))
        except OSError as error:
            self.silent[store] = error
            return ()


# ---- snapshot diff ---------------------------------------------------------------------------------------------------
# A base is a snapshot after which everything below its directory was listed, or known to be unchanged. It is stored in
# the manifest with the capture's position; the next capture requests the difference from it. In any doubt there is no
# difference, and everything is listed.


PROVED = timedelta(days=1)
"""The interval after which everything is listed again, regardless of differences."""

_STATE = "snapshots"


class Base(msgspec.Struct, frozen=True):
    """A base. listed: when everything below it was last listed, in seconds."""

    name: str
    listed: int


class SnapshotDiff:
    """The snapshot differences of one capture. Each directory is queried when the first object in it is checked, which
    is before any of them is listed."""

    def __init__(self, log: Recording, snapshots: CaptureSnapshots, *, begin: bool, prove: bool) -> None:
        """begin: everything not excluded by differences is listed, so that new bases may be created; prove: everything
        is listed."""
        self._log, self._snapshots, self._begin, self._prove = log, snapshots, begin, prove
        self._bases = bases(log.manifest)
        self._named: dict[str, Named | None] = {}

    def is_quiet(self, location: str, *, root: bool = False) -> bool:
        """Returns True if nothing has changed at a location since it was listed. root: as of a `DataObject`."""
        named = self._named_at(location)
        if named is None:
            return False
        path = split_authority(normal(location))[1] or "/"
        return not (named.has_of_root(path) if root else named.has(path))

    def is_known(self, location: str) -> bool:
        """Returns True if differences are available for a location."""
        return self._named_at(location) is not None

    def finish(self) -> None:
        """Stores the bases for the next capture. Bases of directories without objects are removed."""
        silent = self._snapshots.silent
        if self._begin:
            for top in [top for top in self._bases if top not in self._named]:
                if error := silent.get(split_authority(top)[0]):
                    self._tell(
                        top, "every directory below was listed: snapshottable directories cannot be queried", error
                    )
                else:
                    del self._bases[top]
        if self._bases or self._log.manifest.recall(_STATE):
            self._log.manifest.remember(_STATE, msgspec.json.encode(self._bases).decode())

    def _named_at(self, location: str) -> Named | None:
        top = self._snapshots.top(location)
        if top and top not in self._named:
            self._named[top] = self._asked(top)
        return self._named[top] if top else None

    def _asked(self, top: str) -> Named | None:
        """Returns the changes below a snapshottable directory; None: everything is to be listed. Creates the next base,
        unless nothing has changed."""
        base, now = self._bases.get(top), self._log.now()
        named = None
        if base and not (self._begin and (self._prove or now - base.listed >= PROVED.total_seconds())):
            named = self._since(top, base.name)
        if (base or self._begin) and (named is None or named):
            named = self._advanced(top, base, named, now)
        return named

    def _since(self, top: str, base: str, until: str = "") -> Named | None:
        try:
            return Named(differences(top, base, until))
        except OSError as error:
            self._tell(top, "every directory below was listed: its snapshots cannot be compared", error)
            return None

    def _advanced(self, top: str, base: Base | None, named: Named | None, now: int) -> Named | None:
        """Returns the changes up to the next base, or, without one, up to now."""
        if not (named or self._begin):
            return None
        if reason := self._snapshots.why_not(top):
            self._tell(top, f"its snapshots were not compared: {reason}")
            return named
        try:
            fresh = self._snapshots.of(top)
        except OSError as error:
            self._tell(top, "no snapshot of it could be created", error)
            return named
        if base and named is not None:
            named = self._since(top, base.name, fresh)
        if named is not None or self._begin:
            self._bases[top] = Base(fresh, base.listed if base and named is not None else now)
        return named

    def _tell(self, place: str, what: str, error: OSError | None = None) -> None:
        self._log.report.warnings.append(f"{place}: {what}" + (f": {error.strerror or error}" if error else ""))


def bases(manifest: Manifest) -> dict[str, Base]:
    """Returns the bases by snapshottable directory."""
    return msgspec.json.decode(manifest.recall(_STATE) or "{}", type=dict[str, Base])


def sweep_made(root: str, manifest: Manifest) -> list[str]:
    """Deletes the snapshots of a root that are neither a base nor named by file entries. Requires the lease. Returns
    the reasons why some could not be deleted."""
    return sweep_snapshots(root, {base.name for base in bases(manifest).values()}, manifest.position)
