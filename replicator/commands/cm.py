"""`cm`: the commands of a change-management root: `ls`, `find` and `get` for its files; `slots`, `hold` and `release`
for what consumers require; `check`, `compact` and `expire` for its upkeep."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Annotated, ClassVar

from cmroot.root import looked_at, open_existing
from cmroot.store.place import as_written
from replicator.commands.base import point, verb
from replicator.commands.of_policy import OfPolicy
from replicator.commands.options import DryRun, LeaseWait, LogPosition, OverwriteFile, Root, RowLimit
from replicator.core.config import Config
from replicator.core.option import Moment, arg, opt
from replicator.core.service_config import option_of
from replicator.core.text import parse_duration
from replicator.replay.restore import kept
from replicator.replay.restore.kept import LIMIT, KeptList, PinList, Pinned, Retention, list_kept
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
    needed: ClassVar = ("cmroot",)

    cmroot: Root = ""
    table: Annotated[str, opt("Only files whose last table is this one.", metavar="DB.TABLE")] = ""
    needed_by: Annotated[
        str,
        opt(
            "Only files kept for this reason: live, slot NAME, hold NAME, dump ID, retention (the configured expiry "
            "keeps them for their age) or nothing (an expiry deletes them); a prefix is enough.",
            metavar="WHO",
        ),
    ] = ""
    limit: RowLimit = LIMIT


@verb(CmLsOptions)
def cm_ls(options: CmLsOptions) -> KeptList:
    """Lists the retained files: keeper, origin, first event, reason and end of retention. Changes nothing.

        replicator.cm_ls(cmroot="/cm", needed_by="slot").to_arrow()

    Raises Superseded if the log was compacted during the call, FormatError if it is damaged or the root does not
    exist."""
    root = open_existing(options.cmroot)
    with options.engines() as engine:
        expiry = configured_expiry(options.settings, root.place)
        return list_kept(
            root, engine, table=options.table, need=options.needed_by, limit=options.limit, retention=expiry
        )


def configured_expiry(config: Config, root: str) -> Retention | None:
    """Returns the shortest retention of the jobs of a configuration that expire a root; None: no job does."""
    found = []
    for name, job in config.service.jobs.items():
        if job.command[:2] != ("cm", "expire") or "--dry-run" in job.command:
            continue
        policy = config.policies.get(next(iter(job.command[2:]), ""))
        place = option_of(job.command, "--cmroot") or (policy.cmroot if policy else config.defaults.cmroot)
        if place and str(as_written(place)) == root:
            with suppress(ValueError):  # an invalid one fails when the job runs
                found.append(Retention(name, parse_duration(option_of(job.command, "--older-than"))))
    return min(found, key=lambda each: each.period, default=None)


@dataclass(frozen=True, kw_only=True)
class CmFindOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    cmroot: Root = ""
    path: Annotated[str, opt("A file, or a directory above it, by its path at that time.", metavar="PLACE")] = ""
    table: Annotated[
        str, opt("A table by its name at that time, or one partition.", metavar="DB.TABLE[/PARTITION]")
    ] = ""
    checksum: Annotated[
        str, opt("The first digits of a checksum, or the complete name of an entry.", metavar="HEX")
    ] = ""
    limit: RowLimit = LIMIT


@verb(CmFindOptions)
def cm_find(options: CmFindOptions) -> FoundList:
    """Finds files in the captured log: the range of events in which the source had each, and whether it is retained. A
    file must match all arguments that are given. Changes nothing.

        replicator.cm_find(cmroot="/cm", table="sales.orders/day=1").entries

    Raises UsageError without path, table and checksum; FormatError if the log is damaged."""
    root = open_existing(options.cmroot)
    return find_files(root, path=options.path, table=options.table, checksum=options.checksum, limit=options.limit)


@dataclass(frozen=True, kw_only=True)
class CmGetOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    what: Annotated[
        str, arg("The path of a file, or its checksum: at least the first six digits.", "PATH_OR_CHECKSUM")
    ] = field(kw_only=False)
    cmroot: Root = ""
    at: Annotated[
        Moment | int | None,
        opt("The file's state at an event, @POSITION, a time (UTC), or the end of a dump.", metavar="X"),
    ] = None
    to: Annotated[str | None, opt("The file to write; default: its original path.", metavar="PLACE")] = None
    overwrite: OverwriteFile = False


@verb(CmGetOptions)
def cm_get(options: CmGetOptions) -> PutBack:
    """Restores one retained file. The copy is compared before it gets its name. May run again.

        replicator.cm_get("/warehouse/sales.db/orders/part-0", cmroot="/cm", at=4711)

    Raises UsageError if several contents match, KeepError if none matches or its bytes are not retained, Exists for an
    existing file, ChecksumMismatch if the retained file is damaged."""
    root = open_existing(options.cmroot)
    return put_back(root, options.what, options.to, at=point(options.at), overwrite=options.overwrite)


# ---- pins ------------------------------------------------------------------------------------------------------------
# `cm slots`, `cm hold` and `cm release`: which consumer requires which contents, and for how long.


@dataclass(frozen=True, kw_only=True)
class CmSlotsOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    cmroot: Root = ""
    held: Annotated[bool, opt("Omit retained sizes, whose computation reads the entire log.")] = True


@verb(CmSlotsOptions)
def cm_slots(options: CmSlotsOptions) -> PinList:
    """Lists slots, holds and dumps, with the lag of each and the contents that it retains. Changes nothing.

        replicator.cm_slots(cmroot="/cm").to_arrow()

    Raises FormatError if the log is damaged or the root does not exist; damaged pins are listed."""
    root = open_existing(options.cmroot)
    with options.engines() as engine:
        return kept.list_pins(root, engine if options.held else None)


@dataclass(frozen=True, kw_only=True)
class CmSlotsCreateOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    name: Annotated[str, arg("The slot's name.")] = field(kw_only=False)
    cmroot: Root = ""
    at: LogPosition = None
    consumer: Annotated[str, opt("Description of the consumer.", metavar="TEXT")] = ""


@verb(CmSlotsCreateOptions)
def cm_slots_create(options: CmSlotsCreateOptions) -> Pinned:
    """Registers a consumer: contents that the source had after a recovery point do not expire until the consumer has
    confirmed them.

        replicator.cm_slots_create("dr", cmroot="/cm", consumer="the copy in the other data centre")

    Raises PinError when there is one of this name, so a second run does nothing; UsageError for a moment that was not
    captured."""
    root = open_existing(options.cmroot)
    return kept.create_slot(root, options.name, point(options.at), consumer=options.consumer)


@dataclass(frozen=True, kw_only=True)
class CmSlotsConfirmOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    name: Annotated[str, arg("The slot's name.")] = field(kw_only=False)
    cmroot: Root = ""
    at: Annotated[
        Moment | int,
        opt(
            "An event id, @POSITION, a time (UTC), or a finished dump: the consumer has everything up to there.",
            metavar="X",
        ),
    ]
    back: Annotated[bool, opt("Allow a move to an earlier position, whose files may have expired.")] = False


@verb(CmSlotsConfirmOptions)
def cm_slots_confirm(options: CmSlotsConfirmOptions) -> Pinned:
    """Confirms the position that a consumer has reached. A load of a dump with a slot does this by itself. May run
    again.

        replicator.cm_slots_confirm("dr", cmroot="/cm", at="/dumps/7")

    Raises PinError for an unknown slot, and for an earlier position without `back`; UsageError for a recovery point
    that was not captured."""
    root = open_existing(options.cmroot)
    return kept.confirm_slot(root, options.name, str(options.at), back=options.back)


@dataclass(frozen=True, kw_only=True)
class CmSlotsDropOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    name: Annotated[str, arg("The slot's name.")] = field(kw_only=False)
    cmroot: Root = ""


@verb(CmSlotsDropOptions)
def cm_slots_drop(options: CmSlotsDropOptions) -> Pinned:
    """Removes a consumer's slot: the next expiry deletes contents that only this slot requires.

        replicator.cm_slots_drop("dr", cmroot="/cm")

    Raises PinError if the slot does not exist, as in a second run."""
    return kept.drop_slot(open_existing(options.cmroot), options.name)


@dataclass(frozen=True, kw_only=True)
class CmHoldOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    name: Annotated[str, arg("The hold's name.")] = field(kw_only=False)
    cmroot: Root = ""
    at: LogPosition = None
    reason: Annotated[str, opt("Reason of the hold.", metavar="TEXT")] = ""


@verb(CmHoldOptions)
def cm_hold(options: CmHoldOptions) -> Pinned:
    """Holds a recovery point: contents that the source had then do not expire until the hold is released. Contents that
    expired before remain deleted.

        replicator.cm_hold("before-migration", cmroot="/cm", reason="ticket 4711")

    Raises PinError when there is one of this name, so a second run does nothing; UsageError for a moment that was not
    captured."""
    root = open_existing(options.cmroot)
    return kept.hold(root, options.name, point(options.at), reason=options.reason)


@dataclass(frozen=True, kw_only=True)
class CmReleaseOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    name: Annotated[str, arg("The hold's name.")] = field(kw_only=False)
    cmroot: Root = ""
    dump: Annotated[bool, opt("NAME is the id of a dump that will no longer be loaded.")] = False


@verb(CmReleaseOptions)
def cm_release(options: CmReleaseOptions) -> Pinned:
    """Releases a hold: the next expiry deletes contents that only this hold requires.

        replicator.cm_release("before-migration", cmroot="/cm")

    Raises PinError if the hold does not exist, as in a second run."""
    return kept.release(open_existing(options.cmroot), options.name, dump=options.dump)


# ---- upkeep ----------------------------------------------------------------------------------------------------------
# `cm check`, `cm compact` and `cm expire`: regular maintenance, safe to run concurrently with all other commands.


@dataclass(frozen=True, kw_only=True)
class CmCheckOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    cmroot: Root = ""
    bytes: Annotated[bool, opt("Compare names and sizes only; do not read the kept files.")] = True
    limit: RowLimit = LIMIT


@verb(CmCheckOptions)
def cm_check(options: CmCheckOptions) -> RootChecked:
    """Compares every retained file with its name, and the log with the retained files; names the repair of each
    finding. Changes nothing.

        replicator.cm_check(cmroot="/cm").status

    Raises Superseded if the log was compacted during the call, FormatError if the root does not exist; damage is a
    finding."""
    root = open_existing(options.cmroot)
    with options.engines() as engine:
        return check_root(root, engine, bytes=options.bytes, limit=options.limit)


@dataclass(frozen=True, kw_only=True)
class CmCompactOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    cmroot: Root = ""
    wait: LeaseWait = PATIENCE
    dry_run: DryRun = False


@verb(CmCompactOptions)
def cm_compact(options: CmCompactOptions) -> LogCompacted | CompactionPlanned:
    """Merges small segments of the captured log. Records, positions and the data of each capture are preserved. Safe to
    run concurrently with all commands; may run again.

        replicator.cm_compact(cmroot="/cm")

    Raises LeaseHeld if another run holds the root's lease for longer than `wait`, FormatError if the log is damaged."""
    root = open_existing(options.cmroot)
    return plan_log(root) if options.dry_run else compact_log(root, patience=options.wait)


