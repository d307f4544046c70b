"""Squash: reduces a range of records to its final result. Pure.

Each table is followed through the range as one `Lineage`, under all its names: renames move it, a drop ends it, a
creation under the same name begins another. Only the last state of every object is replayed: ten alters become one, and
a partition that is added and dropped costs nothing. Replaying the range record by record ends in the same state
(tests/unit/test_squash.py proves it on random histories).

Memory: one entry for every table, and for every partition that an incremental dump touches; none for a bootstrap's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import msgspec

from cmroot.names import foreign
from cmroot.store.place import join, relative
from replicator.core.model import (
    Constraint,
    Database,
    Function,
    Name,
    Partition,
    RoleMembers,
    Statistics,
    Table,
    WriteIds,
)
from replicator.metastore.client import PARTITION_BATCH
from replicator.metastore.events import record as kinds
from replicator.metastore.events.facts import Written
from replicator.metastore.events.record import ChangeRecord
from replicator.metastore.events.scope import UnreadEvents

Move = tuple[int, str, str]  # from a position on, the content of the first directory is located in the second


@dataclass
class PartitionFate:
    """One partition through the range. `before`: its name at the start (None: it did not exist, or that is unknown and
    does not matter). `now`: its name at the end (None: dropped). `last`: position of the record with its final object.
    `since`: file entries before this position are void; if not 0, all its files are in the range. `names`: its names,
    each from a position on; `moves`: moves of its own directory; `values`: those of its last name, after a rename;
    `recreated`: the one that existed at the start was dropped in the range, with its statistics; `relocated`: its
    location changed to other files elsewhere."""

    before: str | None
    now: str | None
    last: int
    since: int = 0
    names: list[tuple[int, str]] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    values: tuple[str, ...] = ()
    recreated: bool = False
    relocated: bool = False

    @property
    def complete(self) -> bool:
        return self.since > 0

    @property
    def renamed(self) -> bool:
        """True if it is the same partition, with its statistics, under another name. One that was dropped in the range
        is not the same: the old one is dropped."""
        return self.before is not None and self.now not in (None, self.before) and not self.recreated

    @property
    def replaced(self) -> bool:
        """True if the old partition is dropped, whether or not another replaces it."""
        if self.before is None:
            return False
        return self.now is None or self.recreated


@dataclass(frozen=True)
class Called:
    """A table's name and source location (None: unknown) from a position on; `moved`: its directory moved with it."""

    begin: int
    db: str
    table: str
    location: str | None
    moved: bool = False

    @property
    def name(self) -> Name:
        return self.db, self.table


@dataclass
class Lineage:
    """One table through the range; fields as in PartitionFate. `names`: its names and locations, in order; `ended`: the
    position of its drop; `constraints`: those at the end (None: not in the range)."""

    before: Name | None
    names: list[Called]
    since: int = 0
    ended: int | None = None
    table: Table | None = None
    altered: int = 0
    partitions: dict[str, PartitionFate] = field(default_factory=dict)
    fates: list[PartitionFate] = field(default_factory=list)
    statistics: dict[str | None, Statistics] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)  # the `before` of all fates
    constraints: tuple[Constraint, ...] | None = None
    grants: dict[str, kinds.SetGrants] = field(default_factory=dict)  # last record of the table (""), and of partitions
    write_ids: WriteIds | None = None  # those at the end (None: not in the range)
    written: dict[int, Written] = field(default_factory=dict)  # by id: those that the range tells of

    @property
    def now(self) -> Name | None:
        return None if self.ended is not None else self.names[-1].name

    @property
    def complete(self) -> bool:
        return self.since > 0

    @property
    def moves(self) -> list[Move]:
        """Moves of its directory."""
        steps = pairwise(self.names)
        return [(b.begin, a.location, b.location) for a, b in steps if b.moved and a.location and b.location]

    @property
    def only_located(self) -> bool:
        """True if its location changed, but no rename moved its first directory: the files in that remain there."""
        elsewhere = any(not b.moved and a.location and a.location != b.location for a, b in pairwise(self.names))
        first = self.names[0]
        return elsewhere and self.location_now(first.location, first.begin) == first.location

    @property
    def left(self) -> list[str]:
        """Its partitions at the start, by name, that were relocated away from their files; "" for the table itself."""
        own = [""] if self.before is not None and self.complete else []
        return own + [fate.before for fate in self.fates if fate.before and fate.relocated]

    def location_now(self, location: str | None, position: int) -> str | None:
        """Returns where a path below the table, `location` at a position, is located at the end of the range."""
        return follow(location, position, self.moves) if location else location


