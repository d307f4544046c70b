"""Capture: turns the source's notification events, and changes without an event, into records of the captured log.

`capture` reads top to bottom: acquire the lease, remove files left by a crashed run, update the manifest, fold the
events, walk new databases, scan for other changes, list and retain files (`contents`), publish (`recording`).
"""

from __future__ import annotations

import json
import time as clocks
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import groupby
from operator import itemgetter

from cmroot.keep.recycle import sweep_incoming
from cmroot.lease import Lease, acquire
from cmroot.log.captured import sweep_log
from cmroot.log.references import undecided_since
from cmroot.root import ChangeRoot
from cmroot.store.spelling import is_absolute
from replicator.captures.capture_snapshots import CaptureSnapshots, sweep_made
from replicator.captures.contents import Contents, Keepers
from replicator.captures.elsewhere import OutsideFiles, list_named
from replicator.captures.inventory import DataObject
from replicator.captures.left_out import left_out, transactional
from replicator.captures.manifest import (
    Manifest,
    children_now,
    completed,
    consequences,
    is_known,
    loses_or_gets_key,
    note_known,
    open_manifest,
    unannounced,
    walk_constraints,
)
from replicator.captures.recording import Captured, Intercepts, Recording
from replicator.captures.scanning import BucketNotices, GrantScan, Scan
from replicator.captures.unlistable import (
    Key,
    Refusals,
    Sight,
    parse_name,
    remember_objects,
    server_objects,
    unread_files,
)
from replicator.captures.walk import Measured, refresh_tables, walk_database
from replicator.captures.write_ids import Transactions
from replicator.core.audit import record_begun
from replicator.core.config import nearest
from replicator.core.logging import tell_event
from replicator.core.model import EXTERNAL, Database, NotificationEvent
from replicator.core.not_replicated import REMOTE, NotReplicated
from replicator.core.roles import is_shadow
from replicator.core.runtime import Runtime
from replicator.errors import BootstrapNeeded, ObjectNotFound, UsageError
from replicator.metastore.client import EVENT_BATCH, MetastoreReader
from replicator.metastore.events import record as kinds
from replicator.metastore.events.notification_log import change_manager, decode, read_events
from replicator.metastore.events.record import Change
from replicator.metastore.events.scope import UnreadEvents, bind_catalog, changes_in_scope, same_database

ROUNDS = 5  # readings of the event log while it grows; the last one ends the capture


@dataclass(frozen=True)
class CaptureSettings:
    """The scope and options of a capture.

    databases: captured from now on, in addition to those captured before. If empty: those captured before; with
    `everything`, or if nothing was captured before, every database of the metastore except those of a drill.
    scan: look for changes without an event, in directories and, with `compare`, in the metastore: databases, functions
    and tables. deep: also compare partitions one by one. scan_time: examine tables for about this long and continue
    after them in the next capture; new and dropped tables are always found. paced: without scan_time, as long as
    `Scan.paced` says; a capture with `deep` or of lost events examines all.
    constraints: read the constraints of all tables from a server that does not announce every change of them.
    grants: compare grants and roles with the metastore, if the scan compares tables.
    repair: after lost events, compare everything instead of raising BootstrapNeeded.
    keeper: how bytes are retained: auto (the best that each store supports), link, version, snapshot, native, copy or
    none.
    s3_events: URLs of the queues that receive the notifications of buckets (`s3://name`); each bucket has its own.
    outside: directories in which Iceberg tables may have files outside of their own locations, in addition to those of
    the metastore's configuration.
    empty: tables (`db.table`) and partitions (`db.table/name`) without a directory that are really empty. An object
    that cannot be read and is not declared here retains the files known to the log."""

    databases: Sequence[str] = ()
    everything: bool = False
    scan: bool = True
    scan_time: timedelta | None = None
    paced: bool = False
    compare: bool = True
    deep: bool = False
    constraints: bool = False
    grants: bool = True
    repair: bool = False
    keeper: str = "auto"
    s3_events: Mapping[str, str] = field(default_factory=dict)
    outside: Sequence[str] = ()
    empty: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.scan_time is not None and not self.scan:
            raise UsageError("--scan-time limits the scan, and --no-scan skips it", hint="give only one of them")
        if wrong := next((each for each in self.outside if not is_absolute(each)), None):
            raise UsageError(f"--iceberg-outside {wrong}: not an absolute path or a URL without `..`")


