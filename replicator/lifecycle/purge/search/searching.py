"""Searching one table for the ids: how it has to be read, and what no reading of it reaches. Changes no table.

A purge searches to erase and a certificate to prove; both say what was not searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.store.place import Place, normal, parent
from replicator.core.cluster import hint_of
from replicator.core.engine import AutoEngine
from replicator.core.model import Column, Storage, Table
from replicator.core.spark import planned
from replicator.core.text.sql_text import quoted_name, scalar_type
from replicator.errors import Error
from replicator.lifecycle.purge.onboarding import Onboarded, PurgeGap, data_columns
from replicator.lifecycle.purge.partitions import Looked, Part, looks_tasks, run_looks_task
from replicator.lifecycle.purge.search.ids import VIEW, Ids, hadoop_place

# ---- matching --------------------------------------------------------------------------------------------------------
# Finding the rows of a table that have an id, with Spark. Changes no table.
#
# One job for all partitions of a table: the ids are semi-joined with the column of ids, and what comes back is how many
# rows of which file have which id. Tables are read through the metastore as any Spark job reads them, so everything
# that Spark can read can be searched.


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


# ---- searching -------------------------------------------------------------------------------------------------------


REPORTED = 100
"""Partitions of a table that are named as not searched; the rest is counted."""


def look_at_all(engines: AutoEngine, parts: Sequence[Part]) -> dict[str, Looked]:
    """What lies at each location. To be asked before a search, so that a change that comes after is noticed."""
    engine = engines.for_work(len(parts))
    tasks = looks_tasks(parts)
    return {each.location: each for answer in engine.run(run_looks_task, tasks) for each in answer}


def searched(
    ids: Ids, onboarded: Onboarded, parts: Sequence[Part], looked: Mapping[str, Looked]
) -> tuple[Search, list[PurgeGap]]:
    """The query, and what it does not reach of the table. Raises LossyIds.

    Spark's own readers take all partitions for files of the table's format and pass over sub-directories; where that
    would miss rows, it reads through Hive's serdes."""
    own = onboarded.table.storage
    nested = any(each.nested for each in looked.values())
    uniform = all(_format_key(part.storage) == (own and _format_key(own)) for part in parts)
    found = search(ids, onboarded, converted=uniform and not nested)
    return found, list(_gaps(onboarded.name, parts, looked, deep=not found.escaped))


def _format_key(storage: Storage) -> tuple[str | None, str | None]:
    return storage.serde.library, storage.input_format


def _gaps(table: str, parts: Sequence[Part], looked: Mapping[str, Looked], *, deep: bool) -> Iterable[PurgeGap]:
    gaps = []
    for part in parts:
        each = looked[part.location]
        reasons = []
        if each.nested and not deep:
            reasons.append(f"files in sub-directories, such as {each.nested}")
        if each.misread:
            reasons.append(f"RCFiles packed with bzip2, of which Hive's reader misses rows, such as {each.misread}")
        if each.unread:
            reasons.append(f"files that no reader takes for rows: {each.unread}")
        if reasons:
            gaps.append(PurgeGap(f"{table}/{part.name}".rstrip("/"), f"not searched: {'; '.join(reasons)}"))
    yield from gaps[:REPORTED]
    if len(gaps) > REPORTED:
        yield PurgeGap(table, f"not searched: the like in {len(gaps) - REPORTED:,} more partitions")


# ---- reading ---------------------------------------------------------------------------------------------------------
# Directories that no table has, read by Spark as if one had them. Changes nothing.
#
# Before a swap nothing refers to what was written, and a partition may have another serde and other columns than its
# table. Spark's catalog gives the table's description; a copy of it with the partition's own storage is read in its
# place, and never registered.


