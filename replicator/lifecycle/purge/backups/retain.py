"""`replicator purge retain`: removes what purges have retained, after its retention time. Has side effects.

Recycles backups and directories replaced by restores, removes directories of swaps that were not executed, deletes ids
of runs without backups, and adopts rows added to a backup after the swap into their table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cmroot.errors import Error
from cmroot.store.place import Place, join, normal
from replicator.errors import ObjectNotFound
from replicator.lifecycle.purge.backups.backups import (
    Backup,
    Due,
    Late,
    OldVersion,
    backups,
    drop_version,
    due,
    late,
    old_versions,
    recorded,
    recycled_of,
)
from replicator.lifecycle.purge.options import RetainOptions
from replicator.lifecycle.purge.partitions import Look, look_at
from replicator.lifecycle.purge.rewrite.rewrite_task import FileWork, carry
from replicator.lifecycle.purge.run import settle
from replicator.lifecycle.purge.state import PURGE, runs
from replicator.lifecycle.purge.swapping import leftovers, locations_now, remove_empty_sibling, remove_leftovers
from replicator.lifecycle.removal.job import Job, Removals
from replicator.lifecycle.removal.removal import Judged, Removal, refuse_excess
from replicator.metastore.client import Metastore


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
                done.refused.append(_reported(removal, f"the emptied directory above it stays: {error}"))
        done.refused += [_reported(each.removal, each.why) for each in gone.refused]
        done.refused += [_reported(removal, why) for removal, why in gone.failed]
        done.files, done.bytes = gone.files, gone.bytes

    def finish(self) -> None:
        self.done.staging = remove_leftovers(self.root.place, self.metastore, self.live, self.check)
        self.check()
        _forget_ids(self.root.place)

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
            why = f"{len(what.came)} files came into it after the swap, and its table has gone elsewhere since"
            self.done.refused.append({**reported, "reason": "", "refused": why})
            return False
        self.done.adopted.append({**reported, "files": [state.path_relative for state in what.came], "to": there})
        if not self.rehearses:
            for state in what.came:
                place = state.path_relative
                carry(FileWork(unit.partition, place, join(backup.place, place), join(there, place), "", state.size, 0))
            self.remover.audit.changed(
                unit.table,
                f"{len(what.came)} files came after the swap of run {backup.directory.id}",
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


def _forget_ids(root: str) -> None:
    """Deletes the ids of runs without remaining backups, because ids are personal data, too."""
    for directory in runs(root):
        if directory.read_run().status == "running":
            continue
        if all(unit.backup in ("", "recycled") for unit in directory.units().values()):
            Place(directory.ids).remove_own_tree()
