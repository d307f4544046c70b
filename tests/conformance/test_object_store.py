"""Dumps and `$cmroot` on an object store: a real S3 endpoint in this process's reach, spoken to as users would."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engines import local_engine
from names import unique
from plain_tables import PlainDatabase, text_storage

import replicator
from cmroot.errors import LeaseHeld
from cmroot.lease import Holder
from cmroot.log.captured import segments
from cmroot.root import create_or_open
from cmroot.store.listing import file_state
from cmroot.store.place import Place
from replicator.core.engine import AutoEngine
from replicator.core.model import Column, Database, Partition, Table
from replicator.core.runtime import Advance, Progress, Silent
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.replay.apply.copying import remove_file
from replicator.replay.apply.origins import Roots
from replicator.replay.apply.transfer import CloneTask, run_clone_task
from replicator.replay.retired import Retired, close_retired, note_retired, sweep_retired


@pytest.fixture(scope="module")
def engine() -> Iterator[AutoEngine]:
    engine = local_engine()
    yield engine
    engine.stop()


def write_partition(source: Running, db: str, day: str, text: str) -> None:
    """One partition of the table `log` with one file, as a writer beside the metastore leaves it."""
    location = source.warehouse / f"{db}.db" / "log" / f"day={day}"
    location.mkdir(parents=True)
    (location / "part-0").write_text(text)
    with connect(source.uri) as metastore:
        metastore.add_partitions(db, "log", [Partition(values=(day,), storage=text_storage(f"file:{location}"))])


def test_a_dump_and_its_cmroot_on_s3_load_what_the_source_no_longer_has(
    source_metastore: Running, target_metastore: Running, bucket: str, engine: AutoEngine, tmp_path: Path
) -> None:
    cmroot, db = f"{bucket}/cmroot", unique("store")
    sides = {"source": source_metastore.uri, "db": db, "cmroot": cmroot, "engine": engine}
    home = source_metastore.warehouse / f"{db}.db"
    with connect(source_metastore.uri) as source:
        source.create_database(Database(name=db, location=f"file:{home}"))
        keys = (Column(name="day", type="string"),)
        source.create_table(Table(db=db, name="log", storage=text_storage(f"file:{home}/log"), partition_keys=keys))
    write_partition(source_metastore, db, "1", text := db.rjust(12))  # the target keeps those of all
    first = replicator.dump(out=f"{bucket}/dumps/1", **sides)
    assert (first.status, first.files) == ("dumped", 1)
    (home / "log" / "day=1" / "part-0").unlink()  # and the bytes are kept, by a copy

    loaded = replicator.load(first.dump, target=target_metastore.uri, engine=engine)

    assert (loaded.files_copied, loaded.files_from_cmroot) == (1, 1)
    copied = target_metastore.warehouse / f"{db}.db" / "log" / "day=1" / "part-0"
    assert copied.read_text() == text

    write_partition(source_metastore, db, "2", "second")
    second = replicator.dump(out=f"{bucket}/dumps/2", since=first.dump, **sides)
    replicator.load(second.dump, target=target_metastore.uri, engine=engine)
    verified = replicator.verify(source=source_metastore.uri, target=target_metastore.uri, db=db, engine=engine)
    assert verified.differences == []
    assert not copied.exists()


def test_a_snapshot_on_s3_is_carried_by_the_store_and_what_it_replaced_is_kept_once(
    bucket: str, source_metastore: Running
) -> None:
    root = create_or_open(f"{bucket}/snapshots/.cmroot").place
    old, new = f"{bucket}/snapshots/log", f"{bucket}/snapshots/.published/1/a.log"
    for name in ("same", "replaced", "removed"):
        Place(f"{old}/{name}").write_bytes(name.encode())
    note_retired(root, "1", [Retired(old, "a", "log", successor=new)])
    assert not run_clone_task(CloneTask(root, [(old, new)])) and len(Place(new).list()) == 3
    identities = [file_state(f"{new}/{name}") for name in Place(new).list()]
    assert not run_clone_task(CloneTask(root, [(old, new)]))  # again, after a kill
    assert identities == [file_state(f"{new}/{name}") for name in Place(new).list()]
    roots = Roots(root, root)
    Place(f"{new}/replaced").write_bytes(b"another")
    assert remove_file(f"{new}/removed", roots, private=True)
    assert Place(old).list() == ["removed", "replaced", "same"]
    close_retired(root, "1", now=0.0)
    with connect(source_metastore.uri) as metastore:
        swept = sweep_retired(root, metastore, timedelta(seconds=1), now=lambda: 2.0)
    assert (swept.directories, swept.files, Place(old).list(), Place(new).list()) == (1, 2, [], ["replaced", "same"])
    kept = [Place(f"{root}/files/{name}").read_bytes() for name in Place(f"{root}/files").find()]
    assert sorted(kept) == [b"removed", b"replaced"]


# Leases


class TakenOver(Progress):
    """While a task of this title is at work, another host takes the lease over, as it may when ours was paused."""

    def __init__(self, root: str, title: str) -> None:
        self.root, self.title, self.done = root, title, False

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None, **amounts: Any) -> Iterator[Advance]:
        if title == self.title:
            lease = f"{self.root}/lease"
            (epoch,) = map(int, Place(lease).list())
            holder = Holder(1, epoch + 1, "elsewhere", 1, "2026-01-01T00:00:00+00:00", "take over", "t", 4e9)
            assert Place(f"{lease}/{epoch + 1:020d}").create_exclusive(msgspec.json.encode(holder))
            Place(f"{lease}/{epoch:020d}").remove()
            self.done = True
        with Silent().task(title) as advance:
            yield advance


class Shop:
    """A database of two tables with a root on the bucket, and a target with another."""

    def __init__(self, bucket: str, source: Running, target: Running, engine: AutoEngine) -> None:
        self.name, self.engine = unique("shop"), engine
        self.source_uri, self.target = source.uri, target
        self.root, self.target_root = f"{bucket}/{self.name}/cmroot", f"{bucket}/{self.name}/target"
        self.dumps = f"{bucket}/{self.name}/dumps"
        self.number = itertools.count(1)
        with connect(source.uri) as metastore:
            db = PlainDatabase(metastore, self.name, source.warehouse)
            db.create()
            for table in ("a", "b"):
                db.table(table, {"one": f"{table} one", "two": f"{table} two"})
        self.home = source.warehouse / f"{self.name}.db"

    def capture(self, progress: Progress | None = None) -> None:
        replicator.capture(
            source=self.source_uri, cmroot=self.root, db=self.name, engine=self.engine, progress=progress
        )

    def dump(self, progress: Progress | None = None, since: str | None = None) -> str:
        out = f"{self.dumps}/{next(self.number)}"
        sides = {"source": self.source_uri, "cmroot": self.root, "db": self.name, "out": out, "engine": self.engine}
        return replicator.dump(**sides, since=since, progress=progress).dump

    def load(self, dump: str, progress: Progress | None = None) -> None:
        replicator.load(
            dump, target=self.target.uri, target_cmroot=self.target_root, engine=self.engine, progress=progress
        )

    def restore(self, progress: Progress) -> None:
        replicator.restore(
            cmroot=self.root,
            db=self.name,
            to=segments(self.root)[-1].metadata["event"],
            target=self.target.uri,
            into=f"{self.name}_past",
            target_cmroot=self.target_root,
            engine=self.engine,
            progress=progress,
        )

    def repair(self, progress: Progress) -> None:
        replicator.repair(
            source=self.source_uri,
            target=self.target.uri,
            cmroot=self.root,
            db=self.name,
            target_cmroot=self.target_root,
            engine=self.engine,
            progress=progress,
        )

    def shown(self) -> dict[str, list[str]]:
        """Tables of the target, with their files."""
        with connect(self.target.uri) as metastore:
            names = [each for each in metastore.database_names() if each.startswith(self.name)]
            tables = [(name, table) for name in names for table in metastore.table_names(name)]
        place = self.target.warehouse
        return {f"{db}.{name}": sorted(os.listdir(place / f"{db}.db" / name)) for db, name in tables}

    def checkpoint(self) -> dict[str, str]:
        with connect(self.target.uri) as metastore:
            found = metastore.database(self.name).parameters
            return {key: value for key, value in found.items() if "loading" not in key and "role" not in key}


@pytest.fixture
def shop(source_metastore: Running, target_metastore: Running, bucket: str, engine: AutoEngine) -> Shop:
    return Shop(bucket, source_metastore, target_metastore, engine)


def test_a_capture_or_dump_whose_lease_was_taken_over_publishes_nothing(shop: Shop) -> None:
    for title in (f"walk {shop.name}", "list and keep files"):
        taken = TakenOver(create_or_open(shop.root).place, title)
        with pytest.raises(LeaseHeld, match="taken over"):
            shop.capture(taken)
        assert taken.done and segments(shop.root) == []
        Place(f"{shop.root}/lease").remove_tree()
    shop.capture()
    taken = TakenOver(shop.root, f"dump {shop.name}")
    with pytest.raises(LeaseHeld):
        shop.dump(taken)
    assert taken.done and "_finished_dump" not in Place(shop.dumps).find()
    assert len(segments(shop.root)) == 1


@pytest.mark.parametrize("title", ["copy files", "commit tables", "commit partitions"])
def test_a_load_whose_lease_was_taken_over_stops(shop: Shop, title: str) -> None:
    dump = shop.dump()
    taken = TakenOver(shop.target_root, title)
    with pytest.raises(LeaseHeld, match="taken over"):
        shop.load(dump, taken)
    assert taken.done
    names = {f"{shop.name}.a", f"{shop.name}.b"} if title == "commit partitions" else set()
    assert set(shop.shown()) == names and not any(key.endswith("position") for key in shop.checkpoint())


def test_a_load_whose_lease_was_taken_over_removes_nothing(shop: Shop) -> None:
    first = shop.dump()
    shop.load(first)
    before, at = shop.shown(), shop.checkpoint()
    (shop.home / "a" / "one").unlink()
    (shop.home / "b" / "three").write_text("b three")
    second = shop.dump(since=first)
    taken = TakenOver(shop.target_root, "copy files")
    with pytest.raises(LeaseHeld):
        shop.load(second, taken)
    assert taken.done and "one" in shop.shown()[f"{shop.name}.a"] and shop.checkpoint() == at
    Place(f"{shop.target_root}/lease").remove_tree()
    shop.load(second)
    assert shop.shown() != before and "one" not in shop.shown()[f"{shop.name}.a"]


@pytest.mark.parametrize("verb", ["restore", "repair"])
def test_a_restore_or_repair_whose_lease_was_taken_over_commits_nothing(shop: Shop, verb: str) -> None:
    shop.load(shop.dump())
    with connect(shop.target.uri) as metastore:
        metastore.drop_table(shop.name, "b")
    before, at = shop.shown(), shop.checkpoint()
    taken = TakenOver(shop.target_root, "commit tables")
    with pytest.raises(LeaseHeld, match="taken over"):
        getattr(shop, verb)(taken)
    assert taken.done and (shop.shown(), shop.checkpoint()) == (before, at)
