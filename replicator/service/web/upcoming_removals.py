"""Queries about pending removals: by day and reason, and one by one, so that they can be held."""

from __future__ import annotations

import glob
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from cmroot.store.place import resolved
from replicator.core.service_config import option_of
from replicator.errors import Error
from replicator.lifecycle.housekeeping.item_queries import order_of, waiting_by_day
from replicator.lifecycle.housekeeping.run import opened
from replicator.lifecycle.housekeeping.settings import EXPIRED, EXPIRED_PERIOD, UNREFERENCED_PERIOD
from replicator.lifecycle.housekeeping.store import ACTIVE, Item, ItemStore, item
from replicator.lifecycle.removal.job import sizes_of
from replicator.lifecycle.removal.removal import ResolvedHold, read_holds
from replicator.service.runs import ServiceRun, answer_of, iso
from replicator.service.web.endpoint import Asking, normal_place, roots_of
from replicator.service.web.policy_queries import has_root

T = TypeVar("T")

MEASURED = 200
"""Items of one day and reason whose bytes are measured, in SHARE of a query's time."""

SHARE = 0.3

NOT_COUNTED = (
    f"bytes of housekeeping items if more than {MEASURED} are due on a day, or their storage responds slowly",
    "entries of $cmroot: see cmroot/expiry",
    "backups of purges: see `replicator purge retain --dry-run`",
    "drops and replacements by loads: see `replicator plan POLICY`",
)


@dataclass(frozen=True)
class Upcoming:
    """Removals pending for a day (UTC; of the past: overdue). job: housekeeping or retention; reason: why; setting: the
    property that causes it, or the service's job. items: how many; bytes: that exist now; null: not known yet. more:
    the query that lists them one by one."""

    day: str
    job: str
    reason: str
    setting: str
    root: str
    items: int
    bytes: int | None
    more: str


@dataclass(frozen=True)
class UpcomingRemovals:
    """Pending removals by day. lacking: removals that are not included."""

    removals: list[Upcoming]
    lacking: list[str]


@dataclass(frozen=True)
class UpcomingItem:
    """A pending removal. at: ISO 8601, when it is due; for retention when it was rehearsed, as the next run that is not
    a rehearsal removes it. object: "db.table", or empty; partition; dataset: of retention. reason: a sentence; setting:
    as in `Upcoming`. bytes: that exist now; null: they could not be measured in time. on: the value for `removals:hold`
    to retain it. held: the legal hold that retains it. id: of an item of housekeeping. run: the rehearsal."""

    at: str
    job: str
    object: str
    partition: str
    path: str
    dataset: str
    reason: str
    setting: str
    bytes: int | None
    on: str
    held: str
    id: int | None = None
    run: str = ""

    @property
    def name(self) -> str:
        return f"{self.object}/{self.partition}" if self.partition else self.object


@dataclass(frozen=True)
class UpcomingItems:
    """Pending removals of a root, by time."""

    root: str
    items: list[UpcomingItem]


# ---- by day -------------------------------------------------------------------------------------------------------


def upcoming(asking: Asking) -> UpcomingRemovals:
    removals: list[Upcoming] = []
    lacking: list[str] = []
    places = {each.place: each.name for each in reversed(roots_of(asking.serving.config)) if each.may(asking.who)}
    seen: set[str] = set()
    deadline = time.monotonic() + asking.seconds * SHARE
    stored = places if _may_see_items(asking) else {}
    if not _may_see_items(asking):
        lacking.append("items of housekeeping: their store is shared by all policies")
    for place, name in sorted(stored.items()):
        try:
            removals += _of_store(asking, place, name, seen, deadline)
        except Error as error:
            lacking.append(f"items of {name}: {error.message}")
    for job in _retaining(asking):
        rehearsed = _rehearsed(asking, job)
        if rehearsed is None:
            lacking.append(f"next removals of the retention job {job}: schedule a job that runs it with --dry-run")
        else:
            removals += _of_rehearsal(job, *rehearsed, places.get(_root_of(asking, job), ""))
    removals.sort(key=lambda each: (each.day, each.job, each.reason))
    return UpcomingRemovals(removals, [*lacking, *NOT_COUNTED])


def _of_store(asking: Asking, place: str, name: str, seen: set[str], deadline: float) -> Iterator[Upcoming]:
    if not has_root(place):
        return
    with opened(place, asking.serving.config.housekeeping.store) as store:
        if store.url in seen or not store.is_made():
            return
        seen.add(store.url)
        store.check()
        for day, lifecycle, delay, number in waiting_by_day(store):
            text = datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()
            asked = f"housekeeping/items?root={name}&deleted_after={text}T00:00:00Z"
            size = _size_of(store, day, lifecycle, delay, deadline) if number <= MEASURED else None
            reason = f"{lifecycle.lower()}, {delay}"
            yield Upcoming(text, "housekeeping", reason, _setting(lifecycle), name, number, size, asked)


def _size_of(store: ItemStore, day: int, lifecycle: str, delay: str, deadline: float) -> int | None:
    """Returns the bytes to be removed on a day for one reason; None: there was no time to measure them."""
    same = (
        item.c.housekeeping_status.in_(ACTIVE),
        item.c.cleanup_timestamp >= day * 86_400,
        item.c.cleanup_timestamp < (day + 1) * 86_400,
        item.c.lifecycle_type == lifecycle,
        item.c.cleanup_delay == delay,
    )
    sizes = [_bytes_of(each.path, deadline) for each in store.find(*same, limit=MEASURED)]
    return None if None in sizes else sum(each or 0 for each in sizes)


