"""Content of a `$cmroot`, and the slots and holds that require it, for an operator.

Each entry is shown with its origin, its first event, the pins that require it, and until when: from the log and a
listing of `files/` on an engine. The largest are listed individually, all are counted. Pins are set at an event or time
of the log, and shown with their lag. Their files are `cmroot.pins`; `cmroot.log.references` decides which contents they
exclude from expiry.
"""

from __future__ import annotations

import math
import time as clocks
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from datetime import timedelta
from itertools import accumulate
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cmroot import pins
from cmroot.expire.expire import cutoff_position, held_by
from cmroot.expire.retention import EXPIRED, KEPT, LIVE, UNREFERENCED, UNREFERENCED_YOUNG, VERSION, ends_when, kept
from cmroot.lease import Lease, acquire, patiently
from cmroot.log.captured import Segment, segments
from cmroot.log.references import work
from cmroot.pins import read_pins
from cmroot.root import ChangeRoot
from cmroot.store.place import is_local, join
from replicator.captures.dumps.layout import Point
from replicator.captures.dumps.selection import end_of_dump, resolve_until
from replicator.core.engine import AutoEngine
from replicator.core.not_replicated import Report, Rows
from replicator.core.option import parse_moment
from replicator.core.text import time_text
from replicator.errors import UsageError
from replicator.metastore.events.scope import captured_databases
from replicator.replay.restore.recovery_points import events_at

# ---- slots and holds -------------------------------------------------------------------------------------------------


PATIENCE = timedelta(minutes=1)
"""How long to wait for the lease of another run."""


@dataclass
class Pinned(Report):
    """The result of an action on a pin: `status` is created, confirmed, dropped, held or released; `pin` is the file's
    content, None if it was removed. `time` is that of its position, in seconds since the epoch."""

    status: str
    root: str
    name: str
    pin: dict[str, Any] | None = None
    time: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the pin's fields next to the others."""
        return {"status": self.status, "root": self.root, "name": self.name, "time": self.time, **(self.pin or {})}


@dataclass
class SlotState:
    """A slot, and its lag behind the log's end. `lag_seconds`: from its position's time to the log's newest;
    `age_seconds`: since it last confirmed. `held`: entries and bytes that the source no longer has and this slot
    requires; `alone_*`: those that no other pin requires. None: not requested. `scopes`: as in `cmroot.pins.Slot`."""

    name: str
    position: int
    event: int
    consumer: str
    created: str
    confirmed: str
    given_up: str
    awaits: str
    lag_records: int
    lag_events: int
    lag_seconds: int | None
    age_seconds: int
    held: dict[str, Any] | None = None
    scopes: dict[str, str] = field(default_factory=dict)


@dataclass
class PinList(Rows):
    """All pins of a root by name; `damaged`: files that cannot be parsed, because of which nothing can expire."""

    status: str
    root: str
    position: int | None
    event: int | None
    slots: list[SlotState] = field(default_factory=list)
    holds: list[dict[str, Any]] = field(default_factory=list)
    dumps: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    listed: ClassVar[str] = "slots"
    columns: ClassVar[Sequence[str]] = ("kind", *(each.name for each in fields(SlotState)))

    def rows(self) -> list[dict[str, Any]]:
        """Returns slots, holds and dumps, distinguished by `kind`."""
        said = self.to_dict()
        kinds = (("slot", "slots"), ("hold", "holds"), ("dump", "dumps"))
        return [{"kind": kind, **row} for kind, name in kinds for row in said[name]]


def resolve_at(root: ChangeRoot, log: Sequence[Segment], text: str | None) -> Point:
    """Returns the point of the log for `--at`: an event id, a time, the end of a finished dump; None: the log's end.
    Raises UsageError before the log begins or after its end: files that were never captured cannot be protected."""
    newest = resolve_until(log, None)
    if text is None:
        return newest
    if (end := end_of_dump(text, "--at", root.id)) is not None:
        return end
    wanted = parse_moment(text, "--at", dump=True)
    if not wanted.not_after(newest.position, newest.event, wanted.time or 0):
        raise UsageError(
            f"--at {text}: the newest captured event is {newest.event}, at position {newest.position}",
            hint="run a capture first",
        )
    try:
        return resolve_until(log, text)
    except UsageError:
        first = log[0].captures[0].about
        raise UsageError(
            f"--at {text}: the captured log begins later (its first capture ended at event {first.get('event')})",
            hint="see `replicator show` of the $cmroot",
        ) from None


