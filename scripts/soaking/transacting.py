"""Tables of all formats for ten minutes: Hive writes two transactional tables in each transaction, rolls some back and
compacts; then the same row goes to an Iceberg table, whose snapshots expire, to a Delta table, which is optimized and
vacuumed, and to a plain one. Spark writes two Iceberg tables, with deletes by row, compaction and expiry, and a Hudi
table, merge on read, with compaction, clustering, cleaning and archival. `replicator sync --follow` is killed at
random; Hive, PyIceberg, delta-rs, hudi-rs and Spark read the replica.

Exit 1 if a reader meets an error or a state that the source never had, or if both sides differ at the end."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar

import deltalake
from acid_tables import COMPACTING, AcidLab
from hive_sql import HiveSql, Refused
from hudi_spark import HudiSpark
from hudi_tables import read as read_hudi
from iceberg_spark import IcebergSpark
from iceberg_tables import catalog, expire, make, replica, rows, shown
from postgres import running_postgres

from replicator.core.model import EXTERNAL
from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.running import Running
from soaking import row_deletes

BOTH = "from (select {0} as id, 'n{0}' as name) q insert into table {{db}}.t select id, name"
UNPAIRED = "select t.id, u.id from {db}.t full outer join {db}.u on t.id = u.id where t.id is null or u.id is null"
SHOWN = 20  # faults that are printed
LOOKS = 5  # at both sides in the end
IN_JOBS = {"hive.fetch.task.conversion": "none"}  # others read after their transaction has ended (HIVE-25976)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/soak_formats", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--kill-every", type=float, default=20.0, help="seconds between kills, on average")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-acid-")))
        postgres = stack.enter_context(running_postgres())  # in Derby, writers block each other
        source = stack.enter_context(_metastore(place / "source", COMPACTING | postgres.jdbc()))
        target = stack.enter_context(_metastore(place / "target", postgres.jdbc()))
        sides = (source, target)
        hives = [stack.enter_context(HiveSql(each.uri, Path(each.warehouse), **IN_JOBS)) for each in sides]
        lab = AcidLab(source, target, hives[0], hives[1], place).of_policy()
        lab.make("t")
        lab.make("u")
        lab.run(BOTH.format(0) + " insert into table {db}.u select id, name")
        make(lab, "i", db="a").append(rows(0))
        lab.db("a").table("p", {_name(0): "row"})
        _make_delta(lab)
        sparks = [stack.enter_context(IcebergSpark(each.uri, Path(each.warehouse))) for each in (source, target)]
        hudi = stack.enter_context(HudiSpark(source.uri, Path(source.warehouse)))
        soak = Soak(lab, sparks[0], sparks[1], _Hudi(hudi, f"{lab.name}_a"), random.Random(asked.seed))
        assert lab.sync().status == "synced"
        result = soak.run(asked.seconds, asked.kill_every)
    print(json.dumps(result, indent=1))
    sys.exit(1 if result["faults"] or result["different"] else 0)


@contextmanager
def _metastore(directory: Path, settings: dict[str, str]) -> Iterator[Running]:
    try:
        yield embedded.start(directory, hive="3.1", host="0.0.0.0", settings=settings, env=os.environ)
    finally:
        embedded.stop(directory)


def _name(number: int) -> str:
    return f"{number:06}"


def _make_delta(lab: AcidLab) -> None:
    lab.db("a").table("d", kind=EXTERNAL)
    lab.db("a").alter("d", **{"spark.sql.sources.provider": "delta"})
    deltalake.write_deltalake(str(lab.db("a").home / "d"), rows(0))


class _Hudi:
    """A Hudi table, merge on read, that is maintained as it is written."""

    SETTINGS: ClassVar = {
        "hoodie.compact.inline": "true",
        "hoodie.compact.inline.max.delta.commits": "3",
        "hoodie.clustering.inline": "true",
        "hoodie.clustering.inline.max.commits": "4",
        "hoodie.clean.commits.retained": "2",
        "hoodie.keep.min.commits": "4",
        "hoodie.keep.max.commits": "6",
        "hoodie.metadata.compact.max.delta.commits": "4",
    }

    def __init__(self, spark: HudiSpark, db: str) -> None:
        self._spark, self._table, self.written = spark, f"{db}.h", 0
        properties = "type = 'mor', primaryKey = 'id', preCombineField = 'ts'"
        columns = "(id int, name string, ts bigint, d string)"
        spark(f"create table {self._table} {columns} using hudi partitioned by (d) tblproperties ({properties})")
        for key, value in self.SETTINGS.items():
            spark(f"set {key}={value}")
        spark(f"insert into {self._table} values (0, 'n', 0, 'p0')")

    def write(self) -> None:
        number = self.written + 1
        self._spark(f"insert into {self._table} values ({number}, 'n', {number}, 'p{number % 2}')")
        self.written = number
        if number % 3 == 0:
            self._spark(f"update {self._table} set name = 'changed' where id = {number // 2}")


class Soak:
    def __init__(
        self, lab: AcidLab, here: IcebergSpark, there: IcebergSpark, hudi: _Hudi, chance: random.Random
    ) -> None:
        """here, there: sessions of Spark on the source and on the target."""
        self._lab, self._here, self._there, self._hudi, self._chance = lab, here, there, hudi, chance
        self._end = threading.Event()
        self._written = self._reads = self._spark_reads = self._kills = self._compactions = self._expiries = 0
        self._vacuums = self._file_reads = self._repeated = 0
        self._iceberg = catalog(lab.source_uri).load_table(f"{lab.name}_a.i")
        place, own = f"file://{lab.db('a').home}", random.Random(chance.random())
        self._tables = [
            row_deletes.Written(here, f"{lab.name}_a", version, place, own) for version in row_deletes.VERSIONS
        ]
        self._faults: list[str] = []

    def run(self, seconds: int, kill_every: float) -> dict[str, object]:
        works = (self._write, self._write_by_spark, self._write_hudi, self._read, self._read_files, self._read_by_spark)
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        self._follow(time.monotonic() + seconds, kill_every)
        self._end.set()
        for thread in threads:
            thread.join()
        for _ in range(LOOKS):  # the source's compactions go on
            statuses = [self._lab.sync().status for _ in range(2)]
            if not (different := self._different()):
                break
        return {
            "transactions": self._written,
            "compactions": self._compactions,
            "expiries": self._expiries,
            "kills": self._kills,
            "reads": self._reads,
            "spark": {
                "commits": sum(each.commits for each in self._tables),
                "compactions": sum(each.compactions for each in self._tables),
                "expiries": sum(each.expiries for each in self._tables),
                "reads": self._spark_reads,
            },
            "delta": {"commits": self._written, "vacuums": self._vacuums},
            "hudi": {"commits": self._hudi.written},
            "reads of delta and hudi": self._file_reads,
            "of them repeated after a vacuum": self._repeated,
            "faults": self._faults[:SHOWN],
            "last runs": statuses,
            "different": different,
        }

    def _different(self) -> list[str]:
        """Names the tables of which the replica shows other rows, and what `verify` finds."""
        wanted = list(range(self._written + 1))
        same = {name: self._lab.shown(name) == self._lab.rows(name) for name in ("t", "u")}
        same["i"] = shown(replica(self._lab, "i", db="a")) == wanted
        same["p"] = self._plain() == [*map(_name, wanted)]
        same["d"] = self._delta() == wanted
        same["h"] = self._hudi_ids() == list(range(self._hudi.written + 1))
        same |= {each.name: row_deletes.same(self._here, self._there, each) for each in self._tables}
        verified = self._lab.verified()
        found = [] if verified.code == 0 else [str(verified)[:2000]]
        return [*(name for name, is_same in same.items() if not is_same), *found]

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._faults.append(f"{work.__name__}: {error!r}"[:500])

    def _write(self) -> None:
        while not self._end.is_set():
            number = self._written + 1
            self._lab.run(BOTH.format(number) + " insert into table {db}.u select id, name")
            self._iceberg.refresh().append(rows(number))
            self._lab.db("a").write("p", {_name(number): "row"})
            self._lab.db("a").alter("p", last=str(number))
            place = str(self._lab.db("a").home / "d")
            deltalake.write_deltalake(place, rows(number), mode="append")
            self._written = number
            if number % 8 == 0:
                deltalake.DeltaTable(place).optimize.compact()
                deltalake.DeltaTable(place).vacuum(0, dry_run=False, enforce_retention_duration=False)
                self._vacuums += 1
            if number % 7 == 0:
                expire(self._iceberg.refresh())
                self._expiries += 1
            if number % 4 == 0:
                self._lab.run(f"update {{db}}.t set name = 'changed' where id = {self._chance.randrange(number)}")
            if number % 6 == 0:
                self._lab.rolled_back(BOTH.format(-1))
            if number % 10 == 0:
                kind = self._chance.choice(["minor", "major"])
                self._lab.run(f'alter table {{db}}.{self._chance.choice("tu")} compact "{kind}"')
                self._compactions += 1

    def _write_hudi(self) -> None:
        while not self._end.is_set():
            self._hudi.write()

    def _read_files(self) -> None:
        while not self._end.is_set():
            for name, read in (("d", self._delta), ("h", self._hudi_ids)):
                try:
                    if (ids := read()) != list(range(len(ids))) or not ids:
                        self._faults.append(f"{name} shows {ids}"[:500])
                except Exception as error:
                    self._faults.append(f"read of {name}: {error}"[:500])
            self._file_reads += 1

    def _delta(self) -> list[int]:
        """A vacuum without retention fails readers that began before it, at the source too: such a read is repeated."""
        place = str(self._lab.replica("a").home / "d")
        try:
            found = deltalake.DeltaTable(place).to_pyarrow_table()
        except FileNotFoundError:
            self._repeated += 1
            found = deltalake.DeltaTable(place).to_pyarrow_table()
        return sorted(found["id"].to_pylist())

    def _hudi_ids(self) -> list[int]:
        return [id for id, _, _ in read_hudi(self._lab.replica("a").home / "h")]

    def _write_by_spark(self) -> None:
        while not self._end.is_set():
            for table in self._tables:
                table.write()

    def _read_by_spark(self) -> None:
        seen = [row_deletes.Seen(self._there, table) for table in self._tables]
        while not self._end.is_set():
            for each in seen:
                try:
                    if fault := each.fault():
                        self._faults.append(fault[:500])
                except AssertionError as error:
                    self._faults.append(f"Spark's read: {error}"[:500])
                self._spark_reads += 1

    def _read(self) -> None:
        while not self._end.is_set():
            try:
                for name in ("t", "u"):
                    ids = self._lab.ids(name)
                    if ids != list(range(len(ids))):
                        self._faults.append(f"{name} shows {ids}"[:500])
                if unpaired := self._lab.run_there(UNPAIRED):
                    self._faults.append(f"in one table only: {unpaired}"[:500])
                ids = shown(replica(self._lab, "i", db="a"))
                if ids != list(range(len(ids))):
                    self._faults.append(f"i shows {ids}"[:500])
                if (names := self._plain()) != [_name(each) for each in range(len(names))]:
                    self._faults.append(f"p shows {names}"[:500])
            except (Refused, OSError) as error:
                self._faults.append(f"read: {error}"[:500])
            self._reads += 1

    def _plain(self) -> list[str]:
        place = self._lab.replica("a").home / "p"
        return sorted(path.name for path in place.iterdir() if path.name[0] not in "._")

    def _follow(self, end: float, kill_every: float) -> None:
        command = [sys.executable, "-m", "replicator", "--config", str(self._lab.config()), "sync", self._lab.name]
        while time.monotonic() < end:
            process = subprocess.Popen(
                [*command, "--follow", "--interval", "1s"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                process.wait(min(self._chance.expovariate(1 / kill_every), max(0.1, end - time.monotonic())))
                self._faults.append(f"sync ended with {process.returncode}")
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self._kills += 1


if __name__ == "__main__":
    main()
