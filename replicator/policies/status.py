"""Status: the checkpoint that a target reports, and its lag behind the source. Reads only."""

from __future__ import annotations

import time as clocks
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cmroot.log.captured import ADD, REMOVE, Segment, segments
from cmroot.root import ChangeRoot
from replicator.captures.manifest import read_records
from replicator.captures.recording import covered_at
from replicator.core.model import Database, NotificationEvent
from replicator.core.not_replicated import PROPERTY, NotReplicated, Report, from_property
from replicator.core.roles import without_role
from replicator.core.text import count_text, time_text
from replicator.errors import MetastoreUnreachable, NotReached, ObjectNotFound, UsageError
from replicator.metastore.client import MetastoreReader
from replicator.metastore.events.notification_log import decode
from replicator.metastore.events.record import Change
from replicator.metastore.events.scope import Patterns, matches_name, waiting_events
from replicator.replay.replica import LAST_ID, LOADING, POSITION, SOURCE, own_parameters


@dataclass
class Status(Report):
    """The status of one replica. `status`: current, behind, loading (a load is incomplete), replica (no source to
    compare with), or `no replica`. `time`: of the last record applied, in seconds. Lags are None if unknown: events and
    seconds require the source, bytes and time its $cmroot. `lag_events` counts events of all databases that may change
    something. `lag_seconds` is the age of the oldest change that is known to be missing; `lag_seconds_bound` also
    counts changes without an event that no scan has found yet: the time since `covered_until`, the start of the last
    complete scan whose findings the replica has. It requires source and $cmroot; None: there was no such scan.
    `not_replicated`: the differences from the source that the target reports; objects that could not be read at the
    source count as behind since then."""

    status: str
    target: str
    db: str
    event: int | None = None
    position: int | None = None
    time: int | None = None
    source: str | None = None
    loading: str | None = None
    source_event: int | None = None
    lag_events: int | None = None
    lag_seconds: float | None = None
    lag_seconds_bound: float | None = None
    covered_until: int | None = None
    lag_bytes: int | None = None
    not_replicated: list[NotReplicated] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "time": time_text(self.time), "covered_until": time_text(self.covered_until)}


def status(
    target: MetastoreReader,
    db: str,
    *,
    source: MetastoreReader | None = None,
    root: ChangeRoot | None = None,
    source_db: str | None = None,
    clock: Callable[[], float] = clocks.time,
) -> Status:
    """Returns the status of database `db` of the target. source_db: its name at the source, if renamed.

    Raises ObjectNotFound if the database does not exist, UsageError for a $cmroot that is not its source's."""
    parameters = target.database(db).parameters
    report = Status(
        status="replica",
        target=target.uri,
        db=db,
        event=_number(parameters.get(LAST_ID)),
        position=_number(parameters.get(POSITION)),
        source=parameters.get(SOURCE),
        loading=parameters.get(LOADING) or None,
        not_replicated=from_property(parameters.get(PROPERTY), source_db or db),
    )
    if report.event is None:
        report.status = "loading" if report.loading else "no replica"
        return report
    if root is not None:
        _read_log(report, root, source_db or db)
    if source is not None:
        _ask_source(report, source, clock)
        unseen = [each.since for each in report.not_replicated if each.unknown]
        if unseen:
            since = min((each for each in unseen if each), default=clock())
            report.lag_seconds = max(report.lag_seconds or 0.0, round(clock() - since, 3))
        report.status = "behind" if report.lag_events or report.lag_bytes or unseen else "current"
        if report.covered_until is not None:
            report.lag_seconds_bound = seconds_bound(report.covered_until, report.lag_seconds, clock())
    if report.loading:
        report.status = "loading"
    return report


def seconds_bound(covered_until: int, known: float | None, now: float) -> float:
    """Returns the upper bound of a lag: the time since the replica had every change, at least the known lag."""
    return round(max(known or 0.0, now - covered_until), 3)