def follow(location: str, position: int, moves: Iterable[Move]) -> str:
    """Returns the location of a path, valid at a position, after later moves of directories above it, in order."""
    for at, old, new in moves:
        below = relative(location, old) if at > position else None
        if below is not None:
            location = join(new, below)
    return location


@dataclass
class Squashed:
    """The result of a range. `databases` and `functions`: the final object, None if it was dropped."""

    databases: dict[str, Database | None] = field(default_factory=dict)
    functions: dict[Name, Function | None] = field(default_factory=dict)
    lineages: list[Lineage] = field(default_factory=list)
    records: int = 0
    squashed: int = 0
    unknown: UnreadEvents = field(default_factory=UnreadEvents)
    bootstrap: bool = False
    dropped_at: dict[str, int] = field(default_factory=dict)  # database -> position of its last drop
    grants: dict[str, kinds.SetGrants] = field(default_factory=dict)  # of databases themselves
    roles: dict[str, tuple[RoleMembers, ...]] = field(default_factory=dict)  # by database

    def lineage_at(self, db: str, table: str, position: int) -> Lineage | None:
        """Returns the lineage that had this name at a position; None if there is no such lineage."""
        if self._index is None:
            self._index = {}
            for lineage in self.lineages:
                for called in lineage.names:
                    self._index.setdefault(called.name, []).append((called.begin, lineage))
        best: Lineage | None = None
        since = -1
        for begin, lineage in self._index.get((db, table), ()):
            if since <= begin <= position and (lineage.ended is None or position <= lineage.ended):
                best, since = lineage, begin
        return best

    _index: dict[Name, list[tuple[int, Lineage]]] | None = None


def squash(records: Iterable[ChangeRecord], tables: Iterable[Table], *, bootstrap: bool) -> Squashed:
    """Follows records, in order of their positions, to the end of the range.

    `tables`: every touched table that exists at the end, in its final state (the dump contains them).
    `bootstrap`: each object occurs once and is new, so partitions are not tracked."""
    fold = _Fold(bootstrap)
    for record in records:
        fold.apply(record)
    return fold.finish({(table.db, table.name): table for table in tables})


