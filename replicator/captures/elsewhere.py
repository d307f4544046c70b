"""Files of captures that are outside of the directories of their objects: those that metadata names, and data and
delete files of Iceberg tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import pyarrow as pa

from cmroot.errors import NotWritable, StorageUnreachable, UnknownPlace
from cmroot.keep.content import Kept
from cmroot.keep.keepers import CopyKeeper, Keeper
from cmroot.log.captured import FILES
from cmroot.log.segment import ADD, REMOVE
from cmroot.store.iceberg import DIRECTORY
from cmroot.store.listing import file_state, full_identity
from cmroot.store.place import is_local, is_within, join, located, relative, resolved, split_authority
from replicator.captures.apply import HAS_OUTSIDE
from replicator.captures.contents import Contents
from replicator.captures.inventory import DataObject, KnownFile
from replicator.captures.manifest import Manifest
from replicator.captures.object_listing import REQUESTS, Rows
from replicator.captures.recording import Recording
from replicator.captures.unlistable import remember_unread_files, unread_files
from replicator.core.formats.outside import OUTSIDE, outside_directory
from replicator.core.grouping import batched
from replicator.core.model import Function
from replicator.core.named_files import NAMED, resource_file
from replicator.core.not_replicated import NotReplicated
from replicator.core.runtime import Runtime
from replicator.metastore.events.record import AlterTable, Change, ChangeFiles, CreateFunction, EventsRead

# ---- files that metadata names ---------------------------------------------------------------------------------------
# Avro schemas and resources of functions, wherever they are: recorded as files of their databases, and kept as copies.


@dataclass(frozen=True)
class _Naming:
    """A file that metadata names: its place, and an object that names it."""

    place: str
    name: str
    function: Function | None = None  # None: a table


def list_named(log: Recording, root: str, *, everything: bool) -> None:
    """Records and keeps files that metadata names for the first time, and, with `everything`, those that have changed.
    Those that no metadata names any more, and those removed from a directory that has other files, are recorded as
    removed. A file that cannot be read is reported until it can; its last known state remains, and only `everything`
    reads it again, once per store, because an unavailable host answers late. root: the `$cmroot`."""
    manifest, unread, away = log.manifest, dict[str, NotReplicated](), dict[str, StorageUnreachable]()
    unread_before = {} if everything else unread_files(manifest)
    for db in sorted(manifest.scope()):
        known = {file.path: (directory, file) for directory, file in manifest.recorded_files(db)}
        functions, schemas = manifest.functions(db), manifest.property_files(db)
        if not (known or functions or schemas):
            continue
        database = manifest.database(db)
        home = database.location if database and database.location else ""
        named = _naming(functions, schemas, home)
        foreign = log.on_nodes((db, each.place) for each in named.values())
        for path, naming in named.items():
            before = known[path][1] if path in known else None
            why = unread_before.get(f"{db}/{path}")
            if why is None and (before is None or everything) and (db, naming.place) not in foreign:
                why = _unread(away, db, naming, partial(_look, log, root, db, home, path, naming, before))
            if why is not None:
                unread[f"{db}/{path}"] = why
        for path, (directory, _) in known.items():
            if path not in named:
                at = log.position if log.position > log.base else log.observe(EventsRead())
                log.files(_entry(db, directory, path, None, at))
    remember_unread_files(manifest, unread)


def _naming(functions: Iterable[Function], schemas: Iterable[tuple[str, str, str]], home: str) -> dict[str, _Naming]:
    """Returns the files that metadata of a database names, by their paths in its `NAMED`."""
    found = {path: _Naming(place, name) for path, place, name in schemas}
    for function in functions:
        for _, address in function.resources:
            if file := resource_file(home, address):
                found[file.path] = _Naming(file.place, function.name, function)
    return found


def _change(manifest: Manifest, db: str, naming: _Naming, *, new: bool) -> Change:
    """Returns the change to record with a file. new: it was not recorded before, so that replicas may name another."""
    if naming.function is not None:
        return CreateFunction(function=naming.function)
    table = manifest.table(db, naming.name) if new else None
    return AlterTable(db=db, name=naming.name, table=table) if table else ChangeFiles(db=db, table=naming.name)


def _unread(
    away: dict[str, StorageUnreachable], db: str, naming: _Naming, look: Callable[[], None]
) -> NotReplicated | None:
    """Returns why `look` cannot read a file. away: stores that did not answer, and their error; none is queried
    twice."""
    store = split_authority(naming.place)[0]
    try:
        if store in away:
            raise away[store]
        look()
        return None
    except (OSError, NotWritable, UnknownPlace, StorageUnreachable) as error:  # also of a cluster that no longer exists
        if isinstance(error, StorageUnreachable) and not is_local(naming.place):
            away[store] = error
        return NotReplicated(f"{db}.{naming.name}", f"it names {naming.place}, which cannot be read: {error}")


def _look(log: Recording, root: str, db: str, home: str, path: str, naming: _Naming, before: KnownFile | None) -> None:
    """Records a file if it is new, has changed, or was removed. Raises the store's error where it cannot be read."""
    try:
        if before is not None and _is_unchanged(before, naming.place):
            return
        kept = CopyKeeper(root).keep(naming.place)
    except FileNotFoundError:
        if before is None or not located(naming.place).parent.list():  # a directory that is away is not empty
            return
        kept = None
    if kept is not None:
        log.report.files, log.report.bytes = log.report.files + 1, log.report.bytes + kept.size
    at = log.observe(_change(log.manifest, db, naming, new=before is None))
    log.files(_entry(db, join(home, NAMED), path, kept, at))


