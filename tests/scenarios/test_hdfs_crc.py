"""Contents on HDFS compared by the CRCs that its DataNodes keep (`verify --level crc`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Answer, command
from hadoop import Cluster
from hdfs_native import Client, WriteOptions
from hdfs_path import HdfsPath
from lab import Lab
from plain_tables import PlainDatabase

import replicator.compare.compare_files as comparing
from cmroot.store.hdfs_checksums import composite_crc
from cmroot.store.place import Place
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

pytestmark = pytest.mark.hdfs

MIB = 1 << 20


def written(place: HdfsPath, data: bytes, block: int) -> None:
    client = Client(place.cluster.url)
    file = client.create(place.path, WriteOptions(overwrite=True, create_parent=True, block_size=block))
    file.write(data)
    file.close()


@pytest.fixture(scope="module")
def both(on_hdfs: Callable[[str], Running]) -> Running:
    return on_hdfs("source")


@pytest.fixture(autouse=True)
def configured(hdfs: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))


def test_the_crc_is_hadoops(hdfs: Cluster, tmp_path: Path) -> None:
    """Whatever the blocks are."""
    places = []
    for size in (1, 511, MIB, 3 * MIB + 17):
        for block in (MIB, 2 * MIB, 128 * MIB):
            places.append(HdfsPath(hdfs, f"/{tmp_path.name}/{size}-{block}"))
            written(places[-1], random.Random(size).randbytes(size), block)
    shell = ("org.apache.hadoop.fs.FsShell", "-Ddfs.checksum.combine.mode=COMPOSITE_CRC", "-checksum")
    said = dict(line.split()[::2] for line in hdfs.run(*shell, *map(str, places)).splitlines() if "COMPOSITE" in line)
    assert {str(place): str(composite_crc(str(place))) for place in places} == {
        place: f"crc32c-{crc}" for place, crc in said.items()
    }


@pytest.mark.parametrize("target", ["hdfs", "local"])
def test_sides_are_compared_without_reading(
    both: Running, hdfs: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    here = HdfsPath(hdfs, f"/{tmp_path.name}")
    found = Lab(both, both, here, warehouse=tmp_path / "r" if target == "local" else here / "r")  # type: ignore[arg-type]
    found.source = PlainDatabase(connect(both.uri), found.name, here / "warehouse")
    replica = PlainDatabase(connect(both.uri), f"{found.name}_copy", found.warehouse)
    renamed = ("--rename-db", f"{found.name}={replica.name}")
    found.source.create()
    found.source.table("plain", {"f": "1\tone\n", "empty": ""})
    data = random.Random(7).randbytes(3 * MIB)
    written(found.source.home / "plain" / "large", data, MIB)
    for answer in (found.dump(), found.load(None, *renamed)):
        assert answer.code == 0, answer

    def verify(level: str) -> Answer:
        sides = ("--source", both.uri, "--target", both.uri, "--db", found.name, *renamed)
        return command("verify", *sides, "--level", level, "--engine", "local")

    if target == "local":
        mixed = verify("crc")
        assert (mixed.code, mixed.output["files_read"]) == (0, 3), mixed
        return
    with monkeypatch.context() as patched:
        patched.setattr(comparing, "checksum_at", None)  # whoever reads a file fails
        same = verify("crc")
    assert (same.code, same.output["files"], same.output["files_read"]) == (0, 3, 0), same

    spoiled = replica.home / "plain" / "large"
    before = Client(hdfs.url).get_file_info(spoiled.path)
    written(spoiled, data[:-9] + b"!" + data[-8:], MIB)
    Client(hdfs.url).set_times(spoiled.path, before.modification_time, before.access_time)
    assert Place(str(spoiled)).size() == before.length and verify("size").code == 0
    differ = verify("crc")
    assert differ.code == 4 and [each["field"] for each in differ.output["differences"]] == ["large"], differ