def by_serde(session: Any, table: Table, storage: Storage, place: str) -> Any:
    """A DataFrame of a file or directory, through the storage's serde and with its columns; no partition keys."""
    jvm, state = session._jvm, session._jsparkSession.sessionState()
    catalog, sql = state.catalog(), jvm.org.apache.spark.sql
    described = catalog.getTableMetadata(sql.catalyst.TableIdentifier(table.name, _some(jvm, table.db)))
    stored = _copied(
        session,
        described.storage(),
        locationUri=_some(jvm, jvm.org.apache.hadoop.fs.Path(hadoop_place(place)).toUri()),
        inputFormat=_some(jvm, storage.input_format),
        outputFormat=_some(jvm, storage.output_format),
        serde=_some(jvm, storage.serde.library),
        properties=jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(dict(storage.serde.parameters)),
    )
    copy = _copied(
        session,
        described,
        storage=stored,
        schema=_schema(session, storage.columns or data_columns(table)),
        partitionColumnNames=described.partitionColumnNames().take(0),
    )
    return planned(session, catalog.getRelation(copy, sql.util.CaseInsensitiveStringMap.empty()))


def by_path(
    session: Any,
    kind: str,
    places: Sequence[str],
    columns: Sequence[Column] = (),
    options: Mapping[str, str] | None = None,
) -> Any:
    """A DataFrame of files by one of Spark's own readers; columns in the names of directories are left out. columns:
    where the files do not tell them themselves; else it has those of all files. Raises Spark's error for files whose
    columns do not go together."""
    reader = session.read.format(kind).options(**options or {}, recursiveFileLookup="true", __globPaths__="false")
    if columns:
        reader._jreader.schema(_schema(session, columns))
    else:
        reader = reader.option("mergeSchema", "true")
    return reader.load([hadoop_place(place) for place in places])


def _schema(session: Any, columns: Sequence[Column]) -> Any:
    """A StructType of Spark's; types are parsed, never part of a statement. A char or varchar is a string there, with a
    note."""
    schema, parser = (
        session._jvm.org.apache.spark.sql.types.StructType(),
        session._jsparkSession.sessionState().sqlParser(),
    )
    for column in columns:
        schema = schema.add(column.name, parser.parseDataType(column.type), True)
    return session._jvm.org.apache.spark.sql.catalyst.util.CharVarcharUtils.replaceCharVarcharWithStringInSchema(schema)


def _some(jvm: Any, value: Any) -> Any:
    return jvm.scala.Option.apply(value)


def _copied(session: Any, value: Any, **changes: Any) -> Any:
    """A copy of a Scala case class with some fields changed; Spark's have other fields in each release."""
    names = list(_items(value.productElementNames()))
    values = session.sparkContext._gateway.new_array(session._jvm.java.lang.Object, len(names))
    for index, name in enumerate(names):
        values[index] = changes[name] if name in changes else value.productElement(index)
    constructors: Any = value.getClass().getConstructors()
    return max(constructors, key=lambda each: int(each.getParameterCount())).newInstance(values)


def _items(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        yield iterator.next()


@contextmanager
def settings(session: Any, values: Mapping[str, str]) -> Iterator[None]:
    """Spark's settings for a while; the session may be somebody else's."""
    before = {key: session.conf.get(key, None) for key in values}
    for key, value in values.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, value)


# ---- placing ---------------------------------------------------------------------------------------------------------
# Which partition a file lies in that Spark names. Pure.


Matched = dict[str, dict[str, tuple[str, int]]]
"""By part: the name of a file below its location -> (how Spark calls it, matching rows)."""


class Unplaced(Exception):
    """A file with matching rows that lies in no partition of its table."""


def place_of(file: str, *, escaped: bool) -> str:
    """The place of a file as Spark calls it. Its own readers call it by a URI, in which `p=a%3Ab` is `p=a%253Ab`;
    Hadoop's input formats, by which it reads through Hive's serdes, by the plain path (`input_file_name`)."""
    return normal(unquote(file) if escaped else file)


def by_part(parts: Sequence[Part], counts: Mapping[str, int], *, escaped: bool) -> Matched:
    """Which part each file lies in: the nearest location above it. Raises Unplaced for one in none."""
    locations = {normal(part.location): part.name for part in parts}
    found: Matched = {}
    for file, rows in counts.items():
        place = place_of(file, escaped=escaped)
        location = next((above for above in _above(place) if above in locations), None)
        if location is None:
            raise Unplaced(f"{place} has rows with an id, but is in no partition")
        found.setdefault(locations[location], {})[place[len(location) :].lstrip("/")] = (file, rows)
    return found


def _above(place: str) -> Iterator[str]:
    """The place itself, which may be a table's location, and all that are above it."""
    yield place
    while (above := parent(place)) != place:
        yield above
        place = above
