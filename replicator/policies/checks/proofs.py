"""Proofs of a replica: the results of its policy's verification, and of its last drill."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from replicator.captures.events.scope import Patterns
from replicator.captures.unlistable import REFUSED
from replicator.core.grouping import batched
from replicator.core.not_replicated import (
    AS_THEY_ARE,
    PROPERTY,
    NotReplicated,
    from_property,
    merged,
    why_not_replicated,
)
from replicator.core.policy import Policy
from replicator.core.text import count_text, duration_text
from replicator.metastore.client import MetastoreReader
from replicator.policies.checks.finding import Figure, Finding
from replicator.policies.direction import Pair
from replicator.policies.drills.drill_record import Drill
from replicator.policies.memory import History

NAMED = 10  # tables reported by name
PERIODS = 4  # schedules without a comparison before a warning
AT_LEAST = timedelta(hours=1)  # comparing one large table takes longer than some schedules


def judge_verified(policy: Policy, history: History, *, now: float) -> list[Finding]:
    """Evaluates the newest verification, with ages as of now: the wait of a table at the end of the last comparison
    plus the time since. Warns if comparisons have stopped."""
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
    """Evaluates the drills. `drills`: newest first. Their required frequency is up to the operator."""
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


# ---- lacking ---------------------------------------------------------------------------------------------------------
# Objects that the last load of a replica reported as not replicated.


def said_lacking(pairs: Iterable[Pair]) -> list[NotReplicated]:
    """Reads them from the properties of a policy's replicas, which are available already."""
    return merged(
        *(
            from_property(each.target.parameters.get(PROPERTY), each.name)
            for each in pairs
            if each.target and each.matches
        )
    )


def judge_lacking(said: Sequence[NotReplicated]) -> Finding:
    """Evaluates missing objects. `said`: without tables in unsupported formats, which have a finding of their own."""
    figures = (Figure("lacking", len(said)),)
    if not said:
        return Finding("not replicated", "ok", "all replicas are complete", figures=figures)
    shown = "; ".join(map(str, said[:NAMED])) + (f" and {len(said) - NAMED} more" if len(said) > NAMED else "")
    hint = "bring back what is away (or capture with --empty what is meant to be), mend names, then run again"
    return Finding("not replicated", "warning", f"as of the last load: {shown}", hint, figures)


# ---- unsupported -----------------------------------------------------------------------------------------------------
# Tables in formats that runs leave out, and replicas of such tables made by an earlier release.


LOOKED_AT = 20_000  # tables of a policy: some 10 s, while the user waits
BATCH = 500


def find_left_out(policy: Policy, pairs: Iterable[Pair], source: MetastoreReader) -> tuple[list[NotReplicated], int]:
    """Returns tables of the source that runs leave out, according to its metastore, and how many were not checked.
    Clones of Delta tables are indistinguishable there: captures and runs detect them."""
    if policy.formats == AS_THEY_ARE:
        return [], 0
    patterns, found, looked, names_left = Patterns.parse(policy.include, policy.exclude), [], 0, 0
    for pair in pairs:
        if pair.source is None or not pair.matches:
            continue
        names = [name for name in source.table_names(pair.name) if patterns.match(name)]
        here = names[: LOOKED_AT - looked]
        looked, names_left = looked + len(here), names_left + len(names) - len(here)
        for some in batched(here, BATCH):
            refused: dict[str, str] = {}
            for table in source.tables(pair.name, some, refused):
                if reason := why_not_replicated(table):
                    found.append(NotReplicated(f"{table.db}.{table.name}", reason))
            found += [NotReplicated(f"{pair.name}.{name}", f"{REFUSED}: {said}") for name, said in refused.items()]
    return found, names_left


def judge_formats(
    left_out: Sequence[NotReplicated], unseen: int, pairs: Iterable[Pair], target: MetastoreReader
) -> list[Finding]:
    """Evaluates tables in unsupported formats. `unseen`: tables that were not checked."""
    more = f"; {unseen} tables were not looked at" if unseen else ""
    figures = (Figure("not_replicated", len(left_out)),)
    if not left_out:
        return [Finding("formats", "ok", f"every table can be replicated{more}", figures=figures)]
    hint = "exclude them, so that runs are complete without them, and copy them by their own tools"
    findings = [Finding("formats", "warning", f"not replicated: {_listed(map(str, left_out))}{more}", hint, figures)]
    made = []
    for pair in pairs:
        names = [each.object.partition(".")[2] for each in left_out if each.object.startswith(f"{pair.name}.")]
        if names and pair.target is not None:
            made += [f"{table.db}.{table.name}" for table in target.tables(pair.replica, names)]
    if made:
        hint = "drop them on the target without their data (no PURGE, which would delete what they name: the source's)"
        text = f"tables that are no replicas, created by an earlier release or by others: {_listed(made)}"
        findings.append(Finding("formats", "critical", text, hint))
    return findings


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return "; ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
