"""Moments of tables: the state of each table in the terms of its format, at a position of the log or the end of a dump.

The metastore has the pointer of an Iceberg table, and a transactional table has its write ids, so records suffice for
these. The version of a Delta table, or the instant of a Hudi table, is that of the newest commit of its log: of the
file entries, only those of commits are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from cmroot.log.captured import ADD, Segment
from cmroot.log.segment import FILES, RELEASE, conform
from cmroot.store.place import scratch
from replicator.captures.dumps.layout import DumpReader
from replicator.captures.inventory import Inventory
from replicator.captures.manifest import Manifest, opened
from replicator.core.formats import FORMATS, format_of
from replicator.core.formats.interface import TableFormat
from replicator.core.model import Name, Table
from replicator.metastore.events.facts import Rename
from replicator.metastore.events.record import Change, ChangeRecord, decode_line

_WITH_LOG = [each for each in FORMATS.values() if each.commits]
_COMMITS = "|".join(rf"^{re.escape(directory)}/\d[^/]*$" for each in _WITH_LOG for directory in each.commits)
_COLUMNS = ["position", "op", "db", "table", "partition", "location", "path"]
_TELLING = tuple(
    f'"{kind}"'.encode()
    for kind in ("create_database", "drop_database", "create_table", "alter_table", "drop_table", "set_write_ids")
)
_NEWEST = (  # commits begin with digits, before a colon
    "SELECT path FROM files WHERE table_id = (SELECT id FROM tables WHERE db = ? AND name = ?) AND partition_id = 0"
    " AND path >= ? AND path < ? ORDER BY path DESC LIMIT 1000"
)


@dataclass(frozen=True)
class TableMoment:
    """The state of a table. table: "db.name"; format: of `FORMATS`; moment: the state in the format's own terms, "" if
    it is not known."""

    table: str
    format: str
    moment: str


def recorded_moment(change: Change) -> str:
    """Returns the state of a table as far as its record has it, "" for other records; see `moment_of`."""
    table = table_of(change)
    return change.moment or (format_of(table).moment(table) if table is not None else "")


def table_of(change: Change) -> Table | None:
    return next((each for each in change.objects if isinstance(each, Table)), None)


def objects_of(records: Iterable[ChangeRecord]) -> Iterator[object]:
    for record in records:
        yield from record.change.objects


def has_log(objects: Iterable[object]) -> bool:
    """Returns True if one of some objects is a table with a log."""
    return any(format_of(each).commits for each in objects if isinstance(each, Table))


Versions = dict[tuple[int, Name], str]
"""States that commits make, by the position of the record and the table: records of a complete dump share a
position."""


def versions_at(batches: Iterable[pa.RecordBatch]) -> Versions:
    """Returns the states that commits make; of several of one record, the newest one's."""
    newest = dict[tuple[int, Name], tuple[int, TableFormat]]()
    for position, name, version, format in _commits(batches):
        if (position, name) not in newest or newest[position, name][0] < version:
            newest[position, name] = version, format
    return {each: format.commit_moment(version) for each, (version, format) in newest.items()}


def log_versions_at(log: Sequence[Segment], positions: Collection[int]) -> dict[int, str]:
    """Returns the states that commits make at a few positions of a log, where each is of one table. Decodes only row
    groups that may have entries of these."""
    found = dict[int, str]()
    for segment in log:
        if here := {each for each in positions if segment.first <= each <= segment.last}:
            versions = versions_at(segment.file_batches(_COLUMNS, here))
            found |= {position: each for (position, _), each in versions.items() if position in here}
    return found


def moment_of(record: ChangeRecord, versions: Versions) -> str:
    """Returns the state of a record's table in the terms of its format; "" for a record that does not change it."""
    change = record.change
    name = change.touched if change.brings_files else None
    return (versions.get((record.position, name), "") if name else "") or recorded_moment(change)


