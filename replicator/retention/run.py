"""A run of retention: plan every dataset, judge the whole, then remove, drop and set access. Acts.

Everything is planned and judged before anything is removed, so that a limit refuses a run as a whole. Removing goes
through `replicator.guard`: a last look at the living metastore and at legal holds, the record, then `$cmroot`. A killed
run is completed by the next one.
"""

from __future__ import annotations

import time as clocks
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import msgspec

from cmroot.errors import Error
from cmroot.lease import acquire
from cmroot.log.captured import segments
from cmroot.store.place import join
from replicator.core.engine import AutoEngine, LocalEngine
from replicator.events.scope import captured_databases
from replicator.metastore.client import Metastore
from replicator.removal.audit import begin_audit
from replicator.removal.legal import read_holds
from replicator.removal.live import LiveLocations, Reference
from replicator.removal.removal import Limits, Refusal, forbidden, refuse_counts
from replicator.removal.remove import BATCH, Remover
from replicator.retention.carry_out import Hands
from replicator.retention.datasets import Dataset, Failed, explained, find_datasets
from replicator.retention.dropping import DIRECTORY, Dropper
from replicator.retention.job import Job
from replicator.retention.listing import entry, files_below
from replicator.retention.outcome import RetentionPlan, RetentionRun
from replicator.retention.plan import DatasetPlan, Item, Planner
from replicator.retention.spool import Spool

JOB = "retention"
UNNAMED = 20  # names of a dataset that are not UTF-8 and are listed one by one
NO_EFFECT = {
    "gobblin.retention.skip.trash": "everything goes to $cmroot",
    "gobblin.retention.delete.as.owner": "files are moved by the user that runs this",
    "gobblin.retention.hdfs.calls.per.second.limit": "it never had any",
    "gobblin.trash": "everything goes to $cmroot",
    "trash.class": "it never had any",
}
"""Keys of the original that are read by nothing here, and why; a report names those that are set."""


class Unregistered(LiveLocations):
    """For files that no metastore knows of, by the word of who runs this: nothing refers to anything."""

    def __init__(self) -> None:
        pass

    def refresh(self) -> None:
        pass

    def close(self) -> None:
        pass

    def references(self, path: str) -> Iterator[Reference]:
        return iter(())

    def follows(self, db: str) -> str:
        return ""


