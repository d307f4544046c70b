"""The tables of the ingestion store, for SQLite and PostgreSQL, changed only together with a migration.

Times are seconds since 1970 by the database's clock: controllers whose clocks differ agree on it.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, MetaData, String, Table, Text, text

REVISIONS = "ingestion_revision"
"""The table of its migrations' state: other stores may be in the same database."""

metadata = MetaData()
_number = BigInteger().with_variant(Integer, "sqlite")  # what SQLite counts up by itself

turn = Table(
    "ingestion_turn",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("fence", BigInteger, nullable=False),
    Column("logged", BigInteger, nullable=False),
    Column("logging", BigInteger, nullable=False),
)
"""One row, which each change of a job changes first: changes are made one at a time, on both kinds of databases, and
their numbers grow in the order in which they are seen. `fence`: the fencing number that was given last, of all jobs.
`logged`: the last change that is in the log's table; `logging`: the last one of the batch that is being appended."""

asset = Table(
    "ingestion_asset",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("definition", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("approved_by", Text, nullable=False),
    Column("changed", Float(53), nullable=False),
)
"""`definition`: an `Asset` as JSON, without who made and approved it."""

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
"""`identity`: SHA-256 of the request's, in hex. `request_key`: of a request that may be sent again. `slot`: the
identity, and whether it waits or runs; null once it is published or ended: never two of one identity that wait, or that
run. `place`: in the queue; a job that replaces a queued one has its place. `lease`: until when `holder` has the job;
without a holder nobody works on it. `uncounted`: attempts that ended at a lock. `failures`: since the last step that
was done. What may be long stands last, so that a claim does not read it. `waits_since`: when the first request was
made whose place this one took; null: it took no place."""

OPEN = "state IN ('queued', 'failed', 'running', 'published')"
"""Jobs that somebody works on, or shall."""

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
"""A row for each change of a job's state or step, written with it. `source`: SOURCE:SCHEMA.TABLE. `actor`: who changed
it: the requester, a controller, or who cancelled it."""

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
"""`name`: CHANNEL.KIND.NAME. `told`: the last change of which it has its messages. `due`: when it may be sent one
again; in the future while a controller sends one, too. `failures`: in a row. `seen`: when a controller last had it in
its configuration."""

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
"""What a receiver has not got yet. `about`: the key; of a schema its table, of which only the newest counts, and stays
when it was delivered: an equal one is not sent again."""

Index("ingestion_message_about", message.c.receiver, message.c.about, unique=True)
Index("ingestion_message_job", message.c.job)
