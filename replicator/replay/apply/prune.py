"""Prune: removal of surplus data from tables that a bootstrap by difference retains.

Partitions that the dump does not have are dropped, and files that it does not name are moved to the target's `$cmroot`,
before anything is copied: if a directory was shared, the copy restores required files. Surplus files that have readers
until a log or the metastore names newer ones are removed then. Every step may run twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cmroot.store.buckets import list_root
from cmroot.store.listing import list_tree
from cmroot.store.place import join, normal, relative, resolved
from replicator.captures.dumps.layout import INCREMENTAL
from replicator.core.formats import FORMATS, format_of
from replicator.core.formats.interface import Removals
from replicator.core.grouping import batched, shared
from replicator.core.model import Name, Partition, partition_name
from replicator.core.text import parse_partition_filter
from replicator.errors import ObjectNotFound
from replicator.metastore.client import MetastoreReader
from replicator.metastore.events.scope import matches_name
from replicator.replay.apply.copy_task import entries, file_in, fold_entries, outside_files, slashed
from replicator.replay.apply.copying import remove_file
from replicator.replay.apply.existing_objects import named_files
from replicator.replay.apply.origins import Roots
from replicator.replay.apply.staging import OPEN, Fence, fenced, sweep_empty
from replicator.replay.apply.work import (
    RecycleTask,
    Replay,
    leaving_partitions,
    own_places,
    run_recycle_task,
    to_recycle,
)
from replicator.replay.neighbours import Clearing, Free, Leaving, to_clear
from replicator.replay.plan import FileRules, Plan, TablePlan
from replicator.replay.retired import Retired, note_retired, reported
from replicator.replay.squash import Lineage, surviving_partitions

HOMES = 10_000  # directories of one task, which reads the paths of the entire dump


@dataclass(frozen=True)
class PruneTask:
    """Directories of the target from which files that the dump does not name are removed: (location in the dump,
    directory, with paths in it used by others, directory of its table). `parts`: the dump's file entries. `roots`: None
    only counts. `private`: see CopyTask. `formats`: by directory of a table, those that are special.
    `rules`: of tables that may have files from outside of their location."""

    parts: Sequence[str]
    homes: Sequence[tuple[str, Clearing, str]]
    roots: Roots | None
    private: bool = False
    formats: Mapping[str, str] = field(default_factory=dict)
    rules: FileRules | None = None


@dataclass
class Pruned:
    """The removals, done or only counted: partitions, and files with their bytes, including those of partitions. When
    only counted: `dropped`, (table, partition) -> files and bytes; `of_tables`, by table, files, bytes, and bytes of
    the dump's files that do not exist yet."""

    partitions: int = 0
    files: int = 0
    bytes: int = 0
    dropped: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    of_tables: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def count(self, table: str, files: int, size: int, missing: int) -> None:
        counts = self.of_tables.get(table, (0, 0, 0))
        self.of_tables[table] = counts[0] + files, counts[1] + size, counts[2] + missing


def prune(replay: Replay, removals: Removals) -> Pruned:
    """Drops surplus partitions and moves surplus files of tables to the target's $cmroot. Files used by tables that
    are not in the dump remain. removals: the step of the load, in which tables of some formats are pruned."""
    done = Pruned()
    homes = _walk(replay, _Dropping(replay, done), removals)
    _clear_homes(_OwnHomes(replay, done, acts=True).free(homes), replay, done)
    return done


def surplus(replay: Replay) -> Pruned:
    """Returns the removals that `prune` would make. Changes nothing."""
    found = Pruned()
    for step in Removals:
        homes = _walk(replay, _Counting(replay, found), step)
        _clear_homes(_OwnHomes(replay, found, acts=False).free(homes), replay, found, acts=False)
    names = _names_by_home(replay.plan)
    found.of_tables = {
        ".".join(names[home]) if home in names else home: counts for home, counts in found.of_tables.items()
    }
    return found


def run_prune_task(task: PruneTask, fence: Fence = OPEN) -> Pruned:
    """Lists a task's directories and removes files that the dump does not name. May run twice. Raises LeaseHeld if the
    attempt was abandoned."""
    counting = task.roots is None
    named = named_files(task.parts, {normal(source) for source, _, _ in task.homes}, ("size",) if counting else ())
    outside = outside_files(task.parts, task.rules) if task.rules is not None else {}
    found = Pruned()
    for source, home, table in task.homes:
        directory = home.directory
        listing = list_root(directory) if home.root else list_tree(directory, unfinished=True)
        wanted = named.get(normal(source), {})
        if table in task.formats:
            format = FORMATS[task.formats[table]]
            wanted = {format.replica_path(path): about for path, about in wanted.items()}
        wanted |= outside.get(slashed(directory), {})
        real = resolved(directory) if home.kept else ""
        before = found.files, found.bytes
        for file in listing.files if listing else ():
            if file.path_relative in wanted or any(each.covers(join(real, file.path_relative)) for each in home.kept):
                continue
            fence.check()
            if task.roots is None or remove_file(join(directory, file.path_relative), task.roots, private=task.private):
                found.files += 1
                found.bytes += file.size
        if counting:
            there = {file.path_relative for file in listing.files} if listing else set()
            missing = sum(size or 0 for path, (size,) in wanted.items() if path not in there)  # type: ignore[misc]
            found.count(table, found.files - before[0], found.bytes - before[1], missing)
        if task.roots is not None and not home.kept and not home.root:
            sweep_empty(directory)
    return found


