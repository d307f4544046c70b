"""Recovery points: the states of a database that the captured log can determine; the one that an event id, a time or a
position selects; and the state of each row of a table's history.

A capture reads a database table by table while writers continue, and the events at its end make one state of that. So
a state is exact from the end of the capture that walked the database first; but not between events that were lost and
the end of the capture that compared everything because of it; and not after the log's end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain

import msgspec

from cmroot.log.captured import Segment
from replicator.captures.dumps.layout import Point
from replicator.captures.dumps.selection import resolve_until
from replicator.core.model import Database, Name
from replicator.core.option import LogMoment, parse_moment
from replicator.errors import MomentLost, ObjectNotFound, UsageError
from replicator.metastore.events.record import Change, ChangeRecord, decode_line

_TELLING = (b'"events_lost"', b'"create_database"', b'"drop_database"')  # kinds as written in a record's JSON


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
    """The recovery points of one database: from `begin` to `end`, except those inside of `gaps`. `absent`: the
    positions at which it was dropped, each with the position at which it was created again (None: never)."""

    db: str
    begin: Point
    end: Point
    gaps: tuple[LogGap, ...] = ()
    absent: tuple[tuple[int, int | None], ...] = ()

    def __str__(self) -> str:
        begin, end = self.begin, self.end
        events = f"event {begin.event} ({moment_text(begin)}) to event {end.event} ({moment_text(end)})"
        return f"{events}, or @{begin.position} to @{end.position}"

    def has(self, position: int) -> bool:
        """Returns True if the database can be restored to a position."""
        exists = all(position < dropped or (again and again <= position) for dropped, again in self.absent)
        return exists and self.first(position, position) == position

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
    found = windows(log).get(db)
    if found is None:
        raise ObjectNotFound(f"database {db} was never captured", hint="see `replicator show` of the $cmroot's log")
    return found


def windows(log: Sequence[Segment]) -> dict[str, RecoveryWindow]:
    """Returns the recovery windows of all databases that were captured, as `retained`."""
    end, known = resolve_until(log, None), 0
    begins: dict[str, Point] = {}
    gaps, absent = list[LogGap](), dict[str, list[tuple[int, int | None]]]()
    for segment, after, there in captures_of(log):
        for record in _telling(segment, after, there.position):
            change, at = record.change, record.position
            if change.lost:
                gaps.append(LogGap(change.lost.start - 1, change.lost.stop, at, known, there))
            if isinstance(change.creates, Database):
                here = Point(at, record.event, record.time)
                begins.setdefault(change.creates.name, there if record.observed else here)  # observed: begins a walk
                if spans := absent.get(change.creates.name):
                    spans[-1] = (spans[-1][0], spans[-1][1] or at)
            if len(change.drops) == 1:
                absent.setdefault(change.drops[0], []).append((at, None))
        known = max(known, there.time)
    return {db: RecoveryWindow(db, begin, end, tuple(gaps), tuple(absent.get(db, ()))) for db, begin in begins.items()}


def captures_of(log: Sequence[Segment]) -> Iterator[tuple[Segment, int, Point]]:
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

    Raises UsageError for a recovery point outside of the retained range, MomentLost inside of a gap."""
    kept, wanted = retained(log, db), parse_moment(text, "--to")
    latest = max(there.time for _, _, there in captures_of(log))
    if not wanted.not_after(kept.end.position, kept.end.event, latest):
        raise UsageError(
            f"--to {text}: nothing is captured after event {kept.end.event} ({_seconds_text(latest)}), "
            f"position {kept.end.position}",
            hint=f"run `replicator capture` first, or choose a recovery point of {db} within {kept}",
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
        hint=f"choose a recovery point within {kept}",
    )


def _seconds_text(seconds: int) -> str:
    return moment_text(Point(0, 0, seconds))


# ---- several states of one event or time -----------------------------------------------------------------------------
# Event ids do not increase with changes that only a scan finds, such as most of Spark's writes. So an event, or a
# second, may cover several states; a restore to it takes the last one, and reports their number.


@dataclass(frozen=True)
class CoveredStates:
    """The states of the restored objects that the requested event or time covers, up to the restored one: their number,
    and the position of the first. `by`: "event", "time" or "position"."""

    by: str
    number: int
    first: int


def covered(log: Sequence[Segment], db: str, tables: Sequence[str], point: Point, text: str) -> CoveredStates:
    """Returns the states that an event or time covers, for a database or some of its tables. point: as `moment` returns
    it."""
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
    for segment, after, there in captures_of(log):
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
    def arguments(self) -> list[str]:
        """The state as arguments of `replicator restore`."""
        return ["--db", self.db, "--table", self.table, "--to", f"@{self.position}"]


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

    def at(self, records: Iterable[ChangeRecord], positions: Iterable[int]) -> dict[int, RowState]:
        """Returns the states of the table at some positions; without those at which it does not exist, or that are not
        known. records: as for `of`."""
        waiting, found = sorted(set(positions), reverse=True), dict[int, RowState]()
        name: Name | None = None
        for record in chain(records, [None]):
            while waiting and (record is None or waiting[-1] < record.position):
                position = waiting.pop()
                if state := self._first(name, position, position):
                    found[position] = state
            if record is not None:
                name = _after(record.change, name) if _continues(record.change, self._table) else None
        return found

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


# ---- headers ---------------------------------------------------------------------------------------------------------
# Events and times of positions in the captured log, for listings: few positions, read from their records.


class _Header(msgspec.Struct, frozen=True):
    position: int
    event: int
    time: int


def events_at(log: Sequence[Segment], positions: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Returns (event id, time) of the records at some positions; positions not in the log are omitted."""
    wanted = sorted(positions)
    decoder = msgspec.json.Decoder(_Header)
    found = {}
    for segment in log:
        here = [each for each in wanted if segment.first <= each <= segment.last]
        if not here:
            continue
        waiting = set(here)
        for line in segment.records(here[0] - 1, here[-1]):
            header = decoder.decode(line)
            if header.position in waiting:
                found[header.position] = header.event, header.time
    return found
