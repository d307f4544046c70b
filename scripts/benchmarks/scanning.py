"""scan: looking for silent changes where there are none, against reading the same directories with os.scandir."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from pathlib import Path

from benchmarks import ground
from benchmarks.measure import Figures, Outcome, interleaved, ratio, s, timed
from cmroot.store.listing import RACY_MARGIN, changed_directories
from replicator.captures.manifest import open_manifest

SIZES = {"full": (20, 100, 100), "small": (4, 50, 100)}  # tables, partitions of each, files of each
WANTED, WANTED_SECONDS = 1.5, 2.0


def run(size: str, runs: int, directory: Path) -> Outcome:
    tables, partitions, files = SIZES[size]
    figures = Figures()
    with ground.metastore(directory) as client:
        home = ground.create_database(client, "quiet")
        numbers = itertools.count(0, files)
        for table in range(tables):
            place = ground.create_table(client, "quiet", f"t{table}")
            values = [f"{number:04d}" for number in range(partitions)]
            ground.add_partitions(client, "quiet", f"t{table}", place, values)
            for value in values:
                ground.small_files(place / f"day={value}", next(numbers), files)
        directories = [path for place in home.iterdir() for path in place.iterdir()]
        _wait_for(directories)
        root, captured = ground.captured(client, str(directory / "cmroot"), ["quiet"], ground.engine())
        assert captured.files == tables * partitions * files
        first = directory / "dump-first"
        ground.dumped(client, root, first, ["quiet"])

        def bare(number: int) -> float:
            return timed(lambda: _read(directories, captured.files))

        def scan(number: int) -> float:
            with open_manifest(root) as manifest:
                return figures.timed("scan", lambda: _compare(manifest, len(directories)))

        def incremental(number: int) -> float:
            out = directory / f"dump-{number}"

            def work() -> None:
                _, again = ground.captured(client, root.place, ["quiet"], ground.engine())
                dumped = ground.dumped(client, root, out, ["quiet"], since=str(first))
                assert again.files == 0 and dumped.files == 0 and dumped.records == 0, (again, dumped)

            ground.settle(directory)
            seconds = figures.timed("dump with nothing new", work)
            shutil.rmtree(out)
            return seconds

        bare(runs), scan(runs), incremental(runs)
        took = interleaved(max(runs, 3), {"bare": bare, "scan": scan, "incremental": incremental})
    what = f"{len(directories):,} directories, {captured.files:,} files"
    headers = ["warehouse", "os.scandir", "scan", "times scandir", "wanted", "dump with nothing new", "wanted"]
    outcome = Outcome(headers, figures=figures)
    outcome.rows.append(
        [
            what,
            s(took["bare"]),
            s(took["scan"]),
            ratio(took["scan"], took["bare"]),
            f"<= {WANTED}",
            s(took["incremental"]),
            f"< {WANTED_SECONDS} s",
        ]
    )
    return outcome


def _wait_for(directories: list[Path]) -> None:
    """Until every directory is older than the margin within which its time proves nothing."""
    newest = max(path.stat().st_ctime for path in directories)
    while time.time() < newest + 2 * RACY_MARGIN.total_seconds():
        time.sleep(0.1)


def _read(directories: list[Path], files: int) -> None:
    found = 0
    for path in directories:
        with os.scandir(path) as entries:
            for _ in entries:
                found += 1
    assert found == files


def _compare(manifest: object, directories: int) -> None:
    seen = 0
    for rows in manifest.directories():  # type: ignore[attr-defined]
        _, _, *recorded = zip(*rows, strict=True)
        assert changed_directories(*recorded) == []
        seen += len(rows)
    assert seen >= directories, (seen, directories)
