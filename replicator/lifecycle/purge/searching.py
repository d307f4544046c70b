"""Search of one table for the ids: how it must be read, and which parts no read reaches. Changes no table.

A purge searches to erase, a certification to prove; both report what was not searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.store.place import Place, join
from cmroot.store.spelling import hadoop_place
from replicator.core.cluster import is_of_spark, spark_failed
from replicator.core.model import DEFAULT_PARTITION, Column, Storage, Table
from replicator.core.spark import planned
from replicator.core.text import quoted_name, scalar_type
from replicator.lifecycle.purge.file_columns import COPYING, Looked
from replicator.lifecycle.purge.file_names import place_of, uri_of, value_at
from replicator.lifecycle.purge.ids import (
    KEYS,
    Ids,
    comparable_type,
    compared,
    is_by_serde,
    keys_of,
    reader_options,
    with_former,
)
from replicator.lifecycle.purge.matching import form_of
from replicator.lifecycle.purge.options import DESCRIPTOR, Onboarded, PurgeGap, data_columns
from replicator.lifecycle.purge.table_files import Part
from replicator.lifecycle.purge.transactional_files import columns_with, kind_of, table_in_spark, whole

# ---- matching --------------------------------------------------------------------------------------------------------
# Finds the rows of a table that have an id, with Spark. Changes no table.
#
# One job for all partitions of a table: the column of ids is semi-joined with the ids, and the result is the number of
# rows per file and id. Tables are read through the metastore like in any Spark job, so everything that Spark can read
# can be searched.


LISTED = 1000
"""Up to this number of ids, the scan's filter lists them, and so skips row groups by their statistics; beyond it, the
filter is the range from the smallest to the largest id."""

_LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
"""The setting for the number of tasks in which Spark lists partitions' directories; by default one for each."""


@dataclass(frozen=True)
class Search:
    """The query for one table. `rows`: a DataFrame (file, key, rows); escaped: whether files are identified by URIs
    (see `place_of`). lossy: describes ids that the column's type cannot represent, which no row can equal; or ""."""

    rows: Any
    escaped: bool
    lossy: str = ""


def search(
    ids: Ids, onboarded: Onboarded, places: Sequence[str] = (), *, converted: bool = True, pushdown: bool = True
) -> Search:
    """Creates the query. places: of the files of a transactional table, which Spark does not read through the
    metastore. converted: whether Spark may read Hive's Parquet and ORC with its own readers, which assume
    the table's format for all partitions, and do not read sub-directories; Hive's serdes do. pushdown: whether they may
    filter rows by the files' statistics, which fails for files with another type of the column. Raises LossyIds."""
    session, type_ = ids.session, scalar_type(comparable_type(onboarded.type))
    pushdown = pushdown and onboarded.in_files == onboarded.field  # ORC's reader would not find a column in `row`
    for format_ in ("Parquet", "Orc"):
        session.conf.set(f"spark.sql.hive.convertMetastore{format_}", str(converted).lower())
        session.conf.set(f"spark.sql.{format_.lower()}.filterPushdown", str(pushdown).lower())
    session.conf.set("spark.sql.parquet.pushdown.inFilterThreshold", str(LISTED))
    session.conf.set("spark.sql.readSideCharPadding", "false")
    session.conf.set(_LISTING, str(session.sparkContext.defaultParallelism))
    session.conf.set("mapreduce.input.fileinputformat.input.dir.recursive", "true")
    keys, count, lossy = keys_of(ids, onboarded)
    (keys.hint(ids.hint) if ids.hint else keys).createOrReplaceTempView(KEYS)
    column, table = key_column(onboarded), table_in_spark(onboarded.table)
    if onboarded.state is None:
        session.sql(f"REFRESH TABLE {table}")
    else:
        _view(session, onboarded, places).createOrReplaceTempView(table.strip("`"))
    bounds = "true" if onboarded.match else _bounds(keys, count, column, type_)
    query = (
        f"SELECT m.file, m.key, count(*) AS rows FROM (SELECT input_file_name() AS file, {column} AS key,"
        f" {compared(onboarded, column)} AS form FROM {table} t WHERE {column} IS NOT NULL AND {bounds}) m"
        f" LEFT SEMI JOIN {KEYS} i ON m.form = i.key GROUP BY m.file, m.key"
    )
    rows = session.sql(query)
    return Search(rows, escaped=not _by_serde(rows), lossy=lossy)


def _view(session: Any, onboarded: Onboarded, places: Sequence[str]) -> Any:
    """Returns a DataFrame of the field in the files of a transactional table."""
    columns = columns_with(onboarded.table, onboarded.field, comparable_type(onboarded.type))
    if places:
        return whole(by_path(session, kind_of(onboarded.table), places, columns))
    return session.createDataFrame([], ", ".join(f"{quoted_name(each.name)} {each.type}" for each in columns))


