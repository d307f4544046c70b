"""Squashing: whatever happened at the source, replaying a range at once, record by record, or again after a load that
was cut off anywhere leaves the target as the source is.

Random histories run on a small model of a warehouse (a metastore that moves and deletes directories as Hive 2.3 does,
and a dictionary of files). The manifest folds them and says which file entries a capture would have written; the real
planner, file rules and committer replay them on a second model.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import replicator.replay.apply.commit as committing
import replicator.replay.apply.prepare as preparing
from cmroot.log.captured import FILES
from replicator.captures.dumps.layout import INCREMENTAL, DumpMetadata, Point, Scope
from replicator.captures.inventory import DataObject
from replicator.captures.manifest import Manifest, catch_up, consequences
from replicator.core.engine import AutoEngine, LocalEngine
from replicator.core.model import (
    CHECK,
    EXTERNAL,
    FOREIGN_KEY,
    HIVE,
    PRIMARY_KEY,
    Column,
    ColumnStatistic,
    Constraint,
    Database,
    Partition,
    Statistics,
    Storage,
    Table,
    partition_name,
)
from replicator.core.runtime import Runtime
from replicator.core.spark import SparkEngine
from replicator.errors import ObjectExists, ObjectNotFound
from replicator.metastore.events import record as kinds
from replicator.metastore.events.record import Change, ChangeRecord, encode
from replicator.metastore.traffic import Traffic
from replicator.replay.apply.commit import Commit
from replicator.replay.apply.copy_task import fold_entries
from replicator.replay.apply.prepare import Preparation
from replicator.replay.apply.prune import begun_places, by_place
from replicator.replay.apply.table_details import ConstraintCommit
from replicator.replay.apply.work import Work
from replicator.replay.deciding import looked_at, make_plan
from replicator.replay.neighbours import Leaving, SparedPlace
from replicator.replay.placement import Placement
from replicator.replay.plan import Plan, of_kind
from replicator.replay.replica import OWN, POSITION, SOURCE, Mark, replica_partition, replica_table
from replicator.replay.squash import gathered, squash, surviving_partitions
from replicator.replay.target import check_target, read_databases, read_part

DB = "d"
KEYS = (Column(name="p", type="string"),)
SOURCE_HOME, TARGET_HOME = "/source/d.db", "/target/d.db"
PLACEMENT = Placement({DB: DB}, {DB: SOURCE_HOME}, {DB: TARGET_HOME}, "/target/external")


ROOTS = itertools.count()


class Cut(Exception):
    """The load ends here."""


@dataclass
class Warehouse:
    """A model of a metastore with its files. `calls`: changes it allows before it cuts the caller off."""

    home: str
    tables: dict[str, Table] = field(default_factory=dict)
    parts: dict[str, dict[str, Partition]] = field(default_factory=dict)
    statistics: dict[tuple[str, str | None], Statistics] = field(default_factory=dict)
    keys: dict[str, dict[str, Constraint]] = field(default_factory=dict)  # constraints by table and name
    files: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    calls: int | None = None
    root: str = field(default_factory=lambda: f"memory://squash/{next(ROOTS)}")

    @property
    def scheme(self) -> str:
        return "" if self.home == SOURCE_HOME else "file:"

    # ---- files

    def below(self, place: str | None) -> dict[str, str]:
        top = f"{plain(place)}/"
        return {path.removeprefix(top): text for path, text in self.files.items() if path.startswith(top)}

    def in_root(self, place: str | None) -> dict[str, str]:
        """The files of a partitioned table that none of its partitions has."""
        return {path: text for path, text in self.below(place).items() if "/" not in path}

    def delete(self, place: str | None, kept: Sequence[SparedPlace] = ()) -> None:
        for path in self.below(place):
            if not any(each.covers(f"{plain(place)}/{path}") for each in kept):
                del self.files[f"{plain(place)}/{path}"]

    def move(self, old: str | None, new: str) -> None:
        for path in self.below(old):
            self.files[f"{plain(new)}/{path}"] = self.files.pop(f"{plain(old)}/{path}")

    # ---- what the loader asks of a metastore; drops are metadata only

    def _change(self) -> None:
        if self.calls is not None:
            self.calls -= 1
            if self.calls < 0:
                raise Cut

    def setting(self, key: str) -> str:
        return ""

    def database_names(self) -> list[str]:
        return [DB]

    def database(self, name: str) -> Database:
        return Database(name=DB, location=self.home, parameters=dict(self.parameters))

    def alter_database(self, name: str, database: Database) -> None:
        self._change()
        self.parameters = dict(database.parameters)

    def functions(self, db: str) -> list[Any]:
        return []

    def table_names(self, db: str) -> list[str]:
        return list(self.tables)

    def table(self, db: str, name: str) -> Table:
        if name not in self.tables:
            raise ObjectNotFound(name)
        return self.tables[name]

    def tables_named(self, names: Sequence[str]) -> list[Table]:
        return [self.tables[name] for name in names if name in self.tables]

    def create_table(self, table: Table) -> None:
        self._change()
        if table.name in self.tables:
            raise ObjectExists(table.name)
        self.tables[table.name] = table
        self.parts[table.name] = {}

    def drop_table(self, db: str, name: str) -> None:
        self._change()
        self.table(db, name)
        del self.tables[name], self.parts[name]
        self.keys.pop(name, None)
        self._refer_to(name, None)
        self.statistics = {key: each for key, each in self.statistics.items() if key[0] != name}

    def alter_table(self, db: str, name: str, table: Table) -> None:
        """A managed table that is renamed takes its directory and the partitions at or below it along."""
        self._change()
        before = self.table(db, name)
        if table.name != name:
            if table.name in self.tables:
                raise ObjectExists(table.name)
            if not table.is_external and table.location == before.location:
                old, new = before.location or "", f"{self.scheme}{self.home}/{table.name}"
                assert not self.below(new), f"{new} is in the way"
                self.move(old, new)
                table = at(table, new)
                for key, part in self.parts[name].items():
                    if f"{part.location}/".startswith(f"{old}/"):
                        self.parts[name][key] = at(part, new + (part.location or "")[len(old) :])
            self.parts[table.name] = self.parts.pop(name)
            if name in self.keys:
                self.keys[table.name] = self.keys.pop(name)
            self._refer_to(name, table.name)
            for key in [key for key in self.statistics if key[0] == name]:
                self.statistics[table.name, key[1]] = self.statistics.pop(key)
        del self.tables[name]
        self.tables[table.name] = table

    def partition_names(self, db: str, table: str) -> list[str]:
        return list(self.parts[table])

    def few_partitions(self, db: str, table: str) -> list[Partition]:
        return list(self.parts[table].values())

    def partitions(self, db: str, table: str, names: Sequence[str]) -> Iterator[list[Partition]]:
        yield [self.parts[table][name] for name in names if name in self.parts[table]]

    def add_partitions(self, db: str, table: str, partitions: Sequence[Partition]) -> None:
        self._change()
        for each in partitions:
            self.parts[table].setdefault(partition_name(KEYS, each.values), each)

    def alter_partitions(self, db: str, table: str, partitions: Sequence[Partition]) -> None:
        self._change()
        for each in partitions:
            assert partition_name(KEYS, each.values) in self.parts[table]
            self.parts[table][partition_name(KEYS, each.values)] = each

    def rename_partition(self, db: str, table: str, values: Sequence[str], partition: Partition) -> None:
        self._change()
        old, new = partition_name(KEYS, tuple(values)), partition_name(KEYS, partition.values)
        if new in self.parts[table]:
            raise ObjectExists(new)
        before = self.parts[table].pop(old)
        if not self.tables[table].is_external:
            place = f"{self.tables[table].location}/{new}"
            if before.location != place:
                assert not self.below(place), f"{place} is in the way"
                self.move(before.location, place)
            partition = at(partition, place)
        self.parts[table][new] = partition
        if (table, old) in self.statistics:
            self.statistics[table, new] = msgspec.structs.replace(self.statistics.pop((table, old)), partition=new)

    def drop_partitions(self, db: str, table: str, names: Sequence[str]) -> None:
        self._change()
        for name in names:
            self.parts[table].pop(name, None)
            self.statistics.pop((table, name), None)

    def set_table_statistics(self, statistics: Statistics) -> None:
        self._set_statistics(statistics)

    def set_partition_statistics(self, statistics: Sequence[Statistics]) -> None:
        for each in statistics:
            assert each.partition in self.parts[each.table]
            self._set_statistics(each)

    def _set_statistics(self, statistics: Statistics) -> None:
        """As a server does: those of other columns stay."""
        assert statistics.columns
        key = statistics.table, statistics.partition
        there = self.statistics[key].columns if key in self.statistics else ()
        merged = {each.column: each for each in (*there, *statistics.columns)}
        self.statistics[key] = msgspec.structs.replace(
            statistics, columns=tuple(merged[name] for name in sorted(merged))
        )

    def drop_statistics(self, db: str, table: str, partition: str, column: str, engine: str | None) -> None:
        assert engine == HIVE
        key = table, partition or None
        kept = tuple(each for each in self.statistics[key].columns if each.column != column)
        self.statistics[key] = msgspec.structs.replace(self.statistics[key], columns=kept)
        if not kept:
            del self.statistics[key]

    def statistics_engines(self) -> tuple[str, ...]:
        return (HIVE,)

    def _refer_to(self, old: str, new: str | None) -> None:
        """Foreign keys follow a table, or end with it."""
        for table, some in self.keys.items():
            followed = {
                name: msgspec.structs.replace(each, parent=(DB, new)) if new and each.parent == (DB, old) else each
                for name, each in some.items()
            }
            self.keys[table] = {name: each for name, each in followed.items() if new or each.parent != (DB, old)}

    def constraint_kinds(self) -> frozenset[str]:
        return frozenset((PRIMARY_KEY, FOREIGN_KEY, CHECK))

    def constraints(self, db: str, names: Sequence[str]) -> dict[str, tuple[Constraint, ...]]:
        return {name: tuple(self.keys[name].values()) for name in names if self.keys.get(name)}

    def foreign_keys(self, db: str) -> dict[str, tuple[Constraint, ...]]:
        found = {table: tuple(each for each in some.values() if each.parent) for table, some in self.keys.items()}
        return {table: some for table, some in found.items() if some}

    def add_constraint(self, db: str, table: str, constraint: Constraint) -> None:
        """Names are unique in a table, which has one primary key; a foreign key's parent has one."""
        self._change()
        self.table(db, table)
        there = self.keys.setdefault(table, {})
        assert constraint.name not in there, constraint
        assert constraint.kind != PRIMARY_KEY or not self.has_key(table), constraint
        assert not constraint.parent or self.has_key(constraint.parent[1]), constraint
        there[constraint.name] = constraint

    def has_key(self, table: str) -> bool:
        return any(each.kind == PRIMARY_KEY for each in self.keys.get(table, {}).values())

    def drop_constraint(self, db: str, table: str, name: str) -> None:
        """Foreign keys go with the key that they refer to: a server does not show them any more."""
        self._change()
        if name not in self.keys.get(table, {}):
            raise ObjectNotFound(name)
        going = self.keys[table].pop(name)
        if going.kind == PRIMARY_KEY:
            self._refer_to(table, None)

    def table_statistics(self, db: str, table: str, columns: Sequence[str]) -> Statistics | None:
        return self.statistics.get((table, None))

    def partition_statistics(
        self, db: str, table: str, columns: Sequence[str], names: Sequence[str]
    ) -> list[Statistics]:
        return [self.statistics[table, name] for name in names if (table, name) in self.statistics]