# ---- tables and partitions ----------------------------------------------------------------------------------------


def _walk(replay: Replay, extra: _Dropping | _Counting, removals: Removals) -> Iterator[tuple[str, str, str]]:
    """Yields directories of all pruned tables and of their partitions; passes partitions that the dump does not have to
    `extra`. Memory: the names of one table's partitions at a time. removals: as of `prune`."""
    plan, target = replay.plan, replay.target
    waiting = {
        id(step.lineage): step
        for step in plan.tables
        if step.prune and step.table and (step.table.is_partitioned or not step.table.is_view)
        if format_of(step.table).removals is removals
    }
    partitioned = {key for key, step in waiting.items() if step.table and step.table.is_partitioned}
    current: TablePlan | None = None
    wanted: set[str] = set()
    if partitioned:
        for lineage, named in surviving_partitions(plan.squashed, replay.reader.records()):
            step = waiting.get(id(lineage))
            if step is None:
                continue
            if step is not current:  # in a bootstrap the partitions of a table are consecutive
                if current is not None:
                    extra.take(current, _extra_partitions(plan, current, wanted, target))
                current, wanted = step, set()
                partitioned.discard(id(lineage))
            wanted |= {name for name, _ in named}
            home = step.table.location if step.table and step.table.location else ""
            for name, partition in named:
                place = _place(plan, step, partition.location, name) if partition.location else None
                if partition.location and place:
                    yield partition.location, place, home
    if current is not None:
        extra.take(current, _extra_partitions(plan, current, wanted, target))
    for key, step in waiting.items():
        assert step.lineage.table is not None and step.table is not None
        if key in partitioned:
            extra.take(step, _extra_partitions(plan, step, set(), target))
        if location := step.lineage.table.location:
            place = _place(plan, step, location, "")
            if place:
                yield location, place, step.table.location or place


def _place(plan: Plan, step: TablePlan, location: str, partition: str) -> str | None:
    """Returns the directory of an object from which unnamed files are removed; None if there is none."""
    assert step.lineage.table is not None
    if step.shared or plan.is_uncaptured(step.lineage, partition):
        return None
    if not partition and step.table and step.table.has_files_by_partition:
        return step.table.location
    if step.place is not None:
        return join(step.place, partition) if partition in step.touched or not step.exists else None
    return plan.placement.inside(step.lineage.table.db, step.lineage.table.location, location)


def _extra_partitions(
    plan: Plan, step: TablePlan, wanted: set[str], target: MetastoreReader
) -> Iterator[list[Partition]]:
    """Yields partitions that the dump does not have; those outside of its filter are unknown to it, and omitted."""
    if not step.exists or step.lineage.now is None:
        return
    text = plan.metadata.scope.partitions.get(".".join(step.lineage.now).lower())
    held = parse_partition_filter(text) if text else None
    try:
        names = sorted(set(target.partition_names(*step.name)) - wanted)
    except ObjectNotFound:
        return
    if held is not None:
        names = [name for name in names if matches_name(held, name)]
    if names:
        yield from target.partitions(*step.name, names)


@dataclass(frozen=True)
class _Counting:
    """Counts partitions that would be dropped."""

    replay: Replay
    found: Pruned

    def take(self, step: TablePlan, batches: Iterator[list[Partition]]) -> None:
        assert step.table is not None
        for batch in batches:
            self.found.partitions += len(batch)
            free = self.replay.neighbours.removable(
                own_places(step.table, batch), leaving_partitions(step.table, _names(step, batch))
            )
            self.found.warnings += reported(free.held)
            sizes = {clearing.directory: to_clear(clearing) for clearing in free.clearings}
            for name, partition in zip(_names(step, batch), batch, strict=True):
                files, size = sizes.pop(partition.location or "", (0, 0))
                self.found.dropped[".".join(step.name), name] = files, size
                self.found.files += files
                self.found.bytes += size


