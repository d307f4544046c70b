"""What a target holds before a load, as far as planning needs it: read once, before anything changes.

For a range of changes that is little: the tables it names. A warehouse has tens of thousands beside them, and a policy
that follows its source loads every few seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cmroot.store.place import join
from replicator.captures.dumps.reached import SCOPE
from replicator.core.model import Database, Function, Partition, Table
from replicator.core.roles import RoleMark, mark_of
from replicator.errors import ObjectNotFound
from replicator.metastore.client import MetastoreReader
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
