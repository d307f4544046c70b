"""`replicator purge undo` and `replicator purge retain`: restores and removes backups. Has side effects.

undo      restores the files that a purge has replaced, or reverts a restore: replaces them as a purge does, after a
          comparison. The replaced files are retained as trash, from which `undo` reverts. A recycled backup is first
          restored from `$cmroot`. Of runs of earlier releases, whose backup is a directory, it switches the location.
retain    after the retention time: recycles backups and trash, removes directories of swaps that were not executed,
          deletes ids of runs without backups, and adopts rows that were added to a directory that was swapped out.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from cmroot.errors import Error
from cmroot.lease import acquire
from cmroot.pins import iso
from cmroot.root import ChangeRoot
from cmroot.store.place import join, normal
from replicator.core.audit import Removal, begin_audit
from replicator.core.model import Table
from replicator.core.named_files import ON_NODES, is_on_nodes
from replicator.core.not_replicated import Report
from replicator.core.option import parse_time
from replicator.core.roles import follows, mark_of
from replicator.errors import ObjectNotFound, Refused
from replicator.lifecycle.purge.backups import (
    Backup,
    Due,
    Late,
    OldVersion,
    backups,
    drop_version,
    due,
    forget_ids,
    late,
    matched_at,
    old_versions,
    recorded,
    recycled_of,
    refuse_changed,
    rows_in,
)
from replicator.lifecycle.purge.file_names import add_again
from replicator.lifecycle.purge.lakes import why_no_backup
from replicator.lifecycle.purge.options import BackupRestoreSettings, RetainOptions
from replicator.lifecycle.purge.replacing import brought_back, put_back, rows_of
from replicator.lifecycle.purge.rewrite.rewrite_task import FileWork, carry
from replicator.lifecycle.purge.run import settle, settle_restores
from replicator.lifecycle.purge.state import PURGE, PurgeRun, RunDirectory, Unit, new_run, runs
from replicator.lifecycle.purge.swapping import (
    Figures,
    drop_column_statistics,
    flip,
    leftovers,
    locations_now,
    purged,
    remove_empty_sibling,
    remove_leftovers,
    settle_counts,
)
from replicator.lifecycle.purge.table_files import Look, Part, is_data, look_at, parts_of
from replicator.lifecycle.removal.job import Job, Removals
from replicator.lifecycle.removal.removal import Judged, refuse_excess
from replicator.metastore.client import Metastore, checked, warehouse_of
from replicator.metastore.events.scope import refuse_other_catalog

# ---- purge undo ------------------------------------------------------------------------------------------------------


@dataclass
class BackupRestored(Report):
    """The report of a restore. location: the partition's current one; replaced: its previous one, retained as trash.
    backup: when the backup was swapped out. rows: after the restore, -1 if they were not counted."""

    status: str
    object: str
    partition: str
    location: str
    replaced: str
    backup: str
    from_cmroot: int = 0
    rows: int = -1
    run: str = ""
    event: int = 0
    warnings: list[str] = field(default_factory=list)


def restore_backup(
    metastore: Metastore,
    root: ChangeRoot,
    options: BackupRestoreSettings,
    *,
    dry_run: bool = False,
    clock: Callable[[], float] = clocks.time,
) -> BackupRestored:
    """Restores a backup.

    Raises ObjectNotFound if there is none, Refused if the partition changes concurrently, FilesMissing if bytes of a
    recycled backup no longer exist anywhere. May run twice: the second run finds the backup already restored."""
    refuse_other_catalog(root.place, metastore)
    table, partition = options.table, options.partition
    db, _, name = table.lower().partition(".")
    known = [each for each in backups(root.place) if each.unit.key == (f"{db}.{name}", partition)]
    with suppress(ObjectNotFound):
        if not known and (why := why_no_backup(metastore.table(db, name))):
            raise Refused(
                f"{table}: {why}", hint="`replicator restore` shows a past state, while `$cmroot` has its files"
            )
    backup = _chosen(known, options)
    with acquire(join(root.place, PURGE), "purge undo", now=clock) as lease:
        metastore = checked(metastore, lease.check)
        if not dry_run and settle_restores(metastore, root.place, clock):
            known = [each for each in backups(root.place) if each.unit.key == (f"{db}.{name}", partition)]
            backup = _chosen(known, options)
        database = metastore.database(db)
        if why := follows(db, mark_of(database.parameters, db), "restore"):
            raise Refused(why, hint="a replica matches its primary again after the next run")
        current = metastore.table(db, name)
        place = backup.unit.old if backup.unit.dropped else current.location or ""
        if is_on_nodes(place, database.location, warehouse_of(metastore)):
            raise Refused(f"{table} {partition}: {ON_NODES}", hint="restore it where its directories are")
        if backup.unit.dropped:
            return _added_again(metastore, root, current, backup, dry_run=dry_run, clock=clock)
        parts = list(parts_of(metastore, current, [partition]))
        if not parts or parts[0].name != partition:
            raise ObjectNotFound(
                f"{table} has no partition {partition!r}", hint="write it as `show partitions` prints it"
            )
        (part,) = parts
        if is_on_nodes(part.location, database.location, warehouse_of(metastore)):
            raise Refused(f"{table} {partition}: {ON_NODES}", hint="restore it where its directories are")
        reported = _reported_before(options, part, backup)
        if reported.status == "unchanged":
            return reported
        _warn(reported, backup, options.undo)
        if dry_run:
            return reported
        reported.from_cmroot = brought_back(root.place, backup)
        request = {"undo" if options.undo else "restore": table, "metastore": metastore.uri}
        directory, run = new_run(root.place, request, clock)
        if backup.unit.aside:
            unit = put_back(metastore, current, part, backup, (directory, run), clock, lease.check)
        else:
            if not reported.from_cmroot:
                refuse_changed(backup)
            unit = _switch_back(metastore, current, part, backup, (directory, run), clock, known)
        drop_column_statistics(metastore, current, [partition])
        run = settle_counts(metastore, directory, run, unit.table)
        directory.write_run(msgspec.structs.replace(run, status="done", ended=iso(clock())))
        begin_audit(root.place, PURGE, run=run.id, clock=clock).changed(
            unit.table,
            f"restore of the backup of {reported.backup}",
            what="restore",
            partition=partition,
            path=reported.location,
            detail=msgspec.to_builtins(unit),
        )
    reported.status, reported.run, reported.event = "restored", run.id, unit.event
    reported.replaced = unit.aside or reported.replaced
    return reported


def _added_again(
    metastore: Metastore, root: ChangeRoot, table: Table, backup: Backup, *, dry_run: bool, clock: Callable[[], float]
) -> BackupRestored:
    """Restores a partition that the purge has dropped."""
    was, when = backup.unit, iso(backup.unit.time)
    reported = BackupRestored("planned", was.table, was.partition, was.old, "", when, rows=was.rows)
    _warn(reported, backup, undo=False)
    if dry_run:
        return reported
    directory, run = new_run(root.place, {"restore": was.table, "metastore": metastore.uri}, clock)
    directory.write_run(run)
    reported.from_cmroot = add_again(metastore, root.place, table, backup)
    counts = {"rows": 0, "rows_after": was.rows, "bytes": 0, "bytes_after": was.bytes}
    counts |= {"files": was.files_before, "files_before": 0, "matched": 0}
    unit = msgspec.structs.replace(was, backup="restored", dropped={}, new=was.old, recycled_by="", **counts)
    directory.write_units([unit.at("DONE", clock, event=metastore.current_event_id())])
    backup.set(backup="restored")
    run = settle_counts(metastore, directory, run, was.table)
    directory.write_run(msgspec.structs.replace(run, status="done", ended=iso(clock())))
    begin_audit(root.place, PURGE, run=run.id, clock=clock).changed(
        was.table, f"restore of the partition dropped at {when}", what="restore", partition=was.partition, path=was.old
    )
    reported.status, reported.run, reported.event = "restored", run.id, metastore.current_event_id()
    return reported


def _reported_before(options: BackupRestoreSettings, part: Part, backup: Backup) -> BackupRestored:
    """Returns the report of a restore before it begins: planned, or unchanged. Raises Refused if the part has another
    location than at the purge that replaced its files."""
    was, when = backup.unit, iso(backup.unit.time)
    if not was.aside:
        if normal(part.location) == normal(backup.place):
            return BackupRestored("unchanged", options.table, part.name, part.location, "", when)
        rows = was.rows or -1
        return BackupRestored("planned", options.table, part.name, backup.place, part.location, when, rows=rows)
    if normal(part.location) != normal(was.old):
        raise Refused(
            f"{was.name}: its location is {part.location}, but the purge replaced files of {was.old}",
            hint="a writer has moved it since: set the location back, or copy the rows that you need from the backup",
        )
    return BackupRestored("planned", options.table, part.name, part.location, "", when, rows=rows_of(part, was)[1])


def _switch_back(
    metastore: Metastore,
    table: Table,
    part: Part,
    backup: Backup,
    of: tuple[RunDirectory, PurgeRun],
    clock: Callable[[], float],
    known: Sequence[Backup],
) -> Unit:
    """Switches the location back, as a purge of an earlier release has left the directory. Returns the unit."""
    directory, run = of
    look = look_at(backup.place)
    directory.write_run(run)
    size = sum(state.size for state in look.files)
    figures = Figures(sum(is_data(state.path_relative) for state in look.files), backup.unit.rows or -1, size)
    replaced = look_at(part.location).files
    unit = Unit(
        table=backup.unit.table,
        partition=part.name,
        state="VERIFIED",
        time=clock(),
        old=part.location,
        new=backup.place,
        rows=rows_in(part),
        rows_after=figures.rows if figures.rows >= 0 else rows_in(part),
        bytes=sum(state.size for state in replaced),
        bytes_after=figures.bytes,
        files=figures.files,
        files_before=sum(is_data(state.path_relative) for state in replaced),
        matched=matched_at(known, part),
    )
    directory.write_files([unit.file_row(state) for state in replaced])
    directory.write_units([unit])
    flipped = flip(metastore, table, {part.name: (part, purged(part, backup.place, figures, clock()))})
    if not flipped.swapped:
        directory.write_units([unit.at("FAILED", clock, reason=flipped.changed[part.name])])
        directory.write_run(msgspec.structs.replace(run, status="failed", ended=iso(clock())))
        raise Refused(f"{unit.name}: {flipped.changed[part.name]}", hint="run the same command again")
    unit = unit.at("DONE", clock, backup="kept", event=flipped.event)
    directory.write_units([unit])
    backup.set(backup="restored")
    return unit


def _chosen(known: Iterable[Backup], options: BackupRestoreSettings) -> Backup:
    """Returns the newest backup that fits the options. Excludes restored backups, which are the table's own data."""
    moment = options.moment
    found = [each for each in known if each.unit.backup in ("kept", "recycled") and each.trash == options.undo]
    found.sort(key=lambda each: -each.unit.time)
    if moment is not None:
        found = [each for each in found if each.directory.id == moment] or _until(found, moment)
    if not found:
        what = "restore to undo" if options.undo else "backup"
        name = f"{options.table} {options.partition}".rstrip()
        raise ObjectNotFound(
            f"{name}: no {what}{f' at or before {moment}' if moment else ''}",
            hint="`replicator purge backups` lists them",
        )
    return found[0]


