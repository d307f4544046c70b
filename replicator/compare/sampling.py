"""Sampling: continuous verification. Each run compares some tables of a replica within a budget, starting with those
whose last comparison is the oldest; the times are stored on the target's side.

The memory is one file per database (`verified/<database>.parquet`, a row per table). It is rewritten to a temporary
file and renamed during a run, so that a killed run loses little. If it is lost, only a round starts again. A table with
more bytes than the budget is read in shares, one per run; its names and sizes are compared each time.
"""

from __future__ import annotations

import io
import time as clocks
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.lease import acquire
from cmroot.store.place import Place, join
from replicator.compare.both_sides import Comparison
from replicator.compare.differences import LIMIT, Difference
from replicator.compare.verify import OWN, Batch, Candidate, Changed, Verified, changed_by_events, table_of, verify
from replicator.core.grouping import batched
from replicator.core.not_replicated import INCOMPLETE, NotReplicated, Report
from replicator.core.runtime import Runtime
from replicator.errors import ObjectNotFound
from replicator.replay.replica import LAST_ID

# ---- verified --------------------------------------------------------------------------------------------------------
# Verified: the stored state of each table's last comparison, in one small file per database.
#
# A Parquet file with a row per table; format and version are in its schema's metadata. It is small because names
# compress well, and one file because a database has up to a million tables. It may be lost at any time.


FORMAT, VERSION = b"replicator-verified", b"1"
SCHEMA = pa.schema(
    [
        ("table", pa.string()),
        ("verified", pa.float64()),
        ("outcome", pa.string()),
        ("size", pa.int64()),
        ("share", pa.int32()),
        ("tried", pa.float64()),
    ],
    {b"format": FORMAT, b"version": VERSION},
)


class TableMemory(NamedTuple):
    """A table's last comparison: its time (seconds since the epoch; 0: never), its outcome (same, different, or empty),
    the table's bytes if they were determined, and the share of its contents to read next; `tried`: when it was last
    compared without an outcome, because it was only behind."""

    verified: float = 0.0
    outcome: str = ""
    size: int | None = None
    share: int = 0
    tried: float = 0.0

    @property
    def turn(self) -> float:
        """The sort key of the next comparison: a table that is always behind must not delay the others."""
        return max(self.verified, self.tried)


@dataclass
class VerifiedTables:
    """All tables of a database."""

    tables: dict[str, TableMemory] = field(default_factory=dict)

    def of_tables(self, names: Set[str]) -> VerifiedTables:
        """Returns the state for the current tables: dropped ones are removed, new ones were never compared."""
        return VerifiedTables({name: self.tables.get(name, TableMemory()) for name in names})


def read_memory(place: str, database: str) -> tuple[VerifiedTables, str]:
    """Returns the stored state, and a warning if it was lost: a file that is damaged, or of an unknown version, is
    ignored."""
    file = _file(place, database)
    try:
        table = pq.read_table(io.BytesIO(Place(file).read_bytes()))
        about: Mapping[bytes, bytes] = table.schema.metadata or {}
        if (about.get(b"format"), about.get(b"version")) != (FORMAT, VERSION):
            raise pa.ArrowInvalid("it has another format or version")
        columns = [table[name].to_pylist() for name in SCHEMA.names]
    except FileNotFoundError:
        return VerifiedTables(), ""
    except (pa.ArrowException, KeyError, OSError) as error:
        return VerifiedTables(), f"{file} cannot be read ({error}): every table of {database} counts as never compared"
    rows = zip(*columns, strict=True)
    return VerifiedTables({name: TableMemory(*rest) for name, *rest in rows}), ""


