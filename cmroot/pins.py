"""Pins: slots of consumers, named holds, and dumps, each of which retains contents of a root.

`slots/<name>`, `holds/<name>` and `dumps/<id>` are JSON with a checksum of their own. A file that cannot be read is
reported as damaged and never treated as absent, because expiry would then remove the contents that it protected. Which
contents the pins retain is decided in `expire.retention`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from cmroot.errors import FormatError, PinError
from cmroot.root import guard_names, seal, unseal
from cmroot.store.place import Place
from cmroot.text import shown

LARGEST = 1 << 20  # bytes of a pin
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Slot(msgspec.Struct, frozen=True):
    """The progress of a consumer: it requires all contents that the source had after `position`, which is the event
    `event`. Times are ISO 8601. `given_up`: when expiry stopped waiting for it; since then it retains nothing.
    `awaits`: the bootstrap dump that the consumer must load before it reaches `position`; empty once it has confirmed.
    `scopes`: the scope of each database at `position`, as written by the consumer; empty if unknown."""

    name: str
    position: int
    event: int
    created: str
    confirmed: str
    consumer: str = ""
    given_up: str = ""
    awaits: str = ""
    scopes: dict[str, str] = {}


class Hold(msgspec.Struct, frozen=True):
    """A recovery point that must remain available: all contents that the source had at `position`."""

    name: str
    position: int
    event: int
    created: str
    reason: str = ""


class DumpPin(msgspec.Struct, frozen=True):
    """A dump that may still be loaded: it requires the same contents as a slot at `needs_after`. `name` is the dump's
    id, `place` the location it was written to. It is in force while it is younger than the retention of an expiry."""

    name: str
    place: str
    needs_after: int
    event: int
    created: str


Pin = Slot | Hold | DumpPin
P = TypeVar("P", Slot, Hold, DumpPin)

_DIRECTORY = {Slot: "slots", Hold: "holds", DumpPin: "dumps"}
_FORMAT = {Slot: "cmroot-slot", Hold: "cmroot-hold", DumpPin: "cmroot-dump"}
_WORD = {Slot: "slot", Hold: "hold", DumpPin: "dump pin"}


@dataclass(frozen=True)
class Pins:
    """All pins of a root, by name. `damaged`: files that could not be read, and missing directories."""

    slots: list[Slot]
    holds: list[Hold]
    dumps: list[DumpPin]
    damaged: list[str]

    def whole(self) -> Pins:
        """Returns the same pins, for callers that must not overlook any. Raises FormatError when one is damaged."""
        if self.damaged:
            raise FormatError(
                f"{', '.join(self.damaged)}: damaged or missing, so the files that it "
                "protects are unknown, and nothing may be removed",
                hint="restore it from a copy of the root; if it is not needed, drop the pin by its name, or create the"
                " directory again",
                details={"damaged": self.damaged},
            )
        return self


def read_pins(root: str) -> Pins:
    """Returns every pin, even if some are damaged: for listings. Callers that decide on removals use `.whole()`."""
    damaged: list[str] = []
    return Pins(_all(root, Slot, damaged), _all(root, Hold, damaged), _all(root, DumpPin, damaged), damaged)


# Slots


def create_slot(root: str, slot: Slot) -> None:
    """Creates a slot. Raises PinError when the name is in use or invalid."""
    _create(root, slot)


def confirm_slot(
    root: str,
    name: str,
    position: int,
    event: int,
    *,
    now: Callable[[], float],
    back: bool = False,
    scopes: dict[str, str] | None = None,
) -> Slot:
    """Advances a slot: its consumer has everything up to `position`, in `scopes` (None: unchanged). May run twice; not
    concurrently for one consumer.

    Raises PinError for an unknown slot, an invalidated one, and a position before the slot's, unless `back`: contents
    between the two positions may have expired already. Raises FormatError when the slot's file is damaged.
    """
    slot = _read(root, Slot, name)
    if slot.given_up:
        raise PinError(
            f"slot {name}: was invalidated at {slot.given_up} because of its lag; files that it needs may have expired",
            hint="bootstrap its consumer again: drop the slot, then create it again",
        )
    if position < slot.position and not back:
        raise PinError(
            f"slot {name}: is at position {slot.position} and cannot move back to {position}: the positions between"
            " are no longer protected",
            hint="confirm a later position, or allow it to move back",
        )
    of = slot.scopes if scopes is None else scopes
    confirmed = msgspec.structs.replace(
        slot, position=position, event=event, confirmed=iso(now()), awaits="", scopes=of
    )
    _write(root, confirmed)
    return confirmed


def give_up_slot(root: str, name: str, *, now: Callable[[], float]) -> Slot:
    """Marks a slot as retaining nothing any more, the last resort of expiry. May run twice."""
    slot = _read(root, Slot, name)
    if not slot.given_up:
        slot = msgspec.structs.replace(slot, given_up=iso(now()))
        _write(root, slot)
    return slot


def drop_slot(root: str, name: str) -> None:
    """Drops a slot, even a damaged one. Raises PinError when it does not exist."""
    _drop(root, Slot, name)


def slots(root: str) -> list[Slot]:
    """Returns the slots by name. Raises FormatError when one is damaged; `read_pins` reports which."""
    return _whole(root, Slot)


def find_slot(root: str, name: str) -> Slot | None:
    """Returns the slot; None when it does not exist. Raises FormatError when it is damaged."""
    return _find(root, Slot, name)


# Holds


def hold(root: str, pin: Hold) -> None:
    """Creates a hold. Raises PinError when the name is in use or invalid."""
    _create(root, pin)


def release(root: str, name: str) -> None:
    """Releases a hold, even a damaged one. Raises PinError when it does not exist."""
    _drop(root, Hold, name)


def holds(root: str) -> list[Hold]:
    """Returns the holds by name. Raises FormatError when one is damaged."""
    return _whole(root, Hold)


# Dumps


def pin_dump(root: str, pin: DumpPin) -> None:
    """Pins a dump; must be called before its contents are listed. May run twice: the last call wins."""
    _check_name(DumpPin, pin.name)
    guard_names(root, _DIRECTORY[DumpPin])
    _write(root, pin)


def unpin_dump(root: str, name: str) -> None:
    """Removes the pin of a dump. May run twice."""
    _place(root, DumpPin, name).remove_own()


# Times


def iso(seconds: float) -> str:
    """Returns seconds since 1970 in the format used in pins."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def seconds(moment: str) -> float:
    """Returns seconds since 1970 of an ISO 8601 time, UTC if it has no zone. Raises ValueError when it is invalid."""
    found = datetime.fromisoformat(moment)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


