"""Tables in formats that runs leave out, and replicas of such tables that an earlier release has made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from replicator.captures.events.scope import Patterns
from replicator.captures.unlistable import REFUSED
from replicator.core.batches import batched
from replicator.core.not_replicated import NotReplicated
from replicator.core.policy import Policy
from replicator.core.table_format import AS_THEY_ARE, why_not_replicated
from replicator.metastore.client import MetastoreReader
from replicator.policies.checks.finding import Figure, Finding
from replicator.policies.direction import Pair

LOOKED_AT = 20_000  # tables of a policy: some 10 s, and who asks waits
BATCH = 500


def find_left_out(policy: Policy, pairs: Iterable[Pair], source: MetastoreReader) -> tuple[list[NotReplicated], int]:
    """Tables of the source that runs leave out, as its metastore tells them, and how many were not looked at. Clones
    of Delta tables look like others there: captures and runs find them."""
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
    """`unseen`: tables that were not looked at."""
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
