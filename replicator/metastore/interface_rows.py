"""The rows of the metastore's interface since Hive 2.3: structs, fields and calls that hmsclient's bindings lack. Data.

Fields are written `type name` by their ids. A call is the fields of its arguments and of its result: field 0 of a
result is the return value, the others are errors. `fields` makes classes of them. The tests compare every row with two
independent sets of bindings. Source of ids, types and names: the public interface up to Hive 4.x.
"""

from __future__ import annotations

Rows = dict[int, str]

_TABLE: Rows = {1: "string catName", 2: "string db_name", 3: "string tbl_name"}


def _of_column(own: Rows, flags: int) -> Rows:
    """Returns a constraint's fields: its column, its `own` fields, and its flags from that id on."""
    column = {1: "string catName", 2: "string table_db", 3: "string table_name", 4: "string column_name"}
    names = ("enable_cstr", "validate_cstr", "rely_cstr")
    return column | own | {flags + at: f"bool {name}" for at, name in enumerate(names)}


# Structs that are missing in hmsclient and that the rows below contain: name -> {field id: "type name"}.
NEW_STRUCTS: dict[str, Rows] = {
    "CreationMetadata": {
        1: "string catName",
        2: "string dbName",
        3: "string tblName",
        4: "set<string> tablesUsed",
        5: "string validTxnList",
        6: "i64 materializationTime",
        7: "list<SourceTable> sourceTables",
    },
    "SourceTable": {1: "Table table", 2: "i64 insertedCount", 3: "i64 updatedCount", 4: "i64 deletedCount"},
    "FileMetadata": {1: "byte type", 2: "byte version", 3: "list<binary> data"},
    "ObjectDictionary": {1: "map<string,list<binary>> values"},
    "Timestamp": {1: "i64 secondsSinceEpoch"},
    "TimestampColumnStatsData": {
        1: "Timestamp lowValue",
        2: "Timestamp highValue",
        3: "i64 numNulls",
        4: "i64 numDVs",
        5: "binary bitVectors",
        6: "binary histogram",
    },
    "SQLUniqueConstraint": _of_column({5: "i32 key_seq", 6: "string uk_name"}, 7),
    "SQLNotNullConstraint": _of_column({5: "string nn_name"}, 6),
    "SQLDefaultConstraint": _of_column({5: "string default_value", 6: "string dc_name"}, 7),
    "SQLCheckConstraint": _of_column({5: "string check_expression", 6: "string dc_name"}, 7),
    "SQLAllTableConstraints": {
        1: "list<SQLPrimaryKey> primaryKeys",
        2: "list<SQLForeignKey> foreignKeys",
        3: "list<SQLUniqueConstraint> uniqueConstraints",
        4: "list<SQLNotNullConstraint> notNullConstraints",
        5: "list<SQLDefaultConstraint> defaultConstraints",
        6: "list<SQLCheckConstraint> checkConstraints",
    },
    "GetCatalogsResponse": {1: "list<string> names"},
    "UniqueConstraintsRequest": _TABLE,
    "NotNullConstraintsRequest": _TABLE,
    "DefaultConstraintsRequest": _TABLE,
    "CheckConstraintsRequest": _TABLE,
    "AllTableConstraintsRequest": {1: "string dbName", 2: "string tblName", 3: "string catName"},
    "UniqueConstraintsResponse": {1: "list<SQLUniqueConstraint> uniqueConstraints"},
    "NotNullConstraintsResponse": {1: "list<SQLNotNullConstraint> notNullConstraints"},
    "DefaultConstraintsResponse": {1: "list<SQLDefaultConstraint> defaultConstraints"},
    "CheckConstraintsResponse": {1: "list<SQLCheckConstraint> checkConstraints"},
    "AllTableConstraintsResponse": {1: "SQLAllTableConstraints allTableConstraints"},
    "AddUniqueConstraintRequest": {1: "list<SQLUniqueConstraint> uniqueConstraintCols"},
    "AddNotNullConstraintRequest": {1: "list<SQLNotNullConstraint> notNullConstraintCols"},
    "AddDefaultConstraintRequest": {1: "list<SQLDefaultConstraint> defaultConstraintCols"},
    "AddCheckConstraintRequest": {1: "list<SQLCheckConstraint> checkConstraintCols"},
    "WMResourcePlan": {1: "string name"},
    "WMGetAllResourcePlanRequest": {1: "string ns"},
    "WMGetAllResourcePlanResponse": {1: "list<WMResourcePlan> resourcePlans"},
    "ListStoredProcedureRequest": {1: "string catName", 2: "string dbName"},
    "ListPackageRequest": {1: "string catName", 2: "string dbName"},
    "GetValidWriteIdsRequest": {1: "list<string> fullTableNames", 2: "string validTxnList"},
    "TableValidWriteIds": {
        1: "string fullTableName",
        2: "i64 writeIdHighWaterMark",
        3: "list<i64> invalidWriteIds",
        4: "i64 minOpenWriteId",
        5: "binary abortedBits",
    },
    "GetValidWriteIdsResponse": {1: "list<TableValidWriteIds> tblValidWriteIds"},
    "TxnToWriteId": {1: "i64 txnId", 2: "i64 writeId"},
    "AllocateTableWriteIdsRequest": {
        1: "string dbName",
        2: "string tableName",
        3: "list<i64> txnIds",
        4: "string replPolicy",
        5: "list<TxnToWriteId> srcTxnToWriteIdList",
    },
    "AllocateTableWriteIdsResponse": {1: "list<TxnToWriteId> txnToWriteIds"},
    "ReplTblWriteIdStateRequest": {
        1: "string validWriteIdlist",
        2: "string user",
        3: "string hostName",
        4: "string dbName",
        5: "string tableName",
    },
    "CreateTableRequest": {
        1: "Table table",
        2: "EnvironmentContext envContext",
        9: "list<string> processorCapabilities",
        10: "string processorIdentifier",
    },
    "AlterTableRequest": {
        1: "string catName",
        2: "string dbName",
        3: "string tableName",
        4: "Table table",
        5: "EnvironmentContext environmentContext",
        6: "i64 writeId",
        7: "string validWriteIdList",
        8: "list<string> processorCapabilities",
        9: "string processorIdentifier",
    },
    "AlterTableResponse": {},
    "AlterPartitionsRequest": {
        1: "string catName",
        2: "string dbName",
        3: "string tableName",
        4: "list<Partition> partitions",
        5: "EnvironmentContext environmentContext",
        6: "i64 writeId",
        7: "string validWriteIdList",
    },
    "AlterPartitionsResponse": {},
}

