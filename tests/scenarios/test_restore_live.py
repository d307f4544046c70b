"""Restore over what exists, and restores that were killed: nothing live is touched by mistake, and no byte is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import command
from faults import Fault, run_with
from lab import Lab
from plain_tables import text_storage
from restore_fixture import RestoreFixture, differences, fails, restore, restore_arguments

from replicator.core.model import EXTERNAL, Table
from replicator.metastore.embedded.running import Running


@pytest.fixture
def then(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> RestoreFixture:
    return RestoreFixture(Lab(source_metastore, target_metastore, tmp_path))


def test_a_directory_that_holds_something_is_refused(then: RestoreFixture) -> None:
    place = then.source.home.with_name(f"{then.into}.db") / "t"
    place.mkdir(parents=True)
    (place / "precious").write_text("precious")
    fails(restore(then.fixture, then.event), 6, "Refused", place.parent)
    assert (place / "precious").read_text() == "precious" and then.databases() == [then.fixture.name]
    assert restore(then.fixture, then.event, "--force").code == 0
    assert not differences(then.state(then.into), then.before)


def test_forced_the_live_database_becomes_what_it_was_and_loses_no_byte(then: RestoreFixture) -> None:
    then.source.write("t", {"unseen": then.text("never captured")})
    answer = restore(
        then.fixture, then.event, "--into", then.fixture.name, "--force", "--target-cmroot", str(then.fixture.cmroot)
    )
    assert answer.code == 0, answer
    assert answer.output["dropped"] == [f"{then.fixture.name}.later"]
    assert not differences(then.state(), then.before)
    for text in ("later", "3", "new", "outside, other", "never captured"):
        assert then.kept(text).read_text() == then.text(text)
    then.capture()
    assert not differences(then.state(), then.before)
    again = restore(then.fixture, then.latest)  # the way back is open
    assert again.code == 0
    assert not differences(then.state(f"{then.fixture.name}_restored_{then.latest}"), then.after)


def test_forced_a_single_live_table_comes_back_and_the_others_stay(then: RestoreFixture) -> None:
    answer = restore(then.fixture, then.event, "--table", "t", "--into", then.fixture.name, "--force")
    assert (answer.code, answer.output["dropped"]) == (0, [])
    wanted = {
        key: then.before[key] if key in ("table t", "table t files") else value for key, value in then.after.items()
    }
    assert not differences(then.state(), wanted)


def test_forced_into_a_replica_it_is_one_no_more(then: RestoreFixture) -> None:
    fixture = then.fixture
    assert fixture.dump().code == 0 and fixture.load().code == 0
    replica = ["--into", fixture.name, "--force", "--warehouse", str(fixture.warehouse)]
    answer = restore(fixture, then.event, *replica, target=fixture.target_uri)
    assert answer.code == 0 and "replica" in answer.output["warnings"][0]
    assert not differences(then.state(uri=fixture.target_uri), then.before)
    fails(fixture.load(), 6, "Refused", "not created by replication")


def test_a_dropped_database_comes_back_under_its_own_name(then: RestoreFixture) -> None:
    metastore, home = then.source.metastore, then.source.home
    for name in metastore.table_names(then.fixture.name):
        metastore.drop_table(then.fixture.name, name)
    for name in ("f", "g"):
        metastore.drop_function(then.fixture.name, name)
    metastore.drop_database(then.fixture.name)
    shutil.rmtree(home)
    assert then.databases() == []
    answer = restore(then.fixture, then.event, "--into", then.fixture.name)
    assert answer.code == 0, answer
    assert not differences(then.state(), then.before)
    assert (then.outside / "data").read_text() == then.text("outside, other")  # what was never the database's own stays


def test_a_place_that_another_table_has_by_now_is_not_cleared(then: RestoreFixture) -> None:
    metastore = then.source.metastore
    metastore.drop_table(then.fixture.name, "ext")
    made = Table(
        db=then.fixture.name,
        name="heir",
        kind=EXTERNAL,
        parameters={"EXTERNAL": "TRUE"},
        storage=text_storage(then.outside),
    )
    metastore.create_table(made)
    then.capture()
    alone = ["--table", "ext", "--into", then.fixture.name, "--force"]
    fails(restore(then.fixture, then.event, *alone), 6, "Refused", "heir", then.outside)
    assert (then.outside / "data").read_text() == then.text("outside, other")
    assert restore(then.fixture, then.event, "--table", "ext").code == 0


@pytest.mark.parametrize(
    "fault",
    [
        Fault("after", "thrift", "create database"),
        Fault("after", "rename", r"restored.*/t/first$"),
        Fault("after", "thrift", "create table", 2),
        Fault("after", "thrift", "alter database", 1),
        Fault("after", "thrift", "alter table", 2),
        Fault("before", "thrift", "alter database", 3),
    ],
    ids=str,
)
def test_a_restore_that_was_killed_is_run_again(then: RestoreFixture, fault: Fault) -> None:
    arguments = restore_arguments(then.fixture, then.event)
    run_with(fault, arguments)
    assert then.into in then.databases()
    fails(restore(then.fixture, then.latest, "--into", then.into), 6, "Refused", "begun by another restore")
    assert restore(then.fixture, then.event).code == 0
    assert not differences(then.state(then.into), then.before)
    assert not [key for key in then.source.metastore.database(then.into).parameters if "repl" in key]


def test_a_forced_restore_over_the_live_database_that_was_killed_is_run_again(then: RestoreFixture) -> None:
    arguments = restore_arguments(then.fixture, then.event, "--into", then.fixture.name, "--force")
    run_with(Fault("after", "thrift", "drop table", 2), arguments)
    assert command(*arguments).code == 0
    assert not differences(then.state(), then.before)
