"""Iceberg tables from a disk to a bucket, and back to another disk: paths get the scheme of each side's metastore."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engines import local_engine
from iceberg_tables import catalog, data_file, delete_rows, make, naming_source, rows, states
from lab import Lab
from pyiceberg.table import Table
from stores import s3_server

import replicator
from cmroot.store.place import Place
from replicator.metastore.embedded.running import Running

BUCKET = "s3a://iceberg"  # of `S3A_BUCKETS`


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server() as filesystem:
        filesystem.mkdir(BUCKET.removeprefix("s3a://"))
        yield BUCKET


def load_table(uri: str, name: str) -> Table:
    about = {
        "s3.endpoint": os.environ["AWS_ENDPOINT_URL"],
        "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "s3.region": "us-east-1",
    }
    return catalog(uri, **about).load_table(name)


def test_a_table_goes_to_a_bucket_and_from_there_to_a_disk(
    bucket: str, fixture: Lab, on_s3a: Callable[[str], Running], tmp_path: Path
) -> None:
    middle, engine = on_s3a("target"), local_engine()
    table = make(fixture)
    table.append(rows(1, 2))
    table = delete_rows(table, data_file(table), [0])
    sides = (
        (fixture.source_uri, str(fixture.cmroot), middle.uri, f"{bucket}/w", f"{bucket}/middle"),
        (middle.uri, f"{bucket}/middle", fixture.target_uri, str(fixture.warehouse), str(fixture.target_cmroot)),
    )
    since: list[str | None] = [None, None]
    for number in range(2):
        for leg, (source, root, target, warehouse, target_root) in enumerate(sides):
            out = str(tmp_path / f"dump-{number}-{leg}")
            replicator.dump(source=source, cmroot=root, db=fixture.name, out=out, since=since[leg], engine=engine)
            replicator.load(out, target=target, target_cmroot=target_root, warehouse=warehouse, engine=engine)
            found = replicator.verify(source=source, target=target, db=fixture.name, engine=engine)
            assert found.status == "same", found
            since[leg] = out
        wanted = states(table.refresh())
        assert states(load_table(middle.uri, f"{fixture.name}.t")) == wanted
        assert states(load_table(fixture.target_uri, f"{fixture.name}.t")) == wanted
        objects = Place(f"{bucket}/w").list()
        assert objects
        assert naming_source(fixture) == []
        assert [path for path in fixture.target.home.rglob("*.json") if b"s3a:" in path.read_bytes()] == []
        table.append(rows(3 + number))
