"""Conditions that require an alert, and subjects whose condition cannot be evaluated now. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from replicator.core.service_config import AlertConfig
from replicator.core.text import bound_text, count_text, duration_text, parse_duration, size_text
from replicator.policies.lag import Lag
from replicator.policies.memory import Compared
from replicator.service.jobs import Job
from replicator.service.measuring import PERIOD, Disk, MeasuredLag
from replicator.service.metric_families import two_primaries, verified_age
from replicator.service.runs import ServiceRun
from replicator.service.store import JobState

# ---- alert trends ----------------------------------------------------------------------------------------------------
# How metrics change: whether a lag grows, when a disk will be full. Covers the time since this server started.


POINTS = 500
"""Maximum points per metric; beyond it, every second point is dropped."""


@dataclass
class Trend:
    """The recent values of one metric, over at most `seconds`. Times are in seconds."""

    seconds: float
    _points: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, at: float, value: float) -> None:
        """Appends a point. A point that is not newer than the last one is ignored."""
        if self._points and at <= self._points[-1][0]:
            return
        self._points.append((at, value))
        while self._points[0][0] < at - self.seconds:
            self._points.popleft()
        if len(self._points) > POINTS:
            self._points = deque(list(self._points)[::2])

    @property
    def span(self) -> float:
        """Seconds from the oldest point to the newest."""
        return self._points[-1][0] - self._points[0][0] if self._points else 0.0

    @property
    def slope(self) -> float:
        """The change per second, from the oldest point to the newest; 0.0 with fewer than two points."""
        if not self.span:
            return 0.0
        return (self._points[-1][1] - self._points[0][1]) / self.span

    def until(self, value: float) -> float | None:
        """Returns the seconds until the metric reaches `value` at this rate, or None if it never does."""
        left, slope = value - (self._points[-1][1] if self._points else value), self.slope
        return left / slope if slope and left / slope >= 0 else None


# ---- alert conditions ------------------------------------------------------------------------------------------------


FAILURES = ("failed", "lost")
SLACK = 60.0  # seconds that a run may take beyond its due time
TREND, ENOUGH = 6 * 3600.0, 900.0  # seconds of a disk's history that are used, and that are required at least
Trends = dict[str, Trend]
OF_LAG = ("unreachable", "late", "blocked", "headroom", "two-primaries")
"""Kinds of conditions that are derived from a policy's lag."""

LOOK = "plan a repair, or inspect the differences"


@dataclass(frozen=True)
class Condition:
    """A condition that requires an alert; at most one per kind and subject is reported. kind, subject: its key. hold:
    seconds that it must last before an alert is raised. eases: it improves by itself: no alert is raised, but one that
    is already raised remains open."""

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
class Unjudged:
    """A condition of the subject, or of a part of it (`subject/part`), that cannot be evaluated now: no alert is
    raised, and one that is already raised remains open."""

    kind: str
    subject: str

    def covers(self, kind: str, subject: str) -> bool:
        return kind == self.kind and (subject == self.subject or subject.startswith(f"{self.subject}/"))


Judgement = Condition | Unjudged


@dataclass(frozen=True)
class JobFacts:
    """A job with its recent runs. ended: its newest ended runs, newest first. success: when it last succeeded, or was
    first planned. compared: differences of its policy's replicas are known from the policy's own comparisons."""

    job: Job
    state: JobState | None
    ended: Sequence[ServiceRun]
    success: float
    compared: bool = False


def of_jobs(jobs: Sequence[JobFacts], config: AlertConfig, now: float) -> Iterator[Judgement]:
    """Yields the conditions of jobs. A paused job is never overdue."""
    for each in jobs:
        yield from _of_failures(each, config.failed_in_a_row)
        yield from _of_last(each)
        name = each.job.name
        if each.state and not each.state.paused and overdue(each.job, each.success, config.missed_periods, now):
            ago = duration_text(now - each.success)
            hint = "check whether a run is in progress, whether the service schedules, and service.at_once"
            yield Condition("stale", name, f"{name} has not succeeded for {ago}", hint)


