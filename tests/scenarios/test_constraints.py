"""Constraints: replicated by bootstraps and increments, or named where the target cannot have them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import Answer, command
from constraints import Constraints
from faults import Fault, run_with
from lab import Lab
from lost_primary import lose, nobody
from metastores import REFUSES_AT_ONCE, borrow, emptied
from plain_tables import PlainDatabase
from pool import Pool
from restore_fixture import restore

from replicator.core.model import EXTERNAL, Column, Database
from replicator.metastore.embedded.running import Running

Hives = Callable[..., Running]


@pytest.fixture(scope="module")
def target_metastore(pool: Pool) -> Iterator[Running]:
    """Names of constraints are taken, and that is a refusal of the database."""
    running = borrow(pool, "refuses-at-once", settings=REFUSES_AT_ONCE)
    yield running
    emptied(running)


class Keys:
    """A fixture's constraints on both sides, by names that are its own: a 2.3 server has each name once."""

    def __init__(self, fixture: Lab, newer: bool = False) -> None:
        """newer: both servers have more than keys."""
        self.fixture, self.db = fixture, fixture.name
        self.source, self.target = (Constraints(uri, newer=newer) for uri in (fixture.source_uri, fixture.target_uri))

    def name(self, table: str) -> str:
        return f"{self.db}.{table}"

    def primary(self, table: str, *columns: str) -> None:
        self.source.primary(self.name(table), f"pk_{self.db}_{table}", *columns)

    def foreign(self, table: str, column: str, parent: str, key: str) -> None:
        self.source.foreign(self.name(table), f"fk_{self.db}_{table}_{parent}", column, self.name(parent), key)

    def are_same(self, *tables: str) -> dict[str, Any]:
        names = [self.name(table) for table in tables]
        wanted = self.source.shown(*names)
        assert self.target.shown(*names) == wanted
        return {name.partition(".")[2]: [each[0] for each in some] for name, some in wanted.items()}

    def verify(self, *more: str) -> Answer:
        sides = ["--source", self.fixture.source_uri, "--target", self.fixture.target_uri]
        return command("verify", *sides, "--db", self.db, "--engine", "local", *more)

    def repair(self) -> Answer:
        sides = ["--source", self.fixture.source_uri, "--target", self.fixture.target_uri]
        roots = ["--cmroot", str(self.fixture.cmroot), "--warehouse", str(self.fixture.warehouse)]
        return command("repair", *sides, "--db", self.db, "--engine", "local", *roots)

    def catch_up(self, *more: str) -> Answer:
        before = self.fixture.last
        dumped = self.fixture.dump(*more, since=before)
        assert dumped.code == 0, dumped
        return self.fixture.load()


def test_keys_follow_bootstraps_renames_columns_and_drops(fixture: Lab) -> None:
    keys = Keys(fixture)
    fixture.source.table("zoo", {"f": "1"})  # a child that comes first by name
    for name in ("animals", "cages"):
        fixture.source.table(name, {"f": name})
    keys.primary("zoo", "b", "a")
    keys.primary("cages", "a")
    keys.foreign("animals", "a", "cages", "a")
    keys.foreign("cages", "a", "cages", "a")
    fixture.bootstrap()
    assert keys.are_same("zoo", "animals", "cages") == {
        "zoo": ["SQLPrimaryKey", "SQLPrimaryKey"],
        "animals": ["SQLForeignKey"],
        "cages": ["SQLForeignKey", "SQLPrimaryKey"],
    }
    assert keys.verify().code == 0
    fixture.source.rename("cages", "kennels")
    fixture.source.table("dogs")
    keys.primary("dogs", "b")
    assert keys.catch_up().code == 0
    assert keys.are_same("zoo", "animals", "kennels", "dogs")["dogs"] == ["SQLPrimaryKey"]
    assert keys.verify().code == 0
    keys.source.drop(keys.name("animals"), f"fk_{keys.db}_animals_cages")
    keys.source.drop(keys.name("zoo"), f"pk_{keys.db}_zoo")
    assert keys.catch_up().code == 0
    missed = keys.verify()
    assert (missed.code, {each["kind"] for each in missed.output["differences"]}) == (4, {"constraint extra"})
    assert keys.catch_up("--deep").code == 0
    assert keys.are_same("zoo", "animals")["zoo"] == []
    assert keys.verify().code == 0
    fixture.source.drop("kennels")
    assert keys.catch_up().code == 0
    assert keys.verify().code == 0


