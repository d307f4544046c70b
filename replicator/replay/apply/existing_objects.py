"""Existing objects of the target, compared with those of a load: locations that they occupy, and files that differ.

A metastore may create a database at another location than requested: Hive 4 moves those in its managed warehouse.
A new table must not get a location at, in or above that of another object, which would lose files to it, or show files
of it. Only objects of the same load may be nested, as they are at the source.
In a load in which equal objects remain at their locations, an object is equal to that of the bootstrap dump by names,
sizes and bytes; bytes are not read of a file that a load has stamped with the checksum, and whose time is unchanged.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cmroot.log.segment import reading
from cmroot.names import check_entries
from cmroot.store.checksum import checksum_at
from cmroot.store.listing import FileState, list_tree
from cmroot.store.place import Place, is_local, join, local_path, normal, relative, remove_if_empty
from replicator.captures.dumps.layout import BOOTSTRAP
from replicator.core.grouping import batched, shared
from replicator.core.model import Database, Name, partition_name
from replicator.errors import DatabaseMoved, ObjectExists, ObjectNotFound, Refused
from replicator.metastore.client import MetastoreReader
from replicator.replay.apply.origins import exists
from replicator.replay.apply.staging import is_stamped
from replicator.replay.apply.work import Replay, Work
from replicator.replay.neighbours import Neighbours, Occupant
from replicator.replay.plan import Plan, TablePlan
from replicator.replay.replica import SOURCE
from replicator.replay.squash import surviving_partitions

# ---- locations of new objects ----------------------------------------------------------------------------------------


def create_databases(work: Work, loading: Mapping[str, str], apart: Mapping[str, Mapping[str, str]]) -> None:
    """Creates the new databases of a plan, with the marks of its load. `apart`: more properties, by database. May run
    twice. Raises DatabaseMoved, after creating all, if one has another location than the plan uses for its tables."""
    made: list[Database] = []
    for database in work.plan.create_databases:
        parameters = {**work.with_role(database.name, database.parameters), **loading, **apart.get(database.name, {})}
        if database.location and is_local(database.location):
            os.makedirs(local_path(database.location), exist_ok=True)
        with contextlib.suppress(ObjectExists):
            work.target.create_database(msgspec.structs.replace(database, parameters=parameters))
            work.changed.count()
            made.append(database)
    moved = [each for each in made if _is_moved(work, each)]
    if moved:
        names = ", ".join(each.name for each in moved[:5])
        raise DatabaseMoved(
            f"{work.target.uri} created databases at other locations than requested: {names}",
            hint="run it again, to use their locations; or choose locations outside of that metastore's own warehouse",
        )


def _is_moved(work: Work, database: Database) -> bool:
    there = work.target.database(database.name)
    if not database.location or not there.location or normal(there.location) == normal(database.location):
        return False
    if not there.managed_location:
        remove_if_empty(database.location)
    return True


def refuse_occupied(plan: Plan, target: MetastoreReader) -> None:
    """Raises Refused for a new table at, above or below the location of a table that this source's replication did not
    create. Reads all tables of the target if such a table is possible: never for a location in the database's own
    directory at which nothing exists yet."""
    new = [(step, place) for step in plan.tables if (place := step.new_place)]
    if plan.exact or not new:
        return
    homes = [str(place) for place in plan.placement.target_locations.values()]
    whole = plan.metadata.kind == BOOTSTRAP
    neighbours = Neighbours(target)
    ours = {(table.db, table.name) for table in plan.drops} | {step.name for step in plan.tables}
    for step, place in new:
        inside = any(relative(place, home) for home in homes)
        if not (whole or not inside or exists(place)):
            continue
        for other in neighbours.touching(place):
            if (other.db, other.table) not in ours and not _made_with_it(plan, target, other):
                raise Refused(
                    f"{'.'.join(step.name)} would be stored at {place}, where {other} is stored ({other.place})",
                    hint="map the location with --map-location, give another --external-base or --warehouse, or move "
                    "the object that is stored there",
                )


def _made_with_it(plan: Plan, target: MetastoreReader, other: Occupant) -> bool:
    """Returns True if a table was created by loads of the same source: they may be nested as at the source."""
    if other.db not in plan.placement.databases.values():
        return False
    try:
        return target.table(other.db, other.table).parameters.get(SOURCE) == plan.metadata.root_id
    except ObjectNotFound:
        return True


# ---- differing objects -----------------------------------------------------------------------------------------------


HOMES = 10_000  # directories of one task, which reads the file entries of the entire dump


@dataclass(frozen=True)
class DifferingTask:
    """(location in the dump, directory of the target) pairs. `parts`: the dump's file entries. `reread`: stamped files
    are read, too."""

    parts: Sequence[str]
    homes: Sequence[tuple[str, str]]
    reread: bool


def run_differing_task(task: DifferingTask) -> list[int]:
    """Returns the indexes of a task's pairs that differ."""
    named = named_files(task.parts, {normal(source) for source, _ in task.homes}, ("size", "mtime_ns", "checksum"))
    return [
        number
        for number, (source, directory) in enumerate(task.homes)
        if _differs(named.get(normal(source), {}), directory, task.reread)
    ]


