"""Detection of changes to landing tables by other writers: compares the metastore and the store with what was
published. Changes nothing.

Not every metastore has an event for a write, and events have no user. So the state is compared, and where it differs,
evidence of the writer is collected: owners of files, the metastore's `last_modified_by`, events since the publication.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from cmroot.store.place import Place, is_local, join, located, name_of
from replicator.core.engine import AutoEngine
from replicator.core.model import Partition, Table, partition_name
from replicator.errors import ObjectNotFound
from replicator.ingestion.landing.file_steps import DAY_KEY
from replicator.ingestion.landing.landing_schema import ASSET, SEAL, SINCE, marked, seal_of, written_sizes
from replicator.lifecycle.housekeeping.settings import REMOVE_EXPIRED
from replicator.lifecycle.purge.swapping import PURGED, WRITTEN
from replicator.lifecycle.purge.table_files import SIBLING
from replicator.metastore.client import Metastore

FEW = 5
"""Maximum numbers of names, users and events reported for each table."""

EVENTS = 20_000
"""Maximum number of events after a publication that are searched for those of its table."""


JobsOf = Callable[[str, int], Iterable[tuple[int, float, Mapping[str, Any]]]]
"""(DATABASE.TABLE, a job) -> the published jobs of the table, from that one on, oldest first: each with the time of its
end or begin, and its facts."""


Purges = Callable[[str], Mapping[str, tuple[int, int]]]
"""DATABASE.TABLE -> by name of a partition or "", files and bytes after its last purge, as the purge has recorded."""


class PublishedTable(msgspec.Struct, frozen=True):
    """The state of a landing table after its newest published job. target: of the job, DATABASE.TABLE. at: publication
    time, in seconds since 1970. location: of an appended table, only of its newest partitions. columns: names and
    types. files, bytes: stored there; -1: unknown. sealed: True if its properties were sealed."""

    db: str
    name: str
    asset: str
    job: int
    target: str
    at: float
    event: int
    appended: bool
    location: str
    columns: tuple[tuple[str, str], ...]
    files: int = -1
    bytes: int = -1
    sealed: bool = False


class ForeignWrite(msgspec.Struct, frozen=True):
    """what: differences from what was published, each a sentence. by: users, as far as known; may be empty. events: of
    the metastore since the publication, "ID KIND". facts: the same differences in words that stay from release to
    release, so that they identify the write."""

    table: str
    asset: str
    job: int
    what: tuple[str, ...]
    by: tuple[str, ...]
    events: tuple[str, ...]
    facts: tuple[str, ...] = ()


class Difference(NamedTuple):
    """A difference from what was published. text: a sentence. fact: the same as values, which no release rewords."""

    text: str
    fact: str


class PlaceTask(msgspec.Struct, frozen=True):
    """A directory written by one publication. files, bytes: that were written; -1: unknown."""

    about: str
    location: str
    files: int
    bytes: int
    at: float


@dataclass(frozen=True)
class _Look:
    """The state of a table. of: the table. what: differences found in the metastore alone. places: directories whose
    content is to be compared."""

    of: PublishedTable
    what: list[Difference]
    by: list[str]
    places: list[PlaceTask]


def published_of(job: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[PublishedTable]:
    """Yields the tables of a published job: its own, and those into which its rows were flattened. job: id, asset,
    target, mode, event_id and the time of its end or begin."""
    db, _, name = str(job["target"]).partition(".")
    for table, found in {
        name: facts,
        **{f"{name}__{part}": each for part, each in facts.get("parts", {}).items()},
    }.items():
        yield PublishedTable(
            db=db,
            name=table.lower(),
            asset=job["asset"],
            job=job["id"],
            target=job["target"],
            at=float(job["ended"] or job["begun"] or 0),
            event=int(job["event_id"] or 0),
            appended=job["mode"] == "append",
            location=str(found.get("location") or ""),
            columns=tuple((column, kind) for column, kind in found.get("columns", ())),
            files=int(found.get("files", -1)),
            bytes=int(found.get("bytes", -1)),
            sealed=bool(found.get("sealed")),
        )


def partitions_of(table: PublishedTable, jobs: Iterable[tuple[int, float, Mapping[str, Any]]]) -> dict[str, PlaceTask]:
    """Returns the partitions that these published jobs created in a landing table, by value, as of the newest job of
    each. The content of a day's directory is recorded in its properties only."""
    part, found = table.name.removeprefix(table.target.partition(".")[2]).removeprefix("__"), dict[str, PlaceTask]()
    about = f"{table.db}.{table.name}"
    for job, at, facts in jobs:
        own = facts.get("parts", {}).get(part, {}) if part else facts
        location = own.get("location")
        if location and "days" in own:
            for day in own["days"]:
                found[day] = PlaceTask(about, join(location, f"{DAY_KEY.name}={day}"), -1, -1, at)
        elif location:
            found[str(job)] = PlaceTask(about, location, int(own.get("files", -1)), int(own.get("bytes", -1)), at)
    return found


