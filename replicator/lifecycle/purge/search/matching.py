"""Finding the rows of a table that have an id, with Spark. Changes no table.

One job for all partitions of a table: the ids are semi-joined with the column of ids, and what comes back is how many
rows of which file have which id. Tables are read through the metastore as any Spark job reads them, so everything that
Spark can read can be searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.store.place import Place
from replicator.core.cluster.failures import hint_of
from replicator.core.text.sql_text import quoted_name, scalar_type
from replicator.errors import Error
from replicator.lifecycle.purge.onboarding import Onboarded
from replicator.lifecycle.purge.search.ids import VIEW, Ids, hadoop_place

LISTED = 1000
"""With at most so many ids, they are named in the scan's filter, which skips row groups by their statistics; with more,
the smallest and the largest are."""

_LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
"""Tasks in which Spark lists the directories of partitions; by itself it takes one for each."""

KEYS = VIEW + "_keys"
"""The view of the ids as the type of the column that was searched last."""


class LossyIds(Exception):
    """Ids that a column's type cannot hold; the message says which."""


@dataclass(frozen=True)
class Search:
    """The query for one table. `rows`: a DataFrame (file, key, rows); escaped: whether files are called by URIs (see
    `placing.place_of`)."""

    rows: Any
    escaped: bool


def search(ids: Ids, onboarded: Onboarded, *, converted: bool = True) -> Search:
    """converted: whether Spark may read Hive's Parquet and ORC with its own readers, which take all partitions for
    files of the table's format, and read no sub-directories; Hive's serdes do. Raises LossyIds."""
    session, type_ = ids.session, scalar_type(_comparable(onboarded.type))
    for format_ in ("Parquet", "Orc"):
        session.conf.set(f"spark.sql.hive.convertMetastore{format_}", str(converted).lower())
    session.conf.set("spark.sql.parquet.pushdown.inFilterThreshold", str(LISTED))
    session.conf.set("spark.sql.readSideCharPadding", "false")
    session.conf.set(_LISTING, str(session.sparkContext.defaultParallelism))
    session.conf.set("mapreduce.input.fileinputformat.input.dir.recursive", "true")
    try:
        keys = session.sql(f"SELECT id, try_cast(id AS {type_}) AS key FROM {VIEW}")
    except Exception as error:
        if "DATATYPE_MISMATCH" not in str(error):
            raise
        raise LossyIds(f"ids of type {ids.type} are no {type_}") from error
    lost = keys.where(f"key IS NULL OR NOT (try_cast(key AS {ids.type}) <=> id)")
    if type_ != ids.type and (example := lost.limit(1).collect()):
        raise LossyIds(f"{lost.count():,} of {ids.count:,} ids, such as {example[0][0]!r}, are no {type_}")
    keys = keys.selectExpr("key")
    (keys.hint(ids.hint) if ids.hint else keys).createOrReplaceTempView(KEYS)
    column = key_column(onboarded)
    table = quoted_name(onboarded.table.db, onboarded.table.name)
    session.sql(f"REFRESH TABLE {table}")
    query = (
        f"SELECT m.file, m.key, count(*) AS rows FROM (SELECT input_file_name() AS file, {column} AS key FROM {table} t"
        f" WHERE {column} IS NOT NULL AND {_bounds(keys, ids.count, column, type_)}) m"
        f" LEFT SEMI JOIN {KEYS} i ON m.key = i.key GROUP BY m.file, m.key"
    )
    rows = session.sql(query)
    return Search(rows, escaped=not _by_serde(rows))


def _by_serde(rows: Any) -> bool:
    """Whether Spark reads a query's table through Hive's serde."""
    plan = rows._jdf.queryExecution().optimizedPlan().toString()
    return any(line.lstrip(" :+-").startswith("HiveTableRelation ") for line in plan.splitlines())


def key_column(onboarded: Onboarded) -> str:
    """Of the table `t`."""
    column = "t." + quoted_name(*onboarded.field)
    return f"rtrim({column})" if onboarded.type.startswith("char") else column


def _comparable(type_: str) -> str:
    return "string" if type_.startswith(("char", "varchar")) else type_


def _bounds(keys: Any, count: int, column: str, type_: str) -> str:
    """A condition that all wanted rows meet, of literals, as only those reach the files' statistics."""
    if count <= LISTED:
        texts = [row[0] for row in keys.selectExpr("cast(key AS string)").collect()]
        return f"{column} IN ({', '.join(literal(text, type_) for text in texts)})"
    least, most = keys.selectExpr("cast(min(key) AS string)", "cast(max(key) AS string)").collect()[0]
    return f"{column} BETWEEN {literal(least, type_)} AND {literal(most, type_)}"


def literal(text: str, type_: str) -> str:
    """Any text, whatever letters it has. Raises ValueError for a type that is none of single values."""
    return f"CAST(decode(unhex('{text.encode().hex()}'), 'UTF-8') AS {scalar_type(type_)})"


def write_found(found: Search, place: str) -> None:
    """The rows of a search as Parquet below a place, sorted by file. Safe to run twice."""
    found.rows.repartition(1).sortWithinPartitions("file").write.mode("overwrite").parquet(hadoop_place(place))


def read_counts(place: str) -> dict[str, int]:
    """What was found, by file as Spark calls it."""
    counts: dict[str, int] = {}
    for name in Place(place).list():
        if name.endswith(".parquet"):
            with (Place(place) / name).open_read() as file:
                for batch in pq.ParquetFile(file).iter_batches(columns=["file", "rows"]):
                    _add(counts, batch)
    return counts


def _add(counts: dict[str, int], batch: pa.RecordBatch) -> None:
    table = pa.Table.from_batches([batch]).group_by("file").aggregate([("rows", "sum")])
    for file, rows in zip(table["file"].to_pylist(), table["rows_sum"].to_pylist(), strict=True):
        counts[file] = counts.get(file, 0) + rows


def ask_counts(found: Search) -> dict[str, int]:
    """The same without writing anything: for a dry run."""
    rows: Iterator[Any] = found.rows.groupBy("file").agg({"rows": "sum"}).toLocalIterator()
    return {row[0]: row[1] for row in rows}


def is_sparks(error: Exception) -> bool:
    """Whether Spark raised it, or the bridge to it."""
    return "pyspark" in type(error).__module__ or "py4j" in type(error).__module__


def failed(error: Exception) -> Error:
    """Spark's own words, without Java's stack."""
    text = str(getattr(error, "desc", "") or getattr(error, "java_exception", "") or error).strip()
    return Error(
        f"Spark failed: {text.splitlines()[0][:500] if text else type(error).__name__}",
        hint=hint_of(error, "see Spark's log; --verbose shows the traceback"),
    )
