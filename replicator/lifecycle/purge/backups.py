"""Backups: the files that purges and restores have replaced, according to the records of the runs. Reads only, but for
`forget_ids` and `restore_contents`.

A backup is complete if its files are those recorded before the swap. Of runs of earlier releases it is the directory at
the table's former location: files that a writer started earlier has added since are late, and their rows in no table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
import pyarrow.compute as pc

from cmroot.keep.versions import restore_file
from cmroot.pins import iso
from cmroot.store.checksum import checksum_at
from cmroot.store.listing import FileState
from cmroot.store.place import Place, join, located, normal, parent, remove_if_empty
from replicator.core.audit import REMOVED, Removal, read_audit
from replicator.core.model import Table
from replicator.core.not_replicated import Rows
from replicator.core.text import time_text
from replicator.errors import Error, FilesMissing, ObjectNotFound, Refused
from replicator.lifecycle.purge.options import RetainOptions
from replicator.lifecycle.purge.state import PURGE, RunDirectory, Unit, runs
from replicator.lifecycle.purge.table_files import Look, Part, is_data, look_at, parts_of
from replicator.metastore.client import Metastore


@dataclass(frozen=True)
class Backup:
    """A swapped-out directory. directory: of its run; unit: its last state. trash: it was replaced by a restore."""

    directory: RunDirectory
    unit: Unit
    trash: bool = False

    @property
    def place(self) -> str:
        return self.unit.aside or self.unit.old

    @property
    def swapped(self) -> str:
        """The time of the swap, in ISO 8601, rounded down to the second so that it is not after any later event."""
        return iso(int(self.unit.time))

    def set(self, **changes: object) -> Backup:
        """Records a new state of the backup."""
        unit = msgspec.structs.replace(self.unit, **changes)
        self.directory.write_units([unit])
        return Backup(self.directory, unit, self.trash)


def backups(root: str) -> Iterator[Backup]:
    """Yields all backups ever created, oldest run first, with their current states."""
    for directory in runs(root):
        trash = directory.is_restore
        for unit in directory.units().values():
            if unit.backup not in ("", "none"):
                yield Backup(directory, unit, trash)


def purged_sizes(root: str, table: str) -> dict[str, tuple[int, int]]:
    """Returns the files of data and their bytes after the last purge or restore of each part of a table ("db.table"),
    by name. Includes a swap that runs: the metastore has its figures before its end is recorded."""
    units = (unit for directory in runs(root) for unit in directory.units().values() if unit.table == table)
    known = (unit for unit in units if unit.backup or unit.state == "VERIFIED")
    return {unit.partition: (unit.files, unit.bytes_after) for unit in known}


@dataclass
class BackupList(Rows):
    """A list of backups, oldest run first, with their current states."""

    listed = "backups"
    columns = ("table", "partition", "path", "state", "time", "run", "rows", "rows_erased", "trash")
    status: str = "listed"
    backups: list[dict[str, Any]] = field(default_factory=list)


def list_backups(root: str, table: str | None = None) -> BackupList:
    """Returns the backups of a table ("db.table"), or all."""
    rows = [
        {
            "table": each.unit.table,
            "partition": each.unit.partition,
            "path": each.place,
            "state": each.unit.backup,
            "time": time_text(each.unit.time),
            "run": each.directory.id,
            "rows": each.unit.rows,
            "rows_erased": each.unit.matched,
            "trash": each.trash,
        }
        for each in backups(root)
        if table is None or each.unit.table == table.lower()
    ]
    return BackupList(backups=rows)


def recorded(backup: Backup) -> dict[str, FileState]:
    """Returns the files that a backup had when it was swapped out, by name, except files that readers do not read: the
    replaced ones, or those of the entire directory (`Unit.aside`)."""
    found: dict[str, FileState] = {}
    for table in backup.directory.files():
        fits = pc.and_(pc.equal(table["table"], backup.unit.table), pc.equal(table["partition"], backup.unit.partition))
        if backup.unit.aside:
            others = pc.is_null(table["checksum_after"])
        else:
            others = pc.and_(pc.equal(table["matched"], 0), pc.is_valid(table["checksum"]))
        rows = table.filter(pc.and_not(fits, others)).to_pylist()
        if rows:  # a later attempt replaces the rows of an earlier one
            found = {row["name"]: FileState(row["name"], row["size"], row["mtime_ns"], row["identity"]) for row in rows}
    return found


def recycled_of(root: str, backup: Backup, before: Mapping[str, FileState], look: Look) -> set[str]:
    """Returns the names of files (before: as recorded) that are in `$cmroot` and no longer in the backup: of a retain
    killed while recycling file by file. Only since its swap: the location may have been a backup before."""
    missing = before.keys() - {state.path_relative for state in look.files}
    if not missing:
        return set()
    rows = read_audit(root, job=PURGE, path=normal(backup.place), outcome=REMOVED, since=backup.swapped)
    gone = {normal(row.path) for row in rows if row.what == "file"}
    return {name for name in missing if join(normal(backup.place), name) in gone}


@dataclass(frozen=True)
class Late:
    """Data files added to a backup after the swap; `gone`: recorded files that were changed or removed."""

    came: tuple[FileState, ...]
    gone: tuple[str, ...]


def late(look: Look, before: Mapping[str, FileState]) -> Late:
    """Compares a listing with the recorded files. Pure."""
    now = {state.path_relative: state for state in look.files}
    came = tuple(state for name, state in now.items() if name not in before and is_data(name) and state.size)
    gone = tuple(name for name, state in before.items() if now.get(name) != state)
    return Late(came, gone)


@dataclass(frozen=True)
class Due:
    """A backup to be recycled, and the reason."""

    backup: Backup
    reason: str


def due(known: list[Backup], options: RetainOptions, now: float) -> list[Due]:
    """Returns the backups beyond policy. Pure. The newest `versions` of each partition are retained while they are
    younger than `days`; backups younger than `readers` are always retained."""
    found = []
    by_part: dict[tuple[str, str, bool], list[Backup]] = {}
    for each in known:
        if each.unit.backup == "kept":
            by_part.setdefault((*each.unit.key, each.trash), []).append(each)
    for several in by_part.values():
        several.sort(key=lambda each: -each.unit.time)
        for index, each in enumerate(several):
            age = timedelta(seconds=max(0.0, now - each.unit.time))
            limit = options.trash if each.trash else options.days
            if age < options.readers:
                continue
            if not each.trash and index >= options.versions:
                found.append(Due(each, f"{index} newer backups of it are kept; the limit is {options.versions}"))
            elif age >= limit:
                found.append(Due(each, f"it is {_days(age)} old; the limit is {_days(limit)}"))
    return found


def _days(age: timedelta) -> str:
    return f"{age.total_seconds() / 86400:.1f} days"


def refuse_changed(backup: Backup) -> None:
    """Raises Refused if files of a backup, a directory, have changed or are missing."""
    if gone := late(look_at(backup.place), recorded(backup)).gone:
        raise Refused(
            f"{backup.place}: {len(gone)} files have changed or are missing, such as {gone[0]}",
            hint="a writer has changed the backup: inspect it before you use it",
        )


def matched_at(known: Iterable[Backup], part: Part) -> int:
    """Returns the number of erased rows that a restore brought back, if the part is at that location."""
    here = normal(part.location)
    return next(
        (each.unit.matched for each in known if each.unit.backup == "restored" and normal(each.place) == here), 0
    )


def rows_in(part: Part) -> int:
    """Returns the number of rows according to the metastore; 0 if it is unknown."""
    text = part.obj.parameters.get("numRows", "")
    return int(text) if text.isdecimal() else 0


def forget_ids(root: str) -> None:
    """Deletes the ids of runs without remaining backups, and those that killed runs have found: personal data, too."""
    for directory in runs(root):
        if directory.read_run().status == "running":
            continue
        for name in (directory.matched, join(directory.place, "found")):
            Place(name).remove_own_tree()
        if all(unit.backup in ("", "recycled", "none") for unit in directory.units().values()):
            Place(directory.ids).remove_own_tree()


# ---- dropped partitions ----------------------------------------------------------------------------------------------
# What a partition had that a purge has dropped, and its files from `$cmroot`.


def restore_contents(root: str, unit: Unit, contents: Mapping[str, tuple[str, int]], top: str) -> None:
    """Restores files of a partition; those that it has restored are removed again if one cannot be."""
    written = list[str]()
    try:
        for name, (checksum, size) in contents.items():
            place = join(unit.old, name)
            if not located(place).exists():
                restore_file(root, checksum, size, place)
                written.append(place)
            elif checksum_at(place) != (checksum, size):
                raise Refused(f"{place} is another file than the partition had", hint="move it away, and undo again")
    except Error as error:
        for place in written:
            located(place).remove()
        if remove_if_empty(unit.old):
            remove_empty_above(unit.old, top)
        if isinstance(error, Refused):
            raise
        raise FilesMissing(f"{unit.name}: {place} cannot be restored: {error.message}", hint=error.hint) from error


def contents_of(backup: Backup) -> dict[str, set[tuple[str, int]]]:
    """Returns the contents, as (checksum, size), of all files that a dropped partition had, by name."""
    unit, found = backup.unit, dict[str, set[tuple[str, int]]]()
    for table in backup.directory.files():
        fits = pc.and_(pc.equal(table["table"], unit.table), pc.equal(table["partition"], unit.partition))
        for row in table.filter(pc.and_(fits, pc.is_valid(table["checksum"]))).to_pylist():
            found.setdefault(row["name"], set()).add((row["checksum"], row["size"]))
    return found


def remove_empty_above(place: str, top: str) -> None:
    """Removes the directories between a partition and its table that have no other partition: they may name the id."""
    above = parent(normal(place))
    while above.startswith(f"{normal(top)}/") and remove_if_empty(above):
        above = parent(above)


# ---- old versions ----------------------------------------------------------------------------------------------------
# Finds backup, staging and trash tables that Gobblin compliance has left in a metastore, by their exact names.
#
# `<db>__<table>_backup_<13 digits>`: the entire name is parsed. The old tool searched for a substring and could match
# another database's table.


_NAME = re.compile(r"(?P<db>.+?)__(?P<table>.+)_(?P<kind>backup|staging|trash)_(?P<stamp>\d{13})")


@dataclass(frozen=True)
class Name:
    """The parsed name of a version: its table, its kind, and when it was created, in seconds since 1970."""

    db: str
    table: str
    kind: str
    time: float


@dataclass(frozen=True)
class OldVersion:
    """One partition of a version that is beyond policy."""

    table: Table
    part: Part
    removal: Removal


def parse_name(name: str) -> Name | None:
    """Parses the name of a table. Returns None if it is not a version."""
    match = _NAME.fullmatch(name)
    return Name(match["db"], match["table"], match["kind"], int(match["stamp"]) / 1000) if match else None


def old_versions(metastore: Metastore, options: RetainOptions, now: float) -> Iterator[OldVersion]:
    """Yields the versions beyond policy, as in `backups.due`; staging is removed at the age limit of trash."""
    for db in metastore.database_names():
        try:
            named = [(name, parse_name(name)) for name in metastore.table_names(db)]
            versions = [(name, parsed) for name, parsed in named if parsed]
            tables = {table.name: table for table in metastore.tables(db, [name for name, _ in versions])}
        except ObjectNotFound:  # dropped concurrently
            continue
        backups: dict[tuple[str, str], list[float]] = {}
        for _, parsed in versions:
            if parsed.kind == "backup":
                backups.setdefault((parsed.db, parsed.table), []).append(parsed.time)
        for name, parsed in versions:
            newer = sum(time > parsed.time for time in backups.get((parsed.db, parsed.table), ()))
            if name in tables and (why := _why(parsed, newer, options, now)):
                for part in parts_of(metastore, tables[name]):
                    yield OldVersion(tables[name], part, _removal(tables[name], part, parsed, why))


def _why(name: Name, newer: int, options: RetainOptions, now: float) -> str:
    age = timedelta(seconds=now - name.time)
    said = f"{age.total_seconds() / 86400:.1f} days old"
    if age < options.readers:
        return ""
    if name.kind != "backup":
        return f"{name.kind} of the old tool, {said}" if age >= options.trash else ""
    if newer >= options.versions:
        return f"backup of the old tool with {newer} newer ones"
    return f"backup of the old tool, {said}" if age >= options.days else ""


def _removal(table: Table, part: Part, name: Name, why: str) -> Removal:
    look = look_at(part.location)
    return Removal(
        path=part.location,
        what=name.kind,
        object=f"{table.db}.{table.name}",
        partition=part.name,
        reason=why,
        files=len(look.files),
        bytes=sum(state.size for state in look.files),
        drops=True,
    )


def drop_version(metastore: Metastore, version: OldVersion) -> None:
    """Drops a version's metadata after its data are recycled; the last partition's with the table. May run twice."""
    db, name = version.table.db, version.table.name
    try:
        if version.part.name:
            metastore.drop_partitions(db, name, [version.part.name])
            if metastore.partition_names(db, name):
                return
        metastore.drop_table(db, name)
    except ObjectNotFound:
        return
