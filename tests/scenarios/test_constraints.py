"""Constraints: replicated by bootstraps and increments, or named where the target cannot have them."""

from __future__ import annotations

from typing import Any

import msgspec
from constraints import Constraints
from replication_fixture import Answer, ReplicationFixture, command

from replicator.core.model import Column


class Keys:
    """A fixture's constraints on both sides, by names that are its own: a 2.3 server has each name once."""

    def __init__(self, fixture: ReplicationFixture) -> None:
        self.fixture, self.db = fixture, fixture.db
        self.source, self.target = Constraints(fixture.source_uri), Constraints(fixture.target_uri)

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

    def catch_up(self, *more: str) -> Answer:
        before = self.fixture.last
        dumped = self.fixture.dump(*more, since=before)
        assert dumped.code == 0, dumped
        return self.fixture.load()


def test_keys_follow_bootstraps_renames_columns_and_drops(fixture: ReplicationFixture) -> None:
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


def test_columns_of_a_table_with_keys_change(fixture: ReplicationFixture) -> None:
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
    assert keys.catch_up().code == 0
    assert keys.are_same("child", "parent") == {"child": ["SQLForeignKey"], "parent": ["SQLPrimaryKey"]}
    assert keys.verify().code == 0
