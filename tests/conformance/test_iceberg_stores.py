"""Iceberg tables from a disk to another store, and from there to another disk: paths get the scheme of each side, and
sizes are those of each store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from engines import local_engine
from hadoop import Cluster
from iceberg_tables import catalog, data_file, delete_rows, make, naming_source, rows, states
from lab import Lab
from pyiceberg.table import Table
from stores import s3_server

import replicator
from replicator.metastore.embedded.running import Running

BUCKET = "s3a://iceberg"  # of `S3A_BUCKETS`


@dataclass
class Middle:
    """The store between two disks, with its metastore. place: a directory of the test. reads: PyIceberg reads it."""

    metastore: Running
    place: str
    reads: bool

    def shows(self, name: str, wanted: dict[int, list[int]]) -> None:
        if self.reads:
            about = {
                "s3.endpoint": os.environ["AWS_ENDPOINT_URL"],
                "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
                "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
                "s3.region": "us-east-1",
            }
            assert states(catalog(self.metastore.uri, **about).load_table(name)) == wanted


@pytest.fixture
def in_bucket(on_s3a: Callable[[str], Running], tmp_path: Path) -> Iterator[Middle]:
    with s3_server() as filesystem:
        filesystem.makedirs(BUCKET.removeprefix("s3a://"), exist_ok=True)
        yield Middle(on_s3a("target"), f"{BUCKET}/{tmp_path.name}", reads=True)


@pytest.fixture
def in_hdfs(hdfs: Cluster, on_hdfs: Callable[[str], Running], tmp_path: Path) -> Middle:
    return Middle(on_hdfs("target"), f"{hdfs.url}/{tmp_path.name}", reads=False)


@pytest.mark.parametrize("store", ["in_bucket", pytest.param("in_hdfs", marks=pytest.mark.hdfs)])
def test_a_table_goes_to_another_store_and_from_there_to_a_disk(
    store: str, request: pytest.FixtureRequest, fixture: Lab, tmp_path: Path
) -> None:
    middle, engine = request.getfixturevalue(store), local_engine()
    table: Table = make(fixture)
    table.append(rows(1, 2))
    table = delete_rows(table, data_file(table), [0])
    own = f"{middle.place}/cmroot"
    sides = (
        (fixture.source_uri, str(fixture.cmroot), middle.metastore.uri, f"{middle.place}/w", own),
        (middle.metastore.uri, own, fixture.target_uri, str(fixture.warehouse), str(fixture.target_cmroot)),
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
        middle.shows(f"{fixture.name}.t", wanted)
        assert states(catalog(fixture.target_uri).load_table(f"{fixture.name}.t")) == wanted
        assert naming_source(fixture) == []
        names = [path.read_bytes() for path in fixture.target.home.rglob("*.json")]
        assert names and not [each for each in names if middle.place.partition("://")[0].encode() + b":" in each]
        table.append(rows(3 + number))
