"""The thrift calls whose arguments are more than names: each function gives what to do with a client.

Drops spell out that data stay; writes ask the server to leave statistics as they are sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

from hmsclient.genthrift.hive_metastore import ttypes
from thrift.Thrift import TApplicationException

from replicator.core.model import EXTERNAL, Partition, Table
from replicator.metastore import values
from replicator.metastore.convert.methods import method

Send = Callable[[Any], Any]  # what to do with a client
INSERT_ONLY = 2  # ClientCapability.INSERT_ONLY_TABLES, since 3.0: without it one such table fails a whole batch


def table_by_name(db: str, name: str) -> Send:
    return partial(_get_table, db, name)


def tables_by_name(db: str, names: Sequence[str]) -> Send:
    return partial(_get_tables, db, list(names))


def _get_table(db: str, name: str, client: Any) -> Any:
    """Hive 4.0.1 dropped `get_table`, and servers before 2.3 lack `get_table_req`."""
    try:
        return client.get_table_req(ttypes.GetTableRequest(db, name, _capabilities())).table
    except TApplicationException as error:
        if error.type != TApplicationException.UNKNOWN_METHOD:
            raise
        return client.get_table(db, name)


def _get_tables(db: str, names: list[str], client: Any) -> Any:
    try:
        return client.get_table_objects_by_name_req(ttypes.GetTablesRequest(db, names, _capabilities())).tables or []
    except TApplicationException as error:
        if error.type != TApplicationException.UNKNOWN_METHOD:
            raise
        return client.get_table_objects_by_name(db, names) or []


def _capabilities() -> Any:
    """Of a client that shows tables, and does not read their rows. Hive 4's `processorCapabilities` are not sent: with
    them its server answers with what this client may do to a table, without them with the table as it is stored."""
    return ttypes.ClientCapabilities([INSERT_ONLY])


def create_table(table: Table) -> Send:
    return methodcaller("create_table_with_environment_context", _table(table), _keep_statistics())


def alter_table(db: str, name: str, table: Table) -> Send:
    return methodcaller("alter_table_with_environment_context", db, name, _table(table), _keep_statistics())


def add_partitions(db: str, table: str, partitions: Sequence[Partition]) -> Send:
    request = ttypes.AddPartitionsRequest(
        dbName=db,
        tblName=table,
        parts=[values.partition_to_thrift(db, table, partition) for partition in partitions],
        ifNotExists=True,
        needResult=False,
    )
    return methodcaller("add_partitions_req", request)


def alter_partitions(db: str, table: str, partitions: Sequence[Partition]) -> Send:
    parts = [values.partition_to_thrift(db, table, partition) for partition in partitions]
    return methodcaller("alter_partitions_with_environment_context", db, table, parts, _keep_statistics())


def partitions_by_expression(db: str, table: str, expression: bytes) -> Send:
    request = ttypes.PartitionsByExprRequest(dbName=db, tblName=table, expr=expression, maxParts=-1)
    return methodcaller("get_partitions_by_expr", request)


def drop_partitions(db: str, table: str, names: Sequence[str]) -> Send:
    request = ttypes.DropPartitionsRequest(
        dbName=db,
        tblName=table,
        parts=ttypes.RequestPartsSpec(names=list(names)),
        deleteData=False,
        ifExists=True,
        needResult=False,
    )
    return methodcaller("drop_partitions_req", request)


def grant_select(db: str, table: str, principals: Sequence[tuple[str, str]], by: str) -> Send:
    """principals: pairs of USER, ROLE or GROUP and a name."""
    return methodcaller(
        "grant_privileges", ttypes.PrivilegeBag([_may_select(db, table, *each, by) for each in principals])
    )


def revoke_select(db: str, table: str, principals: Sequence[tuple[str, str]], by: str) -> Send:
    """principals: as of `grant_select`."""
    return methodcaller(
        "revoke_privileges", ttypes.PrivilegeBag([_may_select(db, table, *each, by) for each in principals])
    )


def _may_select(db: str, table: str, kind: str, name: str, by: str) -> Any:
    kinds = ttypes.PrincipalType._NAMES_TO_VALUES
    info = ttypes.PrivilegeGrantInfo("SELECT", int(time.time()), by, ttypes.PrincipalType.USER, False)
    return ttypes.HiveObjectPrivilege(_object(db, table), name, kinds[kind], info)


def readers(db: str, table: str) -> Send:
    """Who may SELECT, as pairs of USER, ROLE or GROUP and a name."""
    kinds = ttypes.PrincipalType._VALUES_TO_NAMES

    def send(client: Any) -> frozenset[tuple[str, str]]:
        found = client.list_privileges(None, None, _object(db, table))
        return frozenset(
            (kinds[each.principalType], each.principalName)
            for each in found
            if each.grantInfo.privilege.upper() in ("SELECT", "ALL")
        )

    return send


def _object(db: str, table: str) -> Any:
    return ttypes.HiveObjectRef(ttypes.HiveObjectType.TABLE, db, table, [], None)


def data_connectors(client: Any) -> list[str]:
    """Names; none of a server that does not know them."""
    try:
        return list(method("get_dataconnectors")(client))
    except TApplicationException as error:
        if error.type != TApplicationException.UNKNOWN_METHOD:
            raise
        return []


def next_events(after: int, limit: int, skip: Collection[str] = ()) -> Send:
    request = ttypes.NotificationEventRequest(lastEvent=after, maxEvents=limit)
    if skip:
        request.eventTypeSkipList = sorted(skip)
    return methodcaller("get_next_notification", request)


def _table(table: Table) -> Any:
    thrift = values.table_to_thrift(table)
    if table.kind == EXTERNAL:
        thrift.parameters["EXTERNAL"] = "TRUE"  # without it the server makes the table managed, and a drop its end
    return thrift


def _keep_statistics() -> Any:
    return ttypes.EnvironmentContext(properties={"DO_NOT_UPDATE_STATS": "true"})
