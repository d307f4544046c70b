"""Worlds of chance: tables of every format with files of every writer, purged, replicated and certified. By two readers
that know nothing of each other the rows that stay are the same, and no disk has a row that went.

The same seed makes the same world: PURGE_SEED=7 PURGE_HISTORIES=50 makes others."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random

import purge_writers as writers
import pytest
from policies import Replication
from purge_readers import hidden_of, rows_of, said
from purges import DESCRIPTOR, Warehouse

from cmroot.root import ChangeRoot, open_existing
from replicator.metastore.embedded import Running
from replicator.metastore.thrift import connect
from replicator.model import partition_spec
from replicator.purge.certify import Certificate, Replica, certify
from replicator.purge.options import PurgeOptions
from replicator.purge.parts import parts_of

HISTORIES = int(os.environ.get("PURGE_HISTORIES", "1"))
SEED = int(os.environ.get("PURGE_SEED", "1"))
PEOPLE, GONE, TABLES = 40, 6, 4
VALUES = ("a:b", "a%3Ab", "a/b", "a=b", "it's", "50%", "a#b", "a?b", "a b", "ä", "plain", "{c}*")


@dataclass(frozen=True)
class Format:
    """stored: what follows the columns, "" for Hive's; columns: which it can have; options: of its writers."""

    stored: str
    columns: str
    programs: tuple[writers.Write, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    ids: tuple[str, ...] = tuple(writers.IDS)
    words: tuple[str, ...] = writers.WORDS
    conf: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_sparks(self) -> bool:
        return self.stored.startswith("USING")


ALL = "".join(writers.TYPES)
FLAT = "".join(name for name in writers.TYPES if name not in writers.NESTED)
PARQUET = (writers.parquet_of_arrow, writers.parquet_of_duckdb)
CODECS = {"spark.sql.parquet.compression.codec": ("none", "snappy", "gzip", "zstd", "lz4_raw"),
          "spark.sql.orc.compression.codec": ("none", "snappy", "zlib", "zstd", "lz4"),
          "spark.sql.hive.convertMetastoreParquet": ("true", "false"),
          "spark.sql.hive.convertMetastoreOrc": ("true", "false")}  # fmt: skip
FORMATS = {
    "parquet": Format("STORED AS PARQUET", ALL, PARQUET),
    "parquet_of_spark": Format("USING parquet", ALL, PARQUET),
    "orc": Format("STORED AS ORC", ALL, (writers.orc_of_arrow,)),
    "text": Format("ROW FORMAT DELIMITED FIELDS TERMINATED BY '|' ESCAPED BY '\\\\'", FLAT, (writers.text_of_python,),
                   {"separator": "|", "escape": "\\"}),
}  # fmt: skip


class World:
    """One database, by chance."""

    def __init__(self, warehouse: Warehouse, replication: Replication, seed: int) -> None:
        self.warehouse, self.random = warehouse, Random(seed)
        self.done = [f"PURGE_SEED={seed}"]
        self.place, self.db = replication.here / "source", f"{replication.name}_w"
        self.gone = self.random.sample(range(PEOPLE), GONE)
        self.numbers = 0
        ids = ", ".join(f"({person})" for person in self.gone)
        warehouse.sql(
            f"CREATE DATABASE {self.db} LOCATION '{self.place}/{self.db}.db'",
            "CREATE DATABASE IF NOT EXISTS asked",
            f"CREATE TABLE asked.{self.db} AS SELECT bigint(col1) AS member FROM VALUES {ids}",
        )
        self.ids = f"asked.{self.db}:member"
        for name in self.random.sample(sorted(FORMATS), min(TABLES, len(FORMATS))):
            self.make(name)

    def make(self, name: str) -> None:
        format_ = FORMATS[name]
        chosen = self.random.sample(format_.columns, self.random.randrange(len(format_.columns) + 1))
        types = {"id": self.random.choice(format_.ids), "v": "STRING"}
        types |= {each: writers.TYPES[each][0] for each in chosen}
        partitioned, external = self.random.random() < 0.7, self.random.random() < 0.4
        columns = [f"`{each}` {type_}" for each, type_ in types.items()]
        place = f" LOCATION '{self.place}/elsewhere/{self.db}_{name}'" if external else ""
        keys = ""
        if partitioned:
            keys = " PARTITIONED BY (k)" if format_.is_sparks else " PARTITIONED BY (k STRING)"
            columns += ["k STRING"] if format_.is_sparks else []
        using, stored = (f" {format_.stored}", "") if format_.is_sparks else ("", f" {format_.stored}")
        kind = "EXTERNAL " if external and not format_.is_sparks else ""
        table = f"{self.db}.{name}"
        self.run(f"CREATE {kind}TABLE {table} ({', '.join(columns)}){using}{keys}{stored}{place}"
                 f" TBLPROPERTIES ({DESCRIPTOR})")  # fmt: skip
        values = self.random.sample(VALUES, self.random.randrange(1, 4)) if partitioned else [""]
        for value in values:
            if partitioned:
                self.run(f"ALTER TABLE {table} ADD PARTITION (k = {quoted(value)})")
        for part, home in self.homes(name).items():
            home.mkdir(parents=True, exist_ok=True)
            value = partition_spec(part)[1][0] if part else None
            for _ in range(self.random.randrange(1, 4)):
                self.write(name, format_, types, home, value)

    def write(self, name: str, format_: Format, types: dict[str, str], home: Path, value: str | None) -> None:
        """A file of one of the writers, Spark among them."""
        people = [self.random.choice((None, *range(PEOPLE))) for _ in range(self.random.randrange(1, 12))]
        rows = writers.table_of(self.random, types, people, list(format_.words))
        write = self.random.choice((*format_.programs, None))
        if write is not None:
            self.numbers += 1
            spelt = self.random.choice((f"part-{self.numbers:05}", f"{self.numbers:06}_0", f"data_{self.numbers}"))
            path = write(home / spelt, rows, self.random, {**types, **format_.options})
            self.done.append(f"{write.__name__}: {path} {people}")
            return
        conf = {key: self.random.choice(options) for key, options in (CODECS | format_.conf).items()}
        for key, chosen in conf.items():
            self.warehouse.session.conf.set(key, chosen)
        self.warehouse.session.createDataFrame(rows).coalesce(1).createOrReplaceTempView("made")
        where = f" PARTITION (k = {quoted(value)})" if value is not None else ""
        self.run(f"INSERT INTO {self.db}.{name}{where} SELECT {', '.join(types)} FROM made -- {conf} {people}")

    def run(self, statement: str) -> None:
        self.done.append(statement)
        self.warehouse.sql(statement)

    # ---- what it holds ----

    @property
    def tables(self) -> list[str]:
        return sorted(self.warehouse.metastore.table_names(self.db))

    def homes(self, table: str) -> dict[str, Path]:
        """By partition, where it lies now."""
        metastore = self.warehouse.metastore
        found = metastore.table(self.db, table)
        return {each.name: Path(each.location.removeprefix("file:")) for each in parts_of(metastore, found)}

    def by_files(self) -> dict[str, Counter[str]]:
        """By table and partition, the rows, as an independent reader says them."""
        return {
            f"{table}/{part}": Counter(row for path in data_files(home) for row in rows_of(path))
            for table in self.tables for part, home in self.homes(table).items()
        }  # fmt: skip

    def by_spark(self) -> dict[str, Counter[str]]:
        """By table, as Spark says them."""
        for key, value in {"spark.sql.session.timeZone": "UTC", "spark.sql.hive.convertMetastoreParquet": "true",
                           "spark.sql.hive.convertMetastoreOrc": "true"}.items():  # fmt: skip
            self.warehouse.session.conf.set(key, value)
        return {name: Counter(map(said, self.warehouse.rows(f"{self.db}.{name}"))) for name in self.tables}

    def stays(self, row: str) -> bool:
        return not any(f"person-{person}-" in row for person in self.gone)


def quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def data_files(home: Path) -> Iterator[Path]:
    for path in sorted(home.rglob("*")):
        if path.is_file() and not any(part.startswith((".", "_")) for part in path.relative_to(home).parts):
            yield path


def staying(world: World, before: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    return {
        name: Counter({row: count for row, count in rows.items() if world.stays(row)}) for name, rows in before.items()
    }


@pytest.fixture(scope="module")
def warehouse(source_metastore: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    found = Warehouse(source_metastore, tmp_path_factory.mktemp("purge"))
    yield found
    found.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SEED, SEED + HISTORIES))
def test_what_stays_is_as_it_was_and_what_went_is_nowhere(
    warehouse: Warehouse, source_metastore: Running, target_metastore: Running, tmp_path: Path, seed: int
) -> None:
    replication = Replication(source_metastore, target_metastore, tmp_path)
    world = World(warehouse, replication, seed)
    replication.sync()
    root = open_existing(str(tmp_path / "cmroot"))
    spark, files = world.by_spark(), world.by_files()
    about = "\n".join(world.done)

    done = warehouse.purge(root, world.ids, world.db)

    assert done.status == "done", f"{[(each.table, each.error, each.units) for each in done.tables]}\n{about}"
    for found, before in ((world.by_files(), files), (world.by_spark(), spark)):
        wanted = staying(world, before)
        differ = {name: (rows - found[name], found[name] - rows) for name, rows in wanted.items()}
        differ = {name: each for name, each in differ.items() if any(each)}
        assert not differ, f"{differ}\n{about}"
    certified = certificate(world, root, replication)
    assert certified.status == "certified", f"{certified.holding} {certified.gaps}\n{about}"
    marks = [f"person-{person}-" for person in world.gone]
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        held = [mark for mark in marks for text in texts_of(path) if mark in text]
        assert not held, f"{path} {held}\n{about}"


def texts_of(path: Path) -> Iterator[str]:
    yield from rows_of(path)
    yield from (each.decode("latin-1") for each in hidden_of(path))


def certificate(world: World, root: ChangeRoot, replication: Replication) -> Certificate:
    policy = replication.policy
    replica = Replica(policy.name, connect(policy.target), policy.target_cmroot, policy.target_name, lambda *_: True)
    asked = PurgeOptions(world.ids, world.db, "privacy.column")
    for _ in range(4):
        replication.sync()
        found = certify(
            world.warehouse.metastore, root, asked, [replica], engines=world.warehouse.engines,
            readers=timedelta(0), expedited=True,
        )  # fmt: skip
        if found.status != "remaining":
            break
    return found
