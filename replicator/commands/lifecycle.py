"""`housekeeping`: removes unreferenced data and expired tables, and lists, cancels and reschedules items. And
`retention run` and `explain`: the policies of a job file or config store.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Annotated, ClassVar, Literal

from cmroot.root import open_existing
from cmroot.store.place import as_written
from replicator.commands.base import Options, names, opened_root, verb
from replicator.commands.guard import Removing
from replicator.commands.of_policy import OfPolicy
from replicator.commands.options import (
    AllDatabases,
    CapturedDatabases,
    Catalog,
    DryRun,
    ItemStoreUrl,
    MetastoreName,
    Root,
    ScanChoice,
)
from replicator.core.config import parse_settings
from replicator.core.option import Between, Natural, Time, Where, arg, opt, parse_time, python_only
from replicator.core.runtime import Stop
from replicator.core.text import parse_period
from replicator.errors import UsageError
from replicator.lifecycle.housekeeping.clean import Housekept
from replicator.lifecycle.housekeeping.item_queries import Filter, ItemPage, ItemsChanged, cancel, list_items, rearm
from replicator.lifecycle.housekeeping.run import Followed, Housekeeping, alone, copy_of, follow, opened
from replicator.lifecycle.housekeeping.run import RunOptions as Wanted
from replicator.lifecycle.housekeeping.schedule import Vacuumed, VacuumPlan
from replicator.lifecycle.housekeeping.schedule import vacuum as vacuum_table
from replicator.lifecycle.housekeeping.settings import LifecycleDefaults
from replicator.lifecycle.retention.config_store import ConfigStore
from replicator.lifecycle.retention.datasets import Explained, explain_job, explain_key
from replicator.lifecycle.retention.job_configuration import JobFile, read_job
from replicator.lifecycle.retention.plan import PlannedItem, RetentionRun
from replicator.lifecycle.retention.run import Retention
from replicator.metastore.events.scope import refuse_other_catalog

# ---- housekeeping ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class HousekeepingRunOptions(Removing, OfPolicy):
    chooses: ClassVar = "metastore"
    needed: ClassVar = ("metastore", "cmroot")

    metastore: MetastoreName = field(default="", kw_only=False)
    catalog: Catalog = None
    cmroot: Root = field(default="", kw_only=False)
    store: ItemStoreUrl = None
    db: CapturedDatabases = ()
    all_databases: AllDatabases = False
    capture: Annotated[bool, opt("Use the captured log as it is.")] = True
    scan: ScanChoice = True
    at: Annotated[Time | None, opt("With --dry-run: simulate this time; ISO 8601, default: now.", metavar="TIME")] = (
        None
    )
    default_unreferenced: Annotated[
        str | None, opt("Delay for tables without a period for unreferenced data; default P3D.", metavar="PERIOD")
    ] = None
    default_expired: Annotated[
        str | None, opt("Lifetime for tables without a period for expired data; default P30D.", metavar="PERIOD")
    ] = None
    allow_immediate: Annotated[bool, opt("Accept zero and negative periods.")] = False
    follow: Annotated[bool, opt("Run repeatedly until stopped.")] = False
    interval: Annotated[timedelta, opt("Interval between runs of --follow.")] = timedelta(minutes=5)
    stop: Annotated[
        Stop | None, python_only("Ends the run when set, such as a `threading.Event`; None: it runs to its end.")
    ] = None
    tell: Annotated[
        Callable[[Housekept], None], python_only("Called while following, with the report of each run.")
    ] = lambda run: None
    tell_failure: Annotated[
        Callable[[Exception, float], None],
        python_only("Called while following, with each failure and the seconds until the next try."),
    ] = lambda error, seconds: None

    @property
    def wanted(self) -> Wanted:
        """Raises UsageError for an invalid period or time, and for a period that is not positive."""
        given = self.settings.housekeeping
        defaults = LifecycleDefaults.given(
            self.default_unreferenced or given.default_cleanup_delay,
            self.default_expired or given.default_expiration_delay,
            self.allow_immediate,
        )
        defaults = replace(defaults, allow_immediate=self.allow_immediate or given.allow_immediate)
        at = None if self.at is None else int(parse_time(self.at, "--at"))
        return Wanted(defaults, self.capture, names(self.db), self.scan, self.all_databases, at)


@verb(HousekeepingRunOptions)
def housekeeping_run(options: HousekeepingRunOptions) -> Housekept | Followed:
    """Captures changes, schedules the directories that they left unreferenced and the tables that will expire, and
    removes due items. Removed files are moved to the root. May run again at any time; a killed run is completed by the
    next. A dry run reads the captured log as it is, and changes nothing.

        replicator.housekeeping_run("thrift://a:9083", "/cm", dry_run=True)
        replicator.housekeeping_run("prod", "/cm", db="sales", max_bytes="10TiB")

    Raises Refused if the limits of removals are exceeded; LeaseHeld while another run holds the lease; UsageError for
    an invalid period or time. The report lists single items that were refused or failed."""
    if options.dry_run and options.follow:
        raise UsageError("--dry-run and --follow exclude each other", hint="run it without --follow")
    if options.at is not None and not options.dry_run:
        raise UsageError("--at is valid only with --dry-run", hint="a run removes items that are due now")
    wanted, place = options.wanted, str(as_written(options.cmroot))
    with (
        opened(place, options.store or options.settings.housekeeping.store) as items,
        options.working(
            partial(Housekeeping, store=items, options=wanted),
            options.cmroot,
            options.metastore,
            dry_run=options.dry_run,
        ) as work,
    ):
        if options.follow:
            stop = options.stop or threading.Event()
            return follow(work.run, options.interval, stop, options.tell, options.tell_failure)
        done = work.run(dry_run=options.dry_run)
    done.root = place
    return done


@dataclass(frozen=True, kw_only=True)
class HousekeepingVacuumOptions(OfPolicy):
    needed: ClassVar = ("metastore", "cmroot")

    table: Annotated[str, arg('The table, as "db.table".', "DB.TABLE")] = field(kw_only=False)
    metastore: MetastoreName = ""
    catalog: Catalog = None
    cmroot: Root = ""
    store: ItemStoreUrl = None
    period: Annotated[str, opt("Delay before the directories are removed.", metavar="PERIOD")] = "P3D"
    dry_run: DryRun = False


@verb(HousekeepingVacuumOptions)
def housekeeping_vacuum(options: HousekeepingVacuumOptions) -> Vacuumed:
    """Schedules directories at the depth of a table's partitions that are not the location of a partition: those left
    before the captured log began. Directories that become partitions within the period are retained. May run again: no
    directory is scheduled twice.

        replicator.housekeeping_vacuum("sales.orders", metastore="prod", cmroot="/cm", dry_run=True)

    Raises UsageError for a table without partitions; Refused if these are at several depths; LeaseHeld if another run
    holds the lease for longer than a minute."""
    db, dot, name = options.table.lower().partition(".")
    if not dot:
        raise UsageError(f"{options.table!r} is not DB.TABLE", hint="e.g. sales.orders")
    try:
        period = parse_period(options.period)
    except ValueError as error:
        raise UsageError(f"--period: {error}", hint="e.g. P3D") from error
    url = options.store or options.settings.housekeeping.store
    with ExitStack() as stack:
        words: list[str] = []
        if options.dry_run:
            root, words = stack.enter_context(opened_root(options.cmroot, dry_run=True))
            items = stack.enter_context(opened(str(as_written(options.cmroot)), url))
            items = stack.enter_context(copy_of(items, root))
        else:
            items = stack.enter_context(alone(options.cmroot, url))
        client = stack.enter_context(options.connected(options.metastore))
        refuse_other_catalog(str(as_written(options.cmroot)), client)
        done = vacuum_table(client, items, db, name, period, dry_run=options.dry_run)
    if isinstance(done, VacuumPlan):
        done.warnings += words
    return done


# ---- housekeeping items ----------------------------------------------------------------------------------------------
# `housekeeping ls`, `cancel` and `rearm`: items, one by one.


@dataclass(frozen=True, kw_only=True)
class ItemsOptions(OfPolicy):
    needed: ClassVar = ("cmroot",)

    cmroot: Root = ""
    store: ItemStoreUrl = None

    @property
    def url(self) -> str | None:
        return self.store or self.settings.housekeeping.store


@dataclass(frozen=True, kw_only=True)
class HousekeepingLsOptions(ItemsOptions):
    db: Annotated[str | None, opt("Only items of this database.", metavar="NAME")] = None
    table: Annotated[str | None, opt("Only items of this table.", metavar="NAME")] = None
    partition: Annotated[str | None, opt("Only items of this partition, e.g. day=2026-01-01.", metavar="NAME")] = None
    path: Annotated[str | None, opt("Only items with this path, in any notation.", metavar="PLACE")] = None
    status: Annotated[
        str | None,
        opt(
            "Only items in this state: SCHEDULED, FAILED, DELETED, DISABLED, SKIPPED, EXHAUSTED, INVALID_CONFIG.",
            metavar="STATE",
        ),
    ] = None
    lifecycle: Annotated[
        Literal["unreferenced", "expired"] | None,
        opt("Only former locations (unreferenced), or only partitions and tables past their lifetime (expired)."),
    ] = None
    deleted_before: Annotated[
        Time | None, opt("Only items whose planned removal is before this time; ISO 8601.", metavar="TIME")
    ] = None
    deleted_after: Annotated[
        Time | None, opt("Only items whose planned removal is after this time.", metavar="TIME")
    ] = None
    registered_before: Annotated[
        Time | None, opt("Only items whose period began before this time.", metavar="TIME")
    ] = None
    registered_after: Annotated[Time | None, opt("Only items whose period began after this time.", metavar="TIME")] = (
        None
    )
    size: Annotated[Annotated[int, Between(1, 100_000)], opt("Number of items per page.")] = 1000
    page: Annotated[Natural, opt("Page number, from 0.")] = 0
    sort: Annotated[str | Sequence[str], opt("Sort by this field of the JSON; repeatable.", metavar="NAME[,desc]")] = ()
    counted: Annotated[bool, python_only("Also count all items by state, which reads all of them.")] = True

    @property
    def wanted(self) -> Filter:
        """Returns the filter. Raises UsageError for an invalid time."""
        times = {name: getattr(self, name) for name in TIMES}
        return Filter(
            db=self.db,
            table=self.table,
            partition=self.partition,
            path=self.path,
            status=self.status,
            lifecycle=self.lifecycle,
            **{name: None if text is None else int(parse_time(text, name)) for name, text in times.items()},
        )


TIMES = ("deleted_before", "deleted_after", "registered_before", "registered_after")


@verb(HousekeepingLsOptions)
def housekeeping_ls(options: HousekeepingLsOptions) -> ItemPage:
    """Lists items of housekeeping: pending, removed and failed ones, each with its time and reason. Reads only.

        replicator.housekeeping_ls(cmroot="/cm", db="sales", status="scheduled").to_arrow()

    Raises UsageError for an unknown state or column, an invalid time, and before the first run."""
    wanted, sort = options.wanted, (options.sort,) if isinstance(options.sort, str) else options.sort
    with opened(open_existing(options.cmroot).place, options.url, connections=0 if options.counted else 1) as store:
        store.check()
        with store.together():
            found, total = list_items(store, wanted, size=options.size, page=options.page, sort=sort)
            counts = store.counts() if options.counted else {}
        return ItemPage(store.url, found, total, options.page, options.size, counts)


@dataclass(frozen=True, kw_only=True)
class HousekeepingRearmOptions(ItemsOptions):
    ids: Annotated[Sequence[int], arg("Numbers of items, as `housekeeping_ls` reports them.", "ID...")] = field(
        kw_only=False
    )


@verb(HousekeepingRearmOptions)
def housekeeping_rearm(options: HousekeepingRearmOptions) -> ItemsChanged:
    """Schedules items again that failed too often, were skipped or were cancelled. May run twice.

        replicator.housekeeping_rearm([17], cmroot="/cm")

    Raises ObjectNotFound or UsageError, and changes nothing, if an item does not exist or cannot be scheduled again;
    LeaseHeld if another run holds the lease for longer than a minute."""
    with alone(options.cmroot, options.url) as store:
        return ItemsChanged("armed", rearm(store, list(options.ids), time.time))


@dataclass(frozen=True, kw_only=True)
class HousekeepingCancelOptions(HousekeepingRearmOptions):
    reason: Annotated[str, opt("Reason, shown by `ls`.")] = "cancelled by hand"


@verb(HousekeepingCancelOptions)
def housekeeping_cancel(options: HousekeepingCancelOptions) -> ItemsChanged:
    """Cancels the removal of items. A later change of the table creates a new item; a legal hold prevents that. May run
    twice.

        replicator.housekeeping_cancel([17, 18], cmroot="/cm", reason="needed for the audit")

    Raises ObjectNotFound or UsageError, and changes nothing, if an item does not exist or is not pending; LeaseHeld if
    another run holds the lease for longer than a minute."""
    with alone(options.cmroot, options.url) as store:
        return ItemsChanged("cancelled", cancel(store, list(options.ids), options.reason, time.time))


# ---- retention -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JobOptions(Options):
    job_settings: Annotated[
        Mapping[str, str] | Sequence[str],
        opt("Setting that overrides the job file; repeatable.", "--set", metavar="KEY=VALUE", envvar="SETTINGS"),
    ] = ()
    environment: Annotated[
        Mapping[str, str | None] | None,
        python_only("Variables that `${NAME}` may read; None: those of this process that [retention] allows."),
    ] = None

    @property
    def given(self) -> Mapping[str, str]:
        """Parses KEY=VALUE pairs. Raises UsageError for other text."""
        given = self.job_settings
        return given if isinstance(given, Mapping) else parse_settings(given)

    @property
    def variables(self) -> Mapping[str, str | None]:
        return self.settings.retention.allowed(os.environ) if self.environment is None else self.environment

    def read(self, place: str) -> JobFile:
        """Raises ConfigError with the file and line."""
        return read_job(place, given=self.given, environment=self.variables)


@dataclass(frozen=True, kw_only=True)
class RetentionRunOptions(Removing, JobOptions, OfPolicy):
    needed: ClassVar = ("cmroot",)

    job: Annotated[
        str,
        arg(
            "The job file (Java properties, or HOCON if it ends in .conf), or the directory of a config store.",
            "CONFIG",
        ),
    ] = field(kw_only=False)
    cmroot: Root = field(default="", kw_only=False)
    metastore: Annotated[
        Where | None,
        opt(
            "Metastore of the tables to clean, and of the tables that must not lose data: "
            "thrift://host:port, several separated by commas for failover, or a name of the "
            "configuration file.",
            metavar="METASTORE",
            required=False,
        ),
    ]
    catalog: Catalog = None
    root: Annotated[
        str | None,
        opt(
            "Prefix of the configuration's absolute paths, e.g. s3a://lake; default: writer.fs.uri, else local paths.",
            metavar="PLACE",
        ),
    ] = None
    grace: Annotated[
        timedelta,
        opt("Keep versions of Delta tables that were replaced within this time: the duration of your longest write."),
    ] = timedelta(hours=2)
    tell: Annotated[
        Callable[[PlannedItem], None] | None,
        python_only("Called in a dry run with each item, which the report then omits; None: the report has all items."),
    ] = None


@verb(RetentionRunOptions)
def retention_run(options: RetentionRunOptions) -> RetentionRun:
    """Removes the versions of datasets that their policy selects, and sets the access of the others. Files are moved to
    the root, from which `audit undo` restores them; snapshots of Iceberg, versions of Delta and instants of Hudi tables
    expire for good. Data of a table or partition is retained, unless the partition itself is dropped. May run again at
    any time; a killed run is completed by the next.

        replicator.retention_run("job.properties", "/cm", metastore="prod", dry_run=True)
        replicator.retention_run("/etc/store", "/cm", metastore="prod", max_share=0.2)

    Raises ConfigError for an invalid job; Refused if the limits of removals are exceeded; LeaseHeld while another run
    holds the lease. The report lists single items that were refused or failed."""
    job = options.read(options.job)
    dry_run = options.dry_run or job.settings.truth("gobblin.retention.simulate", default=False)
    make = partial(Retention, job_file=job, prefix=options.root, grace=options.grace, tell=options.tell)
    with options.working(make, options.cmroot, options.metastore, dry_run=dry_run) as work:
        return work.run(dry_run=dry_run)


@dataclass(frozen=True, kw_only=True)
class RetentionExplainOptions(JobOptions):
    path: Annotated[
        str,
        arg(
            'A dataset\'s path as the configuration writes it, or "hive/DB/TABLE"; without a job, a path in a store.',
            "PATH",
        ),
    ] = field(kw_only=False)
    job: Annotated[
        str | None,
        opt(
            "The job file, or a config store's directory; default: the store above PATH.",
            "--config",
            metavar="CONFIG",
            envvar="PLACE",
        ),
    ] = None


@verb(RetentionExplainOptions)
def retention_explain(options: RetentionExplainOptions) -> Explained:
    """Returns the settings of a dataset, or of any key of a store, with the file and line of each value, and the
    overridden values with theirs. Reads the configuration only.

        replicator.retention_explain("/data/events/loginEvent", job="job.properties").to_arrow()

    Raises ConfigError for an invalid configuration."""
    job = options.read(options.job) if options.job else None
    if job and not job.store:
        return explain_job(job.settings, options.path)
    variables = {**options.variables, **options.given}
    store = (job.store if job else None) or ConfigStore.open(options.path, variables=variables)
    resolved = store.resolve(store.key(options.path) if job else store.prefix)
    return explain_key(resolved, options.path, store.place, store.version)