def test_columns_of_a_table_with_keys_change_also_by_loads_that_are_killed(fixture: Lab) -> None:
    keys = Keys(fixture)
    for name in ("child", "parent"):
        fixture.source.table(name)
    keys.primary("parent", "a")
    keys.foreign("child", "a", "parent", "a")
    fixture.bootstrap()
    keys.source.drop(keys.name("child"), f"fk_{keys.db}_child_parent")
    keys.source.drop(keys.name("parent"), f"pk_{keys.db}_parent")
    for name in ("child", "parent"):
        table = fixture.source.metastore.table(keys.db, name)
        assert table.storage
        storage = msgspec.structs.replace(table.storage, columns=(*table.storage.columns, Column("c", "int")))
        fixture.source.metastore.alter_table(keys.db, name, msgspec.structs.replace(table, storage=storage))
    keys.primary("parent", "a")
    keys.foreign("child", "a", "parent", "a")
    assert fixture.dump(since=fixture.last).code == 0
    for fault in (
        Fault("after", "thrift", "drop constraint", 1),
        Fault("before", "thrift", "drop constraint", 1),
        Fault("before", "thrift", "add PRIMARY KEY", 1),
        Fault("after", "thrift", "add PRIMARY KEY", 1),
        Fault("after", "thrift", "add FOREIGN KEY", 1),
    ):
        assert run_with(fault, fixture.load_arguments(fixture.last)).killed, fault
    assert fixture.load().code == 0
    assert keys.are_same("child", "parent") == {"child": ["SQLForeignKey"], "parent": ["SQLPrimaryKey"]}
    assert keys.verify().code == 0


def every_kind(keys: Keys) -> None:
    """On a source that has all: two tables, the child first by name."""
    for name in ("child", "parent"):
        keys.fixture.source.table(name, kind=EXTERNAL)
    keys.primary("parent", "a", "b")
    keys.source.unique(keys.name("parent"), f"uq_{keys.db}", "b", "a")
    keys.source.primary(keys.name("child"), f"pk_{keys.db}_child", "a")
    keys.source.of_column("not_null", keys.name("child"), f"nn_{keys.db}", "b")
    keys.source.of_column("default", keys.name("child"), f"df_{keys.db}", "b", "'none'")
    keys.source.of_column("check", keys.name("child"), f"ck_{keys.db}", "a", "a > 0")


