"""Comparing what the captured log says with what the metastore says now: the difference, as changes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from replicator.captures.events import record as kinds
from replicator.captures.events.record import Change, partition_names
from replicator.core.model import Database, Function, Partition, Statistics, Table
from replicator.core.roles import without_role
from replicator.metastore.convert.fields import ids

COMPUTED_BY_IMPALA = "impala.lastComputeStatsTime"


def database_change(known: Database | None, now: Database) -> Iterator[Change]:
    if known is None:
        yield kinds.CreateDatabase(database=now)
    elif not same_database(known, now):
        yield kinds.AlterDatabase(database=now)


def same_database(known: Database, now: Database) -> bool:
    """Whether only a role has changed, or nothing: roles are each metastore's own, and no change of the source."""
    if known == now:
        return True
    return _plain(known) == _plain(now)


def _plain(database: Database) -> Database:
    """Without its role, and without the catalog, which servers tell, and events do not."""
    extra = {key: value for key, value in database.extra.items() if key not in _CATALOG}
    return msgspec.structs.replace(database, parameters=without_role(database.parameters), extra=extra)


_CATALOG = ids("Database", "catalogName")


def function_changes(known: Sequence[Function], now: Sequence[Function]) -> Iterator[Change]:
    before = {function.name: function for function in known}
    for function in now:
        if before.pop(function.name, None) != function:
            yield kinds.CreateFunction(function=function)
    for function in before.values():
        yield kinds.DropFunction(db=function.db, name=function.name)


def table_change(known: Table | None, now: Table) -> Iterator[Change]:
    """A table that became another one (its creation time changed, as after a drop that was not seen) begins again."""
    if known is None or known.create_time != now.create_time or known.partition_keys != now.partition_keys:
        yield kinds.CreateTable(table=now)
    elif comparable(known) != comparable(now):
        yield kinds.AlterTable(db=known.db, name=known.name, table=now, location_before=known.location)


def dropped_tables(db: str, known: Sequence[str], now: Sequence[str]) -> Iterator[Change]:
    for name in sorted(set(known) - set(now)):
        yield kinds.DropTable(db=db, name=name)


def partition_changes(table: Table, known: Mapping[str, Partition], now: Sequence[Partition]) -> Iterator[Change]:
    """Added and altered partitions of one batch; `known` by name. A new creation time means it was added again."""
    keys = tuple(key.name for key in table.partition_keys)
    added, altered = [], []
    for name, partition in zip(partition_names(keys, now), now, strict=True):
        before = known.get(name)
        if before is None or before.create_time != partition.create_time:
            added.append(partition)
        elif comparable(before) != comparable(partition):
            altered.append(partition)
    if added:
        yield kinds.AddPartitions(db=table.db, table=table.name, keys=keys, partitions=tuple(added))
    if altered:
        yield kinds.AddPartitions(db=table.db, table=table.name, keys=keys, partitions=tuple(altered), replace=False)


def dropped_partitions(table: Table, gone: Sequence[str]) -> Iterator[Change]:
    if gone:
        yield kinds.DropPartitions(db=table.db, table=table.name, names=tuple(gone))


def statistics_change(
    db: str, table: str, known: Sequence[Statistics], now: Sequence[Statistics], asked: Sequence[str | None]
) -> Iterator[Change]:
    """Statistics that are new or different, and those of what was `asked` for (None: the table) that are gone, which
    have no columns then."""
    before = {each.partition: each for each in known}
    there = {each.partition for each in now}
    gone = (Statistics(db=db, table=table, partition=each) for each in asked if each in before and each not in there)
    changed = (*(each for each in now if before.get(each.partition) != each), *gone)
    if changed:
        yield kinds.SetStatistics(db=db, table=table, statistics=changed)


def has_column_statistics(parameters: Mapping[str, str]) -> bool:
    """Whether the metastore marked column statistics as present (StatsSetupConst.COLUMN_STATS_ACCURATE), of any engine,
    or Impala did."""
    return '"COLUMN_STATS"' in parameters.get("COLUMN_STATS_ACCURATE", "") or COMPUTED_BY_IMPALA in parameters


def comparable(obj: Table | Partition) -> Table | Partition:
    """Without what reading alone changes, and what an event's copy of an object does not carry."""
    if isinstance(obj, Table):
        return msgspec.structs.replace(
            obj,
            last_access_time=0,
            privileges=None,
            extra={},
            temporary=False,
            rewrite_enabled=bool(obj.rewrite_enabled),
        )
    return msgspec.structs.replace(obj, last_access_time=0, extra={})
