"""What the client of HDFS finds by a Hadoop configuration, on a real NameNode."""

from __future__ import annotations

import uuid
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hadoop import Cluster, write_settings
from hdfs_path import HdfsPath

from cmroot.store.place import Place
from replicator.metastore.embedded.server_process import free_port

pytestmark = pytest.mark.hdfs


def test_a_name_service_is_found_by_its_configuration(
    hdfs: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its two NameNodes the first is away."""
    settings = {
        "dfs.nameservices": "west",
        "dfs.ha.namenodes.west": "nn1,nn2",
        "dfs.namenode.rpc-address.west.nn1": f"127.0.0.1:{free_port()}",
        "dfs.namenode.rpc-address.west.nn2": urlsplit(hdfs.url).netloc,
    }
    write_settings(tmp_path / "hdfs-site.xml", settings)
    write_settings(tmp_path / "core-site.xml", {"fs.defaultFS": "hdfs://west"})
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    place = Place(f"hdfs://west/{uuid.uuid4().hex}/file")
    place.write_bytes(b"by name")
    assert HdfsPath(hdfs, urlsplit(place.text).path).read_bytes() == b"by name"
    place.parent.remove_tree()