def _ask_source(report: Status, source: MetastoreReader, clock: Callable[[], float]) -> None:
    """Sets the lag in events, and the age of the oldest of them."""
    assert report.event is not None
    report.source_event = source.current_event_id()
    report.lag_events = max(0, report.source_event - report.event)
    report.lag_seconds = 0.0
    if report.source_event < report.event:
        report.warnings.append(f"the source's newest event is {report.source_event}: it is not the replicated source")
    if not report.lag_events:
        return
    waiting = source.next_events(report.event, 1)
    gone = not waiting or waiting[0].id > report.event + 1
    if not gone:
        found = waiting_events(source, report.event, report.source_event)
        waiting, report.lag_events = found.events, len(found.events) + found.more
    if waiting:
        report.lag_seconds = round(max(0.0, clock() - waiting[0].time), 3)
    if gone:
        report.warnings.append("the source has cleaned away events that were not applied: the lag is at least this")


def _read_log(report: Status, root: ChangeRoot, db: str) -> None:
    """Sets the time of the position, and the bytes that were captured after it."""
    if report.source not in (None, root.id):
        raise UsageError(
            f"{root.place} is not the $cmroot that {report.db} was created from ({report.source})",
            hint="name the one that its dumps were written from",
        )
    log = segments(root.place)
    position = report.position or 0
    report.time = _time_of(log, position)
    report.covered_until = covered_at(root.place, log, position).get(db)
    report.lag_bytes = 0
    for segment in log:
        if segment.last > position:
            for batch in segment.file_batches(["position", "op", "db", "size"]):
                report.lag_bytes += _added_bytes(pa.Table.from_batches([batch]), position, db)


def _time_of(log: list[Segment], position: int) -> int | None:
    for segment in log:
        if segment.first <= position <= segment.last:
            return next((record.time for record in read_records(segment, position - 1, position)), None)
    return None


def _added_bytes(rows: pa.Table, after: int, db: str) -> int:
    added = pc.and_(pc.equal(rows["op"], ADD), pc.equal(rows["db"], db))
    chosen = rows.filter(pc.and_(added, pc.greater(rows["position"], after)))
    return int(pc.sum(chosen["size"]).as_py() or 0)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


# ---- wait ------------------------------------------------------------------------------------------------------------
# Wait: until a target has reached an event, or a lag below a limit. For scripts. Reads only.
#
# Queries `status` at growing intervals. A metastore that does not answer and a database that does not exist yet are
# waited for until the time limit, like everything else.


FIRST, LONGEST, GROWTH = 0.1, 5.0, 1.5  # seconds between two queries, and the growth factor


@dataclass(frozen=True)
class Goal:
    """The conditions to wait for; all that are set must hold. event: the target's event is this one or later. lag: the
    target's lag is at most this long: its upper bound if the source's $cmroot is given, else the age of the oldest
    event that it lacks."""

    event: int | None = None
    lag: timedelta | None = None

    def reached(self, now: Status, *, by_events: bool) -> bool:
        if now.event is None or (self.event is not None and now.event < self.event):
            return False
        lag = now.lag_seconds if by_events else now.lag_seconds_bound
        return self.lag is None or (lag is not None and lag <= self.lag.total_seconds())

    def __str__(self) -> str:
        parts = [f"event {self.event}"] if self.event is not None else []
        return " and ".join(parts + ([f"a lag of {self.lag.total_seconds():g} s"] if self.lag is not None else []))


@dataclass
class Waited(Report):
    """The state of the target when the goal was reached, after `seconds`."""

    db: str
    target: str
    event: int
    lag_events: int | None
    lag_seconds: float | None
    lag_seconds_bound: float | None
    seconds: float
    status: str = "reached"


@dataclass(frozen=True)
class SourceSide:
    """The source that a replica is compared with. root: its $cmroot; without it, changes without an event are not
    counted. db: the database's name there, if renamed."""

    metastore: MetastoreReader | None = None
    root: ChangeRoot | None = None
    db: str | None = None


NO_SOURCE = SourceSide()


