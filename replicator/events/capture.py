"""Capture: the source's notification log, and what left no event, become records of the captured log.

`capture` reads top to bottom: take the lease, sweep what a crash left, catch up the manifest, fold the events, walk new
databases, scan for silent changes, list and keep files, publish the segment. The segment's marker is written before the
manifest's transaction commits, and the manifest is only an index: a crash anywhere leaves the log as it was, or whole.
"""

from __future__ import annotations

import json
import time as clocks
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from cmroot.lease import acquire
from cmroot.listing import changed_directories
from cmroot.log import SegmentWriter, sweep_log
from cmroot.place import normal
from cmroot.recycle import sweep_incoming
from cmroot.root import ChangeRoot
from cmroot.taken import undecided_since, under_way
from replicator.engine import AutoEngine
from replicator.errors import BootstrapNeeded, ObjectNotFound
from replicator.events.apply import Rename, followed
from replicator.events.compare import same_database
from replicator.events.decode import NamedFile, decode
from replicator.events.fold import open_manifest
from replicator.events.keepers import Keepers
from replicator.events.listing import Listed, ListTask, list_objects, nothing_left, unseen_files
from replicator.events.manifest import SETTLED, DataObject, KnownFile, Manifest
from replicator.events.reader import read_events
from replicator.events.record import (
    AddPartitions,
    AlterDatabase,
    AlterTable,
    Change,
    ChangeFiles,
    ChangeRecord,
    CreateDatabase,
    CreateTable,
    DropPartitions,
    DropTable,
    EventsLost,
    EventsRead,
    UnknownEvent,
    encode,
    touched_table,
)
from replicator.events.scope import changes_in_scope
from replicator.events.takings import Takings, not_known
from replicator.events.walk import refresh_tables, walk_database
from replicator.metastore.client import EVENT_BATCH, MetastoreReader
from replicator.model import NotificationEvent
from replicator.progress import Progress
from replicator.report import json_text
from replicator.shadow import is_shadow

ROUNDS = 5  # readings of the event log while it keeps moving; the last one ends the capture
LIST_BATCH = 500  # objects of a listing task, at most


@dataclass
class Captured:
    """What a capture did. `through_event` and `position`: how far the captured log is; `keeper`: those used, such as
    "link, version"; `unknown`: events kept unread; scan_seconds, compare_seconds: what looking at directories took
    (listing what changed in them included), and comparing tables with the metastore;
    `warnings`: objects whose directory is missing, fields that would be lost, repairs."""

    root: str
    first_position: int
    position: int
    through_event: int
    events: int = 0
    records: int = 0
    observed: int = 0
    files: int = 0
    bytes: int = 0
    keeper: str = ""
    unknown: list[str] = field(default_factory=list)
    missing_directories: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    scan_seconds: float = 0.0
    compare_seconds: float = 0.0
    status: str = "captured"

    __str__ = json_text


def capture(
    source: MetastoreReader, root: ChangeRoot, *, databases: Sequence[str] = (), scan: bool = True,
    compare: bool = True, deep: bool = False, repair: bool = False, keeper: str = "auto", engine: AutoEngine,
    progress: Progress, clock: Callable[[], float] = clocks.time,
) -> Captured:  # fmt: skip
    """Brings the captured log up to now. May run again at any time, also after a crash.

    databases: captured from now on, beside those captured before (none at all: every database of the metastore but a
    drill's).
    scan: look for changes that left no event, in directories and, with `compare`, in the metastore: databases,
    functions and tables. deep: compare partitions one by one, too.
    repair: after lost events, compare everything instead of raising BootstrapNeeded.
    keeper: how bytes are kept: auto (for each store what it can have), link, version, copy or none. Raises KeepError
    when a store can keep nothing."""
    began = clocks.monotonic()
    with acquire(root.place, "capture"):
        sweep_incoming(root.place)
        sweep_log(root.place)
        with open_manifest(root) as manifest:
            run = _Run(source, root, manifest, keeper, engine, progress, clock)
            try:
                run.read(first=True, repair=repair)
                run.walk_new(_wanted(source, manifest, databases))
                if (scan and compare) or run.holed:
                    run.compare(deep=deep or run.holed)
                looked = clocks.monotonic()
                if scan or run.holed:
                    run.scan()
                run.settle()
                run.report.scan_seconds = round(clocks.monotonic() - looked, 3)
                report = run.publish()
            except BaseException:
                run.abandon()
                raise
    report.seconds = round(clocks.monotonic() - began, 3)
    return report


