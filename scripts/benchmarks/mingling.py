"""formats: a warehouse of plain, Delta, Iceberg, Hudi and transactional tables, as many of each, against one of plain
tables that have the same files: bootstrap, one commit in a table of each format, and nothing new."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import deltalake
import msgspec
import pyarrow as pa
from hive_sql import HiveSql
from hudi_tables import register, unpack
from plain_tables import PlainDatabase
from pyiceberg.catalog.hive import HiveCatalog

from benchmarks import ground, transacting
from benchmarks.measure import Outcome, ratio, s, timed
from replicator.core.model import EXTERNAL, Column, Storage, Table
from replicator.core.runtime import Runtime
from replicator.metastore.thrift import ThriftMetastore
from replicator.replay.apply.load import load
from replicator.replay.apply.planning import LoadSettings

TABLES = {"full": 20, "small": 4}  # of each format
COMMITS = 5
PHASES = {"bootstrap": 1.5, "one commit in a table of each format": 1.3, "idle": 1.1}
ROWS = pa.table({"id": pa.array([1], pa.int64()), "name": ["a"]})
IDLE = 5  # increments of nothing in a run: one is as short as what else a machine does
SIDES = ("mingled", "plain")


def run(size: str, runs: int, directory: Path) -> Outcome:
    with ExitStack() as stack:
        source, target = (stack.enter_context(transacting.metastore(directory / name)) for name in ("source", "target"))
        hive = stack.enter_context(HiveSql(source.uri, ground.warehouse(source)))
        mingled, twin = _Mingled(source, hive, TABLES[size]), _Twin(source)
        twin.follow(mingled.home)
        took: dict[tuple[str, str], list[float]] = {(side, phase): [] for side in SIDES for phase in PHASES}
        for number in range(runs + 1):  # the first one warms
            replicas = [_Replica(source, target, side, directory, number) for side in SIDES]
            for phase in PHASES:
                if phase.startswith("one"):
                    mingled.commit()
                    twin.follow(mingled.home)
                for turn in range(IDLE if phase == "idle" else 1):
                    for each in replicas if (number + turn) % 2 == 0 else reversed(replicas):
                        seconds = each.step(directory)
                        took[each.side, phase] += [seconds] if number else []
            for each in replicas:
                each.remove()
    outcome = Outcome(["", "five formats", "plain, same files", "ratio", "wanted"])
    for phase, wanted in PHASES.items():
        ours, plain = took["mingled", phase], took["plain", phase]
        outcome.rows.append([phase, s(ours), s(plain), ratio(ours, plain), f"<= {wanted}"])
    outcome.remarks.append(
        f"{TABLES[size]} tables of each format, {twin.files:,} files in the end; capture, dump and load. Hive 3.1."
    )
    return outcome


class _Mingled:
    """The warehouse of all formats."""

    def __init__(self, source: ThriftMetastore, hive: HiveSql, count: int) -> None:
        self._source, self._hive, self._number = source, hive, 0
        self.home = ground.create_database(source, SIDES[0])
        self._catalog = HiveCatalog("bench", uri=source.uri)
        delta = transacting.delta(source, hive)
        makes: list[Callable[[str], None]] = [self._plain, self._delta, self._iceberg, self._hudi]
        for number in range(count):
            for make in makes:
                make(f"{make.__name__.strip('_')}{number:02}")
            self._transactional(f"acid{number:02}", delta)

    def commit(self) -> None:
        """One more commit in the first table of each format."""
        self._number += 1
        (self.home / "plain00" / f"part-{COMMITS + self._number}").write_text("more")
        deltalake.write_deltalake(str(self.home / "delta00"), ROWS, mode="append")
        self._catalog.load_table(f"{SIDES[0]}.iceberg00").append(ROWS)
        unpack("cow", "9", "last" if self._number % 2 else "first", self.home / "hudi00")
        self._hive(f"insert into {SIDES[0]}.acid00 values ({self._number}, 'a')")

    def _plain(self, name: str) -> None:
        _plain(self._source, SIDES[0], self.home / name)
        for number in range(COMMITS):
            (self.home / name / f"part-{number}").write_text(f"{name} {number}")

    def _delta(self, name: str) -> None:
        for _ in range(COMMITS):
            deltalake.write_deltalake(str(self.home / name), ROWS, mode="append")
        _plain(self._source, SIDES[0], self.home / name, **{"spark.sql.sources.provider": "delta"})

    def _iceberg(self, name: str) -> None:
        location = f"file://{self.home}/{name}"
        made = self._catalog.create_table(f"{SIDES[0]}.{name}", ROWS.schema, location=location)
        for _ in range(COMMITS):
            made.append(ROWS)

    def _hudi(self, name: str) -> None:
        unpack("cow", "9", "first", self.home / name)
        register(PlainDatabase(self._source, SIDES[0], self.home.parent), name, "cow", self.home / name)

    def _transactional(self, name: str, delta: dict[str, bytes]) -> None:
        transacting.create(self._source, SIDES[0], name, transacting.TRANSACTIONAL)
        self._source.set_write_ids(SIDES[0], name, transacting.DELTAS)
        transacting.write(self.home / name, delta, 0)


class _Twin:
    """A warehouse of plain tables, whose directories have the files of another one under names that mean nothing."""

    def __init__(self, source: ThriftMetastore) -> None:
        self._source, self.home, self.files = source, ground.create_database(source, SIDES[1]), 0

    def follow(self, home: Path) -> None:
        self.files, wanted = 0, set[Path]()
        for path in (path for path in home.rglob("*") if path.is_file() and path.suffix != ".crc"):
            own = self.home.joinpath(*(_visible(part) for part in path.relative_to(home).parts))
            wanted.add(own)
            if not own.exists() or own.stat().st_size != path.stat().st_size:
                own.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, own)
        for gone in [path for path in self.home.rglob("*") if path.is_file() and path not in wanted]:
            gone.unlink()
        self.files = len(wanted)
        for place in sorted(self.home.iterdir()):
            if place.name not in self._source.table_names(SIDES[1]):
                _plain(self._source, SIDES[1], place)


class _Replica:
    """A replica of one side, and its increments."""

    def __init__(self, source: ThriftMetastore, target: ThriftMetastore, side: str, directory: Path, number: int):
        self._source, self._target, self.side = source, target, side
        self._here = directory / f"{side}-{number}"
        self._here.mkdir()
        more = {"cmroot": str(self._here / "target"), "rename": [(side, f"{side}_{number}")]}
        self._options, self._numbers, self._dump = LoadSettings(**more), itertools.count(), ""

    def step(self, directory: Path) -> float:
        """Captures, dumps and loads what is new; the seconds."""
        out = self._here / f"dump{next(self._numbers)}"

        def work() -> None:
            opened, _ = ground.captured(self._source, str(self._here / "cmroot"), [self.side], ground.engine())
            ground.dumped(self._source, opened, out, [self.side], since=self._dump or None)
            loaded = load(str(out), self._target, self._options, Runtime(ground.engine()))
            assert loaded.status.endswith("loaded") and not loaded.not_replicated, loaded

        ground.settle(directory)
        seconds = timed(work)
        self._dump = str(out)
        return seconds

    def remove(self) -> None:
        shutil.rmtree(self._here)


def _visible(part: str) -> str:
    return f"v{part}" if part[0] in "._" else part


def _plain(source: ThriftMetastore, db: str, place: Path, **parameters: str) -> None:
    place.mkdir(parents=True, exist_ok=True)
    columns = (Column(name="id", type="bigint"), Column(name="name", type="string"))
    storage = msgspec.structs.replace(ground.storage(place), columns=columns)
    source.create_table(_table(db, place.name, storage, parameters))


def _table(db: str, name: str, storage: Storage, parameters: dict[str, str]) -> Table:
    given = {"EXTERNAL": "TRUE", **parameters}
    return Table(db=db, name=name, owner="bench", kind=EXTERNAL, storage=storage, parameters=given)
