"""repl: a bootstrap of one table against Hive's own REPL DUMP and REPL LOAD, between the same servers.

Hive 3.1.3, with a session for each side, whose start does not count. Both copy the same files into new databases.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hive_sql import HiveSql

from benchmarks import ground, transacting
from benchmarks.measure import Figures, Outcome, interleaved, ratio, s
from replicator.core.runtime import Runtime
from replicator.metastore.thrift import ThriftMetastore
from replicator.replay.apply.load import load
from replicator.replay.apply.planning import LoadSettings

PARTITIONS = {"full": (1_000, 20_000), "small": (100,)}
DB, TABLE = "repl", "t"
WANTED = 10  # times as fast


def run(size: str, runs: int, directory: Path) -> Outcome:
    outcome = Outcome(["partitions", "Hive", "ours", "times as fast", "wanted"])
    for count in PARTITIONS[size]:
        here = directory / str(count)
        with ExitStack() as stack:
            source, target = (stack.enter_context(transacting.metastore(here / name)) for name in ("source", "target"))
            settings = {
                "hive.repl.rootdir": f"file:{here}/hive",
                "hive.repl.cmrootdir": f"file:{here}/cm",
                "hive.repl.replica.functions.root.dir": f"file:{here}/functions",
            }
            dumping, loading = (
                stack.enter_context(HiveSql(each.uri, ground.warehouse(each), **settings)) for each in (source, target)
            )
            _make(source, count)
            dumping(f"alter database {DB} set dbproperties ('repl.source.for' = '1')")

            pair = _Pair(here, source, target, count, dumping, loading, outcome.figures)
            took = interleaved(runs, {"hive": pair.hive, "ours": pair.ours})
        times = ratio(took["hive"], took["ours"])
        outcome.rows.append([f"{count:,}", s(took["hive"]), s(took["ours"]), times, f">= {WANTED}"])
        shutil.rmtree(here)
    return outcome


def _make(source: ThriftMetastore, count: int) -> None:
    ground.create_database(source, DB)
    home = ground.create_table(source, DB, TABLE)
    values = [f"{number:06d}" for number in range(count)]
    ground.add_partitions(source, DB, TABLE, home, values)
    for number, value in enumerate(values):
        ground.small_files(home / f"day={value}", number, 1)


@dataclass(frozen=True)
class _Pair:
    """Replications, each into a database of its own, and followed by a count of its partitions and files."""

    here: Path
    source: ThriftMetastore
    target: ThriftMetastore
    count: int
    dumping: HiveSql
    loading: HiveSql
    figures: Figures

    def hive(self, number: int) -> float:
        return self._timed(Figures(), f"hive_{number}", self._by_hive)

    def ours(self, number: int) -> float:
        return self._timed(self.figures, f"ours_{number}", self._by_us)

    def _by_hive(self, replica: str) -> None:
        ((place, _),) = self.dumping(f"repl dump {DB}")
        self.loading(f"repl load {replica} from '{place}'")

    def _by_us(self, replica: str) -> None:
        own = self.here / replica
        root, _ = ground.captured(self.source, f"{own}/cmroot", [DB], ground.engine("auto"))
        ground.dumped(self.source, root, own / "dump", [DB])
        settings = LoadSettings(cmroot=f"{own}/target", rename=[(DB, replica)])
        loaded = load(f"{own}/dump", self.target, settings, Runtime(ground.engine("auto")))
        assert loaded.status == "loaded", loaded

    def _timed(self, figures: Figures, replica: str, work: Callable[[str], None]) -> float:
        (self.here / replica).mkdir()
        ground.settle(self.here)
        seconds = figures.timed(f"bootstrap of {self.count:,}", lambda: work(replica))
        location = self.target.database(replica).location or ""
        walked = os.walk(location.removeprefix("file:"))  # Hive still removes its staging directories
        found = {name for _, _, names in walked for name in names if name.startswith("part-")}
        assert len(found) == self.count == len(self.target.partition_names(replica, TABLE)), (replica, len(found))
        return seconds