class _Fold:
    def __init__(self, bootstrap: bool) -> None:
        self.out = Squashed(bootstrap=bootstrap)
        self._current: dict[Name, Lineage] = {}

    def apply(self, record: ChangeRecord) -> None:
        change, at = record.change, record.position
        self.out.records += 1
        match change:
            case kinds.CreateDatabase(database=database) | kinds.AlterDatabase(database=database):
                self._retired(database.name in self.out.databases)
                self.out.databases[database.name] = database
            case kinds.DropDatabase(db=db):
                self._retired(self.out.databases.get(db) is not None)
                self.out.databases[db] = None
                self.out.dropped_at[db] = at
                self.out.grants.pop(db, None)
                self.out.roles.pop(db, None)
                for name in [name for name in self._current if name[0] == db]:
                    self._end(name, at)
                for name in [name for name in self.out.functions if name[0] == db]:
                    self.out.functions[name] = None
            case kinds.CreateFunction(function=function):
                self._retired((function.db, function.name) in self.out.functions)
                self.out.functions[function.db, function.name] = function
            case kinds.DropFunction(db=db, name=name):
                self._retired(self.out.functions.get((db, name)) is not None)
                self.out.functions[db, name] = None
            case kinds.CreateTable(table=table):
                self._create(table, at)
            case kinds.AlterTable():
                self._alter(change, at)
            case kinds.DropTable(db=db, name=name):
                self._end((db, name), at)
            case kinds.AddPartitions() if not self.out.bootstrap:
                self._add(change, at)
            case kinds.AlterPartition():
                self._alter_partition(change, at)
            case kinds.DropPartitions(db=db, table=name, names=names):
                lineage = self._lineage((db, name))
                for partition in names:
                    self._drop_partition(lineage, partition, at)
            case kinds.ChangeFiles(db=db, table=name):
                self._lineage((db, name))
            case kinds.SetConstraints(db=db, table=name, constraints=constraints):
                self._lineage((db, name)).constraints = constraints
            case kinds.SetWriteIds(db=db, table=name, ids=ids, written=written):
                lineage = self._lineage((db, name))
                lineage.write_ids = ids
                lineage.written.update({each.id: each for each in written})
            case kinds.SetGrants(db=db, table=""):
                self.out.grants[db] = change
            case kinds.SetGrants(db=db, table=name, grants=grants):
                self._lineage((db, name)).grants.update(dict.fromkeys(grants, change))
            case kinds.SetRoles(db=db, roles=roles):
                self.out.roles[db] = roles
            case kinds.SetStatistics(db=db, table=name, statistics=statistics):
                lineage = self._lineage((db, name))
                lineage.statistics.update({each.partition: each for each in statistics})
            case kinds.UnknownEvent(type=type_):
                self.out.unknown.add(record.event, type_)
            case _:
                pass

    def finish(self, tables: dict[Name, Table]) -> Squashed:
        for lineage in self.out.lineages:
            if lineage.now is not None:
                lineage.table = tables.get(lineage.now, lineage.table)
        return self.out

    def _retired(self, yes: bool) -> None:
        self.out.squashed += yes

    def _lineage(self, name: Name) -> Lineage:
        """Returns the table that has this name now; if none is known, one that existed at the start."""
        lineage = self._current.get(name)
        if lineage is None:
            lineage = Lineage(before=name, names=[Called(0, *name, None)])
            self.out.lineages.append(lineage)
            self._current[name] = lineage
        return lineage

    def _create(self, table: Table, at: int) -> None:
        name = (table.db, table.name)
        if name in self._current:
            self._end(name, at)
        lineage = Lineage(before=None, names=[Called(at, *name, table.location)], since=at, table=table, altered=at)
        self.out.lineages.append(lineage)
        self._current[name] = lineage

    def _alter(self, change: kinds.AlterTable, at: int) -> None:
        old, table = (change.db, change.name), change.table
        lineage = self._lineage(old)
        self._retired(bool(lineage.altered))
        if change.renames:
            if (table.db, table.name) in self._current:
                self._end((table.db, table.name), at)
            del self._current[old]
            self._current[table.db, table.name] = lineage
        known = lineage.names[-1].location or change.location_before
        lineage.names[-1] = replace(lineage.names[-1], location=known)
        if change.renames or table.location != known:
            lineage.names.append(Called(at, table.db, table.name, table.location, change.moved))
        if table.location != known and known is not None and not change.moved and not table.has_files_by_partition:
            lineage.since = at  # other files at another location
        lineage.table, lineage.altered = table, at

    def _end(self, name: Name, at: int) -> None:
        lineage = self._lineage(name)
        self._retired(lineage.before is None)
        lineage.ended = at
        del self._current[name]

    def _fate(self, lineage: Lineage, name: str, at: int) -> PartitionFate:
        fate = lineage.partitions.get(name)
        if fate is None:
            # One that had this name at the start and was renamed since is followed already: this is a different one.
            before = None if lineage.before is None or name in lineage.started else name
            fate = PartitionFate(before=before, now=name, last=at, names=[(0 if before else at, name)])
            lineage.partitions[name] = fate
            lineage.fates.append(fate)
            if before:
                lineage.started.add(before)
        return fate

    def _add(self, change: kinds.AddPartitions, at: int) -> None:
        lineage = self._lineage((change.db, change.table))
        for name in change.partition_names:
            fate = lineage.partitions.get(name)
            if fate is None:
                fate = self._fate(lineage, name, at)
            else:
                self._retired(True)
            fate.now, fate.last = name, at
            if change.replace:
                fate.since, fate.recreated = at, True
                lineage.statistics.pop(name, None)
                lineage.grants.pop(name, None)

    def _alter_partition(self, change: kinds.AlterPartition, at: int) -> None:
        lineage = self._lineage((change.db, change.table))
        if change.before != change.name:
            if change.name in lineage.partitions:
                self._drop_partition(lineage, change.name, at)
            fate = self._fate(lineage, change.before, at)
            lineage.partitions[change.name] = lineage.partitions.pop(change.before)
            fate.names.append((at, change.name))
            fate.values = change.partition.values
            if change.moved and change.location_before and change.partition.location:
                fate.moves.append((at, change.location_before, change.partition.location))
            statistics = lineage.statistics.pop(change.before, None)
            if statistics is not None:
                lineage.statistics[change.name] = msgspec.structs.replace(statistics, partition=change.name)
            if (granted := lineage.grants.pop(change.before, None)) is not None:
                grants = {change.name: granted.grants[change.before]}
                lineage.grants[change.name] = msgspec.structs.replace(granted, grants=grants)
        else:
            fate = self._fate(lineage, change.name, at)
            self._retired(fate.last < at)
        known = change.location_before
        if known is not None and change.partition.location != known and not change.moved:
            fate.since, fate.relocated = at, True
        fate.now, fate.last = change.name, at

    def _drop_partition(self, lineage: Lineage, name: str, at: int) -> None:
        known = name in lineage.partitions
        fate = self._fate(lineage, name, at)
        self._retired(known)
        fate.now, fate.last, fate.since, fate.recreated = None, at, at, True
        lineage.statistics.pop(name, None)
        lineage.grants.pop(name, None)


