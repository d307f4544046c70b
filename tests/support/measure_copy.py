"""Measures our copy against `cp -r`; by hand: `python tests/support/measure_copy.py [--trees B,C] [--rounds 3] DIR`.

Trees as in the project's measurements: A = 8 x 256 MB, B = 2,000 x 1 MB, C = 50,000 x 10 KB. Our side hashes while it
copies, reads the copy back, compares, and renames it into place, as a load does. Runs are interleaved; read the ratios
(time of cp divided by our time; above 1 is faster than cp).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import time
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

from cmroot.store.checksum import copy_file

TREES = {"A": (8, 256 << 20, 8), "B": (2_000, 1 << 20, 20), "C": (50_000, 10 << 10, 100)}


def make_tree(top: Path, files: int, size: int, directories: int) -> None:
    if top.exists():
        return
    for number in range(files):
        directory = top / f"p={number % directories}"
        if number < directories:
            directory.mkdir(parents=True)
        (directory / f"part-{number:05d}").write_bytes(os.urandom(min(size, 1 << 16)) * (size // min(size, 1 << 16)))


def copy_slice(pairs: list[tuple[str, str]], reread: bool) -> int:
    total = 0
    for source, target in pairs:
        temporary = target + ".part"
        total += copy_file(source, temporary, reread=reread)[1]
        os.rename(temporary, target)
    return total


def ours(source: Path, target: Path, pool: Executor, reread: bool) -> float:
    pairs = [(str(path), str(target / path.relative_to(source))) for path in sorted(source.glob("*/*"))]
    begun = time.perf_counter()
    for directory in source.iterdir():
        (target / directory.name).mkdir(parents=True)
    slices = [pairs[0::4], pairs[1::4], pairs[2::4], pairs[3::4]]
    for outcome in [pool.submit(copy_slice, part, reread) for part in slices]:
        outcome.result()
    return time.perf_counter() - begun


def theirs(source: Path, target: Path) -> float:
    begun = time.perf_counter()
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    parser.add_argument("--onto", type=Path)
    parser.add_argument("--trees", default="B,C")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    onto: Path = arguments.onto or arguments.place
    for name in arguments.trees.split(","):
        source, target = arguments.place / f"tree-{name}", onto / "copied"
        make_tree(source, *TREES[name])
        subprocess.run(["grep", "-rqF", "not in there at all", str(source)])
        times: dict[str, list[float]] = {}
        with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(2) as processes:
            list(processes.map(abs, range(4)))
            for _ in range(arguments.rounds):
                runs = {
                    "cp -r": lambda s=source, t=target: theirs(s, t),
                    "2 threads": lambda s=source, t=target: ours(s, t, threads, False),
                    "2 threads, reread": lambda s=source, t=target: ours(s, t, threads, True),
                    "2 processes, reread": lambda s=source, t=target: ours(s, t, processes, True),
                }
                for label, run in runs.items():
                    times.setdefault(label, []).append(run())
                    shutil.rmtree(target)
                    os.sync()
        yardstick = statistics.median(times["cp -r"])
        for label, seconds in times.items():
            median = statistics.median(seconds)
            print(f"{name} {label:22} {median:7.2f} s  {yardstick / median:5.2f} x", flush=True)


if __name__ == "__main__":
    main()
