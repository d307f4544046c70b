"""load: the metadata of one wide table, loaded, against bare add_partitions calls on the same server."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks import ground
from benchmarks.bootstrapping import partition_requests, raw_client
from benchmarks.measure import Outcome, interleaved, ratio, s, timed
from replicator.core.runtime import Runtime
from replicator.replay.apply.load import load
from replicator.replay.apply.planning import LoadSettings

PARTITIONS = {"full": 20_000, "small": 3_000}
WANTED = 1.3


def run(size: str, runs: int, directory: Path) -> Outcome:
    count = PARTITIONS[size]
    values = [f"{number:06d}" for number in range(count)]
    commits: list[float] = []
    with ground.metastore(directory, "source") as source:
        ground.create_database(source, "wide")
        place = ground.create_table(source, "wide", "t")
        ground.add_partitions(source, "wide", "t", place, values)
        root, _ = ground.captured(source, str(directory / "cmroot"), ["wide"], ground.engine())
        dump = directory / "dump"
        ground.dumped(source, root, dump, ["wide"])
    with ground.metastore(directory, "target") as target:
        ground.create_database(target, "bare")

        def bare(number: int) -> float:
            place = ground.create_table(target, "bare", f"t{number}")
            requests = list(partition_requests("bare", f"t{number}", place, values, 0))
            _directories(place, values)
            ground.settle(directory)
            transport, client = raw_client(target.uri)
            seconds = timed(lambda: [client.add_partitions_req(request) for request in requests])
            transport.close()
            target.drop_table("bare", f"t{number}")
            shutil.rmtree(place)
            return seconds

        def ours(number: int) -> float:
            warehouse = directory / f"load-{number}"
            place = warehouse / f"wide_{number}.db" / "t"
            place.mkdir(parents=True)
            _directories(place, values)
            options = LoadSettings(
                warehouse=str(warehouse),
                cmroot=str(directory / f"target-cmroot-{number}"),
                rename=[("wide", f"wide_{number}")],
            )
            ground.settle(directory)
            loaded = load(str(dump), target, options, Runtime(ground.engine()))
            assert len(target.partition_names(f"wide_{number}", "t")) == count
            commits.append(loaded.commit_seconds)
            target.drop_table(f"wide_{number}", "t")
            shutil.rmtree(warehouse)
            return loaded.seconds

        bare(runs), ours(runs)
        commits.clear()
        took = interleaved(runs, {"bare": bare, "ours": ours})
    row = [
        f"{count:,}",
        s(took["bare"]),
        s(took["ours"]),
        s(commits),
        ratio(took["ours"], took["bare"]),
        f"<= {WANTED}",
    ]
    headers = ["partitions", "bare add_partitions", "whole load", "its commit", "times the calls", "wanted"]
    return Outcome(headers, [row])


def _directories(place: Path, values: list[str]) -> None:
    for value in values:
        (place / f"day={value}").mkdir()
