"""Dropping partitions with their data: files to `$cmroot` first, metadata after, and a note between. Acts.

A crash between the two leaves a partition without files and the note `<cmroot>/retention/dropping-<id>`; the next run
finishes it. A partition that was changed meanwhile is left alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from cmroot.errors import UNREADABLE, FormatError
from cmroot.store.place import Place, normal
from cmroot.store.resolve import located
from replicator.core.model import Partition, Table, partition_name
from replicator.errors import MetastoreError, ObjectNotFound
from replicator.lifecycle.removal.audit import AuditLog
from replicator.lifecycle.retention.plan import PlannedItem
from replicator.metastore.client import Metastore

DIRECTORY = "retention"
_NOTE = "dropping-"


@dataclass
class Dropped:
    """count: partitions that went; changed: (item, why) for those that do not lie where the plan saw them; failed:
    those that the metastore refused to drop, and why."""

    count: int = 0
    changed: list[tuple[PlannedItem, str]] = field(default_factory=list)
    failed: list[tuple[PlannedItem, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Dropper:
    """The metadata half of a removal. root: `$cmroot`."""

    metastore: Metastore
    root: str
    audit: AuditLog

    def unchanged(self, items: Sequence[PlannedItem]) -> tuple[list[PlannedItem], list[tuple[PlannedItem, str]]]:
        """Those whose partition lies where the plan saw it, and the others with why not. A partition that is gone is
        neither."""
        kept, changed = [], []
        for item, partition in self._read(items):
            then, now = (normal(place) if place else "" for place in (item.removal.path, partition.location))
            if then == now:
                kept.append(item)
            else:
                changed.append((item, f"it lies at {now or 'no place'} by now"))
        return kept, changed

    def drop(self, items: Sequence[PlannedItem]) -> Dropped:
        """Drops the partitions that are where the plan saw them, in batches. Safe to run twice. Raises MetastoreError
        when the metastore went away; what it refuses is reported."""
        done = Dropped()
        kept, done.changed = self.unchanged(items)
        for name, of_table in groupby(kept, lambda item: item.removal.object):
            group = list(of_table)
            db, _, table = name.partition(".")
            try:
                self.metastore.drop_partitions(db, table, [item.removal.partition for item in group])
                self._replace(db, table, group)
            except ObjectNotFound:
                continue  # the table went meanwhile, and its partitions with it
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
        """Durable before the first file goes; `forget` it after the drop."""
        place = Place(self.root) / DIRECTORY / f"{_NOTE}{uuid.uuid4().hex}"
        place.write_bytes(msgspec.json.encode(list(items)))
        return str(place)

    def forget(self, place: str) -> None:
        Place(place).remove_own()

    def finish(self) -> Dropped:
        """Completes what a killed run had begun: drops the partitions whose files are all in `$cmroot`. Those whose
        files are still there are the new plan's. Under the lease of retention."""
        done = Dropped()
        directory = Place(self.root) / DIRECTORY
        for name in directory.list():
            if name.startswith(_NOTE):
                note = directory / name
                items = _decode(note.read_bytes(), str(note))
                dropped = self.drop([item for item in items if _is_empty(item.removal.path)])
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
        """Partitions of another table that take the place of the dropped ones, where it has them."""
        for replacement, group in groupby(items, lambda item: item.replacement):
            if replacement is not None:
                names = [item.removal.partition for item in group]
                other_db, other_table = replacement
                for batch in self.metastore.partitions(other_db, other_table, names):
                    self.metastore.add_partitions(db, table, batch)


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
            f"{place}: {error}", hint="drop by hand the partitions whose directories are empty, then remove this file"
        ) from error
