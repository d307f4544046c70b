"""Objects that only clients of Hive 3 and 4 make, by bindings that are none of ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hive_metastore import ThriftHiveMetastore, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from replicator.metastore.embedded.running import Running

INSERT_ONLY = {"transactional": "true", "transactional_properties": "insert_only"}
FULL_ACID = {"transactional": "true"}
HIVE = [  # what HiveServer2 says that it can
    *("HIVEFULLACIDREAD", "HIVEFULLACIDWRITE", "HIVEMANAGEDINSERTREAD", "HIVEMANAGEDINSERTWRITE", "HIVESQL"),
    *("HIVECACHEINVALIDATE", "HIVEMANAGESTATS", "CONNECTORREAD", "CONNECTORWRITE", "EXTREAD", "EXTWRITE"),
    *("HIVEMQT", "HIVEONLYMQTWRITE", "HIVEBUCKET2"),
]
_ORC = "org.apache.hadoop.hive.ql.io.orc.Orc"


class HiveClient:
    """A client as HiveServer2 is one."""

    def __init__(self, client: Any, hive: str) -> None:
        self.thrift, self._old = client, hive in ("2.3", "3.1")

    def table(
        self,
        db: str,
        name: str,
        parameters: dict[str, str] | None = None,
        *,
        columns: Sequence[tuple[str, str]] = (("id", "int"), ("v", "string")),
        keys: Sequence[str] = (),
        location: str | None = None,
        kind: str = "MANAGED_TABLE",
        **more: Any,
    ) -> None:
        """A table in ORC. `more`: other fields of the struct."""
        storage = ttypes.StorageDescriptor(
            cols=[ttypes.FieldSchema(column, type_, "") for column, type_ in columns],
            location=location,
            inputFormat=f"{_ORC}InputFormat",
            outputFormat=f"{_ORC}OutputFormat",
            serdeInfo=ttypes.SerDeInfo(name=name, serializationLib=f"{_ORC}Serde", parameters={}),
            bucketCols=[],
            sortCols=[],
            parameters={},
            compressed=False,
            numBuckets=-1,
            storedAsSubDirectories=False,
        )
        made = ttypes.Table(
            tableName=name,
            dbName=db,
            owner="hive",
            createTime=0,
            lastAccessTime=0,
            retention=0,
            sd=storage,
            partitionKeys=[ttypes.FieldSchema(key, "string", "") for key in keys],
            parameters=parameters or {},
            tableType=kind,
            **more,
        )
        self.create(made)

    def create(self, made: Any) -> None:
        """made: a table of Thrift."""
        if self._old:
            self.thrift.create_table(made)
        else:
            request = ttypes.CreateTableRequest(table=made, processorCapabilities=HIVE, processorIdentifier="hs2@test")
            self.thrift.create_table_req(request)

    def view(self, db: str, name: str, read: str) -> None:
        """Column `a` of a table, view or materialized view of the database."""
        self.table(db, name, kind="VIRTUAL_VIEW", **_text(db, read))

    def materialized_view(self, db: str, name: str, read: str) -> None:
        """Likewise."""
        made = ttypes.CreationMetadata(catName="hive", dbName=db, tblName=name, tablesUsed={f"{db}.{read}"})
        if not self._old:
            table = self.get(db, read)
            made.sourceTables = [ttypes.SourceTable(table=table, insertedCount=0, updatedCount=0, deletedCount=0)]
        self.table(db, name, kind="MATERIALIZED_VIEW", creationMetadata=made, **_text(db, read))

    def partition(self, db: str, name: str, *values: str) -> None:
        """Where the table says."""
        storage = self.get(db, name).sd
        storage.location = None
        made = ttypes.Partition(values=list(values), dbName=db, tableName=name, sd=storage, parameters={})
        self.thrift.add_partition(made)

    def get(self, db: str, name: str) -> Any:
        request = ttypes.GetTableRequest(dbName=db, tblName=name)
        request.capabilities = ttypes.ClientCapabilities([ttypes.ClientCapability.INSERT_ONLY_TABLES])
        return self.thrift.get_table_req(request).table

    def alter(self, db: str, name: str, table: Any) -> None:
        if self._old:
            self.thrift.alter_table(db, name, table)
        else:
            request = ttypes.AlterTableRequest(dbName=db, tableName=name, table=table, processorCapabilities=HIVE)
            request.processorIdentifier = "hs2@test"
            self.thrift.alter_table_req(request)

    def make_transactional(self, db: str, name: str) -> None:
        """An external table, too. Servers refuse the reverse."""
        table = self.get(db, name)
        for key in ("EXTERNAL", "TRANSLATED_TO_EXTERNAL", "external.table.purge"):
            table.parameters.pop(key, None)
        table.parameters["transactional"], table.tableType = "true", "MANAGED_TABLE"
        self.alter(db, name, table)

    def rename(self, db: str, name: str, new: str) -> None:
        table = self.get(db, name)
        table.tableName = new
        self.alter(db, name, table)

    def read_lock(self, db: str, name: str, partition: str = "") -> int:
        """The lock of a query that reads a table, or a partition."""
        part = ttypes.LockComponent(
            type=ttypes.LockType.SHARED_READ,
            level=ttypes.LockLevel.PARTITION if partition else ttypes.LockLevel.TABLE,
            dbname=db,
            tablename=name,
            partitionname=partition or None,
            operationType=ttypes.DataOperationType.SELECT,
        )
        answer = self.thrift.lock(ttypes.LockRequest(component=[part], user="reader", hostname="reader"))
        assert answer.state == ttypes.LockState.ACQUIRED
        return int(answer.lockid)

    def locks(self, db: str) -> list[int]:
        return [each.lockid for each in self.thrift.show_locks(ttypes.ShowLocksRequest(dbname=db)).locks]

    def unlock(self, lock: int) -> None:
        self.thrift.unlock(ttypes.UnlockRequest(lockid=lock))

    def drop(self, db: str, name: str) -> None:
        self.thrift.drop_table(db, name, True)


def _text(db: str, read: str) -> dict[str, Any]:
    text = f"select a from {db}.{read}"
    return {"viewOriginalText": text, "viewExpandedText": text}


@contextmanager
def hive_client(running: Running) -> Iterator[HiveClient]:
    transport = TBufferedTransport(TSocket("127.0.0.1", int(running.uri.rpartition(":")[2])))
    transport.open()
    try:
        yield HiveClient(ThriftHiveMetastore.Client(TBinaryProtocol(transport)), running.hive)
    finally:
        transport.close()
