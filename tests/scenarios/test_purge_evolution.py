"""Random schemas that evolve at random, by several writers: no byte of a certified table has an erased value."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from purges import Warehouse
from pyarrow import orc
from raw_bytes import all_bytes

from replicator.lifecycle.purge.options import PurgeOptions

STORED = {
    "parquet": ("STORED AS PARQUET", "USING parquet"),
    "orc": ("STORED AS ORC", "USING orc"),
    "avro": ("STORED AS AVRO",),
    "json": ("USING json",),
}
WRITERS = {
    "parquet": ("spark", "pyarrow", "duckdb"),
    "orc": ("spark", "pyarrow"),
    "avro": ("spark",),
    "json": ("spark", "python", "duckdb"),
}
CODECS = {"parquet": ("snappy", "zstd", "gzip", "none"), "orc": ("zlib", "zstd", "snappy", "none")}
SPELLINGS = {"casefold": (str.upper, str.title), "trim": (lambda text: f" {text}", lambda text: f"{text}\t")}


@dataclass
class World:
    """A table, as its seed makes it. columns: name -> type, in order; the first has the ids, after its `former` names.
    rows: (id, note) of every row; a note names its row. declared: the descriptor has the former names."""

    dice: random.Random
    home: Path
    kind: str
    stored: str
    rules: list[str]
    declared: bool
    columns: dict[str, str] = field(default_factory=lambda: {"cust": "STRING", "note": "STRING", "n": "INT"})
    former: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    people: list[str] = field(default_factory=list)
    rows: list[tuple[str, str]] = field(default_factory=list)
    files: int = 0

    @classmethod
    def of(cls, seed: int, home: Path) -> World:
        dice = random.Random(seed)
        kind = list(STORED)[seed % len(STORED)]
        rules = dice.sample(list(SPELLINGS), dice.randint(0, 2))
        world = cls(dice, home, kind, dice.choice(STORED[kind]), rules, declared=dice.random() < 0.8)
        world.people = ["".join(dice.choices(string.ascii_lowercase, k=14)) for _ in range(dice.randint(8, 40))]
        return world

    @property
    def ids_column(self) -> str:
        return next(iter(self.columns))

    def evolve(self) -> None:
        change = self.dice.choice(["rename", "rename", "add", "widen", "case", "none"])
        name = self.ids_column
        if change == "rename":
            self._renamed({name: f"{self.dice.choice(['member', 'person'])}{self.files}"})
            self.former.append(name)
        elif change == "add":
            self.columns[f"more{self.files}"] = self.dice.choice(["STRING", "DOUBLE", "BIGINT"])
        elif change == "widen":
            self.columns["n"] = "BIGINT"
        elif change == "case" and self.kind in ("parquet", "orc"):
            self.used.discard(name)
            self._renamed({name: name.title()})

    def _renamed(self, names: dict[str, str]) -> None:
        self.columns = {names.get(name, name): type_ for name, type_ in self.columns.items()}

    def batch(self) -> pa.Table:
        """Some rows under the present columns."""
        found: dict[str, list[Any]] = {name: [] for name in self.columns}
        for _ in range(self.dice.randint(5, 60)):
            person, note = self.dice.choice(self.people), "".join(self.dice.choices(string.ascii_uppercase, k=14))
            spelled = person
            if self.rules and self.dice.random() < 0.4:
                spelled = self.dice.choice(SPELLINGS[self.dice.choice(self.rules)])(person)
            self.rows.append((person, note))
            for index, (name, type_) in enumerate(self.columns.items()):
                value: Any = self.dice.randint(0, 1000)
                value = float(value) if type_ == "DOUBLE" else f"v{value}" if type_ == "STRING" else value
                found[name].append([spelled, note][index] if index < 2 else value)
        types = {"STRING": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64()}
        return pa.table({name: pa.array(found[name], types[type_]) for name, type_ in self.columns.items()})

    def write(self, warehouse: Warehouse) -> None:
        writer, table, codec = (
            self.dice.choice(WRITERS[self.kind]),
            self.batch(),
            self.dice.choice(CODECS.get(self.kind, ("none",))),
        )
        self.files += 1
        self.used.add(self.ids_column)
        path = self.home / f"{writer}-{self.files}.{self.kind}"
        self.home.mkdir(exist_ok=True)
        if writer == "spark":
            self._by_spark(warehouse, table)
        elif writer == "python":
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist()))
        elif writer == "duckdb":
            options = "FORMAT parquet, COMPRESSION " + codec.replace("none", "uncompressed") + ", ROW_GROUP_SIZE 2048"
            with duckdb.connect() as session:
                session.register("rows", table)
                session.execute(f"COPY rows TO '{path}' ({options if self.kind == 'parquet' else 'FORMAT json'})")
        elif self.kind == "parquet":
            pq.write_table(table, path, compression=codec, row_group_size=20, write_page_index=self.dice.random() < 0.5)
        else:
            orc.write_table(table, path, compression=codec.replace("none", "uncompressed"))

    def _by_spark(self, warehouse: Warehouse, table: pa.Table) -> None:
        self.create(warehouse, "")
        warehouse.session.createDataFrame(table).coalesce(1).write.insertInto("evo.t")
        warehouse.sql("DROP TABLE evo.t")

    def create(self, warehouse: Warehouse, properties: str) -> None:
        columns = ", ".join(f"`{name}` {type_}" for name, type_ in self.columns.items())
        warehouse.sql(f"CREATE TABLE evo.t ({columns}) {self.stored} LOCATION '{self.home}' {properties}")

    @property
    def descriptor(self) -> str:
        ids: dict[str, Any] = {"match": self.rules or "exact"}
        if self.declared:
            ids["former"] = self.former
        text = json.dumps({"privacy": {"column": self.ids_column}, "ids": ids})
        return f"TBLPROPERTIES ('dataset.descriptor'='{text}')"


@pytest.fixture
def evo(warehouse: Warehouse) -> Iterator[Warehouse]:
    warehouse.sql("CREATE DATABASE evo")
    yield warehouse
    warehouse.drop("evo")


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.long] * (seed > 0)) for seed in range(24)])
def test_no_byte_of_a_certified_table_has_an_erased_value(evo: Warehouse, tmp_path: Path, seed: int) -> None:
    world = World.of(seed, tmp_path / "t")
    for _ in range(world.dice.randint(2, 4)):
        world.write(evo)
        world.evolve()
    world.write(evo)
    gone = world.dice.sample(world.people, 4)
    evo.sql(f"CREATE TABLE evo.gone AS SELECT explode(array({', '.join(map(repr, gone))})) AS id")
    world.create(evo, world.descriptor)
    root = evo.root(f"evolved{seed}")
    before = b"\n".join(all_bytes(path) for path in world.home.rglob("*") if path.is_file())
    assert not [note for _, note in world.rows if note.encode() not in before]  # the reader sees everything

    done = evo.purge(root, "evo.gone:id", "evo.t")

    asked = PurgeOptions("evo.gone:id", "evo.t", "privacy.column")
    certificate = evo.certify(root, asked, run="latest", expedited=True)
    unsaid = not world.declared and bool(
        {name.lower() for name in world.former} & {name.lower() for name in world.used}
    )
    expected = "gaps" if unsaid else "certified"
    assert certificate.status == expected, (certificate.gaps, certificate.holding, done.tables, world.descriptor)
    if unsaid:
        return
    erased = {note for person, note in world.rows if person in gone}
    kept = {note for person, note in world.rows if person not in gone}
    assert done.rows_erased == len(erased)
    files = [path for top in (tmp_path, Path(root.place)) for path in top.rglob("*") if path.is_file()]
    tables = [path for path in files if not path.is_relative_to(Path(root.place) / "purge")]
    found = b"\n".join(all_bytes(path).lower() for path in tables)
    left = [value for value in [*gone, *erased] if value.lower().encode() in found]
    assert not left, (left, world)
    assert not [note for note in kept if note.lower().encode() not in found]
    assert bloomed(tables, world, gone) < 2


def bloomed(files: list[Path], world: World, gone: list[str]) -> int:
    """The largest number of erased ids that the bloom filters of one file admit; one may be by chance."""
    most = 0
    with duckdb.connect() as session:
        for path in files:
            if path.read_bytes()[:4] != b"PAR1":
                continue
            names = pq.read_schema(path).names
            hits = 0
            for name in {
                each for each in names if each.lower() in {w.lower() for w in (world.ids_column, *world.former)}
            }:
                for each in gone:
                    probe = "SELECT count(*) FROM parquet_bloom_probe(?, ?, ?) WHERE NOT bloom_filter_excludes"
                    has = "SELECT count(bloom_filter_offset) FROM parquet_metadata(?) WHERE path_in_schema = ?"
                    if session.execute(has, [str(path), name]).fetchall()[0][0]:
                        groups = session.execute(probe, [str(path), name, each]).fetchall()[0][0]
                        hits += groups > 0
            most = max(most, hits)
    return most
