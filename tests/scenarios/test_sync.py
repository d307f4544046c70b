"""Runs of a policy: whole, then increments, then nothing; and everything that may have happened between two of them."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import timedelta
from pathlib import Path
from random import Random

import msgspec
import pytest
from command_line import command
from engines import local_runtime
from faults import Fault, run_with
from hmsclient.genthrift.hive_metastore import ttypes
from lab import Lab

from cmroot.pins import drop_slot, find_slot, give_up_slot
from replicator.compare.both_sides import Comparison
from replicator.compare.verify import verify
from replicator.core.model import ColumnStatistic, Statistics
from replicator.core.roles import Role, RoleMark
from replicator.core.runtime import Terminated
from replicator.errors import ConfigError, ObjectNotFound, Refused
from replicator.metastore.codecs import struct_to_tjson
from replicator.policies.checks.check import check
from replicator.policies.roles import read_role, set_role
from replicator.policies.run import Remembering


@pytest.fixture
def pair(pair: Lab) -> Lab:
    pair.db("a").table("t", {"first": "1"})
    return pair


def test_a_policy_is_whole_first_then_increments_then_nothing_new(pair: Lab) -> None:
    first = pair.sync()
    assert (first.status, first.kind, first.files_copied) == ("synced", "bootstrap", 1)
    assert first.bootstrapped == {f"{pair.name}_a": "the target lacks it"}
    pair.are_same()
    pair.db("a").write("t", {"second": "2"})
    second = pair.sync()
    assert (second.status, second.kind, second.files_copied) == ("synced", "incremental", 1)
    pair.are_same()
    kept = Remembering(pair.policy)
    pair.sync(remembering=kept)
    third = pair.sync(remembering=kept)
    assert (third.status, third.kind, third.dumps, third.lag_seconds) == ("nothing", "nothing", [], 0.0)
    slot = find_slot(str(pair.here / "cmroot"), pair.name)
    assert slot and (slot.position, slot.awaits) == (third.position, "")
    kinds = [run.kind for run in pair.memory.runs().runs]
    assert kinds == ["nothing", "incremental", "bootstrap"]


def test_statistics_of_a_whole_partitioned_table_follow(pair: Lab) -> None:
    """As Impala's COMPUTE STATS writes them."""
    pair.db("a").partitioned("days", {"1": {"x": "one"}})
    name = f"{pair.name}_a"
    for highest in (5, 6):
        longs = ttypes.LongColumnStatsData(lowValue=1, highValue=highest, numNulls=0, numDVs=2)
        data = struct_to_tjson(ttypes.ColumnStatisticsData(longStats=longs))
        pair.source.metastore.set_table_statistics(
            Statistics(name, "days", None, (ColumnStatistic("a", "int", data),), 1)
        )
        pair.sync()
        there = pair.target.metastore.table_statistics(name, "days", ["a", "b"])
        assert there and there.columns == (ColumnStatistic("a", "int", data),)
        assert (
            verify(Comparison(pair.source.metastore, pair.target.metastore), [name], local_runtime()).status == "same"
        )
    pair.source.metastore.drop_statistics(name, "days", "", "a", "hive")
    pair.sync()
    assert pair.target.metastore.table_statistics(name, "days", ["a", "b"]) is None


def test_a_new_database_is_bootstrapped_beside_the_others_increment(pair: Lab) -> None:
    pair.sync()
    pair.db("a").write("t", {"second": "2"})
    pair.db("b").table("u", {"first": "1"})
    run = pair.sync()
    assert run.bootstrapped == {f"{pair.name}_b": "the target lacks it"}
    assert (len(run.dumps), run.files_copied) == (2, 2)
    pair.are_same("a", "b")
    slot = find_slot(str(pair.here / "cmroot"), pair.name)
    assert slot and slot.position == run.position
    pair.db("a").write("t", {"third": "3"})
    pair.db("b").write("u", {"second": "2"})
    assert len(pair.sync().dumps) == 1  # together from now on
    pair.are_same("a", "b")


