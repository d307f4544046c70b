"""Availability of the bytes of a state: at their old path, in `$cmroot`, as a version of their store, or missing.

Checked before a restore changes anything. `look` runs on an engine: it lists existing files, reads no bytes if size,
time and identity are those that capture recorded, and hashes the file otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from cmroot.errors import NotWritable
from cmroot.keep.content import locate
from cmroot.keep.versions import version_size
from cmroot.log.captured import ADD, Segment
from cmroot.log.segment import reading
from cmroot.names import check_entries
from cmroot.store.checksum import checksum_at
from cmroot.store.listing import FileState, file_state, list_tree
from cmroot.store.place import Place, is_local, join
from cmroot.store.spelling import is_root
from replicator.captures.dumps.layout import DumpReader, Point
from replicator.core.model import Table, partition_spec
from replicator.core.not_replicated import NotReplicated
from replicator.core.text import PartitionFilter, parse_partition_filter
from replicator.errors import FormatError, UsageError
from replicator.metastore.events.facts import Rename, followed
from replicator.metastore.events.record import Change, ChangeRecord, decode_line
from replicator.metastore.events.scope import matches_name
from replicator.replay.restore.recovery_points import captures_of

SHOWN = 1000  # missing files that are named; more are only counted

_COLUMNS = ["db", "table", "partition", "location", "path", "size", "mtime_ns", "identity", "checksum", "version"]


@dataclass(frozen=True)
class AvailabilityTask:
    """File entries to look for: those of `parts` whose location is in `share` of `shares`. `root`: the `$cmroot`."""

    parts: Sequence[str]
    root: str
    share: int = 0
    shares: int = 1


@dataclass
class FileTally:
    """A number of files, and their bytes."""

    files: int = 0
    bytes: int = 0

    def count(self, files: int, size: int) -> None:
        self.files += files
        self.bytes += size


@dataclass
class Available:
    """Files of a state by the location of their bytes. `named`: the first missing ones, each with `file` (its old
    path), `object`, `bytes` and `reason`."""

    source: FileTally = field(default_factory=FileTally)
    cmroot: FileTally = field(default_factory=FileTally)
    version: FileTally = field(default_factory=FileTally)
    missing: FileTally = field(default_factory=FileTally)
    named: list[dict[str, Any]] = field(default_factory=list)

    @property
    def files(self) -> int:
        """The number of files that were looked for."""
        return self.source.files + self.cmroot.files + self.version.files + self.missing.files

    def add(self, other: Available) -> None:
        for name in ("source", "cmroot", "version", "missing"):
            theirs: FileTally = getattr(other, name)
            getattr(self, name).count(theirs.files, theirs.bytes)
        self.named = (self.named + other.named)[:SHOWN]

    @property
    def found(self) -> FileTally:
        """The files that can be copied."""
        kinds = (self.source, self.cmroot, self.version)
        return FileTally(sum(each.files for each in kinds), sum(each.bytes for each in kinds))


def look(task: AvailabilityTask) -> Available:
    """Looks for each file of a task. Changes nothing; may run twice."""
    found = Available()
    for location, rows in _by_location(task).items():
        there = _files_at(location, [row["path"] for row in rows])
        for row in rows:
            size = row["size"] or 0
            origin, reason = _origin(row, join(location, row["path"]), there, task.root)
            getattr(found, origin).count(1, size)
            if origin == "missing" and len(found.named) < SHOWN:
                partition = f"/{row['partition']}" if row["partition"] else ""
                found.named.append(
                    {
                        "file": join(location, row["path"]),
                        "object": f"{row['db']}.{row['table']}{partition}",
                        "bytes": row["size"],
                        "reason": reason,
                    }
                )
    return found


def _by_location(task: AvailabilityTask) -> Mapping[str, list[dict[str, Any]]]:
    """Returns the rows of a share. Each location is listed by one task only."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for table in _tables(task.parts):
        for row in table.to_pylist():
            if xxhash.xxh3_64_intdigest(row["location"].encode()) % task.shares == task.share:
                rows[row["location"]].append(row)
    return rows


