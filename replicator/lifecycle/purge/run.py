"""`replicator purge run`: erases the rows of given ids from all white-listed tables. Has side effects.

    begin       acquire the lease; finalise killed runs; resume one that had the same request
    read ids    once, to disk, so that all tables see the same ids
    each table  read partitions, list them, search (one Spark job), rewrite, compare, swap, record
    end         report what was erased, what was not, and why

Files with ids are replaced in place, one rename each. The old files remain as backups, which `retain` recycles.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import msgspec

from cmroot.pins import iso
from cmroot.store.place import normal
from replicator.captures.unlistable import REFUSED
from replicator.core.cluster import is_of_spark, spark_failed
from replicator.core.grouping import batched
from replicator.core.model import MATERIALIZED_VIEW, Table
from replicator.core.named_files import ON_NODES, is_on_nodes
from replicator.core.roles import follows, is_shadow, mark_of
from replicator.core.spark import hive_settings
from replicator.errors import ObjectNotFound, Refused
from replicator.lifecycle.purge.backups import parse_name
from replicator.lifecycle.purge.file_names import settle_drop
from replicator.lifecycle.purge.ids import Ids, open_ids, read_ids, split_ids
from replicator.lifecycle.purge.lakes import is_lake, lake_of, onboard_any
from replicator.lifecycle.purge.options import (
    DESCRIPTOR,
    Onboarded,
    PurgeGap,
    PurgeOptions,
    WhiteList,
    WithoutPersons,
    onboard,
)
from replicator.lifecycle.purge.replacing import carry_on
from replicator.lifecycle.purge.state import (
    PURGE,
    PurgeRun,
    RunDirectory,
    TableDone,
    Unit,
    new_run,
    recorded_units,
    runs,
)
from replicator.lifecycle.purge.swapping import drop_column_statistics, locations_now, remove_leftovers, settle_counts
from replicator.lifecycle.purge.table_files import look_at
from replicator.lifecycle.purge.tables import TableWork
from replicator.lifecycle.removal.job import Job, Removals
from replicator.metastore.client import Metastore, MetastoreReader, warehouse_of
from replicator.metastore.fields import catalog_of
from replicator.metastore.newer_servers import refuse_for_spark
from replicator.replay.server_rules import CREATION, read_by


@dataclass
class Purged(Removals):
    """The report of a purge. ids_never_found: ids that no table had; None in a plan. ids_near_misses: how many of these
    a table has in another spelling. gaps: white-listed tables, and partitions, that the purge does not reach.
    without_persons: white-listed tables that hold none, as their descriptors say. certificate: of the run, if it was
    wanted. The lists of units name partitions with matching rows."""

    unfinished: ClassVar[str] = "partial"

    status: str
    run: str
    ids: int = 0
    ids_never_found: int | None = None
    ids_near_misses: int | None = None
    tables: list[TableDone] = field(default_factory=list)
    gaps: list[dict[str, Any]] = field(default_factory=list)
    without_persons: list[dict[str, Any]] = field(default_factory=list)
    resumed: bool = False
    rows_erased: int = 0
    partitions_swapped: int = 0
    partitions_failed: int = 0
    event: int = 0
    seconds: float = 0.0
    certificate: Any = None
    warnings: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not (self.partitions_failed or any(table.error for table in self.tables))

    def add(self, done: TableDone) -> None:
        self.tables.append(done)
        self.gaps += [msgspec.to_builtins(gap) for gap in done.gaps]
        self.rows_erased += done.rows_erased
        self.partitions_swapped += done.swapped
        self.partitions_failed += done.failed


@dataclass(kw_only=True)
class Purge(Job[Onboarded, Purged]):
    """The purge job. The constructor raises UsageError for invalid ids or an invalid white list; a run raises Refused
    if there are no ids, or no table to erase them from. The next run with the same request resumes a killed run."""

    name: ClassVar[str] = PURGE
    purpose: ClassVar[str] = PURGE

    metastore: Metastore
    options: PurgeOptions

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_for_spark(self.metastore)
        split_ids(self.options.ids)
        self._whitelist = WhiteList.parse(self.options.whitelist)

    def report(self) -> Purged:
        return Purged("", "")

    @contextmanager
    def planned(self) -> Iterator[None]:
        directory, run = self._begin()
        try:
            self._tables, gaps, without = described(self.metastore, self._whitelist, self.options)
            engines, progress = self.runtime.engines, self.runtime.progress
            settings = hive_settings(self.metastore.config, warehouse_of(self.metastore) or "/tmp", engines.settings)
            with progress.task("start Spark"):
                session = engines.session(settings)
            with progress.task("read ids"):
                ids, run = self._ids(session, directory, run)
            with closing(ids):
                if not self._tables:
                    raise Refused(
                        "no table on the white list is onboarded, so nothing would be erased",
                        hint="see `gaps`, --table-whitelist and docs/purge.md",
                        details={"gaps": [msgspec.to_builtins(gap) for gap in gaps]},
                    )
                self.done.ids = ids.count
                self.done.gaps = [msgspec.to_builtins(gap) for gap in gaps]
                self.done.without_persons = [msgspec.to_builtins(each) for each in without]
                self._work = TableWork(self.metastore, self.remover, directory, run, ids, self.options, progress)
                self._refuse_excess()
                yield
        except Refused:
            if not self.rehearses:  # the run has ended: the next one starts from the beginning
                directory.write_run(msgspec.structs.replace(directory.read_run(), status="failed"))
            raise

    def pages(self) -> Iterator[Onboarded]:
        for number, table in enumerate(self._tables, 1):
            self._work.which = f", table {number:,} of {len(self._tables):,}"
            yield table

    def show(self, page: Onboarded) -> None:
        self.done.add(self._planned(page))

    def carry_out(self, page: Onboarded) -> None:
        self.done.add(lake_of(self._work, page).run() if is_lake(page.table) else self._work.purge_table(page))

    def _planned(self, page: Onboarded) -> TableDone:
        return lake_of(self._work, page).plan() if is_lake(page.table) else self._work.plan_table(page)

    def finish(self) -> None:
        self.done.event = self.metastore.current_event_id()
        try:
            others = [each for each in self._tables if not is_lake(each.table)]
            self.done.ids_never_found, self.done.ids_near_misses, why = self._work.never_found(others)
            if self.done.ids_never_found and len(others) < len(self._tables):
                self.done.ids_near_misses = None
                why = "near misses are not counted in tables of Delta, Hudi and Iceberg"
            self.done.warnings += filter(None, [why])
        except Exception as error:
            if not is_of_spark(error):
                raise
            self.done.warnings.append(f"ids that no table has were not counted: {spark_failed(error).message}")
        counted = {"never_found": self.done.ids_never_found, "near_misses": self.done.ids_near_misses}
        run = msgspec.structs.replace(self._work.run, status="done", ended=iso(self.runtime.clock()), **counted)
        self._work.directory.write_run(run)
        self.check()
        remove_leftovers(self.root.place, self.metastore, self.live, self.check)

    def _begin(self) -> tuple[RunDirectory, PurgeRun]:
        """Returns the run to execute: a killed one, or a new one."""
        request = self.options.request(self.metastore.uri)
        for directory in runs(self.root.place) if not self.rehearses else ():
            run = directory.read_run()
            if run.status != "running":
                continue
            run = settle(self.metastore, directory, run, self.runtime.clock)
            if run.request == request:
                self.done.resumed = True
                self._name(run)
                return directory, run
            directory.write_run(msgspec.structs.replace(run, status="abandoned", ended=iso(self.runtime.clock())))
        directory, run = new_run(self.root.place, request, self.runtime.clock)
        if not self.rehearses:
            self._name(run)
            directory.write_run(run)
        return directory, run

    def _name(self, run: PurgeRun) -> None:
        """Sets the run's id, the name of its directory, in the report and the audit."""
        self.done.run = run.id
        self.remover = replace(self.remover, audit=replace(self.remover.audit, run=run.id))

    def _refuse_excess(self) -> None:
        """Searches all tables before anything is written. Raises Refused if the run would exceed a removal limit."""
        if self.rehearses or not (limits := self.limits).of_a_whole:
            return
        planned = [self._planned(table) for table in self._tables]
        touched, total = sum(each.swapped for each in planned), sum(each.partitions for each in planned)
        size = sum(each.bytes_rewritten for each in planned)
        size += sum(unit.get("bytes", 0) for each in planned if each.dropped for unit in each.units)
        hint = "check the plan with --dry-run; if it is right, raise the limit for this run"
        if limits.max_share is not None and total and touched / total > limits.max_share:
            raise Refused(
                f"{touched:,} of {total:,} partitions would be rewritten, {touched / total:.0%}; one run may"
                f" rewrite {limits.max_share:.0%}",
                hint=hint,
                details={"partitions": touched, "total": total},
            )
        if limits.max_bytes is not None and size > limits.max_bytes:
            raise Refused(
                f"{size:,} bytes would be rewritten; one run may rewrite {limits.max_bytes:,}",
                hint=hint,
                details={"bytes": size},
            )

    def _ids(self, session: Any, directory: RunDirectory, run: PurgeRun) -> tuple[Ids, PurgeRun]:
        """Reads and stores the ids; a resumed run uses the ids stored when it began."""
        try:
            if self.rehearses:
                return read_ids(session, self.options.ids, None), run
            if run.ids:
                return open_ids(session, directory.ids), run
            ids = read_ids(session, self.options.ids, directory.ids)
        except Refused:
            raise
        except Exception as error:
            raise spark_failed(error) from error
        run = msgspec.structs.replace(run, ids=ids.count, ids_type=ids.type, ids_digest=ids.digest)
        directory.write_run(run)
        return ids, run


