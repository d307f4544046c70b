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

from mutating.mutants import Mutant, replaced, sample
from mutating.named import NAMED

ROOT = Path(__file__).parent.parent.parent
TESTS = {
    "cmroot": ["tests/cmroot"],
    "replicator/load": ["tests/test_squash.py", "tests/test_copy_task.py", "tests/test_replay.py",
                        "tests/test_publish.py", "tests/test_geometry.py", "tests/test_bad_input.py"],
    "replicator/gateway": ["tests/test_gateway_messages.py", "tests/test_gateway.py", "tests/test_gateway_faults.py"],
}  # fmt: skip
"""Which tests are to kill the mutants of a package; those named after the module are asked first."""
LIMIT = 900.0  # seconds for the tests of one mutant; one that hangs is killed


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"of {', '.join(TESTS)}; default: all")
    parser.add_argument("--named", action="store_true", help="the mutants that survived once, instead of random ones")
    parser.add_argument("--number", type=int, default=50, help="how many random mutants of each package (50)")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives other mutants (1)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further mutant after so long")
    options = parser.parse_args()
    began, outcomes = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="replicator-mutants-") as scratch:
        copy = Path(scratch) / "checkout"
        _copy(copy)
        for mutant, tests in _chosen(options):
            if time.monotonic() - began > options.seconds:
                break
            killed = _is_killed(copy, mutant, tests)
            outcomes.append((mutant, killed))
            print(f"{'killed  ' if killed else 'SURVIVED'} {mutant}", file=sys.stderr, flush=True)
    survivors = [str(mutant) for mutant, killed in outcomes if not killed]
    print(json.dumps({"mutants": len(outcomes), "killed": len(outcomes) - len(survivors), "survivors": survivors}))
    return 1 if survivors else 0


def _chosen(options: argparse.Namespace) -> list[tuple[Mutant, list[str]]]:
    if options.named:
        return [(replaced(ROOT, module, before, after, what), tests.split())
                for module, before, after, what, tests in NAMED]  # fmt: skip
    found = []
    for package in options.packages or TESTS:
        modules = sorted(str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py"))
        found += [(mutant, TESTS[package]) for mutant in sample(ROOT, modules, options.number, options.seed)]
    return found


def _copy(target: Path) -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def _is_killed(copy: Path, mutant: Mutant, tests: Sequence[str]) -> bool:
    place = copy / mutant.module
    original = place.read_bytes()
    place.write_text(mutant.text)
    try:
        return any(_fails(copy, some) for some in _in_order(copy, mutant.module, tests) if some)
    finally:
        place.write_bytes(original)


def _in_order(copy: Path, module: str, tests: Sequence[str]) -> list[list[str]]:
    """The tests that have the module's name in theirs, then all."""
    name = Path(module).stem
    near = [str(path.relative_to(copy)) for path in sorted((copy / "tests").rglob(f"test_*{name}*.py"))]
    return [near, list(tests)]


def _fails(copy: Path, tests: Sequence[str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "PYTHONPATH": str(copy), "CI": "true", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
