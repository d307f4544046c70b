"""Manifest: what the captured databases consist of at a position, the fold of the captured log up to it.

One SQLite file: metadata objects as JSON, files, and the directories whose listing is known. It is derived: without it,
or behind the log after a crash, it is folded again from the log (`catch_up`). Nothing here talks to a metastore or
lists a directory; memory does not grow with the number of objects.

An *object* below is a table (partition "") or one partition of it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from cmroot.store.place import join
from replicator.captures.apply import Fold, Rename, has_files
from replicator.core.model import Column, Database, Function, Partition, Statistics, Table
from replicator.core.table_format import Format
from replicator.events.record import ChangeRecord

VERSION = 2
_SCHEMA = """
CREATE TABLE state (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE scope (db TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE databases (name TEXT PRIMARY KEY, body BLOB) WITHOUT ROWID;
CREATE TABLE functions (db TEXT, name TEXT, body BLOB, PRIMARY KEY (db, name)) WITHOUT ROWID;
CREATE TABLE tables (id INTEGER PRIMARY KEY, db TEXT, name TEXT, location TEXT, body BLOB, since INTEGER,
  named INTEGER, touched INTEGER, listed INTEGER, UNIQUE (db, name));
CREATE TABLE columns (id INTEGER PRIMARY KEY, body BLOB UNIQUE);
CREATE TABLE partitions (id INTEGER PRIMARY KEY, table_id INTEGER, name TEXT, location TEXT, columns INTEGER, body BLOB,
  since INTEGER, touched INTEGER, listed INTEGER, UNIQUE (table_id, name));
CREATE INDEX unlisted_tables ON tables (id) WHERE NOT listed;
CREATE INDEX unlisted_partitions ON partitions (id) WHERE NOT listed;
CREATE TABLE statistics (table_id INTEGER, partition TEXT, body BLOB, PRIMARY KEY (table_id, partition)) WITHOUT ROWID;
CREATE TABLE files (table_id INTEGER, partition_id INTEGER, path TEXT, size INTEGER, mtime_ns INTEGER, identity TEXT,
  checksum TEXT, kept INTEGER, version TEXT, since INTEGER, PRIMARY KEY (table_id, partition_id, path)) WITHOUT ROWID;
CREATE TABLE directories (table_id INTEGER, partition_id INTEGER, path TEXT, mtime_ns INTEGER, listed_ns INTEGER,
  identity TEXT, PRIMARY KEY (table_id, partition_id, path)) WITHOUT ROWID;
"""
# Derived from the rest, so that manifests of earlier releases get them without being folded again: tables in another
# format than Hive's, and whether a file of a Delta log (by its checksum) names files outside of its table.
_INDEXES = """
CREATE TABLE IF NOT EXISTS formats (table_id INTEGER PRIMARY KEY, format TEXT);
CREATE TABLE IF NOT EXISTS delta_logs (checksum TEXT PRIMARY KEY, outside INTEGER) WITHOUT ROWID;
"""
_PAGE = 10_000


@dataclass(frozen=True)
class DataObject:
    """A table or partition that holds files: its keys in the manifest, its names, where it lies, and the position of
    the last record that touched it (for a partition not before its table got its name)."""

    table_id: int
    partition_id: int
    db: str
    table: str
    partition: str
    location: str
    touched: int

    @property
    def label(self) -> str:
        """For people: `db.table/partition at location`."""
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


class Manifest:
    """The fold. `position` and `event` say up to where. Changes become durable with `commit`, together."""

    def __init__(self, path: str | Path) -> None:
        """Opens or creates the manifest at `path` (":memory:" for a passing one). One of another version is emptied."""
        self._db = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False)
        self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-65536;")
        if self._db.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                self._db.execute(f'DROP TABLE "{name}"')
            self._db.executescript(_SCHEMA + f"PRAGMA user_version={VERSION};")
        self._db.executescript(_INDEXES)
        self._db.execute("BEGIN")
        self._fold = Fold(self._db)
        if self.recall("formats") is None:
            self._fold.note_formats()
            self.remember("formats", "noted")

    # ---- the fold -------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        return self._state("position") or 0

    @property
    def event(self) -> int | None:
        """The last event folded; None before the first capture."""
        return self._state("event")

    def advance(self, position: int, event: int, time: int) -> None:
        """Records how far the fold is."""
        for key, value in (("position", position), ("event", event), ("time", time)):
            self._db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (key, value))

    def commit(self) -> None:
        self._db.execute("COMMIT")
        self._fold.forget()
        self._db.execute("BEGIN")

    def rollback(self) -> None:
        self._db.execute("ROLLBACK")
        self._fold.forget()
        self._db.execute("BEGIN")

    def close(self) -> None:
        with contextlib.suppress(sqlite3.ProgrammingError):
            self._db.close()

    def apply(self, record: ChangeRecord) -> None:
        """Folds one record's metadata. Objects whose files may have changed become unlisted."""
        self._fold.apply(record)

    def apply_files(self, rows: pa.Table, renames: Sequence[Rename] = ()) -> None:
        """Folds file rows; see `Fold.apply_files`."""
        self._fold.apply_files(rows, renames)

    def ended(self) -> Iterator[pa.Table]:
        """Release rows for the references that ended since this was last asked; see `replicator.captures.ends`."""
        return self._fold.ends.drain()

    def forget_ended(self) -> None:
        self._fold.ends.clear()

    # ---- what it holds --------------------------------------------------------------------------------------------

    def databases(self) -> list[Database]:
        rows = self._db.execute("SELECT body FROM databases ORDER BY name").fetchall()
        return [msgspec.json.decode(body, type=Database) for (body,) in rows]

    def scope(self) -> set[str]:
        """Databases that are captured; one that was dropped stays, so that its return is noticed."""
        return {name for (name,) in self._db.execute("SELECT db FROM scope")}

    def database(self, name: str) -> Database | None:
        row = self._db.execute("SELECT body FROM databases WHERE name = ?", (name,)).fetchone()
        return msgspec.json.decode(row[0], type=Database) if row else None

    def functions(self, db: str) -> list[Function]:
        rows = self._db.execute("SELECT body FROM functions WHERE db = ? ORDER BY name", (db,)).fetchall()
        return [msgspec.json.decode(body, type=Function) for (body,) in rows]

    def table_names(self, db: str) -> list[str]:
        return [name for (name,) in self._db.execute("SELECT name FROM tables WHERE db = ? ORDER BY name", (db,))]

    def table(self, db: str, name: str) -> Table | None:
        row = self._db.execute("SELECT body FROM tables WHERE db = ? AND name = ?", (db, name)).fetchone()
        return msgspec.json.decode(row[0], type=Table) if row else None

    def formats(self, db: str) -> dict[str, Format]:
        """Tables of a database in another format than Hive's, by name."""
        rows = self._db.execute(
            "SELECT t.name, f.format FROM formats f JOIN tables t ON t.id = f.table_id WHERE t.db = ? ORDER BY t.name",
            (db,),
        )
        return dict(rows.fetchall())

    def delta_log(self, db: str, name: str) -> list[tuple[str, KnownFile, bool | None]]:
        """The files of a Delta table's log: (place, what is known of it, whether it names files outside of its table;
        None: nobody has looked)."""
        rows = self._db.execute(
            "SELECT t.location, f.path, f.size, f.mtime_ns, f.identity, f.checksum, f.kept, f.version, d.outside"
            " FROM tables t JOIN files f ON f.table_id = t.id AND f.partition_id = 0 AND f.path > '_delta_log/'"
            " AND f.path < '_delta_log0' LEFT JOIN delta_logs d ON d.checksum = f.checksum"
            " WHERE t.db = ? AND t.name = ?",
            (db, name),
        )
        return [
            (join(row[0], row[1]), KnownFile(*row[1:8]), None if row[8] is None else bool(row[8]))
            for row in rows.fetchall()
        ]

    def remember_delta_log(self, checksum: str, outside: bool) -> None:
        self._db.execute("INSERT OR REPLACE INTO delta_logs VALUES (?, ?)", (checksum, outside))

    def partition_count(self, db: str, name: str) -> int:
        row = self._db.execute(
            "SELECT count(*) FROM partitions WHERE table_id = (SELECT id FROM tables WHERE db = ? AND name = ?)",
            (db, name),
        ).fetchone()
        return int(row[0])

    def partition_names(self, db: str, name: str) -> Iterator[str]:
        for row in self._pages(
            "SELECT id, name FROM partitions WHERE table_id = ? AND id > ? ORDER BY id LIMIT ?",
            self._table_id(db, name),
        ):
            yield row[1]

    def partitions(self, db: str, name: str, batch: int = 1000) -> Iterator[list[Partition]]:
        """A table's partitions, whole, in batches."""
        columns: dict[int, tuple[Column, ...]] = {}
        decoder = msgspec.json.Decoder(Partition)
        page: list[Partition] = []
        for _, number, body in self._pages(
            "SELECT id, columns, body FROM partitions WHERE table_id = ? AND id > ? ORDER BY id LIMIT ?",
            self._table_id(db, name),
        ):
            page.append(self._unpack(decoder.decode(body), number, columns))
            if len(page) == batch:
                yield page
                page = []
        if page:
            yield page

    def partitions_by_name(self, db: str, name: str, names: Sequence[str]) -> dict[str, Partition]:
        """Some partitions of a table, by escaped name; unknown ones are left out."""
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
        rows = self._db.execute(
            "SELECT body FROM statistics WHERE table_id = ? ORDER BY partition", (self._table_id(db, name),)
        )
        return [msgspec.json.decode(body, type=Statistics) for (body,) in rows.fetchall()]

    def files(self, table_id: int, partition_id: int) -> dict[str, KnownFile]:
        """Files of one object by path."""
        rows = self._db.execute(
            "SELECT path, size, mtime_ns, identity, checksum, kept, version FROM files"
            " WHERE table_id = ? AND partition_id = ?",
            (table_id, partition_id),
        )
        return {row[0]: KnownFile(*row) for row in rows}

    def weight(self, obj: DataObject) -> tuple[int, int]:
        """How many files one object has, and their bytes."""
        row = self._db.execute(
            "SELECT count(*), coalesce(sum(size), 0) FROM files WHERE table_id = ? AND partition_id = ?",
            (obj.table_id, obj.partition_id),
        ).fetchone()
        return int(row[0]), int(row[1])

    def bytes_of_tables(self, db: str) -> dict[str, int]:
        """Bytes of the files of each table of a database, its partitions' included."""
        rows = self._db.execute(
            "SELECT t.name, sum(f.size) FROM files f JOIN tables t ON t.id = f.table_id WHERE t.db = ? GROUP BY t.id",
            (db,),
        )
        return {name: int(size or 0) for name, size in rows}

    def table_files(self, db: str, name: str) -> Iterator[tuple[Any, ...]]:
        """All files of a table: (partition, location, path, size, mtime_ns, identity, checksum, kept, version)."""
        yield from self._db.cursor().execute(
            "SELECT coalesce(p.name, ''), coalesce(p.location, t.location), f.path, f.size, f.mtime_ns, f.identity,"
            " f.checksum, f.kept, f.version FROM files f JOIN tables t ON t.id = f.table_id"
            " LEFT JOIN partitions p ON p.id = f.partition_id WHERE f.table_id = ?",
            (self._table_id(db, name),),
        )

    def directories(self, batch: int = 50_000) -> Iterator[list[tuple[int, int, str, int, int, str]]]:
        """Every listed directory in batches: (table_id, partition_id, whole path, mtime_ns, listed_ns, identity)."""
        cursor = self._db.cursor().execute(
            "SELECT d.table_id, d.partition_id, coalesce(p.location, t.location) ||"
            " CASE d.path WHEN '' THEN '' ELSE '/' || d.path END, d.mtime_ns, d.listed_ns, d.identity"
            " FROM directories d JOIN tables t ON t.id = d.table_id LEFT JOIN partitions p ON p.id = d.partition_id"
        )
        while rows := cursor.fetchmany(batch):
            yield rows

    def remember(self, key: str, value: str) -> None:
        """A small value of the reader's own, such as the rows it saw last."""
        self._db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (key, value))

    def recall(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    # ---- listing state --------------------------------------------------------------------------------------------

    def unlist(self, objects: Iterable[tuple[int, int]]) -> None:
        """Marks objects (table_id, partition_id) as to be listed again; their known files stay."""
        tables = [(table_id,) for table_id, partition_id in objects if not partition_id]
        partitions = [(partition_id,) for _, partition_id in objects if partition_id]
        self._db.executemany("UPDATE tables SET listed = 0 WHERE id = ?", tables)
        self._db.executemany("UPDATE partitions SET listed = 0 WHERE id = ?", partitions)

    def unlisted(self, batch: int = 500) -> Iterator[list[DataObject]]:
        """Objects whose files are to be listed, in batches; those marked meanwhile may be marked."""
        for query in (
            "SELECT id, 0, db, name, '', location, touched FROM tables"
            " WHERE NOT listed AND location <> '' AND id > ? ORDER BY id LIMIT ?",
            "SELECT t.id, p.id, t.db, t.name, p.name, p.location, max(p.touched, t.named) FROM partitions p"
            " JOIN tables t ON t.id = p.table_id WHERE NOT p.listed AND p.location <> '' AND p.id > ?"
            " ORDER BY p.id LIMIT ?",
        ):
            last = 0
            while rows := self._db.execute(query, (last, batch)).fetchall():
                yield [DataObject(row[0], row[1], row[2], row[3], row[4], row[5] or "", row[6]) for row in rows]
                last = rows[-1][1] or rows[-1][0]

    def object(self, db: str, table: str, partition: str) -> DataObject | None:
        """A table (partition "") or one of its partitions, by name."""
        row = self._db.execute(
            "SELECT t.id, coalesce(p.id, 0), t.db, t.name, coalesce(p.name, ''), coalesce(p.location, t.location),"
            " max(coalesce(p.touched, t.touched), t.named) FROM tables t LEFT JOIN partitions p ON p.table_id = t.id"
            " AND p.name = ? WHERE t.db = ? AND t.name = ? AND coalesce(p.name, '') = ?",
            (partition, db, table, partition),
        ).fetchone()
        return DataObject(row[0], row[1], row[2], row[3], row[4], row[5] or "", row[6]) if row else None

    def unlisted_count(self) -> int:
        counts = self._db.execute(
            "SELECT (SELECT count(*) FROM tables WHERE NOT listed AND location <> ''),"
            " (SELECT count(*) FROM partitions WHERE NOT listed AND location <> '')"
        ).fetchone()
        return int(sum(counts))

    def unlist_objects_on_stores(self) -> None:
        """Marks what lies on stores without directories: only a listing tells whether its files changed."""
        remote = (
            "listed AND location LIKE '%://%' AND location NOT LIKE '/%' AND location NOT LIKE 'file:%' AND"
            " NOT EXISTS (SELECT 1 FROM directories d WHERE "
        )
        tables = self._db.execute(
            f"SELECT id, body FROM tables WHERE {remote} d.table_id = tables.id AND d.partition_id = 0)"
        ).fetchall()
        with_files = [row_id for row_id, body in tables if has_files(msgspec.json.decode(body, type=Table))]
        self._db.executemany("UPDATE tables SET listed = 0 WHERE id = ?", [(row_id,) for row_id in with_files])
        self._db.execute(
            f"UPDATE partitions SET listed = 0 WHERE {remote} d.table_id = partitions.table_id"
            " AND d.partition_id = partitions.id)"
        )

    def mark_known(self) -> None:
        """After folding a finished segment: objects whose directories are known need no listing."""
        known = "EXISTS (SELECT 1 FROM directories d WHERE {})"
        for table, key in (
            ("tables", "d.table_id = o.id AND d.partition_id = 0"),
            ("partitions", "d.partition_id = o.id"),
        ):
            self._db.execute(f"UPDATE {table} AS o SET listed = 1 WHERE NOT listed AND {known.format(key)}")

    def mark_listed(self, objects: Sequence[DataObject]) -> None:
        self._db.executemany(
            "UPDATE tables SET listed = 1 WHERE id = ?", [(o.table_id,) for o in objects if not o.partition_id]
        )
        self._db.executemany(
            "UPDATE partitions SET listed = 1 WHERE id = ?", [(o.partition_id,) for o in objects if o.partition_id]
        )

    def set_directories(
        self, objects: Sequence[DataObject], directories: Iterable[tuple[int, str, int, int, str]]
    ) -> None:
        """What listing some objects saw of directories: (index of the object, path, mtime_ns, listed_ns, identity)."""
        self._db.executemany(
            "DELETE FROM directories WHERE table_id = ? AND partition_id = ?",
            [(o.table_id, o.partition_id) for o in objects],
        )
        self._db.executemany(
            "INSERT INTO directories VALUES (?, ?, ?, ?, ?, ?)",
            [(objects[i].table_id, objects[i].partition_id, *rest) for i, *rest in directories],
        )

    def set_identities(self, objects: Sequence[DataObject], files: Iterable[tuple[int, str, str]]) -> None:
        """How files are distinguished that are what their entries say: (index of the object, path, identity). Not
        logged: a manifest that is folded again has them read once more."""
        self._db.executemany(
            "UPDATE files SET identity = ? WHERE table_id = ? AND partition_id = ? AND path = ?",
            [(identity, objects[i].table_id, objects[i].partition_id, path) for i, path, identity in files],
        )

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _state(self, key: str) -> int | None:
        row = self._db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return int(row[0]) if row else None

    def _table_id(self, db: str, name: str) -> int | None:
        row = self._db.execute("SELECT id FROM tables WHERE db = ? AND name = ?", (db, name)).fetchone()
        return int(row[0]) if row else None

    def _pages(self, query: str, table_id: int | None) -> Iterator[tuple[Any, ...]]:
        """Rows of a query keyed by (table_id, id > last), a page at a time, so that nothing holds the whole."""
        last = 0
        while rows := self._db.execute(query, (table_id, last, _PAGE)).fetchall():
            yield from rows
            last = rows[-1][0]
