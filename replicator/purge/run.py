"""`replicator purge run`: erases the rows of some ids from all tables on the white list. Acts.

    begin       lease; what a killed run left is settled, and taken up again when it was the same request
    read ids    once, to disk: all tables see the same
    each table  read partitions, list them, search (one Spark job), rewrite, compare, swap, record
    end         what was erased, what was not and why

No file of a table is changed or removed. The old directories stay, as backups that `retain` recycles.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from cmroot.lease import acquire
from cmroot.pins import iso
from cmroot.root import ChangeRoot
from cmroot.store.place import join, normal, store_for
from replicator.core.engine import AutoEngine
from replicator.core.progress import Progress
from replicator.core.roles import follows, mark_of
from replicator.core.shadow import is_shadow
from replicator.core.spark import hive_settings
from replicator.errors import ObjectNotFound, Refused
from replicator.metastore.checked import checked
from replicator.metastore.client import Metastore
from replicator.purge.backups.old_versions import parse_name
from replicator.purge.counting import settle_counts
from replicator.purge.leftovers import remove_leftovers
from replicator.purge.onboarding import Gap, Onboarded, WhiteList, onboard
from replicator.purge.options import PurgeOptions
from replicator.purge.search import matching
from replicator.purge.search.ids import Ids, forget, open_ids, read_ids, split_ids
from replicator.purge.state import PURGE, Run, RunDirectory, Unit, new_run, runs
from replicator.purge.swapping import drop_column_statistics, locations_now
from replicator.purge.tables import TableDone, Work, at
from replicator.removal.audit import begin_audit
from replicator.removal.report import Removals


@dataclass
class Purged(Removals):
    """gaps: white-listed tables, and partitions of others, that the purge does not reach. Lists of units name
    partitions with matching rows."""

    status: str
    run: str
    ids: int = 0
    tables: list[TableDone] = field(default_factory=list)
    gaps: list[dict[str, Any]] = field(default_factory=list)
    resumed: bool = False
    rows_erased: int = 0
    partitions_swapped: int = 0
    partitions_failed: int = 0
    event: int = 0
    seconds: float = 0.0
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


def purge(
    metastore: Metastore,
    root: ChangeRoot,
    options: PurgeOptions,
    *,
    engines: AutoEngine,
    progress: Progress,
    dry_run: bool = False,
    clock: Callable[[], float] = clocks.time,
) -> Purged:
    """Erases. Safe to kill and to run again: the same request goes on where it was. With `dry_run` nothing is written
    anywhere, and rows are only counted.

    Raises Refused when there is no id, or no table to erase them from; LeaseHeld while another purge is at work."""
    began = clocks.monotonic()
    split_ids(options.ids)
    whitelist = WhiteList.parse(options.whitelist)
    with ExitStack() as stack:
        if not dry_run:
            store_for(root.place).mkdirs(join(root.place, PURGE))
            lease = stack.enter_context(acquire(join(root.place, PURGE), "purge", now=clock))
            metastore = checked(metastore, lease.check)
        directory, run, resumed = _begin(metastore, root, options, dry_run, clock)
        stack.push(_Ending(directory, run, dry_run))
        onboarded, gaps = described(metastore, whitelist, options)
        session = engines.session(hive_settings(metastore.uri, warehouse_of(metastore)))
        ids, run = _ids(session, options, directory, run, dry_run)
        stack.callback(forget, ids)
        if not onboarded:
            raise Refused(
                "no table on the white list is described, so nothing would be erased",
                hint="see `gaps`, --table-whitelist and docs/purge.md",
                details={"gaps": [msgspec.to_builtins(gap) for gap in gaps]},
            )
        audit = begin_audit(root.place, PURGE, run=run.id, clock=clock)
        work = Work(metastore, root.place, directory, run, ids, options, engines, audit, clock, dry_run)
        stack.enter_context(work.live)
        done = Purged("planned" if dry_run else "done", "" if dry_run else run.id, ids.count, resumed=resumed)
        done.gaps = [msgspec.to_builtins(gap) for gap in gaps]
        if not dry_run and (options.limits.max_share is not None or options.limits.max_bytes is not None):
            _refuse_excess(replace(work, dry_run=True), onboarded, options)
        for table in onboarded:
            done.add(work.purge_table(table))
        if not dry_run:
            done.event = metastore.current_event_id()
            directory.write_run(msgspec.structs.replace(work.run, status="done", ended=iso(clock())))
            lease.check()
            remove_leftovers(root.place, metastore, lambda: work.live.locations, lease.check)
        done.seconds = clocks.monotonic() - began
        if not dry_run and not done.is_whole:
            done.status = "partial"
        return done


class _Ending:
    """A run that was refused has ended: the next one begins again."""

    def __init__(self, directory: RunDirectory, run: Run, dry_run: bool) -> None:
        self._directory, self._run, self._dry_run = directory, run, dry_run

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, Refused) and not self._dry_run:
            self._directory.write_run(msgspec.structs.replace(self._directory.read_run(), status="failed"))


def _refuse_excess(plan: Work, onboarded: list[Onboarded], options: PurgeOptions) -> None:
    """Searches all tables before anything is written. Raises Refused when more would be touched than may."""
    planned = [plan.purge_table(table) for table in onboarded]
    touched, total = sum(each.swapped for each in planned), sum(each.partitions for each in planned)
    size, limits = sum(each.bytes_rewritten for each in planned), options.limits
    hint = "look at the plan with --dry-run; if it is right, raise the limit for this run"
    if limits.max_share is not None and total and touched / total > limits.max_share:
        raise Refused(
            f"{touched:,} of {total:,} partitions would be written anew, {touched / total:.0%}; one run may"
            f" {limits.max_share:.0%}",
            hint=hint,
            details={"partitions": touched, "total": total},
        )
    if limits.max_bytes is not None and size > limits.max_bytes:
        raise Refused(
            f"{size:,} bytes would be written anew; one run may {limits.max_bytes:,}",
            hint=hint,
            details={"bytes": size},
        )


def _begin(
    metastore: Metastore, root: ChangeRoot, options: PurgeOptions, dry_run: bool, clock: Callable[[], float]
) -> tuple[RunDirectory, Run, bool]:
    """The run to do, and whether it is one that was killed."""
    request = options.request(metastore.uri)
    if not dry_run:
        for directory in runs(root.place):
            run = directory.read_run()
            if run.status != "running":
                continue
            run = settle(metastore, directory, run, clock)
            if run.request == request:
                return directory, run, True
            directory.write_run(msgspec.structs.replace(run, status="abandoned", ended=iso(clock())))
    directory, run = new_run(root.place, request, clock)
    if not dry_run:
        directory.write_run(run)
    return directory, run, False


def settle(metastore: Metastore, directory: RunDirectory, run: Run, clock: Callable[[], float]) -> Run:
    """What a killed run left in between: a swap that happened and was not recorded is recorded, and the counts of its
    table change. What was staged for one that did not happen goes with the other leftovers. Safe to run twice."""
    if run.request["metastore"] != metastore.uri:
        return run  # another metastore's: its own next run settles it
    between = [
        unit for unit in directory.units().values() if unit.state in ("STAGED", "VERIFIED", "PENDING", "SWAPPED")
    ]
    by_table: dict[str, list[Unit]] = {}
    for unit in between:
        by_table.setdefault(unit.table, []).append(unit)
    for name, units in by_table.items():
        db, _, table_name = name.partition(".")
        try:
            table = metastore.table(db, table_name)
        except ObjectNotFound:
            now: dict[str, str] = {}
        else:
            now = locations_now(metastore, table, [unit.partition for unit in units])
        reported = []
        for unit in units:
            there = now.get(unit.partition)
            if unit.new and there is not None and normal(there) == normal(unit.new):
                reported.append(at(unit, "DONE", clock, backup="kept", reason="swapped before the run was killed"))
            else:
                reported.append(at(unit, "FAILED", clock, reason="the run was killed before the swap"))
        directory.write_units(reported)
        if reported and now:
            swapped = [unit.partition for unit in reported if unit.state == "DONE"]
            drop_column_statistics(metastore, table, swapped)
    for name in sorted({unit.table for unit in directory.units().values() if unit.state == "DONE"}):
        run = settle_counts(metastore, directory, run, name)
    return run


def described(metastore: Metastore, whitelist: WhiteList, options: PurgeOptions) -> tuple[list[Onboarded], list[Gap]]:
    """Tables to purge and those that are white-listed and cannot be."""
    onboarded, gaps = [], []
    id_table = split_ids(options.ids)[0].lower()
    for db in sorted(metastore.database_names()):
        if not whitelist.has_database(db) or is_shadow(metastore.database(db)):
            continue
        why = follows(db, mark_of(metastore.database(db).parameters, db), "purge")
        names = [name for name in sorted(metastore.table_names(db)) if whitelist.has(db, name) and not parse_name(name)]
        for table in sorted(metastore.tables(db, names), key=lambda each: each.name):
            if f"{table.db}.{table.name}".lower() == id_table:
                continue  # the requests themselves
            match onboard(table, options.field_path):
                case Onboarded() as found if why:
                    gaps.append(Gap(found.name, why))
                case Onboarded() as found:
                    onboarded.append(found)
                case gap:
                    gaps.append(gap)
    return onboarded, gaps


def warehouse_of(metastore: Metastore) -> str:
    return metastore.database("default").location or "/tmp"


def _ids(session: Any, options: PurgeOptions, directory: RunDirectory, run: Run, dry_run: bool) -> tuple[Ids, Run]:
    """Those of a resumed run are its own, from when it began."""
    try:
        if dry_run:
            return read_ids(session, options.ids, None), run
        if run.ids:
            return open_ids(session, directory.ids), run
        ids = read_ids(session, options.ids, directory.ids)
    except Refused:
        raise
    except Exception as error:
        raise matching.failed(error) from error
    run = msgspec.structs.replace(run, ids=ids.count, ids_type=ids.type)
    directory.write_run(run)
    return ids, run
