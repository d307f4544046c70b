"""What others have written to landing tables: found though they write properties, too."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cmroot.root import create_or_open
from replicator.commands.landing_tables import Watched, messages_of
from replicator.core.engine import LocalEngine
from replicator.core.model import Column, Partition, Table, partition_name
from replicator.errors import ObjectNotFound
from replicator.ingestion.ingestion_request import Asset, Request
from replicator.ingestion.landing.foreign_writes import ForeignWrite, foreign_writes, published_of
from replicator.ingestion.landing.publishing import Landed, publish
from replicator.lifecycle.purge.backups import purged_sizes
from replicator.lifecycle.purge.state import Unit, new_run
from replicator.lifecycle.purge.swapping import PURGED, Figures, purged
from replicator.lifecycle.purge.table_files import Part, new_location

ASSET = Asset(name="crm", owner="olga", sources=("crm",))
WRITTEN, SEAL = "replicator.ingestion.written", "replicator.ingestion.seal"


class Metastore:
    """A table and its partitions."""

    made: Table | None = None

    def __init__(self) -> None:
        self.parts = dict[str, Partition]()

    def table(self, db: str, name: str) -> Table:
        if self.made is None:
            raise ObjectNotFound(name)
        return self.made

    def tables(self, db: str, names: list[str]) -> list[Table]:
        return [self.made] if self.made else []

    def create_table(self, table: Table) -> None:
        self.made = table

    def add_partitions(self, db: str, name: str, parts: list[Partition]) -> None:
        self.parts |= {part.values[0]: part for part in parts}

    def partitions(self, db: str, name: str, names: list[str]) -> list[list[Partition]]:
        return [[part for value, part in self.parts.items() if f"landed={value}" in names]]

    def all_partitions(self, db: str, name: str) -> list[list[Partition]]:
        return [list(self.parts.values())]

    def partition_names(self, db: str, name: str) -> list[str]:
        return [f"landed={value}" for value in self.parts]

    def current_event_id(self) -> int:
        return 1

    def next_events(self, after: int) -> list[Any]:
        return []


class Engines:
    def for_work(self, *_: int) -> LocalEngine:
        return LocalEngine(1)


class World:
    """A landing table with one file of five bytes, that job 1 has published."""

    def __init__(self, root: Path, mode: str) -> None:
        self.place = root / "crm" / "public" / "t" / "v-1-1"
        self.place.mkdir(parents=True)
        (self.place / "part-0.parquet").write_bytes(b"12345")
        self.metastore: Any = Metastore()
        request = Request(asset="crm", source="crm", schema="public", table="t", mode=mode)  # type: ignore[arg-type]
        landed = Landed(1, 1, (Column("id", "bigint"),), str(self.place), str(self.place.parent), 1, 1, 5)
        publish(self.metastore, ASSET, request, landed)
        sealed = mode != "append"
        self.facts = {"location": str(self.place), "columns": [["id", "bigint"]], "files": 1, "bytes": 5}
        self.facts |= {"sealed": sealed}
        self.job = {"id": 1, "asset": "crm", "target": "crm_public.t", "mode": mode, "ended": 9e9, "begun": 1.0}
        self.job |= {"event_id": 1}

    @property
    def thing(self) -> Any:
        return next(iter(self.metastore.parts.values()), self.metastore.made)

    def put(self, thing: Table | Partition) -> None:
        if isinstance(thing, Table):
            self.metastore.made = thing
        else:
            self.metastore.parts = {thing.values[0]: thing}

    def set(self, thing: Any, **parameters: str | None) -> None:
        given = {**thing.parameters, **parameters}
        self.put(msgspec.structs.replace(thing, parameters={key: each for key, each in given.items() if each}))

    def found(self, root: str | None = None) -> list[ForeignWrite]:
        """root: of purges."""
        jobs = [(1, 9e9, self.facts)]
        tables = list(published_of(self.job, self.facts))
        purges = None if root is None else partial(purged_sizes, root)
        return list(foreign_writes(self.metastore, Engines(), tables, lambda *_: jobs, purges))  # type: ignore[arg-type]

    def watched(self, root: str | None = None) -> tuple[str, ...]:
        return tuple(what for each in self.found(root) for what in each.what)


@pytest.fixture(params=["overwrite", "append"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(tmp_path, request.param)


def test_an_insert_is_seen_also_after_a_purge(world: World) -> None:
    assert world.watched() == ()
    new = Path(new_location(str(world.place), "2026"))
    new.mkdir(parents=True)
    (new / "part-0.parquet").write_bytes(b"1234")
    world.put(purged(Part("", world.thing), str(new), Figures(1, 1, 4), 1.0))
    assert world.watched() == ()
    (new / "000000_0").write_bytes(b"foreign")
    world.set(world.thing, numFiles="2", totalSize="11")
    (what,) = world.watched()
    assert "has 2 files of 11 bytes, but 1 of 4 were published" in what


def test_the_mark_of_a_purge_counts_as_far_as_the_purge_has_recorded_it(world: World, tmp_path: Path) -> None:
    """Any writer can set the property."""
    root = create_or_open(str(tmp_path / "root")).place
    (world.place / "000000_0").write_bytes(b"foreign")
    world.set(world.thing, **{WRITTEN: f"2 files, 12 bytes{PURGED}"})
    assert world.watched() == () and world.watched(root) != ()

    directory, run = new_run(root, {"ids": "a.b:c", "metastore": "m"}, lambda: 1.0)
    directory.write_run(run)
    name = "" if world.thing is world.metastore.made else partition_name(world.metastore.made.partition_keys, ("1",))
    unit = Unit(table="crm_public.t", partition=name, state="VERIFIED", time=1.0, files=2, bytes_after=12)
    directory.write_units([unit])
    assert world.watched(root) == ()
    directory.write_units([unit.at("DONE", lambda: 2.0, backup="kept")])
    assert world.watched(root) == ()
    (world.place / "000000_1").write_bytes(b"foreign")
    world.set(world.thing, **{WRITTEN: f"3 files, 19 bytes{PURGED}"})
    (what,) = world.watched(root)
    assert "has 3 files of 19 bytes, but 2 of 12 were published" in what


def test_a_message_has_the_key_of_what_differs_not_of_its_words(world: World) -> None:
    def key(found: ForeignWrite) -> str:
        (message,) = messages_of(Watched(found=[found]))
        return message.key

    (world.place / "000000_0").write_bytes(b"foreign")
    (found,) = world.found()
    assert len(found.facts) == len(found.what) == 1
    assert key(msgspec.structs.replace(found, what=("said in another release's words",))) == key(found)
    assert key(world.found()[0]) == key(found)
    (world.place / "000000_1").write_bytes(b"another")
    assert key(world.found()[0]) != key(found)
    world.metastore.made = None
    (gone,) = world.found()
    assert gone.facts == ("gone",)


def test_a_purge_by_an_earlier_release_is_no_foreign_write(world: World) -> None:
    new = Path(new_location(str(world.place), "2026"))
    new.mkdir(parents=True)
    (new / "part-0.parquet").write_bytes(b"1234")
    before = world.thing.parameters[WRITTEN]
    world.put(purged(Part("", world.thing), str(new), Figures(1, 1, 4), 1.0))
    world.set(world.thing, **{WRITTEN: before})
    assert world.watched() == ()


def test_the_store_says_what_was_published_and_not_the_table(world: World) -> None:
    (world.place / "foreign").write_bytes(b"xyz")
    world.set(world.thing, **{WRITTEN: None})
    assert any("has 2 files of 8 bytes" in each for each in world.watched())
    world.set(world.thing, **{WRITTEN: "2 files, 8 bytes"})
    assert any("has 2 files of 8 bytes" in each for each in world.watched())


def test_rows_that_lie_elsewhere_are_not_those_that_were_published(world: World, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "x").write_bytes(b"54321")
    world.put(
        msgspec.structs.replace(world.thing, storage=msgspec.structs.replace(world.thing.storage, location=str(other)))
    )
    (what,) = world.watched()
    assert f"its rows are located in {other}, not in {world.place}" in what


def test_properties_that_purge_and_housekeeping_know_it_by_are_watched(world: World) -> None:
    told = ("properties that identify it to purge and housekeeping changed",)
    made = world.metastore.made
    for changed in (
        {SEAL: None, "beekeeper.remove.unreferenced.data": None},
        {"beekeeper.remove.expired.data": "true", "beekeeper.expired.data.retention.period": "PT1S"},
    ):
        world.set(made, **changed)
        assert world.watched() == told


def test_a_table_of_an_earlier_release_has_no_seal_and_is_quiet(world: World) -> None:
    world.facts.pop("sealed")
    world.set(world.metastore.made, **{SEAL: None, WRITTEN: None, "replicator.ingestion.since": None})
    if world.metastore.parts:
        world.set(world.thing, **{WRITTEN: None})
    assert world.watched() == ()
