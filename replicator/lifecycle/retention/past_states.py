"""Expiry of past states of Iceberg tables, their snapshots, by Iceberg itself in Spark. Acts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

from cmroot.store import iceberg
from cmroot.store.place import located
from replicator.core.audit import AuditLog
from replicator.core.cluster import is_of_spark, spark_failed
from replicator.core.engine import AutoEngine
from replicator.core.formats import pointer_of
from replicator.core.spark import hive_settings
from replicator.errors import FormatError, ObjectNotFound
from replicator.lifecycle.removal.iceberg_actions import IcebergActions, why_no_iceberg
from replicator.lifecycle.removal.live import LiveLocations, shared
from replicator.lifecycle.retention.datasets import explained
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
    live: LiveLocations
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
        for name, of_table in groupby(items, lambda item: item.removal.object):
            group, (db, _, table) = list(of_table), name.partition(".")
            snapshots = {item.snapshot for item in group if item.snapshot}
            if why := self._why_not(db, table, snapshots) or why_no_iceberg(self._session):
                done.failed += [(item, why) for item in group]
                continue
            self.check()
            try:
                IcebergActions(self._session, db, table).expire(snapshots)
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

    def _why_not(self, db: str, table: str, snapshots: Collection[int]) -> str:
        """Returns why snapshots of a table may not expire: their files are data of another table, or unknown."""
        self.live.refresh()
        try:
            pointer = pointer_of(self.metastore.table(db, table))
            return shared(self.live, f"{db}.{table}", _files(pointer, snapshots))
        except (FormatError, ObjectNotFound, OSError) as error:
            return explained(error)


def _files(pointer: str, snapshots: Collection[int]) -> Iterator[str]:
    """Yields all files that manifests of some snapshots have entries about."""
    manifests = dict[str, None]()
    for each in iceberg.read_metadata(pointer, _read(pointer)).get("snapshots") or ():
        if each["snapshot-id"] in snapshots:
            manifests |= dict.fromkeys(each.get("manifests") or ())
            if place := each.get("manifest-list"):
                manifests |= dict.fromkeys(found.path for found in iceberg.references(place, _read(place)))
    for place in manifests:
        for entry in iceberg.entries(place, _read(place)):
            yield entry["data_file"]["file_path"]


def _read(place: str) -> bytes:
    with located(place).open_stream() as stream:
        return stream.read()
