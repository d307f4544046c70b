"""`publish = "snapshot"`: who reads a replica while it is loaded sees an object as it was or as it is, never a mix."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from busy_source import BusySource
from engines import local_runtime
from faults import Fault, run_with
from lab import Lab
from plain_tables import PlainDatabase
from waiting import eventually

from replicator.compare.both_sides import Comparison
from replicator.compare.verify import verify
from replicator.core.model import EXTERNAL
from replicator.errors import ObjectNotFound
from replicator.metastore.thrift import connect
from replicator.replay.retired import has_retired, sweep_retired

FILES = 4


@pytest.fixture
def pair(pair: Lab) -> Lab:
    pair.keys |= {"publish": "snapshot", "publish_delay": "1ms"}
    return pair


def fill(pair: Lab, place: str, generation: int, count: int = FILES) -> None:
    pair.db("a").write(place, {f"f{number}": f"{generation}" for number in range(count)})


def is_same(pair: Lab) -> None:
    """Files and metadata, whatever the places."""
    found = verify(Comparison(pair.source.metastore, pair.target.metastore), [pair.db("a").name], local_runtime())
    assert found.difference_count == 0, found.differences[:5]


def places(pair: Lab, table: str) -> dict[str, Path]:
    """Where the replica's table lies, or each of its partitions."""
    db = pair.replica("a").name
    found = pair.target.metastore.table(db, table)
    if not found.is_partitioned:
        return {"": path_of(found.location)}
    names = pair.target.metastore.partition_names(db, table)
    return {
        f"p={each.values[0]}": path_of(each.location)
        for page in pair.target.metastore.partitions(db, table, names)
        for each in page
    }


def path_of(location: str | None) -> Path:
    return Path(str(location).removeprefix("file:"))


class Reader:
    """A query, again and again: asks the metastore where things lie, lists and reads them. `mixed`: what it saw that
    was never the state of an object: files of two generations, or some of one."""

    def __init__(self, pair: Lab, tables: list[str]) -> None:
        self._uri, self._db, self._tables = pair.target_uri, pair.replica("a").name, tables
        self._stop = threading.Event()
        self.mixed: list[object] = []
        self.reads, self.generations = 0, set[tuple[str, ...]]()

    def run(self) -> None:
        metastore = connect(self._uri)
        while not self._stop.is_set():
            for name in self._tables:
                try:
                    table = metastore.table(self._db, name)
                    locations = [table.location]
                    if table.is_partitioned:
                        pages = metastore.partitions(self._db, name, metastore.partition_names(self._db, name))
                        locations = [each.location for page in pages for each in page]
                except ObjectNotFound as error:
                    self.mixed.append(error)
                    continue
                for location in locations:
                    self._read(path_of(location))

    def _read(self, place: Path) -> None:
        try:
            texts = tuple(sorted(path.read_text() for path in place.iterdir() if not path.name.startswith(".")))
        except FileNotFoundError as error:
            self.mixed.append(error)
            return
        self.reads += 1
        self.generations.add(texts)
        if len(set(texts)) > 1 or len(texts) != FILES + int(texts[0] if texts else 0):
            self.mixed.append((place, texts))

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()


def test_a_reader_sees_old_or_new_and_never_a_mix(pair: Lab) -> None:
    pair.keys["publish_delay"] = "1h"
    a = pair.db("a")
    for table in ("plain", "renamed0", "again"):
        a.table(table)
        fill(pair, table, 0)
    a.partitioned("days", {"1": {}, "2": {}})
    for value in ("1", "2"):
        fill(pair, f"days/p={value}", 0)
    pair.sync()
    reader = Reader(pair, ["plain", "days", "again"])
    with reader.reading():
        for generation in range(1, 6):
            for place in ("plain", "days/p=1", "days/p=2"):
                fill(pair, place, generation, FILES + generation)
            a.metastore.drop_table(a.name, "again")  # what CREATE OR REPLACE does
            a.table("again")
            fill(pair, "again", generation, FILES + generation)
            a.rename(f"renamed{generation - 1}", f"renamed{generation}")
            fill(pair, f"renamed{generation}", generation, FILES + generation)
            a.alter_partition("days", "2", generation=str(generation))
            pair.sync()
            seen = reader.reads
            eventually(lambda seen=seen: reader.reads > seen + FILES)  # type: ignore[misc]
    is_same(pair)
    assert not reader.mixed, reader.mixed[:3]
    assert reader.reads > 20 and len(reader.generations) > 2


