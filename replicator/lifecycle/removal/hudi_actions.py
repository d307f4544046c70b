"""Hudi's own actions on a table, in a session of Spark that has Hudi."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from cmroot.store.place import normal
from cmroot.store.spelling import hadoop_place
from replicator.core.cluster import package_of
from replicator.core.formats import format_of
from replicator.core.formats.hudi_table import HUDI
from replicator.core.model import Table
from replicator.core.spark import settings
from replicator.core.text import quoted_name
from replicator.metastore.client import MetastoreReader

SETTINGS = {
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
}
"""The settings of a session that Hudi needs."""

_TABLE = "replicator_hudi_table"
_CONFLICT = re.compile(r"overlapping writes between first operation = [^)]*instantTime=(\d+)\)")
_LOCKS = "hoodie.write.lock.provider"
_OWN = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",  # the delete fails if another write overlaps
    "hoodie.clean.failed.writes.policy": "LAZY",  # the start of a write rolls back no other one
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.compact.inline": "false",
    "hoodie.clustering.inline": "false",
}
_IN_PROCESS = {_LOCKS: "org.apache.hudi.client.transaction.lock.InProcessLockProvider"}
_EAGER = {
    "hoodie.write.concurrency.mode": "single_writer",
    "hoodie.clean.failed.writes.policy": "EAGER",
    "hoodie.rollback.using.markers": "false",  # by listing: markers may be gone
}
_EVERY_LOG = {
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.compaction.strategy": "org.apache.hudi.table.action.compact.strategy.UnBoundedCompactionStrategy",
}


def why_no_hudi(session: Any) -> str:
    """Returns why Spark cannot change Hudi tables; else ""."""
    lacking = list[str]()
    if type(session._jvm.org.apache.hudi.HoodieCLIUtils).__name__ != "JavaClass":
        lacking.append(f"--spark-conf spark.jars.packages={package_of('hudi', session)}")
    for key, value in SETTINGS.items():
        if value not in session.conf.get(key, "").split(","):
            lacking.append(f"--spark-conf {key}={value}")
    if not lacking:
        return ""
    why = f"if Hudi has none for Spark {session.version}, use an older Spark"
    return f"a Hudi table, and this Spark lacks Hudi: {' '.join(lacking)}; {why}"


def overlapping(error: Exception) -> str:
    """Returns the instant of a write that failed because another one overlaps; "" for other errors."""
    failed = _CONFLICT.search(str(error))
    return failed[1] if failed else ""


def other_names(metastore: MetastoreReader, table: Table, location: str) -> list[str]:
    """Returns the other names, as `db.table`, that Hudi gives to a table that is merged on read."""
    base = table.name.removesuffix("_ro").removesuffix("_rt")
    names = [name for name in (base, f"{base}_ro", f"{base}_rt") if name != table.name]
    return [
        f"{each.db}.{each.name}"
        for each in metastore.tables(table.db, names, {})
        if format_of(each) is HUDI and each.location and normal(each.location) == location
    ]


class HudiActions:
    """The actions on one table. All raise Spark's or Hudi's errors, also for a conflict with another writer."""

    def __init__(self, session: Any, table: Table, location: str) -> None:
        """session: one for which `why_no_hudi` returned ""."""
        self._session, self._table_name, self._path = session, (table.db, table.name), hadoop_place(location)
        self._properties = {**table.parameters, **(table.storage.serde.parameters if table.storage else {})}
        self._version = dict[str, str]()

    def keep_version(self, version: str) -> None:
        """Makes all actions write the table's present version; otherwise a newer release upgrades it."""
        self._version = {"hoodie.write.auto.upgrade": "false", "hoodie.write.table.version": version}

    def rows(self, keys: Any, column: str, view: str) -> tuple[int, int]:
        """Returns how many rows readers see, and how many of them have a value in the DataFrame `keys`, which is called
        `view` for that."""
        keys.createOrReplaceTempView(view)
        self._session.read.format("hudi").load(self._path).createOrReplaceTempView(_TABLE)
        selected = ("", f" WHERE {column} IN (SELECT key FROM {view})")
        rows, found = (self._session.sql(f"SELECT 1 FROM {_TABLE} AS t{each}").count() for each in selected)
        self._session.catalog.dropTempView(_TABLE)
        return int(rows), int(found)

    def delete(self, keys: Any, column: str, view: str) -> None:
        """Deletes the rows that have a value in the DataFrame `keys`, which is called `view` for that. One that fails
        because another write overlaps is left in flight; see `overlapping`."""
        keys.createOrReplaceTempView(view)
        name = quoted_name(*self._table_name)
        with self._configured():
            self._session.sql(f"DELETE FROM {name} AS t WHERE {column} IN (SELECT key FROM {view})").collect()

    def undo(self, instant: str) -> None:
        """Rolls back one write that is in flight."""
        with self._client({}) as client:
            client.rollback(instant)

    def compact(self) -> None:
        """Merges all log files into new base files, those of plans that exist already first."""
        with self._configured():
            self._call("run_compaction", op="run")
            self._call("run_compaction", op="schedule", options=",".join(map("=".join, _EVERY_LOG.items())))
            self._call("run_compaction", op="run")

    def clean(self) -> None:
        """Deletes all files but the newest of each file group, for good, unless a savepoint has them."""
        policy = {"clean_policy": "KEEP_LATEST_FILE_VERSIONS", "file_versions_retained": 1, "trigger_max_commits": 0}
        with self._configured():
            self._call("run_clean", **policy)

    def plan_clean(self, retained: int) -> str:
        """Plans a clean after which the newest writes, as many as given, can be read, and returns its instant; "" if
        there is nothing to clean."""
        jvm = self._session._jvm
        kind = jvm.org.apache.hudi.common.model.TableServiceType.CLEAN
        own = {
            "hoodie.clean.policy": "KEEP_LATEST_COMMITS",
            "hoodie.clean.commits.retained": str(retained),
            "hoodie.keep.min.commits": str(retained + 1),
            "hoodie.keep.max.commits": str(retained + 2),
            "hoodie.clean.incremental.enabled": "false",
            "hoodie.clean.trigger.max.commits": "0",
        }
        with self._client(own) as client:
            planned = client.scheduleTableService(jvm.org.apache.hudi.common.util.Option.empty(), kind)
            return str(planned.get()) if planned.isPresent() else ""

    def run_cleans(self) -> None:
        """Executes the cleans that are planned, and plans none."""
        with self._client({"hoodie.clean.trigger.max.commits": "1000000000"}) as client:
            client.clean()

    def drop_clean(self, instant: str) -> None:
        """Removes the plan of a clean that has not begun."""
        timeline = self._meta_client().getActiveTimeline()
        for each in timeline.getCleanerTimeline().getInstants():
            if each.requestedTime() == instant and each.isRequested():
                timeline.deleteInstantFileIfExists(each)

    def drop_indexes(self, names: Iterable[str]) -> None:
        """Deletes partitions of the table of metadata, with all of their files. Later writes build them again."""
        found = self._session._jvm.java.util.ArrayList()
        for name in sorted(names):
            found.add(name)
        with self._client({}) as client:
            client.dropIndex(found)

    def roll_back(self) -> None:
        """Rolls back all writes that have begun and not ended, as the next write of a single writer does."""
        with self._client(_EAGER) as client:
            client.rollbackFailedWrites(self._meta_client())

    def _meta_client(self) -> Any:
        jvm, session = self._session._jvm, self._session._jsparkSession
        storage = jvm.org.apache.hudi.hadoop.fs.HadoopFSUtils.getStorageConf(session.sessionState().newHadoopConf())
        builder = jvm.org.apache.hudi.common.table.HoodieTableMetaClient.builder()
        return builder.setConf(storage).setBasePath(self._path).build()

    def _call(self, procedure: str, **arguments: object) -> None:
        given = {"table": ".".join(self._table_name), **arguments}
        texts = (f"{key} => {value if isinstance(value, int) else _quoted(value)}" for key, value in given.items())
        self._session.sql(f"CALL {procedure}({', '.join(texts)})").collect()

    @contextmanager
    def _client(self, own: dict[str, str]) -> Iterator[Any]:
        """A client of Hudi's, with the session's settings, and some of its own."""
        jvm = self._session._jvm
        given = jvm.java.util.HashMap()
        for key, value in own.items():
            given.put(key, value)
        options = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(given)
        name = jvm.scala.Option.apply(".".join(self._table_name))
        with self._configured():
            session = self._session._jsparkSession
            client = jvm.org.apache.hudi.HoodieCLIUtils.createHoodieWriteClient(session, self._path, options, name)
            try:
                yield client
            finally:
                client.close()

    @contextmanager
    def _configured(self) -> Iterator[None]:
        of_cluster = self._session._jvm.org.apache.hudi.common.config.DFSPropertiesConfiguration.getGlobalProps()
        has_locks = self._session.conf.get(_LOCKS, "") or of_cluster.containsKey(_LOCKS) or _LOCKS in self._properties
        with settings(self._session, {**_OWN, **self._version, **({} if has_locks else _IN_PROCESS)}):
            yield


def _quoted(value: object) -> str:
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