def write_memory(place: str, database: str, memory: VerifiedTables) -> None:
    """Replaces the file by one rename."""
    rows = sorted(memory.tables.items())
    columns = [
        [name for name, _ in rows],
        *(list(column) for column in zip(*(about for _, about in rows), strict=True)),
    ]
    if not rows:
        columns = [[] for _ in SCHEMA]
    table = pa.table([pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    file = _file(place, database)
    with Place(file).open_write() as out:
        pq.write_table(table, out, compression="zstd")


def _file(place: str, database: str) -> str:
    return join(place, f"{database.replace('/', '%2F')}.parquet")


# ---- sampling --------------------------------------------------------------------------------------------------------


BATCH = 100  # tables compared together
SAVE_SECONDS = 30.0  # how much of a run a crash may lose
NAMED = 100  # maximum number of different tables reported by name


@dataclass(frozen=True)
class Budget:
    """The budget of one run: at most `tables` tables and `bytes` bytes of contents, but at least one table. None: no
    limit of this kind."""

    tables: int | None = None
    bytes: int | None = None


@dataclass
class Sampled(Report):
    """The report of a run; fields as in `Verified`, for the objects compared in this run. `tables`: the number that
    exist; `sampled`: compared in this run, `partly` of them with a share of their contents; `behind`: different, but
    changed at the source after the target's checkpoint, so that they count as neither compared nor different. After the
    run: `never`: tables never compared; `oldest`: seconds since the oldest comparison of a table, None if no table was
    ever compared; `open`: tables that were different in their last comparison, `open_names` the first of them."""

    status: str = "same"
    level: str = "checksum"
    databases: list[str] = field(default_factory=list)
    tables: int = 0
    sampled: int = 0
    partly: int = 0
    never: int = 0
    oldest: float | None = None
    open: int = 0
    open_names: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    objects: int = 0
    files: int = 0
    files_read: int = 0
    bytes: int = 0
    difference_count: int = 0
    differences: list[Difference] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    not_replicated: list[NotReplicated] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0


def verify_sample(
    comparison: Comparison,
    databases: Sequence[str],
    budget: Budget,
    place: str,
    runtime: Runtime,
    *,
    changed: Changed | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> Sampled:
    """Compares the next tables of some databases, and the databases' own properties and functions.

    place: a directory on the target's side used for nothing else. changed: returns the tables that are only behind;
    without it, the source's events determine them. enough: called before each batch (one table, or up to a hundred);
    True ends the run early. The rest is as for `verify`. Raises LeaseHeld if another run is sampling there,
    ObjectNotFound for a database that the source does not have."""
    began = clocks.monotonic()
    with acquire(place, "verify a sample"):
        run = _Run(comparison, [name.lower() for name in databases], budget, place, runtime, changed)
        run.compare_databases()
        try:
            for batch in run.batches():
                if enough():
                    break
                run.compare(batch)
            run.settle()
        finally:
            run.save()
        report = run.finish()
    report.seconds = round(clocks.monotonic() - began, 3)
    return report


def memory_of(cmroot: str) -> str:
    """Returns the location of the state of samples that belong to no policy: in the target's root."""
    return join(cmroot, "verified")


class _Run:
    """One run: the stored state, and the report."""

    def __init__(
        self,
        comparison: Comparison,
        databases: Sequence[str],
        budget: Budget,
        place: str,
        runtime: Runtime,
        changed: Changed | None,
    ) -> None:
        self._budget, self._place, self._runtime = budget, place, runtime
        self._comparison = replace(comparison, granted={})
        self._changed = changed or self._changed_since
        self._events = {db: self._checkpoint(db) for db in databases}
        self._candidates: list[Candidate] = []
        self._compared = 0
        self._report = Sampled(level=comparison.level, databases=list(databases))
        self._memories: dict[str, VerifiedTables] = {}
        self._saved, self._unsaved = clocks.monotonic(), False
        for db in databases:
            memory, warning = read_memory(place, comparison.replica(db))
            self._report.warnings += [warning] if warning else []
            self._memories[db] = memory.of_tables(self._names(db))
        self._report.tables = sum(len(memory.tables) for memory in self._memories.values())

    def _names(self, db: str) -> set[str]:
        """Returns the tables of either side."""
        if self._comparison.source.database(db).connector:  # its tables belong to another system
            return set()
        names = set(self._comparison.source.table_names(db))
        try:
            names |= set(self._comparison.target.table_names(self._comparison.replica(db)))
        except ObjectNotFound:
            return set()  # one difference reports it: the database is missing
        return set(filter(self._comparison.patterns.match, names))

    # ---- what is due ----------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Batch]:
        """Yields the batches of this run, the oldest comparison first, within the budget."""
        memories = self._memories.items()
        due = sorted((about.turn, db, name) for db, memory in memories for name, about in memory.tables.items())
        due = self._again(due)[: self._budget.tables]
        if self._budget.bytes is None:
            for db in self._memories:
                names = [name for _, owner, name in due if owner == db]
                yield from (Batch(db, some) for some in batched(names, BATCH))
            return
        for _, db, name in due:
            size = self._size(db, name)
            if self._compared and self._report.bytes + min(size, self._budget.bytes) > self._budget.bytes:
                return
            shares = max(1, -(-size // max(1, self._budget.bytes)))
            yield Batch(db, [name], self._memories[db].tables[name].share % shares, shares)

    def _again(self, due: list[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
        """Moves one of the tables that were different to the front, so that a repair is soon noticed, if the budget
        leaves room for others."""
        tables, size = self._budget.tables, self._budget.bytes
        for each in due if tables is None or tables > 1 else ():
            about = self._memories[each[1]].tables[each[2]]
            if about.outcome == "different" and (size is None or (about.size or 0) <= size // 2):
                return [each, *(other for other in due if other != each)]
        return due

    def _size(self, db: str, name: str) -> int:
        """Returns the bytes of a table as of its last comparison; if they are unknown, by listing it."""
        known = self._memories[db].tables[name].size
        if known is not None:
            return known
        return verify(
            replace(self._comparison, level="size", grants=False), (), self._runtime, tables={db: [name]}
        ).bytes

    # ---- comparing ------------------------------------------------------------------------------------------------

    def compare_databases(self) -> None:
        """Compares the databases' own properties and functions."""
        for db in self._memories:
            found = verify(self._comparison, [db], self._runtime, tables={})
            self._count(found)
            if found.differing:
                self._candidates.append(Candidate(Batch(db, [OWN]), found, frozenset([OWN])))

    def compare(self, batch: Batch) -> None:
        """Compares some tables, and records the time for equal ones."""
        part = batch.share, batch.shares
        found = verify(self._comparison, (), self._runtime, tables={batch.db: batch.names}, part=part)
        self._count(found, batch.shares)
        self._compared += len(batch.names)
        differing = frozenset(map(table_of, found.differing))
        for name in set(batch.names) - differing:
            self._note(batch, name, "same", found.bytes)
        if differing:
            self._candidates.append(Candidate(batch, found, differing))
        if clocks.monotonic() - self._saved > SAVE_SECONDS:
            self.save()

    def settle(self) -> None:
        """Finalises differences: tables that the source has changed since are only behind, and keep their time."""
        names: dict[str, set[str]] = {}
        for suspect in self._candidates:
            names.setdefault(suspect.batch.db, set()).update(suspect.names)
        behind = {db: self._changed(db, found) & found for db, found in names.items()}
        for suspect in self._candidates:
            batch, late = suspect.batch, suspect.names & behind[suspect.batch.db]
            self._report.behind += sorted(f"{batch.db}.{name}".rstrip(".") for name in late)
            self._differences(suspect, late)
            tables = self._memories[batch.db].tables
            for name in late - {OWN}:
                tables[name] = tables[name]._replace(tried=self._runtime.clock())
            for name in suspect.names - late - {OWN}:
                self._note(batch, name, "different", suspect.found.bytes)
        self._unsaved = True

    def _note(self, batch: Batch, name: str, outcome: str, size: int) -> None:
        tables = self._memories[batch.db].tables
        known = size if len(batch.names) == 1 else tables[name].size
        tables[name] = TableMemory(self._runtime.clock(), outcome, known, (batch.share + 1) % batch.shares)
        self._report.sampled += 1
        self._report.partly += batch.shares > 1
        self._unsaved = True

    def _count(self, found: Verified, shares: int = 1) -> None:
        self._report.objects += found.objects
        self._report.not_replicated += found.not_replicated
        self._report.files += found.files
        self._report.files_read += found.files_read
        self._report.bytes += found.bytes // shares  # all shares have about the same size

    def _differences(self, suspect: Candidate, behind: Set[str]) -> None:
        report, found = self._report, suspect.found
        hidden = found.difference_count - len(found.differences)
        mine = [each for each in found.differences if suspect.key(each.object) not in behind]
        report.difference_count += len(mine) + (hidden if not behind else 0)
        report.differences += mine[: LIMIT - len(report.differences)]
        report.differing += [name for name in found.differing if suspect.key(name) not in behind]

    def _checkpoint(self, db: str) -> int | None:
        """Returns the target's event at the beginning of the run: a concurrent load updates it at its end, and the
        comparison may have seen its unfinished state."""
        try:
            mark = self._comparison.target.database(self._comparison.replica(db)).parameters.get(LAST_ID, "")
        except ObjectNotFound:
            return None
        return int(mark) if mark.isdigit() else None

    def _changed_since(self, db: str, names: Set[str]) -> Set[str]:
        after = self._events[db]
        return set() if after is None else changed_by_events(self._comparison.source, after, db, names)

    # ---- memory ---------------------------------------------------------------------------------------------------

    def save(self) -> None:
        if self._unsaved:
            for db, memory in self._memories.items():
                write_memory(self._place, self._comparison.replica(db), memory)
            self._saved, self._unsaved = clocks.monotonic(), False

    def finish(self) -> Sampled:
        report = self._report
        known = [about for memory in self._memories.values() for about in memory.tables.values()]
        compared = [about.verified for about in known if about.outcome]
        report.never = len(known) - len(compared)
        report.oldest = round(max(0.0, self._runtime.clock() - min(compared)), 3) if compared else None
        different = sorted(
            f"{db}.{name}"
            for db, memory in self._memories.items()
            for name, about in memory.tables.items()
            if about.outcome == "different"
        )
        report.open, report.open_names = len(different), different[:NAMED]
        report.status = "different" if report.difference_count else INCOMPLETE if report.not_replicated else "same"
        return report
