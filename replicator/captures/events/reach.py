"""How far a notification log reaches, and what its newest event is. Reads only."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from replicator.captures.events.unread import IRRELEVANT, is_irrelevant
from replicator.core.model import NotificationEvent
from replicator.core.text.quantity import parse_duration
from replicator.metastore.client import EVENT_BATCH, MetastoreReader

TTL = "hive.metastore.event.db.listener.timetolive"
WAITING = 100_000  # events that are looked at for those that wait


def newest_event(metastore: MetastoreReader) -> NotificationEvent | None:
    """The newest row of the log, or None when it has none. Raises NotificationLogOff."""
    newest = metastore.current_event_id()
    rows = metastore.next_events(newest - 1, 1) if newest else []
    return rows[-1] if rows else None


@dataclass(frozen=True)
class Reach:
    """How far a notification log reaches. `oldest`: its first row; `needed`: the first row after `cursor`, the id that
    was captured last (None: nothing was captured). `life`: how long the server keeps events; None: it does not tell."""

    newest: int
    oldest: NotificationEvent | None
    cursor: int | None
    needed: NotificationEvent | None
    life: timedelta | None


def read_reach(source: MetastoreReader, cursor: int | None) -> Reach:
    """Raises NotificationLogOff."""
    newest = source.current_event_id()
    oldest = source.next_events(0, 1)
    needed = source.next_events(cursor, 1) if cursor is not None and cursor < newest else []
    return Reach(newest, _first(oldest), cursor, _first(needed), event_life(source.setting(TTL)))


@dataclass(frozen=True)
class Waiting:
    """Events after a position that may change something, in order. `more`: so many ids after them were not looked
    at."""

    events: list[NotificationEvent]
    more: int = 0


def waiting_events(source: MetastoreReader, after: int, newest: int, limit: int = WAITING) -> Waiting:
    """Looks at up to `limit` events, and on Hive 4 at as many that may change something: an idle cluster's
    transactions are none."""
    found: list[NotificationEvent] = []
    looked = 0
    while after < newest and looked < limit:
        page = source.next_events(after, min(EVENT_BATCH, limit - looked), IRRELEVANT)
        if not page:
            return Waiting(found)
        found += [row for row in page if row.id <= newest and not is_irrelevant(row)]
        after, looked = page[-1].id, looked + len(page)
    return Waiting(found, max(0, newest - after))


def behind(source: MetastoreReader, event: int, clock: Callable[[], float]) -> float | None:
    """For how long the first event after this one that may change something has been waiting; 0 when there is none,
    None where it is gone."""
    newest = source.current_event_id()
    if newest <= event:
        return 0.0
    if not source.next_events(event, 1):
        return None
    waiting = waiting_events(source, event, newest).events
    return round(max(0.0, clock() - waiting[0].time), 3) if waiting else 0.0


def _first(rows: Sequence[NotificationEvent]) -> NotificationEvent | None:
    return rows[0] if rows else None


def event_life(text: str) -> timedelta | None:
    """The setting's value: `86400s`, `1d`, `1440m`, `86400000ms`, `2days`; a bare number is seconds."""
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)?[a-z]*", text.strip().lower())
    if not match:
        return None
    return parse_duration(f"{match[1]}{match[2] or 's'}") or None


# Clocks
