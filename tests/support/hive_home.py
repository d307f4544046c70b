"""Home: one database of a real metastore, of any version of Hive, for objects that Spark cannot make.

Its client is of bindings that the product does not use (pyiceberg's, of Hive 4), so that what it makes and shows does
not depend on what the product can read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hive_metastore import ThriftHiveMetastore, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from replicator.metastore.embedded.running import Running

COLUMNS = (("a", "int", "a column, größer"), ("b", "string", None))
INPUT = "org.apache.hadoop.mapred.TextInputFormat"
OUTPUT = "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat"
SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
MANAGED, EXTERNAL, VIEW = "MANAGED_TABLE", "EXTERNAL_TABLE", "VIRTUAL_VIEW"


class Unavailable(Exception):
    """This version of Hive has no such thing."""


@contextmanager
def client_of(running: Running) -> Iterator[Any]:
    """A client of bindings of Hive 4, for any version."""
    host, _, port = running.uri.removeprefix("thrift://").rpartition(":")
    socket = TSocket(host.replace("0.0.0.0", "127.0.0.1"), int(port))
    socket.setTimeout(120_000)
    transport = TBufferedTransport(socket)
    transport.open()
    try:
        yield ThriftHiveMetastore.Client(TBinaryProtocol(transport))
    finally:
        transport.close()


class Home:
    """A database `db` of a metastore, in a directory of its own below the server's warehouse."""

    def __init__(self, running: Running, client: Any, db: str) -> None:
        self.hive, self.client, self.db, self.warehouse = running.hive, client, db, running.warehouse
        self.uri = running.uri.replace("0.0.0.0", "127.0.0.1")
        self.directory = Path(f"{running.warehouse}/{db}.db")

    def needs(self, *hives: str) -> None:
        """Raises Unavailable on other versions."""
        if self.hive not in hives:
            raise Unavailable(f"Hive {self.hive}")

    @contextmanager
    def may_lack(self) -> Iterator[None]:
        """A call that an older server does not know."""
        try:
            yield
        except TApplicationException as error:
            if error.type == TApplicationException.UNKNOWN_METHOD:
                raise Unavailable(f"Hive {self.hive}: {error.message}") from error
            raise

    # ---- making ---------------------------------------------------------------------------------------------------

    def create(self, **more: Any) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        given = {"name": self.db, "locationUri": f"file:{self.directory}", "parameters": {}} | more
        self.client.create_database(ttypes.Database(**given))

    def storage(self, place: str, columns: Sequence[Any] = COLUMNS, **more: Any) -> Any:
        """place: below the database's directory, or absolute."""
        serde = ttypes.SerDeInfo(serializationLib=SERDE, parameters={"serialization.format": "1"})
        given = {
            "cols": [ttypes.FieldSchema(*column) for column in columns],
            "location": f"file:{self.directory / place}",
            "inputFormat": INPUT,
            "outputFormat": OUTPUT,
            "serdeInfo": serde,
            "numBuckets": -1,
            "bucketCols": [],
            "sortCols": [],
            "parameters": {},
        }
        return ttypes.StorageDescriptor(**given | more)

    def create_table(
        self,
        name: str,
        *,
        kind: str = MANAGED,
        columns: Sequence[Any] = COLUMNS,
        keys: Sequence[Any] = (),
        parameters: Mapping[str, str] = {},
        storage: Mapping[str, Any] = {},
        files: Mapping[str, str] = {},
        **more: Any,
    ) -> None:
        """A table; `files` are name -> text. storage, more: fields of the storage descriptor and of the table."""
        sd = self.storage(name, columns, **storage)
        own = {"EXTERNAL": "TRUE"} if kind == EXTERNAL else {}
        given = {
            "tableName": name,
            "dbName": self.db,
            "owner": "owner",
            "sd": sd,
            "partitionKeys": [ttypes.FieldSchema(*key) for key in keys],
            "parameters": own | dict(parameters),
            "tableType": kind,
        }
        table = ttypes.Table(**given | more)
        if kind != VIEW:
            self.write(name, files)
        self.client.create_table(table)

    def add_partitions(self, name: str, values: Sequence[Sequence[str]], **more: Any) -> None:
        """One file in each; their directories are numbered, as names are the server's to escape."""
        parts = []
        for number, each in enumerate(values):
            place = f"{name}/part{number}"
            self.write(place, {"f": f"{number},x\n"})
            storage = self.storage(place)
            parts.append(
                ttypes.Partition(values=list(each), dbName=self.db, tableName=name, sd=storage, parameters=dict(more))
            )
        self.client.add_partitions(parts)

    def write(self, place: str, files: Mapping[str, str]) -> None:
        directory = self.directory / place
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name).write_text(text)

    # ---- looking --------------------------------------------------------------------------------------------------

    def database(self) -> Any:
        return self.client.get_database(self.db)

    def table(self, name: str) -> Any:
        abilities = ttypes.ClientCapabilities([ttypes.ClientCapability.INSERT_ONLY_TABLES])
        request = ttypes.GetTableRequest(dbName=self.db, tblName=name, capabilities=abilities)
        return self.client.get_table_req(request).table

    def text(self, value: str | None) -> str | None:
        """A text with this database's directory and name left out, so that both sides' can be compared."""
        if value is None:
            return None
        return value.replace(str(self.directory), "<directory>").replace(self.db, "<db>")