def _wanted(source: MetastoreReader, manifest: Manifest, databases: Sequence[str]) -> list[str]:
    """Databases to walk for the first time. Raises ObjectNotFound for one that does not exist."""
    known = manifest.scope()
    if known and known.issuperset(databases):
        return []
    existing = source.database_names()
    for name in databases:
        if name not in existing and name not in known:
            raise ObjectNotFound(
                f"database {name} does not exist in {source.uri}",
                hint=f"it has: {', '.join(sorted(existing)[:20])}",
            )
    if databases:
        return [name for name in databases if name not in known]
    return [name for name in existing if name not in known and not is_shadow(source.database(name))]


class _Run:
    """One capture at work: the records so far, and the manifest as it will be."""

    def __init__(
        self, source: MetastoreReader, root: ChangeRoot, manifest: Manifest, keeper: str, engine: AutoEngine,
        progress: Progress, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._source, self._root, self._manifest = source, root, manifest
        self._engine, self._progress, self._clock = engine, progress, clock
        self._base = manifest.position
        self._position = manifest.position
        started = manifest.event
        # Invariant 1: the newest event id is taken before anything is listed.
        self._cursor = source.current_event_id() if started is None else started
        self._read_before = started is not None
        self._segment: SegmentWriter | None = None
        self._named: dict[tuple[str, str, str], dict[str, int]] = {}  # object -> file name -> position that names it
        self._renames: list[Rename] = []
        self._dirty: dict[tuple[str, str], None] = {}
        self._takings = Takings(root.place)
        self._list_batch = LIST_BATCH  # fewer where objects have many files
        self._written: dict[tuple[str, str], int] = {}
        self.holed = False
        self.report = Captured(str(root.place), self._base + 1, self._base, self._cursor)
        self._keepers = Keepers(root.place, keeper, self.report.warnings.append)

    # ---- events ---------------------------------------------------------------------------------------------------

    def read(self, *, first: bool = False, repair: bool = False) -> int:
        """Folds every event up to now; the number of those that concern captured databases. Raises BootstrapNeeded at a
        hole in the ids, unless `repair` or it was repaired in this run."""
        if first and not self._read_before:
            return 0
        concerned, more = 0, True
        while more:
            some, more = self._read_some(repair=repair)
            concerned += some
        return concerned

    def _read_some(self, *, repair: bool) -> tuple[int, bool]:
        """Folds the next events, a page of them; whether there are more."""
        seen = json.loads(self._manifest.recall("rows") or "{}")
        reading = read_events(
            self._source, self._cursor, seen, lambda: undecided_since(self._root.place), limit=EVENT_BATCH
        )
        if reading.events:
            self._takings.look(reading.events[-1].id)
        if reading.hole is not None:
            self._note_hole(*reading.hole, repair=repair or self.holed)
        concerned = sum(self._fold_event(event) for event in reading.events)
        for row in reading.late:  # its contents are older than what was folded since: ask the metastore instead
            if row.db and row.table and row.db in self._manifest.scope():
                self._dirty[row.db, row.table] = None
        if reading.events:
            self._cursor = reading.events[-1].id
        elif reading.hole is not None:
            self._cursor = reading.hole[1] - 1
        self._manifest.remember("rows", json.dumps(reading.seen))
        self.report.events += len(reading.events)
        return concerned, reading.more

    def _note_hole(self, last: int, following: int, *, repair: bool) -> None:
        if not repair:
            raise BootstrapNeeded(
                f"events {last + 1} to {following - 1} of {self._source.uri} were cleaned before capture read them",
                hint="run `replicator capture --repair` (compares every captured table with the metastore and records "
                "the differences), or dump without --since, which does the same; capture more often than "
                "hive.metastore.event.db.listener.timetolive",
            )
        self.holed = True
        self._append(EventsLost(after=last, next=following, repaired=True), following - 1, self._now())
        self.report.warnings.append(
            f"events {last + 1} to {following - 1} were lost; every captured table was compared"
        )

    def _fold_event(self, event: NotificationEvent) -> bool:
        decoded = decode(event)
        concerned = False
        for change in changes_in_scope(decoded.change, self._manifest.scope()):
            if isinstance(change, AlterDatabase) and self._only_role(change):
                continue
            concerned = True
            if isinstance(change, UnknownEvent):
                self.report.unknown.append(f"event {event.id}: {change.type}")
            if isinstance(change, CreateDatabase) and change.database.location is None:
                change = self._completed(change)
            self._attach(event, change)
            self._watch(change)
            position = self._append(change, event.id, event.time)
            self._expect_files(change, position, decoded.files)
        return concerned

    def _only_role(self, change: AlterDatabase) -> bool:
        known = self._manifest.database(change.database.name)
        return known is not None and same_database(known, change.database)

    def _completed(self, change: CreateDatabase) -> CreateDatabase:
        """2.3 announces a database by name only; one that is gone by now stays bare until its drop event."""
        try:
            return CreateDatabase(database=self._source.database(change.database.name))
        except ObjectNotFound:
            return change

    def _attach(self, event: NotificationEvent, change: Change) -> None:
        """What was taken before the event: unseen files among it belong to the record that touched their object."""
        table = touched_table(change)
        for partition, rows in self._takings.of(event.id, *table) if table else ():
            thing = self._manifest.object(*table, partition) if table else None
            if thing is not None:
                fresh = not_known(rows, self._manifest.files(thing.table_id, thing.partition_id))
                self._files(self._placed(fresh, [thing], [0] * fresh.num_rows))
                self._named.pop((thing.db, thing.table, thing.partition), None)

    def _watch(self, change: Change) -> None:
        """Marks tables that an event does not tell whole, and saves what the message knew of files that go unseen."""
        known = self._manifest
        match change:
            case AlterTable(table=table):
                before = known.table(change.db, change.name)
                columns = before.storage.columns if before and before.storage else None
                cascade = table.is_partitioned and table.storage and table.storage.columns != columns
                if before is None or cascade or (change.moved and table.is_partitioned):
                    self._dirty[table.db, table.name] = None
            case AddPartitions(db=db, table=name) if known.table(db, name) is None:
                self._dirty[db, name] = None
            case CreateTable(table=table):
                self._give_up_on(table.db, table.name, None)
            case DropTable(db=db, name=name):
                self._give_up_on(db, name, None)
                self._dirty.pop((db, name), None)
            case DropPartitions(db=db, table=name, names=names):
                self._give_up_on(db, name, set(names))

    def _expect_files(self, change: Change, position: int, files: Sequence[NamedFile]) -> None:
        table = touched_table(change)
        if table is not None:
            for file in files:
                named = self._named.setdefault((*table, file.partition or ""), {})
                named.setdefault(file.uri, position)

    def _give_up_on(self, db: str, table: str, partitions: set[str] | None) -> None:
        """Objects added and dropped within one reading: their bytes were never seen, their names are recorded."""
        for key in list(self._named):
            now = followed(key, min(self._named[key].values()), self._renames)
            if now is not None and now[:2] == (db, table) and (partitions is None or now[2] in partitions):
                self._files(unseen_files(*key, self._named.pop(key)))

    # ---- what left no event ---------------------------------------------------------------------------------------

    def walk_new(self, databases: Iterable[str]) -> None:
        """The first walk of databases: all that they hold becomes records."""
        for db in databases:
            with self._progress.task(f"walk {db}") as advance:
                for change in walk_database(self._source, self._manifest, db, deep=True):
                    self._observe(change)
                    advance(len(change.partitions) if isinstance(change, AddPartitions) else 1)

    def compare(self, *, deep: bool) -> None:
        """Compares captured databases with the metastore. Differences of tables that events arrived for meanwhile are
        left to those events."""
        began = clocks.monotonic()
        existing = set(self._source.database_names())
        fresh = {db for db in self._manifest.scope() if db in existing}
        for db in sorted(fresh):
            changes = walk_database(self._source, self._manifest, db, deep=deep)
            if deep:
                for change in changes:
                    self._observe(change)
                continue
            differences = list(changes)
            if differences:
                moving = self._tables_in_new_events()
                for change in differences:
                    if touched_table(change) not in moving:
                        self._observe(change)
        self.report.compare_seconds = round(clocks.monotonic() - began, 3)

    def scan(self) -> None:
        """Compares recorded directories with the store."""
        stale: set[tuple[int, int]] = set()
        for rows in self._manifest.directories():
            table_ids, partition_ids, *recorded = zip(*rows, strict=True)
            for index in changed_directories(*recorded):
                stale.add((table_ids[index], partition_ids[index]))
        self._manifest.unlist(stale)
        self._manifest.unlist_objects_on_stores()

    def _tables_in_new_events(self) -> set[tuple[str, str] | None]:
        found: set[tuple[str, str] | None] = set()
        for event in read_events(self._source, self._cursor, {}).events:
            change = decode(event).change
            found.add(touched_table(change))
            if isinstance(change, AlterTable):
                found.add((change.db, change.name))
        return found

    def settle(self) -> None:
        """Reads and lists in turns until a reading brings nothing new, so that the end is one state of the source."""
        for _ in range(ROUNDS):
            self._refresh()
            missing = self._list()
            if self.read() == 0 and not self._dirty:
                break
        else:
            self._refresh()
            missing = self._list()
        for thing in missing:
            self.report.missing_directories.append(thing.label)
        if missing:
            self._record_listing(nothing_left(missing, self._known_files(missing)))

    def _refresh(self) -> None:
        dirty, self._dirty = list(self._dirty), {}
        for change in refresh_tables(self._source, self._manifest, dirty):
            self._observe(change)

    # ---- files ----------------------------------------------------------------------------------------------------

    def _list(self) -> list[DataObject]:
        """Lists every object whose files may have changed; those without a directory are returned and stay unlisted."""
        count = self._manifest.unlisted_count()
        if not count:
            return []
        missing: list[DataObject] = []
        taken = under_way(self._root.place)
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
                        self._manifest.unlist([(each.table_id, each.partition_id) for each in listed.postponed])
        self._manifest.unlist([(thing.table_id, thing.partition_id) for thing in missing])
        self._named.clear()
        if missing:  # what a gateway has out of sight is not lost: its event will tell, or it comes back
            taken |= under_way(self._root.place)
        return [thing for thing in missing if (thing.db, thing.table) not in taken]

    def _list_tasks(self) -> Iterator[ListTask]:
        for objects in self._manifest.unlisted(LIST_BATCH):
            self._manifest.mark_listed(objects)
            for keeper, theirs in self._keepers.grouped(objects):
                start = 0
                while some := theirs[start : start + self._list_batch]:
                    start += len(some)
                    yield ListTask(objects=some, known=self._known_files(some), keeper=keeper)

    def _known_files(self, objects: Sequence[DataObject]) -> list[dict[str, KnownFile]]:
        return [self._manifest.files(thing.table_id, thing.partition_id) for thing in objects]

    def _record_listing(self, listed: Listed) -> None:
        self._manifest.set_directories(listed.objects, listed.directories)
        self.report.files += listed.files_hashed
        self.report.bytes += listed.bytes_hashed
        self._files(self._placed(listed.rows, listed.objects, listed.owners))

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
        if thing.touched > self._base:
            return thing.touched
        table = (thing.db, thing.table)
        if table not in self._written:
            self._written[table] = self._observe(ChangeFiles(db=thing.db, table=thing.table))
        return self._written[table]

    # ---- the log --------------------------------------------------------------------------------------------------

    def _observe(self, change: Change) -> int:
        self.report.observed += 1
        return self._append(change, self._cursor, self._now(), observed=True)

    def _append(self, change: Change, event: int, time: int, *, observed: bool = False) -> int:
        self._position += 1
        record = ChangeRecord(position=self._position, event=event, time=time, change=change, observed=observed)
        self._writer().append_record(encode(record))
        self._manifest.apply(record)
        if rename := Rename.of(record):
            self._renames.append(rename)
        self.report.records += 1
        return self._position

    def _files(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._writer().append_files(rows)
            self._manifest.apply_files(rows)

    def _writer(self) -> SegmentWriter:
        if self._segment is None:
            self._segment = SegmentWriter(self._root.place, self._base + 1)
        return self._segment

    def publish(self) -> Captured:
        """Makes the segment durable, then the manifest."""
        if self._segment is None and self._cursor != self._manifest.event:
            self._append(EventsRead(), self._cursor, self._now())
        self.report.position, self.report.through_event = self._position, self._cursor
        self.report.keeper = self._keepers.names
        self.report.status = "incomplete" if self.report.missing_directories else "captured"
        for struct, fields in self._source.unknown_fields().items():
            self.report.warnings.append(f"the metastore sends fields of {struct} that would be lost: {fields}")
        if self._segment is not None:
            for rows in self._manifest.ended():
                self._segment.append_files(rows)
            self._segment.finish(
                self._position, event=self._cursor, time=self._now(), source=self._source.uri,
                keeper=self.report.keeper,
            )  # fmt: skip
        self._manifest.advance(self._position, self._cursor, self._now())
        self._manifest.remember(SETTLED, str(self._position))
        self._manifest.commit()
        self._takings.finish()
        return self.report

    def abandon(self) -> None:
        """Leaves no trace but kept bytes, which a later capture finds in place."""
        self._manifest.rollback()
        if self._segment is not None:
            self._segment.abort()

    def _now(self) -> int:
        return int(self._clock())
