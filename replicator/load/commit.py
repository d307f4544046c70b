"""Commit: the metadata side of a load. Prepares the target before files are copied, commits objects after.

Every step may run twice: it looks at what is there, and does what is missing. Nothing is deleted: data of what is
dropped or replaced goes to the target's `$cmroot` first.
"""

from __future__ import annotations

import contextlib
import os
import time as clocks
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Lock
from typing import TypeVar

import msgspec

from cmroot.place import is_local, join, local_path, normal, store_for
from cmroot.recycle import recycle_tree
from replicator.engine import AutoEngine
from replicator.errors import ObjectExists, ObjectNotFound
from replicator.events.compare import comparable
from replicator.load.carrying import CarryTask, run_carry_task
from replicator.load.placement import is_published, relative
from replicator.load.plan import Plan, TablePlan
from replicator.load.published import aside_of, at_place, is_moved_by_renaming, table_at_place
from replicator.load.renames import PASSING, passing_name, rename_order
from replicator.load.replica import (
    LOADING,
    OWN,
    POSITION,
    PUBLISH,
    RENAMED,
    SOURCE,
    has_sources_data,
    replica_partition,
    replica_statistics,
)
from replicator.load.squash import Lineage, PartitionFate
from replicator.load.superseded import Superseded, close_superseded, note_superseded
from replicator.load.target import applied_position
from replicator.metastore.client import PARTITION_BATCH, Metastore
from replicator.model import Partition, Table, partition_name
from replicator.roles import after_load, mark_of, marked, may_load_into

T = TypeVar("T")

QUEUED = 8  # batches that wait for a lane: bounds the driver's memory


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


