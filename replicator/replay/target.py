"""The state of a target before a load, as far as planning requires it: read once, before anything changes.

For a range of changes only the tables that it names are read. A warehouse has tens of thousands of others, and a policy
that follows its source loads every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from cmroot.store.place import join, relative
from replicator.captures.dumps.layout import BOOTSTRAP, DumpMetadata
from replicator.captures.dumps.rows import SCOPE, covers, reached, scope_text
from replicator.core.model import Database, Function, Partition, Table
from replicator.core.roles import RoleMark, after_restore, mark_of, may_load_into
from replicator.core.text import count_text
from replicator.errors import BootstrapNeeded, ObjectNotFound, Refused
from replicator.metastore.client import MetastoreReader
from replicator.replay.placement import Placement, is_published, is_same_directory
from replicator.replay.replica import LOADING, POSITION, RENAMED, RESTORING, SOURCE


@dataclass(frozen=True)
class TargetDatabase:
    """One database of the target: the object (None if it does not exist), its tables and functions by name."""

    database: Database | None
    tables: dict[str, Table] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)

    @property
    def position(self) -> int | None:
        """The checkpoint: position of the last dump loaded completely; None if there was none."""
        text = self.database.parameters.get(POSITION) if self.database else None
        return int(text) if text and text.isdigit() else None

    @property
    def source(self) -> str | None:
        """Id of the source's $cmroot that this database replicates; None if replication did not create it."""
        return self.database.parameters.get(SOURCE) if self.database else None

    @property
    def scope(self) -> str | None:
        """The scope with which it reached the checkpoint (see `reached`); None if not recorded."""
        return self.database.parameters.get(SCOPE) if self.database else None

    @property
    def loading(self) -> str | None:
        """Id of a dump whose load has begun and not finished."""
        return self.database.parameters.get(LOADING) if self.database else None

    @property
    def restoring(self) -> str | None:
        """The restore that has begun and not finished it."""
        return self.database.parameters.get(RESTORING) if self.database else None

    def role(self, name: str) -> RoleMark:
        """Its role in a replication. `name`: for FormatError, raised if the role cannot be understood."""
        return mark_of(self.database.parameters, name) if self.database else RoleMark()

    @property
    def empty(self) -> bool:
        return not self.tables and not self.functions


@dataclass(frozen=True)
class TargetPart:
    """The part of a database that is read: tables of these names (None: all), and whether to read its functions."""

    tables: frozenset[str] | None = None
    functions: bool = True


def read_target(target: MetastoreReader, databases: Sequence[str]) -> dict[str, TargetDatabase]:
    """Reads databases of the target (by their names there) completely."""
    return {name: read_part(target, each, TargetPart()) for name, each in read_databases(target, databases).items()}


def read_databases(target: MetastoreReader, databases: Sequence[str]) -> dict[str, TargetDatabase]:
    """Reads the databases alone; those that replication did not create are read completely, as their content decides
    what may be done to them."""
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
    """Returns a database with this part of its content; names that it does not have are omitted."""
    if there.database is None:
        return there
    name = there.database.name
    names = target.table_names(name) if part.tables is None else sorted(part.tables)
    tables = {table.name: table for table in target.tables(name, names)} if names else {}
    functions = {function.name: function for function in target.functions(name)} if part.functions else {}
    return replace(there, tables=tables, functions=functions)


BESIDE = "-replicator-made-here"  # suffix of the directory in which a load creates a table for a moment (`Commit`)
NEW = ("", "")  # the `standing` of a database that no load has begun


def standing(parameters: Mapping[str, str]) -> tuple[str, str]:
    """Returns the position of a database, and the load that has begun and not finished: what another load changes."""
    return parameters.get(POSITION, ""), parameters.get(LOADING, "")


def table_position(table: Table) -> int | None:
    """Returns the position of a table on the target; None if replication did not create it."""
    text = table.parameters.get(POSITION)
    return int(text) if text and text.isdigit() else None


def applied_position(obj: Table | Partition) -> int:
    """Returns the position of an object on the target, including a rename by an interrupted load."""
    texts = (obj.parameters.get(key, "") for key in (POSITION, RENAMED))
    return max(int(text) if text.isdigit() else 0 for text in texts)


def default_warehouse(target: MetastoreReader) -> str:
    """Returns the target's warehouse directory: the location of its default database."""
    try:
        location = target.database("default").location
    except ObjectNotFound:
        location = None
    if not location:
        raise ObjectNotFound(
            "the target has no default database, which determines its warehouse", hint="give --warehouse"
        )
    return location


def database_location(warehouse: str, name: str) -> str:
    """Returns a database's default location by Hive's rule (Warehouse.getDefaultDatabasePath)."""
    return warehouse if name == "default" else join(warehouse, f"{name.lower()}.db")


# ---- admission -------------------------------------------------------------------------------------------------------
# Admission: whether a dump may be loaded into a target, and from which of its records on. Pure.