def overdue(job: Job, success: float, periods: int, now: float) -> float:
    """Returns the seconds since `periods` periods have elapsed after the last success; 0.0 before."""
    late = success
    for _ in range(periods):
        late, _missed = job.schedule.next(late, late)
    return max(0.0, now - late - SLACK)


def first_wanted(state: JobState | None, queued: float | None, now: float) -> float:
    """Returns since when a job that never succeeded should have. queued: when its oldest run was queued; None: it has
    none."""
    return queued if queued is not None else min(now, state.due) if state and state.due else now


def _of_failures(facts: JobFacts, limit: int) -> Iterator[Judgement]:
    name, runs = facts.job.name, facts.ended[:limit]
    if any(run.state not in FAILURES for run in runs):
        return
    if len(runs) < limit:
        yield Unjudged("failing", name)  # older runs were deleted, or never existed
        return
    text = f"{name} failed {len(runs)} times in a row: {runs[0].message}"
    yield Condition("failing", name, text, runs[0].hint or f"GET /api/v1/runs/{runs[0].id}/log")


def _of_last(facts: JobFacts) -> Iterator[Judgement]:
    """Yields the conditions that the job's last run found; a failed run found nothing."""
    name, last = facts.job.name, facts.ended[0] if facts.ended else None
    if last is None or last.state in FAILURES:
        yield Unjudged("certificate", name)
    elif last.state == "partial" and last.arguments[:2] == ("purge", "certify"):
        hint = f"GET /api/v1/runs/{last.id}/answer lists what is left, and what was not searched"
        yield Condition("certificate", name, f"{name}: the certificate is incomplete: {last.message}", hint)
    if last is not None and last.state == "differs":
        yield Condition("differs", name, f"{name} found differences: {last.message}", LOOK)
    elif not facts.compared and (last is None or last.state != "done"):
        yield Unjudged("differs", name)


def of_policies(
    names: Iterable[str], lags: Mapping[str, MeasuredLag], trends: Trends, config: AlertConfig
) -> Iterator[Judgement]:
    """Yields the conditions of policies. names: of all policies. trends: of their lags; the newest measurement is added
    to each."""
    hold = parse_duration(config.late_for).total_seconds()
    for name in names:
        found = lags.get(name)
        if found is None or found.lag is None:
            yield from _without_lag(name, found, hold)
            continue
        trend = trends.setdefault(f"lag {name}", Trend(max(hold, 3 * PERIOD)))
        bound = found.lag.seconds_bound
        trend.add(found.at, found.lag.seconds if bound is None else bound)
        yield from _of_lag(name, found.lag, config, hold, grows=trend.slope > 0)
        yield from _of_roles(name, found.lag)


def of_comparisons(
    names: Iterable[str], compared: Mapping[str, Compared], config: AlertConfig, now: float
) -> Iterator[Judgement]:
    """Yields tables that differed in their last comparison, and policies whose tables were not compared for too long.
    names: of the policies whose runs compare."""
    limit = parse_duration(config.verified_within).total_seconds()
    for name in names:
        if (each := compared.get(name)) is None:
            yield from (Unjudged(kind, name) for kind in ("differs", "unverified"))
            continue
        if each.open_count:
            more = ", ..." if each.open_count > len(each.open) else ""
            text = f"{name}: {count_text(each.open_count, 'table')} differed in the last comparison"
            yield Condition("differs", name, f"{text}: {', '.join(each.open)}{more}", LOOK)
        age = verified_age(each, now)
        if age is None:
            yield Unjudged("unverified", name)
        elif age > limit:
            text = f"{name}: a table was last compared {duration_text(age)} ago; the limit is {duration_text(limit)}"
            yield Condition("unverified", name, text, f"run `replicator verify`, or increase policies.{name}.verify")