def test_what_stays_is_carried_and_what_was_replaced_goes_after_the_delay(pair: Lab) -> None:
    a = pair.db("a")
    a.table("plain", {"one": "1", "two": "2"})
    a.partitioned("days", {"1": {"x": "1"}, "2": {"y": "2"}})
    pair.keys["publish_delay"] = "1h"
    pair.sync()
    before = {**places(pair, "plain"), **places(pair, "days")}
    inode = (before[""] / "one").stat().st_ino
    a.write("plain", {"three": "3"})
    (a.home / "plain" / "two").unlink()
    a.write("days/p=1", {"x": "11"})
    a.alter_partition("days", "2", note="only a note")
    run = pair.sync()
    assert (run.files_copied, run.files_removed) == (2, 1)
    now = {**places(pair, "plain"), **places(pair, "days")}
    assert now[""] != before[""] and now["p=1"] != before["p=1"] and now["p=2"] == before["p=2"]
    assert (now[""] / "one").stat().st_ino == inode
    assert sorted(path.name for path in before[""].iterdir()) == ["one", "two"]  # for who still reads it
    is_same(pair)

    pair.keys["publish_delay"] = "1ms"
    pair.sync()
    assert not before[""].exists() and not before["p=1"].exists()
    assert not has_retired(str(pair.keys["target_cmroot"]))
    kept = Path(pair.keys["target_cmroot"]) / "files"
    assert sorted(path.read_text() for path in kept.rglob("*") if path.is_file()) == ["1", "2"]  # not what was carried
    is_same(pair)


def test_drops_take_the_metadata_first_and_the_data_after_the_delay(pair: Lab) -> None:
    pair.keys["publish_delay"] = "1h"
    a = pair.db("a")
    a.table("plain", {"one": "1"})
    a.partitioned("days", {"1": {"x": "1"}, "2": {"y": "2"}, "3": {"z": "3"}})
    a.partitioned("anew", {"old": {"o": "1"}, "same": {"s": "1"}})
    pair.sync()
    before = {**places(pair, "plain"), **places(pair, "days"), **places(pair, "anew")}
    a.drop("anew")
    a.partitioned("anew", {"same": {"s": "2"}, "new": {"n": "2"}})
    a.drop("plain")
    a.drop_partitions("days", ["1", "2"])
    a.add("days", {"2": {"new": "22"}})
    pair.sync()
    assert all(place.exists() for place in before.values())
    assert pair.target.metastore.table_names(a.name) == ["anew", "days"]
    assert sorted(path.name for path in places(pair, "days")["p=2"].iterdir()) == ["new"]
    is_same(pair)
    pair.keys["publish_delay"] = "1ms"
    pair.sync()
    assert [key for key, place in before.items() if place.exists()] == ["p=3"]
    is_same(pair)
    pair.keys["exclude"] = "days"
    pair.keys["publish_delay"] = "1h"
    assert pair.sync(drop_left=True).dropped == [f"{a.name}.days"]
    assert before["p=3"].exists()
    pair.keys["publish_delay"] = "1ms"
    pair.sync()
    assert not before["p=3"].exists()


def test_a_renamed_partition_keeps_its_old_place_for_its_readers(pair: Lab) -> None:
    pair.keys["publish_delay"] = "1h"
    a = pair.db("a")
    a.partitioned("days", {"1": {"x": "1"}})
    pair.sync()
    old = places(pair, "days")["p=1"]
    (found,) = a.metastore.partitions(a.name, "days", ["p=1"])
    a.metastore.rename_partition(a.name, "days", ("1",), msgspec.structs.replace(found[0], values=("9",)))
    a.write("days/p=9", {"more": "9"})
    pair.sync()
    is_same(pair)
    assert (old / "x").read_text() == "1"
    assert sorted(path.name for path in places(pair, "days")["p=9"].iterdir()) == ["more", "x"]


def test_a_policy_can_be_switched_to_snapshots_and_back(pair: Lab) -> None:
    pair.keys["publish"] = "mirror"
    a = pair.db("a")
    for table in ("plain", "other"):
        a.table(table, {"one": "1"})
    a.partitioned("days", {"1": {"x": "1"}, "2": {"y": "2"}})
    pair.sync()
    pair.are_same()
    pair.keys["publish"] = "snapshot"
    a.write("plain", {"two": "2"})
    a.write("days/p=1", {"more": "3"})
    a.rename("other", "moved")
    run = pair.sync()
    assert run.kind == "incremental" and run.files_copied == 2
    assert ".published" in str(places(pair, "plain")[""]) and ".published" in str(places(pair, "moved")[""])
    is_same(pair)
    a.write("days/p=2", {"more": "4"})
    pair.sync()
    is_same(pair)
    pair.keys["publish"] = "mirror"
    run = pair.sync()
    assert run.files_copied == 0  # nothing was new
    a.write("plain", {"three": "3"})
    run = pair.sync()
    assert run.kind == "bootstrap" and any("published by snapshots" in text for text in run.warnings)
    pair.are_same()
    is_same(pair)
    a.write("plain", {"four": "4"})
    assert pair.sync().kind == "incremental"
    pair.sync()
    pair.are_same()


