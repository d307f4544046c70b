"""A source and a target for tests of the whole path: two metastores with Spark, a `$cmroot`, dumps between them.

`Sides` is what a module shares (two servers, one Spark process each); `Pair` is one test's database on it, with its own
`$cmroot`. `compare` is independent of the product: it asks both metastores, reads the files, and knows by a rule of its
own where things belong on the target.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from engines import local_engine, local_runtime
from names import unique
from spark_sql import SparkSql

from cmroot.root import ChangeRoot, create_or_open
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.dumps.dump import Dumped, DumpSettings, write_dump
from replicator.captures.recording import Captured
from replicator.compare.both_sides import Comparison
from replicator.compare.verify import verify
from replicator.core.engine import AutoEngine
from replicator.core.model import Partition, Storage, Table, partition_name
from replicator.core.runtime import Runtime
from replicator.metastore.embedded.running import Running
from replicator.metastore.events.scope import Patterns
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.replay.apply.load import Loaded, load
from replicator.replay.apply.planning import LoadSettings

OURS = ("replicator.", "repl.")
SPARK = {
    "spark.hadoop.hive.exec.dynamic.partition": "true",
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.sql.catalogImplementation": "hive",
}


def plain(place: str) -> str:
    """A local place without its scheme."""
    return "/" + place.removeprefix("file:").lstrip("/").rstrip("/")


@dataclass
class Side:
    """One metastore with its Spark."""

    running: Running
    metastore: ThriftMetastore
    directory: Path

    @property
    def spark(self) -> SparkSql:
        return spark_of(self.running.uri, self.running.warehouse)

    def warm_up(self) -> None:
        """Starts Spark without waiting for it."""
        _ = self.spark

    def close(self) -> None:
        self.metastore.close()


@cache
def spark_of(uri: str, warehouse: Path) -> SparkSql:
    """The Spark of a metastore: it takes 10 s to start, so a worker has one until its end."""
    made = SparkSql(uri, warehouse, SPARK)
    atexit.register(made.close)
    return made


class Sides:
    """Source and target of a test module; `outside` lies in no warehouse."""

    def __init__(self, source: Running, target: Running, outside: Path) -> None:
        self.source = Side(source, connect(source.uri), source.directory)
        self.target = Side(target, connect(target.uri), target.directory)
        self.outside = outside
        self.source.warm_up()
        self.target.warm_up()

    def pair(self, name: str = "db", **settings: Any) -> Pair:
        """A new database on these sides."""
        db = unique(name)
        return Pair(self, db, self.outside / f"{db}_work", **settings)

    def close(self) -> None:
        self.source.close()
        self.target.close()


@dataclass
class Pair:
    """One database of the source, and its replica. `replica`: the database's name on the target; `mappings`: pairs of
    locations, source and target, given to every load; `include`: patterns given to every dump."""

    sides: Sides
    db: str
    work: Path
    rename: str | None = None
    mappings: Sequence[tuple[str, str]] = ()
    include: Sequence[str] = ()
    engine: AutoEngine = field(default_factory=local_engine)
    last: Dumped | None = None
    dumps: int = 0

    def __post_init__(self) -> None:
        self.outside.mkdir(parents=True)
        self.mapped.mkdir(parents=True)

    @property
    def outside(self) -> Path:
        """For data outside the warehouse."""
        return self.work / "outside"

    @property
    def mapped(self) -> Path:
        """Where mappings may put it."""
        return self.work / "mapped"

    @property
    def replica(self) -> str:
        return self.rename or self.db

    @property
    def source(self) -> ThriftMetastore:
        return self.sides.source.metastore

    @property
    def target(self) -> ThriftMetastore:
        return self.sides.target.metastore

    @cached_property
    def root(self) -> ChangeRoot:
        return create_or_open(str(self.work / "cmroot"))

    # ---- the source -----------------------------------------------------------------------------------------------

    def sql(self, *statements: str) -> list[list[Any]]:
        """Runs statements on the source, in the pair's database; the rows of the last."""
        return self.sides.source.spark.run(f"USE {self.db}", *statements)

    def create(self, comment: str = "") -> None:
        self.sides.source.spark.run(f"CREATE DATABASE {self.db} COMMENT '{comment}'")

    def place(self, name: str) -> Path:
        """A directory or file below the source's database directory."""
        return self.sides.source.running.warehouse / f"{self.db}.db" / name

    # ---- replication ----------------------------------------------------------------------------------------------

    def capture(self, **options: Any) -> Captured:
        chosen = CaptureSettings(**{"databases": [self.db], **options})
        return capture(self.source, self.root, chosen, Runtime(self.engine))

    def dump(
        self, *, since: str | None = None, until: str | None = None, captures: bool = True, **options: Any
    ) -> Dumped:
        """A dump, after a capture (unless `captures` is false): a bootstrap, or since an event, time or dump."""
        if captures:
            self.capture(**options)
        self.dumps += 1
        chosen = DumpSettings(self.source.uri, [self.db], Patterns.parse(self.include), since, until)
        return write_dump(self.root, str(self.work / f"dump{self.dumps}"), chosen, Runtime(self.engine))

    def load(self, dump: Dumped | str, *, jobs: int = 2, **options: Any) -> Loaded:
        place = dump if isinstance(dump, str) else dump.dump
        rename = [(self.db, self.rename)] if self.rename else []
        chosen = LoadSettings(**{"rename": rename, "map_locations": self.mappings, **options})
        return load(place, self.target, chosen, Runtime(self.engine, jobs=jobs))

    def bootstrap(self, **options: Any) -> Loaded:
        self.last = self.dump(**options)
        return self.load(self.last)

    def catch_up(self, **options: Any) -> Loaded:
        """The next incremental dump, loaded."""
        assert self.last is not None
        self.last = self.dump(since=self.last.dump, **options)
        return self.load(self.last)

    def load_again_changes_nothing(self) -> None:
        """Loads the last dump again; the target's metastore must not even notice."""
        assert self.last is not None
        before = self.target.current_event_id()
        again = self.load(self.last)
        assert (again.status, again.files_copied, again.objects_changed) == ("already loaded", 0, 0)
        assert self.target.current_event_id() == before

    # ---- the target -----------------------------------------------------------------------------------------------

    def rows(self, side: str, table: str, columns: str = "*") -> list[list[Any]]:
        """All rows of a table as `source` or `target` sees it, sorted."""
        chosen, db = (self.sides.source, self.db) if side == "source" else (self.sides.target, self.replica)
        rows = chosen.spark.run(f"REFRESH TABLE {db}.{table}", f"SELECT {columns} FROM {db}.{table}")
        return sorted(rows, key=lambda row: [repr(value) for value in row])

    def differences(self) -> list[str]:
        """What `compare` finds between the two sides of this pair, and what the product's own verify finds."""
        both = Comparison(
            self.source, self.target, [(self.db, self.replica)], self.mappings, Patterns.parse(self.include)
        )
        verified = verify(both, [self.db], local_runtime())
        return [*compare(self), *(f"verify: {each}" for each in verified.differences)]

    def cleanup(self) -> None:
        """Drops both databases and their files, so that a later test's walk is short."""
        for side, name in ((self.sides.source, self.db), (self.sides.target, self.replica)):
            shutil.rmtree(side.running.warehouse / f"{name}.db", ignore_errors=True)


