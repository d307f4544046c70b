"""Shadows, the databases of a drill: the metadata calls that create and remove them. Acts on one metastore, on no file.

Tables are created in parallel, partitions in batches of one call. Loads continue to change the replica: an object that
was dropped after it was read is not shown, and the empty directory that the server created for it is removed, because
it would block a rename by a load. Every function may run twice.
"""

from __future__ import annotations

import contextlib
import time as clocks
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock

import msgspec

from cmroot.root import create_or_open
from cmroot.store.place import join, parent, remove_if_empty
from replicator.core.formats import format_of
from replicator.core.grouping import batched
from replicator.core.model import EXTERNAL, MANAGED, VIEW, Database, Function, Partition, Table, partition_name
from replicator.core.not_replicated import Report
from replicator.core.policy import Policy
from replicator.core.roles import DRILL, OF_POLICY, is_shadow
from replicator.core.runtime import Advance
from replicator.errors import MetastoreError, ObjectExists, ObjectNotFound
from replicator.metastore.client import PARTITION_BATCH, Metastore
from replicator.policies.drill_record import Drill, Drills
from replicator.policies.memory import Memory
from replicator.replay.placement import uri
from replicator.replay.replica import own_parameters, view_parameters
from replicator.replay.server_rules import not_understood, rename_databases, why_no_view

# ---- shadows ---------------------------------------------------------------------------------------------------------
# Shadows: copies of a replica's objects in databases of a drill, and the stamp that marks them. Pure.
#
# A shadow has the replica's definition and locations, and owns no data: every table is external with
# `external.table.purge=false`, so that dropping one removes metadata only, whoever drops it. Its database has a
# directory of its own, as a server deletes that with the database. The replication properties of the replica are
# omitted, so that a shadow is never taken for a replica.


_EXACT = "COLUMN_STATS_ACCURATE"  # with it Hive answers counts from statistics; a drill is to read data
_LEFT_OUT = (_EXACT, "discover.partitions", "partition.retention.period")  # the others let a server drop partitions
_HOUSEKEEPING = "beekeeper."  # such a property has the data of a dropped table deleted some days later


@dataclass(frozen=True)
class Shadows:
    """The shadows of one drill. `names`: replica's database -> its shadow."""

    id: str
    policy: str
    names: Mapping[str, str]

    def database(self, replica: Database) -> Database:
        """Returns the shadow database, next to the replica, so that the same permissions and limits apply."""
        name = self.names[replica.name]
        return msgspec.structs.replace(
            replica,
            name=name,
            description=f"drill {self.id} of {replica.name} by {self.policy}: read only, shows the replica's files",
            location=uri(join(parent(replica.location or ""), f"{name}.db")),
            parameters={DRILL: self.id, OF_POLICY: self.policy},
            extra={},
        )

    def table(self, table: Table) -> Table:
        """Returns the shadow of a table that `cannot_show` allows."""
        parameters = _parameters(table.parameters)
        if table.is_view:
            parameters = view_parameters(parameters, self.names)
        else:
            parameters |= {"EXTERNAL": "TRUE", "external.table.purge": "false"}
        return msgspec.structs.replace(
            table,
            db=self.names[table.db],
            kind=table.kind if table.is_view else EXTERNAL,
            parameters=parameters | {DRILL: self.id},
            view_original=rename_databases(table.view_original, self.names),
            view_expanded=rename_databases(table.view_expanded, self.names),
            extra={},
        )

    def partition(self, partition: Partition) -> Partition:
        return msgspec.structs.replace(partition, parameters=_parameters(partition.parameters), extra={})

    def function(self, function: Function) -> Function:
        return msgspec.structs.replace(function, db=self.names[function.db])

    def query(self, text: str) -> str:
        """Returns a query on the replica rewritten for the shadows; unchanged if its SQL is not understood."""
        return text if not_understood(self.names, text) else rename_databases(text, self.names) or ""


def cannot_show(table: Table, names: Mapping[str, str]) -> str:
    """Returns why a table has no shadow in the databases of `names`; empty if it can have one."""
    if table.kind not in (MANAGED, EXTERNAL, VIEW):
        return f"a {table.kind} cannot be in two databases"
    return format_of(table).no_shadow or why_no_view(table, names)


def may_drop(table: Table) -> bool:
    """Returns True if an object in a drill's database was created by the drill and owns no data. Other objects come
    from elsewhere and are retained."""
    return DRILL in table.parameters and not table.owns_data


def row_count(table: Table) -> int | None:
    """Returns the row count of an unpartitioned table in the metastore; None if it is not marked as exact."""
    if table.is_view or table.partition_keys or "BASIC_STATS" not in table.parameters.get(_EXACT, ""):
        return None
    text = table.parameters.get("numRows", "")
    return int(text) if text.isdigit() else None