def _is_unchanged(known: KnownFile, place: str) -> bool:
    return known.checksum is not None and file_state(place).is_recorded(known.size, known.mtime_ns, known.identity)


def _entry(db: str, directory: str, path: str, kept: Kept | None, position: int) -> pa.Table:
    """Returns the entry of a file; kept: None if it was removed."""
    row = {"position": position, "op": ADD if kept else REMOVE, "db": db, "table": NAMED, "partition": ""}
    row |= {"location": directory, "path": path}
    if kept is not None:
        identity = full_identity(kept.identity, kept.changed_ns)
        row |= {"size": kept.size, "mtime_ns": kept.mtime_ns, "identity": identity, "checksum": kept.checksum}
        row |= {"kept": True}
    return pa.table({field.name: pa.array([row.get(field.name)], field.type) for field in FILES})


# ---- files outside of the location of an Iceberg table ---------------------------------------------------------------
# Manifests name data and delete files by absolute paths, so whoever may write one could have any file read that the
# capture's user can read. So only files below directories that the operator lists are read; entries of files recorded
# before remain while a manifest names them. The files of a table that cannot be recorded are noted with the reason, and
# looked for again in the next capture; the table is left out if its present snapshots need one of them.

_NAMED = """ FROM tables t CROSS JOIN files f ON f.table_id = t.id AND f.partition_id = 0 AND f.path > ? AND f.path < ?
  CROSS JOIN tree o ON o.location = t.location AND o.checksum = f.checksum AND o.store > ''"""
_RECORDED = """SELECT s.location, f.path FROM files f JOIN stores s ON s.id = -f.partition_id WHERE f.table_id = ?
  AND f.partition_id < 0"""
_LACKING = f"""{_NAMED} LEFT JOIN stores s ON s.location = o.store
  LEFT JOIN files k ON k.table_id = t.id AND k.partition_id = -s.id AND k.path = o.path
  WHERE t.id = ? AND (k.path IS NULL OR (? AND NOT k.kept))"""
_TREE = (f"{DIRECTORY}/", f"{DIRECTORY}0")
_KEY = "outside"  # state of a manifest: by the id of a table with files that are not recorded, reasons by their places;
# empty after it was folded
_REASONS = 1000  # of a table that are noted
_BATCH = 1000  # files of a task

