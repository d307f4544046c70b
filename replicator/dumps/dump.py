"""Dump: the captured log, as of a point in it, becomes a dump directory.

A bootstrap is the manifest at its end position written out; an incremental dump is the records between two positions.
Both are streams of the same records. Nothing is read from the metastore or the tables: capture did that.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cmroot.lease import acquire
from cmroot.log.captured import FILES, RELEASE, Segment, segments
from cmroot.pins import find_slot
from cmroot.root import ChangeRoot
from cmroot.store.scratch import scratch
from replicator.captures.fold import manifest_at, open_manifest, read_records
from replicator.captures.left_out import gaps, left_out
from replicator.captures.manifest import Manifest
from replicator.captures.uncaptured import Uncaptured, sight_at
from replicator.captures.unnamed import remembered
from replicator.core.batches import batched
from replicator.core.not_replicated import INCOMPLETE, NotReplicated, merged
from replicator.core.progress import Progress
from replicator.core.report import Report
from replicator.core.table_format import SUPPORTED, FormatChoice
from replicator.dumps import layout
from replicator.dumps.points import resolve_since, resolve_until, scope_of_dump
from replicator.dumps.reached import covers, reached, scope_of, scope_text
from replicator.dumps.selection import Entering, Selection
from replicator.dumps.signing import Keys
from replicator.dumps.slots import begin_of, confirmed, pinned, refuse_wider
from replicator.dumps.writer import DumpWriter
from replicator.errors import BootstrapNeeded, ObjectNotFound, UsageError
from replicator.events.record import (
    AddPartitions,
    Change,
    ChangeRecord,
    CreateDatabase,
    CreateFunction,
    CreateTable,
    SetStatistics,
)
from replicator.events.scope import Patterns, matches_name
from replicator.text.partition_filter import PartitionFilter

PARTITIONS_PER_RECORD = 1000
ENTRY_BATCH = 20_000


@dataclass
class Dumped(Report):
    """What a dump holds: its directory, kind, range, and counts (files and bytes are those named, none is carried).
    `observed`: changes found by scan. `captured`: records that the capture before it added."""

    dump: str
    kind: str
    from_event: int | None
    to_event: int
    from_position: int | None
    to_position: int
    records: int
    files: int
    bytes: int
    observed: int
    unknown: list[str] = field(default_factory=list)
    missing_directories: list[str] = field(default_factory=list)
    not_replicated: list[NotReplicated] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    captured: int = 0
    seconds: float = 0.0
    status: str = "dumped"
    slot: str = ""


def write_dump(
    root: ChangeRoot,
    out: str,
    *,
    source: str,
    databases: Sequence[str],
    patterns: Patterns,
    since: str | layout.Point | None = None,
    until: str | layout.Point | None = None,
    slot: str = "",
    id: str | None = None,
    progress: Progress,
    empty: bool = False,
    epochs: Mapping[str, int] | None = None,
    formats: FormatChoice = SUPPORTED,
    clock: Callable[[], float] = clocks.time,
    keys: Keys | None = None,
) -> Dumped:
    """Writes a dump of what is captured. since: an event id, a time, an earlier dump or a point of the log (None: what
    the slot's consumer has confirmed; without a slot, or before it has confirmed anything, a bootstrap). until: an
    event id, a time or a point of the log (None: its end). slot: the consumer's name, registered when it is new. id:
    the dump's (None: a new one). empty: a bootstrap may hold no table. epochs: the source databases' (see
    `DumpMetadata`). formats: "as-they-are" for dumps whose loads leave no format out. keys: the first signs the dump
    (None: it is not signed). What the dump names is pinned in the root before anything is written.

    Raises UsageError for a range or pattern that fits nothing, BootstrapNeeded when records of the range are missing.
    May run again after a crash: an unfinished dump is written again."""
    began = clocks.monotonic()
    with acquire(root.place, "dump") as lease:
        log = segments(root.place)
        end = until if isinstance(until, layout.Point) else resolve_until(log, until)
        begin = begin_of_dump(root, log, since, slot)
        if isinstance(since, str):
            _refuse_wider(since, databases, patterns)
        elif since is None and slot and (consumer := find_slot(root.place, slot)):
            refuse_wider(consumer, scope_of(databases, patterns))
        if begin is not None and begin.position > end.position:
            raise UsageError(
                f"--since (event {begin.event}) is later than --until (event {end.event})",
                hint="leave out --until to dump up to now",
            )
        with _manifest(root, end.position) as manifest, DumpWriter(out, id) as writer:
            work = _Dump(root, manifest, writer, databases, patterns, begin, end, progress)
            with pinned(root.place, dump=writer.id, place=writer.place, slot=slot, begin=begin, end=end, clock=clock):
                if begin is None:
                    work.bootstrap(empty=empty)
                else:
                    work.incremental()
                metadata = work.metadata(source, slot, epochs or {}, formats)
                writer.finish(metadata, keys, before_publishing=lease.check)
    return Dumped(
        dump=writer.place,
        kind=metadata.kind,
        from_event=begin.event if begin else None,
        to_event=end.event,
        from_position=begin.position if begin else None,
        to_position=end.position,
        records=writer.records,
        files=writer.files,
        bytes=writer.bytes,
        observed=writer.observed,
        unknown=work.unknown,
        missing_directories=list(metadata.missing_directories),
        seconds=round(clocks.monotonic() - began, 3),
        not_replicated=list(metadata.not_replicated),
        status=INCOMPLETE if metadata.not_replicated else "dumped",
        slot=slot,
    )


def begin_of_dump(
    root: ChangeRoot, log: Sequence[Segment], since: str | layout.Point | None, slot: str
) -> layout.Point | None:
    """Where a dump begins; None for a bootstrap. `slot`: its name, or nothing."""
    if isinstance(since, layout.Point):
        return since
    if since is not None:
        return resolve_since(log, since, root.id)
    known = confirmed(root.place, slot) if slot else None
    return begin_of(log, known) if known else None


def _refuse_wider(since: str, databases: Sequence[str], patterns: Patterns) -> None:
    """An earlier dump that held less of a database brings a target nowhere from where this one could go on."""
    earlier = scope_of_dump(since)
    for db in databases:
        wanted = reached(scope_of(databases, patterns), db)
        if earlier is not None and db in earlier.databases and not covers(reached(earlier, db), wanted):
            raise BootstrapNeeded(
                f"--since {since}: that dump has of {db} {scope_text(reached(earlier, db))}, this one is to have "
                f"{scope_text(wanted)}",
                hint="dump without --since, a bootstrap of all; or --since its event, for targets that have the others",
            )


@contextmanager
def _manifest(root: ChangeRoot, position: int) -> Iterator[Manifest]:
    """The state at a position: the current manifest, at the log's end, or one that is folded for the purpose."""
    with open_manifest(root) as manifest:
        if manifest.position == position:
            yield manifest
            return
    with scratch("fold") as here, manifest_at(root, position, here) as then:
        yield then


class _Dump:
    """One dump at work."""

    def __init__(
        self,
        root: ChangeRoot,
        manifest: Manifest,
        writer: DumpWriter,
        databases: Sequence[str],
        patterns: Patterns,
        begin: layout.Point | None,
        end: layout.Point,
        progress: Progress,
    ) -> None:
        self._root, self._manifest, self._writer = root, manifest, writer
        self._selection = Selection(tuple(databases), patterns)
        self._begin, self._end, self._progress = begin, end, progress
        self._touched: set[tuple[str, str]] = set()
        self.unknown: list[str] = []
        existing = manifest.scope()
        for name in self._selection.databases:
            if name not in existing or (begin is None and manifest.database(name) is None):
                raise ObjectNotFound(
                    f"database {name} does not exist at event {end.event}",
                    hint=f"captured are: {', '.join(sorted(existing)) or 'none'}",
                )

    # ---- bootstrap ------------------------------------------------------------------------------------------------

    def bootstrap(self, *, empty: bool = False) -> None:
        """Every database, function, table, partition, statistic and file entry in scope, as of the end."""
        if not empty:
            self._require_matches()
        for db in self._selection.databases:
            database = self._manifest.database(db)
            assert database is not None
            self._put(CreateDatabase(database=database))
            for function in self._manifest.functions(db):
                self._put(CreateFunction(function=function))
            names = [name for name in self._manifest.table_names(db) if self._selection.patterns.match(name)]
            with self._progress.task(f"dump {db}", total=len(names)) as advance:
                for name in names:
                    self._export(db, name)
                    advance(1)

    def _require_matches(self) -> None:
        names = {name for db in self._selection.databases for name in self._manifest.table_names(db)}
        if not self._selection.patterns.everything and not any(map(self._selection.patterns.match, names)):
            some = ", ".join(sorted(names)[:10]) or "no tables"
            raise UsageError(
                f"the patterns match no table of {', '.join(self._selection.databases)}",
                hint=f"patterns are regular expressions for whole table names; there are: {some}",
            )

    def _export(self, db: str, name: str) -> None:
        """A table whole: itself, its partitions, its statistics, its files."""
        table = self._manifest.table(db, name)
        if table is None:
            return
        wanted = self._selection.patterns.filter_for(table)
        self._put(CreateTable(table=table))
        self._writer.table(table)
        if table.is_partitioned:
            keys = tuple(key.name for key in table.partition_keys)
            for batch in self._manifest.partitions(db, name, PARTITIONS_PER_RECORD):
                if wanted:
                    batch = [partition for partition in batch if wanted.matches(keys, partition.values)]
                if batch:
                    self._put(AddPartitions(db=db, table=name, keys=keys, partitions=tuple(batch)))
        statistics = self._manifest.statistics(db, name)
        if wanted:
            statistics = [each for each in statistics if not each.partition or matches_name(wanted, each.partition)]
        for some in batched(statistics, PARTITIONS_PER_RECORD):
            self._put(SetStatistics(db=db, table=name, statistics=tuple(some)))
        self._export_files(db, name, wanted)

    def _export_files(self, db: str, name: str, wanted: PartitionFilter | None) -> None:
        rows: list[tuple[Any, ...]] = []
        for row in self._manifest.table_files(db, name):
            if wanted and row[0] and not matches_name(wanted, row[0]):
                continue
            rows.append(row)
            if len(rows) == ENTRY_BATCH:
                self._writer.entries(_entries(rows, db, name, self._end.position))
                rows.clear()
        if rows:
            self._writer.entries(_entries(rows, db, name, self._end.position))

    def _put(self, change: Change) -> None:
        end = self._end
        self._writer.record(ChangeRecord(position=end.position, event=end.event, time=end.time, change=change))

    # ---- incremental ----------------------------------------------------------------------------------------------

    def incremental(self) -> None:
        """The records and file entries of the range that are in scope; tables renamed into it are exported whole."""
        assert self._begin is not None
        after, until = self._begin.position, self._end.position
        log = [each for each in segments(self._root.place) if each.last > after and each.first <= until]
        entering = Entering(self._selection)
        if not self._selects_all:
            for segment in log:
                entering.see(read_records(segment, after, until))
        with self._progress.task("dump records", total=until - after) as advance:
            for segment in log:
                for record in read_records(segment, after, until):
                    self._incremental_record(record, entering)
                    advance(1)
                for batch in segment.file_batches():
                    self._incremental_entries(pa.Table.from_batches([batch]), after, until, entering)
        for db, name in sorted(self._touched - entering.names):
            table = self._manifest.table(db, name)
            if table is not None:
                self._selection.patterns.filter_for(table)
                self._writer.table(table)
        for db, name in sorted(entering.names):
            self._export(db, name)

    @property
    def _selects_all(self) -> bool:
        """Whether nothing can come in, so that the range need not be read for it."""
        patterns = self._selection.patterns
        whole = patterns.everything and not patterns.partitions
        return whole and len(self._selection.databases) == len(self._manifest.scope())

    def _incremental_record(self, record: ChangeRecord, entering: Entering) -> None:
        change = record.change
        if change.unread is not None:
            self.unknown.append(f"event {record.event}: {change.unread}")
        if change.is_marker:
            return
        if change.lost and not change.is_repaired:
            raise BootstrapNeeded(f"{change.detail} were lost within the range", hint="dump without --since")
        reported = entering.reported(change, record.position)
        if reported is None:
            return
        if reported.touched is not None:
            self._touched.add(reported.touched)
        self._writer.record(record if reported is change else msgspec.structs.replace(record, change=reported))

    def _incremental_entries(self, rows: pa.Table, after: int, until: int, entering: Entering) -> None:
        replayed = pc.and_(pc.less_equal(rows["position"], until), pc.not_equal(rows["op"], RELEASE))
        reported, named = entering.reported_rows(rows.filter(pc.and_(pc.greater(rows["position"], after), replayed)))
        self._touched |= named
        self._writer.entries(reported)

    # ---- both -----------------------------------------------------------------------------------------------------

    def _uncaptured(self) -> Iterator[Uncaptured]:
        """Objects in scope that the capture at the end could not see."""
        for obj in sight_at(segments(self._root.place), self._end.position).unseen:
            if self._selection.holds_partition((obj.db, obj.table), obj.partition):
                yield obj

    def _empty(self) -> Iterator[str]:
        for obj in sight_at(segments(self._root.place), self._end.position).empty:
            if self._selection.holds_partition((obj.db, obj.table), obj.partition):
                yield f"{obj.db}.{obj.table}" + (f"/{obj.partition}" if obj.partition else "")

    def _held(self) -> int | None:
        """For the loader, to tell how much of a replica an increment takes away."""
        if self._begin is None or not self._writer.removed:
            return None
        sizes = (self._manifest.bytes_of_tables(db) for db in self._selection.databases)
        match = self._selection.patterns.match
        return sum(size for tables in sizes for name, size in tables.items() if match(name))

    def _unnamed(self) -> Iterator[NotReplicated]:
        """Objects in scope with files whose names are not UTF-8, as the last capture found them."""
        for each in remembered(self._manifest):
            db, _, table = each.object.partition(".")
            if self._selection.holds_partition((db, table), each.partition):
                yield each

    def metadata(self, source: str, slot: str, epochs: Mapping[str, int], choice: FormatChoice) -> layout.DumpMetadata:
        writer = self._writer
        locations = {}
        unseen = list(self._uncaptured())
        formats = left_out(self._manifest, self._root.place, self._selection.databases, self._selection.holds)
        reported = (obj.reported() for obj in unseen)
        lacking = merged(self._unnamed(), reported, gaps(formats) if choice == SUPPORTED else ())
        for db in self._selection.databases:
            database = self._manifest.database(db)
            if database is not None and database.location:
                locations[db] = database.location
        return layout.DumpMetadata(
            id=writer.id,
            kind=layout.BOOTSTRAP if self._begin is None else layout.INCREMENTAL,
            created=layout.now_text(),
            scope=scope_of(self._selection.databases, self._selection.patterns),
            source=source,
            root=self._root.place,
            root_id=self._root.id,
            begin=self._begin,
            end=self._end,
            locations=locations,
            records=writer.records,
            files=writer.files,
            removed=writer.removed,
            bytes=writer.bytes,
            observed=writer.observed,
            buckets=writer.buckets,
            missing_directories=tuple(obj.label for obj in unseen),
            unknown_events=tuple(self.unknown),
            slot=slot or None,
            epochs=dict(epochs),
            not_replicated=tuple(lacking),
            formats=formats,
            empty=tuple(self._empty()),
            held=self._held(),
        )


def _entries(rows: list[tuple[Any, ...]], db: str, table: str, position: int) -> pa.Table:
    count = len(rows)
    partition, location, path, size, mtime_ns, identity, checksum, kept, version = zip(*rows, strict=True)
    columns = {
        "position": [position] * count,
        "op": ["add"] * count,
        "db": [db] * count,
        "table": [table] * count,
        "partition": partition,
        "location": location,
        "path": path,
        "size": size,
        "mtime_ns": mtime_ns,
        "identity": identity,
        "checksum": checksum,
        "kept": [bool(each) for each in kept],
        "version": version,
    }
    return pa.table({name: pa.array(values, FILES.field(name).type) for name, values in columns.items()})
