"""keep: hashing files and linking them into `$cmroot`, against reading them and against bare hard links (`cp -al`)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benchmarks import ground
from benchmarks.measure import Figures, Outcome, interleaved, median, ratio, s, timed
from cmroot.keep.keepers import LinkKeeper, is_kept
from cmroot.root import create_or_open
from cmroot.store.checksum import checksum_file
from replicator.core.engine import LocalEngine

SIZES = {"full": (100, 1000), "small": (40, 250)}  # directories, files of each


def run(size: str, runs: int, directory: Path) -> Outcome:
    directories, files = SIZES[size]
    tree = directory / "tree"
    places = [tree / f"{number:03d}" for number in range(directories)]
    for number, place in enumerate(places):
        place.mkdir(parents=True)
        ground.small_files(place, number * files, files)
    engine, root, figures = LocalEngine(), directory / "cmroot", Figures()

    def read_all(place: Path) -> int:
        return len([checksum_file(str(path)) for path in place.iterdir()])

    def keep_all(place: Path) -> int:
        keeper = LinkKeeper(str(root))
        return len([keeper.keep(str(path)) for path in place.iterdir()])

    def read(number: int) -> float:
        return timed(lambda: _all(engine.run(read_all, places), directories * files))

    def link(number: int) -> float:
        copy = directory / f"links-{number}"
        seconds = timed(lambda: subprocess.run(["cp", "-al", str(tree), str(copy)], check=True))
        shutil.rmtree(copy)
        return seconds

    def keep(number: int) -> float:
        create_or_open(str(root))
        ground.settle(directory)
        seconds = figures.timed("keep", lambda: _all(engine.run(keep_all, places), directories * files))
        example = LinkKeeper(str(root)).keep(str(next(places[0].iterdir())))
        assert is_kept(str(root), example.checksum, example.size)
        shutil.rmtree(root)
        return seconds

    took = interleaved(max(runs, 3), {"read": read, "link": link, "keep": keep})
    rate = directories * files / median(took["keep"])
    outcome = Outcome(
        ["files", "read and hash", "cp -al", "keep by link", "files a second", "times reading", "times cp -al"],
        figures=figures,
    )
    outcome.rows.append(
        [
            f"{directories * files:,}",
            s(took["read"]),
            s(took["link"]),
            s(took["keep"]),
            f"{rate:,.0f}",
            ratio(took["keep"], took["read"]),
            ratio(took["keep"], took["link"]),
        ]
    )
    return outcome


def _all(counts: object, wanted: int) -> None:
    found = sum(counts)  # type: ignore[call-overload]
    assert found == wanted, (found, wanted)
