"""`housekeeping run` and `vacuum`: what tables left behind, and what is expired, goes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import ClassVar

from cmroot.store.place import as_written
from replicator.captures.events.scope import refuse_other_catalog
from replicator.commands.base import Where, names, opened_root, verb
from replicator.commands.of_policy import OfPolicy
from replicator.commands.ranges import Moment
from replicator.commands.removing import Removing
from replicator.core.runtime import Stop
from replicator.core.text.quantity import parse_period
from replicator.errors import UsageError
from replicator.lifecycle.housekeeping.clean import Housekept
from replicator.lifecycle.housekeeping.run import Followed, Housekeeping, alone, copy_of, follow, opened, time_of
from replicator.lifecycle.housekeeping.run import RunOptions as Wanted
from replicator.lifecycle.housekeeping.settings import LifecycleDefaults
from replicator.lifecycle.housekeeping.vacuum import Vacuumed, VacuumPlan
from replicator.lifecycle.housekeeping.vacuum import vacuum as vacuum_table


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

    Raises Refused when more would go than may; LeaseHeld while another run is at work; UsageError for a period or time
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
