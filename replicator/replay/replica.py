"""Replica objects: a source's object as it must be stored on the target. Pure.

Names and locations are the target's; every absolute path in a table is rewritten (Spark prefers the serde parameter
`path` over the location); `repl.last.id` and our position record how far the object is. Values that only a server sets
(creation times) are copied unchanged and are not compared.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from cmroot.store.place import join, normal, relative
from replicator.core.formats import FORMATS, is_transactional, pointer_of
from replicator.core.formats.outside import WRITE_PATHS, outside_directory, outside_entry
from replicator.core.model import EXTERNAL, TRANSLATED, Database, Function, Partition, Statistics, Storage, Table
from replicator.core.named_files import NAMED, NAMING, property_file, resource_file
from replicator.metastore.events.scope import comparable
from replicator.metastore.fields import ids
from replicator.metastore.requests import CATALOG
from replicator.replay.placement import Placement, respelled, uri
from replicator.replay.server_rules import CREATION, rename_databases

LAST_ID = "repl.last.id"  # Hive's: the last event of the source that the object contains
POSITION = "replicator.position"  # ours: its position in the captured log
SOURCE = "replicator.source"  # id of the source's $cmroot
RENAMED = "replicator.renamed"  # position of the last rename of an object on the target
LOADING = "replicator.loading"  # id of the dump whose load has begun and not finished
RESTORING = "replicator.restoring"  # of a database that is being restored: the restore
PUBLISH = "replicator.publish"  # of a database whose loads publish by snapshots: "snapshot"
LEFT_OUT = "replicator.left.out"  # of a table that an earlier load created: why loads no longer change it
EXTERNAL_DATA = "replicator.external"  # of a database: where its data outside of its directory is stored
APART = "apart"  # in a directory of its own below the external one; without it directly there, as in older releases
NO_COMPACTION = "no_auto_compaction"  # of a transactional table: its metastore does not compact it by itself
COMPACTION = "replicator.no_auto_compaction"  # the source's value of it
LOADED = "replicator.pointer"  # of an Iceberg table: the metadata file that the last load has set
DATA = "replicator.data"  # of a table whose files are the source's: "source"
PURGE = "external.table.purge"
OWN = ("replicator.", "repl.", "hive.repl.", "bootstrap.dump.state.")


@dataclass(frozen=True)
class Mark:
    """The state of a replica's object: event and position of the dump that wrote it, and the id of the source."""

    event: int
    position: int
    source: str

    def parameters(self) -> dict[str, str]:
        return {LAST_ID: str(self.event), POSITION: str(self.position), SOURCE: self.source}


def own_parameters(parameters: Mapping[str, str]) -> dict[str, str]:
    """Returns parameters without those that replication itself sets, ours and Hive's."""
    return {key: value for key, value in parameters.items() if not key.startswith(OWN)}


def replica_database(database: Database, placement: Placement) -> Database:
    """Returns a database without marks: those are its checkpoint, written last. A REMOTE one gets no connector."""
    managed = database.managed_location
    return msgspec.structs.replace(
        database,
        name=placement.database(database.name),
        location=uri(placement.target_locations[database.name]),
        parameters=own_parameters(database.parameters),
        managed_location=uri(placement.table(database.name, managed)) if managed else None,
        connector=None,
        extra={},
    )


def has_sources_data(table: Table | None) -> bool:
    """Returns True if a table of the target has metadata only, and its files are the source's."""
    return table is not None and table.parameters.get(DATA) == "source"


def has_replicated_data(table: Table) -> bool:
    """Returns True if loads bring the files of a table of the target."""
    return not table.is_view and LEFT_OUT not in table.parameters and not has_sources_data(table)


def for_writers(table: Table) -> Table:
    """Returns a transactional table of a replica that becomes a primary: its metastore compacts it again."""
    parameters = {key: value for key, value in table.parameters.items() if key not in (NO_COMPACTION, COMPACTION)}
    if COMPACTION in table.parameters:
        parameters[NO_COMPACTION] = table.parameters[COMPACTION]
    return msgspec.structs.replace(table, parameters=parameters)


