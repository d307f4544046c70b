"""Objects that the target's metastore does not take: skipped by name, tried again, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from command_line import command
from faults import Fault, run_with
from hive_metastore import ttypes
from hive_objects import hive_client
from lab import Lab
from metastores import MetastoreFactory
from plain_tables import PlainDatabase
from postgres import Postgres

from replicator.metastore.embedded.running import Running
from replicator.policies.run import SyncRun

ODD = "odd-name"  # a name for 4.x, none for 3.1
ANSWER = f"InvalidObjectException: {ODD} is not a valid object name"


@pytest.fixture
def story(hives: Callable[..., Running], tmp_path: Path) -> Iterator[Lab]:
    yield Lab(hives("4.2"), hives("3.1", "target"), tmp_path)


class Refusing:
    """The database of a target's metastore, which refuses objects of a name."""

    def __init__(self, settings: dict[str, str]) -> None:
        url, user, password = (settings[f"javax.jdo.option.Connection{key}"] for key in ("URL", "UserName", "Password"))
        self._url = f"postgresql://{user}:{password}@{url.removeprefix('jdbc:postgresql://')}"

    def refuse(self, *, table: str = "", function: str = "") -> None:
        for kind, column, name in (("TBLS", "TBL_NAME", table), ("FUNCS", "FUNC_NAME", function)):
            if name:
                self._run(f"""ALTER TABLE "{kind}" ADD CONSTRAINT refused CHECK ("{column}" <> '{name}') NOT VALID""")

    def keep_databases(self, *names: str) -> None:
        """Refuses their drops."""
        self._run(
            f"""CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF OLD."NAME" IN {names} THEN RAISE '% is kept', OLD."NAME"; END IF; RETURN OLD; END $$"""
        )
        self._run('CREATE TRIGGER kept BEFORE DELETE ON "DBS" FOR EACH ROW EXECUTE FUNCTION keep()')

    def take(self) -> None:
        self._run("DROP FUNCTION IF EXISTS keep CASCADE")
        for kind in ("TBLS", "FUNCS"):
            self._run(f'ALTER TABLE "{kind}" DROP CONSTRAINT IF EXISTS refused')

    def _run(self, statement: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(statement.encode())


def named(run: SyncRun) -> list[str]:
    return [each.name.split(".")[1] for each in run.not_replicated]


def external(story: Lab, name: str) -> None:
    story.db("a").table(name, {"first": "1"}, kind="EXTERNAL_TABLE")


def test_one_that_is_refused_is_named_until_it_is_taken(story: Lab) -> None:
    database, replica = story.db("a"), story.replica("a")
    for name in ("one", ODD, "two"):
        external(story, name)
    database.function("f")
    first = story.sync()
    assert (first.status, named(first)) == ("incomplete", [ODD])
    assert ANSWER in first.not_replicated[0].reason
    assert sorted(story.target.metastore.table_names(replica.name)) == ["one", "two"]
    assert story.target.metastore.function_names(replica.name) == ["f"]

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
    assert sorted(story.target.metastore.table_names(replica.name)) == ["even", "one", "two"]
    assert replica.shown()["even"]["files"] == database.shown()["even"]["files"]


def test_one_that_is_dropped_is_forgotten(story: Lab) -> None:
    for name in ("one", ODD):
        external(story, name)
    assert named(story.sync()) == [ODD]
    story.db("a").drop(ODD)
    assert named(story.sync()) == []


@pytest.fixture(scope="module")
def target_in_postgres(metastore_factory: MetastoreFactory, postgres: Postgres) -> tuple[Running, Refusing]:
    """A metastore whose database may be told to refuse."""
    settings = postgres.jdbc()
    running = metastore_factory("refusing", settings=settings | {"hive.hmshandler.retry.attempts": "1"})
    return running, Refusing(settings)


@pytest.fixture
def refusing(
    hives: Callable[..., Running], target_in_postgres: tuple[Running, Refusing], tmp_path: Path
) -> Iterator[tuple[Lab, Refusing]]:
    target, of_target = target_in_postgres
    yield Lab(hives("2.3"), target, tmp_path), of_target
    of_target.take()


@pytest.mark.parametrize("publish", ["mirror", "snapshot"])
def test_tables_and_functions_are_tried_again_without_a_change(refusing: tuple[Lab, Refusing], publish: str) -> None:
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
    assert pair.target.metastore.table_names(replica.name) == ["good"]
    assert pair.target.metastore.function_names(replica.name) == ["good_function"]
    target.take()
    assert named(pair.sync()) == []
    assert pair.target.metastore.function_names(replica.name) == ["bad_function", "good_function"]
    for name in ("good", "bad"):
        assert replica.shown()[name]["files"] == source.shown()[name]["files"]
    assert command("--config", str(pair.config()), "verify", pair.name).code == 0


# ---- drops and renames ----------------------------------------------------------------------------------------------


def verified(pair: Lab) -> int:
    return command("--config", str(pair.config()), "verify", pair.name).code


def test_a_refused_rename_is_no_matter_of_the_others(story: Lab) -> None:
    source, replica = story.db("a"), story.replica("a")
    for name in ("one", "two"):
        external(story, name)
    assert named(story.sync()) == []
    source.rename("one", ODD)
    external(story, "one")  # another one in its place
    source.write("two", {"second": "2"})
    assert named(story.sync()) == [ODD, "one"]
    assert set(story.target.metastore.table_names(replica.name)) == {"one", "two"}
    assert replica.shown()["two"] == source.shown()["two"]
    source.metastore.drop_table(source.name, "one")  # Hive 4 renames no directory: both lie in one
    assert named(story.sync()) == [ODD]
    source.rename(ODD, "even")
    assert named(story.sync()) == []
    story.are_same("a")


def test_a_refused_drop_is_no_matter_of_the_others(hives: Callable[..., Running], tmp_path: Path) -> None:
    """Of what a materialized view reads that the people of the target have made."""
    pair = Lab(hives("4.2"), hives("4.2", "target"), tmp_path)
    source, replica = pair.db("a"), pair.replica("a")
    for name in ("anew", "gone", "other"):
        external(pair, name)
    pair.sync()
    theirs = PlainDatabase(pair.target.metastore, f"theirs_{pair.name}", tmp_path / "theirs")
    theirs.create()
    with hive_client(hives("4.2", "target")) as client:
        used = ("anew", "gone")
        made = ttypes.CreationMetadata(catName="hive", dbName=theirs.name, tblName="mv")
        made.tablesUsed = {f"{replica.name}.{name}" for name in used}
        made.sourceTables = [
            ttypes.SourceTable(table=client.get(replica.name, name), insertedCount=0, updatedCount=0, deletedCount=0)
            for name in used
        ]
        client.table(theirs.name, "mv", kind="MATERIALIZED_VIEW", creationMetadata=made)
    for name in ("anew", "gone", "other"):
        source.drop(name)
    source.table("anew", {"another": "1"}, kind="EXTERNAL_TABLE")
    external(pair, "later")
    assert named(pair.sync()) == ["anew", "gone"]
    assert "another" not in replica.shown()["anew"]["files"], "nothing takes the place of a table that stays"
    assert named(pair.sync()) == ["gone"]  # the other has become what the source has, by difference
    assert set(pair.target.metastore.table_names(replica.name)) == {"anew", "gone", "later"}
    assert verified(pair) == 3
    with hive_client(hives("4.2", "target")) as client:
        client.drop(theirs.name, "mv")
    assert named(pair.sync()) == []
    pair.are_same("a")
    assert verified(pair) == 0


def test_a_database_whose_drop_is_refused_is_named_until_it_goes(refusing: tuple[Lab, Refusing]) -> None:
    pair, target = refusing
    gone, left, other = (f"{pair.name}_{name}" for name in ("gone", "left", "other"))
    for name in ("gone", "left", "other"):
        pair.db(name).table("t", {"first": "1"})
        pair.db(name).function("f")
    pair.sync()
    target.keep_databases(gone, left)
    pair.keys["databases"] = [gone, other]
    run = pair.sync(drop_left=True)
    assert (run.status, [each.object for each in run.not_replicated]) == ("incomplete", [left])
    assert (run.left, run.dropped) == ([left], [])

    pair.source.metastore.drop_table(gone, "t")
    pair.source.metastore.drop_function(gone, "f")
    pair.source.metastore.drop_database(gone)
    pair.db("other").write("t", {"second": "2"})
    run = pair.sync()
    assert (run.status, [each.object for each in run.not_replicated]) == ("incomplete", [gone])
    assert "the target's metastore does not take it" in run.not_replicated[0].reason
    pair.are_same("other")
    for words in (["status"], ["lag"], ["sync"], ["sync", "--drop-left"]):
        answer = command("--config", str(pair.config()), *words, pair.name)
        assert gone in [each["object"] for each in answer.output["not_replicated"]], words
        assert answer.code == (3 if "sync" in words else 0), words
    target.take()
    run = pair.sync(drop_left=True)
    assert (run.not_replicated, run.left, run.dropped) == ([], [], [left])
    assert not pair.replica("gone").exists()
    assert not pair.replica("left").exists()
    assert verified(pair) == 0


def test_a_load_that_is_killed_while_it_notes_refusals_loses_none(refusing: tuple[Lab, Refusing]) -> None:
    """Neither in the checkpoint, nor in the note of a database that stays, nor when it tries again."""
    pair, target = refusing
    a = f"alter database {pair.name}_a$"
    faults = [
        *(Fault(moment, "thrift", a, 2) for moment in ("before", "after")),  # the checkpoint
        Fault("after", "thrift", f"alter database {pair.name}_gone"),
        Fault("after", "thrift", a, 3),  # the second try begins
        Fault("before", "thrift", a, 4),  # and is to note what it was refused
    ]
    source, arguments = pair.db("a"), ["--config", str(pair.config()), "sync", pair.name]
    source.table("good", {"first": "1"})
    gone = [pair.db(f"gone{number}").name for number in range(len(faults))]
    pair.sync()
    target.refuse(table="bad", function="bad_function")
    target.keep_databases(*gone)
    source.table("bad", {"first": "1"})
    source.function("bad_function")
    wanted = {f"{source.name}.bad", f"{source.name}.bad_function"}
    for number, fault in enumerate(faults):
        source.write("good", {f"file{number}": "another"})
        pair.source.metastore.drop_database(gone[number])
        wanted.add(gone[number])
        assert run_with(fault, arguments).killed
        for _ in range(2):  # the second one has nothing new
            run = pair.sync()
            assert {each.object for each in run.not_replicated} == wanted, fault
        status = command("--config", str(pair.config()), "status", pair.name)
        assert {each["object"] for each in status.output["not_replicated"]} == wanted, fault
    target.take()
    assert pair.sync().not_replicated == []
    assert not {f"{pair.name}_gone{number}" for number in range(len(faults))} & set(
        pair.target.metastore.database_names()
    )
    assert verified(pair) == 0