def wait(
    target: MetastoreReader,
    db: str,
    goal: Goal,
    *,
    timeout: timedelta,
    source: SourceSide = NO_SOURCE,
    clock: Callable[[], float] = clocks.monotonic,
    sleep: Callable[[float], object] = clocks.sleep,
) -> Waited:
    """Returns when the target's database `db` has reached the goal; queries at least once.

    Raises NotReached on timeout, UsageError for an undecidable goal: no condition, or a lag without a source. May be
    stopped and run again."""
    if goal == Goal():
        raise UsageError("nothing to wait for", hint="give --until-event or --until-lag")
    if goal.lag is not None and source.metastore is None:
        raise UsageError("the lag is measured by comparison with the source", hint="give --source")
    began = clock()
    pause = FIRST
    while True:
        now, trouble = _ask(target, db, source if goal.lag is not None else NO_SOURCE)
        spent = clock() - began
        if now is not None and goal.reached(now, by_events=source.root is None):
            assert now.event is not None
            lags = now.lag_events, now.lag_seconds, now.lag_seconds_bound
            return Waited(db, target.uri, now.event, *lags, round(spent, 3))
        left = timeout.total_seconds() - spent
        if left <= 0:
            raise _not_reached(target, db, goal, timeout, now, trouble)
        sleep(min(pause, left))
        pause = min(pause * GROWTH, LONGEST)


def _ask(target: MetastoreReader, db: str, source: SourceSide) -> tuple[Status | None, str]:
    """Returns the status, or None and the reason."""
    try:
        return status(target, db, source=source.metastore, root=source.root, source_db=source.db), ""
    except (MetastoreUnreachable, ObjectNotFound) as error:
        return None, error.message


def _not_reached(
    target: MetastoreReader, db: str, goal: Goal, timeout: timedelta, now: Status | None, trouble: str
) -> NotReached:
    there = trouble
    if now is not None:
        there = "it is not a replica" if now.event is None else f"it is at event {now.event}"
        if now.lag_seconds is not None:
            there += f", {count_text(now.lag_events or 0, 'event')} and {now.lag_seconds:.0f} s behind"
        if goal.lag is not None and now.covered_until is not None:
            there += f"; it has every change until {time_text(now.covered_until)}, as the last complete scan proves"
    return NotReached(
        f"database {db} of {target.uri} did not reach {goal} within {timeout.total_seconds():g} s: {there}",
        hint="wait again with a longer --timeout; `replicator status` shows whether a load is in progress",
        details={
            "event": now.event if now else None,
            "lag_events": now.lag_events if now else None,
            "lag_seconds": now.lag_seconds if now else None,
            "lag_seconds_bound": now.lag_seconds_bound if now else None,
        },
    )


# ---- unreplicated ----------------------------------------------------------------------------------------------------
# Changes that one side has and the other never received: records after given positions of a captured log, and events
# that no capture has read yet, counted per table. Reads only.
#
# Lag, the loss report of a failover, the changes held by a failback, and late changes of a switchover are all counted
# here.


NAMED = 20  # partitions of a table that are reported by name
COUNTED = 100_000  # partitions of a table that are distinguished; beyond these, each change counts
TABLES = 1000  # tables that are listed one by one, those with the most bytes first


@dataclass
class TableChanges:
    """The changes of one table (or of a database's own properties, by its name alone). `changes`: records,
    `not_captured` of which are known only from events, without their files. files, bytes: written; `removed`: files
    removed. `names`: some partitions. first, last: times of the changes, in seconds, by their metastore's clock."""

    table: str
    changes: int = 0
    not_captured: int = 0
    partitions: int = 0
    files: int = 0
    bytes: int = 0
    removed: int = 0
    first: int | None = None
    last: int | None = None
    names: list[str] = field(default_factory=list)