def pointer_of_others(table: Table) -> str:
    """Returns the metadata file of an Iceberg table of the target that another writer has set since the last load;
    empty if none has."""
    pointer, loaded = pointer_of(table), table.parameters.get(LOADED)
    return pointer if loaded and pointer and normal(pointer) != normal(loaded) else ""


def has_own_data(table: Table) -> bool:
    """Returns True if the data of a table of the target is removed when the source drops the table: it owns it, or
    became managed at the source after its last load, as transactional tables do."""
    managed = tuple(each.said for each in FORMATS.values() if each.managed)
    owns = table.owns_data or table.parameters.get(LEFT_OUT, "").startswith(managed)
    return owns and bool(table.location) and not has_sources_data(table)


def replica_table(table: Table, placement: Placement, mark: Mark, *, shared: bool = False) -> Table:
    """Returns a table or view as stored on the target. shared: its data remains at the source, and no drop on the
    target may remove it."""
    placement = placement.staying if shared else placement
    parameters = _paths(own_parameters(table.parameters), placement, table)
    if shared:
        parameters[DATA] = "source"
        parameters |= {key: "false" for key in parameters if key.lower() == PURGE}
    if table.kind == EXTERNAL:
        parameters["EXTERNAL"] = "TRUE"
    if table.has_query:
        parameters = view_parameters(parameters, placement.databases)
    if pointer := pointer_of(table):
        parameters[LOADED] = placement.path_in_text(table.db, table.location, pointer)
    if is_transactional(table):
        own = {COMPACTION: table.parameters[NO_COMPACTION]} if NO_COMPACTION in table.parameters else {}
        parameters |= own | {NO_COMPACTION: "true"}
    return msgspec.structs.replace(
        table,
        db=placement.database(table.db),
        name=table.name,
        storage=_storage(table.storage, placement, table),
        parameters=parameters | mark.parameters(),
        view_original=rename_databases(table.view_original, placement.databases),
        view_expanded=rename_databases(table.view_expanded, placement.databases),
        extra=_extra(table.extra, placement.databases),
    )


def as_external(table: Table) -> Table:
    """Returns a managed table as servers of Hive 4 make it, for one that refuses it."""
    added = {"EXTERNAL": "TRUE", TRANSLATED: "TRUE", "external.table.purge": "TRUE"}
    return msgspec.structs.replace(table, kind=EXTERNAL, parameters=table.parameters | added)