def test_partitions_stay_when_their_table_had_to_step_aside_for_its_new_name(pair: Lab) -> None:
    pair.keys["publish"] = "mirror"
    a = pair.db("a")
    a.partitioned("days", {"1": {"x": "1"}, "2": {"y": "2"}})
    pair.sync()
    pair.keys["publish"] = "snapshot"
    a.rename("days", "moved")
    pair.sync()
    is_same(pair)
    a.write("moved/p=2", {"more": "3"})
    pair.sync()
    pair.sync()
    is_same(pair)
    found = places(pair, "moved")
    assert [sorted(path.name for path in found[name].iterdir()) for name in ("p=1", "p=2")] == [["x"], ["more", "y"]]


@pytest.mark.parametrize("sub", ["", "sub"])
def test_what_others_have_in_a_superseded_directory_stays(pair: Lab, sub: str) -> None:
    pair.keys["publish"] = "mirror"
    a = pair.db("a")
    a.table("m", {"one": "1"})
    a.partitioned("days", {"1": {"x": "1"}, "2": {"y": "2"}})
    for name, place in (("e", a.home / "m" / sub), ("f", a.home / "days" / "p=1")):
        made = a.metastore.table(a.name, "m")
        storage = msgspec.structs.replace(made.storage, location=f"file:{place}")
        external = {"kind": EXTERNAL, "parameters": {"EXTERNAL": "TRUE"}, "storage": storage}
        a.metastore.create_table(msgspec.structs.replace(made, name=name, **external))
    a.write(f"m/{sub}", {"two": "2"})
    pair.sync()
    is_same(pair)
    pair.keys["publish"] = "snapshot"
    a.metastore.drop_table(a.name, "m")
    a.metastore.drop_partitions(a.name, "days", ["p=1", "p=2"])
    shutil.rmtree(a.home / "days" / "p=2")
    pair.sync()
    is_same(pair)
    pair.sync()
    assert not has_retired(str(pair.keys["target_cmroot"]))
    is_same(pair)
    replica = pair.replica("a")
    assert sorted(path.name for path in places(pair, "e")[""].iterdir()) == (["two"] if sub else ["one", "two"])
    assert sorted(path.name for path in places(pair, "f")[""].iterdir()) == ["x"]
    assert not (replica.home / "days" / "p=2").exists() and (replica.home / "m" / "one").exists() == (not sub)


def test_a_bootstrap_by_difference_flips_only_what_differs(pair: Lab) -> None:
    a = pair.db("a")
    a.table("plain", {"one": "1"})
    a.table("second", {"one": "1"})
    a.partitioned("days", {"1": {"x": "1"}, "2": {"y": "2"}, "3": {"z": "3"}})
    pair.sync()
    before = {name: places(pair, name) for name in ("plain", "second", "days")}
    (before["second"][""] / "one").write_text("rotten")
    (before["days"]["p=1"] / "extra").write_text("by hand")
    pair.keys["exclude"] = "nothing"  # another scope: the next run is a bootstrap
    a.write("days/p=2", {"more": "2"})
    a.drop_partitions("days", ["3"])
    run = pair.sync()
    assert (run.kind, run.files_copied) == ("bootstrap", 2)
    is_same(pair)
    now = {name: places(pair, name) for name in before}
    assert now["plain"] == before["plain"] and now["second"] != before["second"]
    assert now["days"]["p=1"] != before["days"]["p=1"] and now["days"]["p=2"] != before["days"]["p=2"]
    pair.sync()
    assert not before["days"]["p=3"].exists() and not before["second"][""].exists()
    is_same(pair)