def surviving_partitions(
    squashed: Squashed, records: Iterable[ChangeRecord]
) -> Iterator[tuple[Lineage, list[tuple[str, Partition]]]]:
    """Yields the final objects of partitions, in a second pass over the same records: (table, [(name, partition)])."""
    for record in records:
        change, at = record.change, record.position
        if isinstance(change, kinds.AddPartitions):
            lineage = squashed.lineage_at(change.db, change.table, at)
            if lineage is None or lineage.now is None:
                continue
            _check_keys(lineage, change)
            named = list(zip(change.partition_names, change.partitions, strict=True))
            if not squashed.bootstrap:
                named = [(name, _now(lineage, each, at)) for name, each in named if _is_last(lineage, name, at)]
            if named:
                yield lineage, named
        elif isinstance(change, kinds.AlterPartition):
            lineage = squashed.lineage_at(change.db, change.table, at)
            if lineage is not None and lineage.now is not None and _is_last(lineage, change.name, at):
                yield lineage, [(change.name, _now(lineage, change.partition, at))]


def _check_keys(lineage: Lineage, change: kinds.AddPartitions) -> None:
    """Raises FormatError if partition keys differ: a table has the same ones for its entire life."""
    keys = [key.name.lower() for key in lineage.table.partition_keys] if lineage.table else None
    if keys is not None and keys != [key.lower() for key in change.keys]:
        raise foreign(f"{change.db}.{change.table}", "the partition keys", change.keys, f"are {keys} in the table")


def _now(lineage: Lineage, partition: Partition, at: int) -> Partition:
    """Returns a partition of a record with the location that results from later moves of its table."""
    if partition.storage is None or len(lineage.names) == 1:
        return partition
    storage = msgspec.structs.replace(partition.storage, location=lineage.location_now(partition.storage.location, at))
    return msgspec.structs.replace(partition, storage=storage)


def _is_last(lineage: Lineage, name: str, at: int) -> bool:
    fate = lineage.partitions.get(name)
    return fate is not None and fate.now == name and fate.last == at


# ---- batching --------------------------------------------------------------------------------------------------------
# Batching: partitions from many records with few partitions each are combined into batches for the metastore. Pure.
#
# Most events name one partition. One call for a thousand costs the server far less than a thousand calls for one, so
# the partitions of a table are buffered, within a bound over all tables.


Named = list[tuple[str, Partition]]

WAITING = 10 * PARTITION_BATCH  # buffered partitions of all tables together: some 50 MB of wide ones


def gathered(
    some: Iterable[tuple[Lineage, Named]], *, size: int = PARTITION_BATCH, waiting: int = WAITING
) -> Iterator[tuple[Lineage, Named]]:
    """Yields the same partitions, each table's in order, at most `size` at once; buffers at most about `waiting`."""
    held: dict[int, tuple[Lineage, Named]] = {}
    count = 0
    for lineage, named in some:
        together = held.setdefault(id(lineage), (lineage, []))[1]
        together += named
        count += len(named)
        while len(together) >= size:
            yield lineage, together[:size]
            del together[:size]
            count -= size
        if count >= waiting:
            yield from _full(held)
            held.clear()
            count = 0
    yield from _full(held)


def _full(held: dict[int, tuple[Lineage, Named]]) -> Iterator[tuple[Lineage, Named]]:
    return ((lineage, named) for lineage, named in held.values() if named)
