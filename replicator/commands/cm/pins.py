"""`cm slots`, `cm hold` and `cm release`: who needs what, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from cmroot.root import open_existing
from replicator.commands.base import point, verb
from replicator.commands.of_policy import OfPolicy
from replicator.commands.ranges import Moment
from replicator.replay.restore import pins
from replicator.replay.restore.pins import PinList, Pinned


@dataclass(frozen=True, kw_only=True)
class CmSlotsOptions(OfPolicy):
    """Arguments:

    cmroot: the change-management root.
    held: also what each holds back, which reads the whole log.
    """

    needed: ClassVar = ("cmroot",)

    cmroot: str = ""
    held: bool = True


@verb(CmSlotsOptions)
def cm_slots(options: CmSlotsOptions) -> PinList:
    """Lists the slots of consumers, holds and dumps: how far behind each is, and what it holds back. Changes nothing.

        replicator.cm_slots(cmroot="/cm").to_arrow()

    Raises FormatError when the log is damaged or there is no root; damaged pins are listed."""
    root = open_existing(options.cmroot)
    with options.engines() as engine:
        return pins.list_pins(root, engine if options.held else None)


@dataclass(frozen=True, kw_only=True)
class CmSlotsCreateOptions(OfPolicy):
    """Arguments:

    name: the slot's.
    cmroot: the change-management root.
    at: an event id, a time (UTC), or a finished dump's directory; None: the end of the captured log.
    consumer: whose it is; for people.
    """

    needed: ClassVar = ("cmroot",)

    name: str = field(kw_only=False)
    cmroot: str = ""
    at: Moment | int | None = None
    consumer: str = ""


@verb(CmSlotsCreateOptions)
def cm_slots_create(options: CmSlotsCreateOptions) -> Pinned:
    """Registers a consumer: nothing that the source had after a moment expires until the consumer has it.

        replicator.cm_slots_create("dr", cmroot="/cm", consumer="the copy in the other data centre")

    Raises PinError when there is one of this name, so a second run does nothing; UsageError for a moment that was not
    captured."""
    root = open_existing(options.cmroot)
    return pins.create_slot(root, options.name, point(options.at), consumer=options.consumer)


@dataclass(frozen=True, kw_only=True)
class CmSlotsConfirmOptions(OfPolicy):
    """Arguments:

    name: the slot's.
    cmroot: the change-management root.
    at: an event id, a time (UTC), or a finished dump's directory: the consumer has everything up to there.
    back: move it back, if so; what it needs again may be gone.
    """

    needed: ClassVar = ("cmroot",)

    name: str = field(kw_only=False)
    cmroot: str = ""
    at: Moment | int
    back: bool = False


@verb(CmSlotsConfirmOptions)
def cm_slots_confirm(options: CmSlotsConfirmOptions) -> Pinned:
    """Says how far a consumer has come. A load of a dump with a slot does it by itself. May run again.

        replicator.cm_slots_confirm("dr", cmroot="/cm", at="/dumps/7")

    Raises PinError for an unknown slot, and for one that would go back without `back`; UsageError for a moment that
    was not captured."""
    root = open_existing(options.cmroot)
    return pins.confirm_slot(root, options.name, str(options.at), back=options.back)


@dataclass(frozen=True, kw_only=True)
class CmSlotsDropOptions(OfPolicy):
    """Arguments:

    name: the slot's.
    cmroot: the change-management root.
    """

    needed: ClassVar = ("cmroot",)

    name: str = field(kw_only=False)
    cmroot: str = ""


@verb(CmSlotsDropOptions)
def cm_slots_drop(options: CmSlotsDropOptions) -> Pinned:
    """Forgets a consumer: what only it needs goes with the next expiry.

        replicator.cm_slots_drop("dr", cmroot="/cm")

    Raises PinError when there is no such slot, as in a second run."""
    return pins.drop_slot(open_existing(options.cmroot), options.name)


@dataclass(frozen=True, kw_only=True)
class CmHoldOptions(OfPolicy):
    """Arguments:

    name: the hold's.
    cmroot: the change-management root.
    at: an event id, a time (UTC), or a finished dump's directory; None: the end of the captured log.
    reason: why; for people.
    """

    needed: ClassVar = ("cmroot",)

    name: str = field(kw_only=False)
    cmroot: str = ""
    at: Moment | int | None = None
    reason: str = ""


@verb(CmHoldOptions)
def cm_hold(options: CmHoldOptions) -> Pinned:
    """Keeps a moment: nothing that the source had then expires until the hold is released. What expired before stays
    gone.

        replicator.cm_hold("before-migration", cmroot="/cm", reason="ticket 4711")

    Raises PinError when there is one of this name, so a second run does nothing; UsageError for a moment that was not
    captured."""
    root = open_existing(options.cmroot)
    return pins.hold(root, options.name, point(options.at), reason=options.reason)


@dataclass(frozen=True, kw_only=True)
class CmReleaseOptions(OfPolicy):
    """Arguments:

    name: the hold's.
    cmroot: the change-management root.
    dump: the name is the id of a dump that nobody will load any more.
    """

    needed: ClassVar = ("cmroot",)

    name: str = field(kw_only=False)
    cmroot: str = ""
    dump: bool = False


@verb(CmReleaseOptions)
def cm_release(options: CmReleaseOptions) -> Pinned:
    """Lets go of a hold: what only it needs goes with the next expiry.

        replicator.cm_release("before-migration", cmroot="/cm")

    Raises PinError when there is no such hold, as in a second run."""
    return pins.release(open_existing(options.cmroot), options.name, dump=options.dump)
