"""The method table: calls that hmsclient's 2.3 interface lacks, or knows with fewer arguments, as rows of data.

A method is the fields of its arguments and those of its result, written as in `fields`; field 0 of a result is the
answer, the others are errors. The tests compare every row with two independent sets of bindings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from thrift.Thrift import TApplicationException, TMessageType

from replicator.metastore.convert import fields

Rows = dict[int, str]

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


# name -> the fields of its arguments, and of its result
METHODS: dict[str, tuple[Rows, Rows]] = {
    "get_catalogs": ({}, {0: "GetCatalogsResponse success", 1: "MetaException o1"}),
    "get_dataconnectors": ({}, {0: "list<string> success", 1: "MetaException o1"}),
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
}


def method(name: str, *arguments: Any) -> Callable[[Any], Any]:
    """A function of a client that calls `name`, as `operator.methodcaller` makes for methods that the client has. It
    returns the answer, and raises the errors that the method declares, or TApplicationException: UNKNOWN_METHOD of a
    server that lacks it; the connection stays in step."""
    sent, answered = structs(name)
    values = dict(zip((row[2] for row in sent.thrift_spec if row), arguments, strict=True))
    return lambda client: _call(client, name, _into_catalog(client, sent(**values)), answered())


@cache
def structs(name: str) -> tuple[type[Any], type[Any]]:
    """The classes of a method's arguments and of its result."""
    arguments, result = METHODS[name]
    return fields.struct(f"{name}_args", arguments), fields.struct(f"{name}_result", result)


def _into_catalog(client: Any, arguments: Any) -> Any:
    """As a client that is bound to a catalog sends them."""
    bind = getattr(client, "into_catalog", None)
    return bind(arguments) if bind else arguments


def _call(client: Any, name: str, arguments: Any, result: Any) -> Any:
    client._oprot.writeMessageBegin(name, TMessageType.CALL, client._seqid)
    arguments.write(client._oprot)
    client._oprot.writeMessageEnd()
    client._oprot.trans.flush()
    _, kind, _ = client._iprot.readMessageBegin()
    answer = TApplicationException() if kind == TMessageType.EXCEPTION else result
    answer.read(client._iprot)
    client._iprot.readMessageEnd()
    if answer is not result:
        raise answer
    return _outcome(name, result)


def _outcome(name: str, result: Any) -> Any:
    rows = [row for row in result.thrift_spec if row]
    for row in rows:
        if row[0] and (error := getattr(result, row[2])) is not None:
            raise error
    if rows[0][0]:
        return None
    if result.success is None:
        raise TApplicationException(TApplicationException.MISSING_RESULT, f"{name} failed: unknown result")
    return result.success
