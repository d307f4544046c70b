"""Repair, against two real metastores: a replica that somebody changed is again what it was loaded as, and no byte is
copied that was right."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engines import local_runtime
from faults import Fault, run_with
from names import unique
from plain_tables import KEYS, PlainDatabase

from cmroot.root import ChangeRoot, create_or_open
from cmroot.store.listing import list_tree
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.dumps.dump import Dumped, DumpSettings, write_dump
from replicator.compare import repair as repairs
from replicator.compare.both_sides import Comparison
from replicator.compare.repair import Repaired, RepairSettings
from replicator.compare.verify import Verified, verify
from replicator.core.model import Column
from replicator.errors import BootstrapNeeded, ObjectNotFound, Refused
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.replay.apply.load import Loaded, load
from replicator.replay.apply.planning import LoadSettings
from replicator.replay.target import ByDifference

RUNTIME = local_runtime()
MARKS = ("repl.last.id", "replicator.position", "replicator.source", "replicator.loading")


@dataclass
class Shop:
    """A database of the source and its replica: `sales` (three files), `days` (three partitions), and a function."""

    source: PlainDatabase
    target: PlainDatabase
    root: ChangeRoot
    work: Path
    dumps: list[Dumped] = field(default_factory=list)

    @property
    def cmroot(self) -> Path:
        return self.work / "target-cmroot"

    def catch_up(self, **options: Any) -> Loaded:
        """Captures, dumps and loads: a bootstrap, then increments."""
        capture(self.source.metastore, self.root, CaptureSettings([self.source.name]), RUNTIME)
        place, since = self.work / f"dump{len(self.dumps)}", self.dumps[-1].dump if self.dumps else None
        self.dumps.append(
            write_dump(
                self.root, str(place), DumpSettings(self.source.metastore.uri, [self.source.name], since=since), RUNTIME
            )
        )
        return self.load(self.dumps[-1].dump, **options)

    def load(self, dump: str, **options: Any) -> Loaded:
        chosen = LoadSettings(cmroot=str(self.cmroot), rename=[(self.source.name, self.target.name)], **options)
        return load(dump, self.target.metastore, chosen, RUNTIME)

    def options(self, **changes: Any) -> RepairSettings:
        known = {"db": self.source.name, "cmroot": str(self.cmroot)}
        return RepairSettings(**{**known, **changes})

    def repair(self, how: Comparison | None = None, **changes: Any) -> Repaired:
        both = how or self.comparison
        return repairs.repair(self.root, both, self.target.metastore, self.options(**changes), RUNTIME)

    def command(self) -> list[str]:
        """The same repair, for a process of its own."""
        return [
            "repair",
            "--source",
            self.source.metastore.uri,
            "--target",
            self.target.metastore.uri,
            "--cmroot",
            self.root.place,
            "--target-cmroot",
            str(self.cmroot),
            "--db",
            self.source.name,
            "--rename-db",
            f"{self.source.name}={self.target.name}",
            "--scratch",
            str(self.work),
        ]

    def planned(self, **changes: Any) -> dict[str, Any]:
        with repairs.planned(self.root, self.comparison, self.options(**changes), RUNTIME) as plan:
            return plan.described(self.target.metastore, RUNTIME).to_dict()

    def verify(self) -> Verified:
        return verify(self.comparison, [self.source.name], RUNTIME)

    @property
    def comparison(self) -> Comparison:
        return Comparison(self.source.metastore, self.target.metastore, [(self.source.name, self.target.name)])

    def checkpoint(self) -> dict[str, str]:
        parameters = self.target.metastore.database(self.target.name).parameters
        return {key: parameters[key] for key in MARKS if key in parameters}

    def kept(self) -> set[bytes]:
        """The contents that the target's root keeps."""
        files = self.cmroot / "files"
        return {(files / each.path_relative).read_bytes() for each in (list_tree(str(files)) or _NOTHING).files}

    def assert_same(self) -> None:
        assert self.verify().differences == []
        shown, wanted = self.target.shown(), self.source.shown()
        assert {name: about for name, about in shown.items() if about != wanted.get(name)} == {}
        assert shown.keys() == wanted.keys()


class _Nothing:
    files: Sequence[Any] = ()


_NOTHING = _Nothing()


@pytest.fixture(scope="module")
def sides(source_metastore: Running, target_metastore: Running) -> Iterator[tuple[ThriftMetastore, ThriftMetastore]]:
    with connect(source_metastore.uri) as source, connect(target_metastore.uri) as target:
        yield source, target


