"""Tables that Hudi's own releases have written, without Spark: two states of each, as they were at `MADE_AT`.

`python tests/support/hudi_tables.py` writes the archives again, with the Spark of `hudi_spark`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import uuid
from pathlib import Path

from plain_tables import PlainDatabase, located

from replicator.core.model import EXTERNAL, MANAGED, Column, Partition, Serde, Storage, Table

MADE_AT = "/warehouse/made.db"
ARCHIVES = Path(__file__).parent / "hudi_tables"
VERSIONS = {"9": "1.2.0", "6": "0.15.0"}  # table version -> release
KINDS = ("cow", "mor")
COLUMNS = (
    *(Column(f"_hoodie_{name}", "string") for name in ("commit_time", "commit_seqno", "record_key", "partition_path")),
    *(Column("_hoodie_file_name", "string"), Column("id", "int"), Column("name", "string"), Column("ts", "bigint")),
)
KEYS = (Column("d", "string"),)
READERS = {"cow": "org.apache.hudi.hadoop.HoodieParquetInputFormat"}
READERS["mor"] = READERS["mor_rt"] = "org.apache.hudi.hadoop.realtime.HoodieParquetRealtimeInputFormat"
READERS["mor_ro"] = READERS["cow"]


def unpack(kind: str, version: str, state: str, place: Path) -> None:
    """Makes the directory of a table as it was in a state, `first` or `last`: with the files of only that one. As
    writers do, in place: what stays is not touched."""
    aside = place.with_name(f"{place.name}.unpacked")
    with tarfile.open(ARCHIVES / f"{kind}-{version}.tar.xz") as archive:
        archive.extractall(aside, filter="data")
    wanted = {str(path.relative_to(aside / state)): path for path in (aside / state).rglob("*") if path.is_file()}
    for path in [path for path in place.rglob("*") if path.is_file()]:
        if str(path.relative_to(place)) not in wanted:
            path.unlink()
    for name, path in wanted.items():
        there = place / name
        if not there.exists() or there.read_bytes() != path.read_bytes():
            there.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, there)
    shutil.rmtree(aside)


def storage(kind: str, place: object, **serde: str) -> Storage:
    output, reader = "MapredParquetOutputFormat", "org.apache.hadoop.hive.ql.io.parquet"
    return Storage(
        columns=COLUMNS,
        location=located(place),
        input_format=READERS[kind],
        output_format=f"{reader}.{output}",
        serde=Serde(library=f"{reader}.serde.ParquetHiveSerDe", parameters=serde),
    )


def make(db: PlainDatabase, kind: str, version: str, state: str = "first", name: str = "") -> Path:
    """Makes a table as Hudi's synchronisation does: `mor` with `mor_ro` and `mor_rt`, which have the same directory.
    Returns that directory."""
    place = db.home / (name or kind)
    unpack(kind, version, state, place)
    for suffix in ("", "_ro", "_rt") if kind == "mor" else ("",):
        register(db, f"{name or kind}{suffix}", f"{kind}{suffix}", place)
    return place


def register(db: PlainDatabase, name: str, kind: str, place: Path, **parameters: str) -> None:
    external = "_r" in kind
    own = {"spark.sql.sources.provider": "hudi", **({"EXTERNAL": "TRUE"} if external else {}), **parameters}
    table = Table(
        db=db.name,
        name=name,
        kind=EXTERNAL if external else MANAGED,
        parameters=own,
        partition_keys=KEYS,
        storage=storage(kind, place, path=located(place)),
    )
    db.metastore.create_table(table)
    values = sorted(path.name.removeprefix("d=") for path in place.iterdir() if path.name.startswith("d="))
    made = [Partition(values=(value,), storage=storage(kind, place / f"d={value}")) for value in values]
    db.metastore.add_partitions(db.name, name, made)


def read(place: object) -> list[tuple[int, str, str]]:
    """The rows (id, name, d) of a table, by hudi-rs."""
    import pyarrow as pa
    from hudi import HudiTableBuilder

    found = pa.Table.from_batches(HudiTableBuilder.from_base_uri(str(place)).build().read())
    return sorted((row["id"], row["name"], row["d"]) for row in found.select(["id", "name", "d"]).to_pylist())


def make_small(db: PlainDatabase, name: str) -> Path:
    """A table without partitions for `append`; returns its directory."""
    place = db.home / name
    place.mkdir(parents=True, exist_ok=True)
    parameters = {"EXTERNAL": "TRUE", "spark.sql.sources.provider": "hudi"}
    table = Table(db=db.name, name=name, kind=EXTERNAL, parameters=parameters, storage=storage("cow", place))
    db.metastore.create_table(table)
    return Path(place)


def append(place: Path, id: int) -> None:
    """A commit of one row, as a writer of table version 6 leaves it in a table without partitions; the first one makes
    the table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    home, time = place / ".hoodie", f"20260101{id:09}"
    if not (home / "hoodie.properties").exists():
        home.mkdir(parents=True, exist_ok=True)
        (home / "hoodie.properties").write_text("".join(f"{key}={value}\n" for key, value in PROPERTIES.items()))
    group = f"{uuid.uuid5(uuid.NAMESPACE_URL, time)}-0"
    name = f"{group}_0-0-0_{time}.parquet"
    (home / f"{time}.commit.requested").write_bytes(b"")
    (home / f"{time}.inflight").write_bytes(b"")
    own = {f"_hoodie_{key}": [value] for key, value in OWN.items()}
    own |= {"_hoodie_commit_time": [time], "_hoodie_record_key": [str(id)], "_hoodie_file_name": [name]}
    pq.write_table(pa.table({**own, "id": pa.array([id], pa.int32())}), place / name)
    stat = {"fileId": group, "path": name, "prevCommit": "null", "numWrites": 1, "numInserts": 1, "partitionPath": ""}
    stat |= {"fileSizeInBytes": (place / name).stat().st_size, "totalWriteBytes": (place / name).stat().st_size}
    commit = {
        "partitionToWriteStats": {"": [stat]},
        "compacted": False,
        "extraMetadata": {"schema": json.dumps(SCHEMA)},
        "operationType": "INSERT",
    }
    aside = home / f".{time}"
    aside.write_text(json.dumps(commit))
    aside.rename(home / f"{time}.commit")