def settle(metastore: Metastore, directory: RunDirectory, run: PurgeRun, clock: Callable[[], float]) -> PurgeRun:
    """Finalises a killed run: completes swaps that were begun, records those that were executed but not recorded, and
    updates the counts of their tables. Data staged for other swaps are removed with the leftovers. May run twice."""
    if run.request["metastore"] != metastore.uri:
        return run  # belongs to another metastore, whose next run finalises it
    between = [
        unit for unit in directory.units().values() if unit.state in ("STAGED", "VERIFIED", "PENDING", "SWAPPED")
    ]
    by_table: dict[str, list[Unit]] = {}
    for unit in between:
        by_table.setdefault(unit.table, []).append(unit)
    for name, units in by_table.items():
        db, _, table_name = name.partition(".")
        table, now = None, dict[str, str]()
        with suppress(ObjectNotFound):
            table = metastore.table(db, table_name)
            now = locations_now(metastore, table, [unit.partition for unit in units])
        reported = []
        for unit in units:
            there = now.get(unit.partition)
            if unit.dropped and there is None:
                reported.append(settle_drop(directory, unit, metastore.current_event_id(), clock))
            elif unit.aside and unit.state in ("VERIFIED", "SWAPPED"):
                reported.append(carry_on(metastore, directory, unit, clock))
            elif (
                unit.new
                and not (unit.aside or unit.dropped)
                and there is not None
                and normal(there) == normal(unit.new)
            ):
                reported.append(unit.at("DONE", clock, backup="kept", reason="swapped before the run was killed"))
            else:
                reported.append(unit.at("FAILED", clock, reason="the run was killed before the swap"))
        directory.write_units(reported)
        if table is not None:
            swapped = [unit.partition for unit in reported if unit.backup and not unit.dropped]
            drop_column_statistics(metastore, table, swapped)
    for name in sorted({unit.table for unit in directory.units().values() if unit.backup}):
        run = settle_counts(metastore, directory, run, name)
    return run


