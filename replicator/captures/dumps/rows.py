"""Content: the records and file entries of a dump, from the manifest at its end or from a range of the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from cmroot.log.captured import FILES, RELEASE, segments
from cmroot.root import ChangeRoot
from replicator.captures.dumps import layout
from replicator.captures.dumps.layout import Scope
from replicator.captures.dumps.selection import Entering, Selection
from replicator.captures.dumps.writer import DumpWriter
from replicator.captures.left_out import gaps, left_out, transactional
from replicator.captures.manifest import GRANTS, Manifest, is_known, read_records
from replicator.captures.unlistable import (
    Uncaptured,
    remembered,
    remembered_grants,
    remembered_objects,
    sight_at,
    unread_files,
)
from replicator.core.formats.outside import OTHERS
from replicator.core.grouping import batched
from replicator.core.named_files import NAMED
from replicator.core.not_replicated import SUPPORTED, FormatChoice, NotReplicated, merged
from replicator.core.runtime import Progress
from replicator.core.text import PartitionFilter
from replicator.errors import BootstrapNeeded, ObjectNotFound, UsageError
from replicator.metastore.events import record as kinds
from replicator.metastore.events.record import Change, ChangeRecord
from replicator.metastore.events.scope import Patterns, UnreadEvents, matches_name

# ---- reached ---------------------------------------------------------------------------------------------------------
# The scope with which a replica reached its checkpoint, stored in its database. Pure.
#
# A checkpoint is one position for an entire database. If a load brought only some of its tables to it, the others are
# behind, and a later load with a wider scope would skip their changes in between.


SCOPE = "replicator.scope"  # property of a replica's database; replicas of older releases do not have it
ALL = "all"
_LONGEST = 2000  # characters; a longer scope is stored as a digest, which covers only itself


class _Part(msgspec.Struct, frozen=True, omit_defaults=True):
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    partitions: dict[str, str] = {}


def scope_of(databases: Sequence[str], patterns: Patterns) -> Scope:
    """Returns databases and patterns in the form that a dump stores."""
    return Scope(
        databases=tuple(databases),
        include=tuple(each.pattern for each in patterns.include),
        exclude=tuple(each.pattern for each in patterns.exclude),
        partitions={table: each.text for table, each in patterns.partitions.items()},
    )


def reached(scope: Scope, db: str) -> str:
    """Returns a scope as the property's value, for one database by its name in the scope."""
    mine = {table: text for table, text in scope.partitions.items() if table.lower().startswith(f"{db}.".lower())}
    part = _Part(tuple(sorted(scope.include)), tuple(sorted(scope.exclude)), mine)
    if part == _Part():
        return ALL
    text = msgspec.json.encode(part, order="deterministic")
    return text.decode() if len(text) <= _LONGEST else f"xxh3:{xxhash.xxh3_128_hexdigest(text)}"


def covers(known: str | None, wanted: str) -> bool:
    """Returns True if all tables and partitions of the scope `wanted` were brought to the checkpoint. `known` is None
    for replicas of older releases, whose scope is unknown. Patterns are compared as text, so a scope that covers may
    not be recognised, but one that does not cover is never accepted."""
    if known in (None, ALL, wanted):
        return True
    one, other = _part(known or ""), _part(wanted)
    if one is None or other is None:
        return False
    included = not one.include or (bool(other.include) and set(other.include) <= set(one.include))
    return included and set(one.exclude) <= set(other.exclude) and one.partitions.items() <= other.partitions.items()


def _part(text: str) -> _Part | None:
    if text == ALL:
        return _Part()
    try:
        return msgspec.json.decode(text, type=_Part)
    except msgspec.DecodeError:  # a digest, or a value written by another program
        return None


def after_load(parameters: Mapping[str, str], wanted: str, *, moves: bool, whole: bool) -> dict[str, str]:
    """Returns a database's parameters with the scope of its new checkpoint. moves: the checkpoint changed; whole: the
    load brought everything in `wanted`, regardless of the state before."""
    known = parameters.get(SCOPE)
    if known is not None and not moves and not (whole and covers(wanted, known)):
        return dict(parameters)  # for example after a repair of some tables
    if known is None and wanted == ALL and not whole:
        return dict(parameters)  # an earlier load may have brought less
    return {**parameters, SCOPE: wanted}


