"""`purge backups`, `restore` and `retain`: what was before a purge."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import ClassVar

from cmroot.root import open_existing
from replicator.commands.base import Where, verb
from replicator.commands.of_policy import OfPolicy
from replicator.commands.ranges import Moment, Natural
from replicator.commands.removing import Removing
from replicator.errors import UsageError
from replicator.lifecycle.purge.backups.backups import BackupList, list_backups
from replicator.lifecycle.purge.backups.restore import BackupRestored, restore_backup
from replicator.lifecycle.purge.backups.retain import Retain, Retained
from replicator.lifecycle.purge.options import BackupRestoreSettings, RetainOptions, read_properties


@dataclass(frozen=True, kw_only=True)
class PurgeBackupsOptions(OfPolicy):
    """Arguments:

    cmroot: a change-management root.
    table: only the backups of this table, "db.table"; None: all.
    """

    needed: ClassVar = ("cmroot",)

    cmroot: str = ""
    table: str | None = None


@verb(PurgeBackupsOptions)
def purge_backups(options: PurgeBackupsOptions) -> BackupList:
    """Lists the backups that purges and restores have made, and what became of them. Only looks.

        replicator.purge_backups(cmroot="/cm", table="sales.orders").to_arrow()

    Raises UsageError where there is no root."""
    return list_backups(open_existing(options.cmroot).place, options.table)


@dataclass(frozen=True, kw_only=True)
class PurgeUndoOptions(OfPolicy):
    """Arguments:

    metastore: a thrift URI, several separated by commas, or a configured name.
    catalog: the metastore's, on Hive 3 and newer; None: the server's default one.
    cmroot: its change-management root.
    table: "db.table". partition: such as "day=2026-03-01"; empty for a table without partitions.
    backup: the newest swapped out at or before this ISO 8601 time, or a run's id; None: the newest.
    revert: put back what the last undo replaced.
    dry_run: only tell what would be done.
    """

    needed: ClassVar = ("metastore", "cmroot", "table")
    renamed: ClassVar = {"undo": "revert"}

    metastore: Where = field(default="", kw_only=False)
    catalog: str | None = None
    cmroot: str = field(default="", kw_only=False)
    table: str = field(default="", kw_only=False)
    partition: str = field(default="", kw_only=False)
    backup: Moment | None = None
    revert: bool = False
    dry_run: bool = False


@verb(PurgeUndoOptions)
def purge_undo(options: PurgeUndoOptions) -> BackupRestored:
    """Puts a backup of a partition back: one metastore call, no copy while its directory is there. Rows that were
    erased are back then, too. What is replaced stays as trash. Safe to run twice: the second time it is there already.

        replicator.purge_undo("prod", "/cm", "sales.orders", "day=2026-03-01")

    Raises ObjectNotFound when there is no backup; Refused when the partition changes meanwhile; FilesMissing when bytes
    of a recycled backup are nowhere any more; LeaseHeld while a purge is at work."""
    if options.table.count(".") != 1:
        raise UsageError(f"{options.table!r} is no db.table", hint="e.g. sales.orders day=2026-03-01")
    with options.connected(options.metastore) as metastore:
        asked = BackupRestoreSettings(options.table, options.partition, options.backup, options.revert)
        return restore_backup(metastore, open_existing(options.cmroot), asked, dry_run=options.dry_run)


@dataclass(frozen=True, kw_only=True)
class PurgeRetainOptions(Removing, OfPolicy):
    """Arguments:

    metastore: a thrift URI, several separated by commas, or a configured name.
    catalog: the metastore's, on Hive 3 and newer; None: the server's default one.
    cmroot: its change-management root.
    properties: a file of a Gobblin compliance job, for what is not given.
    versions: of each partition the newest so many stay; None: 1. days: none stays longer; None: seven days.
    grace: none younger is touched: the duration of the longest query.
    trash: what restores replaced stays so long; None: seven days.
    """

    needed: ClassVar = ("metastore", "cmroot")
    renamed: ClassVar = {"readers": "grace"}

    metastore: Where = field(default="", kw_only=False)
    catalog: str | None = None
    cmroot: str = field(default="", kw_only=False)
    properties: str | os.PathLike[str] | None = None
    versions: Natural | None = None
    days: timedelta | None = None
    grace: timedelta = timedelta(hours=2)
    trash: timedelta | None = None


@verb(PurgeRetainOptions)
def purge_retain(options: PurgeRetainOptions) -> Retained:
    """Recycles backups that are too many or too old, and removes what failed purges left. Rows that a writer put into
    a backup after the swap are brought to their table first. Safe to run twice.

        replicator.purge_retain("prod", "/cm", versions=1, days=timedelta(days=7), dry_run=True)

    Raises Refused when more would go than may; LeaseHeld while a purge is at work; UsageError where there is no root.
    What had to stay is in the report."""
    given = read_properties(options.properties)
    asked = RetainOptions.given(options.versions, options.days, options.grace, options.trash, given)
    make = partial(Retain, options=asked)
    with options.working(make, options.cmroot, options.metastore, dry_run=options.dry_run, makes=False) as job:
        return job.run(dry_run=options.dry_run)
