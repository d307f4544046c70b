"""What a target holds before a load, as far as planning needs it: read once, before anything changes.

For a range of changes that is little: the tables it names. A warehouse has tens of thousands beside them, and a policy
that follows its source loads every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from cmroot.store.place import join
from replicator.captures.dumps.layout import BOOTSTRAP, DumpMetadata
from replicator.captures.dumps.rows import SCOPE, covers, reached, scope_text
from replicator.core.model import Database, Function, Partition, Table
from replicator.core.roles import RoleMark, after_restore, mark_of, may_load_into
from replicator.core.text.quantity import count_text
from replicator.errors import BootstrapNeeded, ObjectNotFound, Refused
from replicator.metastore.client import MetastoreReader
from replicator.replay.places.placement import Placement, is_published, relative
from replicator.replay.places.replica import LOADING, POSITION, RENAMED, RESTORING, SOURCE


@dataclass(frozen=True)
class TargetDatabase:
    """One database of the target: itself (None when it does not exist), its tables and functions by name."""

    database: Database | None
    tables: dict[str, Table] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)

    @property
    def position(self) -> int | None:
        """The checkpoint: position of the last dump loaded completely; None when none was."""
        text = self.database.parameters.get(POSITION) if self.database else None
        return int(text) if text and text.isdigit() else None

    @property
    def source(self) -> str | None:
        """Id of the source's $cmroot that this database replicates; None when replication did not make it."""
        return self.database.parameters.get(SOURCE) if self.database else None

    @property
    def scope(self) -> str | None:
        """With which scope it came to the checkpoint (see `reached`); None: it does not say."""
        return self.database.parameters.get(SCOPE) if self.database else None

    @property
    def loading(self) -> str | None:
        """Id of a dump whose load has begun and not ended."""
        return self.database.parameters.get(LOADING) if self.database else None

    @property
    def restoring(self) -> str | None:
        """Which restore has begun it and not ended."""
        return self.database.parameters.get(RESTORING) if self.database else None

    def role(self, name: str) -> RoleMark:
        """Its role among the sides of a replication. `name`: for FormatError, of a role that cannot be understood."""
        return mark_of(self.database.parameters, name) if self.database else RoleMark()

    @property
    def empty(self) -> bool:
        return not self.tables and not self.functions


@dataclass(frozen=True)
class TargetPart:
    """What of a database is read: the tables of these names (None: all), and whether its functions are."""

    tables: frozenset[str] | None = None
    functions: bool = True


def read_target(target: MetastoreReader, databases: Sequence[str]) -> dict[str, TargetDatabase]:
    """The target's side of some databases (by their target names), whole."""
    return {name: read_part(target, each, TargetPart()) for name, each in read_databases(target, databases).items()}


def read_databases(target: MetastoreReader, databases: Sequence[str]) -> dict[str, TargetDatabase]:
    """The databases alone; those that replication did not make come whole, as what they hold decides about them."""
    found = {}
    for name in databases:
        try:
            found[name] = TargetDatabase(target.database(name))
        except ObjectNotFound:
            found[name] = TargetDatabase(None)
        if found[name].source is None:
            found[name] = read_part(target, found[name], TargetPart())
    return found


def read_part(target: MetastoreReader, there: TargetDatabase, part: TargetPart) -> TargetDatabase:
    """A database with this part of what is in it; names that it does not have are left out."""
    if there.database is None:
        return there
    name = there.database.name
    names = target.table_names(name) if part.tables is None else sorted(part.tables)
    tables = {table.name: table for table in target.tables(name, names)} if names else {}
    functions = {function.name: function for function in target.functions(name)} if part.functions else {}
    return replace(there, tables=tables, functions=functions)


NEW = ("", "")  # how far a database is that no load has begun


def standing(parameters: Mapping[str, str]) -> tuple[str, str]:
    """How far a database is, and which load has begun and not ended: what another load would change."""
    return parameters.get(POSITION, ""), parameters.get(LOADING, "")


def table_position(table: Table) -> int | None:
    """How far a table on the target is; None when replication did not make it."""
    text = table.parameters.get(POSITION)
    return int(text) if text and text.isdigit() else None


def applied_position(obj: Table | Partition) -> int:
    """How far an object on the target is, a rename by a load that ended in the middle included."""
    texts = (obj.parameters.get(key, "") for key in (POSITION, RENAMED))
    return max(int(text) if text.isdigit() else 0 for text in texts)


