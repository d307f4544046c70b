"""A metastore of any size behind real thrift, as Hive 2.3 answers: tables and partitions are computed from their
numbers, only what clients write is stored, as bytes. Counts calls, and announces partitions that are added.

`python -m benchmarks.synthetic HOME TABLES PARTITIONS`: serves a database `growth` in HOME/warehouse, and writes its
address into HOME/uri. TABLES 0: an empty metastore, of a target. PARTITIONS 0: tables without partition keys.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

from hmsclient.genthrift.hive_metastore import ThriftHiveMetastore, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocolAcceleratedFactory
from thrift.protocol.TJSONProtocol import TJSONProtocolFactory
from thrift.server.TServer import TThreadedServer
from thrift.Thrift import TApplicationException, TMessageType
from thrift.transport.TSocket import TServerSocket
from thrift.transport.TTransport import TBufferedTransportFactory
from thrift.TSerialization import deserialize, serialize

DB = "growth"
CALLS = "synthetic.calls"  # a setting: the number of calls so far, by name
MADE = 1_700_000_000
SETTINGS = {
    "hive.metastore.transactional.event.listeners": "org.apache.hive.hcatalog.listener.DbNotificationListener",
    "hive.metastore.event.db.listener.timetolive": "864000s",
}
COLUMNS = [ttypes.FieldSchema(f"column_{number}", "string", "") for number in range(5)]
KEYS = [ttypes.FieldSchema("day", "string", "")]
SERDE = ttypes.SerDeInfo("", "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe", {"serialization.format": "1"})
INPUT = "org.apache.hadoop.mapred.TextInputFormat"
OUTPUT = "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat"
BINARY, JSON = TBinaryProtocolAcceleratedFactory(), TJSONProtocolFactory()


def table_name(number: int) -> str:
    return f"t{number:06d}"


def day(number: int) -> str:
    return f"{number:07d}"


def storage(location: str) -> Any:
    found = ttypes.StorageDescriptor(COLUMNS, location, INPUT, OUTPUT, False, -1, SERDE, [], [], {})
    found.skewedInfo, found.storedAsSubDirectories = ttypes.SkewedInfo([], [], {}), False
    return found


def partition(home: Path, table: str, value: str) -> Any:
    place = f"file:{home}/{table}/day={value}"
    return ttypes.Partition([value], DB, table, MADE, 0, storage(place), {"transient_lastDdlTime": str(MADE)})


class Metastore:
    """The handler of a metastore's calls, by their names."""

    def __init__(self, home: Path, tables: int, partitions: int) -> None:
        self._warehouse = home / "warehouse"
        self._place, self._tables, self._partitions = self._warehouse / f"{DB}.db", tables, partitions
        self._databases = {"default": self._database("default", self._warehouse)}
        if tables:
            self._databases[DB] = self._database(DB, self._place)
        self._written: dict[tuple[str, str], bytes] = {}
        self._parts: dict[tuple[str, str], dict[str, bytes]] = {}
        self._events: list[Any] = []
        self._calls: Counter[str] = Counter()
        self._lock = Lock()

    def _database(self, name: str, place: Path) -> Any:
        return ttypes.Database(name, "", f"file:{place}", {}, None, "bench", ttypes.PrincipalType.USER)

    def count(self, call: str) -> None:
        with self._lock:
            self._calls[call] += 1

    # ---- the server ---------------------------------------------------------------------------------------------

    def getName(self) -> str:
        return "synthetic"

    def get_config_value(self, name: str, default: str) -> str:
        if name == CALLS:
            self._calls["get_config_value"] -= 1
        return json.dumps(self._calls) if name == CALLS else SETTINGS.get(name, default)

    def get_current_notificationEventId(self) -> Any:
        return ttypes.CurrentNotificationEventId(len(self._events))

    def get_next_notification(self, request: Any) -> Any:
        found = self._events[request.lastEvent :][: request.maxEvents or None]
        return ttypes.NotificationEventResponse(found)

    def list_privileges(self, *_: Any) -> list[Any]:
        return []

    def get_role_names(self) -> list[str]:
        return ["admin", "public"]

    def get_functions(self, *_: Any) -> list[str]:
        return []

    def get_primary_keys(self, _: Any) -> Any:
        return ttypes.PrimaryKeysResponse([])

    def get_foreign_keys(self, _: Any) -> Any:
        return ttypes.ForeignKeysResponse([])

    # ---- databases and tables -----------------------------------------------------------------------------------

    def get_all_databases(self) -> list[str]:
        return sorted(self._databases)

    def get_database(self, name: str) -> Any:
        if name not in self._databases:
            raise ttypes.NoSuchObjectException(f"{name} does not exist")
        return self._databases[name]

    def create_database(self, database: Any) -> None:
        os.makedirs(database.locationUri.removeprefix("file:"), exist_ok=True)
        self._databases[database.name] = database

    def alter_database(self, name: str, database: Any) -> None:
        self._databases[name] = database

    def get_all_tables(self, db: str) -> list[str]:
        computed = map(table_name, range(self._tables)) if db == DB else ()
        return list(dict.fromkeys([*computed, *(name for of, name in self._written if of == db)]))

    def get_table(self, db: str, name: str) -> Any:
        found = self._table(db, name)
        if found is None:
            raise ttypes.NoSuchObjectException(f"{db}.{name} does not exist")
        return found

    def get_table_req(self, request: Any) -> Any:
        return ttypes.GetTableResult(self.get_table(request.dbName, request.tblName))

    def get_table_objects_by_name_req(self, request: Any) -> Any:
        found = (self._table(request.dbName, name) for name in request.tblNames)
        return ttypes.GetTablesResult([each for each in found if each])

    def create_table_with_environment_context(self, table: Any, _: Any) -> None:
        os.makedirs(table.sd.location.removeprefix("file:"), exist_ok=True)
        self._written[table.dbName, table.tableName] = serialize(table, BINARY)

    def alter_table_with_environment_context(self, db: str, name: str, table: Any, _: Any) -> None:
        self._written[db, name] = serialize(table, BINARY)

    def _table(self, db: str, name: str) -> Any:
        if written := self._written.get((db, name)):
            return deserialize(ttypes.Table(), written, BINARY)
        if not self._computes(db, name):
            return None
        keys = KEYS if self._partitions else []
        found = ttypes.Table(name, DB, "bench", MADE, 0, 0, storage(f"file:{self._place}/{name}"), keys, {}, "", "")
        found.parameters, found.tableType = {"transient_lastDdlTime": str(MADE), "EXTERNAL": "TRUE"}, "EXTERNAL_TABLE"
        return found

    def _computes(self, db: str, name: str) -> bool:
        return db == DB and name[1:].isdecimal() and int(name[1:]) < self._tables and name == table_name(int(name[1:]))

    # ---- partitions ---------------------------------------------------------------------------------------------

    def get_partition_names(self, db: str, table: str, limit: int) -> list[str]:
        return list(self._some(self._names(db, table), limit))

    def get_partitions(self, db: str, table: str, limit: int) -> list[Any]:
        return [self._partition(db, table, name) for name in self._some(self._names(db, table), limit)]

    def get_partitions_by_names(self, db: str, table: str, names: list[str]) -> list[Any]:
        found = (self._partition(db, table, name) for name in names)
        return [each for each in found if each]

    def add_partitions_req(self, request: Any) -> Any:
        written = self._parts.setdefault((request.dbName, request.tblName), {})
        for each in request.parts:
            os.makedirs(each.sd.location.removeprefix("file:"), exist_ok=True)
            written[f"day={each.values[0]}"] = serialize(each, BINARY)
        if self._tables:
            self._announce(request.dbName, request.tblName, request.parts)
        return ttypes.AddPartitionsResult()

    def alter_partitions_with_environment_context(self, db: str, table: str, parts: list[Any], _: Any) -> None:
        written = self._parts.setdefault((db, table), {})
        written.update({f"day={each.values[0]}": serialize(each, BINARY) for each in parts})

    def _names(self, db: str, table: str) -> Iterator[str]:
        count = self._partitions if self._computes(db, table) else 0
        yield from (f"day={day(number)}" for number in range(count))
        yield from list(self._parts.get((db, table), ()))

    @staticmethod
    def _some(names: Iterable[str], limit: int) -> Iterator[str]:
        return islice(names, limit if limit >= 0 else None)

    def _partition(self, db: str, table: str, name: str) -> Any:
        if written := self._parts.get((db, table), {}).get(name):
            return deserialize(ttypes.Partition(), written, BINARY)
        value = name.removeprefix("day=")
        known = self._computes(db, table) and value.isdecimal() and int(value) < self._partitions
        return partition(self._place, table, value) if known else None

    def _announce(self, db: str, table: str, parts: list[Any]) -> None:
        said = {
            "server": "",
            "servicePrincipal": "",
            "db": db,
            "table": table,
            "tableType": "EXTERNAL_TABLE",
            "tableObjJson": serialize(self._table(db, table), JSON).decode(),
            "timestamp": int(time.time()),
            "partitions": [{"day": each.values[0]} for each in parts],
            "partitionListJson": [serialize(each, JSON).decode() for each in parts],
            "partitionFiles": [],
        }
        event = ttypes.NotificationEvent(
            len(self._events) + 1, int(time.time()), "ADD_PARTITION", db, table, json.dumps(said), "json-0.2"
        )
        self._events.append(event)


