"""The references of the live metastore: every location of every database, table and partition, searchable by path.

The answer is exact as of the newest event: the metastore is walked once, in batches, into an SQLite file, and later
events are applied before each query. Reads only (apart from its own file).
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from types import TracebackType
from typing import Self

import msgspec

from cmroot.store.local import status_of
from cmroot.store.place import is_local, local_path, normal, parent, resolved
from replicator.core.grouping import batched
from replicator.core.model import Database, Partition, Table, partition_name
from replicator.core.named_files import is_on_nodes
from replicator.core.roles import follows, mark_of
from replicator.errors import ObjectNotFound
from replicator.metastore.client import MetastoreReader, warehouse_of
from replicator.metastore.concurrency import tables_with_partitions
from replicator.metastore.events import record as kinds
from replicator.metastore.events.notification_log import decode, read_events
from replicator.metastore.events.record import Change
from replicator.metastore.events.scope import IRRELEVANT
from replicator.metastore.fields import qualified

DATABASE, HOME, DATA = "database", "home", "data"
"""Kinds of reference: a database's directory; a partitioned table's own directory (its partitions may be located
anywhere); a directory whose entire content is the data of a table or partition."""

_ABOVE = 64  # names of a path that are looked up together

_SCHEMA = """
create table place (path text not null, kind text not null, db text not null, tbl text not null, part text not null,
    primary key (path, db, tbl, part)) without rowid;