def _parameters(parameters: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value
        for key, value in own_parameters(parameters).items()
        if key not in _LEFT_OUT and not key.startswith(_HOUSEKEEPING)
    }


# ---- build -----------------------------------------------------------------------------------------------------------


TABLE_BATCH = 100  # read, shown and checked again: this limits the time in which a table may be dropped
RACES = (0.1, 0.5, 2.0, 5.0)  # seconds to wait before a database that was not empty is emptied again
WENT = "it was dropped or moved concurrently"


@dataclass
class Built:
    """The objects created, and those skipped, with the reason. `names`: tables and views shown, by shadow database."""

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
    """Fills the existing databases of the shadows. advance: by tables. `jobs`: parallel tables."""
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
    except ObjectNotFound:  # the replica's table; `_forget_gone` removes the shadow
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
    """Removes shadows of tables that were dropped from the replica, or moved, since they were read."""
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
    """Drops the objects that a drill created in one database, then the database with its empty directory `home`.
    Returns objects of other origin, which are retained with the database. A missing database is not an error."""
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
            clocks.sleep(wait)  # the last call of a killed drill was executed only now
            continue
        break
    remove_if_empty(home)
    return []


def _empty(metastore: Metastore, database: str, jobs: int) -> list[str]:
    """Drops a drill's own objects in a database. Returns the others."""
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
    """Drops a table, its partitions in batches first: a server drops them in one transaction, which may time out."""
    with contextlib.suppress(ObjectNotFound):
        if table.partition_keys and not table.is_view:
            names = metastore.partition_names(table.db, table.name)
            if len(names) > PARTITION_BATCH:
                metastore.drop_partitions(table.db, table.name, names)
        metastore.drop_table(table.db, table.name)


# ---- sweep -----------------------------------------------------------------------------------------------------------
# Sweeping: shadows of a killed drill, or of one with --keep, are found by their stamp and removed.


EVERY_NAME = ""  # a prefix that every database has


@dataclass
class ShadowsSwept(Report):
    """The result of a sweep. `dropped`: shadow databases; `staying`: objects of other origin that prevented a drop."""

    policy: str
    status: str = "clean"
    dropped: list[str] = field(default_factory=list)
    staying: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def clean(policy: Policy, source: Metastore, target: Metastore, *, jobs: int = 4) -> ShadowsSwept:
    """Removes all shadows of the policy's drills on either side, under any name. May run twice. Raises LeaseHeld while
    a drill is running."""
    drills = Drills(Memory(create_or_open(policy.target_cmroot), policy.name))
    with drills.lease():
        found = sweep(policy, target, drills, prefixes=[EVERY_NAME], jobs=jobs, now=clocks.time)
        try:
            other = sweep(policy, source, drills, prefixes=[EVERY_NAME], jobs=jobs, now=clocks.time)
        except MetastoreError as error:
            found.warnings.append(f"only the target's side was checked: {error}")
            return found
    found.dropped += other.dropped
    found.staying += other.staying
    found.status = "staying" if found.staying else "clean"
    return found


def sweep(
    policy: Policy,
    metastore: Metastore,
    drills: Drills,
    *,
    prefixes: Sequence[str],
    jobs: int,
    now: Callable[[], float],
) -> ShadowsSwept:
    """Sweeps one side: shadows listed in records, and those whose names have one of the prefixes. The caller holds the
    lease of the drills, so none of them is in use. May run twice."""
    swept = ShadowsSwept(policy.name)
    unfinished = [drill for drill in drills.unfinished() if drill.metastore == metastore.uri]
    recorded = {shadow: drill for drill in unfinished for shadow in drill.databases.values()}
    there = metastore.database_names()
    for name in [name for name in there if name in recorded or name.startswith(tuple(prefixes))]:
        database = _find(metastore, name)
        if database is None or not is_shadow(database) or database.parameters.get(OF_POLICY) != policy.name:
            continue
        staying = tear_down(metastore, name, database.location or "", jobs=jobs)
        swept.staying += staying
        swept.dropped += [] if staying else [name]
    for drill in unfinished:
        _close(drill, drills, swept, now)
    swept.warnings += [f"{name} is kept: no drill created it" for name in swept.staying]
    swept.status = "staying" if swept.staying else "clean"
    return swept


def _close(drill: Drill, drills: Drills, swept: ShadowsSwept, now: Callable[[], float]) -> None:
    """Closes the record of a swept drill. Removes directories without a database, of a drill killed between the two."""
    if any(name.partition(".")[0] in drill.databases.values() for name in swept.staying):
        return
    for home in drill.homes.values():
        remove_if_empty(home)
    drills.close(drill, now=now)


def _find(metastore: Metastore, name: str) -> Database | None:
    try:
        return metastore.database(name)
    except ObjectNotFound:
        return None
