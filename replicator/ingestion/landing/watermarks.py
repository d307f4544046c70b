"""Watermarks: up to where a table's rows have landed. The metastore says it, with what was published: a job that died
after its publication, before it could say so, is not landed twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from replicator.core.model import Column, Table
from replicator.ingestion.ingestion_request import Request
from replicator.ingestion.landing.landing_schema import LOAD, SINCE, WATERMARK, RowsRefused
from replicator.ingestion.reading.source import SourceDatabase
from replicator.ingestion.reading.source_table import SourceTable
from replicator.metastore.client import Metastore


def watermark_text(request: Request, value: str | None) -> str | None:
    """As it stands in parameters: the column, and its greatest landed value."""
    if request.watermark is None or value is None:
        return None
    return msgspec.json.encode([request.watermark.lower(), value]).decode()


def landed_until(
    metastore: Metastore,
    table: Table | None,
    request: Request,
    columns: Sequence[Column],
    job: int,
    remembered: Mapping[str, Any],
) -> str | None:
    """The greatest value that has landed, but for this job's own partition; None: all rows are new, also to a merge
    into other columns than `columns`, whose rows would have no value in a new one. remembered: what the newest
    published job of the same request has found, and its number as `job`. Raises RowsRefused where rows were appended
    by another column: nobody could say which of them are there."""
    if table is None or table.storage is None or request.watermark is None:
        return None
    if request.mode == "merge" and _named(table.storage.columns) != _named(columns):
        return None
    said = table.parameters.get(WATERMARK)
    if request.mode == "append":
        names = metastore.partition_names(table.db, table.name)
        others = {int(name.partition("=")[2]) for name in names} - {job}
        said = _of_partition(metastore, table, max(others)) if others else _kept(table, remembered)
    if not said:
        return None
    column, value = msgspec.json.decode(said, type=tuple[str, str])
    if column == request.watermark.lower():
        return value
    if request.mode == "append":
        told = f"{table.db}.{table.name} was appended to by {column} so far, not by {request.watermark}"
        raise RowsRefused(told, hint=f"ask with the watermark {column}, or drop the table")
    return None


def _named(columns: Sequence[Column]) -> list[tuple[str, str]]:
    return [(column.name, column.type) for column in columns]


def _of_partition(metastore: Metastore, table: Table, job: int) -> str | None:
    found = [each for some in metastore.partitions(table.db, table.name, [f"{LOAD.name}={job}"]) for each in some]
    return found[0].parameters.get(WATERMARK) if found else None


def _kept(table: Table, remembered: Mapping[str, Any]) -> str | None:
    """Of a table whose partitions have expired; what jobs had landed in one that was dropped before is not there."""
    since = table.parameters.get(SINCE, "")
    is_of_it = remembered.get("job", 0) >= (int(since) if since.isdecimal() else 0)
    return remembered.get("watermark") if is_of_it else None


def window(database: SourceDatabase, table: SourceTable, request: Request, low: str | None) -> tuple[str, str | None]:
    """Which rows are new, as a condition, and the greatest value among them; None: there are none. A merge reads those
    of the value `low` again: others may have got it since, and it knows rows by their key. Raises RowsRefused for rows
    without a value, which would never come."""
    assert request.watermark
    name = table.column(request.watermark).name
    if nulls := database.nulls(table, name):
        raise RowsRefused(
            f"{nulls} rows of {table.schema}.{table.name} have NULL in the watermark {name}: they would never come",
            hint="choose a column that all rows have, or ask with mode overwrite",
        )
    after = database.after(table, name, low, same=request.mode == "merge") if low else ""
    high = database.greatest(table, name, after)
    if high is None:
        return after, None
    until = f"NOT ({database.after(table, name, high)})"  # what comes meanwhile, comes with the next job
    return f"({after}) AND {until}" if after else until, high