def capture(source: MetastoreReader, root: ChangeRoot, options: CaptureSettings, runtime: Runtime) -> Captured:
    """Brings the captured log up to date. May run again at any time, also after a crash. Raises BootstrapNeeded for
    lost events, Refused for a root of another catalog, KeepError if no bytes of a store can be retained, UsageError for
    `empty` objects that are not captured."""
    began = clocks.monotonic()
    with acquire(root.place, "capture") as lease:
        lease.check()
        bind_catalog(root.place, source)
        sweep_incoming(root.place, record=partial(record_begun, root.place))
        sweep_log(root.place, lease)
        with open_manifest(root) as manifest:
            sweep_made(root.place, manifest)
            run = _Run(source, root, manifest, options, runtime, lease)
            try:
                run.read(first=True, repair=options.repair)
                run.read_constraints(again=options.constraints)
                run.walk_new(_wanted(source, manifest, options.databases, everything=options.everything))
                looked = clocks.monotonic()
                limit = run.scan.paced() if options.paced and not options.deep else None
                limit = limit if options.scan_time is None else options.scan_time
                if options.scan and options.compare and limit is not None and not run.holed:
                    run.scan.some(limit, deep=options.deep)
                elif options.scan or run.holed:
                    run.transactions.everything = True
                    looked += run.scan.everything(compare=options.compare or run.holed, deep=options.deep or run.holed)
                run.settle([parse_name(text) for text in options.empty], named=options.scan or run.holed)
                if options.grants and (run.holed or (options.scan and options.compare)):
                    run.read_grants()
                run.report.scan_seconds = round(clocks.monotonic() - looked, 3)
                report = run.publish()
                report.warnings += sweep_made(root.place, manifest)
            except BaseException:
                run.abandon()
                run.notices.abandoned()
                raise
            run.notices.published()
    report.seconds = round(clocks.monotonic() - began, 3)
    tell_event("captured", report.through_event, report.position)
    return report


def _wanted(source: MetastoreReader, manifest: Manifest, databases: Sequence[str], *, everything: bool) -> list[str]:
    """Returns the databases to walk for the first time. Raises ObjectNotFound for one that does not exist."""
    known = manifest.scope()
    if known and known.issuperset(databases) and not everything:
        return []
    existing = source.database_names()
    for name in databases:
        if name not in existing and name not in known:
            raise ObjectNotFound(
                f"database {name} does not exist in {source.uri}",
                hint=f"{nearest(name, existing)}existing databases: {', '.join(sorted(existing)[:20])}",
            )
    if databases and not everything:
        return [name for name in databases if name not in known]
    return [name for name in existing if name not in known and not is_shadow(source.database(name))]


