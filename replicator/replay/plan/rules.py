"""File rules: what turns a file entry of a dump into a place on the target. Pure: planning makes, copying asks them."""

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
    """What a task must know of a partition that had a name from position `begin` on: entries before `since` are void;
    `now`: its last name; `moves`: of its own directory; `gone`: it was dropped."""

    begin: int
    since: int
    now: str
    moves: tuple[Move, ...] = ()
    gone: bool = False


@dataclass(frozen=True)
class TableRule:
    """A table by one of its names, from position `begin` to `end` (None: the end of the range): its final database and
    source location, the moves of its directory, and from which position entries count. `gone`: nothing of it is wanted.
    `partitions`: by each of their names. `name`: its last one on the target. `place`: where the load publishes it,
    partitions by their names below (None: in the source's layout). `only`: the
    objects that are published, "" for the table's own files (None: all)."""

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
        """The partition that had a name at a position; None for one that needs no rule."""
        candidates = [rule for rule in self.partitions.get(name, ()) if rule.begin <= position]
        return max(candidates, key=lambda rule: rule.begin, default=None)


@dataclass(frozen=True)
class FileRules:
    """All that turns a file entry into a place on the target."""

    placement: Placement
    tables: dict[tuple[str, str], list[TableRule]]
    after: int  # entries up to this position were loaded before

    def places(self, position: int, db: str, table: str, partition: str, location: str) -> tuple[str, str] | None:
        """Where the object of an entry lies now, at the source and on the target; None when the entry is void."""
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
        """The object of an entry by its last names: (table of the target, partition); None when the entry is void, or
        its table does not stay."""
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
# Published places: where `publish = "snapshot"` puts what a load changes, so that it can be flipped to at once. Pure.
#
#     <database's location>/.published/<dump id>/<database>.<table>[/<partition's name>]
#
# The last name of a location is never hidden, which MapReduce would pass over; a name above it is, so nobody who lists
# the database's directory, or that of a table around it, meets what is not flipped to yet. A load has directories of
# its own, so two of them never write into one. Beside a table that a mapping puts elsewhere, `.published` lies there,
# too.


def place_of(home: str, load: str, db: str, table: str) -> str:
    """A table's place in a load; its partitions lie below it, by their names."""
    return join(home, PUBLISHED, load, f"{db}.{table}")


def staging_of(load: str, there: Table) -> str:
    """Where a table in the source's layout goes before it gets another name, as a server would move it else."""
    return place_of(parent(there.location or ""), f"{load}-renamed", there.db, there.name)


def is_moved_by_renaming(there: Table) -> bool:
    """Whether a server may move a table's directory when it renames it: where it lies as its name says."""
    return there.owns_data and there.location is not None and not is_published(there.location)


def of_kind(table: Table, *, external: bool) -> Table:
    """A table as a managed or an external one, as a server tells them apart."""
    parameters = {key: value for key, value in table.parameters.items() if key not in ("EXTERNAL", TRANSLATED)}
    parameters |= {"EXTERNAL": "TRUE"} if external else {}
    return msgspec.structs.replace(table, kind=EXTERNAL if external else MANAGED, parameters=parameters)


def home_of(placement: Placement, source_db: str, usual: str) -> str:
    """Above `.published`. `usual`: where the table would lie in the source's layout."""
    if is_published(usual):
        return tidied(usual).partition(f"/{PUBLISHED}/")[0]
    database = placement.target_locations[source_db]
    return tidied(database if relative(usual, database) is not None else parent(tidied(usual)))


def with_table_at(placement: Placement, table: Table, place: str) -> Placement:
    """A placement by which a source's table lies at a place of the target."""
    return replace(placement, mappings=((table.location or "", place), *placement.mappings))


def table_at_place(table: Table, old: str, place: str) -> Table:
    """A table that lies elsewhere, with every path of it that lay in its old place."""
    storage = table.storage
    assert storage is not None
    serde = {key: _moved(value, old, place) for key, value in storage.serde.parameters.items()}
    storage = msgspec.structs.replace(
        storage, location=uri(place), serde=msgspec.structs.replace(storage.serde, parameters=serde)
    )
    return msgspec.structs.replace(table, storage=storage)


def without_path(table: Table) -> Table:
    """A table of Spark's own kind without the `path` that says what its location says, too: a server that moves the
    directory by a rename writes down the location only. Any other table as it is."""
    storage = table.storage
    if storage is None or table.is_view or not (storage.location and table.location):
        return table
    serde = {key: value for key, value in storage.serde.parameters.items() if key.lower() != "path"}
    if serde == storage.serde.parameters or normal(storage.location) != normal(table.location):
        return table
    return _with_serde(table, storage, serde)


def with_path(table: Table) -> Table:
    """A table of Spark's own kind with the `path` that its location says."""
    storage = table.storage
    assert storage is not None and storage.location
    return _with_serde(table, storage, {**storage.serde.parameters, "path": storage.location})


def _with_serde(table: Table, storage: Storage, parameters: dict[str, str]) -> Table:
    serde = msgspec.structs.replace(storage.serde, parameters=parameters)
    return msgspec.structs.replace(table, storage=msgspec.structs.replace(storage, serde=serde))


def at_place(partition: Partition, place: str) -> Partition:
    """A partition that lies elsewhere, with every path of it that lay in its old place."""
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
        with contextlib.suppress(UnknownPlace):  # text that only looks like a place
            if (below := relative(value, old)) is not None:
                return uri(join(place, below))
    return value


def of_published_tables(placement: Placement, squashed: Squashed) -> Placement:
    """A source that was a replica once has its tables in published places. Each goes to the place that its name says,
    as two may have had one name in turn."""
    own = []
    for lineage in squashed.lineages:
        table = lineage.table
        if table is not None and not table.is_view and table.location and is_published(table.location):
            usual, _ = usual_place(table.location)
            own.append((table.location, placement.table(table.db, join(parent(usual), table.name))))
    return replace(placement, mappings=(*own, *placement.mappings)) if own else placement
