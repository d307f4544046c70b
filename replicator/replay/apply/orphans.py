"""Orphan files: files in the directory of a recreated partition that are not its own.

An external table's data stays where it is when a partition is dropped, on both sides. If its owner then removes the
files and adds the partition again, the source has the new ones only, and the target would show both. All files of a
partition that begins again in a range are in the range; so what else lies in its directory goes to `$cmroot`, before
anything is copied. Acts; may run twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cmroot.store.listing import list_tree
from cmroot.store.place import join
from cmroot.store.resolve import resolved
from replicator.captures.dumps.layout import INCREMENTAL
from replicator.core.batches import batched
from replicator.core.model import Partition
from replicator.replay.apply.work import Replay
from replicator.replay.copy.copy_task import entries, file_in, fold_entries, slashed
from replicator.replay.copy.copying import remove_file
from replicator.replay.copy.origins import Roots
from replicator.replay.copy.staging import OPEN, Fence, fenced
from replicator.replay.places.clearing import Clearing
from replicator.replay.places.neighbours import Free, Leaving
from replicator.replay.places.placement import relative
from replicator.replay.plan.plan import Plan
from replicator.replay.plan.rules import FileRules
from replicator.replay.plan.squash import Lineage, surviving_partitions

PLACES = 1000  # of one task, which reads all of the dump's file entries when it finds a file
BATCH = 64 * PLACES  # looked at together


@dataclass(frozen=True)
class OrphanTask:
    """Directories of the target in which the dump (`parts`: its file entries) does not want every file. `roots`: None
    only looks, else what it does not want goes."""

    parts: Sequence[str]
    rules: FileRules
    places: Sequence[Clearing]
    roots: Roots | None = None


@dataclass(frozen=True)
class Orphans:
    """Directories that hold (or held) orphan files, and how many files went."""

    places: list[str]
    removed: int = 0


def clear_orphans(replay: Replay) -> int:
    """Files that went. Only where an increment keeps the layout: a bootstrap clears or prunes whole tables, and
    a snapshot's directories are its own. What others have at a place stays."""
    plan, roots = replay.plan, replay.roots
    if plan.metadata.kind != INCREMENTAL or plan.snapshot is not None:
        return 0
    count = sum(fate.complete for lineage in plan.squashed.lineages for fate in lineage.partitions.values())
    if not count:
        return 0
    parts, rules = replay.parts, plan.file_rules()
    places = begun_places(plan, surviving_partitions(plan.squashed, replay.reader.records()))
    owners: dict[str, set[tuple[str, str, str]]] = {}  # of directories that hold orphan files, which are few
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
    plan.warnings += plan.stays.add_held(free.held, whose, plan.mark.source)
    tasks = (OrphanTask(parts, rules, each, roots) for each in batched(free.clearings, PLACES))
    return sum(found.removed for found in fenced(engine, roots.target, run_orphan_task, tasks))


def by_place(places: Iterable[tuple[str, tuple[str, str, str]]]) -> dict[str, set[tuple[str, str, str]]]:
    """By place, all that lie there."""
    found: dict[str, set[tuple[str, str, str]]] = {}
    for place, owner in places:
        found.setdefault(place, set()).add(owner)
    return found


def begun_places(
    plan: Plan, survivors: Iterable[tuple[Lineage, list[tuple[str, Partition]]]]
) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Where on the target the partitions (database, table, name) lie of which the range has all files. Not where
    databases, or tables of the range, lie in them."""
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
    """Most directories are not there yet, and the dump is not read. May run twice. Raises LeaseHeld when it was given
    up."""
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
