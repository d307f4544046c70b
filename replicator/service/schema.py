"""The tables of the service's store, for SQLite and PostgreSQL, its counters, and the newest sample of each kind. Each
change of a table requires a migration. Works without the libraries of the extra `server`, because commands read the
store, too.

Times are seconds since 1970 by the database's clock: servers whose clocks differ agree on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

REVISIONS = "service_revision"
"""The table of the migrations' state: other stores may be in the same database."""

metadata = MetaData()
_number = BigInteger().with_variant(Integer, "sqlite")  # the type that SQLite increments automatically

lease = Table(
    "service_lease",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("expires", Float(53), nullable=False),
)
"""One row: the server that schedules. `epoch` increases with each change of the holder."""

job = Table(
    "service_job",
    metadata,
    Column("name", Text, primary_key=True),
    Column("schedule", Text, nullable=False),
    Column("due", Float(53), nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("paused_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
)
"""`schedule`: the one for which `due` was computed. The job "*" stands for all jobs, and can only be paused."""

run = Table(
    "service_run",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("job", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("arguments", Text, nullable=False),
    Column("asked_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("missed", Integer, nullable=False),
    Column("due", Float(53), nullable=False),
    Column("queued", Float(53), nullable=False),
    Column("begun", Float(53)),
    Column("ended", Float(53)),
    Column("state", String(12), nullable=False),
    Column("active", Text),
    Column("cancelled_by", Text, nullable=False),
    Column("exit_code", Integer),
    Column("message", Text, nullable=False),
    Column("hint", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
)
"""`active`: the job's name while the run is queued or running, else null: never two of one job."""

Index("service_run_active", run.c.active, unique=True)
Index("service_run_job", run.c.job, run.c.id)
Index("service_run_ended", run.c.ended)

token = Table(
    "service_token",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("role", String(10), nullable=False),
    Column("policies", Text, nullable=False),
    Column("created", Float(53), nullable=False),
    Column("expires", Float(53), nullable=False),
)
"""`digest`: SHA-256 of the token, in hex; the token itself is not stored. `policies`: a JSON list, empty for all."""

session = Table(
    "service_session",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("token_digest", String(64), nullable=False),
    Column("expires", Float(53), nullable=False),
)
"""Signed-in browsers. `digest`: SHA-256 of the cookie, in hex; `token_digest`: of the token, with which the session
ends."""

alert = Table(
    "service_alert",
    metadata,
    Column("key", Text, primary_key=True),
    Column("id", String(32), nullable=False),
    Column("kind", String(30), nullable=False),
    Column("subject", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("hint", Text, nullable=False),
    Column("since", Float(53), nullable=False),
    Column("over", Float(53)),
    Column("told", Text, nullable=False),
)
"""`told`: channel -> [last event, when], as JSON."""

action = Table(
    "service_action",
    metadata,
    Column("id", _number, primary_key=True, autoincrement=True),
    Column("at", Float(53), nullable=False),
    Column("who", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("action", String(30), nullable=False),
    Column("subject", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("request_key", String(200)),
    Column("answer", Text, nullable=False),
    Column("request_digest", String(64)),
)
"""Actions of users and programs over HTTP. `request_key`: of a request that may be sent again; null: none was given.
`request_digest`: SHA-256 of its body, in hex."""

lag_sample = Table(
    "service_lag",
    metadata,
    Column("policy", Text, primary_key=True),
    Column("at", Float(53), primary_key=True),
    Column("status", String(20), nullable=False),
    Column("events", BigInteger),
    Column("seconds", Float(53)),
    Column("bytes", BigInteger),
    Column("headroom_seconds", Float(53)),
    Column("at_least", Boolean, nullable=False),
    Column("error", Text, nullable=False),
    Column("seconds_bound", Float(53)),
)
"""The lag of policies over time; see `series`."""

root_sample = Table(
    "service_root",
    metadata,
    Column("root", Text, primary_key=True),
    Column("at", Float(53), primary_key=True),
    Column("entries", BigInteger),
    Column("bytes", BigInteger),
    Column("shared_bytes", BigInteger),
    Column("error", Text, nullable=False),
)
"""The size of roots over time. `root`: its location."""

counter = Table(
    "service_counter",
    metadata,
    Column("name", String(60), primary_key=True),
    Column("labels", Text, primary_key=True),
    Column("value", Float(53), nullable=False),
)
"""`labels`: pairs, as JSON. Values only increase."""

sample = Table(
    "service_sample",
    metadata,
    Column("kind", String(20), primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("at", Float(53), nullable=False),
    Column("value", Text, nullable=False),
)
"""The last result of each slow measurement. `value`: JSON."""

Index("service_run_state", run.c.job, run.c.state, run.c.ended)
Index("service_action_request", action.c.who, action.c.request_key, unique=True)
Index("service_action_subject", action.c.subject, action.c.id)
Index("service_token_digest", token.c.digest, unique=True)


# ---- counters and samples --------------------------------------------------------------------------------------------
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
            ("replicator_files_copied", (("policy", policy), ("from", origin)), _count(said, f"files_from_{origin}"))
        )
    found.append(("replicator_bytes_copied", (("policy", policy),), _count(said, "bytes_copied")))
    for field, name in zip(_REMOVED.get(kind, ()), ("files", "bytes"), strict=False):
        found.append((f"replicator_removed_{name}", (("kind", kind),), _count(said, field)))
    if kind == "housekeeping":
        found += [(name, (), _count(said, field)) for field, name in BEEKEEPERS.items()]
        for job in ("path_cleanup_job", "metadata_cleanup_job"):
            found.append((f"beekeeper_{job}_seconds_count", (), 1.0 if seconds is not None else 0.0))
            found.append((f"beekeeper_{job}_seconds_sum", (), seconds or 0.0))
    return [each for each in found if each[2] > 0]


def _count(said: Mapping[str, Any], field: str) -> float:
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
