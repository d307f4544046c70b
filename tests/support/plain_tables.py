"""Tables of plain text files, made through thrift, and what a database of them shows. For tests that need no SQL.

`PlainDatabase` is one database of one metastore. `shown` is what a reader would see of it, with places relative to the
database, so that a source and its replica can be compared; `everything` is all there is, hidden files and marks too, so
that a test can say that nothing was touched.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from replicator.core.model import EXTERNAL, Column, Database, Function, Partition, Serde, Storage, Table, partition_name
from replicator.metastore.thrift import ThriftMetastore, connect

COLUMNS = (Column("a", "int"), Column("b", "string"))
KEYS = (Column("p", "string"),)
OURS = ("replicator.", "repl.")
SERVERS_OWN = "transient_lastDdlTime"  # a server's note of when it changed something


class PlainDatabase:
    """A database in `warehouse`, a path or an `HdfsPath`, which need not exist yet."""

    def __init__(self, metastore: ThriftMetastore, name: str, warehouse: Any) -> None:
        self.metastore, self.name, self.home = metastore, name, warehouse / f"{name}.db"

    # ---- making ---------------------------------------------------------------------------------------------------

    def create(self) -> None:
        self.home.mkdir(parents=True)
        self.metastore.create_database(Database(name=self.name, location=located(self.home)))

    def table(self, name: str, files: Mapping[str, str] | None = None, **more: Any) -> Table:
        """Makes a table; `files` are name -> text."""
        kind = more.get("kind")
        parameters = {"EXTERNAL": "TRUE"} if kind == EXTERNAL else {}
        table = Table(db=self.name, name=name, storage=text_storage(self.home / name), parameters=parameters, **more)
        self.metastore.create_table(table)
        self.write(name, files or {})
        return self.metastore.table(self.name, name)

    def partitioned(self, name: str, partitions: Mapping[str, Mapping[str, str]]) -> None:
        """Makes a table partitioned by `p`: value -> files."""
        self.table(name, partition_keys=KEYS)
        self.add(name, partitions)

    def add(self, name: str, partitions: Mapping[str, Mapping[str, str]]) -> None:
        made = []
        for value, files in partitions.items():
            self.write(f"{name}/p={value}", files)
            made.append(Partition(values=(value,), storage=text_storage(self.home / name / f"p={value}")))
        self.metastore.add_partitions(self.name, name, made)

    def partition(self, value: str, place: Path) -> Partition:
        return Partition(values=(value,), storage=text_storage(place))

    def write(self, place: str, files: Mapping[str, str]) -> None:
        """Files below a place, as a writer makes them: a new file under a name of its own, then renamed."""
        directory = self.home / place
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            aside = directory / f".{name}.writing"
            aside.write_text(text)
            aside.rename(directory / name)

    def function(self, name: str) -> None:
        made = Function(db=self.name, name=name, class_name=f"org.example.{name}", owner="me", owner_type="USER")
        self.metastore.create_function(made)

    def alter(self, name: str, **changes: str) -> None:
        table = self.metastore.table(self.name, name)
        parameters = {**table.parameters, **changes}
        self.metastore.alter_table(self.name, name, msgspec.structs.replace(table, parameters=parameters))

    def alter_partition(self, name: str, value: str, **changes: str) -> None:
        (found,) = self.metastore.partitions(self.name, name, [f"p={value}"])
        altered = msgspec.structs.replace(found[0], parameters={**found[0].parameters, **changes})
        self.metastore.alter_partitions(self.name, name, [altered])

    def rename(self, old: str, new: str) -> None:
        """The server moves the directory."""
        table = self.metastore.table(self.name, old)
        self.metastore.alter_table(self.name, old, msgspec.structs.replace(table, name=new))

    def drop(self, name: str) -> None:
        self.metastore.drop_table(self.name, name)
        remove_tree(self.home / name)

    def drop_partitions(self, name: str, values: Iterable[str]) -> None:
        values = list(values)
        self.metastore.drop_partitions(self.name, name, [f"p={value}" for value in values])
        for value in values:
            remove_tree(self.home / name / f"p={value}")

    # ---- looking --------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return self.name in self.metastore.database_names()

    def shown(self) -> dict[str, Any]:
        """Every object with what a reader sees of it: definition, relative place, files by digest."""
        found: dict[str, Any] = {}
        for function in self.metastore.functions(self.name):
            found[f"function {function.name}"] = function.class_name
        for name in self.metastore.table_names(self.name):
            table = self.metastore.table(self.name, name)
            found[name] = {"kind": table.kind, "keys": table.partition_keys, **self._about(table)}
            if not table.partition_keys:
                continue
            names = self.metastore.partition_names(self.name, name)
            for batch in self.metastore.partitions(self.name, name, names):
                for partition in batch:
                    found[f"{name}/{partition_name(table.partition_keys, partition.values)}"] = self._about(partition)
        return found

    def _about(self, obj: Table | Partition) -> dict[str, Any]:
        assert obj.storage and obj.location
        place = self._place(obj.location)
        owned = {key: value for key, value in obj.parameters.items() if not key.startswith((*OURS, SERVERS_OWN))}
        partitioned = isinstance(obj, Table) and obj.partition_keys
        return {
            "columns": obj.storage.columns,
            "parameters": owned,
            "serde": obj.storage.serde,
            "place": str(place.relative_to(self.home)) if place.is_relative_to(self.home) else str(place),
            "files": {}
            if partitioned
            else {
                name: digest for name, digest in _files(place).items() if not name.rpartition("/")[2].startswith(".")
            },
        }

    def _place(self, location: str) -> Any:
        if isinstance(self.home, Path):
            return Path(location.removeprefix("file:"))
        return dataclasses.replace(self.home, path="/" + location.partition("://")[2].partition("/")[2])

    def everything(self) -> dict[str, Any]:
        """All there is: every metadata object as the server tells it, and every file below the database, by digest."""
        if not self.exists():
            return {"files": _files(self.home)}
        names = self.metastore.table_names(self.name)
        return {
            "database": self.metastore.database(self.name),
            "functions": self.metastore.functions(self.name),
            "tables": {name: self.metastore.table(self.name, name) for name in names},
            "partitions": {
                name: [
                    partition
                    for batch in self.metastore.partitions(
                        self.name, name, self.metastore.partition_names(self.name, name)
                    )
                    for partition in batch
                ]
                for name in names
                if self.metastore.table(self.name, name).partition_keys
            },
            "files": _files(self.home),
        }


@contextmanager
def plain_database(uri: str, name: str, warehouse: Path) -> Iterator[PlainDatabase]:
    """A new database, whose name begins with `name`, and its connection for the length of a block."""
    with connect(uri) as client:
        db = PlainDatabase(client, f"{name}_{uuid.uuid4().hex[:8]}", warehouse)
        db.create()
        yield db


def text_storage(place: Path | str, columns: tuple[Column, ...] = COLUMNS) -> Storage:
    """Of a text table at a local path, or at a URI."""
    return Storage(
        columns=columns,
        location=located(place),
        input_format="org.apache.hadoop.mapred.TextInputFormat",
        output_format="org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
        serde=Serde(library="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"),
    )


def located(place: object) -> str:
    """A path as a URI; a URI as it is."""
    return str(place) if ":/" in str(place) else f"file:{place}"


def remove_tree(place: Any) -> None:
    place.rmtree() if hasattr(place, "rmtree") else shutil.rmtree(place)


def _files(place: Any) -> dict[str, str]:
    """Relative path -> digest of every file below a place."""
    if not isinstance(place, Path):
        return {each.relative_to(place): hashlib.md5(each.read_bytes()).hexdigest() for each in place.rglob("*")}
    found = {}
    if place.is_file():
        return {"": hashlib.md5(place.read_bytes()).hexdigest()}
    for above, _, names in os.walk(place):
        for name in names:
            path = Path(above) / name
            found[str(path.relative_to(place))] = hashlib.md5(path.read_bytes()).hexdigest()
    return found
