"""Lookbacks, dates in names, globs, selection policies, modes: what retention decides, without files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.errors import ConfigError
from replicator.lifecycle.retention.access import parse_mode
from replicator.lifecycle.retention.config_store import Settings
from replicator.lifecycle.retention.dataset_versions import TIME, Found, Pair, Version, glob
from replicator.lifecycle.retention.datasets import parse_names
from replicator.lifecycle.retention.hocon_parser import parse
from replicator.lifecycle.retention.hocon_values import resolve
from replicator.lifecycle.retention.job_configuration import Unreadable, date_pattern, fixed, parse_lookback
from replicator.lifecycle.retention.policies import Policy, retention_policy, selection_policy

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ANGELES = ZoneInfo("America/Los_Angeles")
PACKAGE = "org.apache.gobblin.data.management.policy."


def settings(text: str) -> Settings:
    return Settings(resolve(parse(text, "main.conf")), "the dataset")


def policy(text: str) -> Policy:
    return selection_policy(Pair(settings(text)))


def aged(*days: float) -> list[Version]:
    """Versions that are so many days old, newest first."""
    return [Version(f"/w/{age}", str(age), NOW - timedelta(days=age)) for age in sorted(days)]


def chosen(text: str, versions: Sequence[Version]) -> list[str]:
    found = policy(text).select(versions, TIME, NOW)
    assert all(found.values()), "a reason for each"
    return [versions[number].name for number in sorted(found)]


# ---- lookbacks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("7d", "2026-01-01T00:00", "2026-01-08T00:00"),
        ("7D", "2026-01-01T00:00", "2026-01-08T00:00"),
        ("1M", "2016-01-31T00:00", "2016-02-29T00:00"),
        ("1y2M3d4h", "2015-01-31T05:00", "2016-04-03T09:00"),
        ("1d", "2016-03-12T12:00", "2016-03-13T12:00"),  # 23 hours in Los Angeles
        ("24h", "2016-03-12T12:00", "2016-03-13T13:00"),
        ("P1M", "2026-01-31T00:00", "2026-02-28T00:00"),
        ("PT90M", "2026-01-31T00:00", "2026-01-31T01:30"),
        ("P1W", "2026-01-01T00:00", "2026-01-08T00:00"),
    ],
)
def test_a_lookback_is_added_by_the_calendar_of_the_zone(text: str, start: str, end: str) -> None:
    begin = datetime.fromisoformat(start).replace(tzinfo=ANGELES)
    assert parse_lookback(text).after(begin) == datetime.fromisoformat(end).replace(tzinfo=ANGELES)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0d",
        "-7d",
        "7",
        "7w",
        "7s",
        "12h7d",
        "1.5d",
        "7d ",
        " 7d",
        "5m",
        "P",
        "PT",
        "P0D",
        "٧d",
        "9" * 20 + "d",
        "-P1D",
        "P-1D",
        "P1M-40D",
        "P5m",
        "PT0.5S",
        "P99999999999D",
    ],
)
def test_a_lookback_that_could_select_everything_or_be_misread_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_lookback(text)


def test_older_policies_count_months_from_1970() -> None:
    assert fixed(parse_lookback("P2M")).seconds == 59 * 86400
    assert fixed(parse_lookback("P2Y")).seconds == 730 * 86400


def test_a_lookback_beyond_the_calendar_selects_nothing() -> None:
    assert parse_lookback("9999y").after(NOW) > NOW
    assert chosen(BEFORE.replace("7d", "9000y"), aged(1, 100)) == []


# ---- dates in names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "name", "reported"),
    [
        ("yyyy/MM/dd", "daily/2026/02/01", "2026-02-01T00:00"),
        ("yyyy/MM/dd/HH", "hourly/2026/02/01/13", "2026-02-01T13:00"),
        ("yyyy/MM/dd/hh", "hourly/2026/02/01/11", "2026-02-01T11:00"),
        ("yyyyMMdd", "part-20260201", "2026-02-01T00:00"),
        ("yyyy-MM-dd'T'HH", "2026-02-01T07", "2026-02-01T07:00"),
        ("dd-MMM-yyyy", "x/01-Feb-2026", "2026-02-01T00:00"),
        ("yyyyDDD", "2026032", "2026-02-01T00:00"),
        ("yyMMdd", "260201", "2026-02-01T00:00"),
        ("yyyy-MM-dd-hh-a", "2026-02-01-12-AM", "2026-02-01T00:00"),
        ("yyyyMMddHHmmssSSS", "20260201101112345", "2026-02-01T10:11:12.345"),
        ("yyyy-MM-dd-HH", "2016-11-06-01", "2016-11-06T01:00"),  # twice that night: the earlier one
        ("yyyy/M/d", "x/2026/2/1", "2026-02-01T00:00"),
    ],
)
def test_the_end_of_a_name_is_read_by_the_pattern(pattern: str, name: str, reported: str) -> None:
    dates = date_pattern(pattern, "America/Los_Angeles")
    assert dates.read_end(name) == datetime.fromisoformat(reported).replace(tzinfo=ANGELES)


@pytest.mark.parametrize(
    ("pattern", "name", "why"),
    [
        ("yyyy/MM/dd", "2026/2", "shorter"),
        ("yyyy/MM/dd", "daily/2026/2/1", "does not match"),
        ("yyyy/MM/dd", "daily/12026/02/01", "more digits"),
        ("yyyy/MM/dd", "daily/2026/13/01", "month"),
        ("yyyy/MM/dd", "daily/2026/02/30", "day"),
        ("yyyy/MM/dd", "daily/latest-one", "does not match"),
        ("yyyy/MM/dd/hh", "2026/02/01/13", "no hour 13"),
        ("yyyy/MM/dd/hh", "2026/02/01/00", "no hour 00"),
        ("yyyy/MM/dd/hh", "2026/02/01/12", "noon or midnight"),
        ("yyyy-MM-dd-HH", "2016-03-13-02", "skip this hour"),
    ],
)
def test_a_name_without_a_time_is_told_with_the_reason(pattern: str, name: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        date_pattern(pattern, "America/Los_Angeles").read_end(name)


@pytest.mark.parametrize("pattern", ["", "MM/dd", "yyyy/dd", "yyyy MMMM", "yyyy-QQ", "yyyy'x", "yyyy yyyy", "EEE"])
def test_a_pattern_that_tells_no_day_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        date_pattern(pattern, "UTC")


def test_a_zone_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a time zone"):
        date_pattern("yyyy", "Mars/Olympus")


@given(
    st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(2100, 1, 1)),
    st.sampled_from(["yyyy/MM/dd/HH/mm/ss", "yyyyMMddHHmmss", "yyyy-DDD'T'HH:mm:ss", "dd-MMM-yyyy hh:mm:ss a"]),
)
def test_what_a_pattern_writes_it_reads(moment: datetime, pattern: str) -> None:
    dates, reported = date_pattern(pattern, "UTC"), moment.replace(microsecond=0, tzinfo=UTC)
    assert dates.read_end("x/" + dates.write(reported)) == reported


# ---- selecting ------------------------------------------------------------------------------------------------------


BEFORE = f"selection {{ policy.class = {PACKAGE}SelectBeforeTimeBasedPolicy, timeBased.lookbackTime = 7d }}"


def test_time_based_policies_are_strict_on_both_sides() -> None:
    versions = aged(-1, 0, 6.9, 7, 7.1)
    assert chosen(BEFORE, versions) == ["7.1"]
    assert chosen(BEFORE.replace("Before", "After"), versions) == ["6.9"]
    between = "selection {{ policy.class = SelectBetweenTimeBasedPolicy, {} }}"
    assert chosen(between.format("timeBased.minLookbackTime = 1d, timeBased.maxLookbackTime = 7d"), versions) == ["6.9"]
    assert chosen(between.format("timeBased.minLookbackTime = 0d, timeBased.maxLookbackTime = 7d"), versions) == ["6.9"]
    assert chosen(between.format("timeBased.minLookbackTime = 1d"), versions) == ["6.9", "7", "7.1"]
    assert chosen(between.format("x = 1"), versions) == ["6.9", "7", "7.1"]


def test_a_reason_states_the_bound() -> None:
    (why,) = policy(BEFORE).select(aged(8), TIME, NOW).values()
    assert why == "2026-11-12T12:00:00Z + 7d = 2026-11-19T12:00:00Z is before 2026-11-20T12:00:00Z"


def test_newest_k_keeps_or_takes_and_has_no_default() -> None:
    newest = "selection {{ policy.class = NewestKSelectionPolicy, newestK.{} }}"
    assert chosen(newest.format("versionsNotSelected = 2"), aged(1, 2, 3, 4)) == ["3", "4"]
    assert chosen(newest.format("versionsNotSelected = 9"), aged(1, 2)) == []
    assert chosen(newest.format("versionsSelected = 3"), aged(1, 2)) == ["1", "2"]
    for wrong in (
        "x = 1",
        "versionsSelected = 0",
        "versionsNotSelected = 1000001",
        "versionsSelected = two",
        "versionsSelected = 1, newestK.versionsNotSelected = 1",
    ):
        with pytest.raises(ConfigError):
            policy(newest.format(wrong))


def test_combined_policies_and_the_others() -> None:
    combine = (
        "selection {{ policy.class = CombineSelectionPolicy, combine.operation = {}, newestK.versionsNotSelected = 2\n"
        f"combine.policy.classes = [{PACKAGE}SelectBeforeTimeBasedPolicy, {PACKAGE}NewestKSelectionPolicy]\n"
        "timeBased.lookbackTime = 3d }}"
    )
    assert chosen(combine.format("INTERSECT"), aged(1, 2, 2.5, 4)) == ["4"]
    assert chosen(combine.format("intersect"), aged(4, 5)) == []
    assert chosen(combine.format("union"), aged(1, 4, 5)) == ["4", "5"]
    assert chosen("selection.policy.class = SelectAllPolicy", aged(1, 2)) == ["1", "2"]
    assert chosen("selection.policy.class = SelectNothingPolicy", aged(1, 2)) == []
    assert chosen("", aged(1, 2)) == []
    hidden = [Version("/w/a/x", "x", NOW), Version("/w/_a/y", "y", NOW), Version("/w/a/.z", "z", NOW)]
    assert chosen("selection.policy.class = HiddenFilterSelectionPolicy", hidden) == ["x"]
    one = "combine.policy.classes = [SelectAllPolicy]"
    union = "combine.operation = UNION"
    for wrong in (f"combine.operation = XOR, {one}", union, f"{union}, combine.policy.classes = []", one):
        with pytest.raises(ConfigError):
            policy(f"selection {{ policy.class = CombineSelectionPolicy, {wrong} }}")


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("com.example.SelectBeforeTimeBasedPolicy", "main.conf:1: 'com.example"),
        ("org.apache.gobblin.data.management.policy.SelectBeforTimeBasedPolicy", "is not a known selection policy"),
        ("NewestKRetentionPolicy", "is not a known selection policy"),
    ],
)
def test_an_unknown_class_is_refused_with_file_and_line_and_the_nearest_name(name: str, reported: str) -> None:
    with pytest.raises(ConfigError) as error:
        policy(f"selection.policy.class = {name}")
    assert reported in error.value.message and error.value.hint


def test_the_older_policies_remove_what_they_select() -> None:
    prefix = "gobblin.retention."
    time = f"{prefix}retention.policy.class = TimeBasedRetentionPolicy\n"
    newest = (
        f"{prefix}retention.policy.class = org.apache.gobblin.data.management.retention.policy.NewestKRetentionPolicy\n"
    )

    def names(text: str) -> list[str]:
        versions = aged(1, 2, 3)
        return [versions[number].name for number in retention_policy(settings(text)).select(versions, TIME, NOW)]

    assert names(f"{time}{prefix}timebased.duration = P2D") == ["3"]
    assert names(f"{time}{prefix}minutes.retained = 2000") == ["2", "3"]
    assert names(f"{newest}{prefix}newestK.versions.retained = 1\n{prefix}versions.retained = 2") == ["3"]
    combined = (
        f"{prefix}retention.policy.class = CombineRetentionPolicy\n{prefix}newestK.versions.retained = 1\n"
        f'{prefix}combine.retention.policy.classes = "TimeBased, NewestK"\n{prefix}timebased.duration = P2D\n'
        f"{prefix}combine.retention.policy.delete.sets.combine.operation = "
    )
    assert (names(combined + "INTERSECT"), names(combined + "UNION")) == (["3"], ["2", "3"])
    predicate = (
        f"{prefix}retention.policy.class = PredicateRetentionPolicy\n{prefix}retention.whitelist.pattern = 2\n"
        "org.apache.gobblin.retention.retention.policy.predicate.class = org.example.WhitelistPredicate"
    )
    assert names(predicate) == ["1", "3"]
    for wrong in (
        newest,
        time,
        f"{time}{prefix}minutes.retained = 0",
        f"{prefix}retention.policy.class = RawDatasetRetentionPolicy",
    ):
        with pytest.raises(ConfigError):
            names(wrong)


# ---- names, globs, modes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("white", "black", "yes", "no"),
    [
        ("db.a|b,db2", "", ["db.a", "DB.B", "db2.x"], ["db.c", "db3.a"]),
        ("db.log*", "db.log_keep", ["db.logs", "db.log_x"], ["db.log_keep", "db.blog"]),
        ("", "db.*", ["x.y"], ["db.a"]),
        ("d[ab].t", "", ["da.t"], ["dc.t"]),
    ],
)
def test_white_and_black_lists(white: str, black: str, yes: list[str], no: list[str]) -> None:
    names = parse_names(white, black)
    for expected, those in ((True, yes), (False, no)):
        for each in those:
            db, _, table = each.partition(".")
            assert names.accepts(db, table) == expected
            assert names.may_have(db) or not expected
    for wrong in ("a.b.c", "a.(", ".t"):
        with pytest.raises(ConfigError):
            parse_names(wrong, "")


def test_globs_are_hadoops_and_links_are_told_and_not_followed(tmp_path: Path) -> None:
    for name in ("a/1", "a/2", "b/1", ".c/1", "a+b/1", "a/1/deep"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    found = Found()

    def names(pattern: str) -> list[str]:
        return sorted(str(Path(each.path).relative_to(tmp_path)) for each in glob(f"{tmp_path}/{pattern}", found))

    assert names("*/*") == [".c/1", "a+b/1", "a/1", "a/2", "b/1"]
    assert names("{a,b}/1") == ["a/1", "b/1"] and names("{a/2,b/1}") == ["a/2", "b/1"]
    assert names("[ab]/?") == ["a/1", "a/2", "b/1"] and names("[^.ab]*") == [] and names("a\\+b/*") == ["a+b/1"]
    assert names("a/1") == ["a/1"] and names("none/*") == []
    assert {Path(link).name for link in found.links} == {"link"}
    for wrong in ("[a", "{a"):
        with pytest.raises(ValueError, match="not closed"):
            names(wrong)


def test_modes_are_octal_or_symbolic() -> None:
    assert [parse_mode(text, 0o750) for text in ("700", "0755", "u=rwx,g=rx,o=", "a+r", "go-rwx", "+x")] == [
        0o700,
        0o755,
        0o750,
        0o754,
        0o700,
        0o751,
    ]
    for wrong in ("", "9", "rwx", "u=q", "77777"):
        with pytest.raises(ValueError, match="is not a valid mode"):
            parse_mode(wrong, 0)
