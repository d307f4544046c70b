"""`housekeeping ls`, `cancel` and `rearm`: items, one by one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from cmroot.root import open_existing
from replicator.commands.base import verb
from replicator.commands.of_policy import OfPolicy
from replicator.commands.ranges import Between, Moment, Natural
from replicator.lifecycle.housekeeping.item_queries import Filter, ItemPage, ItemsChanged, cancel, list_items, rearm
from replicator.lifecycle.housekeeping.run import alone, opened, time_of


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
    is at work for longer than a minute."""
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
    run is at work for longer than a minute."""
    with alone(options.cmroot, options.url) as store:
        return ItemsChanged("cancelled", cancel(store, list(options.ids), options.reason, time.time))
