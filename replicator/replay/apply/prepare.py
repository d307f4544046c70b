"""Prepare: the metadata side of a load before files are copied: databases, drops, renames, clears.

Every step may run twice: it checks the present state, and does what is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from cmroot.names import foreign
from cmroot.store.place import Place, join, located, normal, relative
from replicator.core.formats import is_transactional
from replicator.core.grouping import batched
from replicator.core.model import Name, Partition, Table
from replicator.errors import ObjectNotFound
from replicator.metastore.client import PARTITION_BATCH
from replicator.replay.apply.existing_objects import create_databases
from replicator.replay.apply.origins import exists, make_directory
from replicator.replay.apply.transfer import clone
from replicator.replay.apply.work import Work, leaving_partitions
from replicator.replay.neighbours import Leaving, is_link
from replicator.replay.placement import at_place, lies_by_name, not_noted, table_at_place, with_path, without_path
from replicator.replay.plan import LeftOut, Plan, TablePlan, is_moved_by_renaming, of_kind, staging_of
from replicator.replay.replica import APART, EXTERNAL_DATA, LOADING, PUBLISH, RENAMED, SOURCE
from replicator.replay.retired import Retired
from replicator.replay.squash import PartitionFate
from replicator.replay.target import NEW, PASSING, applied_position, passing_name, rename_order

MARKED_AT_ONCE = 16  # each mark of a table is synced twice, and a filesystem syncs several together


class Preparation:
    """The changes of a load to the target's metadata before it copies."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._kinds: dict[tuple[str, str], bool | None] = {}  # True for tables that are external now

    def prepare(self) -> None:
        """Prepares databases, drops, renames and clears: afterwards every directory that is copied into has its final
        location, and contains no unrelated files."""
        self.sweep_marks()
        self._begin_databases()
        self._work.drop_tables(self._work.plan.drops)
        self._leave_refused()
        self._rename_tables()
        self._leave_refused()
        for step in self._work.plan.tables:
            self._settle(step)
            self._convert(step)
        self._leave_refused()
        for step in self._work.plan.tables:
            self._prepare_partitions(step)
        self._clear_tables()

    def sweep_marks(self) -> None:
        """Deletes the marks of earlier loads. A load's marks are valid until it ends: those of abandoned loads are
        deleted, and its own, too, unless its databases record that it was interrupted and now resumes."""
        own, databases = self._work.plan.metadata.id, set(self._work.plan.placement.databases.values())
        loads = Place(self._work.root) / "loads"
        for load in loads.list():
            if load == own and any(self._is_loading(name) for name in databases):
                continue
            place = loads / load
            for mark in place.list():
                if mark.partition(".")[0] in databases:
                    (place / mark).remove_own()
            if not place.list():
                place.remove_own_tree()

    def _is_loading(self, database: str) -> bool:
        try:
            return self._work.target.database(database).parameters.get(LOADING) == self._work.plan.metadata.id
        except ObjectNotFound:
            return False

    def _leave_refused(self) -> None:
        """Leaves out tables that the target refuses to drop or rename; they remain, and nothing replaces them."""
        plan, outcomes = self._work.plan, self._work.outcomes
        for step in [each for each in plan.tables if outcomes.is_refused(each.source)]:
            plan.left_out.append(LeftOut(step.lineage, step.name, None, outcomes.reason(step.source)))
            plan.tables.remove(step)
        plan.drops[:] = [each for each in plan.drops if not outcomes.is_refused(plan.source_of((each.db, each.name)))]

    def _begin_databases(self) -> None:
        loading = {LOADING: self._work.plan.metadata.id, SOURCE: self._work.plan.metadata.root_id}
        loading |= {PUBLISH: "snapshot"} if self._work.plan.snapshot else {}
        claims = self._work.claims
        loading |= claims.own.parameters() if claims else {}
        placement = self._work.plan.placement
        apart = {placement.database(name): {EXTERNAL_DATA: APART} for name in placement.apart}
        if self._work.plan.create_databases:
            create_databases(self._work, loading, apart)
        for name in self._work.plan.checkpoint:
            there = self._work.target.database(name)
            if claims:
                claims.may_begin(name, there.parameters, planned=self._work.plan.seen.get(name, NEW))
            parameters = self._work.with_role(name, there.parameters) | loading | apart.get(name, {})
            if parameters != there.parameters:
                self._work.target.alter_database(name, msgspec.structs.replace(there, parameters=parameters))
        self._work.still_claimed()

    def _rename_tables(self) -> None:
        renames = {step.rename_from: step.name for step in self._work.plan.tables if step.rename_from}
        occupied: list[tuple[str, str]] = []
        for db in {new[0] for new in renames.values()}:
            with contextlib.suppress(ObjectNotFound):
                occupied += [(db, name) for name in self._work.target.table_names(db)]
        ends = {step.name: step.lineage.names[-1].begin for step in self._work.plan.tables}
        # Tables whose directory no rename moved at the source, as its location had changed before: partitions remain.
        unmoved = {
            step.rename_from: step.table.location
            for step in self._work.plan.tables
            if step.rename_from and step.table and step.table.has_files_by_partition
            if step.table.location and step.lineage.only_located
        }
        # Those that were external when they were renamed, whatever their kind before and now.
        staying = {
            step.rename_from
            for step in self._work.plan.tables
            if step.rename_from and not any(called.moved for called in step.lineage.names)
        }
        sources, begun = {step.rename_from: step.source for step in self._work.plan.tables}, dict[Name, Name]()
        outcomes = self._work.outcomes
        for old, new in rename_order(renames, occupied, passing_name):
            first = begun.pop(old, old)
            # The mark is set with the name: after a kill here the load must not rename a new table of the old name.
            mark = {RENAMED: str(ends[new])} if new in ends else {}
            outcomes.attempt(sources[first], self._rename, old, new, mark, unmoved.get(old), old in staying)
            if outcomes.is_refused(sources[first]):
                outcomes.stays(self._work.plan.source_of(old), sources[first])
            else:
                begun[new] = first

    def _rename(self, old: Name, new: Name, mark: dict[str, str], place: str | None, stays: bool) -> None:
        """Renames a table. place: its unchanged location; stays: its directory remains, as for an external one. See
        `_rename_tables`."""
        there = self._work.target.table(*old)
        renamed = msgspec.structs.replace(there, db=new[0], name=new[1], parameters=there.parameters | mark)
        renamed = not_noted(renamed)  # published partitions are located by the old name
        if self._work.plan.snapshot and is_moved_by_renaming(there):
            renamed = self._moved_aside(there, renamed)
        elif place is not None and is_moved_by_renaming(there) and there.location:
            renamed = table_at_place(renamed, there.location, place)
        elsewhere = there.is_external and there.moves_with_name  # such a table is moved wherever it is located
        if (elsewhere and (self._work.plan.snapshot or place is not None)) or (
            stays and not self._work.plan.snapshot and is_moved_by_renaming(there)
        ):
            self._work.target.alter_table(*old, of_kind(there, external=True))
            renamed = of_kind(renamed, external=True)  # until it is committed
        plain = without_path(renamed)
        if is_moved_by_renaming(renamed) and _same_place(renamed.location, there.location):
            home = self._work.target.database(new[0]).location
            if home and there.location and not _same_place(there.location, join(home, new[1])):
                self._make_way(join(home, new[1]), new, Leaving())
        self._work.target.alter_table(*old, plain)
        if plain is not renamed:
            self._work.target.alter_table(*new, with_path(self._work.target.table(*new)))
        self._work.neighbours.look_again(old, new)
        self._work.changed.count()

    def _settle(self, step: TablePlan) -> None:
        """Moves a table whose directory moved at the source but not here (it had another kind here), or to another
        location: its remaining files are carried to the new directory, before the old one is recycled. The table never
        refers to an empty location. May run twice: after a kill the next run does the rest."""
        table, lineage = step.table, step.lineage
        if table is None or not step.exists or table.is_view or step.shared or lineage.complete or not table.location:
            return
        if self._work.plan.snapshot or (table.has_files_by_partition and not any(each.moved for each in lineage.names)):
            return
        if step.rename_from is None and step.there is not None and _same_place(step.there.location, table.location):
            left = None
        else:
            there = self._work.target.table(*step.name)
            left = None if _same_place(there.location, table.location) else there
        note = self._work.mark(step, ".left")
        if left is not None and left.location:
            # An earlier release that was killed here left Spark's `path` at the location from before a server's move.
            in_the_way = [table.location] if exists(left.location) and exists(table.location) else []
            self._work.recycle(dict.fromkeys(in_the_way, step.name), Leaving({step.name}))
            note.write_bytes(left.location.encode())
            self._carry(step.name, [(left.location, table.location)], of_roots=table.has_files_by_partition)
            if table.is_partitioned:
                self._settle_partitions(step, left.location, table.location)
            make_directory(table.location)
            self._work.target.alter_table(*step.name, table_at_place(not_noted(left), left.location, table.location))
            self._work.neighbours.look_again(step.name)
            self._work.changed.count()
        if note.exists():
            self._work.recycle({note.read_bytes().decode(): step.name}, Leaving({step.name}))
            note.remove_own()

    def _convert(self, step: TablePlan) -> None:
        """Makes a table of the target transactional, before its directories get files of write ids: a server then
        refuses it (TransactionalValidationListener). A table that is refused is left out. May run twice."""
        if step.table is None or not step.exists or not is_transactional(step.table):
            return
        if step.there is None or is_transactional(step.there):
            return
        there = self._work.target.table(*step.name)
        made = {key: value for key, value in step.table.parameters.items() if key.lower().startswith("transactional")}
        converted = msgspec.structs.replace(there, parameters=there.parameters | made)
        self._work.outcomes.attempt(step.source, self._work.target.alter_table, *step.name, converted)

    def _carry(self, name: Name, pairs: Sequence[tuple[str, str]], *, of_roots: bool = False) -> None:
        """Carries files of a table from one directory of each pair to the other. of_roots: as of a `CloneTask`."""
        clone(self._work, name, pairs, of_roots=of_roots)

    def _settle_partitions(self, step: TablePlan, old: str, new: str) -> None:
        names = self._work.target.partition_names(*step.name)
        for batch in batched(names, PARTITION_BATCH):
            moved, pairs = [], []
            for partition in self._work.partitions_named(step, batch).values():
                location = partition.storage.location if partition.storage else None
                below = relative(location, old) if location else None
                if below and location:
                    if partition.location:
                        pairs.append((location, join(new, below)))
                    moved.append(at_place(partition, join(new, below)))
            self._carry(step.name, pairs)
            if moved:
                self._work.target.alter_partitions(*step.name, moved)

    def _moved_aside(self, there: Table, renamed: Table) -> Table:
        """Returns a table in the source's layout at a new location. A server would move it when it renames it, while it
        is being read; a new location in the same call prevents that."""
        assert there.location and there.storage and self._work.plan.snapshot
        place = staging_of(self._work.plan.snapshot, there)
        self._work.supersede([Retired(there.location, *(renamed.db, renamed.name), successor=place)])
        self._carry((renamed.db, renamed.name), [(there.location, place)], of_roots=there.has_files_by_partition)
        make_directory(place)
        return table_at_place(renamed, there.location, place)

    def _prepare_partitions(self, step: TablePlan) -> None:
        """Drops dropped partitions, empties recreated ones, and renames renamed ones. Once per load: later the names
        may belong to others."""
        if not step.exists or step.clear or step.table is None:
            return
        db, name = step.name
        going = goings(step)
        begun, gone, refilled = going.begun, going.gone, going.refilled
        renamed = [fate for fate in step.lineage.fates if fate.renamed]
        mark = self._work.mark(step, ".partitions")
        if not (begun or renamed) or mark.exists():
            return
        for batch in batched(begun, PARTITION_BATCH):
            wanted = set(batch) & gone
            there = self._work.partitions_named(step, batch)
            if other := there.keys() - begun.keys():
                raise foreign(
                    ".".join(step.name), "partitions", sorted(other), f"are returned for {batch[:5]} of the dump"
                )
            by_name = {
                key: partition
                for key, partition in there.items()
                if applied_position(partition) < begun[key]  # otherwise another was renamed to this name since
            }
            places = [place for key, each in by_name.items() if (place := each.location) and going.takes(step, key)]
            filled = {normal(each.location or "") for key, each in by_name.items() if going.fills(step, key, each)}
            self._work.let_go(dict.fromkeys(places, step.name), leaving_partitions(step.table, by_name), filled)
            flipped = refilled if self._work.plan.snapshot else set()
            dropped = [key for key in batch if key in wanted - flipped and key in by_name]
            if dropped:
                self._work.target.drop_partitions(db, name, dropped)
                self._work.neighbours.replaced(step.table, dropped)
                self._work.changed.count(len(dropped))
        self._rename_partitions(step, renamed)
        mark.write_bytes(b"")

    def _rename_partitions(self, step: TablePlan, fates: Sequence[PartitionFate]) -> None:
        """Renames partitions like tables: with a mark, and through intermediate names if they form a cycle."""
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
        if step.table is not None and not step.table.moves_with_name:  # their locations keep the old names
            self._work.note_elsewhere(step)
        for old, new in rename_order(renames, there, _passing_partition):
            partition, end = there.pop(old), ends.get(new)
            values = end.values if end else (*partition.values[:-1], partition.values[-1] + PASSING)
            mark = {RENAMED: str(end.names[-1][0])} if end else {}
            renamed = msgspec.structs.replace(partition, values=values, parameters=partition.parameters | mark)
            first = starts.get(old)
            if first is not None and not self._work.plan.snapshot:
                self._be_of_kind(step, external=not first.moves)
            if self._work.plan.snapshot:
                partition = self._stepped_aside(step, partition, old, new)
                renamed = msgspec.structs.replace(renamed, storage=partition.storage)
            elif first is None or first.moves:
                self._make_way_for_partition(step, partition, new)
            self._work.target.rename_partition(*step.name, partition.values, renamed)
            now = self._work.partitions_named(step, [new])
            there.update(now)
            if step.table is not None:
                self._work.neighbours.replaced(step.table, [old], now.values())
            self._work.changed.count()

    def _make_way(self, place: str, name: Name, leaving: Leaving) -> None:
        """Removes files that an object left which was dropped while it was external: a server refuses to move a
        directory to one that exists. The source has none there."""
        if exists(place):
            self._work.recycle({place: name}, leaving)

    def _make_way_for_partition(self, step: TablePlan, partition: Partition, new: str) -> None:
        """Does it below the table's directory, or, as servers before Hive 3 do, below the one of its name."""
        there, database = self._work.target.table(*step.name), self._work.target.database(step.name[0])
        if is_moved_by_renaming(there):
            homes = [join(database.location, there.name)] if database.location else []
            for place in dict.fromkeys(join(home, new) for home in (*homes, there.location or "")):
                if not _same_place(place, partition.location):
                    self._make_way(place, step.name, Leaving())

    def _be_of_kind(self, step: TablePlan, *, external: bool) -> None:
        """Gives a table the kind that it had when a partition was renamed, by which a server decides to move the
        partition's directory; the commit sets the final kind."""
        if step.name not in self._kinds:
            there = self._work.target.table(*step.name)
            translated = there.is_external and there.moves_with_name  # by a server that supports such tables
            self._kinds[step.name] = None if translated else there.is_external
        if self._kinds[step.name] != external:
            there = self._work.target.table(*step.name)
            self._work.target.alter_table(*step.name, of_kind(not_noted(there), external=external))
            self._kinds[step.name] = external

    def _stepped_aside(self, step: TablePlan, partition: Partition, old: str, new: str) -> Partition:
        """Carries a partition's files before its rename: a server moves its directory to the location of its new name,
        unless it is there already. So concurrent readers are not interrupted."""
        assert step.table is not None
        database = self._work.target.database(step.name[0]).location
        if not (step.table.owns_data and database and partition.location):
            return partition
        place = join(database, step.name[1], new)
        if normal(place) == normal(partition.location):
            return partition
        self._make_way(place, step.name, leaving_partitions(step.table, [old]))
        gone = Retired(partition.location, *step.name, old, successor=place)
        self._work.supersede([gone])
        self._carry(step.name, [(partition.location, place)])
        make_directory(place)
        moved = at_place(partition, place)
        self._work.target.alter_partitions(*step.name, [moved])
        return moved

    def _clear_tables(self) -> None:
        """Recycles old files at the location of a table that is copied completely; once per load, so that copies
        survive a restart."""
        if self._work.plan.snapshot:
            return  # a directory of the load's own is empty
        self._leave_linked()
        marks, places = [], dict[str, tuple[str, str]]()
        for step in self._work.plan.tables:
            location = step.table.location if step.table else None
            if not step.clear or location is None:
                continue
            mark = self._work.mark(step)
            if mark.exists():
                continue
            if any(
                relative(home, location) is not None for home in self._work.plan.placement.target_locations.values()
            ):
                self._work.plan.warnings.append(f"a database is stored in {location}: old files in it were kept")
            elif exists(location) and not is_link(location):
                places[location] = step.name
            marks.append(mark)
        self._work.recycle(places, Leaving(set(places.values())), {normal(place) for place in places})
        with ThreadPoolExecutor(MARKED_AT_ONCE) as pool:
            list(pool.map(lambda mark: mark.write_bytes(b""), marks))

    def _leave_linked(self) -> None:
        """Leaves out tables whose directory is a symbolic link: old files in it would become rows of the new table."""
        for step in self._work.plan.tables:
            location = step.table.location if step.table else None
            if not (step.clear and location and is_link(location)) or self._work.mark(step).exists():
                continue
            if not exists(location) or located(location).list():  # an empty one is used like any directory
                why = f"its directory {location} is a symbolic link to a directory that is not empty"
                self._work.outcomes.leave(step.source, f"{why}: empty it, or remove the link")
        self._leave_refused()