@dataclass(frozen=True)
class _Dropping:
    """Drops partitions; their data is moved to the target's $cmroot first."""

    replay: Replay
    done: Pruned

    def take(self, step: TablePlan, batches: Iterator[list[Partition]]) -> None:
        assert step.table is not None
        plan, root, neighbours = self.replay.plan, self.replay.roots.target, self.replay.neighbours
        for batch in batches:
            places, names = own_places(step.table, batch), _names(step, batch)
            if places and plan.snapshot:
                note_retired(root, plan.snapshot, [Retired(place, *step.name) for place in places])
            elif places:
                free = neighbours.removable(places, leaving_partitions(step.table, names))
                self.done.warnings += plan.stays.add_held(free.held, dict.fromkeys(places, step.name), plan.mark.source)
                around = to_recycle(root, free, plan, neighbours)
                tasks = [RecycleTask(root, each) for each in batched(around, 100)]
                engine = self.replay.runtime.engines.for_work(len(places))
                self.done.files += sum(fenced(engine, root, run_recycle_task, tasks))
            self.replay.target.drop_partitions(*step.name, names)
            neighbours.replaced(step.table, names)
            self.done.partitions += len(names)


def _names_by_home(plan: Plan) -> dict[str, Name]:
    """Returns tables of the target by location."""
    return {step.table.location: step.name for step in plan.tables if step.table and step.table.location}


def _names(step: TablePlan, partitions: Sequence[Partition]) -> list[str]:
    assert step.table is not None
    return [partition_name(step.table.partition_keys, each.values) for each in partitions]


@dataclass
class _OwnHomes:
    """Directories from which files that the dump does not name may be removed. For tables in the dump all files are
    named; for others none, so their files remain. Most partitions are located in directories of their table alone,
    which is checked once per table. `acts`: True to remove, False to count."""

    replay: Replay
    done: Pruned
    acts: bool
    _alone: dict[str, bool] = field(default_factory=dict)

    def free(self, homes: Iterator[tuple[str, str, str]]) -> Iterator[tuple[str, Clearing, str]]:
        """Yields the directories to clear. homes: (location in the dump, directory, directory of its table)."""
        plan = self.replay.plan
        own, names = Leaving({step.name for step in plan.tables}), _names_by_home(plan)
        roots = {step.table.location for step in plan.tables if step.table and step.table.has_files_by_partition}
        for some in batched(homes, HOMES):
            some = [each for each in some if each[1] not in roots or self._is_alone(each[1], each[2], own)]
            places = [place for _, place, home in some if not self._is_alone(place, home, own)]
            free = self.replay.neighbours.free(places, own)
            if self.acts:
                whose = {place: names.get(home, ("", place)) for _, place, home in some}
                self.done.warnings += plan.stays.add_held(free.held, whose, plan.mark.source)
            else:
                self.done.warnings += reported(free.held)
            around, held = {each.directory: each for each in free.clearings}, {place for place, _ in free.held}
            for location, place, home in some:
                if place not in held:
                    clearing = Clearing(place, root=True) if place in roots else around.get(place, Clearing(place))
                    yield location, clearing, home

    def _is_alone(self, place: str, home: str, own: Leaving) -> bool:
        if home not in self._alone:
            touching = self.replay.neighbours.touching(home)
            self._alone[home] = all(own.has(each.db, each.table) for each in touching)
        return self._alone[home] and relative(place, home) is not None


def _clear_homes(
    homes: Iterator[tuple[str, Clearing, str]], replay: Replay, done: Pruned, *, acts: bool = True
) -> None:
    """Runs the tasks; partitions are dropped while `homes` is consumed."""
    roots, private = (replay.roots, replay.plan.snapshot is not None) if acts else (None, False)
    made = ((step.table, replay.plan.format_of(step.lineage.table)) for step in replay.plan.tables)
    formats = {table.location or "": format.name for table, format in made if table and format.special}
    rules = replay.plan.file_rules() if any(FORMATS[name].has_outside for name in formats.values()) else None
    for some in batched(homes, 4 * HOMES):
        engine = replay.runtime.engines.for_work(len(some))
        parts = shared(some, engine.parallelism, HOMES)
        tasks = [PruneTask(replay.parts, each, roots, private, formats, rules) for each in parts]
        running = fenced(engine, roots.target, run_prune_task, tasks) if roots else engine.run(run_prune_task, tasks)
        for report in running:
            done.files += report.files
            done.bytes += report.bytes
            for table, counts in report.of_tables.items():
                done.count(table, *counts)


# ---- orphans ---------------------------------------------------------------------------------------------------------
# Orphan files: files in the directory of a recreated partition that are not its own.
#
# An external table's data remains when a partition is dropped, on both sides. If its owner then removes the files and
# adds the partition again, the source has the new ones only, and the target would show both. All files of a partition
# that is recreated in a range are in the range, so other files in its directory are moved to `$cmroot`, before anything
# is copied. Has side effects; may run twice.


