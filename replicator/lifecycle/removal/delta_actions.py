"""Delta's own actions on a table, in a session of Spark that has Delta, by the table's path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from cmroot.store.spelling import hadoop_place
from replicator.core.cluster import package_of
from replicator.core.spark import settings

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_FILES = "path STRING, length BIGINT, isDir BOOLEAN, modificationTime BIGINT"
_VIEW = "replicator_delta_files"
_TRUNCATION = timedelta(minutes=1)  # the finest of Delta's cleanup of logs

_SETTINGS = {
    "spark.databricks.delta.requiredSparkConfsCheck.enabled": "false",  # that of the catalog: tables have paths here
    "spark.databricks.delta.merge.deletionVectors.persistent": "false",  # a merge rewrites files, and marks no rows
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",  # VACUUM starts as many tasks, 10,000 by default
}


def why_no_delta(session: Any) -> str:
    """Returns why Spark cannot change Delta tables; else ""."""
    lacking = list[str]()
    if type(session._jvm.io.delta.tables.DeltaTable).__name__ != "JavaClass":
        lacking.append(f"--spark-conf spark.jars.packages={package_of('delta', session)}")
    if EXTENSION not in session.conf.get("spark.sql.extensions", "").split(","):
        lacking.append(f"--spark-conf spark.sql.extensions={EXTENSION}")
    if not lacking:
        return ""
    why = f"if Delta has none for Spark {session.version}, use an older Spark"
    return f"a Delta table, and this Spark lacks Delta: {' '.join(lacking)}; {why}"


class DeltaActions:
    """The actions on one table. All raise Spark's errors, also for a conflict with another writer."""

    def __init__(self, session: Any, location: str) -> None:
        """session: one for which `why_no_delta` returned ""; location: of the table."""
        self._session, self._path = session, hadoop_place(location)

    def delete(self, keys: Any, condition: str) -> None:
        """Deletes the rows of the table `t` for which a row of the DataFrame `keys`, `k`, meets the condition. The log
        records the condition, and no key."""
        with self._configured():
            table = self._session._jvm.io.delta.tables.DeltaTable.forPath(self._session._jsparkSession, self._path)
            merge = table.alias("t").merge(keys.alias("k")._jdf, condition)
            merge.whenMatched().delete().execute()

    def rewrite(self) -> None:
        """Rewrites the files with rows or columns that readers do not see."""
        with self._configured():
            self._session.sql(f"REORG TABLE {self._sql_name} APPLY (PURGE)").collect()

    def vacuum(self, files: Iterable[tuple[str, int, int]], *, aged: bool = False, logged: bool = True) -> None:
        """Deletes those of the files (path, bytes, milliseconds since 1970), for good, that the present version does
        not name; no others. aged: only those that are older than the table's retention. logged: by commits, where Delta
        does so."""
        rows = [(hadoop_place(path), size, False, changed) for path, size, changed in files]
        unlogged = {} if logged else {"spark.databricks.delta.vacuum.logging.enabled": "false"}
        with self._configured(), settings(self._session, unlogged):
            self._session.createDataFrame(rows, _FILES).createOrReplaceTempView(_VIEW)
            hours = "" if aged else " RETAIN 0 HOURS"
            self._session.sql(f"VACUUM {self._sql_name} USING INVENTORY (SELECT * FROM {_VIEW}){hours}").collect()
            self._session.catalog.dropTempView(_VIEW)

    def forget(self, grace: timedelta, *, commit: bool) -> None:
        """Writes a checkpoint of the present version, and lets Delta clean its log: commits and checkpoints of older
        versions are removed, unless they are younger than `grace`. A writer that began before such a commit would
        lose its own, so no write may last longer. commit: adds an empty commit first."""
        jvm, nothing = self._session._jvm, self._session._jvm.scala.Option.empty()
        with self._configured():
            log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._session._jsparkSession, self._path)
            log.startTransaction()  # reads the newest version
            if commit:
                operation = getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$ManualUpdate$")
                actions = getattr(jvm.scala.collection.immutable, "Nil$")
                log.startTransaction().commit(getattr(actions, "MODULE$"), getattr(operation, "MODULE$"))
            log.checkpoint()
            kept = grace if grace >= _TRUNCATION else grace - _TRUNCATION
            millis = jvm.java.util.OptionalLong.of(int(kept.total_seconds() * 1000))
            retention = jvm.scala.jdk.javaapi.OptionConverters.toScala(millis)
            units = getattr(jvm.org.apache.spark.sql.delta, "TruncationGranularity$")
            minute = getattr(units, "MODULE$").MINUTE()
            log.cleanUpExpiredLogs(log.unsafeVolatileSnapshot(), nothing, retention, minute)

    def checkpoint(self, version: int) -> None:
        """Writes a checkpoint of a version, and cleans no log. Delta only logs a failure: see whether it exists."""
        with self._configured():
            log = self._session._jvm.org.apache.spark.sql.delta.DeltaLog
            log.forTable(self._session._jsparkSession, self._path).createCheckpointAtVersion(version)

    @property
    def _sql_name(self) -> str:
        return f"delta.`{self._path.replace('`', '``')}`"

    @contextmanager
    def _configured(self) -> Iterator[None]:
        with settings(self._session, _SETTINGS):
            yield
