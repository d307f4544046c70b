"""The door to the conversions between thrift structs, notification messages' objects and the values of `model`.

All pure, and nothing here talks to a server. A million partitions share one columns tuple and one Serde.
"""

from __future__ import annotations

from replicator.metastore.convert.from_text import partition_from_text, place_from_text, table_from_text
from replicator.metastore.convert.from_thrift import (
    column_statistics_from_thrift,
    database_from_thrift,
    event_from_thrift,
    function_from_thrift,
    partition_from_thrift,
    statistics_from_thrift,
    table_from_thrift,
)
from replicator.metastore.convert.from_tjson import (
    database_from_tjson,
    function_from_tjson,
    partition_from_tjson,
    table_from_tjson,
)
from replicator.metastore.convert.homes import ENGINE
from replicator.metastore.convert.to_thrift import (
    database_to_thrift,
    function_to_thrift,
    partition_to_thrift,
    statistics_to_thrift,
    table_to_thrift,
)

__all__ = [
    "ENGINE",
    "column_statistics_from_thrift",
    "database_from_thrift",
    "database_from_tjson",
    "database_to_thrift",
    "event_from_thrift",
    "function_from_thrift",
    "function_from_tjson",
    "function_to_thrift",
    "partition_from_text",
    "partition_from_thrift",
    "partition_from_tjson",
    "partition_to_thrift",
    "place_from_text",
    "statistics_from_thrift",
    "statistics_to_thrift",
    "table_from_text",
    "table_from_thrift",
    "table_from_tjson",
    "table_to_thrift",
]