PLACES = 1000  # directories per task, which reads all of the dump's file entries if it finds a file
BATCH = 64 * PLACES  # directories checked together


@dataclass(frozen=True)
class OrphanTask:
    """Directories of the target that may contain files not in the dump (`parts`: its file entries). `roots`: None only
    checks, otherwise such files are removed."""

    parts: Sequence[str]
    rules: FileRules
    places: Sequence[Clearing]
    roots: Roots | None = None


@dataclass(frozen=True)
class Orphans:
    """Directories that contain (or contained) orphan files, and the number of files removed."""

    places: list[str]
    removed: int = 0


def clear_orphans(replay: Replay) -> int:
    """Removes orphan files; returns how many. Only for an increment that keeps the layout: a bootstrap clears or prunes
    entire tables, and a snapshot's directories are its own. Files of others at a path remain."""
    plan, roots = replay.plan, replay.roots
    if plan.metadata.kind != INCREMENTAL or plan.snapshot is not None:
        return 0
    count = sum(fate.complete for lineage in plan.squashed.lineages for fate in lineage.partitions.values())
    if not count:
        return 0
    parts, rules = replay.parts, plan.file_rules()
    places = begun_places(plan, surviving_partitions(plan.squashed, replay.reader.records()))
    owners: dict[str, set[tuple[str, str, str]]] = {}  # of directories with orphan files, which are few
    engine = replay.runtime.engines.for_work(count)
    for some in map(by_place, batched(places, BATCH)):
        looking = (OrphanTask(parts, rules, each) for each in batched([Clearing(place) for place in some], PLACES))
        for found in engine.run(run_orphan_task, looking):
            owners |= {place: some[place] for place in found.places}
    free = Free()
    for place, theirs in owners.items():
        answer = replay.neighbours.free([place], Leaving(partitions=theirs))
        free.clearings += answer.clearings
        free.held += answer.held
    whose = {place: (db, table) for place, theirs in owners.items() for db, table, _ in theirs}
    if free.held:
        plan.warnings += plan.stays.add_held(free.held, whose, plan.mark.source)
    tasks = (OrphanTask(parts, rules, each, roots) for each in batched(free.clearings, PLACES))
    return sum(found.removed for found in fenced(engine, roots.target, run_orphan_task, tasks))


def by_place(places: Iterable[tuple[str, tuple[str, str, str]]]) -> dict[str, set[tuple[str, str, str]]]:
    """Groups owners by path."""
    found: dict[str, set[tuple[str, str, str]]] = {}
    for place, owner in places:
        found.setdefault(place, set()).add(owner)
    return found


def begun_places(
    plan: Plan, survivors: Iterable[tuple[Lineage, list[tuple[str, Partition]]]]
) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yields target locations of the partitions (database, table, name) of which the range has all files. Omits those
    in which databases, or tables of the range, are located."""
    steps = {id(step.lineage): step for step in plan.tables}
    homes = {each.table.location for each in plan.tables if each.table and each.table.location}
    homes |= set(plan.placement.target_locations.values())
    for lineage, named in survivors:
        step = steps.get(id(lineage))
        if step is None or step.shared or step.table is None or lineage.table is None:
            continue
        for name, partition in named:
            fate = lineage.partitions.get(name)
            if plan.is_uncaptured(lineage, name):
                continue
            if not partition.location or not (lineage.complete or (fate is not None and fate.complete)):
                continue
            place = plan.placement.inside(lineage.table.db, lineage.table.location, partition.location)
            if not any(relative(home, place) is not None for home in homes):
                yield place, (*step.name, name)


def run_orphan_task(task: OrphanTask, fence: Fence = OPEN) -> Orphans:
    """Finds or removes orphan files. Most directories do not exist yet, in which case the dump is not read. May run
    twice. Raises LeaseHeld if the attempt was abandoned."""
    found = {each: listing.files for each in task.places if (listing := list_tree(each.directory)) and listing.files}
    if not found:
        return Orphans([])
    wanted = {file.target for file in fold_entries(entries(task.parts), task.rules)[0]}
    holding: dict[str, None] = {}
    removed = 0
    for each, files in found.items():
        real = resolved(each.directory)
        for file in files:
            target = file_in(slashed(each.directory), file.path_relative)
            if target in wanted or any(kept.covers(join(real, file.path_relative)) for kept in each.kept):
                continue
            holding[each.directory] = None
            if task.roots is not None:
                fence.check()
                removed += remove_file(target, task.roots)
    return Orphans(list(holding), removed)
