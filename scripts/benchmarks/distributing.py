"""hdfs: the copy stage of real loads on Spark, from HDFS to HDFS, against `hadoop distcp` of the same tree.

Both are on one NameNode and one DataNode, with two tasks at a time. distcp runs on Hadoop's own jars with the local job
runner; it compares HDFS's checksums of each file. By default its client waits 400 ms at the end of nearly each file: it
copies 4 small files a second. It is measured with 5 ms, the best found. Ours hashes the bytes that it reads, and reads
every copy back. A whole process of distcp counts, without the Java that it starts (`-help` takes as long).
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from hadoop import Cluster, running_hdfs

from benchmarks import ground
from benchmarks.copying import MB, Tree
from benchmarks.measure import Outcome, interleaved, median, ratio, s, timed
from cmroot.root import create_or_open
from replicator.captures.capture import CaptureSettings, capture
from replicator.core.model import Table
from replicator.core.runtime import Runtime
from replicator.metastore.thrift import ThriftMetastore
from replicator.replay.apply.load import Loaded, load
from replicator.replay.apply.planning import LoadSettings

DISTCP = "org.apache.hadoop.tools.DistCp"
SHELL = "org.apache.hadoop.fs.FsShell"
TREES = {
    "full": [
        Tree("small", "100,000 x 1 KB, 100 directories", 100_000, 1 << 10, 100, 1.0),
        Tree("large", "20 x 1 GB, 20 directories", 20, 1024 * MB, 20, 1.0),
    ],
    "small": [
        Tree("small", "2,000 x 1 KB, 20 directories", 2_000, 1 << 10, 20, 1.0),
        Tree("large", "8 x 128 MB, 8 directories", 8, 128 * MB, 8, 1.0),
    ],
}
TASKS = 2
PREPARED = (
    f"-Dmapreduce.local.map.tasks.maximum={TASKS}",
    "-Ddfs.client.block.write.locateFollowingBlock.initial.delay.ms=5",
)


@dataclass(frozen=True)
class Bench:
    cluster: Cluster
    client: ThriftMetastore
    engine: Any
    directory: Path


def run(size: str, runs: int, directory: Path) -> Outcome:
    outcome = Outcome(["tree", "distcp", "load's copy", "times as fast", "wanted", "whole load", "copies a second"])
    spark = ground.spark()
    engine = ground.AutoEngine(ground.LocalEngine(), spark, "spark")
    (directory / "hdfs").mkdir()
    try:
        ground.warm(spark)
        with running_hdfs(directory / "hdfs") as cluster, ground.metastore(directory) as client:
            bench = Bench(cluster, client, engine, directory)
            java = timed(lambda: cluster.run(SHELL, "-help"))
            for tree in TREES[size]:
                outcome.rows.append(_one(bench, tree, runs, java))
    finally:
        spark.stop()
    outcome.remarks.append(f"{java:.1f} s, in which a Java with Hadoop's client starts, are not counted for distcp.")
    return outcome


def _one(bench: Bench, tree: Tree, runs: int, java: float) -> list[str]:
    cluster, dump = bench.cluster, bench.directory / f"dump-{tree.db}"
    source = _prepare(bench, tree, dump)
    loads: list[Loaded] = []

    def distcp(number: int) -> float:
        target = f"{cluster.url}/distcp/{tree.db}-{number}"
        seconds = timed(lambda: cluster.run(DISTCP, *PREPARED, "-m", str(TASKS), source, target))
        counted = cluster.run(SHELL, "-count", target).splitlines()[-1].split()
        assert int(counted[1]) == tree.files, counted
        cluster.run(SHELL, "-rm", "-r", "-skipTrash", target)
        return seconds - java

    def ours(number: int) -> float:
        target = f"{cluster.url}/loaded/{tree.db}-{number}"
        options = LoadSettings(warehouse=target, rename=[(tree.db, f"{tree.db}_{number}")])
        loaded = load(str(dump), bench.client, options, Runtime(bench.engine))
        assert loaded.files_copied == tree.files and loaded.files_from_source == tree.files, loaded
        loads.append(loaded)
        cluster.run(SHELL, "-rm", "-r", "-skipTrash", target)
        return loaded.copy_seconds

    took = interleaved(runs, {"distcp": distcp, "load": ours})
    cluster.run(SHELL, "-rm", "-r", "-skipTrash", source)
    return [
        tree.title,
        s(took["distcp"]),
        s(took["load"]),
        ratio(took["distcp"], took["load"]),
        f">= {tree.wanted}",
        f"{median([each.seconds for each in loads]):.2f} s",
        f"{tree.files / median(took['load']):.1f}",
    ]


def _prepare(bench: Bench, tree: Tree, dump: Path) -> str:
    """A table with the tree's files, captured and dumped: its location."""
    local = bench.directory / tree.db
    values = [f"{number:04d}" for number in range(tree.directories)]
    for value in values:
        (local / f"day={value}").mkdir(parents=True)
    for number in range(tree.files):
        _write(local / f"day={values[number % len(values)]}" / f"part-{number:06d}.parquet", tree.size)
    place = f"{bench.cluster.url}/warehouse/{tree.db}"
    bench.cluster.run(SHELL, "-mkdir", "-p", f"{place}/t")
    ground.create_database(bench.client, tree.db)
    storage = msgspec.structs.replace(ground.storage(local), location=f"{place}/t")
    table = Table(db=tree.db, name="t", owner="bench", storage=storage, partition_keys=ground.KEYS)
    bench.client.create_table(table)
    partitions = [
        msgspec.structs.replace(each, storage=msgspec.structs.replace(storage, location=f"{place}/t/day={value}"))
        for value in values
        for each in [ground.partition(local, value, tree.files // len(values))]
    ]
    bench.cluster.run(SHELL, "-put", "-t", "64", *(f"{local}/day={value}" for value in values), f"{place}/t")
    bench.client.add_partitions(tree.db, "t", partitions)
    subprocess.run(["rm", "-r", str(local)], check=True)
    root = create_or_open(str(bench.directory / f"cmroot-{tree.db}"))
    capture(bench.client, root, CaptureSettings([tree.db], keeper="none"), Runtime(bench.engine))
    ground.dumped(bench.client, root, dump, [tree.db])
    return f"{place}/t"


def _write(path: Path, size: int) -> None:
    seed = path.name.encode()
    with path.open("wb") as file:
        for start in range(0, size, MB):
            file.write((seed + b"%012d" % start) * (min(MB, size - start) // (len(seed) + 12)))