def _by_serde(rows: Any) -> bool:
    """Returns True if Spark reads a query's table through Hive's serde."""
    plan = rows._jdf.queryExecution().optimizedPlan().toString()
    return any(line.lstrip(" :+-").startswith("HiveTableRelation ") for line in plan.splitlines())


def key_column(onboarded: Onboarded) -> str:
    """Returns SQL for the column of ids in the table `t`."""
    column = "t." + quoted_name(*onboarded.in_files)
    return f"rtrim({column})" if onboarded.type.startswith("char") else column


def _bounds(keys: Any, count: int, column: str, type_: str) -> str:
    """Returns a condition that all wanted rows meet: literals, as only those are compared with files' statistics."""
    if count <= LISTED:
        texts = [row[0] for row in keys.selectExpr("cast(key AS string)").collect()]
        return f"{column} IN ({', '.join(literal(text, type_) for text in texts)})"
    least, most = keys.selectExpr("cast(min(key) AS string)", "cast(max(key) AS string)").collect()[0]
    return f"{column} BETWEEN {literal(least, type_)} AND {literal(most, type_)}"


def literal(text: str, type_: str) -> str:
    """Returns a SQL literal for any text. Raises ValueError for a type that is not scalar."""
    return f"CAST(decode(unhex('{text.encode().hex()}'), 'UTF-8') AS {scalar_type(type_)})"


def write_found(found: Search, place: str) -> None:
    """Writes the rows of a search as Parquet below a path, sorted by file. May run twice."""
    found.rows.repartition(1).sortWithinPartitions("file").write.mode("overwrite").parquet(hadoop_place(place))


def read_counts(place: str) -> dict[str, int]:
    """Returns the number of rows found per file, as named by Spark."""
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
    """Returns the same without writing anything, for a dry run."""
    rows: Iterator[Any] = found.rows.groupBy("file").agg({"rows": "sum"}).toLocalIterator()
    return {row[0]: row[1] for row in rows}


# ---- searching -------------------------------------------------------------------------------------------------------


FORMER = 100
"""The maximum number of partitions of Hive's Avro and JSON whose former columns are searched: each has its own read."""
REPORTED = 100
"""The maximum number of a table's partitions that are reported as not searched; the others are counted."""


def searched(
    ids: Ids, onboarded: Onboarded, parts: Sequence[Part], looked: Mapping[str, Looked], *, pushdown: bool = True
) -> tuple[Search, list[PurgeGap]]:
    """Returns the query, and the gaps that it does not reach in the table. Raises LossyIds.

    Spark's own readers assume the table's format for all partitions and ignore sub-directories; if that would miss
    rows, the query reads through Hive's serdes."""
    own = onboarded.table.storage
    nested = any(each.nested for each in looked.values())
    alike = [part for part in parts if own and _format_key(part.storage) == _format_key(own)]
    read = [place for part in alike for place in _places(looked[part.location])] if onboarded.state else []
    found = search(ids, onboarded, read, converted=len(alike) == len(parts) and not nested, pushdown=pushdown)
    deep = onboarded.is_key or not found.escaped or onboarded.state is not None
    gaps = list(_gaps(onboarded.name, parts, looked, deep=deep))
    if onboarded.state is not None and len(alike) < len(parts):
        reason = f"not searched: {len(parts) - len(alike):,} partitions in another format than their table's"
        gaps.append(PurgeGap(onboarded.name, reason))
    if onboarded.is_key:
        return _with_values(ids, onboarded, parts, found), [*gaps, *_lossy(onboarded, found)]
    gaps += _unknown_with_ids(ids, onboarded, looked)
    gaps += _lossy(onboarded, found)
    earlier = [part for part in parts if looked[part.location].columns.former]
    by_one = [part for part in earlier if is_by_serde(onboarded.table, part.storage)]
    if left := by_one[FORMER:]:
        reason = f"not searched: the former column of {len(left):,} partitions, after {FORMER:,} others"
        gaps.append(PurgeGap(onboarded.name, f"{reason}: rewrite their files with the present one"))
        names = {part.name for part in left}
        earlier = [part for part in earlier if part.name not in names]
    return _with_former(ids, onboarded, earlier, looked, found), gaps


def _lossy(onboarded: Onboarded, found: Search) -> Iterator[PurgeGap]:
    if found.lossy:
        column = ".".join(onboarded.field)
        yield PurgeGap(onboarded.name, f"{found.lossy}, the type of {column}: no row was searched for them")