def _extra(extra: Mapping[str, Any], databases: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields that only newer servers have; a materialized view's creation metadata names databases."""
    kept = {key: value for key, value in extra.items() if key not in _SERVERS_OWN_FIELDS}
    for key in kept.keys() & CREATION:
        made = copy.deepcopy(kept[key])
        fields = made["rec"]
        read = [each["1"]["rec"] for each in fields.get("7", {"lst": ("rec", 0)})["lst"][2:]]
        for each in (fields, *read):  # its own, and those of the tables that it reads: field 2 is the database of both
            each["2"]["str"] = databases.get(each["2"]["str"], each["2"]["str"])
        for each in read:
            each.pop("17", None)  # the catalog
        if "4" in fields:
            used = fields["4"]["set"]
            used[2:] = [_in_database(name, fields["1"]["str"], databases) for name in used[2:]]
        fields["1"]["str"] = CATALOG
        kept[key] = made
    return kept


def _in_database(name: str, catalog: str, databases: Mapping[str, str]) -> str:
    """Returns the name of a table that a materialized view of this catalog reads, without its catalog."""
    db, dot, table = name.removeprefix(f"{catalog}.").partition(".") if name.count(".") > 1 else name.partition(".")
    return f"{databases.get(db, db)}{dot}{table}"


def replica_partition(partition: Partition, table: Table, placement: Placement, *, shared: bool = False) -> Partition:
    """Returns a partition of the (source's) table as stored on the target."""
    placement = placement.staying if shared else placement
    parameters = _paths(own_parameters(partition.parameters), placement, table)
    storage = _storage(partition.storage, placement, table)
    if storage is None and table.is_view:  # servers with a notification log add no partition without one
        storage = Storage()
    return msgspec.structs.replace(partition, storage=storage, parameters=parameters, extra={})


def replica_function(function: Function, placement: Placement) -> Function:
    """Returns a function; its resources are files of its database, unless the database stays where it is."""
    home, there = _homes(placement, function.db)
    resources = tuple(
        (kind, uri(join(there, NAMED, file.path)))
        if there and (file := resource_file(home, address))
        else (kind, placement.path_in_text(function.db, None, address))
        for kind, address in function.resources
    )
    return msgspec.structs.replace(function, db=placement.database(function.db), resources=resources)


def replica_statistics(statistics: Statistics, placement: Placement) -> Statistics:
    return msgspec.structs.replace(statistics, db=placement.database(statistics.db))


_SERVERS_OWN_FIELDS = ids("Table", "catName", "writeId", "id", "txnId")  # since Hive 3 and 4


def _storage(storage: Storage | None, placement: Placement, table: Table) -> Storage | None:
    if storage is None:
        return None
    skew = storage.skew
    if skew is not None and skew.locations:
        moved = tuple(
            (values, placement.path_in_text(table.db, table.location, place)) for values, place in skew.locations
        )
        skew = msgspec.structs.replace(skew, locations=moved)
    parameters = _paths(storage.serde.parameters, placement, table)
    location = storage.location
    return msgspec.structs.replace(
        storage,
        location=respelled(location, placement.inside(table.db, table.location, location)) if location else None,
        serde=msgspec.structs.replace(storage.serde, parameters=parameters),
        parameters=_paths(storage.parameters, placement, table),
        skew=skew,
    )


def _paths(parameters: Mapping[str, str], placement: Placement, table: Table) -> dict[str, str]:
    return {key: _path(key, value, placement, table) for key, value in parameters.items()}


def _path(key: str, value: str, placement: Placement, table: Table) -> str:
    """Returns a property's value, with the path on the target if it names a file."""
    if key.lower() in NAMING:
        home, there = _homes(placement, table.db)
        if there and (file := property_file(home, table, key, value)):
            return uri(join(there, NAMED, file.path))
    writes = key in WRITE_PATHS and placement.source_locations and pointer_of(table)
    entry = outside_entry(value) if writes and table.location else None
    if entry and table.location and relative(value, table.location) is None:  # as loads translate it in metadata files
        home = placement.inside(table.db, table.location, table.location)
        return uri(join(home, outside_directory(entry[0]), entry[1]))
    return placement.path_in_text(table.db, table.location, value)


def _homes(placement: Placement, db: str) -> tuple[str | None, str | None]:
    """Returns the locations of a database on both sides; None if its files stay where they are."""
    home, there = placement.source_locations.get(db), placement.target_locations.get(db)
    return (home, there) if home and there and normal(home) != normal(there) else (None, None)


def view_parameters(parameters: Mapping[str, str], databases: Mapping[str, str]) -> dict[str, str]:
    """Renames databases in the numbered parameters by which Spark resolves a view's unqualified names."""
    return {
        key: databases.get(value, value) if key.startswith("view.catalogAndNamespace.part.") else value
        for key, value in parameters.items()
    }


def comparable_partition(partition: Partition) -> Partition:
    """Returns a partition without the values that each server sets for itself."""
    bare = comparable(partition)
    assert isinstance(bare, Partition)
    return msgspec.structs.replace(bare, create_time=0)


def comparable_table(table: Table) -> Table:
    """Returns a table without the values that each server sets for itself, and without our own marks."""
    bare = comparable(table)
    assert isinstance(bare, Table)
    parameters = {key: value for key, value in bare.parameters.items() if not key.startswith(OWN)}
    return msgspec.structs.replace(bare, create_time=0, parameters=parameters)
