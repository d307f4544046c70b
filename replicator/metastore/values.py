"""The door to the conversions between thrift structs, notification messages' objects and the values of `model`.

All pure, and nothing here talks to a server. A million partitions share one columns tuple and one Serde. What is made
from a text raises FormatError for one that is not of that object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from hmsclient.genthrift.hive_metastore import ttypes

from replicator.core.model import ColumnStatistic, Database, Function, NotificationEvent, Partition, Statistics, Table
from replicator.metastore.convert.codecs import from_text, from_thrift, partial_shape, to_thrift

CATALOG = "hive"  # the default one, which constraints' calls must name
T = TypeVar("T")


def _of_any_catalog(convert: Callable[[Any], T], field: str) -> Callable[[Any], T]:
    """Values have the default catalog: the connection knows the real one."""
    held = {"str": CATALOG}

    def converted(given: Any) -> T:
        found: Any = convert(given)
        if found.extra and found.extra.get(field, held) != held:
            found = msgspec.structs.replace(found, extra={**found.extra, field: held})
        return found  # type: ignore[no-any-return]

    return converted


def _of_no_catalog(convert: Callable[[Any], Any], field: str = "catName") -> Callable[[Any], Any]:
    """Structs name no catalog: the connection does, or the server takes its default one."""

    def converted(given: Any) -> Any:
        struct = convert(given)
        setattr(struct, field, None)
        return struct

    return converted


database_from_thrift = _of_any_catalog(from_thrift(Database), "8")
database_from_text = _of_any_catalog(from_text(Database), "8")
database_to_thrift = _of_no_catalog(to_thrift(Database), "catalogName")
table_from_thrift = _of_any_catalog(from_thrift(Table), "17")
table_from_text = _of_any_catalog(from_text(Table), "17")
table_to_thrift = _of_no_catalog(to_thrift(Table))
partition_from_thrift = _of_any_catalog(from_thrift(Partition), "9")
partition_from_text = _of_any_catalog(from_text(Partition), "9")
function_from_thrift = _of_any_catalog(from_thrift(Function), "9")
function_from_text = _of_any_catalog(from_text(Function), "9")
function_to_thrift = _of_no_catalog(to_thrift(Function))
_partition_to_thrift = _of_no_catalog(to_thrift(Partition))
event_from_thrift = from_thrift(NotificationEvent)

_read_place = partial_shape(Partition, frozenset({"values", "storage", "location"}))


def partition_to_thrift(db: str, table: str, partition: Partition) -> Any:
    struct = _partition_to_thrift(partition)
    struct.dbName, struct.tableName = db, table
    return struct


def place_from_text(text: str) -> tuple[tuple[str, ...], str | None]:
    """Values and location of a partition as the text inside a message. Raises FormatError."""
    try:
        found = _read_place(text)
    except msgspec.DecodeError:
        whole = partition_from_text(text)
        return whole.values, whole.location
    place = found.storage.value
    return tuple(found.values.value[2:]), place.location.value if place else None


def column_statistics_from_thrift(columns: Iterable[Any]) -> tuple[ColumnStatistic, ...]:
    """Of thrift ColumnStatisticsObj, which several answers carry without a description."""
    return tuple(map(from_thrift(ColumnStatistic), columns))


def statistics_to_thrift(statistics: Statistics, engine: str) -> Any:
    """Those of one engine: some 4.x releases require its name, servers before Hive 4 skip it."""
    description = to_thrift(Statistics)(statistics)
    description.isTblLevel = statistics.partition is None
    columns = statistics.by_engine().get(engine, ())
    struct = ttypes.ColumnStatistics(description, list(map(to_thrift(ColumnStatistic), columns)))
    struct.engine = engine
    return struct
