"""Encryption zones of HDFS: files in them are decrypted and encrypted with the keys of a key server, or refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import command
from hadoop import KEY_PROVIDER, Cluster, write_settings
from hdfs_path import HdfsPath
from key_server import KEY, KeyServer
from lab import Lab
from plain_tables import PlainDatabase

from cmroot.errors import KeepError, NotWritable, StorageUnreachable
from cmroot.keep.hdfs_keepers import NativeKeeper
from cmroot.keep.recycle import recycle_tree
from cmroot.root import create_or_open
from cmroot.store.hdfs_checksums import in_zone
from cmroot.store.place import Place
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

pytestmark = pytest.mark.hdfs
SAID = "1\tsaid by Java\n"


@pytest.fixture(scope="module")
def zone(hdfs: Cluster, key_server: KeyServer, tmp_path_factory: pytest.TempPathFactory) -> HdfsPath:
    return new_zone(hdfs, tmp_path_factory)


def new_zone(hdfs: Cluster, tmp_path_factory: pytest.TempPathFactory) -> HdfsPath:
    """With a file `java` that Hadoop's own client wrote."""
    found = HdfsPath(hdfs, f"/{tmp_path_factory.mktemp('zone').name}/inner")
    found.mkdir()
    hdfs.run("org.apache.hadoop.hdfs.tools.CryptoAdmin", "-createZone", "-keyName", KEY, "-path", found.path)
    file = tmp_path_factory.mktemp("files") / "java"
    file.write_text(SAID)
    hdfs.run("org.apache.hadoop.fs.FsShell", "-put", str(file), found.path)
    return found


@pytest.fixture(scope="module")
def both(on_hdfs: Callable[[str], Running]) -> Running:
    return on_hdfs("source")


@pytest.fixture(autouse=True)
def configured(hdfs: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))


def without_keys(hdfs: Cluster, directory: Path, **settings: str) -> str:
    """A Hadoop configuration that names no key server, or another one."""
    directory.mkdir()
    write_settings(directory / "core-site.xml", settings)
    write_settings(directory / "hdfs-site.xml", {"dfs.namenode.http-address": hdfs.web.removeprefix("http://")})
    return str(directory)


def on_disk(cluster: Cluster) -> bytes:
    """All blocks as the DataNode has them. Those of other tests are written and removed meanwhile, and change their
    directory when they are complete: what is not found is looked for once more."""
    found: dict[str, bytes] = {}
    for _ in range(2):
        for block in sorted((cluster.directory / "data").rglob("blk_*")):
            with contextlib.suppress(FileNotFoundError):
                found[block.name] = block.read_bytes()
    return b"".join(found.values())


def test_files_are_encrypted_as_hadoops_own_client_does(hdfs: Cluster, zone: HdfsPath) -> None:
    assert in_zone(str(zone)) and in_zone(str(zone / "java")) and not in_zone(f"{hdfs.url}/")
    assert Place(str(zone / "java")).read_bytes() == SAID.encode()
    Place(str(zone / "ours")).write_bytes(b"said by this client\n")
    assert hdfs.run("org.apache.hadoop.fs.FsShell", "-cat", (zone / "ours").path).endswith("said by this client\n")
    assert b"said by" not in on_disk(hdfs)


