"""Settling: transforms copied rows into those to be published: without erased data subjects, and merged into existing
rows.

Data subjects erased here must not be restored because a source still has them: the asset's list of ids is applied to
all rows before they are published, regardless of the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from replicator.core.model import Column
from replicator.core.text import SETTINGS, quoted_name, scalar_type
from replicator.ingestion.ingestion_request import Asset, Format
from replicator.ingestion.landing.landing_log import sizes_of
from replicator.ingestion.landing.landing_schema import RowsRefused
from replicator.lifecycle.purge.ids import hadoop_place, split_ids, value_of


@dataclass(frozen=True)
class Erased:
    """Statistics of the list. ids: on it. strange: those of them that no value of the column can equal."""

    ids: int
    strange: int


def prepare(session: Any) -> None:
    """Configures the session so that Spark does not interpret quoted text, which may come from outside."""
    for key, value in SETTINGS.items():
        session.conf.set(key, value)


def read(session: Any, place: str, format: Format, columns: Sequence[Column]) -> Any:
    """Returns a DataFrame of a directory's rows, with these columns: null where its files have none of that name.
    Without files there are no rows: Spark writes no file for zero rows if each day has a directory."""
    if not sizes_of(place)["files"]:
        return session.createDataFrame([], ", ".join(f"{quoted_name(each.name)} {each.type}" for each in columns))
    frame = session.read.format(format).load(hadoop_place(place))
    there = {name.lower() for name in frame.columns}
    return frame.selectExpr(
        *(
            f"CAST({quoted_name(column.name) if column.name in there else 'NULL'} AS {column.type})"
            f" AS {quoted_name(column.name)}"
            for column in columns
        )
    )


def merged(base: Any, increment: Any, key: Sequence[str]) -> Any:
    """Returns the base's rows except those whose key is in the increment, and the increment's rows. Raises RowsRefused
    if a key in the increment is null or not unique: it would be ambiguous which row counts."""
    names = [quoted_name(each.lower()) for each in key]
    null = increment.where(" OR ".join(f"{name} IS NULL" for name in names)).limit(1).count()
    if null:
        raise RowsRefused(f"rows have NULL in the key ({', '.join(key)})", hint="ask with a key that all rows have")
    keys = increment.selectExpr(f"struct({', '.join(names)}) AS key")
    if keys.groupBy("key").count().where("count > 1").limit(1).count():
        raise RowsRefused(f"the key ({', '.join(key)}) is not unique at the source", hint="ask with the primary key")
    kept = base.join(increment.selectExpr(*names), [each.lower() for each in key], "left_anti")
    return kept.select(*map(quoted_name, base.columns)).unionByName(increment)


def without_erased(session: Any, rows: Any, asset: Asset, columns: Sequence[Column]) -> tuple[Any, Erased]:
    """Returns the rows without erased data subjects, and statistics of the list. Raises RowsRefused if the list or the
    column is not available: then nothing may be published."""
    assert asset.erasure_ids and asset.erasure_column
    table, column = split_ids(asset.erasure_ids)
    db, _, name = table.partition(".")
    found = {each.name: each.type for each in columns}.get(asset.erasure_column.lower())
    if found is None:
        raise RowsRefused(
            f"there is no column {asset.erasure_column}, by which the asset's erased people are known",
            hint="land a table that has it, or give the table to an asset without personal data",
        )
    if not session.catalog.tableExists(quoted_name(db, name)):
        raise RowsRefused(f"there is no table {table} of erased people", hint="see the asset's erasure_ids")
    people = session.table(quoted_name(db, name))
    fields = [field for field in people.schema.fields if field.name.lower() == column.lower()]
    if not fields:
        raise RowsRefused(f"{table} has no column {column} of erased people", hint="see the asset's erasure_ids")
    value = value_of(fields[0])
    ids = people.selectExpr(f"{value} AS given", f"try_cast({value} AS {scalar_type(found)}) AS id")
    ids = ids.where("given IS NOT NULL").distinct()
    count, strange = ids.selectExpr("count(*)", "count_if(id IS NULL)").first()
    known = ids.where("id IS NOT NULL").selectExpr(f"id AS {quoted_name(asset.erasure_column.lower())}")
    kept = rows.join(known, [asset.erasure_column.lower()], "left_anti").select(*map(quoted_name, rows.columns))
    return kept, Erased(int(count), int(strange))
