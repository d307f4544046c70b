"""The ground that benchmarks stand on: a metastore of their own, wide tables, files, engines."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from postgres import running_postgres

from cmroot.root import ChangeRoot, create_or_open
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.dumps.dump import Dumped, DumpSettings, write_dump
from replicator.captures.recording import Captured
from replicator.core.engine import AutoEngine, LocalEngine
from replicator.core.model import Column, Database, Partition, Serde, Storage, Table
from replicator.core.runtime import Runtime
from replicator.core.spark import SparkEngine
from replicator.metastore.embedded import running as embedded
from replicator.metastore.java import find_java, spark_environment
from replicator.metastore.thrift import ThriftMetastore, connect

COLUMNS = tuple(Column(name=f"column_{number:02d}", type="string", comment=f"no {number}") for number in range(20))
KEYS = (Column(name="day", type="string"),)
PARQUET = "org.apache.hadoop.hive.ql.io.parquet"
BATCH = 1000


@contextlib.contextmanager
def metastore(directory: Path, name: str = "metastore", hive: str = "2.3") -> Iterator[ThriftMetastore]:
    """A real metastore with its warehouse in `directory`, stopped in the end. hive: its version; those after 2.3 have
    a PostgreSQL database."""
    with _database(hive) as settings:
        try:
            running = embedded.start(directory / name, hive=hive, settings=settings, env=os.environ)
            with connect(running.uri) as client:
                yield client
        finally:
            embedded.stop(directory / name)


@contextlib.contextmanager
def _database(hive: str) -> Iterator[dict[str, str]]:
    if hive == "2.3":
        yield {}
        return
    with running_postgres() as server:
        yield server.jdbc()


def warehouse(client: ThriftMetastore) -> Path:
    location = client.database("default").location
    assert location
    return Path(location.removeprefix("file:"))


def engine(choice: str = "local") -> AutoEngine:
    """`choice` as for a load; Spark with two threads, and not started before it is used."""
    return AutoEngine(LocalEngine(), spark(), choice)


def spark() -> SparkEngine:
    return SparkEngine("local[2]", environment=_environment())


@cache
def _environment() -> Mapping[str, str]:
    """Looked for once: a Java that is asked for its version takes 30 ms, which would count as a dump's."""
    return spark_environment(find_java(os.environ))


def warm(spark_engine: SparkEngine) -> float:
    """Starts Spark and its Python workers; the seconds that the start took."""
    list(spark_engine.run(_import_copying, range(2)))
    return spark_engine.start_seconds


def _import_copying(_: int) -> int:
    import replicator.replay.apply.copy_task as copying

    return len(copying.__doc__ or "")


def create_database(client: ThriftMetastore, db: str) -> Path:
    place = warehouse(client) / f"{db}.db"
    client.create_database(Database(name=db, location=f"file:{place}"))
    return place


def storage(location: Path) -> Storage:
    return Storage(
        columns=COLUMNS,
        location=f"file:{location}",
        input_format=f"{PARQUET}.MapredParquetInputFormat",
        output_format=f"{PARQUET}.MapredParquetOutputFormat",
        serde=Serde(library=f"{PARQUET}.serde.ParquetHiveSerDe", parameters={"serialization.format": "1"}),
    )


def create_table(client: ThriftMetastore, db: str, name: str, *, partitioned: bool = True) -> Path:
    """A managed table of 20 columns; its directory."""
    place = warehouse(client) / f"{db}.db" / name
    place.mkdir(parents=True, exist_ok=True)
    keys = KEYS if partitioned else ()
    client.create_table(Table(db=db, name=name, owner="bench", storage=storage(place), partition_keys=keys))
    return place


def partition(place: Path, value: str, files: int = 1) -> Partition:
    """A partition as the metastore describes one that Spark wrote."""
    parameters = {
        "numFiles": str(files),
        "totalSize": str(files * 1000),
        "transient_lastDdlTime": "1700000000",
        "numRows": "-1",
        "rawDataSize": "-1",
    }
    return Partition(
        values=(value,), create_time=1_700_000_000, storage=storage(place / f"day={value}"), parameters=parameters
    )


def add_partitions(
    client: ThriftMetastore, db: str, name: str, place: Path, values: Sequence[str], files: int = 1
) -> None:
    """Directories first: the metastore makes them one by one, and slowly."""
    for value in values:
        (place / f"day={value}").mkdir(exist_ok=True)
    for start in range(0, len(values), BATCH):
        client.add_partitions(db, name, [partition(place, value, files) for value in values[start : start + BATCH]])


def small_files(directory: Path, first: int, count: int) -> None:
    """Files of 20 bytes, no two alike over all calls with different numbers."""
    for number in range(first, first + count):
        descriptor = os.open(f"{directory}/part-{number:08d}.parquet", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.write(descriptor, b"%020d" % number)
        os.close(descriptor)


def captured(
    client: ThriftMetastore, root: str, databases: Sequence[str], engine: AutoEngine, *, paced: bool = False
) -> tuple[ChangeRoot, Captured]:
    opened = create_or_open(root)
    return opened, capture(client, opened, CaptureSettings(databases, paced=paced), Runtime(engine))


def dumped(
    client: ThriftMetastore, root: ChangeRoot, out: Path, databases: Sequence[str], since: str | None = None
) -> Dumped:
    return write_dump(root, str(out), DumpSettings(client.uri, databases, since=since), Runtime(engine()))


def settle(directory: Path) -> None:
    """Nothing dirty is left of what came before: what was removed, too, weighs on the next one's syncs."""
    subprocess.run(["sync", "-f", str(directory)], check=True)


def peak() -> float:
    """Peak resident memory of this process in MB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0
