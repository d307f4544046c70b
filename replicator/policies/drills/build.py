"""Building shadows and taking them down: the metadata calls of a drill. Acts on one metastore; no file is touched.

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
from replicator.core.batches import batched
from replicator.core.model import EXTERNAL, MANAGED, VIEW, Database, Function, Partition, Table, partition_name
from replicator.core.not_replicated import Report, table_format
from replicator.core.policy import Policy
from replicator.core.roles import DRILL, OF_POLICY, is_shadow
from replicator.core.runtime import Advance
from replicator.errors import MetastoreError, ObjectExists, ObjectNotFound
from replicator.metastore.client import PARTITION_BATCH, Metastore
from replicator.policies.drills.drill_record import Drill, Drills
from replicator.policies.memory import Memory
from replicator.replay.places.placement import uri
from replicator.replay.places.replica import own_parameters, view_parameters
from replicator.replay.places.view_text import not_understood, rename_databases, why_no_view

# ---- shadows ---------------------------------------------------------------------------------------------------------
# Shadows: the objects of a replica as a drill shows them in databases of its own, and the stamp they bear. Pure.
#
# A shadow has the replica's definition and its locations, and owns nothing: every table is external with
# `external.table.purge=false`, so dropping one, by whomever, takes away metadata only. Its database has a directory of
# its own, as a server deletes that with the database. What replication noted on the replica is left out: nobody may
# take a shadow for a replica.


_EXACT = "COLUMN_STATS_ACCURATE"  # with it Hive answers counts from statistics; a drill is to read data
_LEFT_OUT = (_EXACT, "discover.partitions", "partition.retention.period")  # the others let a server drop partitions
_HOUSEKEEPING = "beekeeper."  # with such a property, the data of a table that was dropped goes some days later


@dataclass(frozen=True)
class Shadows:
    """One drill's shadows. `names`: replica's database -> its shadow."""

    id: str
    policy: str
    names: Mapping[str, str]

    def database(self, replica: Database) -> Database:
        """Beside the replica: what may hold the one may hold the other."""
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
        """Only of what `cannot_show` has no word against."""
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
        """A query on the replica, asked of the shadows instead; of the replica where it is not understood."""
        return text if not_understood(self.names, text) else rename_databases(text, self.names) or ""


def cannot_show(table: Table, names: Mapping[str, str]) -> str:
    """Why a table has no shadow in the databases of `names`; nothing when it can have one."""
    if table.kind not in (MANAGED, EXTERNAL, VIEW):
        return f"a {table.kind} cannot lie in two databases"
    match table_format(table):
        case "acid":
            return "a transactional table cannot be external"
        case "iceberg" | "iceberg-view":  # `DROP TABLE .. PURGE` of a shadow would delete what its metadata names
            return "an Iceberg table: who drops one takes its files away, whatever its properties say"
    return why_no_view(table, names)


def may_drop(table: Table) -> bool:
    """Whether an object in a drill's database is the drill's, and owns no data. Anything else was put there by somebody
    and stays."""
    return DRILL in table.parameters and not table.owns_data


def row_count(table: Table) -> int | None:
    """How many rows the metastore says an unpartitioned table has; None where it does not claim to know exactly."""
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


# ---- sweep -----------------------------------------------------------------------------------------------------------
# Sweeping: shadows that a drill left, because it was killed or told to keep them, are taken down by their stamp.


EVERY_NAME = ""  # a prefix that every database has


@dataclass
class ShadowsSwept(Report):
    """`dropped`: shadow databases that went; `staying`: what keeps others there, as no drill made it."""

    policy: str
    status: str = "clean"
    dropped: list[str] = field(default_factory=list)
    staying: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def clean(policy: Policy, source: Metastore, target: Metastore, *, jobs: int = 4) -> ShadowsSwept:
    """Takes down whatever drills of the policy left on either side, whatever it is called. Safe to run twice. Raises
    LeaseHeld while one is running."""
    drills = Drills(Memory(create_or_open(policy.target_cmroot), policy.name))
    with drills.lease():
        found = sweep(policy, target, drills, prefixes=[EVERY_NAME], jobs=jobs, now=clocks.time)
        try:
            other = sweep(policy, source, drills, prefixes=[EVERY_NAME], jobs=jobs, now=clocks.time)
        except MetastoreError as error:
            found.warnings.append(f"only the target's side was looked at: {error}")
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
    """One side: shadows that records tell of, and those whose names have one of the prefixes. Who calls holds the lease
    of the drills, so none of them is in use. Safe to run twice."""
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
    swept.warnings += [f"{name} stays: no drill made it" for name in swept.staying]
    swept.status = "staying" if swept.staying else "clean"
    return swept


def _close(drill: Drill, drills: Drills, swept: ShadowsSwept, now: Callable[[], float]) -> None:
    """A directory may be there without its database, where the drill was killed between the two."""
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
