"""Dropping partitions with their data: files are moved to `$cmroot` first, then metadata is dropped, with a note
between. Acts.

A crash between the two leaves a partition without files and the note `<cmroot>/retention/dropping-<id>`; the next run
finishes it. A partition that was changed since is left unchanged. Partitions of transactional tables are dropped under
an exclusive lock, as Hive drops them; one that is in use is left to a later run.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from threading import Event, Thread

import msgspec

from cmroot.errors import UNREADABLE, FormatError
from cmroot.store.place import Place, located, normal
from replicator.core.audit import AuditLog
from replicator.core.formats import is_transactional
from replicator.core.model import Partition, Table, partition_name
from replicator.errors import MetastoreError, ObjectNotFound
from replicator.lifecycle.retention.plan import PlannedItem
from replicator.metastore.client import Metastore

DIRECTORY = "retention"
BEAT = 10.0  # seconds between heartbeats of a lock
IN_USE = "it is in use: a query or a writer has a lock on it"
_NOTE = "dropping-"


@dataclass
class Dropped:
    """The result of a drop. count: partitions dropped; changed: (item, why) for those whose location differs from the
    plan; failed: those that the metastore refused to drop, and why."""

    count: int = 0
    changed: list[tuple[PlannedItem, str]] = field(default_factory=list)
    failed: list[tuple[PlannedItem, str]] = field(default_factory=list)


@dataclass
class Locked:
    """The items of a drop. items: those that may be dropped; used: partitions of transactional tables that are in
    use."""

    metastore: Metastore
    stack: ExitStack
    items: list[PlannedItem] = field(default_factory=list)
    used: list[PlannedItem] = field(default_factory=list)
    _locks: list[int] = field(default_factory=list)

    def lock(self, db: str, table: str, items: Sequence[PlannedItem]) -> None:
        """Locks partitions, without waiting: together, or, if one of them is in use, by halves."""
        lock = self.metastore.lock_partitions(db, table, [item.removal.partition for item in items])
        if lock is not None:
            self.stack.callback(self.metastore.unlock, lock)
            self._locks.append(lock)
            self.items += items
        elif len(items) == 1:
            self.used += items
        else:
            middle = len(items) // 2
            self.lock(db, table, items[:middle])
            self.lock(db, table, items[middle:])

    def check(self) -> None:
        """Raises MetastoreError if the server has ended a lock."""
        for lock in self._locks:
            self.metastore.keep_lock(lock)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Sends heartbeats while files are removed."""
        done = Event()
        thread = Thread(target=self._beat, args=(done,), name="locks", daemon=True)
        if self._locks:
            thread.start()
        try:
            yield
        finally:
            done.set()
            if self._locks:
                thread.join()

    def _beat(self, done: Event) -> None:
        while not done.wait(BEAT):
            with suppress(MetastoreError):  # `check` notices a lost lock
                self.check()


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

    @contextmanager
    def locked(self, items: Sequence[PlannedItem]) -> Iterator[Locked]:
        """Holds exclusive locks on the items' partitions of transactional tables. Other partitions need none."""
        with ExitStack() as stack:
            found = Locked(self.metastore, stack)
            for name, of_table in groupby(items, lambda item: item.removal.object):
                db, _, table = name.partition(".")
                group = list(of_table)
                if self._is_transactional(db, table):
                    found.lock(db, table, group)
                else:
                    found.items += group
            stack.enter_context(found.beating())
            yield found

    def _is_transactional(self, db: str, table: str) -> bool:
        try:
            return bool(is_transactional(self.metastore.table(db, table)))
        except ObjectNotFound:
            return False

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
                with self.locked([item for item in items if _is_empty(item.removal.path)]) as locked:
                    dropped = self.drop(locked.items, locked.check)
                dropped.failed += [(item, IN_USE) for item in locked.used]
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