def _of_rehearsal(job: str, run: ServiceRun, items: Sequence[Any], root: str) -> Iterator[Upcoming]:
    by_reason: dict[str, list[int]] = {}
    for each in items:
        counts = by_reason.setdefault(str(each["reason"]), [0, 0])
        counts[0] += 1
        counts[1] += each["bytes"] or 0
    day, asked = (iso(run.ended) or "")[:10], f"runs/{run.id}/answer"
    for reason, (number, size) in by_reason.items():
        yield Upcoming(day, "retention", reason, f"job {job}", root, number, size or None, asked)


# ---- one by one ---------------------------------------------------------------------------------------------------


def upcoming_items(asking: Asking) -> UpcomingItems:
    """Returns pending removals from `offset` on; only the bytes of these are measured."""
    found = [*_waiting(asking), *_planned(asking)]
    found.sort(key=lambda each: (each.at, each.job, each.object, each.partition, each.path))
    page = found[asking.offset : asking.enough]
    deadline = time.monotonic() + asking.seconds * SHARE
    held = [ResolvedHold(each) for each in read_holds(asking.root.place, asking.serving.store.now())]

    def looked_at(one: UpcomingItem) -> UpcomingItem:
        size = _bytes_of(one.path, deadline) if one.bytes is None and one.path else one.bytes
        return replace(one, bytes=size, held=_holder(held, one, deadline))

    return UpcomingItems(asking.root.place, [looked_at(each) for each in page])


def _waiting(asking: Asking) -> Iterator[UpcomingItem]:
    if not _may_see_items(asking):
        return
    with opened(asking.root.place, asking.serving.config.housekeeping.store) as store:
        if not store.is_made():
            return
        store.check()
        order = order_of(["cleanupTimestamp"])
        for each in store.find(item.c.housekeeping_status.in_(ACTIVE), order=order, limit=asking.enough):
            yield _item_of(each)


def _item_of(one: Item) -> UpcomingItem:
    expires = one.lifecycle == EXPIRED
    said = "its lifetime ends" if expires else "it is no longer referenced"
    reason = f"{said}: {one.delay} after {iso(one.created)}" + (f"; {one.reason}" if one.reason else "")
    return UpcomingItem(
        at=iso(one.cleanup) or "",
        job="housekeeping",
        object=one.object,
        partition=one.partition,
        path=one.path,
        dataset="",
        reason=reason,
        setting=_setting(one.lifecycle),
        bytes=None,
        on=_pattern(one.name) if expires else one.path,
        held="",
        id=one.id,
    )


def _setting(lifecycle: str) -> str:
    return EXPIRED_PERIOD if lifecycle == EXPIRED else UNREFERENCED_PERIOD


def _planned(asking: Asking) -> Iterator[UpcomingItem]:
    for job in _retaining(asking):
        rehearsed = _rehearsed(asking, job) if _root_of(asking, job) == asking.root.place else None
        for each in rehearsed[1] if rehearsed else ():
            dataset = str(each["dataset"])
            table = dataset if dataset.count(".") == 1 and "/" not in dataset else ""
            named = f"{table}/{each['partition']}" if each["partition"] else table
            yield UpcomingItem(
                at=iso(rehearsed[0].ended) or "" if rehearsed else "",
                job="retention",
                object=table,
                partition=str(each["partition"]),
                path=str(each["path"]),
                dataset=dataset,
                reason=str(each["reason"]),
                setting=f"job {job}",
                bytes=each["bytes"],
                on=str(each["path"]) or _pattern(named),
                held="",
                run=rehearsed[0].id if rehearsed else "",
            )


def _may_see_items(asking: Asking) -> bool:
    """Returns True if the user may view items: a configured store has the items of all roots."""
    return not asking.serving.config.housekeeping.store or asking.who.may("viewer")


def _retaining(asking: Asking) -> list[str]:
    """Returns jobs that run retention; only users who may view everything see their reports."""
    jobs = asking.serving.scheduled if asking.who.may("viewer") else {}
    return sorted(name for name, job in jobs.items() if job.arguments[:2] == ("retention", "run"))


def _rehearsed(asking: Asking, job: str) -> tuple[ServiceRun, list[Any]] | None:
    """Returns the newest run, if it was a rehearsal whose report is stored here, and what it would have removed."""
    for run in asking.serving.store.runs(job_name=job, states=("done", "partial"), limit=1):
        said: Any = answer_of(asking.serving.directory(run.id))
        if said.get("status") == "planned":
            return run, [each for each in said.get("items", ()) if each["act"] != "set"]
    return None


def _root_of(asking: Asking, job: str) -> str:
    place = option_of(asking.serving.scheduled[job].arguments, "--cmroot") or asking.serving.config.defaults.cmroot
    return normal_place(place) if place else ""


def _pattern(name: str) -> str:
    """Returns a glob for this one name."""
    return glob.escape(name)


def _bytes_of(place: str, deadline: float) -> int | None:
    """Returns the size of a location; None: no time is left, or it cannot be read."""
    return _in_time(lambda: sizes_of([place])[0][1][1], deadline)


def _holder(held: Sequence[ResolvedHold], one: UpcomingItem, deadline: float) -> str:
    path = (_in_time(lambda: resolved(one.path), deadline) if held and one.path else "") or ""
    return next((each.hold.name for each in held if each.covers(one.name, path)), "")


def _in_time(look: Callable[[], T], deadline: float) -> T | None:
    if time.monotonic() > deadline:
        return None
    try:
        return look()
    except (Error, OSError):
        return None