def check_target(
    metadata: DumpMetadata,
    placement: Placement,
    target: Mapping[str, TargetDatabase],
    *,
    overwrite: bool,
    exact: bool = False,
    by_difference: bool = False,
) -> int | None:
    """Returns the position after which the dump's records are to be applied; None if the target has them all.

    Raises Refused for a target that replication did not create, that replicates another source, that is the source, or
    that is newer than the dump (`overwrite` allows all but the source itself, `exact` that too), or whose role forbids
    it (`exact` allows a primary); BootstrapNeeded for an incremental dump that begins after the target's checkpoint, or
    whose scope is wider than that of the checkpoint."""
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
                hint="load a newer dump, or use --overwrite to return the target to this one",
            )
    unfinished = any(target[name].loading not in (None, "") for name in placement.databases.values())
    if metadata.kind == BOOTSTRAP:
        done = all(position == metadata.end.position for position in positions) and not unfinished
        if exact:  # a replica may have been changed since; a database begun by a restore is the restore's own
            done = done and all(target[name].restoring for name in placement.databases.values())
        reaches = (covers(target[name].scope, reached(metadata.scope, db)) for db, name in placement.databases.items())
        done = done and all(reaches)  # a load of a narrower scope may have set the checkpoint
        done = done and not by_difference  # the checkpoint records what was loaded, not what was changed since
        return None if done else 0
    assert metadata.begin is not None
    if any(position is None or position < metadata.begin.position for position in positions):
        behind = min((position or 0) for position in positions)
        raise BootstrapNeeded(
            f"the dump begins at position {metadata.begin.position} (event {metadata.begin.event}), the target is at "
            f"{behind or 'no position'}",
            hint="first load the dumps in between, in order, or load a bootstrap dump",
        )
    for source_name, name in placement.databases.items():
        _refuse_wider(metadata, source_name, target[name])
    if all(position == metadata.end.position for position in positions) and not unfinished:
        return None
    return min(position for position in positions if position is not None)


def _refuse_wider(metadata: DumpMetadata, source_name: str, there: TargetDatabase) -> None:
    """Raises BootstrapNeeded if the dump's scope is wider than the checkpoint's: earlier changes were never loaded."""
    wanted = reached(metadata.scope, source_name)
    if there.database is not None and there.position is not None and not covers(there.scope, wanted):
        raise BootstrapNeeded(
            f"database {there.database.name} of the target reached its checkpoint with "
            f"{scope_text(there.scope or '')}, but the dump has {scope_text(wanted)}: earlier changes of the other "
            "tables were never loaded",
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
    if location and there.database and there.database.location and is_same_directory(there.database.location, location):
        raise Refused(
            f"the target's database {there.database.name} is at the source's location {location}: it is the source",
            hint="give another metastore with --target, or another database with --rename-db",
        )


def _refuse_foreign(metadata: DumpMetadata, name: str, there: TargetDatabase) -> None:
    if there.database is None:
        return
    if there.source is None and not there.empty:
        raise Refused(
            f"database {name} of the target was not created by replication and holds "
            f"{count_text(len(there.tables), 'table')}",
            hint="load under another name with --rename-db, or use --overwrite to replace what the dump also contains",
        )
    if there.source not in (None, metadata.root_id):
        raise Refused(
            f"database {name} of the target replicates another source ($cmroot {there.source})",
            hint="load under another name with --rename-db, or use --overwrite",
        )


# ---- difference ------------------------------------------------------------------------------------------------------
# Loading by difference: over the content of the target, so that only differences are copied. Pure.


@dataclass(frozen=True)
class ByDifference:
    """A bootstrap loaded over existing content: tables that can be altered into the dump's are retained at their
    locations; equal files are retained, the rest is copied; surplus files of tables are moved to the target's $cmroot.

    reread: files of the right size, time and stamp are read, too. drop_extra: tables in the dump's scope that it does
    not have are dropped, whoever created them (otherwise only those that replication created). only_tables: the
    properties and functions of the database are not changed."""

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
    """Returns a placement that keeps tables of the target at their locations there, unless such a location belongs to
    the source. `tables`: the source's. shared: returns True if a table, given the target's as the second argument,
    keeps its data at the source. back: tables in published places return to the source's layout."""
    own = []
    for table in tables:
        there = target[placement.database(table.db)].tables.get(table.name)
        if there is None or table.is_view or not table.location or not there.location or shared(table, there):
            continue
        if there.location.endswith(BESIDE) or (back and is_published(there.location)):
            continue
        wanted = placement.table(table.db, table.location)
        homes = (table.location, placement.source_locations.get(table.db))
        of_target = relative(there.location, placement.target_locations[table.db]) is not None
        of_source = any(home and relative(there.location, home) is not None for home in homes)
        if relative(there.location, wanted) != "" and (of_target or not of_source):
            own.append((table.location, there.location))
    return replace(placement, mappings=(*own, *placement.mappings))


# ---- rename order ----------------------------------------------------------------------------------------------------
# The order of renames: each name must be free when it is assigned, and renames may form a cycle. Pure.


Key = TypeVar("Key")

PASSING = "__replicator_swap"  # suffix of an intermediate name, where renames form a cycle


def passing_name(name: tuple[str, str]) -> tuple[str, str]:
    """Returns a table's intermediate name."""
    return name[0], name[1] + PASSING


def rename_order(
    renames: Mapping[Key, Key], occupied: Iterable[Key], passing: Callable[[Key], Key]
) -> list[tuple[Key, Key]]:
    """Orders renames (from, to) so that every target name is free; a cycle is broken by an intermediate name.

    Raises Refused if a name is taken by an object that is not renamed away from it."""
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
                f"renames at the source conflict with names of other tables on the target: {blocked}",
                hint="drop or rename the objects with these names on the target, then load again; --overwrite "
                "replaces tables",
            )
        staged = passing(circle)
        order.append((circle, staged))
        waiting[staged] = waiting.pop(circle)
        taken.discard(circle)
        taken.add(staged)
    return order


def _named(key: object) -> str:
    """Returns a table's name as db.table, a partition's unchanged."""
    return ".".join(key) if isinstance(key, tuple) else str(key)
