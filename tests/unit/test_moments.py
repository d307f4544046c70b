"""Moments: what an event id or a time means in a captured log, and which it cannot tell. Logs are written by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cmroot.log.captured import SegmentWriter, compact, segments
from cmroot.root import create_or_open
from replicator.captures.events.record import (
    AlterTable,
    Change,
    ChangeRecord,
    CreateDatabase,
    CreateTable,
    DropTable,
    EventsLost,
    encode,
)
from replicator.commands.show import show
from replicator.core.model import Database, Table
from replicator.core.text import absolute_moment
from replicator.errors import MomentLost, ObjectNotFound, UsageError
from replicator.replay.restore.recovery_points import moment, retained

Step = tuple[int, int, Change, bool]  # event, time, change, observed


def step(event: int, time: int, change: Change | None = None, observed: bool = False) -> Step:
    return event, time, change or DropTable(db="d", name="gone"), observed


def begin(event: int, time: int) -> list[Step]:
    walked: list[Change] = [CreateDatabase(database=Database(name="d")), CreateTable(table=Table(db="d", name="t"))]
    return [step(event, time, change, True) for change in walked]


class Log:
    """A log; each `capture` is a segment."""

    def __init__(self, place: Path) -> None:
        self.root = create_or_open(str(place)).place
        self._position = 0

    def capture(self, *steps: Step, event: int, time: int) -> int:
        """The position of its end."""
        with SegmentWriter(self.root, self._position + 1) as writer:
            for at, when, change, observed in steps:
                self._position += 1
                record = ChangeRecord(position=self._position, event=at, time=when, change=change, observed=observed)
                writer.append_record(encode(record))
            writer.finish(self._position, event=event, time=time, source="thrift://a:9083")
        return self._position

    def at(self, text: object) -> int:
        return moment(segments(self.root), "d", str(text)).position


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "cm")


def test_an_event_means_the_last_record_that_is_not_after_it(log: Log) -> None:
    first = log.capture(*begin(10, 1000), event=10, time=1000)
    log.capture(step(12, 1010), step(12, 1011, observed=True), step(15, 1012), event=15, time=1013)
    assert [log.at(event) for event in (10, 11, 12, 14, 15)] == [first, first, first + 2, first + 2, first + 3]


def test_a_time_means_the_last_record_that_is_not_after_it(log: Log) -> None:
    first = log.capture(*begin(10, 1000), event=10, time=1000)
    log.capture(step(12, 1010), step(15, 1020), event=15, time=1030)
    times = ("1970-01-01T00:16:40Z", "1970-01-01T00:16:49", "1970-01-01T00:16:50Z", "1970-01-01T02:17:05+02:00")
    assert [log.at(time) for time in times] == [first, first, first + 1, first + 2]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("-1d", "2026-02-28T12:00:00Z"),
        ("yesterday", "2026-02-28T12:00:00Z"),
        ("-90m", "2026-03-01T10:30:00Z"),
        ("4711", "4711"),
        ("2026-03-01T12:00:00+01:00", "2026-03-01T12:00:00+01:00"),
    ],
)
def test_a_moment_may_count_back_from_now(text: str, moment: str) -> None:
    assert absolute_moment(text, datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()) == moment


@pytest.mark.parametrize("text", ["-", "-x", "--1d", "-1y", "-99999999999d", "-9999999d"])
def test_what_counts_back_to_nowhere_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=text):
        absolute_moment(text, datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp())


def test_a_log_shows_what_happened_to_one_table(log: Log) -> None:
    log.capture(*begin(10, 1000), event=10, time=1000)
    log.capture(
        step(11, 1010, CreateTable(table=Table(db="d", name="t"))),
        step(12, 1020, CreateTable(table=Table(db="d", name="other"))),
        step(13, 1030, AlterTable(db="d", name="t", table=Table(db="d", name="u"))),
        step(14, 1040, DropTable(db="d", name="u")),
        event=14,
        time=1050,
    )

    def shown(**options: Any) -> list[int]:
        return [record.event for record in show(log.root, **options).records() if record.event > 10]

    assert shown() == [11, 12, 13, 14]
    assert shown(table="D.t") == [11, 13] and shown(table="d.u") == [11, 13, 14]
    assert shown(table="d.t", since=12) == [13] and shown(since="1970-01-01T00:17:10Z") == [13, 14]
    assert shown(since="yesterday") == [] and shown(until="-1d") == [11, 12, 13, 14]
    assert shown(until=12) == shown(until="1970-01-01T00:17:00Z") == [11, 12]
    for wrong in ({"table": "t"}, {"table": "d."}, {"since": "soon"}):
        with pytest.raises(UsageError):
            show(log.root, **wrong)


def test_a_moment_outside_of_what_is_captured_is_told_with_what_is(log: Log) -> None:
    log.capture(step(5, 900), event=5, time=900)
    log.capture(*begin(10, 1000), step(12, 1001), event=12, time=1002)
    log.capture(step(20, 1100), event=21, time=1101)
    for before in ("4", "5", "11", "1970-01-01T00:10:00Z"):  # at 11 the walk was not at its end
        with pytest.raises(UsageError, match=f"--to {before}: d has been captured since event 12") as caught:
            log.at(before)
        assert "event 12 (1970-01-01T00:16:42Z) to event 21 (1970-01-01T00:18:21Z)" in caught.value.hint
    for after in ("22", "1970-01-01T00:18:22Z"):
        with pytest.raises(UsageError, match=f"--to {after}: nothing is captured after event 21") as caught:
            log.at(after)
        assert "replicator capture" in caught.value.hint
    assert log.at("21") == log.at("1970-01-01T00:18:21Z") == 5
    with pytest.raises(ObjectNotFound, match="never captured"):
        moment(segments(log.root), "other", "20")
    with pytest.raises(UsageError, match="neither an event id, nor a time"):
        log.at("soon")


def test_a_database_that_an_event_made_is_known_from_that_event_on(log: Log) -> None:
    made = CreateDatabase(database=Database(name="d"))
    log.capture(step(10, 1000), step(11, 1001, made), step(12, 1002), event=12, time=1003)
    assert log.at("11") == 2
    with pytest.raises(UsageError, match="since event 11"):
        log.at("10")


def test_no_state_inside_of_a_gap_is_told(log: Log) -> None:
    before = log.capture(*begin(10, 1000), step(12, 1010), event=13, time=1020)
    lost = EventsLost(after=13, next=20, repaired=True)
    log.capture(
        step(19, 1100, lost), step(20, 1030), step(21, 1031), step(21, 1101, observed=True), event=21, time=1102
    )
    again = log.capture(step(30, 1200), event=30, time=1201) - 1
    assert log.at("13") == log.at("12") == log.at("1970-01-01T00:17:00Z") == before
    for inside in ("14", "18", "19", "20", "1970-01-01T00:17:01Z", "1970-01-01T00:18:20Z"):
        with pytest.raises(MomentLost, match="events 14 to 19 were lost") as caught:
            log.at(inside)
        assert caught.value.exit_code == 5
        assert "event 13, the last event before" in caught.value.hint and "event 21, the first" in caught.value.hint
    assert log.at("21") == log.at("1970-01-01T00:19:00Z") == again
    assert len(retained(segments(log.root), "d").gaps) == 1


def test_a_clock_that_was_set_back_brings_no_later_record_in(log: Log) -> None:
    first = log.capture(*begin(10, 1000), event=10, time=5000)
    back = log.capture(step(12, 1500), step(13, 1600), event=13, time=1700)  # an hour earlier, for this clock
    last = log.capture(step(14, 6000), event=14, time=6001)
    assert log.at("1970-01-01T01:23:20Z") == back  # 5000: what counts as 5000 by then
    assert log.at("1970-01-01T00:26:40Z") == first  # 1600: its records are of 1000, those of 1500 came after 5000
    assert log.at("1970-01-01T01:40:00Z") == last
    newest = log.capture(step(15, 2000), event=15, time=2001)
    assert log.at("1970-01-01T01:39:00Z") == back  # 5940, later than the newest clock says
    assert log.at("1970-01-01T01:40:01Z") == newest


def test_merged_segments_tell_the_same_moments(log: Log) -> None:
    log.capture(*begin(10, 1000), event=10, time=1000)
    log.capture(step(12, 1010), event=13, time=1020)
    log.capture(step(19, 1100, EventsLost(after=13, next=20)), step(20, 1030), event=20, time=1102)
    log.capture(step(21, 1200), event=21, time=1201)
    asked = [
        "9",
        *map(str, range(10, 22)),
        *(f"1970-01-01T00:{at // 60:02}:{at % 60:02}Z" for at in range(990, 1210, 7)),
    ]

    def answers() -> list[object]:
        found: list[object] = []
        for text in asked:
            try:
                found.append(log.at(text))
            except (UsageError, MomentLost) as error:
                found.append(str(error))
        return found

    before = answers()
    compact(log.root)
    assert len(segments(log.root)) == 1
    assert answers() == before
