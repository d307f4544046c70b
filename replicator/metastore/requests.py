"""The thrift calls whose arguments are more than names: each function returns what to do with a client.

Drops explicitly keep the data; writes ask the server to store statistics as sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, partial
from operator import methodcaller
from typing import Any, TypeVar

import msgspec
from hmsclient.genthrift.hive_metastore import ttypes
from thrift.Thrift import TApplicationException, TException

from replicator.core.formats.interface import POINTER
from replicator.core.model import (
    CHECK,
    DEFAULT,
    EXTERNAL,
    FOREIGN_KEY,
    NOT_NULL,
    PRIMARY_KEY,
    UNIQUE,
    ColumnStatistic,
    Constraint,
    Database,
    Function,
    Name,
    NotificationEvent,
    Partition,
    Statistics,
    Table,
)
from replicator.metastore.codecs import from_text, from_thrift, partial_shape, to_thrift
from replicator.metastore.concurrency import TABLE_WEIGHT, side_by_side
from replicator.metastore.connection import Connections
from replicator.metastore.constraints import KINDS, from_structs, ordered, to_structs
from replicator.metastore.fields import method
from replicator.metastore.interface_rows import METHODS

# ---- values ----------------------------------------------------------------------------------------------------------
# Conversions between thrift structs, objects in notification messages, and the values of `model`.
#
# All are pure and access no server. A million partitions share one columns tuple and one Serde. Functions that parse a
# text raise FormatError if it is not a text of that object.


CATALOG = "hive"  # the default catalog, which calls for constraints must name
T = TypeVar("T")


def _of_any_catalog(convert: Callable[[Any], T], field: str) -> Callable[[Any], T]:
    """Replaces the catalog in values by the default one: the connection knows the real one."""
    held = {"str": CATALOG}

    def converted(given: Any) -> T:
        found: Any = convert(given)
        if found.extra and found.extra.get(field, held) != held:
            found = msgspec.structs.replace(found, extra={**found.extra, field: held})
        return found  # type: ignore[no-any-return]

    return converted


def _of_no_catalog(convert: Callable[[Any], Any], field: str = "catName") -> Callable[[Any], Any]:
    """Removes the catalog from structs: the connection adds it, or the server uses its default."""

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
    """Returns values and location of a partition from its text in a message. Raises FormatError."""
    try:
        found = _read_place(text)
    except msgspec.DecodeError:
        whole = partition_from_text(text)
        return whole.values, whole.location
    place = found.storage.value
    return tuple(found.values.value[2:]), place.location.value if place else None


def column_statistics_from_thrift(columns: Iterable[Any]) -> tuple[ColumnStatistic, ...]:
    """Converts thrift ColumnStatisticsObj, which several responses contain without a description."""
    return tuple(map(from_thrift(ColumnStatistic), columns))


def statistics_to_thrift(statistics: Statistics, engine: str) -> Any:
    """Converts the statistics of one engine: some 4.x releases require its name, servers before Hive 4 ignore it."""
    description = to_thrift(Statistics)(statistics)
    description.isTblLevel = statistics.partition is None
    columns = statistics.by_engine().get(engine, ())
    struct = ttypes.ColumnStatistics(description, list(map(to_thrift(ColumnStatistic), columns)))
    struct.engine = engine
    return struct


# ---- requests --------------------------------------------------------------------------------------------------------


Send = Callable[[Any], Any]  # a function that runs with a client
INSERT_ONLY = 2  # ClientCapability.INSERT_ONLY_TABLES, since 3.0: without it one such table fails a whole batch


def table_by_name(db: str, name: str) -> Send:
    return partial(_get_table, db, name)


def tables_by_name(db: str, names: Sequence[str]) -> Send:
    return partial(_get_tables, db, list(names))


def _get_table(db: str, name: str, client: Any) -> Any:
    """Returns a table: Hive 4.0.1 dropped `get_table`, and servers before 2.3 have no `get_table_req`."""
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
    """Returns capabilities of a client that reads tables' metadata and not their rows. Hive 4's `processorCapabilities`
    are not sent: with them its server returns what this client may do to a table, without them the table as stored."""
    return ttypes.ClientCapabilities([INSERT_ONLY])


def create_table(table: Table) -> Send:
    return methodcaller("create_table_with_environment_context", struct_of(table), altering())


def create_transactional(table: Table) -> Send:
    """Creates a table as Hive 4 requires it of transactional ones: by a client that states its capabilities."""
    request = ttypes.CreateTableRequest(table=struct_of(table), envContext=altering())
    request.processorCapabilities = ["HIVEFULLACIDWRITE", "HIVEMANAGEDINSERTWRITE"]
    request.processorIdentifier = "replicator"
    return method("create_table_req", request)


def alter_table(db: str, name: str, table: Table, pointer: str = "") -> Send:
    return methodcaller("alter_table_with_environment_context", db, name, struct_of(table), altering(pointer))


def altering(pointer: str = "") -> Any:
    """Returns a context: statistics are stored as sent, and the table must have this pointer (see `client`)."""
    properties = {"DO_NOT_UPDATE_STATS": "true"}
    if pointer:  # HIVE-26882; servers without it ignore both
        properties |= {"expected_parameter_key": POINTER, "expected_parameter_value": pointer}
    return ttypes.EnvironmentContext(properties=properties)


def add_partitions(db: str, table: str, partitions: Sequence[Partition]) -> Send:
    request = ttypes.AddPartitionsRequest(
        dbName=db,
        tblName=table,
        parts=[partition_to_thrift(db, table, partition) for partition in partitions],
        ifNotExists=True,
        needResult=False,
    )
    return methodcaller("add_partitions_req", request)


def alter_partitions(db: str, table: str, partitions: Sequence[Partition]) -> Send:
    parts = [partition_to_thrift(db, table, partition) for partition in partitions]
    return methodcaller("alter_partitions_with_environment_context", db, table, parts, altering())


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
    """Grants SELECT. principals: pairs of USER, ROLE or GROUP and a name."""
    return methodcaller(
        "grant_privileges", ttypes.PrivilegeBag([_may_select(db, table, *each, by) for each in principals])
    )


def revoke_select(db: str, table: str, principals: Sequence[tuple[str, str]], by: str) -> Send:
    """Revokes SELECT. principals: as in `grant_select`."""
    return methodcaller(
        "revoke_privileges", ttypes.PrivilegeBag([_may_select(db, table, *each, by) for each in principals])
    )


def _may_select(db: str, table: str, kind: str, name: str, by: str) -> Any:
    kinds = ttypes.PrincipalType._NAMES_TO_VALUES
    info = ttypes.PrivilegeGrantInfo("SELECT", int(time.time()), by, ttypes.PrincipalType.USER, False)
    return ttypes.HiveObjectPrivilege(_object(db, table), name, kinds[kind], info)


def readers(db: str, table: str) -> Send:
    """Returns the principals with SELECT, as pairs of USER, ROLE or GROUP and a name."""
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


def data_connectors() -> Send:
    return _listed(method("get_dataconnectors"))


def resource_plans() -> Send:
    """Lists the plans of the namespace that HiveServer2 uses by default; no call lists namespaces."""
    ask = method("get_all_resource_plans", ttypes.WMGetAllResourcePlanRequest(ns="default"))
    return _listed(lambda client: [plan.name for plan in ask(client).resourcePlans or ()])


def stored_procedures(db: str | None) -> Send:
    """Lists those of a database; None: of all databases of the catalog."""
    return _listed(
        method("get_all_stored_procedures", ttypes.ListStoredProcedureRequest(catName=CATALOG, **_named(db)))
    )


def packages(db: str | None) -> Send:
    """Lists packages of procedures; see `stored_procedures`."""
    return _listed(method("get_all_packages", ttypes.ListPackageRequest(catName=CATALOG, **_named(db))))


def _named(db: str | None) -> dict[str, str]:
    return {} if db is None else {"dbName": db}


def _listed(ask: Send) -> Send:
    """Returns a call for names; empty for a server that does not support it."""

    def send(client: Any) -> list[str]:
        try:
            return list(ask(client) or ())
        except TApplicationException as error:
            if error.type != TApplicationException.UNKNOWN_METHOD:
                raise
            return []

    return send


def next_events(after: int, limit: int, skip: Collection[str] = ()) -> Send:
    request = ttypes.NotificationEventRequest(lastEvent=after, maxEvents=limit)
    if skip:
        request.eventTypeSkipList = sorted(skip)
    return methodcaller("get_next_notification", request)


def struct_of(table: Table) -> Any:
    thrift = table_to_thrift(table)
    if table.kind == EXTERNAL:
        thrift.parameters["EXTERNAL"] = "TRUE"  # else the server makes it managed, and a drop deletes its data
    return thrift


# ---- constraint calls ------------------------------------------------------------------------------------------------
# Calls for constraints, as each server supports them: two kinds in 2.3, six since 3.1, one call for all since 4.0.
#
# As in `requests`, functions return what to do with a client.


_CALLS = {
    PRIMARY_KEY: ("primary_key", "PrimaryKeys"),
    FOREIGN_KEY: ("foreign_key", "ForeignKeys"),
    UNIQUE: ("unique_constraint", "UniqueConstraints"),
    NOT_NULL: ("not_null_constraint", "NotNullConstraints"),
    DEFAULT: ("default_constraint", "DefaultConstraints"),
    CHECK: ("check_constraint", "CheckConstraints"),
}
_NOBODY = "replicator_asks"  # the name of a table that exists on no server


def knows_all_in_one(client: Any) -> bool:
    """Returns True if the server returns all constraints of a table in one call."""
    request = ttypes.AllTableConstraintsRequest(dbName=_NOBODY, tblName=_NOBODY, catName=CATALOG)
    return is_known(method("get_all_table_constraints", request), client)


def knows_newer_kinds(client: Any) -> bool:
    """Returns True if the server supports more than primary and foreign keys."""
    return is_known(of_table(UNIQUE, _NOBODY, _NOBODY), client)


def is_known(send: Send, client: Any) -> bool:
    """Returns True if the server has the call, whatever it answers. Raises what the transport raises."""
    try:
        send(client)
    except TApplicationException as error:
        return bool(error.type != TApplicationException.UNKNOWN_METHOD)
    except TException as error:
        if not hasattr(error, "thrift_spec"):  # an error of the transport, not declared by the call
            raise
    return True


def all_of_table(db: str, table: str) -> Send:
    """Returns a call whose result is all constraints by table."""
    request = ttypes.AllTableConstraintsRequest(dbName=db, tblName=table, catName=CATALOG)
    ask = method("get_all_table_constraints", request)

    def send(client: Any) -> dict[Name, list[Constraint]]:
        found: dict[Name, list[Constraint]] = {}
        try:
            answer = ask(client).allTableConstraints
        except ttypes.NoSuchObjectException:  # the table no longer exists
            return found
        for kind, row in KINDS.items():
            _add(found, from_structs(kind, getattr(answer, row.listed) or ()))
        return found

    return send


def of_table(kind: str, db: str, table: str | None) -> Send:
    """Returns a call for one kind; for foreign keys without a table: those of all tables of the database."""
    name, request = _CALLS[kind]
    names = {"db_name": db, "tbl_name": table}
    if kind == FOREIGN_KEY:
        names = {"foreign_db_name": db, "foreign_tbl_name": table}
    ask = _call(f"get_{name}s", getattr(ttypes, f"{request}Request")(), names | {"catName": CATALOG})

    def send(client: Any) -> dict[Name, list[Constraint]]:
        try:
            return from_structs(kind, getattr(ask(client), KINDS[kind].listed) or ())
        except ttypes.NoSuchObjectException:
            return {}

    return send


def merged(answers: Sequence[dict[Name, list[Constraint]]]) -> dict[Name, list[Constraint]]:
    found: dict[Name, list[Constraint]] = {}
    for each in answers:
        _add(found, each)
    return found


def _add(found: dict[Name, list[Constraint]], more: dict[Name, list[Constraint]]) -> None:
    for name, constraints in more.items():
        found.setdefault(name, []).extend(constraints)


def add(db: str, table: str, constraint: Constraint) -> Send:
    name, request = _CALLS[constraint.kind]
    columns = to_structs(db, table, constraint, CATALOG)
    cls = getattr(ttypes, f"Add{request.removesuffix('s')}Request")
    return _call(f"add_{name}", cls(), {KINDS[constraint.kind].added: columns})


def drop(db: str, table: str, name: str) -> Send:
    names = {"dbname": db, "tablename": table, "constraintname": name, "catName": CATALOG}
    return _call("drop_constraint", ttypes.DropConstraintRequest(), names)


def _call(name: str, request: Any, values: dict[str, Any]) -> Send:
    for field, value in values.items():
        setattr(request, field, value)
    return method(name, request) if name in METHODS else methodcaller(name, request)


class ConstraintCalls:
    """The part of a metastore's client for constraints; see `client`."""

    _connections: Connections

    def constraint_kinds(self) -> frozenset[str]:
        return frozenset(KINDS if self._newer_kinds else (PRIMARY_KEY, FOREIGN_KEY))

    @cached_property
    def _newer_kinds(self) -> bool:
        return bool(self._connections.read("kinds of constraints", knows_newer_kinds))

    @cached_property
    def _all_in_one(self) -> bool:
        return self._newer_kinds and bool(self._connections.read("kinds of constraints", knows_all_in_one))

    def announces_constraints(self) -> bool:
        return self._all_in_one  # both since 4.0

    def constraints(self, db: str, tables: Sequence[str]) -> dict[str, tuple[Constraint, ...]]:
        if not tables:
            return {}
        if self._all_in_one:
            sends = [all_of_table(db, table) for table in tables]
        else:
            kinds = sorted(self.constraint_kinds() - {FOREIGN_KEY})
            sends = [of_table(kind, db, table) for table in tables for kind in kinds]
            sends.append(of_table(FOREIGN_KEY, db, tables[0] if len(tables) == 1 else None))
        read = partial(self._connections.read, f"constraints of {db}")
        answers = list(side_by_side(self._connections.traffic, read, sends, weigh=lambda _: TABLE_WEIGHT))
        wanted = set(tables)
        found = merged(answers)
        return {table: ordered(some) for (_, table), some in found.items() if table in wanted}

    def foreign_keys(self, db: str) -> dict[str, tuple[Constraint, ...]]:
        found = self._connections.read(f"foreign keys of {db}", of_table(FOREIGN_KEY, db, None))
        return {table: ordered(some) for (_, table), some in found.items()}

    def add_constraint(self, db: str, table: str, constraint: Constraint) -> None:
        self._connections.change(f"add {constraint} to {db}.{table}", add(db, table, constraint))

    def drop_constraint(self, db: str, table: str, name: str) -> None:
        self._connections.change(f"drop constraint {name} of {db}.{table}", drop(db, table, name))
