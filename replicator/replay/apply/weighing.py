"""Removals of a load, counted before it begins: tables and partitions by name, with files and bytes, and the limit that
stops a load. Reads only.

Files are those in a listing; hidden ones are not counted. If loads publish by snapshots, removals happen after the
delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from cmroot.store.place import located, normal
from replicator.captures.dumps.layout import BOOTSTRAP
from replicator.core.config import Brake
from replicator.core.grouping import batched
from replicator.core.model import Partition, partition_name
from replicator.errors import Refused
from replicator.metastore.client import PARTITION_BATCH
from replicator.replay.apply.copy_task import entries, fold_entries
from replicator.replay.apply.format_files import TableDirectories
from replicator.replay.apply.prepare import clears, goings
from replicator.replay.apply.prune import surplus
from replicator.replay.apply.work import Replay, leaving_partitions, places_of
from replicator.replay.neighbours import Clearing, Leaving, to_clear
from replicator.replay.placement import is_published
from replicator.replay.plan import EntryKey, FileRules, Plan, TablePlan
from replicator.replay.replica import has_sources_data
from replicator.replay.target import applied_position

DROPPED = "dropped at the source"
REPLACED = "recreated from the dump"
IN_THE_WAY_OF_A_COPY = "at the destination of a copy"
LEFT = "left for another location"
EXTRA = "not in the dump"
REMOVED = "removed at the source"

NAMED = 1000  # maximum of partitions named individually; beyond it, only their tables are
_TASK = 100  # directories per task


@dataclass(frozen=True)
class Gone:
    """The removals from one table of the target, or from one partition: `why`, one of the constants above; `partitions`
    (of a table), files and bytes."""

    object: str
    why: str
    partition: str = ""
    partitions: int = 0
    files: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        name = f"{self.object}/{self.partition}" if self.partition else self.object
        return f"{name}: {self.files:,} files, {self.bytes:,} bytes, {self.why}"


@dataclass
class Weight:
    """All removals. `gained`: by table, bytes that are added to it."""

    gone: list[Gone] = field(default_factory=list)
    gained: dict[str, int] = field(default_factory=dict)

    @property
    def files(self) -> int:
        return sum(each.files for each in self.gone)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.gone)

    @property
    def partitions(self) -> int:
        return sum(each.partitions or bool(each.partition and each.why == DROPPED) for each in self.gone)

    def losses(self, empty: Iterable[str] = ()) -> dict[str, int]:
        """Returns, by table, the bytes by which it becomes smaller without being dropped. empty: tables and partitions
        (`db.table/p=1`, names of the target) that an operator has declared empty, which do not count."""
        declared, lost = set(empty), dict[str, int]()
        for each in self.gone:
            name = f"{each.object}/{each.partition}" if each.partition else each.object
            if each.why in (REPLACED, EXTRA, REMOVED) and not declared & {each.object, name}:
                lost[each.object] = lost.get(each.object, 0) + each.bytes
        found = {table: size - self.gained.get(table, 0) for table, size in lost.items()}
        return {table: size for table, size in found.items() if size > 0}


def weigh(replay: Replay, *, dropped: bool = True) -> Weight:
    """Returns all removals of the plan. dropped: False omits objects that were dropped at the source, which require
    most of the metastore requests."""
    work = _Weighing(replay, dropped)
    work.drops()
    for step in replay.plan.tables:
        if dropped:
            work.partitions(step)
    work.clears()
    work.surplus()
    work.entries()
    return work.weight()


class _Weighing:
    def __init__(self, replay: Replay, dropped: bool) -> None:
        self._replay, self._dropped = replay, dropped
        self._plan, self._target, self._neighbours = replay.plan, replay.target, replay.neighbours
        self._seen: set[str] = set()  # directories already weighed: those of a dropped table may be cleared, too
        self._found: dict[tuple[str, str, str], Gone] = {}
        self._gained: dict[str, int] = {}

    def weight(self) -> Weight:
        return Weight(list(self._found.values()), self._gained)

    def _add(self, object: str, why: str, partition: str, partitions: int, files: int, size: int) -> None:
        if partition and len(self._found) >= NAMED:
            partition, partitions = "", partitions or int(why == DROPPED)
        before = self._found.get((object, partition, why), Gone(object, why, partition))
        self._found[object, partition, why] = Gone(
            object, why, partition, before.partitions + partitions, before.files + files, before.bytes + size
        )

    def _sizes(self, places: Sequence[str], leaving: Leaving) -> dict[str, tuple[int, int]]:
        """Returns removable files and bytes, by directory."""
        fresh = [place for place in dict.fromkeys(places) if normal(place) not in self._seen]
        self._seen.update(map(normal, fresh))
        clearings = self._neighbours.removable(fresh, leaving).clearings if fresh else []
        found: dict[str, tuple[int, int]] = {}
        tasks = [SizeTask(some) for some in batched(clearings, _TASK)]
        for task, sizes in zip(
            tasks, self._replay.runtime.engines.for_work(len(clearings)).run(run_size_task, tasks), strict=True
        ):
            found |= {each.directory: size for each, size in zip(task.clearings, sizes, strict=True)}
        return found

    def drops(self) -> None:
        """Adds dropped tables, with all of their partitions."""
        going = {(table.db, table.name) for table in self._plan.drops}
        made = {step.name for step in self._plan.tables} if self._plan.metadata.kind == BOOTSTRAP else set()
        for table in self._plan.drops:
            why = REPLACED if (table.db, table.name) in made else DROPPED
            if why == DROPPED and not self._dropped:
                continue
            names = self._target.partition_names(table.db, table.name) if table.is_partitioned else []
            sizes = self._sizes(places_of(self._target, table, names), Leaving(going))
            files, size = (sum(column) for column in zip(*sizes.values(), strict=True)) if sizes else (0, 0)
            self._add(f"{table.db}.{table.name}", why, "", len(names), files, size)

    def partitions(self, step: TablePlan) -> None:
        """Adds dropped and recreated partitions, in batches."""
        found = goings(step)
        if not found.begun or step.table is None:
            return
        for batch in batched(found.begun, PARTITION_BATCH):
            there = self._named(step, batch)
            there = {name: each for name, each in there.items() if applied_position(each) < found.begun[name]}
            places = {name: each.location for name, each in there.items() if found.takes(step, name) and each.location}
            sizes = self._sizes(list(places.values()), leaving_partitions(step.table, there))
            for name in there:
                files, size = sizes.get(places.get(name, ""), (0, 0))
                if name in found.gone or files:
                    why = DROPPED if name in found.gone else IN_THE_WAY_OF_A_COPY
                    self._add(".".join(step.name), why, name, 0, files, size)

    def _named(self, step: TablePlan, names: Sequence[str]) -> dict[str, Partition]:
        assert step.table is not None
        old = step.rename_from or step.name
        pages = self._target.partitions(*old, names)
        return {partition_name(step.table.partition_keys, each.values): each for page in pages for each in page}

    def clears(self) -> None:
        """Adds old files at locations to which tables are copied completely, and at those that tables leave."""
        if self._plan.snapshot:
            return
        going = {(table.db, table.name) for table in self._plan.drops}
        for step in self._plan.tables:
            place = clears(self._plan, step)
            for files, size in self._sizes([place] if place else [], Leaving(going | {step.name})).values():
                if files:
                    self._add(".".join(step.name), IN_THE_WAY_OF_A_COPY, "", 0, files, size)
            own = {step.name, step.rename_from or step.name}
            place = self._leaves(step)
            for files, size in self._sizes([place] if place else [], Leaving(going | own)).values():
                self._add(".".join(step.name), LEFT, "", 0, files, size)

    def _leaves(self, step: TablePlan) -> str | None:
        """Returns the directory that a table leaves, if a load removes the files in it."""
        old = step.there.location if step.exists and step.there and not step.there.has_files_by_partition else None
        new = step.table.location if step.table and not step.table.is_view and not step.shared else None
        moves = old and new and normal(old) != normal(new) and not (is_published(old) or has_sources_data(step.there))
        return old if moves and old and self._plan.placement.holds(old) else None

    def surplus(self) -> None:
        """Adds surplus data of tables that are pruned to a dump."""
        if not any(step.prune for step in self._plan.tables):
            return
        found = surplus(self._replay)
        for (table, partition), (files, size) in found.dropped.items():
            if self._dropped:
                self._add(table, DROPPED, partition, 0, files, size)
        for table, (files, size, missing) in found.of_tables.items():
            if files:
                self._add(table, EXTRA, "", 0, files, size)
            self._gained[table] = self._gained.get(table, 0) + missing

    def entries(self) -> None:
        """Adds files that the range removes from remaining tables, and those that it adds."""
        metadata = self._plan.metadata
        replaced = any(each.why == REPLACED for each in self._found.values())
        if not metadata.removed and not replaced:
            return
        rules, pruned = self._plan.file_rules(), {".".join(step.name) for step in self._plan.tables if step.prune}
        tasks = [EntriesTask([place], rules) for place in self._replay.parts]
        engine = self._replay.runtime.engines.for_work(metadata.files + metadata.removed)
        reports = list(engine.run(run_entries_task, tasks))
        rewritten = {owner for report in reports for owner in report.rewritten}
        for report in reports:
            for (table, partition), (files, size) in report.removed.items():
                if (table, partition) not in rewritten:
                    self._add(table, REMOVED, partition, 0, files, size)
            for table, size in report.added.items():
                if table not in pruned:
                    self._gained[table] = self._gained.get(table, 0) + size


@dataclass(frozen=True)
class SizeTask:
    """Directories whose files and bytes are counted."""

    clearings: Sequence[Clearing]


def run_size_task(task: SizeTask) -> list[tuple[int, int]]:
    return [to_clear(each) for each in task.clearings]


@dataclass(frozen=True)
class EntriesTask:
    """One bucket of a dump."""

    parts: Sequence[str]
    rules: FileRules


@dataclass
class EntriesReport:
    """removed: (table, partition) -> files and bytes of the target that are to be removed; added: table -> bytes;
    rewritten: (table, partition) of transactional tables that get files: a compactor has replaced the others."""

    removed: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)
    rewritten: set[tuple[str, str]] = field(default_factory=set)


def run_entries_task(task: EntriesTask) -> EntriesReport:
    owners: dict[str, tuple[tuple[str, str], str]] = {}
    homes: dict[str, EntryKey] = {}
    wanted, removed = fold_entries(entries(task.parts), task.rules, owners, homes)
    report, tables = EntriesReport(), TableDirectories.of(homes, task.rules)
    for file in wanted:
        table, partition = _owner(file.target, owners)
        if (home := tables.home(file.target)) and tables.formats[home].rewrites:
            report.rewritten.add((table, partition))
        report.added[table] = report.added.get(table, 0) + (file.size or 0)
    for place in removed:
        size = _size(place)
        if size is not None:
            owner = _owner(place, owners)
            files, before = report.removed.get(owner, (0, 0))
            report.removed[owner] = files + 1, before + size
    return report


def _owner(place: str, owners: dict[str, tuple[tuple[str, str], str]]) -> tuple[str, str]:
    above = place
    while above := above.rstrip("/").rpartition("/")[0]:
        if (found := owners.get(f"{above}/")) is not None:
            return ".".join(found[0]), found[1]
    return "", ""


def _size(place: str) -> int | None:
    """Returns a file's size; None if it does not exist."""
    found = located(place).child()
    return found.size if found else None