# ---- comparing ----------------------------------------------------------------------------------------------------


def compare(pair: Pair) -> list[str]:
    """Differences between the source's database and its replica, one line each; [] when they are equal.

    Metadata: everything but what a server sets itself, access times and our own marks. Files: every file that a query
    may read, by its bytes. Besides: nothing on the target may name a place of the source."""
    rule = _Rule.of(pair)
    wanted = _Walk(pair.source, pair.db, rule, pair.include).facts()
    found = _Walk(pair.target, pair.replica, None, pair.include).facts()
    lines = []
    for key in sorted(wanted.keys() | found.keys()):
        ours, theirs = wanted.get(key, "nothing"), found.get(key, "nothing")
        if ours != theirs:
            lines.append(f"{key}: source {_short(ours, theirs)}, target {_short(theirs, ours)}")
    for key, value in found.items():
        for home in rule.source_homes:
            if not key.startswith("function") and home in json.dumps(value):
                lines.append(f"{key}: names {home} of the source")
    return lines


def _short(value: Any, other: Any) -> str:
    if isinstance(value, dict) and isinstance(other, dict):
        return str({key: value.get(key) for key in value.keys() | other.keys() if value.get(key) != other.get(key)})
    return str(value)[:500]


@dataclass(frozen=True)
class _Rule:
    """Where source places belong on the target: (prefix, replacement), tried in order."""

    db: str
    replica: str
    prefixes: tuple[tuple[str, str], ...]
    source_homes: tuple[str, ...]

    @classmethod
    def of(cls, pair: Pair) -> _Rule:
        source, target = pair.sides.source.running, pair.sides.target.running
        home = plain(pair.source.database(pair.db).location or "")
        replica = plain(pair.target.database(pair.replica).location or "")
        mappings = sorted(pair.mappings, key=lambda pair: -len(pair[0]))
        external = str(target.warehouse / "external" / f"{pair.replica}.db")
        prefixes = [*((plain(a), plain(b)) for a, b in mappings), (home, replica), ("", external)]
        homes = [str(source.warehouse), *(() if pair.mappings else (f"file:{pair.outside}", f'"{pair.outside}'))]
        return cls(pair.db, pair.replica, tuple(prefixes), tuple(homes))

    def place(self, location: str) -> str:
        path = plain(location)
        for prefix, replacement in self.prefixes:
            if path == prefix or path.startswith(prefix + "/"):
                return replacement + path[len(prefix) :]
        raise AssertionError(path)