# Fields added to structs of hmsclient since 2.3.
NEW_FIELDS: dict[str, Rows] = {
    "Database": {
        8: "string catalogName",
        9: "i32 createTime",
        10: "string managedLocationUri",
        11: "i32 type",
        12: "string connector_name",
        13: "string remote_dbname",
    },
    "Table": {
        16: "CreationMetadata creationMetadata",
        17: "string catName",
        18: "i32 ownerType",
        19: "i64 writeId",
        20: "bool isStatsCompliant",
        21: "ColumnStatistics colStats",
        22: "byte accessType",
        23: "list<string> requiredReadCapabilities",
        24: "list<string> requiredWriteCapabilities",
        25: "i64 id",
        26: "FileMetadata fileMetadata",
        27: "ObjectDictionary dictionary",
        28: "i64 txnId",
    },
    "Partition": {
        9: "string catName",
        10: "i64 writeId",
        11: "bool isStatsCompliant",
        12: "ColumnStatistics colStats",
        13: "FileMetadata fileMetadata",
    },
    "SerDeInfo": {
        4: "string description",
        5: "string serializerClass",
        6: "string deserializerClass",
        7: "i32 serdeType",
    },
    "Function": {9: "string catName"},
    "NotificationEvent": {8: "string catName"},
    "NotificationEventRequest": {
        3: "list<string> eventTypeSkipList",
        4: "string catName",
        5: "string dbName",
        6: "list<string> tableNames",
        7: "list<string> eventTypeList",
    },
    "GetTableRequest": {4: "string catName"},
    "GetTablesRequest": {4: "string catName"},
    "AddPartitionsRequest": {6: "string catName"},
    "PartitionsByExprRequest": {6: "string catName"},
    "DropPartitionsRequest": {9: "string catName"},
    "GetTableResult": {2: "bool isStatsCompliant"},
    "ColumnStatisticsDesc": {6: "string catName"},
    "ColumnStatistics": {3: "bool isStatsCompliant", 4: "string engine"},
    "ColumnStatisticsData": {8: "TimestampColumnStatsData timestampStats"},
    "DoubleColumnStatsData": {6: "binary histogram"},
    "LongColumnStatsData": {6: "binary histogram"},
    "DecimalColumnStatsData": {6: "binary histogram"},
    "DateColumnStatsData": {6: "binary histogram"},
    "TableStatsRequest": {4: "string catName", 6: "string engine"},
    "TableStatsResult": {2: "bool isStatsCompliant"},
    "PartitionsStatsRequest": {5: "string catName", 7: "string engine"},
    "PartitionsStatsResult": {2: "bool isStatsCompliant"},
    "SetPartitionsStatsRequest": {3: "i64 writeId", 4: "string validWriteIdList", 5: "string engine"},
    "SQLPrimaryKey": {9: "string catName"},
    "SQLForeignKey": {15: "string catName"},
    "PrimaryKeysRequest": {3: "string catName"},
    "ForeignKeysRequest": {5: "string catName"},
    "DropConstraintRequest": {4: "string catName"},
    "HiveObjectRef": {6: "string catName"},
    "HiveObjectPrivilege": {5: "string authorizer"},
    "GetOpenTxnsResponse": {4: "binary abortedBits"},
    "OpenTxnRequest": {5: "string replPolicy", 6: "list<i64> replSrcTxnIds", 7: "i32 txn_type"},
    "CommitTxnRequest": {2: "string replPolicy", 7: "i32 txn_type"},
    "AbortTxnRequest": {2: "string replPolicy", 3: "i32 txn_type"},
}

