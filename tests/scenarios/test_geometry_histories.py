"""Histories of tables and partitions at places of chance: with `..`, doubled slashes and symbolic links on the way, in
each other's directories. After each range both sides hold the same, and nothing of anybody else has moved.

The same seed makes the same history: GEOMETRY_SEED=7 GEOMETRY_HISTORIES=50 plays others."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import msgspec
import pytest
from hostile import world
from lab import Lab
from placed_tables import held, path_of, table, toggle, write
from plain_tables import KEYS, text_storage

from replicator.core.model import EXTERNAL, MANAGED, Partition, Storage, Table, partition_name

HISTORIES = int(os.environ.get("GEOMETRY_HISTORIES", "4"))
SEED = int(os.environ.get("GEOMETRY_SEED", "3"))
RANGES, STEPS = 3, 4


@pytest.fixture
def fixture(fixture: Lab) -> Lab:
    table(fixture.source, "bulk", fixture.source.home / "bulk", {"much": "x" * 100_000})  # so that little goes at once
    return fixture


def at(place: str) -> Storage:
    return msgspec.structs.replace(text_storage(Path(place)), location=f"file:{place}")


class History:
    """What somebody does to a database, by chance. Each file that is written has a name of its own."""

    def __init__(self, fixture: Lab, seed: int) -> None:
        self.db, self.random, self.done = fixture.source, random.Random(seed), [f"seed {seed}"]
        self.outside, self.numbers = fixture.here / "outside", 0
        for name in ("a", "b", "deep/c"):
            (self.outside / name).mkdir(parents=True)
        (self.outside / "link").symlink_to(self.outside / "a")
        (self.outside / "b" / "other").symlink_to(self.outside / "deep" / "c")

    def place(self) -> str:
        """A directory, spelt anyhow: as text, since pathlib tidies."""
        base = self.random.choice([str(self.db.home), *(f"{self.outside}/{each}" for each in ("a", "b", "link"))])
        names = self.random.choices(["x", "y", "other", "p=1", "p=2"], k=self.random.choice((1, 1, 2, 3)))
        spelt = base
        for name in names:
            spelt += self.random.choice(("/", "/", "/", "//", "/./", "/z/../")) + name
        return spelt

    def files(self) -> dict[str, str]:
        self.numbers += 1
        return {f"f{self.numbers}": f"{self.numbers}\x01{self.random.random()}\n"}

    def tables(self) -> list[Table]:
        names = [name for name in self.db.metastore.table_names(self.db.name) if name != "bulk"]
        return [self.db.metastore.table(self.db.name, name) for name in names]

    def step(self) -> None:
        known = self.tables()
        what = self.random.choice(
            ("make", *(("add", "add", "drop", "move", "rename", "toggle", "write") if known else ()))
        )
        getattr(self, what)(*([self.random.choice(known)] if what != "make" else []))

    def make(self) -> None:
        self.numbers += 1
        name, place, external = f"t{self.numbers}", self.place(), self.random.random() < 0.6
        partitioned = self.random.random() < 0.5
        self.tell("make", name, place, f"{external=} {partitioned=}")
        made = Table(
            db=self.db.name,
            name=name,
            kind=EXTERNAL if external else MANAGED,
            storage=at(place),
            partition_keys=KEYS if partitioned else (),
            parameters={"EXTERNAL": "TRUE"} if external else {},
        )
        self.db.metastore.create_table(made)
        write(Path(place), {} if partitioned else self.files())

    def add(self, there: Table) -> None:
        if not there.partition_keys:
            return self.write(there)
        value = f"v{self.random.randrange(4)}"
        if f"p={value}" in self.db.metastore.partition_names(self.db.name, there.name):
            return None
        place = self.random.choice((self.place(), f"{path_of(there.location)}/p={value}"))
        self.tell("add", there.name, value, place)
        write(Path(place), self.files())
        self.db.metastore.add_partitions(self.db.name, there.name, [Partition(values=(value,), storage=at(place))])
        return None

    def partitions(self, there: Table) -> list[Partition]:
        names = self.db.metastore.partition_names(self.db.name, there.name) if there.partition_keys else []
        return [each for page in self.db.metastore.partitions(self.db.name, there.name, names) for each in page]

    def drop(self, there: Table) -> None:
        some = self.partitions(there)
        if some and self.random.random() < 0.7:
            name = partition_name(there.partition_keys, self.random.choice(some).values)
            self.tell("drop", there.name, name)
            places = [each.location for each in some if partition_name(there.partition_keys, each.values) == name]
            self.db.metastore.drop_partitions(self.db.name, there.name, [name])
        else:
            self.tell("drop", there.name)
            places = [there.location, *(each.location for each in some)]
            self.db.metastore.drop_table(self.db.name, there.name)
        if there.kind == MANAGED and self.random.random() < 0.8:  # as a server does
            for place in places:
                shutil.rmtree(os.path.realpath(path_of(place)), ignore_errors=True)

    def move(self, there: Table) -> None:
        place, some = self.place(), self.partitions(there)
        write(Path(place), self.files())
        if some:
            one = self.random.choice(some)
            self.tell("move", there.name, one.values, place)
            moved = msgspec.structs.replace(one, storage=at(place))
            self.db.metastore.alter_partitions(self.db.name, there.name, [moved])
        else:
            self.tell("move", there.name, place)
            moved_table = msgspec.structs.replace(there, storage=at(place))
            self.db.metastore.alter_table(self.db.name, there.name, moved_table)

    def rename(self, there: Table) -> None:
        self.numbers += 1
        self.tell("rename", there.name, f"t{self.numbers}")
        self.db.rename(there.name, f"t{self.numbers}")

    def toggle(self, there: Table) -> None:
        self.tell("toggle", there.name)
        toggle(self.db, there.name, external=self.random.random() < 0.5)

    def write(self, there: Table) -> None:
        places = [each.location for each in (self.partitions(there) if there.partition_keys else [there])]
        if places:
            place = path_of(self.random.choice(places))
            self.tell("write", there.name, place)
            write(place, self.files())

    def tell(self, *what: object) -> None:
        self.done.append(" ".join(map(str, what)))


def seen(history: History) -> tuple[dict[str, object], set[str]]:
    """What the source's objects hold whose directories are there, and the names of the others."""
    found = held(history.db.metastore, history.db.name)
    gone = set()
    for there in history.tables():
        for each in history.partitions(there) if there.partition_keys else [there]:
            if not path_of(each.location).is_dir():
                partition = partition_name(there.partition_keys, each.values) if isinstance(each, Partition) else ""
                gone.add(f"{there.name}/{partition}" if partition else there.name)
    return {name: what for name, what in found.items() if name not in gone}, gone


