"""Verify: is the target what the source is? Both metastores and both file systems are read again; nothing that capture,
dump or load wrote is believed, and nothing is changed.

Metadata is compared in `compare_metadata`, files in `compare_files`, on the engine. A source that is written to
meanwhile shows differences that the next load takes away.
"""

from __future__ import annotations

import itertools
import time as clocks
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from cmroot.store.local import FLOW
from replicator.captures.events.decode import decode
from replicator.captures.events.record import Change
from replicator.captures.unlistable import data_connectors
from replicator.compare.both_sides import Comparison, Level
from replicator.compare.compare_files import FilePair, FilesCompared, FileTask, compare_files
from replicator.compare.compare_metadata import MetadataComparison, count_tables
from replicator.compare.differences import Difference, Differences
from replicator.core.connections import MetastoreConfig
from replicator.core.engine import AutoEngine
from replicator.core.not_replicated import INCOMPLETE, NotReplicated, Report
from replicator.core.policy import same_metastore
from replicator.core.runtime import Advance, Runtime
from replicator.errors import UsageError
from replicator.metastore.client import MetastoreReader

Later = tuple[FilePair, int, int]  # an object, and the files and bytes of it that are still to be read

TASK_OBJECTS = 500  # of a Spark task, which costs 25 to 50 ms before it does anything
THREAD_OBJECTS = 25
TASK_BYTES = 1 << 30  # of one task; an object with more is read by several


@dataclass
class Verified(Report):
    """The outcome. `status`: same, different, or incomplete (same, but for what was not compared); `objects`:
    databases, tables, partitions and functions compared; `differences`: at most 10,000 of the `difference_count`;
    `differing`: all tables, functions and databases that have any, by their source names; `not_replicated`: tables that
    were not compared, as loads leave them out; `files_read`: of level crc, files that were read, as a side has no
    CRC."""

    status: str = "same"
    level: str = "checksum"
    databases: list[str] = field(default_factory=list)
    objects: int = 0
    files: int = 0
    files_read: int = 0
    bytes: int = 0
    difference_count: int = 0
    differences: list[Difference] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    not_replicated: list[NotReplicated] = field(default_factory=list)
    seconds: float = 0.0