def scope_text(scope: str) -> str:
    """Formats a scope for display."""
    part = _part(scope)
    if part is None:
        return "a choice of its tables"
    said = [f"--include {each}" for each in part.include] + [f"--exclude {each}" for each in part.exclude]
    return " ".join([*said, *(f"{table} where {text}" for table, text in part.partitions.items())]) or "all of it"


# ---- rows ------------------------------------------------------------------------------------------------------------


PARTITIONS_PER_RECORD = 1000
ENTRY_BATCH = 20_000


class Content:
    """The content of one dump while it is written."""

    def __init__(
        self,
        root: ChangeRoot,
        manifest: Manifest,
        writer: DumpWriter,
        selection: Selection,
        begin: layout.Point | None,
        end: layout.Point,
        progress: Progress,
    ) -> None:
        self._root, self._manifest, self._writer = root, manifest, writer
        self._selection, self._begin, self._end, self._progress = selection, begin, end, progress
        self._touched: set[tuple[str, str]] = set()
        self.unknown = UnreadEvents()
        existing = manifest.scope()
        for name in self._selection.databases:
            if name not in existing or (begin is None and manifest.database(name) is None):
                raise ObjectNotFound(
                    f"database {name} does not exist at event {end.event}",
                    hint=f"captured databases: {', '.join(sorted(existing)) or 'none'}",
                )

    # ---- bootstrap ------------------------------------------------------------------------------------------------

    def bootstrap(self, *, empty: bool = False) -> None:
        """Writes every database, function, table, partition, statistic and file entry in scope, as of the end."""
        if not empty:
            self._require_matches()
        for db in self._selection.databases:
            database = self._manifest.database(db)
            assert database is not None
            self._put(kinds.CreateDatabase(database=database))
            for function in self._manifest.functions(db):
                self._put(kinds.CreateFunction(function=function))
            if grants := self._manifest.grants(db):
                self._put(kinds.SetGrants(db=db, grants=grants))
            if roles := self._manifest.roles(db):
                self._put(kinds.SetRoles(db=db, roles=roles))
            self._export_named_files(db)
            names = [name for name in self._manifest.table_names(db) if self._selection.patterns.match(name)]
            with self._progress.task(f"dump {db}", total=len(names)) as advance:
                for name in names:
                    self._export(db, name)
                    advance(1)

    def _require_matches(self) -> None:
        names = {name for db in self._selection.databases for name in self._manifest.table_names(db)}
        if not self._selection.patterns.everything and not any(map(self._selection.patterns.match, names)):
            some = ", ".join(sorted(names)[:10]) or "none"
            raise UsageError(
                f"the patterns match no table of {', '.join(self._selection.databases)}",
                hint=f"patterns are regular expressions for complete table names; existing tables: {some}",
            )

    def _export(self, db: str, name: str) -> None:
        """Writes a complete table: itself, its partitions, statistics, constraints, grants and files."""
        table = self._manifest.table(db, name)
        if table is None:
            return
        wanted = self._selection.patterns.filter_for(table)
        self._put(kinds.CreateTable(table=table))
        self._writer.table(table)
        if table.is_partitioned:
            keys = tuple(key.name for key in table.partition_keys)
            for batch in self._manifest.partitions(db, name, PARTITIONS_PER_RECORD):
                if wanted:
                    batch = [partition for partition in batch if wanted.matches(keys, partition.values)]
                if batch:
                    self._put(kinds.AddPartitions(db=db, table=name, keys=keys, partitions=tuple(batch)))
        if constraints := self._manifest.constraints(db, name):
            self._put(kinds.SetConstraints(db=db, table=name, constraints=constraints))
        if write_ids := self._manifest.write_ids(db, name):
            self._put(write_ids.at(db, name))
        statistics = self._manifest.statistics(db, name)
        if wanted:
            statistics = [each for each in statistics if not each.partition or matches_name(wanted, each.partition)]
        for some in batched(statistics, PARTITIONS_PER_RECORD):
            self._put(kinds.SetStatistics(db=db, table=name, statistics=tuple(some)))
        grants = self._manifest.grants(db, name)
        if wanted:
            grants = {part: some for part, some in grants.items() if not part or matches_name(wanted, part)}
        for parts in batched(sorted(grants), PARTITIONS_PER_RECORD):
            self._put(kinds.SetGrants(db=db, table=name, grants={part: grants[part] for part in parts}))
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

    def _export_named_files(self, db: str) -> None:
        rows = []
        for location, file in self._manifest.recorded_files(db):
            state = (file.size, file.mtime_ns, file.identity, file.checksum, file.kept, file.version)
            rows.append(("", location, file.path, *state))
        if rows:
            self._writer.entries(_entries(rows, db, NAMED, self._end.position))

    def _put(self, change: Change) -> None:
        end = self._end
        self._writer.record(ChangeRecord(position=end.position, event=end.event, time=end.time, change=change))

    # ---- incremental ----------------------------------------------------------------------------------------------

    def incremental(self) -> None:
        """Writes the range's records and file entries in scope; tables that enter the scope are exported completely."""
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
        """True if no table can enter the scope, so that the range need not be read for that."""
        patterns = self._selection.patterns
        whole = patterns.everything and not patterns.partitions
        return whole and len(self._selection.databases) == len(self._manifest.scope())

    def _incremental_record(self, record: ChangeRecord, entering: Entering) -> None:
        change = record.change
        if change.unread is not None:
            self.unknown.add(record.event, change.unread)
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
        """Yields objects in scope that the capture at the end could not read."""
        for obj in sight_at(segments(self._root.place), self._end.position).unseen:
            if self._selection.holds_partition((obj.db, obj.table), obj.partition):
                yield obj

    def _empty(self) -> Iterator[str]:
        for obj in sight_at(segments(self._root.place), self._end.position).empty:
            if self._selection.holds_partition((obj.db, obj.table), obj.partition):
                yield f"{obj.db}.{obj.table}" + (f"/{obj.partition}" if obj.partition else "")

    def _held(self) -> int | None:
        """Returns the bytes in scope at the end, from which a load computes the share that an increment removes."""
        if self._begin is None or not self._writer.removed:
            return None
        sizes = (self._manifest.bytes_of_tables(db) for db in self._selection.databases)
        match = self._selection.patterns.match
        return sum(size for tables in sizes for name, size in tables.items() if match(name))

    def _unnamed(self) -> Iterator[NotReplicated]:
        """Yields objects in scope with files whose names are not UTF-8, as found by the last capture."""
        for each in remembered(self._manifest):
            db, _, table = each.object.partition(".")
            if self._selection.holds_partition((db, table), each.partition):
                yield each

    def metadata(self, source: str, slot: str, epochs: Mapping[str, int], choice: FormatChoice) -> layout.DumpMetadata:
        writer = self._writer
        locations = {}
        unseen = list(self._uncaptured())
        formats, outside = left_out(self._manifest, self._root.place, self._selection.databases, self._selection.holds)
        reported = (obj.reported() for obj in unseen)
        objects = remembered_objects(self._manifest, self._selection.databases, self._selection.holds)
        objects += remembered_grants(self._manifest, self._selection.databases)
        unread = unread_files(self._manifest).items()
        objects += [each for key, each in unread if key.partition("/")[0] in self._selection.databases]
        lacking = merged(
            objects, self._unnamed(), reported, gaps(self._manifest, formats) if choice == SUPPORTED else ()
        )
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
            unknown_events=tuple(self.unknown.listed()),
            slot=slot or None,
            epochs=dict(epochs),
            not_replicated=tuple(lacking),
            formats=dict.fromkeys(outside, OTHERS) | formats,
            outside=outside,
            transactional=transactional(self._manifest, self._selection.databases, self._selection.holds),
            empty=tuple(self._empty()),
            held=self._held(),
            constraints=is_known(self._manifest),
            grants=self._manifest.recall(GRANTS) is not None,
            unkept=writer.unkept,
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
