"""Values -> thrift structs, to be sent. Pure; no null ever goes into a map.

`extra` is written back as far as the field table knows its ids: what a newer server sent returns to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hmsclient.genthrift.hive_metastore import ttypes

from cmroot.names import foreign
from replicator.core.model import Column, Database, Function, Partition, Skew, Statistics, Storage, Table
from replicator.metastore.convert.homes import ENGINE, FUNCTIONS, PRINCIPALS, RESOURCES, TYPED_KEYS, number, text_map
from replicator.metastore.convert.tjson import set_fields, struct_from_tjson


def _fields_to_thrift(columns: Iterable[Column]) -> list[Any]:
    return [ttypes.FieldSchema(name=column.name, type=column.type, comment=column.comment) for column in columns]


def _with_extra(value: Any, extra: dict[str, Any]) -> Any:
    if extra:
        if not TYPED_KEYS[type(value)].isdisjoint(extra):
            raise foreign(type(value).__name__, "extra fields", sorted(extra), "have a home of their own")
        set_fields(value, extra)
    return value


def _skew_to_thrift(skew: Skew) -> Any:
    return ttypes.SkewedInfo(
        skewedColNames=list(skew.columns),
        skewedColValues=[list(values) for values in skew.values],
        skewedColValueLocationMaps=dict(skew.locations),
    )


def _storage_to_thrift(storage: Storage | None) -> Any:
    if storage is None:
        return None
    serde = ttypes.SerDeInfo(
        name=storage.serde.name, serializationLib=storage.serde.library, parameters=text_map(storage.serde.parameters)
    )
    descriptor = ttypes.StorageDescriptor(
        cols=_fields_to_thrift(storage.columns),
        location=storage.location,
        inputFormat=storage.input_format,
        outputFormat=storage.output_format,
        compressed=storage.compressed,
        numBuckets=storage.buckets,
        serdeInfo=_with_extra(serde, storage.serde.extra),
        bucketCols=list(storage.bucket_columns),
        sortCols=[ttypes.Order(col=column, order=order) for column, order in storage.sort_columns],
        parameters=text_map(storage.parameters),
        skewedInfo=_skew_to_thrift(storage.skew) if storage.skew else None,
        storedAsSubDirectories=storage.subdirectories,
    )
    return _with_extra(descriptor, storage.extra)


def database_to_thrift(database: Database) -> Any:
    thrift = ttypes.Database(
        name=database.name,
        description=database.description,
        locationUri=database.location,
        parameters=text_map(database.parameters),
        ownerName=database.owner,
        ownerType=number(PRINCIPALS, database.owner_type),
    )
    return _with_extra(thrift, database.extra)


def table_to_thrift(table: Table) -> Any:
    thrift = ttypes.Table(
        tableName=table.name,
        dbName=table.db,
        owner=table.owner,
        createTime=table.create_time,
        lastAccessTime=table.last_access_time,
        retention=table.retention,
        sd=_storage_to_thrift(table.storage),
        partitionKeys=_fields_to_thrift(table.partition_keys),
        parameters=text_map(table.parameters),
        viewOriginalText=table.view_original,
        viewExpandedText=table.view_expanded,
        tableType=table.kind,
        temporary=table.temporary,
        rewriteEnabled=table.rewrite_enabled,
    )
    thrift.ownerType = number(PRINCIPALS, table.owner_type)
    if table.privileges is not None:
        thrift.privileges = struct_from_tjson(ttypes.PrincipalPrivilegeSet, table.privileges)
    return _with_extra(thrift, table.extra)


def partition_to_thrift(db: str, table: str, partition: Partition) -> Any:
    thrift = ttypes.Partition(
        values=list(partition.values),
        dbName=db,
        tableName=table,
        createTime=partition.create_time,
        lastAccessTime=partition.last_access_time,
        sd=_storage_to_thrift(partition.storage),
        parameters=text_map(partition.parameters),
    )
    return _with_extra(thrift, partition.extra)


def function_to_thrift(function: Function) -> Any:
    thrift = ttypes.Function(
        functionName=function.name,
        dbName=function.db,
        className=function.class_name,
        ownerName=function.owner,
        ownerType=number(PRINCIPALS, function.owner_type),
        createTime=function.create_time,
        functionType=number(FUNCTIONS, function.kind),
        resourceUris=[
            ttypes.ResourceUri(resourceType=number(RESOURCES, kind), uri=uri) for kind, uri in function.resources
        ],
    )
    return _with_extra(thrift, function.extra)


def statistics_to_thrift(statistics: Statistics) -> Any:
    thrift = ttypes.ColumnStatistics(
        statsDesc=ttypes.ColumnStatisticsDesc(
            isTblLevel=statistics.partition is None,
            dbName=statistics.db,
            tableName=statistics.table,
            partName=statistics.partition,
            lastAnalyzed=statistics.last_analyzed,
        ),
        statsObj=[
            ttypes.ColumnStatisticsObj(
                colName=column.column,
                colType=column.type,
                statsData=struct_from_tjson(ttypes.ColumnStatisticsData, column.data),
            )
            for column in statistics.columns
        ],
    )
    thrift.engine = ENGINE
    return thrift
