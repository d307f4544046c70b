"""Erasure reaches everywhere: a purge is replicated, and the certificate tells of every byte until it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from policies import Replication
from purges import DESCRIPTOR, Warehouse

from cmroot.root import open_existing
from replicator.metastore.embedded import Running
from replicator.metastore.thrift import connect
from replicator.purge.certify import Certificate, Replica, certify
from replicator.purge.onboarding import WhiteList
from replicator.purge.options import PurgeOptions
from replicator.purge.run import described

NAME = b"member-of-the-club-40"


@pytest.fixture(scope="module")
def warehouse(source_metastore: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    found = Warehouse(source_metastore, tmp_path_factory.mktemp("purge"))
    yield found
    found.close()


def files_with(place: Path, text: bytes) -> set[str]:
    return {str(path) for path in place.rglob("*") if path.is_file() and text in path.read_bytes()}


def test_a_purge_reaches_replicas_and_roots_and_is_certified(
    warehouse: Warehouse, source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    replication = Replication(source_metastore, target_metastore, tmp_path)
    db = f"{replication.name}_a"
    warehouse.sql(
        f"CREATE DATABASE {db} LOCATION '{tmp_path}/source/{db}.db'",
        f"CREATE TABLE {db}.t (id BIGINT, v STRING) PARTITIONED BY (k INT) ROW FORMAT DELIMITED FIELDS"
        f" TERMINATED BY ',' STORED AS TEXTFILE TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO {db}.t SELECT id, concat('member-of-the-club-', id), int(id DIV 100) FROM range(0, 200, 1, 2)",
    )
    replication.sync()
    source, target = tmp_path / "source", tmp_path / "target"
    assert files_with(source, NAME) and files_with(target, NAME) and files_with(tmp_path / "cmroot", NAME)
    root = open_existing(str(tmp_path / "cmroot"))

    done = warehouse.purge(root, warehouse.ids, db)
    assert done.status == "done" and done.rows_erased == 10

    def prove(**options: Any) -> Certificate:
        policy = replication.policy
        replica = Replica(policy.name, connect(policy.target), policy.target_cmroot, policy.target_name, lambda _: True)
        asked = PurgeOptions(warehouse.ids, db, "privacy.column")
        return certify(
            warehouse.metastore, root, asked, [replica], engines=warehouse.engines, readers=timedelta(0), **options
        )

    def held(found: Certificate) -> set[str]:
        return {each["what"] for each in found.holding}

    behind = prove()
    assert behind.status == "remaining" and held(behind) == {"backup", "$cmroot", "replica"}

    replication.sync()
    assert not files_with(target / f"{db}.db", NAME)
    asked = PurgeOptions(warehouse.ids, db, "privacy.column")
    tables, gaps = described(replication.target, WhiteList.parse(db), asked)
    assert not tables and "purge at its primary" in gaps[0].reason
    synced = prove()
    assert held(synced) == {"backup", "$cmroot", "replica's $cmroot"}
    assert all(each["until"] for each in synced.holding)

    expedited = prove(expedited=True)  # the backup goes, and what a capture has seen go
    replication.sync()
    certified = prove(expedited=True)
    assert certified.status == "certified" and certified.searched == [f"{db}.t"], (expedited.holding, certified.holding)
    assert not files_with(source, NAME) and not files_with(tmp_path / "cmroot", NAME) and not files_with(target, NAME)
    run = certify(
        warehouse.metastore, root, PurgeOptions(""), run="latest", engines=warehouse.engines, readers=timedelta(0)
    )
    assert run.status == "certified" and run.runs == [done.run]
