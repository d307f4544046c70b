"""Vacuum: schedules unreferenced directories of one table, left before such data was recorded, as items."""

from __future__ import annotations

import time as clocks
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cmroot.store.place import is_local, join, local_path, located, normal
from replicator.core.grouping import batched
from replicator.core.model import Table
from replicator.core.not_replicated import Report
from replicator.core.text import Period
from replicator.errors import Refused, UsageError
from replicator.lifecycle.housekeeping import writing
from replicator.lifecycle.housekeeping.items import FROM_VACUUM, Item
from replicator.lifecycle.housekeeping.settings import UNREFERENCED
from replicator.lifecycle.housekeeping.store import ACTIVE_ONLY, ItemStore, item
from replicator.lifecycle.removal.live import LiveLocations
from replicator.metastore.client import MetastoreReader


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
        raise UsageError(f"{table.db}.{table.name} has no partitions", hint="only partitioned tables are vacuumed")
    home = normal(table.location) + "/"
    depths: set[int] = set()
    for batch in metastore.all_partitions(table.db, table.name):
        places = [normal(each.location) for each in batch if each.location]
        depths |= {place[len(home) :].count("/") + 1 for place in places if place.startswith(home)}
    if len(depths) > 1:
        raise Refused(
            f"{table.db}.{table.name}: its partitions lie {' and '.join(map(str, sorted(depths)))} names deep",
            hint="move them to one depth: otherwise partitions cannot be distinguished from directories in them",
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
