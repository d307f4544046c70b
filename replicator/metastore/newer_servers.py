"""Features of newer metastores: several catalogs, since Hive 3, and column statistics per engine, since Hive 4.

The rest of the code never handles catalogs: a metastore's handle is bound to one (None: the server's default), requests
name it, and values have none. Only removals read other catalogs, by `everywhere`, where a database of another catalog
is named `@catalog#database`, as in Hive's own calls. No call lists the engines that have statistics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from operator import methodcaller
from typing import TYPE_CHECKING, Any, cast

import msgspec
from hmsclient.genthrift.hive_metastore import ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.protocol.TProtocol import TProtocolBase
from thrift.Thrift import TApplicationException

from replicator.core.connections import MetastoreConfig
from replicator.core.grouping import batched
from replicator.core.model import HIVE, ColumnStatistic, Database, Name, Partition, Statistics, Table
from replicator.core.text import count_text
from replicator.errors import MetastoreError, ObjectNotFound, Refused
from replicator.metastore import requests
from replicator.metastore.client import PARTITION_BATCH, MetastoreReader
from replicator.metastore.connection import NO_LIMIT, Connections
from replicator.metastore.fields import method, qualified
from replicator.metastore.requests import CATALOG, Send
from replicator.metastore.transactions import OF_WRITERS, Writer, without_values

# ---- catalogs --------------------------------------------------------------------------------------------------------


class InCatalog:
    """The part of a metastore's handle that binds it to a catalog, and opens handles for others."""

    _connections: Connections
    _config: MetastoreConfig

    def _in_catalog(self, catalog: str | None, **options: Any) -> None:
        """Binds the handle to a catalog. options: of handles for other catalogs."""
        self._catalog, self._found, self._options = catalog, catalog is None, options
        self._others: dict[str, Any] = {}

    @property
    def bound_catalog(self) -> str | None:
        """The configured catalog; None: the server's default."""
        return self._catalog

    @cached_property
    def catalog(self) -> str:
        """The name of the catalog whose databases this handle accesses."""
        return self._catalog or self.default_catalog

    @cached_property
    def default_catalog(self) -> str:
        """See `client.MetastoreReader`."""
        return _default_catalog(self.setting)

    if TYPE_CHECKING:

        def setting(self, key: str) -> str: ...

    def everywhere(self) -> MetastoreReader:
        """See `client.MetastoreReader`."""
        self._find_catalog()
        others = [name for name in _catalog_names(self._connections.read) if name != self.catalog]
        for name in others:
            if name not in self._others:
                config = msgspec.structs.replace(self._config, catalog=name)
                self._others[name] = type(self)(config, **self._options)  # type: ignore[call-arg]
        found = Everywhere(cast(MetastoreReader, self), {name: self._others[name] for name in others})
        return cast(MetastoreReader, found)

    def _own(self, event: Any) -> Any:
        """Returns a thrift event; the catalog's name is removed if it is this catalog."""
        if event.catName is not None and event.catName == self.catalog:
            event.catName = None
        return event

    def _find_catalog(self) -> None:
        """Checks the catalog before the first call. Raises ObjectNotFound if the server does not have it: a server
        before Hive 3 would use its only one."""
        if self._found:
            return
        names = _catalog_names(self._connections.read)
        if self._catalog not in names:
            raise ObjectNotFound(
                f"the metastore at {self._config.uri} has no catalog {self._catalog}",
                hint=f"it has: {', '.join(names)}" if names else "servers before Hive 3 have no catalogs: omit it",
            )
        self._found = True

    def _close_others(self) -> None:
        for each in self._others.values():
            each.close()


def refuse_for_spark(metastore: MetastoreReader) -> None:
    """Raises Refused for a catalog other than the default one: Spark's Hive client sends no catalog, and would read a
    database of the same name in the default catalog."""
    catalog = metastore.bound_catalog
    if catalog is not None and catalog != metastore.default_catalog:
        raise Refused(
            f"catalog {catalog} of {metastore.uri} cannot be read with Spark, which supports only the server's default "
            f"catalog {metastore.default_catalog}",
            hint="this needs a metastore server whose metastore.catalog.default is this catalog",
        )


