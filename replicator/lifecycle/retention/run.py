"""A run of retention: plans every dataset, checks the complete plan, then removes, drops and sets access."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import ClassVar

import msgspec

from cmroot.errors import Error
from cmroot.log.captured import segments
from cmroot.store.place import Place
from replicator.captures.events.scope import captured_databases
from replicator.core.engine import LocalEngine
from replicator.lifecycle.removal.job import Job
from replicator.lifecycle.removal.removal import Limits, Refusal, forbidden, read_holds, refuse_counts
from replicator.lifecycle.removal.remove import BATCH, measured
from replicator.lifecycle.retention.access import Beginnings
from replicator.lifecycle.retention.carry_out import DIRECTORY, Dropper, Executor
from replicator.lifecycle.retention.datasets import Dataset, Failed, explained, find_datasets
from replicator.lifecycle.retention.job_file import JobFile
from replicator.lifecycle.retention.plan import DatasetPlan, PlannedItem, Planner, RetentionPlan, RetentionRun, Spool

UNNAMED = 20  # names of a dataset that are not UTF-8 and are listed individually
NO_EFFECT = {
    "gobblin.retention.skip.trash": "everything goes to $cmroot",
    "gobblin.retention.delete.as.owner": "files are moved by the user that runs this",
    "gobblin.retention.hdfs.calls.per.second.limit": "it never had any",
    "gobblin.trash": "everything goes to $cmroot",
    "trash.class": "it never had any",
}
"""Keys of Gobblin without effect here, and why; a report lists those that are set."""


@dataclass(kw_only=True)
class Retention(Job[list[PlannedItem], RetentionRun]):
    """The retention job. job_file: the datasets and their policies. prefix: of absolute paths of the configuration.
    tell: called with each item of a rehearsal, which is then not in the report."""

    name: ClassVar[str] = DIRECTORY
    purpose: ClassVar[str] = DIRECTORY

    job_file: JobFile
    prefix: str | None = None
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
        self._beginnings = Beginnings(Place(self.root.place) / DIRECTORY)
        self._dates = self._beginnings.dates()
        self._executor = Executor(
            self.job_file.settings, self.remover, dropper, self.done, self._beginnings, self._dates
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
        planner = Planner(self.job_file.settings, now, self.metastore, self._dates)
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
            for item in outcome.items:
                plan.add(item)
        self.done.warnings += [f"{doubt} (datasets: {count:,})" for doubt, count in doubts.items()]

    def _tell_unnamed(self, outcome: DatasetPlan) -> None:
        for path in outcome.unnamed[:UNNAMED]:
            self.done.fail(path, "stays: its name is not UTF-8, so no plan can name it (rename it)")
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
        sizes = iter(measured([item.removal for item in batch if item.moves_data], self.runtime.engines))
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
