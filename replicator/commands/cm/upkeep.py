"""`cm check`, `cm compact` and `cm expire`: what an operator runs from time to time, beside everything else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import ClassVar

from cmroot.root import looked_at, open_existing
from cmroot.store.place import as_written
from replicator.commands.base import verb
from replicator.commands.of_policy import OfPolicy
from replicator.commands.ranges import Rows
from replicator.replay.restore.kept import LIMIT
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
