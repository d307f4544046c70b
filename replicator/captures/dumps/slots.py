"""Slots in dumps and loads: a consumer takes dumps one after the other, and nothing that the next one needs may go.

`dump --slot` registers the consumer before anything of the dump is written, so that no expiry comes between; the dump
names the slot, and the load that has acknowledged it confirms the slot. Where pins lie, and what they keep, is
`cmroot.pins` and docs/decisions/0005.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cmroot.errors import PinError
from cmroot.log.captured import Segment, segments
from cmroot.pins import DumpPin, Slot, confirm_slot, create_slot, drop_slot, find_slot, iso, pin_dump, unpin_dump
from cmroot.root import open_existing
from replicator.captures.dumps.layout import DumpMetadata, Point, Scope
from replicator.captures.dumps.reached import covers, reached, scope_text
from replicator.captures.dumps.selection import point_at
from replicator.errors import BootstrapNeeded, Error, FormatError

BOOTSTRAP = "a bootstrap"  # what the consumer of a slot awaits that was made with a bootstrap dump


def confirmed(root: str, name: str) -> Slot | None:
    """A slot whose consumer has come to its position; None when there is none, or when it awaits its bootstrap.

    Raises PinError for one that was given up, FormatError for a damaged one."""
    slot = find_slot(root, name)
    if slot is not None and slot.given_up:
        raise PinError(
            f"slot {name}: was invalidated at {slot.given_up} because of its lag; files that it needs may have expired",
            hint=f"drop it (`replicator cm slots drop {name}`), then dump with it again: a bootstrap",
        )
    return None if slot is None or slot.awaits else slot


def begin_of(log: Sequence[Segment], slot: Slot) -> Point:
    """Where a slot's next dump begins. Raises FormatError when the log does not reach to the slot's position."""
    point = point_at(log, slot.position)
    if point is not None:
        return point
    raise FormatError(
        f"slot {slot.name}: is at position {slot.position}, which the captured log does not have",
        hint="the log was replaced: drop the slot and dump with it again, a bootstrap",
    )


def refuse_wider(slot: Slot, scope: Scope) -> None:
    """Raises BootstrapNeeded when a dump is to hold more than what the slot's consumer has at its position."""
    for db in scope.databases if slot.scopes else ():
        wanted, known = reached(scope, db), slot.scopes.get(db)
        if known is None or not covers(known, wanted):
            has = "nothing" if known is None else scope_text(known)
            raise BootstrapNeeded(
                f"slot {slot.name}: its consumer has of {db} {has}, this dump is to have {scope_text(wanted)}",
                hint=f"drop the slot (`replicator cm slots drop {slot.name}`) and dump with it again, a bootstrap; or "
                "name with --since the dump that the consumer came to",
            )


@contextmanager
def pinned(
    root: str, *, dump: str, place: str, slot: str, begin: Point | None, end: Point, clock: Callable[[], float]
) -> Iterator[None]:
    """While a dump is written under the lease, and after: its needs are pinned, and its slot exists (no name: none).

    A dump that fails leaves neither, one that is killed both; the next dump with the slot is then the same again."""
    needs, now = begin or end, iso(clock())
    created = bool(slot) and find_slot(root, slot) is None
    if created:
        awaits = BOOTSTRAP if begin is None else ""
        create_slot(root, Slot(slot, needs.position, needs.event, created=now, confirmed=now, awaits=awaits))
    pin_dump(root, DumpPin(dump, place, needs_after=needs.position, event=needs.event, created=now))
    try:
        yield
    except BaseException:
        unpin_dump(root, dump)
        if created:
            drop_slot(root, slot)
        raise


def _check_root(metadata: DumpMetadata, root: str) -> None:
    """A slot lets go of what lies before its position, so a dump moves one only in the root that it is from, and not
    further than that has come. Raises FormatError."""
    if open_existing(root).id != metadata.root_id:
        raise FormatError(f"{root}: is not the root that the dump is from", hint="name it with --source-cmroot")
    log = segments(root)
    if metadata.end.position > (log[-1].last if log else 0):
        raise FormatError(f"{root}: its log ends before position {metadata.end.position}, where the dump says it ends")


def confirm(metadata: DumpMetadata, place: str, root: str, clock: Callable[[], float]) -> str:
    """After a load: tells the dump's slot how far its consumer is. Returns a warning where that was not possible, else
    nothing; a slot that is further already stays. `place`: the dump's. Safe to run twice."""
    if not metadata.slot:
        return ""
    try:
        _check_root(metadata, root)
        slot = find_slot(root, metadata.slot)
        if slot is None:
            return f"slot {metadata.slot} is not in {root} any more: nothing is kept for this target"
        if slot.position <= metadata.end.position:
            scopes = {db: reached(metadata.scope, db) for db in metadata.scope.databases}
            confirm_slot(root, slot.name, metadata.end.position, metadata.end.event, now=clock, scopes=scopes)
    except (Error, OSError) as error:
        return (
            f"slot {metadata.slot} was not confirmed ({error}): until it is, expiry keeps what this target has. Where "
            f"the root can be written, run `replicator cm slots confirm {metadata.slot} --cmroot {root} --at {place}`"
        )
    return ""
