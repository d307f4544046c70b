"""Locations in a metastore that has `s3a:` and no `s3:`, as stock ones: each keeps the scheme that the user wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from engines import local_engine
from metastores import MetastoreFactory
from names import unique
from plain_tables import text_storage
from stores import moto_bucket, s3a_as_directories

import replicator
from cmroot.root import create_or_open
from cmroot.store.place import Place
from replicator.core.model import EXTERNAL, Column, Database, Partition, Table
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore, connect

__all__ = ["moto_bucket"]

KEYS = (Column("p", "string"),)


@dataclass
class Sides:
    source: Running
    target: Running
    home: Path
    bucket: str


@pytest.fixture(scope="module")
def sides(
    moto_bucket: str,
    source_metastore: Running,
    metastore_factory: MetastoreFactory,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sides]:
    mounts = tmp_path_factory.mktemp("mounts")
    target = metastore_factory("target", settings=s3a_as_directories(mounts, [moto_bucket]))
    yield Sides(source_metastore, target, tmp_path_factory.mktemp("source"), moto_bucket)


def serde_of(table: Table) -> dict[str, str]:
    return table.storage.serde.parameters if table.storage else {}


def locations(uri: str, db: str) -> set[str]:
    """All that the target's metastore says of a database: its own, its tables' and partitions'."""
    with connect(uri) as client:
        found = {client.database(db).location}
        for table in client.tables(db, client.table_names(db)):
            found.add(table.location)
            found |= {each.location for batch in client.all_partitions(db, table.name) for each in batch}
            found |= {value for key, value in serde_of(table).items() if key == "path"}
    return {str(each) for each in found}


@pytest.mark.parametrize("layout", ["mirror", "snapshot"])
def test_what_the_metastore_is_told_keeps_its_spelling(
    sides: Sides, layout: Literal["mirror", "snapshot"], tmp_path: Path
) -> None:
    """Managed and external tables, one with Spark's `path`, over a bootstrap and an increment that writes, renames and
    adds."""
    db, warehouse = unique(layout), f"{sides.bucket}/{layout}//"
    root = create_or_open(str(tmp_path / "cmroot"))
    home, outside = sides.home / f"{db}.db", sides.home / f"{db}-outside"
    engine = local_engine()
    dumps: list[str] = []

    def add(client: ThriftMetastore, table: str, place: Path, value: str) -> None:
        Place(f"{place}/p={value}/part-0").write_bytes(f"{db} {table} {value}".encode())
        client.add_partitions(db, table, [Partition(values=(value,), storage=text_storage(place / f"p={value}"))])

    def replicate() -> set[str]:
        dumped = replicator.dump(
            source=sides.source.uri,
            cmroot=root.place,
            db=db,
            out=str(tmp_path / f"dump{len(dumps)}"),
            since=dumps[-1] if dumps else None,
            engine=engine,
        )
        dumps.append(dumped.dump)
        loaded = replicator.load(
            dumped.dump, target=sides.target.uri, warehouse=warehouse, publish=layout, engine=engine
        )
        assert (loaded.status, loaded.warnings) == ("loaded", [])
        verified = replicator.verify(source=sides.source.uri, target=sides.target.uri, db=db, engine=engine)
        assert (verified.status, verified.differences) == ("same", [])
        return locations(sides.target.uri, db)

    with connect(sides.source.uri) as client:
        client.create_database(Database(name=db, location=f"file:{home}"))
        client.create_table(Table(db=db, name="m", storage=text_storage(home / "m"), partition_keys=KEYS))
        add(client, "m", home / "m", "1")
        parameters = {"EXTERNAL": "TRUE"}
        storage = text_storage(outside / "x")
        serde = msgspec.structs.replace(storage.serde, parameters={"path": f"file:{outside / 'x'}"})
        storage = msgspec.structs.replace(storage, serde=serde)
        client.create_table(Table(db=db, name="x", kind=EXTERNAL, storage=storage, parameters=parameters))
        Place(str(outside / "x" / "part-0")).write_bytes(b"x")
        first = replicate()
        add(client, "m", home / "m", "2")
        add(client, "m", outside / "elsewhere", "3")
        Place(str(outside / "x" / "part-1")).write_bytes(b"y")
        client.alter_table(
            db, "x", msgspec.structs.replace(client.table(db, "x"), name="y")
        )  # a server moves no objects
        second = replicate()
    engine.stop()
    assert len(first) == 4 if layout == "mirror" else len(first) >= 4
    assert len(second) >= len(first) + 2
    assert {each for each in first | second if not each.startswith(f"{sides.bucket}/{layout}/")} == set()
    assert {each for each in first | second if "//" in each.removeprefix("s3a://")} == set()