def _tables(parts: Iterable[str]) -> Iterator[pa.Table]:
    for part in parts:
        with Place(part).open_read() as file, reading(part):
            parquet = pq.ParquetFile(file)
            columns = [name for name in _COLUMNS if name in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(columns=columns):
                check_entries(batch, part)
                yield pa.Table.from_batches([batch])


def _files_at(location: str, paths: Iterable[str]) -> dict[str, FileState]:
    if is_root(location):
        found = dict[str, FileState]()
        for path in paths:
            with suppress(FileNotFoundError, NotADirectoryError, NotWritable):
                found[path] = file_state(join(location, path))
        return found
    listing = list_tree(location)
    return {file.path_relative: file for file in listing.files} if listing else {}


def _origin(row: Mapping[str, Any], path: str, there: Mapping[str, FileState], root: str) -> tuple[str, str]:
    """Returns (source | cmroot | version | missing, the reason why it is missing)."""
    checksum, size = row["checksum"], row["size"]
    if checksum is None or size is None:
        return "missing", "it was removed before a capture could read it"
    now = there.get(row["path"])
    recorded = now is not None and now.is_recorded(size, row["mtime_ns"], row["identity"])
    if recorded or (now is not None and now.size == size and _checksum(path) == (checksum, size)):
        return "source", ""
    kept = _kept(root, checksum, size, row["mtime_ns"])
    if kept == "kept":
        return "cmroot", ""
    if row.get("version") and _version_is_there(path, row["version"], size):
        return "version", ""
    at_source = "its path holds other bytes" if now is not None else "its path no longer exists"
    return "missing", f"{at_source}, and $cmroot {kept}"


def _kept(root: str, checksum: str, size: int, mtime_ns: int | None) -> str:
    """Returns `kept`, or what is wrong. A write into a retained link is detected by its time, which it shares with its
    source; a retained copy has another time, too, and is read to distinguish the two."""
    place = locate(root, checksum, size)
    try:
        there = file_state(place)
        if there.size != size:
            return "keeps a damaged copy"
        if is_local(place) and there.mtime_ns != mtime_ns and _checksum(place) != (checksum, size):
            return "keeps a damaged copy"
    except FileNotFoundError:
        return "does not keep them"
    return "kept"


def _checksum(place: str) -> tuple[str, int] | None:
    """Returns checksum and size; None if the file was removed concurrently."""
    try:
        return checksum_at(place)
    except FileNotFoundError:
        return None


def _version_is_there(path: str, version: str, size: int) -> bool:
    try:
        return version_size(path, version) == size
    except FileNotFoundError:
        return False


# ---- chosen partitions -----------------------------------------------------------------------------------------------
# Partitions that a restore is limited to: as a filter of its dump, and a check that they existed at the time.


def chosen(texts: Sequence[str]) -> PartitionFilter:
    """Parses partitions `k=v/k2=v2`, escaped as Hive does; with some of the keys only, all that have these values.
    Raises UsageError for an invalid one."""
    return parse_partition_filter(" or ".join(map(_condition, texts)))


def _condition(text: str) -> str:
    try:
        keys, values = partition_spec(text)
    except FormatError:
        keys, values = (), ()
    if not all(key.isidentifier() for key in keys) or not all(values) or not keys:
        raise UsageError(f"--partition {text!r} is not a partition", hint="write it as k=v or k=v/k2=v2")
    quoted = [value.replace("'", "''") for value in values]
    return " and ".join(f"{key.lower()} = '{value}'" for key, value in zip(keys, quoted, strict=True))


def names_in(reader: DumpReader) -> list[str]:
    """Returns the names of all partitions in a complete dump, which has no drops."""
    return sorted({name for record in reader.records() for name in record.change.partition_names})


def absent(texts: Iterable[str], names: Sequence[str]) -> list[str]:
    """Returns those that match none of the names."""
    return [text for text in texts if not any(matches_name(chosen([text]), name) for name in names)]


# ---- files that no capture read --------------------------------------------------------------------------------------
# An object that is created and dropped between two captures is known from its events, and its files only if an event or
# the gateway named them. Names are held in batches: a range of the log may have any number of partitions.


NAMED = 1000
"""Objects that are named; more are only counted."""

_BATCH = 50_000
_KINDS = (b'"create_', b'"drop_', b'"alter_', b'"add_partitions"')  # as written in a record's JSON
_Key = tuple[str, str, str]  # database, table, partition or ""

UNREAD = (
    "it was created and dropped between two captures, so its files were never read: only its definition is restored. "
    "With the gateway, drops keep such files"
)


def never_read(log: Sequence[Segment], db: str, tables: Sequence[str], point: Point) -> list[NotReplicated]:
    """Returns the objects of a state whose files no capture read, because they were dropped before the next one. Reads
    the records of one capture. tables: only these; none: all of the database."""
    found = [each for each in captures_of(log) if each[1] < point.position < each[2].position]
    if not found:
        return []
    between, named, number = _Between(*found[0], point.position), list[NotReplicated](), 0
    for db_then, table, partition in between.unread():
        if db_then == db and (not tables or table in tables):
            number += 1
            if number <= NAMED:
                named.append(NotReplicated(f"{db}.{table}", UNREAD, partition))
    if number > NAMED:
        named.append(NotReplicated(db, f"{number - NAMED:,} more tables or partitions: {UNREAD}"))
    return sorted(named, key=lambda each: each.name)


class _Between:
    """The records of one capture, before and after a position."""

    def __init__(self, segment: Segment, before: int, end: Point, position: int) -> None:
        self._segment, self._before, self._end, self._position = segment, before, end, position
        self._renames = [
            each for record in self._records(before, position) if (each := Rename.of(record.position, record.change))
        ]

    def unread(self) -> Iterator[_Key]:
        """Yields the objects with data, by their names at the position, that exist there, were created in this capture
        and dropped in it, and have no file entries."""
        dropped = self._dropped()
        while some := dict(islice(dropped, _BATCH)):
            alive = self._created(some)
            yield from sorted(alive - self._with_files({each: some[each] for each in alive}))

    def _records(self, after: int, until: int) -> Iterator[ChangeRecord]:
        for line in self._segment.records(after, until):
            if any(kind in line for kind in _KINDS):
                yield decode_line(line, self._segment.place)

    def _dropped(self) -> Iterator[tuple[_Key, _Key]]:
        """Yields the keys of objects dropped after the position: their names at the position, and when dropped."""
        renames: list[Rename] = []
        for record in self._records(self._position, self._end.position):
            change = record.change
            if rename := Rename.of(record.position, record.change):
                renames.append(rename)
            for name in change.dropped_partitions:
                key = (*(change.touched or ("", "")), name)
                if then := _back(key, renames):
                    yield then, key
            if change.drops:
                yield from self._dropped_with(change.drops, renames)

    def _dropped_with(self, dropped: tuple[str, ...], renames: Sequence[Rename]) -> Iterator[tuple[_Key, _Key]]:
        """Yields the objects created in this capture that end with a dropped database or table."""
        for created in self._records(self._before, self._position):
            for key in _created(created.change):
                then = followed(key, created.position, self._renames)
                now = followed(then, self._position, renames) if then else None
                if then and now and now[: len(dropped)] == dropped:
                    yield then, now

    def _created(self, keys: Iterable[_Key] | dict[_Key, _Key]) -> set[_Key]:
        """Returns those of the keys that were created in this capture and exist at the position."""
        wanted, alive = frozenset(keys), set[_Key]()
        for record in self._records(self._before, self._position):
            change, at = record.change, record.position
            for key in _created(change):
                if (then := followed(key, at, self._renames)) in wanted and then:
                    alive.add(then)
            gone = [(*(change.touched or ("", "")), name) for name in change.dropped_partitions]
            alive -= {then for key in gone if (then := followed(key, at, self._renames))}
            if change.drops:
                alive = {key for key in alive if _then(change.drops, at, self._renames) != key[: len(change.drops)]}
        return alive

    def _with_files(self, keys: dict[_Key, _Key]) -> set[_Key]:
        """Returns those of the keys that have file entries up to the position. keys: with their names when dropped."""
        names = {name: key for key, later in keys.items() for name in (key, later)}
        found = set[_Key]()
        if not names:
            return found
        for batch in self._segment.file_batches(["position", "op", "db", "table", "partition"]):
            rows = pa.Table.from_batches([batch])
            at = pc.and_(pc.greater(rows["position"], self._before), pc.less_equal(rows["position"], self._position))
            rows = rows.filter(pc.and_(at, pc.equal(rows["op"], ADD)))
            columns = (rows[name].to_pylist() for name in ("db", "table", "partition"))
            found |= {names[key] for key in zip(*columns, strict=True) if key in names}
        return found


def _created(change: Change) -> Iterator[_Key]:
    """Yields the objects with data that exist from a change on, and begin without files."""
    made = change.creates
    if isinstance(made, Table) and not made.has_files_by_partition and not made.is_view and made.location:
        yield made.db, made.name, ""
    if change.touched:
        for name in change.added_partitions:
            yield (*change.touched, name)


def _then(name: tuple[str, ...], position: int, renames: Sequence[Rename]) -> tuple[str, ...] | None:
    """Returns the later name of a database or table."""
    if len(name) == 1:
        return name
    found = followed((name[0], name[1], ""), position, renames)
    return found[:2] if found else None


def _back(key: _Key, renames: Sequence[Rename]) -> _Key | None:
    """Returns the name that an object had before renames; None if it is another object, which did not exist then."""
    for rename in reversed(renames):
        if key[: len(rename.after)] == rename.after:
            db, table, partition = (*rename.before, *key[len(rename.after) :])
            key = (db, table, partition)
        elif key[: len(rename.before)] == rename.before:
            return None
    return key
