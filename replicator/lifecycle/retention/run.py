"""A run of retention: plans every dataset, checks the complete plan, then removes, drops and sets access."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import ClassVar

import msgspec

from cmroot.errors import Error
from cmroot.log.captured import segments
from cmroot.store.place import Place, is_local, local_path, located, normal, parent, remove_if_empty
from replicator.core.audit import Refusal
from replicator.core.engine import LocalEngine
from replicator.lifecycle.removal.job import BATCH, Job, Remover, measured
from replicator.lifecycle.removal.live import LiveLocations
from replicator.lifecycle.removal.removal import Limits, forbidden, read_holds, refuse_counts
from replicator.lifecycle.retention.access import AT_ONCE, Beginnings, Begun, begun, is_set, set_access
from replicator.lifecycle.retention.config_store import Settings
from replicator.lifecycle.retention.datasets import Dataset, Failed, explained, find_datasets
from replicator.lifecycle.retention.dropping import DIRECTORY, Dropped, Dropper, part_of, parted
from replicator.lifecycle.retention.job_configuration import JobFile
from replicator.lifecycle.retention.past_states import Expirer
from replicator.lifecycle.retention.plan import DatasetPlan, PlannedItem, Planner, RetentionPlan, RetentionRun, Spool
from replicator.metastore.events.scope import captured_databases
from replicator.metastore.exclusive_locks import locked

# ---- carry out -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Executor:
    """The executor of a plan. job: the keys of the job file; dropper, expirer: None without a metastore; done: the
    report; beginnings: its notes of interrupted removals are in `dates` already."""

    job: Settings
    remover: Remover
    dropper: Dropper | None
    expirer: Expirer | None
    done: RetentionRun
    beginnings: Beginnings
    dates: Mapping[str, float]

    def carry_out(self, batch: Sequence[PlannedItem]) -> None:
        """Carries out allowed items: removes, drops, sets access. Each is checked once more. May run twice."""
        went = self._remove(
            [item for item in batch if item.access is None and not item.drops and item.snapshot is None]
        )
        self._prune(went)
        partitions = [item for item in batch if item.drops]
        if partitions:
            self._drop(partitions)
        if states := [item for item in batch if item.snapshot is not None]:
            self._expire(states)
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
            return Refusal(item.removal, "it has changed since it was listed")
        return found

    def _prune(self, gone: Sequence[PlannedItem]) -> None:
        """Removes directories that are empty now, up to the dataset's own."""
        if self.job.truth("gobblin.retention.delete.empty.directories", default=True):
            for item in gone:
                above = parent(item.removal.path)
                try:
                    _remove_empty_parents(item, self.remover.live)
                except (Error, OSError) as error:
                    self.done.fail(above, f"an emptied directory was not removed: {explained(error)}")

    def _drop(self, items: Sequence[PlannedItem]) -> None:
        dropper = self.dropper
        assert dropper  # only a metastore has partitions
        with locked(dropper.metastore, map(part_of, items)) as locks:
            free, used = parted(items, locks)
            kept, changed = dropper.unchanged(free)
            with_data = [item for item in kept if not item.keeps_data]
            note = dropper.note(with_data) if with_data else ""
            went = self._remove(with_data)
            dropped = dropper.drop([*(item for item in kept if item.keeps_data), *went], locks.check)
            if note and not dropped.failed:
                dropper.forget(note)
        dropped.failed += used
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

    def _expire(self, items: Sequence[PlannedItem]) -> None:
        assert self.expirer
        expired = self.expirer.expire(items)
        self.done.expired += expired.count
        for item, why in expired.failed:
            self.remover.audit.failed(item.removal, why)
        for name, why in dict.fromkeys((item.removal.name, why) for item, why in expired.failed):
            self.done.fail(name, why)

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


UNNAMED = 20  # names of a dataset that are not UTF-8 and are listed individually
NO_EFFECT = {
    "gobblin.retention.skip.trash": "everything is moved to $cmroot",
    "gobblin.retention.delete.as.owner": "files are moved by the user that runs this",
    "gobblin.retention.hdfs.calls.per.second.limit": "it never had any",
    "gobblin.trash": "everything is moved to $cmroot",
    "trash.class": "it never had any",
}
"""Keys of Gobblin without effect here, and why; a report lists those that are set."""


