"""Differences: the objects of the target whose files are not those of a bootstrap dump, for a load in which equal
objects remain at their locations. Reads only.

An equal object is recognised by its listing, names and sizes, and by the bytes; bytes are not read of a file that a
load has stamped with the checksum, and whose time is unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cmroot.log.segment import reading
from cmroot.names import check_entries
from cmroot.store.checksum import checksum_at
from cmroot.store.listing import FileState, list_tree
from cmroot.store.place import Place, is_local, join, local_path, normal
from replicator.core.grouping import batched, shared
from replicator.core.model import partition_name
from replicator.metastore.client import MetastoreReader
from replicator.replay.apply.work import Replay
from replicator.replay.copy.staging import is_stamped
from replicator.replay.plan.plan import Name, TablePlan
from replicator.replay.plan.squash import surviving_partitions

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
        if not source.is_partitioned and source.location and step.there.location:
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
