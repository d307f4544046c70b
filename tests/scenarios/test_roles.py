"""Roles: which side is the primary is known to both metastores, and nothing is dumped or loaded against it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from command_line import Answer, command
from engines import local_runtime
from lab import Lab
from waiting import CEILING

from cmroot.log.captured import segments
from replicator.captures.dumps.layout import open_parts
from replicator.core.model import Database
from replicator.core.roles import (
    EPOCH,
    PROPERTIES,
    ROLE,
    Role,
    RoleMark,
    after_load,
    after_restore,
    consequence,
    mark_of,
    marked,
    may_dump_from,
    may_load_into,
)
from replicator.errors import FormatError, ObjectNotFound, Refused
from replicator.metastore.embedded.running import Running
from replicator.metastore.events.scope import database_change
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.policies.roles import epochs_to_dump, establish, read_role, set_role
from replicator.replay.replica import LOADING, POSITION

AT_ONCE = timedelta(0)
NONE, PRIMARY, REPLICA, FENCED = Role.NONE, Role.PRIMARY, Role.REPLICA, Role.FENCED


@pytest.fixture
def fixture(fixture: Lab) -> Lab:
    """A source with a table; nothing is replicated and nobody has a role yet."""
    fixture.source.table("t", {"first": "1"})
    return fixture


@pytest.fixture
def pair(fixture: Lab) -> Lab:
    """The source is the primary at epoch 1, the target its replica."""
    established(fixture)
    fixture.bootstrap()
    return fixture


def established(fixture: Lab) -> dict[str, int]:
    return establish(fixture.source.metastore, fixture.target.metastore, [(fixture.name, fixture.name)], settle=AT_ONCE)


def source_role(fixture: Lab) -> RoleMark:
    return read_role(fixture.source.metastore, fixture.name)


def target_role(fixture: Lab) -> RoleMark:
    return read_role(fixture.target.metastore, fixture.name)


def turn(metastore: ThriftMetastore, db: str, role: Role, epoch: int) -> None:
    set_role(metastore, db, RoleMark(role, epoch), expect=read_role(metastore, db), settle=AT_ONCE)


def write(fixture: Lab, number: int) -> None:
    fixture.source.write("t", {f"more{number}": f"{number}"})
    fixture.source.alter("t", round=str(number))


def refused(answer: Answer) -> str:
    assert (answer.code, answer.error) == (6, "Refused"), answer
    assert answer.output["hint"]
    return answer.message


# ---- decisions ----------------------------------------------------------------------------------------------------


def test_only_the_primary_and_who_has_no_role_may_be_dumped() -> None:
    may_dump_from("it", RoleMark())
    may_dump_from("it", RoleMark(PRIMARY, 3), known_epoch=3)
    for mark in (RoleMark(REPLICA, 3), RoleMark(FENCED, 3)):
        with pytest.raises(Refused):
            may_dump_from("it", mark)
    may_dump_from("it", RoleMark(REPLICA, 3), allow_replica=True)
    may_dump_from("it", RoleMark(FENCED, 3), draining=True)
    for wrong in ({"draining": True}, {"allow_replica": False}):
        with pytest.raises(Refused):
            may_dump_from("it", RoleMark(REPLICA, 3), **wrong)
    with pytest.raises(Refused):
        may_dump_from("it", RoleMark(FENCED, 3), allow_replica=True)


def test_the_side_with_the_highest_epoch_is_right() -> None:
    with pytest.raises(Refused, match="knows epoch 3"):
        may_dump_from("it", RoleMark(PRIMARY, 2), known_epoch=3)
    with pytest.raises(Refused, match="knows epoch 3"):
        may_load_into("it", RoleMark(REPLICA, 3), source_epoch=2)
    may_load_into("it", RoleMark(REPLICA, 3), source_epoch=3)
    may_load_into("it", RoleMark(REPLICA, 3), source_epoch=None)


def test_a_load_makes_a_replica_of_what_it_loads_from_a_source_with_an_epoch() -> None:
    assert after_load(RoleMark(), None) == RoleMark()
    assert after_load(RoleMark(), 0) == RoleMark()
    assert after_load(RoleMark(), 2) == RoleMark(REPLICA, 2)
    assert after_load(RoleMark(REPLICA, 1), 2) == RoleMark(REPLICA, 2)
    assert after_load(RoleMark(REPLICA, 2), None) == RoleMark(REPLICA, 2)


def test_a_restore_leaves_a_primary_its_role_and_everyone_the_epoch() -> None:
    assert after_restore(RoleMark(PRIMARY, 4), "it") == RoleMark(PRIMARY, 4)
    assert after_restore(RoleMark(REPLICA, 4), "it") == RoleMark(NONE, 4)
    assert after_restore(RoleMark(), "it") == RoleMark()
    with pytest.raises(Refused):
        after_restore(RoleMark(FENCED, 4), "it")


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_a_role_is_read_as_it_was_written(role: Role, epoch: int) -> None:
    mark = RoleMark(role, epoch, "somebody")
    written = marked({"a": "b", ROLE: "primary", EPOCH: "99"}, mark)
    assert mark_of(written, "it") == mark and mark_of(written, "it").by == "somebody"
    assert {key: value for key, value in written.items() if key not in PROPERTIES} == {"a": "b"}


@pytest.mark.parametrize("parameters", [{ROLE: "boss"}, {ROLE: "primary", EPOCH: "one"}, {EPOCH: "-1"}, {EPOCH: ""}])
def test_a_role_that_cannot_be_read_is_not_taken_for_none(parameters: dict[str, str]) -> None:
    with pytest.raises(FormatError, match="database x"):
        mark_of(parameters, "database x")
    assert mark_of(parameters, "database x", repair=True).role is NONE


def test_a_change_by_hand_that_can_lose_data_has_its_consequence_told() -> None:
    harmful = {(before, after) for before in Role for after in Role if consequence(before, after)}
    assert harmful == {
        (REPLICA, PRIMARY),
        (FENCED, PRIMARY),
        (PRIMARY, REPLICA),
        (FENCED, REPLICA),
        (PRIMARY, NONE),
        (REPLICA, NONE),
        (FENCED, NONE),
    }


def test_a_role_is_no_change_of_the_database() -> None:
    known = Database(name="d", parameters={"a": "b"})
    now = Database(name="d", parameters={"a": "b", **RoleMark(FENCED, 2, "me").parameters()})
    assert list(database_change(known, now)) == []
    assert list(database_change(now, known)) == []
    assert len(list(database_change(known, Database(name="d", parameters={"a": "c"})))) == 1


# ---- setting ------------------------------------------------------------------------------------------------------


def test_a_role_is_set_beside_the_databases_other_properties(fixture: Lab) -> None:
    metastore = fixture.source.metastore
    plain = metastore.database(fixture.name)
    metastore.alter_database(fixture.name, msgspec.structs.replace(plain, parameters={"owner": "sales", POSITION: "7"}))
    done = set_role(metastore, fixture.name, RoleMark(PRIMARY, 1), expect=RoleMark(), settle=AT_ONCE)
    assert done == read_role(metastore, fixture.name) == RoleMark(PRIMARY, 1)
    assert "process" in done.by
    turn(metastore, fixture.name, FENCED, 2)
    turn(metastore, fixture.name, NONE, 2)
    there = metastore.database(fixture.name).parameters
    assert (there["owner"], there[POSITION], there[EPOCH]) == ("sales", "7", "2") and ROLE not in there


def test_a_role_is_set_only_where_it_is_the_expected_one(fixture: Lab) -> None:
    metastore = fixture.source.metastore
    turn(metastore, fixture.name, PRIMARY, 2)
    with pytest.raises(Refused, match="primary at epoch 2, not replica at epoch 1"):
        set_role(metastore, fixture.name, RoleMark(PRIMARY, 3), expect=RoleMark(REPLICA, 1), settle=AT_ONCE)
    with pytest.raises(ObjectNotFound):
        set_role(metastore, "no_such_db", RoleMark(PRIMARY, 3), expect=RoleMark(), settle=AT_ONCE)
    assert source_role(fixture) == RoleMark(PRIMARY, 2)


def test_an_epoch_only_grows(fixture: Lab) -> None:
    metastore = fixture.source.metastore
    turn(metastore, fixture.name, REPLICA, 5)
    for role, epoch in ((REPLICA, 4), (FENCED, 4), (PRIMARY, 5)):
        with pytest.raises(Refused, match="only grows"):
            turn(metastore, fixture.name, role, epoch)
    turn(metastore, fixture.name, PRIMARY, 6)
    set_role(metastore, fixture.name, RoleMark(REPLICA, 1), expect=RoleMark(PRIMARY, 6), force=True, settle=AT_ONCE)
    assert source_role(fixture) == RoleMark(REPLICA, 1)


class Together(ThriftMetastore):
    """A connection whose first reading of a database waits for the others': all have read before anyone writes."""

    def __init__(self, uri: str, meeting: threading.Barrier) -> None:
        super().__init__(uri)
        self._meeting: threading.Barrier | None = meeting

    def database(self, name: str) -> Database:
        found = super().database(name)
        if self._meeting is not None:
            meeting, self._meeting = self._meeting, None
            meeting.wait(CEILING)
        return found


