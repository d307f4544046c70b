"""The witnesses of `scripts/soak_serve` see planted faults, and nothing where there is none."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from soaking.verdict import KINDS, NEVER, PAUSED, Day, judge, outcome_of
from soaking.witness import Kill, Processes, Run, gaps, overlapping, unexplained
from waiting import Clock, eventually

PERIOD, BEGAN = 100.0, 1000.0
GOOD = Run("p", BEGAN, BEGAN + 1, 0, "schedule", "done", BEGAN + 2, BEGAN + 9, "", 0)
STOPPED = {"state": "cancelled", "message": "the service was stopped", "exit_code": 143}
LOST = {"state": "lost", "message": "its server disappeared", "exit_code": None}


def later(periods: float, **others: object) -> Run:
    """A good run so many periods later, but for `others`."""
    moved = {name: getattr(GOOD, name) + periods * PERIOD for name in ("due", "queued", "begun", "ended")}
    return replace(GOOD, **{**moved, **others})  # type: ignore[arg-type]


def wrong(*runs: Run, ended: float = BEGAN + 5 * PERIOD) -> list[str]:
    return gaps(runs, PERIOD, BEGAN, ended, 50)


def test_each_time_has_one_run_that_stands_for_it() -> None:
    four = [later(each) for each in range(4)]
    assert wrong(*four, later(4)) == []
    assert wrong(GOOD, later(1, missed=2), later(4, asked_by="me"), later(4)) == []
    assert wrong() == ["none"]
    assert wrong(*four[:2], later(3), later(4)) == ["+1.00 periods from 1200.0 to 1300.0"]
    assert wrong(*four, later(3), later(4)) == ["-1.00 periods from 1400.0 to 1300.0"]
    assert wrong(*four[:2], later(2.1), later(3.1), later(4.1)) == ["+0.10 periods from 1200.0 to 1210.0"]
    assert wrong(*four, ended=BEGAN + 6 * PERIOD) == ["none since 200 s before the end"]
    assert wrong(later(2), later(3), later(4)) == ["the first one was due 200 s after the service began"]


@pytest.mark.parametrize("how", [STOPPED, LOST])
def test_the_time_of_a_run_that_the_service_ended_is_due_again_once(how: dict[str, object]) -> None:
    ended, again = later(1, **how), later(1.2, due=BEGAN + PERIOD)
    rest = [later(2), later(3), later(4)]
    assert wrong(GOOD, ended, again, *rest) == []
    assert wrong(GOOD, ended, replace(again, missed=2), later(4)) == [], "the next ones were missed meanwhile"
    assert wrong(GOOD, ended, replace(again, **how), again, *rest) == [], "each of them was ended"
    assert wrong(GOOD, ended, *rest) == ["+1.00 periods from 1100.0 to 1200.0"], "nobody made up for it"
    assert wrong(GOOD, ended, again, again, *rest) == ["-1.00 periods from 1200.0 to 1100.0"], "twice"
    assert wrong(GOOD, later(1), again, *rest) == ["-1.00 periods from 1200.0 to 1100.0"], "it was good"
    assert wrong(GOOD, later(1), later(2), later(3), later(4, **how), ended=BEGAN + 4 * PERIOD) == [], "in the end"


def test_runs_of_a_job_at_once_are_seen() -> None:
    assert overlapping([GOOD, later(1), later(0, job="q")]) == []
    assert overlapping([GOOD, later(0.05)]) == [f"p at {BEGAN + 7}"]
    assert len(overlapping([later(0, ended=None), later(1)])) == 1


def test_a_bad_end_has_a_reason_that_is_expected() -> None:
    died, server = Kill("run", BEGAN + 3, BEGAN + 3), Kill("server", BEGAN + 5, BEGAN + 8)
    killed = {"state": "failed", "message": "ended with exit code -9 and no answer; see its log", "exit_code": -9}
    held = {"state": "failed", "message": "another run is at work", "exit_code": 7}
    away = {"state": "failed", "message": "the metastore does not answer", "exit_code": 75}

    def said(*runs: Run, kills: tuple[Kill, ...] = (died, server)) -> list[str]:
        return unexplained(runs, kills, NEVER, BEGAN)

    assert said(later(0.5, state="queued", begun=None, ended=None, exit_code=None)) == [], "it waits for its place"

    for how in (killed, LOST, STOPPED, away, {**LOST, "message": "the store became unreachable while the run began"}):
        assert said(later(0, **how)) == []
    assert said(later(0, **killed), later(1, **held), later(2, **held)) == []
    assert said(later(0, **LOST), kills=(Kill("store", BEGAN, BEGAN + 4),)) == []
    assert len(said(later(0, **killed), kills=(server,))) == 1, "nobody killed it"
    assert len(said(later(5, **LOST))) == 1 == len(said(later(0, **LOST), kills=(died,))), "its server lived"
    assert len(said(GOOD, later(1, **held))) == 1, "who had the lease?"
    for faults in (
        {"state": "failed", "message": "InternalError: KeyError", "exit_code": 1},
        {"state": "cancelled", "message": "took longer than its timeout of 5 s", "exit_code": 143},
        {"state": "differs", "message": "files differ", "exit_code": 4},
        {**LOST, "message": ""},
        {"state": "running", "ended": None},
        {"state": "queued", "queued": BEGAN - 1, "begun": None, "ended": None},
        {"job": NEVER},
    ):
        assert len(said(later(0, **faults))) == 1, faults


def test_processes_at_once_are_seen_and_for_how_long_nobody_looked(tmp_path: Path) -> None:
    (tmp_path / "replicator").mkdir()
    (tmp_path / "replicator" / "__init__.py").touch()
    (tmp_path / "replicator" / "service").mkdir()
    (tmp_path / "replicator" / "service" / "child.py").write_text("import signal\nsignal.pause()\n")
    configuration = tmp_path / "replicator.toml"
    line = [sys.executable, "-m", "replicator.service.child", "--config", str(configuration), "sync", "p"]
    children = [subprocess.Popen(line, cwd=tmp_path, start_new_session=True, env={}) for _ in range(2)]
    clock = Clock()
    processes = Processes(configuration, clock)
    try:
        processes.start()
        eventually(lambda: processes.twice)
        clock.advance(7)
        looks = processes.looks
        eventually(lambda: processes.looks > looks + 1)
        processes.stop()
        assert processes.twice[0].endswith(" p") and len(processes.seen["p"]) == 2
        assert {child.pid for child in children} == set(processes.at_work()) == set(processes.of_servers())
        assert processes.blind == 7
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_day_without_its_proofs_does_not_pass(tmp_path: Path) -> None:
    """Nothing ran wrong, and nothing was tried either."""
    processes, day = Processes(tmp_path / "replicator.toml"), Day(600, 1, 2, PERIOD)
    processes.looks, processes.blind, day.leaderless = 1, 2.5, [61.0]
    of_policy = [later(each, job=PAUSED) for each in range(5)]
    judge(day, of_policy, [], processes, {PAUSED: PERIOD}, (BEGAN, BEGAN + 4 * PERIOD))
    assert day.wrong == [
        *(f"never killed: {each}" for each in KINDS),
        "no run failed as it was killed",
        f"{NEVER} did not fail",
        "only 0 writes",
        "1 looks saw 0 processes of runs; none for 2.5 s",
        "nobody scheduled for 61.0 s",
        f"{PAUSED} was not paused and resumed, or for less than its period",
    ]
    day.paused, day.wrong = (BEGAN + 150, BEGAN + 350), []
    judge(day, of_policy, [], processes, {PAUSED: PERIOD}, (BEGAN, BEGAN + 4 * PERIOD))
    assert [each for each in day.wrong if PAUSED in each] == [
        f"{PAUSED}: began {each} s after it was paused" for each in (52.0, 152.0)
    ]
    assert [row[-1] for row in outcome_of(day).rows].count("met") == 3
