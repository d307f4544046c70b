"""A thrift client that names one catalog in all requests."""

from __future__ import annotations

from functools import cache
from typing import Any

from hmsclient.genthrift.hive_metastore import ThriftHiveMetastore
from thrift.Thrift import TType

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
