"""Carrying out a plan of retention: removing versions, dropping partitions, setting access. Acts.

Removing goes through `lifecycle.removal`: a last check of the live metastore and of legal holds, the audit record,
then `$cmroot`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec

from cmroot.errors import Error
from cmroot.store.emptied import remove_if_empty
from cmroot.store.place import is_local, local_path, normal, parent
from cmroot.store.resolve import located
from replicator.core.engine import LocalEngine
from replicator.lifecycle.removal.live import LiveLocations
from replicator.lifecycle.removal.removal import Refusal
from replicator.lifecycle.removal.remove import Remover
from replicator.lifecycle.retention.access import is_set, set_access
from replicator.lifecycle.retention.begun import AT_ONCE, Beginnings, Begun, begun
from replicator.lifecycle.retention.config.job_settings import Settings
from replicator.lifecycle.retention.datasets import explained
from replicator.lifecycle.retention.dropping import Dropped, Dropper
from replicator.lifecycle.retention.outcome import RetentionRun
from replicator.lifecycle.retention.plan import PlannedItem


@dataclass(frozen=True)
class Executor:
    """What carries out. job: the keys of the job file; dropper: None without a metastore; done: what is reported of
    it; beginnings: of which a killed run's are `dates` already."""

    job: Settings
    remover: Remover
    dropper: Dropper | None
    done: RetentionRun
    beginnings: Beginnings
    dates: Mapping[str, float]

    def carry_out(self, batch: Sequence[PlannedItem]) -> None:
        """What was judged and allowed: removes, drops, sets. Each is looked at once more. Safe to run twice."""
        went = self._remove([item for item in batch if item.access is None and not item.drops])
        self._prune(went)
        partitions = [item for item in batch if item.drops]
        if partitions:
            self._drop(partitions)
        for item in batch:
            if item.access is not None:
                self._set(item)

    def _remove(self, items: Sequence[PlannedItem]) -> list[PlannedItem]:
        """Those that went."""
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
        """Adds to `still` those that are as the plan saw them, and gives what lies in directories among them that are
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
        """None: there is nothing to say; text: why it failed."""
        if item.mtime is None:
            return None
        place = located(item.removal.path)
        try:
            now, found = place.child(), None
            if now is not None and now.is_directory and normal(item.removal.path) not in self.dates:
                found = begun(item.removal.path, item.mtime)
                now = place.child()  # what came while it was listed is not what the plan saw
        except (Error, OSError) as error:
            return explained(error)
        if now is not None and now.mtime != item.mtime:
            return Refusal(item.removal, "it was changed since it was listed")
        return found

    def _prune(self, gone: Sequence[PlannedItem]) -> None:
        """Directories that are empty now, up to the dataset's own."""
        if self.job.truth("gobblin.retention.delete.empty.directories", default=True):
            for item in gone:
                above = parent(item.removal.path)
                try:
                    _remove_empty_parents(item, self.remover.live)
                except (Error, OSError) as error:
                    self.done.fail(above, f"an emptied directory stays: {explained(error)}")

    def _drop(self, items: Sequence[PlannedItem]) -> None:
        dropper = self.dropper
        assert dropper  # partitions are found in a metastore only
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
            self.remover.live.refresh()  # the partitions' own references are gone
            self._prune(went)

    def count(self, dropped: Dropped) -> None:
        """Into the result."""
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
            pass  # gone since it was listed
        except (Error, OSError) as error:
            self.done.fail(path, explained(error))


def _remove_empty_parents(item: PlannedItem, live: LiveLocations) -> None:
    """Up to the dataset's own directory, which stays. A directory that something refers to stays, too.
    Raises what the metastore raises, and as `remove_if_empty`."""
    if not item.top:
        return
    top, above = (local_path(each) if is_local(each) else each for each in (item.top, parent(item.removal.path)))
    while above.startswith(top + "/") and live.blocking(above) is None:
        if not remove_if_empty(above):
            return
        above = parent(above)
