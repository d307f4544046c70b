"""Changes of items: add, follow, detach, cancel. All functions act on an open transaction of the store.

The only writer is the holder of the run's lease, so values read here do not change before they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, and_, bindparam, select, update

from cmroot.store.place import normal
from replicator.core.grouping import batched
from replicator.core.text import Period
from replicator.lifecycle.housekeeping.settings import EXPIRED, UNREFERENCED
from replicator.lifecycle.housekeeping.store import (
    ACTIVE,
    ACTIVE_ONLY,
    DELETED,
    DISABLED,
    EXHAUSTED,
    HEAD,
    OPEN,
    SCHEDULED,
    SKIPPED,
    VALUES,
    Item,
    item,
    object_slot,
    path_slot,
    problem_slot,
    slot_of,
    state,
    to_item,
    to_row,
)

CHUNK = 500  # values in one statement

TABLES_STAY = "an expired table is dropped only with beekeeper.expired.data.table.deletion.enabled=true"
DATA_STAYS = "its table was dropped, and its data is kept: beekeeper.expired.data.table.deletion.enabled was not true"
NOT_ASKED = "the table does not ask for it any more"


def set_state(work: Connection, key: str, value: str) -> None:
    if not work.execute(update(state).where(state.c.key == key).values(value=value)).rowcount:
        work.execute(state.insert().values(key=key, value=value))


def put(work: Connection, items: Sequence[Item], period: Period, *, restarted: bool = False) -> int:
    """Adds items, or continues the open ones of the same objects: path, period and event are replaced, and their time
    begins where it began (`restarted`: now). Returns how many are new. All have the same period; no two have the same
    slot."""
    new = 0
    for some in batched(items, CHUNK):
        slots = {slot_of(each): each for each in some}
        query = select(item.c.id, item.c.slot, item.c.creation_timestamp, item.c.housekeeping_status, item.c.reason)
        known = {row.slot: row for row in work.execute(query.where(item.c.slot.in_(list(slots))))}
        changed = []
        for slot, row in known.items():
            one = slots[slot]
            created = one.created if restarted else row.creation_timestamp
            given_up = row.housekeeping_status in (SKIPPED, EXHAUSTED) and row.reason != TABLES_STAY
            stays = given_up and one.lifecycle == EXPIRED and not restarted
            changed.append(
                {
                    "b_id": row.id,
                    "path": one.path,
                    "place": one.place,
                    "place_head": one.place[:HEAD],
                    "housekeeping_status": row.housekeeping_status if stays else one.status,
                    "reason": row.reason if stays else one.reason,
                    "creation_timestamp": created,
                    "cleanup_timestamp": period.end(created),
                    "modified_timestamp": one.modified,
                    "cleanup_delay": one.delay,
                    "event": one.event,
                    "client_id": one.client,
                    "begun": 0,
                    "next_try": 0,
                }
            )
        _change(work, changed)
        fresh = [to_row(each) for slot, each in slots.items() if slot not in known]
        if fresh:
            work.execute(item.insert(), fresh)
        new += len(fresh)
    return new


def detach(work: Connection, db: str, table: str, partitions: Sequence[str] | None, now: int) -> int:
    """Detaches items whose objects no longer exist (partitions None: the table's): they remain, and are removed at
    their time, except the item of a table that was not to be dropped itself."""
    gone = and_(_of(db, table), ~item.c.detached, item.c.housekeeping_status.in_(OPEN))
    if partitions is None:
        kept = and_(gone, item.c.housekeeping_status == SKIPPED, item.c.reason == TABLES_STAY)
        work.execute(
            update(item)
            .where(kept)
            .values(housekeeping_status=DISABLED, reason=DATA_STAYS, detached=True, slot=None, modified_timestamp=now)
        )
        paths = and_(gone, item.c.lifecycle_type == UNREFERENCED)
        found = work.execute(update(item).where(paths).values(detached=True, modified_timestamp=now)).rowcount
        objects = and_(gone, item.c.lifecycle_type == EXPIRED)
        values = {"detached": True, "slot": None, "modified_timestamp": now}
        return int(found + work.execute(update(item).where(objects).values(values)).rowcount)
    found = 0
    for some in batched(partitions, CHUNK):
        objects = and_(gone, item.c.lifecycle_type == EXPIRED, item.c.partition_name.in_(some))
        values = {"detached": True, "slot": None, "modified_timestamp": now}
        found += work.execute(update(item).where(objects).values(values)).rowcount
    return found


def disable(work: Connection, db: str, table: str, lifecycle: str, reason: str, now: int) -> int:
    """Cancels the waiting items of a table's objects, but not removals that have begun, which must be completed, nor
    items whose objects no longer exist."""
    waiting = and_(
        _of(db, table),
        item.c.lifecycle_type == lifecycle,
        item.c.housekeeping_status.in_(OPEN),
        ~item.c.detached,
        item.c.begun == 0,
    )
    values = {"housekeeping_status": DISABLED, "slot": None, "reason": reason, "modified_timestamp": now}
    return int(work.execute(update(item).where(waiting).values(values)).rowcount)


def revive(work: Connection, db: str, table: str, period: Period, begins: int, event: int, now: int) -> int:
    """Schedules unreferenced locations again when a table turns their removal on: those that were cancelled when it was
    off, one item a path, from `begins` on."""
    cancelled = and_(
        _of(db, table),
        item.c.lifecycle_type == UNREFERENCED,
        item.c.housekeeping_status == DISABLED,
        ~item.c.detached,
        item.c.reason.endswith(NOT_ASKED, autoescape=True),
    )
    found = 0
    for rows in _pages(work, cancelled, item.c.id, item.c.place):
        wanted = {path_slot(row.place): row.id for row in rows}
        taken = set(occupied(work, [(id, slot) for slot, id in wanted.items()]))
        changes = [{"b_id": id, "slot": slot} for slot, id in wanted.items() if id not in taken]
        _change(
            work,
            changes,
            housekeeping_status=SCHEDULED,
            reason="",
            creation_timestamp=begins,
            cleanup_timestamp=period.end(begins),
            cleanup_delay=period.text,
            cleanup_attempts=0,
            next_try=0,
            begun=0,
            event=event,
            modified_timestamp=now,
        )
        found += len(changes)
    return found


def referenced_again(work: Connection, places: Iterable[str], reason: str, now: int) -> int:
    """Cancels unreferenced locations, and those of dropped objects, when an object refers to them again."""
    found = 0
    values = {"housekeeping_status": DISABLED, "slot": None, "reason": reason, "modified_timestamp": now}
    for some in batched(places, CHUNK):
        slots = [path_slot(place) for place in some]
        found += work.execute(update(item).where(item.c.slot.in_(slots)).values(values)).rowcount
        gone = and_(
            ACTIVE_ONLY,
            item.c.place_head.in_([place[:HEAD] for place in some]),
            item.c.place.in_(some),
            item.c.lifecycle_type == EXPIRED,
            item.c.detached,
        )
        found += work.execute(update(item).where(gone).values(values)).rowcount
    return found


def retime(work: Connection, db: str, table: str, lifecycle: str, period: Period, now: int) -> int:
    """Sets the times of all open items of a table after a change of its period, from where they began."""
    waiting = and_(
        _of(db, table), item.c.lifecycle_type == lifecycle, item.c.housekeeping_status.in_(OPEN), ~item.c.detached
    )
    common = {"cleanup_delay": period.text, "modified_timestamp": now}
    if period.fixed is not None:
        values = {**common, "cleanup_timestamp": item.c.creation_timestamp + period.fixed}
        return int(work.execute(update(item).where(waiting).values(values)).rowcount)
    found = 0
    for rows in _pages(work, waiting, item.c.id, item.c.creation_timestamp):
        times = [{"b_id": row.id, "cleanup_timestamp": period.end(row.creation_timestamp)} for row in rows]
        _change(work, times, **common)
        found += len(rows)
    return found


def switch_table(work: Connection, db: str, table: str, drops: bool, now: int) -> None:
    """Applies a change of whether the table itself may be dropped."""
    own = item.c.slot == object_slot(db, table, "")
    before, after = (SKIPPED, SCHEDULED) if drops else (SCHEDULED, SKIPPED)
    values = {"housekeeping_status": after, "reason": "" if drops else TABLES_STAY, "modified_timestamp": now}
    which = and_(own, item.c.housekeeping_status == before, *([item.c.reason == TABLES_STAY] if drops else []))
    work.execute(update(item).where(which).values(values))


def follow(
    work: Connection,
    before: tuple[str, str, str | None],
    after: tuple[str, str, str | None],
    moved: tuple[str, str] | None,
    now: int,
) -> int:
    """Renames a table (db, name, None) or a partition in its attached items. moved: its directory was moved as well,
    from, to, so paths in it change. Changes all items of a table; of a partition, its own."""
    attached = and_(_of(before[0], before[1]), ~item.c.detached)
    if before[2] is not None:
        attached = and_(attached, item.c.partition_name == before[2])
    found = 0
    for rows in _pages(work, attached, *item.c):
        changed = []
        for row in rows:
            partition = row.partition_name if after[2] is None else after[2]
            path, place = _moved(row.path, row.place, moved)
            one = replace(to_item(row), db=after[0], table=after[1], partition=partition, path=path, place=place)
            changed.append(_columns(one, "database_name table_name partition_name path place place_head slot"))
        _change(work, changed, modified_timestamp=now)
        found += len(changed)
    return found


def trouble(work: Connection, one: Item) -> bool:
    """Records that a table's properties are invalid. Returns True if this is new, or the reason has changed."""
    slot = problem_slot(one.db, one.table, one.lifecycle)
    known = work.execute(select(item.c.id, item.c.reason).where(item.c.slot == slot)).first()
    if known is None:
        work.execute(item.insert(), to_row(one))
        return True
    values = {"reason": one.reason, "path": one.path, "modified_timestamp": one.modified}
    work.execute(update(item).where(item.c.id == known.id).values(values))
    return bool(known.reason != one.reason)


def settle(work: Connection, db: str, table: str, lifecycle: str, now: int) -> None:
    """Resolves the problem: the properties are valid again, or removed."""
    values = {
        "housekeeping_status": DISABLED,
        "slot": None,
        "reason": "the properties were corrected",
        "modified_timestamp": now,
    }
    work.execute(update(item).where(item.c.slot == problem_slot(db, table, lifecycle)).values(values))


def removed_by_us(work: Connection, db: str, table: str, partitions: Sequence[str], event: int) -> set[tuple[str, str]]:
    """Returns (partition, place) of objects that a run dropped with this event, which requires no action then."""
    found: set[tuple[str, str]] = set()
    done_since = and_(item.c.housekeeping_status == DELETED, item.c.ended >= event)
    for some in batched(partitions, CHUNK):
        query = select(item.c.partition_name, item.c.place).where(
            _of(db, table),
            item.c.lifecycle_type == EXPIRED,
            item.c.partition_name.in_(some),
            item.c.begun > 0,
            item.c.begun < event,
            item.c.housekeeping_status.in_(ACTIVE) | done_since,
        )
        found |= {(str(row.partition_name), str(row.place)) for row in work.execute(query)}
    return found


def settle_each(work: Connection, items: Sequence[Item]) -> None:
    """Writes the outcomes of a run, or of an operator's action, to items."""
    columns = "housekeeping_status reason cleanup_attempts next_try begun ended modified_timestamp slot"
    _change(work, [_columns(one, columns) for one in items])


def occupied(work: Connection, wanted: Sequence[tuple[int, str]]) -> list[int]:
    """Returns those of the items (id, slot) whose slot another one has."""
    found = []
    for some in batched(wanted, CHUNK):
        holders = dict(
            work.execute(select(item.c.slot, item.c.id).where(item.c.slot.in_([slot for _, slot in some]))).all()
        )
        found += [one for one, slot in some if holders.get(slot, one) != one]
    return found


def forget(work: Connection, before: int) -> int:
    """Removes items that ended before a timestamp; SKIPPED and EXHAUSTED ones are retained for the operator."""
    ended = and_(item.c.housekeeping_status.in_((DELETED, DISABLED)), item.c.modified_timestamp < before)
    return int(work.execute(item.delete().where(ended)).rowcount)


def _columns(one: Item, names: str) -> dict[str, Any]:
    """Returns a change for `_change`."""
    return {"b_id": one.id} | {name: VALUES[name](one) for name in names.split()}


def _change(work: Connection, changes: Sequence[dict[str, Any]], **common: Any) -> None:
    """Writes columns of items: each change has the item's id as b_id and its own values, of the same columns."""
    if changes:
        own: dict[str, Any] = {name: bindparam(name) for name in changes[0] if name != "b_id"}
        work.execute(update(item).where(item.c.id == bindparam("b_id")).values(common | own), changes)


def _of(db: str, table: str) -> ColumnElement[bool]:
    return and_(item.c.database_name == db, item.c.table_name == table)


def _moved(path: str, place: str, moved: tuple[str, str] | None) -> tuple[str, str]:
    if moved:
        old, new = normal(moved[0]), normal(moved[1])
        if place == old or place.startswith(old + "/"):
            tail = place[len(old) :]
            return moved[1].rstrip("/") + tail, new + tail
    return path, place


def _pages(work: Connection, where: ColumnElement[bool], *columns: Any) -> Iterator[Sequence[Any]]:
    """Yields rows by id, a page at a time; they may be changed during iteration."""
    last = 0
    while rows := work.execute(select(*columns).where(where, item.c.id > last).order_by(item.c.id).limit(5000)).all():
        last = rows[-1].id
        yield rows
