"""Random lives of tables, and every job that removes on top: what the metastore refers to keeps its files, and what
goes is kept in `$cmroot`.

A life is a seeded history on one database: tables and partitions are made, moved back and forth, dropped, renamed, and
made to share directories; in between housekeeping, retention, purge and its clean-up run, with a clock far ahead.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from housekeeping import DROPS, EXPIRED, UNREFERENCED, LifecycleFixture
from names import unique

import replicator
from cmroot.keep.content import locate
from cmroot.store.checksum import checksum_file
from replicator.core.engine import AutoEngine, LocalEngine
from replicator.core.model import EXTERNAL, partition_name
from replicator.core.runtime import Runtime
from replicator.core.spark import SparkEngine
from replicator.lifecycle.purge.backup_actions import Retain
from replicator.lifecycle.purge.options import PurgeOptions, RetainOptions
from replicator.lifecycle.purge.run import Purge
from replicator.lifecycle.retention.job_configuration import read_job
from replicator.lifecycle.retention.run import Retention
from replicator.metastore.java import find_java, spark_environment
from replicator.metastore.thrift import ThriftMetastore

NAMES = ("t0", "t1", "t2", "t3")
IDS = unique("ids")
GONE = (3, 7)  # ids to be erased; every third file has a row of one
DESCRIBED = {"dataset.descriptor": '{"column": "a"}'}
STEPS = 30
OLDEST = 40.0  # days; expiry is after 30

NEWEST_ONE = """
gobblin.retention : {
    dataset : {
      pattern="%s/*/*"
      finder.class=gobblin.data.management.retention.profile.ManagedCleanableDatasetFinder
    }
    selection : {
      policy.class=gobblin.data.management.policy.NewestKSelectionPolicy
      newestK.versionsNotSelected=1
    }
    version : {
      finder.class=gobblin.data.management.version.finder.GlobModTimeDatasetVersionFinder
    }
}
"""

State = dict[tuple[str, str], tuple[str, dict[str, str]]]  # (table, partition) -> (location, file -> digest)


@pytest.fixture(scope="module")
def engines() -> Iterator[AutoEngine]:
    made = AutoEngine(
        LocalEngine(2),
        SparkEngine(
            "local[2]", {"spark.sql.shuffle.partitions": "2"}, lambda: spark_environment(find_java(os.environ))
        ),
        "local",
    )
    yield made
    made.stop()


@dataclass
class RandomHistory:
    """One history. `was`: places that a table or partition has had, to go back to. `reported`: what was done."""

    fixture: LifecycleFixture
    engines: AutoEngine
    rng: random.Random
    was: list[Path] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)
    written: int = 0

    # ---- what owners do -------------------------------------------------------------------------------------------

    def step(self) -> None:
        acts = {
            self.make: 5,
            self.write: 4,
            self.move: 5,
            self.share: 3,
            self.drop: 3,
            self.rename: 1,
            self.housekeep: 2,
            self.retain: 2,
        }
        act = self.rng.choices(list(acts), weights=list(acts.values()))[0]
        act()

    def say(self, *words: object) -> None:
        self.reported.append(" ".join(map(str, words)))

    def tables(self) -> list[str]:
        return self.fixture.metastore.table_names(self.fixture.db.name)

    def make(self) -> None:
        free = [name for name in NAMES if name not in self.tables()]
        if not free:
            return self.write()
        name, chosen = self.rng.choice(free), {}
        for properties in (UNREFERENCED, EXPIRED, DROPS, DESCRIBED):
            if self.rng.random() < 0.6:
                chosen |= properties
        kind = {"kind": EXTERNAL} if self.rng.random() < 0.5 else {}
        if self.rng.random() < 0.6:
            self.fixture.db.partitioned(name, {})
            self.fixture.db.alter(name, **chosen)
            self.fixture.db.add(name, {str(value): self.rows() for value in range(self.rng.randint(1, 3))})
        else:
            self.fixture.table(name, self.rows(), properties=chosen, **kind)
        return self.say("make", name, *chosen)

    def rows(self) -> dict[str, str]:
        self.written += 1
        numbers = [self.written * 10 + 1, self.rng.choice(GONE)] if self.written % 3 == 0 else [self.written * 10 + 1]
        return {f"f{self.written}": "".join(f"{number}\x01row\n" for number in numbers)}

    def write(self) -> None:
        for place in self.rng.sample(sorted(self.places()), k=min(1, len(self.places()))):
            files = self.rows()
            Path(place).mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (Path(place) / name).write_text(text)
            self.say("write", place)

    def places(self) -> set[str]:
        return {location for location, _ in self.state().values()}

    def move(self) -> None:
        """To a new directory with its files copied, or back to one that somebody has had, whatever lies there now."""
        live = sorted(self.state())
        if not live:
            return
        table, part = self.rng.choice(live)
        here = Path(self.state()[table, part][0])
        back = [place for place in self.was if place != here]
        if back and self.rng.random() < 0.5:
            there = self.rng.choice(back)
        else:
            there = self.fixture.place(f"{table}_moved") / f"v{len(self.reported)}"
            there.mkdir(parents=True)
            for path in sorted(here.glob("f*")):
                (there / path.name).write_bytes(path.read_bytes())
        self.was.append(here)
        self.relocate(table, part, there)
        self.say("move", table, part, "from", here, "to", there)

    def share(self) -> None:
        """A table or partition at another's directory, above it, or inside it."""
        live = sorted(self.state())
        if len(live) < 2:
            return
        (table, part), other = self.rng.sample(live, k=2)
        there = Path(self.state()[other][0])
        there = self.rng.choice([there, there.parent, there / "deeper"])
        if there == self.fixture.here / "warehouse" or self.fixture.db.home.is_relative_to(there):
            return
        self.was.append(Path(self.state()[table, part][0]))
        self.relocate(table, part, there)
        self.say("share", table, part, "at", there)

    def relocate(self, table: str, part: str, there: Path) -> None:
        if part:
            self.fixture.relocate_partition(table, part.removeprefix("p="), there)
        else:
            self.fixture.relocate(table, there)

    def drop(self) -> None:
        live = sorted(self.state())
        if not live:
            return
        table, part = self.rng.choice(live)
        self.was.append(Path(self.state()[table, part][0]))
        if part and self.rng.random() < 0.7:
            self.fixture.metastore.drop_partitions(self.fixture.db.name, table, [part])
        else:
            self.fixture.metastore.drop_table(self.fixture.db.name, table)
            part = ""
        self.say("drop", table, part)

    def rename(self) -> None:
        free = [name for name in NAMES if name not in self.tables()]
        if not free or not self.tables():
            return
        before, after = self.rng.choice(self.tables()), self.rng.choice(free)
        table = self.fixture.live(before)
        if table.kind == EXTERNAL or Path(str(table.location).removeprefix("file:")).exists():
            renamed = msgspec.structs.replace(table, name=after)
            self.fixture.metastore.alter_table(self.fixture.db.name, before, renamed)
            self.say("rename", before, after)

    # ---- what jobs do, and what must be so after each -------------------------------------------------------------

    def housekeep(self) -> None:
        before, everything = self.state(), self.everything()
        done = self.fixture.run(days=self.rng.choice([0, 4, OLDEST]))
        self.say("housekeeping", done.removed, "removed", done.files, "files", *done.refused, *done.failed)
        assert not done.failed
        self.check(before, everything, may_drop=True)

    def retain(self) -> None:
        before, everything = self.state(), self.everything()
        config = self.fixture.here / "retention.conf"
        config.write_text(NEWEST_ONE % (self.fixture.here / "warehouse"))
        with Retention(
            root=self.fixture.root,
            metastore=self.fixture.metastore,
            runtime=Runtime(self.engines),
            job_file=read_job(str(config)),
        ) as retention:
            done = retention.run()
        self.say("retention", done.removed, "removed of", done.versions)
        assert not done.failed
        self.check(before, everything)

    def purge(self) -> None:
        before, everything = self.state(), self.everything()
        if not any(DESCRIBED.keys() & self.fixture.live(name).parameters.keys() for name in self.tables()):
            return self.say("nothing to purge")
        rows = {place: rows_at(Path(place)) for place, files in before.values() if files}
        asked = PurgeOptions(f"{IDS}.gone:a", self.fixture.db.name, "column")
        with Purge(
            root=self.fixture.root, metastore=self.fixture.metastore, runtime=Runtime(self.engines), options=asked
        ) as purge:
            done = purge.run()
        self.say("purge", done.status, done.rows_erased, "rows in", done.partitions_swapped)
        return self.check(before, everything, erased=rows)

    def clean_up(self) -> None:
        before, everything = self.state(), self.everything()
        with Retain(
            root=self.fixture.root,
            metastore=self.fixture.metastore,
            runtime=Runtime(self.engines, clock=lambda: time.time() + OLDEST * 86_400),
            options=RetainOptions(versions=0),
        ) as retain:
            retain.run()
        self.say("purge retain")
        self.check(before, everything)

    def check(
        self,
        before: State,
        everything: dict[str, str],
        *,
        may_drop: bool = False,
        erased: dict[str, list[list[str]]] | None = None,
    ) -> None:
        """erased: the rows of each location before a purge, which replaces files where they are."""
        after = self.state()
        for name, (location, files) in before.items():
            if name not in after:
                assert may_drop, f"{name} was dropped"
                continue
            there, found = after[name]
            assert there == location and found.keys() == files.keys(), f"{name} at {location}, now at {there}"
            if found != files:
                assert erased is not None, f"files of {name} at {location}"
                assert rows_at(Path(there)) == [row for row in erased[there] if int(row[0]) not in GONE]
        now = self.everything()
        for path, digest in everything.items():
            if now.get(path) != digest and not (erased is not None and digest in now.values()):  # a backup has it
                assert self.kept(digest), f"{path} is neither there nor in $cmroot"

    # ---- what there is --------------------------------------------------------------------------------------------

    def state(self) -> State:
        """All that the metastore refers to, with its files."""
        found: State = {}
        db, metastore = self.fixture.db.name, self.fixture.metastore
        for table in metastore.tables(db, metastore.table_names(db)):
            if not table.is_partitioned:
                found[table.name, ""] = self._files(str(table.location))
                continue
            for batch in metastore.partitions(db, table.name, metastore.partition_names(db, table.name)):
                for each in batch:
                    name = partition_name(table.partition_keys, each.values)
                    found[table.name, name] = self._files(str(each.location))
        return found

    def _files(self, location: str) -> tuple[str, dict[str, str]]:
        place = location.removeprefix("file:")
        return place, {path.name: digest(path) for path in sorted(Path(place).glob("f*")) if path.is_file()}

    def everything(self) -> dict[str, str]:
        """Every file below the warehouse that is not hidden."""
        return {
            str(path): digest(path)
            for path in (self.fixture.here / "warehouse").rglob("*")
            if path.is_file() and not path.name.startswith((".", "_"))
        }

    def kept(self, wanted: str) -> bool:
        checksum, _, size = wanted.partition(":")
        return Path(locate(self.fixture.root.place, checksum, int(size))).is_file()