class AsReader:
    """A warehouse as a target that is read, whose word for fetching tables is the model's attribute."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._warehouse, name)

    traffic = Traffic()

    def everywhere(self) -> AsReader:
        return self

    def tables(self, db: str, names: Sequence[str], _: Any = None) -> list[Table]:
        return self._warehouse.tables_named(names)


def at(obj: Any, location: str) -> Any:
    return msgspec.structs.replace(obj, storage=msgspec.structs.replace(obj.storage, location=location))


# ---- histories ----------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c")
PARTS = ("1", "2", "3")
PLACES = ("/outside/x", "/outside/y", "/source/z")
SWEPT = ("/outside/x/p=1", *(f"{SOURCE_HOME}/{each}" for each in ("a", "b", "a/p=1")))
steps = st.one_of(
    st.tuples(st.just("create"), st.sampled_from(NAMES), st.booleans(), st.sampled_from((None, *PLACES))),
    st.tuples(st.just("drop"), st.sampled_from(NAMES)),
    st.tuples(st.just("rename"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("toggle"), st.sampled_from(NAMES)),
    st.tuples(st.just("alter"), st.sampled_from(NAMES)),
    st.tuples(st.just("locate"), st.sampled_from(NAMES), st.sampled_from(PLACES)),
    st.tuples(st.just("add"), st.sampled_from(NAMES), st.sampled_from(PARTS), st.sampled_from((None, None, *PLACES))),
    st.tuples(st.just("add"), st.sampled_from(NAMES), st.sampled_from(PARTS), st.none()),
    st.tuples(st.just("drop part"), st.sampled_from(NAMES), st.sampled_from(PARTS)),
    st.tuples(st.just("rename part"), st.sampled_from(NAMES), st.sampled_from(PARTS), st.sampled_from(PARTS)),
    st.tuples(st.just("rename part"), st.sampled_from(NAMES), st.sampled_from(PARTS), st.sampled_from(PARTS)),
    st.tuples(st.just("alter part"), st.sampled_from(NAMES), st.sampled_from(PARTS)),
    st.tuples(st.just("locate part"), st.sampled_from(NAMES), st.sampled_from(PARTS), st.sampled_from(PLACES)),
    st.tuples(st.just("write"), st.sampled_from(NAMES), st.sampled_from(PARTS), st.sampled_from("fg")),
    st.tuples(st.just("write"), st.sampled_from(NAMES), st.sampled_from(PARTS), st.sampled_from("fg")),
    st.tuples(st.just("remove"), st.sampled_from(NAMES), st.sampled_from(PARTS), st.sampled_from("fg")),
    st.tuples(st.just("analyze"), st.sampled_from(NAMES), st.sampled_from((*PARTS, ""))),
    st.tuples(st.just("constrain"), st.sampled_from(NAMES), st.sampled_from((PRIMARY_KEY, CHECK))),
    st.tuples(st.just("refer"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(
        st.just("sweep"),
        st.sampled_from((*PLACES, "/outside/x/p=1", *(f"{SOURCE_HOME}/{each}" for each in ("a", "b", "a/p=1")))),
    ),
    st.tuples(st.just("list")),
)


FIRST: list[tuple[Any, ...]] = [  # so that most steps find something to do
    ("create", "a", True, None),
    ("add", "a", "1", None),
    ("write", "a", "1", "f"),
    ("add", "a", "2", None),
    ("write", "a", "2", "f"),
    ("create", "b", False, None),
    ("write", "b", "", "f"),
    ("create", "c", True, "/outside/x"),
    ("add", "c", "1", None),
    ("write", "c", "1", "f"),
]


class History:
    """A source at work, and what a capture writes about it: records, and rows of file entries."""

    def __init__(self, *, crowded: bool = False) -> None:
        """crowded: objects may lie at, above and below each other."""
        self.crowded = crowded
        self.source = Warehouse(SOURCE_HOME)
        self.manifest = Manifest(":memory:")
        self.records: list[ChangeRecord] = []
        self.rows: list[pa.Table] = []
        self._numbers = itertools.count(1)
        self._base = 0

    @property
    def position(self) -> int:
        return len(self.records)

    def run(self, step: tuple[Any, ...]) -> None:
        """Does one step if it is possible, else nothing."""
        what, *rest = step
        getattr(self, what.replace(" ", "_"))(*rest)

    def _record(self, change: Change, *, observed: bool = False) -> int:
        record = ChangeRecord(
            position=self.position + 1, event=self.position + 1, time=0, change=change, observed=observed
        )
        self.records.append(record)
        follow = consequences(self.manifest, change)
        self.manifest.apply(record)
        for each in follow:
            self._record(each)
        return record.position

    def _free(self, place: str) -> bool:
        """Whether nothing lies at, above or below a place."""
        taken = [each.location or "" for each in self.source.tables.values()]
        taken += [each.location or "" for parts in self.source.parts.values() for each in parts.values()]
        return not any(f"{a}/".startswith(f"{b}/") for one in taken for a, b in ((one, place), (place, one)))

    def _part(self, name: str, value: str) -> tuple[Table, str, Partition] | None:
        table = self.source.tables.get(name)
        part = self.source.parts.get(name, {}).get(f"p={value}")
        return (table, f"p={value}", part) if table and part else None

    def create(self, name: str, partitioned: bool, place: str | None, managed: bool = False) -> None:
        place, external = place or f"{SOURCE_HOME}/{name}", bool(place) and not managed
        if name in self.source.tables or not (self.crowded or self._free(place)):
            return
        number = next(self._numbers)
        table = Table(
            db=DB,
            name=name,
            kind=EXTERNAL if external else "MANAGED_TABLE",
            create_time=number,
            partition_keys=KEYS if partitioned else (),
            parameters={"n": str(number), **({"EXTERNAL": "TRUE"} if external else {})},
            storage=Storage(location=place),
        )
        self.source.create_table(table)
        self._record(kinds.CreateTable(table=table))

    def drop(self, name: str, data: bool = True) -> None:
        table = self.source.tables.get(name)
        if table is None:
            return
        if not table.is_external and data:
            for part in self.source.parts[name].values():
                self.source.delete(part.location or "")
            self.source.delete(table.location or "")
        self.source.drop_table(DB, name)
        self._record(kinds.DropTable(db=DB, name=name))

    def rename(self, name: str, new: str) -> None:
        table = self.source.tables.get(name)
        place = f"{SOURCE_HOME}/{new}"
        if table is None or new in self.source.tables:
            return
        if not table.is_external and (self.source.below(place) or not self._free(place)):
            return
        self.source.alter_table(DB, name, msgspec.structs.replace(table, name=new))
        after = self.source.tables[new]
        moved = after.location != table.location
        self._record(kinds.AlterTable(db=DB, name=name, table=after, moved=moved, location_before=table.location))

    def toggle(self, name: str) -> None:
        """A managed table becomes an external one, or the other way round."""
        table = self.source.tables.get(name)
        if table is not None:
            self._altered(table, of_kind(table, external=not table.is_external))

    def alter(self, name: str) -> None:
        table = self.source.tables.get(name)
        if table is not None:
            self._altered(
                table, msgspec.structs.replace(table, parameters=table.parameters | {"n": str(next(self._numbers))})
            )

    def locate(self, name: str, place: str) -> None:
        table = self.source.tables.get(name)
        if table is None or not self._free(place):
            return
        if table.is_partitioned and not table.is_external:
            return  # not followed: a rename after this moves partitions on the target that stay where they are here
        self._altered(table, at(table, place))

    def _altered(self, before: Table, after: Table) -> None:
        self.source.alter_table(DB, before.name, after)
        self._record(kinds.AlterTable(db=DB, name=before.name, table=after, location_before=before.location))

    def add(self, name: str, value: str, place: str | None) -> None:
        table = self.source.tables.get(name)
        if table is None or not table.is_partitioned or f"p={value}" in self.source.parts[name]:
            return
        location = place or f"{table.location}/p={value}"
        if place and not (self.crowded or self._free(place)):
            return
        number = next(self._numbers)
        part = Partition(
            values=(value,), create_time=number, storage=Storage(location=location), parameters={"n": str(number)}
        )
        self.source.add_partitions(DB, name, [part])
        self._record(kinds.AddPartitions(db=DB, table=name, keys=("p",), partitions=(part,)))

    def drop_part(self, name: str, value: str, data: bool = True) -> None:
        found = self._part(name, value)
        if found:
            table, key, part = found
            if not table.is_external and data:
                self.source.delete(part.location or "")
            self.source.drop_partitions(DB, name, [key])
            self._record(kinds.DropPartitions(db=DB, table=name, names=(key,)))

    def rename_part(self, name: str, value: str, new: str) -> None:
        found = self._part(name, value)
        if not found or f"p={new}" in self.source.parts[name]:
            return
        table, key, part = found
        if not table.is_external and self.source.below(f"{table.location}/p={new}"):
            return
        self.source.rename_partition(DB, name, [value], msgspec.structs.replace(part, values=(new,)))
        after = self.source.parts[name][f"p={new}"]
        moved = after.location != part.location
        self._record(
            kinds.AlterPartition(
                db=DB,
                table=name,
                before=key,
                name=f"p={new}",
                partition=after,
                moved=moved,
                location_before=part.location,
            )
        )

    def alter_part(self, name: str, value: str) -> None:
        found = self._part(name, value)
        if found:
            _, _, part = found
            self._altered_part(name, part, msgspec.structs.replace(part, parameters={"n": str(next(self._numbers))}))

    def locate_part(self, name: str, value: str, place: str) -> None:
        found = self._part(name, value)
        if found and self._free(place):
            self._altered_part(name, found[2], at(found[2], place))

    def _altered_part(self, table: str, before: Partition, after: Partition) -> None:
        self.source.alter_partitions(DB, table, [after])
        key = partition_name(KEYS, before.values)
        self._record(
            kinds.AlterPartition(
                db=DB, table=table, before=key, name=key, partition=after, location_before=before.location
            )
        )

    def _object(self, name: str, value: str) -> Table | Partition | None:
        table = self.source.tables.get(name)
        if table is not None and table.is_partitioned:
            return self.source.parts[name].get(f"p={value}")
        return table

    def write(self, name: str, value: str, file: str) -> None:
        obj = self._object(name, value)
        if obj is not None:
            self.source.files[f"{obj.location}/{file}"] = f"text {next(self._numbers)}"

    def remove(self, name: str, value: str, file: str) -> None:
        obj = self._object(name, value)
        if obj is not None:
            self.source.files.pop(f"{obj.location}/{file}", None)

    def sweep(self, place: str) -> None:
        """An owner removes what dropped objects left, which no capture sees."""
        if self._unused(place):
            self.source.delete(place)

    def _unused(self, place: str) -> bool:
        """Whether no table or partition has its data at, above or below a place. A partitioned table's own directory
        above it is no data."""
        tables = self.source.tables.values()
        data = [each.location or "" for each in tables if not each.is_partitioned]
        data += [each.location or "" for parts in self.source.parts.values() for each in parts.values()]
        return not any(f"{a}/".startswith(f"{b}/") for one in data for a, b in ((one, place), (place, one)))

    def _scan(self) -> None:
        """Marks every object whose directory has changed; two partitions may share one."""
        for name, table in self.source.tables.items():
            for key in list(self.source.parts[name]) if table.is_partitioned else [""]:
                found = self.manifest._fold._object_ids(DB, name, key)
                assert found
                obj = self.source.parts[name][key] if key else table
                known = {path: file.checksum for path, file in self.manifest.files(*found[:2]).items()}
                if known != self.source.below(obj.location or ""):
                    self.manifest.unlist([found[:2]])

    def analyze(self, name: str, value: str) -> None:
        """Without a value of the table, also of one with partitions."""
        obj = self._object(name, value) if value else self.source.tables.get(name)
        if obj is None:
            return
        key = f"p={value}" if isinstance(obj, Partition) else None
        number = next(self._numbers)
        counted = ColumnStatistic(column=f"c{number % 3}", type="long", data={"number": number})
        statistics = Statistics(db=DB, table=name, partition=key, columns=(counted,))
        before = self.source.statistics.get((name, key))
        if number % 4 == 0 and before:
            for column in before.columns:
                self.source.drop_statistics(DB, name, key or "", column.column, HIVE)
        else:
            (
                self.source.set_partition_statistics([statistics])
                if key
                else self.source.set_table_statistics(statistics)
            )
        now = self.source.statistics.get((name, key), Statistics(db=DB, table=name, partition=key))
        self._record(kinds.SetStatistics(db=DB, table=name, statistics=(now,)), observed=True)

    def constrain(self, name: str, kind: str) -> None:
        """A constraint that is there goes."""
        if name not in self.source.tables:
            return
        before = {table: dict(some) for table, some in self.source.keys.items()}
        there = [each for each in before.get(name, {}).values() if each.kind == kind]
        if there:
            self.source.drop_constraint(DB, name, there[0].name)
        else:
            made = Constraint(kind=kind, name=f"{kind[0]}{next(self._numbers)}", columns=("c",))
            self.source.add_constraint(DB, name, made)
        self._constrained(before)

    def refer(self, name: str, parent: str) -> None:
        """A foreign key of the table, to itself too; one that is there goes."""
        if not {name, parent} <= self.source.tables.keys():
            return
        before = {table: dict(some) for table, some in self.source.keys.items()}
        there = [each for each in before.get(name, {}).values() if each.parent == (DB, parent)]
        if there:
            self.source.drop_constraint(DB, name, there[0].name)
        elif self.source.has_key(parent):
            made = Constraint(
                kind=FOREIGN_KEY,
                name=f"F{next(self._numbers)}",
                columns=("c",),
                parent=(DB, parent),
                parent_columns=("c",),
            )
            self.source.add_constraint(DB, name, made)
        self._constrained(before)

    def _constrained(self, before: dict[str, dict[str, Constraint]]) -> None:
        """Whole, table by table, as a capture records what an event or another table's change says."""
        for table, some in self.source.keys.items():
            if some != before.get(table, {}):
                self._record(kinds.SetConstraints(db=DB, table=table, constraints=tuple(some.values())))

    def list(self) -> None:
        """A capture lists what may have changed, and ends."""
        written: dict[str, int] = {}
        self._scan()
        for things in list(self.manifest.unlisted(1000)):
            self.manifest.mark_listed(things)
            for obj in things:
                rows = self._rows(obj, written)
                if rows is not None:
                    self.rows.append(rows)
                    self.manifest.apply_files(rows)
        self._base = self.position

    def _rows(self, obj: DataObject, written: dict[str, int]) -> pa.Table | None:
        known = {path: file.checksum for path, file in self.manifest.files(obj.table_id, obj.partition_id).items()}
        now = self.source.in_root(obj.location) if obj.root else self.source.below(obj.location)
        changed = [("add", path, text) for path, text in now.items() if known.get(path) != text]
        changed += [("remove", path, None) for path in known if path not in now]
        if not changed:
            return None
        position = obj.touched
        if position <= self._base:
            if obj.table not in written:
                written[obj.table] = self._record(kinds.ChangeFiles(db=DB, table=obj.table), observed=True)
            position = written[obj.table]
        rows = [
            {
                "position": position,
                "op": op,
                "db": DB,
                "table": obj.table,
                "partition": obj.partition,
                "path": path,
                "location": obj.location,
                "size": 1 if text else None,
                "mtime_ns": 1,
                "checksum": text,
                "identity": text,
                "version": None,
            }
            for op, path, text in changed
        ]
        return pa.Table.from_pylist(rows, schema=FILES)


