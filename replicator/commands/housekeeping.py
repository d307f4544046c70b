"""`housekeeping run` and `vacuum`: what tables left behind, and what is expired, goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Annotated, ClassVar, Literal

from cmroot.root import open_existing
from cmroot.store.place import as_written
from replicator.captures.events.scope import refuse_other_catalog
from replicator.commands.base import Where, names, opened_root, verb
from replicator.commands.guard import Removing
from replicator.commands.of_policy import OfPolicy
from replicator.commands.ranges import Between, Moment, Natural
from replicator.core.runtime import Stop
from replicator.core.text import parse_period
from replicator.errors import UsageError
from replicator.lifecycle.housekeeping.clean import Housekept
from replicator.lifecycle.housekeeping.item_queries import Filter, ItemPage, ItemsChanged, cancel, list_items, rearm
from replicator.lifecycle.housekeeping.run import Followed, Housekeeping, alone, copy_of, follow, opened, time_of
from replicator.lifecycle.housekeeping.run import RunOptions as Wanted
from replicator.lifecycle.housekeeping.schedule import Vacuumed, VacuumPlan
from replicator.lifecycle.housekeeping.schedule import vacuum as vacuum_table
from replicator.lifecycle.housekeeping.settings import LifecycleDefaults


@dataclass(frozen=True, kw_only=True)
class HousekeepingRunOptions(Removing, OfPolicy):
    """Arguments:

    metastore: a thrift URI, several separated by commas, or a configured name.
    catalog: the metastore's, on Hive 3 and newer; None: the server's default one.
    cmroot: its change-management root; made where there is none.
    store: where items are kept, as a URL of SQLite or PostgreSQL; None: that of [housekeeping], else in the root.
    db: a database, or several, captured from now on. all_databases: every one that the metastore has now, too.
    capture: bring the captured log up to now before. scan: look for changes that left no event.
    at: of a dry run, the moment, as an ISO 8601 time, for which it tells what is due; None: now.
    default_unreferenced, default_expired: ISO 8601 periods for tables that give none; None: those of [housekeeping].
    allow_immediate: periods of zero and below are meant.
    follow: run again and again until it is to stop. interval: between the end of a run and the next one.
    stop: the wish to end, such as a `threading.Event`; None: for as long as the process lives.
    tell: of following, called with the report of each run. tell_failure: with each failure, and with the seconds after
      which the run is tried again.
    """

    needed: ClassVar = ("metastore", "cmroot")

    metastore: Where = field(default="", kw_only=False)
    catalog: str | None = None
    cmroot: str = field(default="", kw_only=False)
    store: str | None = None
    db: str | Sequence[str] = ()
    all_databases: bool = False
    capture: bool = True
    scan: bool = True
    at: Moment | None = None
    default_unreferenced: str | None = None
    default_expired: str | None = None
    allow_immediate: bool = False
    follow: bool = False
    interval: timedelta = timedelta(minutes=5)
    stop: Stop | None = None
    tell: Callable[[Housekept], None] = lambda run: None
    tell_failure: Callable[[Exception, float], None] = lambda error, seconds: None

    @property
    def wanted(self) -> Wanted:
        """Raises UsageError for a period that is none, or leaves no time, and for a time that is none."""
        given = self.settings.housekeeping
        defaults = LifecycleDefaults.given(
            self.default_unreferenced or given.default_cleanup_delay,
            self.default_expired or given.default_expiration_delay,
            self.allow_immediate,
        )
        defaults = replace(defaults, allow_immediate=self.allow_immediate or given.allow_immediate)
        at = None if self.at is None else time_of(self.at)
        return Wanted(defaults, self.capture, names(self.db), self.scan, self.all_databases, at)


@verb(HousekeepingRunOptions)
def housekeeping_run(options: HousekeepingRunOptions) -> Housekept | Followed:
    """Captures what has changed, schedules what that left behind or gave a time to live, and removes what is due. What
    goes is recycled into the root. May run again at any time; a killed run is completed by the next. A dry run tells,
    by the captured log as it is.

        replicator.housekeeping_run("thrift://a:9083", "/cm", dry_run=True)
        replicator.housekeeping_run("prod", "/cm", db="sales", max_bytes="10TiB")

    Raises Refused when more would go than may; LeaseHeld while another run is running; UsageError for a period or time
    that is none. What was refused or failed by itself is in the report."""
    if options.dry_run and options.follow:
        raise UsageError("--dry-run and --follow do not go together", hint="run it without --follow")
    if options.at is not None and not options.dry_run:
        raise UsageError("--at is for --dry-run only", hint="a run removes what is due now")
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
    """Arguments:

    table: "db.table".
    metastore: a thrift URI, several separated by commas, or a configured name.
    catalog: the metastore's, on Hive 3 and newer; None: the server's default one.
    cmroot: its change-management root.
    store: where items are kept, as a URL; None: that of [housekeeping], else in the root.
    period: how long what is found stays, as an ISO 8601 period.
    dry_run: only tell what is there; nothing is written.
    """

    needed: ClassVar = ("metastore", "cmroot")

    table: str = field(kw_only=False)
    metastore: Where = ""
    catalog: str | None = None
    cmroot: str = ""
    store: str | None = None
    period: str = "P3D"
    dry_run: bool = False


@verb(HousekeepingVacuumOptions)
def housekeeping_vacuum(options: HousekeepingVacuumOptions) -> Vacuumed:
    """Schedules directories of a table that lie there as partitions do, and are none: left before anybody looked. Those
    that become partitions before the period is over stay. May run again: what waits already is not scheduled twice.

        replicator.housekeeping_vacuum("sales.orders", metastore="prod", cmroot="/cm", dry_run=True)

    Raises UsageError for a table without partitions; Refused where they lie at several depths; LeaseHeld while a run is
    at work for longer than a minute."""
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
    """cmroot: a change-management root.
    store: where its items are kept, as a URL; None: that of [housekeeping], else in the root.
    """

    needed: ClassVar = ("cmroot",)

    cmroot: str = ""
    store: str | None = None

    @property
    def url(self) -> str | None:
        return self.store or self.settings.housekeeping.store


@dataclass(frozen=True, kw_only=True)
class HousekeepingLsOptions(ItemsOptions):
    """Arguments:

    db, table, partition, path: only items of these; partition as "day=2026-01-01".
    status: only those in this state: "scheduled", "failed", "deleted", "disabled", "skipped", "exhausted",
      "invalid_config".
    lifecycle: "unreferenced" or "expired".
    deleted_before, deleted_after: planned to go before or after an ISO 8601 time.
    registered_before, registered_after: whose time began before or after one.
    size: items of a page. page: which page, from 0.
    sort: "cleanupTimestamp" or "cleanupTimestamp,desc", or several of these; items that are equal, by id.
    counted: count all items by their state, too, which reads all of them.
    """

    db: str | None = None
    table: str | None = None
    partition: str | None = None
    path: str | None = None
    status: str | None = None
    lifecycle: Literal["unreferenced", "expired"] | None = None
    deleted_before: Moment | None = None
    deleted_after: Moment | None = None
    registered_before: Moment | None = None
    registered_after: Moment | None = None
    size: Annotated[int, Between(1, 100_000)] = 1000
    page: Natural = 0
    sort: str | Sequence[str] = ()
    counted: bool = True

    @property
    def wanted(self) -> Filter:
        """Raises UsageError for a time that is none."""
        times = {name: getattr(self, name) for name in TIMES}
        return Filter(
            db=self.db,
            table=self.table,
            partition=self.partition,
            path=self.path,
            status=self.status,
            lifecycle=self.lifecycle,
            **{name: None if text is None else time_of(text) for name, text in times.items()},
        )


TIMES = ("deleted_before", "deleted_after", "registered_before", "registered_after")


@verb(HousekeepingLsOptions)
def housekeeping_ls(options: HousekeepingLsOptions) -> ItemPage:
    """Lists items: what is to go, when, and why; what went; what cannot. Only looks.

        replicator.housekeeping_ls(cmroot="/cm", db="sales", status="scheduled").to_arrow()

    Raises UsageError for a state, time or column that is none, and before the first run."""
    wanted, sort = options.wanted, (options.sort,) if isinstance(options.sort, str) else options.sort
    with opened(open_existing(options.cmroot).place, options.url, connections=0 if options.counted else 1) as store:
        store.check()
        with store.together():
            found, total = list_items(store, wanted, size=options.size, page=options.page, sort=sort)
            counts = store.counts() if options.counted else {}
        return ItemPage(store.url, found, total, options.page, options.size, counts)


@dataclass(frozen=True, kw_only=True)
class HousekeepingRearmOptions(ItemsOptions):
    """Arguments:

    ids: of items, as `housekeeping_ls` tells them.
    """

    ids: Sequence[int] = field(kw_only=False)


@verb(HousekeepingRearmOptions)
def housekeeping_rearm(options: HousekeepingRearmOptions) -> ItemsChanged:
    """Lets items be tried again that failed too often, were skipped or were cancelled. May run twice.

        replicator.housekeeping_rearm([17], cmroot="/cm")

    Raises ObjectNotFound or UsageError, and changes nothing, when one is not there or cannot be; LeaseHeld while a run
    is running for longer than a minute."""
    with alone(options.cmroot, options.url) as store:
        return ItemsChanged("armed", rearm(store, list(options.ids), time.time))


@dataclass(frozen=True, kw_only=True)
class HousekeepingCancelOptions(HousekeepingRearmOptions):
    """Arguments:

    reason: why; reported by `housekeeping_ls`.
    """

    reason: str = "cancelled by hand"


@verb(HousekeepingCancelOptions)
def housekeeping_cancel(options: HousekeepingCancelOptions) -> ItemsChanged:
    """Says of items that they are not to go. A later change of the table makes a new item; a legal hold would not. May
    run twice.

        replicator.housekeeping_cancel([17, 18], cmroot="/cm", reason="needed for the audit")

    Raises ObjectNotFound or UsageError, and changes nothing, when one is not there or does not wait; LeaseHeld while a
    run is running for longer than a minute."""
    with alone(options.cmroot, options.url) as store:
        return ItemsChanged("cancelled", cancel(store, list(options.ids), options.reason, time.time))
