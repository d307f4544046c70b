"""Measured costs: increments of several sizes on real metastores, in CPU seconds, which other load changes little."""

from __future__ import annotations

import gc
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks import ground
from benchmarks.cycling import DB, Cycle
from benchmarks.measure import Figures, median

from replicator.metastore.embedded import running as embedded
from replicator.metastore.thrift import ThriftMetastore

MEASURED = Path(__file__).with_name("measured.json")
SIZES = (200, 800, 3_200)  # events of one increment
REPEATS = 3  # of the smallest; of each larger one fewer, as they take longer
EACH = 10  # events of a table in one increment
T = TypeVar("T")
PARTS = ("driver", "source", "target")  # the tool's process, and the Java processes of both metastores
STEPS = ("capture", "dump", "load")


@dataclass
class Increment:
    """One increment: its events, and its CPU seconds by step and part; `elapsed`: seconds by step."""

    events: int
    cpu: dict[tuple[str, str], float]
    elapsed: dict[str, float]

    def of(self, part: str) -> float:
        """CPU seconds of all steps in a part."""
        return sum(seconds for (_, each), seconds in self.cpu.items() if each == part)


@dataclass(frozen=True)
class Line:
    """CPU seconds of a step in a part: `fixed` for each run, `each` for each event."""

    fixed: float
    each: float


Costs = dict[tuple[str, str], Line]  # by step and part


class Used(Figures):
    """CPU seconds of each step, too, by part."""

    def __init__(self, pids: dict[str, int]) -> None:
        super().__init__()
        self._pids, self.cpu = pids, dict[tuple[str, str], float]()

    def of(self, step: str, work: Callable[[], T]) -> T:
        gc.collect()
        began, before = time.perf_counter(), self._now()
        result = work()
        self.seconds[step] = [time.perf_counter() - began]
        name = step.rpartition(" ")[2]
        self.cpu |= {(name, part): now - before[part] for part, now in self._now().items()}
        return result

    def _now(self) -> dict[str, float]:
        own = os.times()
        return {"driver": own.user + own.system, **{name: _cpu(pid) for name, pid in self._pids.items()}}


class Appends:
    """Partitions with a small file, one in each event: no event changes what another one changed."""

    def __init__(self, client: ThriftMetastore, tables: int) -> None:
        self._client, self._numbers = client, itertools.count()
        self._places = [ground.create_table(client, DB, f"appended{number:05}") for number in range(tables)]

    def write(self, events: int) -> None:
        for number, each in zip(range(events), self._numbers, strict=False):
            place = self._places[number // EACH]
            ground.add_partitions(self._client, DB, place.name, place, [f"{each:07}"])
            ground.small_files(place / f"day={each:07}", 1_000_000 + each, 1)


def _increment(cycle: Cycle, used: Used, events: int) -> Increment:
    captured, loaded = cycle.step("increment")
    for count in (captured.events, captured.files, loaded.objects_changed, loaded.files_copied):
        assert count == events, (captured, loaded)
    elapsed = {step: round(used.seconds[f"increment: {step}"][-1], 2) for step in STEPS}
    return Increment(events, dict(used.cpu), elapsed)


def _cpu(pid: int) -> float:
    """CPU seconds of a process so far, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(sizes: Sequence[int], directory: Path, say: Callable[[str], None]) -> list[Increment]:
    """Increments without events, and of each size, after one that warms the servers up (their Java compiles); in the
    end both sides are compared."""
    found = list[Increment]()
    with ground.metastore(directory, "source") as source, ground.metastore(directory, "target") as target:
        cycle = Cycle(source, target, directory, tables=0)
        cycle.figures = used = Used({name: _pid(directory / name) for name in ("source", "target")})
        writer = Appends(source, max(sizes) // EACH)
        cycle.bootstrap()
        for size, repeats in (
            (max(sizes), 1),
            (0, REPEATS),
            *((size, max(1, REPEATS - at)) for at, size in enumerate(sizes)),
        ):
            for _ in range(repeats):
                writer.write(size)
                found.append(_increment(cycle, used, size))
                say(str(found[-1]))
        cycle.verify()
    return found[1:]


def start_of_a_process() -> float:
    """CPU seconds of Python and the imports of a policy's run: the median."""
    found = []
    for _ in range(2 * REPEATS):
        before = os.times()
        subprocess.run([sys.executable, "-c", "import replicator.policies.run, replicator.cli.main"], check=True)
        after = os.times()
        found.append(sum(after[2:4]) - sum(before[2:4]))
    return median(found)


def _pid(directory: Path) -> int:
    running = embedded.status(directory)
    assert running
    return running.pid


def calibrated(increments: Sequence[Increment], events: int) -> Costs:
    """From the increments without events, and from those of one size: medians."""
    idle = [each for each in increments if not each.events]
    some = [each for each in increments if each.events == events]
    costs: Costs = {}
    for key in some[0].cpu:
        fixed = median([each.cpu[key] for each in idle])
        each = median([(one.cpu[key] - fixed) / one.events for one in some])
        costs[key] = Line(fixed, max(0.0, each))
    return costs


def write(path: Path, where: str, start: float, increments: Sequence[Increment]) -> None:
    rows = [
        {**asdict(each), "cpu": {" ".join(key): round(value, 2) for key, value in each.cpu.items()}}
        for each in increments
    ]
    text = json.dumps({"machine": where, "start": round(start, 2), "increments": rows}, indent=1)
    path.write_text(f"{text}\n")


def read(path: Path) -> tuple[float, list[Increment]]:
    """The start of a process, and the increments."""
    recorded = json.loads(path.read_text())
    increments = [
        Increment(**{**row, "cpu": {tuple(key.split()): cpu for key, cpu in row["cpu"].items()}})
        for row in recorded["increments"]
    ]
    return recorded["start"], increments