NOT_LISTED = "in none of the directories of `iceberg_outside` (--iceberg-outside) of its metastore"
_NODES = "on the disks of the cluster's nodes, which are not read: its warehouse is on another filesystem"


@dataclass(frozen=True)
class OutsideTask:
    """Files of a table to keep: `obj` has the location of their entries; directory: the listed one."""

    obj: DataObject
    paths: Sequence[str]
    keeper: Keeper
    directory: str


@dataclass
class OutsideKept:
    """The outcome. failed: why files could not be kept, by path."""

    obj: DataObject
    rows: pa.Table
    files: int
    bytes: int
    failed: dict[str, str] = field(default_factory=dict)


def keep_outside(task: OutsideTask) -> OutsideKept:
    """Retains files. May run twice. Raises ConnectionError or TimeoutError if their store is away."""
    rows, failed = Rows(), dict[str, str]()
    with ThreadPoolExecutor(1 if is_local(task.directory) else REQUESTS) as pool:
        for path, kept in zip(task.paths, pool.map(partial(_kept, task), task.paths), strict=True):
            if isinstance(kept, str):
                failed[path] = kept
                continue
            rows.keep(0, path, kept, task.keeper)
    return OutsideKept(task.obj, rows.table([task.obj]), rows.files_hashed, rows.bytes_hashed, failed)


def _kept(task: OutsideTask, path: str) -> Kept | str:
    place = join(task.obj.location, path)
    try:
        if is_local(place) and not is_within(resolved(place), resolved(task.directory)):
            return f"a link that leads out of {task.directory}"
        return task.keeper.keep(place)
    except (ConnectionError, TimeoutError):
        raise
    except FileNotFoundError:
        return "and does not exist"
    except (OSError, NotWritable, UnknownPlace) as error:
        return f"and cannot be read: {error}"


class OutsideFiles:
    """The data and delete files outside of the locations of Iceberg tables, in one capture. directories: those that the
    operator lists."""

    def __init__(self, log: Recording, contents: Contents, runtime: Runtime, directories: Sequence[str]) -> None:
        self._log, self._contents, self._runtime, self._directories = log, contents, runtime, directories

    def look(self) -> None:
        """Records the files that trees name for the first time, and removes those that none names any more: of the
        tables whose files have changed since the last call, and of those with files that could not be recorded."""
        manifest, waiting = self._log.manifest, _noted(self._log.manifest)
        query = (
            f"SELECT t.id, t.db, t.name FROM formats f JOIN tables t ON t.id = f.table_id WHERE f.format {HAS_OUTSIDE}"
        )
        noted = {}
        for table_id, db, name in manifest.select(query):
            is_due = waiting is None or table_id in waiting or table_id in self._contents.trees.changed
            if is_due and (failed := self._table(table_id, db, name)) is not None:
                noted[table_id] = failed
        self._contents.trees.changed.clear()
        if noted != waiting:
            manifest.remember(_KEY, msgspec.json.encode(noted).decode())

    def _table(self, table_id: int, db: str, name: str) -> dict[str, str] | None:
        """Returns reasons by place; None if all files that the tree of a table names are recorded."""
        manifest, failed, new = self._log.manifest, dict[str, str](), dict[tuple[str, str], list[str]]()
        obj = manifest.object(db, name, "")
        assert obj is not None
        gone = manifest.select(
            f"{_RECORDED} EXCEPT SELECT o.store, o.path{_NAMED} WHERE t.id = ?", table_id, *_TREE, table_id
        )
        if gone:
            rows, stores = Rows(), list(dict.fromkeys(store for store, _ in gone))
            for store, path in gone:
                rows.remove(stores.index(store), path)
            objects = [replace(obj, location=each) for each in stores]
            self._contents.record(objects, rows.table(objects), rows.owner)
        keeps = self._contents.keepers.keeps_bytes
        lacking = manifest.select(f"SELECT DISTINCT o.store, o.path{_LACKING}", *_TREE, table_id, keeps)
        foreign = self._log.on_nodes((db, store) for store in {store for store, _ in lacking})
        for store, path in lacking:
            if (db, store) in foreign:
                failed[join(store, path)] = _NODES
            elif directory := self._listed(join(store, path)):
                new.setdefault((store, directory), []).append(path)
            elif len(failed) < _REASONS:
                failed[join(store, path)] = NOT_LISTED
        tasks = list(self._tasks(obj, new, failed))
        engine = self._runtime.engines.for_work(sum(map(len, new.values())))
        for kept in engine.run(keep_outside, tasks) if tasks else ():
            self._contents.record([kept.obj], kept.rows)
            failed |= {join(kept.obj.location, path): why for path, why in kept.failed.items()}
            self._log.report.files += kept.files
            self._log.report.bytes += kept.bytes
        return dict(list(failed.items())[:_REASONS]) or None

    def _listed(self, place: str) -> str:
        return next((each for each in self._directories if relative(place, each) is not None), "")

    def _tasks(
        self, obj: DataObject, new: Mapping[tuple[str, str], Sequence[str]], failed: dict[str, str]
    ) -> Iterator[OutsideTask]:
        for (store, directory), paths in new.items():
            try:
                keeper = self._contents.keepers.elsewhere(directory)
            except (ConnectionError, TimeoutError):
                raise
            except OSError as error:
                failed |= {join(store, path): f"and cannot be read: {error}" for path in paths[:_REASONS]}
                continue
            for some in batched(paths, _BATCH):
                yield OutsideTask(replace(obj, location=store), some, keeper, directory)


