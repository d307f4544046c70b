"""What is wrong at the moment, and of what nobody can say whether it is. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from replicator.core.service_config import AlertConfig
from replicator.core.text.quantity import count_text, duration_text, parse_duration, size_text
from replicator.policies.lag import Lag
from replicator.policies.memory import Compared
from replicator.service.jobs import Job
from replicator.service.lag_watch import PERIOD, MeasuredLag
from replicator.service.measuring.disks import Disk
from replicator.service.measuring.families import two_primaries, verified_age
from replicator.service.run_history import ServiceRun
from replicator.service.store import JobState

# ---- alert trends ----------------------------------------------------------------------------------------------------
# How figures move: whether a lag grows, when a disk will be full. Of this server, since it began.


POINTS = 500
"""Of one figure; with more, every second one is forgotten."""


@dataclass
class Trend:
    """One figure's past, for at most `seconds`. Times are seconds."""

    seconds: float
    _points: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, at: float, value: float) -> None:
        """A point that is not newer than the last one is none."""
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
        """Per second, from the oldest point to the newest; 0.0 with less than two."""
        if not self.span:
            return 0.0
        return (self._points[-1][1] - self._points[0][1]) / self.span

    def until(self, value: float) -> float | None:
        """Seconds until it is there, at this rate; None: it never is."""
        left, slope = value - (self._points[-1][1] if self._points else value), self.slope
        return left / slope if slope and left / slope >= 0 else None


# ---- alert conditions ------------------------------------------------------------------------------------------------


FAILURES = ("failed", "lost")
SLACK = 60.0  # seconds that a run may take beyond its time
TREND, ENOUGH = 6 * 3600.0, 900.0  # seconds for which a disk's past is heeded, and that it must have
Trends = dict[str, Trend]
OF_LAG = ("unreachable", "late", "blocked", "headroom", "two-primaries")
"""Kinds that a policy's lag tells of."""

LOOK = "plan a repair, or look at them"


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
class Unjudged:
    """Nobody can say now whether there is such a condition of the subject, or of a part of it (`subject/part`): none is
    raised, and an alert that is raised stays."""

    kind: str
    subject: str

    def covers(self, kind: str, subject: str) -> bool:
        return kind == self.kind and (subject == self.subject or subject.startswith(f"{self.subject}/"))


Judgement = Condition | Unjudged


@dataclass(frozen=True)
class JobFacts:
    """A job. ended: its newest runs, newest first; success: when it was done last, or first planned. compared: what its
    policy's replicas differ in is known from their comparisons."""

    job: Job
    state: JobState | None
    ended: Sequence[ServiceRun]
    success: float
    compared: bool = False


def of_jobs(jobs: Sequence[JobFacts], config: AlertConfig, now: float) -> Iterator[Judgement]:
    """What is wrong with jobs; a paused one has no time at which it had to succeed."""
    for each in jobs:
        yield from _of_failures(each, config.failed_in_a_row)
        yield from _of_last(each)
        name = each.job.name
        if each.state and not each.state.paused and overdue(each.job, each.success, config.missed_periods, now):
            ago = duration_text(now - each.success)
            hint = "is a run at work, does the service schedule, are there places (service.at_once)?"
            yield Condition("stale", name, f"{name} had no success for {ago}", hint)


def overdue(job: Job, success: float, periods: int, now: float) -> float:
    """Seconds since so many periods after its last success have passed; 0.0 before."""
    late = success
    for _ in range(periods):
        late, _missed = job.schedule.next(late, late)
    return max(0.0, now - late - SLACK)


def first_wanted(state: JobState | None, queued: float | None, now: float) -> float:
    """Since when a job that was never done should have been. queued: its oldest run, if there is one."""
    return queued if queued is not None else min(now, state.due) if state and state.due else now


def _of_failures(facts: JobFacts, limit: int) -> Iterator[Judgement]:
    name, runs = facts.job.name, facts.ended[:limit]
    if any(run.state not in FAILURES for run in runs):
        return
    if len(runs) < limit:
        yield Unjudged("failing", name)  # the others are forgotten, or never were
        return
    text = f"{name} failed {len(runs)} times in a row: {runs[0].message}"
    yield Condition("failing", name, text, runs[0].hint or f"GET /api/v1/runs/{runs[0].id}/log")


def _of_last(facts: JobFacts) -> Iterator[Judgement]:
    """What its last run found; one that failed found nothing."""
    name, last = facts.job.name, facts.ended[0] if facts.ended else None
    if last is None or last.state in FAILURES:
        yield Unjudged("certificate", name)
    elif last.state == "partial" and last.arguments[:2] == ("purge", "certify"):
        hint = f"GET /api/v1/runs/{last.id}/answer says what is left, and what nobody searched"
        yield Condition("certificate", name, f"{name}: the certificate is not whole: {last.message}", hint)
    if last is not None and last.state == "differs":
        yield Condition("differs", name, f"{name} found differences: {last.message}", LOOK)
    elif not facts.compared and (last is None or last.state != "done"):
        yield Unjudged("differs", name)