def ids(place: object) -> list[int]:
    """The ids of a table, by hudi-rs."""
    import pyarrow as pa
    from hudi import HudiTableBuilder

    found = pa.Table.from_batches(HudiTableBuilder.from_base_uri(str(place)).build().read())
    return sorted(found["id"].to_pylist())


OWN = {"commit_seqno": "0", "partition_path": ""}
PROPERTIES = {
    "hoodie.table.name": "hudi",
    "hoodie.table.type": "COPY_ON_WRITE",
    "hoodie.table.version": "6",
    "hoodie.timeline.layout.version": "1",
    "hoodie.table.recordkey.fields": "id",
    "hoodie.table.base.file.format": "PARQUET",
    "hoodie.table.metadata.partitions": "",
}
SCHEMA = {"type": "record", "name": "hudi", "fields": [{"name": "id", "type": ["null", "int"], "default": None}]}

# ---- making the archives ---------------------------------------------------------------------------------------------

SETTINGS = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.cleaner.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.parquet.small.file.limit": "0",
    "hoodie.metadata.compact.max.delta.commits": "3",
}


def write(uri: str, version: str) -> None:
    from hudi_spark import HudiSpark

    home = Path(MADE_AT)
    with HudiSpark(uri, home.parent, VERSIONS[version]) as spark:
        spark(f"create database made location '{home}'")
        for kind in KINDS:
            table = f"made.{kind}"
            properties = f"type = '{kind}', primaryKey = 'id', preCombineField = 'ts'"
            spark("set hoodie.index.bloom.num_entries=100")  # small files
            columns = "(id int, name string, ts bigint, d string)"
            spark(f"create table {table} {columns} using hudi partitioned by (d) tblproperties ({properties})")
            spark(f"insert into {table} values (1, 'a', 1, 'x'), (2, 'b', 1, 'y'), (3, 'c', 1, 'x')")
            spark(f"update {table} set name = 'z' where id = 1")
            shutil.copytree(home / kind, home / "first")
            for key, value in SETTINGS.items():
                spark(f"set {key}={value}")
            spark(f"delete from {table} where id = 2")
            for id in range(4, 8):
                spark(f"insert into {table} values ({id}, 'n', 1, 'y')")
            spark(f"insert into {table} values (9, 'rolled back', 1, 'y')")
            ((last,),) = spark(f"select max(_hoodie_commit_time) from {table}")
            spark(f"call rollback_to_instant(table => '{table}', instant_time => '{last}')")
            if kind == "mor":
                spark(f"call run_compaction(op => 'schedule', table => '{table}')")
                spark(f"call run_compaction(op => 'run', table => '{table}')")
            spark(f"call run_clustering(table => '{table}')")
            spark(f"call run_clean(table => '{table}')")
            os.rename(home / kind, home / "last")
            ARCHIVES.mkdir(exist_ok=True)
            with tarfile.open(ARCHIVES / f"{kind}-{version}.tar.xz", "w:xz") as archive:
                for state in ("first", "last"):
                    archive.add(home / state, state, filter=_own)
                    shutil.rmtree(home / state)
        spark("drop database made cascade")


def _own(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return None if info.name.endswith(".crc") else info


if __name__ == "__main__":
    for each in VERSIONS:
        write(sys.argv[1], each)