class Everywhere:
    """A metastore with the databases of all its catalogs: its own by their names, others as `@catalog#database`.
    Read-only."""

    def __init__(self, own: MetastoreReader, others: dict[str, MetastoreReader]) -> None:
        self._own, self._others = own, others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def _at(self, db: str) -> tuple[MetastoreReader, str]:
        if not db.startswith("@"):
            return self._own, db
        catalog, _, name = db[1:].partition("#")
        if catalog not in self._others:
            raise ObjectNotFound(f"catalog {catalog} does not exist")
        return self._others[catalog], name

    def database_names(self) -> list[str]:
        others = [qualified(each, db) for each, metastore in self._others.items() for db in metastore.database_names()]
        return [*self._own.database_names(), *others]

    def database(self, name: str) -> Database:
        metastore, db = self._at(name)
        return msgspec.structs.replace(metastore.database(db), name=name)

    def table_names(self, db: str) -> list[str]:
        metastore, name = self._at(db)
        return metastore.table_names(name)

    def table(self, db: str, name: str) -> Table:
        metastore, own = self._at(db)
        return _renamed(metastore.table(own, name), db)

    def tables(self, db: str, names: Sequence[str], refused: dict[str, str] | None = None) -> list[Table]:
        metastore, own = self._at(db)
        return [_renamed(each, db) for each in metastore.tables(own, names, refused)]

    def partition_names(self, db: str, table: str) -> list[str]:
        metastore, own = self._at(db)
        return metastore.partition_names(own, table)

    def all_partitions(self, db: str, table: str) -> Iterator[list[Partition]]:
        metastore, own = self._at(db)
        return metastore.all_partitions(own, table)

    def few_partitions(self, db: str, table: str) -> list[Partition] | None:
        metastore, own = self._at(db)
        return metastore.few_partitions(own, table)

    def partitions(self, db: str, table: str, names: Sequence[str]) -> Iterator[list[Partition]]:
        metastore, own = self._at(db)
        return metastore.partitions(own, table, names)


def _renamed(table: Table, db: str) -> Table:
    return msgspec.structs.replace(table, db=db) if db.startswith("@") else table


def _catalog_names(read: Callable[[str, Send], Any]) -> list[str]:
    """Returns the names of a server's catalogs; empty for a server before Hive 3."""

    def ask(client: Any) -> Any:
        try:
            return method("get_catalogs")(client)
        except TApplicationException as error:
            if error.type != TApplicationException.UNKNOWN_METHOD:
                raise
            return None

    answer = read("catalogs", ask)
    return list(answer.names or ()) if answer else []


def _default_catalog(setting: Callable[[str], str]) -> str:
    """Returns the catalog of calls that name none."""
    try:
        return setting("metastore.catalog.default").strip().lower() or CATALOG
    except MetastoreError as error:
        if error.transient:
            raise
        return CATALOG  # 2.3 has no catalogs, and does not return this setting


# ---- drift -----------------------------------------------------------------------------------------------------------
# The drift guard: finds fields that a server sends but the bindings do not know, and that would be lost when written
# back.
#
# thrift drops such fields silently. The guard repeats one read per kind of object with a decoder that records what it
# skips. It runs on request, once per kind.


