"""Moments: what an event id or a time means in a captured log, and which it cannot tell. Logs are written by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cmroot.log.captured import SegmentWriter, compact, segments
from cmroot.root import create_or_open
from replicator.captures.dumps.selection import resolve_since, resolve_until
from replicator.captures.dumps.shown import Narrowing, open_shown
from replicator.commands.stored_states import show
from replicator.core.model import Column, Database, Partition, Storage, Table
from replicator.core.option import absolute_moment, parse_time
from replicator.errors import MomentLost, ObjectNotFound, UsageError
from replicator.metastore.events.record import (
    AddPartitions,
    AlterTable,
    Change,
    ChangeFiles,
    ChangeRecord,
    CreateDatabase,
    CreateTable,
    DropDatabase,
    DropPartitions,
    DropTable,
    EventsLost,
    encode,
)
from replicator.replay.restore.available import never_read
from replicator.replay.restore.recovery_points import CoveredStates, RowStates, covered, moment, retained

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


# ---- positions, states of rows, and what no capture read -------------------------------------------------------------


def table(name: str, **more: Any) -> Table:
    return Table(db="d", name=name, storage=Storage(location=f"file:/w/d/{name}"), **more)


def made(name: str, **more: Any) -> CreateTable:
    return CreateTable(table=table(name, **more))


def added(name: str, *values: str) -> AddPartitions:
    partitions = tuple(
        Partition(values=(each,), storage=Storage(location=f"file:/w/d/{name}/p={each}")) for each in values
    )
    return AddPartitions(db="d", table=name, keys=("p",), partitions=partitions)


def renamed(old: str, new: str) -> AlterTable:
    return AlterTable(db="d", name=old, table=table(new))


def test_a_position_means_one_state_and_an_event_several(log: Log) -> None:
    first = log.capture(*begin(10, 1000), event=10, time=1000)
    files = ChangeFiles(db="d", table="t")
    log.capture(step(10, 1010, files, True), step(10, 1010, ChangeFiles(db="d", table="u"), True), event=10, time=1010)
    last = log.capture(step(10, 1020, files, True), step(11, 1021), event=11, time=1021)
    there = segments(log.root)
    assert [log.at(f"@{position}") for position in range(first, last + 1)] == list(range(first, last + 1))
    point = moment(there, "d", "10")
    assert covered(there, "d", (), point, "10") == CoveredStates("event", 4, first)
    assert covered(there, "d", ("t",), point, "10") == CoveredStates("event", 3, first)
    time = "1970-01-01T00:16:55Z"  # 1015
    assert covered(there, "d", (), moment(there, "d", time), time) == CoveredStates("time", 2, first + 1)
    assert covered(there, "d", (), moment(there, "d", "@3"), "@3") == CoveredStates("position", 1, 3)
    for wrong, said in (("@1", "captured since event 10"), (f"@{last + 1}", "nothing is captured after")):
        with pytest.raises(UsageError, match=said):
            log.at(wrong)
    assert resolve_until(there, "@4").position == resolve_since(there, "@4", "id").position == 4
    for resolve in (lambda: resolve_until(there, "@99"), lambda: resolve_since(there, "@99", "id")):
        with pytest.raises(UsageError, match=f"ends at position {last}"):
            resolve()
    with pytest.raises(UsageError, match="begins later"):
        resolve_until(there, "@0")


def test_no_position_inside_of_a_gap_is_a_state(log: Log) -> None:
    before = log.capture(*begin(10, 1000), event=13, time=1020)
    lost = EventsLost(after=13, next=20, repaired=True)
    after = log.capture(step(19, 1100, lost), step(20, 1030), step(21, 1101, observed=True), event=21, time=1102)
    assert log.at(f"@{before}") == before and log.at(f"@{after}") == after
    for position in range(before + 1, after):
        with pytest.raises(MomentLost):
            log.at(f"@{position}")
    kept = retained(segments(log.root), "d")
    assert (kept.first(before + 1, after), kept.last(before, after - 1)) == (after, before)
    assert kept.first(before + 1, after - 1) is kept.last(before + 1, after - 1) is None


def states(log: Log, name: str = "t") -> list[tuple[str, str, int] | None]:
    """The state of each row of a table: the kind of its change is dropped from the log's own."""
    there = segments(log.root)
    narrowing = Narrowing(("d", name)).with_former(open_shown(log.root).records())
    rows = RowStates(there, ("d", name)).of(filter(narrowing.concerns, open_shown(log.root).records()))
    return [(state.db, state.table, state.position) if state else None for _, state in rows]


