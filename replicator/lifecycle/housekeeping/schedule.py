"""Scheduling: the captured log, from where the store has come to its end, becomes items. Acts on the store only.

Items and position become durable in one transaction: a run that is killed schedules nothing twice, and misses nothing.
What tables were before each change is a fold of the log kept beside it, which can be lost: it is folded again.
"""

from __future__ import annotations

import contextlib
import time as clocks
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection

from cmroot.log.captured import Segment, segments
from cmroot.root import ChangeRoot
from replicator.captures.events.record import ChangeRecord, EventsRead
from replicator.captures.fold import manifest_path, opened, read_records
from replicator.captures.manifest import Manifest
from replicator.lifecycle.housekeeping import writing
from replicator.lifecycle.housekeeping.decide import Decider
from replicator.lifecycle.housekeeping.operations import (
    Again,
    Detach,
    Disable,
    Follow,
    Operation,
    Put,
    Retime,
    Revive,
    Settle,
    Switch,
    Trouble,
)
from replicator.lifecycle.housekeeping.settings import LifecycleDefaults
from replicator.lifecycle.housekeeping.store import ItemStore

BATCH = 5000
"""Records, or partitions in them, that become durable together."""


@dataclass
class Scheduled:
    """What a scheduling did: records read, items that are new, cancelled, detached; tables whose properties were found
    to be wrong now, with why; and how far it has come."""

    records: int = 0
    scheduled: int = 0
    cancelled: int = 0
    detached: int = 0
    invalid: list[str] = field(default_factory=list)
    position: int = 0


def schedule(
    root: ChangeRoot,
    store: ItemStore,
    defaults: LifecycleDefaults,
    *,
    clock: Callable[[], float] = clocks.time,
    fold: Path | None = None,
) -> Scheduled:
    """Reads the log to its end; under the run's lease. May run again at any time; a second time it finds nothing.
    fold: where the fold lies, if not where it belongs."""
    log = segments(root.place)
    done = Scheduled(position=store.position())
    with _folded(fold or fold_path(root), log, done.position) as known:
        _reconsider(store, known, defaults, int(clock()), done)
        for records in _batches(log, done.position):
            now = int(clock())
            with store.transaction() as work:
                for record in records:
                    for operation in Decider(defaults, now, known, record).operations():
                        _carry_out(work, operation, record.event, now, done)
                    _fold(known, record)
                done.position = records[-1].position
                done.records += len(records)
                writing.set_state(work, "position", str(done.position))
            known.commit()  # after the store: a fold that is behind is caught up, one that is ahead recreated
    return done


def _reconsider(store: ItemStore, known: Manifest, defaults: LifecycleDefaults, now: int, done: Scheduled) -> None:
    """Defaults that are others than in the run before hold for the tables that are known, too."""
    before = store.state("defaults")
    if before == defaults.as_text():
        return
    record = ChangeRecord(position=0, event=known.event or 0, time=now, change=EventsRead())
    decider = Decider(defaults, now, known, record)
    with store.transaction() as work:
        for operation in decider.reconsidered(LifecycleDefaults.from_text(before)) if before else ():
            _carry_out(work, operation, record.event, now, done)
        writing.set_state(work, "defaults", defaults.as_text())


def _carry_out(work: Connection, operation: Operation, event: int, now: int, done: Scheduled) -> None:
    match operation:
        case Put(items=items, period=period, restarted=restarted, dropped=dropped):
            if dropped:
                names = sorted({each.partition for each in items})
                ours = writing.removed_by_us(work, items[0].db, items[0].table, names, event)
                items = [each for each in items if (each.partition, each.place) not in ours]
            done.scheduled += writing.put(work, items, period, restarted=restarted)
        case Detach(db=db, table=table, partitions=partitions):
            done.detached += writing.detach(work, db, table, partitions, now)
        case Disable(db=db, table=table, lifecycle=lifecycle, reason=reason):
            done.cancelled += writing.disable(work, db, table, lifecycle, reason, now)
        case Revive(db=db, table=table, period=period, begins=begins):
            done.scheduled += writing.revive(work, db, table, period, begins, event, now)
        case Retime(db=db, table=table, lifecycle=lifecycle, period=period):
            writing.retime(work, db, table, lifecycle, period, now)
        case Switch(db=db, table=table, drops=drops):
            writing.switch_table(work, db, table, drops, now)
        case Follow(before=before, after=after, moved=moved):
            writing.follow(work, before, after, moved, now)
        case Again(paths=paths, by=by):
            reason = f"event {event}: {by} refers to it again"
            done.cancelled += writing.referenced_again(work, paths, reason, now)
        case Trouble(item=item):
            if writing.trouble(work, item):
                done.invalid.append(f"{item.object}: {item.reason}")
        case Settle(db=db, table=table, lifecycle=lifecycle):
            writing.settle(work, db, table, lifecycle, now)


# ---- the fold -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _folded(path: Path, log: list[Segment], position: int) -> Iterator[Manifest]:
    """The state at a position: metadata only, no files."""
    with opened(path) as known:
        ahead = known.position > position
    if ahead:  # of a store that was lost, or restored
        for leftover in path.parent.glob(f"{path.name}*"):
            leftover.unlink()
    with opened(path) as known:
        for records in _batches(log, known.position, position):
            for record in records:
                _fold(known, record)
            known.commit()
        yield known


def fold_path(root: ChangeRoot) -> Path:
    beside = manifest_path(root)
    return beside.with_name(beside.name.removesuffix(".sqlite") + "-housekeeping.sqlite")


def _fold(known: Manifest, record: ChangeRecord) -> None:
    known.apply(record)
    known.advance(record.position, record.event, record.time)


def _batches(log: Iterable[Segment], after: int, until: int | None = None) -> Iterator[list[ChangeRecord]]:
    """Records with after < position <= until."""
    batch: list[ChangeRecord] = []
    weight = 0
    for segment in log:
        if segment.last <= after or (until is not None and segment.first > until):
            continue
        for record in read_records(segment, after, until):
            batch.append(record)
            weight += record.change.size
            if weight >= BATCH:
                yield batch
                batch, weight = [], 0
    if batch:
        yield batch
