"""growth: commands over warehouses of growing sizes, each in a process of its own, between synthetic metastores.

A process is forked from this one, which has imported everything: the imports, 2 s, would hide what grows.

Every point has its own metastores (`synthetic`) and files, and one dimension that grows: partitions of one table (empty
directories), tables (one partition of one file each), or files of one table (100 partitions). Figures of a command are
the processor seconds and the peak memory of its process, the calls of both metastores, and the bytes that it wrote.
"""

from __future__ import annotations

import atexit
import importlib
import json
import math
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median
from typing import NamedTuple

import httpx
from hmsclient.genthrift.hive_metastore import ttypes
from waiting import eventually

from benchmarks import ground, synthetic
from benchmarks.bootstrapping import raw_client
from benchmarks.measure import Outcome
from replicator import commands
from replicator.cli.main import main as command_line

POINTS: dict[str, dict[str, tuple[int, ...]]] = {
    "small": {"partitions": (1_000, 10_000), "tables": (100, 1_000), "files": (1_000, 10_000)},
    "full": {"partitions": (1_000, 10_000, 100_000), "tables": (100, 1_000, 10_000), "files": (1_000, 10_000, 100_000)},
}
OF_FILES = 100  # partitions of the table whose files grow
LINEAR, FLAT = 1.05, 0.1  # slopes
MEMORY = 400  # MB
POLICY = """
[policies.p]
source = "{source}"
target = "{target}"
databases = ["growth"]
engine = "local"
max_lag = "5m"
cmroot = "{here}/source/cmroot"
target_cmroot = "{here}/target/cmroot"
dumps = "{here}/dumps"
warehouse = "{here}/target/warehouse"
[service]
store = "sqlite:///{here}/service.sqlite"
"""
ANSWERS = 200
PAGES = {"page": "/", "page of the policy": "/policies/p", "/metrics": "/metrics"}


class Step(NamedTuple):
    """A command and what it may grow with. `wanted`: the largest slope."""

    name: str
    arguments: str
    wanted: float = LINEAR
    adds: bool = False  # a partition is added before


STEPS = (
    Step("capture", "capture p"),
    Step("dump", "dump p --no-capture --out first"),
    Step("load", "load first --policy p"),
    Step("verify", "verify p"),
    Step("idle capture", "capture p"),
    Step("idle capture, --scan-time 0.1s", "capture p --scan-time 0.1s", FLAT),
    Step("idle capture, --no-scan", "capture p --no-scan", FLAT),
    Step("one change, capture --no-scan", "capture p --no-scan", FLAT, adds=True),
    Step("one change, dump", "dump p --no-capture --since first --out second", FLAT),
    Step("one change, load", "load second --policy p", FLAT),
    Step("sync of nothing", "sync p"),
    Step("check", "check p", FLAT),
    Step("lag", "lag p", FLAT),
    Step("cm ls", "cm ls p"),
    Step("cm expire", "cm expire p --older-than 7d"),
)
WRITTEN = {"capture": "source/cmroot", "dump": "first", "one change, dump": "second"}


@dataclass(frozen=True)
class Cost:
    """Of one command: processor and elapsed seconds, MB, calls, and bytes where it writes some that count."""

    cpu: float
    seconds: float
    memory: float
    calls: float
    bytes: float = 0


def run(size: str, runs: int, directory: Path) -> Outcome:
    """runs: of commands that should not grow; the others run once."""
    outcome = Outcome(
        ["of", "command", "CPU (s)", "slope", "wanted", "elapsed (s)", "calls", "slope", "memory (MB)", "written (MB)"]
    )
    for each in pkgutil.iter_modules(commands.__path__, f"{commands.__name__}."):
        importlib.import_module(each.name)
    for dimension, counts in POINTS[size].items():
        found: dict[str, list[Cost]] = {}
        for count in counts:
            here = directory / f"{dimension}-{count}"
            here.mkdir()
            for name, cost in _point(here, dimension, count, runs):
                print(f"{dimension} {count:,} {name}: {cost}", file=sys.stderr, flush=True)
                found.setdefault(name, []).append(cost)
            shutil.rmtree(here)
        wanted = dict.fromkeys(PAGES, FLAT) | {step.name: step.wanted for step in STEPS}
        outcome.rows += [_row(dimension, counts, name, costs, wanted[name]) for name, costs in found.items()]
    outcome.remarks.append(
        "; ".join(f"{dimension}: {_of(f'{each:,}' for each in counts)}" for dimension, counts in POINTS[size].items())
        + f". Slopes: of all points by least squares, and from the last but one on. Memory wanted: < {MEMORY} MB."
    )
    return outcome


def _row(dimension: str, counts: Sequence[int], name: str, costs: Sequence[Cost], wanted: float) -> Sequence[str]:
    calls = [each.calls for each in costs]
    return [
        dimension,
        name,
        _of(f"{each.cpu:.3g}" for each in costs),
        _slopes(counts, [each.cpu for each in costs]),
        f"<= {wanted}",
        _of(f"{each.seconds:.3g}" for each in costs),
        _of(f"{each:,.0f}" for each in calls),
        _slopes(counts, calls) if all(calls) else "",
        _of(f"{each.memory:.0f}" for each in costs),
        _of(f"{each.bytes / 1e6:.2f}" for each in costs) if any(each.bytes for each in costs) else "",
    ]


def _of(texts: Iterable[str]) -> str:
    return " / ".join(texts)


def _slopes(counts: Sequence[int], values: Sequence[float]) -> str:
    return f"{slope(counts, values):.2f}, {slope(counts[-2:], values[-2:]):.2f}"


