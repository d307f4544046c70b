"""`scripts/bench --compare BASE`: small benchmarks of two checkouts in turns, and what is slower beyond noise.

BASE is a git revision, exported into a directory of its own, whose benchmarks run with the same Python and packages.
Each round is a process, whose figure is the shortest of its runs: other load only adds time. docs/performance.md has
the rule, and how often it is wrong.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import median

DEFAULT = ("decode", "keep", "cycle")  # each ends within half a minute, all rounds within ten minutes
ROUNDS = 4  # of each checkout; as many again confirm what seems slower
RUNS = 2  # in each round
LIMIT = 1.1  # times the base's median
LEAST = 0.005  # seconds more


class NotComparable(Exception):
    """A benchmark that failed, or a revision without figures."""


Rounds = dict[str, list[float]]  # by figure, the seconds of each round


def slower(base: Sequence[float], here: Sequence[float]) -> bool:
    """The medians differ by more than LIMIT and LEAST, and each round here took longer than each of the base."""
    before, now = median(base), median(here)
    return min(here) > max(base) and now > before * LIMIT and now - before > LEAST


@dataclass(frozen=True)
class Checkout:
    """A directory with the program, its benchmarks and the support of its tests."""

    name: str
    root: Path

    def measure(self, benchmark: str, directory: Path) -> dict[str, float]:
        """Each figure of one round."""
        paths = os.pathsep.join(str(self.root / part) for part in ("", "scripts", "tests/support"))
        command = [sys.executable, "-m", "benchmarks", benchmark, "--json", "--runs", str(RUNS)]
        # In its own group: a Ctrl-C ends it by one SIGTERM from here, which its cleaning up survives.
        with subprocess.Popen(
            [*command, "--directory", str(directory)],
            cwd=directory,
            env=os.environ | {"PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as child:
            try:
                out, _ = child.communicate()
            finally:
                child.terminate()
                child.wait()  # it removes its directory, and stops its metastores
        if child.returncode:
            raise NotComparable(f"benchmark {benchmark} of {self.name} failed, exit code {child.returncode}")
        answer = json.loads(out.splitlines()[-1])
        if not Path(answer["code"]).is_relative_to(self.root):
            raise NotComparable(f"{self.name}: measured the code of {answer['code']}, not of {self.root}")
        steps: dict[str, list[float]] = answer["seconds"][benchmark]
        if not steps:
            raise NotComparable(f"benchmark {benchmark} of {self.name} has no figures that can be compared")
        return {step: min(seconds) for step, seconds in steps.items()}


def exported(repository: Path, revision: str, place: Path) -> Checkout:
    """The revision's files, in a new directory `place`."""
    git = ["git", "-C", str(repository)]
    asked = [*git, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"]
    found = subprocess.run(asked, stdout=subprocess.PIPE, text=True)
    if found.returncode:
        raise NotComparable(f"no such revision: {revision}")
    commit = found.stdout.strip()
    packed = subprocess.run([*git, "archive", commit], check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(place, filter="data")
    if not (place / "scripts/benchmarks/comparing.py").exists():
        raise NotComparable(f"{revision} cannot be compared: its benchmarks are older than `scripts/bench --compare`")
    return Checkout(f"{revision} ({commit[:8]})", place)


def compare(base: Checkout, here: Checkout, names: Sequence[str], rounds: int, directory: Path) -> int:
    """Prints a table of all figures. 1: a figure is slower; 3: none is, but one exists in one checkout only."""
    _compile(base, here)
    print(f"| figure | {base.name} | {here.name} | ratio | base's range | verdict |\n|---|---|---|---|---|---|")
    found, alone = list[str](), list[str]()
    for name in names:
        again = _again(base, here, name, rounds, directory)
        first = again()
        suspects = {each for each in first[0].keys() & first[1].keys() if slower(first[0][each], first[1][each])}
        second = again() if suspects else ({}, {})
        for figure in dict.fromkeys([*first[0], *first[1]]):
            full = f"{name}: {figure}"
            if figure not in first[0] or figure not in first[1]:
                alone.append(full)
                continue
            confirmed = figure in suspects and slower(second[0].get(figure, [0]), second[1].get(figure, [0]))
            found += [full] if confirmed else []
            verdict = "slower" if confirmed else "not confirmed" if figure in suspects else ""
            print(_row(full, first[0][figure], first[1][figure], verdict), flush=True)
    changed = _changed(base, here)
    print(f"\nThe benchmarks differ, too: {', '.join(changed)}" if changed else "", end="\n" if changed else "")
    print(f"\nNot compared, only in one checkout: {', '.join(alone)}" if alone else "", end="\n" if alone else "")
    print(f"\nSlower: {'; '.join(found) or 'nothing'}")
    return 1 if found else 3 if alone else 0


def _again(
    base: Checkout, here: Checkout, name: str, rounds: int, directory: Path
) -> Callable[[], tuple[Rounds, Rounds]]:
    def measure() -> tuple[Rounds, Rounds]:
        took: Mapping[Checkout, Rounds] = {base: {}, here: {}}
        for number in range(rounds):
            for side in (base, here) if number % 2 == 0 else (here, base):
                for figure, seconds in side.measure(name, directory).items():
                    took[side].setdefault(figure, []).append(seconds)
        return took[base], took[here]

    return measure


def _row(name: str, base: Sequence[float], here: Sequence[float], verdict: str) -> str:
    before, now = median(base), median(here)
    spread = f"{min(base) * 1000:.1f} to {max(base) * 1000:.1f}"
    ratio = f"{now / before:.2f}" if before else "-"
    return f"| {name} | {before * 1000:.1f} ms | {now * 1000:.1f} ms | {ratio} | {spread} | {verdict} |"


def _compile(*checkouts: Checkout) -> None:
    """Compiles both checkouts, so that no round includes it."""
    for each in checkouts:
        places = [each.root / top for top in ("cmroot", "replicator", "scripts/benchmarks", "tests/support")]
        subprocess.run([sys.executable, "-m", "compileall", "-q", *(str(place) for place in places)], check=True)


def _changed(base: Checkout, here: Checkout) -> list[str]:
    """Modules of the benchmarks that only one has, or that differ: their figures may measure other work."""
    sides = [
        {path.name: path.read_bytes() for path in (each.root / "scripts/benchmarks").glob("*.py")}
        for each in (base, here)
    ]
    return sorted(name for name in sides[0].keys() | sides[1].keys() if sides[0].get(name) != sides[1].get(name))
