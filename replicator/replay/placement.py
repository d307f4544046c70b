"""Placement: the location of a source's object on the target. Pure.

Rules, in this order: an explicit location mapping (longest prefix first); below the source table's location: the same
path below the target table's; below the source database's location: the same below the target database's; anywhere
else: the entire source path below the database's part of the target's external directory, so that databases never
overlap. If a database is restored to its own location, data outside of that remains where it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from cmroot.errors import StorageUnreachable, UnknownPlace
from cmroot.names import HINT, is_below
from cmroot.store.checksum import checksum_at
from cmroot.store.hdfs import SCHEMES
from cmroot.store.place import folded, is_local, join, located, normal, relative, resolved, scheme, tidied
from replicator.core.formats.outside import WRITE_PATHS
from replicator.core.model import Function, Partition, Storage, Table
from replicator.core.named_files import NAMED, SCHEMA_URL, names_file
from replicator.core.roles import Role, RoleMark
from replicator.errors import Error, FormatError, Refused
from replicator.replay.server_rules import LACKING


def is_same_directory(one: str, other: str) -> bool:
    """Returns True for two paths of one directory, also by symbolic links; paths that this host cannot resolve are
    compared as text."""
    if relative(one, other) == "":
        return True
    with contextlib.suppress(Error):
        return is_local(one) and is_local(other) and resolved(one) == resolved(other)
    return False


@dataclass(frozen=True)
class Placement:
    """A mapping of locations. databases: source name -> target name, for every database of the dump. source_locations,
    target_locations: database name (the source's) -> location. mappings: (source prefix, target prefix) pairs.
    external: target directory for data outside its database's directory; None: its location is unchanged. root: the
    target's `$cmroot`, in which nothing may be placed. apart: databases (the source's names) that have a directory of
    their own in `external`; those begun by older releases share it."""

    databases: Mapping[str, str]
    source_locations: Mapping[str, str]
    target_locations: Mapping[str, str]
    external: str | None
    mappings: Sequence[tuple[str, str]] = field(default=())
    root: str | None = None
    apart: frozenset[str] = frozenset()

    def database(self, name: str) -> str:
        """Returns a database's name on the target; names outside the dump are unchanged."""
        return self.databases.get(name, name)

    def table(self, db: str, location: str) -> str:
        """Returns the target location of a table with this source location. Raises Refused for one in the root."""
        return self._outside_root(location, self._table(db, location))

    def _table(self, db: str, location: str) -> str:
        mapped = self._mapped(location)
        if mapped is not None:
            return mapped
        if is_published(location):
            usual, rest = usual_place(location)
            return join(self.table(db, usual), rest)
        home = self.source_locations.get(db)
        if home and (below := relative(location, home)) is not None:
            return join(self.target_locations[db], below)
        return self._elsewhere(db, location)

    def inside(self, db: str, table_location: str | None, location: str) -> str:
        """Returns the target location of a partition (or any path of a table), given its table's source location."""
        if is_published(location) and table_location and relative(location, table_location) is None:
            return join(self.table(db, table_location), usual_place(location)[1])  # the source was a replica before
        if table_location and (below := relative(location, table_location)) is not None:
            mapped = self._mapped(location)
            place = mapped if mapped is not None else join(self.table(db, table_location), below)
            return self._outside_root(location, place)
        return self.table(db, location)

    def holds(self, place: str) -> bool:
        """Returns True if loads put tables at such a path: not a source's, not at or above a database or the root."""
        if self.is_sources(place):
            return False
        if any(home and relative(home, place) is not None for home in (self.root, *self.target_locations.values())):
            return False
        return is_published(place) or any(relative(place, home) is not None for home in self.homes)

    @property
    def homes(self) -> list[str]:
        """The directories of the target in which loads create tables' directories."""
        homes = (*self.target_locations.values(), self.external, *(target for _, target in self.mappings))
        return [home for home in homes if home]

    def is_sources(self, place: str, table: str | None = None) -> bool:
        """Returns True if a path is in a directory of a source's database, or in that of a table."""
        return any(home and relative(place, home) is not None for home in (table, *self.source_locations.values()))

    @property
    def staying(self) -> Placement:
        """The placement for tables that share the source's data: only explicit mappings apply."""
        return replace(self, source_locations={}, external=None, root=None)

    def path_in_text(self, db: str, table_location: str | None, value: str) -> str:
        """Returns a property's value, with the source path in it replaced, if that is a replicated one."""
        if "/" not in value:
            return value
        with contextlib.suppress(UnknownPlace):  # text that only resembles a path
            for home in (table_location, self.source_locations.get(db), *(source for source, _ in self.mappings)):
                if home and relative(value, home) is not None:
                    return respelled(value, self.inside(db, table_location, value))
        return value

    def _outside_root(self, location: str, place: str) -> str:
        if self.root is not None and relative(place, self.root) is not None:
            raise Refused(
                f"{location} of the source would be stored at {place}, in the target's $cmroot {self.root}",
                hint="check the origin of the dump; if it is correct, map the location, or give another --cmroot",
            )
        return place

    def _mapped(self, location: str) -> str | None:
        for source, target in sorted(self.mappings, key=lambda pair: -len(pair[0])):
            below = relative(location, source)
            if below is not None:
                return join(target, below)
        return None

    def _elsewhere(self, db: str, location: str) -> str:
        if self.external is None:
            return location
        path = folded(location)
        below = (path.partition("://")[2] if "://" in path else path).strip("/")
        if scheme(self.external) in SCHEMES:  # HDFS allows no `:` in names, and a NameNode's address has one
            authority, slash, rest = below.partition("/")
            below = authority.replace(":", "_") + slash + rest
        if below and not is_below(below):
            raise FormatError(f"location {location!r} cannot be stored below {self.external}", hint=HINT)
        return join(external_of(self.external, self.database(db)) if db in self.apart else self.external, below)


