"""Building shadows and taking them down: the metadata calls of a drill. Acts on one metastore; no file is touched.

Tables go side by side, partitions in batches of a call. A replica goes on changing meanwhile: what was dropped between
being read and being shown is not shown, and the empty directory that the server made for it goes again, as a rename by
a load would find it in its way. Every function may run twice.
"""

from __future__ import annotations

import contextlib
import time as clocks
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock

from cmroot.store.emptied import remove_if_empty
from replicator.core.batches import batched
from replicator.core.model import Table, partition_name
from replicator.core.progress import Advance
from replicator.errors import MetastoreError, ObjectExists, ObjectNotFound
from replicator.metastore.client import PARTITION_BATCH, Metastore
from replicator.policies.drills.shadows import Shadows, cannot_show, may_drop

TABLE_BATCH = 100  # read, shown and looked at again: the time in which a table may go away is short
RACES = (0.1, 0.5, 2.0, 5.0)  # seconds to wait before a database that was not empty is emptied again
WENT = "it went away meanwhile"


@dataclass
class Built:
    """What was made, and what was not, with the reason. `names`: the tables and views shown, by shadow database."""

    tables: int = 0
    views: int = 0
    partitions: int = 0
    functions: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def count(self, table: Table, shadow: str, partitions: int) -> None:
        with self._lock:
            self.tables += not table.is_view
            self.views += table.is_view
            self.partitions += partitions
            self.names.setdefault(shadow, []).append(table.name)

    def skip(self, name: str, why: str) -> None:
        with self._lock:
            self.skipped[name] = why


def build(metastore: Metastore, shadows: Shadows, advance: Advance, *, jobs: int) -> Built:
    """Fills the databases of the shadows, which are there. advance: by tables. `jobs`: of them side by side."""
    built = Built()
    with ThreadPoolExecutor(jobs, thread_name_prefix="drill") as pool:
        for replica in shadows.names:
            for names in batched(metastore.table_names(replica), TABLE_BATCH):
                tables = metastore.tables(replica, names)
                list(pool.map(lambda table: _show(metastore, shadows, table, built), tables))
                _forget_gone(metastore, shadows, replica, tables, built)
                advance(len(tables))
            for function in metastore.functions(replica):
                with contextlib.suppress(ObjectExists):
                    metastore.create_function(shadows.function(function))
                built.functions += 1
    return built


def _show(metastore: Metastore, shadows: Shadows, table: Table, built: Built) -> None:
    why = cannot_show(table, shadows.names)
    if why:
        built.skip(f"{table.db}.{table.name}", why)
        return
    shadow = shadows.table(table)
    with contextlib.suppress(ObjectExists):
        metastore.create_table(shadow)
    try:
        partitions = _show_partitions(metastore, shadows, table) if table.partition_keys and not table.is_view else 0
    except ObjectNotFound:  # the replica's table; `_forget_gone` takes the shadow away
        partitions = 0
    built.count(table, shadow.db, partitions)


def _show_partitions(metastore: Metastore, shadows: Shadows, table: Table) -> int:
    shadow, names = shadows.names[table.db], set[str]()
    for page in metastore.all_partitions(table.db, table.name):
        for batch in batched(page, PARTITION_BATCH):
            metastore.add_partitions(shadow, table.name, [shadows.partition(each) for each in batch])
        names.update(partition_name(table.partition_keys, each.values) for each in page)
    number = len(names)
    gone = sorted(names - set(metastore.partition_names(table.db, table.name)))
    for batch in metastore.partitions(shadow, table.name, gone):
        metastore.drop_partitions(
            shadow, table.name, [partition_name(table.partition_keys, each.values) for each in batch]
        )
        for partition in batch:
            remove_if_empty(partition.location)
        number -= len(batch)
    return number


def _forget_gone(metastore: Metastore, shadows: Shadows, replica: str, tables: Sequence[Table], built: Built) -> None:
    """Tables that the replica has no more, or has elsewhere, since they were read."""
    there = {table.name: table for table in metastore.tables(replica, [table.name for table in tables])}
    shadow = shadows.names[replica]
    for table in tables:
        now = there.get(table.name)
        if (now is not None and now.location == table.location) or f"{replica}.{table.name}" in built.skipped:
            continue
        with contextlib.suppress(ObjectNotFound):
            metastore.drop_table(shadow, table.name)
        built.skip(f"{replica}.{table.name}", WENT)
        built.names[shadow].remove(table.name)
        built.views -= table.is_view
        built.tables -= not table.is_view
        if not table.is_view:
            remove_if_empty(table.location)


def tear_down(metastore: Metastore, database: str, home: str, *, jobs: int) -> list[str]:
    """Drops what a drill made in one database, then the database with its empty directory `home`. Returns what stays,
    as somebody else put it there; the database stays with it. A database that is gone already is fine."""
    for wait in (*RACES, None):
        try:
            staying = _empty(metastore, database, jobs)
            if staying:
                return staying
            metastore.drop_database(database)
        except ObjectNotFound:
            pass
        except MetastoreError as error:
            if error.transient or wait is None or not metastore.table_names(database):
                raise
            clocks.sleep(wait)  # the last call of a drill that was killed came through only now
            continue
        break
    remove_if_empty(home)
    return []


def _empty(metastore: Metastore, database: str, jobs: int) -> list[str]:
    """Drops a drill's own in a database; what is left there."""
    staying: list[str] = []
    with ThreadPoolExecutor(jobs, thread_name_prefix="drill") as pool:
        for names in batched(metastore.table_names(database), TABLE_BATCH):
            tables = metastore.tables(database, names)
            list(pool.map(lambda table: _drop(metastore, table), filter(may_drop, tables)))
            staying += [f"{database}.{table.name}" for table in tables if not may_drop(table)]
    if not staying:
        for name in metastore.function_names(database):
            with contextlib.suppress(ObjectNotFound):
                metastore.drop_function(database, name)
    return staying


def _drop(metastore: Metastore, table: Table) -> None:
    """In batches first: a server drops many partitions in one transaction, longer than an answer may take."""
    with contextlib.suppress(ObjectNotFound):
        if table.partition_keys and not table.is_view:
            names = metastore.partition_names(table.db, table.name)
            if len(names) > PARTITION_BATCH:
                metastore.drop_partitions(table.db, table.name, names)
        metastore.drop_table(table.db, table.name)
