"""hmsclient's bindings with the fields and calls of newer servers (`interface_rows`); and a client that sets the
catalog's field in all requests.

thrift's decoders, the C one and the plain one, are driven by a class's `thrift_spec`. Importing this module appends the
rows to hmsclient's classes, so that fields of Hive 3.x and 4.x are read and written back; an unset field is not sent,
and an old server skips unknown fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from hmsclient.genthrift.hive_metastore import ThriftHiveMetastore, ttypes
from thrift.protocol.TBase import TBase
from thrift.Thrift import TApplicationException, TMessageType, TType

from replicator.metastore.interface_rows import METHODS, NEW_FIELDS, NEW_STRUCTS, RETYPED

Row = tuple[int, int, str, Any, Any]  # thrift's own shape: id, type, name, type arguments, default

_SCALARS = {
    "bool": (TType.BOOL, None),
    "byte": (TType.BYTE, None),
    "i16": (TType.I16, None),
    "i32": (TType.I32, None),
    "i64": (TType.I64, None),
    "double": (TType.DOUBLE, None),
    "string": (TType.STRING, "UTF8"),
    "binary": (TType.STRING, "BINARY"),
}
_CONTAINER = re.compile(r"(list|set|tuple|map)<(.+)>$")


def _type(text: str) -> tuple[int, Any]:
    """Converts a type as written in the table to thrift's (type, type arguments). `tuple`: a list as key of a map."""
    if text in _SCALARS:
        return _SCALARS[text]
    if container := _CONTAINER.match(text):
        kind, inner = container.groups()
        if kind == "map":
            key, _, value = inner.partition(",") if "<" not in inner.split(",")[0] else inner.partition(">,")
            key = key + ">" if "<" in key else key
            return TType.MAP, (*_type(key), *_type(value), False)
        return (TType.SET if kind == "set" else TType.LIST), (*_type(inner), kind == "tuple")
    cls = getattr(ttypes, text)
    return TType.STRUCT, [cls, cls.thrift_spec]


def _row(field: int, text: str) -> Row:
    type_text, name = text.rsplit(" ", 1)
    kind, args = _type(type_text)
    return field, kind, name, args, None


def ids(struct: str, *names: str) -> frozenset[str]:
    """Returns ids of fields of a struct, as the keys that they have in `extra`."""
    return frozenset(str(row[0]) for row in getattr(ttypes, struct).thrift_spec if row and row[2] in names)


class _Struct:
    """Base class of the structs that are missing in hmsclient; the table defines their fields."""

    thrift_spec: tuple[Any, ...] = ()

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]


def _extend(cls: Any, rows: dict[int, str], replace: bool) -> None:
    spec: list[Any] = list(cls.thrift_spec) or [None]
    for field, text in rows.items():
        spec.extend([None] * (field + 1 - len(spec)))
        if spec[field] is None or replace:
            spec[field] = _row(field, text)
            if not hasattr(cls, spec[field][2]):
                setattr(cls, spec[field][2], None)  # unset: not sent
    cls.thrift_spec = tuple(spec)


def _refresh(args: Any) -> None:
    """Updates nested specs, which contain [class, its spec at import], to the current spec."""
    if isinstance(args, list):
        args[1] = args[0].thrift_spec
    elif isinstance(args, tuple):
        for arg in args:
            _refresh(arg)


def _generated() -> list[Any]:
    modules = (ttypes, ThriftHiveMetastore)
    found = [value for module in modules for value in vars(module).values() if hasattr(value, "thrift_spec")]
    return list(dict.fromkeys(found))


def struct(name: str, rows: dict[int, str]) -> type[Any]:
    """Returns a new class with these fields. It is not added to `ttypes`."""
    cls = type(name, (_Struct,), {"__module__": ttypes.__name__, "read": TBase.read, "write": TBase.write})
    _extend(cls, rows, replace=False)
    return cls


def _apply() -> None:
    for name in NEW_STRUCTS:
        if not hasattr(ttypes, name):
            setattr(ttypes, name, struct(name, {}))
    for table, replace in ((NEW_STRUCTS, False), (NEW_FIELDS, False), (RETYPED, True)):
        for name, rows in table.items():
            _extend(getattr(ttypes, name), rows, replace)
    for cls in _generated():
        cls.read, cls.write = TBase.read, TBase.write  # the generated bodies know only the 2.3 fields
        for row in cls.thrift_spec:
            _refresh(row[3] if row else None)