# ---- replaying ----------------------------------------------------------------------------------------------------


class ModelWork(Work):
    """A load on the model's files."""

    def recycle(self, directories: Any, leaving: Leaving, staying: Any = ()) -> None:
        for each in self.neighbours.free(directories, leaving).clearings:
            self.target._change()  # type: ignore[attr-defined]
            self.target.delete(each.directory, each.kept)  # type: ignore[attr-defined]


class ModelPreparation(Preparation):
    """The same."""

    def _carry(self, name: Any, pairs: Sequence[tuple[str, str]], *, of_roots: bool = False) -> None:
        target: Any = self._work.target
        for old, new in pairs:
            for path, text in (target.in_root(old) if of_roots else target.below(old)).items():
                target.files.setdefault(f"{plain(new)}/{path}", text)


def replay(history: History, target: Warehouse, begin: int, end: int, tables: dict[str, Table]) -> None:
    """Loads the records after `begin` up to `end`; `tables` are the source's at `end`."""
    metadata = DumpMetadata(  # what a dump of that range says
        id=f"{begin}-{end}",
        kind=INCREMENTAL,
        created="",
        scope=Scope((DB,)),
        source="",
        root="",
        root_id="root",
        begin=Point(begin, begin, 0),
        end=Point(end, end, 0),
        locations={DB: SOURCE_HOME},
        records=0,
        files=0,
        removed=0,
        bytes=0,
        observed=0,
        buckets=1,
    )
    reader: Any = AsReader(target)
    there = read_databases(reader, [DB])
    after = check_target(metadata, PLACEMENT, there, overwrite=False)
    if after is None:
        return
    records = [record for record in history.records if after < record.position <= end]
    squashed = squash(records, tables.values(), bootstrap=False)
    parts = looked_at(squashed, PLACEMENT)
    there = {name: read_part(reader, each, parts[name]) for name, each in there.items()}
    plan = make_plan(Plan(metadata, PLACEMENT, after, squashed), there)
    work = ModelWork(plan, reader, target.root, Runtime(ENGINE, jobs=1))
    constraints = ConstraintCommit(work)
    constraints.remember()
    ModelPreparation(work).prepare()
    commit = Commit(work)
    rows = [each.filter(pc.less_equal(each["position"], end)) for each in history.rows]
    wanted, removed = fold_entries(rows, plan.file_rules())
    named = {file.target for file in wanted}
    begun = by_place(begun_places(plan, surviving_partitions(squashed, records)))
    for place, owners in begun.items():
        for each in work.neighbours.free([place], Leaving(partitions=owners)).clearings:
            for path in target.below(place):
                there = f"{plain(place)}/{path}"
                if there not in named and not any(kept.covers(there) for kept in each.kept):
                    target._change()
                    del target.files[there]
    for file in wanted:
        assert file.checksum is not None
        target.files[file.target] = file.checksum
    for path in removed:
        target.files.pop(path, None)
    constraints.drop()
    commit.tables(lambda steps: None)
    commit.partitions(gathered(surviving_partitions(squashed, records), size=2, waiting=3), lambda steps: None)
    commit.statistics()
    constraints.add()
    commit.checkpoint()


