"""Strays: files that lie where a partition begins anew, and are none of it.

An external table's data stays where it is when a partition is dropped, on both sides. If its owner then removes the
files and adds the partition again, the source has the new ones only, and the target would show both. All files of a
partition that begins anew in a range are in the range; so what else lies in its directory goes to `$cmroot`, before
anything is copied. Acts; may run twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from cmroot.listing import list_tree
from replicator.dump.layout import INCREMENTAL
from replicator.dump.reader import DumpReader
from replicator.engine import AutoEngine
from replicator.load.copying import Roots, remove_file
from replicator.load.files import FileRules, entries, fold_entries, slashed
from replicator.load.placement import relative
from replicator.load.plan import Plan
from replicator.load.squash import Lineage, surviving_partitions
from replicator.model import Partition

PLACES = 1000  # of one task, which reads all of the dump's file entries when it finds a file


@dataclass(frozen=True)
class StrayTask:
    """Directories of the target to rid of files that the dump (`parts`: its file entries) does not want there."""

    parts: Sequence[str]
    rules: FileRules
    places: Sequence[str]
    roots: Roots


def clear_strays(plan: Plan, reader: DumpReader, roots: Roots, engines: AutoEngine) -> int:
    """Files that went. Only where an increment keeps the layout: a bootstrap clears or prunes whole tables, and
    a snapshot's directories are its own."""
    if plan.metadata.kind != INCREMENTAL or plan.snapshot is not None:
        return 0
    count = sum(fate.complete for lineage in plan.squashed.lineages for fate in lineage.partitions.values())
    if not count:
        return 0
    parts, rules = [place for place, _ in reader.buckets()], plan.file_rules()
    places = begun_places(plan, surviving_partitions(plan.squashed, reader.records()))
    some = iter(lambda: list(islice(places, PLACES)), [])
    return sum(engines.for_work(count).run(run_stray_task, (StrayTask(parts, rules, each, roots) for each in some)))


def begun_places(plan: Plan, survivors: Iterable[tuple[Lineage, list[tuple[str, Partition]]]]) -> Iterator[str]:
    """Where on the target the partitions lie of which the range has all files. Not those in which other tables lie."""
    steps = {id(step.lineage): step for step in plan.tables}
    homes = {each.table.location for each in plan.tables if each.table and each.table.location}
    homes |= set(plan.placement.target_locations.values())
    for lineage, named in survivors:
        step = steps.get(id(lineage))
        if step is None or step.shared or step.table is None or lineage.table is None:
            continue
        for name, partition in named:
            fate = lineage.partitions.get(name)
            if not partition.location or not (lineage.complete or (fate is not None and fate.complete)):
                continue
            place = plan.placement.inside(lineage.table.db, lineage.table.location, partition.location)
            if not any(relative(home, place) is not None for home in homes):
                yield place


def run_stray_task(task: StrayTask) -> int:
    """Most directories are not there yet, and the dump is not read."""
    found = {place: listing.files for place in task.places if (listing := list_tree(place)) and listing.files}
    if not found:
        return 0
    wanted = {file.target for file in fold_entries(entries(task.parts), task.rules)[0]}
    strays = [
        target
        for place, files in found.items()
        for file in files
        if (target := slashed(place) + file.path_relative) not in wanted
    ]
    return sum(remove_file(target, task.roots) for target in strays)
