"""Contents: the files of a capture's objects. Lists what may have changed, keeps bytes on an engine, and gives each row
of a file the record that it belongs to.

What a task does with its objects is in `listing`; how bytes are kept, in `keepers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from cmroot.place import normal
from cmroot.taken import under_way
from replicator.engine import AutoEngine
from replicator.events.apply import followed
from replicator.events.decode import NamedFile
from replicator.events.keepers import Keepers
from replicator.events.listing import Listed, ListTask, list_objects, nothing_left, unseen_files
from replicator.events.manifest import DataObject, KnownFile
from replicator.events.record import Change, ChangeFiles, touched_table
from replicator.events.recording import Recording
from replicator.events.takings import not_known
from replicator.progress import Progress

LIST_BATCH = 500  # objects of a listing task, at most


class Contents:
    """Files of one capture."""

    def __init__(self, log: Recording, root: str, keeper: str, engine: AutoEngine, progress: Progress) -> None:
        """root: the place of the `$cmroot`; keeper: as asked for."""
        self._log, self._root, self._engine, self._progress = log, root, engine, progress
        self.keepers = Keepers(root, keeper, log.report.warnings.append)
        self._named: dict[tuple[str, str, str], dict[str, int]] = {}  # object -> file name -> position that names it
        self._written: dict[tuple[str, str], int] = {}
        self._list_batch = LIST_BATCH  # fewer where objects have many files

    # ---- what events say of files -----------------------------------------------------------------------------------

    def expect(self, change: Change, position: int, files: Sequence[NamedFile]) -> None:
        """Files that a record names belong to it, once they are seen."""
        table = touched_table(change)
        if table is not None:
            for file in files:
                named = self._named.setdefault((*table, file.partition or ""), {})
                named.setdefault(file.uri, position)

    def give_up_on(self, db: str, table: str, partitions: set[str] | None) -> None:
        """Objects added and dropped within one reading: their bytes were never seen, their names are recorded."""
        for key in list(self._named):
            now = followed(key, min(self._named[key].values()), self._log.renames)
            if now is not None and now[:2] == (db, table) and (partitions is None or now[2] in partitions):
                self._log.files(unseen_files(*key, self._named.pop(key)))

    def attach(self, thing: DataObject, rows: pa.Table) -> None:
        """Files that a gateway took: unseen ones belong to the record that touched their object."""
        fresh = not_known(rows, self._log.manifest.files(thing.table_id, thing.partition_id))
        self._log.files(self._placed(fresh, [thing], [0] * fresh.num_rows))
        self._named.pop((thing.db, thing.table, thing.partition), None)

    # ---- what directories hold --------------------------------------------------------------------------------------

    def list_changed(self) -> list[DataObject]:
        """Lists every object whose files may have changed; those without a directory are returned and stay unlisted."""
        count = self._log.manifest.unlisted_count()
        if not count:
            return []
        missing: list[DataObject] = []
        taken = under_way(self._root)
        engine = self._engine.for_work(count)
        with self._progress.task("list and keep files", total=count) as advance:
            postponed = True
            while postponed:
                postponed = False
                for listed in engine.run(list_objects, self._list_tasks()):
                    self._record_listing(listed)
                    missing += listed.missing
                    advance(len(listed.objects))
                    if listed.postponed:
                        postponed = True
                        self._list_batch = max(1, len(listed.objects))
                        self._log.manifest.unlist([(each.table_id, each.partition_id) for each in listed.postponed])
        self._log.manifest.unlist([(thing.table_id, thing.partition_id) for thing in missing])
        self._named.clear()
        if missing:  # what a gateway has out of sight is not lost: its event will tell, or it comes back
            taken |= under_way(self._root)
        return [thing for thing in missing if (thing.db, thing.table) not in taken]

    def found_missing(self, missing: Sequence[DataObject]) -> None:
        """Objects whose directories are not there: they are told, and have no files any more."""
        self._log.report.missing_directories += [thing.label for thing in missing]
        if missing:
            self._record_listing(nothing_left(missing, self._known_files(missing)))

    def _list_tasks(self) -> Iterator[ListTask]:
        for objects in self._log.manifest.unlisted(LIST_BATCH):
            self._log.manifest.mark_listed(objects)
            for keeper, theirs in self.keepers.grouped(objects):
                start = 0
                while some := theirs[start : start + self._list_batch]:
                    start += len(some)
                    yield ListTask(objects=some, known=self._known_files(some), keeper=keeper)

    def _known_files(self, objects: Sequence[DataObject]) -> list[dict[str, KnownFile]]:
        return [self._log.manifest.files(thing.table_id, thing.partition_id) for thing in objects]

    def _record_listing(self, listed: Listed) -> None:
        self._log.manifest.set_directories(listed.objects, listed.directories)
        self._log.report.files += listed.files_hashed
        self._log.report.bytes += listed.bytes_hashed
        self._log.files(self._placed(listed.rows, listed.objects, listed.owners))

    def _placed(self, rows: pa.Table, objects: Sequence[DataObject], owners: Sequence[int]) -> pa.Table:
        """File rows with the positions of the records they belong to; each row is about `objects[owner]`."""
        default = {owner: self._position_for(objects[owner]) for owner in sorted(set(owners))}
        named = {owner: self._names_of(objects[owner]) for owner in default}
        paths = rows["path"].to_pylist() if any(named.values()) else [None] * len(owners)
        positions = [named[owner].get(path, default[owner]) for owner, path in zip(owners, paths, strict=True)]
        index = rows.schema.get_field_index("position")
        return rows.set_column(index, rows.schema.field(index), pa.array(positions, pa.int64()))

    def _names_of(self, thing: DataObject) -> dict[str | None, int]:
        """Files that an event of this run named, by path: they belong to that event, later ones to the last. Those it
        named at another location are not these."""
        named = self._named.get((thing.db, thing.table, thing.partition), {})
        parted = ((uri.rpartition("/"), position) for uri, position in named.items())
        return {name: position for (above, _, name), position in parted if normal(above) == normal(thing.location)}

    def _position_for(self, thing: DataObject) -> int:
        """The record a file change belongs to: the last that touched the object in this run, else an observed one."""
        if thing.touched > self._log.base:
            return thing.touched
        table = (thing.db, thing.table)
        if table not in self._written:
            self._written[table] = self._log.observe(ChangeFiles(db=thing.db, table=thing.table))
        return self._written[table]
