"""Reader of the notification log: in large pages, with overlap, and never past a gap.

The thrift call checks nothing, so this module does (docs/design.md, invariant 2): ids must continue from the cursor,
and an empty answer is accepted only if the newest id equals the cursor. A 2.3 server with several writers may assign
one id to two rows, the second of which appears behind a reader: each read looks back and returns such rows as `late`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from cmroot.keep.change_manager import ChangeManager
from replicator.core.model import NotificationEvent
from replicator.errors import ObjectNotFound, Refused
from replicator.metastore.client import EVENT_BATCH, MetastoreReader
from replicator.metastore.concurrency import is_since_3

LOOK_BACK = 200  # ids; a row appears behind the reader only while its writer's transaction is open


@dataclass(frozen=True)
class EventsRead:
    """The result of a read: `events` after the cursor in order, new `late` rows at or before it, the ids around the
    first gap, if any (last id before it, first id after it), and True in `more` if there are more events."""

    events: list[NotificationEvent] = field(default_factory=list)
    late: list[NotificationEvent] = field(default_factory=list)
    hole: tuple[int, int] | None = None
    seen: dict[str, int] = field(default_factory=dict)  # digest of each row near the new cursor -> its id
    more: bool = False


def read_events(
    source: MetastoreReader,
    cursor: int,
    seen: dict[str, int],
    settled: Callable[[], int | None] = lambda: None,
    *,
    limit: int | None = None,
) -> EventsRead:
    """Returns all events after `cursor`, up to the newest id now; with `limit`, only some of them: after an outage the
    log may be larger than memory.

    `seen`: the value of `seen` that the last read returned. `settled`: called after the rows are read; returns the last
    id that may be used already (None: all). Raises Refused if the log's newest id is smaller than the cursor."""
    newest = source.current_event_id()
    if newest < cursor:
        raise Refused(
            f"the metastore's newest event is {newest}, but {cursor} was read from it before: "
            "another metastore, or one restored from a backup",
            hint="use another $cmroot for another metastore; after a restore begin with a new $cmroot and a bootstrap",
        )
    rows, more = _fetch(source, cursor, newest, limit)
    if more:
        newest = rows[-1].id
    last_settled = settled()
    if last_settled is not None and last_settled < newest:
        newest, more = max(last_settled, cursor), False
        rows = [row for row in rows if row.id <= newest]
    events = [row for row in rows if row.id > cursor]
    late = [row for row in rows if row.id <= cursor and digest(row) not in seen] if seen else []
    last = events[-1].id if events else cursor
    remembered = {digest(row): row.id for row in rows if row.id > last - LOOK_BACK}
    return EventsRead(events=events, late=late, hole=find_hole(cursor, events, newest), seen=remembered, more=more)


def _fetch(
    source: MetastoreReader, cursor: int, newest: int, limit: int | None
) -> tuple[list[NotificationEvent], bool]:
    """Returns the rows from shortly before the cursor up to `newest`, by id, and True if the limit cut them short."""
    rows: list[NotificationEvent] = []
    after, more = max(0, cursor - LOOK_BACK), False
    while after < newest and not more:
        page = source.next_events(after, EVENT_BATCH)
        if not page:
            break
        if len(page) == EVENT_BATCH and page[0].id != page[-1].id:
            page = [row for row in page if row.id < page[-1].id]  # a page may end between rows that share the last id
        rows += page
        after = page[-1].id
        more = limit is not None and len(rows) >= limit and cursor < after < newest
    return sorted((row for row in rows if row.id <= newest), key=lambda row: row.id), more


def find_hole(cursor: int, events: Sequence[NotificationEvent], newest: int) -> tuple[int, int] | None:
    """Returns the first gap in the ids between the cursor and the newest event; None if every id exists."""
    last = cursor
    for event in events:
        if event.id > last + 1:
            return last, event.id
        last = event.id
    return (last, newest + 1) if last < newest else None


def digest(event: NotificationEvent) -> str:
    """Returns the identity of a row, because ids may repeat."""
    text = "\0".join(str(part) for part in (event.id, event.type, event.db, event.table, event.message))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


# ---- recycling -------------------------------------------------------------------------------------------------------
# Settings of the metastore's own change manager, which retains dropped files (`hive.repl.cm.enabled`).


SOURCE_FOR = "repl.source.for"


def change_manager(metastore: MetastoreReader, databases: Collection[str]) -> ChangeManager:
    """Returns its root and retention, or why it would not retain these databases' files; one call per database."""
    if metastore.setting("hive.repl.cm.enabled").strip().lower() != "true":
        return ChangeManager(why_not=f"hive.repl.cm.enabled of {metastore.uri} is not true")
    place, retain = metastore.setting("hive.repl.cmrootdir"), metastore.setting("hive.repl.cm.retain")
    since_3 = is_since_3(metastore)
    if since_3 and (unmarked := [name for name in databases if not _is_marked(metastore, name)]):
        return ChangeManager(
            why_not=f"since Hive 3 databases need the property {SOURCE_FOR}: {', '.join(unmarked[:10])}"
        )
    return ChangeManager(place, retain, managed_only=since_3)


def _is_marked(metastore: MetastoreReader, name: str) -> bool:
    try:
        return bool(metastore.database(name).parameters.get(SOURCE_FOR))
    except ObjectNotFound:  # dropped
        return True
