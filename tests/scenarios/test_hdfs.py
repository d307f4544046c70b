"""Warehouses on HDFS, of a real NameNode and DataNode, replicated to others and to a local disk and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hadoop import Cluster
from hdfs_path import HdfsPath
from metastores import MetastoreFactory
from plain_tables import PlainDatabase
from replication_fixture import ReplicationFixture

from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

pytestmark = pytest.mark.hdfs


@pytest.fixture(scope="module")
def sides(metastore_factory: MetastoreFactory, hdfs: Cluster) -> tuple[Running, Running]:
    """Two metastores whose default filesystem is HDFS."""
    default = {"fs.defaultFS": hdfs.url}
    return metastore_factory("source", settings=default), metastore_factory("target", settings=default)


@pytest.fixture(params=["hdfs to hdfs", "hdfs to local", "local to hdfs"])
def story(request: pytest.FixtureRequest, hdfs: Cluster, sides: tuple[Running, Running], tmp_path: Path) -> Any:
    """A replication between two kinds of places; each `$cmroot` lies in its side's."""
    places = {"hdfs": HdfsPath(hdfs, f"/{tmp_path.name}"), "local": tmp_path}
    source, _, target = request.param.split()
    found = ReplicationFixture(*sides, places[source], warehouse=places[target] / "replica")  # type: ignore[arg-type]
    found.source = PlainDatabase(connect(sides[0].uri), found.db, places[source] / "warehouse")
    return found, target


def test_a_database_and_its_changes_arrive(story: tuple[ReplicationFixture, str]) -> None:
    found, _ = story
    source = found.source
    source.create()
    source.table("plain", {"f": "1\tone\n", "g": "2\ttwo\n"})
    source.partitioned("parts", {"x": {"f": "1\tx\n"}, "y": {"f": "2\ty\n"}, "é ü%20": {"f": "3\tz\n"}})
    found.bootstrap()

    source.write("plain", {"f": "1\tanother\n"})
    source.add("parts", {"z": {"f": "4\tz\n"}})
    source.drop_partitions("parts", ["x"])
    source.rename("plain", "plainer")
    found.catch_up()
    kept = list((found.cmroot / "files").rglob("*"))
    assert len(kept) >= 6  # what was replaced and dropped, too


def test_what_the_source_dropped_comes_from_its_root(story: tuple[ReplicationFixture, str]) -> None:
    found, _ = story
    found.source.create()
    found.source.partitioned("parts", {"x": {"f": "1\tx\n"}})
    found.bootstrap()
    found.source.add("parts", {"y": {"f": "2\ty\n"}})
    dumped = found.dump(since=found.last)
    assert dumped.code == 0, dumped
    shown = found.source.shown()
    found.source.drop("parts")
    loaded = found.load()
    assert loaded.code == 0, loaded
    assert found.target.shown() == shown