def _with_values(ids: Ids, onboarded: Onboarded, parts: Sequence[Part], found: Search) -> Search:
    """Adds the partitions whose value of the key is an id, by their locations, with 0 rows: they may have none. An
    empty value is Hive's default, of rows without a value: no id is equal to it."""
    names = [key.name.lower() for key in onboarded.table.partition_keys]
    index, type_ = names.index(onboarded.field[0]), scalar_type(comparable_type(onboarded.type))
    empty = ("", DEFAULT_PARTITION)
    known = [(part.location, value_at(part, index)) for part in parts]
    values = [(uri_of(place, escaped=found.escaped), value) for place, value in known if value not in empty]
    frame = ids.session.createDataFrame(values, "file STRING, value STRING")
    key = f"try_cast({'rtrim(value)' if onboarded.type.startswith('char') else 'value'} AS {type_})"
    named = frame.selectExpr("file", f"{key} AS value", f"{compared(onboarded, key)} AS key").where("value IS NOT NULL")
    wanted = named.join(_keys(ids), "key", "left_semi").selectExpr("file", "value AS key", "0L AS rows")
    rows = found.rows.where(f"CAST(key AS STRING) NOT IN {empty}")
    return Search(rows.union(wanted), found.escaped, found.lossy)


def _with_former(
    ids: Ids, onboarded: Onboarded, parts: Sequence[Part], looked: Mapping[str, Looked], found: Search
) -> Search:
    """Adds the rows that have the ids in a former column only. parts: those with such files."""
    rows = found.rows
    for frame, escaped in _former_frames(ids, onboarded, parts, looked):
        file = "input_file_name()"
        if escaped and not found.escaped:
            file = f"url_decode(replace({file}, '+', '%2B'))"
        present = {name.lower() for name in frame.columns}
        if onboarded.field[0] in present:
            frame = frame.where(f"{quoted_name(onboarded.field[0])} IS NULL")
        key = key_in(frame, onboarded)
        frame = frame.alias("t").selectExpr(f"{file} AS file", f"{key} AS value", f"{compared(onboarded, key)} AS key")
        keys = frame.join(_keys(ids), "key", "left_semi")
        rows = rows.union(keys.groupBy("file", "value").count().select("file", "value", "count"))
    return Search(rows, found.escaped, found.lossy)


def _former_frames(
    ids: Ids, onboarded: Onboarded, parts: Sequence[Part], looked: Mapping[str, Looked]
) -> Iterator[tuple[Any, bool]]:
    """Yields DataFrames, with True for Spark's own readers, which escape names."""
    places: dict[str, list[str]] = {}
    for part in parts:
        if is_by_serde(onboarded.table, part.storage):
            storage = msgspec.structs.replace(part.storage, columns=with_former(onboarded, part.storage))
            yield by_serde(ids.session, onboarded.table, storage, part.location), False
        else:
            places.setdefault(looked[part.location].columns.kind, []).append(part.location)
    for kind, several in places.items():
        if kind != "json":
            yield _by_ids_columns(ids.session, kind, several, onboarded), True
            continue
        storage = msgspec.structs.replace(parts[0].storage, columns=data_columns(onboarded.table))
        yield by_path(ids.session, kind, several, with_former(onboarded, storage), reader_options(storage)), True


def _by_ids_columns(session: Any, kind: str, places: Sequence[str], onboarded: Onboarded) -> Any:
    """Reads files with all columns; if other ones had several types, which Spark does not merge, only those of ids."""
    try:
        return by_path(session, kind, places)
    except Exception as error:
        if not is_of_spark(error):
            raise
    names = (onboarded.field[0], *(onboarded.former or ()))
    return by_path(session, kind, places, [Column(name, onboarded.type) for name in names])


def key_in(frame: Any, onboarded: Onboarded) -> str:
    """Returns SQL for the ids in a DataFrame `t` of files: of the column, or of a former one."""
    present = {name.lower() for name in frame.columns}
    type_ = scalar_type(comparable_type(onboarded.type))
    former = [f"try_cast(t.{quoted_name(each)} AS {type_})" for each in onboarded.former or () if each in present]
    own = [f"CAST({key_column(onboarded)} AS {type_})"] if onboarded.in_files[0] in present or not former else []
    return own[0] if not former else f"coalesce({', '.join([*own, *former])})"


def _keys(ids: Ids) -> Any:
    keys = ids.session.table(KEYS)
    return keys.hint(ids.hint) if ids.hint else keys