def create_slot(root: ChangeRoot, name: str, at: str | None = None, *, consumer: str = "") -> Pinned:
    """Creates a slot at the log's end, or at an earlier event or time. Raises PinError if the name exists."""
    with _still(root, at):
        point, now = resolve_at(root, segments(root.place), at), pins.iso(clocks.time())
        slot = pins.Slot(name, point.position, point.event, now, now, consumer)
        pins.create_slot(root.place, slot)
    return Pinned("created", root.place, name, msgspec.to_builtins(slot), point.time)


def confirm_slot(root: ChangeRoot, name: str, at: str, *, back: bool = False) -> Pinned:
    """Confirms that the consumer has everything up to an event or time. Raises PinError for an unknown slot, and for
    one that would move back, unless `back`."""
    with _still(root, at if back else None):
        point = resolve_at(root, segments(root.place), at)
        slot = pins.confirm_slot(root.place, name, point.position, point.event, now=clocks.time, back=back)
    return Pinned("confirmed", root.place, name, msgspec.to_builtins(slot), point.time)


def drop_slot(root: ChangeRoot, name: str) -> Pinned:
    """Drops a slot: nothing is retained for this consumer any more. Raises PinError if it does not exist."""
    pins.drop_slot(root.place, name)
    return Pinned("dropped", root.place, name)


def hold(root: ChangeRoot, name: str, at: str | None = None, *, reason: str = "") -> Pinned:
    """Creates a hold: no file that the source had at an event or time (None: now) expires while it exists. Files that
    expired before are not restored. Raises PinError if the name exists."""
    with _still(root, at):
        point = resolve_at(root, segments(root.place), at)
        pin = pins.Hold(name, point.position, point.event, pins.iso(clocks.time()), reason)
        pins.hold(root.place, pin)
    return Pinned("held", root.place, name, msgspec.to_builtins(pin), point.time)


def release(root: ChangeRoot, name: str, *, dump: bool = False) -> Pinned:
    """Removes a hold; `dump`: the pin of a dump, by its id. Raises PinError if it does not exist."""
    if dump:
        pins.unpin_dump(root.place, name)
    else:
        pins.release(root.place, name)
    return Pinned("released", root.place, name)


def list_pins(root: ChangeRoot, engine: AutoEngine | None = None) -> PinList:
    """Lists every slot, hold and dump. With an engine also what each retains, unless one is damaged: that reads all
    file entries of the log, and lists `files/`."""
    log, found = segments(root.place), pins.read_pins(root.place)
    newest = resolve_until(log, None) if log else None
    held: dict[str, dict[str, Any]] = {}
    if engine is not None and not found.damaged:
        for each in held_by(root.place, engine.for_work(work(root.place)), now=clocks.time):
            said = each.as_json()
            held[each.pin] = {name: said[name] for name in _HELD}
    return PinList(
        "listed",
        root.place,
        newest.position if newest else None,
        newest.event if newest else None,
        slots=[_state(slot, log, newest, clocks.time(), held.get(f"slot {slot.name}")) for slot in found.slots],
        holds=[msgspec.to_builtins(each) | {"held": held.get(f"hold {each.name}")} for each in found.holds],
        dumps=[msgspec.to_builtins(each) | {"held": held.get(f"dump {each.name}")} for each in found.dumps],
        damaged=found.damaged,
    )


_HELD = ("entries", "bytes", "alone_entries", "alone_bytes")


def _state(
    slot: pins.Slot, log: Sequence[Segment], newest: Point | None, now: float, held: dict[str, Any] | None
) -> SlotState:
    lag_records = max(0, newest.position - slot.position) if newest else 0
    lag_events = max(0, newest.event - slot.event) if newest else 0
    lag_seconds: int | None = 0
    if newest and lag_records:
        there = _time_at(log, slot.position)
        lag_seconds = None if there is None else max(0, newest.time - there)
    return SlotState(
        **msgspec.to_builtins(slot),
        lag_records=lag_records,
        lag_events=lag_events,
        lag_seconds=lag_seconds,
        age_seconds=max(0, int(now - pins.seconds(slot.confirmed))),
        held=held,
    )


def _time_at(log: Sequence[Segment], position: int) -> int | None:
    """Returns when the capture of a position ended; None if that part of the log was removed."""
    for segment in log:
        if segment.first <= position <= segment.last:
            for capture in segment.captures:
                if capture.first <= position <= capture.last:
                    return int(capture.about["time"])
    return None


def _still(root: ChangeRoot, at: str | None) -> AbstractContextManager[Lease | None]:
    """Acquires the lease if a past position is pinned: a running expiry must not remove files that it found unneeded.
    The source's present files are never removed, so the log's end can be pinned at any time."""
    return nullcontext() if at is None else patiently(lambda: acquire(root.place, "pin"), PATIENCE)


