"""Iceberg views of a `PlainDatabase`, as Iceberg's catalogs write them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
from plain_tables import PlainDatabase

from replicator.core.formats.interface import POINTER
from replicator.core.model import VIEW


def make(
    db: PlainDatabase, sql: str, *, number: int = 0, location: Path | None = None, name: str = "v", **more: Any
) -> Path:
    """A view, created or replaced as Iceberg does. Returns its metadata file."""
    home = location or db.home / name
    file = home / f"metadata/{number:05}-a.gz.metadata.json"
    version = {
        "version-id": 1,
        "timestamp-ms": 1,
        "schema-id": 0,
        "summary": {},
        "default-namespace": [db.name],
        "representations": [{"type": "sql", "sql": sql, "dialect": "spark"}],
    }
    found = {"view-uuid": "u", "format-version": 1, "location": f"file:{home}", "current-version-id": 1, "schemas": []}
    found |= {"versions": [version], "version-log": [], "properties": {}} | more
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(json.dumps(found).encode()))
    if not number:
        (db.home / name).mkdir(parents=True, exist_ok=True)  # the server asks for the directory
        db.table(name, kind=VIEW, view_original=sql, view_expanded=sql)
    view = db.metastore.table(db.name, name)
    assert view.storage
    parameters = {**view.parameters, "table_type": "ICEBERG-VIEW", POINTER: f"file:{file}"}
    if number:
        parameters["previous_metadata_location"] = view.parameters[POINTER]
    storage = msgspec.structs.replace(view.storage, location=f"file:{home}")
    view = msgspec.structs.replace(view, parameters=parameters, storage=storage, view_original=sql, view_expanded=sql)
    db.metastore.alter_table(db.name, name, view)
    return file
