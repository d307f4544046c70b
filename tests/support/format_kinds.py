"""Tables of each format that needs no engine, in one database: made and written at either side, and read by a reader of
the format. A further format is a class in `KINDS`; its `column` is that of the table in docs/formats.md.
"""

from __future__ import annotations

import gzip
import json
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import deltalake
import hudi_tables
import iceberg_views
import msgspec
import pyarrow as pa
from iceberg_tables import SCHEMA, catalog, rows, shown
from plain_tables import PlainDatabase, text_storage

from replicator.core.formats.interface import POINTER
from replicator.core.model import EXTERNAL, Table

LINKS = "org.apache.hadoop.hive.ql.io.SymlinkTextInputFormat"


class Kind(ABC):
    """A table of one format. uri: of the metastore of the side. Numbers are its rows, one a write."""

    column: ClassVar[str]
    name: ClassVar[str]

    @abstractmethod
    def make(self, db: PlainDatabase, uri: str) -> None: ...

    @abstractmethod
    def write(self, db: PlainDatabase, uri: str, number: int) -> None: ...

    @abstractmethod
    def rows(self, db: PlainDatabase, uri: str) -> list[int]:
        """The numbers, in order."""

    def place(self, db: PlainDatabase) -> Path:
        return Path(urlsplit(str(db.metastore.table(db.name, self.name).location)).path)

    def files(self, db: PlainDatabase) -> list[Path]:
        """Those that a reader needs."""
        return [path for path in sorted(self.place(db).rglob("*")) if path.is_file() and path.name[0] != "."]


class Plain(Kind):
    column, name = "plain", "plain"

    def make(self, db: PlainDatabase, uri: str) -> None:
        db.table(self.name)

    def write(self, db: PlainDatabase, uri: str, number: int) -> None:
        db.write(str(self.place(db)), {f"part-{number}": f"{number}\n"})
        db.alter(self.name, last=str(number))

    def rows(self, db: PlainDatabase, uri: str) -> list[int]:
        return sorted(int(path.read_text()) for path in self.files(db))


class Delta(Kind):
    column, name = "Delta", "delta"

    def make(self, db: PlainDatabase, uri: str) -> None:
        db.table(self.name, kind=EXTERNAL)
        db.alter(self.name, **{"spark.sql.sources.provider": "delta"})

    def write(self, db: PlainDatabase, uri: str, number: int) -> None:
        data = pa.table({"id": pa.array([number], pa.int64())})
        deltalake.write_deltalake(str(self.place(db)), data, mode="append")

    def rows(self, db: PlainDatabase, uri: str) -> list[int]:
        return sorted(deltalake.DeltaTable(str(self.place(db))).to_pyarrow_table()["id"].to_pylist())


class Hudi(Kind):
    column, name = "Hudi", "hudi"

    def make(self, db: PlainDatabase, uri: str) -> None:
        hudi_tables.make_small(db, self.name)

    def write(self, db: PlainDatabase, uri: str, number: int) -> None:
        hudi_tables.append(self.place(db), number)

    def rows(self, db: PlainDatabase, uri: str) -> list[int]:
        return hudi_tables.ids(self.place(db))


class Iceberg(Kind):
    column, name = "Iceberg tables", "ice"

    def make(self, db: PlainDatabase, uri: str) -> None:
        place = f"file://{db.home}/{self.name}"
        catalog(uri).create_table(f"{db.name}.{self.name}", SCHEMA, location=place)

    def write(self, db: PlainDatabase, uri: str, number: int) -> None:
        catalog(uri).load_table(f"{db.name}.{self.name}").append(rows(number))

    def rows(self, db: PlainDatabase, uri: str) -> list[int]:
        return shown(catalog(uri).load_table(f"{db.name}.{self.name}"))

    def files(self, db: PlainDatabase) -> list[Path]:
        return [path for path in super().files(db) if path.suffix == ".parquet"]


class View(Kind):
    """Its rows are the numbers that its queries select, one for each version: the newest is read."""

    column, name = "Iceberg views", "seen"

    def make(self, db: PlainDatabase, uri: str) -> None:
        iceberg_views.make(db, "select 0", name=self.name)

    def write(self, db: PlainDatabase, uri: str, number: int) -> None:
        iceberg_views.make(db, f"select {number}", number=number, name=self.name)

    def rows(self, db: PlainDatabase, uri: str) -> list[int]:
        (file,) = self.files(db)
        (version,) = json.loads(gzip.decompress(file.read_bytes()))["versions"]
        newest = int(version["representations"][0]["sql"].removeprefix("select "))
        return list(range(1, newest + 1))

    def files(self, db: PlainDatabase) -> list[Path]:
        pointer = db.metastore.table(db.name, self.name).parameters[POINTER]
        return [Path(urlsplit(pointer).path)]


class Symlink(Kind):
    """Each line names a file of the plain table."""

    column, name = "symlink", "links"

    def make(self, db: PlainDatabase, uri: str) -> None:
        storage = msgspec.structs.replace(text_storage(db.home / self.name), input_format=LINKS)
        about = {"kind": EXTERNAL, "parameters": {"EXTERNAL": "TRUE"}}
        db.metastore.create_table(Table(db=db.name, name=self.name, storage=storage, **about))
        db.write(self.name, {})

    def write(self, db: PlainDatabase, uri: str, number: int) -> None:
        db.write(str(self.place(db)), {f"link-{number}": f"file:{db.home}/plain/part-{number}\n"})

    def rows(self, db: PlainDatabase, uri: str) -> list[int]:
        lines = (line for path in self.files(db) for line in path.read_text().splitlines())
        return sorted(int(Path(re.sub("^file:(//)?", "", line)).read_text()) for line in lines)


KINDS: tuple[Kind, ...] = (Plain(), Delta(), Hudi(), Iceberg(), View(), Symlink())