@pytest.mark.parametrize("operators", [2, 5])
def test_of_several_operators_at_once_one_wins_and_the_others_are_refused(fixture: Lab, operators: int) -> None:
    turn(fixture.source.metastore, fixture.name, REPLICA, 1)
    read, written = threading.Barrier(operators), threading.Barrier(operators)

    def act(_: int) -> RoleMark | Refused:
        with Together(fixture.source_uri, read) as metastore:
            try:
                return set_role(
                    metastore,
                    fixture.name,
                    RoleMark(PRIMARY, 2),
                    expect=RoleMark(REPLICA, 1),
                    pause=lambda seconds: void(written.wait(CEILING)),
                )
            except Refused as refusal:
                return refusal

    with ThreadPoolExecutor(operators) as pool:
        outcomes = list(pool.map(act, range(operators)))
    winners = [each for each in outcomes if isinstance(each, RoleMark)]
    assert len(winners) == 1, outcomes
    assert source_role(fixture).by == winners[0].by
    assert all(each.exit_code == 6 for each in outcomes if isinstance(each, Refused))


def void(_: object) -> None:
    return None


def test_whoever_wrote_a_role_over_is_found_before_it_is_believed(fixture: Lab) -> None:
    metastore = fixture.source.metastore
    before = metastore.database(fixture.name)

    def another(seconds: float) -> None:
        assert seconds == 1
        metastore.alter_database(fixture.name, before)  # as a writer of other properties does that read before

    with pytest.raises(Refused, match="none at epoch 0, set by another"):
        set_role(metastore, fixture.name, RoleMark(PRIMARY, 1), expect=RoleMark(), pause=another)