@pytest.mark.parametrize(("source", "target"), [("4.2", "4.2"), ("3.1", "4.2"), ("4.2", "3.1")])
def test_every_kind_is_replicated_between_newer_servers(source: str, target: str, hives: Hives, tmp_path: Path) -> None:
    fixture = between(hives, source, target, tmp_path)
    keys = Keys(fixture, newer=True)
    every_kind(keys)
    fixture.source.table("other", kind=EXTERNAL)
    keys.primary("other", "a")
    keys.foreign("child", "a", "other", "a")
    assert (fixture.dump().code, fixture.load().code) == (0, 0)
    assert [len(each) for each in keys.are_same("child", "other", "parent").values()] == [5, 1, 4]
    assert not constraints_in(keys.verify("--level", "metadata"))
    fixture.source.rename("other", "another")
    keys.source.drop(keys.name("child"), f"nn_{keys.db}")
    fixture.source.table("late", kind=EXTERNAL)
    keys.source.unique(keys.name("late"), f"uq_{keys.db}_late", "b")
    keys.source.of_column("default", keys.name("late"), f"df_{keys.db}_late", "b", "'late'")
    assert keys.catch_up().code == 0
    assert [len(each) for each in keys.are_same("child", "another", "late").values()] == [4, 1, 2]
    assert not constraints_in(keys.verify("--level", "metadata"))
    keys.target.drop(keys.name("late"), f"uq_{keys.db}_late")
    assert constraints_in(keys.verify("--level", "metadata")) == ["constraint missing"]
    keys.source.drop(keys.name("another"), f"pk_{keys.db}_other")  # without it, nobody sees the foreign key
    assert keys.catch_up().code == 0
    assert [len(each) for each in keys.are_same("child", "another").values()] == [3, 0]
    keys.primary("another", "a")
    assert keys.catch_up().code == 0
    assert [len(each) for each in keys.are_same("child", "another").values()] == [4, 1]
    fixture.source.metastore.drop_table(keys.db, "another")
    assert keys.catch_up().code == 0
    assert len(keys.are_same("child")["child"]) == 3


def test_what_a_target_cannot_have_is_named_and_tried_again(hives: Hives, tmp_path: Path) -> None:
    fixture = between(hives, "4.2", "2.3", tmp_path)
    keys = Keys(fixture)
    every_kind(keys)
    assert fixture.dump().code == 0
    shown = fixture.load(fixture.last, "--dry-run")
    loaded = fixture.load()
    assert (loaded.code, loaded.output["status"]) == (3, "incomplete")
    assert (shown.code, shown.output["not_replicated"]) == (3, loaded.output["not_replicated"])
    named = {each["object"]: each["reason"] for each in loaded.output["not_replicated"]}
    assert set(named) == {keys.name("child"), keys.name("parent")}
    for kind in ("NOT NULL", "DEFAULT", "CHECK"):
        assert f"the target's metastore has no {kind} constraints" in named[keys.name("child")]
    assert keys.target.shown(keys.name("parent")) == keys.source.shown(keys.name("parent"))
    verified = keys.verify("--level", "metadata")
    assert {each["object"] for each in verified.output["not_replicated"]} == set(named)
    assert not constraints_in(verified)
    fixture.source.alter("child", note="x")
    keys.source.drop(keys.name("parent"), f"uq_{keys.db}")
    again = keys.catch_up()
    assert (again.code, [each["object"] for each in again.output["not_replicated"]]) == (3, [keys.name("child")])


def test_a_name_that_is_taken_and_a_parent_that_is_not_there_are_named(fixture: Lab) -> None:
    keys = Keys(fixture)
    for name in ("child", "parent", "excluded"):
        fixture.source.table(name)
    keys.primary("parent", "a")
    keys.primary("excluded", "a")
    keys.foreign("child", "a", "excluded", "a")
    fixture.target.metastore.create_database(Database(name=f"{keys.db}_o", location=f"file:{tmp(fixture)}"))
    other = PlainDatabase(fixture.target.metastore, f"{keys.db}_o", tmp(fixture))
    other.table("t")
    keys.target.primary(f"{keys.db}_o.t", f"pk_{keys.db}_parent", "a")
    assert fixture.dump("--exclude", "excluded").code == 0
    loaded = fixture.load()
    assert loaded.code == 3
    named = {each["object"]: each["reason"] for each in loaded.output["not_replicated"]}
    assert "refused it" in named[keys.name("parent")]
    assert f"the target has no table {keys.name('excluded')} with a key" in named[keys.name("child")]
    fixture.source.table("more")
    assert keys.catch_up("--exclude", "excluded").code == 3
    fixture.target.table("excluded")
    keys.target.primary(keys.name("excluded"), f"pk_{keys.db}_excluded", "a")
    other.drop("t")
    fixture.source.table("evenmore")
    again = keys.catch_up("--exclude", "excluded")
    assert (again.code, again.output["not_replicated"]) == (0, [])
    assert keys.target.shown(keys.name("parent")) == keys.source.shown(keys.name("parent"))
    assert [each[-5] for each in keys.target.shown(keys.name("child"))[keys.name("child")]] == [
        f"fk_{keys.db}_child_excluded"
    ]


