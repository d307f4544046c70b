"""Comparison of metadata: every object of a source's database with the target's, field by field.

The expected target object is what a load would create from the source's object (`replicator.replay.replica`), at
the location that the target's own table has. Reads both sides in batches; files are not examined here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import Any, TypeVar

import msgspec

from cmroot.store.place import is_local, normal, relative
from replicator.compare.both_sides import (
    Comparison,
    DatabasePair,
    PartitionPages,
    TablePair,
    WriteIdComparison,
    all_names,
    read_tables,
)
from replicator.compare.compare_files import FilePair, recorded_size
from replicator.compare.differences import (
    Alike,
    Difference,
    Differences,
    Homes,
    alike_partitions,
    compare,
    difference,
    without_marks,
    without_unreturned,
)
from replicator.core.formats import PLAIN, format_of, is_transactional
from replicator.core.formats.interface import TableFormat
from replicator.core.model import HIVE, Constraint, Database, Partition, Statistics, Table, Value, partition_name
from replicator.core.named_files import NAMED, ON_NODES, is_on_nodes
from replicator.core.not_replicated import AS_THEY_ARE, NOT_TAKEN, PROPERTY, SUPPORTED, NotReplicated, from_property
from replicator.errors import ObjectNotFound
from replicator.metastore.client import warehouse_of
from replicator.metastore.concurrency import read_both
from replicator.metastore.events.scope import comparable
from replicator.replay.apply.named_places import metadata_translation, of_databases
from replicator.replay.placement import NamedPath, Placement, Translate, at_place, is_published, named_paths, with_seen
from replicator.replay.replica import (
    LEFT_OUT,
    Mark,
    has_sources_data,
    own_parameters,
    replica_database,
    replica_function,
    replica_partition,
    replica_table,
)
from replicator.replay.server_rules import (
    NO_VIEW,
    as_served,
    lacking,
    not_replicated,
    noted_lack,
    replica_constraints,
    storable,
    why_no_view,
)

# ---- compare constraints ---------------------------------------------------------------------------------------------
# Comparison of constraints of some tables on both sides. Constraints that the target does not support, or records as
# missing, are reported as not replicated and are not differences.


def compare_constraints(
    comparison: Comparison, db: str, pairs: Sequence[tuple[Table, Table]]
) -> Iterator[Difference | NotReplicated]:
    """Yields differences of constraints. `pairs`: tables of a source's database, and their replicas."""
    names = [table.name for table, _ in pairs if not table.is_view]
    sides, databases = (comparison.source, comparison.target), (db, comparison.replica(db))
    ((_, here, there),) = read_both(
        sides, lambda side, some: sides[side].constraints(databases[side], some), [names], weigh=lambda _: 0.0
    )
    kinds = comparison.target.constraint_kinds() if here else frozenset[str]()
    for table, replica in pairs:
        wanted, lacking = replica_constraints(here.get(table.name, ()), kinds, comparison.replica)
        noted = {each.constraint: each for each in noted_lack(replica.parameters)}
        missing = [each for each in wanted if each not in there.get(table.name, ())]
        lacking += [noted[each] for each in missing if each in noted]
        name = f"{db}.{table.name}"
        if lacking:
            yield not_replicated(name, lacking)
        wrong = [each for each in missing if each not in noted]
        extra = [each for each in there.get(table.name, ()) if each not in wanted]
        yield from _differences(name, _by_name(wrong), _by_name(extra))


def _by_name(constraints: Sequence[Constraint]) -> dict[str, Constraint]:
    return {each.name: each for each in constraints}


def _differences(table: str, wanted: Mapping[str, Constraint], found: Mapping[str, Constraint]) -> Iterator[Difference]:
    for name in sorted(wanted.keys() | found.keys()):
        a, b = wanted.get(name), found.get(name)
        if a is None or b is None:
            yield difference(table, f"constraint {'missing' if a else 'extra'}", a and str(a), b and str(b), name)
        else:
            yield difference(table, "constraint", _whole(a), _whole(b), name)


def _whole(constraint: Constraint) -> str:
    """Includes the flags, because two constraints may differ only in these."""
    flags = [flag for flag in ("enable", "validate", "rely") if getattr(constraint, flag)]
    return " ".join([str(constraint), *flags])


