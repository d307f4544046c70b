"""Files that metadata names: Avro schemas (`avro.schema.url`), metadata files of Iceberg views, and resources of
functions, such as jars. Pure.

Such a file is recorded as one of its database, under a hidden path of the database's directory, wherever it is at the
source: `.named/<digest of its directory>/<name>`. A replica has it there, and its metadata names it there, so neither
a purge nor an overwrite of a table removes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import xxhash

from cmroot.errors import UnknownPlace
from cmroot.names import is_name
from cmroot.store.place import folded, is_local, join, name_of, parent, scheme, split_authority
from replicator.core.formats import named_metadata
from replicator.core.formats.interface import POINTER
from replicator.core.model import Partition, Table

NAMED = ".named"  # directory of a database; in file entries, in place of a table
SCHEMA_URL = "avro.schema.url"  # of a table, a partition, or a serde; servers ignore its case
NAMING = frozenset({SCHEMA_URL, POINTER})  # properties, in lower case, whose value is the address of such a file
_NO_FILES = frozenset({"http", "https", "jar", "ivy", "data", "schema"})


ON_NODES = "its location is a local one of the cluster's nodes, on a warehouse of another filesystem: it is not read"


def is_on_nodes(place: str, *homes: str | None) -> bool:
    """Returns True for a local place in a warehouse on another filesystem: it is on the nodes of the cluster, and who
    may create a table or a function must not have files of a capture's host read. homes: the locations of its database
    and of the warehouse, as far as they are known."""
    return is_local(place) and any(home and not is_local(home) for home in homes)


@dataclass(frozen=True)
class NamedFile:
    """A file that metadata names: its place at the source, and its path in the directory `NAMED` of the database."""

    place: str
    path: str


def resource_file(home: str | None, address: str) -> NamedFile | None:
    """Returns the file that a resource of a function names. home: the location of its database. None for an address
    that is not a file's, and for one on the nodes of the cluster."""
    if not home or "/" not in address:
        return None
    with suppress(UnknownPlace):
        place = _place(home, address)
        if is_on_nodes(place, home):
            return None
        if not is_local(place) and scheme(place) in _NO_FILES:
            return None
        below = place.removeprefix(folded(home).rstrip("/") + "/")
        if below.startswith(f"{NAMED}/"):
            return NamedFile(place, below.removeprefix(f"{NAMED}/"))
        name = name_of(place)
        if name and is_name(name):
            return NamedFile(place, f"{xxhash.xxh3_64_hexdigest(parent(place).encode())}/{name}")
    return None


def property_file(home: str | None, table: Table, key: str, value: str) -> NamedFile | None:
    """Returns the file that a property of a table, or of its partition, names. None for any other property, for an
    address that is not a file's, and for a file that is captured as one of the table's data files."""
    if key.lower() == POINTER and named_metadata(table):
        return resource_file(home, value)
    if key.lower() != SCHEMA_URL or not table.location or table.is_view:
        return None
    found = resource_file(home, value)
    top = folded(table.location).rstrip("/") + "/"
    if found is None or table.is_partitioned or not found.place.startswith(top):
        return found
    below = found.place.removeprefix(top).split("/")
    return found if any(part.startswith(".") for part in below) else None


def property_files(home: str | None, table: Table, obj: Table | Partition) -> Iterator[NamedFile]:
    """Yields the files that the properties of a table, or of one of its partitions, name."""
    for values in _maps(obj):
        for key, value in values.items():
            if found := property_file(home, table, key, value):
                yield found


def names_file(obj: Table | Partition) -> bool:
    """Returns True if an object has such a property: nearly none has."""
    if isinstance(obj, Table) and named_metadata(obj):
        return True
    return any(SCHEMA_URL in map(str.lower, values) for values in _maps(obj))


def _maps(obj: Table | Partition) -> list[Mapping[str, str]]:
    storage = obj.storage
    return [obj.parameters, *((storage.parameters, storage.serde.parameters) if storage else ())]


def _place(home: str, value: str) -> str:
    """Returns the place that a path in metadata denotes: without a scheme, on the filesystem of the database."""
    if value.startswith("/") and not is_local(home):
        return folded(join(split_authority(home)[0] + "/", value))
    return folded(value)
