"""Subjects that require attention: alerts, policies, jobs and the service itself, the most severe first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from replicator.core.text import bound_text, count_text, duration_text, size_text
from replicator.ingestion.ingestion_request import Kind
from replicator.ingestion.job_queries import LATE, QueueFigures
from replicator.policies.lag import Lag
from replicator.policies.memory import Compared
from replicator.service.alerts import OpenAlert
from replicator.service.pages.runbook import kinds_of
from replicator.service.runs import TOO_LONG, ServiceRun, answer_of, iso
from replicator.service.web.responses import JobView, PolicyView, RunView, ServiceStatus
from replicator.service.web.serving import Serving

# ---- differing tables ------------------------------------------------------------------------------------------------
# Tables of a policy that differ: from the comparisons of its runs, and of `verify` runs that the service started.


NAMED = 5
"""Maximum tables named in a sentence."""

PARTS = ("--db", "--table", "--sample", "--level", "--include", "--exclude")
"""Options of a `verify` that does not compare everything, or not by contents, so that a result without differences
proves little."""

COMPARED = ("done", "differs")
"""States of a `verify` or `repair` that was completed."""


@dataclass(frozen=True)
class Differences:
    """Tables that differed in their last comparison. names: the first of them, by name; count: all. at: when, ISO 8601.
    run: the service's that found them; empty: a run of the policy did. repaired: when a repair has ended since."""

    count: int
    names: tuple[str, ...]
    at: str
    run: str = ""
    repaired: str | None = None


def differ_text(found: Differences) -> str:
    """Describes differences in words, with the first names."""
    names = ", ".join(found.names[:NAMED])
    more = found.count - min(len(found.names), NAMED)
    which = f": {names}" + (f" and {more} more" if more > 0 else "") if names else ""
    verb = "table differs" if found.count == 1 else "tables differ"
    since = "; a repair has ended since then, without a comparison after it" if found.repaired else ""
    return f"{found.count:,} {verb} from the source{which}{since}"


def differences_of(serving: Serving, policies: Sequence[str]) -> dict[str, Differences]:
    """Returns the differences by policy, of policies that have any. Queries the store once."""
    verifies = {
        each: [f"verify:{each}", *(name for name, job in serving.scheduled.items() if _verifies(job.arguments, each))]
        for each in policies
    }
    names = [name for some in verifies.values() for name in some] + [f"repair:{each}" for each in policies]
    ended = serving.store.newest_ad_hoc_runs(names, COMPARED)
    compared = serving.watch.compared
    found = {}
    for each in policies:
        runs = [ended[name] for name in verifies[each] if name in ended]
        by_runs = [_of_run(serving, run) for run in unresolved_runs(runs, compared.get(each))]
        merged = _merged([*by_runs, *([_of_compared(compared[each])] if each in compared else [])])
        if merged.count:
            found[each] = _repaired(merged, ended.get(f"repair:{each}"))
    return found


def unresolved_runs(verifies: Sequence[ServiceRun], compared: Compared | None) -> list[ServiceRun]:
    """Returns the runs with differences that are not known to be resolved: neither by a complete `verify` since, nor by
    runs that have compared every table since."""
    since = max((run.ended or 0.0 for run in verifies if run.state == "done" and _is_whole(run)), default=0.0)
    if compared and compared.ended and compared.oldest is not None and not compared.never:
        since = max(since, _seconds(compared.ended) - compared.oldest)
    return [run for run in verifies if run.state == "differs" and (run.ended or 0.0) > since]


def _verifies(arguments: Sequence[str], policy: str) -> bool:
    return tuple(arguments[:2]) == ("verify", policy)


def _is_whole(run: ServiceRun) -> bool:
    return not any(each.startswith(PARTS) for each in run.arguments)


def _of_run(serving: Serving, run: ServiceRun) -> Differences:
    """Returns the differences that a `verify` reported; of a run on another server it is only known that there are
    some."""
    names = answer_of(serving.directory(run.id)).get("differing")
    differing = tuple(sorted(map(str, names))) if isinstance(names, list) else ()
    return Differences(max(len(differing), 1), differing, iso(run.ended) or "", run.id)


def _of_compared(compared: Compared) -> Differences:
    names = tuple(dict.fromkeys([*compared.open, *compared.differing]))
    return Differences(max(compared.open_count, len(names)), names, compared.ended)


def _merged(parts: Sequence[Differences]) -> Differences:
    """Merges several, at the newest time."""
    some = [each for each in parts if each.count]
    if not some:
        return Differences(0, (), "")
    newest = max(some, key=lambda each: _seconds(each.at))
    names = tuple(sorted({name for each in some for name in each.names}))
    run = next((each.run for each in some if each.run), "")
    return Differences(max(len(names), *(each.count for each in some)), names, newest.at, run)


