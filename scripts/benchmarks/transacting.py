"""acid: bootstrap of a transactional table against a plain one of the same files, and against Hive's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from hive_sql import HiveSql

from benchmarks import ground
from benchmarks.measure import Outcome, interleaved, ratio, s, timed
from replicator.core.model import EXTERNAL, Column, Database, Partition, Serde, Storage, Table
from replicator.core.runtime import Runtime
from replicator.metastore.embedded import running as embedded
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.replay.apply.load import load
from replicator.replay.apply.planning import LoadSettings

PARTITIONS = {"full": 1000, "small": 200}
DELTAS = 5
TRANSACTIONAL = {"transactional": "true", "transactional_properties": "default"}
ORC = "org.apache.hadoop.hive.ql.io.orc.Orc"


def run(size: str, runs: int, directory: Path) -> Outcome:
    count = PARTITIONS[size]
    with ExitStack() as stack:
        source, target = (stack.enter_context(metastore(directory / name)) for name in ("source", "target"))
        with HiveSql(source.uri, ground.warehouse(source)) as hive:
            one = delta(source, hive)
        for db, parameters in (("acid", TRANSACTIONAL), ("plain", {})):
            _fill(source, db, parameters, count, one)

        def ours(db: str, number: int) -> float:
            root, out = directory / f"cmroot-{db}-{number}", directory / f"dump-{db}-{number}"
            replica = f"{db}_{number}"
            options = LoadSettings(cmroot=str(directory / f"target-{db}-{number}"), rename=[(db, replica)])

            def work() -> None:
                opened, _ = ground.captured(source, str(root), [db], ground.engine())
                ground.dumped(source, opened, out, [db])
                loaded = load(str(out), target, options, Runtime(ground.engine()))
                assert loaded.status == "loaded" and loaded.files_copied == 2 * DELTAS * count, loaded

            ground.settle(directory)
            seconds = timed(work)
            shutil.rmtree(root)
            return seconds

        dumping, loading = (stack.enter_context(_hive(side, directory)) for side in (source, target))
        dumping("alter database acid set dbproperties ('repl.source.for' = 'bench')")
        loading("show databases")

        def hives(number: int) -> float:
            ground.settle(directory)
            replica = f"hive_{number}"
            seconds = timed(lambda: loading(f"repl load {replica} from '{dumping('repl dump acid')[0][0]}'"))
            home = ground.warehouse(target) / f"{replica}.db"
            assert sum(1 for _ in home.glob("t/*/delta_*/bucket_00000")) == DELTAS * count
            return seconds

        ours("acid", runs)
        took = interleaved(
            runs, {"acid": lambda n: ours("acid", n), "plain": lambda n: ours("plain", n), "hive": hives}
        )
    ratios = [ratio(took["acid"], took["plain"]), "<= 1.3", ratio(took["acid"], took["hive"])]
    headers = ["partitions", "transactional", "plain, same files", "Hive's REPL", "transactional / plain", "wanted"]
    row = [f"{count:,}", *(s(took[each]) for each in ("acid", "plain", "hive")), *ratios]
    remarks = [
        f"{DELTAS} deltas in each partition, 2 files in each delta; capture, dump and load. Hive 3.1.",
        "Hive's REPL DUMP and LOAD run in JVMs that are warm; they copy one of the two files of each delta.",
    ]
    return Outcome([*headers, "transactional / Hive's"], [row], remarks)


def _hive(side: ThriftMetastore, directory: Path) -> HiveSql:
    settings = {"hive.repl.rootdir": f"file:{directory}/repl", "hive.repl.dump.include.acid.tables": "true"}
    return HiveSql(side.uri, ground.warehouse(side), **settings)


@contextmanager
def metastore(directory: Path) -> Iterator[ThriftMetastore]:
    try:
        running = embedded.start(directory, hive="3.1", host="0.0.0.0", env=os.environ)
        with connect(running.uri) as client:
            yield client
    finally:
        embedded.stop(directory)


def delta(source: ThriftMetastore, hive: HiveSql) -> dict[str, bytes]:
    """The files of one delta, as Hive writes them."""
    hive(
        "create table one (id int, name string) stored as orc tblproperties('transactional'='true')",
        "insert into one values (1, 'a')",
    )
    place = next((ground.warehouse(source) / "one").glob("delta_*"))
    return {path.name: path.read_bytes() for path in place.iterdir() if path.name[0] != "."}


def create(source: ThriftMetastore, db: str, name: str, parameters: dict[str, str], keys: str = "") -> Storage:
    """A table of a database that exists; returns its storage."""
    home = ground.warehouse(source) / f"{db}.db"
    storage = Storage(
        columns=(Column(name="id", type="int"), Column(name="name", type="string")),
        location=f"file:{home}/{name}",
        input_format=f"{ORC}InputFormat",
        output_format=f"{ORC}OutputFormat",
        serde=Serde(library=f"{ORC}Serde", parameters={"serialization.format": "1"}),
    )
    (home / name).mkdir(parents=True)
    by = (Column(name=keys, type="string"),) if keys else ()
    kind = {} if parameters else {"kind": EXTERNAL}
    source.create_table(
        Table(db=db, name=name, owner="bench", storage=storage, partition_keys=by, parameters=parameters, **kind)
    )
    return storage


def write(place: Path, files: dict[str, bytes], number: int) -> None:
    """Deltas with these files."""
    for each in range(1, DELTAS + 1):
        directory = place / f"delta_{each:07}_{each:07}_0000"
        directory.mkdir(parents=True)
        for name, data in files.items():
            (directory / name).write_bytes(data if name[0] == "_" else data + b"%d-%d" % (number, each))


def _fill(source: ThriftMetastore, db: str, parameters: dict[str, str], count: int, files: dict[str, bytes]) -> None:
    home = ground.warehouse(source) / f"{db}.db"
    source.create_database(Database(name=db, location=f"file:{home}"))
    storage = create(source, db, "t", parameters, "p")
    if parameters:
        source.set_write_ids(db, "t", DELTAS)
    made = []
    for number in range(count):
        place = home / "t" / f"p={number:05}"
        write(place, files, number)
        own = msgspec.structs.replace(storage, location=f"file:{place}")
        made.append(Partition(values=(f"{number:05}",), storage=own))
    for start in range(0, count, ground.BATCH):
        source.add_partitions(db, "t", made[start : start + ground.BATCH])