# ---- a new pair ---------------------------------------------------------------------------------------------------


def test_a_first_run_makes_the_source_the_primary_and_its_load_makes_the_replica(fixture: Lab) -> None:
    assert established(fixture) == {fixture.name: 1}
    assert source_role(fixture) == RoleMark(PRIMARY, 1)
    fixture.bootstrap()
    assert target_role(fixture) == RoleMark(REPLICA, 1)
    assert open_parts(str(fixture.last))[1].epochs == {fixture.name: 1}
    assert established(fixture) == {fixture.name: 1}
    assert epochs_to_dump(fixture.source.metastore, [fixture.name, "no_such_db"]) == {fixture.name: 1}


def test_a_source_that_lost_its_role_is_not_made_primary_again(pair: Lab) -> None:
    metastore = pair.source.metastore
    there = metastore.database(pair.name)
    metastore.alter_database(pair.name, msgspec.structs.replace(there, parameters={}))  # a metastore of last week
    with pytest.raises(Refused, match="the target knows epoch 1"):
        established(pair)
    assert source_role(pair) == RoleMark()


def test_nothing_is_established_where_both_are_primary(pair: Lab) -> None:
    turn(pair.target.metastore, pair.name, PRIMARY, 2)
    with pytest.raises(Refused, match="is the primary"):
        established(pair)


# ---- dumps and loads ----------------------------------------------------------------------------------------------


def test_a_database_without_a_role_is_replicated_as_ever(fixture: Lab) -> None:
    fixture.bootstrap()
    write(fixture, 1)
    fixture.catch_up()
    for metastore in (fixture.source.metastore, fixture.target.metastore):
        assert not set(PROPERTIES) & set(metastore.database(fixture.name).parameters)
    assert open_parts(str(fixture.last))[1].epochs == {fixture.name: 0}