@dataclass(kw_only=True)
class Retention(Job[list[PlannedItem], RetentionRun]):
    """The retention job. job_file: the datasets and their policies. prefix: of absolute paths of the configuration.
    tell: called with each item of a rehearsal, which is then not in the report. grace: the duration of the longest
    write to a Delta table."""

    name: ClassVar[str] = DIRECTORY
    purpose: ClassVar[str] = DIRECTORY

    job_file: JobFile
    prefix: str | None = None
    grace: timedelta = timedelta(hours=2)
    tell: Callable[[PlannedItem], None] | None = None

    @property
    def guard(self) -> Limits:
        stores = (self.job_file.store.place,) if self.job_file.store else ()
        return replace(self.limits, protected=(*self.limits.protected, self.root.place, *stores))

    def report(self) -> RetentionRun:
        kind = RetentionPlan if self.rehearses else RetentionRun
        return kind(databases=captured_databases(segments(self.root.place)))

    @contextmanager
    def planned(self) -> Iterator[None]:
        """Plans and checks everything before anything is removed, so that a limit refuses the run as a whole."""
        dropper = Dropper(self.metastore, self.root.place, self.remover.audit) if self.metastore else None
        about = self.live, self.runtime.engines, self.remover.audit, self.remover.check, self.runtime.clock
        expirer = Expirer(self.metastore, *about, self.grace) if self.metastore else None
        self._beginnings = Beginnings(Place(self.root.place) / DIRECTORY)
        self._dates = self._beginnings.dates()
        self._executor = Executor(
            self.job_file.settings, self.remover, dropper, expirer, self.done, self._beginnings, self._dates
        )
        if dropper and not self.rehearses:
            self._executor.count(dropper.finish())
        with closing(Spool()) as plan, closing(Spool()) as self._allowed:
            self._plan(plan)
            self._judge(plan)
            yield

    def pages(self) -> Iterator[list[PlannedItem]]:
        with self.runtime.progress.task("remove versions") as advance:
            for page in self._allowed.batches(BATCH):
                yield page
                advance(len(page))

    def show(self, page: list[PlannedItem]) -> None:
        assert isinstance(self.done, RetentionPlan)
        for item in page:
            if self.tell:
                self.tell(item)
            else:
                self.done.items.append(item.as_json())

    def carry_out(self, page: list[PlannedItem]) -> None:
        self._executor.carry_out(page)

    def finish(self) -> None:
        self._beginnings.settle()

    # ---- planning -------------------------------------------------------------------------------------------------

    def _plan(self, plan: Spool) -> None:
        now = datetime.fromtimestamp(self.runtime.clock(), UTC)
        planner = Planner(self.job_file.settings, now, self.metastore, self._dates, self.grace)
        most = self.job_file.settings.number("gobblin.retention.max.concurrent.datasets.cleaned") or 100
        self.done.warnings += [
            f"{self.job_file.settings.origin(key)}: {key} has no effect: {why}"
            for key, why in NO_EFFECT.items()
            if self.job_file.settings.find(key) is not None
        ]
        found = find_datasets(self.job_file, self.metastore, self.prefix)
        doubts: Counter[str] = Counter()
        for outcome in LocalEngine(max(1, min(most, 8))).run(lambda each: _planned(planner, each), found):
            if isinstance(outcome, Failed):
                self.done.fail(outcome.name, outcome.why)
                continue
            self.done.datasets += 1
            self.done.versions += outcome.versions
            self.done.ignored += outcome.ignored
            self.done.warnings += outcome.warnings
            doubts.update(set(outcome.doubts))
            self._tell_unnamed(outcome)
            for why in outcome.stays:
                self.done.fail(outcome.name, why)
            for item in outcome.items:
                plan.add(item)
        self.done.warnings += [f"{doubt} (datasets: {count:,})" for doubt, count in doubts.items()]

    def _tell_unnamed(self, outcome: DatasetPlan) -> None:
        for path in outcome.unnamed[:UNNAMED]:
            self.done.fail(path, "kept: its name is not UTF-8, so no plan can name it (rename it)")
        if more := len(outcome.unnamed[UNNAMED:]):
            self.done.fail(outcome.name, f"{more:,} more of its names are not UTF-8")

    def _judge(self, plan: Spool) -> None:
        """Checks each item of the plan, and refuses the complete plan if it exceeds a limit."""
        count = files = size = 0
        for batch in plan.batches(BATCH):
            judged, refusals = self._judged(self._measured(batch))
            if not self.rehearses:
                self.remover.audit.refused(refusals)
            for refusal in refusals:
                self.done.refuse(refusal)
            for item in judged:
                self._allowed.add(item)
                if item.access is None:
                    count += 1
                    files += item.removal.files
                    size += item.removal.bytes
        self.done.selected = count + self.done.refused_count
        if self.rehearses:  # a run counts the files that it removes
            self.done.files, self.done.bytes = files, size
        refuse_counts(count, size, self.limits, self.done.versions, "versions")

    def _measured(self, batch: list[PlannedItem]) -> list[PlannedItem]:
        """Returns the items with files and bytes to remove, if they are required."""
        if not self.rehearses and self.limits.max_bytes is None:
            return batch
        moving = [item.removal for item in batch if item.moves_data]
        sizes = iter(measured(moving, self.runtime.engines, self.live))
        return [msgspec.structs.replace(item, removal=next(sizes)) if item.moves_data else item for item in batch]

    def _judged(self, batch: list[PlannedItem]) -> tuple[list[PlannedItem], list[Refusal]]:
        """Returns the allowed items, in the order of the batch, and the refusals."""
        look = self.remover.look([item.removal for item in batch if item.moves_data])
        holds = read_holds(self.root.place, self.runtime.clock())
        refused = {id(each.removal): each for each in look.refused}
        for item in batch:
            if item.keeps_data:
                why = forbidden(item.removal, Limits(min_depth=0), holds)
                if why:
                    refused[id(item.removal)] = Refusal(item.removal, why)
        return [item for item in batch if id(item.removal) not in refused], list(refused.values())


def _planned(planner: Planner, dataset: Dataset | Failed) -> DatasetPlan | Failed:
    if isinstance(dataset, Failed):
        return dataset
    try:
        return planner.plan(dataset)
    except (Error, OSError) as error:
        return Failed(dataset.name, explained(error))