# ---- kept ------------------------------------------------------------------------------------------------------------


LIMIT = 1000
"""Entries listed individually; all are counted."""

RETENTION, NOTHING = "retention", "nothing"
"""`needed_by` of an entry that only its age retains, by the configured expiry, and of one that an expiry removes."""

NEITHER = "nobody"
"""The name of both of them in the filter, as of former releases."""


@dataclass(frozen=True)
class Retention:
    """The retention of files that are not required: of the job `job` of the configuration."""

    job: str
    period: timedelta


@dataclass
class KeptList(Rows):
    """Matching entries. `total`: their number and bytes; `by_need`: the same by what requires them; `shared`: those
    that share the source's inode and use no space of their own. `entries`: the largest; see `_entry`. `databases`:
    those that the root captures; None: unknown until the next capture. `retention_job`, `retention_seconds`: the
    configured expiry; None: no job of the configuration expires the root."""

    status: str
    root: str
    total: dict[str, int]
    by_need: dict[str, dict[str, int]]
    shared: dict[str, int]
    entries: list[dict[str, Any]]
    damaged_pins: list[str] = field(default_factory=list)
    databases: list[str] | None = None
    retention_job: str | None = None
    retention_seconds: float | None = None
    listed: ClassVar[str] = "entries"
    columns: ClassVar[Sequence[str]] = (
        *("checksum", "size", "keeper", "origin", "db", "table", "partition", "version"),
        *("since_position", "since_event", "since_time", "released_position", "released_event", "released_time"),
        *("needed_by", "until", "links"),
    )


# Listing


def list_kept(
    root: ChangeRoot,
    engine: AutoEngine,
    *,
    table: str = "",
    need: str = "",
    limit: int = LIMIT,
    retention: Retention | None = None,
) -> KeptList:
    """Lists all retained entries. table: only entries last recorded in `db.table`. need: only those that are required
    by this (`live`, `slot NAME`, `hold`, `retention`, `nothing`; a prefix is enough). retention: of the configured
    expiry. Changes nothing, takes no lease.

    Raises Superseded if the log was compacted concurrently, FormatError if it is damaged."""
    log, pins = segments(root.place), read_pins(root.place)
    tally: dict[str, list[int]] = {}
    shared, largest = [0, 0], KEPT.empty_table()
    young = _Young(log, retention, clocks.time()) if retention else None
    for batch in kept(root.place, log, pins, engine.for_work(work(root.place))):
        rows = _needs(pa.Table.from_batches([batch]), young)
        if table:
            rows = rows.filter(_of_table(rows, table))
        if need:
            free = pc.is_in(rows["reason"], pa.array([RETENTION, NOTHING]))
            rows = rows.filter(free if need == NEITHER else pc.starts_with(rows["reason"], need))
        if not rows.num_rows:
            continue
        for row in rows.group_by("reason").aggregate([("size", "count"), ("size", "sum")]).to_pylist():
            _count(tally.setdefault(row["reason"], [0, 0]), row["size_count"], row["size_sum"])
        linked = rows.filter(pc.fill_null(pc.greater(rows["links"], 1), False))
        _count(shared, linked.num_rows, pc.sum(linked["size"]).as_py() or 0)
        several = pa.concat_tables([largest, rows])
        chosen = pc.select_k_unstable(several, limit, [("size", "descending"), ("checksum", "ascending")])
        largest = several.take(chosen).combine_chunks() if limit else largest
    report = KeptList(
        "listed",
        root.place,
        _said([sum(each[0] for each in tally.values()), sum(each[1] for each in tally.values())]),
        {reason: _said(count) for reason, count in sorted(tally.items())},
        _said(shared),
        [],
        pins.damaged,
        captured_databases(log),
        retention.job if retention else None,
        retention.period.total_seconds() if retention else None,
    )
    described = _RecoveryPoints(log, largest.to_pylist(), retention)
    report.entries = [_entry(row, described, root.place) for row in described.rows]
    return report


class _Young:
    """The entries that an expiry with a retention would keep for their age, by its rules."""

    def __init__(self, log: Sequence[Segment], retention: Retention, now: float) -> None:
        limit = now - retention.period.total_seconds()
        self._position, self._changed_ns = cutoff_position(log, limit, now), int(limit * 1e9)

    def __call__(self, rows: pa.Table) -> Any:
        released = pc.fill_null(pc.greater(rows["released"], self._position), False)
        untimed = pc.and_(pc.is_null(rows["changed_ns"]), pc.not_equal(rows["state"], VERSION))
        return pc.or_(released, pc.fill_null(pc.greater(rows["changed_ns"], self._changed_ns), untimed))