@dataclass(frozen=True, kw_only=True)
class CmExpireOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    cmroot: Root = ""
    older_than: Annotated[
        timedelta,
        opt("The retention window, such as 7d: files that the source had within it are kept.", metavar="DURATION"),
    ]
    max_slot_lag: Annotated[
        timedelta | None,
        opt("Invalidate slots that were not confirmed for longer than this; default: never.", metavar="DURATION"),
    ] = None
    versions: Annotated[
        bool, opt("Also delete unneeded versions in buckets (keeper version); no other root may need them.")
    ] = False
    idle: Annotated[
        timedelta,
        opt(
            "Refuse if the newest capture is older than this: captures have stopped, or the clock is ahead.",
            metavar="DURATION",
        ),
    ] = IDLE
    wait: LeaseWait = PATIENCE
    dry_run: DryRun = False


@verb(CmExpireOptions)
def cm_expire(options: CmExpireOptions) -> RootExpired | ExpiryPlanned:
    """Deletes retained files that are not required by the source, a slot, a hold, a dump or the retention window. Safe
    to run concurrently with captures, dumps and loads, and again after a crash.

        replicator.cm_expire(cmroot="/cm", older_than=timedelta(days=7), dry_run=True)

    Raises Refused if the clock is implausible, LeaseHeld if another run holds the root's lease for longer than `wait`,
    FormatError if the log or a pin is damaged."""
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