def settle_restores(metastore: Metastore, root: str, clock: Callable[[], float]) -> bool:
    """Completes undos that were killed. Returns True if there was one. May run twice."""
    found = False
    for directory in runs(root):
        run = directory.read_run()
        if run.status == "running" and "ids" not in run.request:
            run = settle(metastore, directory, run, clock)
            directory.write_run(msgspec.structs.replace(run, status="abandoned", ended=iso(clock())))
            found = True
    return found


def unended(metastore: MetastoreReader, directories: Sequence[RunDirectory]) -> Iterator[PurgeGap]:
    """Yields runs that were killed, or are running, tables with swaps or drops of unknown outcome, and partitions that
    are gone before their drop was completed: there is no record of all that was erased, by which to look for copies."""
    hint = "start the same purge again"
    for directory in directories:
        if directory.read_run().status == "running":
            yield PurgeGap(f"run {directory.id}", f"this purge has not ended: {hint}")
        left = {unit.table for unit in directory.units().values() if unit.state in ("VERIFIED", "SWAPPED")}
        yield from (PurgeGap(name, f"run {directory.id} has not recorded its outcome: {hint}") for name in sorted(left))
    purged, began = recorded_units(directories)
    for directory, unit in began:
        if unit.state != "VERIFIED" and not _is_there(metastore, unit):
            yield PurgeGap(unit.name, f"run {directory.id} has begun to drop it, and not completed that: {hint}")
    for directory, unit in purged:
        late = unit.dropped and unit.state == "EXHAUSTED" and not _is_there(metastore, unit)
        if late and look_at(unit.old).files:
            yield PurgeGap(unit.name, f"run {directory.id} has left files in {unit.old}: remove them")