def _without_lag(name: str, found: MeasuredLag | None, hold: float) -> Iterator[Judgement]:
    for kind in OF_LAG:
        yield Unjudged(kind, name)
    if found is not None and found.stale:
        hint = f"replicator check {name}; check that its metastores respond and its roots are mounted"
        yield Condition("unmeasured", name, f"{name}: {found.error}", hint)
        yield Unjudged("unknown", name)
        return
    yield Unjudged("unmeasured", name)
    if found is None:
        yield Unjudged("unknown", name)
    else:
        yield Condition("unknown", name, f"the lag of {name} cannot be measured: {found.error}", "", hold)


def _of_lag(name: str, lag: Lag, config: AlertConfig, hold: float, *, grows: bool) -> Iterator[Judgement]:
    for side, why in lag.unreachable.items():
        yield Condition("unreachable", f"{name}/{side}", f"{name}: the {side} does not answer: {why}", "", hold)
    if lag.status == "late" or lag.is_late:  # a blocked policy is late, too
        text = f"{name} is {_late_text(lag)}, {lag.events:,} events and {size_text(lag.bytes)} wait"
        yield Condition("late", name, text, lag.last_error or f"replicator lag {name}", hold, eases=not grows)
    elif lag.at_least:
        yield Unjudged("late", name)
    if lag.blocks:
        text = f"{name} is blocked: {'; '.join(lag.blocks)}"
        yield Condition("blocked", name, text, f"replicator check {name}", hold)
    elif not lag.blocks_known:
        yield Unjudged("blocked", name)
    left, kept = lag.headroom_seconds, lag.kept_seconds
    if left is None or kept is None:
        yield Unjudged("headroom", name)
    elif kept and left < config.headroom * kept:
        text = f"{name}: in {duration_text(left)} the source deletes events that are still needed"
        hint = f"let the source keep events for longer than {duration_text(kept)}, or run the policy"
        yield Condition("headroom", name, text, hint)


def _late_text(lag: Lag) -> str:
    if lag.seconds_bound is None:
        return f"{duration_text(lag.seconds)} behind or more: no complete scan covers it"
    return f"up to {bound_text(lag.seconds_bound)} behind"


def _of_roles(name: str, lag: Lag) -> Iterator[Judgement]:
    if lag.unreachable:  # then some databases may be unknown
        yield Unjudged("two-primaries", name)
    for each in lag.databases:
        if two_primaries(each):
            text = f"{each.db}: both sides of {name} are primary"
            yield Condition("two-primaries", f"{name}/{each.db}", text, "see docs/runbooks; stop writers on one side")


def of_disks(
    names: Iterable[str], disks: Mapping[str, Disk], trends: Trends, config: AlertConfig
) -> Iterator[Judgement]:
    """Yields the conditions of local disks. names: of all disks, as in messages. disks: those that answer."""
    within = parse_duration(config.disk_full_within).total_seconds()
    for name in names:
        if (disk := disks.get(name)) is None:
            yield from (Unjudged(kind, name) for kind in ("disk", "disk-full"))
            continue
        trend = trends.setdefault(f"disk {disk.directory}", Trend(TREND))
        trend.add(disk.at, disk.free)
        hint = "free space: `replicator cm expire` removes contents that are no longer needed"
        left = full_in(trend)
        if disk.free < config.disk * disk.size:
            yield Condition("disk", name, f"{name}: {size_text(disk.free)} are free in {disk.directory}", hint)
            yield Unjudged("disk-full", name)  # the other condition covers it
        elif trend.span < ENOUGH:
            yield Unjudged("disk-full", name)
        elif left is not None and left < within:
            text = f"{name}: {disk.directory} will be full in {duration_text(left)} at this rate"
            yield Condition("disk-full", name, f"{text}; {size_text(disk.free)} are free", hint, ENOUGH)


def full_in(trend: Trend) -> float | None:
    """Returns the seconds until the disk is full; None if free space does not shrink, or was not watched for long
    enough."""
    return trend.until(0.0) if trend.span >= ENOUGH and trend.slope < 0 else None
