"""Retention of datasets in files: the original's own samples, unchanged, and what goes wrong around them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import gobblin_examples as examples
import pytest
from config_store import write_store

from cmroot.lease import acquire
from cmroot.root import create_or_open
from replicator.cli.main import run as command

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Lake:
    """A directory that plays the cluster's root, a `$cmroot`, and the command run on them."""

    def __init__(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.place, self.root, self.cmroot = place, place / "lake", place / "cm"
        self.root.mkdir()
        create_or_open(str(self.cmroot))
        self._capsys = capsys

    def write(self, name: str, *, age: timedelta | None = None, text: str = "data") -> Path:
        """A file below a directory that is so old."""
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        (path / "part-0").write_text(text)
        if age is not None:
            then = time.time() - age.total_seconds()
            os.utime(path, (then, then))
        return path

    def job(self, text: str, name: str = "job.conf") -> str:
        (self.place / name).write_text(text)
        return str(self.place / name)

    def run(self, config: str, *more: str, code: int = 0) -> dict[str, Any]:
        arguments = [
            "retention",
            "run",
            config,
            "--cmroot",
            str(self.cmroot),
            "--no-metastore",
            "--root",
            str(self.root),
        ]
        found = command([*arguments, *more, "--json"])
        answer: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        assert found == code, json.dumps(answer, indent=1)
        return answer

    def dirs(self) -> set[str]:
        """Directories that hold files."""
        return {str(path.parent.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def lake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Lake:
    return Lake(tmp_path, capsys)


def days(number: float) -> timedelta:
    return timedelta(days=number)


def dated(layout: str, *ages: float) -> list[str]:
    """Names of directories that are so many days old, in the zone that the samples are read in."""
    from zoneinfo import ZoneInfo

    here = datetime.now(ZoneInfo("America/Los_Angeles"))
    return [(here - days(age)).strftime(layout) for age in ages]


# ---- the samples of the guide -----------------------------------------------------------------------------------------


def test_sample_1_removes_what_is_older_than_seven_days(lake: Lake) -> None:
    for name, age in {"a/old": 7.1, "a/young": 6.9, "b/older": 30.0, "b/new": 0.0}.items():
        lake.write(f"user/gobblin/{name}", age=days(age))
    done = lake.run(lake.job(examples.TIME_BASED))
    assert (done["status"], done["datasets"], done["versions"], done["removed"]) == ("done", 2, 4, 2)
    assert lake.dirs() == {"user/gobblin/a/young", "user/gobblin/b/new"}
    assert lake.run(lake.job(examples.TIME_BASED))["removed"] == 0


def test_sample_2_keeps_the_newest_two_of_each_dataset(lake: Lake) -> None:
    for number in range(5):
        lake.write(f"user/gobblin/a/v{number}", age=days(number))
    lake.write("user/gobblin/b/only", age=days(100))
    done = lake.run(lake.job(examples.NEWEST_K))
    assert done["removed"] == 3
    assert lake.dirs() == {"user/gobblin/a/v0", "user/gobblin/a/v1", "user/gobblin/b/only"}


def test_sample_3_removes_old_snapshots_but_leaves_two_in_any_case(lake: Lake) -> None:
    for name, ages in {"db/quiet": (4, 5), "db/busy": (1, 2, 3.5, 9), "db/one": (4,)}.items():
        for age in ages:
            lake.write(f"user/gobblin/snapshots/{name}/{age}", age=days(age))
    done = lake.run(lake.job(examples.COMBINED))
    assert done["removed"] == 2
    assert {name.partition("snapshots/")[2] for name in lake.dirs()} == {
        "db/quiet/4", "db/quiet/5", "db/busy/1", "db/busy/2", "db/one/4"
    }  # fmt: skip


def test_sample_4_judges_daily_and_hourly_versions_by_policies_of_their_own(lake: Lake) -> None:
    daily = dated("%Y/%m/%d", 7, 6, 3)
    hourly = [f"{name}/05" for name in dated("%Y/%m/%d", 4, 0)]
    unread = [f"{name}/13" for name in dated("%Y/%m/%d", 4)]
    for kind, names in {"daily": daily, "hourly": hourly + unread}.items():
        for name in names:
            lake.write(f"user/gobblin/data/event/{kind}/{name}")
    done = lake.run(lake.job(examples.SEVERAL_KINDS))
    assert {name.partition("event/")[2] for name in lake.dirs()} == {
        f"daily/{daily[2]}", f"hourly/{hourly[1]}", f"hourly/{unread[0]}"
    }  # fmt: skip
    # `hh` is the 12-hour clock: hour 13 cannot be read, and the report says so.
    assert done["ignored"] == 1 and any("HH" in each for each in done["warnings"])
