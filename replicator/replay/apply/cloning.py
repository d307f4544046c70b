"""Cloning: what stays of a table or partition goes into its new directory before a load changes that: by hard link, on
object stores by a copy that the store makes. No byte passes through here.

Runs on executors. A file that is in the new directory already stays as it is, so it may run twice, and after the load
has changed the new directory; what the load has removed there it removes again.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cmroot.store.checksum import copy_file
from cmroot.store.listing import list_tree
from cmroot.store.objects import server_copies
from cmroot.store.place import is_local, join, local_path, normal, parent
from cmroot.store.resolve import located
from cmroot.store.stores import remote_store
from replicator.core.batches import batched
from replicator.core.model import Partition, Table
from replicator.metastore.client import PARTITION_BATCH
from replicator.replay.apply.work import Work
from replicator.replay.copy.staging import Attempt, noted
from replicator.replay.places.placement import is_published
from replicator.replay.places.retired import Retired
from replicator.replay.plan.plan import TablePlan
from replicator.replay.plan.squash import Lineage


@dataclass(frozen=True)
class CloneTask:
    """(directory, new directory) pairs, and the target's `$cmroot`."""

    root: str
    pairs: Sequence[tuple[str, str]]


def run_clone_task(task: CloneTask) -> int:
    """How many files were carried."""
    return sum(_carry(task.root, old, new) for old, new in task.pairs)


def _carry(root: str, old: str, new: str) -> int:
    listing = list_tree(old)
    there = list_tree(new)
    known = {file.path_relative for file in there.files} if there else set()
    count, made, unlinked, large = 0, set(), [], []
    for file in listing.files if listing else ():
        if file.path_relative in known:
            continue
        source, target = join(old, file.path_relative), join(new, file.path_relative)
        if is_local(old) and is_local(new):
            source, target = local_path(source), local_path(target)
            directory = os.path.dirname(target)
            if directory not in made:
                os.makedirs(directory, exist_ok=True)
                made.add(directory)
            if not _link(source, target):
                unlinked.append((source, target, file.mtime_ns))
        elif file.size > server_copies.WHOLE_COPY:
            large.append((source, target))
        else:
            _copy(source, target)
        count += 1
    if large:
        with noted(root, (target for _, target in large)) as attempt:
            for source, target in large:
                _copy(source, target, attempt.staging(parent(target)) + server_copies.NOTE)
    if unlinked:
        with noted(root, (target for _, target, _ in unlinked)) as attempt:
            for source, target, mtime_ns in unlinked:
                _copy_local(source, target, mtime_ns, attempt)
    return count


def _link(source: str, target: str) -> bool:
    """False where there are no links."""
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EXDEV):
            raise
        return False
    return True


def _copy_local(source: str, target: str, mtime_ns: int, attempt: Attempt) -> None:
    staging = attempt.staging(os.path.dirname(target))
    try:
        copy_file(source, staging, reread=True, mtime_ns=mtime_ns)
        attempt.check()
        os.rename(staging, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(staging)
        raise


def _copy(source: str, target: str, note: str = "") -> None:
    old, new = located(source), located(target)
    if not old.local and old.same_store(new):
        remote_store(source).copy(str(old), str(new), note)
        return
    with old.open_read() as reading, new.open_write() as writing:
        while block := reading.read(8 << 20):
            writing.write(block)


class Cloning:
    """What a load carries before it copies."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def carry(self, named: Iterator[tuple[Lineage, list[tuple[str, Partition]]]]) -> None:
        """Where a load publishes by snapshots, or brings back what was published so: what stays of the objects that it
        changes goes into their new places, and the old ones are noted. Afterwards the copies change nothing that
        anybody reads. `named`: all partitions of what is brought back."""
        for step in self._work.plan.tables:
            if not step.exists or step.table is None or step.there is None or step.table.is_view or step.shared:
                continue
            there = step.there if step.rename_from is None else self._work.target.table(*step.name)
            old, new = there.location, step.table.location
            moves = step.place is not None or (self._work.plan.back and is_published(old))
            if moves and not step.table.is_partitioned and old and new and normal(old) != normal(new):
                self._carry(step, [(old, new, "")], () if step.recreated else ("",))
            if step.place is None or not step.table.is_partitioned:
                continue
            for batch in batched(sorted(step.touched), PARTITION_BATCH):
                pairs = []
                for name, partition in self._work.partitions_named(step, batch).items():
                    place = step.place_of_partition(name, partition.location)
                    if place and partition.location and normal(place) != normal(partition.location):
                        pairs.append((partition.location, place, name))
                fates = step.lineage.partitions
                kept = [name for _, _, name in pairs if not (name in fates and fates[name].complete)]
                self._carry(step, pairs, kept)

        steps = {id(step.lineage): step for step in self._work.plan.tables if step.exists and step.table}
        for lineage, some in named:
            if (found := steps.get(id(lineage))) is not None and lineage.table is not None:
                self._carry_back(found, lineage.table, dict(some))

    def _carry_back(self, step: TablePlan, table: Table, some: dict[str, Partition]) -> None:
        pairs = []
        for name, partition in self._work.partitions_named(step, list(some)).items():
            source = some[name].location
            if source and partition.location and is_published(partition.location):
                place = self._work.plan.placement.inside(table.db, table.location, source)
                if normal(place) != normal(partition.location):
                    pairs.append((partition.location, place, name))
        self._carry(step, pairs, [name for _, _, name in pairs])

    def _carry(self, step: TablePlan, pairs: Sequence[tuple[str, str, str]], kept: Collection[str]) -> None:
        """pairs: (directory, new directory, partition); `kept`: those of which something may stay."""
        self._work.supersede(
            [Retired(old, *step.name, name, successor=new if name in kept else "") for old, new, name in pairs]
        )
        carried = [(old, new) for old, new, name in pairs if name in kept]
        if carried:
            engine = self._work.runtime.engines.for_work(len(carried))
            deque(
                engine.run(run_clone_task, [CloneTask(self._work.root, some) for some in batched(carried, 100)]),
                maxlen=0,
            )
