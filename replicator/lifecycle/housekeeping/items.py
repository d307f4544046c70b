"""An item of housekeeping: one path, partition or table with the time of its removal; its states, and its JSON form."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import xxhash

from replicator.lifecycle.housekeeping.settings import EXPIRED, UNREFERENCED

SCHEDULED, FAILED, DELETED, DISABLED, SKIPPED, EXHAUSTED, INVALID_CONFIG = (
    "SCHEDULED",
    "FAILED",
    "DELETED",
    "DISABLED",
    "SKIPPED",
    "EXHAUSTED",
    "INVALID_CONFIG",
)
"""States. SCHEDULED: waits for its time. FAILED: could not be removed, is tried again. DELETED: removed, its files are
in `$cmroot`. DISABLED: cancelled, by the owner, an operator, or because an object refers to it again. SKIPPED: will not
be removed, see the reason. EXHAUSTED: failed too often, waits for an operator. INVALID_CONFIG: the table's properties
are invalid; the item represents the table."""

STATES = (SCHEDULED, FAILED, DELETED, DISABLED, SKIPPED, EXHAUSTED, INVALID_CONFIG)
ACTIVE = (SCHEDULED, FAILED)
OPEN = (SCHEDULED, FAILED, SKIPPED, EXHAUSTED)
"""States of which an object has one item at most, which later events continue."""

MAX_ATTEMPTS = 10
FROM_LOG, FROM_VACUUM = "captured-log", "vacuum"
"""Origins of an item."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the store. Times are whole seconds since 1970, UTC. partition: escaped name, empty for a table's own
    item and for paths of tables. place: the normalised path. delay: the ISO period. next_try: not before this time.
    detached: the item's object no longer exists in the metastore, so the current properties of its table do not apply.
    event: the origin of the item. begun, ended: the newest event when its removal began, and when it was completed; 0
    if not yet."""

    id: int = 0
    lifecycle: str
    db: str
    table: str
    partition: str = ""
    path: str
    place: str
    status: str = SCHEDULED
    reason: str = ""
    created: int
    modified: int
    cleanup: int
    delay: str
    attempts: int = 0
    next_try: int = 0
    detached: bool = False
    begun: int = 0
    ended: int = 0
    client: str = FROM_LOG
    event: int = 0

    @property
    def object(self) -> str:
        return f"{self.db}.{self.table}"

    @property
    def name(self) -> str:
        return f"{self.object}/{self.partition}" if self.partition else self.object

    def as_json(self) -> dict[str, Any]:
        """Returns the item in Beekeeper's REST names; added are id, reason, nextTry, event, detached, clientId."""
        return {
            "id": self.id,
            "path": self.path,
            "databaseName": self.db,
            "tableName": self.table,
            "partitionName": self.partition or None,
            "housekeepingStatus": self.status,
            "creationTimestamp": iso(self.created),
            "modifiedTimestamp": iso(self.modified),
            "cleanupTimestamp": iso(self.cleanup),
            "cleanupDelay": self.delay,
            "cleanupAttempts": self.attempts,
            "lifecycleType": self.lifecycle,
            "clientId": self.client,
            "reason": self.reason,
            "nextTry": iso(self.next_try) if self.next_try else None,
            "event": self.event,
            "detached": self.detached,
        }


def object_slot(db: str, table: str, partition: str) -> str:
    return xxhash.xxh3_128_hexdigest("\0".join((EXPIRED, db, table, partition)).encode())


def path_slot(place: str) -> str:
    return xxhash.xxh3_128_hexdigest("\0".join((UNREFERENCED, place)).encode())


def problem_slot(db: str, table: str, lifecycle: str) -> str:
    return xxhash.xxh3_128_hexdigest("\0".join((INVALID_CONFIG, db, table, lifecycle)).encode())


def slot_of(one: Item) -> str | None:
    """Returns the slot that an item occupies: see `schema.item`."""
    if one.status == INVALID_CONFIG:
        return problem_slot(one.db, one.table, one.lifecycle)
    if one.status not in OPEN:
        return None
    if one.lifecycle == UNREFERENCED:
        return path_slot(one.place)
    return None if one.detached else object_slot(one.db, one.table, one.partition)


def iso(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
