"""What replicas lack: objects that their last load reported as not replicated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from replicator.core.not_replicated import PROPERTY, NotReplicated, from_property, merged
from replicator.policies.checks.finding import Figure, Finding
from replicator.policies.direction import Pair

NAMED = 10


def said_lacking(pairs: Iterable[Pair]) -> list[NotReplicated]:
    """By the properties of a policy's replicas, which are at hand."""
    return merged(
        *(
            from_property(each.target.parameters.get(PROPERTY), each.name)
            for each in pairs
            if each.target and each.matches
        )
    )


def judge_lacking(said: Sequence[NotReplicated]) -> Finding:
    """`said`: but for tables in formats that runs leave out, which are a finding of their own."""
    figures = (Figure("lacking", len(said)),)
    if not said:
        return Finding("not replicated", "ok", "all replicas are complete", figures=figures)
    shown = "; ".join(map(str, said[:NAMED])) + (f" and {len(said) - NAMED} more" if len(said) > NAMED else "")
    hint = "bring back what is away (or capture with --empty what is meant to be), mend names, then run again"
    return Finding("not replicated", "warning", f"as of the last load: {shown}", hint, figures)