def verify(
    comparison: Comparison,
    databases: Sequence[str],
    runtime: Runtime,
    *,
    tables: Mapping[str, Sequence[str]] | None = None,
    part: tuple[int, int] = (0, 1),
) -> Verified:
    """Compares databases of the source with what they are on the target.

    tables: by database only these, by their source names; no other is asked for. Of `databases` then only their own
    properties and their functions are compared. part: (number, of how many) of the files' contents to read; names and
    sizes are compared all. Raises ObjectNotFound for a database the source does not have."""
    began, level = clocks.monotonic(), comparison.level
    names = [name.lower() for name in databases]
    report = Verified(level=level, databases=list(dict.fromkeys([*names, *(tables or ())])))
    total = count_tables(comparison, names) if tables is None else sum(map(len, tables.values()))
    with runtime.progress.task("compare objects", total, live=lambda: FLOW.read // 2) as advance:  # both sides are read
        steps = TableSteps(advance)
        metadata = MetadataComparison(comparison, steps.read)
        pairs = _all_pairs(metadata, names) if tables is None else _chosen_pairs(metadata, names, tables)
        later = _compare_pairs(pairs, level, part, runtime, report, metadata.differences, steps)
    if later:
        _compare_large(later, level, part, runtime, report, metadata.differences)
    report.objects = metadata.objects
    report.differences, report.difference_count = metadata.differences.found, metadata.differences.count
    report.differing = sorted(metadata.differences.objects)
    connectors = data_connectors(comparison.source, names) if tables is None else []
    report.not_replicated = [*connectors, *metadata.not_replicated]
    report.status = "different" if report.difference_count else INCOMPLETE if report.not_replicated else "same"
    report.seconds = round(clocks.monotonic() - began, 3)
    return report


def refuse_itself(
    source: MetastoreConfig, target: MetastoreConfig, databases: Sequence[str], rename: Sequence[tuple[str, str]]
) -> None:
    """Raises UsageError where databases would be compared with themselves."""
    renamed = dict(rename)
    itself = [name for name in databases if renamed.get(name, name) == name]
    if itself and source.catalog == target.catalog and same_metastore(source.uri, target.uri):
        raise UsageError(
            f"--source and --target are one metastore, {source.uri}: {', '.join(itself)} would be compared with itself",
            hint="name another target, or --rename-db when the copy has another name on the same metastore",
        )


def _all_pairs(metadata: MetadataComparison, databases: Sequence[str]) -> Iterator[FilePair]:
    for name in databases:
        yield from metadata.database(name)


def _chosen_pairs(
    metadata: MetadataComparison, databases: Sequence[str], tables: Mapping[str, Sequence[str]]
) -> Iterator[FilePair]:
    for name in dict.fromkeys([*databases, *tables]):
        sides = metadata.itself(name) if name in databases else metadata.sides(name)
        if sides is not None:
            yield from metadata.tables(sides, tables.get(name, ()))


@dataclass
class TableSteps:
    """How far a comparison is, in tables: one is a step when its metadata and all its files are compared, but for large
    objects, which have a task of their own. Objects are compared in the order in which they are drawn."""

    advance: Advance
    _drawn: int = 0
    _compared: int = 0
    _waiting: deque[int] = field(default_factory=deque)  # of each table that was read: objects drawn until then

    def drawn(self, pairs: Iterable[FilePair]) -> Iterator[FilePair]:
        for pair in pairs:
            self._drawn += 1
            yield pair

    def read(self) -> None:
        """A table was."""
        self._waiting.append(self._drawn)
        self._settle()

    def compared(self, found: FilesCompared) -> None:
        """Files of the objects that are next."""
        self._compared += found.objects
        self.advance(0, files=found.files, size=found.bytes)
        self._settle()

    def _settle(self) -> None:
        while self._waiting and self._waiting[0] <= self._compared:
            self._waiting.popleft()
            self.advance(1)


# ---- files --------------------------------------------------------------------------------------------------------


def _compare_pairs(
    pairs: Iterator[FilePair],
    level: Level,
    part: tuple[int, int],
    runtime: Runtime,
    report: Verified,
    differences: Differences,
    steps: TableSteps,
) -> list[Later]:
    """Compares metadata by drawing `pairs`, and their files as they come; the first of them choose the engine. Returns
    the objects whose contents were too much for one task."""
    if level == "metadata":
        deque(pairs, maxlen=0)
        return []
    pairs = steps.drawn(pairs)
    ahead, size = _look_ahead(pairs, level)
    if not ahead:
        return []
    engine = runtime.engines.for_work(len(ahead), size)
    objects = TASK_OBJECTS if engine.name == "spark" else THREAD_OBJECTS
    later: list[Later] = []
    for compared in engine.run(compare_files, _tasks(itertools.chain(ahead, pairs), level, part, objects)):
        _take(compared, report, differences)
        steps.compared(compared)
        later += compared.later
    return later


def _compare_large(
    later: Sequence[Later],
    level: Level,
    part: tuple[int, int],
    runtime: Runtime,
    report: Verified,
    differences: Differences,
) -> None:
    engine = runtime.engines.for_work(sum(files for _, files, _ in later), sum(size for _, _, size in later))
    tasks = list(_shares(later, level, part))
    amounts = {"files": sum(files for _, files, _ in later), "size": sum(size for _, _, size in later)}
    with runtime.progress.task(
        "compare large objects", total=len(tasks), **amounts, live=lambda: FLOW.read // 2
    ) as advance:
        for compared in engine.run(compare_files, tasks):
            _take(compared, report, differences)
            advance(1, files=compared.files, size=compared.bytes)


def _look_ahead(pairs: Iterator[FilePair], level: Level) -> tuple[list[FilePair], int]:
    """All pairs, or as many as are work for Spark, and the bytes to read as far as the metastore knows."""
    ahead, size = [], 0
    for pair in pairs:
        ahead.append(pair)
        size += pair.size if level == "checksum" else 0
        if len(ahead) > AutoEngine.SMALL_ITEMS or size > AutoEngine.SMALL_BYTES:
            break
    return ahead, size


def _take(compared: FilesCompared, report: Verified, differences: Differences) -> None:
    report.files += compared.files
    report.files_read += compared.files_read
    report.bytes += compared.bytes
    differences.merge(compared.differences)


def _shares(later: Sequence[Later], level: Level, part: tuple[int, int]) -> Iterator[FileTask]:
    """Objects of more than TASK_BYTES: several tasks read a share of each one's files."""
    for pair, _, size in later:
        shares = -(-size // TASK_BYTES)
        for share in range(shares):
            yield FileTask([pair], level, TASK_BYTES, share, shares, part)


def _tasks(pairs: Iterable[FilePair], level: Level, part: tuple[int, int], objects: int) -> Iterator[FileTask]:
    """Fat tasks: so many objects, or so many bytes as far as the metastore knows them."""
    batch: list[FilePair] = []
    size = 0
    for pair in pairs:
        batch.append(pair)
        size += pair.size
        if len(batch) == objects or size > TASK_BYTES:
            yield FileTask(batch, level, TASK_BYTES, part=part)
            batch, size = [], 0
    if batch:
        yield FileTask(batch, level, TASK_BYTES, part=part)


# ---- candidates ------------------------------------------------------------------------------------------------------
# Suspects: tables that differ between two sides, until it is known which of them are only behind.
#
# The source continues changing while a replica is compared with it. So a difference counts only where the source has
# not changed the table after the checkpoint that the target had before it was compared.


EVENTS = 100_000  # after a checkpoint that are looked at to tell what is only behind
OWN = ""  # in place of a table: a database's own properties and its functions

Changed = Callable[[str, Set[str]], Set[str]]
"""Of some tables of a database (source names) that differ, those that the source changed since; `OWN` may be one."""


@dataclass(frozen=True)
class Batch:
    """Tables of one database that are compared together; `share` of `shares` of their contents."""

    db: str
    names: Sequence[str]
    share: int = 0
    shares: int = 1


@dataclass(frozen=True)
class Candidate:
    """Tables of a batch that differ, or the database itself (`OWN`)."""

    batch: Batch
    found: Verified
    names: frozenset[str]

    def key(self, object: str) -> str:
        """Which of `names` an object of the comparison belongs to."""
        return OWN if self.names == {OWN} else table_of(object)


def table_of(name: str) -> str:
    """The table's name in that of an object; a database itself has none."""
    return name.partition("/")[0].partition(".")[2]


def touched_names(change: Change) -> set[tuple[str, str]]:
    """What a change is about, as (database, table): both names of a rename, `OWN` for what is no table."""
    return set(change.tables) or {(change.touched_db or "", OWN)}


def changed_by_events(source: MetastoreReader, after: int, db: str, names: Set[str]) -> Set[str]:
    """Of some tables, those that the source's events after one are about: as `Changed`, for who captures nothing."""
    changed: set[tuple[str, str]] = set()
    seen = 0
    while seen < EVENTS and (events := source.next_events(after)):
        for event in events:
            changed |= touched_names(decode(event).change)
        after, seen = events[-1].id, seen + len(events)
    return {name for name in names if (db, name) in changed}
