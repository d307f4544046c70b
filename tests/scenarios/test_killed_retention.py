"""Retention by the times of directories that cannot go by one rename, as on another device: a run is killed between two
files of one, and what is left of it keeps the age that it had."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gobblin_examples as examples
import pytest
from command_line import Answer, command
from faults import Fault, run_with
from lab import Lab

from cmroot.root import create_or_open

DAY = 86_400


class FarLake:
    """Four versions of a dataset, of four files each, on another device than `$cmroot`."""

    def __init__(self, place: Path, far: Path, cmroot: Path | None = None) -> None:
        self.place, self.cmroot = far / "user/gobblin/a", cmroot or place / "cm"
        create_or_open(str(self.cmroot))
        self._job, self._far = place / "job.conf", far
        for name, age in {"older": 12, "old": 9, "young": 2, "new": 1}.items():
            (self.place / name).mkdir(parents=True)
            for number in range(4):
                (self.place / name / f"part-{number}").write_text(f"{name} {number}")
            then = time.time() - age * DAY
            os.utime(self.place / name, (then, then))

    def arguments(self, job: str) -> list[str]:
        self._job.write_text(job)
        where = ["--cmroot", str(self.cmroot), "--root", str(self._far), "--no-metastore"]
        return ["retention", "run", str(self._job), *where]

    def killed(self, job: str) -> Path:
        """The version of which a run has removed two files when it dies."""
        assert run_with(Fault("after", "unlink", r"/user/gobblin/a/old/part-", 2), self.arguments(job)).killed
        half = self.place / "old"
        assert len(list(half.iterdir())) == 2
        assert half.stat().st_mtime > (self.place / "new").stat().st_mtime, "it looks young"
        return half

    def run(self, job: str, *more: str) -> Answer:
        return command(*self.arguments(job), *more)

    def left(self) -> dict[str, int]:
        return {each.name: len(list(each.iterdir())) for each in self.place.iterdir()}

    def audit(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = command("audit", "ls", "--cmroot", str(self.cmroot)).output["rows"]
        return found

    def notes(self) -> list[Path]:
        return list((self.cmroot / "retention").glob("removing-*"))


@pytest.fixture
def lake(tmp_path: Path, other_device: Path) -> FarLake:
    return FarLake(tmp_path, other_device)


@pytest.mark.parametrize("job", [examples.TIME_BASED, examples.NEWEST_K], ids=["age", "newest two"])
def test_the_next_run_removes_what_is_left_and_no_other_version(lake: FarLake, job: str) -> None:
    lake.killed(job)
    planned = lake.run(job, "--dry-run")
    assert {Path(item["path"]).name for item in planned.output["items"]} <= {"older", "old"}, planned
    done = lake.run(job)
    assert (done.code, done.output["status"], lake.left()) == (0, "done", {"young": 4, "new": 4}), done
    assert lake.notes() == []
    for run in {row["run"] for row in command("audit", "ls", "--cmroot", str(lake.cmroot)).output["rows"]}:
        command("audit", "undo", "--cmroot", str(lake.cmroot), "--run", run)
    assert lake.left() == dict.fromkeys(("older", "old", "young", "new"), 4)


@pytest.mark.parametrize("writes", ["new", "part-3"], ids=["a new file", "a file that was there"])
def test_what_is_written_into_the_rest_makes_it_young(lake: FarLake, writes: str) -> None:
    half = lake.killed(examples.TIME_BASED)
    (half / writes).write_text("written later")
    os.utime(half)
    done = lake.run(examples.TIME_BASED)
    assert done.code == 0 and lake.left()["old"] == len({*("part-2", "part-3"), writes}), done
    assert lake.notes() == []


def test_a_rest_is_judged_anew(lake: FarLake) -> None:
    """By legal holds, which came after the kill, and by the job's settings of now."""
    half = lake.killed(examples.TIME_BASED)
    hold = ("legal-hold", "add", "case", "--cmroot", str(lake.cmroot), "--on", str(half), "--reason", "a case")
    assert command(*hold).code == 0
    held = lake.run(examples.TIME_BASED)
    assert held.code == 3 and "legal hold case" in held.output["refused"][0]["why"], held
    assert command("legal-hold", "release", "case", "--cmroot", str(lake.cmroot)).code == 0
    assert lake.run(examples.TIME_BASED.replace("=7d", "=10d")).output["selected"] == 0
    assert lake.left() == {"old": 2, "young": 4, "new": 4} and len(lake.notes()) == 1
    assert lake.run(examples.TIME_BASED).code == 0
    assert lake.left() == {"young": 4, "new": 4} and lake.notes() == []


@pytest.mark.parametrize("first", ["capture", "load", "retention", "undo"])
def test_files_that_a_killed_run_moved_are_in_its_record_whatever_comes_first(fixture: Lab, first: str) -> None:
    """Moved by one rename and not recorded when the run dies: the command that comes first on that root records them
    as files of the killed run, which is undone by its own name."""
    fixture.source.table("t", {"f": "1\n"})
    fixture.bootstrap()
    cmroot = fixture.target_cmroot if first == "load" else fixture.cmroot
    lake = FarLake(fixture.here, fixture.here, cmroot)
    run = ["retention", "run", *lake.arguments(examples.TIME_BASED)[2:]]
    assert run_with(Fault("after", "rename", r"/incoming/recycle-"), run).killed
    (killed,) = {row["run"] for row in lake.audit()}
    moved = 16 - sum(lake.left().values())  # directories are moved concurrently: one, or two
    assert moved in (4, 8)
    comes_first(first, fixture, lake)
    undone = command("audit", "undo", "--cmroot", str(cmroot), "--run", killed)
    assert (undone.code, undone.output["files"], undone.output["found_run"]) == (0, moved, ""), undone
    rows = [row for row in lake.audit() if row["run"] == killed and row["what"] == "file"]
    assert len(rows) == moved and {row["job"] for row in rows} == {"retention"}
    intended = {row["reason"] for row in lake.audit() if row["outcome"] == "intended"}
    assert {row["reason"] for row in rows} <= intended


def comes_first(first: str, fixture: Lab, lake: FarLake) -> None:
    if first == "capture":
        assert fixture.capture().code == 0
    elif first == "load":
        fixture.catch_up()
    elif first == "retention":
        assert lake.run(examples.TIME_BASED.replace("=7d", "=700d")).code == 0
