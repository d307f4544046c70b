"""When the service raises which alert."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from replicator.core.service_config import AlertConfig
from replicator.policies.lag import Lag
from replicator.policies.memory import Compared
from replicator.service.alert_conditions import (
    ENOUGH,
    POINTS,
    SLACK,
    Condition,
    JobFacts,
    Judgement,
    Trend,
    Trends,
    first_wanted,
    full_in,
    of_comparisons,
    of_disks,
    of_jobs,
    of_policies,
    overdue,
)
from replicator.service.jobs import Cron, Every, Job
from replicator.service.measuring import MeasuredLag, disk_of
from replicator.service.runs import Ended
from replicator.service.store import JobState, ServiceStore

CONFIG = AlertConfig()
DAY = 86_400.0


def late(trends: Trends, at: float, seconds: float) -> Condition:
    found = {"west": MeasuredLag(at, Lag("west", status="late", seconds=seconds))}
    (only,) = conditions(of_policies(["west"], found, trends, CONFIG))
    return only


def conditions(judged: Iterable[Judgement]) -> list[Condition]:
    return [each for each in judged if isinstance(each, Condition)]


def test_a_lag_that_grows_is_raised_and_one_that_shrinks_is_not() -> None:
    trends: Trends = {}
    assert [late(trends, 30.0 * n, 900.0 + 30 * n).eases for n in range(20)] == [True] + [False] * 19
    assert [late(trends, 600.0 + 30 * n, 1470.0 - 60 * n).eases for n in range(20)][-5:] == [True] * 5


def test_a_disk_will_be_full(tmp_path: Path) -> None:
    trend = Trend(6 * 3600.0)
    for minute in range(60):
        trend.add(60.0 * minute, 1000.0 - 10 * minute)
        assert (full_in(trend) is None) == (60 * minute < ENOUGH), minute
    assert abs((full_in(trend) or 0) - 41 * 60) < 1e-6
    for minute in range(60, 400):
        trend.add(60.0 * minute, 1000.0)
    assert full_in(trend) is None, "somebody made room"
    for second in range(10_000):
        trend.add(30_000.0 + second, 1.0)
    assert len(trend._points) <= POINTS
    found = disk_of(str(tmp_path))
    assert found and disk_of("/none") is None
    assert conditions(of_disks(["logs", "gone"], {"logs": found}, {}, AlertConfig(disk=0.0))) == []
    (only,) = conditions(of_disks(["logs"], {"logs": found}, {}, AlertConfig(disk=1.0)))
    assert only.kind == "disk" and str(tmp_path) in only.text


def test_a_verification_that_is_too_old_is_told() -> None:
    week, ended = 7 * 86400.0, 1767225600.0
    compared = {"west": Compared(ended="2026-01-01T00:00:00+00:00", oldest=3600.0), "never": Compared()}
    assert conditions(of_comparisons(compared, compared, CONFIG, ended + week - 3601)) == []
    (only,) = conditions(of_comparisons(compared, compared, CONFIG, ended + week - 3599))
    assert (only.kind, only.subject) == ("unverified", "west") and only.hint


def test_a_certificate_with_gaps_is_told(tmp_path: Path) -> None:
    job = Job("certify", ("purge", "certify", "--run", "x"), Every(60))
    with ServiceStore(f"sqlite:///{tmp_path}/s.sqlite") as store:
        store.prepare()
        epoch = store.lead("a", 60) or 0
        for state, kinds in (("partial", ["certificate"]), ("done", [])):
            run, _ = store.enqueue(job, store.now(), by="me")
            assert store.begin(run, "a", epoch)
            store.end(run, Ended(state))  # type: ignore[arg-type]
            facts = JobFacts(job, None, store.runs(), store.now())
            assert [each.kind for each in conditions(of_jobs([facts], CONFIG, store.now()))] == kinds


def test_a_job_is_overdue_by_its_own_schedule() -> None:
    weekly = Job("weekly", ("drill", "west"), Cron("0 3 * * 0"))
    sunday = datetime(2026, 1, 4, 3, tzinfo=UTC).timestamp()
    assert overdue(weekly, sunday + 600, 2, sunday + 13 * DAY) == 0.0
    assert overdue(weekly, sunday + 600, 2, sunday + 15 * DAY) == DAY - SLACK
    never = first_wanted(JobState("weekly", "", sunday), None, sunday + 30 * DAY)
    assert overdue(weekly, never, 2, sunday + 30 * DAY) == 16 * DAY - SLACK
    assert first_wanted(JobState("weekly", "", sunday), sunday - DAY, sunday) == sunday - DAY
    assert first_wanted(None, None, sunday) == sunday == first_wanted(JobState("weekly", "", sunday + 5), None, sunday)
