"""Points: an event id, a time or an earlier dump, as a place in the captured log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from cmroot.log import Segment
from cmroot.place import join, store_for
from replicator.dump.layout import FINISHED, Point, open_parts
from replicator.errors import BootstrapNeeded, FormatError, UsageError
from replicator.events.fold import read_records


def resolve_until(log: Sequence[Segment], text: str | None) -> Point:
    """Where a dump ends: the last record of the log, or the last one at or before an event id or time."""
    if not log:
        raise UsageError("nothing is captured yet", hint="run `replicator capture`, or let dump capture")
    newest = _end(log[-1])
    if text is None:
        return newest
    event, time = _parse(text, "--until")
    if (event is not None and event >= newest.event) or (time is not None and time >= newest.time):
        return newest
    found = _last_before(log, event, time)
    if found is None:
        raise UsageError(f"--until {text}: the captured log begins later", hint="see `replicator show` of its log")
    return found


def resolve_since(log: Sequence[Segment], text: str, root_id: str) -> Point:
    """Where an incremental dump begins. Raises BootstrapNeeded when the log does not reach back that far."""
    if store_for(text).exists(join(text, FINISHED)):
        _, metadata = open_parts(text)
        if metadata.root_id != root_id:
            raise UsageError(
                f"--since {text}: that dump is of another $cmroot ({metadata.root})",
                hint="name the $cmroot it was made from, or bootstrap",
            )
        return metadata.end
    event, time = _parse(text, "--since")
    newest = _end(log[-1])
    if event is not None and event > newest.event:
        raise UsageError(
            f"--since {event}: the newest captured event is {newest.event}",
            hint="an event id of this source: see `replicator status`, or name the earlier dump's directory",
        )
    if (event is not None and event == newest.event) or (time is not None and time >= newest.time):
        return newest
    found = _last_before(log, event, time)
    if found is None:
        first = next(iter(read_records(log[0])))
        raise BootstrapNeeded(
            f"--since {text}: the captured log begins at event {first.event}",
            hint="dump without --since: a bootstrap",
        )
    return found


def _parse(text: str, option: str) -> tuple[int | None, int | None]:
    """(event id, None) or (None, seconds since the epoch). Times without a zone are UTC."""
    if text.isdigit():
        return int(text), None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is neither an event id, nor a time, nor a finished dump",
            hint="e.g. 4711, 2026-03-01T12:00:00Z, or the directory of an earlier dump",
        ) from None
    return None, int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _end(segment: Segment) -> Point:
    about = segment.metadata
    try:
        return Point(segment.last, int(about["event"]), int(about["time"]))
    except KeyError as error:
        raise FormatError(f"{segment.place}: its marker lacks {error}", hint="restore it from a copy") from error


def _last_before(log: Sequence[Segment], event: int | None, time: int | None) -> Point | None:
    """The last record whose event id (or time) is not after the given one."""
    best: Point | None = None
    for segment in log:
        end = _end(segment)
        if (event is not None and end.event <= event) or (time is not None and end.time <= time):
            best = end
            continue
        for record in read_records(segment):
            if (event is not None and record.event > event) or (time is not None and record.time > time):
                return best
            best = Point(record.position, record.event, record.time)
        return best
    return best
