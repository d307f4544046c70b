"""The tables of the service's store, for SQLite and PostgreSQL. Each change requires a migration.

Times are seconds since 1970 by the database's clock: servers whose clocks differ agree on it.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, MetaData, String, Table, Text

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