def test_changes_elsewhere_move_the_checkpoint_without_a_dump(pair: Lab) -> None:
    pair.sync()
    other = Lab.beside(pair)
    other.db("a").table("t", {"first": "1"})
    run = pair.sync()
    assert (run.status, run.dumps) == ("nothing", [])
    output = pair.target.metastore.database(f"{pair.name}_a").parameters
    assert output["repl.last.id"] == str(run.to_event) == str(pair.source.metastore.current_event_id())
    assert output["replicator.position"] == str(run.position)
    pair.db("a").write("t", {"second": "2"})
    assert pair.sync().kind == "incremental"
    pair.are_same()


def test_a_replica_that_was_dropped_by_hand_is_made_again_and_said_to_be(pair: Lab) -> None:
    pair.db("b").table("u", {"first": "1"})
    pair.sync()
    pair.replica("a").drop("t")
    pair.target.metastore.drop_database(f"{pair.name}_a")
    run = pair.sync()
    assert run.bootstrapped == {f"{pair.name}_a": "the target has lost it"}
    pair.are_same("a", "b")


def test_a_table_dropped_on_the_target_comes_back_when_the_source_changes_it(pair: Lab) -> None:
    pair.sync()
    pair.replica("a").drop("t")
    pair.db("a").write("t", {"second": "2"})
    run = pair.sync()
    assert run.kind == "bootstrap" and any("instead of an increment" in text for text in run.warnings)
    pair.are_same()


def test_a_table_made_by_hand_under_a_replicated_name_is_refused_and_taken_over_with_consent(pair: Lab) -> None:
    pair.sync()
    pair.replica("a").table("mine", {"own": "own"})
    pair.db("a").table("mine", {"first": "1"})
    with pytest.raises(Refused, match=r"mine of the target was not created by replication"):
        pair.sync()
    last = pair.memory.runs().last
    assert last and last.status == "failed" and "mine" in last.error
    assert pair.replica("a").shown()["mine"]["files"].keys() == {"own"}
    pair.replica("a").rename("mine", "moved")
    pair.sync()
    assert pair.replica("a").shown()["mine"]["files"].keys() == {"first"}


def test_data_that_the_target_has_is_adopted_without_a_copy(pair: Lab) -> None:
    replica = pair.replica("a")
    replica.create()
    replica.table("t", {"first": "1"})
    with pytest.raises(Refused, match="not created by replication"):
        pair.sync()
    run = pair.sync(adopt=True)
    assert (run.files_copied, run.bytes_copied, run.files_skipped) == (0, 0, 1)
    pair.are_same()
    pair.db("a").write("t", {"second": "2"})
    assert pair.sync().files_copied == 1
    pair.are_same()


def test_data_that_was_adopted_where_it_lay_stays_there_whatever_comes(pair: Lab) -> None:
    replica = pair.replica("a")
    replica.create()
    replica.table("elsewhere", {"first": "1"}, kind="EXTERNAL_TABLE")
    table = replica.metastore.table(replica.name, "elsewhere")
    replica.metastore.alter_table(replica.name, "elsewhere", msgspec.structs.replace(table, name="t"))
    pair.sync(adopt=True)
    place = replica.metastore.table(replica.name, "t").location
    assert place and place.endswith("/elsewhere")
    pair.db("a").write("t", {"second": "2"})
    pair.db("a").alter("t", note="changed")
    assert pair.sync().kind == "incremental"
    assert replica.metastore.table(replica.name, "t").location == place
    assert replica.shown()["t"]["files"] == pair.db("a").shown()["t"]["files"]


def test_a_table_located_elsewhere_and_renamed_in_one_range_keeps_its_partitions_places(pair: Lab) -> None:
    a = pair.db("a")
    a.partitioned("days", {"1": {"first": "1"}, "2": {"first": "2"}})
    pair.sync()
    table = a.metastore.table(a.name, "days")
    assert table.storage
    storage = msgspec.structs.replace(table.storage, location=f"file:{a.home}/elsewhere")
    a.metastore.alter_table(a.name, "days", msgspec.structs.replace(table, storage=storage))
    a.rename("days", "renamed")  # the server moves nothing: the table does not lie as its name says
    a.write("days/p=1", {"second": "1"})
    pair.sync()
    pair.are_same()
    a.write("days/p=2", {"second": "2"})
    assert pair.sync().kind == "incremental"
    pair.are_same()


