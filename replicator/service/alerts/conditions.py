"""What is wrong at the moment. Pure, but for the disks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cmroot.store.place import is_local, local_path
from replicator.core.policy import Policy
from replicator.core.schedules.alert_config import AlertConfig
from replicator.policies.lag import Lag
from replicator.policies.memory import Compared
from replicator.service.alerts.trends import Trend
from replicator.service.jobs import Job
from replicator.service.lag_watch import MeasuredLag
from replicator.service.measuring.families import verified_age
from replicator.service.store import JobState, ServiceRun
from replicator.text.quantity import duration_text, parse_duration, size_text

FAILURES = ("failed", "lost")
SLACK = 60.0  # seconds that a run may take beyond its time
TREND, ENOUGH = 6 * 3600.0, 900.0  # seconds for which a disk's past is heeded, and that it must have
Trends = dict[str, Trend]


@dataclass(frozen=True)
class Condition:
    """kind, subject: which one; at most one of both is told. hold: seconds for which it must last before. eases: gets
    better by itself: an alert that is raised stays, but none is raised."""

    kind: str
    subject: str
    text: str
    hint: str
    hold: float = 0.0
    eases: bool = False

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.subject}"


@dataclass(frozen=True)
class JobFacts:
    """A job. ended: its newest runs, newest first; success: when it was done last, or first planned."""

    job: Job
    state: JobState | None
    ended: Sequence[ServiceRun]
    success: float


def of_jobs(jobs: Sequence[JobFacts], config: AlertConfig, now: float) -> Iterator[Condition]:
    """What is wrong with jobs; a paused one is not."""
    for each in jobs:
        name, last = each.job.name, each.ended[0] if each.ended else None
        failed = [run for run in each.ended[: config.failed_in_a_row] if run.state in FAILURES]
        if last and len(failed) == config.failed_in_a_row:
            text = f"{name} failed {len(failed)} times in a row: {last.message}"
            yield Condition("failing", name, text, last.hint or f"GET /api/v1/runs/{last.id}/log")
        if last and last.state == "differs":
            yield Condition(
                "differs", name, f"{name} found differences: {last.message}", "plan a repair, or look at them"
            )
        if last and last.state == "partial" and last.arguments[:2] == ("purge", "certify"):
            hint = f"GET /api/v1/runs/{last.id}/answer says what is left, and what nobody searched"
            yield Condition("certificate", name, f"{name}: the certificate is not whole: {last.message}", hint)
        if each.state and not each.state.paused:
            late = each.success
            for _ in range(config.missed_periods):
                late, _missed = each.job.schedule.next(late, late)
            if now > late + SLACK:
                ago = duration_text(now - each.success)
                hint = "is a run at work, does the service schedule, are there places (service.at_once)?"
                yield Condition("stale", name, f"{name} had no success for {ago}", hint)


def of_policies(lags: Mapping[str, MeasuredLag], trends: Trends, config: AlertConfig) -> Iterator[Condition]:
    """What is wrong with policies. trends: of their lags; each is told of the newest one."""
    hold = parse_duration(config.late_for).total_seconds()
    for name, found in lags.items():
        if found.lag is None:
            yield Condition("unknown", name, f"the lag of {name} cannot be measured: {found.error}", "", hold)
            continue
        trend = trends.setdefault(f"lag {name}", Trend(hold))
        trend.add(found.at, found.lag.seconds)
        yield from _of_lag(name, found.lag, config, hold, grows=trend.slope > 0)


def of_comparisons(compared: Mapping[str, Compared], config: AlertConfig, now: float) -> Iterator[Condition]:
    """What was not compared for too long; by policy, what was compared last."""
    limit = parse_duration(config.verified_within).total_seconds()
    for name, each in compared.items():
        age = verified_age(each, now)
        if age is not None and age > limit:
            text = f"{name}: a table was compared {duration_text(age)} ago, and has to be within {duration_text(limit)}"
            yield Condition("unverified", name, text, f"replicator verify, or a larger policies.{name}.verify")


def _of_lag(name: str, lag: Lag, config: AlertConfig, hold: float, *, grows: bool) -> Iterator[Condition]:
    for side, why in lag.unreachable.items():
        yield Condition("unreachable", f"{name}/{side}", f"{name}: the {side} does not answer: {why}", "", hold)
    if lag.status == "late":
        text = f"{name} is {duration_text(lag.seconds)} behind, {lag.events:,} events, {size_text(lag.bytes)}"
        yield Condition("late", name, text, lag.last_error or f"replicator lag {name}", hold, eases=not grows)
    if lag.blocks:
        text = f"{name} is blocked: {'; '.join(lag.blocks)}"
        yield Condition("blocked", name, text, f"replicator check {name}", hold)
    left, kept = lag.headroom_seconds, lag.kept_seconds
    if left is not None and kept and left < config.headroom * kept:
        text = f"{name}: in {duration_text(left)} the source forgets events that are needed"
        hint = f"let the source keep events for longer than {duration_text(kept)}, or make the policy run"
        yield Condition("headroom", name, text, hint)
    for each in lag.databases:
        if each.source_role == each.target_role == "primary":
            text = f"{each.db}: both sides of {name} are primary"
            yield Condition("two-primaries", f"{name}/{each.db}", text, "see docs/runbooks; stop writers on one side")


def of_disks(directories: Mapping[str, str], trends: Trends, config: AlertConfig, now: float) -> Iterator[Condition]:
    """What is wrong with local disks. directories: by their names in messages. now: seconds since 1970."""
    within = parse_duration(config.disk_full_within).total_seconds()
    for name, directory in directories.items():
        try:
            found = os.statvfs(directory)
        except OSError:
            continue  # who needs it says so
        free = found.f_bavail * found.f_frsize
        trend = trends.setdefault(f"disk {directory}", Trend(TREND))
        trend.add(now, free)
        hint = "free space: `replicator cm expire` removes what nobody needs"
        if found.f_blocks and found.f_bavail < config.disk * found.f_blocks:
            yield Condition("disk", name, f"{name}: {size_text(free)} are free in {directory}", hint)
        elif (left := full_in(trend)) is not None and left < within:
            text = f"{name}: {directory} is full in {duration_text(left)}, if it goes on so; {size_text(free)} are free"
            yield Condition("disk-full", name, text, hint, ENOUGH)


def full_in(trend: Trend) -> float | None:
    """Seconds until nothing is free; None: it does not get less, or has not been watched for long enough."""
    return trend.until(0.0) if trend.span >= ENOUGH and trend.slope < 0 else None


def directories_of(policies: Mapping[str, Policy]) -> dict[str, str]:
    """The local roots of policies, by their names in messages."""
    found = {}
    for name, policy in policies.items():
        for side, place in (("cmroot", policy.cmroot), ("target_cmroot", policy.target_cmroot)):
            if is_local(place):
                found[f"{name}/{side}"] = local_path(place)
    return found