@dataclass
class Retention:
    """One run, ready to go. cmroot: the root's place; metastore: None for files that none knows of; root: what absolute
    paths of the configuration lie below."""

    job: Job
    cmroot: str
    metastore: Metastore | None
    limits: Limits
    engine: AutoEngine
    root: str | None = None
    clock: Callable[[], float] = clocks.time
    done: RetentionRun = field(default_factory=RetentionRun)

    def __post_init__(self) -> None:
        self.done.databases = captured_databases(segments(self.cmroot))

    def planned(self, tell: Callable[[Item], None] | None = None) -> RetentionPlan:
        """Each item that a run would remove, drop or set, with its reason and size: reported, else in the plan. Changes
        nothing. Raises Refused as the run would."""
        done = self.done = RetentionPlan(databases=self.done.databases)
        with self._timed(), self._live() as live, _spooled() as plan, _spooled() as allowed:
            self._plan(plan)
            self._judge(plan, allowed, self._remover(live), measures=True, records=False)
            for item in allowed:
                if tell:
                    tell(item)
                else:
                    done.items.append(item.as_json())
        return done

    def run(self) -> RetentionRun:
        """Raises LeaseHeld while another run is at it, Refused when more would go than one run may remove. What fails
        by itself is reported in the result."""
        with self._timed(), acquire(join(self.cmroot, DIRECTORY), JOB) as lease:
            with self._live() as live, _spooled() as plan, _spooled() as allowed:
                remover = replace(self._remover(live), check=lease.check)
                dropper = Dropper(self.metastore, self.cmroot, remover.audit) if self.metastore else None
                hands = Hands(self.job.settings, remover, dropper, self.done)
                if dropper:
                    hands.count(dropper.finish())
                self._plan(plan)
                self._judge(plan, allowed, remover, measures=self.limits.max_bytes is not None, records=True)
                for batch in allowed.batches(BATCH):
                    lease.check()
                    hands.carry_out(batch)
            if not self.done.is_whole:
                self.done.status = "incomplete"
        return self.done

    # ---- planning -------------------------------------------------------------------------------------------------

    def _plan(self, plan: Spool) -> None:
        now = datetime.fromtimestamp(self.clock(), UTC)
        planner = Planner(self.job.settings, now, self.metastore)
        most = self.job.settings.number("gobblin.retention.max.concurrent.datasets.cleaned") or 100
        self.done.warnings += [
            f"{self.job.settings.origin(key)}: {key} has no effect: {why}"
            for key, why in NO_EFFECT.items()
            if self.job.settings.find(key) is not None
        ]
        found = find_datasets(self.job, self.metastore, self.root)
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

    def _judge(self, plan: Spool, allowed: Spool, remover: Remover, *, measures: bool, records: bool) -> None:
        """Sorts the plan by whether each item may be, and refuses the whole when it is too much."""
        count = files = size = 0
        for batch in plan.batches(BATCH):
            judged, refusals = self._judged(_measured(batch) if measures else batch, remover)
            if records:
                remover.audit.refused(refusals)
            for refusal in refusals:
                self.done.refuse(refusal)
            for item in judged:
                allowed.add(item)
                if item.access is None:
                    count += 1
                    files += item.removal.files
                    size += item.removal.bytes
        self.done.selected = count + self.done.refused_count
        if not records:  # a run counts what really goes
            self.done.files, self.done.bytes = files, size
        refuse_counts(count, size, self.limits, self.done.versions, "versions")

    def _judged(self, batch: Sequence[Item], remover: Remover) -> tuple[list[Item], list[Refusal]]:
        """What may be done, in the order of the batch, and what may not."""
        look = remover.look([item.removal for item in batch if item.access is None and not item.keeps_data])
        holds = read_holds(self.cmroot, self.clock())
        refused = {id(each.removal): each for each in look.refused}
        for item in batch:
            if item.keeps_data:
                why = forbidden(item.removal, Limits(min_depth=0), holds)
                if why:
                    refused[id(item.removal)] = Refusal(item.removal, why)
        return [item for item in batch if id(item.removal) not in refused], list(refused.values())

    # ---- what both need -------------------------------------------------------------------------------------------

    def _remover(self, live: LiveLocations) -> Remover:
        stores = (self.job.store.place,) if self.job.store else ()
        limits = replace(self.limits, protected=(*self.limits.protected, self.cmroot, *stores))
        audit = begin_audit(self.cmroot, JOB, clock=self.clock)
        self.done.run = audit.run
        return Remover(self.cmroot, audit, live, limits, self.engine, self.clock)

    @contextmanager
    def _live(self) -> Iterator[LiveLocations]:
        live = LiveLocations(self.metastore) if self.metastore else Unregistered()
        try:
            yield live
        finally:
            live.close()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = clocks.monotonic()
        try:
            yield
        finally:
            self.done.seconds = round(clocks.monotonic() - began, 3)


@contextmanager
def _spooled() -> Iterator[Spool]:
    spool = Spool()
    try:
        yield spool
    finally:
        spool.close()


def _planned(planner: Planner, dataset: Dataset | Failed) -> DatasetPlan | Failed:
    if isinstance(dataset, Failed):
        return dataset
    try:
        return planner.plan(dataset)
    except (Error, OSError) as error:
        return Failed(dataset.name, explained(error))


def _measured(batch: Sequence[Item]) -> list[Item]:
    """With the files and bytes of what would go."""
    return list(LocalEngine().run(_measure, batch))


def _measure(item: Item) -> Item:
    path = item.removal.path
    if item.access is not None or item.keeps_data or not path:
        return item
    here = entry(path)
    if here is None:
        return item
    files = size = 0
    try:
        for each in files_below(path) if here.is_directory else [here]:
            if not each.is_directory:
                files, size = files + 1, size + each.size
    except FileNotFoundError:
        pass  # what goes while it is counted
    return msgspec.structs.replace(item, removal=msgspec.structs.replace(item.removal, files=files, bytes=size))