ENGINE = AutoEngine(LocalEngine(1), SparkEngine(), choice="local")


def shown(warehouse: Warehouse) -> dict[str, Any]:
    """All that a query could see, in the target's places."""
    is_source = warehouse.home == SOURCE_HOME
    facts: dict[str, Any] = {}
    mark = Mark(0, 0, "")
    for name, table in warehouse.tables.items():
        replica = replica_table(table, PLACEMENT, mark) if is_source else table
        parameters = {key: value for key, value in replica.parameters.items() if not key.startswith(OWN)}
        facts[name] = msgspec.structs.replace(replica, parameters=parameters, create_time=0)
        if not table.is_partitioned:
            facts[f"{name} files"] = warehouse.below(table.location)
        for key, part in warehouse.parts[name].items():
            replica_part = replica_partition(part, table, PLACEMENT) if is_source else part
            facts[f"{name}/{key}"] = msgspec.structs.replace(replica_part, create_time=0)
            facts[f"{name}/{key} files"] = warehouse.below(part.location)
    facts["constraints"] = {table: some for table, some in warehouse.keys.items() if some}
    facts["statistics"] = {key: each.columns for key, each in warehouse.statistics.items()}
    return facts


def plain(location: str | None) -> str:
    return (location or "").removeprefix("file:")


