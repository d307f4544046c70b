"""Warehouses on HDFS, of a real NameNode and DataNode, replicated to others and to a local disk and back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import command
from hadoop import Cluster
from hdfs_path import HdfsPath
from lab import Lab
from plain_tables import PlainDatabase

from cmroot.store.hdfs import Hdfs
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

pytestmark = pytest.mark.hdfs


@pytest.fixture(scope="module")
def sides(on_hdfs: Callable[[str], Running]) -> tuple[Running, Running]:
    return on_hdfs("source"), on_hdfs("target")


@pytest.fixture(params=["hdfs to hdfs", pytest.param("hdfs to local", marks=pytest.mark.long), "local to hdfs"])
def story(request: pytest.FixtureRequest, hdfs: Cluster, sides: tuple[Running, Running], tmp_path: Path) -> Any:
    """A replication between two kinds of places; each `$cmroot` lies in its side's."""
    places = {"hdfs": HdfsPath(hdfs, f"/{tmp_path.name}"), "local": tmp_path}
    source, _, target = request.param.split()
    found = Lab(*sides, places[source], warehouse=places[target] / "replica")  # type: ignore[arg-type]
    found.source = PlainDatabase(connect(sides[0].uri), found.name, places[source] / "warehouse")
    return found, target


def test_a_database_and_its_changes_arrive(story: tuple[Lab, str]) -> None:
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


def test_what_the_source_dropped_comes_from_its_root(story: tuple[Lab, str]) -> None:
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


def test_data_outside_its_database_lies_below_its_name_node_without_a_colon(story: tuple[Lab, str]) -> None:
    """HDFS has no `:` in names, and a NameNode's address has one."""
    found, _ = story
    found.source.create()
    outside = PlainDatabase(found.source.metastore, found.name, found.here / "outside")
    outside.table("apart", {"f": "1\tone\n"})
    for answer in (found.dump(), found.load()):
        assert answer.code == 0, answer
    verified = command("verify", "--source", found.source_uri, "--target", found.target_uri, "--db", found.name)
    assert verified.code == 0, verified
    location = found.target.metastore.table(found.name, "apart").storage.location
    assert location is not None and ":" not in location.partition("://")[2].partition("/")[2]


def test_small_files_are_written_side_by_side(story: tuple[Lab, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits half a second at the end of nearly each file."""
    found, target = story
    ended: list[tuple[str, str]] = []
    real = Hdfs.mv

    def mv(self: Hdfs, path1: str, path2: str, **more: Any) -> None:
        ended.append((threading.current_thread().name, path2))
        real(self, path1, path2, **more)

    monkeypatch.setattr(Hdfs, "mv", mv)
    found.source.create()
    found.source.partitioned("parts", {f"x{number}": {"f": f"{number}\tx\n"} for number in range(12)})
    found.bootstrap()

    def threads(part: str) -> int:
        return len({name for name, path in ended if part in path})

    if target == "hdfs":
        assert threads("/replica/db") >= 6
    if isinstance(found.here, HdfsPath):
        assert threads("dump1/_metadata/") + threads("dump1/_files/") >= 3 and threads("/cmroot/files/") >= 6


def test_a_name_that_hdfs_cannot_have_is_told(hdfs: Cluster, sides: tuple[Running, Running], tmp_path: Path) -> None:
    replica = HdfsPath(hdfs, f"/{tmp_path.name}/replica")
    found = Lab(*sides, tmp_path, warehouse=replica)  # type: ignore[arg-type]
    found.source = PlainDatabase(connect(sides[0].uri), found.name, tmp_path / "warehouse")
    found.source.create()
    found.source.table("t", {"at-12:30": "1\tone\n"})
    assert found.dump().code == 0
    refused = found.load()
    assert refused.code == 1 and refused.error == "NotWritable", refused
    assert "at-12:30" in refused.message and "`:`" in refused.output["hint"], refused
