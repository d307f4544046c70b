"""Dump: the captured log, as of a point in it, becomes a dump directory.

A bootstrap is the manifest at its end position written out; an incremental dump is the records between two positions.
Both are streams of the same records. Nothing is read from the metastore or the tables: capture did that.
"""

from __future__ import annotations

import tempfile
import time as clocks
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cmroot.lease import acquire
from cmroot.log import FILES, RELEASE, Segment, segments
from cmroot.root import ChangeRoot
from replicator.dump import layout
from replicator.dump.points import resolve_since, resolve_until
from replicator.dump.slots import begin_of, confirmed, pinned
from replicator.dump.writer import DumpWriter
from replicator.errors import BootstrapNeeded, ObjectNotFound, UsageError
from replicator.events.fold import manifest_at, open_manifest, read_records
from replicator.events.manifest import SETTLED, Manifest
from replicator.events.record import (
    AddPartitions,
    AlterTable,
    Change,
    ChangeRecord,
    CreateDatabase,
    CreateFunction,
    CreateTable,
    DropTable,
    EventsLost,
    EventsRead,
    SetStatistics,
    UnknownEvent,
    touched_db,
    touched_table,
)
from replicator.events.scope import Patterns
from replicator.progress import Progress
from replicator.report import json_text

PARTITIONS_PER_RECORD = 1000
ENTRY_BATCH = 20_000


@dataclass
class Dumped:
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
    warnings: list[str] = field(default_factory=list)
    captured: int = 0
    seconds: float = 0.0
    status: str = "dumped"
    slot: str = ""

    __str__ = json_text


def write_dump(
    root: ChangeRoot, out: str, *, source: str, databases: Sequence[str], patterns: Patterns,
    since: str | layout.Point | None = None, until: str | layout.Point | None = None, slot: str = "",
    id: str | None = None, progress: Progress, empty: bool = False, epochs: Mapping[str, int] | None = None,
    clock: Callable[[], float] = clocks.time,
) -> Dumped:  # fmt: skip
    """Writes a dump of what is captured. since: an event id, a time, an earlier dump or a point of the log (None: what
    the slot's consumer has confirmed; without a slot, or before it has confirmed anything, a bootstrap). until: an
    event id, a time or a point of the log (None: its end). slot: the consumer's name, registered when it is new. id:
    the dump's (None: a new one). empty: a bootstrap may hold no table. epochs: the source databases' (see
    `DumpMetadata`). What the dump names is pinned in the root before anything is written.

    Raises UsageError for a range or pattern that fits nothing, BootstrapNeeded when records of the range are missing.
    May run again after a crash: an unfinished dump is written anew."""
    began = clocks.monotonic()
    with acquire(root.place, "dump"):
        log = segments(root.place)
        end = until if isinstance(until, layout.Point) else resolve_until(log, until)
        begin = begin_of_dump(root, log, since, slot)
        if begin is not None and begin.position > end.position:
            raise UsageError(
                f"--since (event {begin.event}) is later than --until (event {end.event})",
                hint="leave out --until to dump up to now",
            )
        with _manifest(root, end.position) as (manifest, current), DumpWriter(out, id) as writer:
            work = _Dump(root, manifest, current, writer, databases, patterns, begin, end, progress)
            with pinned(
                root.place, dump=writer.id, place=writer.place, slot=slot, begin=begin, end=end, clock=clock
            ):  # fmt: skip
                if begin is None:
                    work.bootstrap(empty=empty)
                else:
                    work.incremental()
                metadata = work.metadata(source, slot, epochs or {})
                writer.finish(metadata)
    return Dumped(
        dump=writer.place, kind=metadata.kind, from_event=begin.event if begin else None, to_event=end.event,
        from_position=begin.position if begin else None, to_position=end.position, records=writer.records,
        files=writer.files, bytes=writer.bytes, observed=writer.observed, unknown=work.unknown,
        missing_directories=list(metadata.missing_directories), seconds=round(clocks.monotonic() - began, 3),
        status="incomplete" if metadata.missing_directories else "dumped", slot=slot,
    )  # fmt: skip


def begin_of_dump(
    root: ChangeRoot, log: Sequence[Segment], since: str | layout.Point | None, slot: str
) -> layout.Point | None:  # fmt: skip
    """Where a dump begins; None for a bootstrap. `slot`: its name, or nothing."""
    if isinstance(since, layout.Point):
        return since
    if since is not None:
        return resolve_since(log, since, root.id)
    known = confirmed(root.place, slot) if slot else None
    return begin_of(log, known) if known else None


