"""Tables that are purged by their format's own commits, and how each of these formats is purged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from cmroot.errors import FormatError, UnknownPlace
from replicator.core.engine import AutoEngine
from replicator.core.formats import format_of
from replicator.core.formats.delta_table import DELTA
from replicator.core.formats.hudi_table import HUDI
from replicator.core.formats.iceberg_table import ICEBERG
from replicator.core.model import Table
from replicator.lifecycle.purge import delta_purge, hudi_purge, iceberg_purge
from replicator.lifecycle.purge.delta_search import DeltaFinder, described_by_log
from replicator.lifecycle.purge.hudi_search import HudiFinder
from replicator.lifecycle.purge.iceberg_search import IcebergFinder
from replicator.lifecycle.purge.ids import Ids
from replicator.lifecycle.purge.lake_purge import Lake
from replicator.lifecycle.purge.lake_search import Unsearchable
from replicator.lifecycle.purge.options import Onboarded, PurgeGap, WithoutPersons, onboard
from replicator.lifecycle.purge.tables import TableWork
from replicator.metastore.client import MetastoreReader


@dataclass(frozen=True)
class _Kind:
    """A format. made: makes the purge of one table; finder: of its search; left: yields what the search found of the
    ids, as text. no_backup: why its purges cannot be undone."""

    made: Callable[[TableWork, Onboarded], Lake]
    finder: Callable[[Onboarded, Ids, AutoEngine], Any]
    left: Callable[[Any], Iterator[str]]
    no_backup: str


_KINDS = {
    ICEBERG.name: _Kind(
        iceberg_purge.IcebergLake,
        IcebergFinder,
        iceberg_purge.left,
        "an Iceberg table has no backup: its purge expires the snapshots with the rows",
    ),
    DELTA.name: _Kind(
        delta_purge.DeltaLake,
        DeltaFinder,
        delta_purge.left,
        "a Delta table has no backup: its purge removes the files with the rows",
    ),
    HUDI.name: _Kind(
        hudi_purge.HudiLake,
        HudiFinder,
        hudi_purge.left,
        "a Hudi table has no backup: its purge cleans the files with the rows",
    ),
}


def is_lake(table: Table) -> bool:
    """Returns True for a table that is purged by its format's own commits."""
    return format_of(table).name in _KINDS


def onboard_any(table: Table, field_path: str = "") -> Onboarded | PurgeGap | WithoutPersons:
    """Returns how a purge takes a white-listed table of any format; see `onboard`. Reads the log of a table whose
    columns and properties are in its own log: Spark writes them there only."""
    if format_of(table) is not DELTA:
        return onboard(table, field_path)
    try:
        schema, own = described_by_log(table)
        own |= {"spark.sql.sources.provider": DELTA.name, "spark.sql.sources.schema": schema}
    except (Unsearchable, FormatError, UnknownPlace, OSError, KeyError) as error:
        why = f"its log has its columns and properties, and cannot be read: {error}"
        return PurgeGap(f"{table.db}.{table.name}", why)
    found = onboard(msgspec.structs.replace(table, parameters={**table.parameters, **own}), field_path)
    return replace(found, table=table) if isinstance(found, Onboarded) else found


def lake_of(work: TableWork, onboarded: Onboarded) -> Lake:
    """Returns the purge of such a table."""
    return _KINDS[format_of(onboarded.table).name].made(work, onboarded)


def rows_left(
    metastore: MetastoreReader, ids: Ids, table: Onboarded, engines: AutoEngine
) -> tuple[str, list[PurgeGap]]:
    """Returns what such a table's files still have of the ids, as text, "" for nothing, and the gaps. Reads only."""
    kind = _KINDS[format_of(table.table).name]
    finder = kind.finder(table, ids, engines)
    try:
        seen = finder.look(metastore)
    except (Unsearchable, FormatError) as error:
        return "", [PurgeGap(table.name, f"not searched: {error}")]
    return "; ".join(kind.left(seen)), finder.gaps


def why_no_backup(table: Table) -> str:
    """Returns why a purge of a table cannot be undone; "" if its format allows that."""
    return _KINDS[format_of(table).name].no_backup if is_lake(table) else ""
