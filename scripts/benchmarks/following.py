"""follow: from a commit at the source until a reader of the target sees it, with a warm `replicator sync --follow`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from soaking.mortals import Follower

from benchmarks import ground
from benchmarks.measure import Outcome, median, quantile
from replicator.core.connections import MetastoreConfig
from replicator.core.policy import parse_policy
from replicator.metastore.thrift import ThriftMetastore
from replicator.policies.run import Remembering

SAMPLES = {"full": 20, "small": 20}
TABLES = {"full": 1_000, "small": 50}  # beside the one that changes
PARTITIONS = 100
SCHEDULE = "1s"
PATIENCE = 120.0
WANTED = 3.0


def run(size: str, runs: int, directory: Path) -> Outcome:
    """`runs` is not used: each sample is a run."""
    outcome = Outcome(["change", "samples", "p50", "p95", "longest", "wanted", "a run takes"])
    with ExitStack() as stack:
        source = stack.enter_context(ground.metastore(directory, "source"))
        target = stack.enter_context(ground.metastore(directory, "target"))
        ground.create_database(source, "west")
        for number in range(TABLES[size]):
            ground.create_table(source, "west", f"other_{number}")
        place = ground.create_table(source, "west", "t")
        ground.add_partitions(source, "west", "t", place, [f"{number:04d}" for number in range(PARTITIONS)])
        history = stack.enter_context(_following(source, target, directory))
        changes = _Changes(source, target, place, directory / "replica" / "west.db" / "t")
        for name, change in changes.kinds().items():
            for _ in range(3):
                changes.seconds(change)
            before = history()
            seconds = [changes.seconds(change) for _ in range(SAMPLES[size])]
            took = history()[len(before) :]
            wanted = f"p95 < {WANTED:.0f} s" if name != changes.SILENT else ""
            figures = [f"{value:.2f} s" for value in (median(seconds), quantile(seconds, 0.95), max(seconds))]
            outcome.rows.append([name, str(len(seconds)), *figures, wanted, f"{median(took):.2f} s"])
    outcome.remarks.append(
        f"A database of {TABLES[size] + 1:,} tables; schedule {SCHEDULE}; changes at random moments of it."
    )
    return outcome


@contextmanager
def _following(
    source: ThriftMetastore, target: ThriftMetastore, directory: Path
) -> Iterator[Callable[[], list[float]]]:
    """A follower at work, which has made its bootstrap; gives what tells the seconds of all its runs that loaded."""
    keys = {
        "source": source.uri,
        "target": target.uri,
        "databases": "west",
        "cmroot": str(directory / "cmroot"),
        "target_cmroot": str(directory / "replica" / ".cmroot"),
        "dumps": str(directory / "dumps"),
        "warehouse": str(directory / "replica"),
    }
    config = directory / "replicator.toml"
    config.write_text("[policies.west]\n" + "".join(f'{key} = "{value}"\n' for key, value in keys.items()))
    memory = Remembering(parse_policy("west", keys, MetastoreConfig)).memory

    def seconds() -> list[float]:
        done = [run for run in memory.runs().runs if run.kind == "incremental" and run.status == "done"]
        return [sum(run.steps.values()) for run in reversed(done)]

    follower = Follower(config, "west", SCHEDULE, directory / "sync.log")
    follower.start()
    try:
        _until(lambda: any(run.kind == "bootstrap" and run.status == "done" for run in memory.runs().runs))
        yield seconds
    finally:
        follower.kill()


class _Changes:
    """Changes of one table, and whether the target shows them."""

    SILENT = "a file that nothing announces"

    def __init__(self, source: ThriftMetastore, target: ThriftMetastore, here: Path, there: Path) -> None:
        self._source, self._target, self._here, self._there = source, target, here, there
        self._number = 1_000_000
        self._dice = random.Random(1)

    def kinds(self) -> dict[str, Callable[[], Callable[[], bool]]]:
        return {
            "a partition with one file": self._partition,
            "a table's property": self._property,
            self.SILENT: self._file,
        }

    def seconds(self, change: Callable[[], Callable[[], bool]]) -> float:
        """From the answer to the change until it is seen; looked for every 10 ms."""
        time.sleep(self._dice.uniform(0, 1))
        seen = change()
        began = time.perf_counter()
        _until(seen)
        return time.perf_counter() - began

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _partition(self) -> Callable[[], bool]:
        value = str(self._next())
        (self._here / f"day={value}").mkdir()
        ground.small_files(self._here / f"day={value}", self._number, 1)
        self._source.add_partitions("west", "t", [ground.partition(self._here, value)])

        def seen() -> bool:
            shown = any(self._target.partitions("west", "t", [f"day={value}"]))
            assert not shown or any((self._there / f"day={value}").iterdir()), "a partition without its file"
            return shown

        return seen

    def _property(self) -> Callable[[], bool]:
        number = str(self._next())
        table = self._source.table("west", "t")
        changed = msgspec.structs.replace(table, parameters=table.parameters | {"number": number})
        self._source.alter_table("west", "t", changed)
        return lambda: self._target.table("west", "t").parameters.get("number") == number

    def _file(self) -> Callable[[], bool]:
        number = self._next()
        ground.small_files(self._here / "day=0000", number, 1)
        return (self._there / "day=0000" / f"part-{number:08d}.parquet").exists


def _until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        if time.monotonic() > deadline:
            raise SystemExit("the change did not come to the target; see sync.log")
        time.sleep(0.01)