def test_each_row_of_a_table_has_the_state_after_it_and_a_drop_the_one_before(log: Log) -> None:
    walked = log.capture(*begin(10, 1000), step(10, 1000, made("x"), True), event=10, time=1000)
    log.capture(
        step(11, 1010, ChangeFiles(db="d", table="t"), True),
        step(12, 1011, DropTable(db="d", name="t")),
        step(13, 1012, made("s")),
        step(14, 1013, renamed("s", "t")),
        step(15, 1014, DropDatabase(db="d")),
        step(16, 1015, CreateDatabase(database=Database(name="d"))),
        step(17, 1016, made("t", partition_keys=(Column("p", "string"),))),
        step(18, 1017, added("t", "a")),
        step(19, 1018, DropPartitions(db="d", table="t", names=("p=a",))),
        step(20, 1019, renamed("t", "u")),
        step(21, 1020, DropTable(db="d", name="u")),
        event=21,
        time=1030,
    )
    at = walked
    assert states(log) == [
        None,  # the database, without the table
        ("d", "t", at),  # walked: complete at the end of the walk
        ("d", "t", at + 1),
        ("d", "t", at + 1),  # its drop
        ("d", "s", at + 3),
        ("d", "t", at + 4),
        ("d", "t", at + 4),  # the drop of its database
        None,
        ("d", "t", at + 7),
        ("d", "t", at + 8),
        ("d", "t", at + 8),  # the drop of its partition
        ("d", "u", at + 10),
    ]
    window = retained(segments(log.root), "d")
    assert [window.has(position) for position in (1, at, at + 4, at + 5, at + 6)] == [False, True, True, False, True]


def test_a_row_that_later_rows_of_the_first_walk_change_has_no_state(log: Log) -> None:
    parts = made("t", partition_keys=(Column("p", "string"),))
    walk: list[Change] = [CreateDatabase(database=Database(name="d")), parts, added("t", "a"), made("x")]
    end = log.capture(*(step(10, 1000, change, True) for change in walk), event=10, time=1000)
    assert states(log) == [None, None, ("d", "t", end)]


def unread(log: Log, position: int, *tables: str) -> list[str]:
    there = segments(log.root)
    return [each.name for each in never_read(there, "d", tables, moment(there, "d", f"@{position}"))]


def test_what_was_created_and_dropped_between_two_captures_is_named(log: Log) -> None:
    at = log.capture(*begin(10, 1000), event=10, time=1000)
    parted = made("p", partition_keys=(Column("p", "string"),))
    steps = [
        made("short"),
        made("long"),
        made("view", kind="VIRTUAL_VIEW"),
        parted,
        added("p", "a", "b"),
        added("t", "c"),
        renamed("short", "shorter"),  # at + 7
        DropPartitions(db="d", table="p", names=("p=a",)),
        made("short"),
        DropTable(db="d", name="shorter"),
        DropTable(db="d", name="view"),
        DropTable(db="d", name="p"),
        made("again"),
        DropTable(db="d", name="again"),
        made("again"),
    ]
    end = log.capture(*(step(11 + number, 1010, change) for number, change in enumerate(steps)), event=30, time=1030)
    assert unread(log, at) == unread(log, end) == []
    assert unread(log, at + 1) == ["d.short"] and unread(log, at + 2) == ["d.short"]
    assert unread(log, at + 6) == ["d.p/p=a", "d.p/p=b", "d.short"]
    assert unread(log, at + 7) == ["d.p/p=a", "d.p/p=b", "d.shorter"]
    assert unread(log, at + 7, "t") == [] and unread(log, at + 7, "shorter") == ["d.shorter"]
    assert unread(log, at + 8) == unread(log, at + 9) == ["d.p/p=b", "d.shorter"]
    assert unread(log, at + 10) == ["d.p/p=b"]
    assert unread(log, at + 12) == [] and unread(log, at + 13) == ["d.again"] and unread(log, at + 14) == []
    log.capture(step(31, 1040, DropTable(db="d", name="long")), event=31, time=1040)
    assert unread(log, end) == []  # a capture read it


def test_many_partitions_that_no_capture_read_are_counted(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicator.replay.restore.available._BATCH", 7)
    monkeypatch.setattr("replicator.replay.restore.available.NAMED", 3)
    at = log.capture(*begin(10, 1000), event=10, time=1000)
    values = [f"v{number:02}" for number in range(20)]
    steps = [added("t", *values), DropPartitions(db="d", table="t", names=tuple(f"p={each}" for each in values))]
    log.capture(*(step(11, 1010, change) for change in steps), event=12, time=1030)
    there = segments(log.root)
    named = never_read(there, "d", (), moment(there, "d", f"@{at + 1}"))
    assert len(named) == 4 and "17 more" in named[0].reason


@pytest.mark.parametrize("text", ["@7", "4711", "20260301", "soon", "", "-x", "2026-13-01"])
def test_what_must_be_a_time_is_no_position_and_no_event(text: str) -> None:
    with pytest.raises(UsageError, match="--since"):
        parse_time(text, "--since")
