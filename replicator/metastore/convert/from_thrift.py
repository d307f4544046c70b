"""thrift structs -> values. Pure; null lists are read as empty ones.

A SkewedInfo without columns, which 2.3 sends with every table, is no skew. Fields without a home go to `extra`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from replicator.core.model import (
    MANAGED,
    Column,
    ColumnStatistic,
    Database,
    Function,
    NotificationEvent,
    Partition,
    Serde,
    Skew,
    Statistics,
    Storage,
    Table,
)
from replicator.metastore.convert.homes import (
    EXTRA_ROWS,
    FUNCTIONS,
    PRINCIPALS,
    RESOURCES,
    columns,
    named,
    serde,
    text_map,
)
from replicator.metastore.convert.tjson import fields_to_tjson, struct_to_tjson


def _extra(value: Any) -> dict[str, Any]:
    return fields_to_tjson(value, EXTRA_ROWS[type(value)])


def _columns_from_thrift(fields: list[Any] | None) -> tuple[Column, ...]:
    return columns(tuple([(field.name, field.type, field.comment) for field in fields])) if fields else ()


def _serde_from_thrift(info: Any) -> Serde:
    if info is None:
        return Serde()
    known = serde(info.name, info.serializationLib, tuple((info.parameters or {}).items()))
    if extra := _extra(info):
        return Serde(name=known.name, library=known.library, parameters=known.parameters, extra=extra)
    return known


def _skew_from_thrift(info: Any) -> Skew | None:
    if info is None or not (info.skewedColNames or info.skewedColValues or info.skewedColValueLocationMaps):
        return None
    return Skew(
        columns=tuple(info.skewedColNames or ()),
        values=tuple(tuple(values) for values in info.skewedColValues or ()),
        locations=tuple(sorted((tuple(key), uri) for key, uri in (info.skewedColValueLocationMaps or {}).items())),
    )


def _storage_from_thrift(sd: Any) -> Storage | None:
    if sd is None:
        return None
    return Storage(
        columns=_columns_from_thrift(sd.cols),
        location=sd.location,
        input_format=sd.inputFormat,
        output_format=sd.outputFormat,
        compressed=bool(sd.compressed),
        buckets=-1 if sd.numBuckets is None else sd.numBuckets,
        bucket_columns=tuple(sd.bucketCols or ()),
        sort_columns=tuple([(order.col, order.order) for order in sd.sortCols]) if sd.sortCols else (),
        serde=_serde_from_thrift(sd.serdeInfo),
        parameters=text_map(sd.parameters),
        skew=_skew_from_thrift(sd.skewedInfo),
        subdirectories=bool(sd.storedAsSubDirectories),
        extra=_extra(sd),
    )


def database_from_thrift(database: Any) -> Database:
    return Database(
        name=database.name,
        description=database.description,
        location=database.locationUri,
        parameters=text_map(database.parameters),
        owner=database.ownerName,
        owner_type=named(PRINCIPALS, database.ownerType),
        extra=_extra(database),
    )


def table_from_thrift(table: Any) -> Table:
    return Table(
        db=table.dbName,
        name=table.tableName,
        kind=table.tableType or MANAGED,
        owner=table.owner,
        owner_type=named(PRINCIPALS, table.ownerType),
        create_time=table.createTime or 0,
        last_access_time=table.lastAccessTime or 0,
        retention=table.retention or 0,
        storage=_storage_from_thrift(table.sd),
        partition_keys=_columns_from_thrift(table.partitionKeys),
        parameters=text_map(table.parameters),
        view_original=table.viewOriginalText,
        view_expanded=table.viewExpandedText,
        rewrite_enabled=table.rewriteEnabled,
        temporary=bool(table.temporary),
        privileges=None if table.privileges is None else struct_to_tjson(table.privileges),
        extra=_extra(table),
    )


def partition_from_thrift(partition: Any) -> Partition:
    return Partition(
        values=tuple(partition.values or ()),
        create_time=partition.createTime or 0,
        last_access_time=partition.lastAccessTime or 0,
        storage=_storage_from_thrift(partition.sd),
        parameters=text_map(partition.parameters),
        extra=_extra(partition),
    )


def function_from_thrift(function: Any) -> Function:
    resources = function.resourceUris or ()
    return Function(
        db=function.dbName,
        name=function.functionName,
        class_name=function.className,
        owner=function.ownerName,
        owner_type=named(PRINCIPALS, function.ownerType),
        create_time=function.createTime or 0,
        kind=named(FUNCTIONS, function.functionType) or "JAVA",
        resources=tuple((named(RESOURCES, item.resourceType) or "JAR", item.uri) for item in resources),
        extra=_extra(function),
    )


def event_from_thrift(event: Any) -> NotificationEvent:
    return NotificationEvent(
        id=event.eventId,
        time=event.eventTime,
        type=event.eventType,
        db=event.dbName,
        table=event.tableName,
        message=event.message,
        format=event.messageFormat,
        catalog=event.catName,
    )


def column_statistics_from_thrift(columns: Iterable[Any]) -> tuple[ColumnStatistic, ...]:
    """Of thrift ColumnStatisticsObj, which several answers carry without a description."""
    return tuple(
        ColumnStatistic(column=item.colName, type=item.colType, data=struct_to_tjson(item.statsData))
        for item in columns
    )


def statistics_from_thrift(statistics: Any) -> Statistics:
    return Statistics(
        db=statistics.statsDesc.dbName,
        table=statistics.statsDesc.tableName,
        partition=statistics.statsDesc.partName,
        columns=column_statistics_from_thrift(statistics.statsObj or ()),
        last_analyzed=statistics.statsDesc.lastAnalyzed or 0,
    )
