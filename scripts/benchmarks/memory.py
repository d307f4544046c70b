"""memory: what the driver holds while it captures and dumps a table with very many files, and plans an expiry.

Each measurement is a process of its own, whose peak the kernel tells; Spark's JVM is another process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

from benchmarks import ground
from benchmarks.measure import Outcome
from cmroot.expire.expire import plan_expiry
from replicator.metastore.thrift import connect

FILES = {"full": (250_000, 500_000, 1_000_000), "small": (25_000, 50_000, 100_000)}
PARTITIONS = {"full": 1_000, "small": 100}
ENGINES = ("spark", "local")
WANTED = 400


def run(size: str, runs: int, directory: Path) -> Outcome:
    outcome = Outcome(["files", "engine", "Python peak", "the JVM's", "capture", "dump", "plan", "wanted"])
    with ground.metastore(directory) as client:
        ground.create_database(client, "many")
        place = ground.create_table(client, "many", "t")
        values = [f"{number:04d}" for number in range(PARTITIONS[size])]
        ground.add_partitions(client, "many", "t", place, values)
        there = 0
        for count in FILES[size]:
            each = (count - there) // len(values)
            for number, value in enumerate(values):
                ground.small_files(place / f"day={value}", there + number * each, each)
            there = count
            for engine in ENGINES:
                work = directory / f"work-{count}"
                command = [sys.executable, "-m", "benchmarks.memory", client.uri, str(work), str(count), engine]
                answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
                shutil.rmtree(work)
                outcome.rows.append(
                    [
                        f"{count:,}",
                        engine,
                        f"{answer['python']:.0f} MB",
                        f"{answer['jvm']:.0f} MB" if answer["jvm"] else "-",
                        f"{answer['capture']:.0f} s",
                        f"{answer['dump']:.0f} s",
                        f"{answer['plan']:.0f} s",
                        f"< {WANTED} MB, flat",
                    ]
                )
    outcome.remarks.append(f"Python before it does anything (its imports): {answer['idle']:.0f} MB.")
    return outcome


def measured(uri: str, work: Path, count: int, choice: str) -> dict[str, float]:
    """Captures, dumps and plans; peaks in MB, times in seconds."""
    spark = ground.spark()
    engine = ground.AutoEngine(ground.LocalEngine(), spark, choice)
    if choice == "spark":
        ground.warm(spark)
    idle = _peak(os.getpid())
    client = connect(uri)
    began = time.monotonic()
    root, captured = ground.captured(client, str(work / "cmroot"), ["many"], engine)
    middle = time.monotonic()
    dumped = ground.dumped(client, root, work / "dump", ["many"])
    ended = time.monotonic()
    plan_expiry(root.place, older_than=timedelta(days=7), engine=engine.for_work(count))
    planned = time.monotonic()
    assert captured.files == dumped.files == count, (captured.files, dumped.files, count)
    answer = {
        "python": _peak(os.getpid()),
        "jvm": _jvm_peak(spark.context._gateway.proc.pid) if choice == "spark" else 0,
        "idle": idle,
        "capture": middle - began,
        "dump": ended - middle,
        "plan": planned - ended,
    }
    spark.stop()
    return answer


def _peak(pid: int) -> float:
    """Peak resident memory of a process in MB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def _jvm_peak(pid: int) -> float:
    """Of the largest process among the gateway's launcher and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return max(_peak(each) for each in [pid, *map(int, children)])


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