def test_two_runs_of_a_policy_at_once_are_refused_with_exit_7_and_lineage_tells_of_both(pair: Lab) -> None:
    config, told = pair.config(), pair.here / "lineage"
    with config.open("a") as file:
        file.write(f'[lineage]\nfile = "{told}"\n')
    with pair.memory.lease("sync"):
        answer = command("--config", str(config), "sync", pair.name)
        assert (answer.code, answer.error) == (7, "LeaseHeld")
    assert command("--config", str(config), "sync", pair.name).code == 0
    events = [json.loads(line) for line in told.read_text().splitlines()]
    assert [each["eventType"] for each in events] == ["START", "FAIL", "START", "COMPLETE"]
    assert events[1]["run"]["facets"]["errorMessage"]["message"] and events[2]["run"] == events[3]["run"]
    (one,), (other,) = events[3]["inputs"], events[3]["outputs"]
    assert one["name"] == other["name"] == f"{pair.name}_a.t" and one["namespace"] != other["namespace"]
    assert one["namespace"] == f"hive://{pair.source_uri.removeprefix('thrift://')}"


def test_what_leaves_the_policy_stays_until_there_is_consent(pair: Lab) -> None:
    pair.db("b").table("u", {"first": "1"})
    pair.sync()
    pair.keys["databases"] = f"{pair.name}_a"
    run = pair.sync()
    assert run.left == [f"{pair.name}_b"] and any("--drop-left" in text for text in run.warnings)
    assert pair.replica("b").shown()
    assert pair.sync().left == [f"{pair.name}_b"]  # not forgotten
    run = pair.sync(drop_left=True)
    assert (run.dropped, run.files_removed) == ([f"{pair.name}_b"], 1)
    assert not pair.replica("b").exists()
    assert list((pair.here / "target" / ".cmroot" / "files").rglob("xxh3_128-*"))
    assert pair.sync(drop_left=True).status == "nothing"
    pair.are_same("a")


def test_a_database_dropped_at_the_source_is_dropped_on_the_target(pair: Lab) -> None:
    pair.db("b").table("u", {"first": "1"})
    pair.sync()
    pair.db("b").drop("u")
    pair.source.metastore.drop_database(f"{pair.name}_b")
    assert pair.sync().kind == "incremental"
    assert not pair.replica("b").exists()
    pair.are_same("a")
    assert pair.sync().status == "nothing"


def test_tables_that_newly_match_are_brought_by_difference(pair: Lab) -> None:
    pair.db("a").table("later", {"first": "1"})
    pair.keys["exclude"] = "later"
    pair.sync()
    assert set(pair.replica("a").shown()) == {"t"}
    del pair.keys["exclude"]
    run = pair.sync()
    assert run.bootstrapped == {f"{pair.name}_a": "the policy's patterns changed"}
    assert (run.files_copied, run.files_skipped) == (1, 1)
    pair.are_same()


def test_a_load_that_was_interrupted_is_ended_with_its_own_dump(pair: Lab) -> None:
    pair.sync()
    pair.db("a").write("t", {"second": "2"})
    pair.db("a").table("u", {"first": "1"})
    arguments = ["--config", str(pair.config()), "sync", pair.name]
    assert run_with(Fault("before", "thrift", "create table"), arguments).killed
    assert [each.status for each in pair.memory.runs().runs] == ["running", "done"]
    (begun,) = {pair.target.metastore.database(f"{pair.name}_a").parameters["replicator.loading"]}
    pair.db("a").write("t", {"third": "3"})
    run = pair.sync()
    assert begun in run.dumps[0] and len(run.dumps) == 2
    pair.are_same()
    assert [each.status for each in pair.memory.runs().runs] == ["done", "killed", "done"]


def test_a_run_that_is_killed_anywhere_is_completed_by_the_next(pair: Lab) -> None:
    random = Random(20260301)
    arguments = ["--config", str(pair.config()), "sync", pair.name]
    traced = run_with(Fault("before", "trace"), arguments)
    assert traced.code == 0
    count = len(traced.steps)
    source = pair.db("a")
    for number in range(5):
        source.table(f"t{number}", {"file": str(number)})
        source.write("t", {f"more{number}": str(number)})
        if number:
            source.drop(f"t{number - 1}")
        ended = run_with(Fault("after", "any", "", random.randrange(1, count)), arguments, must=False)
        assert ended.killed or ended.code == 0, ended
    pair.sync()
    pair.are_same()
    assert list((pair.here / "cmroot" / "dumps").iterdir()) == []
    assert {each.status for each in pair.memory.runs().runs} <= {"done", "killed"}


