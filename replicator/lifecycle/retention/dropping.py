"""Dropping partitions with their data: files are moved to `$cmroot` first, then metadata is dropped, with a note
between. Acts.

A crash between the two leaves a partition without files and the note `<cmroot>/retention/dropping-<id>`; the next run
finishes it. A partition that was changed since is left unchanged. Partitions of transactional tables are dropped under
an exclusive lock, as Hive drops them; one that is in use is left to a later run.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from cmroot.errors import UNREADABLE, FormatError
from cmroot.store.place import Place, located, normal
from replicator.core.audit import AuditLog
from replicator.core.model import Part, Partition, Table, partition_name
from replicator.errors import MetastoreError, ObjectNotFound
from replicator.lifecycle.retention.plan import PlannedItem
from replicator.metastore.client import Metastore
from replicator.metastore.exclusive_locks import ExclusiveLocks, locked

DIRECTORY = "retention"
_NOTE = "dropping-"


@dataclass
class Dropped:
    """The result of a drop. count: partitions dropped; changed: (item, why) for those whose location differs from the
    plan; failed: those that the metastore refused to drop, and why."""

    count: int = 0
    changed: list[tuple[PlannedItem, str]] = field(default_factory=list)
    failed: list[tuple[PlannedItem, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Dropper:
    """The metadata part of a removal. root: `$cmroot`."""

    metastore: Metastore
    root: str
    audit: AuditLog

    def unchanged(self, items: Sequence[PlannedItem]) -> tuple[list[PlannedItem], list[tuple[PlannedItem, str]]]:
        """Returns the items whose partition is at the planned location, and the others with the reason. A partition
        that no longer exists is in neither."""
        kept, changed = [], []
        for item, partition in self._read(items):
            then, now = (normal(place) if place else "" for place in (item.removal.path, partition.location))
            if then == now:
                kept.append(item)
            else:
                changed.append((item, f"its location is now {now or 'unset'}"))
        return kept, changed

    def drop(self, items: Sequence[PlannedItem], check: Callable[[], None] = lambda: None) -> Dropped:
        """Drops the partitions that are at their planned location, in batches. check: called before each change, raises
        MetastoreError. May run twice. Raises MetastoreError if the metastore becomes unreachable; refusals are
        reported."""
        done = Dropped()
        kept, done.changed = self.unchanged(items)
        for name, of_table in groupby(kept, lambda item: item.removal.object):
            group = list(of_table)
            db, _, table = name.partition(".")
            try:
                check()
                self.metastore.drop_partitions(db, table, [item.removal.partition for item in group])
                self._replace(db, table, group)
            except ObjectNotFound:
                continue  # the table was dropped, and its partitions with it
            except MetastoreError as error:
                if error.transient:
                    raise
                done.failed += [(item, error.message) for item in group]
                continue
            done.count += len(group)
            for item in group:
                self.audit.changed(
                    name,
                    item.removal.reason,
                    what="partition",
                    partition=item.removal.partition,
                    path=item.removal.path,
                    detail={"change": "dropped"},
                )
        return done

    def note(self, items: Sequence[PlannedItem]) -> str:
        """Writes the note durably, before the first file is removed; call `forget` after the drop."""
        place = Place(self.root) / DIRECTORY / f"{_NOTE}{uuid.uuid4().hex}"
        place.write_bytes(msgspec.json.encode(list(items)))
        return str(place)

    def forget(self, place: str) -> None:
        Place(place).remove_own()

    def finish(self) -> Dropped:
        """Completes an interrupted drop: drops the partitions whose files are all in `$cmroot`. Those that still have
        files are part of the new plan. Requires the lease of retention."""
        done = Dropped()
        directory = Place(self.root) / DIRECTORY
        for name in directory.list():
            if name.startswith(_NOTE):
                note = directory / name
                items = _decode(note.read_bytes(), str(note))
                empty = [item for item in items if _is_empty(item.removal.path)]
                with locked(self.metastore, map(part_of, empty)) as locks:
                    free, used = parted(empty, locks)
                    dropped = self.drop(free, locks.check)
                dropped.failed += used
                done.count += dropped.count
                done.failed += dropped.failed
                if not dropped.failed:
                    note.remove_own()
        return done

    def _read(self, items: Sequence[PlannedItem]) -> Iterator[tuple[PlannedItem, Partition]]:
        for name, of_table in groupby(items, lambda item: item.removal.object):
            wanted = {item.removal.partition: item for item in of_table}
            db, _, table = name.partition(".")
            try:
                found = self.metastore.table(db, table)
                for batch in self.metastore.partitions(db, table, list(wanted)):
                    yield from ((wanted[key], each) for key, each in _named(found, batch) if key in wanted)
            except ObjectNotFound:
                continue

    def _replace(self, db: str, table: str, items: Sequence[PlannedItem]) -> None:
        """Adds the replacement table's partitions of the same values, where they exist."""
        for replacement, group in groupby(items, lambda item: item.replacement):
            if replacement is not None:
                names = [item.removal.partition for item in group]
                other_db, other_table = replacement
                for batch in self.metastore.partitions(other_db, other_table, names):
                    self.metastore.add_partitions(db, table, batch)


def part_of(item: PlannedItem) -> Part:
    db, _, table = item.removal.object.partition(".")
    return db, table, item.removal.partition


def parted(
    items: Iterable[PlannedItem], locks: ExclusiveLocks
) -> tuple[list[PlannedItem], list[tuple[PlannedItem, str]]]:
    """Returns the items that may be dropped, and those that could not be locked, with the reason."""
    free, used = list[PlannedItem](), list[tuple[PlannedItem, str]]()
    for item in items:
        if why := locks.unlocked.get(part_of(item)):
            used.append((item, why))
        else:
            free.append(item)
    return free, used


def _named(table: Table, batch: Iterable[Partition]) -> Iterator[tuple[str, Partition]]:
    for each in batch:
        yield partition_name(table.partition_keys, each.values), each


def _is_empty(path: str) -> bool:
    if not path or located(path).child() is None:
        return True
    try:
        return not located(path).children()
    except FileNotFoundError:
        return True


def _decode(data: bytes, place: str) -> list[PlannedItem]:
    try:
        return msgspec.json.decode(data, type=list[PlannedItem])
    except UNREADABLE as error:
        raise FormatError(
            f"{place}: {error}", hint="manually drop the partitions whose directories are empty, then remove this file"
        ) from error
