"""Manifest: the contents of the captured databases at a position, a fold of the captured log up to it.

One SQLite file: metadata objects as JSON, files, and the directories whose listing is known. It is derived: if it is
missing, or behind the log after a crash, it is folded again from the log (`catch_up`). Nothing here accesses a
metastore or lists a directory; memory does not grow with the number of objects.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from replicator.captures.apply import Fold, Rename, has_files
from replicator.captures.events.record import ChangeRecord
from replicator.captures.inventory import DataObject, Inventory
from replicator.core.model import Table

VERSION = 2
_PAGE = 10_000
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
# Derived from the rest, so that manifests of earlier releases get them without being folded again: tables in a format
# other than Hive's, and True for files of a Delta log (by checksum) that name files outside of its table. Constraints
# are not: captures read them from the metastore if the manifest does not record that they are known.
_INDEXES = """
CREATE TABLE IF NOT EXISTS formats (table_id INTEGER PRIMARY KEY, format TEXT);
CREATE TABLE IF NOT EXISTS delta_logs (checksum TEXT PRIMARY KEY, outside INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS constraints (table_id INTEGER PRIMARY KEY, body BLOB);
CREATE TABLE IF NOT EXISTS parents (table_id INTEGER, db TEXT, name TEXT, PRIMARY KEY (db, name, table_id))
  WITHOUT ROWID;
"""


class Manifest(Inventory):
    """The fold up to `position` and `event`. `commit` makes all changes durable together."""

    def __init__(self, path: str | Path) -> None:
        """Opens or creates the manifest at `path` (":memory:": temporary). One of another version is emptied."""
        super().__init__(sqlite3.connect(str(path), isolation_level=None, check_same_thread=False))
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
        return int(self.recall("position") or 0)

    @property
    def event(self) -> int | None:
        """The last event folded; None before the first capture."""
        value = self.recall("event")
        return None if value is None else int(value)

    def advance(self, position: int, event: int, time: int) -> None:
        """Records the position, event and time of the fold."""
        for key, value in (("position", position), ("event", event), ("time", time)):
            self.remember(key, value)

    def commit(self) -> None:
        self._db.execute("COMMIT")
        self._fold.forget()
        self._db.execute("BEGIN")

    def rollback(self) -> None:
        """Returns to the last commit. After a commit that a signal interrupted, there may be nothing to roll back."""
        if self._db.in_transaction:
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
        """Yields rows for references that ended since the last call; see `replicator.captures.inventory`."""
        return self._fold.ends.drain()

    def forget_ended(self) -> None:
        self._fold.ends.clear()

    def remember(self, key: str, value: str | int) -> None:
        """Stores a small value of a reader, such as the rows that it saw last."""
        self._db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (key, value))

    def recall(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    # ---- listing state --------------------------------------------------------------------------------------------

    def unlist(self, objects: Iterable[tuple[int, int]]) -> None:
        """Marks objects (table_id, partition_id) as to be listed again; their known files are retained."""
        marked = list(objects)
        tables = [(table_id,) for table_id, partition_id in marked if not partition_id]
        partitions = [(partition_id,) for _, partition_id in marked if partition_id]
        self._db.executemany("UPDATE tables SET listed = 0 WHERE id = ?", tables)
        self._db.executemany("UPDATE partitions SET listed = 0 WHERE id = ?", partitions)

    def unlisted(self, batch: int = 500) -> Iterator[list[DataObject]]:
        """Yields the objects to list, in batches; may include objects marked during the iteration."""
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
        """Returns a table (partition "") or one of its partitions, by name."""
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

    def unlist_objects_on_stores(self, stays: Callable[[str], bool], db: str = "", names: Sequence[str] = ()) -> None:
        """Marks objects on stores without directories as unlisted, of all tables or some of a database: only a listing
        shows their changes. `stays`: returns True for locations known otherwise to be unchanged."""
        some = f"db = ? AND name IN ({', '.join('?' * len(names))}) AND " if db else ""
        about = (db, *names) if db else ()
        remote = (
            "listed AND location LIKE '%://%' AND location NOT LIKE '/%' AND location NOT LIKE 'file:%' AND"
            " NOT EXISTS (SELECT 1 FROM directories d WHERE "
        )
        tables = self._db.execute(
            f"SELECT id, location, body FROM tables WHERE {some}{remote} d.table_id = tables.id"
            " AND d.partition_id = 0)",
            about,
        ).fetchall()
        self.unlist(
            (row_id, 0)
            for row_id, location, body in tables
            if has_files(msgspec.json.decode(body, type=Table)) and not stays(location)
        )
        theirs = f"table_id IN (SELECT id FROM tables WHERE {some.removesuffix(' AND ')}) AND " if db else ""
        last = 0
        while rows := self._db.execute(
            f"SELECT table_id, id, location FROM partitions WHERE {theirs}{remote} d.table_id = partitions.table_id"
            f" AND d.partition_id = partitions.id) AND id > ? ORDER BY id LIMIT {_PAGE}",
            (*about, last),
        ).fetchall():
            self.unlist((table_id, row_id) for table_id, row_id, location in rows if not stays(location))
            last = rows[-1][1]

    def mark_known(self) -> None:
        """Marks the objects whose directories are known as listed. Called after a finished segment was folded."""
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
        """Replaces directory states of objects: (index of the object, path, mtime_ns, listed_ns, identity)."""
        self._db.executemany(
            "DELETE FROM directories WHERE table_id = ? AND partition_id = ?",
            [(o.table_id, o.partition_id) for o in objects],
        )
        self._db.executemany(
            "INSERT INTO directories VALUES (?, ?, ?, ?, ?, ?)",
            [(objects[i].table_id, objects[i].partition_id, *rest) for i, *rest in directories],
        )

    def set_identities(self, objects: Sequence[DataObject], files: Iterable[tuple[int, str, str]]) -> None:
        """Updates the identities of files that are otherwise equal to their entries: (index of the object, path,
        identity). Not logged: after the manifest is folded again, these files are read once more."""
        self._db.executemany(
            "UPDATE files SET identity = ? WHERE table_id = ? AND partition_id = ? AND path = ?",
            [(identity, objects[i].table_id, objects[i].partition_id, path) for i, path, identity in files],
        )