def differing_objects(replay: Replay) -> dict[Name, set[str]]:
    """Returns, of existing tables, those that differ, with their differing partitions ("": the table itself)."""
    found: dict[Name, set[str]] = {}
    parts, reread = replay.parts, replay.plan.rereads
    for homes in batched(_homes(replay), 4 * HOMES):
        engine = replay.runtime.engines.for_work(len(homes))
        shares = list(shared(homes, engine.parallelism, HOMES))
        tasks = [DifferingTask(parts, [home for _, _, home in each], reread) for each in shares]
        for each, numbers in zip(shares, engine.run(run_differing_task, tasks), strict=True):
            for number in numbers:
                found.setdefault(each[number][0], set()).add(each[number][1])
    return found


def _homes(replay: Replay) -> Iterator[tuple[Name, str, tuple[str, str]]]:
    plan = replay.plan
    steps = {
        id(step.lineage): step
        for step in plan.tables
        if step.exists and step.there and step.table and not step.table.is_view and not step.shared
    }
    for step in steps.values():
        source = step.lineage.table
        assert source is not None and step.there is not None
        if plan.is_uncaptured(step.lineage):
            continue
        if not source.has_files_by_partition and source.location and step.there.location:
            yield step.name, "", (source.location, step.there.location)
    for lineage, named in surviving_partitions(plan.squashed, replay.reader.records()):
        found = steps.get(id(lineage))
        if found is not None:
            seen = {name: each for name, each in named if not plan.is_uncaptured(lineage, name)}
            yield from _partition_homes(found, seen, replay.target)


def _partition_homes(
    step: TablePlan, named: Mapping[str, object], target: MetastoreReader
) -> Iterator[tuple[Name, str, tuple[str, str]]]:
    assert step.table is not None
    for page in target.partitions(*step.name, list(named)):
        for there in page:
            name = partition_name(step.table.partition_keys, there.values)
            source = getattr(named.get(name), "location", None)
            if source and there.location:
                yield step.name, name, (source, there.location)


def _differs(wanted: Mapping[str, tuple[int, int, str]], directory: str, reread: bool) -> bool:
    listing = list_tree(directory)
    there = {file.path_relative: file for file in listing.files} if listing else {}
    if there.keys() != wanted.keys() or any(there[path].size != wanted[path][0] for path in wanted):
        return True
    return any(_other_bytes(directory, there[path], *wanted[path][1:], reread) for path in wanted)


def _other_bytes(directory: str, file: FileState, mtime_ns: int, checksum: str, reread: bool) -> bool:
    place = join(directory, file.path_relative)
    trusted = is_local(place) and file.mtime_ns == mtime_ns and not reread
    return not (trusted and is_stamped(local_path(place), checksum)) and checksum_at(place)[0] != checksum


def named_files(
    parts: Iterable[str], locations: set[str], columns: Sequence[str] = ()
) -> dict[str, dict[str, tuple[int, int, str]]]:
    """Returns relative paths of a dump's files, with some columns of their entries, for some of its locations."""
    spellings: dict[str, str] = {}
    named: dict[str, dict[str, tuple[int, int, str]]] = {}
    for part in parts:
        with Place(part).open_read() as file, reading(part):
            for batch in pq.ParquetFile(file).iter_batches(columns=["location", "path", *columns]):
                check_entries(batch, part)
                rows = pa.Table.from_batches([batch])
                for location in pc.unique(rows["location"]).to_pylist():
                    spellings.setdefault(location, normal(location))
                mine = [spelt for spelt in pc.unique(rows["location"]).to_pylist() if spellings[spelt] in locations]
                rows = rows.filter(pc.is_in(rows["location"].cast(pa.string()), pa.array(mine, pa.string())))
                about = [rows[name].to_pylist() for name in columns]
                values = zip(*about, strict=True) if about else iter([()] * rows.num_rows)
                for location, path, value in zip(
                    rows["location"].to_pylist(), rows["path"].to_pylist(), values, strict=True
                ):
                    named.setdefault(spellings[location], {})[path] = value
    return named
