"""Iceberg tables are replicated by translation: each state of a replica is the source's, and names only the replica's
files. Written and read by PyIceberg, which shares no code with the product's reading of Avro; the source is moved away
before a replica is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from command_line import Answer, command
from lab import Lab
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.table import Table
from pyiceberg.types import StringType

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def catalog(uri: str) -> HiveCatalog:
    return HiveCatalog("tests", uri=uri, **{"hive.hive2-compatible": "true"})


def make(fixture: Lab, name: str = "t", **properties: str) -> Table:
    location = f"file://{fixture.source.home}/{name}"
    return catalog(fixture.source_uri).create_table(
        f"{fixture.name}.{name}", SCHEMA, location=location, properties={"format-version": "2", **properties}
    )


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{each}" for each in ids]}, schema=SCHEMA)


def states(table: Table) -> list[tuple[int, list[dict[str, Any]]]]:
    """The rows of every snapshot, by its id."""
    return [
        (each.snapshot_id, table.scan(snapshot_id=each.snapshot_id).to_arrow().sort_by("id").to_pylist())
        for each in table.metadata.snapshots
    ]


def replica(fixture: Lab, name: str = "t") -> Table:
    return catalog(fixture.target_uri).load_table(f"{fixture.name}.{name}")


@contextmanager
def without_source(fixture: Lab) -> Iterator[None]:
    """The source's files, and its root, are elsewhere meanwhile."""
    away = {fixture.source.home: f"{fixture.source.home}-away", fixture.cmroot: f"{fixture.cmroot}-away"}
    for place, other in away.items():
        os.rename(place, other)
    try:
        yield
    finally:
        for place, other in away.items():
            os.rename(other, place)


def naming(fixture: Lab) -> list[str]:
    """Files of the replica that contain the source's directory."""
    return [
        str(path)
        for path in fixture.target.home.rglob("*")
        if path.is_file() and os.fsencode(fixture.source.home) in path.read_bytes()
    ]


def verified(fixture: Lab, *more: str) -> Answer:
    sides = ["--source", fixture.source_uri, "--target", fixture.target_uri, "--db", fixture.name]
    return command("verify", *sides, "--engine", "local", *more)


def test_every_snapshot_of_a_replica_is_the_sources_when_the_source_is_gone(fixture: Lab) -> None:
    table = make(fixture)
    for first in (1, 3, 5):
        table.append(rows(first, first + 1))
    table.delete("id = 3")
    for answer in (fixture.dump(), fixture.load()):
        assert answer.code == 0, answer
    wanted = states(table)
    with without_source(fixture):
        assert states(replica(fixture)) == wanted
    assert naming(fixture) == []
    found = verified(fixture)
    assert (found.code, found.output["status"]) == (0, "same"), found

    # increments: new commits, and snapshots that expire with their files
    table.append(rows(7))
    with table.update_schema() as update:
        update.add_column("more", StringType())
    before = fixture.last
    for answer in (fixture.dump(since=before), fixture.load()):
        assert answer.code == 0, answer
    table = table.refresh()
    wanted = states(table)
    with without_source(fixture):
        assert states(replica(fixture)) == wanted
    assert naming(fixture) == []
    found = verified(fixture)
    assert (found.code, found.output["status"]) == (0, "same"), found
