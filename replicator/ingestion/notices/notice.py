"""What receivers are told: of which changes of jobs, and in which words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from cmroot.store.place import parent
from replicator.core.model import Value
from replicator.ingestion.ingestion_job import JobChange
from replicator.ingestion.ingestion_request import Asset, Request
from replicator.ingestion.landing.landing_schema import LOAD
from replicator.policies.lineage.openlineage import PRODUCER, datasets

OFTEN, AGAIN = 4, 24
"""Failures of a job, of a kind that is tried again, of which somebody is told, and after how many more again: the quick
tries are over then, and a day of hourly ones."""

DATASET_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/DatasetEvent"
FACETS = "https://openlineage.io/spec/facets"


class Notice(Value, frozen=True, omit_defaults=False):
    """Of a job. key: the same whenever it is sent. state: done: readers may read it; failed_user, failed_type: it waits
    for another request; failed, published: it failed so often, before or after readers saw its rows, and is tried
    again; expired: it is given up. at: ISO 8601."""

    key: str
    job: int
    attempt: int
    asset: str
    source: str
    target: str
    mode: str
    state: str
    step: str
    requested_by: str
    event_id: int | None
    rows: int | None
    bytes: int | None
    files: int | None
    erased_rows: int | None
    consistent: bool | None
    schema_hash: str | None
    error_kind: str
    error_text: str
    at: str


class TableSchema(Value, frozen=True, omit_defaults=False):
    """Of a landing table. columns, partitioned_by: name and type of each. location: the directory of the table, below
    which its versions are."""

    asset: str
    table: str
    columns: tuple[tuple[str, str], ...]
    partitioned_by: tuple[tuple[str, str], ...]
    schema_hash: str
    owner: str
    classification: str
    location: str


class Message(Value, frozen=True, omit_defaults=False):
    """about: the key, or what only the newest message counts of. at: seconds since 1970."""

    about: str
    key: str
    job: int
    at: float
    body: str


def is_told(channel: str, change: JobChange, failures: int) -> bool:
    """Whether a channel hears of a change. failures: of its job, with this one."""
    if channel != "failures":
        return change.state == "done"
    if change.state in ("failed_user", "failed_type", "expired"):
        return True
    is_often = failures >= OFTEN and (failures - OFTEN) % AGAIN == 0
    return bool(change.error_kind) and change.state in ("failed", "published") and is_often


def notice_of(change: JobChange) -> Message:
    key = f"{change.job}-{change.attempt}-{change.state}"
    same = {name: getattr(change, name) for name in Notice.__struct_fields__ if hasattr(change, name)}
    told = {**same, "requested_by": change.requester, "at": datetime.fromtimestamp(change.at, UTC).isoformat()}
    body = msgspec.json.encode(Notice(key=key, **told)).decode()
    return Message(about=key, key=key, job=change.job, at=change.at, body=body)


def schemas_of(change: JobChange, asset: Asset, request: Request, facts: Mapping[str, Any]) -> Iterator[Message]:
    """Of the table of a job, and of those that its rows were taken apart into; none where it published nothing."""
    parts = {f"{request.table}__{name}".lower(): part for name, part in facts.get("parts", {}).items()}
    for table, found in {request.table.lower(): facts, **parts}.items():
        if not found.get("schema_hash") or not found.get("location"):
            continue
        key_column = ("day", "date") if "days" in found else (LOAD.name, LOAD.type)
        made = TableSchema(
            asset=asset.name,
            table=f"{request.target[0]}.{table}",
            columns=tuple((name, kind) for name, kind in found["columns"]),
            partitioned_by=(key_column,) if request.mode == "append" else (),
            schema_hash=found["schema_hash"],
            owner=asset.owner,
            classification=asset.classification,
            location=parent(found["location"]),
        )
        body, key = msgspec.json.encode(made).decode(), f"{change.job}-{change.attempt}-{made.table}"
        yield Message(about=made.table, key=key, job=change.job, at=change.at, body=body)


def dataset_event(message: Message, uri: str) -> bytes:
    """A table's schema in OpenLineage's words. uri: of the metastore."""
    told = msgspec.json.decode(message.body, type=TableSchema)
    db, _, name = told.table.partition(".")
    fields = [{"name": column, "type": kind} for column, kind in (*told.columns, *told.partitioned_by)]
    facets = {
        "schema": {"fields": fields, **_facet("1-1-1", "SchemaDatasetFacet")},
        "ownership": {"owners": [{"name": told.owner}], **_facet("1-0-1", "OwnershipDatasetFacet")},
    }
    event = {
        "eventTime": datetime.fromtimestamp(message.at, UTC).isoformat(),
        "dataset": {**datasets(uri, [(db, name)])[0], "facets": facets},
        "producer": PRODUCER,
        "schemaURL": DATASET_SCHEMA,
    }
    return msgspec.json.encode(event)


def _facet(version: str, name: str) -> dict[str, str]:
    return {"_producer": PRODUCER, "_schemaURL": f"{FACETS}/{version}/{name}.json#/$defs/{name}"}
