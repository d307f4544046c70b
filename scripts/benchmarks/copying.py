"""copy: the copy stage of real loads on Spark against `cp -r` of the same tree.

Ours hashes while it copies, reads every copy back, sets times and renames into place. Both begin with nothing dirty
and a warm page cache; what counts for ours is the stage as a load reports it, Spark being warm.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ground
from benchmarks.measure import Outcome, interleaved, median, ratio, s, timed
from cmroot.store.local import LocalStore
from replicator.core.runtime import Runtime
from replicator.metastore.thrift import ThriftMetastore
from replicator.replay.apply.load import Loaded, load
from replicator.replay.apply.planning import LoadSettings


@dataclass(frozen=True)
class Tree:
    """A table's files, the directories they lie in, and how much faster than cp their copy has to be."""

    db: str
    title: str
    files: int
    size: int
    directories: int
    wanted: float | None


MB = 1 << 20
TREES = {
    "full": [
        Tree("large", "8 x 256 MB, 8 directories", 8, 256 * MB, 8, 1.3),
        Tree("middle", "2,000 x 1 MB, 20 directories", 2_000, MB, 20, 1.3),
        Tree("small", "50,000 x 10 KB, 100 directories", 50_000, 10 << 10, 100, 1.0),
        Tree("flat", "50,000 x 10 KB, one directory", 50_000, 10 << 10, 1, None),
    ],
    "small": [
        Tree("large", "4 x 64 MB, 4 directories", 4, 64 * MB, 4, 1.3),
        Tree("middle", "300 x 1 MB, 10 directories", 300, MB, 10, 1.3),
        Tree("small", "8,000 x 10 KB, 20 directories", 8_000, 10 << 10, 20, 1.0),
        Tree("flat", "8,000 x 10 KB, one directory", 8_000, 10 << 10, 1, None),
    ],
}


def run(size: str, runs: int, directory: Path) -> Outcome:
    outcome = Outcome(
        [
            "tree",
            "cp -r",
            "load's copy",
            "times as fast",
            "cp -r, sync",
            "copy, sync",
            "times as fast",
            "wanted",
            "whole load",
        ]
    )
    spark = ground.spark()
    try:
        started = ground.warm(spark)
        with ground.metastore(directory) as client:
            for tree in TREES[size]:
                outcome.rows.append(_one(tree, runs, directory, client, spark))
    finally:
        spark.stop()
    outcome.remarks.append(f"Spark's start, {started:.1f} s, is not counted.")
    return outcome


def _one(tree: Tree, runs: int, directory: Path, client: ThriftMetastore, spark: Any) -> list[str]:
    engine = ground.AutoEngine(ground.LocalEngine(), spark, "spark")
    source, dump = _prepare(tree, directory, client, engine)
    syncs: dict[str, list[float]] = {"cp": [], "load": []}
    loads: list[Loaded] = []

    def cp(number: int) -> float:
        target = directory / f"cp-{tree.db}-{number}"
        ground.settle(directory)
        seconds = timed(lambda: subprocess.run(["cp", "-r", str(source), str(target)], check=True))
        syncs["cp"].append(timed(lambda: subprocess.run(["sync", "-f", str(target)], check=True)))
        shutil.rmtree(target)
        return seconds

    def ours(number: int) -> float:
        target = directory / f"load-{tree.db}-{number}"
        options = LoadSettings(warehouse=str(target), rename=[(tree.db, f"{tree.db}_{number}")])
        ground.settle(directory)
        with _syncs() as spent:
            loaded = load(str(dump), client, options, Runtime(engine))
        assert loaded.files_copied == tree.files and loaded.files_from_source == tree.files, loaded
        loads.append(loaded)
        syncs["load"].append(sum(spent))
        shutil.rmtree(target)
        return loaded.copy_seconds - sum(spent)

    cp(runs), ours(runs)
    for done in (*syncs.values(), loads):
        done.clear()
    took = interleaved(runs, {"cp": cp, "load": ours})
    synced = {name: [a + b for a, b in zip(took[name], syncs[name], strict=True)] for name in took}
    shutil.rmtree(source)
    shutil.rmtree(directory / f"cmroot-{tree.db}")  # links to the same bytes
    return [
        tree.title,
        s(took["cp"]),
        s(took["load"]),
        ratio(took["cp"], took["load"]),
        s(synced["cp"]),
        s(synced["load"]),
        ratio(synced["cp"], synced["load"]),
        f">= {tree.wanted}" if tree.wanted else "",
        f"{median([each.seconds for each in loads]):.2f} s",
    ]


def _prepare(tree: Tree, directory: Path, client: ThriftMetastore, engine: Any) -> tuple[Path, Path]:
    """A table with the tree's files, captured and dumped: its directory and the dump."""
    ground.create_database(client, tree.db)
    source = ground.create_table(client, tree.db, "t", partitioned=tree.directories > 1)
    directories = [source]
    if tree.directories > 1:
        values = [f"{number:04d}" for number in range(tree.directories)]
        ground.add_partitions(client, tree.db, "t", source, values, tree.files // tree.directories)
        directories = [source / f"day={value}" for value in values]
    for number in range(tree.files):
        with open(directories[number % len(directories)] / f"part-{number:05d}.parquet", "wb") as file:
            for start in range(0, tree.size, MB):
                file.write(os.urandom(min(MB, tree.size - start)))
    root, _ = ground.captured(client, str(directory / f"cmroot-{tree.db}"), [tree.db], engine)
    dump = directory / f"dump-{tree.db}"
    ground.dumped(client, root, dump, [tree.db])
    return source, dump


@contextlib.contextmanager
def _syncs() -> Iterator[list[float]]:
    """Seconds of each sync of a whole filesystem inside the block."""
    spent: list[float] = []
    plain = LocalStore.sync

    def measured(self: LocalStore, path: str) -> None:
        began = time.perf_counter()
        plain(self, path)
        spent.append(time.perf_counter() - began)

    LocalStore.sync = measured  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        LocalStore.sync = plain  # type: ignore[method-assign]
