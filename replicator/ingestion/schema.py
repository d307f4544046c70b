"""The tables of the ingestion store, for SQLite and PostgreSQL. Any change requires a migration.

Times are seconds since 1970 by the database's clock, so that controllers with different clocks agree.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, MetaData, String, Table, Text, text

REVISIONS = "ingestion_revision"
"""The table with the state of migrations; its name is distinct because other stores may be in the same database."""

metadata = MetaData()
_number = BigInteger().with_variant(Integer, "sqlite")  # SQLite autoincrements only INTEGER

turn = Table(
    "ingestion_turn",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("fence", BigInteger, nullable=False),
    Column("logged", BigInteger, nullable=False),
    Column("logging", BigInteger, nullable=False),
)
"""One row, which each change of a job updates first: this serialises changes on both kinds of databases, and their ids
grow in the order in which they become visible. `fence`: the last fencing number issued, of all jobs. `logged`: the last
change that is in the log's table; `logging`: the last change of the batch that is being appended."""

asset = Table(
    "ingestion_asset",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("definition", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("approved_by", Text, nullable=False),
    Column("changed", Float(53), nullable=False),
)
"""`definition`: an `Asset` as JSON, without its creator and approver."""

job = Table(
    "ingestion_job",
    metadata,
    Column("id", _number, primary_key=True, autoincrement=True),
    Column("identity", String(64), nullable=False),
    Column("asset", String(128), nullable=False),
    Column("source", Text, nullable=False),
    Column("target", String(260), nullable=False),
    Column("mode", String(12), nullable=False),
    Column("requester", Text, nullable=False),
    Column("approver", Text, nullable=False),
    Column("request_key", String(200)),
    Column("slot", String(72)),
    Column("place", BigInteger, nullable=False),
    Column("state", String(12), nullable=False),
    Column("step", String(20), nullable=False),
    Column("event_id", BigInteger),
    Column("queued", Float(53), nullable=False),
    Column("due", Float(53), nullable=False),
    Column("begun", Float(53)),
    Column("ended", Float(53)),
    Column("holder", Text, nullable=False),
    Column("lease", Float(53), nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("uncounted", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("failing_since", Float(53)),
    Column("error_kind", String(12), nullable=False),
    Column("error_text", Text, nullable=False),
    Column("cancelled_by", Text, nullable=False),
    Column("request", Text, nullable=False),
    Column("facts", Text, nullable=False),
    Column("error_detail", Text, nullable=False),
    Column("waits_since", Float(53)),
)
"""`identity`: SHA-256 of the request's identity, in hex. `request_key`: idempotency key of a request that may be sent
again. `slot`: the identity, and whether the job waits or runs; null once it is published or ended. It is unique, so at
most one job of an identity waits and one runs. `place`: in the queue; a job that replaces a queued one inherits its
place. `lease`: until when `holder` has the job; without a holder it is not running. `uncounted`: attempts that were
blocked by a lock. `failures`: since the last completed step. Long columns are last, so that a claim does not read them.
`waits_since`: time of the earliest request that this job replaced; null: it replaced none."""

OPEN = "state IN ('queued', 'failed', 'running', 'published')"
"""Jobs that are running or pending."""

OPEN_ONLY = text(OPEN)

Index("ingestion_job_slot", job.c.slot, unique=True)
Index("ingestion_job_key", job.c.request_key, unique=True)
Index("ingestion_job_open", job.c.asset, job.c.place, sqlite_where=OPEN_ONLY, postgresql_where=OPEN_ONLY)
Index("ingestion_job_identity", job.c.identity, sqlite_where=OPEN_ONLY, postgresql_where=OPEN_ONLY)
Index("ingestion_job_target", job.c.target, job.c.identity)
Index("ingestion_job_state", job.c.state, job.c.id)

change = Table(
    "ingestion_change",
    metadata,
    Column("id", _number, primary_key=True, autoincrement=True),
    Column("job", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("asset", String(128), nullable=False),
    Column("source", Text, nullable=False),
    Column("target", String(260), nullable=False),
    Column("requester", Text, nullable=False),
    Column("approver", Text, nullable=False),
    Column("mode", String(12), nullable=False),
    Column("state", String(12), nullable=False),
    Column("step", String(20), nullable=False),
    Column("actor", Text, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("rows", BigInteger),
    Column("bytes", BigInteger),
    Column("files", BigInteger),
    Column("splits", BigInteger),
    Column("consistent", Boolean),
    Column("erased_rows", BigInteger),
    Column("schema_hash", Text),
    Column("checksum", Text),
    Column("event_id", BigInteger),
    Column("error_kind", String(12), nullable=False),
    Column("error_text", Text, nullable=False),
)
"""A row for each change of a job's state or step, written in the same transaction. `source`: SOURCE:SCHEMA.TABLE.
`actor`: who changed it: the requester, a controller, or the user who cancelled it."""

Index("ingestion_change_job", change.c.job, change.c.id)

receiver = Table(
    "ingestion_receiver",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("told", BigInteger, nullable=False),
    Column("due", Float(53), nullable=False),
    Column("failures", Integer, nullable=False),
    Column("seen", Float(53), nullable=False),
)
"""`name`: CHANNEL.KIND.NAME. `told`: the last change for which its messages were created. `due`: when the next message
may be sent; in the future also while a controller is sending one. `failures`: in a row. `seen`: when a controller last
had the receiver in its configuration."""

message = Table(
    "ingestion_message",
    metadata,
    Column("id", _number, primary_key=True, autoincrement=True),
    Column("receiver", String(200), nullable=False),
    Column("about", String(300), nullable=False),
    Column("key", String(300), nullable=False),
    Column("job", BigInteger, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("body", Text, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("error", Text, nullable=False),
    Column("delivered", Float(53)),
)
"""Messages not delivered to a receiver yet. `about`: the key; for a schema, its table: only the newest message of a
table counts, and it is retained after delivery so that an equal one is not sent again."""

Index("ingestion_message_about", message.c.receiver, message.c.about, unique=True)
Index("ingestion_message_job", message.c.job)
