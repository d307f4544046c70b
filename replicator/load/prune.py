"""Prune: where a bootstrap is loaded by difference, tables stay; what they hold besides the dump goes.

Partitions that the dump does not have are dropped, and files that it does not name go to the target's `$cmroot`, before
anything is copied: should a directory have been shared, the copy puts back what it needs. Every step may run twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cmroot.listing import list_tree
from cmroot.place import join, normal
from replicator.dump.reader import DumpReader
from replicator.engine import AutoEngine
from replicator.errors import ObjectNotFound
from replicator.events.scope import matches_name
from replicator.load.copying import Roots, remove_file
from replicator.load.plan import Plan, TablePlan
from replicator.load.squash import surviving_partitions
from replicator.load.superseded import Superseded, note_superseded
from replicator.load.unlike import named_files
from replicator.load.work import RecycleTask, own_places, run_recycle_task
from replicator.metastore.client import Metastore, MetastoreReader
from replicator.model import Partition, partition_name
from replicator.partition_filter import parse_partition_filter

HOMES = 10_000  # directories of one task, which reads the paths of the whole dump


@dataclass(frozen=True)
class PruneTask:
    """Directories of the target to rid of files that the dump does not name: (location in the dump, directory).
    `parts`: the dump's file entries. `roots`: None only counts. `private`: see CopyTask."""

    parts: Sequence[str]
    homes: Sequence[tuple[str, str]]
    roots: Roots | None
    private: bool = False


@dataclass
class Pruned:
    """What was (or would be) taken away: partitions, and files with their bytes, those of partitions included."""

    partitions: int = 0
    files: int = 0
    bytes: int = 0
    warnings: list[str] = field(default_factory=list)


def prune(plan: Plan, reader: DumpReader, target: Metastore, roots: Roots, engine: AutoEngine) -> Pruned:
    """Takes away what tables of the target hold besides the dump; the files lie in the target's $cmroot then."""
    done = Pruned()
    extra = _Dropping(target, roots, engine, done, plan.snapshot)
    homes = _walk(plan, reader, target, done, extra)
    _clear_homes(homes, reader, roots, engine, done, private=plan.snapshot is not None)
    return done


def surplus(plan: Plan, reader: DumpReader, target: MetastoreReader, roots: Roots, engine: AutoEngine) -> Pruned:
    """What `prune` would take away. Changes nothing."""
    found = Pruned()
    _clear_homes(_walk(plan, reader, target, found, _Counting(found)), reader, None, engine, found)
    return found


def run_prune_task(task: PruneTask) -> Pruned:
    """Lists a task's directories and takes away what the dump does not name. May run twice."""
    named = named_files(task.parts, {normal(source) for source, _ in task.homes})
    found = Pruned()
    for source, directory in task.homes:
        listing = list_tree(directory)
        wanted = named.get(normal(source), {})
        for file in listing.files if listing else ():
            if file.path_relative in wanted:
                continue
            if task.roots is None or remove_file(join(directory, file.path_relative), task.roots, private=task.private):
                found.files += 1
                found.bytes += file.size
    return found


# ---- tables and partitions ----------------------------------------------------------------------------------------


def _walk(
    plan: Plan, reader: DumpReader, target: MetastoreReader, done: Pruned, extra: _Dropping | _Counting
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """Directories of all tables that are pruned, and of their partitions; partitions that the dump does not have are
    handed to `extra` on the way. Holds the names of one table's partitions at a time."""
    waiting = {id(step.lineage): step for step in plan.tables if step.prune and step.table and not step.table.is_view}
    partitioned = {key for key, step in waiting.items() if step.table and step.table.is_partitioned}
    current: TablePlan | None = None
    wanted: set[str] = set()
    if partitioned:
        for lineage, named in surviving_partitions(plan.squashed, reader.records()):
            step = waiting.get(id(lineage))
            if step is None:
                continue
            if step is not current:  # a bootstrap has a table's partitions one after the other
                if current is not None:
                    extra.take(current, _extra_partitions(plan, current, wanted, target))
                current, wanted = step, set()
                partitioned.discard(id(lineage))
            wanted |= {name for name, _ in named}
            for name, partition in named:
                place = _place(plan, step, partition.location or "", name)
                if partition.location and place:
                    yield partition.location, place
    if current is not None:
        extra.take(current, _extra_partitions(plan, current, wanted, target))
    for key, step in waiting.items():
        assert step.lineage.table is not None
        if key in partitioned:
            extra.take(step, _extra_partitions(plan, step, set(), target))
        elif not step.lineage.table.is_partitioned and (location := step.lineage.table.location):
            place = _place(plan, step, location, "")
            if place:
                yield location, place


def _place(plan: Plan, step: TablePlan, location: str, partition: str) -> str | None:
    """Where what the dump does not name is taken away of an object; None: nowhere."""
    assert step.lineage.table is not None
    if step.shared:
        return None
    if step.place is not None:
        return join(step.place, partition) if partition in step.touched or not step.exists else None
    return plan.placement.inside(step.lineage.table.db, step.lineage.table.location, location)


def _extra_partitions(
    plan: Plan, step: TablePlan, wanted: set[str], target: MetastoreReader
) -> Iterator[list[Partition]]:  # fmt: skip
    """Those that the dump says are not there; of what is outside its filter it says nothing."""
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
    """Partitions that would be dropped."""

    found: Pruned

    def take(self, step: TablePlan, batches: Iterator[list[Partition]]) -> None:
        for batch in batches:
            self.found.partitions += len(batch)
            for place in own_places(step.table, batch) if step.table else []:
                files = listing.files if (listing := list_tree(place)) else []
                self.found.files += len(files)
                self.found.bytes += sum(file.size for file in files)


@dataclass(frozen=True)
class _Dropping:
    """Drops partitions; their data first goes to the target's $cmroot."""

    target: Metastore
    roots: Roots
    engine: AutoEngine
    done: Pruned
    snapshot: str | None

    def take(self, step: TablePlan, batches: Iterator[list[Partition]]) -> None:
        assert step.table is not None
        for batch in batches:
            places = own_places(step.table, batch) if step.table else []
            if places and self.snapshot:
                gone = [Superseded(place, *step.name) for place in places]
                note_superseded(self.roots.target, self.snapshot, gone)
            elif places:
                engine = self.engine.for_work(len(places))
                starts = range(0, len(places), 100)
                tasks = [RecycleTask(self.roots.target, places[start : start + 100]) for start in starts]
                self.done.files += sum(engine.run(run_recycle_task, tasks))
            names = [partition_name(step.table.partition_keys, each.values) for each in batch]
            self.target.drop_partitions(*step.name, names)
            self.done.partitions += len(names)


def _clear_homes(
    homes: Iterator[tuple[str, str]], reader: DumpReader, roots: Roots | None, engines: AutoEngine, done: Pruned,
    *, private: bool = False,
) -> None:  # fmt: skip
    """Runs the tasks; partitions are dropped while `homes` are drawn."""
    parts = [place for place, _ in reader.buckets()]
    waiting: list[tuple[str, str]] = []

    def run() -> None:
        engine = engines.for_work(len(waiting))
        size = max(1, min(HOMES, -(-len(waiting) // engine.parallelism)))
        starts = range(0, len(waiting), size)
        tasks = [PruneTask(parts, waiting[start : start + size], roots, private) for start in starts]
        for report in engine.run(run_prune_task, tasks):
            done.files += report.files
            done.bytes += report.bytes
        waiting.clear()

    for home in homes:
        waiting.append(home)
        if len(waiting) == 4 * HOMES:
            run()
    if waiting:
        run()
