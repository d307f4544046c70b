"""Inventory: queries on the contents of a manifest: databases, tables, partitions, and their files. Reads only.

An *object* below is a table (partition "") or one partition of it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from cmroot.errors import FormatError
from cmroot.log.captured import FILES, RELEASE
from replicator.core.model import (
    WHOLE,
    Column,
    Constraint,
    Database,
    Function,
    Grant,
    Partition,
    RoleMembers,
    Statistics,
    Table,
)
from replicator.errors import sqlite_error
from replicator.metastore.events.facts import SetWriteIds

_PAGE = 10_000
_T = TypeVar("_T")


_READER = "coalesce(lower(json_extract(CAST(body AS TEXT), '$.storage.input_format')), '')"
NOT_WHOLE = " AND ".join(f"{_READER} NOT LIKE '{each}%'" for each in WHOLE)
SPLIT = f"json_type(CAST(body AS TEXT), '$.partition_keys') NOTNULL AND {NOT_WHOLE}"
"""`Table.has_files_by_partition`, of a row of `tables`."""


def has_files(table: Table) -> bool:
    return not table.is_view and bool(table.location)


@dataclass(frozen=True)
class DataObject:
    """A table or partition that has files: its keys in the manifest, its names, its location, and the position of the
    last record that touched it (for a partition, at least the position at which its table got its name). `root`: the
    directory of a partitioned table, whose files are those that none of its partitions has."""

    table_id: int
    partition_id: int
    db: str
    table: str
    partition: str
    location: str
    touched: int
    root: bool = False

    @property
    def label(self) -> str:
        """The object in messages: `db.table/partition at location`."""
        partition = f"/{self.partition}" if self.partition else ""
        return f"{self.db}.{self.table}{partition} at {self.location}"


@dataclass(frozen=True)
class KnownFile:
    """One file of an object as last recorded."""

    path: str
    size: int
    mtime_ns: int
    identity: str
    checksum: str | None
    kept: bool
    version: str | None = None


@dataclass(frozen=True)
class ListedTable:
    """A table in a list: its id, its names, and its format."""

    id: int
    db: str
    name: str
    format: str


@dataclass(frozen=True)
class TableContents:
    """The contents of a table: the table, its files and their bytes, and the position of the last record about it, its
    partitions or its files."""

    table: Table
    files: int
    bytes: int
    changed: int


FILE = "f.path, f.size, f.mtime_ns, f.identity, f.checksum, f.kept, f.version"  # columns of a KnownFile
_PLACE = (  # of a file's object; files outside of their table's location have negative numbers instead of partitions
    "CASE WHEN f.partition_id < 0 THEN (SELECT s.location FROM stores s WHERE s.id = -f.partition_id)"
    " ELSE coalesce(p.location, t.location) END"
)


@contextlib.contextmanager
def last_recorded(path: Path) -> Iterator[Inventory | None]:
    """Opens a manifest for reading, as the last capture committed it, without the lease of its root; None: it does not
    exist on this host. Raises the errors of `sqlite_error`."""
    if not path.exists():
        yield None
        return
    uri = f"{path.as_uri()}?mode=ro"
    with naming_damage(path), contextlib.closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as db:
        db.execute("BEGIN")
        yield Inventory(db)


@contextlib.contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Raises the errors of `sqlite_error` for what cannot be read in a manifest, FormatError for a damaged body."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise sqlite_error(path, error) from error
    except msgspec.DecodeError as error:
        raise FormatError(f"{path}: {error}", hint="delete it: it is rebuilt from the log") from error


class Inventory:
    """The contents of a manifest's database. Memory does not grow with the number of objects."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def databases(self) -> list[Database]:
        return self._bodies(Database, "databases ORDER BY name")

    def scope(self) -> set[str]:
        """Returns the captured databases. A dropped database remains among them, so that its re-creation is noticed."""
        return {name for (name,) in self._db.execute("SELECT db FROM scope")}

    def database(self, name: str) -> Database | None:
        return next(iter(self._bodies(Database, "databases WHERE name = ?", name)), None)

    def functions(self, db: str) -> list[Function]:
        return self._bodies(Function, "functions WHERE db = ? ORDER BY name", db)

    def table_names(self, db: str) -> list[str]:
        return [name for (name,) in self._db.execute("SELECT name FROM tables WHERE db = ? ORDER BY name", (db,))]

    def all_tables(self) -> list[tuple[int, str, str]]:
        """Returns (id, database, name) in the order of the ids; a rename keeps the id."""
        return self._db.execute("SELECT id, db, name FROM tables ORDER BY id").fetchall()

    def tables_from(self, db: str, name: str) -> Iterator[ListedTable]:
        """Yields tables by name, from this one on."""
        yield from self._listed("(t.db, t.name) >= (?, ?)", db, name)

    def select(self, query: str, *about: object) -> list[tuple[Any, ...]]:
        """Returns the rows of a query of another module of this package."""
        return self._db.execute(query, about).fetchall()

    def change(self, statement: str, *rows: Sequence[object]) -> int:
        """Executes a statement of another module of this package for each row. Returns the number of changes."""
        return self._db.executemany(statement, rows).rowcount

    def tables_named(self, names: Iterable[tuple[str, str]]) -> Iterator[ListedTable]:
        """Yields those of some tables (database, name) that exist, in the given order."""
        for db, name in names:
            yield from self._listed("t.db = ? AND t.name = ?", db, name)

    def recall(self, key: str) -> str | None:
        """Returns a small value, as `Manifest.remember` stored it; `position`: of the last record."""
        row = self._db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def contents(self, table_id: int) -> TableContents:
        """Returns the contents of a table. It must exist."""
        (row,) = self._db.execute(
            "SELECT t.body, (SELECT count(*) FROM files f WHERE f.table_id = t.id),"
            " (SELECT coalesce(sum(f.size), 0) FROM files f WHERE f.table_id = t.id),"
            " max(t.touched, t.named, (SELECT coalesce(max(p.touched), 0) FROM partitions p WHERE p.table_id = t.id),"
            " (SELECT coalesce(max(f.since), 0) FROM files f WHERE f.table_id = t.id)) FROM tables t WHERE t.id = ?",
            (table_id,),
        ).fetchall()
        return TableContents(msgspec.json.decode(row[0], type=Table), *map(int, row[1:]))

    def in_own_format(self) -> Iterator[ListedTable]:
        """Yields the tables in a format other than Hive's, by name."""
        yield from self._listed("f.format IS NOT NULL")

    def sizes(self) -> Iterator[tuple[ListedTable, int]]:
        """Yields every table with the bytes of its files. Reads every file entry."""
        sums = dict(self._db.execute("SELECT table_id, sum(size) FROM files GROUP BY table_id"))
        for each in self._listed("1"):
            yield each, int(sums.get(each.id) or 0)

    def size_of(self, db: str, name: str) -> int:
        """Returns the bytes of a table's files."""
        row = self._db.execute("SELECT sum(size) FROM files WHERE table_id = ?", (self._table_id(db, name),)).fetchone()
        return int(row[0] or 0)

    def _listed(self, where: str, *about: object) -> Iterator[ListedTable]:
        rows = self._db.cursor().execute(
            "SELECT t.id, t.db, t.name, coalesce(f.format, 'plain') FROM tables t LEFT JOIN formats f"
            f" ON f.table_id = t.id WHERE {where} ORDER BY t.db, t.name",
            about,
        )
        yield from (ListedTable(*row) for row in rows)

    def table(self, db: str, name: str) -> Table | None:
        return next(iter(self._bodies(Table, "tables WHERE db = ? AND name = ?", db, name)), None)

    def formats(self, db: str) -> dict[str, str]:
        """Returns the tables of a database in a format other than Hive's, by name."""
        rows = self._db.execute(
            "SELECT t.name, f.format FROM formats f JOIN tables t ON t.id = f.table_id WHERE t.db = ? ORDER BY t.name",
            (db,),
        )
        return dict(rows.fetchall())

    def partition_count(self, db: str, name: str) -> int:
        query = "SELECT count(*) FROM partitions WHERE table_id = ?"
        return int(self._db.execute(query, (self._table_id(db, name),)).fetchone()[0])

    def partition_names(self, db: str, name: str) -> Iterator[str]:
        for (found,) in self._pages(
            "SELECT name FROM partitions WHERE table_id = ? AND name > ? ORDER BY name LIMIT ?",
            self._table_id(db, name),
        ):
            yield found

    def partitions(self, db: str, name: str, batch: int = 1000) -> Iterator[list[Partition]]:
        """Yields a table's complete partitions, in batches."""
        columns: dict[int, tuple[Column, ...]] = {}
        decoder = msgspec.json.Decoder(Partition)
        page: list[Partition] = []
        for _, number, body in self._pages(
            "SELECT name, columns, body FROM partitions WHERE table_id = ? AND name > ? ORDER BY name LIMIT ?",
            self._table_id(db, name),
        ):
            page.append(self._unpack(decoder.decode(body), number, columns))
            if len(page) == batch:
                yield page
                page = []
        if page:
            yield page

    def partitions_by_name(self, db: str, name: str, names: Sequence[str]) -> dict[str, Partition]:
        """Returns some partitions of a table, by escaped name; unknown ones are left out."""
        table_id, columns = self._table_id(db, name), dict[int, tuple[Column, ...]]()
        found = {}
        for wanted in names:
            row = self._db.execute(
                "SELECT columns, body FROM partitions WHERE table_id = ? AND name = ?", (table_id, wanted)
            ).fetchone()
            if row:
                found[wanted] = self._unpack(msgspec.json.decode(row[1], type=Partition), row[0], columns)
        return found

    def _unpack(self, slim: Partition, number: int, cache: dict[int, tuple[Column, ...]]) -> Partition:
        if slim.storage is None:
            return slim
        if number not in cache:
            (body,) = self._db.execute("SELECT body FROM columns WHERE id = ?", (number,)).fetchone()
            cache[number] = msgspec.json.decode(body, type=tuple[Column, ...])
        storage = msgspec.structs.replace(slim.storage, columns=cache[number])
        return msgspec.structs.replace(slim, storage=storage)

    def statistics(self, db: str, name: str) -> list[Statistics]:
        return self._bodies(Statistics, "statistics WHERE table_id = ? ORDER BY partition", self._table_id(db, name))

    def measured(self, db: str, name: str) -> frozenset[str]:
        """Returns the partitions of a table that have statistics, and "" if the table itself has some."""
        rows = self._db.execute("SELECT partition FROM statistics WHERE table_id = ?", (self._table_id(db, name),))
        return frozenset(name for (name,) in rows)

    def constraints(self, db: str, name: str) -> tuple[Constraint, ...]:
        found = self._bodies(tuple[Constraint, ...], "constraints WHERE table_id = ?", self._table_id(db, name))
        return found[0] if found else ()

    def write_ids(self, db: str, name: str) -> SetWriteIds | None:
        """Returns the last record of a transactional table's write ids."""
        return next(iter(self._bodies(SetWriteIds, "write_ids WHERE table_id = ?", self._table_id(db, name))), None)

    def grants(self, db: str, name: str = "") -> dict[str, tuple[Grant, ...]]:
        """Returns the grants of a table and its columns (""), and of its partitions; without a name, those of the
        database ("")."""
        owner = (self._table_id(db, name), "") if name else (0, db)
        rows = self._db.execute("SELECT partition, body FROM grants WHERE table_id = ? AND db = ?", owner)
        return {partition: msgspec.json.decode(body, type=tuple[Grant, ...]) for partition, body in rows}

    def granted_tables(self, db: str) -> set[str]:
        """Returns the tables of a database with grants."""
        query = "SELECT DISTINCT t.name FROM grants g JOIN tables t ON t.id = g.table_id WHERE t.db = ?"
        return {name for (name,) in self._db.execute(query, (db,))}

    def roles(self, db: str) -> tuple[RoleMembers, ...]:
        """Returns the roles to which objects of a database are granted."""
        found = self._bodies(tuple[RoleMembers, ...], "roles WHERE db = ?", db)
        return found[0] if found else ()

    def children(self, db: str, name: str) -> list[tuple[str, str]]:
        """Returns the tables with a foreign key to this table, including itself."""
        rows = self._db.execute(
            "SELECT t.db, t.name FROM parents p JOIN tables t ON t.id = p.table_id WHERE p.db = ? AND p.name = ?"
            " ORDER BY t.db, t.name",
            (db, name),
        )
        return [(db, name) for db, name in rows]

    def files(self, table_id: int, partition_id: int) -> dict[str, KnownFile]:
        """Returns the files of one object by path."""
        rows = self._db.execute(
            f"SELECT {FILE} FROM files f WHERE table_id = ? AND partition_id = ?", (table_id, partition_id)
        )
        return {row[0]: KnownFile(*row) for row in rows}

    def property_files(self, db: str) -> list[tuple[str, str, str]]:
        """Returns the files that properties of a database's tables name: (path in its `NAMED`, place, table)."""
        rows = self._db.execute(
            "SELECT n.path, n.place, t.name FROM named_files n JOIN tables t ON t.id = n.table_id WHERE t.db = ?"
            " ORDER BY n.path, t.name",
            (db,),
        )
        return [(path, place, name) for path, place, name in rows]

    def recorded_files(self, db: str) -> list[tuple[str, KnownFile]]:
        """Returns the recorded files that metadata of a database names: (directory, known state)."""
        rows = self._db.execute(f"SELECT f.location, {FILE} FROM recorded_files f WHERE db = ? ORDER BY path", (db,))
        return [(row[0], KnownFile(*row[1:])) for row in rows]

    def weight(self, obj: DataObject) -> tuple[int, int]:
        """Returns the number of files of one object, and their size in bytes."""
        row = self._db.execute(
            "SELECT count(*), coalesce(sum(size), 0) FROM files WHERE table_id = ? AND partition_id = ?",
            (obj.table_id, obj.partition_id),
        ).fetchone()
        return int(row[0]), int(row[1])

    def bytes_of_tables(self, db: str) -> dict[str, int]:
        """Returns the size in bytes of the files of each table of a database, including its partitions."""
        rows = self._db.execute(
            "SELECT t.name, sum(f.size) FROM files f JOIN tables t ON t.id = f.table_id WHERE t.db = ? GROUP BY t.id",
            (db,),
        )
        return {name: int(size or 0) for name, size in rows}

    def table_files(self, db: str, name: str) -> Iterator[tuple[Any, ...]]:
        """Yields a table's files: (partition, location, path, size, mtime_ns, identity, checksum, kept, version)."""
        yield from self._db.cursor().execute(
            f"SELECT coalesce(p.name, ''), {_PLACE}, {FILE} FROM files f JOIN tables t ON t.id = f.table_id"
            " LEFT JOIN partitions p ON p.id = f.partition_id WHERE f.table_id = ?",
            (self._table_id(db, name),),
        )

    def directories(
        self, db: str = "", names: Sequence[str] = (), batch: int = 50_000
    ) -> Iterator[list[tuple[int, int, str, int, int, str]]]:
        """Yields every listed directory in batches, or those of some tables of a database: (table_id, partition_id,
        full path, mtime_ns, listed_ns, identity)."""
        some = f" WHERE t.db = ? AND t.name IN ({', '.join('?' * len(names))})" if db else ""
        cursor = self._db.cursor().execute(
            "SELECT d.table_id, d.partition_id, coalesce(p.location, t.location) ||"
            " CASE d.path WHEN '' THEN '' ELSE '/' || d.path END, d.mtime_ns, d.listed_ns, d.identity"
            " FROM directories d JOIN tables t ON t.id = d.table_id LEFT JOIN partitions p ON p.id = d.partition_id"
            + some,
            (db, *names) if db else (),
        )
        while rows := cursor.fetchmany(batch):
            yield rows

    def _bodies(self, kind: type[_T], rows: str, *about: object) -> list[_T]:
        """Returns the decoded JSON of some rows. `rows`: a table with its conditions."""
        found = self._db.execute(f"SELECT body FROM {rows}", about).fetchall()
        return [msgspec.json.decode(body, type=kind) for (body,) in found]

    def _table_id(self, db: str, name: str) -> int | None:
        row = self._db.execute("SELECT id FROM tables WHERE db = ? AND name = ?", (db, name)).fetchone()
        return int(row[0]) if row else None

    def _pages(self, query: str, table_id: int | None) -> Iterator[tuple[Any, ...]]:
        """Yields the rows of a query keyed by (table_id, name > last), by pages, to limit memory. Not by ids, which the
        index does not have in order: each page would read all rows."""
        last = ""
        while rows := self._db.execute(query, (table_id, last, _PAGE)).fetchall():
            yield from rows
            last = rows[-1][0]


