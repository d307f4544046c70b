"""`replicator purge undo`: restores a partition to its state before a purge, and reverts a restore. Has side effects.

Switches the location as a purge does, after a comparison and without moving files. The replaced directory is retained
as trash, which `retain` recycles; `undo` switches back to it. A recycled backup is first restored from `$cmroot`.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from cmroot.lease import acquire
from cmroot.pins import iso, seconds
from cmroot.root import ChangeRoot
from cmroot.store.place import join, normal
from replicator.captures.events.scope import refuse_other_catalog
from replicator.core.not_replicated import Report
from replicator.core.roles import follows, mark_of
from replicator.errors import FilesMissing, ObjectNotFound, Refused, UsageError
from replicator.lifecycle.purge.backups.backups import Backup, backups, late, recorded, recycled_of
from replicator.lifecycle.purge.options import BackupRestoreSettings
from replicator.lifecycle.purge.partitions import Part, is_data, look_at, parts_of
from replicator.lifecycle.purge.state import PURGE, Unit, new_run
from replicator.lifecycle.purge.swapping import Figures, drop_column_statistics, flip, purged, settle_counts
from replicator.lifecycle.removal.audit import begin_audit
from replicator.lifecycle.removal.remove import bring_back
from replicator.metastore.client import Metastore, checked


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
    table, partition, undo = options.table, options.partition, options.undo
    db, _, name = table.lower().partition(".")
    known = [each for each in backups(root.place) if each.unit.key == (f"{db}.{name}", partition)]
    backup = _chosen(known, options)
    with acquire(join(root.place, PURGE), "purge undo", now=clock) as lease:
        metastore = checked(metastore, lease.check)
        if why := follows(db, mark_of(metastore.database(db).parameters, db), "restore"):
            raise Refused(why, hint="a replica shows what its primary has, after the next run")
        current = metastore.table(db, name)
        parts = list(parts_of(metastore, current, [partition]))
        if not parts or parts[0].name != partition:
            raise ObjectNotFound(f"{table} has no partition {partition!r}", hint="write it as `show partitions` does")
        (part,) = parts
        when = iso(backup.unit.time)
        if normal(part.location) == normal(backup.place):
            return BackupRestored("unchanged", table, partition, part.location, "", when)
        reported = BackupRestored(
            "planned", table, partition, backup.place, part.location, when, rows=backup.unit.rows or -1
        )
        _warn(reported, backup, undo)
        if dry_run:
            return reported
        reported.from_cmroot = _brought_back(root.place, backup)
        look = look_at(backup.place)
        if gone := late(look, recorded(backup)).gone if not reported.from_cmroot else ():
            raise Refused(
                f"{backup.place}: {len(gone)} files are not as they were, such as {gone[0]}",
                hint="a writer has changed the backup: look at it before you use it",
            )
        directory, run = new_run(root.place, {"undo" if undo else "restore": table, "metastore": metastore.uri}, clock)
        directory.write_run(run)
        figures = Figures(
            sum(is_data(state.path_relative) for state in look.files),
            reported.rows,
            sum(state.size for state in look.files),
        )
        replaced = look_at(part.location).files
        unit = Unit(
            table=f"{db}.{name}",
            partition=partition,
            state="VERIFIED",
            time=clock(),
            old=part.location,
            new=backup.place,
            rows=_rows(part),
            rows_after=reported.rows if reported.rows >= 0 else _rows(part),
            bytes=sum(state.size for state in replaced),
            bytes_after=figures.bytes,
            files=figures.files,
            files_before=sum(is_data(state.path_relative) for state in replaced),
            matched=_matched(known, part),
        )
        directory.write_files([unit.file_row(state) for state in replaced])
        directory.write_units([unit])
        flipped = flip(metastore, current, {partition: (part, purged(part, backup.place, figures, clock()))})
        if not flipped.swapped:
            directory.write_units([unit.at("FAILED", clock, reason=flipped.changed[partition])])
            directory.write_run(msgspec.structs.replace(run, status="failed", ended=iso(clock())))
            raise Refused(f"{unit.name}: {flipped.changed[partition]}", hint="run the same command again")
        directory.write_units([unit.at("DONE", clock, backup="kept", event=flipped.event)])
        backup.set(backup="restored")
        drop_column_statistics(metastore, current, [partition])
        run = settle_counts(metastore, directory, run, unit.table)
        directory.write_run(msgspec.structs.replace(run, status="done", ended=iso(clock())))
        begin_audit(root.place, PURGE, run=run.id, clock=clock).changed(
            unit.table,
            f"restore of the backup of {when}",
            what="restore",
            partition=partition,
            path=backup.place,
            detail=msgspec.to_builtins(unit),
        )
    reported.status, reported.run, reported.event = "restored", run.id, flipped.event
    return reported


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
            f"{name}: there is no {what}{f' at or before {moment}' if moment else ''}",
            hint="`replicator purge backups` lists them",
        )
    return found[0]


def _until(found: list[Backup], moment: str) -> list[Backup]:
    try:
        limit = seconds(moment)
    except ValueError as error:
        raise UsageError(f"--backup {moment!r}: {error}", hint="an ISO 8601 time, or the id of a run") from error
    return [each for each in found if int(each.unit.time) <= limit]


def _warn(reported: BackupRestored, backup: Backup, undo: bool) -> None:
    if backup.unit.matched and not undo:
        reported.warnings.append(
            f"{backup.unit.matched:,} rows that run {backup.directory.id} erased are back: purge again, or undo this"
        )


def _brought_back(root: str, backup: Backup) -> int:
    """Restores the files of a backup that was recycled, entirely or by a killed retain. Returns their number, 0 if none
    was recycled. Raises FilesMissing if a file cannot be restored as it was."""
    before = recorded(backup)
    if backup.unit.backup == "kept" and not recycled_of(root, backup, before, look_at(backup.place)):
        return 0
    try:
        back = bring_back(root, None, job=PURGE, path=normal(backup.place), since=backup.swapped)
    except ObjectNotFound as error:
        raise FilesMissing(error.message, hint="look into `replicator cm find`") from error
    there = {state.path_relative: state.size for state in look_at(backup.place).files}
    lost = {name: "it is not as it was" for name, state in before.items() if there.get(name) != state.size}
    if lost := {**lost, **back.lost}:
        path, why = next(iter(lost.items()))
        raise FilesMissing(
            f"{len(lost)} files of {backup.place} are nowhere any more, such as {path}: {why}",
            hint="$cmroot has let them expire; an older backup may be there",
        )
    return back.files or len(set(back.there))


def _matched(known: Iterable[Backup], part: Part) -> int:
    """Returns the number of erased rows that a restore brought back, if the part is at that location."""
    here = normal(part.location)
    return next(
        (each.unit.matched for each in known if each.unit.backup == "restored" and normal(each.place) == here), 0
    )


def _rows(part: Part) -> int:
    text = part.obj.parameters.get("numRows", "")
    return int(text) if text.isdecimal() else 0
