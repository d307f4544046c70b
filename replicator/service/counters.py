"""Counters and samples of the service, in its store: what a run adds, and the last sample of each kind.

Works without the libraries of the extra `server`, because commands read the store, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from replicator.service.schema import counter, sample

# What one run adds to the counters. Pure.
#
# Counters are in the store, so that they survive a restart, and are the same on every server: each run is counted once,
# when it ends.


Count = tuple[str, tuple[tuple[str, str], ...], float]
"""The name of a counter, its labels, and the increment."""

BUCKETS = (1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400)
"""Upper limits of the buckets of the histogram, in seconds of runs; longer runs are in the last bucket."""

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
    """Returns the increments of one run. arguments: of its command. seconds: None if it never started. said: its
    report, as with `--json`."""
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


# ---- counters --------------------------------------------------------------------------------------------------------
# Counters and samples in the service's store, as rows.


@dataclass(frozen=True)
class Sample:
    """A measurement of a subject at a time, in seconds since 1970 by the store's clock."""

    kind: str
    subject: str
    at: float
    value: Any


def add(connection: Connection, counts: Iterable[Count]) -> None:
    """Adds to counters, within the transaction that ensures that each run is counted once."""
    for name, labels, amount in sorted(counts):  # in one order, so that two transactions cannot deadlock
        values = {"name": name, "labels": json.dumps(labels), "value": amount}
        dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
        there = dialect.insert(counter).values(values)
        connection.execute(
            there.on_conflict_do_update(
                index_elements=[counter.c.name, counter.c.labels], set_={"value": counter.c.value + amount}
            )
        )


def counts(connection: Connection) -> list[Count]:
    """Returns all counters, by name and labels."""
    rows = connection.execute(select(counter).order_by(counter.c.name, counter.c.labels))
    return [(row.name, tuple((key, value) for key, value in json.loads(row.labels)), row.value) for row in rows]


def remember(connection: Connection, given: Sample) -> None:
    """Replaces the former sample of the same kind and subject."""
    values = {"at": given.at, "value": json.dumps(given.value)}
    of = (sample.c.kind == given.kind, sample.c.subject == given.subject)
    if not connection.execute(update(sample).where(*of).values(**values)).rowcount:
        connection.execute(insert(sample).values(kind=given.kind, subject=given.subject, **values))


def samples(connection: Connection, kind: str) -> dict[str, Sample]:
    """Returns the newest sample of each subject."""
    rows = connection.execute(select(sample).where(sample.c.kind == kind).order_by(sample.c.subject))
    return {row.subject: Sample(row.kind, row.subject, row.at, json.loads(row.value)) for row in rows}
