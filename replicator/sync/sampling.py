"""Sampling: verification that never stops. Each run compares some tables of a replica, those first that were compared
longest ago, within a budget; what was compared when is remembered on the target's side.

The memory is one file per database (`verified/<database>.parquet`, a row a table), rewritten aside and renamed while a
run goes on, so a run that is killed has lost little. Losing all of it costs nothing but a round from the beginning. A
table with more bytes than the budget is read in shares, one a run; its names and sizes are compared each time.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field

from cmroot.lease import acquire
from cmroot.place import join
from replicator.engine import AutoEngine
from replicator.errors import ObjectNotFound
from replicator.events.decode import decode
from replicator.events.record import AlterTable, touched_table
from replicator.events.scope import Patterns
from replicator.load.replica import LAST_ID
from replicator.metastore.client import MetastoreReader
from replicator.progress import Progress
from replicator.report import json_text
from replicator.sync.differences import LIMIT, Difference
from replicator.sync.verified import Memory, TableMemory, read_memory, write_memory
from replicator.sync.verify import Level, Verified, verify

BATCH = 100  # tables compared together
SAVE_SECONDS = 30.0  # how much of a run a crash may forget
EVENTS = 100_000  # after the target's checkpoint that are looked at to tell what is only behind


@dataclass(frozen=True)
class Budget:
    """How much one run compares: at most `tables` tables and `bytes` bytes of contents, at least one table. None: no
    limit of this kind."""

    tables: int | None = None
    bytes: int | None = None


@dataclass
class Sampled:
    """As `Verified`, of what was compared in this run. `tables`: that there are; `sampled`: compared now, `partly` of
    them with a share of their contents; `behind`: different, and changed at the source after the target's checkpoint,
    so nothing is known of them and they count as neither compared nor different. After the run: `never`: tables never
    compared; `oldest`: seconds since the comparison of the table that waits longest, None when none ever was;
    `open`: tables that were different when they were compared last."""

    status: str = "same"
    level: str = "checksum"
    databases: list[str] = field(default_factory=list)
    tables: int = 0
    sampled: int = 0
    partly: int = 0
    never: int = 0
    oldest: float | None = None
    open: int = 0
    behind: list[str] = field(default_factory=list)
    objects: int = 0
    files: int = 0
    bytes: int = 0
    difference_count: int = 0
    differences: list[Difference] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    __str__ = json_text


def verify_sample(
    source: MetastoreReader, target: MetastoreReader, databases: Sequence[str], budget: Budget, place: str, *,
    rename: Sequence[tuple[str, str]] = (), map_locations: Sequence[tuple[str, str]] = (),
    patterns: Patterns | None = None, level: Level = "checksum", engine: AutoEngine, progress: Progress,
    clock: Callable[[], float] = clocks.time,
) -> Sampled:  # fmt: skip
    """Compares the next tables of some databases, and the databases' own properties and functions.

    place: a directory of the target's side that is this purpose's alone. The rest is as for `verify`. Raises LeaseHeld
    when another run is sampling there, ObjectNotFound for a database the source does not have."""
    began = clocks.monotonic()
    with acquire(place, "verify a sample"):
        run = _Run(
            source, target, [name.lower() for name in databases], budget, place, dict(rename),
            _Comparing(source, target, rename, map_locations, patterns or Patterns(), level, engine, progress), clock,
        )  # fmt: skip
        run.compare_databases()
        try:
            for batch in run.batches():
                run.compare(batch)
        finally:
            run.save()
        report = run.finish()
    report.seconds = round(clocks.monotonic() - began, 3)
    return report


def memory_of(cmroot: str) -> str:
    """Where samples that belong to no policy are remembered: in the target's root."""
    return join(cmroot, "verified")


@dataclass(frozen=True)
class _Comparing:
    """`verify` with all that stays the same during a run."""

    source: MetastoreReader
    target: MetastoreReader
    rename: Sequence[tuple[str, str]]
    map_locations: Sequence[tuple[str, str]]
    patterns: Patterns
    level: Level
    engine: AutoEngine
    progress: Progress

    def databases(self, names: Sequence[str]) -> Verified:
        return self._verify(names, {}, self.level)

    def tables(
        self, db: str, names: Sequence[str], *, level: Level | None = None, share: tuple[int, int] = (0, 1)
    ) -> Verified:  # fmt: skip
        return self._verify((), {db: names}, level or self.level, share)

    def _verify(
        self, databases: Sequence[str], tables: dict[str, Sequence[str]], level: Level, share: tuple[int, int] = (0, 1)
    ) -> Verified:
        return verify(
            self.source, self.target, databases, rename=self.rename, map_locations=self.map_locations,
            tables=tables, level=level, part=share, engine=self.engine, progress=self.progress,
        )  # fmt: skip


@dataclass(frozen=True)
class _Batch:
    """Tables of one database that are compared together; `share` of `shares` of their contents."""

    db: str
    names: Sequence[str]
    share: int = 0
    shares: int = 1