def test_a_replica_stays_one_through_loads_and_does_not_get_the_sources_role(pair: Lab) -> None:
    there = pair.source.metastore.database(pair.name)
    changed = {**there.parameters, "season": "winter"}
    pair.source.metastore.alter_database(pair.name, msgspec.structs.replace(there, parameters=changed))
    write(pair, 1)
    pair.catch_up()
    found = pair.target.metastore.database(pair.name).parameters
    assert found["season"] == "winter" and LOADING not in found
    assert (target_role(pair), source_role(pair)) == (RoleMark(REPLICA, 1), RoleMark(PRIMARY, 1))


def test_setting_roles_is_nothing_for_a_capture_and_verify_sees_no_difference(pair: Lab) -> None:
    before = segments(str(pair.cmroot))[-1].last
    turn(pair.source.metastore, pair.name, FENCED, 2)
    turn(pair.source.metastore, pair.name, PRIMARY, 3)
    assert pair.capture().code == 0
    assert "alter_database" not in record_kinds(pair) and before <= segments(str(pair.cmroot))[-1].last
    verified = command(
        "verify", "--source", pair.source_uri, "--target", pair.target_uri, "--db", pair.name, "--engine", "local"
    )
    assert (verified.code, verified.output["differences"]) == (0, [])


def record_kinds(fixture: Lab) -> list[str]:
    answer = command("show", str(fixture.cmroot))
    return [each["change"]["kind"] for each in answer.output["records"]]


def test_a_dump_of_a_replica_or_a_fenced_database_is_refused(pair: Lab) -> None:
    there = pair.here / "from_replica"
    back = {"source": pair.target_uri, "cmroot": pair.here / "back"}
    assert "is a replica" in refused(pair.dump(out=there, **back))
    assert not there.exists() and not segments(str(pair.here / "back"))
    allowed = pair.dump("--allow-replica", out=there, **back)
    assert allowed.code == 0
    assert open_parts(str(there))[1].epochs == {pair.name: 1}
    turn(pair.source.metastore, pair.name, FENCED, 2)
    for more in ((), ("--allow-replica",), ("--dry-run",)):
        assert "is fenced" in refused(pair.dump(*more))


def test_a_load_into_a_primary_or_a_fenced_database_is_refused_and_changes_nothing(pair: Lab) -> None:
    write(pair, 1)
    assert pair.dump(since=pair.last).code == 0
    for role, epoch, word in ((PRIMARY, 2, "is the primary"), (FENCED, 3, "is fenced")):
        turn(pair.target.metastore, pair.name, role, epoch)
        before = pair.target.everything()
        for more in ((), ("--overwrite",), ("--dry-run",)):
            assert word in refused(pair.load(pair.last, *more))
        assert pair.target.everything() == before
    turn(pair.target.metastore, pair.name, REPLICA, 3)
    assert "knows epoch 3" in refused(pair.load())


def test_a_dump_of_a_higher_epoch_takes_the_replica_along(pair: Lab) -> None:
    turn(pair.source.metastore, pair.name, FENCED, 2)
    turn(pair.source.metastore, pair.name, PRIMARY, 3)
    write(pair, 1)
    stale = pair.last
    pair.catch_up()
    assert target_role(pair) == RoleMark(REPLICA, 3)
    assert "knows epoch 3" in refused(pair.load(stale))


class TurnedDuring(ThriftMetastore):
    """A connection over which a target is promoted by another before the n-th of the load's changes."""

    def __init__(self, uri: str, db: str, kind: str) -> None:
        super().__init__(uri)
        self._other, self._db, self._kind, self._done = connect(uri), db, kind, False

    def create_table(self, table: Any) -> None:
        super().create_table(table)
        self._turn("create_table")

    def create_database(self, database: Database) -> None:
        super().create_database(database)
        self._turn("create_database")

    def _turn(self, kind: str) -> None:
        if kind == self._kind and not self._done:
            self._done = True
            turn(self._other, self._db, PRIMARY, 9)


@pytest.fixture
def promoting(target_metastore: Running, fixture: Lab) -> Iterator[Any]:
    made: list[TurnedDuring] = []

    def make(kind: str) -> TurnedDuring:
        made.append(TurnedDuring(target_metastore.uri, fixture.name, kind))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("moment", ["create_database", "create_table"])
def test_a_load_that_goes_on_while_its_target_becomes_primary_stops_and_leaves_it_primary(
    fixture: Lab, promoting: Any, moment: str
) -> None:

    from replicator.replay.apply.load import load
    from replicator.replay.apply.planning import LoadSettings

    established(fixture)
    assert fixture.dump().code == 0
    options = LoadSettings(warehouse=str(fixture.warehouse))
    with pytest.raises(Refused, match="is the primary"):
        load(str(fixture.last), promoting(moment), options, local_runtime())
    assert target_role(fixture) == RoleMark(PRIMARY, 9)
    assert POSITION not in fixture.target.metastore.database(fixture.name).parameters


