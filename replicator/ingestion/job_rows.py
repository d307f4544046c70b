"""Conversion between values and rows of the ingestion store. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from replicator.ingestion.ingestion_request import WAITING, Asset, IngestionJob, Request

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


def places_of(facts: Mapping[str, Any]) -> list[str]:
    """Returns the directories that may have been published, of a job that has determined the location of its rows."""
    tables = [facts, *facts.get("parts", {}).values()]
    return [each for table in tables for each in (table.get("location"), *table.get("left", [])) if each]


def ended(state: str, now: float) -> dict[str, Any]:
    return {"state": state, "ended": now, "holder": "", "lease": 0.0}


def ends_cancelled(row: Mapping[str, Any]) -> bool:
    """Returns True if a cancelled job is over: not at the step `publish`, where it may be published already."""
    return bool(row["cancelled_by"]) and row["step"] != "publish"


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