def _same_place(one: str | None, other: str | None) -> bool:
    return normal(one or "/") == normal(other or "/")


@dataclass(frozen=True)
class Goings:
    """Partitions of the target that are dropped or begin again: `begun`: name -> position of that; `gone`: those
    that were dropped; `refilled`: those with the same name at the end; `relocated`: those whose location changed to
    other files elsewhere."""

    begun: dict[str, int]
    gone: frozenset[str]
    refilled: frozenset[str]
    relocated: frozenset[str]

    def takes(self, step: TablePlan, name: str) -> bool:
        """Returns True if the files of such a partition are removed."""
        owns = step.table is not None and step.table.owns_data
        return not step.shared and (owns or name in self.refilled | self.relocated)

    def fills(self, step: TablePlan, name: str, partition: Partition) -> bool:
        """Returns True if such a partition's directory is filled again; the commit removes those that are not."""
        if step.table is None or not partition.location or name not in self.refilled - self.relocated:
            return False
        return lies_by_name(step.table, name, partition.location)


def goings(step: TablePlan) -> Goings:
    """Returns the partitions that are removed or recreated; none for a table that is new, or copied completely."""
    fates = step.lineage.fates if step.exists and not step.clear and step.table is not None else []
    return Goings(
        {fate.before: fate.since for fate in fates if fate.before and (fate.replaced or fate.complete)},
        frozenset(fate.before for fate in fates if fate.before and fate.replaced),
        frozenset(fate.before for fate in fates if fate.before and fate.before == fate.now),
        frozenset(fate.before for fate in fates if fate.before and fate.relocated),
    )


def clears(plan: Plan, step: TablePlan) -> str | None:
    """Returns the directory that is emptied before a table is copied into it completely; None if there is none."""
    place = step.table.location if step.table and step.clear else None
    homes = plan.placement.target_locations.values()
    if place is None or any(relative(home, place) is not None for home in homes):
        return None
    return place if exists(place) else None


def _passing_partition(name: str) -> str:
    return name + PASSING
