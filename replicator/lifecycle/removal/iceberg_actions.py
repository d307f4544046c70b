"""Iceberg's own actions on a table, in a session of Spark that has Iceberg."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from replicator.core.cluster import package_of
from replicator.core.text import quoted_name

CATALOG = "replicator_iceberg"
"""The catalog of a run's own, in the session: Iceberg's on the session's metastore, whatever catalogs the user has."""

_SETTINGS = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hive", ".cache-enabled": "false"}


def why_no_iceberg(session: Any) -> str:
    """Returns why Spark cannot change Iceberg tables; else "". Adds the run's catalog to the session."""
    if type(session._jvm.org.apache.iceberg.spark.SparkCatalog).__name__ != "JavaClass":
        how = f"--spark-conf spark.jars.packages={package_of('iceberg', session)}"
        why = f"if Iceberg has none for Spark {session.version}, use an older Spark"
        return f"an Iceberg table, and this Spark has no Iceberg: {how}; {why}"
    for key, value in _SETTINGS.items():
        session.conf.set(f"spark.sql.catalog.{CATALOG}{key}", value)
    return ""


class IcebergActions:
    """The actions on one table. All raise Spark's errors, also for a conflict with another writer."""

    def __init__(self, session: Any, db: str, table: str) -> None:
        """session: one for which `why_no_iceberg` returned ""."""
        self._session, self._table_name = session, (CATALOG, db, table)

    def expire(self, snapshots: Iterable[int]) -> None:
        """Expires these snapshots and no others, and deletes the files that only they name, for good: see `shared`."""
        action = self._actions().expireSnapshots(self._loaded()).expireOlderThan(0)  # none because of its age
        for each in sorted(snapshots):
            action = action.expireSnapshotId(each)
        action.option("stream-results", "true").execute()

    def _loaded(self) -> Any:
        util = self._session._jvm.org.apache.iceberg.spark.Spark3Util
        return util.loadIcebergTable(self._session._jsparkSession, quoted_name(*self._table_name))

    def _actions(self) -> Any:
        return self._session._jvm.org.apache.iceberg.spark.actions.SparkActions.get(self._session._jsparkSession)
