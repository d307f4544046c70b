"""Calls of a metastore in the 4.x interface, as Hive's own clients send them: what Spark and our client do not call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from hive_metastore import ThriftHiveMetastore, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

TEXT = "org.apache.hadoop.mapred.TextInputFormat"
OUTPUT = "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat"
SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"


@contextmanager
def newer_client(uri: str) -> Iterator[Any]:
    """A client of bindings that are independent of ours."""
    address = urlsplit(uri)
    transport = TBufferedTransport(TSocket(address.hostname, address.port))
    transport.open()
    try:
        yield ThriftHiveMetastore.Client(TBinaryProtocol(transport))
    finally:
        transport.close()


def storage(place: str) -> Any:
    serde = ttypes.SerDeInfo(name="text", serializationLib=SERDE, parameters={})
    column = ttypes.FieldSchema("a", "int", "")
    return ttypes.StorageDescriptor(
        cols=[column],
        location=place,
        inputFormat=TEXT,
        outputFormat=OUTPUT,
        serdeInfo=serde,
        bucketCols=[],
        sortCols=[],
        parameters={},
    )


def table(db: str, name: str, place: str, *keys: str, catalog: str | None = None) -> Any:
    """An external table."""
    return ttypes.Table(
        tableName=name,
        dbName=db,
        catName=catalog,
        owner="o",
        sd=storage(place),
        partitionKeys=[ttypes.FieldSchema(key, "string", "") for key in keys],
        parameters={"EXTERNAL": "TRUE"},
        tableType="EXTERNAL_TABLE",
    )


def partition(db: str, name: str, place: str, *values: str, **parameters: str) -> Any:
    return ttypes.Partition(
        values=list(values), dbName=db, tableName=name, sd=storage(place), parameters=dict(parameters)
    )