def foreign_writes(
    metastore: Metastore,
    engines: AutoEngine,
    tables: Iterable[PublishedTable],
    jobs: JobsOf,
    purges: Purges | None = None,
) -> Iterator[ForeignWrite]:
    """Yields the tables that other writers have changed. tables: grouped by database. jobs: see `JobsOf`. purges: None
    if their records are not known; then the property of a table, which any writer can set, tells that it was purged."""
    some: list[PublishedTable] = []
    for each in tables:
        if some and (each.db != some[0].db or len(some) >= 500):
            yield from _of_database(metastore, engines, some, jobs, purges)
            some = []
        some.append(each)
    if some:
        yield from _of_database(metastore, engines, some, jobs, purges)


def _of_database(
    metastore: Metastore, engines: AutoEngine, tables: Sequence[PublishedTable], jobs: JobsOf, purges: Purges | None
) -> Iterator[ForeignWrite]:
    try:
        there = {table.name: table for table in metastore.tables(tables[0].db, [each.name for each in tables])}
    except ObjectNotFound:  # the entire database
        there = {}
    looks = [_look(metastore, each, there.get(each.name), jobs, purges) for each in tables]
    tasks = [task for look in looks for task in look.places]
    engine = engines.for_work(len(tasks), 0)
    found: dict[str, list[tuple[Difference, tuple[str, ...]]]] = {}
    for table, told, owners in engine.run(compare_place, tasks):
        if told is not None:
            found.setdefault(table, []).append((told, owners))
    for look in looks:
        differs = found.get(f"{look.of.db}.{look.of.name}", [])
        what = [*look.what, *(told for told, _ in differs)]
        if what:
            by = [*look.by, *(owner for _, owners in differs for owner in owners)]
            yield ForeignWrite(
                table=f"{look.of.db}.{look.of.name}",
                asset=look.of.asset,
                job=look.of.job,
                what=tuple(each.text for each in what[:FEW]),
                by=tuple(sorted(set(by))[:FEW]),
                events=_events(metastore, look.of),
                facts=tuple(each.fact for each in what[:FEW]),
            )


def _look(metastore: Metastore, of: PublishedTable, table: Table | None, jobs: JobsOf, purges: Purges | None) -> _Look:
    if table is None or table.storage is None:
        return _Look(of, [Difference("the table no longer exists", "gone")], [], [])
    what: list[Difference] = []
    if (asset := table.parameters.get(ASSET)) != of.asset:
        what.append(Difference(f"it is no longer a landing table of {of.asset}", f"asset {asset}"))
    columns = tuple((column.name, column.type) for column in table.storage.columns)
    if of.columns and columns != of.columns:
        before, now = dict(of.columns), dict(columns)
        names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        fact = f"columns {', '.join(map(' '.join, columns))}"
        what.append(Difference(f"its columns changed: {', '.join(names[:FEW]) or 'their order'}", fact))
    given = table.parameters
    is_sealed = of.sealed or SEAL in given or SINCE in given or WRITTEN in given  # else of an earlier release
    if is_sealed and given.get(SEAL) != seal_of(given):
        what.append(Difference("properties that identify it to purge and housekeeping changed", "properties"))
    modified = [user] if (user := table.parameters.get("last_modified_by")) else []
    about = f"{of.db}.{of.name}"
    if table.is_partitioned:
        parts = [part for some in metastore.all_partitions(of.db, of.name) for part in some]
        strange = [part for part in parts if marked(part.parameters) == (0, 0)]
        added = ["/".join(part.values) for part in strange[:FEW]]
        what += [Difference(f"partition {each} was added", f"added {each}") for each in added]
        wanted = partitions_of(of, jobs(of.target, _number(given.get(SINCE), of.job)))
        if given.get(REMOVE_EXPIRED, "").lower() != "true":  # else housekeeping removes them
            gone = sorted(wanted.keys() - {part.values[0] for part in parts})
            what += [Difference(f"partition {each} no longer exists", f"gone {each}") for each in gone[:FEW]]
        places = list[PlaceTask]()
        for part in parts:
            if part in strange:
                continue
            name = partition_name(table.partition_keys, part.values)
            published = wanted.get(part.values[0], PlaceTask(about, "", -1, -1, of.at))
            told, task = _place(part, published, SINCE in given, _recorded(purges, about, name))
            if told is None:
                places.append(task)
            else:
                of_part = part.values[0]
                what.append(Difference(f"partition {of_part}: {told.text}", f"{told.fact} of {of_part}"))
        return _Look(of, what[: 2 * FEW], modified if what else [], places)
    published = PlaceTask(about, of.location, of.files, of.bytes, of.at)
    told, task = _place(table, published, False, _recorded(purges, about, ""))
    if told is not None:
        return _Look(of, [*what, told], modified, [])
    if (job := marked(table.parameters)[0]) != of.job:
        text = f"its properties name job {job}, but job {of.job} published it last"
        what.append(Difference(text, f"job {job}"))
    return _Look(of, what, modified if what else [], [task])


