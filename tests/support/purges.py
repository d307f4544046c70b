"""A metastore with the one Spark session of the test process, which makes tables and purges them."""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from names import unique

from cmroot.root import ChangeRoot, create_or_open
from replicator.core.engine import AutoEngine, LocalEngine
from replicator.core.runtime import Runtime, Silent
from replicator.core.spark import SparkEngine, hive_settings
from replicator.lifecycle.purge.backup_actions import Retain, Retained
from replicator.lifecycle.purge.certificate_file import Certificate
from replicator.lifecycle.purge.certify import Replica, certify
from replicator.lifecycle.purge.options import CertifyOptions, PurgeOptions, RetainOptions
from replicator.lifecycle.purge.run import Purge, Purged
from replicator.lifecycle.removal.removal import Limits
from replicator.metastore.embedded.running import Running
from replicator.metastore.java import find_java, spark_environment
from replicator.metastore.thrift import ThriftMetastore, connect

IDS = unique("ids")
DESCRIPTOR = """'dataset.descriptor'='{"privacy": {"column": "id"}}'"""


class Warehouse:
    """A metastore, and the one Spark session that makes its tables and purges them."""

    def __init__(self, running: Running, home: Path) -> None:
        self.running, self.home = running, home
        self.metastore: ThriftMetastore = connect(running.uri)
        self.engines = AutoEngine(
            LocalEngine(2), SparkEngine("local[2]", {"spark.sql.shuffle.partitions": "2"}, _java), "auto"
        )
        self.session: Any = self.engines.session(hive_settings(running.uri, str(running.warehouse)))
        self.session.conf.set("hive.exec.dynamic.partition.mode", "nonstrict")

    @property
    def ids(self) -> str:
        """A table of ids: 0, 10, ... 90."""
        if not self.session.catalog.tableExists(f"{IDS}.gone"):
            self.sql(f"CREATE DATABASE {IDS}", f"CREATE TABLE {IDS}.gone AS SELECT id AS member FROM range(0, 100, 10)")
        return f"{IDS}.gone:member"

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """All of them, in an order."""
        return sorted(self.sql(f"REFRESH TABLE {table}", f"SELECT * FROM {table}"), key=str)

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        rows: list[Any] = []
        for statement in statements:
            rows = self.session.sql(statement).collect()
        return [tuple(row) for row in rows]

    def drop(self, database: str) -> None:
        """With all of its tables; a damaged one that cannot be dropped stays."""
        with contextlib.suppress(Exception):
            self.sql(f"DROP DATABASE `{database}` CASCADE")

    def home_of(self, table: str) -> str:
        """Where it lies, as a path."""
        location = self.metastore.table(*table.split(".")).location
        assert location
        return location.removeprefix("file:")

    def root(self, name: str) -> ChangeRoot:
        return create_or_open(str(self.home / name))

    def purge(self, root: ChangeRoot, ids: str, whitelist: str, **options: Any) -> Purged:
        asked = PurgeOptions(ids, whitelist, options.pop("field_path", "privacy.column"))
        limits = options.pop("limits", Limits())
        runtime = Runtime(self.engines, options.pop("progress", Silent()))
        with Purge(root=root, metastore=self.metastore, runtime=runtime, limits=limits, options=asked) as purge:
            return purge.run(**options)

    def retain(self, root: ChangeRoot, options: RetainOptions, *, dry_run: bool = False) -> Retained:
        with Retain(root=root, metastore=self.metastore, runtime=Runtime(self.engines), options=options) as retain:
            return retain.run(dry_run=dry_run)

    def certify(
        self, root: ChangeRoot, asked: PurgeOptions, *replicas: Replica, readers: timedelta = timedelta(0), **how: Any
    ) -> Certificate:
        """No query is at work, unless a test says so."""
        options = CertifyOptions(readers=readers, **how)
        return certify(self.metastore, root, asked, options, replicas, Runtime(self.engines))

    def close(self) -> None:
        self.engines.stop()
        self.metastore.close()


def _java() -> dict[str, str]:
    return spark_environment(find_java(os.environ))