class _Run:
    """One running capture: the records so far, and the manifest as of its end."""

    def __init__(
        self,
        source: MetastoreReader,
        root: ChangeRoot,
        manifest: Manifest,
        options: CaptureSettings,
        runtime: Runtime,
        lease: Lease,
    ) -> None:
        self._source, self._root, self._manifest, self._progress = source, root, manifest, runtime.progress
        self._log = Recording(source, root, manifest, runtime.clock, lease)
        keeper = options.keeper
        snapshots = CaptureSnapshots(root.place, self._log.base, keeps=keeper in ("auto", "snapshot"))
        manager = partial(change_manager, source, manifest.scope())
        keepers = Keepers(
            root.place,
            options.keeper,
            self._log.report.warnings.append,
            manager=manager,
            snapshots=snapshots,
            is_external=lambda db, name: (table := manifest.table(db, name)) is not None and table.kind == EXTERNAL,
        )
        self._contents = Contents(self._log, root.place, runtime, keepers)
        allowed = (*source.outside_directories(), *options.outside)
        self._outside = OutsideFiles(self._log, self._contents, runtime, allowed)
        self.transactions = Transactions(source, self._log)
        self._dirty: dict[tuple[str, str], None] = {}
        self._measured = Measured()
        self._constrained: dict[tuple[str, str], None] = {}  # tables whose constraints are to be read
        self._rekeyed: dict[tuple[str, str], None] = {}  # tables whose children's constraints are to be read
        self._intercepts = Intercepts(root.place)
        self._sight = Sight()
        self._unread = UnreadEvents()
        self._refusals = Refusals(self._log.before)
        self.notices = BucketNotices(self._log, options.s3_events, keeper)
        self.scan = Scan(source, self._log, self._refusals, snapshots, self.notices)
        self.holed = False
        self.report = self._log.report

    # ---- events ---------------------------------------------------------------------------------------------------

    def read(self, *, first: bool = False, repair: bool = False) -> int:
        """Folds every event up to now. Returns the number of events about captured databases. Raises BootstrapNeeded at
        a gap in the ids, unless `repair` is set or a gap was repaired in this run."""
        if first and self._log.began_anew:
            return 0
        concerned, more = 0, True
        while more:
            some, more = self._read_some(repair=repair)
            concerned += some
        return concerned

    def _read_some(self, *, repair: bool) -> tuple[int, bool]:
        """Folds the next page of events. Returns how many concern captured databases, and True if more follow."""
        seen = json.loads(self._manifest.recall("rows") or "{}")
        reading = read_events(
            self._source, self._log.cursor, seen, lambda: undecided_since(self._root.place), limit=EVENT_BATCH
        )
        if reading.events:
            self._intercepts.look(reading.events[-1].id)
        if reading.hole is not None:
            self._note_hole(*reading.hole, repair=repair or self.holed)
        concerned = sum(self._fold_event(event) for event in reading.events)
        for row in reading.late:  # a late row is older than events already folded: read the metastore instead
            if row.db and row.table and row.db in self._manifest.scope():
                self._dirty[row.db, row.table] = None
        if reading.events:
            self._log.cursor = reading.events[-1].id
        elif reading.hole is not None:
            self._log.cursor = reading.hole[1] - 1
        self._manifest.remember("rows", json.dumps(reading.seen))
        self.report.events += len(reading.events)
        return concerned, reading.more

    def _note_hole(self, last: int, following: int, *, repair: bool) -> None:
        if not repair:
            raise BootstrapNeeded(
                f"events {last + 1} to {following - 1} of {self._source.uri} were cleaned from the notification log "
                "before capture read them",
                hint="run `replicator capture --repair` (compares every captured table with the metastore and records "
                "the differences), or dump without --since, which does the same; capture more often than "
                "hive.metastore.event.db.listener.timetolive",
            )
        self.holed = True
        self._log.append(kinds.EventsLost(after=last, next=following, repaired=True), following - 1, self._log.now())
        self.report.warnings.append(
            f"events {last + 1} to {following - 1} were lost; every captured table was compared"
        )

    def _fold_event(self, event: NotificationEvent) -> bool:
        self.transactions.note(event)
        decoded = decode(event)
        concerned = False
        for change in changes_in_scope(decoded.change, self._manifest.scope()):
            if change.altered_database and self._only_role(change.altered_database):
                continue
            concerned = True
            if isinstance(change, kinds.SetStatistics):
                self._measured.note(change)
                continue
            if change.unread is not None:
                self._unread.add(event.id, change.unread)
            if isinstance(change, kinds.CreateDatabase):
                change = self._completed(change)
            if isinstance(change, kinds.SetConstraints):
                change = completed(self._manifest, change)
            self._attach(event, change)
            self._watch(change)
            follow = consequences(self._manifest, change)
            position = self._log.append(change, event.id, event.time)
            self._contents.expect(change, position, decoded.files)
            for each in follow:
                self._log.append(each, event.id, event.time)
        return concerned

    def _only_role(self, now: Database) -> bool:
        known = self._manifest.database(now.name)
        return known is not None and same_database(known, now)

    def _completed(self, change: kinds.CreateDatabase) -> kinds.CreateDatabase:
        """Completes a database: 2.3 announces only its name. A dropped one remains bare until its drop event."""
        if change.database.location is not None:
            return change
        try:
            return kinds.CreateDatabase(database=self._source.database(change.database.name))
        except ObjectNotFound:
            return change

    def _attach(self, event: NotificationEvent, change: Change) -> None:
        """Attaches files intercepted before the event: new ones belong to the record that touched their object."""
        table = change.touched
        for partition, rows in self._intercepts.of(event.id, *table) if table else ():
            obj = self._manifest.object(*table, partition) if table else None
            if obj is not None:
                self._contents.attach(obj, rows)

    def _watch(self, change: Change) -> None:
        """Marks tables that an event describes incompletely, and records names of files that will never be seen."""
        known = self._manifest
        if change.rename:
            for marked in (self._constrained, self._rekeyed):
                if (old := (change.rename[0][0], change.rename[0][1])) in marked:
                    marked[change.tables[0]] = marked.pop(old)
        if renamed := self._measured.renamed(change):
            self._dirty[renamed] = None
        if unread := unannounced(self._source, known, change):
            self._constrained[unread] = None
        if parent := loses_or_gets_key(known, change):
            self._rekeyed[parent] = None
        match change:
            case kinds.AlterTable(table=table):
                before = known.table(change.db, change.name)
                columns = before.storage.columns if before and before.storage else None
                cascade = table.is_partitioned and table.storage and table.storage.columns != columns
                if before is None or cascade or (change.moved and table.is_partitioned):
                    self._dirty[table.db, table.name] = None
            case kinds.AddPartitions(db=db, table=name) if known.table(db, name) is None:
                self._dirty[db, name] = None
            case kinds.UnknownEvent(db=str(db), table=str(name)):  # its message cannot be parsed: read the metastore
                self._dirty[db, name] = None
            case kinds.CreateTable(table=table):
                self._contents.give_up_on(table.db, table.name, None)
            case kinds.DropTable(db=db, name=name):
                self._contents.give_up_on(db, name, None)
                self._dirty.pop((db, name), None)
                self._refusals.dropped(db, name)
            case kinds.DropPartitions(db=db, table=name, names=names):
                self._contents.give_up_on(db, name, set(names))

    # ---- changes without an event ---------------------------------------------------------------------------------

    def walk_new(self, databases: Iterable[str]) -> None:
        """Walks databases for the first time: all their contents become records."""
        for db in databases:
            with self._progress.task(f"walk {db}") as advance:
                refused = self._refusals.asked(db)
                for change in walk_database(self._source, self._manifest, db, refused, deep=True):
                    self._log.observe(change)
                    advance(change.size)
            self.scan.walked.add(db)
            self._log.cover({db: self._log.began})

    def settle(self, empty: Sequence[Key], *, named: bool) -> None:
        """Reads and lists alternately until nothing new is read, so that the result is one state of the source. named:
        all files that properties name are examined, not only those of changed tables."""
        for number in range(ROUNDS):
            self._refresh()
            missing = self._list()
            self._outside.look()
            list_named(self._log, self._root.place, everything=named and number == 0)
            if self.read() == 0 and not any((self._dirty, self._measured, self._constrained, self._rekeyed)):
                break
        else:
            self._refresh()
            missing = self._list()
            self._outside.look()
            list_named(self._log, self._root.place, everything=False)
        self._sight = self._contents.found_missing(missing, empty, self._refusals.found())

    def _list(self) -> list[tuple[DataObject, str]]:
        """Lists the objects that may have changed. Returns those that cannot be read, with the reason."""
        self.transactions.look()
        for _ in range(ROUNDS):
            missing = self._contents.list_changed(self.transactions.state)
            if not (unclear := self._contents.unclear):
                return missing
            if self.transactions.passed(unclear):
                self.read()  # what ended until the newer moment is named by events
                self._refresh()
                self.transactions.look(again=True)
            else:
                self._contents.judge_open()
        return missing + [(obj, "it was compacted again and again while it was read") for obj in unclear]

    def _refresh(self) -> None:
        dirty: dict[str, list[str]] = {}
        for db, name in self._dirty:
            dirty.setdefault(db, []).append(name)
        self._dirty = {}
        for db, names in dirty.items():
            refused = self._refusals.asked_again(db, names)
            for change in refresh_tables(self._source, self._manifest, db, names, refused):
                self._log.observe(change)
        for change in self._measured.read(self._source, self._manifest):
            self._log.observe(change)
        rekeyed, self._rekeyed = list(self._rekeyed), {}
        constrained = sorted({*self._constrained, *children_now(self._source, self._manifest, rekeyed)})
        self._constrained = {}
        for db, some in groupby(constrained, key=itemgetter(0)):
            self._observe_constraints(db, [name for _, name in some if self._manifest.table(db, name)])

    def read_constraints(self, *, again: bool) -> None:
        """Reads the constraints of all known tables, if no release that reads constraints has captured before, or, with
        `again`, if the server does not announce every change of them."""
        if is_known(self._manifest) and not (again and not self._source.announces_constraints()):
            return
        existing = set(self._source.database_names()) if self._manifest.scope() else set()
        for db in sorted(self._manifest.scope() & existing):
            self._observe_constraints(db, self._manifest.table_names(db))
        note_known(self._manifest)

    def read_grants(self) -> None:
        """Records differences of grants, as no event announces them."""
        GrantScan(self._source, self._log, self.scan.walked).read()

    def _observe_constraints(self, db: str, tables: Sequence[str]) -> None:
        for change in walk_constraints(self._source, self._manifest, db, tables):
            self._log.observe(change)

    # ---- the end --------------------------------------------------------------------------------------------------

    def publish(self) -> Captured:
        """Makes the capture durable, then removes the intercepted files that a gateway stored for it."""
        databases, place = sorted(self._manifest.scope()), self._root.place
        self.report.formats, self.report.outside = left_out(self._manifest, place, databases)
        self.report.transactional = transactional(self._manifest, databases)
        self.report.not_replicated += [
            NotReplicated(each.name, REMOTE) for each in self._manifest.databases() if each.connector
        ]
        objects = server_objects(self._source, self._manifest.scope())
        remember_objects(self._manifest, objects)
        self.report.not_replicated += [*objects, *unread_files(self._manifest).values()]
        self._contents.remember_unnamed()
        self.transactions.remember()
        self.report.unknown, self.report.unknown_kinds = self._unread.listed(), dict(self._unread.kinds)
        self._log.publish(self._contents.keepers.names, self._sight)
        self._intercepts.finish()
        return self.report

    def abandon(self) -> None:
        self._log.abandon()