# ---- restore ------------------------------------------------------------------------------------------------------


def test_a_restore_into_the_primary_leaves_it_primary_and_a_copy_has_no_role(pair: Lab) -> None:
    event = open_parts(str(pair.last))[1].end.event
    write(pair, 1)
    assert pair.capture().code == 0
    restore = [
        "restore",
        "--cmroot",
        str(pair.cmroot),
        "--db",
        pair.name,
        "--to",
        str(event),
        "--engine",
        "local",
        "--target",
        pair.source_uri,
        "--target-cmroot",
        str(pair.here / "restores"),
    ]
    copy = command(*restore, "--into", f"{pair.name}_copy")
    assert copy.code == 0, copy
    assert read_role(pair.source.metastore, f"{pair.name}_copy") == RoleMark()
    live = command(*restore, "--into", pair.name, "--force")
    assert live.code == 0, live
    assert source_role(pair) == RoleMark(PRIMARY, 1)
    turn(pair.source.metastore, pair.name, FENCED, 2)
    assert "is fenced" in refused(command(*restore, "--into", pair.name, "--force"))
    assert source_role(pair) == RoleMark(FENCED, 2)


# ---- the command --------------------------------------------------------------------------------------------------


def role(*arguments: str) -> Answer:
    return command("role", *arguments)


def test_an_operator_sees_and_sets_roles(fixture: Lab) -> None:
    here = ("--metastore", fixture.source_uri, "--db", fixture.name)
    assert role("show", *here).output["databases"] == [{"db": fixture.name, "role": "none", "epoch": 0, "by": ""}]
    planned = role("set", *here, "--role", "primary", "--dry-run")
    assert (planned.output["status"], planned.output["after"]["epoch"]) == ("planned", 1)
    assert source_role(fixture) == RoleMark()
    done = role("set", *here, "--role", "primary")
    assert (done.code, done.output["status"]) == (0, "set")
    assert role("set", *here, "--role", "primary").output["status"] == "unchanged"
    (shown,) = role("show", *here).output["databases"]
    assert (shown["role"], shown["epoch"]) == ("primary", 1) and shown["by"]
    everywhere = role("show", "--metastore", fixture.source_uri).output["databases"]
    assert fixture.name in [each["db"] for each in everywhere] and all(each["epoch"] for each in everywhere)


def test_an_operator_is_told_what_a_change_can_cost_and_must_force_it(fixture: Lab) -> None:
    here = ("--metastore", fixture.source_uri, "--db", fixture.name)
    turn(fixture.source.metastore, fixture.name, REPLICA, 1)
    answer = role("set", *here, "--role", "primary")
    assert "both accept writes" in refused(answer) and "--force" in answer.output["hint"]
    assert answer.output["after"] == {"role": "primary", "epoch": 2, "by": ""}
    assert source_role(fixture) == RoleMark(REPLICA, 1)
    assert role("set", *here, "--role", "primary", "--force").code == 0
    assert source_role(fixture) == RoleMark(PRIMARY, 2)
    assert role("set", *here, "--role", "fenced").code == 0
    assert source_role(fixture) == RoleMark(FENCED, 3)
    assert role("set", *here, "--role", "fenced", "--epoch", "2").code == 6


def test_a_role_that_cannot_be_read_stops_dumps_and_is_repaired_by_force(fixture: Lab) -> None:
    metastore = fixture.source.metastore
    there = metastore.database(fixture.name)
    metastore.alter_database(fixture.name, msgspec.structs.replace(there, parameters={ROLE: "boss", EPOCH: "4"}))
    assert fixture.dump().error == "FormatError"
    here = ("--metastore", fixture.source_uri, "--db", fixture.name)
    assert role("set", *here, "--role", "primary").error == role("show", *here).error == "FormatError"
    every = role("show", "--metastore", fixture.source_uri)
    assert every.code == 3 and fixture.name in every.output["unreadable"]
    assert role("set", *here, "--role", "primary", "--force").code == 0
    assert source_role(fixture) == RoleMark(PRIMARY, 5)
