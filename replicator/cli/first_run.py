"""A dry run before the first run of any job."""

from __future__ import annotations

from cmroot.root import looked_at
from replicator.cli.output import note


def tell_if_first(cmroot: str | None, dry_run: bool) -> str:
    """Warns at once of a dry run without a root, as the report does later; returns the words. cmroot: None where a
    policy names it, and only the report tells. Raises as `looked_at`."""
    if not dry_run or cmroot is None:
        return ""
    with looked_at(cmroot) as (_, words):
        pass
    if words:
        note(f"warning: {words}")
    return words
