"""`purge run` erases the rows of data subjects from tables, `certify` proves it; `backups`, `undo` and `retain` handle
the replaced data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Annotated, ClassVar

from cmroot.root import open_existing
from cmroot.store.place import as_written
from replicator.commands.base import verb
from replicator.commands.guard import Limited, Removing
from replicator.commands.of_policy import OfPolicy
from replicator.commands.options import (
    Catalog,
    CertificateFile,
    DryRun,
    MetastoreName,
    OverwriteFile,
    PropertiesFile,
    Root,
)
from replicator.core.option import Between, Moment, Natural, arg, opt
from replicator.core.policy import same_metastore
from replicator.core.runtime import Runtime
from replicator.errors import UsageError
from replicator.lifecycle.purge.backup_actions import BackupRestored, Retain, Retained, restore_backup
from replicator.lifecycle.purge.backups import BackupList, list_backups
from replicator.lifecycle.purge.certificate_file import (
    Certificate,
    recorded_certificate,
    refuse_existing,
    write_certificate,
)
from replicator.lifecycle.purge.certify import Replica, certify
from replicator.lifecycle.purge.options import (
    BackupRestoreSettings,
    CertifyOptions,
    PurgeOptions,
    RetainOptions,
    read_properties,
)
from replicator.lifecycle.purge.run import Purge, Purged


@dataclass(frozen=True, kw_only=True)
class ErasureOptions(Limited, OfPolicy):
    needed: ClassVar = ("metastore", "cmroot")

    zone: ClassVar[str] = "UTC"  # Spark takes times of some formats for those of its Java's zone

    metastore: MetastoreName = field(default="", kw_only=False)
    cmroot: Root = field(default="", kw_only=False)
    ids: Annotated[str | None, opt("The table of ids to erase, and its column.", metavar="DB.TABLE:COLUMN")] = field(
        default=None, kw_only=False
    )
    whitelist: Annotated[
        str | None,
        opt(
            "White list of tables: 'db.table1|table2,db2'; `*` matches any text; default: all.",
            "--table-whitelist",
            metavar="LIST",
            envvar="TABLE_WHITELIST",
        ),
    ] = None
    field_path: Annotated[
        str | None,
        opt("Path of the id column's name in a table's dataset.descriptor, e.g. privacy.column.", metavar="PATH"),
    ] = None
    properties: PropertiesFile = None

    def asked(self, attempts: int = 3, grace: timedelta = timedelta(hours=2)) -> PurgeOptions:
        """Raises UsageError when no table of ids is given."""
        given = read_properties(self.properties)
        return PurgeOptions.given(self.ids, self.whitelist, self.field_path, given, attempts, grace)


@dataclass(frozen=True, kw_only=True)
class Certifying(ErasureOptions):
    """Options of a certification."""

    replica_cmroot: Annotated[
        Sequence[str], opt("Change-management root of a replica without a policy; repeatable.", metavar="PLACE")
    ] = ()
    expedite: Annotated[
        bool, opt("First recycle the backups, and expire the remaining copies that are not needed.")
    ] = False
    grace: Annotated[
        timedelta,
        opt(
            "With --expedite: keep backups younger than this; of `purge run`, also files of the log of Delta tables, "
            "and Hudi tables with a write in flight. Set it to the duration of your longest query, or write."
        ),
    ] = timedelta(hours=2)
    allow_gaps: Annotated[
        bool, opt("Certify, and end with 0, despite gaps: white-listed tables or partitions that were not searched.")
    ] = False
    out: CertificateFile = None
    overwrite: OverwriteFile = False

    def refuse_existing(self) -> None:
        """Raises Exists for an existing file `out` without `overwrite`."""
        if self.out is not None and not self.overwrite:
            refuse_existing(self.out)

    def certified(self, asked: PurgeOptions, run: str | None, runtime: Runtime) -> Certificate:
        """Certifies a run, or the ids of `asked`, and writes the certificate to `out`."""
        root = open_existing(self.cmroot)
        with ExitStack() as stack:
            metastore = stack.enter_context(self.connected(self.metastore))
            replicas = [
                Replica.of(policy, stack.enter_context(self.connected(policy.target_metastore)))
                for policy in self.settings.policies.values()
                if same_metastore(policy.source, metastore.uri) and str(as_written(policy.cmroot)) == root.place
            ]
            roots = [str(as_written(each)) for each in self.replica_cmroot]
            how = CertifyOptions(roots, run, self.expedite, self.allow_gaps, self.grace, self.limits)
            done = certify(metastore, root, asked, how, replicas, runtime)
        if self.out is not None:
            write_certificate(done, self.out, overwrite=self.overwrite)
        return done


@dataclass(frozen=True, kw_only=True)
class PurgeRunOptions(Certifying, Removing):
    attempts: Annotated[Annotated[int, Between(1, 100)], opt("Attempts for a partition with concurrent writes.")] = 3
    certify: Annotated[
        bool,
        opt(
            "Certify the run when it has ended, as `purge certify --run` does, but in the same Spark. The options of "
            "`purge certify` apply."
        ),
    ] = False


@verb(PurgeRunOptions)
def purge_run(options: PurgeRunOptions) -> Purged:
    """Erases the rows of all ids from the white-listed tables with a descriptor. The replaced data remains as a backup,
    which `purge_undo` restores and `purge_retain` recycles. Creates the root if it does not exist. Safe to kill and to
    run again: the same request continues. A dry run only counts rows.

        replicator.purge_run("prod", "/cm", "gdpr.requests:customer", whitelist="sales", field_path="privacy.column")

    certify: the report's `certificate` is that of the run. Raises UsageError if the ids are not given, for both
    `certify` and `dry_run`, and for options of a certificate without `certify`; Exists, before it begins, for an
    existing file `out` without `overwrite`; Refused if there are no ids or no tables, or if more would be rewritten
    than the limits allow; LeaseHeld while another purge holds the lease. The report's `gaps` lists tables that were not
    purged."""
    asked = options.asked(options.attempts, options.grace)
    if options.certify:
        if options.dry_run:
            raise UsageError("certify and dry_run are both given", hint="a dry run erases nothing to certify")
        options.refuse_existing()
    elif options.expedite or options.out is not None or options.replica_cmroot:
        raise UsageError("expedite, out and replica_cmroot are of a certificate", hint="give certify, too")
    make = partial(Purge, options=asked)
    with options.working(make, options.cmroot, options.metastore, dry_run=options.dry_run) as job:
        done = job.run(dry_run=options.dry_run)
        if options.certify:
            done.certificate = options.certified(PurgeOptions(""), done.run, job.runtime)
    return done


@dataclass(frozen=True, kw_only=True)
class PurgeCertifyOptions(Certifying):
    renamed: ClassVar = {"readers": "grace"}

    run: Annotated[
        str | None,
        opt("The ids and tables of this purge, or of the `latest`, instead of --ids.", metavar="ID", envvar="RUN_"),
    ] = None


@verb(PurgeCertifyOptions)
def purge_certify(options: PurgeCertifyOptions) -> Certificate:
    """Proves that no copy of erased rows remains, or lists the copies and when each is removed: tables, backups, the
    root, directories, and the replicas of the configuration's policies. The certificate is stored in the audit. Safe to
    run twice; changes nothing else without `expedite`.

        replicator.purge_certify("prod", "/cm", run="latest", out="certificate.json").holding

    Raises UsageError for an unknown run, or if the ids are not given; Refused if there are none; Exists, before it
    begins, for an existing file `out` without `overwrite`."""
    options.refuse_existing()
    asked = options.asked() if options.run is None else PurgeOptions("")
    with options.runtime() as runtime:
        return options.certified(asked, options.run, runtime)


@dataclass(frozen=True, kw_only=True)
class PurgeCertificateOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    cmroot: Root = ""
    run: Annotated[
        str | None, opt("The certificate that covers this purge; default: the newest.", metavar="ID", envvar="RUN_")
    ] = None
    out: CertificateFile = None
    overwrite: OverwriteFile = False


@verb(PurgeCertificateOptions)
def purge_certificate(options: PurgeCertificateOptions) -> Certificate:
    """Shows a stored certificate, and writes it to a file. Searches nothing.

        replicator.purge_certificate(cmroot="/cm", out="certificate.html").status

    Raises ObjectNotFound if the audit has none, Exists for an existing file."""
    found = recorded_certificate(open_existing(options.cmroot).place, options.run)
    if options.out is not None:
        write_certificate(found, options.out, overwrite=options.overwrite)
    return found


# ---- purge backups ---------------------------------------------------------------------------------------------------
# `purge backups`, `undo` and `retain`: the data that purges replaced.


@dataclass(frozen=True, kw_only=True)
class PurgeBackupsOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    cmroot: Root = ""
    table: Annotated[str | None, opt("Only backups of this table.", metavar="DB.TABLE")] = None


@verb(PurgeBackupsOptions)
def purge_backups(options: PurgeBackupsOptions) -> BackupList:
    """Lists the backups that purges and restores have created, and their state. Reads only.

        replicator.purge_backups(cmroot="/cm", table="sales.orders").to_arrow()

    Raises UsageError if the root does not exist."""
    return list_backups(open_existing(options.cmroot).place, options.table)


@dataclass(frozen=True, kw_only=True)
class PurgeUndoOptions(OfPolicy):
    needed: ClassVar = ("metastore", "cmroot", "table")
    renamed: ClassVar = {"undo": "revert"}

    metastore: MetastoreName = field(default="", kw_only=False)
    catalog: Catalog = None
    cmroot: Root = field(default="", kw_only=False)
    table: Annotated[str, arg('The table, as "db.table".', "DB.TABLE", required=True)] = field(
        default="", kw_only=False
    )
    partition: Annotated[
        str, arg('The partition, such as "day=2026-03-01"; empty for a table without partitions.', "[PARTITION]")
    ] = field(default="", kw_only=False)
    backup: Annotated[
        Moment | None,
        opt(
            "The newest backup at or before this time (ISO 8601), or of this run's id; default: the newest.",
            metavar="TIME",
        ),
    ] = None
    revert: Annotated[bool, opt("Revert the last undo.")] = False
    dry_run: DryRun = False


@verb(PurgeUndoOptions)
def purge_undo(options: PurgeUndoOptions) -> BackupRestored:
    """Restores a backup of a partition: its files return to their places by renames; a backup of an earlier release is
    switched back by one metastore call. The erased rows are then back, too. The replaced data remains as trash. Safe to
    run twice: a restored backup is reported as such.

        replicator.purge_undo("prod", "/cm", "sales.orders", "day=2026-03-01")

    Raises ObjectNotFound if there is no backup; Refused if the partition changes concurrently; FilesMissing if bytes of
    a recycled backup are no longer available; LeaseHeld while a purge holds the lease."""
    if options.table.count(".") != 1:
        raise UsageError(f"{options.table!r} is not DB.TABLE", hint="e.g. sales.orders day=2026-03-01")
    with options.connected(options.metastore) as metastore:
        asked = BackupRestoreSettings(options.table, options.partition, options.backup, options.revert)
        return restore_backup(metastore, open_existing(options.cmroot), asked, dry_run=options.dry_run)


@dataclass(frozen=True, kw_only=True)
class PurgeRetainOptions(Removing, OfPolicy):
    needed: ClassVar = ("metastore", "cmroot")
    renamed: ClassVar = {"readers": "grace"}

    metastore: MetastoreName = field(default="", kw_only=False)
    catalog: Catalog = None
    cmroot: Root = field(default="", kw_only=False)
    properties: PropertiesFile = None
    versions: Annotated[Natural | None, opt("Number of newest backups to keep for each partition; default 1.")] = None
    days: Annotated[timedelta | None, opt("Maximum age of backups; default 7d.")] = None
    grace: Annotated[
        timedelta, opt("Keep backups younger than this; set it to the duration of your longest query.")
    ] = timedelta(hours=2)
    trash: Annotated[timedelta | None, opt("Retention of the trash of restores; default 7d.")] = None


@verb(PurgeRetainOptions)
def purge_retain(options: PurgeRetainOptions) -> Retained:
    """Recycles excess and expired backups, and the remains of failed purges. Files that a writer added to a backup
    after the swap are first linked into their table. Safe to run twice.

        replicator.purge_retain("prod", "/cm", versions=1, days=timedelta(days=7), dry_run=True)

    Raises Refused if the limits of removals are exceeded; LeaseHeld while a purge holds the lease; UsageError if the
    root does not exist. The report lists backups that were retained, and why."""
    given = read_properties(options.properties)
    asked = RetainOptions.given(options.versions, options.days, options.grace, options.trash, given)
    make = partial(Retain, options=asked)
    with options.working(make, options.cmroot, options.metastore, dry_run=options.dry_run, makes=False) as job:
        return job.run(dry_run=options.dry_run)
