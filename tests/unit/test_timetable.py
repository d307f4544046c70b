"""When jobs of the service are due, and what is wrong with a configuration of them."""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.core.config import parse_config
from replicator.core.service_config import JobConfig, ServiceConfig
from replicator.errors import ConfigError
from replicator.service.jobs import Cron, Every, jobs_of, shift_of

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists())
HOUR = 3600.0
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@given(st.floats(1, 1e6), st.floats(0, 1e9), st.floats(0, 1e6))
def test_an_interval_keeps_its_grid(every: float, due: float, late: float) -> None:
    following, missed = Every(every).next(due, due + late)
    assert following > due + late - 1e-3
    assert following - every <= due + late + 1e-3
    assert following == pytest.approx(due + (missed + 1) * every)


def test_times_that_were_missed_are_counted() -> None:
    assert Every(60).next(1000, 1000 + 5 * 60 + 1) == (1000 + 6 * 60, 5)
    hourly = Cron("0 * * * *")
    assert hourly.next(at("2026-05-01T00:00Z"), at("2026-05-01T04:30Z")) == (at("2026-05-01T05:00Z"), 4)
    assert hourly.next(at("2026-05-01T00:00Z"), at("2026-05-01T00:00Z")) == (at("2026-05-01T01:00Z"), 0)


def test_after_years_away_a_job_is_due_once() -> None:
    following, missed = Cron("* * * * *").next(at("2020-01-01T00:00Z"), at("2026-05-01T00:00:30Z"))
    assert (following, missed) == (at("2026-05-01T00:01Z"), 1000)


@pytest.mark.parametrize(
    ("before", "due"),
    [
        ("2026-03-29T01:59+01:00", "2026-03-29T03:00+02:00"),  # 02:30 is left out: at once
        ("2026-10-25T02:29+02:00", "2026-10-25T02:30+02:00"),  # the first of two
        ("2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"),
        ("2026-10-25T02:10+01:00", "2026-10-26T02:30+01:00"),  # within the second of two hours
    ],
)
def test_a_change_of_clocks(before: str, due: str) -> None:
    assert datetime.fromtimestamp(Cron("30 2 * * *", BERLIN).first(at(before)), UTC) == datetime.fromisoformat(due)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_the_next_time_is_never_past(zone: str) -> None:
    changes = {"Europe/Berlin": ("2026-03-29", "2026-10-25"), "America/New_York": ("2026-03-08", "2026-11-01")}
    for expression in ("30 1 * * *", "30,50 2 * * *", "*/15 * * * *"):
        cron = Cron(expression, ZoneInfo(zone))
        for day in changes.get(zone, ("2026-04-05", "2026-10-04")):
            noon = at(f"{day}T12:00Z")
            for minute in range(-26 * 60, 4 * 60, 5):
                now = noon + 60 * minute
                assert now < cron.first(now) < now + 49 * HOUR
                assert cron.next(now, now)[0] > now


def test_a_jitter_is_a_jobs_own_and_stays() -> None:
    shifts = {name: shift_of(name, 60) for name in ("west", "east", "north")}
    assert len(set(shifts.values())) == 3 and all(0 <= each < 60 for each in shifts.values())
    assert shift_of("west", 60) == shifts["west"]
    shifted = Cron("0 0 * * *", shift=shifts["west"])
    first = shifted.first(at("2026-05-01T12:00Z"))
    assert first == pytest.approx(at("2026-05-02T00:00Z") + shifts["west"])
    assert shifted.next(first, first) == (pytest.approx(first + 86400), 0)


def jobs(**tables: Any) -> Any:
    config = parse_config({"service": {"jobs": {"j": {"command": ["cm", "ls"], **tables}}}}, "test")
    return jobs_of(config.service, config.policies)


