"""The tables of the ingestion store, for SQLite and PostgreSQL, and the conversion between values and their rows. Any
change of a table requires a migration.

Times are seconds since 1970 by the database's clock, so that controllers with different clocks agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, MetaData, String, Table, Text, text

from replicator.ingestion.ingestion_request import WAITING, Asset, IngestionJob, Request

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


# ---- rows: conversion from and to values, pure -----------------------------------------------------------------------


UNTRIED = ("done", "failed_user", "failed_type", "superseded", "cancelled", "expired")
"""States in which a job is never due again."""


def definition_of(one: Asset) -> str:
    """Returns an asset as JSON, without its creator and approver."""
    return msgspec.json.encode(msgspec.structs.replace(one, created_by="", approved_by="")).decode()


def digest_of(one: Asset) -> str:
    """Returns the digest of what an approver approves: the definition and its creator."""
    return digest(f"{one.created_by}\n{definition_of(one)}")[:16]


def to_asset(row: Mapping[str, Any]) -> Asset:
    found = msgspec.json.decode(row["definition"], type=Asset)
    return msgspec.structs.replace(found, created_by=row["created_by"], approved_by=row["approved_by"])


def to_job(row: Mapping[str, Any]) -> IngestionJob:
    facts = msgspec.json.decode(row["facts"])
    return IngestionJob(
        job=row["id"],
        asset=row["asset"],
        source=row["source"],
        target=row["target"],
        mode=row["mode"],
        state=row["state"],
        step=row["step"],
        attempt=row["attempt"],
        requested_by=row["requester"],
        approved_by=row["approver"],
        queued=row["queued"],
        due=None if row["state"] in UNTRIED else row["due"],
        begun=row["begun"],
        ended=row["ended"],
        holder=row["holder"],
        rows=facts.get("rows"),
        bytes=facts.get("bytes"),
        files=facts.get("files"),
        event_id=row["event_id"],
        error_kind=row["error_kind"],
        error_text=row["error_text"],
        cancelled_by=row["cancelled_by"],
    )


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def slot_of(row: Mapping[str, Any]) -> str | None:
    if row["state"] in WAITING:
        return f"{row['identity']}:waiting"
    return f"{row['identity']}:running" if row["state"] == "running" else None


def ended(state: str, now: float) -> dict[str, Any]:
    return {"state": state, "ended": now, "holder": "", "lease": 0.0}


def ends_cancelled(row: Mapping[str, Any]) -> bool:
    """Returns True if a cancelled job is over: not at the step `publish`, where it may be published already."""
    return bool(row["cancelled_by"]) and row["step"] != "publish"


def may_have_dropped(row: Mapping[str, Any]) -> bool:
    """Returns True if a failed job may have dropped its table in order to recreate it: another job would find none, and
    land only what the source still has."""
    if row["state"] != "failed" or row["step"] != "publish" or row["mode"] == "overwrite":
        return False
    request = msgspec.json.decode(row["request"], type=Request)
    return request.rebuild or request.schema_policy == "recreate"


def merged(row: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Returns the facts of a job, with those of one more step, as JSON."""
    return msgspec.json.encode({**msgspec.json.decode(row["facts"]), **facts}).decode()


def new_row(request: Request, target: str, identity: str) -> dict[str, Any]:
    """Returns the row of a job that no controller has claimed yet."""
    return {
        "identity": identity,
        "asset": request.asset,
        "source": request.place,
        "target": target,
        "mode": request.mode,
        "requester": request.requested_by,
        "request": msgspec.json.encode(request).decode(),
        "slot": f"{identity}:waiting",
        "state": "queued",
        "step": "",
        "facts": "{}",
        "event_id": None,
        "begun": None,
        "ended": None,
        "holder": "",
        "lease": 0.0,
        "fence": 0,
        "attempt": 0,
        "uncounted": 0,
        "failures": 0,
        "failing_since": None,
        "error_kind": "",
        "error_text": "",
        "error_detail": "",
        "cancelled_by": "",
    }


def place_of(former: Mapping[str, Any] | None, now: float) -> dict[str, Any]:
    """Returns a new job's place in the queue, and since when it waits. Both are inherited from the job that it
    replaces; otherwise a table that is requested often would wait for ever, unnoticed. A job that waits for another
    request passes on neither."""
    if former is None or former["state"] not in ("queued", "failed"):
        return {"place": 0, "due": now, "waits_since": None}
    place = former["place"] if former["state"] == "queued" else 0
    return {"place": place, "due": min(former["due"], now), "waits_since": waits_since(former)}


def waits_since(row: Mapping[str, Any]) -> float:
    """Returns the time of the earliest request that a job serves."""
    return float(row["queued"] if row["waits_since"] is None else row["waits_since"])
