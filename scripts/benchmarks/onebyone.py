"""The yardstick of `replay`: one thrift call for each event, in order, as a replay without squashing makes them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from operator import methodcaller
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import ground
from benchmarks.bootstrapping import raw_client
from replicator.core.model import Partition, Table
from replicator.metastore import requests
from replicator.metastore.events import record as kinds
from replicator.metastore.events.record import Change, ChangeRecord
from replicator.metastore.requests import Send, partition_to_thrift
from replicator.metastore.thrift import ThriftMetastore

SLICE = 500  # calls whose requests are built, and directories made, before they are sent and timed


class OneByOne:
    """Replays records into a database of its own. Only the calls are timed: neither the requests, which are built
    beforehand, nor directories, which a server makes slowly, nor any file."""

    def __init__(self, client: ThriftMetastore, db: str) -> None:
        self._db, self._home = db, ground.create_database(client, db)
        self._transport, self._raw = raw_client(client.uri)
        self._tables: dict[str, Table] = {}
        self._partitions: dict[str, dict[str, Partition]] = {}
        self._waiting: list[Send] = []
        self.calls, self.seconds = 0, 0.0

    def close(self) -> None:
        self._transport.close()

    def replay(self, records: Iterable[ChangeRecord]) -> None:
        for record in records:
            if record.observed:
                continue
            renames = isinstance(record.change, kinds.AlterTable) and record.change.renames
            if renames:
                self._send()  # directories below its new name must not be there yet
            self._waiting += self._calls(record.change)
            if renames or len(self._waiting) >= SLICE:
                self._send()
        self._send()

    def _send(self) -> None:
        began = time.perf_counter()
        for send in self._waiting:
            send(self._raw)
        self.seconds += time.perf_counter() - began
        self.calls += len(self._waiting)
        self._waiting.clear()

    def _calls(self, change: Change) -> list[Send]:
        """What one event comes to; nothing for one of a database."""
        match change:
            case kinds.CreateTable(table=table):
                return [self._create(table)]
            case kinds.AlterTable(name=name, table=table):
                return [self._alter(name, table)]
            case kinds.DropTable(name=name):
                del self._tables[name], self._partitions[name]
                return [methodcaller("drop_table", self._db, name, False)]
            case kinds.AddPartitions(table=table, partitions=partitions):
                some = dict(zip(change.partition_names, partitions, strict=True))
                self._partitions[table] |= some
                placed = [self._placed(table, name) for name in some]
                for name in some:
                    (self._home / table / name).mkdir(parents=True, exist_ok=True)
                return [requests.add_partitions(self._db, table, placed)]
            case kinds.AlterPartition(before=before, name=name) if before != name:
                return [self._rename(change)]
            case kinds.AlterPartition(table=table, name=name, partition=partition):
                self._partitions[table][name] = partition
                return [requests.alter_partitions(self._db, table, [self._placed(table, name)])]
            case kinds.ChangeFiles(table=table, partition=name) if name in self._partitions.get(table, ()):
                # The files would be copied beside; the object gets its new position, as in Hive's own replay.
                return [requests.alter_partitions(self._db, table, [self._placed(table, name)])]
            case kinds.DropPartitions(table=table, names=names):
                for name in names:
                    del self._partitions[table][name]
                return [requests.drop_partitions(self._db, table, list(names))]
            case _:
                return []

    def _create(self, table: Table) -> Send:
        self._tables[table.name] = table
        self._partitions[table.name] = {}
        (self._home / table.name).mkdir(exist_ok=True)
        return requests.create_table(self._table(table.name))

    def _alter(self, name: str, table: Table) -> Send:
        del self._tables[name]
        self._tables[table.name] = table
        self._partitions[table.name] = self._partitions.pop(name)
        return requests.alter_table(self._db, name, self._table(table.name, lies=name))  # the server moves it

    def _rename(self, change: kinds.AlterPartition) -> Send:
        values = list(self._partitions[change.table].pop(change.before).values)
        self._partitions[change.table][change.name] = change.partition
        renamed = self._placed(change.table, change.name, lies=change.before)
        thrift = partition_to_thrift(self._db, change.table, renamed)
        return methodcaller("rename_partition", self._db, change.table, values, thrift)

    def _table(self, name: str, *, lies: str = "") -> Table:
        table = self._tables[name]
        return msgspec.structs.replace(table, db=self._db, storage=_at(table, self._home / (lies or name)))

    def _placed(self, table: str, name: str, *, lies: str = "") -> Partition:
        partition = self._partitions[table][name]
        return msgspec.structs.replace(partition, storage=_at(partition, self._home / table / (lies or name)))


def _at(obj: Table | Partition, place: Path) -> Any:
    assert obj.storage
    return msgspec.structs.replace(obj.storage, location=f"file:{place}")
