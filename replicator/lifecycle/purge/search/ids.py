"""The ids of a purge: read once, so that all tables of a run see the same. Writes the run's snapshot, and no table.

Few ids are brought here in one job and given back to Spark as they are; more never leave it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.store.place import Place, is_local, local_path
from replicator.core.text.sql_text import SETTINGS, quoted_name, scalar_type
from replicator.errors import Refused

FEW = 100_000
"""Ids that are held in memory, where they are numbers or texts; of more, only Spark does."""

VIEW = "replicator_purge_ids"

_PLAIN = frozenset({"tinyint", "smallint", "int", "bigint", "string", "date"})
"""Types that Arrow and Spark write and read alike."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ids:
    """The ids of a run: a Spark session's view of them, how many, and their Spark type."""

    session: Any
    count: int
    type: str

    @property
    def hint(self) -> str:
        """How Spark is to join with few of them, whose size it does not know: without moving the table's rows."""
        return "BROADCAST" if self.count <= FEW else ""

    def close(self) -> None:
        """At the end of a run: the Spark may be somebody else's, who goes on, and ids stay out of its memory."""
        try:
            self.session.table(VIEW).unpersist()
            self.session.catalog.dropTempView(VIEW)
        except Exception as error:
            log.info("Spark did not let go of the ids: %s", error)


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
    ids = source.selectExpr(f"{value_of(found[0])} AS id").where("id IS NOT NULL").distinct()
    if ids.schema.fields[0].dataType.simpleString() in _PLAIN and hasattr(ids, "toArrow"):  # since Spark 4
        few = ids.limit(FEW + 1).toArrow()
        if few.num_rows <= FEW:
            if snapshot is not None:
                _write(few, snapshot)
            return _view(session, session.createDataFrame(few, ids.schema), few.num_rows)
    if snapshot is not None:
        ids.write.mode("overwrite").parquet(hadoop_place(snapshot))
        return open_ids(session, snapshot)
    return _view(session, ids.cache())


def value_of(field: Any) -> str:
    """SQL for the id in a column (a StructField): blanks at the end of a `char` are no part of it."""
    value = quoted_name(field.name)
    is_padded = field.metadata.get("__CHAR_VARCHAR_TYPE_STRING", "").startswith("char")
    return f"rtrim({value})" if is_padded else value


def _write(ids: pa.Table, snapshot: str) -> None:
    """As Spark would write them: read only when the run says that they are there."""
    place = Place(snapshot)
    place.remove_own_tree()
    with (place / "ids.parquet").open_write() as file:
        pq.write_table(ids, file)


def open_ids(session: Any, snapshot: str) -> Ids:
    """The ids that a run has written."""
    _take_text_as_text(session)
    return _view(session, session.read.parquet(hadoop_place(snapshot)).cache())


def _take_text_as_text(session: Any) -> None:
    for key, value in SETTINGS.items():
        session.conf.set(key, value)


def _view(session: Any, ids: Any, count: int | None = None) -> Ids:
    count = ids.count() if count is None else count
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
    ids.createOrReplaceTempView(VIEW)
    return Ids(session, count, type_)


def hadoop_place(place: str) -> str:
    """A place as Hadoop wants it."""
    if is_local(place):
        return "file:" + local_path(place)
    if place.startswith("s3://"):
        return "s3a://" + place.removeprefix("s3://")
    return place
