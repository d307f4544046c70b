"""hdfs-idle: a capture of a warehouse on HDFS in which nothing has changed: by the difference of snapshots, and by
listing every directory, as where its directory is not snapshottable.

The files are empty: an idle capture reads none. A change in one directory is found by both.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from hadoop import Cluster, running_hdfs
from hdfs_native import Client, WriteOptions
from hdfs_path import HdfsPath

from benchmarks import ground
from benchmarks.measure import Outcome, s
from cmroot.root import create_or_open
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.recording import Captured
from replicator.core.model import Table
from replicator.core.runtime import Runtime
from replicator.metastore.thrift import ThriftMetastore

SIZES = {"full": (20, 100, 100), "small": (4, 50, 100)}  # tables, partitions of each, files of each
WANTED = 2.0
DB = "quiet"


def run(size: str, runs: int, directory: Path) -> Outcome:
    tables, partitions, files = SIZES[size]
    outcome = Outcome(["warehouse", "scan", "idle capture", "its scan", "with a new file", "wanted"])
    (directory / "hdfs").mkdir()
    with running_hdfs(directory / "hdfs") as cluster, ground.metastore(directory) as client:
        os.environ["HADOOP_CONF_DIR"] = str(cluster.conf)
        home = HdfsPath(cluster, f"/warehouse/{DB}")
        home.mkdir()
        ground.create_database(client, DB)
        for number in range(tables):
            _create_table(client, home / f"t{number}", [f"{each:04d}" for each in range(partitions)])
        _fill(cluster, tables, partitions, files)
        root = str(directory / "cmroot")
        assert _captured(client, root).files == tables * partitions * files
        what = f"{tables * partitions:,} directories, {tables * partitions * files:,} files"
        for how in ("by listing", "by snapshots"):
            if how == "by snapshots":
                home.parent.allow_snapshots()
                _captured(client, root)
            idle = [_captured(client, root) for _ in range(max(runs, 3))]
            assert not any(each.files or each.records or each.warnings for each in idle), idle
            changed = []
            for number in range(max(runs, 3)):
                _create(Client(cluster.url), f"{home.path}/t0/day=0000/{how[3:]}-{number}.parquet")
                changed.append(_captured(client, root))
            assert all(each.files == 1 for each in changed), changed
            outcome.rows.append(
                [
                    what,
                    how,
                    s([each.seconds for each in idle]),
                    s([each.scan_seconds for each in idle]),
                    s([each.seconds for each in changed]),
                    f"< {WANTED} s" if how == "by snapshots" else "",
                ]
            )
        assert len(home.parent.snapshots()) == 1
    return outcome


def _captured(client: ThriftMetastore, root: str) -> Captured:
    settings = CaptureSettings([DB], keeper="none")
    return capture(client, create_or_open(root), settings, Runtime(ground.engine()))


def _create_table(client: ThriftMetastore, place: HdfsPath, values: list[str]) -> None:
    storage = msgspec.structs.replace(ground.storage(Path("/")), location=str(place))
    client.create_table(Table(db=DB, name=place.name, owner="bench", storage=storage, partition_keys=ground.KEYS))
    client.add_partitions(
        DB,
        place.name,
        [
            msgspec.structs.replace(
                ground.partition(Path("/"), value),
                storage=msgspec.structs.replace(storage, location=f"{place}/day={value}"),
            )
            for value in values
        ],
    )


def _fill(cluster: Cluster, tables: int, partitions: int, files: int) -> None:
    client = Client(cluster.url)
    names = (
        f"/warehouse/{DB}/t{table}/day={day:04d}/part-{number:06d}.parquet"
        for table in range(tables)
        for day in range(partitions)
        for number in range(files)
    )
    with ThreadPoolExecutor(64) as pool:
        for _ in pool.map(lambda name: _create(client, name), names):
            pass


def _create(client: Client, path: str) -> None:
    client.create(path, WriteOptions(overwrite=True, create_parent=True)).close()