def test_repair_mends_constraints_and_a_parent_that_is_made_again_keeps_its_children(fixture: Lab) -> None:
    keys = Keys(fixture)
    for name in ("child", "parent", "plain"):
        fixture.source.table(name)
    keys.primary("parent", "a")
    keys.foreign("child", "a", "parent", "a")
    fixture.bootstrap()
    keys.target.drop(keys.name("child"), f"fk_{keys.db}_child_parent")
    keys.target.primary(keys.name("plain"), f"pk_{keys.db}_plain", "a")
    assert constraints_in(keys.verify()) == ["constraint missing", "constraint extra"]
    assert keys.repair().code == 0
    assert keys.are_same("child", "plain") == {"child": ["SQLForeignKey"], "plain": []}
    fixture.target.metastore.drop_table(keys.db, "parent")
    fixture.target.partitioned("parent", {})  # of another shape: it cannot be altered
    keys.target.primary(keys.name("parent"), f"pk_{keys.db}_parent", "a")
    keys.target.foreign(keys.name("child"), f"fk_{keys.db}_child_parent", "a", keys.name("parent"), "a")
    assert keys.repair().code == 0
    assert keys.are_same("child", "parent") == {"child": ["SQLForeignKey"], "parent": ["SQLPrimaryKey"]}


def test_a_restore_brings_constraints_back_or_names_those_whose_name_is_taken(fixture: Lab) -> None:
    keys = Keys(fixture)
    for name in ("child", "parent"):
        fixture.source.table(name)
    keys.primary("parent", "a")
    keys.foreign("child", "a", "parent", "a")
    assert fixture.capture().code == 0
    event = fixture.source.metastore.current_event_id()
    keys.source.drop(keys.name("child"), f"fk_{keys.db}_child_parent")
    fixture.source.drop("parent")
    assert fixture.capture("--deep").code == 0
    into = f"{keys.db}_then"
    restored = restore(fixture, event, "--into", into, target=fixture.target_uri)
    assert (restored.code, restored.output.get("not_replicated", [])) == (0, []), restored
    names = [f"{into}.child", f"{into}.parent"]
    assert [[each[0] for each in some] for some in keys.target.shown(*names).values()] == [
        ["SQLForeignKey"],
        ["SQLPrimaryKey"],
    ]
    beside = restore(fixture, event, "--into", f"{into}_again", target=fixture.target_uri)
    assert beside.code == 3
    assert {each["object"] for each in beside.output["not_replicated"]} == {keys.name("child"), keys.name("parent")}


def test_the_first_capture_of_this_release_reads_what_earlier_ones_did_not(fixture: Lab) -> None:
    keys = Keys(fixture)
    fixture.source.table("t")
    fixture.bootstrap()
    keys.primary("t", "a")
    assert keys.catch_up().code == 0
    assert keys.target.shown(keys.name("t")) == {keys.name("t"): []}
    with contextlib.closing(sqlite3.connect(fixture.cmroot / "manifest.sqlite")) as manifest, manifest:
        manifest.execute("DELETE FROM state WHERE key = 'constraints'")
    assert keys.catch_up().code == 0
    assert keys.are_same("t") == {"t": ["SQLPrimaryKey"]}