create index place_object on place (db, tbl, part);
"""


class LiveReference:
    """A reference to a path. `object`: "db", "db.table" or "db.table/partition"."""

    __slots__ = ("db", "kind", "part", "path", "table")

    def __init__(self, path: str, kind: str, db: str, table: str, part: str) -> None:
        self.path, self.kind, self.db, self.table, self.part = path, kind, db, table, part

    @property
    def object(self) -> str:
        return "/".join(filter(None, (".".join(filter(None, (self.db, self.table))), self.part)))

    def __str__(self) -> str:
        return f"{self.object} at {self.path}"


class LiveLocations:
    """Every location that a metastore refers to, read at the first query. Usable as a `with` block.

    Memory is bounded: the locations are stored in an unnamed temporary file (see TMPDIR), about 200 bytes each. Raises
    the metastore's errors; if the answer cannot be determined, raises an error instead of reporting no reference."""

    def __init__(self, metastore: MetastoreReader) -> None:
        self._metastore = metastore
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.executescript(_SCHEMA)
        self._all = metastore  # includes other catalogs after the first walk
        self._walked, self._cursor, self._seen, self._roles = False, 0, dict[str, int](), dict[str, str]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()

    def forget(self) -> None:
        """Makes the next query read the metastore again."""
        self._walked = False

    def __len__(self) -> int:
        return self._count("1")

    def held(self, databases: Collection[str] | None = None) -> int:
        """Returns the number of locations with data of tables or partitions, in these databases (None: in all)."""
        if databases is None:
            return self._count("kind = ?", DATA)
        return sum(self._count("kind = ? and db = ?", DATA, db.lower()) for db in set(databases))

    def partitions(self, db: str, table: str) -> int:
        """Returns the number of partitions of a table that have a location."""
        return self._count("db = ? and tbl = ? and part <> ''", db.lower(), table.lower())

    def _count(self, where: str, *values: str) -> int:
        return int(self._asked().execute(f"select count(*) from place where {where}", values).fetchone()[0])

    def _asked(self) -> sqlite3.Connection:
        if not self._walked:
            self._walk()
        return self._database

    def references(self, path: str) -> Iterator[LiveReference]:
        """Yields every reference that would lose data, or its location, if the path were removed: those at or below the
        path, and the data directories that contain it. Directories of databases and partitioned tables above the path
        do not count, as they may contain files of others. Call `refresh` before if the answer must be current."""
        place, database = spelled(path), self._asked()
        columns = "path, kind, db, tbl, part"
        at_or_below = f"select {columns} from place where path = ? or (path > ? and path < ?)"
        for row in database.execute(at_or_below, (place, place + "/", place + "0")):  # "0" follows "/"
            yield LiveReference(*row)
        for names in batched(_above(place), _ABOVE):
            marks = ",".join("?" * len(names))
            query = f"select {columns} from place where kind = ? and path in ({marks})"
            for row in database.execute(query, (DATA, *names)):
                yield LiveReference(*row)

    def blocking(
        self, path: str, *, object: str = "", partition: str = "", same: Collection[str] = ()
    ) -> LiveReference | None:
        """Returns the first reference that forbids a path's removal. `object` ("db.table") and `partition`: dropped as
        well, so their own references do not count; an object without partition covers all its partitions. same: other
        names of this table, whose references do not count either."""
        for found in self.references(path):
            name = f"{found.db}.{found.table}"
            own = object and name == object.lower() and (not partition or found.part == partition)
            if not own and name not in same:
                return found
        return None

    def follows(self, db: str) -> str:
        """Returns why nothing of a database may be removed here: it is another's replica, or fenced; else "". Queries
        the metastore once for each `refresh`, because a 2.3 server emits no event for a role change."""
        if db not in self._roles:
            try:
                self._roles[db] = follows(db, mark_of(self._metastore.database(db).parameters, db))
            except ObjectNotFound:
                self._roles[db] = ""
        return self._roles[db]

    def on_nodes(self, db: str, path: str) -> bool:
        """Returns True for a local path of a warehouse on another filesystem: it is on the nodes of the cluster."""
        if not is_local(path):
            return False
        known = self._asked().execute("select path from place where kind = ? and db = ?", (DATABASE, db.lower()))
        return is_on_nodes(path, *(place for (place,) in known), self._warehouse)

    @cached_property
    def _warehouse(self) -> str | None:
        return warehouse_of(self._metastore)

    def refresh(self) -> None:
        """Applies the events since the last refresh. Walks the metastore again after a gap in the events."""
        _real.cache_clear()
        self._roles.clear()
        if not self._walked:
            self._walk()
            return
        reading = read_events(self._metastore, self._cursor, self._seen)
        if reading.hole is not None:
            self._walk()
            return
        again: set[tuple[str, str]] = set()
        for event in reading.events:
            if event.catalog is not None and event.type not in IRRELEVANT:
                tables = decode(msgspec.structs.replace(event, catalog=None)).change.tables
                if not tables:
                    self._walk()
                    return
                again.update((qualified(event.catalog, db).lower(), name.lower()) for db, name in tables)
                continue
            change = decode(event).change
            if change.is_marker:
                continue
            if not self._apply(change):
                table = change.touched or ((event.db, event.table) if event.db and event.table else None)
                if table is None:
                    self._walk()
                    return
                again.add((table[0].lower(), table[1].lower()))
        for event in reading.late:
            if event.type in IRRELEVANT:
                continue
            if event.db and event.table and event.catalog is None:
                again.add((event.db.lower(), event.table.lower()))
            else:
                self._walk()
                return
        for db, name in again:
            self._look_again(db, name)
        if reading.events:
            self._cursor = reading.events[-1].id
        self._seen = reading.seen

    # ---- filling --------------------------------------------------------------------------------------------------

    def _walk(self) -> None:
        newest = self._metastore.current_event_id()  # before the first listing
        self._seen = read_events(self._metastore, newest, {}).seen if newest else {}
        with self._transaction():
            self._database.execute("delete from place")
            self._all = self._metastore.everywhere()
            for db in self._all.database_names():
                try:
                    self._put_database(self._all.database(db))
                    names = self._all.table_names(db)
                except ObjectNotFound:
                    continue  # dropped concurrently, as later events confirm
                for table, pages in tables_with_partitions(self._all, db, names):
                    self._put_table(table)
                    for batch in pages:
                        self._put_partitions(table, batch)
        self._walked, self._cursor = True, newest

    def _look_again(self, db: str, name: str) -> None:
        with self._transaction():
            self._forget(db, name)
            try:
                table = self._all.table(db, name)
                self._put_table(table)
                self._put_partitions_of(table)
            except ObjectNotFound:
                self._forget(db, name)

    def _apply(self, change: Change) -> bool:
        """Applies an event. Returns False if the event is incomplete and its table must be read."""
        match change:
            case kinds.CreateDatabase(database=database) | kinds.AlterDatabase(database=database):
                self._forget(database.name, "")
                self._put_database(database)
            case kinds.CreateTable(table=table):
                self._forget(table.db, table.name)
                self._put_table(table)
            case kinds.AlterTable(db=db, name=name, table=table) if not change.renames and not change.moved:
                self._forget(db, name, "")
                self._put_table(table)
            case kinds.AlterTable(db=db, name=name, table=table):
                self._forget(db, name)
                return False  # its partitions were moved or renamed with it
            case kinds.AddPartitions(db=db, table=name, keys=keys, partitions=partitions) if keys:
                for part, partition in zip(change.partition_names, partitions, strict=True):
                    self._forget(db, name, part)
                    self._put(partition.location, DATA, db, name, part)
            case kinds.AlterPartition(db=db, table=name, before=before, name=part, partition=partition):
                self._forget(db, name, before)
                self._put(partition.location, DATA, db, name, part)
            case kinds.DropPartitions(db=db, table=name, names=names):
                for part in names:
                    self._forget(db, name, part)
            case kinds.DropTable(db=db, name=name):
                self._forget(db, name)
            case kinds.DropDatabase(db=db):
                self._database.execute("delete from place where db = ?", (db.lower(),))
            case (
                kinds.ChangeFiles()
                | kinds.SetStatistics()
                | kinds.AlterIndex()
                | kinds.CreateFunction()
                | kinds.DropFunction()
            ):
                pass
            case _:
                return False
        return True

    def _put_database(self, database: Database) -> None:
        self._put(database.location, DATABASE, database.name, "", "")

    def _put_table(self, table: Table) -> None:
        if not table.is_view:
            self._put(table.location, HOME if table.has_files_by_partition else DATA, table.db, table.name, "")

    def _put_partitions_of(self, table: Table) -> None:
        if not table.has_files_by_partition:
            return
        for batch in self._all.all_partitions(table.db, table.name):
            self._put_partitions(table, batch)

    def _put_partitions(self, table: Table, batch: Sequence[Partition]) -> None:
        rows = (
            (spelled(each.location), DATA, table.db, table.name, partition_name(table.partition_keys, each.values))
            for each in batch
            if each.location
        )
        self._database.executemany("insert or replace into place values (?, ?, ?, ?, ?)", rows)

    def _put(self, location: str | None, kind: str, db: str, table: str, part: str) -> None:
        if location:
            row = (spelled(location), kind, db.lower(), table.lower(), part)
            self._database.execute("insert or replace into place values (?, ?, ?, ?, ?)", row)

    def _forget(self, db: str, table: str, part: str | None = None) -> None:
        """part: None for the table and all its partitions."""
        if part is None:
            self._database.execute("delete from place where db = ? and tbl = ?", (db.lower(), table.lower()))
        else:
            self._database.execute(
                "delete from place where db = ? and tbl = ? and part = ?", (db.lower(), table.lower(), part)
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Executes a walk in one transaction, because a commit for each row would dominate the time."""
        self._database.execute("begin")
        try:
            yield
        except BaseException:
            if self._database.in_transaction:  # a signal may arrive before the transaction begins, or after its end
                self._database.execute("rollback")
            raise
        self._database.execute("commit")


class Unregistered(LiveLocations):
    """Locations for files that, according to the operator, no metastore refers to: there are no references."""

    def __init__(self) -> None:
        pass

    def refresh(self) -> None:
        pass

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass

    def references(self, path: str) -> Iterator[LiveReference]:
        return iter(())

    def follows(self, db: str) -> str:
        return ""

    def on_nodes(self, db: str, path: str) -> bool:
        return False


def spelled(place: str) -> str:
    """Returns the normalised path, as `resolved` does: two names of one directory are equal. Caches the parent
    directory for all its entries."""
    if not is_local(place):
        return resolved(place)
    path = local_path(place)
    head, _, name = path.rpartition("/")
    if name in (".", ".."):
        return resolved(path)
    path = os.path.join(_real(head or "/"), name)
    status = status_of(path, follow=False)
    return resolved(path) if status is not None and stat.S_ISLNK(status.st_mode) else path


@lru_cache(maxsize=4096)
def _real(directory: str) -> str:
    return resolved(directory)


def _above(place: str) -> Iterable[str]:
    while "/" in place.partition("://")[2] if "://" in place else place.count("/") > 1:
        place = place.rpartition("/")[0]
        yield place


def shared(live: LiveLocations, name: str, paths: Iterable[str], same: Collection[str] = ()) -> str:
    """Returns why files may not be deleted with the states of a table that name them: they are in the data of another
    table, as `add_files` of Iceberg leaves them; "" if none is. name: "db.table"; same: its other names."""
    for directory in dict.fromkeys(parent(normal(path)) for path in paths):
        if (found := live.blocking(directory, object=name, same=same)) is not None:
            return f"an expiry would delete files in {directory}, which is data of {found}"
    return ""
