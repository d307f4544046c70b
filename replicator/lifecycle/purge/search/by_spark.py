"""Rewriting of a partition by Spark, for formats that cannot be rewritten file by file. Has side effects.

For RCFile, and ORC that pyarrow cannot represent: writes the anti-join of one partition with the ids into the new
directory, with the partition's own serde and columns. All its files are new, with names from Spark. The omitted rows
are compared with the result of the search, id by id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import reduce
from typing import Any

import pyarrow as pa

from cmroot.store.checksum import checksum_at
from cmroot.store.place import join
from replicator.core.engine import AutoEngine
from replicator.core.model import Storage
from replicator.core.spark import counted
from replicator.core.text import quoted_text
from replicator.lifecycle.purge.onboarding import Onboarded, data_columns
from replicator.lifecycle.purge.partition_rewrite import Staged, Staging
from replicator.lifecycle.purge.partitions import is_data, look_at
from replicator.lifecycle.purge.rewrite.formats import Unsupported, check_by_spark
from replicator.lifecycle.purge.search import searching
from replicator.lifecycle.purge.search.ids import hadoop_place, lost_columns
from replicator.lifecycle.purge.search.searching import by_serde

_INSTANTS = "LazyBinaryColumnarSerDe"
"""The serde that stores timestamps as instants; the others store local times."""
_ID = "replicator_purge_id"  # not a column of any table
_WITHOUT_RULES = re.compile(r"Z|UCT|Zulu|Universal|Greenwich|Etc/.*|(UTC|GMT)([+-].*)?|[+-].*")


def stage_by_spark(session: Any, onboarded: Onboarded, staging: Staging, found: str, engines: AutoEngine) -> Staged:
    """Writes a partition. Requires a preceding search of the table, because it uses that search's view of the ids.
    found: where Spark wrote which ids it found in which file."""
    part = staging.part
    try:
        check_by_spark(onboarded.table, part.storage, onboarded.field)
        check_zone(session, onboarded, part.storage)
    except Unsupported as error:
        return Staged(staging, error=str(error), final=True)
    old = by_serde(session, onboarded.table, part.storage, part.location)
    if lost := lost_columns(engines, staging, old.schema.jsonValue(), len(old.columns)):
        return Staged(staging, error=lost, final=True)
    staged = Staged(staging)
    before, key = int(old.count()), searching.key_column(onboarded)
    ids = session.table(searching.KEYS).withColumnRenamed("key", _ID)
    staying = old.alias("t").selectExpr("t.*", f"{key} AS {_ID}").join(ids, _ID, "left_anti").drop(_ID)
    kept, rows = counted(staying)
    _write(kept, staging, _properties(onboarded, part.storage))
    written = rows()
    staged.rows, staged.erased = before, before - written
    staged.bytes = sum(state.size for state in staging.look.files)
    staged.files_before = sum(is_data(state.path_relative) for state in staging.look.files)
    for state in look_at(staging.new).files:
        if is_data(state.path_relative):
            staged.files += 1
            staged.rewritten += 1
            staged.bytes_after += state.size
    new = by_serde(session, onboarded.table, part.storage, staging.new)
    if staged.erased != staging.rows_matched:
        staged.error = f"{staged.erased:,} of {before:,} rows were left out, and Spark found {staging.rows_matched:,}"
    elif wrong := _otherwise(session, staging, found, key, old, new):
        staged.error = f"of {wrong:,} ids Spark found other numbers of rows than were left out"
    staged.checksums = {name: _checksum(join(part.location, name)) for name in staging.matched}
    return staged


def _write(kept: Any, staging: Staging, properties: Mapping[str, str]) -> None:
    storage = staging.part.storage
    if (storage.serde.library or "").endswith("OrcSerde"):
        codec = {key.lower(): value for key, value in properties.items()}.get("orc.compress")
        writer = kept.write.mode("overwrite")
        (writer.option("compression", codec.lower()) if codec else writer).orc(hadoop_place(staging.new))
    else:
        kept.createOrReplaceTempView("replicator_purge_kept")
        kept.sparkSession.sql(_insert(staging.new, storage))


def _otherwise(session: Any, staging: Staging, found: str, key: str, old: Any, new: Any) -> int:
    """Returns the number of ids whose row count in the search differs from that in the old less the new files."""
    files = session.createDataFrame(pa.table({"file": sorted(staging.uris.values())}))
    counts = [session.read.parquet(hadoop_place(found)).join(files, "file").select("key", "rows")]
    for frame, sign in ((old, -1), (new, 1)):
        keys = frame.alias("t").selectExpr(f"{key} AS key").join(session.table(searching.KEYS), "key", "left_semi")
        counts.append(keys.selectExpr("key", f"{sign}L AS rows"))
    summed = reduce(lambda one, other: one.union(other), counts).groupBy("key").agg({"rows": "sum"})
    return int(summed.where("`sum(rows)` <> 0").count())


def check_zone(session: Any, onboarded: Onboarded, storage: Storage) -> None:
    """Raises Unsupported if rewriting might shift timestamps. Hive's serdes and ORC interpret local times in the JVM's
    time zone, regardless of the session's, so local times that the zone skips would be shifted."""
    serde = (storage.serde.library or "").rpartition(".")[2]
    columns = storage.columns or data_columns(onboarded.table)
    if serde == _INSTANTS or not any("timestamp" in column.type.lower() for column in columns):
        return
    tasks = session.sparkContext.defaultParallelism
    asked = f"SELECT DISTINCT reflect('java.time.ZoneId', 'systemDefault') FROM range(0, {tasks}, 1, {tasks})"
    for (zone,) in session.sql(asked).collect():
        if not _WITHOUT_RULES.fullmatch(zone):
            raise Unsupported(
                f"timestamps of {serde} are wall clocks, and Spark's zone {zone} skips hours: run with TZ=UTC, or with"
                " -Duser.timezone=UTC in spark.driver.extraJavaOptions and spark.executor.extraJavaOptions"
            )


def _checksum(place: str) -> str:
    return checksum_at(place)[0]


def _properties(onboarded: Onboarded, storage: Storage) -> dict[str, str]:
    return {**onboarded.table.parameters, **storage.parameters, **storage.serde.parameters}


def _insert(place: str, storage: Storage) -> str:
    given = storage.serde.parameters
    properties = ", ".join(f"{quoted_text(key)} = {quoted_text(value)}" for key, value in given.items())
    return (
        f"INSERT OVERWRITE DIRECTORY {quoted_text(hadoop_place(place))}"
        f" ROW FORMAT SERDE {quoted_text(storage.serde.library or '')}"
        + (f" WITH SERDEPROPERTIES ({properties})" if properties else "")
        + f" STORED AS INPUTFORMAT {quoted_text(storage.input_format or '')}"
        f" OUTPUTFORMAT {quoted_text(storage.output_format or '')} SELECT * FROM replicator_purge_kept"
    )
