"""Execution of a retention plan: removes versions, drops partitions, sets access. Acts.

Removal uses `lifecycle.removal`: a last check of the live metastore and of legal holds, the audit record, then
`$cmroot`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby

import msgspec

from cmroot.errors import UNREADABLE, Error, FormatError
from cmroot.store.place import Place, is_local, local_path, located, normal, parent, remove_if_empty
from replicator.core.engine import LocalEngine
from replicator.core.model import Partition, Table, partition_name
from replicator.errors import MetastoreError, ObjectNotFound
from replicator.lifecycle.removal.audit import AuditLog
from replicator.lifecycle.removal.live import LiveLocations
from replicator.lifecycle.removal.removal import Refusal
from replicator.lifecycle.removal.remove import Remover
from replicator.lifecycle.retention.access import AT_ONCE, Beginnings, Begun, begun, is_set, set_access
from replicator.lifecycle.retention.config.config_store import Settings
from replicator.lifecycle.retention.datasets import explained
from replicator.lifecycle.retention.plan import PlannedItem, RetentionRun
from replicator.metastore.client import Metastore

# ---- dropping --------------------------------------------------------------------------------------------------------
# Dropping partitions with their data: files are moved to `$cmroot` first, then metadata is dropped, with a note
# between. Acts.
#
# A crash between the two leaves a partition without files and the note `<cmroot>/retention/dropping-<id>`; the next run
# finishes it. A partition that was changed since is left unchanged.


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
                changed.append((item, f"it lies at {now or 'no place'} by now"))
        return kept, changed

    def drop(self, items: Sequence[PlannedItem]) -> Dropped:
        """Drops the partitions that are at their planned location, in batches. May run twice. Raises MetastoreError if
        the metastore becomes unreachable; refusals are reported."""
        done = Dropped()
        kept, done.changed = self.unchanged(items)
        for name, of_table in groupby(kept, lambda item: item.removal.object):
            group = list(of_table)
            db, _, table = name.partition(".")
            try:
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
            f"{place}: {error}", hint="drop by hand the partitions whose directories are empty, then remove this file"
        ) from error


# ---- carry out -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Executor:
    """The executor of a plan. job: the keys of the job file; dropper: None without a metastore; done: the report;
    beginnings: its notes of interrupted removals are in `dates` already."""

    job: Settings
    remover: Remover
    dropper: Dropper | None
    done: RetentionRun
    beginnings: Beginnings
    dates: Mapping[str, float]

    def carry_out(self, batch: Sequence[PlannedItem]) -> None:
        """Carries out allowed items: removes, drops, sets access. Each is checked once more. May run twice."""
        went = self._remove([item for item in batch if item.access is None and not item.drops])
        self._prune(went)
        partitions = [item for item in batch if item.drops]
        if partitions:
            self._drop(partitions)
        for item in batch:
            if item.access is not None:
                self._set(item)

    def _remove(self, items: Sequence[PlannedItem]) -> list[PlannedItem]:
        """Removes versions. Returns those that were removed."""
        still: list[PlannedItem] = []
        note = self.beginnings.note(self._unchanged(items, still))
        removed = self.remover.remove(item.removal for item in still)
        for each in removed.refused:
            self.done.refuse(each)
        for removal, why in removed.failed:
            self.done.fail(removal.path, why)
        if note and not removed.failed:
            note.remove_own()
        self.done.files += removed.files
        self.done.bytes += removed.bytes
        gone = {each.path for each in removed.removals}
        went = [item for item in still if item.removal.path in gone]
        self.done.removed += len(went)
        return went

    def _unchanged(self, items: Sequence[PlannedItem], still: list[PlannedItem]) -> Iterator[Begun]:
        """Adds the items that are as planned to `still`, and yields the contents of directories among them that are
        dated by their modification time."""
        for item, found in zip(items, LocalEngine(AT_ONCE).run(self._looked_at, items), strict=True):
            if isinstance(found, Refusal):
                self.remover.audit.refused([found])
                self.done.refuse(found)
            elif isinstance(found, str):
                self.done.fail(item.removal.path, found)
            else:
                still.append(item)
                if found:
                    yield found

    def _looked_at(self, item: PlannedItem) -> Begun | Refusal | str | None:
        """Checks an item: returns a refusal if changed, a text if unreadable, the contents of a dated directory."""
        if item.mtime is None:
            return None
        place = located(item.removal.path)
        try:
            now, found = place.child(), None
            if now is not None and now.is_directory and normal(item.removal.path) not in self.dates:
                found = begun(item.removal.path, item.mtime)
                now = place.child()  # changes during the listing are not in the plan
        except (Error, OSError) as error:
            return explained(error)
        if now is not None and now.mtime != item.mtime:
            return Refusal(item.removal, "it was changed since it was listed")
        return found

    def _prune(self, gone: Sequence[PlannedItem]) -> None:
        """Removes directories that are empty now, up to the dataset's own."""
        if self.job.truth("gobblin.retention.delete.empty.directories", default=True):
            for item in gone:
                above = parent(item.removal.path)
                try:
                    _remove_empty_parents(item, self.remover.live)
                except (Error, OSError) as error:
                    self.done.fail(above, f"an emptied directory stays: {explained(error)}")

    def _drop(self, items: Sequence[PlannedItem]) -> None:
        dropper = self.dropper
        assert dropper  # only a metastore has partitions
        kept, changed = dropper.unchanged(items)
        with_data = [item for item in kept if not item.keeps_data]
        note = dropper.note(with_data) if with_data else ""
        went = self._remove(with_data)
        dropped = dropper.drop([*(item for item in kept if item.keeps_data), *went])
        if note and not dropped.failed:
            dropper.forget(note)
        self.count(dropped)
        for item, why in dropped.failed:
            self.remover.audit.failed(item.removal, why)
        refusals = [Refusal(item.removal, why) for item, why in chain(changed, dropped.changed)]
        self.remover.audit.refused(refusals)
        for each in refusals:
            self.done.refuse(each)
        if went:
            self.remover.live.refresh()  # the partitions' own references no longer exist
            self._prune(went)

    def count(self, dropped: Dropped) -> None:
        """Adds the drops to the report."""
        self.done.dropped += dropped.count
        for item, why in dropped.failed:
            self.done.fail(item.removal.name, why)

    def _set(self, item: PlannedItem) -> None:
        assert item.access
        path = item.removal.path
        try:
            if not is_set(path, item.access):
                set_access(path, item.access)
                detail = {key: value for key, value in msgspec.structs.asdict(item.access).items() if value}
                self.remover.audit.changed(
                    item.removal.object, item.removal.reason, what="access", path=path, detail=detail
                )
                self.done.access += 1
        except FileNotFoundError:
            pass  # removed since it was listed
        except (Error, OSError) as error:
            self.done.fail(path, explained(error))


def _remove_empty_parents(item: PlannedItem, live: LiveLocations) -> None:
    """Removes empty directories above an item, up to the dataset's own, which is retained, as are referenced
    directories. Raises the errors of the metastore, and as `remove_if_empty`."""
    if not item.top:
        return
    top, above = (local_path(each) if is_local(each) else each for each in (item.top, parent(item.removal.path)))
    while above.startswith(top + "/") and live.blocking(above) is None:
        if not remove_if_empty(above):
            return
        above = parent(above)