class _Walk:
    """Facts of one database: key -> value that must be equal on both sides. `rule` turns a source's places and names
    into those of the target; None on the target."""

    def __init__(self, metastore: ThriftMetastore, db: str, rule: _Rule | None, include: Sequence[str]) -> None:
        self._metastore, self._db, self._rule = metastore, db, rule
        self._patterns = Patterns.parse(include)

    def facts(self) -> dict[str, Any]:
        return dict(self._facts())

    def _facts(self) -> Iterator[tuple[str, Any]]:
        database = self._metastore.database(self._db)
        yield "database", (database.description, database.owner, database.owner_type, _own(database.parameters))
        for function in self._metastore.functions(self._db):
            yield f"function {function.name}", (function.class_name, function.resources, function.owner)
        for name in self._metastore.table_names(self._db):
            if self._patterns.match(name):
                yield from self._table(self._metastore.table(self._db, name))

    def _table(self, table: Table) -> Iterator[tuple[str, Any]]:
        key = f"table {table.name}"
        yield (
            key,
            {
                "kind": table.kind,
                "owner": table.owner,
                "keys": _columns(table.partition_keys),
                "retention": table.retention,
                "view": self._text(table.view_expanded),
                "view original": self._text(table.view_original),
                **self._parameters(_own(table.parameters)),
                **self._storage(table.storage),
            },
        )
        columns = [column.name for column in table.storage.columns] if table.storage else []
        statistics = self._metastore.table_statistics(self._db, table.name, columns)
        if statistics:
            yield f"{key} statistics", _statistics(statistics)
        if table.is_view:
            return
        if not table.partition_keys:
            yield f"{key} files", files_below(_data_place(table))
            return
        names = self._metastore.partition_names(self._db, table.name)
        for batch in self._metastore.partitions(self._db, table.name, names):
            for partition in batch:
                yield from self._partition(key, table, partition)
        for each in self._metastore.partition_statistics(self._db, table.name, columns, names):
            yield f"{key} partition {each.partition} statistics", _statistics(each)

    def _partition(self, key: str, table: Table, partition: Partition) -> Iterator[tuple[str, Any]]:
        name = partition_name(table.partition_keys, partition.values)
        values = {"values": list(partition.values), **self._parameters(partition.parameters)}
        yield f"{key} partition {name}", {**values, **self._storage(partition.storage)}
        yield f"{key} partition {name} files", files_below(partition.location)

    def _storage(self, storage: Storage | None) -> dict[str, Any]:
        if storage is None:
            return {}
        location = storage.location
        if location:
            location = self._rule.place(location) if self._rule else plain(location)
        return {
            "columns": _columns(storage.columns),
            "location": location,
            "formats": [storage.input_format, storage.output_format, storage.serde.name],
            "buckets": [storage.buckets, list(storage.bucket_columns), list(storage.sort_columns)],
            "compressed": storage.compressed,
            **self._parameters(storage.parameters, "storage "),
            **self._parameters(storage.serde.parameters, "serde "),
        }

    def _parameters(self, parameters: Mapping[str, str], prefix: str = "") -> dict[str, str]:
        return {f"{prefix}parameter {key}": self._value(key, value) for key, value in parameters.items()}

    def _value(self, key: str, value: str) -> str:
        if key == "path" or value.startswith(("file:", "/")):
            return self._rule.place(value) if self._rule else plain(value)
        if self._rule and key.startswith("view.catalogAndNamespace.part.") and value == self._rule.db:
            return self._rule.replica
        return value

    def _text(self, text: str | None) -> str | None:
        """View text, with the database's name (no test has that word in another sense)."""
        return text.replace(self._rule.db, self._rule.replica) if text and self._rule else text


def _data_place(table: Table) -> str | None:
    """Spark reads its own kinds of tables at the serde parameter `path`, whatever the location says."""
    assert table.storage
    path = table.storage.serde.parameters.get("path")
    return path if path and "spark.sql.sources.provider" in table.parameters else table.storage.location


def files_below(location: str | None) -> dict[str, str]:
    """Relative path -> digest of the bytes, of every file that a reader of the table may look at."""
    found = {}
    if (one := Path(plain(location or ""))).is_file():
        return {"": hashlib.md5(one.read_bytes()).hexdigest()}
    for above, directories, names in os.walk(plain(location or "")):
        directories[:] = [name for name in directories if not name.startswith(".") and name != "_temporary"]
        for name in names:
            if not name.startswith("."):
                path = Path(above) / name
                found[str(path.relative_to(plain(location or "")))] = hashlib.md5(path.read_bytes()).hexdigest()
    return found


def _own(parameters: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in parameters.items() if not key.startswith(OURS)}


def _columns(columns: Sequence[Any]) -> list[list[str | None]]:
    return [[column.name, column.type, column.comment] for column in columns]


def _statistics(statistics: Any) -> list[Any]:
    return sorted(([each.column, each.type, json.dumps(each.data)] for each in statistics.columns), key=repr)
