"""`scripts/bench --compare`: its rule, and its work on checkouts whose benchmarks report given figures."""

from __future__ import annotations

import itertools
import math
import subprocess
from pathlib import Path

import pytest
from benchmarks import comparing

BENCHMARK = """
import json, os, sys, replicator
with open(os.environ["ORDER"], "a") as order:
    print(replicator.NAME, file=order)
print("a line before")
print(json.dumps({"code": replicator.__file__, "seconds": {sys.argv[1]: replicator.SECONDS}}))
"""


def test_of_equal_checkouts_one_order_in_seventy_is_slower() -> None:
    """All 8! orders of eight figures are as likely: of the 70 ways to choose the four of the base, one."""
    seconds = [1.0, 1.2, 1.4, 1.6, 1.9, 2.1, 2.3, 2.5]
    chosen = [set(each) for each in itertools.combinations(seconds, comparing.ROUNDS)]
    found = [base for base in chosen if comparing.slower(sorted(base), [x for x in seconds if x not in base])]
    assert found == [{1.0, 1.2, 1.4, 1.6}] and len(chosen) == math.comb(8, 4) == 70


@pytest.mark.parametrize(
    ("base", "here", "found"),
    [
        ([1.00, 1.05, 1.02], [1.30, 1.25, 1.28], True),
        ([1.00, 1.05, 1.02], [1.09, 1.08, 1.07], False),  # less than a tenth
        ([1.00, 1.27, 1.02], [1.30, 1.25, 1.28], False),  # one round of the base took as long
        ([0.001, 0.001, 0.001], [0.004, 0.004, 0.004], False),  # less than 5 ms
        ([1.30, 1.25, 1.28], [1.00, 1.05, 1.02], False),  # faster
    ],
)
def test_slower_is_more_than_a_tenth_in_each_round(base: list[float], here: list[float], found: bool) -> None:
    assert comparing.slower(base, here) is found


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORDER", str(tmp_path / "order"))
    place = tmp_path / "repository"
    for name in ("cmroot", "replicator", "scripts/benchmarks", "tests/support"):
        (place / name).mkdir(parents=True)
        (place / name / "__init__.py").touch()
    (place / "scripts/benchmarks/comparing.py").touch()
    (place / "scripts/benchmarks/__main__.py").write_text(BENCHMARK)
    _git(place, "init", "--quiet")
    return place


def _git(place: Path, *command: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=e@example.com")
    subprocess.run(["git", "-C", str(place), *who, *command], check=True, stdout=subprocess.DEVNULL)


def _commit(place: Path, tag: str, **seconds: list[float]) -> None:
    (place / "replicator/__init__.py").write_text(f"NAME = {tag!r}\nSECONDS = {seconds!r}\n")
    _git(place, "add", ".")
    _git(place, "commit", "--quiet", "-m", tag)
    _git(place, "tag", tag)


def _compared(repository: Path, base: str) -> int:
    work = repository.parent / "work"
    work.mkdir(exist_ok=True)
    before = comparing.exported(repository, base, work / f"base-{base}")
    here = comparing.Checkout("here", repository)
    return comparing.compare(before, here, ["name"], 2, work)


def test_a_slower_step_is_named(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _commit(repository, "old", load=[3.0, 1.0], dump=[1.0])
    _commit(repository, "new", load=[1.5], dump=[1.0])
    assert _compared(repository, "old") == 1
    assert capsys.readouterr().out.endswith("\nSlower: name: load\n")


def test_checkouts_take_turns_in_both_orders(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second series runs only if something seems slower."""
    _commit(repository, "old", load=[1.0])
    _commit(repository, "new", load=[1.0])
    assert _compared(repository, "old") == 0
    assert capsys.readouterr().out.endswith("\nSlower: nothing\n")
    assert (repository.parent / "order").read_text().split() == ["old", "new", "new", "old"]


def test_a_figure_of_one_side_is_named(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _commit(repository, "old", load=[1.0], dump=[1.0])
    _commit(repository, "new", load=[1.0], scan=[1.0])
    assert _compared(repository, "old") == 3
    assert "Not compared, only in one checkout: name: dump, name: scan\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("base", "message"), [("none", "no such revision: none"), ("-x", "no such"), ("older", "older cannot be compared")]
)
def test_a_base_that_cannot_be_compared_is_refused(repository: Path, base: str, message: str) -> None:
    (repository / "scripts/benchmarks/comparing.py").unlink()
    _commit(repository, "older", load=[1.0])
    with pytest.raises(comparing.NotComparable, match=message):
        _compared(repository, base)


def test_a_benchmark_that_measures_another_checkout_is_refused(repository: Path) -> None:
    _commit(repository, "old", load=[1.0])
    (repository / "scripts/benchmarks/__main__.py").write_text(
        BENCHMARK.replace("replicator.__file__", "json.__file__")
    )
    with pytest.raises(comparing.NotComparable, match="here: measured the code of"):
        _compared(repository, "old")