def external_of(external: str, database: str) -> str:
    """Returns the location for data of a target's database outside of the database's directory."""
    return join(external, f"{database.lower()}.db")


PUBLISHED = ".published"  # the directory of published places, see replicator.replay.plan


def is_published(location: str | None) -> bool:
    return location is not None and f"/{PUBLISHED}/" in location


def usual_place(location: str) -> tuple[str, str]:
    """Splits a published location: the table's path in the usual layout, by its name at that time, and the path below
    it."""
    home, _, rest = tidied(location).partition(f"/{PUBLISHED}/")
    _, _, rest = rest.partition("/")
    name, _, below = rest.partition("/")
    return join(home, name.partition(".")[2]), below


def uri(place: str) -> str:
    """Returns a path in the metastore's form: local ones with the scheme file:."""
    return f"file:{normal(place)}" if is_local(place) else place


def respelled(text: str, place: str) -> str:
    """Returns a path in the metastore's form; the original text if it is the same path."""
    return text if normal(text) == normal(place) else uri(place)


# ---- by name ---------------------------------------------------------------------------------------------------------
# By name: checks that a partition's location follows its name, and a note on a table that all of its do. Pure.
#
# A partition is located by its name in its table's directory, or where a load has published it under that name. A
# loader that ensures this for all partitions of a table notes it on the table, so millions of partitions need not be
# read to find the few at other locations. The note is valid for the role that the database had: on a primary, users
# write as they like.


BY_NAME = "replicator.partitions"  # property of a table: "by-name@<epoch of its database>"


def lies_by_name(table: Table, partition: str, location: str) -> bool:
    """Returns True if a partition's location follows its name. partition: its escaped name."""
    if table.location and normal(location) == normal(join(table.location, partition)):
        return True
    return published_name(location) == (table.db, table.name, partition)


def published_name(place: str) -> tuple[str, str, str] | None:
    """Returns database, table and partition of a partition's published location, by their names at its creation."""
    if not is_published(place):
        return None
    _, _, rest = normal(place).partition(f"/{PUBLISHED}/")
    _, _, named = rest.partition("/")
    table, _, partition = named.partition("/")
    db, _, name = table.partition(".")
    return (db, name, partition) if name and partition else None


def noted(table: Table, role: RoleMark) -> Table:
    """Returns a table that has no partition at another location, with the note."""
    if not table.is_partitioned:
        return table
    return msgspec.structs.replace(table, parameters=table.parameters | {BY_NAME: _note(role)})


def not_noted(table: Table) -> Table:
    parameters = {key: value for key, value in table.parameters.items() if key != BY_NAME}
    return msgspec.structs.replace(table, parameters=parameters)


def is_noted(table: Table, role: RoleMark) -> bool:
    return role.role in (Role.REPLICA, Role.NONE) and table.parameters.get(BY_NAME) == _note(role)


def noted_like(table: Table, there: Table) -> Table:
    """Returns a table that replaces `there`, with the notes of that: about missing constraints, and about partitions,
    unless its directory differs."""
    if (lack := there.parameters.get(LACKING)) is not None:
        table = msgspec.structs.replace(table, parameters=table.parameters | {LACKING: lack})
    note = there.parameters.get(BY_NAME)
    same = (there.location and normal(there.location)) == (table.location and normal(table.location))
    if note is None or not same:
        return not_noted(table)
    return msgspec.structs.replace(table, parameters=table.parameters | {BY_NAME: note})


def _note(role: RoleMark) -> str:
    return f"by-name@{role.epoch}"


# ---- named paths -----------------------------------------------------------------------------------------------------
# Paths in properties: a schema in a file, a function's jar. They are rewritten like all paths, but their content is
# copied only if it is a file of a table. So each is checked on the target, and reported if it does not exist there.


