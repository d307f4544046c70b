"""Moments: which states of a database the captured log can tell, and which of them an event id or a time means.

A capture reads a database table by table while writers go on, and its tail of events makes one state of that. So a
state is exact from the end of the capture that walked the database first; not between events that were lost and the end
of the capture that compared everything because of it; and not after the log's end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cmroot.log.captured import Segment
from replicator.captures.dumps.layout import Point
from replicator.captures.dumps.points import parse_moment, resolve_until
from replicator.captures.events.lines import decode_line
from replicator.captures.events.record import ChangeRecord
from replicator.core.model import Database
from replicator.errors import MomentLost, ObjectNotFound, UsageError

_TELLING = (b'"events_lost"', b'"create_database"')  # kinds as they stand in a record's JSON


@dataclass(frozen=True)
class LogGap:
    """Events after `after` and before `next` were lost. `position`: of the record that says so; `known`: when the last
    capture before it ended, in seconds; `exact`: the end of the capture that repaired it."""

    after: int
    next: int
    position: int
    known: int
    exact: Point


@dataclass(frozen=True)
class RecoveryWindow:
    """The moments of one database that can be determined: from `begin` to `end`, without those inside of `gaps`."""

    db: str
    begin: Point
    end: Point
    gaps: tuple[LogGap, ...] = ()

    def __str__(self) -> str:
        return (
            f"event {self.begin.event} ({moment_text(self.begin)}) to event {self.end.event} ({moment_text(self.end)})"
        )


def moment_text(point: Point) -> str:
    """A point's time for people: UTC, ISO 8601."""
    return datetime.fromtimestamp(point.time, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def retained(log: Sequence[Segment], db: str) -> RecoveryWindow:
    """What a log can tell of a database. Reads every record's line once. Raises UsageError for an empty log,
    ObjectNotFound for a database that was never captured."""
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
    """The captures that made a log: the segment each is in, the position before its first, and its end."""
    for segment in log:
        for each in segment.captures:
            yield segment, each.first - 1, Point(each.last, int(each.about["event"]), int(each.about["time"]))


def _telling(segment: Segment, after: int, until: int) -> Iterator[ChangeRecord]:
    """The records of a capture that say where moments begin and end; the others are not decoded."""
    for line in segment.records(after, until):
        if any(kind in line for kind in _TELLING):
            yield decode_line(line, segment.place)


def moment(log: Sequence[Segment], db: str, text: str) -> Point:
    """The place in the log that an event id or a time means for a database: the last record at or before it.

    Raises UsageError for a moment before or after what is retained, MomentLost inside of a gap."""
    kept = retained(log, db)
    event, time = parse_moment(text, "--to")
    latest = max(there.time for _, _, there in _captures(log))
    if (event is not None and event > kept.end.event) or (time is not None and time > latest):
        raise UsageError(
            f"--to {text}: nothing is captured after event {kept.end.event} ({_seconds_text(latest)})",
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
        asked = (event is not None and event > gap.after) or (time is not None and time > gap.known)
        if inside or (asked and point.position == gap.position - 1):
            raise _lost(text, gap)
    return point


def _lost(text: str, gap: LogGap) -> MomentLost:
    last, first = f"event {gap.after}", f"event {gap.exact.event}"
    return MomentLost(
        f"--to {text}: events {gap.after + 1} to {gap.next - 1} were lost: no state between {last} "
        f"({_seconds_text(gap.known)}) and {first} ({moment_text(gap.exact)}) is known",
        hint=f"restore to {last}, the last before them, or to {first}, the first that is known again",
    )


def _before(text: str, kept: RecoveryWindow) -> UsageError:
    return UsageError(
        f"--to {text}: {kept.db} is captured since event {kept.begin.event} ({moment_text(kept.begin)})",
        hint=f"choose a moment within {kept}",
    )


def _seconds_text(seconds: int) -> str:
    return moment_text(Point(0, 0, seconds))