# ---- compare metadata ------------------------------------------------------------------------------------------------

CONSTRAINTS_BATCH = 500  # tables
NOWHERE = "/dev/null/external"  # location assigned by placement to paths outside the database; never compared

V = TypeVar("V", bound=Value)
_NO_MARK = Mark(event=0, position=0, source="")


class MetadataComparison:
    """A comparison of the metadata of both sides as it is read. `objects`: compared so far; `differences`: found so
    far; `not_replicated`: tables that loads leave out. read: called after each table, after its files are yielded."""

    def __init__(self, comparison: Comparison, read: Callable[[], None]) -> None:
        self._comparison, self._read = comparison, read
        self._source, self._target = comparison.source, comparison.target
        self._returns, self._homes_of_tables = cache(comparison.returns), cache(comparison.homes_of_tables)
        self.objects = 0
        self.not_replicated: list[NotReplicated] = []
        self._named: set[str] = set()  # paths of the target that properties name and that were checked
        self.differences = Differences()
        self._write_ids = WriteIdComparison(comparison)

    def database(self, name: str) -> Iterator[FilePair]:
        """Compares a database and all its contents."""
        sides = self.itself(name)
        if sides is not None:
            yield from self.tables(sides, all_names(self._comparison, sides))

    def itself(self, name: str) -> DatabasePair | None:
        """Compares a database's own properties and its functions. Returns None if the target does not have it."""
        sides = self.sides(name)
        if sides is not None:
            self._count()
            self._compare_database(sides)
            self._compare_functions(sides)
        return sides

    def sides(self, name: str) -> DatabasePair | None:
        """Returns a database on both sides; None, after recording a difference, if the target does not have it. Raises
        ObjectNotFound if the source does not have it."""
        source = self._source.database(name)
        try:
            return DatabasePair(source, self._target.database(self._comparison.replica(name)))
        except ObjectNotFound:
            self._count()
            self._differs(name, "database missing", source.location or name, None)
            return None

    def tables(self, sides: DatabasePair, names: Sequence[str]) -> Iterator[FilePair]:
        """Compares some tables of a database; names that neither side has are skipped. Threads read both sides in
        parallel; this thread compares them, in the order of the names."""
        databases, pairs = (sides.source.name, sides.target.name), list[tuple[Table, Table]]()
        for each in read_tables(self._comparison, databases, names, partial(self._left_out, sides)):
            name, wanted, found = f"{sides.source.name}.{each.name}", each.source, each.target
            self._count(wanted is not None or found is not None)
            if each.left_out:
                self.not_replicated.append(NotReplicated(name, each.left_out))
                if found and not each.left_out.startswith(NO_VIEW):
                    self._differs(
                        name, "format", each.left_out, f"{sides.target.name}.{each.name}, a copy of its files"
                    )
            elif wanted and found:
                yield from self._table(sides, wanted, found, each)
                pairs.append((wanted, found))
                if len(pairs) == CONSTRAINTS_BATCH:
                    self._compare_constraints(sides.source.name, pairs)
                    pairs.clear()
            elif wanted:
                self._differs(name, "table missing", name, None)
            elif found and each.name in self._refused(sides):  # neither dropped nor renamed
                self.not_replicated.append(NotReplicated(name, self._refused(sides)[each.name]))
            elif found:
                self._differs(name, "table extra", None, f"{sides.target.name}.{each.name}")
            self._read()
        self._compare_constraints(sides.source.name, pairs)

    def _compare_constraints(self, db: str, pairs: Sequence[tuple[Table, Table]]) -> None:
        for each in compare_constraints(self._comparison, db, pairs):
            if isinstance(each, NotReplicated):
                self.not_replicated.append(each)
            else:
                self.differences.add(each)

    def _left_out(self, sides: DatabasePair, source: Table, target: Table | None) -> str:
        """Returns the reason why loads leave a table out; empty if they do not."""
        if why := why_no_view(source, self._comparison.renamed | {sides.source.name: sides.target.name}):
            return why
        if self._comparison.formats == AS_THEY_ARE:
            return ""
        format = format_of(source)
        if reason := format.why_left_out(source) or ("" if target else self._refused(sides).get(source.name, "")):
            return reason
        if format.transactions(source):
            return self._write_ids.unknown
        if not format.reads_log:
            return ""
        if target is not None:
            return target.parameters.get(LEFT_OUT, "")
        return self._refused(sides, format.said).get(source.name, "")

    def _refused(self, sides: DatabasePair, begin: str = NOT_TAKEN) -> dict[str, str]:
        """Returns the objects that the target lacks for reasons that begin so: its metastore rejected them."""
        said = from_property(sides.target.parameters.get(PROPERTY), sides.source.name)
        return {each.object.partition(".")[2]: each.reason for each in said if each.reason.startswith(begin)}

    def _compare_database(self, sides: DatabasePair) -> None:
        placement = self._placement(sides, None, None)
        source, target = sides.source, sides.target
        reasons = lacking(source, target)[1]
        wanted = replica_database(source, placement) if source.location else source
        managed = wanted.managed_location and target.managed_location  # the load determined it; mappings may contain it
        if managed == source.managed_location:
            managed = wanted.managed_location
        wanted = msgspec.structs.replace(
            wanted, name=target.name, location=target.location, managed_location=managed or wanted.managed_location
        )
        wanted = lacking(wanted, target)[0]
        self.not_replicated += [NotReplicated(source.name, reason) for reason in reasons]
        homes = Homes(None, sides.source.location, sides.target.location)
        self._compare(sides.source.name, _plain(wanted), _plain(sides.target), homes)

    def _compare_functions(self, sides: DatabasePair) -> None:
        placement = self._placement(sides, None, None)
        here = {each.name: each for each in self._source.functions(sides.source.name)}
        home = sides.source.location
        wanted = {name: with_seen(each, replica_function(each, placement), home) for name, each in here.items()}
        found = {each.name: each for each in self._target.functions(sides.target.name)}
        refused = self._refused(sides)
        for name in sorted(wanted.keys() | found.keys()):
            self._count()
            obj = f"{sides.source.name}.{name}"
            if name not in found and name in refused:
                self.not_replicated.append(NotReplicated(obj, refused[name]))
            elif name not in found:
                self._differs(obj, "function missing", wanted[name].class_name, None)
            elif name not in wanted:
                self._differs(obj, "function extra", None, found[name].class_name)
            else:
                homes = Homes(None, sides.source.location, sides.target.location)
                self._compare(obj, _plain(wanted[name]), _plain(found[name]), homes)
                self._look_for(obj, named_paths(here[name], wanted[name]))

    def _table(self, sides: DatabasePair, source: Table, target: Table, read: TablePair) -> Iterator[FilePair]:
        """Compares one table; yields the locations of its files, or of its partitions' files."""
        name = f"{source.db}.{source.name}"
        shared = source.is_external and has_sources_data(target)  # then its locations are correct as they are
        own = (None, None) if shared else (source.location, target.location)
        placement = self._placement(sides, *own)
        homes = Homes(None, None, None) if shared else Homes(own[0], sides.source.location, sides.target.location)
        if is_transactional(source) and not self._write_ids.unknown:
            for each in self._write_ids.hidden(source, target):
                self.differences.add(difference(name, "write ids", each, None))
        replica = with_seen(source, replica_table(source, placement, _NO_MARK, shared=shared), sides.source.location)
        replica, reasons = lacking(replica, target)
        self._lacks(name, reasons)
        self._compare(name, _at(_plain(replica), target.location), _plain(target), homes)
        paths = (path for path in named_paths(source, replica) if not source.is_view or f"/{NAMED}/" in path.target)
        self._look_for(
            name, paths, metadata_translation(source, target, placement, lambda said: self._lacks(name, [said]))
        )
        if read.statistics is not None:
            self._compare_statistics(name, *read.statistics)
        if source.is_view and not source.is_partitioned:
            return
        if is_split := source.is_partitioned and target.is_partitioned:
            if source.location and target.location and not (shared or source.is_view):
                pair = FilePair(name, source.location, target.location, root=True, **self._naming(source, placement))
                yield from self._files(homes, pair) if source.has_files_by_partition else ()
            yield from (pair for pair in self._partitions(source, target, read, placement, homes) if not shared)
        if source.location and target.location and not (shared or (is_split and source.has_files_by_partition)):
            format, tree = self._format_of(source), format_of(source)
            pointer, trees = format.pointer(target), {"tree": tree.name, "tops": tree.tree_tops(source)}
            naming = self._naming(source, placement) | trees | {"pointer": pointer}
            naming["format"] = format.name if pointer or not format.translates else PLAIN.name
            pair = FilePair(name, source.location, target.location, recorded_size(source.parameters), **naming)
            yield from self._files(homes, pair)

    def _files(self, homes: Homes, pair: FilePair) -> Iterator[FilePair]:
        """Yields the pair, or names its table if no capture reads the source's location."""
        if not is_local(pair.source) or not is_on_nodes(pair.source, homes.source_db, self._warehouse):
            yield replace(pair, state=self._write_ids.states.get(pair.name.partition("/")[0]))
            return
        table, _, partition = pair.name.partition("/")
        if not any(each.object == table and each.reason == ON_NODES for each in self.not_replicated):
            self.not_replicated.append(NotReplicated(table, ON_NODES, partition))

    def _format_of(self, table: Table) -> TableFormat:
        return format_of(table) if self._comparison.formats == SUPPORTED else PLAIN

    def _naming(self, table: Table, placement: Placement) -> dict[str, Any]:
        """Returns the fields of a `FilePair` by which files that name places are compared."""
        if not (format := self._format_of(table)).lists_places:
            others = self._comparison.homes_of_databases if format.log else []
            databases = (table.db, placement.databases.get(table.db, table.db))
            return {"homes": [*of_databases(placement), *others], "databases": databases}
        named, store = self._homes_of_tables(table.db), placement.source_locations[table.db]
        return {"format": format.name, "homes": named, "store": store}

    @cached_property
    def _warehouse(self) -> str | None:
        return warehouse_of(self._source)

    # ---- partitions ------------------------------------------------------------------------------------------------

    def _partitions(
        self, source: Table, target: Table, read: TablePair, placement: Placement, homes: Homes
    ) -> Iterator[FilePair]:
        table = f"{source.db}.{source.name}"
        names = read.names
        for name in sorted(names.missing):
            self._differs(f"{table}/{name}", "partition missing", name, None)
        for name in sorted(names.extra):
            self._differs(f"{table}/{name}", "partition extra", None, name)
        self._count(len(names.missing) + len(names.extra))
        is_told = homes.source_table is not None and not self._comparison.map_locations
        alike = alike_partitions(source, target) if is_told else None
        for pages in read.pages:
            yield from self._partition_batch(source, target, pages, placement, homes, alike)

    def _partition_batch(
        self,
        source: Table,
        target: Table,
        pages: PartitionPages,
        placement: Placement,
        homes: Homes,
        alike: Alike | None,
    ) -> Iterator[FilePair]:
        others, naming = {partition.values: partition for partition in pages.target}, self._naming(source, placement)
        for partition in pages.source:
            other = others.get(partition.values)
            key = partition_name(source.partition_keys, partition.values)
            name = f"{source.db}.{source.name}/{key}"
            self._count()
            if other is None:  # dropped during the read
                self._differs(name, "partition missing", key, None)
                continue
            if alike is None or not alike.proves(partition, other):
                self._compare_partition(name, source, target, partition, other, placement, homes)
            if partition.location and other.location:
                size = recorded_size(partition.parameters)
                pair = FilePair(name, partition.location, other.location, size, **naming)
                yield from self._files(homes, pair)
        here, there = ({each.partition: each for each in side} for side in pages.statistics)
        for name in pages.marked:
            self._compare_statistics(f"{source.db}.{source.name}/{name}", here.get(name), there.get(name))

    def _compare_partition(
        self,
        name: str,
        table: Table,
        replica: Table,
        source: Partition,
        target: Partition,
        placement: Placement,
        homes: Homes,
    ) -> None:
        shared = homes.source_table is None and not table.is_view
        whole = with_seen(source, replica_partition(source, table, placement, shared=shared), homes.source_db)
        self._look_for(name, named_paths(source, whole))
        wanted, found = _plain(whole), _plain(target)
        below = shared or (source.location and table.location and relative(source.location, table.location) is not None)
        published = any(map(is_published, (target.location, source.location, replica.location)))
        if not shared and target.location and published:
            wanted = at_place(wanted, target.location)  # of a snapshot, or of a table that was moved aside or back
        wanted = _at(wanted, target.location, anywhere=not below)
        if wanted != found or not below:  # otherwise paths below the table were rewritten, and none names the source
            self._compare(name, wanted, found, homes)

    # ---- each ------------------------------------------------------------------------------------------------------

    def _placement(self, sides: DatabasePair, source: str | None, target: str | None) -> Placement:
        """Returns the expected locations on the target; the target's own table determines the location of the table."""
        own = ((source, target),) if source and target else ()
        names = self._comparison.renamed | {sides.source.name: sides.target.name}
        return Placement(
            databases=names,
            source_locations={sides.source.name: sides.source.location or NOWHERE},
            target_locations={sides.source.name: sides.target.location or NOWHERE},
            external=NOWHERE,
            mappings=(*own, *self._comparison.map_locations),
        )

    def _compare_statistics(self, name: str, source: Statistics | None, target: Statistics | None) -> None:
        if source is not None:
            source, reasons = storable(source, self._target.statistics_engines())
            self._lacks(name.partition("/")[0], reasons)
        wanted, found = (
            {(engine, each.column): each for engine, columns in side.by_engine().items() for each in columns}
            if side is not None
            else {}
            for side in (source, target)
        )
        for engine, column in sorted(wanted.keys() | found.keys()):
            a, b = wanted.get((engine, column)), found.get((engine, column))
            if a is not None and b is not None and a != b:
                a, b = without_unreturned(a, b, self._returns)
            if a != b:
                wanted_data, found_data = (each and {each.type: each.data} for each in (a, b))
                key = column if engine == HIVE else f"{column} ({engine})"
                self.differences.add(difference(name, "statistics", wanted_data, found_data, key))

    def _lacks(self, name: str, reasons: Iterable[str]) -> None:
        """Records each reason once."""
        found = (NotReplicated(name, reason) for reason in reasons)
        self.not_replicated += [each for each in found if each not in self.not_replicated[-1:]]

    def _compare(self, name: str, wanted: Value, found: Value, homes: Homes) -> None:
        for each in compare(name, as_served(wanted, found), found, homes):
            self.differences.add(each)

    def _look_for(self, name: str, paths: Iterable[NamedPath], translate: Translate | None = None) -> None:
        """Checks that files exist that properties name by a path that loads rewrite. translate: see `NamedPath`."""
        for path in paths:
            if path.target not in self._named:
                self._named.add(path.target)
                if path.dangles():
                    self.differences.add(difference(name, "file missing", path.source, None, path.key))
                elif self._comparison.level != "metadata" and path.differs(translate):
                    self.differences.add(difference(name, "file content", path.source, path.target, path.key))

    def _count(self, objects: int = 1) -> None:
        self.objects += objects

    def _differs(self, name: str, kind: str, source: str | None, target: str | None) -> None:
        self.differences.add(difference(name, kind, source, target))


def _plain(obj: V) -> V:
    """Removes values that cannot be equal on both sides: the servers' own times, and properties set by replication."""
    if isinstance(obj, Table | Partition):
        obj = comparable(obj)  # type: ignore[assignment]
        return msgspec.structs.replace(obj, create_time=0, parameters=without_marks(obj.parameters))
    if isinstance(obj, Database):
        return msgspec.structs.replace(obj, parameters=own_parameters(obj.parameters), extra={})
    return msgspec.structs.replace(obj, create_time=0, extra={})


def _at(obj: V, location: str | None, *, anywhere: bool = False) -> V:
    """Returns an object with its location as written by the target, if it is the same one (or `anywhere`)."""
    assert isinstance(obj, Table | Partition)
    storage = obj.storage
    if storage is None or not storage.location or not location or storage.location == location:
        return obj
    if not anywhere and normal(storage.location) != normal(location):
        return obj
    return msgspec.structs.replace(obj, storage=msgspec.structs.replace(storage, location=location))
