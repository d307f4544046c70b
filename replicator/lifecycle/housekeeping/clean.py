"""Cleaning: due items are removed, a page at a time. `plan` decides about a page, `Cleaning.carry_out` acts on it.

The order, for a crash between any two of its steps:
1. retained items get their reason, and items to be removed are marked as begun;
2. partitions and tables are dropped, metadata only: from here on readers do not find their data;
3. their paths, which nothing may refer to any more at that time, are recycled into `$cmroot`;
4. the items are DELETED. The items of a killed run are still due. The next run finds the object dropped and the path
   present, and continues at 3; or finds neither, and continues at 4. So no data is left behind, and no referenced data
   is removed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from replicator.core.audit import Refusal, Removal
from replicator.core.model import Part
from replicator.core.text import count_text
from replicator.errors import MetastoreError, ObjectNotFound
from replicator.lifecycle.housekeeping import writing
from replicator.lifecycle.housekeeping.schedule import UNCAPTURED, Going, Staying, decide, look
from replicator.lifecycle.housekeeping.settings import LifecycleDefaults
from replicator.lifecycle.housekeeping.store import (
    DELETED,
    EXHAUSTED,
    FAILED,
    MAX_ATTEMPTS,
    PAGE,
    SCHEDULED,
    Item,
    ItemStore,
)
from replicator.lifecycle.removal.job import Removals, Remover, measured
from replicator.metastore.client import Metastore, MetastoreReader
from replicator.metastore.exclusive_locks import ExclusiveLocks, locked

# ---- housekept -------------------------------------------------------------------------------------------------------
# The report of a run of housekeeping.


@dataclass
class Housekept(Removals):
    """The report of a run. run: its name in the audit record; position: of the captured log, up to which everything is
    scheduled. scheduled, cancelled, detached: items from the log that are new, no longer to be removed, or whose object
    no longer exists. due: items whose time has come; removed: items removed; waiting: items that wait for another
    condition first. invalid: tables whose properties were found invalid in this run. plan: the items of a rehearsal.
    databases: those that the root captures, the only ones in the scope of housekeeping; warnings: other databases whose
    tables have properties for it."""

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
        """Returns True if nothing was refused, failed or invalid."""
        return not (self.refused or self.failed or self.invalid)


# ---- clean -----------------------------------------------------------------------------------------------------------


FIRST_RETRY, LONGEST_RETRY = 300, 86_400
"""Seconds until the next try after a failure, doubled after each."""

LATER = 3600
"""Seconds until a refused or waiting item is checked again."""


@dataclass(frozen=True)
class Page:
    """The plan for some due items."""

    going: list[Going] = field(default_factory=list)
    staying: list[Staying] = field(default_factory=list)


def plan(
    store: ItemStore,
    metastore: MetastoreReader,
    remover: Remover,
    defaults: LifecycleDefaults,
    now: int,
    *,
    sized: bool = False,
    page: int = PAGE,
) -> Iterator[Page]:
    """Yields the items that are due at `now`, page by page: partitions and paths, then tables. Each page is decided
    when it is requested. sized: count files and bytes, too. Changes nothing."""
    for tables in (False, True):
        for items in store.due(now, tables=tables, page=page):
            facts = look(metastore, items, defaults)
            verdicts = [decide(one, facts, now, remover.limits.min_depth) for one in items]
            below = store.waiting_below([each.item for each in verdicts if isinstance(each, Going)], now)
            found = Page()
            wanted: dict[Removal, list[Going]] = defaultdict(list)
            for each in verdicts:
                if isinstance(each, Staying):
                    found.staying.append(each)
                elif each.item.id in below:
                    found.staying.append(Staying(each.item, f"contains {below[each.item.id]}, which is not due yet"))
                else:
                    wanted[each.removal].append(each)
            judged = remover.look(wanted)
            for refusal in judged.refused:
                theirs = wanted[refusal.removal]
                found.staying.extend(Staying(each.item, refusal.why, refused=refusal.removal) for each in theirs)
            for removal in judged.allowed:
                found.going.extend(wanted[removal])
            yield _sized(found, remover) if sized else found


def _sized(page: Page, remover: Remover) -> Page:
    sized = measured([each.removal for each in page.going], remover.engine, remover.live)
    going = [replace(each, removal=removal) for each, removal in zip(page.going, sized, strict=True)]
    return Page(going, page.staying)


@dataclass(frozen=True)
class Cleaning:
    """The execution of plans. May run twice: see the module."""

    store: ItemStore
    metastore: Metastore
    remover: Remover
    done: Housekept

    def carry_out(self, page: Page) -> None:
        """Carries out a page. Raises errors that are not of a single item: an unreachable metastore or store, a held
        lease. Everything done until then is recorded."""
        now, event = int(self.remover.clock()), max(1, self.metastore.current_event_id()) if page.going else 0
        self.remover.audit.refused(
            [Refusal(each.refused, each.reason) for each in page.staying if each.refused and _is_new(each)]
        )
        changes = [change for each in page.staying if (change := self._stays(each, now))]
        begun = [_after(each.item, now, begun=each.item.begun or event) for each in page.going]
        self._settle([*changes, *begun])
        with locked(self.metastore, (_part(each) for each in page.going if each.drops)) as locks:
            self._remove(page.going, begun, locks, now)

    def _remove(self, going: Sequence[Going], begun: Sequence[Item], locks: ExclusiveLocks, now: int) -> None:
        """Drops and removes. begun: the items of `going`, as begun."""
        waiting = [each for each in going if each.drops and _part(each) in locks.unlocked]
        used = {each.item.id: locks.unlocked[_part(each)] for each in waiting}
        self.remover.audit.refused([Refusal(each.removal, used[each.item.id]) for each in waiting])
        failed = self._drop([each for each in going if each.item.id not in used], locks)
        wanted: dict[Removal, list[Item]] = defaultdict(list)
        for each, one in zip(going, begun, strict=True):
            if one.id in failed or one.id in used:
                continue
            wanted[each.removal.bare].append(one)
        removed = self.remover.remove(wanted)
        ended = self.metastore.current_event_id() if removed.removals else 0
        outcomes = [self._failed(one, failed[one.id], now) for one in begun if one.id in failed]
        outcomes += [self._refused(one, used[one.id], now) for one in begun if one.id in used]
        for removal in removed.removals:
            said = (
                f"{count_text(removal.files, 'file')}, {count_text(removal.bytes, 'byte')}"
                if removal.files
                else "no files were found"
            )
            gone = wanted[removal.bare]
            outcomes += [
                _after(one, now, status=DELETED, reason=said, attempts=one.attempts + 1, ended=ended) for one in gone
            ]
            self.done.removed += len(gone)
        for refusal in removed.refused:
            outcomes += [self._refused(one, refusal.why, now) for one in wanted[refusal.removal]]
        for removal, why in removed.failed:
            outcomes += [self._failed(one, why, now) for one in wanted[removal]]
        self.done.files += removed.files
        self.done.bytes += removed.bytes
        self._settle(outcomes)

    # ---- the metastore --------------------------------------------------------------------------------------------

    def _drop(self, going: Sequence[Going], locks: ExclusiveLocks) -> dict[int, str]:
        """Drops objects. Returns the items that failed, and why. An object dropped elsewhere counts as dropped."""
        failed: dict[int, str] = {}
        by_table: dict[tuple[str, str], list[Going]] = defaultdict(list)
        for each in going:
            if each.drops:
                by_table[each.item.db, each.item.table].append(each)
        self.remover.audit.intended([each.removal for each in going if each.drops])
        for (db, table), some in by_table.items():
            names = [each.item.partition for each in some if each.drops == "partition"]
            try:
                locks.check()
                self._drop_some(db, table, names, drops_table=len(names) < len(some))
            except ObjectNotFound:
                continue
            except MetastoreError as error:
                if error.transient:
                    raise
                failed |= {each.item.id: str(error) for each in some}
        return failed

    def _drop_some(self, db: str, table: str, names: list[str], *, drops_table: bool) -> None:
        audit = self.remover.audit
        if names:
            self.metastore.drop_partitions(db, table, names)
            self.done.partitions_dropped += len(names)
            audit.changed(f"{db}.{table}", "expired", what="drop partitions", detail={"partitions": names})
        if drops_table:
            self.metastore.drop_table(db, table)
            self.done.tables_dropped += 1
            audit.changed(f"{db}.{table}", "expired", what="drop table")

    # ---- the store ------------------------------------------------------------------------------------------------

    def _stays(self, each: Staying, now: int) -> Item | None:
        """Returns the item with the reason for which it is retained; None if nothing changes."""
        one = each.item
        if each.refused:
            return self._refused(one, each.reason, now, each.status)
        if each.status:
            self.done.skipped += each.status == "SKIPPED"
            self.done.cancelled += each.status == "DISABLED"
            return _after(one, now, status=each.status, reason=each.reason)
        self.done.waiting += 1
        if each.reason == UNCAPTURED:  # the next capture resolves it
            return None if one.reason == each.reason else _after(one, now, reason=each.reason)
        return _after(one, now, reason=each.reason, next_try=now + LATER)

    def _refused(self, one: Item, why: str, now: int, status: str = "") -> Item:
        """Records a refusal. No attempt is counted: a rule that forbids is not a failure, and may change."""
        self.done.refused.append(f"{one.name} at {one.path}: {why}")
        self.done.skipped += status == "SKIPPED"
        return _after(one, now, status=status or SCHEDULED, reason=why, next_try=0 if status else now + LATER)

    def _failed(self, one: Item, why: str, now: int) -> Item:
        attempts = one.attempts + 1
        self.done.failed.append(f"{one.name} at {one.path}: {why}")
        exhausted = attempts >= MAX_ATTEMPTS
        self.done.exhausted += exhausted
        wait = min(LONGEST_RETRY, FIRST_RETRY * 2 ** (attempts - 1))
        status = EXHAUSTED if exhausted else FAILED
        return _after(one, now, status=status, reason=why, attempts=attempts, next_try=now + wait)

    def _settle(self, changes: Sequence[Item]) -> None:
        if changes:
            with self.store.transaction() as work:
                writing.settle_each(work, changes)


def _part(each: Going) -> Part:
    return each.item.db, each.item.table, each.item.partition if each.drops == "partition" else ""


def _is_new(each: Staying) -> bool:
    """Returns True for a new refusal: repeated ones are recorded once."""
    return each.item.reason != each.reason


def _after(one: Item, now: int, **changes: Any) -> Item:
    """Returns the changed item; it is tried again at once unless `next_try` is set."""
    return msgspec.structs.replace(one, **({"next_try": 0, "modified": now} | changes))