def _is_published(location: str, published: str) -> bool:
    """Returns True if a location is the published one, or one to which a purge of an earlier release has moved it."""
    there = Place(location)
    return there == Place(published) or (
        name_of(there.parent.text).startswith(SIBLING) and there.parent.parent == Place(published).parent
    )


Recorded = Callable[[], tuple[int, int] | None]
"""Returns the files and bytes that the last purge of a location has recorded; None if there was none."""


def _recorded(purges: Purges | None, table: str, partition: str) -> Recorded | None:
    return None if purges is None else lambda: purges(table).get(partition)


def _place(
    of: Table | Partition, published: PlaceTask, says: bool, recorded: Recorded | None
) -> tuple[Difference | None, PlaceTask]:
    """Returns how a location differs from the published one, if it does, and its expected content: as in the store,
    which a writer cannot change; after a purge, as the purge has recorded; otherwise as in the properties. says: True
    if these are required."""
    location = of.location or ""
    if published.location and not _is_published(location, published.location):
        text = f"its rows are located in {location}, not in {published.location}"
        return Difference(text, f"location {location}"), published
    moved = name_of(Place(location or "/").parent.text).startswith(SIBLING)
    purged = moved or of.parameters.get(WRITTEN, "").endswith(PURGED)
    sizes = written_sizes(of.parameters, moved)
    if purged and not moved and recorded is not None:  # read after the properties
        sizes = recorded()
        purged = sizes is not None
        if not purged and published.files < 0:
            return Difference("its properties name a purge, of which there is no record", "unrecorded purge"), published
    if not purged and published.files >= 0:
        sizes = published.files, published.bytes
    if sizes is None and says and not purged:
        return Difference("its properties no longer describe the publication", "undescribed"), published
    files, size = sizes or (-1, -1)
    return None, msgspec.structs.replace(published, location=location, files=files, bytes=size)


def _number(text: str | None, otherwise: int) -> int:
    """Parses a property, which any user may have written."""
    return int(text) if text and re.fullmatch(r"\d{1,18}", text, re.ASCII) else otherwise


def compare_place(task: PlaceTask) -> tuple[str, Difference | None, tuple[str, ...]]:
    """Returns (table, how its directory differs, if it does, owners of files that are newer than the publication)."""
    place = located(task.location) if task.location else None
    if place is None or not place.exists():
        return task.about, Difference(f"{task.location} no longer exists", f"gone {task.location}"), ()
    files, size, newer = 0, 0, list[str]()
    waiting = [(task.location, child) for child in place.children()]
    while waiting:
        above, child = waiting.pop()
        name = name_of(child.path)
        if name.startswith(("_", ".")):
            continue
        if child.is_directory:
            below = join(above, name)
            waiting += [(below, each) for each in located(below).children()]
            continue
        files, size = files + 1, size + child.size
        if child.mtime is not None and child.mtime > task.at:
            newer.append(join(above, name))
    if task.files < 0 or (files, size) == (task.files, task.bytes):
        return task.about, None, ()
    fact = " ".join([f"{files} files of {size} bytes in {task.location}", *sorted(map(name_of, newer))[:FEW]])
    told = f"{task.location} has {files:,} files of {size:,} bytes, but {task.files:,} of {task.bytes:,} were published"
    if newer:
        told += f"; newer: {', '.join(map(name_of, newer[:FEW]))}"
    return task.about, Difference(told, fact), tuple(sorted({owner for each in newer[:FEW] if (owner := _owner(each))}))


def _owner(file: str) -> str:
    """Returns the owner of a local file; "" for other stores, where it is not available."""
    if not is_local(file):
        return ""
    try:
        return pwd.getpwuid(os.stat(Place(file).local).st_uid).pw_name
    except (KeyError, OSError):
        return ""


def _events(metastore: Metastore, of: PublishedTable) -> tuple[str, ...]:
    """Returns the first events of the table after its publication."""
    found, after, seen = list[str](), of.event, 0
    while seen < EVENTS and len(found) < FEW:
        some = metastore.next_events(after)
        if not some:
            break
        mine = (each for each in some if (each.db or "").lower() == of.db and (each.table or "").lower() == of.name)
        found += [f"{each.id} {each.type}" for each in mine]
        after, seen = max(each.id for each in some), seen + len(some)
    return tuple(found[:FEW])