# ---- what must hold -----------------------------------------------------------------------------------------------

thorough = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def no_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """The committer's own steps outside the metastore; the model has no directories."""
    monkeypatch.setattr(committing, "make_directory", lambda *places: "")
    monkeypatch.setattr(preparing, "exists", lambda location: True)


def begun(
    before: Sequence[tuple[Any, ...]], after: Sequence[tuple[Any, ...]], *, crowded: bool = False
) -> tuple[History, Warehouse, int]:
    """A history with both parts, a target that has the first, and where that ended."""
    history = History(crowded=crowded)
    for step in [*FIRST, *before, ("list",)]:
        history.run(step)
    target = Warehouse(TARGET_HOME, parameters={POSITION: "0", SOURCE: "root"})
    begin = history.position
    replay(history, target, 0, begin, tables_at(history, begin))
    assert shown(target) == shown(history.source)
    for step in [*after, ("list",)]:
        history.run(step)
    return history, target, begin


def tables_at(history: History, position: int) -> dict[str, Table]:
    manifest = Manifest(":memory:")
    for record in history.records[:position]:
        manifest.apply(record)
    found = {name: manifest.table(DB, name) for name in manifest.table_names(DB)}
    manifest.close()
    return {name: table for name, table in found.items() if table}


@thorough
@example([], [("drop", "c"), ("locate", "b", "/outside/x"), ("drop", "b"), ("locate part", "a", "1", "/outside/x")])
@example([], [("constrain", "b", PRIMARY_KEY), ("refer", "a", "b"), ("drop", "c"), ("rename", "b", "c")])
@given(st.lists(steps, max_size=12), st.lists(steps, min_size=1, max_size=16))
def test_a_range_at_once_leads_to_the_state_of_the_source(before: Any, after: Any) -> None:
    history, target, begin = begun(before, after)
    replay(history, target, begin, history.position, tables_at(history, history.position))
    assert shown(target) == shown(history.source)


