"""cycle: a policy's whole way for a small warehouse, bootstrap and increments, without yardsticks: for `--compare`."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

from benchmarks import ground
from benchmarks.measure import Figures, Outcome, s
from benchmarks.mixing import MixedWriter
from cmroot.root import ChangeRoot
from replicator.captures.recording import Captured
from replicator.compare.both_sides import Comparison
from replicator.compare.verify import verify
from replicator.core.runtime import Runtime
from replicator.metastore.thrift import ThriftMetastore
from replicator.replay.apply.load import Loaded, load
from replicator.replay.apply.planning import LoadSettings

TABLES = {"full": 100, "small": 8}  # of 20 partitions with a file each
EVENTS = {"full": 2_000, "small": 120}  # of one increment
DB = "mixed"


class Cycle:
    """A mixed warehouse, and one replica after the other of it. `figures` gets the steps' seconds."""

    def __init__(self, source: ThriftMetastore, target: ThriftMetastore, directory: Path, tables: int) -> None:
        self._source, self._target, self._directory = source, target, directory
        self._numbers = itertools.count()
        self.figures, self.writer = Figures(), MixedWriter(source, DB)
        self.writer.begin(tables)

    def bootstrap(self) -> None:
        """A new replica, which has all that the writer wrote before."""
        self._replica = self._directory / f"replica-{next(self._numbers)}"
        self._since: Path | None = None
        self.step("bootstrap")

    def step(self, name: str) -> tuple[Captured, Loaded]:
        """Captures, dumps and loads what is new."""
        out, root = self._directory / f"dump-{next(self._numbers)}", str(self._replica / "source")
        ground.settle(self._directory)
        opened, captured = self.figures.of(f"{name}: capture", lambda: self._captured(root))
        self.figures.of(f"{name}: dump", lambda: self._dumped(opened, out))
        loaded = self.figures.of(f"{name}: load", lambda: self._loaded(out))
        assert loaded.status.endswith("loaded") and not loaded.not_replicated, loaded
        self._since = out
        return captured, loaded

    def verify(self) -> None:
        both = Comparison(self._source, self._target, [(DB, self._replica.name.replace("-", "_"))], level="size")
        found = self.figures.of("verify", lambda: verify(both, [DB], self._runtime()))
        assert found.status == "same", found.differences[:5]

    def remove(self) -> None:
        """The files; the metastore's objects remain."""
        shutil.rmtree(self._replica)

    def _captured(self, root: str) -> tuple[ChangeRoot, Captured]:
        return ground.captured(self._source, root, [DB], ground.engine())

    def _dumped(self, root: ChangeRoot, out: Path) -> None:
        ground.dumped(self._source, root, out, [DB], since=str(self._since) if self._since else None)

    def _loaded(self, dump: Path) -> Loaded:
        name, place = self._replica.name.replace("-", "_"), self._replica / "target"
        options = LoadSettings(warehouse=str(place), cmroot=str(place / ".cmroot"), rename=[(DB, name)])
        return load(str(dump), self._target, options, self._runtime())

    def _runtime(self) -> Runtime:
        return Runtime(ground.engine())


def run(size: str, runs: int, directory: Path) -> Outcome:
    with ground.metastore(directory, "one") as source, ground.metastore(directory, "two") as target:
        cycle = Cycle(source, target, directory, TABLES[size])
        for _ in range(runs):
            cycle.bootstrap()
            cycle.writer.write(EVENTS[size])
            captured, _ = cycle.step("increment")
            assert captured.events >= EVENTS[size], captured
            captured, _ = cycle.step("nothing new")
            assert captured.events == 0, captured
            cycle.verify()
            cycle.remove()
    outcome = Outcome(["step", "seconds"], figures=cycle.figures)
    outcome.rows = [[step, s(seconds)] for step, seconds in cycle.figures.seconds.items()]
    outcome.remarks = [
        f"{TABLES[size]} tables of 20 partitions at first; an increment of {EVENTS[size]:,} mixed events."
    ]
    return outcome