def _repaired(found: Differences, repair: ServiceRun | None) -> Differences:
    if repair is None or (repair.ended or 0.0) <= _seconds(found.at):
        return found
    return replace(found, repaired=iso(repair.ended))


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp() if at else 0.0


# ---- attention -------------------------------------------------------------------------------------------------------


ILL_STATUS = frozenset({"late", "blocked", "unknown"})
UNSURE = frozenset({"blocked", "unknown", "none"})
ILL_STATE = frozenset({"failed", "lost", "differs", "partial"})

COVERED_ALERTS = frozenset({"late", "blocked", "unreachable", "unknown", "failing", "differs", "stale"})
"""Alerts that repeat the information of the lag and the last run of a subject in trouble."""

TRIED_AGAIN: tuple[Kind, ...] = ("component", "lock")
"""Kinds of failures of ingestion that no request causes."""

CORE = 15
"""Minimum characters that identify a message."""

MAX_AGE_SECONDS = 600.0
"""Seconds for which a measurement counts as current: many times the interval of measurements."""


@dataclass(frozen=True)
class Context:
    """The state that items are derived from, in addition to policies, jobs and alerts. now: seconds since 1970. ended:
    by job, the newest run that shows the job's state, if the newest one of all is running or was cancelled. lags,
    differences: by policy. queue: of ingestion, for users who may view it; queue_trouble: why it is not known."""

    now: float
    ended: Mapping[str, RunView] = field(default_factory=dict)
    lags: Mapping[str, Lag] = field(default_factory=dict)
    differences: Mapping[str, Differences] = field(default_factory=dict)
    queue: QueueFigures | None = None
    queue_trouble: str = ""


@dataclass(frozen=True)
class Cause:
    """A cause. text: why. since: ISO 8601, or seconds since 1970; None: not known. hint: what to do."""

    text: str
    hint: str = ""
    since: str | float | None = None


@dataclass
class AttentionItem:
    """A subject that requires attention. subject: a policy, a job, "ingestion", or "". place: the page about it. word:
    its state. run: whose log has more. again: the run that tries it again, running or queued; next: when it is tried
    again. command: that shows more. runbooks: kinds of those that describe what to do, shown on the policy's page."""

    subject: str
    place: str
    word: str
    causes: list[Cause] = field(default_factory=list)
    run: str = ""
    again: RunView | None = None
    next: str | None = None
    command: str = ""
    runbooks: list[str] = field(default_factory=list)

    def add(self, cause: Cause) -> None:
        """Adds a cause, unless another one contains the same message: that one takes over the hint if it has none."""
        for number, each in enumerate(self.causes):
            if _core(each.text) in cause.text:
                self.causes[number] = each if each.hint else replace(each, hint=cause.hint)
                return
        self.causes.append(cause)


def _core(text: str) -> str:
    """Returns what failed, without the origin of the message."""
    said = text.partition(": ")[2]
    return said if len(said) >= CORE else text


def attention_items(
    status: ServiceStatus,
    policies: Sequence[PolicyView],
    jobs: Sequence[JobView],
    alerts: Iterable[OpenAlert],
    context: Context,
) -> list[AttentionItem]:
    """Returns the subjects that require attention: the service, then policies, jobs and other subjects of alerts, then
    ingestion. Causes without a time have that of the alert of their subject."""
    found: dict[str, AttentionItem] = {}
    for text, hint in _of_service(status):
        found.setdefault("", AttentionItem("", "/jobs", "service")).add(Cause(text, hint))
    open_ = [each for each in alerts if each.over is None]
    for policy in policies:
        since = min((each.since for each in open_ if _about(each) == policy.name), default=None)
        item = _of_policy(policy, since, context)
        if item.causes:
            found[policy.name] = item
    for job in jobs:
        _add_job(found, job, context.ended.get(job.name, job.last))
    _add_alerts(found, open_, {each.name for each in policies}, {each.name for each in jobs})
    for policy in policies:
        if policy.name in found:
            kinds = {each.kind for each in open_ if _about(each) == policy.name}
            found[policy.name].runbooks = kinds_of(
                context.lags.get(policy.name), kinds, differs=policy.name in context.differences
            )
    return [*found.values(), *_of_ingestion(context)]


def _of_ingestion(context: Context) -> Iterator[AttentionItem]:
    """Yields the item of ingestion. Excludes invalid requests, which wait for their requesters."""
    item, queue = AttentionItem("ingestion", "/ingestion", "failing", command="replicator ingest stats"), context.queue
    if context.queue_trouble:
        item.word = "unknown"
        item.add(
            Cause(f"its state is unknown: {context.queue_trouble}", "check whether the store of [ingestion] responds")
        )
    if queue and (failing := sum(queue.failing.get(kind, 0) for kind in TRIED_AGAIN)):
        hint = "see their pages for the cause: a source, store or metastore that does not respond, or a lock"
        item.add(Cause(f"{count_text(failing, 'job')} failed, and will be retried", hint))
    if queue and (waits := queue.waits_seconds or 0) > LATE:
        item.word = "late"
        hint = "check whether a controller is running (`replicator ingest run`), and has slots"
        item.add(Cause(f"a requested table has waited for a slot for {duration_text(waits)}", hint))
    if item.causes:
        yield item


