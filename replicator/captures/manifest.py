"""Manifest: the contents of the captured databases at a position, a fold of the captured log up to it.

One SQLite file: metadata objects as JSON, files, and the directories whose listing is known. If it is missing, or
behind the log, it is folded again. Section `constraints` completes what events tell of a table's constraints.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cmroot.log.captured import Segment, segments
from cmroot.root import ChangeRoot
from cmroot.store.place import Place
from replicator.captures.apply import Fold
from replicator.captures.inventory import FILE, SPLIT, DataObject, Inventory, KnownFile, has_files
from replicator.core.grouping import batched
from replicator.core.model import PRIMARY_KEY, UNIQUE, Constraint, Name, Table
from replicator.errors import sqlite_error
from replicator.metastore.client import MetastoreReader
from replicator.metastore.constraints import ordered
from replicator.metastore.events import record as kinds
from replicator.metastore.events.facts import Rename
from replicator.metastore.events.record import Change, ChangeRecord, decode_line

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
# other than Hive's, what `trees` and `left_out` know, and the files that properties of a table or its partitions name,
# with the position that named each first. Constraints are not derived: captures read them from the metastore if the
# manifest does not record that they are known. Grants are of a table by its id, of a database by its name.
_INDEXES = """
CREATE TABLE IF NOT EXISTS formats (table_id INTEGER PRIMARY KEY, format TEXT);
CREATE TABLE IF NOT EXISTS log_files (checksum, location, problem, PRIMARY KEY (checksum, location)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS named_files (table_id INTEGER, place TEXT, path TEXT, since, PRIMARY KEY (table_id, path));
CREATE TABLE IF NOT EXISTS recorded_files (db, path, location, size, mtime_ns, identity, checksum, kept, version, since,
  PRIMARY KEY (db, path));
CREATE TABLE IF NOT EXISTS constraints (table_id INTEGER PRIMARY KEY, body BLOB);
CREATE TABLE IF NOT EXISTS write_ids (table_id INTEGER PRIMARY KEY, body BLOB);
CREATE TABLE IF NOT EXISTS parents (table_id INTEGER, db TEXT, name TEXT, PRIMARY KEY (db, name, table_id));
CREATE TABLE IF NOT EXISTS grants (table_id INTEGER, db, partition, body, PRIMARY KEY (table_id, db, partition));
CREATE TABLE IF NOT EXISTS roles (db TEXT PRIMARY KEY, body BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS stores (id INTEGER PRIMARY KEY, location TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS tree (location, checksum, store, path, leads, PRIMARY KEY (location, checksum, store, path));
CREATE TABLE IF NOT EXISTS walks (table_id INTEGER PRIMARY KEY, top, keeper);
CREATE TABLE IF NOT EXISTS sound (table_id INTEGER PRIMARY KEY, rules);
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
        self._fold.complete()

    # ---- the fold -------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        return int(self.recall("position") or 0)

    @property
    def event(self) -> int | None:
        """The last event folded; None before the first capture."""
        return None if (value := self.recall("event")) is None else int(value)

    def advance(self, position: int, event: int, time: int) -> None:
        """Records the position, event and time of the fold."""
        for key, value in (("position", position), ("event", event), ("time", time)):
            self.remember(key, value)

    def view_file(self, db: str, path: str, location: str) -> tuple[KnownFile, str | None] | None:
        """Returns the metadata file of a view at a location, by its path in the database's `NAMED`, and its problem
        (None: not yet examined)."""
        examined = "LEFT JOIN log_files l ON l.checksum = f.checksum AND l.location = ?"
        query = f"SELECT {FILE}, l.problem FROM recorded_files f {examined} WHERE f.db = ? AND f.path = ?"
        row = self._db.execute(query, (location, db, path)).fetchone()
        return (KnownFile(*row[:7]), row[7]) if row else None

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
        sound = "DELETE FROM sound WHERE table_id = (SELECT id FROM tables WHERE db = ? AND name = ?)"
        self._db.executemany(sound, record.change.tables)

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

    # ---- listing state --------------------------------------------------------------------------------------------

    def unlist(self, objects: Iterable[tuple[int, int]]) -> None:
        """Marks objects (table_id, partition_id) as to be listed again; their known files are retained."""
        marked = list(objects)
        partitions = [(partition_id,) for _, partition_id in marked if partition_id]
        self._db.executemany("UPDATE tables SET listed = 0 WHERE id = ?", [(id,) for id, part in marked if not part])
        self._db.executemany("UPDATE partitions SET listed = 0 WHERE id = ?", partitions)

    def unlist_table(self, db: str, name: str) -> None:
        """Marks all objects of a table as to be listed again."""
        about = (self._table_id(db, name),)
        self._db.execute("UPDATE tables SET listed = 0 WHERE id = ?", about)
        self._db.execute("UPDATE partitions SET listed = 0 WHERE table_id = ?", about)

    def unlisted(self, batch: int = 500) -> Iterator[list[DataObject]]:
        """Yields the objects to list, in batches; may include objects marked during the iteration."""
        for query in (
            f"SELECT id, 0, db, name, '', location, touched, {SPLIT} FROM tables"
            " WHERE NOT listed AND location <> '' AND id > ? ORDER BY id LIMIT ?",
            "SELECT t.id, p.id, t.db, t.name, p.name, p.location, max(p.touched, t.named), FALSE FROM partitions p"
            " JOIN tables t ON t.id = p.table_id WHERE NOT p.listed AND p.location <> '' AND p.id > ?"
            " ORDER BY p.id LIMIT ?",
        ):
            last = 0
            while rows := self._db.execute(query, (last, batch)).fetchall():
                yield [DataObject(*row) for row in rows]
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
        count = "(SELECT count(*) FROM {} WHERE NOT listed AND location <> '')"
        counts = self._db.execute(f"SELECT {count.format('tables')}, {count.format('partitions')}").fetchone()
        return int(sum(counts))

    def unlist_objects_on_stores(
        self, stays: Callable[[str, bool], bool], db: str = "", names: Sequence[str] = ()
    ) -> None:
        """Marks objects on stores without directories as unlisted, of all tables or some of a database: only a listing
        shows their changes. `stays`: returns True for locations (and `DataObject.root`) known to be unchanged."""
        some = f"db = ? AND name IN ({', '.join('?' * len(names))}) AND " if db else ""
        about = (db, *names) if db else ()
        remote = (
            "listed AND location LIKE '%://%' AND location NOT LIKE '/%' AND location NOT LIKE 'file:%' AND"
            " NOT EXISTS (SELECT 1 FROM directories d WHERE "
        )
        query = f"SELECT id, location, body FROM tables WHERE {some}{remote} d.table_id = id AND d.partition_id = 0)"
        tables = self._db.execute(query, about).fetchall()
        self.unlist(
            (row_id, 0)
            for row_id, location, body in tables
            if has_files(table := msgspec.json.decode(body, type=Table))
            and not stays(location, table.has_files_by_partition)
        )
        theirs = f"table_id IN (SELECT id FROM tables WHERE {some.removesuffix(' AND ')}) AND " if db else ""
        last = 0
        while rows := self._db.execute(
            f"SELECT table_id, id, location FROM partitions WHERE {theirs}{remote} d.table_id = partitions.table_id"
            f" AND d.partition_id = partitions.id) AND id > ? ORDER BY id LIMIT {_PAGE}",
            (*about, last),
        ).fetchall():
            self.unlist((table_id, row_id) for table_id, row_id, location in rows if not stays(location, False))
            last = rows[-1][1]

    def mark_known(self) -> None:
        """Marks the objects whose directories are known as listed. Called after a finished segment was folded."""
        self.remember("outside", "")  # see `elsewhere`: this host has not read the files of the segment
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


# ---- constraints -----------------------------------------------------------------------------------------------------


TABLE_BATCH = 500
GRANTS, KNOWN = "grants", "constraints"  # state of a manifest, and of a segment that leads to it: read once


def completed(known: Manifest, change: kinds.SetConstraints) -> kinds.SetConstraints:
    """Returns all constraints of a table after an event that adds some or drops one."""
    if change.whole:
        return change
    replaced = {(each.kind, each.name) for each in change.constraints}
    kept = (
        each
        for each in known.constraints(change.db, change.table)
        if (each.kind, each.name) not in replaced and each.name not in change.dropped
    )
    return kinds.SetConstraints(db=change.db, table=change.table, constraints=ordered([*kept, *change.constraints]))


def consequences(known: Manifest, change: Change) -> list[kinds.SetConstraints]:
    """Returns the constraints that a change affects, as they are after it. Called before the change is folded. Foreign
    keys follow a parent table that is renamed, and end with one that is dropped. The constraints of a table whose
    columns change are repeated, because a target may have to drop them in order to change the columns."""
    found: list[kinds.SetConstraints] = []
    match change:
        case kinds.AlterTable(table=table):
            old, new = (change.db, change.name), change.touched
            before = known.table(*old)
            if change.renames:
                found += _without_parent(known, new, but=old)
                found += _renamed(known, old, new)
            elif before and table.storage and before.storage and before.storage.columns != table.storage.columns:
                found += [_same(known, name) for name in dict.fromkeys([*_having(known, old), *known.children(*old)])]
        case kinds.CreateTable(table=table) if known.table(table.db, table.name) is not None:
            found += _without_parent(known, (table.db, table.name))
        case kinds.DropTable(db=db, name=name):
            found += _without_parent(known, (db, name))
        case kinds.DropDatabase(db=db):
            for name in known.table_names(db):
                found += [each for each in _without_parent(known, (db, name)) if each.db != db]
    return found


def _having(known: Manifest, name: Name) -> list[Name]:
    return [name] if known.constraints(*name) else []


def _same(known: Manifest, name: Name) -> kinds.SetConstraints:
    return kinds.SetConstraints(db=name[0], table=name[1], constraints=known.constraints(*name))


def _renamed(known: Manifest, old: Name, new: Name) -> Iterator[kinds.SetConstraints]:
    """Includes the table's own, under the new name: a target reports those that it cannot create by that name."""
    for child in dict.fromkeys([*_having(known, old), *known.children(*old)]):
        db, table = new if child == old else child
        constraints = tuple(
            msgspec.structs.replace(each, parent=new) if each.parent == old else each
            for each in known.constraints(*child)
        )
        yield kinds.SetConstraints(db=db, table=table, constraints=constraints)


def _without_parent(known: Manifest, gone: Name, *, but: Name | None = None) -> Iterator[kinds.SetConstraints]:
    for child in known.children(*gone):
        if child not in (gone, but):
            kept = tuple(each for each in known.constraints(*child) if each.parent != gone)
            yield kinds.SetConstraints(db=child[0], table=child[1], constraints=kept)


def walk_constraints(
    source: MetastoreReader, known: Manifest, db: str, tables: Sequence[str]
) -> Iterator[kinds.SetConstraints]:
    """Yields the constraints of tables for which the metastore and the manifest differ."""
    for names in batched(tables, TABLE_BATCH):
        now = source.constraints(db, names)
        for name in names:
            if now.get(name, ()) != known.constraints(db, name):
                yield kinds.SetConstraints(db=db, table=name, constraints=now.get(name, ()))


def unannounced(source: MetastoreReader, known: Manifest, change: Change) -> Name | None:
    """Returns the table whose constraints an event does not include, or None. Servers before 4.0 announce no
    constraints of some kinds, and no server announces how an alteration of columns affects them."""
    if isinstance(change, kinds.CreateTable) and not (change.table.is_view or change.table.temporary):
        return None if source.announces_constraints() else change.touched
    if isinstance(change, kinds.AlterTable) and known.constraints(change.db, change.name):
        return change.touched
    return None


def loses_or_gets_key(known: Manifest, change: Change) -> Name | None:
    """Returns the table to which a change adds keys or from which it removes them, or None. Called before the change is
    folded. Servers show the foreign keys to a table only while it has a key."""
    if not isinstance(change, kinds.SetConstraints):
        return None
    before, after = known.constraints(change.db, change.table), change.constraints
    return change.touched if _keys(before) != _keys(after) else None


def _keys(constraints: Sequence[Constraint]) -> set[Constraint]:
    return {each for each in constraints if each.kind in (PRIMARY_KEY, UNIQUE)}


def children_now(source: MetastoreReader, known: Manifest, parents: Sequence[Name]) -> Iterator[Name]:
    """Yields the tables that had, or now have, foreign keys to `parents`; in other databases only those that had."""
    for parent in parents:
        yield from known.children(*parent)
    for db in {db for db, _ in parents}:
        for table, constraints in source.foreign_keys(db).items():
            if any(each.parent in parents for each in constraints):
                yield db, table


def is_known(known: Manifest) -> bool:
    return known.recall(KNOWN) is not None


def note_known(known: Manifest) -> None:
    known.remember(KNOWN, "read")


# ---- folds of the captured log: the current one, next to the log, and temporary ones of the past ---------------------


@contextlib.contextmanager
def open_manifest(root: ChangeRoot) -> Iterator[Manifest]:
    """Opens a root's manifest, up to date with its log; requires the root's lease. Derived: its loss is harmless."""
    with opened(manifest_path(root)) as manifest:
        log = segments(root.place)
        stale = manifest.position > (log[-1].last if log else 0)  # of another log: the root was restored or replaced
        if not stale:
            catch_up(manifest, log)
            yield manifest
            return
    manifest_path(root).unlink()
    with opened(manifest_path(root)) as manifest:
        catch_up(manifest, log)
        yield manifest


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Manifest]:
    """Opens a manifest. Raises the errors of `sqlite_error`."""
    try:
        with contextlib.closing(Manifest(path)) as manifest:
            yield manifest
    except sqlite3.DatabaseError as error:
        raise sqlite_error(path, error) from error


def manifest_path(root: ChangeRoot) -> Path:
    """Returns its path: next to the log if the root is local, else in the user's cache under the root's id."""
    if top := Place(root.place).local:
        return Path(top) / "manifest.sqlite"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replicator" / "manifest"
    cache.mkdir(parents=True, exist_ok=True)
    return cache / f"{root.id}.sqlite"


def catch_up(manifest: Manifest, log: list[Segment], until: int | None = None) -> None:
    """Folds the segments after the manifest's position, up to and including position `until` (None: to the end)."""
    for segment in log:
        if segment.last <= manifest.position or (until is not None and segment.first > until):
            continue
        last = manifest.position
        renames = []
        for record in read_records(segment, manifest.position, until):
            manifest.apply(record)
            manifest.advance(record.position, record.event, record.time)
            last = record.position
            if rename := Rename.of(record.position, record.change):
                renames.append(rename)
        for batch in segment.file_batches():
            rows = pa.Table.from_batches([batch])
            manifest.apply_files(rows.filter(pc.less_equal(rows["position"], last)), renames)
        for key in (KNOWN, GRANTS) if last == segment.last else ():
            if segment.metadata.get(key):
                manifest.remember(key, "read")
        manifest.forget_ended()  # the log contains them
        manifest.mark_known()
        manifest.commit()


def read_records(segment: Segment, after: int = -1, until: int | None = None) -> Iterator[ChangeRecord]:
    """Yields a segment's records with after < position <= until."""
    for line in segment.records(after, until):
        yield decode_line(line, segment.place)


@contextlib.contextmanager
def manifest_at(root: ChangeRoot, position: int, scratch: Path) -> Iterator[Manifest]:
    """Opens the state as of an earlier position, folded from the log into a temporary file below `scratch`."""
    path = scratch / f"manifest-{position}.sqlite"
    try:
        with opened(path) as manifest:
            catch_up(manifest, segments(root.place), until=position)
            yield manifest
    finally:
        for leftover in scratch.glob(f"{path.name}*"):
            leftover.unlink()