Translate = Callable[[str, bytes], bytes]
"""Returns a file's bytes on a replica, by its path and its bytes at the source."""


@dataclass(frozen=True)
class NamedPath:
    """A path in a property: as at the source, and as rewritten for the target."""

    key: str
    source: str
    target: str

    @property
    def reason(self) -> str:
        return (
            f"{self.key} names {self.target}, which does not exist: {self.source} is not a table's file, and not copied"
        )

    def differs(self, translate: Translate | None = None) -> bool:
        """Returns True if a load has copied the file, and the copy has other bytes. translate: None if they are the
        source's."""
        if f"/{NAMED}/" not in self.target:
            return False
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if translate is not None:
                wanted = translate(self.source, located(normal(self.source)).read_bytes())
                return bool(located(self.target).read_bytes() != wanted)
            return checksum_at(self.target) != checksum_at(normal(self.source))
        return False

    def dangles(self) -> bool:
        """Returns True if the path does not exist on the target, but does at the source."""
        return not _is_seen(self.target) and _is_seen(self.source)


def named_paths(source: Table | Partition | Function, replica: Table | Partition | Function) -> Iterator[NamedPath]:
    """Yields every path that was rewritten between an object and its replica, except data locations and the places to
    which writers of Iceberg tables write; "" is not a path. Pure."""
    if isinstance(source, Function) and isinstance(replica, Function):
        for (kind, before), (_, after) in zip(source.resources, replica.resources, strict=True):
            if before != after:
                yield NamedPath(kind.lower(), before, after)
        return
    assert isinstance(source, Table | Partition) and isinstance(replica, Table | Partition)
    data = {normal(place) for place in (replica.location, _location(replica.storage)) if place}
    properties = [(source.parameters, replica.parameters), *_maps(source.storage, replica.storage)]
    for given, rewritten in properties:
        for key, value in given.items():
            now = rewritten.get(key, value)
            if now and now is not value and now != value and normal(now) not in data and key not in WRITE_PATHS:
                yield NamedPath(key, value, now)


_Object = TypeVar("_Object", Table, Partition, Function)


def with_seen(source: _Object, replica: _Object, home: str | None) -> _Object:
    """Returns a replica in which addresses of files that are found neither at the source nor as a copy are as at the
    source: such a file may be on the nodes of a cluster, where this process does not see it. home: the location of the
    source's database, which no replica names."""
    if isinstance(source, Function) and isinstance(replica, Function):
        pairs = zip(source.resources, replica.resources, strict=True)
        kept = tuple((kind, _seen(before, after, home)) for (kind, before), (_, after) in pairs)
        return msgspec.structs.replace(replica, resources=kept)
    assert isinstance(source, Table | Partition) and isinstance(replica, Table | Partition)
    if not names_file(source):
        return replica
    storage = replica.storage
    if storage is not None and source.storage is not None:
        serde = _with_seen(source.storage.serde.parameters, storage.serde.parameters, home)
        storage = msgspec.structs.replace(
            storage,
            parameters=_with_seen(source.storage.parameters, storage.parameters, home),
            serde=msgspec.structs.replace(storage.serde, parameters=serde),
        )
    parameters = _with_seen(source.parameters, replica.parameters, home)
    return msgspec.structs.replace(replica, storage=storage, parameters=parameters)


def _with_seen(before: Mapping[str, str], after: Mapping[str, str], home: str | None) -> dict[str, str]:
    schema = {key for key in after if key.lower() == SCHEMA_URL and key in before}
    return {key: _seen(before[key], value, home) if key in schema else value for key, value in after.items()}


def _seen(before: str, after: str, home: str | None) -> str:
    if before == after or home is None or relative(before, home) is not None:
        return after
    return before if not _is_seen(after) and not _is_seen(before) else after


def _is_seen(place: str) -> bool:
    """Returns False also for a place that this process cannot reach: one address must not end a load."""
    try:
        return located(place).exists()
    except (UnknownPlace, StorageUnreachable, OSError):
        return False


def _location(storage: Storage | None) -> str | None:
    return storage.location if storage else None


def _maps(before: Storage | None, after: Storage | None) -> Iterator[tuple[Mapping[str, str], Mapping[str, str]]]:
    if before and after:
        yield before.parameters, after.parameters
        yield before.serde.parameters, after.serde.parameters


# ---- objects at other places -----------------------------------------------------------------------------------------


def table_at_place(table: Table, old: str, place: str) -> Table:
    """Returns a table located at `place`, with all its paths below the old location changed accordingly."""
    storage = table.storage
    assert storage is not None
    serde = {key: _moved(value, old, place) for key, value in storage.serde.parameters.items()}
    return _with_serde(table, msgspec.structs.replace(storage, location=uri(place)), serde)


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
    storage, old = partition.storage, partition.storage.location if partition.storage else None
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
