"""A history of plain tables, and what a database was at its events, seen by a walk of the tests' own.

`state_of` asks the metastore through bare thrift and reads the files, so that nothing of the product judges itself.
Places are reported relative to the database's directory; what a restore puts aside from outside of it counts as
outside.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from constraints import Constraints
from hmsclient import HMSClient
from hmsclient.genthrift.hive_metastore import ttypes
from plain_tables import COLUMNS, PlainDatabase, text_storage

from replicator.core.model import EXTERNAL, VIEW, ColumnStatistic, Partition, Statistics, Storage, Table
from replicator.metastore.codecs import struct_to_tjson
from replicator.metastore.concurrency import locks_event_ids
from replicator.metastore.thrift import connect

SERVERS_OWN = "transient_lastDdlTime"


# ---- looking ------------------------------------------------------------------------------------------------------


def state_of(uri: str, db: str) -> dict[str, Any]:
    """All that a reader of a database could see: objects, definitions, statistics, constraints (of newer servers), and
    files by digest."""
    host, port = uri.removeprefix("thrift://").split(":")
    with HMSClient(host=host, port=int(port)) as client:
        found = _State(client, db).found
    if is_newer(uri):
        tables = [name.removeprefix("table ") for name in found if name.startswith("table ") and name.count(" ") == 1]
        for table, some in Constraints(uri, newer=True).shown(*(f"{db}.{table}" for table in tables)).items():
            found[f"constraints {table.partition('.')[2]}"] = [
                tuple("DB" if each == db else each for each in row) for row in some
            ]
    return found


@cache
def is_newer(uri: str) -> bool:
    """Whether a server has all kinds of constraints, and names them by table."""
    with connect(uri) as metastore:
        return locks_event_ids(metastore)


class _State:
    def __init__(self, client: Any, db: str) -> None:
        self._client, self._db = client, db
        database = client.get_database(db)
        self._home = _path(database.locationUri)
        self.found: dict[str, Any] = {"database": [database.description, _owned(database.parameters)]}
        for name in client.get_functions(db, "*"):
            function = client.get_function(db, name)
            self.found[f"function {name}"] = [function.className, [each.uri for each in function.resourceUris or []]]
        for name in client.get_all_tables(db):
            self._table(client.get_table_req(ttypes.GetTableRequest(dbName=db, tblName=name)).table)

    def _table(self, table: Any) -> None:
        key = f"table {table.tableName}"
        self.found[key] = {
            "type": table.tableType,
            "owner": table.owner,
            "view": self._text(table.viewExpandedText),
            "keys": [[each.name, each.type] for each in table.partitionKeys],
            "parameters": _owned(table.parameters),
            "statistics": self._statistics(table),
            **self._storage(table.sd),
        }
        if table.tableType == VIEW:
            return
        if not table.partitionKeys:
            self.found[f"{key} files"] = _files(_path(table.sd.location))
            return
        columns = [each.name for each in table.partitionKeys]
        for partition in self._client.get_partitions(self._db, table.tableName, -1):
            name = "/".join(f"{column}={value}" for column, value in zip(columns, partition.values, strict=True))
            self.found[f"{key} {name}"] = {"parameters": _owned(partition.parameters), **self._storage(partition.sd)}
            self.found[f"{key} {name} files"] = _files(_path(partition.sd.location))

    def _storage(self, sd: Any) -> dict[str, Any]:
        return {
            "columns": [[each.name, each.type, each.comment] for each in sd.cols],
            "location": self._place(sd.location),
            "formats": [sd.inputFormat, sd.outputFormat, sd.serdeInfo.serializationLib],
            "serde": {name: self._place(value) for name, value in (sd.serdeInfo.parameters or {}).items()},
        }

    def _place(self, location: str | None) -> str | None:
        if not location or "/" not in location:
            return location
        path = _path(location)
        aside = f"{self._home}/external-data/"
        if path.startswith(aside):
            return "outside /" + path.removeprefix(aside)
        return path.replace(self._home, "home", 1) if path.startswith(self._home) else f"outside {path}"

    def _text(self, text: str | None) -> str | None:
        return text.replace(self._db, "DB") if text else text

    def _statistics(self, table: Any) -> list[Any]:
        columns = [column.name for column in table.sd.cols]
        request = ttypes.TableStatsRequest(dbName=self._db, tblName=table.tableName, colNames=columns)
        answer = self._client.get_table_statistics_req(request)
        return [[each.colName, repr(each.statsData)] for each in answer.tableStats]


def _path(location: str | None) -> str:
    return "/" + (location or "").removeprefix("file:").strip("/")


def _owned(parameters: dict[str, str] | None) -> dict[str, str]:
    return {key: value for key, value in (parameters or {}).items() if key != SERVERS_OWN}


def _files(place: str) -> dict[str, str]:
    found = {}
    for above, _, names in os.walk(place):
        for name in names:
            if not name.startswith("."):
                path = Path(above) / name
                found[str(path.relative_to(place))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


# ---- making -------------------------------------------------------------------------------------------------------


class HistoryGenerator:
    """A database that changes at random, and what it was at each event: `states`, by event id. `capture` is called
    after whatever no event tells, and now and then after the rest."""

    def __init__(
        self, database: PlainDatabase, uri: str, outside: Path, capture: Callable[[], None], seed: int
    ) -> None:
        self.database, self._uri, self._outside, self._capture = database, uri, outside, capture
        self._random = random.Random(seed)
        self._number = 0
        self._flat: list[str] = []
        self._parted: dict[str, list[str]] = {}
        self._external: list[str] = []
        self._functions: list[str] = []
        self._constraints: list[tuple[str, str]] = []  # table and name
        self.states: dict[int, dict[str, Any]] = {}

    @property
    def event(self) -> int:
        return self.database.metastore.current_event_id()

    def run(self, steps: int) -> None:
        self._begin()
        for _ in range(steps):
            self._random.choice(
                [
                    self._write,
                    self._write,
                    self._replace,
                    self._remove,
                    self._create,
                    self._drop,
                    self._drop_and_return,
                    self._rename,
                    self._alter,
                    self._add,
                    self._add,
                    self._drop_partition,
                    self._swap_partition,
                    self._rename_partition,
                    self._elsewhere,
                    self._outside_changes,
                    self._outside_goes,
                    self._view,
                    self._function,
                    self._database,
                    self._analyze,
                    self._several,
                    *([self._constrain, self._constrain, self._unconstrain] if is_newer(self._uri) else []),
                ]
            )()
            self._note()

    def _note(self) -> None:
        """The state at this event, captured."""
        self._capture()
        self.states[self.event] = state_of(self._uri, self.database.name)

    def _begin(self) -> None:
        self.database.create()
        for _ in range(2):
            self._create()
            self._make_parted()
        self._make_external()
        for _ in range(3 if is_newer(self._uri) else 0):
            self._constrain()
        self._note()

    def _next(self, word: str) -> str:
        self._number += 1
        return f"{word}{self._number}"

    def _text(self) -> str:
        return f"{self._random.random()} {self._next('text')}\n" * self._random.randint(1, 3)

    # each of these is one step

    def _create(self) -> None:
        name = self._next("flat")
        self.database.table(name, {"one": self._text(), "two": self._text()})
        self._flat.append(name)

    def _make_parted(self) -> None:
        name = self._next("parted")
        values = [self._next("v") for _ in range(3)]
        self.database.partitioned(name, {value: {"f": self._text()} for value in values})
        self._parted[name] = values

    def _make_external(self) -> None:
        name = self._next("external")
        place = self._outside / name
        place.mkdir(parents=True)
        (place / "data").write_text(self._text())
        made = Table(
            db=self.database.name,
            name=name,
            kind=EXTERNAL,
            parameters={"EXTERNAL": "TRUE"},
            storage=text_storage(place),
        )
        self.database.metastore.create_table(made)
        self._external.append(name)

    def _write(self) -> None:
        self.database.write(self._random.choice(self._places()), {self._next("file"): self._text()})

    def _places(self) -> list[str]:
        parts = [f"{name}/p={value}" for name, values in self._parted.items() for value in values]
        return [*self._flat, *parts]

    def _some_file(self) -> Path:
        place = self.database.home / self._random.choice(self._places())
        return self._random.choice(
            sorted(path for path in place.iterdir() if not path.name.startswith(".")) or [place / "f"]
        )

    def _replace(self) -> None:
        file = self._some_file()
        self.database.write(str(file.parent.relative_to(self.database.home)), {file.name: self._text()})

    def _remove(self) -> None:
        file = self._some_file()
        if file.exists():
            file.unlink()

    def _drop(self) -> None:
        if len(self._flat) > 1:
            name = self._flat.pop(self._random.randrange(len(self._flat)))
            self.database.drop(name)
            self._dropped(name)

    def _drop_and_return(self) -> None:
        name = self._random.choice(self._flat)
        self.database.drop(name)
        self._dropped(name)
        self._capture()
        self.database.table(name, {"again": self._text()})

    def _rename(self) -> None:
        index = self._random.randrange(len(self._flat))
        new = self._next("flat")
        self.database.rename(self._flat[index], new)
        self._dropped(self._flat[index], new)
        self._flat[index] = new

    def _alter(self) -> None:
        self.database.alter(self._random.choice([*self._flat, *self._parted]), note=self._next("note"))

    def _add(self) -> None:
        name = self._random.choice(list(self._parted))
        value = self._next("v")
        self.database.add(name, {value: {"f": self._text(), "g": self._text()}})
        self._parted[name].append(value)

    def _drop_partition(self) -> None:
        name = self._random.choice(list(self._parted))
        if len(self._parted[name]) > 1:
            value = self._parted[name].pop(self._random.randrange(len(self._parted[name])))
            self.database.drop_partitions(name, [value])

    def _swap_partition(self) -> None:
        """As INSERT OVERWRITE: dropped, and there again with other data."""
        name = self._random.choice(list(self._parted))
        value = self._random.choice(self._parted[name])
        self.database.drop_partitions(name, [value])
        self.database.add(name, {value: {"f": self._text()}})

    def _rename_partition(self) -> None:
        name = self._random.choice(list(self._parted))
        index = self._random.randrange(len(self._parted[name]))
        (found,) = self.database.metastore.partitions(self.database.name, name, [f"p={self._parted[name][index]}"])
        new = self._next("v")
        self.database.metastore.rename_partition(
            self.database.name, name, found[0].values, msgspec.structs.replace(found[0], values=(new,))
        )
        self._parted[name][index] = new

    def _elsewhere(self) -> None:
        """A partition outside of its table and database."""
        name = self._random.choice(list(self._parted))
        place = self._outside / self._next("place")
        place.mkdir(parents=True)
        (place / "f").write_text(self._text())
        made = Partition(values=(self._next("far"),), storage=text_storage(place))
        self.database.metastore.add_partitions(self.database.name, name, [made])

    def _outside_changes(self) -> None:
        name = self._random.choice(self._external)
        aside = self._outside / name / ".aside"
        aside.write_text(self._text())
        aside.rename(self._outside / name / "data")

    def _outside_goes(self) -> None:
        """An external table is dropped, and its data too; another takes its place."""
        name = self._external.pop(0)
        self.database.metastore.drop_table(self.database.name, name)
        shutil.rmtree(self._outside / name)
        self._make_external()

    def _view(self) -> None:
        text = f"SELECT a FROM {self.database.name}.{self._random.choice(self._flat)}"
        made = Table(
            db=self.database.name,
            name=self._next("view"),
            kind=VIEW,
            storage=Storage(columns=COLUMNS[:1]),
            view_original=text,
            view_expanded=text,
        )
        self.database.metastore.create_table(made)

    def _function(self) -> None:
        if self._functions and self._random.random() < 0.4:
            self.database.metastore.drop_function(self.database.name, self._functions.pop())
        else:
            self._functions.append(self._next("function"))
            self.database.function(self._functions[-1])

    def _database(self) -> None:
        """Without an event on a 2.3 server."""
        there = self.database.metastore.database(self.database.name)
        parameters = {**there.parameters, "note": self._next("note")}
        self.database.metastore.alter_database(there.name, msgspec.structs.replace(there, parameters=parameters))

    def _analyze(self) -> None:
        longs = ttypes.LongColumnStatsData(lowValue=1, highValue=self._random.randint(2, 99), numNulls=0, numDVs=2)
        data = struct_to_tjson(ttypes.ColumnStatisticsData(longStats=longs))
        statistic = ColumnStatistic(column="a", type="int", data=data)
        table = self._random.choice(self._flat)
        made = Statistics(db=self.database.name, table=table, columns=(statistic,), last_analyzed=1)
        self.database.metastore.set_table_statistics(made)

    def _constrain(self) -> None:
        """A foreign key comes with the key that it refers to."""
        table, made = self._random.choice([*self._flat, *self._parted]), Constraints(self._uri, newer=True)
        full, name = f"{self.database.name}.{table}", self._next("c")
        kinds = {each for held, each in self._constraints if held == table}
        kind = self._random.choice(["primary", "foreign", "unique", "not_null", "default", "check"])
        if any(each.startswith(kind) for each in kinds):
            return
        self._constraints.append((table, f"{kind}_{name}"))
        match kind:
            case "primary":
                made.primary(full, f"{kind}_{name}", "a")
            case "foreign":
                parent = f"{self.database.name}.{self._next('parent')}"
                self.database.table(parent.partition(".")[2])
                made.primary(parent, f"key_{name}", "b")
                made.foreign(full, f"{kind}_{name}", "b", parent, "b")
            case "unique":
                made.unique(full, f"{kind}_{name}", "a", "b")
            case _:
                value = {"not_null": "", "default": "1", "check": "a > 0"}[kind]
                made.of_column(kind, full, f"{kind}_{name}", "a", value)

    def _unconstrain(self) -> None:
        if self._constraints:
            table, name = self._constraints.pop(self._random.randrange(len(self._constraints)))
            Constraints(self._uri, newer=True).drop(f"{self.database.name}.{table}", name)

    def _dropped(self, table: str, new: str | None = None) -> None:
        """Its constraints go with a table, or follow its name."""
        self._constraints = [
            (new if held == table else held, name) for held, name in self._constraints if new or held != table
        ]

    def _several(self) -> None:
        """Events that tell all, several before a capture: each of their states is known."""
        steps = [self._create, self._function, self._add_to_first, self._alter_last]
        self._random.shuffle(steps)
        for step in steps:
            step()
            self.states[self.event] = state_of(self._uri, self.database.name)

    def _add_to_first(self) -> None:
        name, values = next(iter(self._parted.items()))
        values.append(self._next("v"))
        self.database.add(name, {values[-1]: {"f": self._text()}})

    def _alter_last(self) -> None:
        self.database.alter(list(self._parted)[-1], note=self._next("note"))