def shown(weight: Weight) -> Iterator[str]:
    """Returns the removals as text for users, the largest first."""
    return map(str, islice(sorted(weight.gone, key=lambda each: -each.bytes), NAMED))


# ---- brake -----------------------------------------------------------------------------------------------------------
# A load that would make a replica much smaller than `Brake` allows stops before it changes anything.
#
# The measure is by how much each table becomes smaller: the bytes of removed files, less those of added ones. Tables
# and partitions that were dropped at the source do not count, nor those that an operator has declared empty.


_NAMED = 5


def stop_excess(replay: Replay, brake: Brake) -> None:
    """Raises Refused if a load would exceed the removal limit."""
    if refusal := excess(replay.plan, weigh(replay, dropped=False), brake):
        raise refusal


def excess(plan: Plan, weight: Weight, brake: Brake) -> Refused | None:
    """Returns the refusal of a load with these removals; None if it is within the limit."""
    metadata, names = plan.metadata, plan.placement.databases
    empty = [".".join([names.get(db, db), rest]) for db, _, rest in (each.partition(".") for each in metadata.empty)]
    losses = weight.losses(empty)
    lost, held = sum(losses.values()), metadata.bytes if metadata.kind == BOOTSTRAP else metadata.held
    had = None if held is None else held + lost
    by_size = sorted(losses.items(), key=lambda each: -each[1])
    details = {"bytes": lost, "of": had, "tables": dict(by_size[:1000])}
    some = ", ".join(f"{table} {size:,} bytes" for table, size in by_size[:_NAMED])
    hint = (
        "check it with --dry-run, or `replicator plan`; if it is right, run again with --allow-removals, or raise "
        "{} for this run or in [guard]. Drop a table at the source if it is to be removed for good"
    )
    if brake.max_share is not None and had and lost / had > brake.max_share:
        return Refused(
            f"{lost:,} of {had:,} bytes of the replica would be removed, {lost / had:.0%}; one load may remove "
            f"{brake.max_share:.0%} ({some})",
            hint=hint.format("--max-share"),
            details={**details, "max_share": brake.max_share},
        )
    if brake.max_bytes is not None and lost > brake.max_bytes:
        return Refused(
            f"{lost:,} bytes of the replica would be removed; one load may remove {brake.max_bytes:,} ({some})",
            hint=hint.format("--max-bytes"),
            details={**details, "max_bytes": brake.max_bytes},
        )
    return None
