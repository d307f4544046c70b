"""Objects that the target's metastore does not take: skipped by name, tried again, and the rest goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from policies import Replication
from postgres import Postgres
from replication_fixture import command

from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.running import Running
from replicator.policies.run import SyncRun

ODD = "odd-name"  # a name for 4.x, none for 3.1
ANSWER = f"InvalidObjectException: {ODD} is not a valid object name"


@pytest.fixture
def story(hives: Callable[..., Running], tmp_path: Path) -> Iterator[Replication]:
    yield Replication(hives("4.2"), hives("3.1", "target"), tmp_path)


class Refusing:
    """The database of a target's metastore, which refuses objects of a name."""

    def __init__(self, settings: dict[str, str]) -> None:
        url, user, password = (settings[f"javax.jdo.option.Connection{key}"] for key in ("URL", "UserName", "Password"))
        self._url = f"postgresql://{user}:{password}@{url.removeprefix('jdbc:postgresql://')}"

    def refuse(self, *, table: str = "", function: str = "") -> None:
        for kind, column, name in (("TBLS", "TBL_NAME", table), ("FUNCS", "FUNC_NAME", function)):
            if name:
                self._run(f"""ALTER TABLE "{kind}" ADD CONSTRAINT refused CHECK ("{column}" <> '{name}')""")

    def take(self) -> None:
        for kind in ("TBLS", "FUNCS"):
            self._run(f'ALTER TABLE "{kind}" DROP CONSTRAINT IF EXISTS refused')

    def _run(self, statement: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(statement.encode())


def named(run: SyncRun) -> list[str]:
    return [each.name.split(".")[1] for each in run.not_replicated]


def external(story: Replication, name: str) -> None:
    story.db("a").table(name, {"first": "1"}, kind="EXTERNAL_TABLE")


def test_one_that_is_refused_is_named_until_it_is_taken(story: Replication) -> None:
    database, replica = story.db("a"), story.replica("a")
    for name in ("one", ODD, "two"):
        external(story, name)
    database.function("f")
    first = story.sync()
    assert (first.status, named(first)) == ("incomplete", [ODD])
    assert ANSWER in first.not_replicated[0].reason
    assert sorted(story.target.table_names(replica.name)) == ["one", "two"]
    assert story.target.function_names(replica.name) == ["f"]

    database.write("one", {"second": "2"})  # a range that says nothing of it
    assert named(story.sync()) == [ODD]
    database.write(ODD, {"second": "2"})  # one that says a part
    again = story.sync()
    assert named(again) == [ODD]
    answer = command("--config", str(story.config()), "verify", story.name)
    assert ODD in [each["object"].split(".")[1] for each in answer.output["not_replicated"]]
    assert ODD not in str(answer.output["differences"])
    answer = command("--config", str(story.config()), "status", story.name)
    assert ODD in str(answer.output)

    database.rename(ODD, "even")
    assert named(story.sync()) == []
    assert sorted(story.target.table_names(replica.name)) == ["even", "one", "two"]
    assert replica.shown()["even"]["files"] == database.shown()["even"]["files"]


def test_one_that_is_dropped_is_forgotten(story: Replication) -> None:
    for name in ("one", ODD):
        external(story, name)
    assert named(story.sync()) == [ODD]
    story.db("a").drop(ODD)
    assert named(story.sync()) == []


@pytest.fixture
def refusing(
    hives: Callable[..., Running], postgres: Postgres, tmp_path: Path
) -> Iterator[tuple[Replication, Refusing]]:
    settings = postgres.jdbc()
    soon = settings | {"hive.hmshandler.retry.attempts": "1"}
    target = embedded.start(tmp_path / "metastore", settings=soon, env=os.environ)
    yield Replication(hives("2.3"), target, tmp_path), Refusing(settings)
    embedded.stop(target.directory)


@pytest.mark.parametrize("publish", ["mirror", "snapshot"])
def test_tables_and_functions_are_tried_again_without_a_change(
    refusing: tuple[Replication, Refusing], publish: str
) -> None:
    pair, target = refusing
    pair.keys["publish"] = publish
    source, replica = pair.db("a"), pair.replica("a")
    for name in ("good", "bad"):
        source.table(name, {"first": "1"})
        source.function(f"{name}_function")
    target.refuse(table="bad", function="bad_function")
    assert named(pair.sync()) == ["bad", "bad_function"]
    source.write("good", {"second": "2"})
    again = pair.sync()
    assert (again.kind, named(again)) == ("incremental", ["bad", "bad_function"])
    assert pair.target.table_names(replica.name) == ["good"]
    assert pair.target.function_names(replica.name) == ["good_function"]
    target.take()
    assert named(pair.sync()) == []
    assert pair.target.function_names(replica.name) == ["bad_function", "good_function"]
    for name in ("good", "bad"):
        assert replica.shown()[name]["files"] == source.shown()[name]["files"]
    assert command("--config", str(pair.config()), "verify", pair.name).code == 0
