"""A run of housekeeping: capture, schedule, clean. And its rehearsal, which changes nothing.

`Housekeeping` is what the runs of one program share: with `--follow` the metastore is walked once, then followed by its
events.
"""

from __future__ import annotations

import contextlib
import time as clocks
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from cmroot.lease import acquire
from cmroot.log.captured import segments
from cmroot.root import ChangeRoot
from cmroot.store.place import join
from cmroot.store.scratch import scratch
from replicator.captures.capture import capture
from replicator.core.engine import AutoEngine
from replicator.core.progress import Progress
from replicator.events.scope import captured_databases
from replicator.housekeeping import writing
from replicator.housekeeping.clean import Cleaned, Cleaning, Page, plan
from replicator.housekeeping.schedule import Scheduled, fold_path, schedule
from replicator.housekeeping.schema import ACTIVE_ONLY, item
from replicator.housekeeping.settings import UNREFERENCED, Defaults, outside_with_settings
from replicator.housekeeping.store import Store
from replicator.metastore.client import Metastore
from replicator.removal.audit import begin_audit
from replicator.removal.live import LiveLocations
from replicator.removal.removal import Limits, refuse_counts
from replicator.removal.remove import Remover
from replicator.removal.report import Removals

JOB = "housekeeping"
REMEMBERED = 182 * 86_400
"""Seconds for which items that are DELETED or DISABLED stay; the audit stays longer."""

LOOK_OUTSIDE = 3600.0
"""Seconds between two looks at the databases that the root does not capture."""

SHOWN = 10_000
"""Items that a rehearsal names; the rest it counts."""


@dataclass(frozen=True)
class Options:
    """What a run may do, and how. databases: captured from now on, beside those captured before; everything: all that
    the metastore has."""

    defaults: Defaults = field(default_factory=Defaults)
    limits: Limits = field(default_factory=Limits)
    captures: bool = True
    databases: Sequence[str] = ()
    scan: bool = True
    everything: bool = False


@dataclass
class Housekept(Removals):
    """What a run did. run: its name in the audit record; position: of the captured log, up to which all is scheduled.
    scheduled, cancelled, detached: items that the log brought about, that are not to go any more, whose object is gone.
    due: items whose time had come; removed: those that went; waiting: those that wait for something else first.
    invalid: tables whose properties were found to be wrong in this run. plan: of a rehearsal, the items. databases:
    those that the root captures, the only ones that housekeeping knows of; warnings: databases outside whose tables
    have properties for it."""

    root: str
    store: str
    run: str = ""
    position: int = 0
    records: int = 0
    scheduled: int = 0
    cancelled: int = 0
    detached: int = 0
    due: int = 0
    removed: int = 0
    partitions_dropped: int = 0
    tables_dropped: int = 0
    files: int = 0
    bytes: int = 0
    skipped: int = 0
    waiting: int = 0
    exhausted: int = 0
    invalid: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    plan: list[dict[str, Any]] = field(default_factory=list)
    more: int = 0
    databases: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    status: str = "done"

    @property
    def is_whole(self) -> bool:
        """Nothing was refused, failed, or could not be understood."""
        return not (self.refused or self.failed or self.invalid)

    def add_scheduled(self, done: Scheduled) -> None:
        self.position, self.records = done.position, done.records
        self.scheduled, self.cancelled, self.detached = done.scheduled, done.cancelled, done.detached
        self.invalid = done.invalid

    def add_cleaned(self, done: Cleaned) -> None:
        for name in (
            "removed",
            "partitions_dropped",
            "tables_dropped",
            "files",
            "bytes",
            "cancelled",
            "skipped",
            "waiting",
            "exhausted",
            "refused",
            "failed",
        ):
            setattr(self, name, getattr(self, name) + getattr(done, name))