def _commits(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Name, int, TableFormat]]:
    """Yields (position, table, version, format) of the commits that were added."""
    for batch in batches:
        rows = _of_commits(batch)
        columns = (rows[name].to_pylist() for name in ("position", "op", "db", "table", "path"))
        for position, op, db, table, path in zip(*columns, strict=True):
            for format in _WITH_LOG if op == ADD else ():
                if (version := format.commit_version(path)) is not None:
                    yield position, (db, table), version, format


def _of_commits(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.match_substring_regex(batch["path"].cast(pa.string()), _COMMITS))


# ---- all tables ------------------------------------------------------------------------------------------------------


def moments_of_dump(reader: DumpReader) -> dict[str, str]:
    """Returns the states of tables at the end of a complete dump, by name in their database; without those of formats
    that have none of their own. Reads its records, and the names of files if a table has a log."""
    logged, moments = dict[Name, TableFormat](), dict[str, str]()
    for record in reader.records():
        if (table := table_of(record.change)) is not None and format_of(table).commits:
            logged[table.db, table.name] = format_of(table)
        if (name := record.change.touched) and (moment := recorded_moment(record.change)):
            moments[name[1]] = moment
    newest = dict[Name, int]()
    for _, name, version, format in _commits(reader.entries()) if logged else ():
        if logged.get(name) is format:
            newest[name] = max(version, newest.get(name, -1))
    moments |= {name[1]: logged[name].commit_moment(version) for name, version in newest.items()}
    return dict(sorted(moments.items()))


def moments_at(
    log: Sequence[Segment], databases: Collection[str], position: int, tick: Callable[[], None] = lambda: None
) -> list[TableMoment]:
    """Returns the states of the tables of some databases at a position, by name; without those in Hive's layout: these
    have the files of the position. Memory does not grow with the log. tick: called again and again, may raise."""
    with _folded(log, position, tick) as known:
        return [
            TableMoment(f"{each.db}.{each.name}", each.format, known_moment(known, each.db, each.name))
            for each in known.in_own_format()
            if each.db in databases
        ]


def known_moment(known: Inventory, db: str, name: str) -> str:
    """Returns the state of a table in the terms of its format: the snapshot or the metadata file of an Iceberg table,
    the version of a Delta table, the write ids of a transactional one; "" for other formats, and for a table that does
    not exist. Reads the newest names of a log, no other files."""
    if (table := known.table(db, name)) is None:
        return ""
    format = format_of(table)
    if format.write_ids:
        ids = known.write_ids(db, name)
        return ids.moment if ids else ""
    found = (known.select(_NEWEST, db, name, f"{each}/", f"{each}/:") for each in format.commits)
    for (path,) in chain.from_iterable(found):
        if (version := format.commit_version(path)) is not None:
            return format.commit_moment(version)
    return format.moment(table)


@contextmanager
def _folded(log: Sequence[Segment], position: int, tick: Callable[[], None]) -> Iterator[Manifest]:
    """Yields the tables at a position with their commits, and without partitions and all other files."""
    with scratch("moments") as here, opened(here / "manifest.sqlite") as known:
        for segment in log:
            if segment.first > position:
                break
            renames = list[Rename]()
            for record in _telling(segment, position):
                tick()
                known.apply(record)
                if rename := Rename.of(record.position, record.change):
                    renames.append(rename)
            for batch in segment.file_batches(_COLUMNS):
                tick()
                rows = pa.Table.from_batches([_of_commits(batch)])
                wanted = pc.and_(pc.less_equal(rows["position"], position), pc.not_equal(rows["op"], RELEASE))
                known.apply_files(conform(rows.filter(wanted), FILES), renames)
            known.forget_ended()
        yield known


def _telling(segment: Segment, position: int) -> Iterator[ChangeRecord]:
    """Yields the records up to a position that create, change or end tables; the others are not decoded."""
    for line in segment.records(until=position):
        if any(kind in line for kind in _TELLING):
            yield decode_line(line, segment.place)
