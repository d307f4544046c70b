"""Prepare: the metadata side of a load before files are copied: databases, drops, renames, clears.

Every step may run twice: it looks at what is there, and does what is missing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import msgspec

from cmroot.place import is_local, join, local_path, normal, store_for
from replicator.errors import ObjectExists, ObjectNotFound
from replicator.load.carrying import CarryTask, run_carry_task
from replicator.load.placement import relative
from replicator.load.plan import TablePlan
from replicator.load.published import aside_of, at_place, is_moved_by_renaming, table_at_place
from replicator.load.renames import PASSING, passing_name, rename_order
from replicator.load.replica import LOADING, PUBLISH, RENAMED, SOURCE
from replicator.load.squash import PartitionFate
from replicator.load.superseded import Superseded
from replicator.load.target import applied_position
from replicator.load.work import Work, batches, exists, make_directory
from replicator.metastore.client import PARTITION_BATCH
from replicator.model import Partition, Table


class Preparation:
    """What a load does to the target's metadata before it copies."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def prepare(self) -> None:
        """Databases, drops, renames, clears: afterwards every directory that is copied into is where it will stay, and
        holds nothing that has no business there."""
        self.sweep_marks()
        self._begin_databases()
        for table in self._work.plan.drops:
            self._work.drop_table(table)
        self._rename_tables()
        for step in self._work.plan.tables:
            self._prepare_partitions(step)
        self._clear_tables()

    def sweep_marks(self) -> None:
        """What a load has done to tables counts as long as it goes on. This one begins anew, unless its databases say
        that it is theirs: marks of others that were given up go, and its own of a time when it came to its end."""
        own, databases = self._work.plan.metadata.id, set(self._work.plan.placement.databases.values())
        store, loads = store_for(self._work.root), join(self._work.root, "loads")
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
            return self._work.target.database(database).parameters.get(LOADING) == self._work.plan.metadata.id
        except ObjectNotFound:
            return False

    def _begin_databases(self) -> None:
        loading = {LOADING: self._work.plan.metadata.id, SOURCE: self._work.plan.metadata.root_id}
        loading |= {PUBLISH: "snapshot"} if self._work.plan.snapshot else {}
        for database in self._work.plan.create_databases:
            began = msgspec.structs.replace(
                database, parameters=self._work.with_role(database.name, database.parameters) | loading
            )
            if database.location and is_local(database.location):
                os.makedirs(local_path(database.location), exist_ok=True)
            with contextlib.suppress(ObjectExists):
                self._work.target.create_database(began)
                self._work.changed.count()
        for name in self._work.plan.checkpoint:
            there = self._work.target.database(name)
            parameters = self._work.with_role(name, there.parameters) | loading
            if parameters != there.parameters:
                self._work.target.alter_database(name, msgspec.structs.replace(there, parameters=parameters))

    def _rename_tables(self) -> None:
        renames = {step.rename_from: step.name for step in self._work.plan.tables if step.rename_from}
        occupied: list[tuple[str, str]] = []
        for db in {new[0] for new in renames.values()}:
            with contextlib.suppress(ObjectNotFound):
                occupied += [(db, name) for name in self._work.target.table_names(db)]
        ends = {step.name: step.lineage.names[-1].begin for step in self._work.plan.tables}
        # Tables whose directory no rename has moved at the source: it lay elsewhere by then. Their partitions stay.
        unmoved = {
            step.rename_from: step.table.location
            for step in self._work.plan.tables
            if step.rename_from and step.table and step.table.is_partitioned
            if step.table.location and step.lineage.only_located
        }
        for old, new in rename_order(renames, occupied, passing_name):
            there = self._work.target.table(*old)
            # The mark comes with the name: a load that ends here must not rename what it finds under the old one.
            mark = {RENAMED: str(ends[new])} if new in ends else {}
            renamed = msgspec.structs.replace(there, db=new[0], name=new[1], parameters=there.parameters | mark)
            if self._work.plan.snapshot and is_moved_by_renaming(there):
                renamed = self._moved_aside(there, renamed)
            elif old in unmoved and is_moved_by_renaming(there) and there.location:
                renamed = table_at_place(renamed, there.location, unmoved[old])
            self._work.target.alter_table(*old, renamed)
            self._work.changed.count()

    def _moved_aside(self, there: Table, renamed: Table) -> Table:
        """A table in the source's layout, which a server would move while it renames it, and so take from under who
        reads it: with a new place in the same call it does not."""
        assert there.location and there.storage and self._work.plan.snapshot
        place = aside_of(self._work.plan.snapshot, there)
        self._work.supersede([Superseded(there.location, *(renamed.db, renamed.name), successor=place)])
        if not there.is_partitioned:
            run_carry_task(CarryTask([(there.location, place)]))
        make_directory(place)
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
        store, mark = store_for(self._work.root), f"{self._work.mark(step)}.partitions"
        if not (begun or renamed) or store.exists(mark):
            return
        gone = {fate.before for fate in fates if fate.before and fate.replaced}
        filled_anew = {fate.before for fate in fates if fate.before == fate.now}
        for batch in batches(list(begun), PARTITION_BATCH):
            wanted = set(batch) & gone
            by_name = {
                key: partition
                for key, partition in self._work.partitions_named(step, batch).items()
                if applied_position(partition) < begun[key]  # else another was renamed to this name since
            }
            self._work.let_go(
                step.table,
                [
                    place
                    for key, partition in by_name.items()
                    if (place := partition.location)
                    and not step.shared
                    and (key in filled_anew or step.table.owns_data)
                ],
            )
            flipped = filled_anew if self._work.plan.snapshot else set()
            dropped = [key for key in batch if key in wanted - flipped and key in by_name]
            if dropped:
                self._work.target.drop_partitions(db, name, dropped)
                self._work.changed.count(len(dropped))
        self._rename_partitions(step, renamed)
        store.write_bytes(mark, b"")

    def _rename_partitions(self, step: TablePlan, fates: Sequence[PartitionFate]) -> None:
        """As tables are renamed: with a mark, and through passing names where they go round in a circle."""
        if not fates:
            return
        ends = {fate.now: fate for fate in fates if fate.now}
        starts = {fate.before: fate for fate in fates if fate.before}
        there = self._work.partitions_named(step, [*starts, *ends, *map(_passing_partition, starts)])
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
            if self._work.plan.snapshot:
                partition = self._stepped_aside(step, partition, old, new)
                renamed = msgspec.structs.replace(renamed, storage=partition.storage)
            self._work.target.rename_partition(*step.name, partition.values, renamed)
            there.update(self._work.partitions_named(step, [new]))
            self._work.changed.count()

    def _stepped_aside(self, step: TablePlan, partition: Partition, old: str, new: str) -> Partition:
        """A partition about to be renamed: a server moves its directory to where it belongs by its new name, unless it
        lies there. So what is in it is carried there first, and who reads it reads on."""
        assert step.table is not None
        database = self._work.target.database(step.name[0]).location
        if not (step.table.owns_data and database and partition.location):
            return partition
        place = join(database, step.name[1], new)
        if normal(place) == normal(partition.location):
            return partition
        if exists(place):  # of a partition that had the name before; the server refuses a name whose place is taken
            self._work.recycle([place])
        gone = Superseded(partition.location, *step.name, old, successor=place)
        self._work.supersede([gone])
        run_carry_task(CarryTask([(partition.location, place)]))
        make_directory(place)
        moved = at_place(partition, place)
        self._work.target.alter_partitions(*step.name, [moved])
        return moved

    def _clear_tables(self) -> None:
        """Recycles what lies where a table is to be copied whole; once per load, so that copies survive a restart."""
        if self._work.plan.snapshot:
            return  # nothing is in a place of the load's own
        store = store_for(self._work.root)
        homes = {each.table.location for each in self._work.plan.tables if each.table and each.table.location}
        protected = [*homes, *self._work.plan.placement.target_locations.values()]
        directories, marks = [], []
        for step in self._work.plan.tables:
            location = step.table.location if step.table else None
            if not step.clear or location is None:
                continue
            mark = self._work.mark(step)
            if store.exists(mark):
                continue
            if any(relative(other, location) is not None for other in protected if other != location):
                self._work.plan.warnings.append(f"{location} holds other objects too: old files in it were left")
            elif exists(location):
                directories.append(location)
            marks.append(mark)
        self._work.recycle(directories)
        for mark in marks:
            store.write_bytes(mark, b"")


def _passing_partition(name: str) -> str:
    return name + PASSING
