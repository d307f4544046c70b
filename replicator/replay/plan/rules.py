"""File rules, which map file entries of a dump to paths on the target. Pure: planning makes them, copying uses them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from cmroot.errors import UnknownPlace
from cmroot.store.place import join, normal, parent, tidied
from replicator.core.model import EXTERNAL, MANAGED, TRANSLATED, Partition, Storage, Table
from replicator.replay.places.placement import PUBLISHED, Placement, is_published, relative, uri, usual_place
from replicator.replay.plan.squash import Move, Squashed, follow


@dataclass(frozen=True)
class PartitionRule:
    """The rule of a partition that had a name from position `begin` on. Entries before `since` are void; `now`: its
    last name; `moves`: moves of its own directory; `gone`: it was dropped."""

    begin: int
    since: int
    now: str
    moves: tuple[Move, ...] = ()
    gone: bool = False


@dataclass(frozen=True)
class TableRule:
    """The rule of a table under one of its names, from position `begin` to `end` (None: the end of the range): its
    final database and source location, the moves of its directory, and the position from which entries count. `gone`:
    none of its files are wanted. `partitions`: rules by each of their names. `name`: its last name on the target.
    `place`: the directory in which the load publishes it, with partitions below it by name (None: in the source's
    layout). `only`: the objects that are published, "" for the table's own files (None: all)."""

    begin: int
    end: int | None
    db: str
    since: int
    location: str | None
    moves: tuple[Move, ...]
    gone: bool
    partitions: dict[str, list[PartitionRule]] = field(default_factory=dict)
    name: tuple[str, str] | None = None
    place: str | None = None
    only: frozenset[str] | None = None

    def partition(self, name: str, position: int) -> PartitionRule | None:
        """Returns the partition that had a name at a position; None if it requires no rule."""
        candidates = [rule for rule in self.partitions.get(name, ()) if rule.begin <= position]
        return max(candidates, key=lambda rule: rule.begin, default=None)


@dataclass(frozen=True)
class FileRules:
    """The rules that map file entries to paths on the target."""

    placement: Placement
    tables: dict[tuple[str, str], list[TableRule]]
    after: int  # entries up to this position were loaded before

    def places(self, position: int, db: str, table: str, partition: str, location: str) -> tuple[str, str] | None:
        """Returns the present locations of an entry's object, (source, target); None if the entry is void."""
        found = self._rules(position, db, table, partition)
        if found is None:
            return None
        rule, about = found
        if rule.only is not None and (about.now if about else partition) not in rule.only:
            return None
        moves = tuple(sorted(rule.moves + about.moves)) if about else rule.moves
        now = follow(location, position, moves)
        if rule.place is not None:
            return now, join(rule.place, about.now if about else partition)
        return now, self.placement.inside(rule.db, rule.location, now)

    def object_at(self, position: int, db: str, table: str, partition: str) -> tuple[tuple[str, str], str] | None:
        """Returns the object of an entry by its last names: (table of the target, partition); None if the entry is
        void, or if its table does not remain."""
        found = self._rules(position, db, table, partition)
        if found is None or found[0].name is None:
            return None
        return found[0].name, found[1].now if found[1] else partition

    def _rules(
        self, position: int, db: str, table: str, partition: str
    ) -> tuple[TableRule, PartitionRule | None] | None:
        rule = None
        for candidate in self.tables.get((db, table), ()):
            if candidate.begin <= position and (candidate.end is None or position <= candidate.end):
                rule = candidate
        if rule is None or rule.gone or position < rule.since or position <= self.after:
            return None
        about = rule.partition(partition, position) if partition else None
        if about is not None and (about.gone or position < about.since):
            return None
        return rule, about


# ---- published -------------------------------------------------------------------------------------------------------
# Published places: where `publish = "snapshot"` stores the changes of a load, so that one call switches to them. Pure.
#
#     <database's location>/.published/<dump id>/<database>.<table>[/<partition's name>]
#
# The last component of a location is never hidden, because MapReduce would skip it. A component above it is hidden, so
# a listing of the database's directory, or of an enclosing table's, does not show unpublished files. Each load has
# directories of its own, so two loads never write into the same one. For a table that a mapping locates elsewhere,
# `.published` is next to the table.


def place_of(home: str, load: str, db: str, table: str) -> str:
    """Returns a table's directory in a load; its partitions are located below it, by their names."""
    return join(home, PUBLISHED, load, f"{db}.{table}")