_apply()


def method(name: str, *arguments: Any) -> Callable[[Any], Any]:
    """Returns a function of a client that calls `name`, like `operator.methodcaller` for methods that the client has.
    It returns the result, and raises the errors that the method declares, or TApplicationException: UNKNOWN_METHOD from
    a server that does not support it; the connection remains in step."""
    sent, answered = structs(name)
    values = dict(zip((row[2] for row in sent.thrift_spec if row), arguments, strict=True))
    return lambda client: _call(client, name, _into_catalog(client, sent(**values)), answered())


@cache
def structs(name: str) -> tuple[type[Any], type[Any]]:
    """Returns the classes of a method's arguments and of its result."""
    arguments, result = METHODS[name]
    return struct(f"{name}_args", arguments), struct(f"{name}_result", result)


def _into_catalog(client: Any, arguments: Any) -> Any:
    """Returns the arguments as a client that is bound to a catalog sends them."""
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
    if not rows or rows[0][0]:
        return None
    if result.success is None:
        raise TApplicationException(TApplicationException.MISSING_RESULT, f"{name} failed: unknown result")
    return result.success


# ---- the catalog in requests -----------------------------------------------------------------------------------------


_NAMES = ("catName", "catalogName")
_DATABASE = ("db_name", "dbname", "dbName")
_NAMED = ("get_database", "drop_database")  # calls whose first argument is a database's name
_WHOLE = ("NotificationEventRequest",)  # a catalog in this request would omit ids, which would look like lost events


def qualified(catalog: str, db: str) -> str:
    """Returns a database's name with its catalog, as in Hive's calls."""
    return f"@{catalog}#{db}"


def catalog_of(db: str) -> str:
    """Returns the catalog in a name made by `qualified`; "" for any other name."""
    return db[1:].partition("#")[0] if db.startswith("@") else ""


def bound(client: Any, catalog: str | None) -> Any:
    """Returns the client for one catalog; None: the server's default, which calls do not have to name."""
    return client if catalog is None else CatalogClient(client, catalog)


class CatalogClient:
    """A thrift client whose calls apply to one catalog. Arguments are modified in place: senders create their own."""

    def __init__(self, client: Any, catalog: str) -> None:
        self._client, self._catalog = client, catalog

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "recv_", "send_")):
            return getattr(self._client, name)
        if name == "get_all_databases":
            return lambda: self._client.get_databases(qualified(self._catalog, ""))
        found, places = getattr(self._client, name), _places(name)

        def call(*arguments: Any) -> Any:
            return found(*map(self._argument, arguments, places))

        return call

    def _argument(self, value: Any, is_database: bool) -> Any:
        return qualified(self._catalog, value) if is_database else self.into_catalog(value)

    def into_catalog(self, value: Any) -> Any:
        """Returns the value, with the catalog set in each of its structs that has a field for it."""
        for each in value if isinstance(value, list | tuple) else (value,):
            if hasattr(each, "thrift_spec"):
                cls: Any = type(each)
                own, inner = _fields(cls)
                if own:
                    setattr(each, own, self._catalog)
                for field in inner:
                    if (below := getattr(each, field)) is not None:
                        self.into_catalog(below)
        return value


@cache
def _places(name: str) -> tuple[bool, ...]:
    """Returns for each argument of a call whether it is a database's name."""
    rows = [row for row in getattr(ThriftHiveMetastore, f"{name}_args").thrift_spec if row]
    return tuple(row[2] in _DATABASE or (name in _NAMED and row[0] == 1) for row in rows)


@cache
def _fields(cls: Any) -> tuple[str | None, tuple[str, ...]]:
    """Returns the field of a struct that names a catalog, and its fields with structs that have one."""
    if cls.__name__ in _WHOLE:
        return None, ()
    rows = [row for row in cls.thrift_spec if row]
    own = next((row[2] for row in rows if row[2] in _NAMES), None)
    return own, tuple(row[2] for row in rows if _reaches(row[1], row[3], frozenset({cls})))


def _reaches(kind: int, arguments: Any, above: frozenset[Any]) -> bool:
    if kind == TType.LIST:
        return _reaches(arguments[0], arguments[1], above)
    if kind != TType.STRUCT or arguments[0] in above:
        return False
    rows = [row for row in arguments[0].thrift_spec if row]
    return any(row[2] in _NAMES or _reaches(row[1], row[3], above | {arguments[0]}) for row in rows)