@pytest.fixture
def shop(
    sides: tuple[ThriftMetastore, ThriftMetastore], source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> Shop:
    name = unique("shop")
    source = PlainDatabase(sides[0], name, source_metastore.warehouse)
    target = PlainDatabase(sides[1], f"{name}copy", target_metastore.warehouse)
    source.create()
    source.table("sales", {"f1": "one" * 100, "f2": "two" * 200, "f3": "three" * 300})
    source.partitioned("days", {"a": {"x": "a" * 10}, "b": {"x": "b" * 20, "y": "bb" * 20}, "c": {"x": "c" * 30}})
    source.function("plus")
    made = Shop(source, target, create_or_open(str(tmp_path / "cmroot")), tmp_path)
    made.catch_up()
    return made


def overwrite(file: Path, text: str) -> None:
    """In place and behind everybody's back: same size, same time."""
    before = file.stat()
    assert before.st_size == len(text)
    file.write_text(text)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def looks(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


# ---- files --------------------------------------------------------------------------------------------------------


def test_a_replica_that_is_the_same_is_left_alone(shop: Shop) -> None:
    before, event = shop.target.everything(), shop.target.metastore.current_event_id()
    repaired = shop.repair()
    assert (repaired.status, repaired.found, repaired.tables, repaired.bytes_copied) == ("same", 0, [], 0)
    assert shop.target.everything() == before
    assert shop.target.metastore.current_event_id() == event


def test_exactly_the_files_that_differ_are_copied(shop: Shop) -> None:
    home, before = shop.target.home, shop.checkpoint()
    overwrite(home / "sales/f1", "0ne" * 100)
    (home / "sales/f2").unlink()
    (home / "days/p=b/y").write_text("longer than it was, much longer than it was")
    (home / "days/p=b/z").write_text("written by somebody else")
    untouched = {name: looks(home / name) for name in ("sales/f3", "days/p=a/x", "days/p=b/x", "days/p=c/x")}

    repaired = shop.repair()

    assert (repaired.status, repaired.found, repaired.remaining) == ("repaired", 4, [])
    assert repaired.tables == ["days", "sales"]
    assert (repaired.files_copied, repaired.bytes_copied) == (3, 300 + 600 + 40)
    assert repaired.files_removed == 1
    assert {name: looks(home / name) for name in untouched} == untouched
    assert {b"0ne" * 100, b"written by somebody else"} <= shop.kept()
    assert shop.checkpoint() == before
    shop.assert_same()
    assert shop.repair().status == "same"


def test_by_size_a_file_of_the_right_size_and_time_is_trusted(shop: Shop) -> None:
    overwrite(shop.target.home / "sales/f1", "0ne" * 100)
    assert shop.repair(replace(shop.comparison, level="size")).status == "same"
    assert shop.repair().bytes_copied == 300


def test_a_table_that_does_not_differ_is_not_read(shop: Shop) -> None:
    (shop.target.home / "sales/f2").unlink()
    days = shop.target.home / "days/p=a/x"
    repaired = shop.repair(differing=[f"{shop.source.name}.sales"])
    assert (repaired.tables, repaired.found, repaired.files_copied, repaired.files_skipped) == (["sales"], None, 1, 2)
    assert days.exists()


def test_bytes_come_from_the_kept_ones_where_the_source_has_moved_on(shop: Shop) -> None:
    shop.source.write("sales", {"f1": "1ne" * 100})
    capture(shop.source.metastore, shop.root, CaptureSettings(), RUNTIME)
    (shop.target.home / "sales/f1").unlink()

    repaired = shop.repair()

    assert (repaired.files_from_cmroot, repaired.bytes_copied) == (1, 300)
    assert (shop.target.home / "sales/f1").read_text() == "one" * 100  # as at the checkpoint
    assert (repaired.status, [each.kind for each in repaired.remaining]) == ("different", ["file content"])
    assert "capture and load" in repaired.warnings[0]
    assert shop.catch_up().bytes_copied == 300
    shop.assert_same()


# ---- objects ------------------------------------------------------------------------------------------------------


def test_partitions_that_were_dropped_added_and_altered_are_put_right(shop: Shop) -> None:
    target = shop.target
    target.drop_partitions("days", ["a"])
    target.add("days", {"z": {"x": "not of the source"}})
    target.alter_partition("days", "c", weather="bad")

    repaired = shop.repair()

    assert (repaired.status, repaired.remaining) == ("repaired", [])
    assert (repaired.files_copied, repaired.bytes_copied) == (1, 10)
    assert not (target.home / "days/p=z").exists() and b"not of the source" in shop.kept()
    shop.assert_same()


def test_all_partitions_go_when_the_source_has_none(shop: Shop) -> None:
    shop.source.partitioned("empty", {})
    shop.catch_up()
    shop.target.add("empty", {"z": {"x": "not of the source"}})
    assert (shop.repair().status, shop.repair().status) == ("repaired", "same")
    shop.assert_same()


def test_a_table_dropped_by_hand_comes_back_without_copying_the_data_that_is_there(shop: Shop) -> None:
    shop.target.metastore.drop_table(shop.target.name, "days")
    (shop.target.home / "days/p=b/x").unlink()
    repaired = shop.repair()
    assert (repaired.status, repaired.files_copied, repaired.bytes_copied) == ("repaired", 1, 20)
    shop.assert_same()


def test_a_table_made_by_hand_under_a_replicated_name_is_replaced(shop: Shop) -> None:
    target = shop.target
    target.drop("sales")
    target.table("sales", partition_keys=KEYS)
    target.add("sales", {"q": {"x": "made by hand"}})
    repaired = shop.repair()
    assert (repaired.status, repaired.bytes_copied) == ("repaired", 300 + 600 + 1500)
    assert b"made by hand" in shop.kept()
    shop.assert_same()


def test_altered_properties_columns_and_functions_are_put_right_without_copying(shop: Shop) -> None:
    target, metastore = shop.target, shop.target.metastore
    target.alter("sales", colour="blue")
    table = metastore.table(target.name, "days")
    assert table.storage
    wider = msgspec.structs.replace(table.storage, columns=(*table.storage.columns, Column("c", "int")))
    metastore.alter_table(target.name, "days", msgspec.structs.replace(table, storage=wider))
    metastore.drop_function(target.name, "plus")
    target.function("minus")
    database = metastore.database(target.name)
    altered = msgspec.structs.replace(database, parameters={**database.parameters, "owner of": "nobody"})
    metastore.alter_database(target.name, altered)

    repaired = shop.repair()

    assert (repaired.status, repaired.remaining, repaired.bytes_copied) == ("repaired", [], 0)
    shop.assert_same()


def test_a_table_that_only_the_target_has_is_told_and_goes_only_by_request(shop: Shop) -> None:
    shop.target.table("mine", {"f": "my own work"})
    repaired = shop.repair()
    assert (repaired.status, [each.kind for each in repaired.remaining]) == ("different", ["table extra"])
    assert "--drop-extra" in repaired.warnings[0]
    assert (shop.target.home / "mine/f").exists()
    assert shop.repair(drop_extra=True).status == "repaired"
    assert not (shop.target.home / "mine").exists() and b"my own work" in shop.kept()
    shop.assert_same()


def test_a_table_stays_where_it_lies_on_the_target(
    shop: Shop, sides: tuple[ThriftMetastore, ThriftMetastore], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    shop.source.table("far", {"f": "far away"})
    shop.catch_up(map_locations=[(f"file:{shop.source.home}/far", f"file:{elsewhere}")])
    (elsewhere / "f").write_text("far awry")
    repaired = shop.repair()
    assert (repaired.status, repaired.bytes_copied) == ("repaired", 8)
    assert (elsewhere / "f").read_text() == "far away"
    assert not (shop.target.home / "far").exists()


def test_only_a_named_table_is_repaired(shop: Shop) -> None:
    shop.target.alter("sales", colour="blue")
    (shop.target.home / "days/p=a/x").unlink()
    shop.target.metastore.drop_function(shop.target.name, "plus")
    repaired = shop.repair(tables=["days"])
    assert (repaired.status, repaired.tables, repaired.bytes_copied) == ("repaired", ["days"], 10)
    assert {each.object.rpartition(".")[2] for each in shop.verify().differences} == {"sales", "plus"}
    with pytest.raises(ObjectNotFound, match="nosuch did not exist"):
        shop.repair(tables=["nosuch"])


# ---- before and after ---------------------------------------------------------------------------------------------


def test_a_dry_run_tells_the_exact_price_and_changes_nothing(shop: Shop) -> None:
    overwrite(shop.target.home / "sales/f1", "0ne" * 100)
    (shop.target.home / "days/p=b/z").write_text("somebody else's")
    shop.target.add("days", {"z": {"x": "not of the source"}})
    before = shop.target.everything()
    plan = shop.planned()
    wanted = {
        "files_to_copy": 1,
        "bytes_to_copy": 300,
        "files_to_remove": 2,
        "bytes_to_remove": 15 + 17,
        "partitions_to_drop": 1,
        "files_missing": 0,
        "tables": ["days", "sales"],
    }
    assert {key: plan[key] for key in wanted} == wanted
    assert shop.target.everything() == before
    repaired = shop.repair()
    assert (repaired.files_copied, repaired.bytes_copied, repaired.files_removed) == (1, 300, 2)
    assert shop.planned()["files_to_copy"] == 0


def test_increments_go_on_after_a_repair(shop: Shop) -> None:
    """The repair is of the checkpoint; what the source did meanwhile to the same tables is still to come."""
    source = shop.source
    source.drop_partitions("days", ["a"])
    source.add("days", {"a": {"x": "another a"}, "d": {"x": "dddd"}})
    source.rename("sales", "sold")
    source.write("sold", {"f4": "four"})
    (shop.target.home / "sales/f2").unlink()
    shop.target.drop_partitions("days", ["b"])
    (lost,) = [each for each in shop.verify().differences if each.kind == "partition missing" and "p=b" in each.object]
    assert shop.repair().bytes_copied == 600 + 60
    assert lost.object not in {each.object for each in shop.verify().differences}
    shop.catch_up()
    shop.assert_same()


def test_a_target_that_holds_the_data_already_is_taken_over_by_difference(shop: Shop, tmp_path: Path) -> None:
    """A bootstrap over a database that replication did not make copies only what is missing."""
    target = shop.target
    for name in ("sales", "days"):
        table = target.metastore.table(target.name, name)
        bare = {key: value for key, value in table.parameters.items() if not key.startswith("repl")}
        target.metastore.alter_table(target.name, name, msgspec.structs.replace(table, parameters=bare))
    database = target.metastore.database(target.name)
    target.metastore.alter_database(target.name, msgspec.structs.replace(database, parameters={}))
    (target.home / "sales/f3").unlink()
    with pytest.raises(Refused):
        shop.load(shop.dumps[0].dump)
    loaded = shop.load(shop.dumps[0].dump, overwrite=True, by_difference=ByDifference())
    assert (loaded.files_copied, loaded.bytes_copied, loaded.files_skipped) == (1, 1500, 6)
    shop.assert_same()


# ---- killed -------------------------------------------------------------------------------------------------------

KILLS = (
    Fault("after", "thrift", "alter database", 1),  # the mark that it has begun
    Fault("after", "rename", "recycle-", 1),  # the data of a partition that goes is protected
    Fault("after", "thrift", r"drop \d+ partition", 1),
    Fault("after", "rename", "sales/f2$", 1),  # one file is copied
    Fault("before", "thrift", "alter table", 1),
    Fault("before", "thrift", "alter database", 2),  # all is right, and the database still says that it is repaired
)


def test_a_repair_that_is_killed_anywhere_is_run_again(shop: Shop) -> None:
    before = shop.checkpoint()
    for fault in KILLS:
        overwrite(shop.target.home / "sales/f1", "0ne" * 100)
        (shop.target.home / "sales/f2").unlink()
        shop.target.alter("sales", colour="blue")
        shop.target.drop_partitions("days", ["a"])
        shop.target.add("days", {"z": {"x": "not of the source"}})
        assert run_with(fault, shop.command()).killed
        assert shop.repair().status == "repaired", fault
        shop.assert_same()
        assert shop.checkpoint() == before
        assert {b"0ne" * 100, b"not of the source"} <= shop.kept()


def test_increments_go_on_after_a_repair_that_was_killed(shop: Shop) -> None:
    (shop.target.home / "sales/f2").unlink()
    shop.target.drop_partitions("days", ["a"])
    assert run_with(Fault("after", "rename", "sales/f2$", 1), shop.command()).killed
    shop.source.write("sales", {"f4": "four"})
    shop.source.add("days", {"d": {"x": "dddd"}})
    assert shop.catch_up().bytes_copied == 8
    assert "replicator.loading" not in shop.checkpoint()
    assert (shop.repair().status, shop.repair().status) == ("repaired", "same")
    shop.assert_same()


# ---- refusals -----------------------------------------------------------------------------------------------------


def test_a_database_without_a_checkpoint_needs_a_bootstrap(shop: Shop) -> None:
    metastore, name = shop.target.metastore, shop.target.name
    database = metastore.database(name)
    metastore.alter_database(name, msgspec.structs.replace(database, parameters={}))
    with pytest.raises(BootstrapNeeded, match="no checkpoint"):
        shop.repair()
    with pytest.raises(ObjectNotFound):
        shop.repair(replace(shop.comparison, rename=[(shop.source.name, "nosuch")]))


def test_another_sources_replica_is_refused(shop: Shop, tmp_path: Path) -> None:
    shop.root = create_or_open(str(tmp_path / "another"))
    with pytest.raises(Refused, match="another source"):
        shop.repair()


def test_a_load_that_has_not_ended_is_refused(shop: Shop) -> None:
    metastore, name = shop.target.metastore, shop.target.name
    database = metastore.database(name)
    loading = {**database.parameters, "replicator.loading": "0123"}
    metastore.alter_database(name, msgspec.structs.replace(database, parameters=loading))
    with pytest.raises(Refused, match="began, but has not ended"):
        shop.repair()
