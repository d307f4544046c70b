"""Dumps and `$cmroot` on an object store: a real S3 endpoint in this process's reach, spoken to as users would."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from cmroot.place import store_for
from cmroot.root import create_or_open
from replicator import api
from replicator.engine import AutoEngine, LocalEngine, SparkEngine
from replicator.load.carrying import CarryTask, run_carry_task
from replicator.load.copying import Roots, remove_file
from replicator.load.superseded import Superseded, close_superseded, note_superseded, sweep_superseded
from replicator.metastore.embedded import Running
from replicator.metastore.thrift import connect
from replicator.model import Column, Database, Partition, Serde, Storage, Table

pytest.importorskip("s3fs", reason="the s3 extra is not installed")
server = pytest.importorskip("moto.server", reason="moto is not installed")
TEXT = "org.apache.hadoop.mapred.TextInputFormat"
OUTPUT = "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat"
LAZY = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    running = server.ThreadedMotoServer(port=0)
    running.start()
    host, port = running.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    before = dict(os.environ)
    os.environ.update(settings)
    import s3fs

    s3fs.S3FileSystem(skip_instance_cache=True).mkdir("replicas")
    yield "s3a://replicas"
    os.environ.clear()
    os.environ.update(before)
    running.stop()


@pytest.fixture(scope="module")
def engine() -> Iterator[AutoEngine]:
    engine = AutoEngine(LocalEngine(2), SparkEngine(), "local")
    yield engine
    engine.stop()


def write_partition(source: Running, day: str, text: str) -> None:
    """One partition of `store.log` with one file, as a writer beside the metastore leaves it."""
    location = source.warehouse / "store.db" / "log" / f"day={day}"
    location.mkdir(parents=True)
    (location / "part-0").write_text(text)
    with connect(source.uri) as metastore:
        metastore.add_partitions("store", "log", [Partition(values=(day,), storage=storage(f"file:{location}"))])


def storage(location: str) -> Storage:
    return Storage(
        columns=(Column(name="line", type="string"),), location=location, input_format=TEXT, output_format=OUTPUT,
        serde=Serde(library=LAZY),
    )  # fmt: skip


def test_a_dump_and_its_cmroot_on_s3_load_what_the_source_no_longer_has(
    source_metastore: Running, target_metastore: Running, bucket: str, engine: AutoEngine, tmp_path: Path
) -> None:
    cmroot = f"{bucket}/cmroot"
    sides = {"source": source_metastore.uri, "db": "store", "cmroot": cmroot, "engine": engine}
    home = source_metastore.warehouse / "store.db"
    with connect(source_metastore.uri) as source:
        source.create_database(Database(name="store", location=f"file:{home}"))
        keys = (Column(name="day", type="string"),)
        source.create_table(Table(db="store", name="log", storage=storage(f"file:{home}/log"), partition_keys=keys))
    write_partition(source_metastore, "1", "first")
    first = api.dump(out=f"{bucket}/dumps/1", **sides)
    assert (first.status, first.files) == ("dumped", 1)
    (home / "log" / "day=1" / "part-0").unlink()  # and the bytes are kept, by a copy

    loaded = api.load(first.dump, target=target_metastore.uri, engine=engine)

    assert (loaded.files_copied, loaded.files_from_cmroot) == (1, 1)
    copied = target_metastore.warehouse / "store.db" / "log" / "day=1" / "part-0"
    assert copied.read_text() == "first"

    write_partition(source_metastore, "2", "second")
    second = api.dump(out=f"{bucket}/dumps/2", since=first.dump, **sides)
    api.load(second.dump, target=target_metastore.uri, engine=engine)
    verified = api.verify(source=source_metastore.uri, target=target_metastore.uri, db="store", engine=engine)
    assert verified.differences == []
    assert not copied.exists()


def test_a_snapshot_on_s3_is_carried_by_the_store_and_what_it_replaced_is_kept_once(
    bucket: str, source_metastore: Running
) -> None:
    root = create_or_open(f"{bucket}/snapshots/.cmroot").place
    old, new = f"{bucket}/snapshots/log", f"{bucket}/snapshots/.published/1/a.log"
    store = store_for(old)
    for name in ("same", "replaced", "removed"):
        store.write_bytes(f"{old}/{name}", name.encode())
    note_superseded(root, "1", [Superseded(old, "a", "log", successor=new)])
    assert run_carry_task(CarryTask([(old, new)])) == 3
    assert run_carry_task(CarryTask([(old, new)])) == 0  # again, after a kill
    roots = Roots(root, root)
    store.write_bytes(f"{new}/replaced", b"another")
    assert remove_file(f"{new}/removed", roots, private=True)
    assert store.list(old) == ["removed", "replaced", "same"]
    close_superseded(root, "1", now=0.0)
    with connect(source_metastore.uri) as metastore:
        swept = sweep_superseded(root, metastore, timedelta(seconds=1), now=lambda: 2.0)
    assert (swept.directories, swept.files, store.list(old), store.list(new)) == (1, 2, [], ["replaced", "same"])
    kept = [store.read_bytes(f"{root}/files/{name}") for name in store.find(f"{root}/files")]
    assert sorted(kept) == [b"removed", b"replaced"]