def test_who_has_no_key_is_refused_and_no_byte_is_written(
    hdfs: Cluster, zone: HdfsPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether no server is named, a kind that the client lacks, one that is away, or one that says no."""
    before = Place(str(zone)).list()
    file = Place(str(zone / "java"))
    confs = {
        "none": without_keys(hdfs, tmp_path / "none"),
        "a file": without_keys(hdfs, tmp_path / "file", **{KEY_PROVIDER: "jceks://file/nowhere.jceks"}),
        "away": without_keys(hdfs, tmp_path / "away", **{KEY_PROVIDER: "kms://http@127.0.0.1:1/kms"}),
    }
    for name, conf in confs.items():
        monkeypatch.setenv("HADOOP_CONF_DIR", conf)
        kind = StorageUnreachable if name == "away" else NotWritable
        with pytest.raises(kind, match="key server"):
            file.read_bytes()
        with pytest.raises(kind, match="key server"):
            Place(str(zone / "new")).write_bytes(b"never in clear\n")
        Place(f"{hdfs.url}/outside-{name.replace(' ', '-')}").write_bytes(b"no key is needed\n")
    assert Place(str(zone)).list() == before
    assert b"never in clear" not in on_disk(hdfs)


def test_a_table_in_a_zone_is_replicated_and_compared(
    both: Running, hdfs: Cluster, zone: HdfsPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two keys, so that the CRCs which DataNodes have are of other bytes on either side: contents are read."""
    found = Lab(both, both, HdfsPath(hdfs, f"/{tmp_path.name}"), warehouse=zone / "replica")  # type: ignore[arg-type]
    found.source = PlainDatabase(connect(both.uri), found.name, zone / "warehouse")
    renamed = ("--rename-db", f"{found.name}={found.name}_copy")
    sides = ("--source", both.uri, "--target", both.uri, "--db", found.name, *renamed)
    found.source.create()
    found.source.partitioned("t", {"x": {"f": "1\tx in clear\n"}})
    assert found.dump().code == 0

    keys, none = str(hdfs.conf), without_keys(hdfs, tmp_path / "none")
    monkeypatch.setenv("HADOOP_CONF_DIR", none)
    refused = found.load(None, *renamed)
    assert refused.code == 1 and "encryption zone" in refused.message, refused
    found.source.add("t", {"y": {"f": "2\ty\n"}})
    captured = found.capture()
    assert captured.code == 1 and "p=y/f" in captured.message and "encryption zone" in captured.message, captured

    monkeypatch.setenv("HADOOP_CONF_DIR", keys)
    assert found.load(None, *renamed).code == 0
    found.source.drop_partitions("t", ["y"])
    same = command("verify", *sides, "--level", "crc", "--engine", "local")
    assert (same.code, same.output["files"], same.output["files_read"]) == (0, 1, 1), same

    monkeypatch.setenv("HADOOP_CONF_DIR", none)
    unread = command("verify", *sides, "--level", "crc", "--engine", "local")
    assert unread.code == 1 and "encryption zone" in unread.message, unread


def test_what_a_metastore_cannot_move_out_of_a_zone_is_not_kept_by_it(zone: HdfsPath) -> None:
    with pytest.raises(KeepError, match="encryption zone"):
        NativeKeeper(str(zone.parent / "cm")).keep(str(zone / "java"))


def test_a_user_whom_the_key_server_refuses_is_told_so(
    hdfs: Cluster, zone: HdfsPath, key_server: KeyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", key_server.refused)
    # Another directory, so that the client is another one: it asks as the user of its first call.
    monkeypatch.setenv("HADOOP_CONF_DIR", without_keys(hdfs, tmp_path / "same", **{KEY_PROVIDER: key_server.uri}))
    with pytest.raises(NotWritable, match=r"40[13]"):
        Place(str(zone / "java")).read_bytes()


def test_what_may_not_leave_its_zone_by_rename_is_copied(
    hdfs: Cluster, key_server: KeyServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Asked for at once, or when a zone turns out to lie below what was renamed. The zone goes with it."""
    zone = new_zone(hdfs, tmp_path_factory)
    root = str(zone.parent.parent / f"{zone.parent.name}-root")
    create_or_open(root)
    for name in ("t/inside", "last"):
        Place(str(zone / name)).write_bytes(name.encode())
    Place(str(zone.parent / "outside")).write_bytes(b"outside")
    taken = [one.path for directory in (zone / "t", zone.parent) for one in recycle_tree(root, str(directory))]
    assert {str(zone / "t/inside"), str(zone / "last"), str(zone.parent / "outside")} <= set(taken)
    files = Place(root) / "files"
    assert {b"t/inside", b"last", b"outside", SAID.encode()} <= {(files / name).read_bytes() for name in files.find()}
    assert not Place(str(zone.parent)).exists() and (Place(root) / "recycling").list() == []
