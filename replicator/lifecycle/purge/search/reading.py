"""Directories that no table has, read by Spark as if one had them. Changes nothing.

Before a swap nothing refers to what was written, and a partition may have another serde and other columns than its
table. Spark's catalog gives the table's description; a copy of it with the partition's own storage is read in its
place, and never registered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from replicator.core.model import Column, Storage, Table
from replicator.core.spark import planned
from replicator.lifecycle.purge.onboarding import data_columns
from replicator.lifecycle.purge.search.ids import hadoop_place


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
