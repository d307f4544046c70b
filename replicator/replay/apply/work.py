"""The state of a running load: its plan, the target's metastore and `$cmroot`; and the removal of data from the target.

Nothing is deleted: data is moved to the target's `$cmroot` before metadata stops naming it; data that may have readers
is noted, and moved later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from threading import Lock
from typing import TypeVar

from cmroot.store.buckets import list_root
from cmroot.store.listing import list_tree
from cmroot.store.place import (
    Place,
    is_local,
    is_within,
    join,
    local_path,
    normal,
    relative,
    remove_if_empty,
    resolved,
    touches,
)
from replicator.captures.dumps.layout import DumpReader
from replicator.core.grouping import batched
from replicator.core.model import Name, Partition, Table, partition_name
from replicator.core.roles import RoleMark, after_load, mark_of, marked, may_load_into
from replicator.core.runtime import Runtime
from replicator.core.text import count_text
from replicator.errors import ObjectNotFound
from replicator.metastore.client import PARTITION_BATCH, Metastore, MetastoreReader, checked
from replicator.metastore.concurrency import paced
from replicator.replay.apply.copying import remove_file
from replicator.replay.apply.origins import KeyedExecutor, Outcomes, Roots
from replicator.replay.apply.staging import OPEN, Claims, Fence, fenced, remove_above, sweep_empty
from replicator.replay.apply.staging import is_published as is_stamped_by_load
from replicator.replay.neighbours import Clearing, Free, Leaving, Neighbours, SparedPlace, clear, is_link
from replicator.replay.placement import BY_NAME, is_published, lies_by_name, not_noted, noted
from replicator.replay.plan import Plan, TablePlan
from replicator.replay.replica import has_own_data, has_sources_data
from replicator.replay.retired import LEFT, NOTES, Retired, note_left, note_retired, take_left
from replicator.replay.server_rules import in_waves
from replicator.replay.target import NEW

T = TypeVar("T")

DROPPED = 100  # maximum of tables that are empty, but not yet dropped, when a load is killed


@dataclass
class Changed:
    """Counts of changes on the target: objects of all kinds, and files recycled with entire directories."""

    objects: int = 0
    recycled: int = 0
    _lock: Lock = field(default_factory=Lock)

    def count(self, objects: int = 1) -> None:
        with self._lock:
            self.objects += objects


@dataclass(frozen=True)
class RecycleTask:
    """Directories whose files are moved to a `$cmroot`, except for paths used by others."""

    root: str
    clearings: Sequence[Clearing]


def run_recycle_task(task: RecycleTask, fence: Fence = OPEN) -> int:
    """Returns the number of files recycled. May run twice. Raises LeaseHeld if the attempt was abandoned, as another
    table may be located there since."""
    count = 0
    for each in task.clearings:
        fence.check()
        count += clear(task.root, each)
        remove_above(each.directory, each.above)
    return count


@dataclass(frozen=True)
class LeftTask:
    """Directories at locations that no load chooses, such as those of tables adopted in place: only files published by
    loads, which have stamps, are moved to a `$cmroot`, except those that other tables use. of_loads: all files are, as
    a load chose these locations."""

    root: str
    clearings: Sequence[Clearing]
    of_loads: bool = False


@dataclass(frozen=True)
class Left:
    """The number of removed files, and the number of other files in each directory that has some."""

    removed: int
    others: dict[str, int]


def run_left_task(task: LeftTask, fence: Fence = OPEN) -> Left:
    """Removes published files, and no links. May run twice. Raises LeaseHeld if the attempt was abandoned. Objects of
    object stores have no stamps, so none are removed there."""
    roots, removed, others = Roots(task.root, task.root), 0, dict[str, int]()
    for each in task.clearings:
        listing = list_root(each.directory) if each.root else list_tree(each.directory)
        real = resolved(each.directory)
        for file in listing.files if listing else ():
            place = join(each.directory, file.path_relative)
            if any(kept.covers(join(real, file.path_relative)) for kept in each.kept):
                continue
            if not is_link(place) and (task.of_loads or (is_local(place) and is_stamped_by_load(local_path(place)))):
                fence.check()
                removed += remove_file(place, roots)
            else:
                others[each.directory] = others.get(each.directory, 0) + 1
        if not each.kept:
            (remove_if_empty if each.root else sweep_empty)(each.directory)
    return Left(removed, others)


@dataclass(frozen=True)
class Replay:
    """A dump's plan with everything that copying, pruning and weighing use. `work`: that of a load; without it,
    nothing is changed."""

    plan: Plan
    reader: DumpReader
    target: Metastore
    roots: Roots
    runtime: Runtime
    work: Work | None = None

    @cached_property
    def parts(self) -> list[str]:
        """The paths of the dump's file entries."""
        return [place for place, _ in self.reader.buckets()]

    @cached_property
    def neighbours(self) -> Neighbours:
        """The occupants of locations, read once for all steps."""
        return self.work.neighbours if self.work else Neighbours(self.target)


