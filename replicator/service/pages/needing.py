"""What needs somebody: alerts, policies, jobs and the service itself, by subject, the worst first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from replicator.service.alerts.alert_store import OpenAlert
from replicator.service.web.views import JobView, PolicyView, ServiceStatus
from replicator.text.quantity import count_text, duration_text, size_text

ILL_STATUS = frozenset({"late", "blocked", "unknown"})
UNSURE = frozenset({"blocked", "unknown", "none"})
ILL_STATE = frozenset({"failed", "lost", "differs", "partial"})

SAID = frozenset({"late", "blocked", "unreachable", "unknown", "failing", "differs", "stale"})
"""Alerts that say of a subject in trouble what its lag and its last run say already."""

CORE = 15
"""Characters of a message that make it that message."""


@dataclass(frozen=True)
class Cause:
    """text: why. since: ISO 8601, or seconds since 1970; None: nobody knows. hint: what to do."""

    text: str
    hint: str = ""
    since: str | float | None = None


@dataclass
class Need:
    """subject: a policy, a job, or "". place: the page about it. word: its state. run: whose log tells more. next: when
    it is tried again. command: that shows more."""

    subject: str
    place: str
    word: str
    causes: list[Cause] = field(default_factory=list)
    run: str = ""
    next: str | None = None
    command: str = ""

    def add(self, cause: Cause) -> None:
        """Unless another says the same in other words; a hint that it lacks is taken over."""
        for number, each in enumerate(self.causes):
            if _core(each.text) in cause.text:
                self.causes[number] = each if each.hint else replace(each, hint=cause.hint)
                return
        self.causes.append(cause)


def _core(text: str) -> str:
    """What failed, without who said so."""
    said = text.partition(": ")[2]
    return said if len(said) >= CORE else text


def needs(
    status: ServiceStatus, policies: Sequence[PolicyView], jobs: Sequence[JobView], alerts: Iterable[OpenAlert]
) -> list[Need]:
    """Of the service first, then of policies, then of jobs and what else alerts are about. An alert's time is that of
    its subject's causes that have none."""
    found: dict[str, Need] = {}
    for text, hint in _of_service(status):
        found.setdefault("", Need("", "/jobs", "service")).add(Cause(text, hint))
    open_ = [each for each in alerts if each.over is None]
    for policy in policies:
        if is_ill(policy):
            need = Need(
                policy.name, f"/policies/{policy.name}", policy.status, command=f"replicator check {policy.name}"
            )
            since = min((each.since for each in open_ if _about(each) == policy.name), default=None)
            for text in policy.trouble or (behind_text(policy),):
                need.add(Cause(text, "", since))
            found[policy.name] = need
    for job in jobs:
        if job.last and job.last.state in ILL_STATE:
            need = found.setdefault(job.name, Need(job.name, f"/jobs/{job.name}", job.last.state))
            message = job.last.message or f"exit code {job.last.exit_code}"
            need.add(Cause(f"the last run: {job.last.state}: {message}", job.last.hint, job.last.ended))
            need.run = job.last.id
        if job.name in found and not job.paused:
            found[job.name].next = job.next
    names = {each.name for each in policies}
    seen = names | {each.name for each in jobs}
    for each in open_:
        subject = _about(each)
        if subject in found:
            if each.kind not in SAID:
                found[subject].add(Cause(each.text, each.hint, each.since))
        elif subject in seen or "/" not in each.subject:
            place = f"/policies/{subject}" if subject in names else f"/jobs/{subject}" if subject in seen else "/jobs"
            found[subject] = Need(subject, place, each.kind, [Cause(each.text, each.hint, each.since)])
    return list(found.values())


def is_ill(policy: PolicyView) -> bool:
    """One that was not measured yet is not."""
    return bool(policy.trouble) or (policy.status in ILL_STATUS and policy.measured is not None)


def behind_text(policy: PolicyView) -> str:
    """How far it is behind, in words."""
    if policy.lag_seconds is None:
        return "how far it is behind is not known yet"
    if not policy.lag_seconds and not policy.lag_events:
        return "nothing waits" if policy.status not in UNSURE else "how far it is behind is not known"
    objective = f" (objective {duration_text(policy.objective_seconds)})" if policy.objective_seconds else ""
    waits = (
        f": {count_text(policy.lag_events, 'event')} and {size_text(policy.lag_bytes or 0)} wait"
        if policy.lag_events
        else ""
    )
    return f"{duration_text(policy.lag_seconds)} behind{objective}{waits}"


def _about(alert: OpenAlert) -> str:
    """The policy or job of an alert, whose subject may name a side or database of it."""
    return alert.subject.partition("/")[0]


def _of_service(status: ServiceStatus) -> Iterable[tuple[str, str]]:
    for each in status.trouble:
        yield each, "the server goes on with what it had before"
    if not status.led:
        yield (
            "no server schedules, so nothing begins by itself",
            "is `replicator serve` at work, and does its store answer?",
        )
    if status.paused:
        yield "all schedules are paused, so nothing begins by itself", "an admin resumes them: POST scheduler:resume"
