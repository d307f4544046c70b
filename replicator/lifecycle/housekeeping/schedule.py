"""Scheduling: turns the captured log, from the store's position to its end, into items; and unreferenced directories
of one table, left before such data was recorded (vacuum). Acts on the store only.

Items and position become durable in one transaction: a killed run schedules nothing twice, and misses nothing. The
state of tables before each change is a fold of the log in an additional file, which is rebuilt if lost.
"""

from __future__ import annotations

import contextlib
import time as clocks
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection

from cmroot.log.captured import Segment, segments
from cmroot.root import ChangeRoot
from cmroot.store.place import is_local, join, local_path, located, normal
from replicator.captures.manifest import Manifest, manifest_path, opened, read_records
from replicator.core.audit import Removal
from replicator.core.grouping import batched
from replicator.core.model import Partition, Table, partition_name
from replicator.core.named_files import ON_NODES
from replicator.core.not_replicated import Report
from replicator.core.text import Period
from replicator.errors import ObjectNotFound, Refused, UsageError
from replicator.lifecycle.housekeeping import writing
from replicator.lifecycle.housekeeping.decide import (
    Again,
    Decider,
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
from replicator.lifecycle.housekeeping.settings import (
    EXPIRED,
    UNREFERENCED,
    LifecycleDefaults,
    LifecycleSettings,
    read_settings,
)
from replicator.lifecycle.housekeeping.store import (
    ACTIVE_ONLY,
    DISABLED,
    FROM_VACUUM,
    SKIPPED,
    Item,
    ItemStore,
    iso,
    item,
)
from replicator.lifecycle.housekeeping.writing import NOT_ASKED, TABLES_STAY
from replicator.lifecycle.removal.live import LiveLocations
from replicator.lifecycle.removal.removal import depth
from replicator.metastore.client import MetastoreReader
from replicator.metastore.events.record import ChangeRecord, EventsRead

BATCH = 5000
"""Records, or partitions in them, in one transaction."""


@dataclass
class Scheduled:
    """The report of scheduling: records read, items that are new, cancelled, detached; tables whose properties were
    found invalid, with the reason; and the new position."""

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
    """Schedules the log to its end, under the run's lease. May run again at any time; a second run finds nothing. fold:
    the path of the fold, if not the default."""
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
    """Applies defaults that differ from the previous run to known tables."""
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
    """Yields the state at a position: metadata only, no files."""
    with opened(path) as known:
        ahead = known.position > position
    if ahead:  # its store was lost, or restored
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
    """Yields records with after < position <= until."""
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


# ---- due -------------------------------------------------------------------------------------------------------------
# Decisions about due items, from the current state of the metastore.
#
# `look` queries it, in batches; `decide` is pure. The guard checks afterwards that the paths may be removed.


UNCAPTURED = "metastore and captured log disagree: capture first"


@dataclass(frozen=True)
class ObjectFacts:
    """The state of some items' objects in the metastore. Objects that are not listed do not exist. settings: by table;
    filled: partitioned tables that have partitions."""

    tables: Mapping[tuple[str, str], Table] = field(default_factory=dict)
    settings: Mapping[tuple[str, str], LifecycleSettings] = field(default_factory=dict)
    partitions: Mapping[tuple[str, str, str], Partition] = field(default_factory=dict)
    filled: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class Going:
    """An item to be removed: its object first (`drops`: "partition" or "table", or ""), then its path."""

    item: Item
    removal: Removal
    drops: str = ""


@dataclass(frozen=True)
class Staying:
    """An item that is not removed now. status: its new state, or empty if it waits; refused: the removal that a rule
    forbids."""

    item: Item
    reason: str
    status: str = ""
    refused: Removal | None = None


def look(metastore: MetastoreReader, items: Sequence[Item], defaults: LifecycleDefaults) -> ObjectFacts:
    """Queries the metastore in a few calls for a page of items. Raises its errors: no answer is not absence."""
    asked: dict[str, set[str]] = defaultdict(set)
    for one in items:
        if not one.detached:
            asked[one.db].add(one.table)
    tables: dict[tuple[str, str], Table] = {}
    for db, names in asked.items():
        try:
            tables |= {(db, table.name): table for table in metastore.tables(db, sorted(names))}
        except ObjectNotFound:
            continue
    wanted: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in items:
        if one.lifecycle == EXPIRED and one.partition and not one.detached and (one.db, one.table) in tables:
            wanted[one.db, one.table].append(one.partition)
    partitions: dict[tuple[str, str, str], Partition] = {}
    for key, parts in wanted.items():
        try:
            for batch in metastore.partitions(*key, parts):
                for each in batch:
                    partitions[*key, partition_name(tables[key].partition_keys, each.values)] = each
        except ObjectNotFound:
            tables.pop(key)
    settings = {key: read_settings(table, defaults) for key, table in tables.items()}
    return ObjectFacts(tables, settings, partitions, _filled(metastore, items, tables))


def _filled(
    metastore: MetastoreReader, items: Iterable[Item], tables: Mapping[tuple[str, str], Table]
) -> frozenset[tuple[str, str]]:
    found = set()
    for one in items:
        table = tables.get((one.db, one.table))
        if one.lifecycle == EXPIRED and not one.partition and not one.detached and table and table.is_partitioned:
            try:
                if metastore.partition_names(one.db, one.table):
                    found.add((one.db, one.table))
            except ObjectNotFound:
                continue
    return frozenset(found)


def decide(one: Item, facts: ObjectFacts, now: int, min_depth: int) -> Going | Staying:
    """Decides about an item that is due in the store."""
    if depth(one.place) < min_depth:
        why = f"{one.path} has depth {depth(one.place)}, and no path above depth {min_depth} is removed"
        return Staying(one, why, SKIPPED, _removal(one, "path"))
    if one.detached:
        return Going(one, _removal(one, "path"))
    table = facts.tables.get((one.db, one.table))
    if table is None:
        return Staying(one, UNCAPTURED)
    settings = facts.settings[one.db, one.table]
    if one.lifecycle in settings.problems:
        return Staying(one, settings.problems[one.lifecycle])
    period = settings.period(one.lifecycle)
    if period is None:
        return Going(one, _removal(one, "path")) if one.begun and _gone(one, facts) else _cancelled(one)
    if period.end(one.created) > now:
        return Staying(one, UNCAPTURED)
    if one.lifecycle != EXPIRED:
        return Going(one, _removal(one, "path"))
    return _expired_partition(one, facts) if one.partition else _expired_table(one, table, facts, settings.drops_table)


def _expired_partition(one: Item, facts: ObjectFacts) -> Going | Staying:
    live = facts.partitions.get((one.db, one.table, one.partition))
    if live is None:
        return Going(one, _removal(one, "path")) if one.begun else Staying(one, UNCAPTURED)
    if not live.location or normal(live.location) != one.place or live.create_time > one.created:
        return Staying(one, UNCAPTURED)
    return Going(one, _removal(one, "partition", drops=True), "partition")


def _expired_table(one: Item, table: Table, facts: ObjectFacts, drops_table: bool) -> Going | Staying:
    if not table.location or normal(table.location) != one.place:
        return Staying(one, UNCAPTURED)
    if not drops_table:
        return Staying(one, TABLES_STAY, SKIPPED)
    if (one.db, one.table) in facts.filled:
        return Staying(one, "it has partitions")
    return Going(one, _removal(one, "table", drops=True), "table")


def _gone(one: Item, facts: ObjectFacts) -> bool:
    return bool(one.partition) and (one.db, one.table, one.partition) not in facts.partitions


def _cancelled(one: Item) -> Staying:
    return Staying(one, NOT_ASKED, DISABLED)


def _removal(one: Item, what: str, *, drops: bool = False) -> Removal:
    if one.lifecycle == EXPIRED:
        reason = f"expired: created {iso(one.created)}, lifetime {one.delay}, ended {iso(one.cleanup)}"
        if one.detached:
            reason += "; its object does not exist"
    else:
        reason = f"unreferenced since {iso(one.created)} (event {one.event}), kept {one.delay} until {iso(one.cleanup)}"
    return Removal(path=one.path, what=what, object=one.object, partition=one.partition, reason=reason, drops=drops)


# ---- vacuum ----------------------------------------------------------------------------------------------------------


@dataclass
class Vacuumed(Report):
    """The report of a vacuum. directories: at the depth of the table's partitions; referred: those that are referenced;
    waiting: those that are items already; paths: the others, which are items now."""

    table: str
    directories: int = 0
    referred: int = 0
    waiting: int = 0
    scheduled: int = 0
    paths: list[str] = field(default_factory=list)
    status: str = "scheduled"


@dataclass
class VacuumPlan(Vacuumed):
    """The plan of a vacuum, with the paths to schedule."""

    status: str = "planned"
    warnings: list[str] = field(default_factory=list)


def vacuum(
    metastore: MetastoreReader, store: ItemStore, db: str, name: str, period: Period, *, dry_run: bool = False
) -> Vacuumed:
    """Schedules directories at the depth of a table's partitions that are not partitions for removal after `period`,
    under the lease. May run again. No process may be about to add partitions for them; those added before an item is
    due are retained. Raises UsageError for a table without partitions, Refused for partitions at several depths."""
    table = metastore.table(db, name)
    done = (VacuumPlan if dry_run else Vacuumed)(f"{db}.{name}")
    depth = _depth(metastore, table)
    now = int(clocks.time())
    with LiveLocations(metastore) as live:
        if live.on_nodes(db, table.location or ""):
            raise Refused(f"{table.db}.{table.name}: {ON_NODES}", hint="vacuum it where its directories are")
        for places in batched(_directories(table.location or "", depth), writing.CHUNK):
            done.directories += len(places)
            unused = [place for place in places if live.blocking(place) is None]
            done.referred += len(places) - len(unused)
            known = {one.place for one in store.find(ACTIVE_ONLY, item.c.place.in_(unused))}
            done.waiting += len(known)
            fresh = [_item(db, name, place, period, now) for place in unused if place not in known]
            done.paths += [one.path for one in fresh]
            if fresh and not dry_run:
                with store.transaction() as work:
                    done.scheduled += writing.put(work, fresh, period)
    return done


def _item(db: str, name: str, place: str, period: Period, now: int) -> Item:
    """Returns a detached item: it does not require the table's properties."""
    return Item(
        lifecycle=UNREFERENCED,
        db=db,
        table=name,
        path=place,
        place=place,
        created=now,
        modified=now,
        cleanup=period.end(now),
        delay=period.text,
        detached=True,
        client=FROM_VACUUM,
    )


def _depth(metastore: MetastoreReader, table: Table) -> int:
    """Returns how many levels below the table's directory its partitions are; those elsewhere do not count."""
    if not table.is_partitioned or not table.location:
        raise UsageError(f"{table.db}.{table.name} has no partitions", hint="only partitioned tables can be vacuumed")
    home = normal(table.location) + "/"
    depths: set[int] = set()
    for batch in metastore.all_partitions(table.db, table.name):
        places = [normal(each.location) for each in batch if each.location]
        depths |= {place[len(home) :].count("/") + 1 for place in places if place.startswith(home)}
    if len(depths) > 1:
        raise Refused(
            f"{table.db}.{table.name}: its partitions have depths {' and '.join(map(str, sorted(depths)))}",
            hint="move them to the same depth: otherwise partitions cannot be distinguished from directories in them",
        )
    return depths.pop() if depths else len(table.partition_keys)


def _directories(location: str, depth: int) -> Iterator[str]:
    """Yields directories at this depth below a location, without hidden ones and links, as normalised paths."""
    home = normal(location)
    if is_local(home):
        yield from (str(path) for path in _local([Path(local_path(home))], depth))
        return
    last = ""
    for name in located(home).find():  # sorted
        names = name.split("/")[:depth]
        if len(names) == depth and name.count("/") >= depth and not any(each[0] in "._" for each in names):
            place = join(home, *names)
            if place != last:
                yield place
            last = place


def _local(above: Sequence[Path], depth: int) -> Iterator[Path]:
    for directory in above:
        if depth == 0:
            yield directory
            continue
        below = sorted(each for each in directory.iterdir() if each.name[0] not in "._")
        yield from _local([each for each in below if each.is_dir() and not each.is_symlink()], depth - 1)
