"""Contents: the files of a capture's objects. Lists objects that may have changed, retains bytes on an engine, and
assigns each file row to its record.

A task's work on its objects is in `object_listing`; the ways to retain bytes are in `keepers`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache, partial

import pyarrow as pa

from cmroot.keep.hdfs_keepers import ChangeManager
from cmroot.keep.keepers import Keeper, choose_keeper
from cmroot.log.references import under_way
from cmroot.store.acid import State
from cmroot.store.local import device
from cmroot.store.place import is_local, normal, parent, split_authority
from replicator.captures.capture_snapshots import CaptureSnapshots
from replicator.captures.inventory import DataObject, KnownFile
from replicator.captures.object_listing import Listed, ListTask, list_objects, nothing_left, uncaptured_files
from replicator.captures.recording import Recording, not_known
from replicator.captures.trees import Trees
from replicator.captures.unlistable import (
    Empty,
    Key,
    Sight,
    Uncaptured,
    beside_others,
    gathered,
    not_text,
    remember,
    remembered,
)
from replicator.core.model import Partition, Table
from replicator.core.named_files import ON_NODES
from replicator.core.not_replicated import NotReplicated
from replicator.core.runtime import Runtime
from replicator.core.text import count_text
from replicator.errors import UsageError
from replicator.metastore.events.facts import followed
from replicator.metastore.events.notification_log import NamedFile
from replicator.metastore.events.record import Change, ChangeFiles

LIST_BATCH = 500  # maximum number of objects in a listing task


class Contents:
    """The files of one capture."""

    def __init__(self, log: Recording, root: str, runtime: Runtime, keepers: Keepers) -> None:
        """root: the location of the `$cmroot`."""
        self._log, self._root, self._runtime, self.keepers = log, root, runtime, keepers
        self._named: dict[tuple[str, str, str], dict[str, int]] = {}  # object -> file name -> position that names it
        self._written: dict[tuple[str, str], int] = {}
        self._unnamed: dict[tuple[str, str, str], NotReplicated | None] = {}
        self._known_unnamed = {
            (*each.object.split(".", 1), each.partition) for each in remembered(log.manifest)
        }  # objects that had such files
        self._list_batch = LIST_BATCH  # smaller if objects have many files
        self._state_of: Callable[[str, str], State | None] = lambda *_: None
        self._open: dict[tuple[int, int], frozenset[str]] = {}
        self.unclear: dict[DataObject, frozenset[str]] = {}
        self.trees = Trees(log, root, runtime, self.record)

    # ---- files named by events --------------------------------------------------------------------------------------

    def expect(self, change: Change, position: int, files: Sequence[NamedFile]) -> None:
        """Assigns the files that a record names to it, once they are seen; not of a table whose files are one state."""
        table = change.touched
        stored = (each.storage for each in change.objects if isinstance(each, Table | Partition))
        is_whole = any(each is not None and each.is_whole for each in stored)
        if table is not None and not is_whole:
            for file in files:
                named = self._named.setdefault((*table, file.partition or ""), {})
                named.setdefault(file.uri, position)

    def give_up_on(self, db: str, table: str, partitions: set[str] | None) -> None:
        """Records the names of files of objects added and dropped within one reading: their bytes were never seen."""
        for key in list(self._named):
            now = followed(key, min(self._named[key].values()), self._log.renames)
            if now is not None and now[:2] == (db, table) and (partitions is None or now[2] in partitions):
                self._log.files(uncaptured_files(*key, self._named.pop(key)))

    def attach(self, obj: DataObject, rows: pa.Table) -> None:
        """Attaches files intercepted by a gateway: new ones belong to the record that touched their object."""
        fresh = not_known(rows, self._log.manifest.files(obj.table_id, obj.partition_id))
        self._log.files(self._placed(fresh, [obj], [0] * fresh.num_rows))
        self._named.pop((obj.db, obj.table, obj.partition), None)

    def record(self, objects: Sequence[DataObject], rows: pa.Table, owners: Sequence[int] = ()) -> None:
        """Records rows of files that no listing found. owners: as for `_placed`; none if all are about one object."""
        self._log.files(self._placed(rows, objects, owners or [0] * rows.num_rows))

    def judge_open(self) -> None:
        """Notes the unclear directories: they are of writers that have not ended, and not listed in this capture."""
        for obj, names in self.unclear.items():
            key = (obj.table_id, obj.partition_id)
            self._open[key] = self._open.get(key, frozenset()) | names

    # ---- files in directories ---------------------------------------------------------------------------------------

    def list_changed(self, state_of: Callable[[str, str], State | None]) -> list[tuple[DataObject, str]]:
        """Lists every object whose files may have changed. Returns the objects whose directory cannot be read, with the
        reason; they remain unlisted, as do `unclear` ones: transactional ones whose write ids are too old. state_of:
        returns the write ids of a table, None if it has none."""
        self._state_of, self.unclear = state_of, {}
        if not self._log.manifest.unlisted_count():
            return []
        missing: list[tuple[DataObject, str]] = []
        taken = under_way(self._root)
        again = self.trees.walk(partial(self._grouped, missing), missing)
        if count := self._log.manifest.unlisted_count():
            self._list(count, missing)
        self._log.manifest.unlist([(obj.table_id, obj.partition_id) for obj, _ in missing])
        self._log.manifest.unlist([(obj.table_id, obj.partition_id) for obj in (*self.unclear, *again)])
        self._named.clear()
        if missing:  # files that a gateway moved are not lost: either their event follows, or they are moved back
            taken |= under_way(self._root)
        return [(obj, why) for obj, why in missing if why and (obj.db, obj.table) not in taken]

    def _list(self, count: int, missing: list[tuple[DataObject, str]]) -> None:
        """Lists the unlisted objects, `count` of them."""
        engine = self._runtime.engines.for_work(count)
        with self._runtime.progress.task("list and keep files", total=count) as advance:
            postponed = True
            while postponed:
                postponed = False
                for listed in engine.run(list_objects, self._list_tasks(missing)):
                    self._record_listing(listed)
                    missing += listed.missing
                    self.unclear |= dict(listed.unclear)
                    advance(len(listed.objects))
                    if listed.postponed:
                        postponed = True
                        self._list_batch = max(1, len(listed.objects))
                        self._log.manifest.unlist([(each.table_id, each.partition_id) for each in listed.postponed])

    def found_missing(
        self, missing: Sequence[tuple[DataObject, str]], empty: Sequence[Key], refused: Sequence[Uncaptured]
    ) -> Sight:
        """Reports `refused` tables and objects whose directories cannot be read: they retain the files known to the
        log. Objects declared `empty` lose their files. Raises UsageError if one of them is not captured."""
        unseen, declared, gone = [*refused], [], list[DataObject]()
        used: set[Key] = set()
        for obj, why in missing:
            named = [each for each in empty if each[:2] == (obj.db, obj.table) and each[2] in ("", obj.partition)]
            count, size = self._log.manifest.weight(obj)
            if named:
                used.update(named)
                gone.append(obj)
                if not any(each[2] == "" and obj.partition for each in named):
                    declared.append(Empty(obj.db, obj.table, obj.partition, obj.location))
            elif count or not self._log.before.is_empty(obj):
                unseen.append(Uncaptured(obj.db, obj.table, why, obj.partition, obj.location, size))
                self._log.report.missing_directories.append(obj.label)
        declared += [Empty(*each) for each in used if each[2] == "" and self._is_partitioned(each)]
        self._refuse_unknown(set(empty) - used)
        if gone:
            self._record_listing(nothing_left(gone, self._known_files(gone)))
        still = self._still_empty([obj for obj, _ in missing])
        sight = Sight(gathered(unseen, self._log.before, self._log.now()), tuple(dict.fromkeys([*still, *declared])))
        self._log.report.not_replicated += [each.reported() for each in sight.unseen]
        return sight

    def _is_partitioned(self, key: Key) -> bool:
        table = self._log.manifest.table(*key[:2])
        return table is not None and table.is_partitioned

    def _still_empty(self, missing: Sequence[DataObject]) -> list[Empty]:
        """Returns the objects declared empty before that still have no directory."""
        return [
            each
            for each in self._log.before.empty
            if any((each.db, each.table) == (obj.db, obj.table) for obj in missing)
            and (not each.partition or any(each.partition == obj.partition for obj in missing))
        ]

    def _refuse_unknown(self, empty: Collection[Key]) -> None:
        for db, table, partition in sorted(empty):
            name = f"{db}.{table}/{partition}" if partition else f"{db}.{table}"
            known = self._log.manifest.table(db, table)
            if known is None or (partition and self._log.manifest.object(db, table, partition) is None):
                raise UsageError(
                    f"--empty {name}: not captured", hint="name a captured table or partition of the source"
                )
            self._log.report.warnings.append(
                f"{name} was not declared empty: its directory exists, and its files are those in it"
            )

    def _grouped(
        self, missing: list[tuple[DataObject, str]], objects: Sequence[DataObject]
    ) -> Iterable[tuple[Keeper, Sequence[DataObject]]]:
        """Groups objects by their keeper; those that cannot be read at all are appended to `missing`."""

        def failed(obj: DataObject, error: OSError) -> None:
            missing.append((obj, f"its directory cannot be accessed: {error}"))

        foreign = self._log.on_nodes((obj.db, obj.location) for obj in objects)
        missing += [(obj, ON_NODES) for obj in objects if (obj.db, obj.location) in foreign]
        return self.keepers.grouped([obj for obj in objects if (obj.db, obj.location) not in foreign], failed)

    def _list_tasks(self, missing: list[tuple[DataObject, str]]) -> Iterator[ListTask]:
        """Yields listing tasks; objects that cannot be listed at all are appended to `missing`."""
        for objects in self._log.manifest.unlisted(LIST_BATCH):
            self._log.manifest.mark_listed(objects)
            for keeper, group in self._grouped(missing, objects):
                theirs = sorted(group, key=lambda obj: obj.location)  # stores list in this order
                start = 0
                while some := theirs[start : start + self._list_batch]:
                    start += len(some)
                    yield ListTask(some, self._known_files(some), keeper, *self._of_transactions(some))

    def _of_transactions(self, objects: Sequence[DataObject]) -> tuple[dict[int, State], dict[int, frozenset[str]]]:
        """Returns, by index, the states of objects of transactional tables, and their directories of open writers."""
        states, opened = dict[int, State](), dict[int, frozenset[str]]()
        for index, obj in enumerate(objects):
            if (state := self._state_of(obj.db, obj.table)) is not None and not obj.root:
                states[index] = state
                opened[index] = self._open.get((obj.table_id, obj.partition_id), frozenset())
        return states, opened

    def _known_files(self, objects: Sequence[DataObject]) -> list[dict[str, KnownFile]]:
        return [self._log.manifest.files(obj.table_id, obj.partition_id) for obj in objects]

    def remember_unnamed(self) -> None:
        """Reports the files that are not captured because of their names, including those of earlier captures."""
        remember(self._log.manifest, self._unnamed)
        self._log.report.not_replicated += remembered(self._log.manifest)
        for name, (count, place) in self.trees.lacking.items():
            what = f"{count_text(count, 'file')} that its metadata names {'does' if count == 1 else 'do'} not exist"
            self._log.report.warnings.append(f"{name}: {what}, such as {place}")

    def _record_listing(self, listed: Listed) -> None:
        for index, obj in enumerate(listed.objects):
            names, mixed = listed.unnamed.get(index), listed.mixed.get(index)
            key = (obj.db, obj.table, obj.partition)
            if names or mixed or key in self._known_unnamed:
                table = f"{obj.db}.{obj.table}"
                found = NotReplicated(table, beside_others(mixed), obj.partition) if mixed else None
                self._unnamed[key] = not_text(obj, names) if names else found
        self.trees.changed.update(listed.objects[owner].table_id for owner in set(listed.owners))
        self._log.manifest.set_directories(listed.objects, listed.directories)
        self._log.manifest.set_identities(listed.objects, listed.same)
        self._log.report.files += listed.files_hashed
        self._log.report.bytes += listed.bytes_hashed
        self._log.files(self._placed(listed.rows, listed.objects, listed.owners))

    def _placed(self, rows: pa.Table, objects: Sequence[DataObject], owners: Sequence[int]) -> pa.Table:
        """Returns file rows with the positions of their records; row i is about `objects[owners[i]]`."""
        default = {owner: self._position_for(objects[owner]) for owner in sorted(set(owners))}
        named = {owner: self._names_of(objects[owner]) for owner in default}
        paths = rows["path"].to_pylist() if any(named.values()) else [None] * len(owners)
        positions = [named[owner].get(path, default[owner]) for owner, path in zip(owners, paths, strict=True)]
        index = rows.schema.get_field_index("position")
        return rows.set_column(index, rows.schema.field(index), pa.array(positions, pa.int64()))

    def _names_of(self, obj: DataObject) -> dict[str | None, int]:
        """Returns the files that an event of this run named, by file name: they belong to that event, other files to
        the last one. Files named at another location are left out."""
        named = self._named.get((obj.db, obj.table, obj.partition), {})
        parted = ((uri.rpartition("/"), position) for uri, position in named.items())
        return {name: position for (above, _, name), position in parted if normal(above) == normal(obj.location)}

    def _position_for(self, obj: DataObject) -> int:
        """Returns the position of a file change's record: the object's last one in this run, else an observed one."""
        if obj.touched > self._log.base:
            return obj.touched
        table = (obj.db, obj.table)
        if table not in self._written:
            self._written[table] = self._log.observe(ChangeFiles(db=obj.db, table=obj.table))
        return self._written[table]


class Keepers:
    """The keepers of one capture. Each is chosen when the first object on its store is listed."""

    def __init__(
        self,
        root: str,
        requested: str,
        tell: Callable[[str], None],
        *,
        manager: Callable[[], ChangeManager],
        snapshots: CaptureSnapshots,
        is_external: Callable[[str, str], bool],
    ) -> None:
        """`requested`, `tell`, `manager`: as for `choose_keeper`, which raises KeepError if it finds no keeper.
        `is_external` says whether a table, by database and name, is external."""
        self._root, self._requested, self._snapshots, self._tell = root, requested, snapshots, tell
        self._manager = lru_cache(maxsize=1)(manager)
        self._choose = partial(choose_keeper, tell=tell, manager=self._manager, snapshots=snapshots.keeper)
        self._is_external = lru_cache(maxsize=10_000)(is_external)
        self._chosen: dict[tuple[object, str], Keeper] = {}
        self._device = lru_cache(maxsize=10_000)(device)

    @property
    def names(self) -> str:
        """The names of the keepers chosen so far: `link`, or `copy, version`."""
        return ", ".join(sorted({keeper.name for keeper in self._chosen.values()}))

    @property
    def keeps_bytes(self) -> bool:
        return self._requested != "none"

    def of(self, obj: DataObject) -> Keeper:
        requested = "auto" if self._native_excludes(obj) else self._requested
        chosen = self._store(obj.location), requested
        if chosen not in self._chosen:
            self._chosen[chosen] = self._choose(self._root, obj.location, requested)
            if requested != self._requested:
                self._tell(
                    f"files of {obj.db}.{obj.table} and other external tables are kept by {self._chosen[chosen].name}:"
                    " since Hive 3 the metastore's change manager keeps only files of managed tables"
                )
        return self._chosen[chosen]

    def elsewhere(self, directory: str) -> Keeper:
        """Returns the keeper of files in another directory than their object's, which the metastore never drops."""
        chosen = self._store(directory), "auto" if self._requested == "native" else self._requested
        if chosen not in self._chosen:
            self._chosen[chosen] = self._choose(self._root, directory, chosen[1])
        return self._chosen[chosen]

    def _native_excludes(self, obj: DataObject) -> bool:
        """Returns True if the metastore was to keep the files of an object, and would not."""
        return self._requested == "native" and self._manager().managed_only and self._is_external(obj.db, obj.table)

    def grouped(
        self, objects: Iterable[DataObject], failed: Callable[[DataObject, OSError], None]
    ) -> Iterable[tuple[Keeper, Sequence[DataObject]]]:
        """Groups objects by the keeper of their store. Calls `failed` for those whose directory cannot be accessed."""
        groups: dict[Keeper, list[DataObject]] = {}
        for obj in objects:
            try:
                keeper = self.of(obj)
            except (ConnectionError, TimeoutError):
                raise
            except OSError as error:
                failed(obj, error)
                continue
            groups.setdefault(keeper, []).append(obj)
        return groups.items()

    def _store(self, location: str) -> object:
        """Returns a device, a bucket, or a snapshottable directory. A partition that is itself a mount point counts to
        the device around it: its files cannot be hard-linked, and the link keeper copies them."""
        if is_local(location):
            return self._device(parent(location))
        return self._snapshots.top(location) or split_authority(normal(location))[0]