def test_the_pin_of_a_dump_whose_run_was_killed_after_its_load_goes_with_the_next_run(
    pair: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.sync()
    pair.db("a").write("t", {"second": "2"})

    def killed(root: str, name: str) -> None:
        raise Terminated

    with monkeypatch.context() as patched, pytest.raises(Terminated):
        patched.setattr("replicator.policies.steps.unpin_dump", killed)
        pair.sync()
    pins = pair.here / "cmroot" / "dumps"
    assert len(list(pins.iterdir())) == 1
    assert pair.sync().status == "nothing"
    assert list(pins.iterdir()) == []


def test_old_dumps_are_removed_and_new_ones_stay(pair: Lab) -> None:
    (old,) = pair.sync().dumps
    pair.db("a").write("t", {"second": "2"})
    (young,) = pair.sync(clock=lambda: time.time() + 6 * 86_400).dumps
    assert Path(old).exists() and Path(young).exists()
    pair.sync(clock=lambda: time.time() + 8 * 86_400)
    assert not Path(old).exists() and Path(young).exists()


def test_a_policy_that_matches_nothing_says_so(pair: Lab) -> None:
    pair.keys["databases"] = "no_such_.*"
    with pytest.raises(ObjectNotFound, match="no database"):
        pair.sync()


def test_a_policy_whose_databases_overlap_anothers_is_refused(pair: Lab) -> None:
    other = Lab.beside(pair)
    other.keys["databases"] = pair.keys["databases"]
    with pytest.raises(ConfigError, match="both write"):
        pair.sync(others=[other.policy])


def turn(pair: Lab, *, fence: bool = False) -> None:
    """The roles of a switchover, set by hand."""
    turned = (
        [(pair.source.metastore, Role.FENCED, 1)]
        if fence
        else [(pair.source.metastore, Role.REPLICA, 1), (pair.target.metastore, Role.PRIMARY, 2)]
    )
    for metastore, role, more in turned:
        mark = read_role(metastore, f"{pair.name}_a")
        set_role(
            metastore, f"{pair.name}_a", RoleMark(role, mark.epoch + more), expect=mark, settle=timedelta(0), force=True
        )


def test_a_policy_whose_roles_were_turned_runs_backwards_and_copies_the_difference(pair: Lab) -> None:
    pair.db("a").table("outside", {"x": "1"}, kind="EXTERNAL_TABLE")
    pair.sync()
    turn(pair)
    pair.replica("a").write("t", {"written there": "22"})
    run = pair.sync()
    assert (run.reverse, run.kind) == (True, "bootstrap")
    assert (run.files_copied, run.bytes_copied) == (1, 2)
    shown, wanted = pair.db("a").shown(), pair.replica("a").shown()
    assert shown == wanted and "written there" in shown["t"]["files"]
    pair.replica("a").write("t", {"more": "333"})
    run = pair.sync()
    assert (run.reverse, run.kind, run.files_copied) == (True, "incremental", 1)
    assert pair.sync().status == "nothing"
    assert read_role(pair.source.metastore, f"{pair.name}_a").role is Role.REPLICA
    assert {each.reverse for each in pair.memory.runs().runs[:3]} == {True}
    for metastore, role in ((pair.target.metastore, Role.REPLICA), (pair.source.metastore, Role.PRIMARY)):  # and back
        mark = read_role(metastore, f"{pair.name}_a")
        set_role(
            metastore, f"{pair.name}_a", RoleMark(role, mark.epoch + 2), expect=mark, settle=timedelta(0), force=True
        )
    pair.db("a").write("t", {"home again": "4444"})
    run = pair.sync()
    assert (run.reverse, run.kind, run.files_copied, run.bytes_copied) == (False, "bootstrap", 1, 4)
    pair.are_same()
    pair.db("a").write("t", {"at last": "5"})
    assert pair.sync().kind == "incremental"
    pair.are_same()


def test_a_fenced_source_is_refused_but_to_who_drains_it(pair: Lab) -> None:
    pair.sync()
    pair.db("a").write("t", {"last": "1"})
    turn(pair, fence=True)
    with pytest.raises(Refused, match="fenced"):
        pair.sync()
    assert pair.sync(draining=True).files_copied == 1
    pair.are_same()


def test_a_slot_that_was_given_up_or_dropped_is_made_again(pair: Lab) -> None:
    pair.sync()
    root = str(pair.here / "cmroot")
    give_up_slot(root, pair.name, now=time.time)
    pair.db("a").write("t", {"second": "2"})
    assert any("invalidated" in text for text in pair.sync().warnings)
    drop_slot(root, pair.name)
    pair.db("a").write("t", {"third": "3"})
    run = pair.sync()
    slot = find_slot(root, pair.name)
    assert slot and slot.position == run.position and not slot.given_up
    pair.are_same()


def test_what_a_policy_remembers_may_be_lost(pair: Lab) -> None:
    pair.db("b").table("u", {"first": "1"})
    pair.sync()
    shutil.rmtree(pair.here / "target" / ".cmroot" / "policies")
    shutil.rmtree(pair.here / "dumps")
    pair.db("b").drop("u")
    pair.source.metastore.drop_database(f"{pair.name}_b")
    pair.db("a").write("t", {"second": "2"})
    run = pair.sync()
    assert (run.kind, run.files_copied) == ("incremental", 1)
    assert not pair.replica("b").exists()
    pair.are_same()


def test_an_edited_rename_makes_the_old_replica_one_that_left(pair: Lab) -> None:
    name = f"{pair.name}_a"
    pair.sync()
    pair.keys["rename_db"] = {name: f"{pair.name}_x"}
    run = pair.sync()
    assert run.bootstrapped == {name: "`rename_db` gives it another name on the target"}
    assert run.left == [name] and pair.replica("a").exists() and pair.replica("x").exists()
    assert pair.sync().left == [name]  # not forgotten
    (scope,) = [
        f
        for f in command("--config", str(pair.config()), "check", pair.name).output["findings"]
        if f["name"] == "scope"
    ]
    assert f"{name} as {name}" in scope["text"]
    run = pair.sync(drop_left=True)
    assert (run.dropped, run.files_removed) == ([name], 1) and not pair.replica("a").exists()
    assert pair.sync(drop_left=True).left == []
    assert pair.replica("x").shown() == pair.db("a").shown()


def test_names_that_two_databases_exchange_on_the_target_are_not_mixed_up(pair: Lab) -> None:
    a, b = f"{pair.name}_a", f"{pair.name}_b"
    pair.db("b").table("u", {"other": "2"})
    pair.sync()
    pair.keys["rename_db"] = {a: b, b: a}
    pair.db("a").write("t", {"second": "2"})
    run = pair.sync()
    assert set(run.bootstrapped) == {a, b} and run.left == []
    assert pair.replica("b").shown() == pair.db("a").shown() and set(pair.db("a").shown()) == {"t"}
    assert pair.replica("a").shown() == pair.db("b").shown()
    assert pair.sync().status == "nothing"


@pytest.mark.parametrize("skew", [-600, 600])
def test_a_clock_that_is_ten_minutes_wrong_is_told_by_check_and_harms_no_run(pair: Lab, skew: int) -> None:
    def clock() -> float:
        return time.time() + skew

    pair.keys["verify"] = {"objects": 10}
    runs = [pair.sync(clock=clock)]
    pair.db("a").write("t", {"second": "2"})
    dated = time.time() - skew  # the store's clock is another again
    os.utime(pair.db("a").home / "t/second", (dated, dated))
    runs.append(pair.sync(clock=clock))
    pair.db("a").alter("t", round="2")
    (pair.db("a").home / "t/first").write_text("0")  # in place, of the size it had
    runs.append(pair.sync(clock=clock))
    runs.append(pair.sync())  # on another machine, whose clock is right
    assert [run.kind for run in runs] == ["bootstrap", "incremental", "incremental", "nothing"]
    assert all((run.lag_seconds or 0) >= 0 and run.compared and not run.compared.differing for run in runs)
    assert all(Path(place).exists() for run in runs for place in run.dumps)  # none is old
    pair.are_same()
    found = check(pair.policy, clock=clock)
    reported = {finding.name: finding.health for finding in found.findings if finding.name.startswith("clock")}
    assert reported["clock stores"] == "warning"
    assert reported["clock source"] == ("warning" if skew < 0 else "ok")  # a newest event may be old
