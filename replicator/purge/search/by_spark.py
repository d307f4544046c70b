"""Writing a partition anew with Spark, for formats that nothing here can write file by file. Acts.

RCFile, and ORC that pyarrow cannot hold: the anti-join of one partition with the ids, into the new directory, with the
partition's own serde. All its files are new, and their names Spark's.
"""

from __future__ import annotations

import re
from typing import Any

from cmroot.store.place import join, store_for
from replicator.core.engine import AutoEngine
from replicator.core.model import DEFAULT_PARTITION, Partition, Storage
from replicator.core.spark import counted
from replicator.purge.onboarding import Onboarded, data_columns
from replicator.purge.parts import is_data, look_at
from replicator.purge.rewrite.formats import Unsupported, check_by_spark
from replicator.purge.search import matching
from replicator.purge.search.ids import hadoop_place
from replicator.purge.search.lost_columns import lost_columns
from replicator.purge.staging import Staged, Staging
from replicator.text.sql_text import quoted_name, quoted_text

_INSTANTS = "LazyBinaryColumnarSerDe"
"""The serde whose files have timestamps as instants; those of the others have wall clocks."""
_WITHOUT_RULES = re.compile(r"Z|UCT|Zulu|Universal|Greenwich|Etc/.*|(UTC|GMT)([+-].*)?|[+-].*")


def stage_by_spark(session: Any, onboarded: Onboarded, staging: Staging, engines: AutoEngine) -> Staged:
    """After the table was searched, as it uses that search's view of the ids."""
    try:
        check_by_spark(onboarded.table, staging.part.storage, onboarded.field)
        check_zone(session, onboarded, staging.part.storage)
    except Unsupported as error:
        return Staged(staging, error=str(error), final=True)
    part, table = staging.part, quoted_name(onboarded.table.db, onboarded.table.name)
    names = [column.name for column in data_columns(onboarded.table)]
    if lost := lost_columns(engines, staging, session.table(table).schema.jsonValue(), len(names)):
        return Staged(staging, error=lost, final=True)
    staged = Staged(staging)
    columns = ", ".join(f"t.{quoted_name(name)}" for name in names)
    where = _condition(onboarded, part.thing) if isinstance(part.thing, Partition) else "true"
    before = int(session.sql(f"SELECT count(*) FROM {table} t WHERE {where}").collect()[0][0])
    kept, rows = counted(
        session.sql(
            f"SELECT {columns} FROM {table} t LEFT ANTI JOIN {matching.KEYS} i"
            f" ON {matching.key_column(onboarded)} = i.key WHERE {where}"
        )
    )
    if (part.storage.serde.library or "").endswith("OrcSerde"):
        codec = {key.lower(): value for key, value in _properties(onboarded, part.storage).items()}.get("orc.compress")
        writer = kept.write.mode("overwrite")
        (writer.option("compression", codec.lower()) if codec else writer).orc(hadoop_place(staging.new))
    else:
        kept.createOrReplaceTempView("replicator_purge_kept")
        session.sql(_insert(staging.new, part.storage))
    written = rows()
    staged.rows, staged.erased = before, before - written
    staged.bytes = sum(state.size for state in staging.look.files)
    for state in look_at(staging.new).files:
        if is_data(state.path_relative):
            staged.files += 1
            staged.rewritten += 1
            staged.bytes_after += state.size
    if staged.erased != staging.rows_matched:
        staged.error = f"{staged.erased:,} of {before:,} rows were left out, and Spark found {staging.rows_matched:,}"
    staged.checksums = {name: _checksum(join(part.location, name)) for name in staging.matched}
    return staged


def check_zone(session: Any, onboarded: Onboarded, storage: Storage) -> None:
    """Hive's serdes and ORC read a wall clock in the zone of the Java that runs them, whatever the session's is: hours
    that the zone skips would move. Raises Unsupported where that may be."""
    serde = (storage.serde.library or "").rpartition(".")[2]
    if serde == _INSTANTS or not any("timestamp" in column.type.lower() for column in data_columns(onboarded.table)):
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
    from cmroot.store.checksum import checksum_stream

    with store_for(place).open_read(place) as file:
        return checksum_stream(file)[0]


def _properties(onboarded: Onboarded, storage: Storage) -> dict[str, str]:
    return {**onboarded.table.parameters, **storage.parameters, **storage.serde.parameters}


def _condition(onboarded: Onboarded, partition: Partition) -> str:
    """Those rows that are the partition's. A type that two partitions' values share finds too many, and the sums do not
    agree."""
    conditions = []
    for key, value in zip(onboarded.table.partition_keys, partition.values, strict=True):
        if not value or value == DEFAULT_PARTITION:
            conditions.append(f"t.{quoted_name(key.name)} IS NULL")
        else:
            conditions.append(f"t.{quoted_name(key.name)} = {matching.literal(value, key.type)}")
    return " AND ".join(conditions)


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
