"""What the metastore itself drops on HDFS is found in its own change manager's root (`--keeper native`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from gateway_clients import client, dial
from hadoop import Cluster
from hdfs_path import HdfsPath
from lab import Lab
from metastores import MetastoreFactory
from msgspec.structs import replace
from names import unique
from plain_tables import PlainDatabase

from replicator.core.model import EXTERNAL
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.metastore.transport import Plain

pytestmark = pytest.mark.hdfs


@pytest.fixture(scope="module")
def kept(hdfs: Cluster) -> HdfsPath:
    """The root of the source's own change manager."""
    return HdfsPath(hdfs, f"/{unique('native')}/cmroot")


@pytest.fixture(scope="module")
def source(
    request: pytest.FixtureRequest, metastore_factory: MetastoreFactory, hdfs: Cluster, kept: HdfsPath
) -> Running:
    settings = {"fs.defaultFS": hdfs.url, "hive.repl.cm.enabled": "true", "hive.repl.cmrootdir": str(kept)}
    settings["metastore.metadata.transformer.class"] = " "  # else Hive 4 makes managed tables external ones
    return metastore_factory("source", hive=request.param, settings=settings)


@pytest.fixture
def story(
    source: Running, target_metastore: Running, hdfs: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Lab:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))
    here = HdfsPath(hdfs, f"/{tmp_path.name}")
    found = Lab(source, target_metastore, here, warehouse=tmp_path / "replica")  # type: ignore[arg-type]
    found.source = PlainDatabase(connect(source.uri), found.name, here / "warehouse")
    found.source.create()
    database = found.source.metastore.database(found.name)
    found.source.metastore.alter_database(found.name, replace(database, parameters={"repl.source.for": "west"}))
    return found


@pytest.mark.parametrize("source", ["2.3", "4.2"], indirect=True)
def test_what_the_metastore_dropped_comes_from_its_own_root(story: Lab, kept: HdfsPath) -> None:
    source = story.source
    source.table("plain", {"f": "1\tone\n", "g": "2\ttwo\n", "empty": ""})
    source.partitioned("parts", {"x": {"f": "3\tx\n"}, "é ü%20": {"f": "4\tz\n"}})
    dumped = story.dump("--keeper", "native")
    assert dumped.code == 0, dumped
    assert "hive.repl.cm.retain" in str(dumped.output["warnings"])
    assert not [path for path in (story.cmroot / "files").rglob("*") if "xxh3" in path.name]
    shown = source.shown()
    with client(Plain(dial(story.source_uri))) as hive:
        hive.drop_table(story.name, "plain", True)
        hive.drop_table(story.name, "parts", True)
    assert not (source.home / "plain").exists()
    before = sorted(path.name for path in kept.iterdir())
    assert before
    loaded = story.load()
    assert loaded.code == 0, loaded
    assert story.target.shown() == shown
    assert sorted(path.name for path in kept.iterdir()) == before


@pytest.mark.parametrize("source", ["4.2"], indirect=True)
def test_external_tables_are_kept_by_the_capture_since_hive_3(story: Lab, kept: HdfsPath) -> None:
    source = story.source
    source.table("plain", {"f": "1\tone\n"}, kind=EXTERNAL)
    table = source.metastore.table(story.name, "plain")
    purged = replace(table, parameters={**table.parameters, "external.table.purge": "TRUE"})
    source.metastore.alter_table(story.name, "plain", purged)
    source.table("managed", {"h": "3\tthree\n"})
    dumped = story.dump("--keeper", "native")
    assert dumped.code == 0 and f"{story.name}.plain and other external tables are kept by copy" in str(
        dumped.output["warnings"]
    ), dumped
    shown = source.shown()
    before = {path.name for path in kept.iterdir()}
    with client(Plain(dial(story.source_uri))) as hive:
        hive.drop_table(story.name, "plain", True)
        hive.drop_table(story.name, "managed", True)
    assert not (source.home / "plain").exists() and not (source.home / "managed").exists()
    added = {path.name for path in kept.iterdir()} - before
    assert [name.partition("_")[0] for name in added] == ["h"]
    loaded = story.load()
    assert loaded.code == 0, loaded
    assert story.target.shown() == shown


@pytest.mark.parametrize("source", ["2.3"], indirect=True)
def test_another_keeper_keeps_what_the_metastore_was_to_keep(story: Lab) -> None:
    story.source.table("quiet", {"f": f"1\t{story.name}\n"})
    assert story.dump("--keeper", "native").code == 0
    assert kept_texts(story) == []
    assert story.capture("--keeper", "copy").code == 0
    assert kept_texts(story) == [f"1\t{story.name}\n"]


def kept_texts(story: Lab) -> list[str]:
    """The contents that the root itself keeps."""
    return [path.read_bytes().decode() for path in (story.cmroot / "files").rglob("*") if "xxh3" in path.name]


@pytest.mark.parametrize("source", ["2.3"], indirect=True)
def test_what_its_root_lost_is_named(story: Lab, kept: HdfsPath) -> None:
    story.source.table("plain", {"cleaned": "5\tgone\n", "changed": "6\tbytes\n", "there": "7\tstays\n"})
    assert story.dump("--keeper", "native").code == 0
    before = {path.name for path in kept.iterdir()} if kept.exists() else set()
    with client(Plain(dial(story.source_uri))) as hive:
        hive.drop_table(story.name, "plain", True)
    for path in kept.iterdir():
        if path.name not in before and b"gone" in path.read_bytes():
            path.unlink()
        elif path.name not in before and b"bytes" in path.read_bytes():
            path.write_text("6\tBYTES\n")
    loaded = story.load()
    named = {each["file"].rpartition("/")[2] for each in loaded.output["missing"]}
    assert loaded.code == 1 and named == {"cleaned", "changed"}, loaded


@pytest.mark.parametrize("source", ["2.3"], indirect=True)
def test_a_metastore_that_keeps_nothing_is_refused(story: Lab, target_metastore: Running) -> None:
    other = PlainDatabase(connect(target_metastore.uri), f"{story.name}_other", story.here / "other")
    other.create()
    other.table("plain", {"f": "1\tone\n"})
    story.name = other.name
    refused = story.dump("--keeper", "native", source=target_metastore.uri)
    assert refused.code != 0 and "hive.repl.cm.enabled" in refused.message, refused
