"""Recovery points: the states of a database that the captured log can determine; the one that an event id, a time or a
position selects; the state of each row of a table's history; and objects whose files no capture read.

A capture reads a database table by table while writers continue, and the events at its end make one state of that. So
a state is exact from the end of the capture that walked the database first; but not between events that were lost and
the end of the capture that compared everything because of it; and not after the log's end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, islice

import pyarrow as pa
import pyarrow.compute as pc

from cmroot.log.captured import ADD, Segment
from replicator.captures.apply import Rename, followed
from replicator.captures.dumps.layout import Point
from replicator.captures.dumps.selection import LogMoment, parse_moment, resolve_until
from replicator.captures.events.facts import Name
from replicator.captures.events.record import Change, ChangeRecord, decode_line
from replicator.core.model import Database, Table
from replicator.core.not_replicated import NotReplicated
from replicator.errors import MomentLost, ObjectNotFound, UsageError

_TELLING = (b'"events_lost"', b'"create_database"')  # kinds as written in a record's JSON


@dataclass(frozen=True)
class LogGap:
    """A gap in the log: events after `after` and before `next` were lost. `position`: of the record of the loss;
    `known`: the end of the last capture before it, in seconds; `exact`: the end of the capture that repaired it."""

    after: int
    next: int
    position: int
    known: int
    exact: Point


@dataclass(frozen=True)
class RecoveryWindow:
    """The recovery points of one database: from `begin` to `end`, except those inside of `gaps`."""

    db: str
    begin: Point
    end: Point
    gaps: tuple[LogGap, ...] = ()

    def __str__(self) -> str:
        begin, end = self.begin, self.end
        events = f"event {begin.event} ({moment_text(begin)}) to event {end.event} ({moment_text(end)})"
        return f"{events}, or @{begin.position} to @{end.position}"

    def first(self, low: int, high: int) -> int | None:
        """Returns the first recovery point of some positions, both ends included; None if there is none."""
        position = max(low, self.begin.position)
        for gap in self.gaps:
            if gap.position <= position < gap.exact.position:
                position = gap.exact.position
        return position if position <= min(high, self.end.position) else None

    def last(self, low: int, high: int) -> int | None:
        """Returns the last recovery point of some positions, both ends included; None if there is none."""
        position = min(high, self.end.position)
        for gap in reversed(self.gaps):
            if gap.position <= position < gap.exact.position:
                position = gap.position - 1
        return position if position >= max(low, self.begin.position) else None


def moment_text(point: Point) -> str:
    """Returns a point's time as text: UTC, ISO 8601."""
    return datetime.fromtimestamp(point.time, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def retained(log: Sequence[Segment], db: str) -> RecoveryWindow:
    """Returns the recovery window of a database in a log. Reads every record's line once. Raises UsageError for an
    empty log, ObjectNotFound for a database that was never captured."""
    end = resolve_until(log, None)
    begin: Point | None = None
    gaps = []
    known = 0
    for segment, after, there in _captures(log):
        for record in _telling(segment, after, there.position):
            lost, begun = record.change.lost, record.change.creates
            if lost:
                gaps.append(LogGap(lost.start - 1, lost.stop, record.position, known, there))
            if begin is None and isinstance(begun, Database) and begun.name == db:
                here = Point(record.position, record.event, record.time)
                begin = there if record.observed else here  # observed: the first record of a walk
        known = max(known, there.time)
    if begin is None:
        raise ObjectNotFound(f"database {db} was never captured", hint="see `replicator show` of the $cmroot's log")
    return RecoveryWindow(db, begin, end, tuple(gaps))


def _captures(log: Sequence[Segment]) -> Iterator[tuple[Segment, int, Point]]:
    """Yields the captures of a log: the segment of each, the position before its first record, and its end."""
    for segment in log:
        for each in segment.captures:
            yield segment, each.first - 1, Point(each.last, int(each.about["event"]), int(each.about["time"]))


def _telling(segment: Segment, after: int, until: int) -> Iterator[ChangeRecord]:
    """Yields the records of a capture that begin or end a recovery window; the others are not decoded."""
    for line in segment.records(after, until):
        if any(kind in line for kind in _TELLING):
            yield decode_line(line, segment.place)


def moment(log: Sequence[Segment], db: str, text: str) -> Point:
    """Returns the point of the log for a position, an event id or a time of a database: the last record at or before
    it.

    Raises UsageError for a moment outside of the retained range, MomentLost inside of a gap."""
    kept, wanted = retained(log, db), parse_moment(text, "--to")
    latest = max(there.time for _, _, there in _captures(log))
    if not wanted.not_after(kept.end.position, kept.end.event, latest):
        raise UsageError(
            f"--to {text}: nothing is captured after event {kept.end.event} ({_seconds_text(latest)}), "
            f"position {kept.end.position}",
            hint=f"run `replicator capture` first, or choose a moment of {db} within {kept}",
        )
    try:
        point = resolve_until(log, text)
    except UsageError:
        raise _before(text, kept) from None
    if point.position < kept.begin.position:
        raise _before(text, kept)
    for gap in kept.gaps:
        inside = gap.position <= point.position < gap.exact.position
        if inside or (_is_after(wanted, gap) and point.position == gap.position - 1):
            raise _lost(text, gap)
    return point


def _is_after(wanted: LogMoment, gap: LogGap) -> bool:
    """Returns True if an event or time is after the last one that is known before a gap."""
    after_event = wanted.event is not None and wanted.event > gap.after
    return after_event or (wanted.time is not None and wanted.time > gap.known)


def _lost(text: str, gap: LogGap) -> MomentLost:
    last, first = f"event {gap.after}", f"event {gap.exact.event}"
    return MomentLost(
        f"--to {text}: events {gap.after + 1} to {gap.next - 1} were lost: no state between {last} "
        f"({_seconds_text(gap.known)}) and {first} ({moment_text(gap.exact)}) is known",
        hint=f"restore to {last}, the last event before them, or to {first}, the first known state after them",
    )


def _before(text: str, kept: RecoveryWindow) -> UsageError:
    return UsageError(
        f"--to {text}: {kept.db} has been captured since event {kept.begin.event} ({moment_text(kept.begin)})",
        hint=f"choose a moment within {kept}",
    )


def _seconds_text(seconds: int) -> str:
    return moment_text(Point(0, 0, seconds))


# ---- several states of one moment ------------------------------------------------------------------------------------
# Event ids do not increase with changes that only a scan finds, such as most of Spark's writes. So an event, or a
# second, may cover several states; a restore to it takes the last one, and reports their number.


@dataclass(frozen=True)
class CoveredStates:
    """The states of the restored objects that the requested moment covers, up to the restored one: their number, and
    the position of the first. `by`: "event", "time" or "position"."""

    by: str
    number: int
    first: int


def covered(log: Sequence[Segment], db: str, tables: Sequence[str], point: Point, text: str) -> CoveredStates:
    """Returns the states that a moment covers, for a database or some of its tables. point: as `moment` returns it."""
    wanted, kept = parse_moment(text, "--to"), retained(log, db)
    if wanted.position is not None:
        return CoveredStates("position", 1, point.position)
    by = "event" if wanted.event is not None else "time"
    names = {(db, name) for name in tables}
    found, first, last = 0, point.position, 0
    for record in _same(log, point, by):
        change = record.change
        concerns = db in change.databases and (not names or not change.tables or not names.isdisjoint(change.tables))
        # Of a record inside of a first walk or a gap, the state is that of its end.
        position = kept.first(record.position, point.position)
        if position is None or position == last or (position == record.position and not concerns):
            continue
        found, first, last = found + 1, first if found else position, position
    return CoveredStates(by, max(1, found), first)


def _same(log: Sequence[Segment], point: Point, by: str) -> Iterator[ChangeRecord]:
    """Yields the records with the event id, or the time, of a point, up to it."""
    before: dict[str, int] = {}
    for segment, after, there in _captures(log):
        least = before.get(by, 0)
        before = {"event": there.event, "time": there.time}
        if after >= point.position or before[by] < getattr(point, by) or least > getattr(point, by):
            continue
        for line in segment.records(after, min(there.position, point.position)):
            record = decode_line(line, segment.place)
            if getattr(record, by) == getattr(point, by) and not record.change.is_marker:
                yield record


# ---- states of a table's rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowState:
    """The state that a row of a table's history can be restored to: the table's name then, and the position."""

    db: str
    table: str
    position: int

    @property
    def to(self) -> str:
        """The recovery point, as `restore --to` takes it."""
        return f"@{self.position}"


class RowStates:
    """The states of the rows of one table's history."""

    def __init__(self, log: Sequence[Segment], table: Name) -> None:
        self._log, self._table = log, table
        self._window = lru_cache(maxsize=1000)(self._retained)

    def of(self, records: Iterable[ChangeRecord]) -> Iterator[tuple[ChangeRecord, RowState | None]]:
        """Yields each record with the state after it, or, of a drop, the state before it; None if the table does not
        exist then, or the state is not known. records: those of the table by all of its names, and of its databases, in
        order."""
        name: Name | None = None
        since, waiting = 0, None
        for record in chain(records, [None]):
            if waiting is not None:
                end = self._log[-1].last if record is None else record.position - 1
                yield waiting, self._first(name, waiting.position, end)
                name = name if _continues(waiting.change, self._table) else None
            if record is None:
                return
            change, waiting = record.change, record
            if change.drops or change.dropped_partitions:
                yield record, self._last(name, since, record.position - 1)
                waiting = None
            name, since = _after(change, name), record.position

    def _first(self, name: Name | None, low: int, high: int) -> RowState | None:
        window = self._window(name[0]) if name else None
        position = window.first(low, high) if window else None
        return RowState(*name, position) if name and position is not None else None

    def _last(self, name: Name | None, low: int, high: int) -> RowState | None:
        window = self._window(name[0]) if name else None
        position = window.last(low, high) if window else None
        return RowState(*name, position) if name and position is not None else None

    def _retained(self, db: str) -> RecoveryWindow | None:
        try:
            return retained(self._log, db)
        except ObjectNotFound:
            return None


def _after(change: Change, name: Name | None) -> Name | None:
    """Returns the name of a table after a change; None if it does not exist."""
    if change.drops:
        return None if name and name[: len(change.drops)] == change.drops else name
    return change.touched or name


def _continues(change: Change, table: Name) -> bool:
    """Returns False if a change renames the table to a name under which it is not listed."""
    return change.rename is None or change.rename[0] != table


# ---- files that no capture read --------------------------------------------------------------------------------------
# An object that is created and dropped between two captures is known from its events, and its files only if an event or
# the gateway named them. Names are held in batches: a range of the log may have any number of partitions.


NAMED = 1000
"""Objects that are named; more are only counted."""

_BATCH = 50_000
_KINDS = (b'"create_', b'"drop_', b'"alter_', b'"add_partitions"')  # as written in a record's JSON
_Key = tuple[str, str, str]  # database, table, partition or ""

UNREAD = (
    "it was created and dropped between two captures, so its files were never read: only its definition is restored. "
    "With the gateway, drops keep such files"
)


def never_read(log: Sequence[Segment], db: str, tables: Sequence[str], point: Point) -> list[NotReplicated]:
    """Returns the objects of a state whose files no capture read, because they were dropped before the next one. Reads
    the records of one capture. tables: only these; none: all of the database."""
    found = [each for each in _captures(log) if each[1] < point.position < each[2].position]
    if not found:
        return []
    between, named, number = _Between(*found[0], point.position), list[NotReplicated](), 0
    for db_then, table, partition in between.unread():
        if db_then == db and (not tables or table in tables):
            number += 1
            if number <= NAMED:
                named.append(NotReplicated(f"{db}.{table}", UNREAD, partition))
    if number > NAMED:
        named.append(NotReplicated(db, f"{number - NAMED:,} more tables or partitions: {UNREAD}"))
    return sorted(named, key=lambda each: each.name)


class _Between:
    """The records of one capture, before and after a position."""

    def __init__(self, segment: Segment, before: int, end: Point, position: int) -> None:
        self._segment, self._before, self._end, self._position = segment, before, end, position
        self._renames = [each for record in self._records(before, position) if (each := Rename.of(record))]

    def unread(self) -> Iterator[_Key]:
        """Yields the objects with data, by their names at the position, that exist there, were created in this capture
        and dropped in it, and have no file entries."""
        dropped = self._dropped()
        while some := dict(islice(dropped, _BATCH)):
            alive = self._created(some)
            yield from sorted(alive - self._with_files({each: some[each] for each in alive}))

    def _records(self, after: int, until: int) -> Iterator[ChangeRecord]:
        for line in self._segment.records(after, until):
            if any(kind in line for kind in _KINDS):
                yield decode_line(line, self._segment.place)

    def _dropped(self) -> Iterator[tuple[_Key, _Key]]:
        """Yields the keys of objects dropped after the position: their names at the position, and when dropped."""
        renames: list[Rename] = []
        for record in self._records(self._position, self._end.position):
            change = record.change
            if rename := Rename.of(record):
                renames.append(rename)
            for name in change.dropped_partitions:
                key = (*(change.touched or ("", "")), name)
                if then := _back(key, renames):
                    yield then, key
            if change.drops:
                yield from self._dropped_with(change.drops, renames)

    def _dropped_with(self, dropped: tuple[str, ...], renames: Sequence[Rename]) -> Iterator[tuple[_Key, _Key]]:
        """Yields the objects created in this capture that end with a dropped database or table."""
        for created in self._records(self._before, self._position):
            for key in _created(created.change):
                then = followed(key, created.position, self._renames)
                now = followed(then, self._position, renames) if then else None
                if then and now and now[: len(dropped)] == dropped:
                    yield then, now

    def _created(self, keys: Iterable[_Key] | dict[_Key, _Key]) -> set[_Key]:
        """Returns those of the keys that were created in this capture and exist at the position."""
        wanted, alive = frozenset(keys), set[_Key]()
        for record in self._records(self._before, self._position):
            change, at = record.change, record.position
            for key in _created(change):
                if (then := followed(key, at, self._renames)) in wanted and then:
                    alive.add(then)
            gone = [(*(change.touched or ("", "")), name) for name in change.dropped_partitions]
            alive -= {then for key in gone if (then := followed(key, at, self._renames))}
            if change.drops:
                alive = {key for key in alive if _then(change.drops, at, self._renames) != key[: len(change.drops)]}
        return alive

    def _with_files(self, keys: dict[_Key, _Key]) -> set[_Key]:
        """Returns those of the keys that have file entries up to the position. keys: with their names when dropped."""
        names = {name: key for key, later in keys.items() for name in (key, later)}
        found = set[_Key]()
        if not names:
            return found
        for batch in self._segment.file_batches(["position", "op", "db", "table", "partition"]):
            rows = pa.Table.from_batches([batch])
            at = pc.and_(pc.greater(rows["position"], self._before), pc.less_equal(rows["position"], self._position))
            rows = rows.filter(pc.and_(at, pc.equal(rows["op"], ADD)))
            columns = (rows[name].to_pylist() for name in ("db", "table", "partition"))
            found |= {names[key] for key in zip(*columns, strict=True) if key in names}
        return found


def _created(change: Change) -> Iterator[_Key]:
    """Yields the objects with data that exist from a change on, and begin without files."""
    made = change.creates
    if isinstance(made, Table) and not made.is_partitioned and not made.is_view and made.location:
        yield made.db, made.name, ""
    if change.touched:
        for name in change.added_partitions:
            yield (*change.touched, name)


def _then(name: tuple[str, ...], position: int, renames: Sequence[Rename]) -> tuple[str, ...] | None:
    """Returns the later name of a database or table."""
    if len(name) == 1:
        return name
    found = followed((name[0], name[1], ""), position, renames)
    return found[:2] if found else None


def _back(key: _Key, renames: Sequence[Rename]) -> _Key | None:
    """Returns the name that an object had before renames; None if it is another object, which did not exist then."""
    for rename in reversed(renames):
        if key[: len(rename.after)] == rename.after:
            db, table, partition = (*rename.before, *key[len(rename.after) :])
            key = (db, table, partition)
        elif key[: len(rename.before)] == rename.before:
            return None
    return key