@pytest.mark.parametrize(("key", "value"), [("keep", "long"), ("grace", ""), ("at_once", 0)])
def test_a_key_of_the_service_that_is_wrong_is_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"service.{key}"):
        parse_config({"service": {key: value}}, "test")


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({}, "every and cron"),
        ({"every": "1m", "cron": "* * * * *"}, "every and cron"),
        ({"every": "0s"}, "service.jobs.j.every"),
        ({"every": "soon"}, "service.jobs.j.every"),
        ({"cron": "61 * * * *"}, "61"),
        ({"cron": "0 0 30 2 *"}, "30 2"),
        ({"cron": "* * * * *", "zone": "Mars/Olympus"}, "service.jobs.j.zone"),
        ({"cron": "* * * * *", "zone": "../../etc/passwd"}, "service.jobs.j.zone"),
        ({"every": "1m", "timeout": "x"}, "service.jobs.j.timeout"),
        ({"every": "1m", "jitter": "-1s"}, "service.jobs.j.jitter"),
        ({"every": "1m", "command": []}, "service.jobs.j.command"),
        ({"every": "1m", "command": ["serve"]}, "service.jobs.j.command"),
        ({"every": "1m", "command": ["/bin/sh", "-c", "true"]}, "service.jobs.j.command"),
        ({"every": "1m", "command": ["sync", "west", "--follow"]}, "service.jobs.j.command"),
        ({"every": "1m", "command": ["verify", "north"]}, "service.jobs.j.command: policy 'north' is not configured"),
        ({"every": "1m", "command": ["cm", "expire", "--policy=north"]}, "service.jobs.j.command"),
        ({"every": "1m", "command": ["verify", "--no-such-option"]}, "service.jobs.j.command"),
        ({"every": "1m", "command": ["verify", "--db"]}, "service.jobs.j.command"),
        ({"every": "1m", "command": ["sync"]}, "service.jobs.j.command"),
        ({"every": "1m", "command": ["sync", "west", "east"]}, "service.jobs.j.command"),
        ({"every": "1m", "command": ["cm"]}, "service.jobs.j.command"),
        ({"every": "1m", "command": ["cm", "none"]}, "service.jobs.j.command"),
    ],
)
def test_a_job_that_is_none_is_named(tables: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        jobs(**tables)
    assert key in caught.value.message


@pytest.mark.parametrize("name", ["*", "", "..", "a/b", "a?b", "a#b"])
def test_a_job_has_an_address_of_its_own(name: str) -> None:
    service = ServiceConfig(jobs={name: JobConfig(command=("cm", "ls"), every="1d")})
    with pytest.raises(ConfigError, match="is not a valid job name"):
        jobs_of(service, {})


@pytest.mark.parametrize(
    ("line", "policy", "syncs"),
    [
        (("sync", "west"), "west", True),
        (("sync", "--deep", "west"), "west", True),
        (("sync", "--jobs", "3", "--", "west"), "west", True),
        (("verify", "west"), "west", False),
        (("verify", "--db", "d", "west"), "west", False),
        (("repair", "--db=d", "west"), "west", False),
        (("drill", "west"), "west", False),
        (("check", "west"), "west", False),
        (("cm", "expire", "west", "--older-than", "30d"), "west", False),
        (("cm", "slots", "--policy", "west"), "west", False),
        (("verify", "--source", "west"), "", False),
        (("housekeeping", "run"), "", False),
    ],
)
def test_a_job_is_of_the_policy_that_its_command_names(line: tuple[str, ...], policy: str, syncs: bool) -> None:
    ends = {"source": "thrift://a:1", "target": "thrift://b:1", "databases": "d"}
    west = {**ends, "cmroot": "/c", "target_cmroot": "/t", "dumps": "/d"}
    tables = {"policies": {"west": west}, "service": {"jobs": {"j": {"command": list(line), "every": "1d"}}}}
    config = parse_config(tables, "test")
    found = jobs_of(config.service, config.policies)
    assert (found["j"].policy, found["j"].syncs) == (policy, syncs)
    assert ("west" in found) == (not syncs), "its own job"


@pytest.mark.parametrize(
    ("line", "asset"),
    [
        (("ingest", "request", "crm:public.orders", "--asset", "crm"), "crm"),
        (("ingest", "request", "--asset=crm", "crm:public.orders"), "crm"),
        (("ingest", "ls", "--asset", "crm"), ""),
        (("ingest", "run"), ""),
        (("cm", "ls"), ""),
    ],
)
def test_a_job_is_of_the_asset_whose_tables_it_requests(line: tuple[str, ...], asset: str) -> None:
    (job,) = jobs_of(ServiceConfig(jobs={"j": JobConfig(command=line, cron="0 * * * *")}), {}).values()
    assert job.asset == asset


BLOCKS = [
    (page.name, block)
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.S)
    if "[service.jobs." in block
]


def test_the_jobs_of_the_manual_are_valid() -> None:
    pages = set()
    for page, block in BLOCKS:
        jobs = msgspec.convert(tomllib.loads(block)["service"]["jobs"], dict[str, JobConfig])
        policies: Any = {"west": None, "sales": None}
        assert jobs_of(ServiceConfig(jobs=jobs, policies=False), policies).keys() == jobs.keys(), page
        pages.add(page)
    assert pages >= {"dumps.md", "ingestion.md", "service.md"}