class Commit:
    """The metadata steps of one plan against one target."""

    def __init__(self, plan: Plan, target: Metastore, root: str, engine: AutoEngine, jobs: int) -> None:
        """`root`: the target's $cmroot. `jobs`: tables worked on side by side."""
        self._plan, self._target, self._root, self._engine, self._jobs = plan, target, root, engine, jobs
        self.changed = Changed()

    # ---- before the copies ----------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Databases, drops, renames, clears: afterwards every directory that is copied into is where it will stay, and
        holds nothing that has no business there."""
        self.sweep_marks()
        self._begin_databases()
        for table in self._plan.drops:
            self._drop_table(table)
        self._rename_tables()
        for step in self._plan.tables:
            self._prepare_partitions(step)
        self._clear_tables()

    def sweep_marks(self) -> None:
        """What a load has done to tables counts as long as it goes on. This one begins anew, unless its databases say
        that it is theirs: marks of others that were given up go, and its own of a time when it came to its end."""
        own, databases = self._plan.metadata.id, set(self._plan.placement.databases.values())
        store, loads = store_for(self._root), join(self._root, "loads")
        for load in store.list(loads):
            if load == own and any(self._is_loading(name) for name in databases):
                continue
            place = join(loads, load)
            for mark in store.list(place):
                if mark.partition(".")[0] in databases:
                    store.remove(join(place, mark))
            if not store.list(place):
                store.remove_tree(place)

    def _is_loading(self, database: str) -> bool:
        try:
            return self._target.database(database).parameters.get(LOADING) == self._plan.metadata.id
        except ObjectNotFound:
            return False

    def _begin_databases(self) -> None:
        loading = {LOADING: self._plan.metadata.id, SOURCE: self._plan.metadata.root_id}
        loading |= {PUBLISH: "snapshot"} if self._plan.snapshot else {}
        for database in self._plan.create_databases:
            began = msgspec.structs.replace(
                database, parameters=self._with_role(database.name, database.parameters) | loading
            )
            if database.location and is_local(database.location):
                os.makedirs(local_path(database.location), exist_ok=True)
            with contextlib.suppress(ObjectExists):
                self._target.create_database(began)
                self.changed.count()
        for name in self._plan.checkpoint:
            there = self._target.database(name)
            parameters = self._with_role(name, there.parameters) | loading
            if parameters != there.parameters:
                self._target.alter_database(name, msgspec.structs.replace(there, parameters=parameters))

    def _with_role(self, database: str, parameters: dict[str, str]) -> dict[str, str]:
        """A target database's properties with the role that this load gives it, from its first write on. Raises Refused
        when it was made primary or fenced since the plan: asked again before each write that may be hours later."""
        if self._plan.exact:
            return parameters
        label = f"database {database} of the target"
        epoch, role = self._epochs.get(database), mark_of(parameters, label)
        may_load_into(label, role, source_epoch=epoch)
        after = after_load(role, epoch)
        return parameters if after == role else marked(parameters, after)

    @property
    def _epochs(self) -> dict[str, int]:
        """The epochs of the dump, by the target's names; without those that are not known."""
        epochs = self._plan.metadata.epochs
        return {name: epochs[source] for source, name in self._plan.placement.databases.items() if source in epochs}

    def _drop_table(self, table: Table) -> None:
        if table.owns_data and table.location and not has_sources_data(table):
            directories = [table.location]
            if table.is_partitioned:
                names = self._target.partition_names(table.db, table.name)
                for batch in self._target.partitions(table.db, table.name, names):
                    places = (partition.location for partition in batch)
                    directories += [place for place in places if place and relative(place, table.location) is None]
            self._let_go(table, directories)
        with contextlib.suppress(ObjectNotFound):
            self._target.drop_table(table.db, table.name)
            self.changed.count()

    def drop_partitions(self, table: Table, names: Sequence[str]) -> None:
        """Drops partitions of a table of the target; what of their data lies in it goes to `$cmroot` first."""
        for batch in _batches(names, PARTITION_BATCH):
            there = [each for page in self._target.partitions(table.db, table.name, batch) for each in page]
            self._let_go(table, own_places(table, there))
            found = [partition_name(table.partition_keys, each.values) for each in there]
            if found:
                self._target.drop_partitions(table.db, table.name, found)
                self.changed.count(len(found))

    def _rename_tables(self) -> None:
        renames = {step.rename_from: step.name for step in self._plan.tables if step.rename_from}
        occupied: list[tuple[str, str]] = []
        for db in {new[0] for new in renames.values()}:
            with contextlib.suppress(ObjectNotFound):
                occupied += [(db, name) for name in self._target.table_names(db)]
        ends = {step.name: step.lineage.names[-1].begin for step in self._plan.tables}
        for old, new in rename_order(renames, occupied, passing_name):
            there = self._target.table(*old)
            # The mark comes with the name: a load that ends here must not rename what it finds under the old one.
            mark = {RENAMED: str(ends[new])} if new in ends else {}
            renamed = msgspec.structs.replace(there, db=new[0], name=new[1], parameters=there.parameters | mark)
            if self._plan.snapshot and is_moved_by_renaming(there):
                renamed = self._moved_aside(there, renamed)
            self._target.alter_table(*old, renamed)
            self.changed.count()

    def _moved_aside(self, there: Table, renamed: Table) -> Table:
        """A table in the source's layout, which a server would move while it renames it, and so take from under who
        reads it: with a new place in the same call it does not."""
        assert there.location and there.storage and self._plan.snapshot
        place = aside_of(self._plan.snapshot, there)
        self._supersede([Superseded(there.location, *(renamed.db, renamed.name), successor=place)])
        if not there.is_partitioned:
            run_carry_task(CarryTask([(there.location, place)]))
        _make_directory(place)
        return table_at_place(renamed, there.location, place)

    def _prepare_partitions(self, step: TablePlan) -> None:
        """Dropped partitions go, those that began anew are emptied, renamed ones get their new name. Once per load:
        later the names may be those of others."""
        if not step.exists or step.clear or step.table is None:
            return
        db, name = step.name
        fates = step.lineage.fates
        begun = {fate.before: fate.since for fate in fates if fate.before and (fate.replaced or fate.complete)}
        renamed = [fate for fate in fates if fate.renamed]
        store, mark = store_for(self._root), f"{self._mark(step)}.partitions"
        if not (begun or renamed) or store.exists(mark):
            return
        gone = {fate.before for fate in fates if fate.before and fate.replaced}
        filled_anew = {fate.before for fate in fates if fate.before == fate.now}
        for batch in _batches(list(begun), PARTITION_BATCH):
            wanted = set(batch) & gone
            by_name = {
                key: partition
                for key, partition in self._partitions_named(step, batch).items()
                if applied_position(partition) < begun[key]  # else another was renamed to this name since
            }
            self._let_go(
                step.table,
                [
                    place
                    for key, partition in by_name.items()
                    if (place := partition.location)
                    and not step.shared
                    and (key in filled_anew or step.table.owns_data)
                ],
            )
            flipped = filled_anew if self._plan.snapshot else set()
            dropped = [key for key in batch if key in wanted - flipped and key in by_name]
            if dropped:
                self._target.drop_partitions(db, name, dropped)
                self.changed.count(len(dropped))
        self._rename_partitions(step, renamed)
        store.write_bytes(mark, b"")

    def _mark(self, step: TablePlan) -> str:
        """A file of the target's $cmroot that says what this load has done to a table, until the checkpoint."""
        return join(self._root, "loads", self._plan.metadata.id, f"{step.name[0]}.{step.name[1]}")

    def _rename_partitions(self, step: TablePlan, fates: Sequence[PartitionFate]) -> None:
        """As tables are renamed: with a mark, and through passing names where they go round in a circle."""
        if not fates:
            return
        ends = {fate.now: fate for fate in fates if fate.now}
        starts = {fate.before: fate for fate in fates if fate.before}
        there = self._partitions_named(step, [*starts, *ends, *map(_passing_partition, starts)])
        renames = {}
        for before, fate in starts.items():
            assert fate.now
            if (passing := _passing_partition(before)) in there:
                renames[passing] = fate.now
            elif before in there and applied_position(there[before]) < fate.names[1][0]:
                renames[before] = fate.now
        for old, new in rename_order(renames, there, _passing_partition):
            partition, end = there.pop(old), ends.get(new)
            values = end.values if end else (*partition.values[:-1], partition.values[-1] + PASSING)
            mark = {RENAMED: str(end.names[-1][0])} if end else {}
            renamed = msgspec.structs.replace(partition, values=values, parameters=partition.parameters | mark)
            if self._plan.snapshot:
                partition = self._stepped_aside(step, partition, old, new)
                renamed = msgspec.structs.replace(renamed, storage=partition.storage)
            self._target.rename_partition(*step.name, partition.values, renamed)
            there.update(self._partitions_named(step, [new]))
            self.changed.count()

    def _stepped_aside(self, step: TablePlan, partition: Partition, old: str, new: str) -> Partition:
        """A partition about to be renamed: a server moves its directory to where it belongs by its new name, unless it
        lies there. So what is in it is carried there first, and who reads it reads on."""
        assert step.table is not None
        database = self._target.database(step.name[0]).location
        if not (step.table.owns_data and database and partition.location):
            return partition
        place = join(database, step.name[1], new)
        if normal(place) == normal(partition.location):
            return partition
        if _exists(place):  # of a partition that had the name before; the server refuses a name whose place is taken
            self._recycle([place])
        gone = Superseded(partition.location, *step.name, old, successor=place)
        self._supersede([gone])
        run_carry_task(CarryTask([(partition.location, place)]))
        _make_directory(place)
        moved = at_place(partition, place)
        self._target.alter_partitions(*step.name, [moved])
        return moved

    def _partitions_named(self, step: TablePlan, names: Sequence[str]) -> dict[str, Partition]:
        found = (each for page in self._target.partitions(*step.name, names) for each in page)
        return {self._name(step, partition): partition for partition in found}

    def _clear_tables(self) -> None:
        """Recycles what lies where a table is to be copied whole; once per load, so that copies survive a restart."""
        if self._plan.snapshot:
            return  # nothing is in a place of the load's own
        store = store_for(self._root)
        homes = {each.table.location for each in self._plan.tables if each.table and each.table.location}
        protected = [*homes, *self._plan.placement.target_locations.values()]
        directories, marks = [], []
        for step in self._plan.tables:
            location = step.table.location if step.table else None
            if not step.clear or location is None:
                continue
            mark = self._mark(step)
            if store.exists(mark):
                continue
            if any(relative(other, location) is not None for other in protected if other != location):
                self._plan.warnings.append(f"{location} holds other objects too: old files in it were left")
            elif _exists(location):
                directories.append(location)
            marks.append(mark)
        self._recycle(directories)
        for mark in marks:
            store.write_bytes(mark, b"")

    def carry(self, named: Iterator[tuple[Lineage, list[tuple[str, Partition]]]]) -> None:
        """Where a load publishes by snapshots, or brings back what was published so: what stays of the objects that it
        changes goes into their new places, and the old ones are noted. Afterwards the copies change nothing that
        anybody reads. `named`: all partitions of what is brought back."""
        for step in self._plan.tables:
            if not step.exists or step.table is None or step.there is None or step.table.is_view or step.shared:
                continue
            there = step.there if step.rename_from is None else self._target.table(*step.name)
            old, new = there.location, step.table.location
            moves = step.place is not None or (self._plan.back and is_published(old))
            if moves and not step.table.is_partitioned and old and new and normal(old) != normal(new):
                self._carry(step, [(old, new, "")], () if step.anew else ("",))
            if step.place is None or not step.table.is_partitioned:
                continue
            for batch in _batches(sorted(step.touched), PARTITION_BATCH):
                pairs = []
                for name, partition in self._partitions_named(step, batch).items():
                    place = step.place_of_partition(name, partition.location)
                    if place and partition.location and normal(place) != normal(partition.location):
                        pairs.append((partition.location, place, name))
                fates = step.lineage.partitions
                kept = [name for _, _, name in pairs if not (name in fates and fates[name].complete)]
                self._carry(step, pairs, kept)

        steps = {id(step.lineage): step for step in self._plan.tables if step.exists and step.table}
        for lineage, some in named:
            if (found := steps.get(id(lineage))) is not None and lineage.table is not None:
                self._carry_back(found, lineage.table, dict(some))

    def _carry_back(self, step: TablePlan, table: Table, some: dict[str, Partition]) -> None:
        pairs = []
        for name, partition in self._partitions_named(step, list(some)).items():
            source = some[name].location
            if source and partition.location and is_published(partition.location):
                place = self._plan.placement.inside(table.db, table.location, source)
                if normal(place) != normal(partition.location):
                    pairs.append((partition.location, place, name))
        self._carry(step, pairs, [name for _, _, name in pairs])

    def _carry(self, step: TablePlan, pairs: Sequence[tuple[str, str, str]], kept: Collection[str]) -> None:
        """pairs: (directory, new directory, partition); `kept`: those of which something may stay."""
        self._supersede(
            [Superseded(old, *step.name, name, successor=new if name in kept else "") for old, new, name in pairs]
        )
        carried = [(old, new) for old, new, name in pairs if name in kept]
        if carried:
            engine = self._engine.for_work(len(carried))
            deque(engine.run(run_carry_task, [CarryTask(some) for some in _batches(carried, 100)]), maxlen=0)

    def _supersede(self, directories: Sequence[Superseded]) -> None:
        note_superseded(self._root, self._plan.metadata.id, directories)

    def _let_go(self, table: Table, directories: Sequence[str]) -> None:
        """Data of what is dropped: to `$cmroot` before that, or, where others may be reading it, noted for later."""
        if self._plan.snapshot:
            self._supersede([Superseded(place, table.db, table.name) for place in directories])
        else:
            self._recycle(directories)

    def _recycle(self, directories: Iterable[str]) -> None:
        directories = list(directories)
        if not directories:
            return
        engine = self._engine.for_work(len(directories))
        tasks = [RecycleTask(self._root, some) for some in _batches(directories, 100)]
        self.changed.recycled += sum(engine.run(run_recycle_task, tasks))

    # ---- after the copies -----------------------------------------------------------------------------------------

    def databases(self) -> None:
        """The first change that readers see after the copies, which may have taken hours. Raises Refused when roles
        turned meanwhile."""
        for name in self._plan.checkpoint:
            self._with_role(name, self._target.database(name).parameters)
        for database in self._plan.alter_databases:
            there = self._target.database(database.name)
            own = {key: value for key, value in there.parameters.items() if key.startswith(OWN)}
            wanted = msgspec.structs.replace(
                database, location=there.location, parameters=database.parameters | own, extra=there.extra
            )
            if wanted != there:
                self._target.alter_database(database.name, wanted)
                self.changed.count()

    def tables(self, advance: Callable[[int], None]) -> None:
        """Creates and alters tables, side by side; views after the tables they may read."""
        for views in (False, True):
            steps = [step for step in self._plan.tables if step.table and step.table.is_view == views]
            with ThreadPoolExecutor(self._jobs) as pool:
                for _ in pool.map(self._table, steps):
                    advance(1)

    def _table(self, step: TablePlan) -> None:
        assert step.table is not None
        if step.table.location and not step.table.is_view and not step.shared:
            _make_directory(step.table.location)
        if step.replaces is not None and not step.exists:
            self._replace(step, step.replaces)
        if not step.exists:
            try:
                self._target.create_table(step.table)
                self.changed.count()
                if step.table.is_view or "totalSize" in step.table.parameters:
                    return  # else the server has invented file statistics, which the source has not
            except ObjectExists:
                step.exists = True
        there = self._target.table(*step.name)
        adopted = self._plan.by_difference is not None  # a table that is equal may be one that others made
        unmarked = adopted and there.parameters.get(SOURCE) != step.table.parameters.get(SOURCE)
        if unmarked or _comparable_table(there) != _comparable_table(step.table):
            wanted = msgspec.structs.replace(step.table, create_time=there.create_time)
            self._target.alter_table(*step.name, wanted)
            self.changed.count()

    def partitions(
        self, named: Iterator[tuple[Lineage, list[tuple[str, Partition]]]], advance: Callable[[int], None]
    ) -> None:
        """Adds and alters partitions as they stream by: in order within a table, tables side by side."""
        steps = {id(step.lineage): step for step in self._plan.tables}
        with _Lanes(self._jobs) as lanes:
            for lineage, some in named:
                step = steps.get(id(lineage))
                if step is None or step.table is None:
                    continue
                for batch in _batches(some, PARTITION_BATCH):
                    lanes.submit(step.name, self._partitions, step, batch)
                    advance(len(batch))

    def _partitions(self, step: TablePlan, named: Sequence[tuple[str, Partition]]) -> None:
        assert step.lineage.table is not None
        db, table = step.name
        wanted = {
            name: replica_partition(
                each, step.lineage.table, step.placement or self._plan.placement, shared=step.shared
            )
            for name, each in named
        }
        there: dict[str, Partition] = {}
        if step.exists:
            found = self._target.partitions(db, table, list(wanted))
            there = {self._name(step, each): each for page in found for each in page}
        for name, each in wanted.items():
            place = step.place_of_partition(name, there[name].location if name in there else None)
            if place is not None:
                wanted[name] = at_place(each, place)
        added = [each for name, each in wanted.items() if name not in there]
        altered = [
            each
            for name, each in wanted.items()
            if name in there and comparable_partition(there[name]) != comparable_partition(each)
        ]
        if added:
            for partition in added:
                if partition.location and not step.shared:
                    _make_directory(partition.location)
            self._target.add_partitions(db, table, added)
            # The server invents file statistics for partitions that bring none; the source has none.
            altered += [each for each in added if "totalSize" not in each.parameters]
        for batch in _batches(altered, PARTITION_BATCH):
            self._target.alter_partitions(db, table, batch)
        self.changed.count(len(added) + sum(1 for each in altered if each not in added))

    def flip(self) -> None:
        """Partitions whose files have changed, and that no record has altered, get their new places, too."""
        for step in self._plan.tables:
            if step.place is None or not step.exists or step.table is None or not step.table.is_partitioned:
                continue
            for batch in _batches(sorted(step.touched), PARTITION_BATCH):
                there = self._partitions_named(step, batch)
                flipped = [
                    at_place(partition, place)
                    for name, partition in there.items()
                    if (place := step.place_of_partition(name, partition.location))
                    and normal(place) != normal(partition.location or "")
                ]
                if flipped:
                    self._target.alter_partitions(*step.name, flipped)
                    self.changed.count(len(flipped))

    def _replace(self, step: TablePlan, old: Table) -> None:
        """Another table of its name makes room only now that all files of the new one are there."""
        try:
            there = self._target.table(*step.name)
        except ObjectNotFound:
            return
        if there.parameters.get(POSITION) == old.parameters.get(POSITION):
            self._drop_table(old)

    def statistics(self) -> None:
        for step in self._plan.tables:
            if step.table is None or not step.lineage.statistics:
                continue
            alive = set(step.lineage.partitions)
            whole, partitions = [], []
            for name, statistics in step.lineage.statistics.items():
                replica = msgspec.structs.replace(
                    replica_statistics(statistics, self._plan.placement), db=step.name[0], table=step.name[1]
                )
                if name is None:
                    whole.append(replica)
                elif name in alive and step.lineage.partitions[name].now is None:
                    continue
                else:
                    partitions.append(replica)
            for each in whole:
                self._target.set_table_statistics(each)
            for batch in _batches(partitions, PARTITION_BATCH):
                self._target.set_partition_statistics(batch)
            self._restore_parameters(step, bool(whole))

    def _restore_parameters(self, step: TablePlan, table_too: bool) -> None:
        """Setting statistics makes the server rewrite COLUMN_STATS_ACCURATE; the source's word stands."""
        if table_too and step.table is not None:
            there = self._target.table(*step.name)
            if _comparable_table(there) != _comparable_table(step.table):
                self._target.alter_table(*step.name, step.table)

    def functions(self) -> None:
        for function in self._plan.put_functions:
            try:
                self._target.create_function(function)
                self.changed.count()
            except ObjectExists:
                there = {each.name: each for each in self._target.functions(function.db)}.get(function.name)
                wanted = msgspec.structs.replace(function, create_time=there.create_time if there else 0)
                if there != wanted:
                    self._target.alter_function(wanted)
                    self.changed.count()
        for db, name in self._plan.drop_functions:
            with contextlib.suppress(ObjectNotFound):
                self._target.drop_function(db, name)
                self.changed.count()

    def drop_databases(self) -> None:
        for name in self._plan.drop_databases:
            with contextlib.suppress(ObjectNotFound):
                for function in self._target.functions(name):
                    self._target.drop_function(name, function.name)
                self._target.drop_database(name)
                self.changed.count()

    def checkpoint(self) -> None:
        """The last change of the target's metadata: from here on it is at the dump's end."""
        for name in self._plan.checkpoint:
            there = self._target.database(name)
            there_now = self._with_role(name, there.parameters)
            parameters = {key: value for key, value in there_now.items() if key != LOADING}
            if not self._plan.snapshot and self._plan.by_difference:
                parameters.pop(PUBLISH, None)  # all of it lies in the source's layout again
            parameters |= self._plan.mark.parameters()
            if parameters != there.parameters:
                self._target.alter_database(name, msgspec.structs.replace(there, parameters=parameters))
        store_for(self._root).remove_tree(join(self._root, "loads", self._plan.metadata.id))
        close_superseded(self._root, self._plan.metadata.id, now=clocks.time())

    def _name(self, step: TablePlan, partition: Partition) -> str:
        assert step.table is not None
        return partition_name(step.table.partition_keys, partition.values)


