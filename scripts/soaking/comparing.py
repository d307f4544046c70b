"""What two metastores and their files say of a database, read without any reader of the product: through bindings of
another project, and `open`. So a soak's word that both sides are the same is not the product's own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from constraints import Constraints, client
from hive_metastore import ttypes

OURS = ("replicator.", "repl.")  # properties that replication notes on a replica
SERVERS_OWN = ("transient_lastDdlTime",)


Walk = Callable[[str], Iterator[tuple[str, bytes]]]
"""Of a directory's URI: its files, also what no object refers to; their names below it, and what is in them."""


def differences(source: str, target: str, databases: Sequence[str], walk: Walk, *, newer: bool) -> Iterator[str]:
    """What one side has otherwise than the other; nothing when they are the same. newer: both have more constraints
    than keys."""
    for db in databases:
        state = State(source, db, walk, newer=newer)
        here, there = state.found, State(target, db, walk, newer=newer).found
        for name in sorted({*here, *there} - (state.orphans - {*there})):
            if here.get(name) != there.get(name):
                yield f"{db}: {name}: {here.get(name)} on the source, {there.get(name)} on the target"


class State:
    """`found`: all that a reader of a database could see, by name. Files are there by digest. `orphans`: those of them
    that no object refers to, such as the file of a partition whose creation a kill cut off."""

    def __init__(self, uri: str, db: str, walk: Walk, *, newer: bool) -> None:
        self._db, self._walk = db, walk
        self._constraints = Constraints(uri, newer=newer)
        self.found: dict[str, Any] = {}
        self.orphans: set[str] = set()
        self._places: set[str] = set()
        with client(uri) as self._client:
            database = self._client.get_database(db)
            self._home = _path(database.locationUri)
            self.found["database"] = database.description, _owned(database.parameters)
            for name in self._client.get_functions(db, "*"):
                function = self._client.get_function(db, name)
                self.found[f"function {name}"] = function.className, function.resourceUris
            for name in self._client.get_all_tables(db):
                self._table(self._client.get_table_req(ttypes.GetTableRequest(dbName=db, tblName=name)).table)
        self._files()

    def _table(self, table: Any) -> None:
        name = table.tableName
        self.found[f"table {name}"] = table.tableType, table.owner, table.partitionKeys, self._about(table)
        full = f"{self._db}.{name}"
        self.found[f"constraints of {name}"] = self._constraints.shown(full)[full]
        columns = [each.name for each in table.sd.cols]
        asked = ttypes.TableStatsRequest(dbName=self._db, tblName=name, colNames=columns, engine="hive")
        told = self._client.get_table_statistics_req(asked).tableStats
        self.found[f"statistics of {name}"] = sorted(map(repr, told))
        names = []
        for partition in self._client.get_partitions(self._db, name, -1):
            names.append(
                "/".join(f"{key.name}={v}" for key, v in zip(table.partitionKeys, partition.values, strict=True))
            )
            self.found[f"partition {name}/{names[-1]}"] = self._about(partition)
        if names:
            request = ttypes.PartitionsStatsRequest(self._db, name, columns, names, engine="hive")
            for part, told in self._client.get_partitions_statistics_req(request).partStats.items():
                self.found[f"statistics of {name}/{part}"] = sorted(map(repr, told))

    def _about(self, obj: Any) -> tuple[Any, ...]:
        sd = obj.sd
        formats = sd.inputFormat, sd.outputFormat, sd.serdeInfo.serializationLib
        self._places.add(_path(sd.location))
        place = _path(sd.location).replace(self._home, "home", 1)
        return place, [(each.name, each.type) for each in sd.cols], formats, _owned(obj.parameters)

    def _files(self) -> None:
        """All below the database; without hidden ones."""
        for path, data in self._walk(self._home):
            if not any(each.startswith(".") for each in path.split("/")):
                self.found[name := f"file {path}"] = hashlib.sha256(data).hexdigest()
                if f"{self._home}/{path}".rpartition("/")[0] not in self._places:
                    self.orphans.add(name)


def _path(location: str | None) -> str:
    text = (location or "").rstrip("/")
    return "/" + text.removeprefix("file:").strip("/") if text.startswith(("/", "file:")) else text


def _owned(parameters: dict[str, str] | None) -> dict[str, str]:
    return {
        key: value for key, value in (parameters or {}).items() if not key.startswith(OURS) and key not in SERVERS_OWN
    }
