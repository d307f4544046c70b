"""Work: one load at work on its target: the plan, the metastore, the `$cmroot`; and where the data of what goes goes.

Nothing is deleted: it goes to the target's `$cmroot` before anything stops naming it; where others may be reading it,
it is noted, and goes there later.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeVar

from cmroot.place import is_local, join, local_path, store_for
from cmroot.recycle import recycle_tree
from replicator.engine import AutoEngine
from replicator.errors import ObjectNotFound
from replicator.load.placement import is_published, relative
from replicator.load.plan import Plan, TablePlan
from replicator.load.replica import has_sources_data
from replicator.load.superseded import Superseded, note_superseded
from replicator.metastore.client import PARTITION_BATCH, Metastore
from replicator.model import Partition, Table, partition_name
from replicator.roles import after_load, mark_of, marked, may_load_into

T = TypeVar("T")


@dataclass
class Changed:
    """What was changed on the target: objects by kind, and files recycled with whole directories."""

    objects: int = 0
    recycled: int = 0
    _lock: Lock = field(default_factory=Lock)

    def count(self, objects: int = 1) -> None:
        with self._lock:
            self.objects += objects


@dataclass(frozen=True)
class RecycleTask:
    """Directories whose files go to a `$cmroot`."""

    root: str
    directories: Sequence[str]


def run_recycle_task(task: RecycleTask) -> int:
    """Number of files recycled. May run twice."""
    return sum(len(recycle_tree(task.root, directory)) for directory in task.directories)


class Work:
    """A plan, the target it is carried out on, and what was `changed` there so far."""

    def __init__(self, plan: Plan, target: Metastore, root: str, engine: AutoEngine, jobs: int) -> None:
        """`root`: the target's $cmroot. `jobs`: tables worked on side by side."""
        self.plan, self.target, self.root, self.engine, self.jobs = plan, target, root, engine, jobs
        self.changed = Changed()

    def with_role(self, database: str, parameters: dict[str, str]) -> dict[str, str]:
        """A target database's properties with the role that this load gives it, from its first write on. Raises Refused
        when it was made primary or fenced since the plan: asked again before each write that may be hours later."""
        if self.plan.exact:
            return parameters
        label = f"database {database} of the target"
        epoch, role = self.epochs.get(database), mark_of(parameters, label)
        may_load_into(label, role, source_epoch=epoch)
        after = after_load(role, epoch)
        return parameters if after == role else marked(parameters, after)

    @property
    def epochs(self) -> dict[str, int]:
        """The epochs of the dump, by the target's names; without those that are not known."""
        epochs = self.plan.metadata.epochs
        return {name: epochs[source] for source, name in self.plan.placement.databases.items() if source in epochs}

    def mark(self, step: TablePlan) -> str:
        """A file of the target's $cmroot that says what this load has done to a table, until the checkpoint."""
        return join(self.root, "loads", self.plan.metadata.id, f"{step.name[0]}.{step.name[1]}")

    def name_of(self, step: TablePlan, partition: Partition) -> str:
        assert step.table is not None
        return partition_name(step.table.partition_keys, partition.values)

    def partitions_named(self, step: TablePlan, names: Sequence[str]) -> dict[str, Partition]:
        found = (each for page in self.target.partitions(*step.name, names) for each in page)
        return {self.name_of(step, partition): partition for partition in found}

    # ---- what goes ------------------------------------------------------------------------------------------------

    def drop_table(self, table: Table) -> None:
        if table.owns_data and table.location and not has_sources_data(table):
            directories = [table.location]
            if table.is_partitioned:
                names = self.target.partition_names(table.db, table.name)
                for batch in self.target.partitions(table.db, table.name, names):
                    places = (partition.location for partition in batch)
                    directories += [place for place in places if place and relative(place, table.location) is None]
            self.let_go(table, directories)
        with contextlib.suppress(ObjectNotFound):
            self.target.drop_table(table.db, table.name)
            self.changed.count()

    def drop_partitions(self, table: Table, names: Sequence[str]) -> None:
        """Drops partitions of a table of the target; what of their data lies in it goes to `$cmroot` first."""
        for batch in batches(names, PARTITION_BATCH):
            there = [each for page in self.target.partitions(table.db, table.name, batch) for each in page]
            self.let_go(table, own_places(table, there))
            found = [partition_name(table.partition_keys, each.values) for each in there]
            if found:
                self.target.drop_partitions(table.db, table.name, found)
                self.changed.count(len(found))

    def let_go(self, table: Table, directories: Sequence[str]) -> None:
        """Data of what is dropped: to `$cmroot` before that, or, where others may be reading it, noted for later."""
        if self.plan.snapshot:
            self.supersede([Superseded(place, table.db, table.name) for place in directories])
        else:
            self.recycle(directories)

    def supersede(self, directories: Sequence[Superseded]) -> None:
        note_superseded(self.root, self.plan.metadata.id, directories)

    def recycle(self, directories: Iterable[str]) -> None:
        directories = list(directories)
        if not directories:
            return
        engine = self.engine.for_work(len(directories))
        tasks = [RecycleTask(self.root, some) for some in batches(directories, 100)]
        self.changed.recycled += sum(engine.run(run_recycle_task, tasks))


def own_places(table: Table, partitions: Iterable[Partition]) -> list[str]:
    """Directories that go with dropped partitions: of tables that own their data, inside the table or where a load
    published them. What lies elsewhere may be another's."""
    home = table.location if table.owns_data and not has_sources_data(table) else None
    places = [each.location for each in partitions if home and each.location]
    return [place for place in places if is_published(place) or (home and relative(place, home))]


def batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


def make_directory(location: str) -> None:
    if is_local(location):
        os.makedirs(local_path(location), exist_ok=True)


def exists(location: str) -> bool:
    return os.path.isdir(local_path(location)) if is_local(location) else bool(store_for(location).list(location))
