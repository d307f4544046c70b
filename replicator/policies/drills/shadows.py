"""Shadows: the objects of a replica as a drill shows them in databases of its own, and the stamp they bear. Pure.

A shadow has the replica's definition and its locations, and owns nothing: every table is external with
`external.table.purge=false`, so dropping one, by whomever, takes away metadata only. Its database has a directory of
its own, as a server deletes that with the database. What replication noted on the replica is left out: nobody may take
a shadow for a replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from cmroot.store.place import join, parent
from replicator.core.model import EXTERNAL, MANAGED, VIEW, Database, Function, Partition, Table
from replicator.core.shadow import DRILL, OF_POLICY
from replicator.core.table_format import table_format
from replicator.replay.places.placement import uri
from replicator.replay.places.replica import own_parameters, view_parameters
from replicator.replay.places.view_text import not_understood, rename_databases, why_no_view

_EXACT = "COLUMN_STATS_ACCURATE"  # with it Hive answers counts from statistics; a drill is to read data
_LEFT_OUT = (_EXACT, "discover.partitions", "partition.retention.period")  # the others let a server drop partitions
_HOUSEKEEPING = "beekeeper."  # with such a property, the data of a table that was dropped goes some days later


@dataclass(frozen=True)
class Shadows:
    """One drill's shadows. `names`: replica's database -> its shadow."""

    id: str
    policy: str
    names: Mapping[str, str]

    def database(self, replica: Database) -> Database:
        """Beside the replica: what may hold the one may hold the other."""
        name = self.names[replica.name]
        return msgspec.structs.replace(
            replica,
            name=name,
            description=f"drill {self.id} of {replica.name} by {self.policy}: read only, shows the replica's files",
            location=uri(join(parent(replica.location or ""), f"{name}.db")),
            parameters={DRILL: self.id, OF_POLICY: self.policy},
            extra={},
        )

    def table(self, table: Table) -> Table:
        """Only of what `cannot_show` has no word against."""
        parameters = _parameters(table.parameters)
        if table.is_view:
            parameters = view_parameters(parameters, self.names)
        else:
            parameters |= {"EXTERNAL": "TRUE", "external.table.purge": "false"}
        return msgspec.structs.replace(
            table,
            db=self.names[table.db],
            kind=table.kind if table.is_view else EXTERNAL,
            parameters=parameters | {DRILL: self.id},
            view_original=rename_databases(table.view_original, self.names),
            view_expanded=rename_databases(table.view_expanded, self.names),
            extra={},
        )

    def partition(self, partition: Partition) -> Partition:
        return msgspec.structs.replace(partition, parameters=_parameters(partition.parameters), extra={})

    def function(self, function: Function) -> Function:
        return msgspec.structs.replace(function, db=self.names[function.db])

    def query(self, text: str) -> str:
        """A query on the replica, asked of the shadows instead; of the replica where it is not understood."""
        return text if not_understood(self.names, text) else rename_databases(text, self.names) or ""


def cannot_show(table: Table, names: Mapping[str, str]) -> str:
    """Why a table has no shadow in the databases of `names`; nothing when it can have one."""
    if table.kind not in (MANAGED, EXTERNAL, VIEW):
        return f"a {table.kind} cannot lie in two databases"
    match table_format(table):
        case "acid":
            return "a transactional table cannot be external"
        case "iceberg" | "iceberg-view":  # `DROP TABLE .. PURGE` of a shadow would delete what its metadata names
            return "an Iceberg table: who drops one takes its files away, whatever its properties say"
    return why_no_view(table, names)


def may_drop(table: Table) -> bool:
    """Whether an object in a drill's database is the drill's, and owns no data. Anything else was put there by somebody
    and stays."""
    return DRILL in table.parameters and not table.owns_data


def row_count(table: Table) -> int | None:
    """How many rows the metastore says an unpartitioned table has; None where it does not claim to know exactly."""
    if table.is_view or table.partition_keys or "BASIC_STATS" not in table.parameters.get(_EXACT, ""):
        return None
    text = table.parameters.get("numRows", "")
    return int(text) if text.isdigit() else None


def _parameters(parameters: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value
        for key, value in own_parameters(parameters).items()
        if key not in _LEFT_OUT and not key.startswith(_HOUSEKEEPING)
    }