@contextmanager
def _manifest(root: ChangeRoot, position: int) -> Iterator[tuple[Manifest, bool]]:
    """The state at a position, and whether it is the current manifest, at the log's end, or folded for the purpose."""
    with open_manifest(root) as manifest:
        if manifest.position == position:
            yield manifest, True
            return
    with (
        tempfile.TemporaryDirectory(prefix="replicator-") as scratch,
        manifest_at(root, position, Path(scratch)) as then,
    ):
        yield then, False


class _Dump:
    """One dump at work."""

    def __init__(
        self, root: ChangeRoot, manifest: Manifest, current: bool, writer: DumpWriter, databases: Sequence[str],
        patterns: Patterns, begin: layout.Point | None, end: layout.Point, progress: Progress,
    ) -> None:  # fmt: skip
        self._root, self._manifest, self._current, self._writer = root, manifest, current, writer
        self._databases, self._patterns = list(databases), patterns
        self._begin, self._end, self._progress = begin, end, progress
        self._touched: set[tuple[str, str]] = set()
        self._exported: set[tuple[str, str]] = set()
        self.unknown: list[str] = []
        existing = manifest.scope()
        for name in self._databases:
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
        for db in self._databases:
            database = self._manifest.database(db)
            assert database is not None
            self._put(CreateDatabase(database=database))
            for function in self._manifest.functions(db):
                self._put(CreateFunction(function=function))
            names = [name for name in self._manifest.table_names(db) if self._patterns.match(name)]
            with self._progress.task(f"dump {db}", total=len(names)) as advance:
                for name in names:
                    self._export(db, name)
                    advance(1)

    def _require_matches(self) -> None:
        names = {name for db in self._databases for name in self._manifest.table_names(db)}
        if not self._patterns.everything and not any(map(self._patterns.match, names)):
            some = ", ".join(sorted(names)[:10]) or "no tables"
            raise UsageError(
                f"the patterns match no table of {', '.join(self._databases)}",
                hint=f"patterns are regular expressions for whole table names; there are: {some}",
            )

    def _export(self, db: str, name: str) -> None:
        """A table whole: itself, its partitions, its statistics, its files."""
        table = self._manifest.table(db, name)
        if table is None:
            return
        self._exported.add((db, name))
        self._put(CreateTable(table=table))
        self._writer.table(table)
        if table.is_partitioned:
            keys = tuple(key.name for key in table.partition_keys)
            for batch in self._manifest.partitions(db, name, PARTITIONS_PER_RECORD):
                self._put(AddPartitions(db=db, table=name, keys=keys, partitions=tuple(batch)))
        statistics = self._manifest.statistics(db, name)
        for start in range(0, len(statistics), PARTITIONS_PER_RECORD):
            some = tuple(statistics[start : start + PARTITIONS_PER_RECORD])
            self._put(SetStatistics(db=db, table=name, statistics=some))
        self._export_files(db, name)

    def _export_files(self, db: str, name: str) -> None:
        rows: list[tuple[Any, ...]] = []
        for row in self._manifest.table_files(db, name):
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
        entering = self._entering(log, after, until)
        with self._progress.task("dump records", total=until - after) as advance:
            for segment in log:
                for record in read_records(segment, after, until):
                    self._incremental_record(record, entering)
                    advance(1)
                for batch in segment.file_batches():
                    self._incremental_entries(pa.Table.from_batches([batch]), after, until, entering)
        for db, name in sorted(self._touched - self._exported):
            table = self._manifest.table(db, name)
            if table is not None:
                self._writer.table(table)
        for db, name in sorted(entering):
            self._export(db, name)

    def _entering(self, log: Sequence[object], after: int, until: int) -> dict[tuple[str, str], int]:
        """Tables in scope at the end that a rename brought into it, and since which position they have their name:
        nothing of their past is known to the target."""
        if self._patterns.everything and len(self._databases) == len(self._manifest.scope()):
            return {}
        renamed: dict[tuple[str, str], int] = {}
        origin: dict[tuple[str, str], tuple[str, str] | None] = {}
        for segment in log:
            for record in read_records(segment, after, until):  # type: ignore[arg-type]
                change = record.change
                if isinstance(change, CreateTable):
                    origin[change.table.db, change.table.name] = None
                elif isinstance(change, AlterTable) and change.renames:
                    old = (change.db, change.name)
                    origin[change.table.db, change.table.name] = origin.pop(old, old)
                    renamed[change.table.db, change.table.name] = record.position
        return {
            now: renamed[now]
            for now, then in origin.items()
            if then and self._in_scope(now) and not self._in_scope(then)
        }

    def _in_scope(self, name: tuple[str, str]) -> bool:
        return name[0] in self._databases and self._patterns.match(name[1])

    def _incremental_record(self, record: ChangeRecord, entering: Mapping[tuple[str, str], int]) -> None:
        change = record.change
        if isinstance(change, UnknownEvent):
            self.unknown.append(f"event {record.event}: {change.type}")
        if isinstance(change, EventsRead):
            return
        if isinstance(change, EventsLost) and not change.repaired:
            raise BootstrapNeeded(
                f"events {change.after + 1} to {change.next - 1} were lost within the range",
                hint="dump without --since",
            )
        scoped = self._scoped(change, record.position, entering)
        if scoped is None:
            return
        table = touched_table(scoped)
        if table is not None:
            self._touched.add(table)
        if scoped is not change:
            record = ChangeRecord(
                position=record.position, event=record.event, time=record.time, change=scoped, observed=record.observed
            )
        self._writer.record(record)

    def _scoped(self, change: Change, position: int, entering: Mapping[tuple[str, str], int]) -> Change | None:
        """What of a change is in scope: a rename out of it is a drop; what is about an entering table is left out."""
        table = touched_table(change)
        if table is None:
            db = touched_db(change)
            return change if db is None or db in self._databases else None
        if isinstance(change, AlterTable) and change.renames:
            old_in, new_in = self._in_scope((change.db, change.name)), self._in_scope(table)
            if old_in and not new_in:
                return DropTable(db=change.db, name=change.name)
            return change if old_in else None
        return change if self._in_scope(table) and position < entering.get(table, position + 1) else None

    def _incremental_entries(
        self, rows: pa.Table, after: int, until: int, entering: Mapping[tuple[str, str], int]
    ) -> None:
        replayed = pc.and_(pc.less_equal(rows["position"], until), pc.not_equal(rows["op"], RELEASE))
        rows = rows.filter(pc.and_(pc.greater(rows["position"], after), replayed))
        names = set(zip(rows["db"].to_pylist(), rows["table"].to_pylist(), strict=True))
        for db, table in names:
            since = entering.get((db, table)) if self._in_scope((db, table)) else 0
            if since is None:
                self._touched.add((db, table))
                continue
            theirs = pc.and_(pc.equal(rows["db"], db), pc.equal(rows["table"], table))
            rows = rows.filter(pc.invert(pc.and_(theirs, pc.greater_equal(rows["position"], since))))
        self._writer.entries(rows)

    # ---- both -----------------------------------------------------------------------------------------------------

    def _missing_directories(self) -> Iterator[str]:
        """Objects in scope whose directory the last capture did not find: it left them to be listed again."""
        if self._current and self._manifest.recall(SETTLED) == str(self._end.position):  # not folded anew from the log
            for batch in self._manifest.unlisted():
                yield from (thing.label for thing in batch if self._in_scope((thing.db, thing.table)))

    def metadata(self, source: str, slot: str, epochs: Mapping[str, int]) -> layout.DumpMetadata:
        writer = self._writer
        locations = {}
        for db in self._databases:
            database = self._manifest.database(db)
            if database is not None and database.location:
                locations[db] = database.location
        return layout.DumpMetadata(
            id=writer.id, kind=layout.BOOTSTRAP if self._begin is None else layout.INCREMENTAL,
            created=layout.now_text(), scope=self._scope(), source=source, root=self._root.place, root_id=self._root.id,
            begin=self._begin, end=self._end, locations=locations, records=writer.records, files=writer.files,
            removed=writer.removed, bytes=writer.bytes, observed=writer.observed, buckets=writer.buckets,
            missing_directories=tuple(self._missing_directories()), unknown_events=tuple(self.unknown),
            slot=slot or None, epochs=dict(epochs),
        )  # fmt: skip

    def _scope(self) -> layout.Scope:
        return layout.Scope(
            databases=tuple(self._databases),
            include=tuple(pattern.pattern for pattern in self._patterns.include),
            exclude=tuple(pattern.pattern for pattern in self._patterns.exclude),
        )


def _entries(rows: list[tuple[Any, ...]], db: str, table: str, position: int) -> pa.Table:
    count = len(rows)
    partition, location, path, size, mtime_ns, identity, checksum, kept, version = zip(*rows, strict=True)
    columns = {
        "position": [position] * count, "op": ["add"] * count, "db": [db] * count, "table": [table] * count,
        "partition": partition, "location": location, "path": path, "size": size, "mtime_ns": mtime_ns,
        "identity": identity, "checksum": checksum, "kept": [bool(each) for each in kept],
        "version": version,
    }  # fmt: skip
    return pa.table({name: pa.array(values, FILES.field(name).type) for name, values in columns.items()})
