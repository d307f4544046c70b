"""Application of records to the manifest: updates the known state of the source by each change. SQL only; `manifest`
holds the file and answers queries about it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cmroot.log.captured import ADD, FILES, RELEASE
from cmroot.store.spelling import is_root
from replicator.captures.inventory import NOT_WHOLE, Ends, Inventory, has_files
from replicator.core.formats import FORMATS, PLAIN, format_of
from replicator.core.formats.interface import POINTER, TableFormat
from replicator.core.formats.outside import is_outside
from replicator.core.model import MATERIALIZED_VIEW, Column, Constraint, Partition, Table
from replicator.core.named_files import NAMED, SCHEMA_URL, names_file, property_files
from replicator.metastore.events import record as kinds
from replicator.metastore.events.facts import Rename, followed
from replicator.metastore.events.record import ChangeRecord, partition_names

HAS_OUTSIDE = f"IN ({', '.join(repr(each.name) for each in FORMATS.values() if each.has_outside)})"
_OF_TABLE = ("constraints", "parents", "grants", "named_files", "write_ids", "walks", "sound")
_RELIST = f"UPDATE tables SET listed = 0 WHERE id IN (SELECT table_id FROM formats WHERE format {HAS_OUTSIDE})"
_FORGET = """DELETE FROM {} WHERE (location, checksum) IN
  (SELECT e.location, e.checksum FROM tables t JOIN tree e ON e.location = t.location WHERE t.id = ?)"""
_ROW = [name for name in FILES.names if name != "since"]


class Fold(Inventory):
    """The writer of a manifest's database, in a transaction of its owner."""

    def __init__(self, db: sqlite3.Connection) -> None:
        super().__init__(db)
        self._columns: dict[tuple[Column, ...], int] = {}
        self.ends = Ends(db)

    def forget(self) -> None:
        """Clears cached row ids after a transaction: after a rollback, ids assigned in it may not exist."""
        self._columns.clear()

    def apply(self, record: ChangeRecord) -> None:
        """Applies the metadata of one record. Objects whose files may have changed become unlisted."""
        change, at = record.change, record.position
        match change:
            case kinds.CreateDatabase(database=database) | kinds.AlterDatabase(database=database):
                body = msgspec.json.encode(database)
                self._db.execute("INSERT OR REPLACE INTO databases VALUES (?, ?)", (database.name, body))
                self._db.execute("INSERT OR IGNORE INTO scope VALUES (?)", (database.name,))
            case kinds.DropDatabase(db=db):
                for name in self.table_names(db):
                    self._drop_table(db, name, at)
                for kind, key in (("functions", "db"), ("databases", "name"), ("roles", "db"), ("grants", "db")):
                    self._db.execute(f"DELETE FROM {kind} WHERE {key} = ?", (db,))
            case kinds.CreateTable(table=table):
                self._drop_table(table.db, table.name, at)
                row = (table.db, table.name, table.location, msgspec.json.encode(table))
                self._db.execute(
                    "INSERT INTO tables (db, name, location, body, since, named, touched, listed)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (*row, at, at, at, not has_files(table)),
                )
                self._note_format(table, at)
                self._note_named(table, table, at)
            case kinds.AlterTable():
                self._alter_table(change, at)
            case kinds.DropTable(db=db, name=name):
                self._drop_table(db, name, at)
            case kinds.AddPartitions():
                self._add_partitions(change, at)
            case kinds.AlterPartition():
                self._alter_partition(change, at)
            case kinds.DropPartitions(db=db, table=table_name, names=names):
                self._drop_partitions(self._table_id(db, table_name), names, at)
            case kinds.ChangeFiles(db=db, table=table_name, partition=partition) if not record.observed:
                self._touch(db, table_name, partition, at)
            case kinds.CreateFunction(function=function):
                values = (function.db, function.name, msgspec.json.encode(function))
                self._db.execute("INSERT OR REPLACE INTO functions VALUES (?, ?, ?)", values)
            case kinds.DropFunction(db=db, name=name):
                self._db.execute("DELETE FROM functions WHERE db = ? AND name = ?", (db, name))
            case kinds.SetGrants():
                self._set_grants(change)
            case kinds.SetRoles(db=db, roles=roles):
                self._db.execute("INSERT OR REPLACE INTO roles VALUES (?, ?)", (db, msgspec.json.encode(roles)))
            case kinds.SetWriteIds():
                about = (self._table_id(change.db, change.table), msgspec.json.encode(change))
                self._db.execute("INSERT OR REPLACE INTO write_ids VALUES (?, ?)", about)
            case kinds.SetConstraints(db=db, table=table_name, constraints=constraints):
                self._set_constraints(self._table_id(db, table_name), constraints)
            case kinds.SetStatistics(db=db, table=table_name, statistics=statistics):
                table_id = self._table_id(db, table_name)
                self._db.executemany(
                    "INSERT OR REPLACE INTO statistics VALUES (?, ?, ?)",
                    [(table_id, each.partition or "", msgspec.json.encode(each)) for each in statistics if each],
                )
                self._db.executemany(
                    "DELETE FROM statistics WHERE table_id = ? AND partition = ?",
                    [(table_id, each.partition or "") for each in statistics if not each],
                )

    def apply_files(self, rows: pa.Table, renames: Sequence[Rename] = ()) -> None:
        """Applies file rows (cmroot.log.segment.FILES): the files that objects, identified by name, gained and lost.
        Skips rows of objects that no longer exist, or that were recreated after the row's position. `renames`: the
        renames already applied, including any that are later than a row; a row holds the name valid at its position."""
        ids: dict[tuple[str, str, str] | None, tuple[int, int, int, bool] | None] = {}
        places = filter(None, pc.unique(rows["location"]).to_pylist())
        stores = set(filter(is_root, places))  # nearly always none
        outside = cache(self._ids_outside)
        last: dict[tuple[int, int, str], tuple[Any, ...]] = {}  # position, then the file; None if it is removed
        replacing: list[tuple[int, int, int, str]] = []
        unused: list[tuple[Any, ...]] = []
        for position, op, db, table, partition, location, path, *file in zip(
            *(rows[name].to_pylist() for name in _ROW), strict=True
        ):
            if op == RELEASE:
                continue
            if table == NAMED:
                unused += self._apply_recorded_file(position, db, location, path, file if op == ADD else None)
                continue
            key = followed((db, table, partition), position, renames)
            if key not in ids:
                ids[key] = self._object_ids(*key) if key else None
            found = ids[key]
            if found is not None and location in stores:
                found = outside(found, location)
            if found is None or position < found[2]:
                if op == ADD:
                    unused.append((position, db, table, partition, location, path, *file, position))
                continue
            place = (*found[:2], path)
            before = last.get(place)
            if before is not None and before[1] is not None:
                unused.append((position, db, table, partition, location, path, *before[1], before[0]))
            elif before is None and found[3]:
                replacing.append((position, *place))
            last[place] = (position, file if op == ADD else None)
        self.ends.of_files(replacing)
        self.ends.at_once(unused)
        self._db.executemany(
            "DELETE FROM files WHERE table_id = ? AND partition_id = ? AND path = ?",
            [place for place, (_, file) in last.items() if file is None],
        )
        self._db.executemany(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(*place, *file, position) for place, (position, file) in last.items() if file is not None],
        )

    def _apply_recorded_file(
        self, position: int, db: str, location: str, path: str, file: list[Any] | None
    ) -> list[tuple[Any, ...]]:
        """Applies the row of a file that metadata names; None: it was removed. Returns the reference that ends."""
        rows = self._db.execute(
            "DELETE FROM recorded_files WHERE db = ? AND path = ? RETURNING location, path, size, mtime_ns, identity,"
            " checksum, kept, version, since",
            (db, path),
        ).fetchall()
        if file is not None:
            self._db.execute(
                f"INSERT INTO recorded_files VALUES ({', '.join('?' * 10)})", (db, path, location, *file, position)
            )
        return [(position, db, NAMED, "", *row) for row in rows]

    def _alter_table(self, change: kinds.AlterTable, at: int) -> None:
        table = change.table
        known = (change.db, change.name)
        row = self._db.execute("SELECT id, location FROM tables WHERE db = ? AND name = ?", known).fetchone()
        if change.renames:
            self._drop_table(table.db, table.name, at)
        if row is None:  # an alter of an unknown table: its metadata is complete, its files are not yet listed
            self.apply(ChangeRecord(position=at, event=0, time=0, change=kinds.CreateTable(table=table)))
            return
        table_id, old_location = row
        elsewhere = table.location != old_location
        self._db.execute(
            "UPDATE tables SET db = ?, name = ?, location = ?, body = ?, touched = ?, listed = ? WHERE id = ?",
            (table.db, table.name, table.location, msgspec.json.encode(table), at, not has_files(table), table_id),
        )
        self._note_format(table, at)
        self._note_named(table, table, at)
        if change.renames:
            self._db.execute("UPDATE tables SET named = ? WHERE id = ?", (at, table_id))
        if elsewhere and change.moved and old_location and table.location:
            self._move_partitions(table_id, old_location, table.location)
            self._look_again(table_id)
        elif elsewhere:
            self._forget_files(table_id, 0, at)
            self._db.execute("UPDATE tables SET since = ? WHERE id = ?", (at, table_id))

    def complete(self) -> None:
        """Adds what manifests of earlier releases lack. They did not note what files of a log name."""
        notes = {"roots": self.note_formats, "named_files_and_views": self.note_all_named, "trees": self._note_trees}
        notes |= {"whole": self._note_whole}
        for key in [key for key in notes if self.recall(key) is None]:
            notes[key]()
            self._db.execute("INSERT OR REPLACE INTO state VALUES (?, 'noted')", (key,))

    def _note_trees(self) -> None:
        for statement in ("DELETE FROM log_files", "DROP TABLE IF EXISTS outside", _RELIST):
            self._db.execute(statement)

    def _note_whole(self) -> None:
        """Forgets files that earlier releases recorded with partitions, and that are the table's."""
        whole, at = f"SELECT id FROM tables WHERE NOT ({NOT_WHOLE})", int(self.recall("position") or 0)
        found = self._db.execute(f"SELECT table_id, id FROM partitions WHERE table_id IN ({whole})").fetchall()
        for table_id, id in found:
            self._forget_files(table_id, id, at)
        self._db.execute(f"UPDATE partitions SET location = NULL WHERE table_id IN ({whole})")
        self._db.execute(f"UPDATE tables SET listed = 0 WHERE id IN ({whole})")

    def note_formats(self) -> None:
        """Records the format of every known table, and lists what older releases did not: materialized views, and the
        directories of partitioned tables."""
        for row_id, body in self._db.execute("SELECT id, body FROM tables").fetchall():
            self._note_format(table := msgspec.json.decode(body, type=Table), 0)
            if (table.kind == MATERIALIZED_VIEW or table.is_partitioned) and has_files(table):
                self._db.execute("UPDATE tables SET listed = 0 WHERE id = ?", (row_id,))

    def _note_format(self, table: Table, at: int) -> None:
        found, table_id = format_of(table), self._table_id(table.db, table.name)
        was = self._db.execute("DELETE FROM formats WHERE table_id = ? RETURNING format", (table_id,)).fetchone()
        if not found.is_plain:
            self._db.execute("INSERT INTO formats VALUES (?, ?)", (table_id, found.name))
        if at and (old := FORMATS[was[0]] if was else PLAIN) is not found and (old.translates or found.translates):
            self._record_again(table_id or 0, [each for each in (old, found) if each.translates], at)

    def _record_again(self, table_id: int, formats: Sequence[TableFormat], at: int) -> None:
        """Forgets files that loads copied as they are, and translate now, or the reverse."""
        paths = self._db.execute("SELECT path FROM files WHERE table_id = ? AND partition_id = 0", (table_id,))
        known = [(table_id, 0, path) for (path,) in paths if any(each.waits(path) for each in formats)]
        self.ends.of_files([(at, *each) for each in known])
        self._db.executemany("DELETE FROM files WHERE (table_id, partition_id, path) = (?, ?, ?)", known)
        self._db.execute("DELETE FROM directories WHERE table_id = ?", (table_id,))

    def note_all_named(self) -> None:
        """Records the files that properties of known tables and partitions name."""
        like, view = (f"body LIKE '%{each}%'" for each in (SCHEMA_URL, POINTER))
        for (body,) in self._db.execute(f"SELECT body FROM tables WHERE {like} OR {view}").fetchall():
            table = msgspec.json.decode(body, type=Table)
            self._note_named(table, table, 0)
        for db, name, body in self._db.execute(
            "SELECT t.db, t.name, p.body FROM partitions p JOIN tables t ON t.id = p.table_id WHERE p." + like
        ):
            if (known := self.table(db, name)) is not None:
                self._note_named(known, msgspec.json.decode(body, type=Partition), 0)

    def _note_named(self, table: Table, obj: Table | Partition, at: int) -> None:
        """Records the files that properties of a table, or of one of its partitions, name."""
        database = self.database(table.db) if names_file(obj) else None
        found = list(property_files(database.location, table, obj)) if database else []
        if found:
            table_id = self._table_id(table.db, table.name)
            self._db.executemany(
                "INSERT OR IGNORE INTO named_files VALUES (?, ?, ?, ?)",
                [(table_id, each.place, each.path, at) for each in found],
            )

    def _note_named_by(self, db: str, name: str, partitions: Iterable[Partition], at: int) -> None:
        some = [each for each in partitions if names_file(each)]
        table = self.table(db, name) if some else None
        for each in some if table else ():
            assert table is not None
            self._note_named(table, each, at)

    def _move_partitions(self, table_id: int, old: str, new: str) -> None:
        """Moves the locations of partitions below a managed table's directory along (HiveAlterHandler.alterTable)."""
        rows = self._db.execute("SELECT id, body FROM partitions WHERE table_id = ?", (table_id,)).fetchall()
        moved = []
        for row_id, body in rows:
            partition = msgspec.json.decode(body, type=Partition)
            location = partition.storage.location if partition.storage else None
            if partition.storage and location and (location == old or location.startswith(old.rstrip("/") + "/")):
                storage = msgspec.structs.replace(partition.storage, location=new + location[len(old) :])
                partition = msgspec.structs.replace(partition, storage=storage)
                moved.append((partition.location, msgspec.json.encode(partition), row_id))
        self._db.executemany("UPDATE partitions SET location = ?, body = ? WHERE id = ?", moved)

    def _look_again(self, table_id: int, partition_id: int | None = None) -> None:
        """Marks as unlisted the partitions with files that a bucket retains by name and version: under new names they
        are other objects. Applies to an entire table, or to one partition."""
        which = "table_id = ? AND partition_id >= 0 AND version IS NOT NULL AND (? IS NULL OR partition_id = ?)"
        about = (table_id, partition_id, partition_id)
        self._db.execute(
            f"UPDATE partitions SET listed = 0 WHERE id IN (SELECT partition_id FROM files WHERE {which})", about
        )
        self._db.execute(f"UPDATE files SET kept = 0, version = NULL WHERE {which}", about)

    def _add_partitions(self, change: kinds.AddPartitions, at: int) -> None:
        table_id = self._table_id(change.db, change.table)
        if table_id is None:
            return
        names = list(partition_names(change.keys, change.partitions))
        if change.replace:
            self._drop_partitions(table_id, names, at)
        else:
            self._move_elsewhere(table_id, names, change.partitions, at)
        self._db.executemany(
            "INSERT INTO partitions (table_id, name, location, columns, body, since, touched, listed)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, 0) ON CONFLICT (table_id, name) DO UPDATE SET location = excluded.location,"
            " columns = excluded.columns,"
            " body = excluded.body, touched = excluded.touched, listed = 0",
            [
                (table_id, name, *self._pack(partition), at, at)
                for name, partition in zip(names, change.partitions, strict=True)
            ],
        )
        self._note_named_by(change.db, change.table, change.partitions, at)

    def _move_elsewhere(self, table_id: int, names: Sequence[str], partitions: Sequence[Partition], at: int) -> None:
        """Drops the known files of those partitions in a batch of alters whose location changed."""
        wanted = {name: partition.location for name, partition in zip(names, partitions, strict=True)}
        query = "SELECT id, name, location FROM partitions WHERE table_id = ? AND name IN"
        asked = (table_id, msgspec.json.encode(names).decode())
        for number, name, location in self._db.execute(f"{query} (SELECT value FROM json_each(?))", asked).fetchall():
            if location != wanted[name]:
                self._forget_files(table_id, number, at)
                self._db.execute("UPDATE partitions SET since = ? WHERE id = ?", (at, number))

    def _alter_partition(self, change: kinds.AlterPartition, at: int) -> None:
        table_id = self._table_id(change.db, change.table)
        if table_id is None:
            return
        row = self._db.execute(
            "SELECT id, location FROM partitions WHERE table_id = ? AND name = ?", (table_id, change.before)
        ).fetchone()
        if change.before != change.name:
            self._drop_partitions(table_id, [change.name], at)
        location, columns, body = self._pack(change.partition)
        self._note_named_by(change.db, change.table, [change.partition], at)
        if row is None:
            self._db.execute(
                "INSERT INTO partitions (table_id, name, location, columns, body, since, touched, listed)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
                (table_id, change.name, location, columns, body, at, at),
            )
            return
        self._db.execute(
            "UPDATE partitions SET name = ?, location = ?, columns = ?, body = ?, touched = ?, listed = 0 WHERE id = ?",
            (change.name, location, columns, body, at, row[0]),
        )
        for table in ("statistics", "grants"):
            self._db.execute(
                f"UPDATE OR REPLACE {table} SET partition = ? WHERE table_id = ? AND partition = ?",
                (change.name, table_id, change.before),
            )
        if location != row[1] and not change.moved:
            self._forget_files(table_id, row[0], at)
            self._db.execute("UPDATE partitions SET since = ? WHERE id = ?", (at, row[0]))
        elif location != row[1]:
            self._look_again(table_id, row[0])

    def _drop_table(self, db: str, name: str, at: int) -> None:
        table_id = self._table_id(db, name)
        if table_id is not None:
            self.ends.of_table(table_id, at)
            for known in ("log_files", "tree"):  # in this order
                self._db.execute(_FORGET.format(known), (table_id,))
            for table in (*_OF_TABLE, "files", "directories", "statistics", "partitions", "formats"):
                self._db.execute(f"DELETE FROM {table} WHERE table_id = ?", (table_id,))
            self._db.execute("DELETE FROM tables WHERE id = ?", (table_id,))

    def _set_grants(self, change: kinds.SetGrants) -> None:
        """Stores grants of a table by its id, which a rename keeps; those of a database by its name."""
        table_id = self._table_id(change.db, change.table) if change.table else 0
        if table_id is None:
            return
        owner = (table_id, "" if table_id else change.db)
        self._db.executemany(
            "DELETE FROM grants WHERE table_id = ? AND db = ? AND partition = ?",
            [(*owner, partition) for partition in change.grants],
        )
        self._db.executemany(
            "INSERT INTO grants VALUES (?, ?, ?, ?)",
            [(*owner, name, msgspec.json.encode(some)) for name, some in change.grants.items() if some],
        )

    def _set_constraints(self, table_id: int | None, constraints: Sequence[Constraint]) -> None:
        if table_id is None:
            return
        for table in ("constraints", "parents"):
            self._db.execute(f"DELETE FROM {table} WHERE table_id = ?", (table_id,))
        if constraints:
            self._db.execute("INSERT INTO constraints VALUES (?, ?)", (table_id, msgspec.json.encode(constraints)))
        parents = {each.parent for each in constraints if each.parent}
        self._db.executemany("INSERT INTO parents VALUES (?, ?, ?)", [(table_id, *parent) for parent in parents])

    def _drop_partitions(self, table_id: int | None, names: Iterable[str], at: int) -> None:
        if table_id is None:
            return
        for name in names:
            row = self._db.execute(
                "SELECT id FROM partitions WHERE table_id = ? AND name = ?", (table_id, name)
            ).fetchone()
            if row is not None:
                self._forget_files(table_id, row[0], at)
                self._db.execute("DELETE FROM partitions WHERE id = ?", row)
                for table in ("statistics", "grants"):
                    self._db.execute(f"DELETE FROM {table} WHERE table_id = ? AND partition = ?", (table_id, name))

    def _forget_files(self, table_id: int, partition_id: int, at: int) -> None:
        """partition_id: 0 for the table's own files, also those outside of its location."""
        self.ends.of_object(table_id, partition_id, at)
        which = "table_id = ? AND partition_id " + ("= ?" if partition_id else "<= ?")
        for table in ("files", "directories"):
            self._db.execute(f"DELETE FROM {table} WHERE {which}", (table_id, partition_id))

    def _touch(self, db: str, table: str, partition: str | None, at: int) -> None:
        if partition:
            own = "table_id = (SELECT id FROM tables WHERE db = ? AND name = ?)"
            query = f"UPDATE partitions SET touched = ?, listed = 0 WHERE name = ? AND {own}"
            self._db.execute(query, (at, partition, db, table))
            return
        known = self.table(db, table)
        if known is not None:
            about = (at, not has_files(known), db, table)
            self._db.execute("UPDATE tables SET touched = ?, listed = ? WHERE db = ? AND name = ?", about)

    def _pack(self, partition: Partition) -> tuple[str | None, int, bytes]:
        """Returns the location, the id of the shared columns, and the rest as JSON."""
        storage = partition.storage
        if storage is None:
            return None, 0, msgspec.json.encode(partition)
        number = self._columns.get(storage.columns)
        if number is None:
            body = msgspec.json.encode(storage.columns)
            self._db.execute("INSERT OR IGNORE INTO columns (body) VALUES (?)", (body,))
            number = int(self._db.execute("SELECT id FROM columns WHERE body = ?", (body,)).fetchone()[0])
            self._columns[storage.columns] = number
        slim = msgspec.structs.replace(partition, storage=msgspec.structs.replace(storage, columns=()))
        return partition.location, number, msgspec.json.encode(slim)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _object_ids(self, db: str, table: str, partition: str) -> tuple[int, int, int, bool] | None:
        """Returns (table_id, partition_id, start position, True if files are known) of an object by name."""
        if not partition:
            files = "EXISTS (SELECT 1 FROM files f WHERE f.table_id = t.id AND f.partition_id = 0)"
            query, names = f"SELECT id, 0, since, {files} FROM tables t WHERE db = ? AND name = ?", (db, table)
        else:
            query = (
                "SELECT t.id, p.id, p.since,"
                " EXISTS (SELECT 1 FROM files f WHERE f.table_id = t.id AND f.partition_id = p.id)"
                " FROM tables t JOIN partitions p ON p.table_id = t.id"
                " WHERE t.db = ? AND t.name = ? AND p.name = ? AND p.location NOTNULL"
            )
            names = (db, table, partition)  # type: ignore[assignment]
        row: tuple[int, int, int, int] | None = self._db.execute(query, names).fetchone()
        return (*row[:3], bool(row[3])) if row else None

    def _ids_outside(self, ids: tuple[int, int, int, bool], location: str) -> tuple[int, int, int, bool]:
        """Returns the ids of a table's files, with a negative number for those outside of its location.
        location: of the entries, the root of a store."""
        formats = f"JOIN formats f ON f.table_id = t.id WHERE f.format {HAS_OUTSIDE}"
        row = self._db.execute(f"SELECT t.location FROM tables t {formats} AND t.id = ?", (ids[0],)).fetchone()
        if ids[1] or row is None or not is_outside(location, row[0]):
            return ids
        self._db.execute("INSERT OR IGNORE INTO stores (location) VALUES (?)", (location,))
        (number,) = self._db.execute("SELECT id FROM stores WHERE location = ?", (location,)).fetchone()
        return ids[0], -number, ids[2], True