def test_roles_turned_the_source_gets_its_own_layout_back(pair: Lab) -> None:
    a, replica = pair.db("a"), pair.replica("a")
    a.table("plain", {"one": "1"})
    a.partitioned("days", {"1": {"x": "1"}, "2": {"y": "2"}})
    pair.sync()
    a.write("plain", {"two": "2"})
    a.write("days/p=1", {"more": "3"})
    pair.keys["publish_delay"] = "1h"
    pair.sync()
    assert has_retired(pair.keys["target_cmroot"])
    pair.keys["publish_delay"] = "1ms"
    home = {name: pair.source.metastore.table(a.name, name).location for name in ("plain", "days")}
    pair.keys["publish"] = "mirror"
    pair.turn()
    (places(pair, "plain")[""] / "three").write_text("3")
    (places(pair, "days")["p=2"] / "late").write_text("4")
    replica.rename("plain", "renamed")
    replica.table("plain", {"new": "5"})
    run = pair.sync()
    assert not has_retired(pair.keys["target_cmroot"])
    assert run.reverse and run.files_copied == 5  # three are of the table that has another name now
    back = Comparison(pair.target.metastore, pair.source.metastore)
    assert verify(back, [a.name], local_runtime()).differences == []
    assert pair.source.metastore.table(a.name, "days").location == home["days"]
    (found,) = pair.source.metastore.partitions(a.name, "days", ["p=1"])
    assert found[0].location == f"{home['days']}/p=1"
    locations = [path_of(pair.source.metastore.table(a.name, name).location) for name in ("plain", "renamed")]
    assert len(set(locations)) == 2 and all(place.is_relative_to(a.home) for place in locations)
    assert not any(".published" in str(place) for place in locations)
    (places(pair, "days")["p=1"] / "increment").write_text("6")
    assert pair.sync().kind == "incremental"
    assert verify(back, [a.name], local_runtime()).differences == []


def test_what_somebody_lies_in_again_is_not_swept(pair: Lab) -> None:
    pair.keys["publish_delay"] = "1h"
    a = pair.db("a")
    a.table("plain", {"one": "1"})
    a.partitioned("days", {"1": {"x": "1"}})
    pair.sync()
    plain, day = places(pair, "plain")[""], places(pair, "days")["p=1"]
    a.write("plain", {"one": "2"})
    a.write("days/p=1", {"x": "2"})
    pair.sync()
    shadow = pair.replica("shadow")
    shadow.create()
    table = pair.target.metastore.table(a.name, "plain")
    assert table.storage
    storage = msgspec.structs.replace(table.storage, location=f"file:{plain}")
    pair.target.metastore.create_table(msgspec.structs.replace(table, db=shadow.name, storage=storage))
    days = pair.target.metastore.table(a.name, "days")
    pair.target.metastore.create_table(msgspec.structs.replace(days, db=shadow.name))
    (found,) = pair.target.metastore.partitions(a.name, "days", ["p=1"])
    assert found[0].storage
    storage = msgspec.structs.replace(found[0].storage, location=f"file:{day}")
    pair.target.metastore.add_partitions(shadow.name, "days", [msgspec.structs.replace(found[0], storage=storage)])
    swept = sweep_retired(pair.keys["target_cmroot"], pair.target.metastore, timedelta(0), now=lambda: 1e12)
    assert (len(swept.held), swept.directories) == (2, 0)
    assert (plain / "one").read_text() == "1" and (day / "x").read_text() == "1"


KILLS = (
    Fault("after", "rename", "superseded/", 1),
    Fault("after", "link", r"/\.published/", 2),
    Fault("after", "thrift", "alter .* partitions", 1),
    Fault("after", "thrift", "create table", 1),
    Fault("before", "rename", "/closed", 1),
    Fault("after", "rename", "/incoming/", 2),
)


def test_killed_anywhere_the_next_run_ends_it_and_nothing_is_left_lying_about(pair: Lab) -> None:
    a = PlainDatabase(pair.source.metastore, f"{pair.name}_a", pair.here / "source")
    source = BusySource(a, tables=1)
    source.begin()
    pair.sync()
    command = ["--config", str(pair.config()), "sync", pair.name]
    reached = 0
    for number in range(0, len(KILLS), 3):
        source.change()
        for fault in KILLS[number : number + 3]:
            ended = run_with(fault, command, must=False)
            assert ended.killed or ended.code == 0, ended
            reached += ended.killed
        pair.sync()
        is_same(pair)
    assert reached >= 4
    pair.sync()
    is_same(pair)
    db = pair.replica("a")
    named = {place for name in pair.target.metastore.table_names(db.name) for place in places(pair, name).values()}
    lying = {path for path in db.home.rglob("*") if path.is_file() and not any(path.is_relative_to(at) for at in named)}
    assert not lying and not has_retired(pair.keys["target_cmroot"])
