"""What one run adds to the counters. Pure.

Counters are in the store, so that they go on after a restart, and are the same from every server: each run is counted
once, where it is ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Count = tuple[str, tuple[tuple[str, str], ...], float]
"""The name of a counter, its labels, and what is added."""

BUCKETS = (1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400)
"""Seconds of runs, up to which one bucket of the histogram counts; longer ones count in the last."""

ORIGINS = ("source", "cmroot", "target")
_OF_HOUSEKEEPING = {
    "bytes": "s3_bytes_deleted",
    "tables_dropped": "hive_table_metadata_deleted",
    "partitions_dropped": "hive_partition_metadata_deleted",
}
BEEKEEPERS = {**{field: f"beekeeper_{name}" for field, name in _OF_HOUSEKEEPING.items()}}
"""Counters by Beekeeper's names, by the fields of a run's report."""

_REMOVED = {
    "housekeeping": ("files", "bytes"),
    "retention": ("files", "bytes"),
    "cm": ("removed_entries", "removed_bytes"),
}


def counts_of(
    arguments: Sequence[str], policy: str, outcome: str, seconds: float | None, error: str, said: Mapping[str, Any]
) -> list[Count]:
    """arguments: of its command. seconds: None for one that never began. said: its answer, as `--json` gives it."""
    kind = arguments[0] if arguments else ""
    of = (("policy", policy), ("kind", kind))
    found: list[Count] = [("replicator_runs", (*of, ("outcome", outcome)), 1)]
    if outcome in ("failed", "lost"):
        found.append(("replicator_run_failures", (*of, ("error", error or outcome)), 1))
    if seconds is not None:
        limit = next((str(float(each)) for each in BUCKETS if seconds <= each), "+Inf")
        found.append(("replicator_run_seconds_bucket", (*of, ("le", limit)), 1))
        found.append(("replicator_run_seconds_sum", of, max(0.0, seconds)))
    if "--dry-run" in arguments:
        return found
    for origin in ORIGINS:
        found.append(
            ("replicator_files_copied", (("policy", policy), ("from", origin)), _number(said, f"files_from_{origin}"))
        )
    found.append(("replicator_bytes_copied", (("policy", policy),), _number(said, "bytes_copied")))
    for field, name in zip(_REMOVED.get(kind, ()), ("files", "bytes"), strict=False):
        found.append((f"replicator_removed_{name}", (("kind", kind),), _number(said, field)))
    if kind == "housekeeping":
        found += [(name, (), _number(said, field)) for field, name in BEEKEEPERS.items()]
        for job in ("path_cleanup_job", "metadata_cleanup_job"):
            found.append((f"beekeeper_{job}_seconds_count", (), 1.0 if seconds is not None else 0.0))
            found.append((f"beekeeper_{job}_seconds_sum", (), seconds or 0.0))
    return [each for each in found if each[2] > 0]


def _number(said: Mapping[str, Any], field: str) -> float:
    found = said.get(field)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else 0.0
