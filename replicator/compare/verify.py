"""Verify: compares the target with the source. Reads both metastores and both file systems again, relies on nothing
that capture, dump or load wrote, and changes nothing.

Metadata is compared in `compare_metadata`, files in `compare_files`, on the engine. If the source is written to
concurrently, there are differences that the next load removes.
"""

from __future__ import annotations

import itertools
import time as clocks
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from cmroot.store.checksum import FLOW
from replicator.captures.unlistable import server_objects
from replicator.compare.both_sides import Comparison, Level, count_tables
from replicator.compare.compare_files import FilePair, FilesCompared, FileTask, compare_files
from replicator.compare.compare_metadata import MetadataComparison
from replicator.compare.differences import Difference, Differences, difference
from replicator.core.connections import MetastoreConfig
from replicator.core.engine import AutoEngine
from replicator.core.model import ROLE, Grant
from replicator.core.not_replicated import INCOMPLETE, PROPERTY, NotReplicated, Report, from_property
from replicator.core.policy import same_metastore
from replicator.core.runtime import Advance, Runtime
from replicator.errors import ObjectNotFound, UsageError
from replicator.metastore.client import MetastoreReader
from replicator.metastore.events.notification_log import decode
from replicator.metastore.events.record import Change
from replicator.metastore.grants import Granted, label, on_target, other_authorizer, role_on_target
from replicator.replay.server_rules import NO_GRANTS

Later = tuple[FilePair, int, int]  # an object, and the number and bytes of its files still to read

TASK_OBJECTS = 500  # of a Spark task, which has an overhead of 25 to 50 ms
THREAD_OBJECTS = 25
TASK_BYTES = 1 << 30  # of one task; several tasks read an object with more