@thorough
@example([], [("drop part", "c", "1"), ("sweep", "/outside/x/p=1"), ("add", "c", "1", None), ("write", "c", "1", "g")])
@example([], [("toggle", "b"), ("drop", "b"), ("sweep", f"{SOURCE_HOME}/b"), ("rename", "a", "b")])
@example(
    [],
    [
        ("toggle", "a"),
        ("drop part", "a", "1"),
        ("sweep", f"{SOURCE_HOME}/a/p=1"),
        ("toggle", "a"),
        ("rename part", "a", "2", "1"),
    ],
)
@given(st.lists(steps, max_size=8), st.lists(steps, min_size=1, max_size=12))
def test_a_range_record_by_record_leads_to_the_same(before: Any, after: Any) -> None:
    history, target, begin = begun(before, after)
    for position in range(begin, history.position):
        replay(history, target, position, position + 1, tables_at(history, position + 1))
    assert shown(target) == shown(history.source)


CROWDED = (
    None,
    None,
    "/outside/x",
    "/outside/x/sub",
    "/outside/x/p=1",
    "/outside/x/p=1/sub",
    f"{SOURCE_HOME}/a",
    f"{SOURCE_HOME}/a/p=1",
    f"{SOURCE_HOME}/a/sub",
    f"{SOURCE_HOME}/b/p=2",
)
crowding = st.one_of(
    st.tuples(st.just("create"), st.sampled_from(NAMES), st.booleans(), st.sampled_from(CROWDED), st.booleans()),
    st.tuples(st.just("drop"), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just("add"), st.sampled_from(NAMES), st.sampled_from(PARTS), st.sampled_from(CROWDED)),
    st.tuples(st.just("drop part"), st.sampled_from(NAMES), st.sampled_from(PARTS), st.booleans()),
    st.tuples(st.just("write"), st.sampled_from(NAMES), st.sampled_from(PARTS), st.sampled_from(("f", "sub/g"))),
    st.tuples(st.just("remove"), st.sampled_from(NAMES), st.sampled_from(PARTS), st.sampled_from(("f", "sub/g"))),
    st.tuples(st.just("rename"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("list")),
)


@thorough
@example([], [("drop", "c", True), ("add", "a", "3", f"{SOURCE_HOME}/a"), ("rename", "a", "c")], True)
@given(st.lists(crowding, max_size=12), st.lists(crowding, min_size=1, max_size=16), st.booleans())
def test_objects_that_lie_in_each_other_are_emptied_by_nobody(before: Any, after: Any, at_once: bool) -> None:
    history, target, begin = begun(before, after, crowded=True)
    ends = [history.position] if at_once else range(begin + 1, history.position + 1)
    for start, end in itertools.pairwise([begin, *ends]):
        replay(history, target, start, end, tables_at(history, end))
    assert shown(target) == shown(history.source)


@dataclass(frozen=True)
class OneSegment:
    """A whole history as one segment of a log: renames and file entries all at once."""

    history: History
    first: int = 1
    place: str = "log"
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def last(self) -> int:
        return self.history.position

    def records(self, after: int, until: int | None) -> Iterator[bytes]:
        yield from (encode(each) for each in self.history.records if each.position > after)

    def file_batches(self) -> Iterator[pa.RecordBatch]:
        for rows in self.history.rows:
            yield from rows.to_batches()


@thorough
@given(st.lists(steps, max_size=24))
def test_a_manifest_folded_from_the_log_is_the_one_that_capture_had(happened: Any) -> None:
    history = History()
    for step in [*FIRST, *happened, ("list",)]:
        history.run(step)
    folded = Manifest(":memory:")
    catch_up(folded, [OneSegment(history)])  # type: ignore[list-item]
    for name in history.source.tables:
        assert folded.table(DB, name) == history.manifest.table(DB, name)
        assert list(folded.partitions(DB, name)) == list(history.manifest.partitions(DB, name))
        assert sorted(folded.table_files(DB, name)) == sorted(history.manifest.table_files(DB, name))
        assert folded.statistics(DB, name) == history.manifest.statistics(DB, name)


@thorough
@given(st.lists(steps, max_size=24))
def test_every_reference_that_was_begun_is_live_or_was_ended_once(happened: Any) -> None:
    """What expiry believes: a reference too few that is live, and bytes go that the source has."""
    history = History()
    for step in [*FIRST, *happened, ("list",)]:
        history.run(step)
    balance: Counter[str] = Counter()
    for rows in [*history.rows, *history.manifest.ended()]:
        for op, checksum in zip(rows["op"].to_pylist(), rows["checksum"].to_pylist(), strict=True):
            if checksum is not None:
                balance[checksum] += {"add": 1, "release": -1}[op]
    live = Counter(file[6] for name in history.source.tables for file in history.manifest.table_files(DB, name))
    assert {text: count for text, count in balance.items() if count} == live


@thorough
@given(st.lists(steps, max_size=12), st.lists(steps, min_size=1, max_size=16), st.lists(st.integers(0, 12), max_size=3))
@example([("analyze", "a", "1")], [("locate part", "a", "1", "/outside/y"), ("rename part", "a", "1", "3")], [])
def test_a_load_that_was_cut_off_is_just_run_again(before: Any, after: Any, cuts: list[int]) -> None:
    history, target, begin = begun(before, after)
    for cut in cuts:
        target.calls = cut
        with suppress(Cut):
            replay(history, target, begin, history.position, tables_at(history, history.position))
    target.calls = None
    replay(history, target, begin, history.position, tables_at(history, history.position))
    assert shown(target) == shown(history.source)
