"""Replacement of files in place: the swap of a purge, and of its undo. Has side effects.

    aside     each file that is to be replaced is hard-linked (or copied) into the backup, next to the location
    replace   the new file is renamed over the old one; object stores copy it there on the server
    set       counts and sizes of all parts in one call of the metastore

The location is never changed and never without a file: a reader finds each file before or after its replacement, which
differ by the erased rows only, and nothing that a later statement adds at this place is the backup. A kill between any
two steps leaves a table that can be read; `carry_on` completes it. A file that another writer has changed is not
replaced. The remaining window is between that comparison and the rename.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import msgspec
import pyarrow.compute as pc

from cmroot.keep.journal import files_at
from cmroot.pins import iso
from cmroot.store.checksum import checksum_at
from cmroot.store.listing import FileState, skipped_directory
from cmroot.store.place import give_rights, is_local, join, located, name_of, normal, parent
from replicator.core.engine import Engine, LocalEngine
from replicator.core.formats import is_transactional
from replicator.core.grouping import batched
from replicator.core.model import Partition, Table
from replicator.errors import FilesMissing, ObjectNotFound, Refused
from replicator.lifecycle.purge.backups import Backup, recorded, recycled_of
from replicator.lifecycle.purge.rewrite.rewrite_task import (
    CHANGED,
    FileWork,
    Replaced,
    ReplaceTask,
    ReplaceWork,
    carry,
    is_replaced,
    run_replace_task,
    state_now,
)
from replicator.lifecycle.purge.state import PURGE, PurgeRun, RunDirectory, Unit
from replicator.lifecycle.purge.swapping import (
    Figures,
    Staged,
    Staging,
    above_of,
    purged,
    remove_empty_sibling,
    same,
    set_parts,
)
from replicator.lifecycle.purge.table_files import Part, is_data, look_at, new_files_location, new_location, parts_of
from replicator.lifecycle.removal.job import bring_back
from replicator.metastore.client import Metastore

RUNNING = timedelta(days=1)
"""Directories of unfinished jobs (`_temporary`) that were changed in this time remain: the job may be running."""

TASK_FILES = 64

GONE = "was dropped concurrently"

# ---- parts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Swap:
    """A part whose files are to be replaced: those of them as read, each with the number of rows to erase."""

    unit: Unit
    files: Mapping[str, tuple[FileState, int]]

    def works(self) -> Iterator[ReplaceWork]:
        unit = self.unit
        for name, (state, _) in self.files.items():
            current, new, aside = (join(place, name) for place in (unit.old, unit.new, unit.aside))
            yield ReplaceWork(unit.partition, name, current, new, aside, state)


def swap_of(unit: Unit, staging: Staging) -> Swap:
    """Returns the swap of a part that is staged."""
    matched = staging.matched
    found = {state.path_relative: state for state in staging.look.files if state.path_relative in matched}
    return Swap(unit, {name: (state, matched[name]) for name, state in found.items()})


def lacking_of(staged: Staged) -> str:
    """Returns the reason of a unit whose new files lack rights of the old ones, or ""."""
    return f"the new files lack rights of the old ones: {staged.lacking}" if staged.lacking else ""


def figured(unit: Unit, staged: Staged) -> Unit:
    """Returns the unit of a part with the figures of its new files."""
    return msgspec.structs.replace(
        unit,
        files=staged.files,
        files_before=staged.files_before,
        rewritten=staged.rewritten,
        rows=staged.rows,
        matched=staged.erased,
        rows_after=staged.rows - staged.erased,
        bytes=staged.bytes,
        bytes_after=staged.bytes_after,
    )


@dataclass
class Swaps:
    """The result of a swap. units: swapped parts, not yet recorded; changed: name -> why a part is as it was."""

    units: list[Unit]
    changed: dict[str, str]


def replace_parts(
    metastore: Metastore,
    table: Table,
    parts: Sequence[Part],
    swaps: Sequence[Swap],
    engine: Engine,
    clock: Callable[[], float],
    check: Callable[[], None],
) -> Swaps:
    """Replaces the files of parts whose metadata are unchanged since they were read (`parts`), and sets their counts.
    New files are durable when it returns. check: raises LeaseHeld if the lease was lost. Raises the metastore's errors;
    `carry_on` then completes the swap."""
    changed = unlike(metastore, table, parts)
    going = [swap for swap in swaps if swap.unit.partition not in changed]
    lacking = dict[str, str]()
    for each in _run("aside", going, engine):
        if each.error:
            changed[each.partition] = f"a file {each.error}: {each.name}"
        elif each.lacking:
            lacking[each.partition] = each.lacking
    going = [swap for swap in going if swap.unit.partition not in changed]
    for swap in going:
        _give_rights(swap.unit, swap.files)
    _sync(going)
    check()
    failed = dict[str, list[str]]()
    for each in _run("replace", going, engine):
        if each.error:
            failed.setdefault(each.partition, []).append(each.name)
        elif each.lacking:
            lacking[each.partition] = each.lacking
    for swap in going:  # not before: until a file is replaced, a backup has only what its location has, too
        if len(failed.get(swap.unit.partition, ())) < len(swap.files):
            _move_unread(swap.unit, clock())
    _sync(going)
    units = list[Unit]()
    for swap in going:
        name = swap.unit.partition
        if len(files := failed.get(name, [])) == len(swap.files):
            changed[name] = f"a file {CHANGED}: {files[0]}"
        else:
            units.append(_done(swap, files, lacking.get(name, "")))
    event = set_figures(metastore, table, {unit.partition: unit for unit in units}, clock())
    for swap in swaps:
        remove_new(swap.unit)
    return Swaps([unit.at("SWAPPED", clock, backup="kept", event=event) for unit in units], changed)


def unlike(metastore: Metastore, table: Table, parts: Sequence[Part]) -> dict[str, str]:
    """Returns why parts are not as they were read, by name."""
    try:
        current = metastore.table(table.db, table.name)
    except ObjectNotFound:
        return dict.fromkeys((part.name for part in parts), "its table was dropped concurrently")
    now = {part.name: part for part in parts_of(metastore, current, [part.name for part in parts])}
    changed = dict[str, str]()
    for part in parts:
        if part.name not in now:
            changed[part.name] = GONE
        elif not same(now[part.name], part):
            changed[part.name] = "its metadata was changed concurrently"
    return changed


def _run(step: Literal["aside", "replace"], swaps: Sequence[Swap], engine: Engine) -> Iterator[Replaced]:
    works = (work for swap in swaps for work in swap.works())
    tasks = (ReplaceTask(step, tuple(some)) for some in batched(works, TASK_FILES))
    for found in engine.run(run_replace_task, tasks) if swaps else ():
        yield from found


def _sync(swaps: Iterable[Swap]) -> None:
    for swap in swaps:
        if is_local(swap.unit.old):
            located(swap.unit.old).sync()
            return  # one call for the entire filesystem


def _give_rights(unit: Unit, names: Iterable[str]) -> None:
    """Gives the directories of a backup the rights of those that its files are from."""
    below = {""} | {above for name in names for above in above_of(name)}
    for each in sorted(below, reverse=True):
        give_rights(join(unit.old, each), join(unit.aside, each))
    give_rights(parent(unit.old.rstrip("/")), parent(unit.aside))


def _done(swap: Swap, failed: Sequence[str], lacking: str) -> Unit:
    """Returns a unit as it is after the replacement. failed: names of files that another writer has changed."""
    unit, reason = swap.unit, f"the new files lack rights of the old ones: {lacking}" if lacking else swap.unit.reason
    if failed:
        matched = sum(rows for name, (_, rows) in swap.files.items() if name not in failed)
        reason = f"{len(failed)} files {CHANGED.replace('was', 'were')}, such as {failed[0]}, and are not replaced"
        unit = msgspec.structs.replace(unit, matched=matched, rows_after=unit.rows - matched)
    data = [state.size for state in look_at(unit.old).files if is_data(state.path_relative)]
    return msgspec.structs.replace(unit, reason=reason, files=len(data), bytes_after=sum(data), new=unit.old)


def set_figures(metastore: Metastore, table: Table, units: Mapping[str, Unit], now: float) -> int:
    """Sets counts and sizes of swapped parts, as far as they still exist. Returns the newest event after it."""
    with contextlib.suppress(ObjectNotFound):  # dropped concurrently: nothing shows the files
        things: list[Table | Partition] = []
        current = metastore.table(table.db, table.name)
        for part in parts_of(metastore, current, list(units)) if units else ():
            unit = units[part.name]
            if normal(part.location) == normal(unit.old):
                rows = -1 if is_transactional(current) else unit.rows_after
                things.append(purged(part, part.location, Figures(unit.files, rows, unit.bytes_after), now))
        if things:
            set_parts(metastore, current, things)
    return metastore.current_event_id()


def remove_new(unit: Unit) -> None:
    """Removes the directory of new files, which is empty after a swap. May run twice."""
    located(unit.new).remove_own_tree()
    remove_empty_sibling(unit.new)


def _move_unread(unit: Unit, now: float) -> None:
    """Moves what no reader reads of a part into its backup: it was not searched. Directories and files of jobs that may
    be running remain."""
    entries = dict[str, list[str]]()
    for name in look_at(unit.old).passed_over:
        entries.setdefault(_entry(name), []).append(name)
    for entry, names in entries.items():
        if skipped_directory(name_of(entry)) and now - _newest(join(unit.old, entry)) < RUNNING.total_seconds():
            continue
        source = located(join(unit.old, entry))
        if is_local(unit.old) or unit.old.startswith("hdfs:"):
            source.move(located(join(unit.aside, entry)))
            continue
        for name in names:
            carry(FileWork(unit.partition, name, join(unit.old, name), join(unit.aside, name), "", 0, 0))
            located(join(unit.old, name)).remove()


def _entry(name: str) -> str:
    """Returns the topmost directory of a path whose files no reader reads, or the path."""
    found = ""
    for each in name.split("/"):
        found = f"{found}/{each}" if found else each
        if skipped_directory(each):
            break
    return found


def _newest(place: str) -> float:
    return max((state.mtime_ns / 1e9 for _, state in files_at(place)), default=0.0)


# ---- after a kill ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReplacedFile:
    """The record of a replacement. state, checksum: of the old file; after: checksum of the new one."""

    state: FileState
    matched: int
    checksum: str
    after: str


def replaced_files(directory: RunDirectory, unit: Unit) -> dict[str, ReplacedFile]:
    """Returns the files of a part that its last attempt replaces, by name."""
    found: dict[str, ReplacedFile] = {}
    for table in directory.files():
        fits = pc.and_(pc.equal(table["table"], unit.table), pc.equal(table["partition"], unit.partition))
        if rows := table.filter(fits).to_pylist():
            found = {row["name"]: _file(row) for row in rows if row["checksum_after"] is not None}
    return found


def _file(row: dict[str, Any]) -> ReplacedFile:
    state = FileState(row["name"], row["size"], row["mtime_ns"], row["identity"])
    return ReplacedFile(state, row["matched"], row["checksum"], row["checksum_after"])


def carry_on(metastore: Metastore, directory: RunDirectory, unit: Unit, clock: Callable[[], float]) -> Unit:
    """Completes a swap that a kill interrupted after its first file; otherwise returns it as failed. May run twice."""
    found = replaced_files(directory, unit)
    swap = Swap(unit, {name: (each.state, each.matched) for name, each in found.items()})
    staged = unit.state == "VERIFIED" and unit.new != unit.old
    if staged and not any(is_replaced(work) for work in swap.works()):
        return unit.at("FAILED", clock, reason="the run was killed before the swap")
    failed: list[str] = []
    if staged:
        engine = LocalEngine(1)
        failed = [each.name for step in ("aside", "replace") for each in _run(step, [swap], engine) if each.error]
        _move_unread(unit, clock())
        _sync([swap])
    done = _done(swap, sorted(set(failed)), "")
    db, _, name = unit.table.partition(".")
    event = unit.event
    with contextlib.suppress(ObjectNotFound):
        event = set_figures(metastore, metastore.table(db, name), {unit.partition: done}, clock())
    if staged:
        remove_new(unit)
    reason = done.reason or "swapped before the run was killed"
    return done.at("EXHAUSTED" if failed else "DONE", clock, backup="kept", event=event, reason=reason)


# ---- undo ------------------------------------------------------------------------------------------------------------


def stage_backup(backup: Unit, recorded: Mapping[str, ReplacedFile], directory: RunDirectory, unit: Unit) -> Swap:
    """Links (or copies) the files of a backup into the new directory of an undo's unit, and records the files that
    they replace. Omits files that the table has again. Raises Refused if a file was changed since its replacement."""
    files, rows = dict[str, tuple[FileState, int]](), list[dict[str, Any]]()
    for name, was in recorded.items():
        current = join(unit.old, name)
        now = state_now(current)
        state = msgspec.structs.replace(now, path_relative=name) if now is not None else None
        checksum = checksum_at(current)[0] if state is not None else ""
        if checksum == was.checksum:
            continue
        if state is None or checksum != was.after:
            raise Refused(
                f"{current}: {'is missing' if state is None else 'has changed'} since the purge, so the old file might"
                " show rows twice, or rows that were removed since",
                hint="undo newer purges first; after other changes, copy the rows that you need from the backup",
                details={"backup": backup.aside},
            )
        carry(FileWork(unit.partition, name, join(backup.aside, name), join(unit.new, name), "", was.state.size, 0))
        files[name] = state, 0
        rows.append(unit.file_row(state, checksum=was.after, after=was.checksum))
    directory.write_files(rows)
    return Swap(unit, files)


def return_unread(backup: Unit, names: Iterable[str]) -> bool:
    """Copies what no reader reads from a backup to where it was. names: of the files that the table has again. Returns
    False if there is another file of such a name, so that the backup has the only copy. May run twice."""
    known, alone = set(names), True
    for name, _ in list(files_at(backup.aside)):
        if name in known:
            continue
        here, there = join(backup.aside, name), join(backup.old, name)
        if not located(there).exists():
            carry(FileWork(backup.partition, name, here, there, "", 0, 0))
        elif checksum_at(there) != checksum_at(here):
            alone = False
    return alone


def put_back(
    metastore: Metastore,
    table: Table,
    part: Part,
    backup: Backup,
    run: tuple[RunDirectory, PurgeRun],
    clock: Callable[[], float],
    check: Callable[[], None],
) -> Unit:
    """Replaces the files of a part by those of a backup; those that they replace are retained as trash, by the unit
    that it returns. Its `aside` is "" if the table has the backup's files already. The backup is removed unless it has
    the only copy of a file; then `retain` recycles it later.

    Raises Refused if the location, a file of it or of the backup has changed since. May run twice."""
    was, files = backup.unit, replaced_files(backup.directory, backup.unit)
    if lost := [name for name, each in files.items() if _checksum(join(was.aside, name)) != each.checksum]:
        raise Refused(
            f"{was.aside}: {len(lost)} files have changed or are missing, such as {lost[0]}",
            hint="another program has changed the backup: inspect it before you use it",
        )
    directory, of_run = run
    directory.write_run(of_run)
    rows, after = rows_of(part, was)
    unit = Unit(
        table=was.table,
        partition=part.name,
        state="PENDING",
        time=clock(),
        old=part.location,
        new=new_files_location(part.location, of_run.stamp),
        aside=new_location(part.location, of_run.stamp),
        rows=rows,
        rows_after=after,
        matched=max(0, rows - after),
    )
    directory.write_units([unit])
    check()
    swap = stage_backup(was, files, directory, unit)
    if swap.files:
        verified = Swap(unit.at("VERIFIED", clock), swap.files)
        directory.write_units([verified.unit])
        swaps = replace_parts(metastore, table, [part], [verified], LocalEngine(1), clock, check)
        if not swaps.units:
            directory.write_units([unit.at("FAILED", clock, reason=swaps.changed[part.name])])
            directory.write_run(msgspec.structs.replace(of_run, status="failed", ended=iso(clock())))
            raise Refused(f"{unit.name}: {swaps.changed[part.name]}", hint="run the same command again")
        (unit,) = swaps.units
        directory.write_units([unit.at("DONE", clock)])
    else:
        remove_new(unit)
        unit = msgspec.structs.replace(unit, aside="")
    if left := [name for name, each in files.items() if _checksum(join(part.location, name)) != each.checksum]:
        raise Refused(
            f"{unit.name}: {len(left)} files {CHANGED.replace('was', 'were')}, such as {left[0]}; the others are"
            " restored",
            hint="the backup still has them: copy the rows that you need",
            details={"backup": was.aside},
        )
    if return_unread(was, files):
        backup.set(backup="restored")
        located(was.aside).remove_own_tree()
        remove_empty_sibling(was.aside)
    return unit


def rows_of(part: Part, was: Unit) -> tuple[int, int]:
    """Returns the number of rows of a part without and with the rows of a backup's unit."""
    text = part.obj.parameters.get("numRows", "")
    rows = int(text) if text.isdecimal() else was.rows_after
    return rows, max(0, rows + was.rows - was.rows_after)


def _checksum(path: str) -> str:
    return checksum_at(path)[0] if located(path).exists() else ""


def brought_back(root: str, backup: Backup) -> int:
    """Restores the files of a backup that was recycled, entirely or by a killed retain. Returns their number, 0 if none
    was recycled. Raises FilesMissing if a file cannot be restored as it was."""
    before = recorded(backup)
    if backup.unit.backup == "kept" and not recycled_of(root, backup, before, look_at(backup.place)):
        return 0
    try:
        back = bring_back(root, None, job=PURGE, path=normal(backup.place), since=backup.swapped)
    except ObjectNotFound as error:
        raise FilesMissing(error.message, hint="check with `replicator cm find`") from error
    there = {state.path_relative: state.size for state in look_at(backup.place).files}
    lost = {
        name: "it is missing or has another size" for name, state in before.items() if there.get(name) != state.size
    }
    if lost := {**lost, **back.lost}:
        path, why = next(iter(lost.items()))
        raise FilesMissing(
            f"{len(lost)} files of {backup.place} no longer exist anywhere, such as {path}: {why}",
            hint="they have expired in $cmroot; an older backup may exist",
        )
    return back.files or len(set(back.there))
