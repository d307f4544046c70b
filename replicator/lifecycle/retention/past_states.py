"""Expiry of past states of Iceberg tables, their snapshots, by Iceberg itself in Spark. Acts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

from replicator.core.audit import AuditLog
from replicator.core.cluster import is_of_spark, spark_failed
from replicator.core.engine import AutoEngine
from replicator.core.spark import hive_settings
from replicator.lifecycle.removal.iceberg_actions import IcebergActions, why_no_iceberg
from replicator.lifecycle.retention.plan import PlannedItem
from replicator.metastore.client import Metastore, warehouse_of


@dataclass
class Expired:
    """The result of an expiry. failed: why snapshots were not expired."""

    count: int = 0
    failed: list[tuple[PlannedItem, str]] = field(default_factory=list)


@dataclass
class Expirer:
    """The expiry of planned snapshots. check: raises LeaseHeld."""

    metastore: Metastore
    engines: AutoEngine
    audit: AuditLog
    check: Callable[[], None]

    @cached_property
    def _session(self) -> Any:
        config, warehouse = self.metastore.config, warehouse_of(self.metastore) or "/tmp"
        return self.engines.session(hive_settings(config, warehouse, self.engines.settings))

    def expire(self, items: Sequence[PlannedItem]) -> Expired:
        """Expires the snapshots of each table by one commit. One that a branch or tag names since, and a commit that
        meets another writer's, fail, and change nothing. May run twice."""
        done = Expired()
        if why := why_no_iceberg(self._session):
            done.failed = [(item, why) for item in items]
            return done
        for name, of_table in groupby(items, lambda item: item.removal.object):
            group, (db, _, table) = list(of_table), name.partition(".")
            self.check()
            try:
                IcebergActions(self._session, db, table).expire(item.snapshot for item in group if item.snapshot)
            except Exception as error:
                if not is_of_spark(error):
                    raise
                done.failed += [(item, spark_failed(error).message) for item in group]
                continue
            done.count += len(group)
            for item in group:
                about = {"change": "expired", "snapshot": item.snapshot}
                path, reason = item.removal.path, item.removal.reason
                self.audit.changed(name, reason, what="snapshot", path=path, detail=about)
        return done