def _of_policy(policy: PolicyView, since: float | None, context: Context) -> AttentionItem:
    """Returns the item of a policy. Without a cause, it requires no attention."""
    item = AttentionItem(
        policy.name, f"/policies/{policy.name}", policy.status, command=f"replicator check {policy.name}"
    )
    if policy.trouble and policy.status not in ILL_STATUS:
        item.word = "unreachable"  # a side does not answer, so the state is that of the last answer
    if is_unhealthy(policy):
        for text in policy.trouble or (behind_text(policy),):
            item.add(Cause(text, "", since))
    if is_stale(policy, context.now):
        hint = "check whether the metastore of the source or target hangs; see the log of the service"
        item.word = "unknown"
        item.add(Cause("its lag could not be measured since then, and its state is unknown", hint, policy.measured))
    differs = context.differences.get(policy.name)
    if differs:
        if not item.causes:
            item.word = "differs"
        hint = f"`replicator repair {policy.name}` repairs the differences, and lists them first with --dry-run"
        item.add(Cause(differ_text(differs), hint, differs.at))
    return item


def _add_job(found: dict[str, AttentionItem], job: JobView, ended: RunView | None) -> None:
    """Adds the item of a job. ended: the run that shows the job's state."""
    if ended and has_failed(ended):
        item = found.setdefault(job.name, AttentionItem(job.name, f"/jobs/{job.name}", ended.state))
        message = ended.message or f"exit code {ended.exit_code}"
        item.add(Cause(f"the last run: {ended.state}: {message}", ended.hint, ended.ended))
        item.run = ended.id
    if job.name in found:
        again = job.last if job.last and not job.last.ended else None
        found[job.name].again = again
        found[job.name].next = None if again or job.paused else job.next


def _add_alerts(
    found: dict[str, AttentionItem], alerts: Iterable[OpenAlert], policies: set[str], jobs: set[str]
) -> None:
    for each in alerts:
        subject = _about(each)
        if subject in found:
            if each.kind not in COVERED_ALERTS:
                found[subject].add(Cause(each.text, each.hint, each.since))
        elif subject in policies | jobs or "/" not in each.subject:
            known = "/policies" if subject in policies else "/jobs"
            place = f"{known}/{subject}" if subject in policies | jobs else "/jobs"
            found[subject] = AttentionItem(subject, place, each.kind, [Cause(each.text, each.hint, each.since)])


def has_failed(run: RunView) -> bool:
    """Returns True if an ended run requires attention, including one that was cancelled by its timeout."""
    return run.state in ILL_STATE or (run.state == "cancelled" and run.message.startswith(TOO_LONG))


def is_unhealthy(policy: PolicyView) -> bool:
    """Returns True if a policy is in trouble. One that was not measured yet is not."""
    return bool(policy.trouble) or (policy.status in ILL_STATUS and policy.measured is not None)


def is_stale(policy: PolicyView, now: float) -> bool:
    """Returns True if the last measurement is no longer current."""
    return policy.measured is not None and now - datetime.fromisoformat(policy.measured).timestamp() > MAX_AGE_SECONDS


def behind_text(policy: PolicyView) -> str:
    """Describes in words how far a policy is behind."""
    if policy.lag_seconds is None:
        return "its lag is not known yet"
    if policy.lag_seconds_bound is None or policy.covered_until is None:
        return (
            "its lag is not known: no complete scan covers it"
            if policy.status not in UNSURE
            else "its lag is not known"
        )
    if not policy.lag_events:
        as_of = f"as of {policy.covered_until[:19].replace('T', ' ')} UTC, when the last complete scan began"
        return f"{as_of}: at most {bound_text(policy.lag_seconds_bound)} behind"
    objective = f" (objective {duration_text(policy.objective_seconds)})" if policy.objective_seconds else ""
    waits = (
        f": {count_text(policy.lag_events, 'event')} and {size_text(policy.lag_bytes or 0)} wait"
        if policy.lag_events
        else ""
    )
    return f"up to {bound_text(policy.lag_seconds_bound)} behind{objective}{waits}"


def _about(alert: OpenAlert) -> str:
    """Returns the policy or job of an alert, whose subject may name a side or database of it."""
    return alert.subject.partition("/")[0]


def _of_service(status: ServiceStatus) -> Iterable[tuple[str, str]]:
    for each in status.trouble:
        yield each, "the server continues with its previous state"
    if not status.led:
        yield (
            "no server schedules, so no run starts by itself",
            "check whether `replicator serve` is running and its store responds",
        )
    if status.paused:
        yield "all schedules are paused, so no run starts by itself", "an admin can resume them: POST scheduler:resume"