class Counting(ThriftHiveMetastore.Processor):  # type: ignore[misc]
    """Counts calls; those that Hive 2.3 has and this metastore lacks fail as unknown ones do, and are named."""

    def __init__(self, handler: Metastore) -> None:
        super().__init__(handler)
        self._metastore = handler
        self._processMap: dict[str, Callable[..., Any]] = {
            name: self._counted(name, call) for name, call in self._processMap.items()
        }

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        if not hasattr(self._metastore, name):
            return lambda _, *wire: self._unknown(name, *wire)

        def counted(*wire: Any) -> Any:
            self._metastore.count(name)
            return call(*wire)

        return counted

    def _unknown(self, name: str, sequence: int, incoming: Any, outgoing: Any) -> None:
        print(f"unknown call: {name}", file=sys.stderr, flush=True)
        incoming.skip(12)
        incoming.readMessageEnd()
        outgoing.writeMessageBegin(name, TMessageType.EXCEPTION, sequence)
        TApplicationException(TApplicationException.UNKNOWN_METHOD, f"Unknown function {name}").write(outgoing)
        outgoing.writeMessageEnd()
        outgoing.trans.flush()


def main(home: Path, tables: int, partitions: int) -> None:
    logging.basicConfig(level=logging.ERROR)
    socket = TServerSocket("127.0.0.1", 0)
    socket.listen()
    port = socket.handle.getsockname()[1]
    socket.listen = lambda: None
    (home / "uri.new").write_text(f"thrift://127.0.0.1:{port}")
    os.replace(home / "uri.new", home / "uri")
    processor = Counting(Metastore(home, tables, partitions))
    TThreadedServer(processor, socket, TBufferedTransportFactory(), BINARY, daemon=True).serve()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