def own_places(table: Table, partitions: Iterable[Partition]) -> list[str]:
    """Directories that go with dropped partitions: of tables that own their data, inside the table or where a load
    published them. What lies elsewhere may be another's."""
    home = table.location if table.owns_data and not has_sources_data(table) else None
    places = [each.location for each in partitions if home and each.location]
    return [place for place in places if is_published(place) or (home and relative(place, home))]


class _Lanes:
    """Ordered work side by side: all of one key runs in one lane, in order; full lanes make the caller wait."""

    def __init__(self, count: int) -> None:
        self._pools = [ThreadPoolExecutor(1) for _ in range(max(1, count))]
        self._room = BoundedSemaphore(QUEUED)
        self._futures: list[Future[None]] = []

    def submit(self, key: tuple[str, str], work: Callable[..., None], *arguments: object) -> None:
        """Raises the first error of earlier work."""
        self._reap()
        self._room.acquire()
        future = self._pools[hash(key) % len(self._pools)].submit(work, *arguments)
        future.add_done_callback(lambda _: self._room.release())
        self._futures.append(future)

    def _reap(self, *, wait: bool = False) -> None:
        while self._futures and (wait or self._futures[0].done()):
            self._futures.pop(0).result()

    def __enter__(self) -> _Lanes:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._reap(wait=True)
        finally:
            for pool in self._pools:
                pool.shutdown(cancel_futures=kind is not None)


def comparable_partition(partition: Partition) -> Partition:
    """Without what each server sets for itself."""
    bare = comparable(partition)
    assert isinstance(bare, Partition)
    return msgspec.structs.replace(bare, create_time=0)


def _comparable_table(table: Table) -> Table:
    """Without what each server sets for itself, and without our own marks."""
    bare = comparable(table)
    assert isinstance(bare, Table)
    parameters = {key: value for key, value in bare.parameters.items() if not key.startswith(OWN)}
    return msgspec.structs.replace(bare, create_time=0, parameters=parameters)


def _batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


def _make_directory(location: str) -> None:
    if is_local(location):
        os.makedirs(local_path(location), exist_ok=True)


def _exists(location: str) -> bool:
    return os.path.isdir(local_path(location)) if is_local(location) else bool(store_for(location).list(location))


def _passing_partition(name: str) -> str:
    return name + PASSING