def default_warehouse(target: MetastoreReader) -> str:
    """The target's warehouse directory: where its default database lies."""
    try:
        location = target.database("default").location
    except ObjectNotFound:
        location = None
    if not location:
        raise ObjectNotFound("the target has no default database to tell its warehouse", hint="give --warehouse")
    return location


def database_location(warehouse: str, name: str) -> str:
    """Hive's rule (Warehouse.getDefaultDatabasePath)."""
    return warehouse if name == "default" else join(warehouse, f"{name.lower()}.db")


# ---- admission -------------------------------------------------------------------------------------------------------
# Admission: whether a dump may be loaded into a target at all, and from which of its records on. Pure.


def check_target(
    metadata: DumpMetadata,
    placement: Placement,
    target: Mapping[str, TargetDatabase],
    *,
    overwrite: bool,
    exact: bool = False,
    by_difference: bool = False,
) -> int | None:
    """The position after which the dump's records are to be applied; None when the target has them all.

    Raises Refused for a target that replication did not make, that replicates another source, that is the source, or
    that is newer than the dump (`overwrite` allows all but the source itself, `exact` that too), or whose role forbids
    it (`exact` allows a primary); BootstrapNeeded for an incremental dump that begins after the target's checkpoint, or
    that covers more than what came to it."""
    positions = []
    for source_name, name in placement.databases.items():
        there = target[name]
        _refuse_role(metadata, source_name, name, there, exact=exact)
        if not exact:
            _refuse_source(metadata, source_name, there)
        if not overwrite:
            _refuse_foreign(metadata, name, there)
        positions.append(there.position if there.source in (None, metadata.root_id) else None)
        overwritten = overwrite and not (by_difference and there.source == metadata.root_id)
        if there.position is not None and there.position > metadata.end.position and not overwritten:
            raise Refused(
                f"database {name} of the target is at position {there.position}, newer than the dump's end "
                f"({metadata.end.position}, event {metadata.end.event})",
                hint="load a newer dump, or --overwrite to take the target back to this one",
            )
    unfinished = any(target[name].loading not in (None, "") for name in placement.databases.values())
    if metadata.kind == BOOTSTRAP:
        done = all(position == metadata.end.position for position in positions) and not unfinished
        if exact:  # a replica may have been changed since; what a restore began is its own
            done = done and all(target[name].restoring for name in placement.databases.values())
        reaches = (covers(target[name].scope, reached(metadata.scope, db)) for db, name in placement.databases.items())
        done = done and all(reaches)  # a narrower load may have brought the checkpoint there
        done = done and not by_difference  # the checkpoint says what was loaded, not what became of it
        return None if done else 0
    assert metadata.begin is not None
    if any(position is None or position < metadata.begin.position for position in positions):
        behind = min((position or 0) for position in positions)
        raise BootstrapNeeded(
            f"the dump begins at position {metadata.begin.position} (event {metadata.begin.event}), the target is at "
            f"{behind or 'no position'}",
            hint="load the dumps between first, in order, or a bootstrap dump",
        )
    for source_name, name in placement.databases.items():
        _refuse_wider(metadata, source_name, target[name])
    if all(position == metadata.end.position for position in positions) and not unfinished:
        return None
    return min(position for position in positions if position is not None)


def _refuse_wider(metadata: DumpMetadata, source_name: str, there: TargetDatabase) -> None:
    """What the dump covers and the checkpoint does not: its changes before the dump were never loaded."""
    wanted = reached(metadata.scope, source_name)
    if there.database is not None and there.position is not None and not covers(there.scope, wanted):
        raise BootstrapNeeded(
            f"database {there.database.name} of the target came to its checkpoint with "
            f"{scope_text(there.scope or '')}, and the dump has {scope_text(wanted)}: what happened to the others "
            "before it was never loaded",
            hint="load a bootstrap dump of the wider scope, or dump with the narrower one again",
        )


def _refuse_role(metadata: DumpMetadata, source_name: str, name: str, there: TargetDatabase, *, exact: bool) -> None:
    label = f"database {name} of the target"
    if exact:
        after_restore(there.role(label), label)
    else:
        may_load_into(label, there.role(label), source_epoch=metadata.epochs.get(source_name))


