"""Iceberg tables from a disk to another store, and from there to another disk: paths get the scheme of each side, and
sizes are those of each store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from command_line import command
from engines import local_engine
from hadoop import Cluster
from iceberg_tables import SCHEMA, catalog, data_file, delete_rows, make, naming_source, rows, shown, states
from lab import Lab
from pyiceberg.table import Table
from stores import s3_server

import replicator
from cmroot.keep.versions import old_versions
from replicator.core.model import Database
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

BUCKET = "s3a://iceberg"  # of `S3A_BUCKETS`


@dataclass
class Middle:
    """The store between two disks, with its metastore. place: a directory of the test. reads: PyIceberg reads it."""

    metastore: Running
    place: str
    reads: bool
    filesystem: Any = None

    @property
    def access(self) -> dict[str, str]:
        return {
            "s3.endpoint": os.environ["AWS_ENDPOINT_URL"],
            "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
            "s3.region": "us-east-1",
        }

    def table(self, db: str) -> Table:
        """A new table, in a new database."""
        connect(self.metastore.uri).create_database(Database(name=db, location=f"{self.place}/{db}.db"))
        lake = catalog(self.metastore.uri, **self.access)
        return lake.create_table(f"{db}.t", SCHEMA, location=f"{self.place}/{db}.db/t")

    def shows(self, name: str, wanted: dict[int, list[int]]) -> None:
        if self.reads:
            assert states(catalog(self.metastore.uri, **self.access).load_table(name)) == wanted


@pytest.fixture
def in_bucket(on_s3a: Callable[[str], Running], tmp_path: Path) -> Iterator[Middle]:
    with s3_server() as filesystem:
        filesystem.makedirs(BUCKET.removeprefix("s3a://"), exist_ok=True)
        yield Middle(on_s3a("target"), f"{BUCKET}/{tmp_path.name}", True, filesystem)


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
    outside = tmp_path / "outside"
    outside.mkdir()
    pq.write_table(rows(8, 9), outside / "x.parquet")
    table.add_files([f"file://{outside}/x.parquet"])
    table = delete_rows(table, f"file://{outside}/x.parquet", [1], f"file://{outside}")
    listed: Any = ({"iceberg_outside": [str(outside)]}, {})
    own = f"{middle.place}/cmroot"
    sides = (
        (fixture.source_uri, str(fixture.cmroot), middle.metastore.uri, f"{middle.place}/w", own),
        (middle.metastore.uri, own, fixture.target_uri, str(fixture.warehouse), str(fixture.target_cmroot)),
    )
    since: list[str | None] = [None, None]
    for number in range(2):
        for leg, (source, root, target, warehouse, target_root) in enumerate(sides):
            out = str(tmp_path / f"dump-{number}-{leg}")
            about = {"source": source, "cmroot": root, "out": out, "since": since[leg], **listed[leg]}
            replicator.dump(db=fixture.name, engine=engine, **about)
            replicator.load(out, target=target, target_cmroot=target_root, warehouse=warehouse, engine=engine)
            found = replicator.verify(source=source, target=target, db=fixture.name, engine=engine)
            assert found.status == "same", found
            since[leg] = out
        wanted = states(table.refresh())
        middle.shows(f"{fixture.name}.t", wanted)
        assert states(catalog(fixture.target_uri).load_table(f"{fixture.name}.t")) == wanted
        assert naming_source(fixture, None, outside) == []
        names = [path.read_bytes() for path in fixture.target.home.rglob("*.json")]
        assert names and not [each for each in names if middle.place.partition("://")[0].encode() + b":" in each]
        table.append(rows(3 + number))


@pytest.mark.parametrize("versions", [False, True])
def test_files_in_another_bucket(versions: bool, in_bucket: Middle, fixture: Lab, tmp_path: Path) -> None:
    """What the source removes is served by the root, or by a version of the bucket, which an expiry removes."""
    lab, place, engine, filesystem = fixture, in_bucket.place, local_engine(), in_bucket.filesystem
    bucket = f"imports-{str(versions).lower()}"
    filesystem.mkdir(bucket)
    if versions:
        filesystem.call_s3("put_bucket_versioning", Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    table = in_bucket.table(lab.name)
    for name in ("a/x", "b/x", "other"):
        with filesystem.open(f"{bucket}/2026/{name}.parquet", "wb") as file:
            pq.write_table(rows(1 if name[0] == "a" else 2), file)
    table.add_files([f"s3a://{bucket}/2026/{each}/x.parquet" for each in ("a", "b")])
    root, out = f"{place}/cmroot", str(tmp_path / "dump")

    def dump(since: str | None, into: str) -> None:
        about: Any = {"source": in_bucket.metastore.uri, "cmroot": root, "out": into, "since": since}
        found = replicator.dump(db=lab.name, engine=engine, iceberg_outside=[f"s3://{bucket}/2026"], **about)
        assert found.not_replicated == []

    dump(None, out)
    old = table.current_snapshot()
    assert old is not None
    table.overwrite(rows(3))
    for name in ("a/x", "b/x"):
        filesystem.rm(f"{bucket}/2026/{name}.parquet")

    def shown_after(dump: str) -> list[int]:
        about: Any = {
            "target": lab.target_uri,
            "target_cmroot": str(lab.target_cmroot),
            "warehouse": str(lab.warehouse),
        }
        replicator.load(dump, engine=engine, **about)
        return shown(catalog(lab.target_uri).load_table(f"{lab.name}.t"))

    assert shown_after(out) == [1, 2]
    there = lab.target.home / "t/outside" / f"s3-{bucket}/2026"
    assert sorted(path.parent.name for path in there.rglob("*.parquet")) == ["a", "b"]
    before = {each.path for each in old_versions(f"s3://{bucket}/")}
    table.maintenance.expire_snapshots().by_ids([old.snapshot_id]).commit()
    for each in old.manifests(table.io):
        filesystem.rm(each.manifest_path.removeprefix("s3a://"))
    dump(out, f"{out}-2")
    assert shown_after(f"{out}-2") == [3] and not there.exists()
    expired = command("cm", "expire", "--cmroot", root, "--older-than", "0s", "--versions", "--engine", "local")
    assert expired.code == 0, expired
    after = {each.path for each in old_versions(f"s3://{bucket}/")}
    assert (len(before), len(after)) == ((2, 0) if versions else (0, 0))


def test_local_files_of_a_table_in_a_bucket_are_those_of_the_nodes_and_not_read(
    in_bucket: Middle, fixture: Lab, tmp_path: Path
) -> None:
    table, secret = in_bucket.table(fixture.name), tmp_path / "secret.parquet"
    pq.write_table(rows(1), secret)
    table.add_files([f"file://{secret}"])
    root, uri = str(fixture.cmroot), in_bucket.metastore.uri
    listed = [str(tmp_path), "/"]
    found = replicator.capture(source=uri, cmroot=root, db=fixture.name, engine=local_engine(), iceberg_outside=listed)
    (reason,) = found.formats.values()
    assert f"{secret} is outside of its location, on the disks of the cluster's nodes" in reason
    assert all(secret.read_bytes() != path.read_bytes() for path in fixture.cmroot.rglob("*") if path.is_file())
