"""`scripts/mutate`: runs the tests of a module against mutants of it, in a copy of the checkout."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mutating.mutants import Mutant, replaced, sample
from mutating.named import NAMED
from mutating.near import nearest

ROOT = Path(__file__).parent.parent.parent
TESTS = {
    "cmroot": ["cmroot_*"],
    "replicator/replay": ["squash", "copy_task", "replay", "publish", "geometry", "bad_input", "left_places"],
    "replicator/lifecycle/purge": [
        "purge_avro",
        "purge_blocks",
        "purge_sequence",
        "purge_rewriting",
        "purge_footers",
        "purge_orc",
        "purge_text",
        "purge_values",
        "purge_places",
        "purge_proof",
        "purge_refusals",
        "purge_formats",
        "purge_records",
        "purge_everywhere",
        "purge",
    ],
    "replicator/captures/gateways": ["gateway_messages", "gateway", "gateway_faults"],
}
"""Which tests are to kill the mutants of a package; the nearest to the module are asked first."""
LIMIT = 900.0  # seconds for the tests of one mutant; one that hangs is killed


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument(
        "packages", nargs="*", metavar="PACKAGE", help=f"of {', '.join(TESTS)}, or a module in one; default: all"
    )
    parser.add_argument("--named", action="store_true", help="the mutants that survived once, instead of random ones")
    parser.add_argument("--number", type=int, default=50, help="how many random mutants of each PACKAGE (50)")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives other mutants (1)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further mutant after so long")
    parser.add_argument("--processes", type=int, default=0, help="ask so many test modules at once (0: one, by itself)")
    options = parser.parse_args()
    for each in options.packages:
        if not _names(each) or not (ROOT / each).exists():
            parser.error(f"{each} is no module or package of {', '.join(TESTS)}")
    began, outcomes = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="replicator-mutants-") as scratch:
        copy = Path(scratch) / "checkout"
        _copy(copy)
        for mutant, tests in _chosen(options):
            if time.monotonic() - began > options.seconds:
                break
            killed = _is_killed(copy, mutant, tests, options.processes)
            outcomes.append((mutant, killed))
            print(f"{'killed  ' if killed else 'SURVIVED'} {mutant}", file=sys.stderr, flush=True)
    survivors = [str(mutant) for mutant, killed in outcomes if not killed]
    print(json.dumps({"mutants": len(outcomes), "killed": len(outcomes) - len(survivors), "survivors": survivors}))
    return 1 if survivors else 0


def _chosen(options: argparse.Namespace) -> list[tuple[Mutant, list[str]]]:
    if options.named:
        return [
            (replaced(ROOT, module, before, after, what), tests.split()) for module, before, after, what, tests in NAMED
        ]
    found = []
    for package in options.packages or TESTS:
        place = ROOT / package
        modules = sorted(str(path.relative_to(ROOT)) for path in place.rglob("*.py")) or [package]
        tests = [
            str(path.relative_to(ROOT)) for name in _names(package) for path in ROOT.glob(f"tests/*/test_{name}.py")
        ]
        found += [(mutant, tests) for mutant in sample(ROOT, modules, options.number, options.seed)]
    return found


def _names(package: str) -> list[str]:
    """Tests of a package, or of the one that a module or a package below lies in."""
    return next((names for each, names in TESTS.items() if f"{package}/".startswith(f"{each}/")), [])


def _copy(target: Path) -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def _is_killed(copy: Path, mutant: Mutant, tests: Sequence[str], processes: int) -> bool:
    place = copy / mutant.module
    original = place.read_bytes()
    place.write_text(mutant.text)
    try:
        return _fails(copy, nearest(copy, mutant.module, tests), processes)
    finally:
        place.write_bytes(original)


def _fails(copy: Path, tests: Sequence[str], processes: int) -> bool:
    """Raises RuntimeError when pytest found no test to run."""
    workers = [f"-n{processes}", "--dist=loadfile", "--no-loadscope-reorder"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", *workers, "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "PYTHONPATH": str(copy), "CI": "true", "PYTHONDONTWRITEBYTECODE": "1"}
    quiet = subprocess.DEVNULL  # no pipe: servers that outlive a killed pytest would hold it open
    try:
        done = subprocess.run(command, cwd=copy, env=env, stdout=quiet, stderr=quiet, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return True
    if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise RuntimeError(f"no tests in {' '.join(tests)}")
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