def _until(found: list[Backup], moment: str) -> list[Backup]:
    limit = parse_time(moment, "--backup")
    return [each for each in found if int(each.unit.time) <= limit]


def _warn(reported: BackupRestored, backup: Backup, undo: bool) -> None:
    if backup.unit.matched and not undo:
        reported.warnings.append(
            f"{backup.unit.matched:,} rows erased by run {backup.directory.id} are back: purge again, or undo this"
        )


# ---- purge retain ----------------------------------------------------------------------------------------------------


@dataclass
class Retained(Removals):
    """The report of a retain. removed: recycled backups, trash and staging, with reasons; refused: what could not be
    removed; adopted: late files that were added to their table and have not been purged. files, bytes: recycled."""

    status: str
    run: str = ""
    backups: int = 0
    removed: list[dict[str, Any]] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)
    adopted: list[dict[str, Any]] = field(default_factory=list)
    staging: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_whole(self) -> bool:
        """True if nothing was refused and no unpurged files were adopted."""
        return not (self.refused or self.adopted)

    @property
    def ended(self) -> str:
        return "partial" if self.refused else "done"


@dataclass(kw_only=True)
class Retain(Job[Judged, Retained]):
    """The retention job for the purges of one metastore."""

    name: ClassVar[str] = PURGE
    purpose: ClassVar[str] = "purge retain"

    metastore: Metastore
    options: RetainOptions = field(default_factory=RetainOptions)

    def report(self) -> Retained:
        return Retained("")

    @contextmanager
    def planned(self) -> Iterator[None]:
        for directory in runs(self.root.place) if not self.rehearses else ():
            if (run := directory.read_run()).status == "running":
                settle(self.metastore, directory, run, self.runtime.clock)
        self._wanted = dict[str, tuple[Removal, Due | OldVersion]]()
        for removal, each in self._due():
            self._wanted[removal.path] = removal, each
        for version in old_versions(self.metastore, self.options, self.runtime.clock()):
            self._wanted.setdefault(version.removal.path, (version.removal, version))
        self._judged = self.remover.look(removal for removal, _ in self._wanted.values())
        refuse_excess(self._judged, self.limits, max(self.done.backups, len(self._wanted)), "backups")
        yield

    def pages(self) -> list[Judged]:
        return [self._judged]

    def show(self, page: Judged) -> None:
        done = self.done
        done.removed = [_reported(removal) for removal in page.allowed]
        done.refused += [_reported(each.removal, each.why) for each in page.refused]
        done.files, done.bytes = sum(each.files for each in page.allowed), page.bytes
        done.staging = list(leftovers(self.root.place, self.metastore, self.live))

    def carry_out(self, page: Judged) -> None:
        done = self.done
        gone = self.remover.remove(removal for removal, _ in self._wanted.values())
        for removal in gone.removals:
            self.check()
            done.removed.append(_reported(removal))
            self._record(self._wanted[removal.path][1])
            try:
                remove_empty_sibling(removal.path)
            except (Error, OSError) as error:
                done.refused.append(_reported(removal, f"the emptied directory above it was not removed: {error}"))
        done.refused += [_reported(each.removal, each.why) for each in gone.refused]
        done.refused += [_reported(removal, why) for removal, why in gone.failed]
        done.files, done.bytes = gone.files, gone.bytes

    def finish(self) -> None:
        self.done.staging = remove_leftovers(self.root.place, self.metastore, self.live, self.check)
        self.check()
        forget_ids(self.root.place)

    def _due(self) -> Iterator[tuple[Removal, Due]]:
        """Yields the backups to recycle; adopts their late files first."""
        known = [
            each
            for each in backups(self.root.place)
            if each.directory.read_run().request["metastore"] == self.metastore.uri
        ]
        self.done.backups = sum(each.unit.backup == "kept" for each in known)
        for each in due(known, self.options, self.runtime.clock()):
            if not self.rehearses:
                self.check()
            look = look_at(each.backup.place)
            if look.missing:  # removed by another process: it may be in `$cmroot`, but this run has no record of it
                if not self.rehearses:
                    each.backup.set(backup="recycled")
                continue
            if each.backup.unit.aside:  # no writer has ever known this directory
                yield _removal(each, look), each
                continue
            before = recorded(each.backup)
            taken = recycled_of(self.root.place, each.backup, before, look)
            what = late(look, {name: state for name, state in before.items() if name not in taken})
            if not (what.came or what.gone) or self._adopted(each.backup, what):
                yield _removal(each, look), each

    def _record(self, gone: Due | OldVersion) -> None:
        if isinstance(gone, Due):
            gone.backup.set(backup="recycled", recycled_by=self.remover.audit.run)
        else:
            drop_version(self.metastore, gone)

    def _adopted(self, backup: Backup, what: Late) -> bool:
        """Links late files into their table's current location. Returns False if the backup must be retained."""
        unit = backup.unit
        reported = {"object": unit.table, "partition": unit.partition, "path": backup.place, "what": "backup"}
        if what.gone:
            why = (
                f"{len(what.gone)} of its files changed after the swap, such as {what.gone[0]}: a writer replaced them"
            )
            self.done.refused.append({**reported, "reason": "", "refused": why})
            return False
        db, _, name = unit.table.partition(".")
        try:
            now = locations_now(self.metastore, self.metastore.table(db, name), [unit.partition])
        except ObjectNotFound:
            now = {}
        there = now.get(unit.partition)
        if there is None or normal(there) != normal(unit.new):
            why = f"{len(what.came)} files were added after the swap, and its table no longer has the swapped location"
            self.done.refused.append({**reported, "reason": "", "refused": why})
            return False
        self.done.adopted.append({**reported, "files": [state.path_relative for state in what.came], "to": there})
        if not self.rehearses:
            for state in what.came:
                place = state.path_relative
                carry(FileWork(unit.partition, place, join(backup.place, place), join(there, place), "", state.size, 0))
            self.remover.audit.changed(
                unit.table,
                f"{len(what.came)} files were added after the swap of run {backup.directory.id}",
                what="adopted",
                partition=unit.partition,
                path=there,
            )
        return True


def _removal(each: Due, look: Look) -> Removal:
    unit = each.backup.unit
    return Removal(
        path=each.backup.place,
        what="trash" if each.backup.trash else "backup",
        object=unit.table,
        partition=unit.partition,
        reason=each.reason,
        files=len(look.files),
        bytes=sum(state.size for state in look.files),
    )


def _reported(removal: Removal, why: str = "") -> dict[str, Any]:
    reported = {
        "object": removal.object,
        "partition": removal.partition,
        "path": removal.path,
        "what": removal.what,
        "files": removal.files,
        "bytes": removal.bytes,
        "reason": removal.reason,
    }
    return {**reported, "refused": why} if why else reported