class Unreplicated:
    """A counter of changes by table. `after`: database -> the position that the other side has loaded; other databases
    are ignored. `known`: the databases as they were, so that a new role or checkpoint alone does not count as a change.
    partitions: True to count partitions."""

    def __init__(
        self, after: Mapping[str, int], patterns: Patterns, known: Iterable[Database] = (), *, partitions: bool = True
    ) -> None:
        self._after, self._patterns, self._counts_partitions = dict(after), patterns, partitions
        self._known = {each.name: _plain(each) for each in known}
        self._tables: dict[str, TableChanges] = {}
        self._partitions: dict[str, set[str]] = {}
        self.lost_events = 0
        self.first: dict[str, int] = {}  # database -> position of its first counted record

    def captured(self, log: Sequence[Segment]) -> None:
        """Counts all records after the positions. Raises FormatError if the log is damaged."""
        if not self._after:
            return
        least = min(self._after.values())
        for segment in log:
            if segment.last <= least:
                continue
            for record in read_records(segment, least):
                self.lost_events += len(record.change.lost)
                db = record.change.touched_db or ""
                if record.position > self._after.get(db, record.position) and self._count(record.change, record.time):
                    self.first.setdefault(db, record.position)
            for batch in segment.file_batches(["position", "op", "db", "table", "partition", "size"]):
                self._files(pa.Table.from_batches([batch]))

    def announced(self, events: Iterable[NotificationEvent]) -> None:
        """Counts events that no capture has read."""
        for event in events:
            change = decode(event).change
            if (change.touched_db or "") in self._after:
                self._count(change, event.time, captured=False)

    def tables(self) -> list[TableChanges]:
        """Returns the tables, those with the most bytes first."""
        return sorted(self._tables.values(), key=lambda each: (-each.bytes, -each.changes, each.table))

    def as_json(self) -> dict[str, Any]:
        """Returns the sums and the tables."""
        found = self.tables()
        sums = {
            name: sum(getattr(each, name) for each in found)
            for name in ("changes", "not_captured", "partitions", "files", "bytes", "removed")
        }
        return {
            **sums,
            "lost_events": self.lost_events,
            "table_count": sum("." in each.table for each in found),
            "first": min((each.first for each in found if each.first is not None), default=None),
            "last": max((each.last for each in found if each.last is not None), default=None),
            "tables": [asdict(each) for each in found[:TABLES]],
        }

    # ---- counting -------------------------------------------------------------------------------------------------

    def _of(self, db: str, table: str | None) -> TableChanges | None:
        if table and not self._patterns.match(table):
            return None
        name = f"{db}.{table}" if table else db
        return self._tables.setdefault(name, TableChanges(name))

    def _count(self, change: Change, time: int, *, captured: bool = True) -> bool:
        """Counts a change; returns False if it does not concern the other side."""
        if self._only_ours(change):
            return False
        table, db = change.touched, change.touched_db or ""
        about = change.partition_names or change.written_partitions
        wanted = {name for name in about if table is None or self._wanted(*table, name)}
        found = self._of(db, table[1] if table else None) if wanted or not about else None
        if found is None:
            return False
        found.changes += 1
        found.not_captured += not captured
        found.first = time if found.first is None else min(found.first, time)
        found.last = time if found.last is None else max(found.last, time)
        for name in change.partition_names:
            if name in wanted:
                self._partition(found, name)
        return True

    def _wanted(self, db: str, table: str, partition: str) -> bool:
        """Returns True if the policy's filters select the partition."""
        wanted = self._patterns.filter_of(db, table)
        return wanted is None or matches_name(wanted, partition)

    def _only_ours(self, change: Change) -> bool:
        """Returns True if only a role or checkpoint was written into the database's properties."""
        if change.altered_database is None:
            return False
        before, now = self._known.get(change.altered_database.name), _plain(change.altered_database)
        return before is not None and before.parameters == now.parameters and before.location == now.location

    def _files(self, rows: pa.Table) -> None:
        for db, position in self._after.items():
            theirs = rows.filter(pc.and_(pc.equal(rows["db"], db), pc.greater(rows["position"], position)))
            if not theirs.num_rows:
                continue
            keys = ["op", "table"] + ["partition"] * (self._counts_partitions or bool(self._patterns.partitions))
            grouped = theirs.group_by(keys).aggregate([("size", "sum"), ([], "count_all")])
            for each in grouped.to_pylist():
                partition = each.get("partition")
                if partition and not self._wanted(db, each["table"], partition):
                    continue
                found = self._of(db, each["table"])
                if found is None:
                    continue
                if each["op"] == ADD:
                    found.files += each["count_all"]
                    found.bytes += each["size_sum"] or 0
                elif each["op"] == REMOVE:
                    found.removed += each["count_all"]
                else:
                    continue
                if partition:
                    self._partition(found, partition)

    def _partition(self, found: TableChanges, name: str) -> None:
        seen = self._partitions.setdefault(found.table, set())
        if name in seen or not self._counts_partitions:
            return
        if len(seen) < COUNTED:
            seen.add(name)
        found.partitions += 1
        if len(found.names) < NAMED:
            found.names.append(name)


def _plain(database: Database) -> Database:
    return msgspec.structs.replace(database, parameters=own_parameters(without_role(database.parameters)))
