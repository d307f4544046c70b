"""Queries of items: Beekeeper's REST filters, as conditions; and manual actions on single items. Only the latter
act."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, func, select

from cmroot.errors import Error
from cmroot.store.place import normal
from replicator.core.grouping import batched
from replicator.core.not_replicated import Rows
from replicator.errors import ObjectNotFound, UsageError
from replicator.lifecycle.housekeeping import writing
from replicator.lifecycle.housekeeping.store import (
    ACTIVE,
    DISABLED,
    EXHAUSTED,
    FAILED,
    INVALID_CONFIG,
    PAGE,
    SCHEDULED,
    SKIPPED,
    STATES,
    Item,
    ItemStore,
    item,
    slot_of,
)
from replicator.lifecycle.removal.live import spelled

COLUMNS = (
    *("id", "path", "databaseName", "tableName", "partitionName", "housekeepingStatus", "creationTimestamp"),
    *("modifiedTimestamp", "cleanupTimestamp", "cleanupDelay", "cleanupAttempts", "lifecycleType", "clientId"),
    *("reason", "nextTry", "event", "detached"),
)
"""Columns of `Item.as_json`."""


@dataclass
class ItemPage(Rows):
    """A page of items. total: of all pages; page: from 0; size: items of a page; states: number of items of the store
    by state, empty if not requested. Its JSON is that of Beekeeper's REST API."""

    listed = "content"
    columns = COLUMNS
    store: str
    items: list[Item]
    total: int
    page: int
    size: int
    states: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        pages = -(-self.total // self.size)
        return {
            "status": "shown",
            "store": self.store,
            "content": [one.as_json() for one in self.items],
            "totalElements": self.total,
            "totalPages": pages,
            "number": self.page,
            "size": self.size,
            "numberOfElements": len(self.items),
            "first": self.page == 0,
            "last": self.page + 1 >= pages,
            "empty": not self.items,
            "states": self.states,
        }


@dataclass
class ItemsChanged(Rows):
    """The result of an action on items: status "cancelled" or "armed". items: those that it changed."""

    listed = "items"
    columns = COLUMNS
    status: str
    items: list[Item]

    def to_dict(self) -> dict[str, Any]:
        return {"status": self.status, "changed": len(self.items), "items": [one.as_json() for one in self.items]}


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on items; all that are set must hold. Texts are compared for equality, ignoring case; path: in any
    form of the same path. deleted_*: of the planned time, including items that were never deleted, as in Beekeeper;
    registered_*: of the begin of their time. Both are strict."""

    db: str | None = None
    table: str | None = None
    partition: str | None = None
    path: str | None = None
    status: str | None = None
    lifecycle: str | None = None
    deleted_before: int | None = None
    deleted_after: int | None = None
    registered_before: int | None = None
    registered_after: int | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Returns the SQL conditions. Raises UsageError for an unknown state."""
        if self.status and self.status.upper() not in STATES:
            raise UsageError(f"{self.status!r} is not an item state", hint=f"states: {', '.join(STATES)}")
        lower = {item.c.database_name: self.db, item.c.table_name: self.table}  # as metastores have them: by the index
        found: list[ColumnElement[bool]] = [
            column == value.lower() for column, value in lower.items() if value is not None
        ]
        if self.partition is not None:
            found.append(func.lower(item.c.partition_name) == self.partition.lower())
        if self.status:
            found.append(item.c.housekeeping_status == self.status.upper())
        if self.lifecycle:
            found.append(item.c.lifecycle_type == self.lifecycle.upper())
        for column, before, after in (
            (item.c.cleanup_timestamp, self.deleted_before, self.deleted_after),
            (item.c.creation_timestamp, self.registered_before, self.registered_after),
        ):
            if before is not None:
                found.append(column < before)
            if after is not None:
                found.append(column > after)
        return found


_SORTED = {
    "id": item.c.id,
    "path": item.c.path,
    "databaseName": item.c.database_name,
    "tableName": item.c.table_name,
    "partitionName": item.c.partition_name,
    "housekeepingStatus": item.c.housekeeping_status,
    "creationTimestamp": item.c.creation_timestamp,
    "modifiedTimestamp": item.c.modified_timestamp,
    "cleanupTimestamp": item.c.cleanup_timestamp,
    "cleanupAttempts": item.c.cleanup_attempts,
    "lifecycleType": item.c.lifecycle_type,
}
"""Columns by the names of Beekeeper's REST API."""


def order_of(sort: Sequence[str]) -> list[ColumnElement[Any]]:
    """Returns the columns of "cleanupTimestamp" or "cleanupTimestamp,desc" texts. Raises UsageError."""
    found: list[ColumnElement[Any]] = []
    for text in sort:
        name, _, way = text.partition(",")
        if name not in _SORTED or way.lower() not in ("", "asc", "desc"):
            raise UsageError(f"items cannot be sorted by {text!r}", hint=f"NAME or NAME,desc: {', '.join(_SORTED)}")
        found.append(_SORTED[name].desc() if way.lower() == "desc" else _SORTED[name].asc())
    return found


def list_items(
    store: ItemStore, wanted: Filter, *, size: int = PAGE, page: int = 0, sort: Sequence[str] = ()
) -> tuple[list[Item], int]:
    """Returns a page of items, by `sort` (as `order_of`) and id, and their total number. With a path, the paths of
    items are compared one by one."""
    conditions, order = wanted.conditions(), order_of(sort)
    if wanted.path is not None:
        conditions.append(item.c.place.in_(_spellings(store, wanted.path, conditions)))
    return store.find(*conditions, offset=page * size, limit=size, order=order), store.count(*conditions)


def _spellings(store: ItemStore, path: str, conditions: list[ColumnElement[bool]]) -> list[str]:
    """Returns the paths of items that are equal to a path, after path normalisation and resolution of links."""
    real, text = spelled(normal(path)), normal(path).lower()
    return [place for place in store.places(*conditions) if place.lower() == text or _leads_to(place, real)]


def _leads_to(place: str, real: str) -> bool:
    """Returns True if both are the same directory, False if this cannot be determined."""
    try:
        return spelled(place) == real
    except (Error, OSError):
        return False


def cancel(store: ItemStore, ids: list[int], why: str, clock: Callable[[], float]) -> list[Item]:
    """Cancels waiting items: DISABLED, with the reason. Raises ObjectNotFound or UsageError, and changes nothing, if
    one of them does not exist or is not waiting. May run twice: DISABLED items remain so."""
    return _change(store, ids, (SCHEDULED, FAILED, SKIPPED, EXHAUSTED, INVALID_CONFIG, DISABLED), DISABLED, why, clock)


def rearm(store: ItemStore, ids: list[int], clock: Callable[[], float]) -> list[Item]:
    """Schedules abandoned items again, for the next run and with all attempts: SCHEDULED. Raises as `cancel`."""
    return _change(store, ids, (EXHAUSTED, FAILED, SKIPPED, DISABLED, SCHEDULED), SCHEDULED, "", clock)


def _change(
    store: ItemStore, ids: list[int], states: tuple[str, ...], status: str, reason: str, clock: Callable[[], float]
) -> list[Item]:
    now = int(clock())
    found = [one for some in batched(ids, 500) for one in store.find(item.c.id.in_(some))]
    missing = sorted(set(ids) - {one.id for one in found})
    if missing:
        raise ObjectNotFound(f"no item {', '.join(map(str, missing))}", hint="`replicator housekeeping ls` shows ids")
    for one in found:
        if one.status not in states:
            raise UsageError(f"item {one.id} ({one.name}) is {one.status}", hint=f"it must be {' or '.join(states)}")
    after = [
        msgspec.structs.replace(one, status=status, reason=reason, attempts=0, next_try=0, modified=now)
        for one in found
        if one.status != status or one.next_try or one.reason != reason
    ]
    with store.transaction() as work:
        taken = writing.occupied(work, [(one.id, slot) for one in after if (slot := slot_of(one))])
        if taken:
            raise UsageError(
                f"item {min(taken)} cannot be armed: a newer item of the same object is waiting",
                hint="`replicator housekeeping ls` shows it",
            )
        writing.settle_each(work, after)
    return after


def waiting_by_day(store: ItemStore) -> list[tuple[int, str, str, int]]:
    """Returns the waiting items: the day (since 1970, UTC), lifecycle, delay, and their number, by day."""
    groups = (item.c.cleanup_timestamp // 86_400, item.c.lifecycle_type, item.c.cleanup_delay)
    query = select(*groups, func.count()).where(item.c.housekeeping_status.in_(ACTIVE)).group_by(*groups)
    with store.transaction() as work:
        return sorted(
            (int(day), str(kind), str(delay), int(number)) for day, kind, delay, number in work.execute(query)
        )