def _refuse_source(metadata: DumpMetadata, source_name: str, there: TargetDatabase) -> None:
    location = metadata.locations.get(source_name)
    if location and there.database and there.database.location and relative(there.database.location, location) == "":
        raise Refused(
            f"the target's database {there.database.name} lies at the source's location {location}: it is the source",
            hint="name another metastore with --target, or another database with --rename-db",
        )


def _refuse_foreign(metadata: DumpMetadata, name: str, there: TargetDatabase) -> None:
    if there.database is None:
        return
    if there.source is None and not there.empty:
        raise Refused(
            f"database {name} of the target was not created by replication and holds "
            f"{count_text(len(there.tables), 'table')}",
            hint="load into another name with --rename-db, or --overwrite to replace what the dump also has",
        )
    if there.source not in (None, metadata.root_id):
        raise Refused(
            f"database {name} of the target replicates another source ($cmroot {there.source})",
            hint="load into another name with --rename-db, or --overwrite",
        )


# ---- difference ------------------------------------------------------------------------------------------------------
# Loading by difference: over what the target holds, so that only what differs is copied. Pure.


@dataclass(frozen=True)
class ByDifference:
    """A bootstrap loaded over what is there: tables that can be altered into the dump's stay, and stay where they are;
    files that are the same stay, the rest is copied; what tables hold besides goes to the target's $cmroot.

    reread: files of the right size, time and stamp are read, too. drop_extra: tables in the dump's scope that it does
    not hold go, whoever made them (else: those that replication made). only_tables: the database's own properties and
    its functions are left alone."""

    reread: bool = False
    drop_extra: bool = False
    only_tables: bool = False


def stay(
    placement: Placement,
    tables: Iterable[Table],
    target: Mapping[str, TargetDatabase],
    shared: Callable[[Table, Table | None], bool],
    *,
    back: bool,
) -> Placement:
    """A placement by which tables that the target has lie where they lie there, unless that is a place of the
    source. `tables`: the source's. shared: whether a table, of which the target has the second, keeps its data at the
    source. back: those in published places go back into the source's layout."""
    own = []
    for table in tables:
        there = target[placement.database(table.db)].tables.get(table.name)
        if there is None or table.is_view or not table.location or not there.location or shared(table, there):
            continue
        if back and is_published(there.location):
            continue
        wanted = placement.table(table.db, table.location)
        homes = (table.location, placement.source_locations.get(table.db))
        of_target = relative(there.location, placement.target_locations[table.db]) is not None
        of_source = any(home and relative(there.location, home) is not None for home in homes)
        if relative(there.location, wanted) != "" and (of_target or not of_source):
            own.append((table.location, there.location))
    return replace(placement, mappings=(*own, *placement.mappings))


# ---- rename order ----------------------------------------------------------------------------------------------------
# The order of renames: each name must be free when something gets it, and names may go round in a circle. Pure.


Key = TypeVar("Key")

PASSING = "__replicator_swap"  # ends the name of what is on its way, where renames go round in a circle


def passing_name(name: tuple[str, str]) -> tuple[str, str]:
    """A table's name on its way."""
    return name[0], name[1] + PASSING


def rename_order(
    renames: Mapping[Key, Key], occupied: Iterable[Key], passing: Callable[[Key], Key]
) -> list[tuple[Key, Key]]:
    """Renames (from, to) in an order in which every target name is free; a circle is opened by a passing name.

    Raises Refused when a name is taken by something that does not leave it."""
    waiting = dict(renames)
    taken = set(occupied) | set(waiting)
    ways = set(waiting.values())
    order = []
    while waiting:
        free = [old for old, new in waiting.items() if new not in taken]
        if free:
            for old in free:
                order.append((old, waiting.pop(old)))
                taken.discard(old)
                taken.add(order[-1][1])
            continue
        circle = next((old for old in waiting if old in ways and passing(old) not in taken), None)
        if circle is None:
            blocked = ", ".join(f"{_named(old)} -> {_named(new)}" for old, new in list(waiting.items())[:5])
            raise Refused(
                f"renames of the source meet names that the target uses otherwise: {blocked}",
                hint="drop or rename what has these names on the target, then load again; --overwrite replaces tables",
            )
        staged = passing(circle)
        order.append((circle, staged))
        waiting[staged] = waiting.pop(circle)
        taken.discard(circle)
        taken.add(staged)
    return order


def _named(key: object) -> str:
    """A table's name as db.table, a partition's as it is."""
    return ".".join(key) if isinstance(key, tuple) else str(key)