def _unknown_with_ids(ids: Ids, onboarded: Onboarded, looked: Mapping[str, Looked]) -> Iterator[PurgeGap]:
    """Yields columns that files have and the table has not, if their values are ids: of a column that was renamed or
    dropped. A column of Avro is a gap with any values, as no reader of Spark's shows it."""
    places: dict[tuple[str, str], list[str]] = {}
    for each in looked.values():
        for name in each.columns.unknown:
            places.setdefault((each.columns.kind, name), []).extend(_places(each))
    for (kind, name), several in places.items():
        column = f"the column {name} of its files, which the table does not have"
        if kind == "avro":
            yield PurgeGap(onboarded.name, f"not searched: {column}, such as in {several[0]}")
            continue
        try:
            found = _ids_in(ids, onboarded, kind, name, several)
        except Exception as error:
            if not is_of_spark(error):
                raise
            yield PurgeGap(onboarded.name, f"not searched: {column}: {spark_failed(error).message}")
            continue
        if found:
            file, rows = found
            yield PurgeGap(
                onboarded.name,
                f"{column}, holds ids, such as {rows:,} in {file}: name it in ids.former of {DESCRIPTOR}, or remove it",
            )


def _ids_in(ids: Ids, onboarded: Onboarded, kind: str, name: str, places: Sequence[str]) -> tuple[str, int] | None:
    """Returns a file that has ids in a column, and their number there."""
    type_ = scalar_type(comparable_type(onboarded.type))
    frame = whole(by_path(ids.session, kind, places, (Column(name, "string"),) if kind == "json" else ()))
    column = quoted_name(*onboarded.in_files[: -len(onboarded.field)], name)
    value = f"try_cast(CAST({column} AS STRING) AS {type_})"
    if onboarded.match:
        value = form_of(column, "string", onboarded.match)
    keys = frame.selectExpr("input_file_name() AS file", f"{value} AS key").join(_keys(ids), "key", "left_semi")
    rows = keys.groupBy("file").count().limit(1).collect()
    return (place_of(rows[0][0], escaped=True), rows[0][1]) if rows else None


def _places(looked: Looked) -> list[str]:
    """Returns what Spark reads of a location: the whole of it, or of a transactional table the listed directories."""
    if looked.directories is None:
        return [looked.location]
    return [join(looked.location, each) for each in sorted(looked.directories)]


def _format_key(storage: Storage) -> tuple[str | None, str | None]:
    return storage.serde.library, storage.input_format


def _gaps(table: str, parts: Sequence[Part], looked: Mapping[str, Looked], *, deep: bool) -> Iterable[PurgeGap]:
    gaps = []
    for part in parts:
        each = looked[part.location]
        reasons = []
        if each.nested and not deep:
            reasons.append(f"files in sub-directories, or named *{COPYING}, such as {each.nested}")
        if each.misread:
            reasons.append(f"RCFiles compressed with bzip2, where Hive's reader misses rows, such as {each.misread}")
        reasons += each.columns.reasons
        reasons += sorted({f"{why}, such as in {name}" for name, why in list(each.left_out.items())[:1]})
        if each.unread:
            reasons.append(f"files that no reader reads as rows: {each.unread}")
        if each.large:
            reasons.append(f"the mark {each.large}, which is too large")
        if reasons:
            gaps.append(PurgeGap(f"{table}/{part.name}".rstrip("/"), f"not searched: {'; '.join(reasons)}"))
    yield from gaps[:REPORTED]
    if len(gaps) > REPORTED:
        yield PurgeGap(table, f"not searched: similar files in {len(gaps) - REPORTED:,} more partitions")


# ---- reading ---------------------------------------------------------------------------------------------------------
# Reads directories that belong to no table with Spark, as if they did. Changes nothing.
#
# Before a swap nothing refers to the new files, and a partition's serde and columns may differ from its table's. The
# table's description from Spark's catalog is copied with the partition's own storage; the copy is read, and never
# registered.


def by_serde(session: Any, table: Table, storage: Storage, place: str) -> Any:
    """Returns a DataFrame of a file or directory by the storage's serde, with its columns; no partition keys."""
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
    """Returns a DataFrame of files, read by one of Spark's own readers, without columns in directory names. columns:
    for files that do not store their own; otherwise the columns of all files are merged. Raises Spark's error if the
    files' columns cannot be merged."""
    reader = session.read.format(kind).options(**options or {}, recursiveFileLookup="true", __globPaths__="false")
    if columns:
        reader._jreader.schema(_schema(session, columns))
    else:
        reader = reader.option("mergeSchema", "true")
    return reader.load([hadoop_place(place) for place in places])


def _schema(session: Any, columns: Sequence[Column]) -> Any:
    """Returns a Spark StructType; types are parsed, never part of a statement. A char or varchar becomes a string with
    metadata."""
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
    """Copies a Scala case class with some fields changed; the fields of Spark's classes differ between releases."""
    names = list(_items(value.productElementNames()))
    values = session.sparkContext._gateway.new_array(session._jvm.java.lang.Object, len(names))
    for index, name in enumerate(names):
        values[index] = changes[name] if name in changes else value.productElement(index)
    constructors: Any = value.getClass().getConstructors()
    return max(constructors, key=lambda each: int(each.getParameterCount())).newInstance(values)


def _items(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        yield iterator.next()