def _is_there(metastore: MetastoreReader, unit: Unit) -> bool:
    """Returns True if the metastore has the partition, whose files are searched with its table."""
    with suppress(ObjectNotFound):
        return unit.partition in locations_now(metastore, metastore.table(*unit.table.split(".", 1)), [unit.partition])
    return False


def described(
    metastore: Metastore, whitelist: WhiteList, options: PurgeOptions
) -> tuple[list[Onboarded], list[PurgeGap], list[WithoutPersons]]:
    """Returns the tables to purge, the white-listed tables that cannot be purged, and those that hold no persons."""
    onboarded, without, gaps = list[Onboarded](), list[WithoutPersons](), _elsewhere(metastore, whitelist)
    warehouse = warehouse_of(metastore)
    id_table = split_ids(options.ids)[0].lower()
    for db in filter(whitelist.has_database, sorted(metastore.database_names())):
        try:
            database = metastore.database(db)
            if is_shadow(database):
                continue
            names = [name for name in metastore.table_names(db) if whitelist.has(db, name) and not parse_name(name)]
            tables = _given(metastore, db, names, gaps)
        except ObjectNotFound:  # dropped concurrently
            continue
        why = follows(db, mark_of(database.parameters, db), "purge")
        for table in tables:
            if f"{table.db}.{table.name}".lower() == id_table:
                continue  # the table of erasure requests itself
            match onboard_any(table, options.field_path):
                case Onboarded() as found if why:
                    gaps.append(PurgeGap(found.name, why))
                case Onboarded() as found if is_on_nodes(table.location or "", database.location, warehouse):
                    gaps.append(PurgeGap(found.name, ON_NODES))
                case Onboarded() as found:
                    onboarded.append(replace(found, homes=(database.location, warehouse)))
                case WithoutPersons() as found:
                    without.append(found)
                case gap:
                    gaps.append(gap)
    return onboarded, gaps, without


@dataclass(frozen=True)
class Derived:
    """A view that reads a searched table, directly or through other views. reads: that table. understood: False if its
    text cannot be parsed and has the name of the table."""

    view: Table
    reads: str
    understood: bool = True

    @property
    def name(self) -> str:
        return f"{self.view.db}.{self.view.name}"

    @property
    def is_materialized(self) -> bool:
        return self.view.kind == MATERIALIZED_VIEW