# Rows of 2.3 that are read with another type; the bytes on the wire are the same. Bit vectors are text in 2.3 and bytes
# since 3.0. The keys of SkewedInfo's map are lists: they must become tuples, otherwise neither decoder can build the
# dictionary. Open transactions are a list since 3.0.
RETYPED: dict[str, Rows] = {
    "SkewedInfo": {3: "map<tuple<string>,string> skewedColValueLocationMaps"},
    "BooleanColumnStatsData": {4: "binary bitVectors"},
    "DoubleColumnStatsData": {5: "binary bitVectors"},
    "LongColumnStatsData": {5: "binary bitVectors"},
    "StringColumnStatsData": {5: "binary bitVectors"},
    "BinaryColumnStatsData": {4: "binary bitVectors"},
    "DecimalColumnStatsData": {5: "binary bitVectors"},
    "DateColumnStatsData": {5: "binary bitVectors"},
    "GetOpenTxnsResponse": {2: "list<i64> open_txns"},
}

_GET_ERRORS: Rows = {1: "MetaException o1", 2: "NoSuchObjectException o2"}
_ADD_ERRORS: Rows = {1: "NoSuchObjectException o1", 2: "MetaException o2"}
_DROPPED: Rows = {
    0: "bool success",
    1: "NoSuchObjectException o1",
    2: "MetaException o2",
    3: "InvalidObjectException o3",
    4: "InvalidInputException o4",
}


def _get(request: str, answer: str) -> tuple[Rows, Rows]:
    return {1: f"{request} request"}, {0: f"{answer} success"} | _GET_ERRORS


def _list(request: str, answer: str) -> tuple[Rows, Rows]:
    return {1: f"{request} request"}, {0: f"{answer} success", 1: "MetaException o1"}


# name -> the fields of its arguments, and of its result
METHODS: dict[str, tuple[Rows, Rows]] = {
    "get_catalogs": ({}, {0: "GetCatalogsResponse success", 1: "MetaException o1"}),
    "get_dataconnectors": ({}, {0: "list<string> success", 1: "MetaException o1"}),
    "get_all_resource_plans": _list("WMGetAllResourcePlanRequest", "WMGetAllResourcePlanResponse"),
    "get_all_stored_procedures": _list("ListStoredProcedureRequest", "list<string>"),
    "get_all_packages": _list("ListPackageRequest", "list<string>"),
    "get_unique_constraints": _get("UniqueConstraintsRequest", "UniqueConstraintsResponse"),
    "get_not_null_constraints": _get("NotNullConstraintsRequest", "NotNullConstraintsResponse"),
    "get_default_constraints": _get("DefaultConstraintsRequest", "DefaultConstraintsResponse"),
    "get_check_constraints": _get("CheckConstraintsRequest", "CheckConstraintsResponse"),
    "get_all_table_constraints": _get("AllTableConstraintsRequest", "AllTableConstraintsResponse"),
    "add_unique_constraint": ({1: "AddUniqueConstraintRequest req"}, _ADD_ERRORS),
    "add_not_null_constraint": ({1: "AddNotNullConstraintRequest req"}, _ADD_ERRORS),
    "add_default_constraint": ({1: "AddDefaultConstraintRequest req"}, _ADD_ERRORS),
    "add_check_constraint": ({1: "AddCheckConstraintRequest req"}, _ADD_ERRORS),
    "delete_table_column_statistics": (
        {1: "string db_name", 2: "string tbl_name", 3: "string col_name", 4: "string engine"},
        _DROPPED,
    ),
    "delete_partition_column_statistics": (
        {1: "string db_name", 2: "string tbl_name", 3: "string part_name", 4: "string col_name", 5: "string engine"},
        _DROPPED,
    ),
    "get_valid_write_ids": (
        {1: "GetValidWriteIdsRequest rqst"},
        {0: "GetValidWriteIdsResponse success", 1: "NoSuchTxnException o1", 2: "MetaException o2"},
    ),
    "allocate_table_write_ids": (
        {1: "AllocateTableWriteIdsRequest rqst"},
        {
            0: "AllocateTableWriteIdsResponse success",
            1: "NoSuchTxnException o1",
            2: "TxnAbortedException o2",
            3: "MetaException o3",
        },
    ),
    "repl_tbl_writeid_state": ({1: "ReplTblWriteIdStateRequest rqst"}, {}),
    "create_table_req": (
        {1: "CreateTableRequest request"},
        {
            1: "AlreadyExistsException o1",
            2: "InvalidObjectException o2",
            3: "MetaException o3",
            4: "NoSuchObjectException o4",
        },
    ),
    "alter_table_req": (
        {1: "AlterTableRequest req"},
        {0: "AlterTableResponse success", 1: "InvalidOperationException o1", 2: "MetaException o2"},
    ),
    "alter_partitions_req": (
        {1: "AlterPartitionsRequest req"},
        {0: "AlterPartitionsResponse success", 1: "InvalidOperationException o1", 2: "MetaException o2"},
    ),
}