@dataclass
class Verified(Report):
    """The outcome. `status`: same, different, or incomplete (same, except for objects that were not compared);
    `objects`: databases, tables, partitions and functions compared; `differences`: at most 10,000 of the
    `difference_count`; `differing`: all tables, functions and databases with differences, by their source names;
    `not_replicated`: tables that were not compared, because loads leave them out; `files_read`: at level crc, files
    that were read because a side has no CRC."""

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
    """Compares databases of the source with their replicas on the target.

    tables: compare only these tables per database, by their source names. Of `databases`, only their own properties and
    functions are compared then. part: (number, total) of the share of the files' contents to read; names and sizes are
    always compared. Raises ObjectNotFound for a database that the source does not have."""
    began, level = clocks.monotonic(), comparison.level
    names = [name.lower() for name in databases]
    report = Verified(level=level, databases=list(dict.fromkeys([*names, *(tables or ())])))
    total = count_tables(comparison, names) if tables is None else sum(map(len, tables.values()))
    with runtime.progress.task("compare objects", total, live=lambda: FLOW.read // 2) as advance:  # both sides are read
        steps = TableSteps(advance)
        metadata = MetadataComparison(comparison, steps.read)
        pairs = _all_pairs(metadata, names) if tables is None else _chosen_pairs(metadata, names, tables)
        later = _compare_pairs(pairs, level, part, runtime, report, metadata.differences, steps)
        if comparison.grants:
            _compare_grants(metadata, comparison, names, tables)
    if later:
        _compare_large(later, level, part, runtime, report, metadata.differences)
    report.objects = metadata.objects
    report.differences, report.difference_count = metadata.differences.found, metadata.differences.count
    report.differing = sorted(metadata.differences.objects)
    holds = comparison.patterns.match
    objects = server_objects(comparison.source, names, lambda name: holds(name[1])) if tables is None else []
    report.not_replicated = [*objects, *metadata.not_replicated, *report.not_replicated]
    report.status = "different" if report.difference_count else INCOMPLETE if report.not_replicated else "same"
    report.seconds = round(clocks.monotonic() - began, 3)
    return report


def refuse_itself(
    source: MetastoreConfig, target: MetastoreConfig, databases: Sequence[str], rename: Sequence[tuple[str, str]]
) -> None:
    """Raises UsageError if databases would be compared with themselves."""
    renamed = dict(rename)
    itself = [name for name in databases if renamed.get(name, name) == name]
    if itself and source.catalog == target.catalog and same_metastore(source.uri, target.uri):
        raise UsageError(
            f"--source and --target are the same metastore, {source.uri}: "
            f"{', '.join(itself)} would be compared with itself",
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
    """The progress of a comparison, in tables: a table is a step when its metadata and all its files are compared.
    Large objects have a progress of their own. Objects are compared in the order of iteration."""

    advance: Advance
    _drawn: int = 0
    _compared: int = 0
    _waiting: deque[int] = field(default_factory=deque)  # for each table that was read: the number of objects up to it

    def drawn(self, pairs: Iterable[FilePair]) -> Iterator[FilePair]:
        for pair in pairs:
            self._drawn += 1
            yield pair

    def read(self) -> None:
        """Counts a table whose metadata was read."""
        self._waiting.append(self._drawn)
        self._settle()

    def compared(self, found: FilesCompared) -> None:
        """Counts the compared files of the next objects."""
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
    """Compares metadata by iterating over `pairs`, and their files in batches; the first of them determine the engine.
    Returns the objects whose contents were too large for one task."""
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
    """Returns all pairs, or as many as are enough for Spark, and the bytes to read known to the metastore."""
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
    report.not_replicated += compared.naming
    differences.merge(compared.differences)


def _shares(later: Sequence[Later], level: Level, part: tuple[int, int]) -> Iterator[FileTask]:
    """Yields several tasks for each object of more than TASK_BYTES; each reads a share of the object's files."""
    for pair, _, size in later:
        shares = -(-size // TASK_BYTES)
        for share in range(shares):
            yield FileTask([pair], level, TASK_BYTES, share, shares, part)


def _tasks(pairs: Iterable[FilePair], level: Level, part: tuple[int, int], objects: int) -> Iterator[FileTask]:
    """Yields large tasks, limited by the number of objects and by their bytes as far as the metastore knows them."""
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
# Candidates: tables that differ between both sides, until it is known which of them are only behind.
#
# The source continues to change while a replica is compared with it. So a difference counts only if the source has not
# changed the table after the checkpoint that the target had before the comparison.


EVENTS = 100_000  # maximum number of events after a checkpoint that are read to find tables that are only behind
OWN = ""  # in place of a table: a database's own properties and its functions

Changed = Callable[[str, Set[str]], Set[str]]
"""Returns those of a database's differing tables (source names) that the source changed since; may include `OWN`."""


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
        """Returns the element of `names` that an object of the comparison belongs to."""
        return OWN if self.names == {OWN} else table_of(object)


def table_of(name: str) -> str:
    """Returns the table's name in an object's name; empty for a database itself."""
    return name.partition("/")[0].partition(".")[2]


def touched_names(change: Change) -> set[tuple[str, str]]:
    """Returns a change's (database, table) names: both of a rename, `OWN` for objects that are not tables."""
    return set(change.tables) or {(change.touched_db or "", OWN)}


def changed_by_events(source: MetastoreReader, after: int, db: str, names: Set[str]) -> Set[str]:
    """Returns the tables that the source's events after `after` concern: a `Changed` without a captured log."""
    changed: set[tuple[str, str]] = set()
    seen = 0
    while seen < EVENTS and (events := source.next_events(after)):
        for event in events:
            changed |= touched_names(decode(event).change)
        after, seen = events[-1].id, seen + len(events)
    return {name for name in names if (db, name) in changed}


# ---- grants ----------------------------------------------------------------------------------------------------------


def _compare_grants(
    metadata: MetadataComparison,
    comparison: Comparison,
    databases: Sequence[str],
    tables: Mapping[str, Sequence[str]] | None,
) -> None:
    """Compares the grants of databases and tables that both sides have, and the roles that they need. Both sides are
    read by another call than that of captures and loads."""
    chosen = dict.fromkeys([*databases, *(tables or ())])
    granted = _granted(comparison, list(chosen))
    any_here = any(here.grants for here, _ in granted.values())
    instead = other_authorizer(comparison.source) or other_authorizer(comparison.target) if any_here else ""
    for db in chosen:
        here, there = granted[db]
        wanted = {(table, values): on_target(some, comparison.principals) for table, values, some in here.objects(db)}
        if instead and wanted:
            reason = f"{NO_GRANTS}{instead} authorizes access to the source or the target"
            metadata.not_replicated.append(NotReplicated(db, reason))
            continue
        found = {(table, values): some for table, values, some in there.objects(comparison.replica(db))}
        refused = _without_grants(metadata, comparison, db) if wanted or found else {db}
        names = _comparable_names(comparison, db, None if tables is None else tables.get(db, ()))
        names |= {""} if db in databases else set()
        for on in sorted(wanted.keys() | found.keys()):
            name = label((db, *on))
            whole = not on[1] or comparison.patterns.filter_of(db, on[0]) is None
            if on[0] in names and whole and name.partition("/")[0] not in refused:
                _compare_object(metadata, name, wanted.get(on, ()), found.get(on, ()))
        if db in databases and db not in refused:
            _compare_roles(metadata, comparison, db, here)


def _granted(comparison: Comparison, databases: Sequence[str]) -> dict[str, tuple[Granted, Granted]]:
    """Returns the grants of both sides by database; several databases may have one value in common."""
    known = {} if comparison.granted is None else comparison.granted
    missing = {db for db in databases if db not in known}
    if missing:
        sides = [(comparison.source, missing), (comparison.target, {comparison.replica(db) for db in missing})]
        here, there = (side.all_grants(names) if side.keeps_grants() else Granted() for side, names in sides)
        known |= dict.fromkeys(missing, (here, there))
    return known


def _without_grants(metadata: MetadataComparison, comparison: Comparison, db: str) -> set[str]:
    """Returns the objects whose grants the target refused, as its database records, and reports them."""
    try:
        parameters = comparison.target.database(comparison.replica(db)).parameters
    except ObjectNotFound:
        return {db}
    said = [each for each in from_property(parameters.get(PROPERTY), db) if each.reason.startswith(NO_GRANTS)]
    metadata.not_replicated += said
    return {each.object for each in said}


def _comparable_names(comparison: Comparison, db: str, chosen: Sequence[str] | None) -> set[str]:
    """Returns the selected tables that both sides have."""
    try:
        found = set(comparison.source.table_names(db)) & set(comparison.target.table_names(comparison.replica(db)))
    except ObjectNotFound:
        return set()
    return {name for name in found if comparison.patterns.match(name) and (chosen is None or name in chosen)}


def _compare_object(metadata: MetadataComparison, name: str, wanted: Sequence[Grant], found: Sequence[Grant]) -> None:
    for each in sorted(set(wanted) - set(found), key=str):
        metadata.differences.add(difference(name, "grant missing", str(each), None, each.privilege))
    for each in sorted(set(found) - set(wanted), key=str):
        metadata.differences.add(difference(name, "grant extra", None, str(each), each.privilege))


def _compare_roles(metadata: MetadataComparison, comparison: Comparison, db: str, here: Granted) -> None:
    """Compares the members of roles: missing ones, and those that a load added and the source does not have."""
    roles = {each.principal for _, _, some in here.objects(db) for each in some if each.kind == ROLE}
    for role in comparison.source.roles(sorted(roles)).values():
        wanted = role_on_target(role, comparison.principals)
        if wanted is None:
            continue
        found = comparison.target.roles([wanted.name]).get(wanted.name)
        if found is None:
            metadata.differences.add(difference(db, "role missing", wanted.name, None))
            continue
        principals = {(each.kind, each.principal) for each in found.members}
        for each in wanted.members:
            if (each.kind, each.principal) not in principals:
                metadata.differences.add(difference(db, "role member missing", str(each), None, wanted.name))
        extra = set(found.members) - set(wanted.members)
        for each in sorted(extra & comparison.target.added_members(wanted.name) if extra else (), key=str):
            metadata.differences.add(difference(db, "role member extra", None, str(each), wanted.name))
