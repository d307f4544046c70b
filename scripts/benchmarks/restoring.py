"""restore: a dropped table comes back from `$cmroot` beside its database, against bare add_partitions calls and copies
of its files one after the other."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks import ground
from benchmarks.bootstrapping import partition_requests, raw_client
from benchmarks.measure import Outcome, interleaved, median, ratio, s, timed
from replicator.core.runtime import Runtime
from replicator.replay.restore.plan import RestoreSettings
from replicator.replay.restore.restore import restore

PARTITIONS = {"full": 20_000, "small": 1_000}
WANTED = 1.5


def run(size: str, runs: int, directory: Path) -> Outcome:
    count = PARTITIONS[size]
    values = [f"{number:06d}" for number in range(count)]
    with ground.metastore(directory) as client:
        ground.create_database(client, "lost")
        ground.create_database(client, "bare")
        place = ground.create_table(client, "lost", "t")
        ground.add_partitions(client, "lost", "t", place, values)
        for number, value in enumerate(values):
            ground.small_files(place / f"day={value}", number, 1)
        root, captured = ground.captured(client, str(directory / "cmroot"), ["lost"], ground.engine())
        kept = directory / "kept"
        shutil.copytree(place, kept)
        client.drop_table("lost", "t")
        ground.captured(client, str(directory / "cmroot"), ["lost"], ground.engine())

        def bare(number: int) -> float:
            there = ground.create_table(client, "bare", f"t{number}")
            requests = list(partition_requests("bare", f"t{number}", there, values))
            ground.settle(directory)
            transport, raw = raw_client(client.uri)

            def work() -> None:
                for value in values:
                    (there / f"day={value}").mkdir()
                    for file in (kept / f"day={value}").iterdir():
                        shutil.copyfile(file, there / f"day={value}" / file.name)
                for request in requests:
                    raw.add_partitions_req(request)

            seconds = timed(work)
            transport.close()
            client.drop_table("bare", f"t{number}")
            shutil.rmtree(there, ignore_errors=True)
            return seconds

        def ours(number: int) -> float:
            into = f"restored_{number}"
            options = RestoreSettings("lost", str(captured.through_event), into=into)
            ground.settle(directory)
            seconds = timed(lambda: restore(root, client, options, Runtime(ground.engine())))
            found = Path(str(client.database(into).location).removeprefix("file:")) / "t"
            assert len(client.partition_names(into, "t")) == count
            assert sum(1 for path in found.rglob("*.parquet") if path.stat().st_size) == count
            client.drop_table(into, "t")
            shutil.rmtree(found, ignore_errors=True)
            return seconds

        took = interleaved(runs, {"bare": bare, "ours": ours})
    each = f"{count / median(took['ours']):,.0f}"
    row = [f"{count:,}", s(took["bare"]), s(took["ours"]), each, ratio(took["ours"], took["bare"]), f"<= {WANTED}"]
    return Outcome(["partitions", "bare calls and copies", "restore", "a second", "times", "wanted"], [row])
