"""Constraints made and read through bindings that are independent of the product's (Hive 4.x)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hive_metastore.ThriftHiveMetastore as Service
import hive_metastore.ttypes as T
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

FLAGS = (False, False, True)  # enable, validate, rely
_LISTS = {
    "get_primary_keys": (T.PrimaryKeysRequest, "primaryKeys"),
    "get_unique_constraints": (T.UniqueConstraintsRequest, "uniqueConstraints"),
    "get_not_null_constraints": (T.NotNullConstraintsRequest, "notNullConstraints"),
    "get_default_constraints": (T.DefaultConstraintsRequest, "defaultConstraints"),
    "get_check_constraints": (T.CheckConstraintsRequest, "checkConstraints"),
}


@contextmanager
def client(uri: str) -> Iterator[Any]:
    host, _, port = uri.removeprefix("thrift://").partition(":")
    transport = TBufferedTransport(TSocket(host, int(port)))
    transport.open()
    yield Service.Client(TBinaryProtocol(transport))
    transport.close()


class Constraints:
    """Those of one server. Names of tables are `db.table`."""

    def __init__(self, uri: str, *, newer: bool = False) -> None:
        """newer: the server has more than keys."""
        self.uri, self.newer = uri, newer

    def primary(self, table: str, name: str, *columns: str) -> None:
        db, _, of = table.partition(".")
        keys = [T.SQLPrimaryKey(db, of, each, at, name, *FLAGS, "hive") for at, each in enumerate(columns, 1)]
        with client(self.uri) as c:
            c.add_primary_key(T.AddPrimaryKeyRequest(keys))

    def foreign(self, table: str, name: str, column: str, parent: str, key: str) -> None:
        (db, _, of), (pdb, _, pof) = table.partition("."), parent.partition(".")
        keys = [T.SQLForeignKey(pdb, pof, key, db, of, column, 1, 0, 0, name, None, *FLAGS, "hive")]
        with client(self.uri) as c:
            c.add_foreign_key(T.AddForeignKeyRequest(keys))

    def unique(self, table: str, name: str, *columns: str) -> None:
        db, _, of = table.partition(".")
        keys = [T.SQLUniqueConstraint("hive", db, of, each, at, name, *FLAGS) for at, each in enumerate(columns, 1)]
        with client(self.uri) as c:
            c.add_unique_constraint(T.AddUniqueConstraintRequest(keys))

    def of_column(self, kind: str, table: str, name: str, column: str, value: str = "") -> None:
        """kind: not_null, default or check."""
        db, _, of = table.partition(".")
        cls = {"not_null": T.SQLNotNullConstraint, "default": T.SQLDefaultConstraint, "check": T.SQLCheckConstraint}
        request = {
            "not_null": T.AddNotNullConstraintRequest,
            "default": T.AddDefaultConstraintRequest,
            "check": T.AddCheckConstraintRequest,
        }
        made = cls[kind]("hive", db, of, column, *([value] if value else []), name, *FLAGS)
        with client(self.uri) as c:
            getattr(c, f"add_{kind}_constraint")(request[kind]([made]))

    def drop(self, table: str, name: str) -> None:
        db, _, of = table.partition(".")
        with client(self.uri) as c:
            c.drop_constraint(T.DropConstraintRequest(db, of, name, "hive"))

    def shown(self, *tables: str, rename: dict[str, str] | None = None) -> dict[str, list[tuple[Any, ...]]]:
        """What the server says of each table, databases called as `rename` says."""
        return {table: sorted(self._of(table, rename or {}), key=str) for table in tables}

    def _of(self, table: str, rename: dict[str, str]) -> Iterator[tuple[Any, ...]]:
        db, _, name = table.partition(".")
        db = rename.get(db, db)
        with client(self.uri) as c:
            for method, (request, listed) in _LISTS.items():
                if method == "get_primary_keys" or self.newer:
                    for each in getattr(getattr(c, method)(request(db_name=db, tbl_name=name, catName="hive")), listed):
                        yield tuple(_told(each))
            request = T.ForeignKeysRequest(None, None, db, name, "hive")
            back = {there: here for here, there in rename.items()}
            for each in c.get_foreign_keys(request).foreignKeys:
                each.pktable_db = back.get(each.pktable_db, each.pktable_db)
                yield tuple(_told(each))


def _told(each: Any) -> Iterator[Any]:
    yield type(each).__name__
    for row in each.thrift_spec:
        if row and row[2] not in ("catName", "table_db", "table_name", "fktable_db", "fktable_name"):
            yield getattr(each, row[2])