def _needs(rows: pa.Table, young: _Young | None) -> pa.Table:
    """Replaces the reasons for which an expiry would remove an entry by `retention` or `nothing`."""
    free = pc.is_in(rows["reason"], pa.array([EXPIRED, UNREFERENCED, UNREFERENCED_YOUNG]))
    reason = pc.if_else(young(rows), RETENTION, NOTHING) if young else NOTHING
    return rows.set_column(rows.schema.get_field_index("reason"), "reason", pc.if_else(free, reason, rows["reason"]))


def _of_table(rows: pa.Table, text: str) -> Any:
    db, _, name = text.rpartition(".")
    fits = pc.equal(rows["table"], name.lower())
    return pc.fill_null(pc.and_(fits, pc.equal(rows["db"], db.lower())) if db else fits, False)


def _count(total: list[int], entries: int, size: int) -> None:
    total[0] += entries
    total[1] += size


def _said(total: Sequence[int]) -> dict[str, int]:
    return {"entries": total[0], "bytes": total[1]}


def _entry(row: dict[str, Any], recovery_points: _RecoveryPoints, root: str) -> dict[str, Any]:
    """Returns one entry as data: `keeper` is link, copy, version or recycle; `since_*`: of the first record that names
    it; `released_*`: of the last that ended a use of it."""
    since, released = row["since"], row["released"]
    if since is not None and since < 1:  # from an intercept that no capture has recorded yet
        since = None
    return {
        "checksum": row["checksum"],
        "size": row["size"],
        "keeper": _keeper(row, recovery_points, root),
        "origin": join(row["location"], row["path"]) if row["location"] else None,
        "db": row["db"],
        "table": row["table"],
        "partition": row["partition"],
        "version": row["version"],
        "since_position": since,
        "since_event": recovery_points.event(since),
        "since_time": recovery_points.time(since),
        "released_position": released,
        "released_event": recovery_points.event(released),
        "released_time": recovery_points.time(released),
        "needed_by": row["reason"],
        "until": _until(row, recovery_points),
        "links": row["links"],
    }


def _keeper(row: dict[str, Any], recovery_points: _RecoveryPoints, root: str) -> str:
    """Returns how an entry was retained, determined from its names, the store and the capture's marker."""
    if row["state"] == VERSION:
        return "version"
    if (row["links"] or 0) > 1:
        return "link"
    if row["location"] is None:
        return "recycle"
    said = recovery_points.keeper(row["position"])
    if "copy" in said and "link" not in said:
        return "copy"
    return "link" if is_local(root) and is_local(row["location"]) else "copy"


def _until(row: dict[str, Any], recovery_points: _RecoveryPoints) -> str:
    need, retention = row["reason"], recovery_points.retention
    if need == LIVE:
        return "the source drops or replaces it, and no retention covers it"
    if need == RETENTION and retention:
        since = max(recovery_points.captured(row["released"]), (row["changed_ns"] or 0) / 1e9)
        return f"{time_text(math.ceil(since + retention.period.total_seconds()))}, by the expiry of job {retention.job}"
    expiry = f"the next run of job {retention.job}" if retention else "an expiry; no job is configured for this root"
    return ends_when(need, row["released"]) or expiry


class _RecoveryPoints:
    """Data of the log about positions: the event and time of a record, the keeper of its capture. For few rows."""

    def __init__(self, log: Sequence[Segment], rows: list[dict[str, Any]], retention: Retention | None) -> None:
        self.rows, self.retention = rows, retention
        named = ("since", "released", "position")
        wanted = {row[name] for row in rows for name in named if row.get(name) is not None and row[name] > 0}
        self._records = events_at(log, wanted)
        captures = [capture for segment in log for capture in segment.captures]
        self._lasts = [capture.last for capture in captures]
        self._keepers = [str(capture.about.get("keeper", "")) for capture in captures]
        self._times = list(accumulate((float(capture.about.get("time", 0)) for capture in captures), max))

    def event(self, position: int | None) -> int | None:
        found = self._records.get(position) if position is not None else None
        return found[0] if found else None

    def time(self, position: int | None) -> int | None:
        found = self._records.get(position) if position is not None else None
        return found[1] if found else None

    def captured(self, position: int | None) -> float:
        """Returns when a position was captured, in seconds since 1970; 0 if that part of the log does not exist."""
        index = bisect_left(self._lasts, position or 0)
        return self._times[index] if position and index < len(self._times) else 0.0

    def keeper(self, position: int | None) -> str:
        index = bisect_left(self._lasts, position or 0)
        return self._keepers[index] if position and index < len(self._keepers) else ""
