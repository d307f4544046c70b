"""What Spark does in a purge: reading the ids once, and finding the rows of a table that have one. Changes no table.

One job for all partitions of a table: the ids are semi-joined with the column of ids, and what comes back is how many
rows of which file have which id. Tables are read through the metastore as any Spark job reads them, so everything that
Spark can read can be searched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.place import is_local, join, local_path, store_for
from replicator.errors import Error, Refused
from replicator.purge.onboarding import Onboarded
from replicator.sql_text import SETTINGS, quoted_name, scalar_type

LISTED = 1000
"""With at most so many ids, they are named in the scan's filter, which skips row groups by their statistics; with more,
the smallest and the largest are."""

log = logging.getLogger(__name__)

_VIEW = "replicator_purge_ids"
KEYS = _VIEW + "_keys"
"""The view of the ids as the type of the column that was searched last."""


class LossyIds(Exception):
    """Ids that a column's type cannot hold; the message says which."""


@dataclass(frozen=True)
class Ids:
    """The ids of a run: a Spark session's view of them, how many, and their Spark type."""

    session: Any
    count: int
    type: str


def split_ids(text: str) -> tuple[str, str]:
    """("db.table", "column") of "db.table:column". Raises Refused for anything else."""
    table, colon, column = text.partition(":")
    if not colon or table.count(".") != 1 or not all(table.split(".")) or not column:
        raise Refused(f"{text!r} does not name the ids", hint="write --ids db.table:column")
    return table, column


def read_ids(session: Any, text: str, snapshot: str | None) -> Ids:
    """The distinct ids of "db.table:column", nulls left out; with `snapshot`, written there first and read from there,
    so that all tables of a run see the same. Raises Refused when there are none, for whatever reason."""
    table, column = split_ids(text)
    db, _, name = table.partition(".")
    _take_text_as_text(session)
    if not session.catalog.tableExists(quoted_name(db, name)):
        raise Refused(f"there is no table {table} with ids, so nothing would be erased", hint="check --ids")
    source = session.table(quoted_name(db, name))
    found = [field for field in source.schema.fields if field.name.lower() == column.lower()]
    if not found:
        names = ", ".join(field.name for field in source.schema.fields)
        raise Refused(f"{table} has no column {column}, so nothing would be erased", hint=f"it has {names}")
    ids = source.selectExpr(f"{quoted_name(column)} AS id").where("id IS NOT NULL").distinct()
    if snapshot is not None:
        ids.write.mode("overwrite").parquet(hadoop_place(snapshot))
        return open_ids(session, snapshot)
    return _view(session, ids.cache())


def open_ids(session: Any, snapshot: str) -> Ids:
    """The ids that a run has written."""
    _take_text_as_text(session)
    return _view(session, session.read.parquet(hadoop_place(snapshot)).cache())


def _take_text_as_text(session: Any) -> None:
    for key, value in SETTINGS.items():
        session.conf.set(key, value)


def _view(session: Any, ids: Any) -> Ids:
    count = ids.count()
    if not count:
        raise Refused(
            "the table of ids is empty, so nothing would be erased",
            hint="an empty list of ids is more often a failed export than a day without requests",
        )
    type_ = ids.schema.fields[0].dataType.simpleString()
    try:
        scalar_type(type_)
    except ValueError as error:
        raise Refused(f"the ids cannot be compared: {error}", hint="name a column of single values in --ids") from error
    ids.createOrReplaceTempView(_VIEW)
    return Ids(session, count, type_)


def forget(ids: Ids) -> None:
    """At the end of a run: the Spark may be somebody else's, who goes on, and ids stay out of its memory."""
    try:
        ids.session.table(_VIEW).unpersist()
        ids.session.catalog.dropTempView(_VIEW)
    except Exception as error:
        log.info("Spark did not let go of the ids: %s", error)


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
    session.conf.set("mapreduce.input.fileinputformat.input.dir.recursive", "true")
    try:
        keys = session.sql(f"SELECT id, try_cast(id AS {type_}) AS key FROM {_VIEW}")
    except Exception as error:
        if "DATATYPE_MISMATCH" not in str(error):
            raise
        raise LossyIds(f"ids of type {ids.type} are no {type_}") from error
    lost = keys.where(f"key IS NULL OR NOT (try_cast(key AS {ids.type}) <=> id)")
    if type_ != ids.type and (example := lost.limit(1).collect()):
        raise LossyIds(f"{lost.count():,} of {ids.count:,} ids, such as {example[0][0]!r}, are no {type_}")
    keys = keys.selectExpr("key")
    keys.createOrReplaceTempView(KEYS)
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
    store = store_for(place)
    counts: dict[str, int] = {}
    for name in store.list(place):
        if name.endswith(".parquet"):
            with store.open_read(join(place, name)) as file:
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


def hadoop_place(place: str) -> str:
    """A place as Hadoop wants it."""
    if is_local(place):
        return "file:" + local_path(place)
    if place.startswith("s3://"):
        return "s3a://" + place.removeprefix("s3://")
    return place


def is_sparks(error: Exception) -> bool:
    """Whether Spark raised it, or the bridge to it."""
    return "pyspark" in type(error).__module__ or "py4j" in type(error).__module__


def failed(error: Exception) -> Error:
    """Spark's own words, without Java's stack."""
    text = str(getattr(error, "desc", "") or error).strip()
    return Error(f"Spark failed: {text.splitlines()[0][:500] if text else type(error).__name__}",
                 hint="see Spark's log; --verbose shows the traceback")  # fmt: skip