def digest(path: Path) -> str:
    checksum, size = checksum_file(str(path))
    return f"{checksum}:{size}"


def rows_at(place: Path) -> list[list[str]]:
    lines = [
        line
        for path in place.iterdir()
        if path.is_file() and not path.name.startswith((".", "_"))
        for line in path.read_text().splitlines()
    ]
    return sorted(line.split("\x01") for line in lines)


@pytest.mark.parametrize("seed", range(int(os.environ.get("LIVES", "1"))))
def test_jobs_take_nothing_that_is_referred_to_and_lose_nothing(
    metastore: ThriftMetastore, engines: AutoEngine, tmp_path: Path, seed: int
) -> None:
    fixture = LifecycleFixture(metastore, unique("lives"), tmp_path)
    if IDS not in metastore.database_names():
        ids = LifecycleFixture(metastore, IDS, tmp_path / "ids")
        table: dict[str, Any] = {"files": {"f": "".join(f"{number}\x01x\n" for number in GONE)}}
        ids.table("gone", **table)
    life = RandomHistory(fixture, engines, random.Random(seed))
    life.make()
    try:
        for number in range(STEPS):
            life.step()
            if number in (STEPS // 2, STEPS - 1):
                life.purge()
                life.clean_up()
        life.housekeep()
    except BaseException:
        print("\n".join(life.reported))
        raise


def test_python_functions_do_what_the_commands_do(
    metastore: ThriftMetastore, engines: AutoEngine, tmp_path: Path
) -> None:
    fixture = LifecycleFixture(metastore, unique("lives_api"), tmp_path)
    fixture.partitioned("t", ["1", "2"], **UNREFERENCED, **DESCRIBED)
    fixture.table("ids", {"f": "1\x01x\n"})
    fixture.write("t/p=1", "1\x01gone\n2\x01stays\n")
    uri, root = metastore.uri, fixture.root.place
    done = replicator.housekeeping_run(uri, root, db=[fixture.db.name], engine=engines)
    assert (done.status, done.removed) == ("done", 0)
    asked: dict[str, Any] = {"whitelist": f"{fixture.db.name}.t", "field_path": "column", "engine": engines}
    planned = replicator.purge_run(uri, root, f"{fixture.db.name}.ids:a", dry_run=True, **asked)
    assert (planned.status, planned.rows_erased) == ("planned", 1)
    purged = replicator.purge_run(uri, root, f"{fixture.db.name}.ids:a", **asked)
    assert (purged.status, purged.rows_erased, purged.partitions_swapped) == ("done", 1, 1)
    back = replicator.purge_undo(uri, root, f"{fixture.db.name}.t", "p=1")
    assert (back.status, Path(back.location.removeprefix("file:"))) == ("restored", fixture.place("t/p=1"))
    assert replicator.purge_retain(uri, root, dry_run=True, engine=engines).status == "planned"
    (tmp_path / "job.conf").write_text(NEWEST_ONE % (tmp_path / "warehouse"))
    job = str(tmp_path / "job.conf")
    assert replicator.retention_run(job, root, metastore=uri, dry_run=True, engine=engines).removed == 0
