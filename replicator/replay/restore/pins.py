"""Slots and holds for an operator: at an event or time of the log, with their lag.

The files themselves are `cmroot.pins`; `cmroot.log.references` decides which files they exclude from expiry.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, ClassVar

import msgspec

from cmroot import pins
from cmroot.expire.expire import held_by
from cmroot.lease import Lease, acquire, patiently
from cmroot.log.captured import Segment, segments
from cmroot.log.references import work
from cmroot.root import ChangeRoot
from replicator.captures.dumps.layout import Point
from replicator.captures.dumps.selection import end_of_dump, parse_moment, resolve_until
from replicator.core.engine import AutoEngine
from replicator.core.not_replicated import Report, Rows
from replicator.errors import UsageError

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
    event, _ = parse_moment(text, "--at")
    if event is not None and event > newest.event:
        raise UsageError(f"--at {text}: the newest captured event is {newest.event}", hint="capture first")
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