def staging_of(load: str, there: Table) -> str:
    """Returns where a table in the source's layout is moved before its rename; otherwise a server would move it."""
    return place_of(parent(there.location or ""), f"{load}-renamed", there.db, there.name)


def is_moved_by_renaming(there: Table) -> bool:
    """Returns True if a server may move a table's directory when it renames it: the location follows the name."""
    return there.owns_data and there.location is not None and not is_published(there.location)


def of_kind(table: Table, *, external: bool) -> Table:
    """Returns a table as a managed or an external one, by the criteria of a server."""
    parameters = {key: value for key, value in table.parameters.items() if key not in ("EXTERNAL", TRANSLATED)}
    parameters |= {"EXTERNAL": "TRUE"} if external else {}
    return msgspec.structs.replace(table, kind=EXTERNAL if external else MANAGED, parameters=parameters)


def home_of(placement: Placement, source_db: str, usual: str) -> str:
    """Returns the directory above `.published`. `usual`: the table's location in the source's layout."""
    if is_published(usual):
        return tidied(usual).partition(f"/{PUBLISHED}/")[0]
    database = placement.target_locations[source_db]
    return tidied(database if relative(usual, database) is not None else parent(tidied(usual)))


def with_table_at(placement: Placement, table: Table, place: str) -> Placement:
    """Returns a placement that locates a source's table at a path of the target."""
    return replace(placement, mappings=((table.location or "", place), *placement.mappings))


def table_at_place(table: Table, old: str, place: str) -> Table:
    """Returns a table located at `place`, with all its paths below the old location changed accordingly."""
    storage = table.storage
    assert storage is not None
    serde = {key: _moved(value, old, place) for key, value in storage.serde.parameters.items()}
    storage = msgspec.structs.replace(
        storage, location=uri(place), serde=msgspec.structs.replace(storage.serde, parameters=serde)
    )
    return msgspec.structs.replace(table, storage=storage)


def without_path(table: Table) -> Table:
    """Returns a table of Spark's own kind without the `path` property that repeats its location: a server that moves
    the directory by a rename updates the location only. Any other table is returned unchanged."""
    storage = table.storage
    if storage is None or table.is_view or not (storage.location and table.location):
        return table
    serde = {key: value for key, value in storage.serde.parameters.items() if key.lower() != "path"}
    if serde == storage.serde.parameters or normal(storage.location) != normal(table.location):
        return table
    return _with_serde(table, storage, serde)


def with_path(table: Table) -> Table:
    """Returns a table of Spark's own kind with a `path` property equal to its location."""
    storage = table.storage
    assert storage is not None and storage.location
    return _with_serde(table, storage, {**storage.serde.parameters, "path": storage.location})


def _with_serde(table: Table, storage: Storage, parameters: dict[str, str]) -> Table:
    serde = msgspec.structs.replace(storage.serde, parameters=parameters)
    return msgspec.structs.replace(table, storage=msgspec.structs.replace(storage, serde=serde))


def at_place(partition: Partition, place: str) -> Partition:
    """Returns a partition located at `place`, with all its paths below the old location changed accordingly."""
    storage, old = partition.storage, partition.location
    if storage is None or old is None or normal(old) == normal(place):
        return partition

    def moved(values: Mapping[str, str]) -> dict[str, str]:
        return {key: _moved(value, old, place) for key, value in values.items()}

    serde = msgspec.structs.replace(storage.serde, parameters=moved(storage.serde.parameters))
    storage = msgspec.structs.replace(storage, location=uri(place), serde=serde, parameters=moved(storage.parameters))
    return msgspec.structs.replace(partition, storage=storage, parameters=moved(partition.parameters))


def _moved(value: str, old: str, place: str) -> str:
    if "/" in value:
        with contextlib.suppress(UnknownPlace):  # text that only resembles a path
            if (below := relative(value, old)) is not None:
                return uri(join(place, below))
    return value


def of_published_tables(placement: Placement, squashed: Squashed) -> Placement:
    """Returns a placement for a source that was a replica once and has tables in published places. Each is located as
    its name determines, as two tables may have had the same name in turn."""
    own = []
    for lineage in squashed.lineages:
        table = lineage.table
        if table is not None and not table.is_view and table.location and is_published(table.location):
            usual, _ = usual_place(table.location)
            own.append((table.location, placement.table(table.db, join(parent(usual), table.name))))
    return replace(placement, mappings=(*own, *placement.mappings)) if own else placement