def _noted(manifest: Manifest) -> dict[int, dict[str, str]] | None:
    """Returns what `OutsideFiles.look` noted; None: no capture has looked."""
    said = manifest.recall(_KEY)
    return msgspec.json.decode(said, type=dict[int, dict[str, str]]) if said else None


def unread_outside(manifest: Manifest) -> Collection[int]:
    """Returns the ids of tables with files outside of their location that the last capture could not record."""
    return _noted(manifest) or ()


def why_outside_lacks(manifest: Manifest, db: str, name: str) -> str:
    """Returns why an Iceberg table is left out because of files outside of its location; empty if it is not."""
    obj, noted = manifest.object(db, name, ""), _noted(manifest)
    if obj is None:
        return ""
    if noted is None or obj.table_id in noted:
        for store, path in manifest.select(f"SELECT o.store, o.path{_LACKING} LIMIT 1", *_TREE, obj.table_id, False):
            place = join(store, path)
            why = (noted or {}).get(obj.table_id, {}).get(place, NOT_LISTED)
            return f"its file {place} is outside of its location, {why}"
    return _colliding(manifest, obj.table_id)


def _colliding(manifest: Manifest, table_id: int) -> str:
    """Returns why files outside of a table's location cannot be on a replica: a file of the table is there."""
    own = "SELECT 1 FROM files WHERE table_id = ? AND partition_id = 0 AND path > ? AND path < ? LIMIT 1"
    if not manifest.select(own, table_id, f"{OUTSIDE}/", f"{OUTSIDE}0"):
        return ""
    for number, store in manifest.select("SELECT id, location FROM stores"):
        same = "f.table_id = k.table_id AND f.partition_id = 0 AND f.path = ? || k.path"
        query = f"SELECT k.path, f.path FROM files k JOIN files f ON {same} WHERE k.table_id = ? AND k.partition_id = ?"
        for path, there in manifest.select(f"{query} LIMIT 1", f"{outside_directory(store)}/", table_id, -number):
            return f"its file {join(store, path)} is outside of its location, and a replica has {there} in its place"
    return ""