class Work:
    """A plan, the target it is executed on, and counts of what was `changed` there so far."""

    def __init__(
        self,
        plan: Plan,
        target: Metastore,
        root: str,
        runtime: Runtime,
        check: Callable[[], None] = lambda: None,
        claims: Claims | None = None,
    ) -> None:
        """`root`: the target's $cmroot. `check`: raises LeaseHeld if the lease of the root was lost; called before each
        change of the target and each batch of removals. `claims`: those of a load."""
        self.plan, self.root, self.runtime, self.check = plan, root, runtime, check
        self.target, self._at_once = paced(checked(target, check), runtime.jobs)
        self.changed, self.outcomes = Changed(), Outcomes()
        self._neighbours: Neighbours | None = None
        self._lock, self._roles, self._elsewhere = Lock(), dict[str, RoleMark](), set[tuple[str, str]]()
        self.claims = claims

    @property
    def neighbours(self) -> Neighbours:
        """The occupants of locations. A load that removes nothing needs none."""
        if self._neighbours is None:
            self._neighbours = Neighbours(self.target)
        return self._neighbours

    def side_by_side(self, tables: int) -> KeyedExecutor:
        """Returns an executor for steps of so many tables: while calls wait for the server, the next are prepared."""
        return KeyedExecutor((lambda: 2 * self._at_once()) if tables > 1 else (lambda: 1))

    def with_role(self, database: str, parameters: dict[str, str]) -> dict[str, str]:
        """Returns a target database's properties with the role that this load sets, from its first write on. Raises
        Refused if it was made primary or fenced since the plan: checked before each write, as that may be hours
        later."""
        if self.plan.exact:
            return parameters
        label = f"database {database} of the target"
        epoch, role = self.epochs.get(database), mark_of(parameters, label)
        may_load_into(label, role, source_epoch=epoch)
        after = after_load(role, epoch)
        return parameters if after == role else marked(parameters, after)

    def may_begin(self) -> None:
        """Raises LeaseHeld if another load is running on a database of the plan. Called before any change."""
        claims = self.claims
        for name in self.plan.checkpoint if claims else ():
            with contextlib.suppress(ObjectNotFound):
                parameters = self.target.database(name).parameters
                assert claims
                claims.may_begin(name, parameters, planned=self.plan.seen.get(name, NEW))

    def still_claimed(self) -> None:
        """Raises LeaseHeld if a database of the plan has since been claimed by another load."""
        claims = self.claims
        for name in self.plan.checkpoint if claims else ():
            assert claims
            claims.still(name, self.target.database(name).parameters)

    @property
    def epochs(self) -> dict[str, int]:
        """The epochs of the dump, by the target's names; without unknown ones."""
        epochs = self.plan.metadata.epochs
        return {name: epochs[source] for source, name in self.plan.placement.databases.items() if source in epochs}

    def mark(self, step: TablePlan, kind: str = "") -> Place:
        """Returns a file of the target's $cmroot that marks a step of this load on a table, until the checkpoint."""
        return Place(self.root) / "loads" / self.plan.metadata.id / f"{step.name[0]}.{step.name[1]}{kind}"

    def name_of(self, step: TablePlan, partition: Partition) -> str:
        assert step.table is not None
        return partition_name(step.table.partition_keys, partition.values)

    def partitions_named(self, step: TablePlan, names: Sequence[str]) -> dict[str, Partition]:
        found = (each for page in self.target.partitions(*step.name, names) for each in page)
        return {self.name_of(step, partition): partition for partition in found}

    # ---- locations of partitions by their names (see `by_name`) ---------------------------------------------------

    def noted_by_name(self, table: Table) -> Table:
        """Returns a table that is about to be created, without partitions, with the note."""
        return table if self.plan.exact else noted(table, self._role(table.db))

    def note_places(self, step: TablePlan, partitions: Iterable[tuple[str, Partition]]) -> None:
        """Removes a table's note before partitions are added of which one is not located by its name."""
        if step.table is None or step.name in self._elsewhere:
            return
        for name, partition in partitions:
            if partition.location and not lies_by_name(step.table, name, partition.location):
                self.note_elsewhere(step)
                return

    def note_elsewhere(self, step: TablePlan) -> None:
        self._elsewhere.add(step.name)
        there = self.target.table(*step.name)
        if BY_NAME in there.parameters:
            self.target.alter_table(*step.name, not_noted(there))

    def note_by_name(self) -> None:
        """Notes large tables of which all partitions were read, so that the next load need not read them. Omits those
        that this load changes."""
        if self._neighbours is None:
            return
        databases, changed = set(self.plan.placement.databases.values()), {step.name for step in self.plan.tables}
        for name in sorted(self.neighbours.by_name - changed):
            if name[0] in databases and not self.plan.exact:
                with contextlib.suppress(ObjectNotFound):
                    there = self.target.table(*name)
                    self.target.alter_table(*name, noted(there, self._role(name[0])))

    def _role(self, database: str) -> RoleMark:
        with self._lock:
            if database not in self._roles:
                self._roles[database] = mark_of(self.target.database(database).parameters, database)
            return self._roles[database]

    # ---- removals -------------------------------------------------------------------------------------------------

    def drop_tables(self, tables: Sequence[Table]) -> None:
        """Drops tables in batches, after their data; all drops of the plan count as leaving. See `outcomes`."""
        going = {(each.db, each.name) for each in (*self.plan.drops, *tables)}
        created = [each.table for each in self.plan.tables if each.table and not each.rename_from]  # others are moved
        filled = {normal(each.location) for each in created if each.location}
        waves = reversed(in_waves((table, table) for table in tables))
        for some in chain.from_iterable(batched(wave, DROPPED) for wave in waves):
            directories: dict[str, Name] = {}
            with self.side_by_side(len(some)) as executor:
                for table in some:
                    executor.submit((table.db, table.name), self._add_directories, table, directories)
            self.let_go(directories, Leaving(going), filled)
            with self.side_by_side(len(some)) as executor:
                for table in some:
                    key = table.db, table.name
                    executor.submit(key, self.outcomes.attempt, self.plan.source_of(key), self._drop, table)
            self.neighbours.look_again(*((table.db, table.name) for table in some))

    def _add_directories(self, table: Table, found: dict[str, Name]) -> None:
        """Adds directories of data to remove with a table that owns it, or that left it at the source before the
        drop."""
        directories: list[str] = []
        if has_own_data(table):
            split = table.has_files_by_partition
            names = self.target.partition_names(table.db, table.name) if split else []
            directories = places_of(self.target, table, names)
        elif table.location and not has_sources_data(table):
            directories = self._places(table, self.plan.left.get((table.db, table.name), []))
        found.update(dict.fromkeys(directories, (table.db, table.name)))

    def _drop(self, table: Table) -> None:
        with contextlib.suppress(ObjectNotFound):
            self.target.drop_table(table.db, table.name)
            self.changed.count()

    def _places(self, table: Table, names: Sequence[str]) -> list[str]:
        """Returns the locations of some partitions, "" for the table itself."""
        split = table.has_files_by_partition
        found = [table.location] if table.location and "" in names and not split else []
        named = [name for name in names if name] if split else []
        for batch in self.target.partitions(table.db, table.name, named) if named else ():
            found += [each.location for each in batch if each.location]
        return found

    def drop_partitions(self, table: Table, names: Sequence[str]) -> None:
        """Drops partitions of a table of the target; their data inside the table is moved to `$cmroot` first."""
        for batch in batched(names, PARTITION_BATCH):
            there = [each for page in self.target.partitions(table.db, table.name, batch) for each in page]
            found = [partition_name(table.partition_keys, each.values) for each in there]
            places = dict.fromkeys(own_places(table, there), (table.db, table.name))
            self.let_go(places, leaving_partitions(table, found))
            if found:
                self.target.drop_partitions(table.db, table.name, found)
                self.neighbours.replaced(table, found)
                self.changed.count(len(found))

    def let_go(self, directories: Mapping[str, Name], leaving: Leaving, staying: Set[str] = frozenset()) -> None:
        """Removes data of objects about to be dropped, by their table: moves it to `$cmroot`, or, if it may have
        readers, notes it for later. leaving: objects that are dropped with it; files of all others remain. staying:
        see `recycle`."""
        if self.plan.snapshot:
            self.supersede([Retired(place, *name) for place, name in directories.items()])
        else:
            self.recycle(directories, leaving, staying)

    def supersede(self, directories: Sequence[Retired]) -> None:
        note_retired(self.root, self.plan.metadata.id, directories)

    def leave(self, step: TablePlan, places: Iterable[tuple[str, str | None, str | None]]) -> None:
        """Notes the old locations of objects that are relocated: (partition, present location, new location). Their
        files are removed by `recycle_left`: all of them in directories where loads put tables, elsewhere only published
        ones. Directories published by snapshots wait for their delay."""
        if self.plan.snapshot or step.shared or has_sources_data(step.there):
            return
        left, others, placement = list[Retired](), list[str](), self.plan.placement
        root = resolved(self.root)
        source = step.lineage.table.location if step.lineage.table else None
        for partition, old, new in places:
            if not old or not new or normal(old) == normal(new) or is_published(old):
                continue
            if placement.is_sources(old, source) or self.plan.is_uncaptured(step.lineage, partition):
                others.append(old)
            elif touches(resolved(old), root):
                self.plan.stays.add(step.name, old, f"the target's root {self.root} is that directory, or is in it")
            else:
                is_root = not partition and step.table is not None and step.table.has_files_by_partition
                left.append(Retired(old, *step.name, partition, stamped=not placement.holds(old), root=is_root))
        if others:
            more = f" and {len(others) - 1:,} more directories" if len(others) > 1 else ""
            name = ".".join(step.name)
            self.plan.warnings.append(f"the files in {others[0]}{more} were kept; {name} is no longer stored there")
        note_left(self.root, self.plan.metadata.id, left)

    def recycle_left(self) -> None:
        """Removes noted files, after all tables and partitions have their final locations; before the checkpoint."""
        if not any(load.endswith(LEFT) for load in (Place(self.root) / NOTES).list()):
            return
        self._neighbours = None  # tables have other locations now
        take_left(self.root, self._take_left)

    def _take_left(self, left: Sequence[Retired]) -> None:
        whose = {each.directory: (each.db, each.table) for each in left}
        whole = (each.directory for each in left if not (each.stamped or each.root))
        self.recycle({directory: whose[directory] for directory in whole}, Leaving())
        self._take_files([each for each in left if each.stamped], whose)
        self._take_files([each for each in left if each.root and not each.stamped], whose, of_loads=True)

    def _take_files(self, left: Sequence[Retired], whose: Mapping[str, Name], *, of_loads: bool = False) -> None:
        """Removes files of directories that may have others; see LeftTask."""
        roots = {each.directory for each in left if each.root}
        allowed = self.neighbours.removable if of_loads else self.neighbours.free
        free = allowed([each.directory for each in left], Leaving()) if left else Free()
        self.plan.warnings += self.plan.stays.add_held(free.held, whose, self.plan.mark.source)
        if free.clearings:
            self.check()
            engine = self.runtime.engines.for_work(len(free.clearings))
            clearings = (replace(each, root=each.directory in roots) for each in free.clearings)
            tasks = [LeftTask(self.root, some, of_loads) for some in batched(clearings, 100)]
            for done in fenced(engine, self.root, run_left_task, tasks):
                self.changed.recycled += done.removed
                for place, count in done.others.items():
                    why = f"{count_text(count, 'file')} not published by a load"
                    self.plan.stays.add(whose[place], place, why)

    def recycle(self, directories: Mapping[str, Name], leaving: Leaving, staying: Set[str] = frozenset()) -> None:
        """Moves files of directories, by their former table, to `$cmroot`, except those that objects other than
        `leaving` have at, in or above them. staying: the directories that are filled again, which remain."""
        if not directories:
            return
        free = self.neighbours.removable(directories, leaving)
        self.plan.warnings += self.plan.stays.add_held(free.held, directories, self.plan.mark.source)
        if free.clearings:
            self.check()
            engine = self.runtime.engines.for_work(len(free.clearings))
            around = to_recycle(self.root, free, self.plan, self.neighbours, staying)
            tasks = [RecycleTask(self.root, some) for some in batched(around, 100)]
            self.changed.recycled += sum(fenced(engine, self.root, run_recycle_task, tasks))


