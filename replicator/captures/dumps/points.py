"""Points: an event id, a time or an earlier dump, as a place in the captured log.

A time stands for the last record at or before it in the order of the log: clocks jump, positions do not. A record
counts as at least as late as every segment before it, so a clock that was set back never brings in a later record.
"""

from __future__ import annotations

from collections.abc import Sequence

from cmroot.log.captured import Capture, Segment
from cmroot.pins import seconds
from cmroot.store.resolve import as_written
from replicator.captures.dumps.layout import FINISHED, Point, Scope, open_parts
from replicator.captures.fold import read_records
from replicator.errors import BootstrapNeeded, FormatError, UsageError


def resolve_until(log: Sequence[Segment], text: str | None) -> Point:
    """Where a dump ends: the last record of the log, or the last one at or before an event id or time."""
    if not log:
        raise UsageError("nothing is captured yet", hint="run `replicator capture`, or let dump capture")
    newest = _end(log[-1])
    if text is None:
        return newest
    event, time = parse_moment(text, "--until")
    if event is not None and event >= newest.event:
        return newest
    found = _last_before(log, event, time)
    if found is None:
        raise UsageError(f"--until {text}: the captured log begins later", hint="see `replicator show` of its log")
    return found


def resolve_since(log: Sequence[Segment], text: str, root_id: str) -> Point:
    """Where an incremental dump begins. Raises BootstrapNeeded when the log does not reach back that far."""
    there = end_of_dump(text, "--since", root_id)
    if there is not None:
        return there
    event, time = parse_moment(text, "--since")
    newest = _end(log[-1])
    if event is not None and event > newest.event:
        raise UsageError(
            f"--since {event}: the newest captured event is {newest.event}",
            hint="an event id of this source: see `replicator status`, or name the earlier dump's directory",
        )
    if event is not None and event == newest.event:
        return newest
    found = _last_before(log, event, time)
    if found is None:
        first = next(iter(read_records(log[0])))
        raise BootstrapNeeded(
            f"--since {text}: the captured log begins at event {first.event}", hint="dump without --since: a bootstrap"
        )
    return found


def point_at(log: Sequence[Segment], position: int) -> Point | None:
    """A position of the log as a point; None where the log does not have it."""
    for segment in log:
        if segment.first <= position <= segment.last:
            for record in read_records(segment, position - 1, position):
                return Point(record.position, record.event, record.time)
    return None


def end_of_dump(text: str, option: str, root_id: str) -> Point | None:
    """Where an earlier dump ends, for who names its directory; None for any other text. Raises UsageError for a dump of
    another root."""
    if not (as_written(text) / FINISHED).exists():
        return None
    _, metadata = open_parts(text)
    if metadata.root_id != root_id:
        raise UsageError(
            f"{option} {text}: that dump is of another $cmroot ({metadata.root})",
            hint="name the $cmroot it was made from, or bootstrap",
        )
    return metadata.end


def scope_of_dump(text: str) -> Scope | None:
    """What an earlier dump covers, for who names its directory; None for any other text."""
    return open_parts(text)[1].scope if (as_written(text) / FINISHED).exists() else None


def parse_moment(text: str, option: str) -> tuple[int | None, int | None]:
    """(event id, None) or (None, seconds since the epoch). Times without a zone are UTC. Raises UsageError, naming the
    option, for what is neither."""
    if text.isdigit():
        return int(text), None
    try:
        return None, int(seconds(text))
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is neither an event id, nor a time, nor a finished dump",
            hint="e.g. 4711, 2026-03-01T12:00:00Z, -1d, or the directory of an earlier dump",
        ) from None


def _end(segment: Segment, capture: Capture | None = None) -> Point:
    """The end of a segment, or of one of the captures that it was merged from."""
    last, about = (segment.last, segment.metadata) if capture is None else (capture.last, capture.about)
    try:
        return Point(last, int(about["event"]), int(about["time"]))
    except KeyError as error:
        raise FormatError(f"{segment.place}: its marker lacks {error}", hint="restore it from a copy") from error
    except (TypeError, ValueError) as error:
        raise FormatError(f"{segment.place}: its marker is wrong: {error}", hint="restore it from a copy") from error


def _last_before(log: Sequence[Segment], event: int | None, time: int | None) -> Point | None:
    """The last record whose event id (or time) is not after the given one."""
    best: Point | None = None
    latest = 0  # time that the records so far have reached
    for segment, capture in ((each, capture) for each in log for capture in each.captures):
        end = _end(segment, capture)
        if (event is not None and end.event <= event) or (time is not None and max(latest, end.time) <= time):
            best, latest = end, max(latest, end.time)
            continue
        for record in read_records(segment, capture.first - 1, capture.last):
            latest = max(latest, record.time)
            if (event is not None and record.event > event) or (time is not None and latest > time):
                return best
            best = Point(record.position, record.event, record.time)
        return best
    return best
