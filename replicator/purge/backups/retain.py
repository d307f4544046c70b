"""`replicator purge retain`: what purges leave behind goes when its time has come. Acts.

Backups and what restores replaced are recycled into `$cmroot`; directories of swaps that never were are removed; ids of
runs that have nothing left are forgotten; and rows that came into a backup after the swap are brought to their table.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from cmroot.errors import Error
from cmroot.lease import acquire
from cmroot.root import ChangeRoot
from cmroot.store.place import join, normal, store_for
from replicator.core.engine import AutoEngine
from replicator.errors import ObjectNotFound
from replicator.metastore.checked import checked
from replicator.metastore.client import Metastore
from replicator.purge.backups.backups import Backup, Due, Late, backups, due, late, recorded
from replicator.purge.backups.old_versions import OldVersion, drop_version, old_versions
from replicator.purge.leftovers import leftovers, remove_empty_sibling, remove_leftovers
from replicator.purge.options import RetainOptions
from replicator.purge.parts import look_at
from replicator.purge.rewrite.files import FileWork, carry
from replicator.purge.run import settle
from replicator.purge.state import PURGE, runs
from replicator.purge.swapping import locations_now
from replicator.removal.audit import AuditLog, begin_audit
from replicator.removal.live import LiveLocations
from replicator.removal.removal import Removal, refuse_excess
from replicator.removal.remove import Remover
from replicator.removal.report import Removals


@dataclass
class Retained(Removals):
    """removed: backups, trash and staging that went, with reasons; refused: what had to stay; adopted: late files that
    were brought to their table, which have not been purged. files, bytes: recycled."""

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

    @property
    def is_whole(self) -> bool:
        """Nothing had to stay, and nothing came back that is not purged."""
        return not (self.refused or self.adopted)


def retain(
    metastore: Metastore,
    root: ChangeRoot,
    options: RetainOptions,
    *,
    engines: AutoEngine,
    dry_run: bool = False,
    clock: Callable[[], float] = clocks.time,
) -> Retained:
    """Safe to run twice. A dry run writes nothing. Raises Refused when more would go than the limits allow, LeaseHeld
    while another purge is at work."""
    place = root.place
    with ExitStack() as stack:
        if not dry_run:
            store_for(place).mkdirs(join(place, PURGE))
            lease = stack.enter_context(acquire(join(place, PURGE), "purge retain", now=clock))
            metastore = checked(metastore, lease.check)
            for directory in runs(place):
                if (run := directory.read_run()).status == "running":
                    settle(metastore, directory, run, clock)
        check = lease.check if not dry_run else lambda: None
        live = stack.enter_context(LiveLocations(metastore))
        audit = begin_audit(place, PURGE, clock=clock)
        remover = Remover(place, audit, live, options.limits, engines, clock, check=check)
        done = Retained("planned" if dry_run else "done", "" if dry_run else audit.run)
        known = [each for each in backups(place) if each.directory.read_run().request["metastore"] == metastore.uri]
        done.backups = sum(each.unit.backup == "kept" for each in known)
        wanted: dict[str, tuple[Removal, Due | OldVersion]] = {}
        for each in due(known, options, clock()):
            look = look_at(each.backup.place)
            if look.missing:
                _forget(each.backup, dry_run)
                continue
            what = late(look, recorded(each.backup))
            check()
            if (what.came or what.gone) and not _adopted(metastore, each.backup, what, done, audit, dry_run):
                continue
            size = sum(state.size for state in look.files)
            removal = _removal(each, len(look.files), size)
            wanted[removal.path] = removal, each
        for version in old_versions(metastore, options, clock()):
            wanted.setdefault(version.removal.path, (version.removal, version))
        judged = remover.look(removal for removal, _ in wanted.values())
        refuse_excess(judged, options.limits, max(done.backups, len(wanted)), "backups")
        if dry_run:
            done.removed = [_reported(removal) for removal in judged.allowed]
            done.refused = [_reported(each.removal, each.why) for each in judged.refused]
            done.files, done.bytes = sum(each.files for each in judged.allowed), judged.bytes
            done.staging = list(leftovers(place, metastore, lambda: live))
            return done
        gone = remover.remove(removal for removal, _ in wanted.values())
        for removal in gone.removals:
            check()
            done.removed.append(_reported(removal))
            _record(metastore, wanted[removal.path][1], audit)
            try:
                remove_empty_sibling(removal.path)
            except (Error, OSError) as error:
                done.refused.append(_reported(removal, f"the emptied directory above it stays: {error}"))
        done.refused += [_reported(each.removal, each.why) for each in gone.refused]
        done.refused += [_reported(removal, why) for removal, why in gone.failed]
        done.files, done.bytes = gone.files, gone.bytes
        done.staging = remove_leftovers(place, metastore, lambda: live, check)
        check()
        _forget_ids(place)
    if done.refused:
        done.status = "partial"
    return done


def _removal(each: Due, files: int, size: int) -> Removal:
    unit = each.backup.unit
    return Removal(
        path=each.backup.place,
        what="trash" if each.backup.trash else "backup",
        object=unit.table,
        partition=unit.partition,
        reason=each.reason,
        files=files,
        bytes=size,
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


def _record(metastore: Metastore, gone: Due | OldVersion, audit: AuditLog) -> None:
    if isinstance(gone, Due):
        gone.backup.set(backup="recycled", recycled_by=audit.run)
    else:
        drop_version(metastore, gone)


def _forget(backup: Backup, dry_run: bool) -> None:
    """Somebody has removed it: `$cmroot` may have it, this run knows nothing of it."""
    if not dry_run:
        backup.set(backup="recycled")


def _adopted(metastore: Metastore, backup: Backup, what: Late, done: Retained, audit: AuditLog, dry_run: bool) -> bool:
    """Late files are linked to where their table is now, when nothing else became of either. False: it stays."""
    unit = backup.unit
    reported = {"object": unit.table, "partition": unit.partition, "path": backup.place, "what": "backup"}
    if what.gone:
        why = f"{len(what.gone)} of its files changed after the swap, such as {what.gone[0]}: a writer replaced them"
        done.refused.append({**reported, "reason": "", "refused": why})
        return False
    db, _, name = unit.table.partition(".")
    try:
        now = locations_now(metastore, metastore.table(db, name), [unit.partition])
    except ObjectNotFound:
        now = {}
    there = now.get(unit.partition)
    if there is None or normal(there) != normal(unit.new):
        why = f"{len(what.came)} files came into it after the swap, and its table has gone elsewhere since"
        done.refused.append({**reported, "reason": "", "refused": why})
        return False
    for state in what.came:
        place = state.path_relative
        work = FileWork(unit.partition, place, join(backup.place, place), join(there, place), "", state.size, 0)
        if not dry_run:
            carry(work)
    done.adopted.append({**reported, "files": [state.path_relative for state in what.came], "to": there})
    if not dry_run:
        audit.changed(
            unit.table,
            f"{len(what.came)} files came after the swap of run {backup.directory.id}",
            what="adopted",
            partition=unit.partition,
            path=there,
        )
    return True


def _forget_ids(root: str) -> None:
    """Of runs that have no backup left: ids are about people, too."""
    for directory in runs(root):
        if directory.read_run().status == "running":
            continue
        if all(unit.backup in ("", "recycled") for unit in directory.units().values()):
            store_for(root).remove_tree(directory.ids)