def slope(counts: Sequence[int], values: Sequence[float]) -> float:
    """The exponent with which values grow: 1 is linear."""
    return linear_regression([math.log(each) for each in counts], [math.log(max(each, 1e-4)) for each in values]).slope


# ---- a point -------------------------------------------------------------------------------------------------------


def _point(here: Path, dimension: str, count: int, runs: int) -> Iterator[tuple[str, Cost]]:
    tables, partitions, files = {
        "partitions": (1, count, 0),
        "tables": (count, 1, 1),
        "files": (1, OF_FILES, count // OF_FILES),
    }[dimension]
    _make(here / "source" / "warehouse" / f"{synthetic.DB}.db", tables, partitions, files)
    with ExitStack() as running:
        source = running.enter_context(_metastore(here / "source", tables, partitions))
        target = running.enter_context(_metastore(here / "target", 0, 0))
        (here / "replicator.toml").write_text(POLICY.format(source=source, target=target, here=here))
        for step in STEPS:
            costs = []
            for number in range(runs if step.wanted == FLAT and not step.adds and "out" not in step.arguments else 1):
                if step.adds:
                    _add(source, here / "source", partitions + number)
                costs.append(_measured(here, step, [source, target]))
            yield step.name, Cost(*(median(column) for column in zip(*map(_columns, costs), strict=True)))
        yield from _served(here, [source, target])


def _columns(cost: Cost) -> tuple[float, ...]:
    return cost.cpu, cost.seconds, cost.memory, cost.calls, cost.bytes


def _make(place: Path, tables: int, partitions: int, files: int) -> None:
    for table in range(tables):
        for number in range(partitions):
            directory = place / synthetic.table_name(table) / f"day={synthetic.day(number)}"
            directory.mkdir(parents=True)
            ground.small_files(directory, (table * partitions + number) * files, files)


@contextmanager
def _metastore(home: Path, tables: int, partitions: int) -> Iterator[str]:
    (home / "warehouse").mkdir(parents=True, exist_ok=True)
    line = [sys.executable, "-m", "benchmarks.synthetic", str(home), str(tables), str(partitions)]
    process = subprocess.Popen(line)
    try:
        eventually((home / "uri").exists)
        yield (home / "uri").read_text()
    finally:
        process.kill()
        process.wait()


def _calls(uri: str) -> int:
    transport, client = raw_client(uri)
    counted = json.loads(client.get_config_value(synthetic.CALLS, ""))
    transport.close()
    return sum(counted.values())


def _add(uri: str, home: Path, number: int) -> None:
    """Adds a partition of one file to the first table, which the metastore announces."""
    table, value = synthetic.table_name(0), synthetic.day(number)
    place = home / "warehouse" / f"{synthetic.DB}.db"
    (place / table / f"day={value}").mkdir()
    ground.small_files(place / table / f"day={value}", 10**12 + number, 1)
    transport, client = raw_client(uri)
    part = synthetic.partition(place, table, value)
    client.add_partitions_req(ttypes.AddPartitionsRequest(synthetic.DB, table, [part], True, False))
    transport.close()


def _measured(here: Path, step: Step, uris: Sequence[str]) -> Cost:
    before = sum(map(_calls, uris))
    began = time.monotonic()
    _, status, used = os.wait4(_forked(here, [*step.arguments.split(), "--json"]), 0)
    seconds = time.monotonic() - began
    assert os.waitstatus_to_exitcode(status) in (0, 3), (step, (here / "output").read_text()[-2000:])
    cpu, memory = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    written = _size(here / WRITTEN[step.name]) if step.name in WRITTEN else 0
    return Cost(cpu, seconds, memory, sum(map(_calls, uris)) - before, written)


def _forked(here: Path, arguments: Sequence[str]) -> int:
    """The id of a process that runs a command."""
    if pid := os.fork():
        return pid
    try:
        atexit._clear()  # what this process would remove at its end is its parent's
        os.chdir(here)
        output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for standard in (1, 2):
            os.dup2(output, standard)
        sys.argv = ["replicator", *arguments]
        command_line()
    finally:
        os._exit(70)


def _served(here: Path, uris: Sequence[str]) -> Iterator[tuple[str, Cost]]:
    """Costs of an answer of the service, made for it alone, from the second on."""
    ready = here / "url"
    line = [sys.executable, "-m", "replicator", "serve", "--listen", "127.0.0.1:0", "--ready-file", str(ready)]
    with (here / "log").open("wb") as log:
        process = subprocess.Popen(line, cwd=here, stdout=log, stderr=log)
    try:
        eventually(lambda: ready.exists() and ready.read_text().endswith("\n"), (here / "log").read_text)
        with httpx.Client(base_url=ready.read_text().strip(), timeout=600, cookies={"a": "b"}) as client:
            eventually(lambda: client.get("/api/v1/policies").json()["items"][0]["measured"])
            for name, path in PAGES.items():
                assert client.get(path).status_code == 200, path
                calls, cpu, began = sum(map(_calls, uris)), _cpu(process.pid), time.monotonic()
                for _ in range(ANSWERS):
                    client.get(path)
                seconds, used = time.monotonic() - began, _cpu(process.pid) - cpu
                made = sum(map(_calls, uris)) - calls
                yield name, Cost(used / ANSWERS, seconds / ANSWERS, _peak(process.pid), made / ANSWERS)
    finally:
        process.terminate()
        process.wait()


def _cpu(pid: int) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _peak(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def _size(place: Path) -> int:
    """Bytes of all files but the kept ones, which are links of the tables'."""
    found = 0
    for above, directories, names in os.walk(place):
        if above == str(place):
            directories[:] = [each for each in directories if each != "files"]
        found += sum(os.lstat(f"{above}/{name}").st_size for name in names)
    return found