def of_policies(
    names: Iterable[str], lags: Mapping[str, MeasuredLag], trends: Trends, config: AlertConfig
) -> Iterator[Judgement]:
    """What is wrong with policies; names: all of them. trends: of their lags; each is told of the newest one."""
    hold = parse_duration(config.late_for).total_seconds()
    for name in names:
        found = lags.get(name)
        if found is None or found.lag is None:
            yield from _without_lag(name, found, hold)
            continue
        trend = trends.setdefault(f"lag {name}", Trend(max(hold, 3 * PERIOD)))
        trend.add(found.at, found.lag.seconds)
        yield from _of_lag(name, found.lag, config, hold, grows=trend.slope > 0)
        yield from _of_roles(name, found.lag)


def of_comparisons(
    names: Iterable[str], compared: Mapping[str, Compared], config: AlertConfig, now: float
) -> Iterator[Judgement]:
    """What differed when it was compared last, and what was not compared for too long; names: of the policies whose
    runs compare."""
    limit = parse_duration(config.verified_within).total_seconds()
    for name in names:
        if (each := compared.get(name)) is None:
            yield from (Unjudged(kind, name) for kind in ("differs", "unverified"))
            continue
        if each.open_count:
            more = ", ..." if each.open_count > len(each.open) else ""
            text = f"{name}: {count_text(each.open_count, 'table')} differed when compared last"
            yield Condition("differs", name, f"{text}: {', '.join(each.open)}{more}", LOOK)
        age = verified_age(each, now)
        if age is None:
            yield Unjudged("unverified", name)
        elif age > limit:
            text = f"{name}: a table was compared {duration_text(age)} ago, and has to be within {duration_text(limit)}"
            yield Condition("unverified", name, text, f"replicator verify, or a larger policies.{name}.verify")


def _without_lag(name: str, found: MeasuredLag | None, hold: float) -> Iterator[Judgement]:
    for kind in OF_LAG:
        yield Unjudged(kind, name)
    if found is not None and found.stale:
        hint = f"replicator check {name}; do its metastores answer, are its roots mounted?"
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
    objective = lag.max_lag_seconds
    if lag.status == "late" or (objective is not None and lag.seconds > objective):  # a blocked policy is late, too
        text = f"{name} is {duration_text(lag.seconds)} behind, {lag.events:,} events, {size_text(lag.bytes)}"
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
        text = f"{name}: in {duration_text(left)} the source forgets events that are needed"
        hint = f"let the source keep events for longer than {duration_text(kept)}, or make the policy run"
        yield Condition("headroom", name, text, hint)


def _of_roles(name: str, lag: Lag) -> Iterator[Judgement]:
    if lag.unreachable:  # then not all databases may be known
        yield Unjudged("two-primaries", name)
    for each in lag.databases:
        if two_primaries(each):
            text = f"{each.db}: both sides of {name} are primary"
            yield Condition("two-primaries", f"{name}/{each.db}", text, "see docs/runbooks; stop writers on one side")


def of_disks(
    names: Iterable[str], disks: Mapping[str, Disk], trends: Trends, config: AlertConfig
) -> Iterator[Judgement]:
    """What is wrong with local disks; names: in messages, of all of them. disks: those that answer."""
    within = parse_duration(config.disk_full_within).total_seconds()
    for name in names:
        if (disk := disks.get(name)) is None:
            yield from (Unjudged(kind, name) for kind in ("disk", "disk-full"))
            continue
        trend = trends.setdefault(f"disk {disk.directory}", Trend(TREND))
        trend.add(disk.at, disk.free)
        hint = "free space: `replicator cm expire` removes what nobody needs"
        left = full_in(trend)
        if disk.free < config.disk * disk.size:
            yield Condition("disk", name, f"{name}: {size_text(disk.free)} are free in {disk.directory}", hint)
            yield Unjudged("disk-full", name)  # the other one says it already
        elif trend.span < ENOUGH:
            yield Unjudged("disk-full", name)
        elif left is not None and left < within:
            text = f"{name}: {disk.directory} is full in {duration_text(left)}, at this rate"
            yield Condition("disk-full", name, f"{text}; {size_text(disk.free)} are free", hint, ENOUGH)


def full_in(trend: Trend) -> float | None:
    """Seconds until nothing is free; None: it does not get less, or has not been watched for long enough."""
    return trend.until(0.0) if trend.span >= ENOUGH and trend.slope < 0 else None