class _Run:
    """One run at work: what is remembered, and the report."""

    def __init__(
        self, source: MetastoreReader, target: MetastoreReader, databases: Sequence[str], budget: Budget, place: str,
        rename: dict[str, str], comparing: _Comparing, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._source, self._target, self._budget, self._place = source, target, budget, place
        self._rename, self._comparing, self._clock = rename, comparing, clock
        self._report = Sampled(level=comparing.level, databases=list(databases))
        self._memories: dict[str, Memory] = {}
        self._saved, self._unsaved = clocks.monotonic(), False
        for db in databases:
            memory, warning = read_memory(place, self._target_name(db))
            self._report.warnings += [warning] if warning else []
            self._memories[db] = memory.of_tables(self._names(db))
        self._report.tables = sum(len(memory.tables) for memory in self._memories.values())

    def _target_name(self, db: str) -> str:
        return self._rename.get(db, db).lower()

    def _names(self, db: str) -> set[str]:
        """Tables that either side has."""
        names = set(self._source.table_names(db))
        try:
            names |= set(self._target.table_names(self._target_name(db)))
        except ObjectNotFound:
            return set()  # one difference tells it: the database is missing
        return set(filter(self._comparing.patterns.match, names))

    # ---- what is due ----------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[_Batch]:
        """What is compared in this run, longest waiting first, as far as the budget goes."""
        memories = self._memories.items()
        due = sorted((about.turn, db, name) for db, memory in memories for name, about in memory.tables.items())
        due = due[: self._budget.tables]
        if self._budget.bytes is None:
            for db in self._memories:
                names = [name for _, owner, name in due if owner == db]
                for start in range(0, len(names), BATCH):
                    yield _Batch(db, names[start : start + BATCH])
            return
        for _, db, name in due:
            size = self._size(db, name)
            if self._report.sampled and self._report.bytes + min(size, self._budget.bytes) > self._budget.bytes:
                return
            shares = max(1, -(-size // max(1, self._budget.bytes)))
            yield _Batch(db, [name], self._memories[db].tables[name].share % shares, shares)

    def _size(self, db: str, name: str) -> int:
        """Bytes of a table as of its last comparison; of one of which they are not known, by listing it."""
        known = self._memories[db].tables[name].size
        return self._comparing.tables(db, [name], level="size").bytes if known is None else known

    # ---- comparing ------------------------------------------------------------------------------------------------

    def compare_databases(self) -> None:
        self._take(self._comparing.databases(list(self._memories)))

    def compare(self, batch: _Batch) -> None:
        """Compares some tables and notes when; those that are only behind keep the time they had."""
        found = self._comparing.tables(batch.db, batch.names, share=(batch.share, batch.shares))
        differing = {name.rpartition(".")[2] for name in found.differing}
        behind = differing & self._changed_since(batch.db, differing) if differing else set()
        self._report.behind += sorted(f"{batch.db}.{name}" for name in behind)
        self._take(found, behind, batch.shares)
        now, memory = self._clock(), self._memories[batch.db]
        for name in behind:
            memory.tables[name] = memory.tables[name]._replace(tried=now)
        for name in set(batch.names) - behind:
            size = found.bytes if len(batch.names) == 1 else memory.tables[name].size
            outcome = "different" if name in differing else "same"
            memory.tables[name] = TableMemory(now, outcome, size, (batch.share + 1) % batch.shares)
            self._report.sampled += 1
            self._report.partly += batch.shares > 1
        self._unsaved = True
        if clocks.monotonic() - self._saved > SAVE_SECONDS:
            self.save()

    def _take(self, found: Verified, behind: Set[str] = frozenset(), shares: int = 1) -> None:
        report = self._report
        report.objects += found.objects
        report.files += found.files
        report.bytes += found.bytes // shares  # a share is about as large as another
        hidden = found.difference_count - len(found.differences)
        mine = [each for each in found.differences if _table(each.object) not in behind]
        report.difference_count += len(mine) + (hidden if not behind else 0)
        report.differences += mine[: LIMIT - len(report.differences)]
        report.differing += [name for name in found.differing if _table(name) not in behind]

    def _changed_since(self, db: str, names: set[str]) -> set[str]:
        """Of some tables, those that the source's events after the target's checkpoint are about."""
        mark = self._target.database(self._target_name(db)).parameters.get(LAST_ID, "")
        if not mark.isdigit():
            return set()
        changed: set[tuple[str, str] | None] = set()
        after, seen = int(mark), 0
        while seen < EVENTS and (events := self._source.next_events(after)):
            for event in events:
                change = decode(event).change
                changed.add(touched_table(change))
                if isinstance(change, AlterTable):
                    changed.add((change.db, change.name))
            after, seen = events[-1].id, seen + len(events)
        return {name for name in names if (db, name) in changed}

    # ---- memory ---------------------------------------------------------------------------------------------------

    def save(self) -> None:
        if self._unsaved:
            for db, memory in self._memories.items():
                write_memory(self._place, self._target_name(db), memory)
            self._saved, self._unsaved = clocks.monotonic(), False

    def finish(self) -> Sampled:
        report = self._report
        known = [about for memory in self._memories.values() for about in memory.tables.values()]
        compared = [about.verified for about in known if about.outcome]
        report.never = len(known) - len(compared)
        report.oldest = round(max(0.0, self._clock() - min(compared)), 3) if compared else None
        report.open = sum(about.outcome == "different" for about in known)
        report.status = "different" if report.difference_count else "same"
        return report


def _table(name: str) -> str:
    """The table's name in that of an object; a database itself has none."""
    return name.partition("/")[0].partition(".")[2]
