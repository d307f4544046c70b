"""`cm ls`, `cm find` and `cm get`: list kept files, find recorded ones, and restore one file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import ClassVar

from cmroot.root import looked_at, open_existing
from cmroot.store.place import as_written
from replicator.commands.base import point, verb
from replicator.commands.of_policy import OfPolicy
from replicator.commands.ranges import Moment, Rows
from replicator.replay.restore import kept
from replicator.replay.restore.kept import LIMIT, KeptList, PinList, Pinned, list_kept
from replicator.replay.restore.restore import FoundList, PutBack, find_files, put_back
from replicator.replay.restore.upkeep import (
    IDLE,
    PATIENCE,
    CompactionPlanned,
    ExpiryPlanned,
    LogCompacted,
    RootChecked,
    RootExpired,
    check_root,
    compact_log,
    expire_root,
    plan_expired,
    plan_log,
)


@dataclass(frozen=True, kw_only=True)
class CmLsOptions(OfPolicy):
    """Arguments:

    cmroot: the change-management root.
    table: only what was last this table's, "db.table".
    needed_by: only what this needs: "live", "slot NAME", "hold NAME", "dump ID" or "nobody"; its beginning is enough.
    limit: so many entries are listed one by one, the largest; all are counted.
    """

    needed: ClassVar = ("cmroot",)

    cmroot: str = ""
    table: str = ""
    needed_by: str = ""
    limit: Rows = LIMIT


@verb(CmLsOptions)
def cm_ls(options: CmLsOptions) -> KeptList:
    """Lists what is kept: how, from where, since which event, who needs it and until when. Changes nothing.

        replicator.cm_ls(cmroot="/cm", needed_by="slot").to_arrow()

    Raises Superseded when the log was compacted meanwhile, FormatError when it is damaged or there is no root."""
    root = open_existing(options.cmroot)
    with options.engines() as engine:
        return list_kept(root, engine, table=options.table, need=options.needed_by, limit=options.limit)


@dataclass(frozen=True, kw_only=True)
class CmFindOptions(OfPolicy):
    """Arguments:

    cmroot: the change-management root.
    path: a file, or a directory above it, as it was then.
    table: "db.table" by its name then, or one partition, "db.table/day=1".
    checksum: its first digits, or the whole name of an entry.
    limit: so many files are reported, the newest.
    """

    needed: ClassVar = ("cmroot",)

    cmroot: str = ""
    path: str = ""
    table: str = ""
    checksum: str = ""
    limit: Rows = LIMIT


@verb(CmFindOptions)
def cm_find(options: CmFindOptions) -> FoundList:
    """Finds files in the captured log: between which events the source had them, and whether they are kept. All that
    is given must fit. Changes nothing.

        replicator.cm_find(cmroot="/cm", table="sales.orders/day=1").entries

    Raises UsageError when neither path, table nor checksum is given; FormatError when the log is damaged."""
    root = open_existing(options.cmroot)
    return find_files(root, path=options.path, table=options.table, checksum=options.checksum, limit=options.limit)


@dataclass(frozen=True, kw_only=True)
class CmGetOptions(OfPolicy):
    """Arguments:

    what: the path of a file, or its checksum: the first six digits or more.
    cmroot: the change-management root.
    at: as it was at an event id, a time (UTC), or the end of a finished dump.
    to: the file to write; None: where it was.
    overwrite: replace the file that is there.
    """

    needed: ClassVar = ("cmroot",)

    what: str = field(kw_only=False)
    cmroot: str = ""
    at: Moment | int | None = None
    to: str | None = None
    overwrite: bool = False


@verb(CmGetOptions)
def cm_get(options: CmGetOptions) -> PutBack:
    """Puts one kept file back. It is copied, compared, and only then given its name. May run again.

        replicator.cm_get("/warehouse/sales.db/orders/part-0", cmroot="/cm", at=4711)

    Raises UsageError when that means several contents, KeepError when it means none or its bytes are not kept, Exists
    for a file that is there, ChecksumMismatch when what is kept is damaged."""
    root = open_existing(options.cmroot)
    return put_back(root, options.what, options.to, at=point(options.at), overwrite=options.overwrite)


# ---- pins ------------------------------------------------------------------------------------------------------------
# `cm slots`, `cm hold` and `cm release`: who needs what, and for how long.


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
        return kept.list_pins(root, engine if options.held else None)


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
    return kept.create_slot(root, options.name, point(options.at), consumer=options.consumer)


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
    return kept.confirm_slot(root, options.name, str(options.at), back=options.back)


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
    return kept.drop_slot(open_existing(options.cmroot), options.name)


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
    return kept.hold(root, options.name, point(options.at), reason=options.reason)


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
    return kept.release(open_existing(options.cmroot), options.name, dump=options.dump)


# ---- upkeep ----------------------------------------------------------------------------------------------------------
# `cm check`, `cm compact` and `cm expire`: what an operator runs from time to time, beside everything else.


@dataclass(frozen=True, kw_only=True)
class CmCheckOptions(OfPolicy):
    """Arguments:

    cmroot: the change-management root.
    bytes: read what is kept; without it names and sizes only are compared.
    limit: so many findings are listed one by one; all are counted.
    """

    needed: ClassVar = ("cmroot",)

    cmroot: str = ""
    bytes: bool = True
    limit: Rows = LIMIT


@verb(CmCheckOptions)
def cm_check(options: CmCheckOptions) -> RootChecked:
    """Compares every kept file with its name, and the log with what is kept; says what a repair would do. Changes
    nothing.

        replicator.cm_check(cmroot="/cm").status

    Raises Superseded when the log was compacted meanwhile, FormatError when there is no root; damage is a finding."""
    root = open_existing(options.cmroot)
    with options.engines() as engine:
        return check_root(root, engine, bytes=options.bytes, limit=options.limit)


@dataclass(frozen=True, kw_only=True)
class CmCompactOptions(OfPolicy):
    """Arguments:

    cmroot: the change-management root.
    wait: for the lease of another run, such as a capture; each time.
    dry_run: only say what would be merged.
    """

    needed: ClassVar = ("cmroot",)

    cmroot: str = ""
    wait: timedelta = PATIENCE
    dry_run: bool = False


@verb(CmCompactOptions)
def cm_compact(options: CmCompactOptions) -> LogCompacted | CompactionPlanned:
    """Merges small segments of the captured log. Records, positions and what each capture said stay. Safe beside
    everything; may run again.

        replicator.cm_compact(cmroot="/cm")

    Raises LeaseHeld while another run has the root for longer than `wait`, FormatError when the log is damaged."""
    root = open_existing(options.cmroot)
    return plan_log(root) if options.dry_run else compact_log(root, patience=options.wait)


@dataclass(frozen=True, kw_only=True)
class CmExpireOptions(OfPolicy):
    """Arguments:

    cmroot: the change-management root.
    older_than: the retention: what the source had within it stays.
    max_slot_lag: give up slots that have confirmed nothing for longer; None: never.
    versions: remove versions of buckets, too, that nobody needs and no object shows; no other root may need them.
    idle: refuse when the newest capture was longer ago: it has stopped, or the clock is ahead.
    wait: for the lease of another run, such as a capture.
    dry_run: only say what would go; there need not be a root yet.
    """

    needed: ClassVar = ("cmroot",)

    cmroot: str = ""
    older_than: timedelta
    max_slot_lag: timedelta | None = None
    versions: bool = False
    idle: timedelta = IDLE
    wait: timedelta = PATIENCE
    dry_run: bool = False


@verb(CmExpireOptions)
def cm_expire(options: CmExpireOptions) -> RootExpired | ExpiryPlanned:
    """Removes what nobody needs: not the source, no slot, hold or dump, and no moment of the retention. Safe beside
    captures, dumps and loads, and to run again after a crash.

        replicator.cm_expire(cmroot="/cm", older_than=timedelta(days=7), dry_run=True)

    Raises Refused when the clock cannot be believed, LeaseHeld while another run has the root for longer than `wait`,
    FormatError when the log or a pin is damaged."""
    if options.dry_run:
        return _planned(options)
    root = open_existing(options.cmroot)
    with options.runtime() as runtime:
        return expire_root(
            root,
            runtime,
            options.older_than,
            max_slot_lag=options.max_slot_lag,
            patience=options.wait,
            idle=options.idle,
            versions=options.versions,
        )


def _planned(options: CmExpireOptions) -> ExpiryPlanned:
    with options.runtime() as runtime, looked_at(options.cmroot) as (root, words):
        plan = plan_expired(
            root,
            runtime,
            options.older_than,
            max_slot_lag=options.max_slot_lag,
            idle=options.idle,
            versions=options.versions,
        )
        return replace(plan, root=str(as_written(options.cmroot)), warnings=[words] if words else [])
