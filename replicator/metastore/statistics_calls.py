"""Calls for column statistics: since Hive 4 they are per engine, and no call lists the engines that have any.

As in `requests`, functions return what to do with a client.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hmsclient.genthrift.hive_metastore import ttypes

from replicator.core.batches import batched
from replicator.core.connections import MetastoreConfig
from replicator.core.model import HIVE, ColumnStatistic, Statistics
from replicator.core.text.quantity import count_text
from replicator.errors import ObjectNotFound
from replicator.metastore import requests
from replicator.metastore.client import PARTITION_BATCH
from replicator.metastore.convert.fields import method
from replicator.metastore.requests import Send

Columns = tuple[ColumnStatistic, ...]


def of_table(db: str, table: str, columns: Sequence[str], engine: str) -> Send:
    request = ttypes.TableStatsRequest(dbName=db, tblName=table, colNames=list(columns))
    request.engine = engine
    return lambda client: client.get_table_statistics_req(request)


def of_partitions(db: str, table: str, columns: Sequence[str], names: Sequence[str], engine: str) -> Send:
    request = ttypes.PartitionsStatsRequest(dbName=db, tblName=table, colNames=list(columns), partNames=list(names))
    request.engine = engine
    return lambda client: client.get_partitions_statistics_req(request)


def set_of_table(statistics: Statistics, engine: str) -> Send:
    struct = requests.statistics_to_thrift(statistics, engine)
    return lambda client: client.update_table_column_statistics(struct)


def set_of_partitions(statistics: Sequence[Statistics], engine: str) -> Send:
    """Sets statistics of partitions of one table: the server takes the table from the first."""
    items = [requests.statistics_to_thrift(item, engine) for item in statistics]
    request = ttypes.SetPartitionsStatsRequest(colStats=items, needMerge=False)
    request.engine = engine
    return lambda client: client.set_aggr_stats_for(request)


def drop(db: str, table: str, partition: str, column: str, engine: str | None) -> Send:
    if partition:
        return method("delete_partition_column_statistics", db, table, partition, column, engine)
    return method("delete_table_column_statistics", db, table, column, engine)


class StatisticsCalls:
    """The part of a metastore's client for column statistics; see `client`. Calls that return several columns do not
    include when these were analyzed."""

    _config: MetastoreConfig

    if TYPE_CHECKING:

        def announces_constraints(self) -> bool: ...

        def _of_table(self, db: str, table: str, what: str, send: Send) -> Any: ...

        def _change(self, what: str, send: Send) -> None: ...

    @cached_property
    def _engines(self) -> tuple[str, ...]:
        named = self._config.statistics_engines if self.announces_constraints() else ()  # both since 4.0
        return tuple(dict.fromkeys((HIVE, *named)))

    def statistics_engines(self) -> tuple[str, ...]:
        return self._engines

    def announces_statistics(self) -> bool:
        return self.announces_constraints()

    def table_statistics(self, db: str, table: str, columns: Sequence[str]) -> Statistics | None:
        found: dict[str, Columns] = {}
        for engine in self._engines if columns else ():
            answer = self._of_table(db, table, "statistics", of_table(db, table, columns, engine))
            if some := requests.column_statistics_from_thrift(answer.tableStats or ()):
                found[engine] = some
        return Statistics.of_engines(db, table, None, found) if found else None

    def partition_statistics(
        self, db: str, table: str, columns: Sequence[str], names: Sequence[str]
    ) -> list[Statistics]:
        found: dict[str, dict[str, Columns]] = defaultdict(dict)
        for batch in batched(names, PARTITION_BATCH) if columns else ():
            for engine in self._engines:
                request = of_partitions(db, table, columns, batch, engine)
                answer = self._of_table(db, table, "partition statistics", request)
                for name, items in (answer.partStats or {}).items():
                    if items:
                        found[name][engine] = requests.column_statistics_from_thrift(items)
        return [Statistics.of_engines(db, table, name, each) for name, each in found.items()]

    def set_table_statistics(self, statistics: Statistics) -> None:
        what = f"set statistics of {statistics.db}.{statistics.table}"
        for engine, columns in statistics.by_engine().items():
            if columns:
                self._change(what, set_of_table(statistics, engine))

    def set_partition_statistics(self, statistics: Sequence[Statistics]) -> None:
        by_table = defaultdict(list)
        for item in statistics:
            for engine, columns in item.by_engine().items():
                if columns:
                    by_table[item.db, item.table, engine].append(item)
        for (db, table, engine), items in by_table.items():
            for batch in batched(items, PARTITION_BATCH):
                what = f"set statistics of {count_text(len(batch), 'partition')} of {db}.{table}"
                self._change(what, set_of_partitions(batch, engine))

    def drop_statistics(self, db: str, table: str, partition: str, column: str, engine: str | None) -> None:
        what = f"drop statistics of {db}.{table} {partition} {column}".replace("  ", " ")
        engines: tuple[str | None, ...] = (engine,)
        if engine is None and len(self._engines) > 1:
            engines = (*self._engines, None)  # 4.0 fails to drop those of several engines in one call
        for each in engines:
            with suppress(ObjectNotFound):  # there were none
                self._change(what, drop(db, table, partition, column, each))