# Files


def _place(root: str, kind: type[Pin], name: str) -> Place:
    _check_name(kind, name)
    return Place(root) / _DIRECTORY[kind] / name


def _check_name(kind: type[Pin], name: str) -> None:
    if not _NAME.fullmatch(name):
        raise PinError(
            f"{name!r} cannot be the name of a {_WORD[kind]}",
            hint="use up to 63 letters, digits, dots, dashes and underscores, the first a letter or digit",
        )


def _read_file(path: Place, kind: type[P]) -> P:
    hint = f"restore the file from a copy of the root, or drop the {_WORD[kind]} if it is not needed"
    pin = unseal(path.read_bytes(LARGEST), kind, _FORMAT[kind], str(path), hint)
    if pin.name != path.name:
        raise FormatError(f"{path}: is the file of {pin.name}", hint=hint)
    try:
        seconds(pin.confirmed if isinstance(pin, Slot) else pin.created)
    except ValueError as error:
        raise FormatError(f"{path}: damaged: {error}", hint=hint) from error
    return pin


def _create(root: str, pin: Pin) -> None:
    place = _place(root, type(pin), pin.name)
    guard_names(root, _DIRECTORY[type(pin)])  # a lost directory must not be created again as if it had been empty
    if not place.create_exclusive(seal(_FORMAT[type(pin)], pin)):
        raise PinError(f"{_WORD[type(pin)]} {pin.name} already exists", hint="choose another, or drop it first")


def _write(root: str, pin: Pin) -> None:
    _place(root, type(pin), pin.name).replace_own(seal(_FORMAT[type(pin)], pin))


def _find(root: str, kind: type[P], name: str) -> P | None:
    try:
        return _read_file(_place(root, kind, name), kind)
    except FileNotFoundError:
        return None


def _read(root: str, kind: type[P], name: str) -> P:
    found = _find(root, kind, name)
    if found is None:
        raise _unknown(root, kind, name)
    return found


def _drop(root: str, kind: type[Pin], name: str) -> None:
    place = _place(root, kind, name)
    if not place.exists():
        raise _unknown(root, kind, name)
    place.remove_own()


def _unknown(root: str, kind: type[Pin], name: str) -> PinError:
    known = ", ".join((Place(root) / _DIRECTORY[kind]).list()) or "none"
    return PinError(f"{_WORD[kind]} {name} does not exist", hint=f"existing: {known}")


def _whole(root: str, kind: type[P]) -> list[P]:
    damaged: list[str] = []
    found = _all(root, kind, damaged)
    Pins([], [], [], damaged).whole()
    return found


def _all(root: str, kind: type[P], damaged: list[str]) -> list[P]:
    directory, found = Place(root) / _DIRECTORY[kind], []
    try:
        names = guard_names(root, _DIRECTORY[kind])
    except FormatError:
        damaged.append(str(directory))
        return []
    for name in names:
        try:
            found.append(_read_file(directory / name, kind))
        except FileNotFoundError:  # dropped concurrently
            continue
        except FormatError:
            damaged.append(shown(str(directory / name)))
    return found