class DriftGuard:
    """A recorder of one read per kind of object, and of the unknown fields found by repeating it."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._reads: dict[str, Callable[[Any], Any]] = {}
        self._done: set[str] = set()
        self._unknown: dict[str, set[int]] = {}

    def saw(self, kind: str, read: Callable[[Any], Any]) -> None:
        """Records that `read(client)` returned an object of `kind`; only the first of each kind is stored."""
        if kind not in self._done:
            self._reads.setdefault(kind, read)

    def unknown_fields(self) -> dict[str, list[int]]:
        """Returns field ids by struct name, over all kinds seen so far. The kind of a dropped object waits for the
        next."""
        for kind in list(self._reads):
            read = self._reads.pop(kind)
            try:
                self._connections.read(f"look for unknown fields of a {kind}", read, self._watching)
            except ObjectNotFound:
                continue
            self._done.add(kind)
        return {name: sorted(fields) for name, fields in sorted(self._unknown.items())}

    def _watching(self, transport: Any) -> TProtocolBase:
        made = _WatchingCompact if self._connections.config.protocol == "compact" else _WatchingBinary
        return made(transport, self._unknown)


class _Watching(TProtocolBase):  # type: ignore[misc]
    """Base class of a plain decoder that records the struct and the id of each field without a row."""

    def __init__(self, transport: Any, unknown: dict[str, set[int]]) -> None:
        super().__init__(transport, string_length_limit=NO_LIMIT)
        self._unknown = unknown
        self._structs: list[str] = []
        self._field = 0
        self._skipping = False

    def readStruct(self, obj: Any, thrift_spec: Any, is_immutable: bool = False) -> Any:
        self._structs.append(type(obj).__name__)
        try:
            return super().readStruct(obj, thrift_spec, is_immutable)
        finally:
            self._structs.pop()

    def readFieldBegin(self) -> Any:
        begin = super().readFieldBegin()
        if not self._skipping:
            self._field = begin[2]
        return begin

    def skip(self, ttype: int, *depth: int) -> None:
        if self._skipping or not self._structs:
            super().skip(ttype, *depth)
            return
        self._unknown.setdefault(self._structs[-1], set()).add(self._field)
        self._skipping = True
        try:
            super().skip(ttype, *depth)
        finally:
            self._skipping = False


class _WatchingBinary(_Watching, TBinaryProtocol):  # type: ignore[misc]
    pass


class _WatchingCompact(_Watching, TCompactProtocol):  # type: ignore[misc]
    pass


# ---- column statistics -----------------------------------------------------------------------------------------------


Columns = tuple[ColumnStatistic, ...]


def of_table(db: str, table: str, columns: Sequence[str], engine: str) -> Send:
    request = ttypes.TableStatsRequest(dbName=db, tblName=table, colNames=list(columns))
    request.engine = engine
    return lambda client: client.get_table_statistics_req(request)


def of_partitions(db: str, table: str, columns: Sequence[str], names: Sequence[str], engine: str) -> Send:
    request = ttypes.PartitionsStatsRequest(dbName=db, tblName=table, colNames=list(columns), partNames=list(names))
    request.engine = engine
    return lambda client: client.get_partitions_statistics_req(request)


def set_of_table(struct: Any) -> Send:
    return methodcaller("update_table_column_statistics", struct)


def set_of_partitions(structs: Sequence[Any], engine: str) -> Send:
    """Sets statistics of partitions of one table: the server takes the table from the first."""
    request = ttypes.SetPartitionsStatsRequest(colStats=list(structs), needMerge=False)
    request.engine = engine
    return methodcaller("set_aggr_stats_for", request)


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

        def _writer(self, name: Name) -> Writer: ...

        def _change_as_writer(self, what: str, name: Name, send: Send, stated: Callable[[Writer], Send]) -> None: ...

    @cached_property
    def _engines(self) -> tuple[str, ...]:
        named = self._config.statistics_engines if self.announces_constraints() else ()  # both since 4.0
        return tuple(dict.fromkeys((HIVE, *named)))

    def outside_directories(self) -> tuple[str, ...]:
        return self._config.iceberg_outside

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
                name, structs = (statistics.db, statistics.table), [requests.statistics_to_thrift(statistics, engine)]
                stated = methodcaller("set_statistics", structs, engine)
                self._change_as_writer(what, name, set_of_table(structs[0]), stated)

    def set_partition_statistics(self, statistics: Sequence[Statistics]) -> None:
        by_table = defaultdict(list)
        for item in statistics:
            for engine, columns in item.by_engine().items():
                if columns:
                    by_table[item.db, item.table, engine].append(item)
        for (db, table, engine), items in by_table.items():
            for batch in batched(items, PARTITION_BATCH):
                what = f"set statistics of {count_text(len(batch), 'partition')} of {db}.{table}"
                structs = [requests.statistics_to_thrift(item, engine) for item in batch]
                stated = methodcaller("set_statistics", structs, engine)
                self._change_as_writer(what, (db, table), set_of_partitions(structs, engine), stated)

    def drop_statistics(self, db: str, table: str, partition: str, column: str, engine: str | None) -> None:
        what = f"drop statistics of {db}.{table} {partition} {column}".replace("  ", " ")
        engines: tuple[str | None, ...] = (engine,)
        if engine is None and len(self._engines) > 1:
            engines = (*self._engines, None)  # 4.0 fails to drop those of several engines in one call
        for each in engines:
            with suppress(ObjectNotFound):  # there were none
                try:
                    self._change(what, drop(db, table, partition, column, each))
                except MetastoreError as error:
                    if OF_WRITERS not in error.message:
                        raise
                    self._empty(what, db, table, partition, column)
                    return

    def _empty(self, what: str, db: str, table: str, partition: str, column: str) -> None:
        """Sets statistics without values of the column, where the server deletes none. The same call removes the flag
        that statistics are exact: with it, Hive would answer a minimum by a bound."""
        found = [self.table_statistics(db, table, [column])]
        if partition:
            found = [*self.partition_statistics(db, table, [column], [partition])]
        for statistics in filter(None, found):
            for engine, columns in statistics.by_engine().items():
                if columns:
                    struct = without_values(requests.statistics_to_thrift(statistics, engine))
                    self._change(what, self._writer((db, table)).without_view().set_statistics([struct], engine))