def to_recycle(
    root: str, free: Free, plan: Plan, neighbours: Neighbours, staying: Set[str] = frozenset()
) -> list[Clearing]:
    """Returns what may be cleared, without the `$cmroot`, and with the unused directories above: a purge makes some.
    staying: see `Work.recycle`."""
    return [
        replace(
            around_root(root, each),
            above=_above(each.directory, plan, neighbours),
            stays=normal(each.directory) in staying,
        )
        for each in free.clearings
    ]


def _above(place: str, plan: Plan, neighbours: Neighbours) -> int:
    """Returns how many directories above a path were created by loads for it alone."""
    below = [relative(place, home) for home in plan.placement.homes]
    levels = [each.count("/") for each in below if each]
    held = neighbours.depth(place)
    return min([*levels, *([] if held is None else [held])]) if levels else 0


def around_root(root: str, clearing: Clearing) -> Clearing:
    """Excludes a `$cmroot` in the directory from a clearing."""
    place = resolved(root)
    if not is_within(place, resolved(clearing.directory)):
        return clearing
    return Clearing(clearing.directory, (*clearing.kept, SparedPlace(place)))


def leaving_partitions(table: Table, names: Iterable[str]) -> Leaving:
    return Leaving(partitions={(table.db, table.name, name) for name in names})


def places_of(target: MetastoreReader, table: Table, partitions: Sequence[str]) -> list[str]:
    """Returns the directories that are removed with a dropped table: its own, and those of its partitions, by name,
    that are located elsewhere. Empty if it does not own its data."""
    if not table.location or not has_own_data(table):
        return []
    found = [table.location]
    for batch in target.partitions(table.db, table.name, partitions) if partitions else ():
        places = (partition.location for partition in batch)
        found += [place for place in places if place and relative(place, table.location) is None]
    return found


def own_places(table: Table, partitions: Iterable[Partition]) -> list[str]:
    """Returns the directories that are removed with dropped partitions: for tables that own their data, those inside
    the table or published by a load. Any other location may belong to another object."""
    home = table.location if table.owns_data and not has_sources_data(table) else None
    places = [each.location for each in partitions if home and each.location]
    return [place for place in places if is_published(place) or (home and relative(place, home))]
