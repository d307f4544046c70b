"""The upper bound of the lag: writes without an event count from the start of the last complete scan."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import command
from lab import Lab

from cmroot.log.captured import compact, segments
from cmroot.root import open_existing
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.recording import NEWEST, covered_at
from replicator.cli.main import run
from replicator.metastore.embedded.running import Running
from replicator.metastore.events.scope import waiting_events
from replicator.policies.lag import Lag, lag

TEXT = "1\x01one\n"
DAY = 86_400.0


@dataclass
class Clock:
    """Seconds since 1970, moved by the test."""

    now: float

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock(float(int(time.time())))


@pytest.fixture
def made(source_metastore: Running, target_metastore: Running, tmp_path: Path, clock: Clock) -> Lab:
    """A replicated table, `max_lag` one hour, whose last complete scan began at the time of the clock."""
    made = Lab(source_metastore, target_metastore, tmp_path, max_lag="1h")
    made.db().table("t", {"one": TEXT})
    made.sync(clock=clock)
    return made


def lag_of(made: Lab, clock: Clock) -> Lag:
    return lag(made.policy, made.source.metastore, made.target.metastore, clock=clock)


def only_capture(made: Lab, clock: Clock, **options: Any) -> None:
    """A capture without a load."""
    sides = made.sides(clock=clock)
    capture(sides.source, open_existing(str(made.cmroot)), CaptureSettings(**options), sides.runtime)


def test_a_write_without_an_event_counts_from_the_last_scan(made: Lab, clock: Clock) -> None:
    scanned = clock.now
    made.db().write("t", {"two": TEXT})
    clock.now += DAY
    found = lag_of(made, clock)
    assert (found.events, found.seconds) == (0, 0.0)  # all that is known
    assert found.seconds_bound == DAY and found.covered_until == scanned
    assert found.status == "late" and [each.seconds_bound for each in found.databases] == [DAY]
    made.sync(clock=clock)
    assert made.replica().shown() == made.db().shown()
    found = lag_of(made, clock)
    assert (found.status, found.seconds_bound, found.covered_until) == ("current", 0.0, clock.now)


def test_waiting_events_beyond_those_examined_are_counted(
    made: Lab, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.db().table("u", {"one": TEXT})
    made.db().table("v", {"one": TEXT})
    found = lag_of(made, clock)
    assert (len(found.tables), found.unexamined) == (2, 0)
    monkeypatch.setattr("replicator.policies.lag.waiting_events", partial(waiting_events, limit=1))
    found = lag_of(made, clock)
    assert len(found.tables) < 2 and found.unexamined == found.source_event - (found.captured_event or 0) - 1


def test_a_scan_that_finds_nothing_moves_the_bound_and_writes_no_segment(made: Lab, clock: Clock) -> None:
    before = segments(str(made.cmroot))
    clock.now += 100.0
    run = made.sync(clock=clock)
    assert run.status == "nothing" and run.lag_seconds_bound == 0.0
    assert segments(str(made.cmroot)) == before
    clock.now += 7.0
    assert lag_of(made, clock).seconds_bound == 7.0


def test_what_was_captured_and_not_loaded_does_not_move_the_bound(made: Lab, clock: Clock) -> None:
    clock.now += 50.0
    only_capture(made, clock)  # finds nothing: the target has all of it
    quiet = clock.now
    made.db().write("t", {"two": TEXT})
    for _ in range(2):  # the second one finds nothing, but the first one's finding waits still
        clock.now += 50.0
        only_capture(made, clock)
    found = lag_of(made, clock)
    assert found.events == 1 and found.status == "behind"
    assert (found.covered_until, found.seconds_bound) == (quiet, 100.0)
    (made.cmroot / NEWEST).unlink()  # an older moment is still true
    assert lag_of(made, clock).covered_until == quiet
    clock.now += 50.0
    made.sync(clock=clock)
    assert lag_of(made, clock).covered_until == clock.now


def test_captures_without_a_scan_do_not_move_the_bound(made: Lab, clock: Clock) -> None:
    scanned = clock.now
    for number, options in enumerate(({"scan": False}, {"compare": False}, {"scan": False})):
        clock.now += 1800.0
        made.db().table(f"n{number}", {"one": TEXT})
        made.sync(clock=clock, **options)
        found = lag_of(made, clock)
        assert found.covered_until == scanned and found.seconds_bound == clock.now - scanned
    assert found.status == "late" and found.seconds == 0.0
    made.are_same()


def test_a_database_that_no_scan_covered_has_no_bound(made: Lab, clock: Clock) -> None:
    only_capture(made, clock)
    for segment in segments(str(made.cmroot)):  # as an earlier release wrote them
        marker = Path(segment.place) / "_segment.json"
        marker.write_text(marker.read_text().replace('"covered', '"unknown'))
    (made.cmroot / NEWEST).unlink()
    found = lag_of(made, clock)
    assert (found.seconds_bound, found.covered_until, found.status) == (None, None, "late")
    assert [each for each in found.warnings if "no complete scan covers" in each]
    answer = command("--config", str(made.config()), "check", made.name)
    lags = [each for each in answer.output["findings"] if each["name"] == "lag"]
    assert answer.code == 3 and "no complete scan covers" in lags[0]["text"]
    made.sync(clock=clock)
    assert lag_of(made, clock).status == "current"


def test_a_scan_of_limited_time_covers_a_database_when_its_last_table_was_scanned(
    made: Lab, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.db().table("u", {"one": TEXT})
    made.db("b").table("t", {"one": TEXT})
    made.sync(clock=clock)
    monkeypatch.setattr("replicator.captures.walk.TABLE_BATCH", 1)
    began, covered = clock.now, []
    for _ in range(4):  # the two tables of the first database, that of the second one, the first table again
        clock.now += 10.0
        only_capture(made, clock, scan_time=timedelta(0))
        covered.append([(each.covered_until or 0) - began for each in lag_of(made, clock).databases])
    assert covered == [[0, 0], [10, 0], [10, 10], [10, 10]]


def test_merged_segments_have_the_same_coverage(made: Lab, clock: Clock) -> None:
    positions = []
    for number in range(3):
        clock.now += 10.0
        made.db().write("t", {f"m{number}": TEXT})
        made.sync(clock=clock)
        positions.append(segments(str(made.cmroot))[-1].last)
    root = str(made.cmroot)
    before = [covered_at(root, segments(root), each) for each in positions]
    assert compact(root).merged > 1
    assert [covered_at(root, segments(root), each) for each in positions] == before
    assert len({tuple(each.values()) for each in before}) == 3


def test_commands_and_wait_use_the_bound(made: Lab, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    config = ("--config", str(made.config()))
    waited = command(*config, "wait", made.name, "--until-lag", "1h", "--timeout", "0s")
    assert waited.code == 0 and 0 <= waited.output["lag_seconds_bound"] < 3600
    clock.now -= DAY
    marker = made.cmroot / NEWEST
    marker.unlink()
    for segment in segments(str(made.cmroot)):
        path = Path(segment.place) / "_segment.json"
        path.write_text(path.read_text().replace('"covered', '"unknown'))
    made.sync(clock=clock)  # the last complete scan began a day ago
    waited = command(*config, "wait", made.name, "--until-lag", "1h", "--timeout", "0s")
    assert waited.code == 75 and waited.output["lag_seconds"] == 0.0
    assert waited.output["lag_seconds_bound"] >= DAY
    assert run([*config, "lag", made.name]) == 0
    text = capsys.readouterr().out
    assert text.startswith("late") and "behind: every change until" in text
    answer = command(*config, "check", made.name)
    assert [each["health"] for each in answer.output["findings"] if each["name"] == "lag"] == ["critical"]