class Housekeeping:
    """Runs on one root. As a `with` block."""

    def __init__(
        self,
        metastore: Metastore,
        root: ChangeRoot,
        store: Store,
        options: Options,
        *,
        engine: AutoEngine,
        progress: Progress,
        clock: Callable[[], float] = clocks.time,
    ) -> None:
        self._metastore, self._root, self._store, self._options = metastore, root, store, options
        self._engine, self._progress, self._clock = engine, progress, clock
        self._live: LiveLocations | None = None
        self._outside: list[str] | None = None
        self._looked = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forget_live()

    def _forget_live(self) -> None:
        if self._live is not None:
            self._live.close()
            self._live = None

    def run(self) -> Housekept:
        """One run. Raises LeaseHeld while another one is at work, Refused when more would go than may. Safe to kill."""
        try:
            return self._run()
        except BaseException:
            self._forget_live()  # the metastore may have gone away while it was read
            raise

    def _run(self) -> Housekept:
        began = clocks.monotonic()
        done = Housekept(self._root.place, self._store.url)
        with acquire(join(self._root.place, JOB), "housekeeping") as lease:
            if self._options.captures:
                self._capture()
            self._store.prepare(self._root)
            done.add_scheduled(schedule(self._root, self._store, self._options.defaults, clock=self._clock))
            self._tell_scope(done)
            now = int(self._clock())
            done.due = self._due(self._store, now)
            if done.due:
                remover = replace(self._remover(), check=lease.check)
                done.run = remover.audit.run
                self._refuse_excess(remover, now)
                cleaning = Cleaning(self._store, self._metastore, remover, self._clock)
                with self._progress.task("clean", total=done.due) as advance:
                    for page in self._plan(self._store, remover, now):
                        lease.check()
                        cleaning.carry_out(page)
                        advance(len(page.going) + len(page.staying))
                done.add_cleaned(cleaning.done)
            self._forget(now)
        done.seconds = round(clocks.monotonic() - began, 3)
        if not done.is_whole:
            done.status = "incomplete"
        return done

    def rehearse(self, at: float | None = None) -> Housekept:
        """What a run would do now, or at another moment, as far as the captured log tells: nothing is captured, and
        nothing is written. Scheduling happens in a copy of the store."""
        began = clocks.monotonic()
        with contextlib.ExitStack() as stack:
            here = stack.enter_context(scratch("rehearsal"))
            with self._store.copied(here / "items.sqlite") as copy:
                done = Housekept(self._root.place, self._store.url, status="planned")
                copy.prepare(self._root)
                fold = here / fold_path(self._root).name
                done.add_scheduled(schedule(self._root, copy, self._options.defaults, clock=self._clock, fold=fold))
                self._tell_scope(done)
                now = int(self._clock() if at is None else at)
                done.due = self._due(copy, now)
                if done.due:
                    remover = self._remover()
                    for page in self._plan(copy, remover, now, sized=True):
                        _show(page, done)
        done.seconds = round(clocks.monotonic() - began, 3)
        return done

    def _forget(self, now: int) -> None:
        """Once a day: it reads every item."""
        day = str(now // 86_400)
        if self._store.state("forgotten") != day:
            with self._store.transaction() as work:
                writing.forget(work, now - REMEMBERED)
                writing.set_state(work, "forgotten", day)

    def _capture(self) -> None:
        capture(
            self._metastore,
            self._root,
            databases=self._options.databases,
            everything=self._options.everything,
            scan=self._options.scan,
            engine=self._engine,
            progress=self._progress,
            clock=self._clock,
        )

    def _tell_scope(self, done: Housekept) -> None:
        """Looks at the databases outside once an hour: all of their tables are read for it."""
        captured = captured_databases(segments(self._root.place))
        if captured is None:
            return
        done.databases = captured
        if self._outside is None or self._clock() - self._looked > LOOK_OUTSIDE:
            self._outside, self._looked = outside_with_settings(self._metastore, captured), self._clock()
        if self._outside:
            done.warnings.append(
                f"{', '.join(self._outside)}: tables have properties for housekeeping, but {self._root.place} does not "
                "capture them, so nothing of theirs is scheduled: name them with --db, or use --all-databases"
            )

    def _due(self, store: Store, now: int) -> int:
        return store.count(ACTIVE_ONLY, item.c.cleanup_timestamp <= now, item.c.next_try <= now)

    def _plan(self, store: Store, remover: Remover, now: int, *, sized: bool = False) -> Iterator[Page]:
        return plan(store, self._metastore, remover, self._options.defaults, now, sized=sized)

    def _remover(self) -> Remover:
        if self._live is None:
            with self._progress.task("read what the metastore refers to"):
                self._live = LiveLocations(self._metastore)
        audit = begin_audit(self._root.place, JOB, clock=self._clock)
        return Remover(self._root.place, audit, self._live, self._options.limits, self._engine, self._clock)

    def _refuse_excess(self, remover: Remover, now: int) -> None:
        """Plans all of it once, where there is a limit, and keeps the sums only: of each table, and of all."""
        limits = self._options.limits
        if limits.max_share is None and limits.max_bytes is None:
            return
        count = size = 0
        partitions = Counter[tuple[str, str]]()
        for page in self._plan(self._store, remover, now, sized=limits.max_bytes is not None):
            count += len(page.going)
            size += sum(each.removal.bytes for each in page.going)
            partitions.update((each.item.db, each.item.table) for each in page.going if each.drops == "partition")
        share = Limits(limits.max_share)
        for (db, table), gone in partitions.items():
            refuse_counts(gone, 0, share, remover.live.partitions(db, table), f"partitions of {db}.{table}")
        left = self._store.count(ACTIVE_ONLY, (item.c.lifecycle_type == UNREFERENCED) | item.c.detached)
        looked_at = remover.live.held(captured_databases(segments(self._root.place))) + left
        refuse_counts(count, size, limits, max(looked_at, count), "places of the databases that are captured")


def _show(page: Page, done: Housekept) -> None:
    """A page of a rehearsal: the first ones by name, all of them as sums."""
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