def test_databases_with_other_names_and_restored_ones(pair: Lab) -> None:
    here, there = pair.db("a"), pair.db("b")
    pair.keys["rename_db"] = {f"{pair.name}_b": f"{pair.name}_renamed"}
    outside = PlainDatabase(pair.source.metastore, f"outside_{pair.name}", pair.here / "source")
    outside.create()
    for db in (here, there, outside):
        db.table("t", {"f": db.name})
    source, target = Constraints(pair.source_uri), Constraints(pair.target_uri)
    names = [f"{db.name}.t" for db in (here, there, outside)]
    for name in names:
        source.primary(name, f"pk_{name}", "a")
    source.foreign(names[0], f"fk_{pair.name}_a", "a", names[1], "a")
    assert pair.sync().not_replicated == []
    assert target.shown(*names[:2], rename=pair.keys["rename_db"]) == source.shown(*names[:2])
    source.foreign(names[1], f"fk_{pair.name}_b", "a", names[2], "a")
    run = pair.sync(deep=True)
    assert [each.object for each in run.not_replicated] == [names[1]]
    assert f"database {outside.name} is not replicated with it" in run.not_replicated[0].reason
    assert pair.sync().not_replicated == run.not_replicated


@pytest.mark.parametrize("hive", ["4.2", "2.3"])
def test_constraints_go_with_role_changes_both_ways(hive: str, hives: Hives, tmp_path: Path) -> None:
    """Also those that no event tells, and those that a replica got by loads before it became the primary."""
    pair = Lab(hives(hive, "source"), hives(hive, "target"), tmp_path)
    here, there = (Constraints(uri, newer=hive != "2.3") for uri in (pair.source_uri, pair.target_uri))
    child, parent, plain, late = names = [f"{pair.name}_a.{name}" for name in ("child", "parent", "plain", "late")]

    def are_same(*sizes: int) -> None:
        wanted = here.shown(*names[: len(sizes)])
        assert tuple(len(each) for each in wanted.values()) == sizes
        assert there.shown(*names[: len(sizes)]) == wanted

    def by_policy(verb: str, *more: str) -> int:
        return command("--config", str(pair.config()), verb, pair.name, *more).code

    for name in ("child", "parent", "plain"):
        pair.db("a").table(name, {"f": name})
    more = 0
    if here.newer:
        here.unique(plain, f"uq_{pair.name}", "b", "a")
        here.of_column("not_null", child, f"nn_{pair.name}", "b")
        here.of_column("check", child, f"ck_{pair.name}", "a", "a > 0")
        more = 2
    here.primary(parent, f"pk_{pair.name}_parent", "a")
    pair.sync()
    are_same(more, 1, more)
    here.foreign(child, f"fk_{pair.name}", "a", parent, "a")
    assert by_policy("switchover") == 0
    are_same(1 + more, 1, more)
    there.primary(plain, f"pk_{pair.name}_plain", "b", "a")
    assert pair.sync().reverse
    are_same(1 + more, 1, more + 2)
    there.drop(child, f"fk_{pair.name}")
    pair.replica().table("late", {"f": "late"})
    there.primary(late, f"pk_{pair.name}_late", "a")
    if there.newer:
        there.of_column("default", child, f"df_{pair.name}", "b", "'none'")
        more += 1
    assert by_policy("switchover") == 0
    pair.sync()
    are_same(more, 1, 2 + (2 if more else 0), 1)
    lose(pair, nobody())
    assert by_policy("failover", "--force") == 0
    lose(pair, here.uri)
    here.foreign(child, f"fk_{pair.name}_own", "a", parent, "a")
    there.foreign(plain, f"fk_{pair.name}_new", "a", parent, "a")
    assert by_policy("failback", "--switch") == 0
    are_same(more, 1, 3 + (2 if more else 0), 1)
    pair.sync()
    are_same(more, 1, 3 + (2 if more else 0), 1)
    assert by_policy("verify") == 0


def tmp(fixture: Lab) -> Path:
    return fixture.here / "other"


def constraints_in(verified: Answer) -> list[str]:
    return [each["kind"] for each in verified.output["differences"] if each["kind"].startswith("constraint")]


def between(hives: Hives, source: str, target: str, here: Path) -> Lab:
    made = Lab(hives(source), hives(target, "target"), here)
    made.source.create()
    return made
