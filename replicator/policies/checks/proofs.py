"""What proves a replica: what its policy's verification found, and how its last drill went."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from replicator.core.policy import Policy
from replicator.core.text.quantity import count_text, duration_text
from replicator.policies.checks.finding import Figure, Finding
from replicator.policies.drills.drill_record import Drill
from replicator.policies.memory import History

NAMED = 10  # tables reported by name
PERIODS = 4  # schedules without a comparison that are a warning
AT_LEAST = timedelta(hours=1)  # comparing one large table takes longer than some schedules


def judge_verified(policy: Policy, history: History, *, now: float) -> list[Finding]:
    """The newest outcome of the policy's verification, as old as it is by now: a table that waited a day when the last
    comparison ended has waited a day and the time since. A warning when comparisons no longer come."""
    if policy.verify is None:
        return []
    run, found = next(((run, run.compared) for run in history.runs if run.compared), (None, None))
    if run is None or found is None:
        return [Finding("verified", "ok", "nothing yet")]
    age = max(0.0, now - datetime.fromisoformat(found.ended or run.ended or run.started).timestamp())
    waits = found.oldest + age if found.oldest is not None else None
    limit = max(AT_LEAST, policy.schedule * PERIODS).total_seconds()
    figures = (
        Figure("different", found.open_count, critical=0),
        Figure("never_verified", found.never),
        Figure("longest_unverified", waits or 0.0, "s"),
        Figure("since_verified", age, "s", limit),
    )
    if found.open_count:
        names = ", ".join(found.open) if found.open_count <= NAMED else f"{count_text(found.open_count, 'table')}"
        text = f"differs from the source, and not because it is behind: {names}"
        hint = "`replicator repair` copies what differs; find out first who wrote there"
        return [Finding("verified", "critical", text, hint, figures)]
    text = f"no difference; {found.never} of {found.tables} never compared"
    text += f", the longest unverified for {duration_text(waits)}" if waits is not None else ""
    if age > limit:
        hint = "see whether `replicator sync --follow` still runs, and `replicator history`"
        text = f"nothing was compared for {duration_text(age)}; before that {text}"
        return [Finding("verified", "warning", text, hint, figures)]
    return [Finding("verified", "ok", text, "", figures)]


def judge_drills(drills: Sequence[Drill], *, now: float) -> list[Finding]:
    """`drills`: newest first. How often there is to be one is for the calendar of who runs the policy."""
    ended = [drill for drill in drills if drill.status != "running"]
    if not ended:
        return []
    last, good = ended[0], next((drill for drill in ended if drill.status == "done"), None)
    reported, figures = "none was good", tuple[Figure, ...]()
    if good is not None:
        age = max(0.0, now - datetime.fromisoformat(good.ended or good.started).timestamp())
        first = good.first_answer_seconds
        reported = f"the last good one {duration_text(age)} ago"
        reported += f", its first answer after {duration_text(first)}" if first is not None else ", nothing was asked"
        figures = (Figure("since_drill", age, "s"), Figure("first_answer", first or 0.0, "s"))
    if last.status != "done":
        hint = f"`replicator drill {last.policy} --list` shows it; run it again"
        text = f"that of {last.started[:16]} {last.status}: {last.error or 'a query was not good'}; {reported}"
        return [Finding("drill", "warning", text, hint, figures)]
    if last.kept and not last.torn_down:
        reported += f"; its shadows are kept: {', '.join(last.databases.values())}"
    return [Finding("drill", "ok", reported, "", figures)]
