"""A run of housekeeping: capture, schedule, clean. And its rehearsal, which changes nothing.

The runs of one program share a `Housekeeping`: with `--follow` the metastore is listed once, then followed by its
events.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from cmroot.lease import acquire, patiently
from cmroot.log.captured import segments
from cmroot.root import ChangeRoot, open_existing
from cmroot.store.place import join, scratch
from replicator.captures.capture import CaptureSettings, capture
from replicator.core import runtime
from replicator.core.not_replicated import Report
from replicator.core.runtime import Stop, Terminated
from replicator.lifecycle.housekeeping import writing
from replicator.lifecycle.housekeeping.clean import Cleaning, Housekept, Page, plan
from replicator.lifecycle.housekeeping.schedule import fold_path, schedule
from replicator.lifecycle.housekeeping.settings import UNREFERENCED, LifecycleDefaults, outside_with_settings
from replicator.lifecycle.housekeeping.store import ACTIVE_ONLY, ItemStore, item, store_url
from replicator.lifecycle.removal.job import Job
from replicator.lifecycle.removal.removal import Limits, refuse_counts
from replicator.metastore.client import Metastore
from replicator.metastore.events.scope import captured_databases

JOB = "housekeeping"
REMEMBERED = 182 * 86_400
"""Seconds for which DELETED or DISABLED items are retained; the audit is retained longer."""

LOOK_OUTSIDE = 3600.0
"""Seconds between two checks of the databases that the root does not capture."""

SHOWN = 10_000
"""Items listed by a rehearsal; all others are counted."""


@dataclass(frozen=True)
class RunOptions:
    """The options of a run. databases: to capture, in addition to those captured before; everything: all databases of
    the metastore. at: the timestamp for which a rehearsal reports due items, in seconds since 1970; None: now."""

    defaults: LifecycleDefaults = field(default_factory=LifecycleDefaults)
    captures: bool = True
    databases: Sequence[str] = ()
    scan: bool = True
    everything: bool = False
    at: int | None = None


@dataclass(kw_only=True)
class Housekeeping(Job[Page, Housekept]):
    """The housekeeping job. store: of the items, which a rehearsal only reads."""

    name: ClassVar[str] = JOB
    purpose: ClassVar[str] = JOB

    metastore: Metastore
    store: ItemStore
    options: RunOptions = field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._outside: list[str] | None = None
        self._looked = 0.0

    def report(self) -> Housekept:
        return Housekept(self.root.place, self.store.url)

    @contextmanager
    def planned(self) -> Iterator[None]:
        """Schedules and counts due items. A rehearsal uses the existing captured log and a copy of the store."""
        with ExitStack() as stack:
            self._items, fold = self.store, None
            if self.rehearses:
                here = stack.enter_context(scratch("rehearsal"))
                self._items = stack.enter_context(self.store.copied(here / "items.sqlite"))
                fold = here / fold_path(self.root).name
            elif self.options.captures:
                self._capture()
            self._schedule(fold)
            self._now = int(self.runtime.clock() if self.options.at is None else self.options.at)
            due = (ACTIVE_ONLY, item.c.cleanup_timestamp <= self._now, item.c.next_try <= self._now)
            self.done.due = self._items.count(*due)
            if self.done.due:
                with self.runtime.progress.task("read locations in the metastore"):
                    self.live.refresh()
                self._refuse_excess()
            else:
                self.done.run = ""
            yield

    def pages(self) -> Iterator[Page]:
        if self.done.due:
            with self.runtime.progress.task("clean", total=self.done.due) as advance:
                for page in self._plan(sized=self.rehearses):
                    yield page
                    advance(len(page.going) + len(page.staying))

    def carry_out(self, page: Page) -> None:
        Cleaning(self.store, self.metastore, self.remover, self.done).carry_out(page)

    def finish(self) -> None:
        """Removes old items once a day, as this reads every item."""
        day = str(self._now // 86_400)
        if self.store.state("forgotten") != day:
            with self.store.transaction() as work:
                writing.forget(work, self._now - REMEMBERED)
                writing.set_state(work, "forgotten", day)

    def _capture(self) -> None:
        chosen = CaptureSettings(self.options.databases, self.options.everything, self.options.scan)
        capture(self.metastore, self.root, chosen, self.runtime)

    def _schedule(self, fold: Path | None) -> None:
        self._items.prepare(self.root)
        vars(self.done).update(
            vars(schedule(self.root, self._items, self.options.defaults, clock=self.runtime.clock, fold=fold))
        )
        captured = captured_databases(segments(self.root.place))
        if captured is None:
            return
        self.done.databases = captured
        if (
            self._outside is None or self.runtime.clock() - self._looked > LOOK_OUTSIDE
        ):  # this reads all of their tables
            self._outside, self._looked = outside_with_settings(self.metastore, captured), self.runtime.clock()
        if self._outside:
            self.done.warnings.append(
                f"{', '.join(self._outside)}: tables have housekeeping properties, but {self.root.place} does not "
                "capture them, so none of their data is scheduled: name them with --db, or use --all-databases"
            )

    def _plan(self, *, sized: bool) -> Iterator[Page]:
        return plan(self._items, self.metastore, self.remover, self.options.defaults, self._now, sized=sized)

    def _refuse_excess(self) -> None:
        """Plans everything once, if there is a limit, and keeps only the sums: of each table, and in total."""
        limits = self.limits
        if self.rehearses or not limits.of_a_whole:
            return
        count = size = 0
        partitions = Counter[tuple[str, str]]()
        for page in self._plan(sized=limits.max_bytes is not None):
            count += len(page.going)
            size += sum(each.removal.bytes for each in page.going)
            partitions.update((each.item.db, each.item.table) for each in page.going if each.drops == "partition")
        share = Limits(limits.max_share)
        for (db, table), gone in partitions.items():
            refuse_counts(gone, 0, share, self.live.partitions(db, table), f"partitions of {db}.{table}")
        left = self.store.count(ACTIVE_ONLY, (item.c.lifecycle_type == UNREFERENCED) | item.c.detached)
        looked_at = self.live.held(captured_databases(segments(self.root.place))) + left
        refuse_counts(count, size, limits, max(looked_at, count), "locations of the captured databases")

    def show(self, page: Page) -> None:
        """Adds a page of a rehearsal: the first items by name, all of them to the sums."""
        done = self.done
        rows: list[dict[str, Any]] = []
        for going in page.going:
            done.removed += 1
            done.files += going.removal.files
            done.bytes += going.removal.bytes
            done.partitions_dropped += going.drops == "partition"
            done.tables_dropped += going.drops == "table"
            rows.append(
                {
                    "action": f"drop {going.drops}, remove" if going.drops else "remove",
                    "object": going.item.name,
                    "path": going.item.path,
                    "files": going.removal.files,
                    "bytes": going.removal.bytes,
                    "reason": going.removal.reason,
                }
            )
        for staying in page.staying:
            if staying.refused:
                done.refused.append(f"{staying.item.name} at {staying.item.path}: {staying.reason}")
            done.cancelled += staying.status == "DISABLED"
            done.skipped += staying.status == "SKIPPED"
            done.waiting += not staying.status and not staying.refused
            rows.append(
                {
                    "action": {"DISABLED": "cancel", "SKIPPED": "skip"}.get(staying.status, "keep"),
                    "object": staying.item.name,
                    "path": staying.item.path,
                    "reason": staying.reason,
                }
            )
        room = max(0, SHOWN - len(done.plan))
        done.plan += rows[:room]
        done.more += len(rows) - len(rows[:room])


# ---- repetition ------------------------------------------------------------------------------------------------------
# Housekeeping repeated until stopped.


LONGEST_WAIT = timedelta(minutes=5)
"""Maximum between two tries while a service is unreachable."""


@dataclass
class Followed(Report):
    """The report of many runs. rounds: completed runs; removed: items, in total; failures: runs that failed and were
    tried again. last: the report of the last run, whose fields are in the JSON, too."""

    rounds: int = 0
    removed: int = 0
    failures: int = 0
    last: Housekept | None = None

    def to_dict(self) -> dict[str, Any]:
        counts = {"rounds": self.rounds, "removed": self.removed, "failures": self.failures, "status": "stopped"}
        return (self.last.to_dict() if self.last else {}) | counts


def follow(
    once: Callable[[], Housekept],
    interval: timedelta,
    stop: Stop,
    tell: Callable[[Housekept], None],
    tell_failure: Callable[[Exception, float], None],
) -> Followed:
    """Runs until `stop`. A run that fails, unless by its configuration, is tried again after 1 to 300 seconds, with
    which `tell_failure` is called. A run interrupted after `stop` ends the loop, too."""
    done = Followed()

    def run() -> float:
        done.last = once()
        done.rounds, done.removed = done.rounds + 1, done.removed + done.last.removed
        tell(done.last)
        return interval.total_seconds()

    def failed(error: Exception, wait: float) -> None:
        done.failures += 1
        tell_failure(error, wait)

    try:
        runtime.follow(run, failed, stop=stop, longest=lambda error: LONGEST_WAIT, dice=max)
    except (KeyboardInterrupt, Terminated):
        if not stop.is_set():
            raise
    return done


# ---- opening ---------------------------------------------------------------------------------------------------------
# The store of a root's items, opened: to read, exclusively, or as a copy for trials.


@contextmanager
def opened(root: str, url: str | None, connections: int = 0) -> Iterator[ItemStore]:
    """Opens the store at `url`, else the root's own. connections: as `Database`. Raises UsageError if the root cannot
    have one, ConfigError for a wrong URL."""
    with ItemStore(store_url(root, url), connections) as store:
        yield store


@contextmanager
def alone(cmroot: str, url: str | None) -> Iterator[ItemStore]:
    """Opens the store exclusively. Raises LeaseHeld if a run holds it for longer than a minute."""
    root = open_existing(cmroot)
    with ExitStack() as stack:
        store = stack.enter_context(opened(root.place, url))
        store.check()
        take = functools.partial(acquire, join(root.place, JOB), "change housekeeping items")
        stack.enter_context(patiently(take, timedelta(minutes=1)))
        yield store


@contextmanager
def copy_of(store: ItemStore, root: ChangeRoot) -> Iterator[ItemStore]:
    """Yields a copy of the items for trials; the store is only read."""
    with ExitStack() as stack:
        here = stack.enter_context(scratch("rehearsal"))
        copy = stack.enter_context(store.copied(here / "items.sqlite"))
        copy.prepare(root)
        yield copy
