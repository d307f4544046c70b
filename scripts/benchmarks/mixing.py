"""A writer of a mixed history: tables and partitions that come, change, are renamed and go, with small files."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from hmsclient.genthrift.hive_metastore import ttypes

from benchmarks import ground
from benchmarks.bootstrapping import raw_client
from replicator.metastore.thrift import ThriftMetastore

# Of a hundred operations. An insert is what Hive makes of it: a file, an INSERT event, the partition altered.
SHARES = {
    "add a partition": 33,
    "insert": 25,
    "alter a partition": 10,
    "drop a partition": 20,
    "alter a table": 7,
    "create a table": 2,
    "drop a table": 1,
    "rename a table": 1,
    "rename a partition": 1,
}
BASE_PARTITIONS = 20  # of each table that is there at the beginning


@dataclass
class _Table:
    name: str
    place: Path
    values: list[str] = field(default_factory=list)


class MixedWriter:
    """Writes to one database of a real metastore, the same for the same seed. `made`: events by kind of operation."""

    def __init__(self, client: ThriftMetastore, db: str, seed: int = 1) -> None:
        self._client, self._db = client, db
        self._home = ground.create_database(client, db)
        self._transport, self._raw = raw_client(client.uri)
        self._dice = random.Random(seed)
        self._tables: list[_Table] = []
        self._number = 0
        self.made: Counter[str] = Counter()

    def begin(self, tables: int) -> None:
        for _ in range(tables):
            table = self._create()
            values = [self._next() for _ in range(BASE_PARTITIONS)]
            ground.add_partitions(self._client, self._db, table.name, table.place, values)
            table.values = values
            for value in values:
                self._file(table, value)

    def write(self, events: int) -> None:
        """At least so many events more."""
        names, weights = list(SHARES), list(SHARES.values())
        end = self.made.total() + events
        while self.made.total() < end:
            name = self._dice.choices(names, weights)[0]
            table = self._dice.choice(self._tables)
            match name:
                case "create a table":
                    self._create()
                case "alter a table":
                    self._alter_table(table)
                case "drop a table" if len(self._tables) > 5:
                    self._drop_table(table)
                case "rename a table":
                    self._rename_table(table)
                case "add a partition":
                    self._add(table)
                case _ if table.values:
                    self._partition(name, table)
                case _:
                    continue
            self.made[name] += 2 if name == "insert" else 1

    def close(self) -> None:
        self._transport.close()

    def _next(self) -> str:
        self._number += 1
        return f"{self._number:07d}"

    def _create(self) -> _Table:
        name = f"t{self._next()}"
        table = _Table(name, ground.create_table(self._client, self._db, name))
        self._tables.append(table)
        return table

    def _alter_table(self, table: _Table) -> None:
        there = self._client.table(self._db, table.name)
        changed = msgspec.structs.replace(there, parameters=there.parameters | {"comment": self._next()})
        self._client.alter_table(self._db, table.name, changed)

    def _drop_table(self, table: _Table) -> None:
        self._tables.remove(table)
        self._client.drop_table(self._db, table.name)
        shutil.rmtree(table.place)

    def _rename_table(self, table: _Table) -> None:
        """The server moves the directory."""
        there = self._client.table(self._db, table.name)
        name = f"t{self._next()}"
        self._client.alter_table(self._db, table.name, msgspec.structs.replace(there, name=name))
        table.name, table.place = name, self._home / name

    def _add(self, table: _Table) -> None:
        value = self._next()
        ground.add_partitions(self._client, self._db, table.name, table.place, [value], files=0)
        table.values.append(value)

    def _partition(self, name: str, table: _Table) -> None:
        recent = table.values[-10:]
        value = self._dice.choice(recent)
        match name:
            case "insert":
                uri = self._file(table, value)
                self._announce(table, value, uri)
                self._client.alter_partitions(self._db, table.name, [self._changed(table, value)])
            case "alter a partition":
                self._client.alter_partitions(self._db, table.name, [self._changed(table, value)])
            case "drop a partition":
                oldest = table.values.pop(0)
                self._client.drop_partitions(self._db, table.name, [f"day={oldest}"])
                shutil.rmtree(table.place / f"day={oldest}")
            case "rename a partition":
                self._rename_partition(table, value)

    def _changed(self, table: _Table, value: str):  # type: ignore[no-untyped-def]
        changed = ground.partition(table.place, value)
        return msgspec.structs.replace(changed, parameters=changed.parameters | {"numRows": self._next()})

    def _rename_partition(self, table: _Table, value: str) -> None:
        """The server moves the directory."""
        new = self._next()
        (there,) = next(self._client.partitions(self._db, table.name, [f"day={value}"]))
        self._client.rename_partition(self._db, table.name, [value], msgspec.structs.replace(there, values=(new,)))
        table.values[table.values.index(value)] = new

    def _file(self, table: _Table, value: str) -> str:
        number = int(self._next())
        ground.small_files(table.place / f"day={value}", number, 1)
        return f"file:{table.place}/day={value}/part-{number:08d}.parquet"

    def _announce(self, table: _Table, value: str, uri: str) -> None:
        data = ttypes.InsertEventRequestData(filesAdded=[uri], filesAddedChecksum=[""])
        request = ttypes.FireEventRequest(
            successful=True,
            data=ttypes.FireEventRequestData(insertData=data),
            dbName=self._db,
            tableName=table.name,
            partitionVals=[value],
        )
        self._raw.fire_listener_event(request)
