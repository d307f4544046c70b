"""Random lives of tables, with housekeeping in between: whatever happens, every file that the metastore refers to stays
with its bytes, and every byte that went is in `$cmroot`."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from housekeeping import ALL_EVENTS, DROPS, EXPIRED, UNREFERENCED, LifecycleFixture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from names import unique
from plain_tables import text_storage

from cmroot.keep.content import locate
from cmroot.store.checksum import checksum_file
from replicator.core.model import EXTERNAL, Partition
from replicator.metastore.thrift import ThriftMetastore

_numbers = itertools.count(1)
NAMES, VALUES = ("a", "b", "c"), ("1", "2")
PROPERTIES = (
    {},
    UNREFERENCED,
    {**UNREFERENCED, **ALL_EVENTS},
    EXPIRED,
    {**EXPIRED, **DROPS, **UNREFERENCED, **ALL_EVENTS},
)


class RandomHistory:
    """Tables of one house, changed by chance; every file that was ever written, with its bytes."""

    def __init__(self, fixture: LifecycleFixture, seed: int) -> None:
        self.fixture, self.dice = fixture, random.Random(seed)
        self.day = 0.0
        self.places: list[Path] = []
        self.removed = 0

    def step(self) -> str:
        act = self.dice.choice(
            [
                self.create,
                self.create,
                self.relocate,
                self.relocate,
                self.back,
                self.share,
                self.drop,
                self.rename,
                self.partitions,
                self.drop_partition,
                self.move_partition,
                self.properties,
                self.run,
                self.run,
            ]
        )
        act()
        return act.__name__

    # ---- what may happen ------------------------------------------------------------------------------------------

    def create(self) -> None:
        name = self.dice.choice(NAMES)
        if name in self._names():
            return
        kind = {"kind": EXTERNAL} if self.dice.random() < 0.6 else {}
        properties = self.dice.choice(PROPERTIES)
        if self.dice.random() < 0.5:
            self.fixture.table(name, {"a": self._text()}, properties=properties, **kind)
        else:
            self.fixture.partitioned(name, [], **properties)
            for value in VALUES:
                self._add(name, value, self.fixture.place(f"{name}/p={value}"))
        self.places.append(self.fixture.place(name))

    def relocate(self) -> None:
        if name := self._any():
            self.fixture.relocate(name, self._fresh())

    def back(self) -> None:
        """Somewhere where something has been before."""
        if (name := self._any()) and self.places:
            self.fixture.relocate(name, self.dice.choice(self.places))

    def share(self) -> None:
        names = self._names()
        if len(names) > 1:
            one, other = self.dice.sample(names, 2)
            location = self.fixture.live(one).location
            assert location
            self.fixture.relocate(other, location + self.dice.choice(("", "/", "/deep")))

    def drop(self) -> None:
        if name := self._any():
            self.fixture.metastore.drop_table(self.fixture.db.name, name)

    def rename(self) -> None:
        name, to = self._any(), self.dice.choice(NAMES)
        if name and to not in self._names() and not self.fixture.place(to).exists():
            self.fixture.db.rename(name, to)

    def partitions(self) -> None:
        if name := self._any(partitioned=True):
            value = self.dice.choice(VALUES)
            place = self.dice.choice([self.fixture.place(f"{name}/p={value}"), self._fresh(), *self.places])
            if value not in self.fixture.values(name):
                self._add(name, value, place)

    def drop_partition(self) -> None:
        if (name := self._any(partitioned=True)) and (values := self.fixture.values(name)):
            self.fixture.metastore.drop_partitions(self.fixture.db.name, name, [f"p={self.dice.choice(values)}"])

    def move_partition(self) -> None:
        if (name := self._any(partitioned=True)) and (values := self.fixture.values(name)):
            place = self.dice.choice([self._fresh(), *self.places])
            self.fixture.relocate_partition(name, self.dice.choice(values), place)

    def properties(self) -> None:
        if name := self._any():
            table = self.fixture.live(name)
            kept = {key: value for key, value in table.parameters.items() if not key.startswith("beekeeper")}
            changed = msgspec.structs.replace(table, parameters=kept | self.dice.choice(PROPERTIES))
            self.fixture.metastore.alter_table(self.fixture.db.name, name, changed)

    def run(self) -> None:
        """The clock goes on; nothing that is referred to changes, and nothing is lost."""
        self.day += self.dice.choice((0.0, 1.0, 4.0, 35.0))
        before = self.files()
        expired = {str(each) for each in self._expirable()}
        live = {path: digest for path, digest in before.items() if self._is_live(path)}
        done = self.fixture.run(self.day, captures=self.dice.random() < 0.7)
        self.removed += done.removed
        after = self.files()
        for path, digest in live.items():
            gone = path not in after and any(path.startswith(place) for place in expired)
            assert after.get(path) == digest or (gone and not self._is_live(path)), path
        for path, (digest, size) in before.items():
            assert path in after or os.path.exists(locate(self.fixture.root.place, digest, size)), path

    # ---- looking --------------------------------------------------------------------------------------------------

    def files(self) -> dict[str, tuple[str, int]]:
        """Every file of the warehouse, with its checksum and size."""
        return {
            str(path): checksum_file(str(path))
            for path in (self.fixture.here / "warehouse").rglob("*")
            if path.is_file() and not path.name.startswith(".")
        }

    def _is_live(self, path: str) -> bool:
        return any(path.startswith(f"{place}/") for place in self._locations())

    def _locations(self) -> list[str]:
        found = []
        for name in self._names():
            table = self.fixture.live(name)
            if not table.is_partitioned:
                found.append(table.location)
            else:
                names = self.fixture.metastore.partition_names(self.fixture.db.name, name)
                for batch in self.fixture.metastore.partitions(self.fixture.db.name, name, names):
                    found += [each.location for each in batch]
        return [place.removeprefix("file:").rstrip("/") for place in found if place]

    def _expirable(self) -> list[str]:
        """Locations that may go with their objects."""
        return self._locations() if self.day > 29 else []

    def _names(self) -> list[str]:
        return self.fixture.metastore.table_names(self.fixture.db.name)

    def _any(self, *, partitioned: bool = False) -> str:
        names = [name for name in self._names() if not partitioned or self.fixture.live(name).is_partitioned]
        return self.dice.choice(names) if names else ""

    def _add(self, name: str, value: str, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        (place / f"f{next(_numbers)}").write_text(self._text())
        made: Any = Partition(values=(value,), storage=text_storage(place))
        self.fixture.metastore.add_partitions(self.fixture.db.name, name, [made])
        self.places.append(place)

    def _fresh(self) -> Path:
        parent = self.dice.choice([self.fixture.db.home / "moved", *self.places])
        place = parent / f"d{next(_numbers)}"
        place.mkdir(parents=True)
        (place / "f").write_text(self._text())
        self.places.append(place)
        return place

    def _text(self) -> str:
        return hashlib.md5(str(next(_numbers)).encode()).hexdigest()


@settings(
    max_examples=int(os.environ.get("HOUSEKEEPING_LIVES", "4")), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(seed=st.integers(0, 1 << 30))
def test_nothing_that_is_referred_to_goes_and_nothing_is_lost(metastore: ThriftMetastore, seed: int) -> None:
    with tempfile.TemporaryDirectory() as here:
        fixture = LifecycleFixture(metastore, unique("life"), Path(here))
        life = RandomHistory(fixture, seed)
        life.create()
        reported = [life.step() for _ in range(25)]
        life.day += 40
        life.run()
        print(life.removed, reported)  # shown with a failure
        for name in fixture.metastore.table_names(fixture.db.name):
            metastore.drop_table(fixture.db.name, name)
        metastore.drop_database(fixture.db.name)
