"""expire: an expiry that keeps an eighth of very many entries, against os.scandir and unlink of the files that go.

An expiry runs in a process of its own, on Spark, whose peak memory the kernel tells; the JVM is another process. Of the
entries one sixteenth is live, one is held by a slot, the others are in no need.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import xxhash

from benchmarks import ground
from benchmarks.measure import Outcome, interleaved, median, ratio, s, timed
from cmroot.expire.expire import expire, plan_expiry
from cmroot.keep.content import content_name
from cmroot.log.captured import ADD, RELEASE, SegmentWriter
from cmroot.pins import Slot, create_slot, iso
from cmroot.root import create_or_open
from cmroot.store.retained_entries import PREFIXES

ENTRIES = {"full": (1_000_000,), "small": (10_000, 40_000)}
BYTES = 20
LIVE, HELD = "0", "1"  # the last digit of their checksums
STEP = 50_000
AFTER = 8 * 86_400  # seconds until the expiry, as entries are never removed within the retention after their creation


def run(size: str, runs: int, directory: Path) -> Outcome:
    outcome = Outcome(
        ["entries", "scandir, unlink", "expire", "times", "plan", "removal", "times", "freed", "driver's peak"]
    )
    for count in ENTRIES[size]:
        answers: list[dict[str, float]] = []

        def bare(number: int, count: int = count) -> float:
            root = _make(directory / "bare", count)
            seconds = timed(lambda: _unlink(root))
            shutil.rmtree(root)
            return seconds

        def ours(number: int, count: int = count, answers: list[dict[str, float]] = answers) -> float:
            root = _make(directory / "ours", count)
            command = [sys.executable, "-m", "benchmarks.expiring", root]
            answers.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
            left = sum(len(os.listdir(f"{root}/files/{prefix}")) for prefix in PREFIXES)
            assert left == count - answers[-1]["removed"] and left <= count / 6, (left, answers[-1])
            shutil.rmtree(root)
            return answers[-1]["plan"] + answers[-1]["removal"]

        took = interleaved(runs, {"bare": bare, "ours": ours})
        last = answers[-1]
        plans, removals = [each["plan"] for each in answers], [each["removal"] for each in answers]
        outcome.rows.append(
            [
                f"{count:,}",
                s(took["bare"]),
                s(took["ours"]),
                ratio(took["ours"], took["bare"]),
                s(plans),
                s(removals),
                ratio(removals, took["bare"]),
                f"{last['freed'] / 1e6:.1f} MB",
                f"{median([each['peak'] for each in answers]):.0f} MB",
            ]
        )
        idle = last["idle"]
    outcome.remarks.append(f"The driver before it does anything (imports, Spark's start): {idle:.0f} MB.")
    return outcome


def _make(place: Path, count: int) -> str:
    """A root with so many entries, and the log that tells of them."""
    shutil.rmtree(place, ignore_errors=True)
    root = create_or_open(str(place)).place
    for prefix in PREFIXES:
        os.mkdir(f"{root}/files/{prefix}")
    now = time.time()
    for position, op in ((1, ADD), (2, RELEASE), (3, RELEASE)):
        with SegmentWriter(root, position) as writer:
            for checksums in _checksums(count):
                if op == ADD:
                    _create(root, checksums)
                else:
                    wanted = HELD if position == 3 else "23456789abcdef"
                    checksums = [each for each in checksums if each[-1] in wanted]
                writer.append_files(_rows(position, op, checksums))
            writer.finish(position, time=now - 10 * 86_400)
    create_slot(root, Slot("held", 2, 2, iso(now), iso(now)))
    ground.settle(place)
    return root


def _checksums(count: int) -> Iterator[list[str]]:
    for start in range(0, count, STEP):
        yield [xxhash.xxh3_128_hexdigest(b"%d" % number) for number in range(start, min(start + STEP, count))]


def _create(root: str, checksums: list[str]) -> None:
    """What is in them does not matter: an expiry reads none."""
    for checksum in checksums:
        path = f"{root}/files/{checksum[:2]}/{content_name(checksum, BYTES)}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.write(descriptor, b"%020d" % 0)
        os.close(descriptor)


def _rows(position: int, op: str, checksums: list[str]) -> pa.Table:
    many = len(checksums)
    return pa.table(
        {
            "position": pa.array([position] * many, pa.int64()),
            "op": pa.array([op] * many, pa.string()),
            "checksum": pa.array(checksums, pa.string()),
            "size": pa.array([BYTES] * many, pa.int64()),
            "since": pa.array([1 if op == RELEASE else None] * many, pa.int64()),
        }
    )


def _unlink(root: str) -> None:
    """The yardstick: it knows which ones by their names."""
    end = len(content_name("0" * 32, BYTES)) - len(f"-{BYTES}") - 1
    for prefix in PREFIXES:
        with os.scandir(f"{root}/files/{prefix}") as entries:
            for path in [entry.path for entry in entries if entry.name[end] not in (LIVE, HELD)]:
                os.unlink(path)


def measured(root: str) -> dict[str, float]:
    """Plans and removes with Spark; peaks in MB, times in seconds."""
    spark = ground.spark()
    ground.warm(spark)
    idle = ground.peak()
    began = time.monotonic()
    plan = plan_expiry(root, older_than=timedelta(days=7), now=lambda: time.time() + AFTER, engine=spark)
    middle = time.monotonic()
    done = expire(root, plan)
    ended = time.monotonic()
    answer = {
        "plan": middle - began,
        "removal": ended - middle,
        "idle": idle,
        "peak": ground.peak(),
        "freed": done.removed.freed,
        "removed": done.removed.entries,
    }
    spark.stop()
    return answer


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1])))