@pytest.mark.parametrize("seed", range(SEED, SEED + HISTORIES))
def test_whatever_happens_to_places_both_sides_hold_the_same(fixture: Lab, seed: int) -> None:
    for place in (fixture.warehouse / "x", fixture.warehouse / "external" / "x", fixture.warehouse / "other.db" / "x"):
        write(place, {"theirs": "not ours"})
    own = [fixture.target.home, fixture.warehouse / "external" / f"{fixture.name}.db", fixture.target_cmroot]
    before = world(fixture.warehouse, but=own)
    history = History(fixture, seed)
    since = None
    for number in range(RANGES + 1):
        for _ in range(STEPS if number else 2 * STEPS):
            history.step()
        dumped = fixture.dump(since=since)
        loaded = fixture.load()
        since, (wanted, gone) = fixture.last, seen(history)
        history.tell("--- loaded", dumped.code, loaded.code)
        about = "\n".join([*history.done, str(loaded.output)])
        assert (dumped.code, loaded.code) == ((3, 3) if gone else (0, 0)), about
        shown = held(fixture.target.metastore, fixture.name)
        differ = {name: (what, shown.get(name)) for name, what in wanted.items() if shown.get(name) != what}
        assert not differ and shown.keys() - gone <= wanted.keys(), f"{differ}\n{about}"
        assert {path: what for path, what in world(fixture.warehouse, but=own).items() if path in before} == before, (
            about
        )