def derived(metastore: MetastoreReader, tables: Collection[str]) -> list[Derived]:
    """Returns the views of all databases that read one of the tables ("db.table"), by name. Holds all views in memory.
    Reads only."""
    views = [view for db in sorted(metastore.database_names()) for view in _views(metastore, db)]
    read = {id(view): relations_of(view) for view in views}
    sources = {name.lower(): name for name in tables}
    found: dict[str, Derived] = {}
    while True:
        before = len(found)
        for view in views:
            name = f"{view.db}.{view.name}".lower()
            names = read[id(view)]
            if name in found:
                continue
            if names is None:
                text = f"{view.view_original} {view.view_expanded}".lower()
                source = next((each for each in sources if each.rpartition(".")[2] in text), None)
            else:
                source = next((each for db, table in sorted(names) if (each := f"{db}.{table}") in sources), None)
            if source is not None:
                found[name] = Derived(view, sources[source], names is not None)
                sources[name] = sources[source]
        if len(found) == before:
            return [found[name] for name in sorted(found)]


def _views(metastore: MetastoreReader, db: str) -> Iterator[Table]:
    with suppress(ObjectNotFound):  # dropped concurrently
        for names in batched(metastore.table_names(db), 1000):
            yield from (table for table in metastore.tables(db, names, {}) if table.has_query)


def relations_of(table: Table) -> frozenset[tuple[str, str]] | None:
    """Returns (database, name) of what a view's query reads, in lower case: by the record of a materialized view, else
    by its text. Returns None for a text that is not SQL that can be parsed."""
    if recorded := read_by(table):
        return frozenset((db.lower(), name.lower()) for db, name in recorded)
    import sqlglot

    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    home = table.parameters.get("view.catalogAndNamespace.part.1", table.db).lower()
    text = table.view_original if "view.catalogAndNamespace.numParts" in table.parameters else table.view_expanded
    for dialect in ("spark", "hive"):
        try:
            trees = [tree for tree in sqlglot.parse(text or table.view_original or "", read=dialect) if tree]
        except (sqlglot.errors.SqlglotError, RecursionError):
            continue
        if trees and not any(tree.find(sqlglot.exp.Command) for tree in trees):
            nodes = (node for tree in trees for node in tree.find_all(sqlglot.exp.Table))
            found = ([part.name.lower() for part in node.parts] for node in nodes)
            return frozenset((parts[-2] if len(parts) > 1 else home, parts[-1]) for parts in found if parts)
    return None


def materialized_at(table: Table) -> float:
    """Returns when a materialized view was last rebuilt, in seconds since 1970; 0 if the server does not record it."""
    records = (table.extra[key]["rec"] for key in table.extra.keys() & CREATION)
    return max((float(fields.get("6", {}).get("i64", 0)) / 1000 for fields in records), default=0.0)


def _elsewhere(metastore: Metastore, whitelist: WhiteList) -> list[PurgeGap]:
    """Returns described tables of other catalogs whose names are on the white list."""
    everywhere, gaps = metastore.everywhere(), list[PurgeGap]()
    for db in everywhere.database_names():
        name = db.partition("#")[2]
        if not catalog_of(db) or not whitelist.has_database(name):
            continue
        with suppress(ObjectNotFound):  # dropped concurrently
            names = [table for table in everywhere.table_names(db) if whitelist.has(name, table)]
            found = _given(everywhere, db, names, gaps)
            gaps += [PurgeGap(f"{db}.{each.name}", "in another catalog") for each in found if _is_described(each)]
    return gaps


def _is_described(table: Table) -> bool:
    """Returns True for a table with a descriptor that does not state that it holds no persons."""
    return not table.is_view and DESCRIPTOR in table.parameters and not isinstance(onboard(table), WithoutPersons)


def _given(metastore: MetastoreReader, db: str, names: Sequence[str], gaps: list[PurgeGap]) -> list[Table]:
    """Returns tables sorted by name. Tables that the metastore refuses to return are added to `gaps`."""
    refused = dict[str, str]()
    found = metastore.tables(db, names, refused)
    gaps += [PurgeGap(f"{db}.{name}", f"{REFUSED}: {said}") for name, said in refused.items()]
    return sorted(found, key=lambda each: each.name)
