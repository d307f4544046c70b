"""A database of which files are kept: on a disk or in a bucket, with a `$cmroot` on either, and what happens to both.

The metastore's `s3a:` are local directories (`s3a_as_directories`). The objects are real ones, written and removed by
the tests as Spark or Hive would. A module that uses the fixtures imports both, and has a fixture `buckets`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from engines import local_engine
from metastores import MetastoreFactory
from names import unique
from plain_tables import text_storage
from stores import s3a_as_directories

import replicator
from cmroot.log.captured import segments
from cmroot.root import ChangeRoot, create_or_open
from cmroot.store.place import Place
from cmroot.store.remote import FsspecStore
from replicator.captures.recording import Captured
from replicator.core.engine import AutoEngine
from replicator.core.model import Column, Database, Partition, Table
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.replay.apply.load import Loaded


def s3(operation: str, bucket: str, **arguments: Any) -> Any:
    name = bucket.partition("://")[2]
    return FsspecStore(bucket).filesystem.call_s3(operation, Bucket=name, **arguments)


def set_versioning(bucket: str, status: str) -> None:
    s3("put_bucket_versioning", bucket, VersioningConfiguration={"Status": status})


@dataclass
class Sides:
    """Two metastores; `outside` lies in no warehouse."""

    source: Running
    target: Running
    outside: Path
    engine: AutoEngine


@pytest.fixture(scope="module", name="sides")
def two_sides(
    buckets: list[str],
    metastore_factory: MetastoreFactory,
    target_metastore: Running,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sides]:
    mounts = tmp_path_factory.mktemp("mounts")
    source = metastore_factory("source", settings=s3a_as_directories(mounts, buckets))
    engine = local_engine()
    yield Sides(source, target_metastore, tmp_path_factory.mktemp("outside"), engine)
    engine.stop()


@dataclass
class KeptDatabase:
    """One database, its `$cmroot`, and what happens to them."""

    sides: Sides
    db: str
    root: ChangeRoot
    source: ThriftMetastore
    work: Path
    homes: dict[str, str] = field(default_factory=dict)
    dumps: int = 0

    def table(self, name: str, store: str) -> None:
        """A table, partitioned by p, on some store."""
        self.homes[name] = f"{store}/{self.db}/{name}"
        keys = (Column("p", "string"),)
        self.source.create_table(
            Table(db=self.db, name=name, storage=text_storage(self.homes[name]), partition_keys=keys)
        )

    def place(self, table: str, value: str) -> str:
        return f"{self.homes[table]}/p={value}/part-0"

    def write(self, table: str, value: str, text: str) -> None:
        """By somebody who tells no metastore. Bytes are this story's own: the target keeps those of all stories."""
        place = self.place(table, value)
        Place(place).remove()  # a new inode, as every writer makes
        Place(place).write_bytes(f"{self.db}: {text}".encode())

    def add(self, table: str, value: str, text: str) -> None:
        self.write(table, value, text)
        partition = Partition(values=(value,), storage=text_storage(f"{self.homes[table]}/p={value}"))
        self.source.add_partitions(self.db, table, [partition])

    def drop(self, table: str, value: str, remove: Callable[[str], None] | None = None) -> None:
        """The metastore forgets it, then `remove` takes its directory away."""
        self.source.drop_partitions(self.db, table, [f"p={value}"])
        place = f"{self.homes[table]}/p={value}"
        (remove or Place(place).store.remove_tree)(place)

    def capture(self, keeper: str = "auto", **options: Any) -> Captured:
        return replicator.capture(
            source=self.sides.source.uri,
            cmroot=self.root.place,
            db=self.db,
            keeper=keeper,
            engine=self.sides.engine,
            **options,
        )

    def dump(self, **options: Any) -> str:
        """Of what was captured already."""
        self.dumps += 1
        dumped = replicator.dump(
            source=self.sides.source.uri,
            cmroot=self.root.place,
            db=self.db,
            **{"out": str(self.work / f"dump{self.dumps}")} | options,
            capture_first=False,
            engine=self.sides.engine,
        )
        return dumped.dump

    def load(self, dump: str, **options: Any) -> Loaded:
        return replicator.load(dump, target=self.sides.target.uri, engine=self.sides.engine, **options)

    def replica(self, table: str, db: str | None = None) -> Mapping[str, str]:
        """The target's files of a table: name below the table -> text."""
        with connect(self.sides.target.uri) as target:
            home = Path((target.table(db or self.db, table).location or "").removeprefix("file:"))
        files = (path for path in home.rglob("*") if path.is_file() and not path.name.startswith("."))
        return {str(path.relative_to(home)): path.read_text().removeprefix(f"{self.db}: ") for path in files}

    def differences(self) -> list[Any]:
        return replicator.verify(
            source=self.sides.source.uri, target=self.sides.target.uri, db=self.db, engine=self.sides.engine
        ).differences

    def entries(self, op: str = "add") -> list[dict[str, Any]]:
        rows = [
            row
            for segment in segments(self.root.place)
            for batch in segment.file_batches()
            for row in batch.to_pylist()
        ]
        return [row for row in rows if row["op"] == op]

    def kept_files(self) -> list[str]:
        return (Place(self.root.place) / "files").find()


@pytest.fixture(name="fixture")
def databases(sides: Sides, tmp_path: Path) -> Iterator[Callable[..., KeptDatabase]]:
    """`fixture(store, root_on)`: a new database on a store ("" is a local directory), its root on another."""
    opened: list[ThriftMetastore] = []

    def make(store: str = "", root_on: str = "") -> KeptDatabase:
        db = unique("kept")
        metastore = connect(sides.source.uri)
        opened.append(metastore)
        home = store or str(sides.outside)
        metastore.create_database(Database(name=db, location=text_storage(f"{home}/{db}.db").location))
        root = create_or_open(f"{root_on or sides.outside}/{db}-cmroot")
        return KeptDatabase(sides, db, root, metastore, tmp_path)

    yield make
    for metastore in opened:
        metastore.close()