# ---- ends ------------------------------------------------------------------------------------------------------------
# Ends of references: when a known file is removed, the log gets a `release` row with the position that added it.
#
# Rows that the manifest is about to delete are collected in a temporary table; capture drains it into the segment.
# Folding the log again collects the same rows and discards them.


_ROWS_OF_A_PAGE = 20_000
_COLUMNS = (*(name for name in FILES.names if name not in ("op", "since")), "since")
_CHECKSUM = _COLUMNS.index("checksum")


class Ends:
    """The references that ended since the last `drain`, inside the transaction of the manifest's owner."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        db.execute(
            "CREATE TEMP TABLE IF NOT EXISTS ended (id INTEGER PRIMARY KEY, position, db, tbl, partition, location,"
            " path, size, mtime_ns, identity, checksum, kept, version, since)"
        )

    def of_table(self, table_id: int, at: int) -> None:
        """Ends the references of every file of a table and its partitions at a position."""
        self._gather("f.table_id = ?", [(at, table_id)])

    def of_object(self, table_id: int, partition_id: int, at: int) -> None:
        """Ends the references of every file of one object at a position; see `Fold`."""
        which = "f.partition_id = ?" if partition_id else "f.partition_id <= ?"
        self._gather(f"f.table_id = ? AND {which}", [(at, table_id, partition_id)])

    def of_files(self, files: Iterable[tuple[int, int, int, str]]) -> None:
        """Ends the references of single files (position, table_id, partition_id, path) that are removed or replaced."""
        self._gather("f.table_id = ? AND f.partition_id = ? AND f.path = ?", files)

    def at_once(self, rows: Iterable[tuple[object, ...]]) -> None:
        """Adds references that the manifest never had: their object was dropped again. Values in column order."""
        self._db.executemany(
            f"INSERT INTO temp.ended VALUES (NULL{', ?' * len(_COLUMNS)})",
            (row for row in rows if row[_CHECKSUM] is not None),
        )

    def _gather(self, which: str, arguments: Iterable[tuple[object, ...]]) -> None:
        self._db.executemany(
            f"INSERT INTO temp.ended SELECT NULL, ?, t.db, t.name, coalesce(p.name, ''), {_PLACE}, {FILE},"
            " f.since FROM files f JOIN tables t ON t.id = f.table_id LEFT JOIN partitions p ON p.id = f.partition_id"
            f" WHERE {which} AND f.checksum IS NOT NULL",
            arguments,
        )

    def drain(self) -> Iterator[pa.Table]:
        """Yields the rows, as cmroot.log.segment.FILES, one page at a time, and clears them at the end."""
        last = 0
        while rows := self._db.execute(
            "SELECT * FROM temp.ended WHERE id > ? ORDER BY id LIMIT ?", (last, _ROWS_OF_A_PAGE)
        ).fetchall():
            numbers, *columns = zip(*rows, strict=True)
            last = numbers[-1]
            table = {"op": pa.array([RELEASE] * len(rows))}
            for name, values in zip(_COLUMNS, columns, strict=True):
                if name == "kept":
                    values = tuple(map(bool, values))
                table[name] = pa.array(values, FILES.field(name).type)
            yield pa.table(table)
        self.clear()

    def clear(self) -> None:
        self._db.execute("DELETE FROM temp.ended")
