"""A plan says what the next run would do, and what it costs; applying it does that, or refuses when the world moved."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from command_line import Answer, command, command_in_lines
from faults import Fault, run_with
from lab import Lab
from waiting import eventually

from replicator.core.roles import Role, RoleMark
from replicator.policies.roles import read_role, set_role


@pytest.fixture
def pair(pair: Lab) -> Lab:
    pair.db("a").table("t", {"first": "1", "second": "22"})
    return pair


def run(pair: Lab, verb: str, *arguments: str) -> Answer:
    return command("--config", str(pair.config()), verb, *arguments)


def plan(pair: Lab, *more: str) -> dict[str, Any]:
    answer = run(pair, "plan", pair.name, "--out", str(pair.here / "plan.json"), *more)
    assert answer.code == 0, answer
    return answer.output


def apply(pair: Lab) -> Answer:
    return run(pair, "apply", str(pair.here / "plan.json"))


def refused(answer: Answer, why: str) -> None:
    assert (answer.code, answer.error) == (6, "Refused"), answer
    assert any(why in each for each in answer.output["moved"]), answer


def everything(pair: Lab) -> Any:
    return msgspec.to_builtins(pair.replica("a").everything())


def test_a_plan_has_a_price_and_applying_it_costs_exactly_that(pair: Lab) -> None:
    output = plan(pair)
    assert not pair.replica("a").exists()
    cost = output["cost"]
    assert (cost["files"], cost["bytes"], cost["files_from_source"], cost["missing"]) == (2, 3, 2, 0)
    assert output["loads"][0]["steps"]["create_tables"] == [f"{pair.name}_a.t"]
    done = apply(pair)
    assert (done.code, done.output["files_copied"], done.output["bytes_copied"]) == (0, 2, 3)
    pair.are_same()
    source = pair.db("a")
    source.write("t", {"third": "333"})
    source.table("u", {"file": "4444"})
    source.table("passing", {"file": "5"})
    source.drop("passing")
    source.drop("t")
    output = plan(pair)
    cost = output["cost"]
    assert (cost["files"], cost["bytes"]) == (1, 4)
    assert cost["squashed"] > 0 and cost["events"] >= 4
    assert output["loads"][0]["steps"]["drop_tables"] == [f"{pair.name}_a.t"]
    assert pair.replica("a").shown().keys() == {"t"}
    done = apply(pair)
    assert (done.code, done.output["files_copied"], done.output["position"]) == (0, 1, output["position"])
    pair.are_same()
    assert pair.sync().status == "nothing"
    assert [each.kind for each in pair.memory.runs().runs] == ["nothing", "incremental", "bootstrap"]


def test_a_plan_loads_its_own_dump_and_leaves_later_changes_to_the_next(pair: Lab) -> None:
    pair.sync()
    pair.db("a").write("t", {"third": "3"})
    plan(pair)
    pair.db("a").write("t", {"fourth": "4"})
    assert apply(pair).output["files_copied"] == 1
    assert set(pair.replica("a").shown()["t"]["files"]) == {"first", "second", "third"}
    pair.sync()
    pair.are_same()


def test_a_plan_is_refused_when_the_target_has_moved_on(pair: Lab) -> None:
    pair.sync()
    pair.db("a").write("t", {"third": "3"})
    plan(pair)
    pair.db("a").write("t", {"fourth": "4"})
    pair.sync()
    before = everything(pair)
    refused(apply(pair), "is at position")
    assert everything(pair) == before


def test_a_plan_is_refused_when_the_target_holds_something_else(pair: Lab) -> None:
    pair.sync()
    pair.db("a").table("u", {"file": "1"})
    pair.db("a").write("t", {"third": "3"})
    plan(pair)
    pair.replica("a").drop("t")
    refused(apply(pair), "the target lacks table")
    assert "u" not in pair.replica("a").shown()


def test_a_plan_is_refused_when_files_of_the_target_changed(pair: Lab) -> None:
    pair.sync()
    pair.db("a").write("t", {"third": "3"})
    plan(pair)
    (pair.replica("a").home / "t" / "third").write_text("another's")
    pair.replica("a").write("t", {"third": "3"})
    answer = apply(pair)
    refused(answer, "files in")


def test_a_plan_is_refused_when_roles_have_turned_or_the_policy_was_edited(pair: Lab) -> None:
    pair.sync()
    pair.db("a").write("t", {"third": "3"})
    plan(pair)
    pair.keys["exclude"] = "u"
    refused(apply(pair), "the policy was edited")
    del pair.keys["exclude"]
    mark = read_role(pair.source.metastore, f"{pair.name}_a")
    set_role(pair.source.metastore, f"{pair.name}_a", RoleMark(Role.PRIMARY, mark.epoch + 1), expect=mark)
    refused(apply(pair), "epoch 2")


def test_a_plan_without_a_file_is_only_shown(pair: Lab) -> None:
    shown = run(pair, "plan", pair.name).output
    assert shown["plan"] is None and shown["cost"]["files"] == plan(pair)["cost"]["files"] == 2


def test_nothing_new_makes_an_empty_plan(pair: Lab) -> None:
    pair.sync()
    output = plan(pair)
    assert (output["loads"], output["cost"]["files"]) == ([], 0)
    assert apply(pair).output["status"] == "nothing"


def test_what_left_the_policy_is_in_the_plan_and_goes_only_with_consent(pair: Lab) -> None:
    pair.db("b").table("u", {"first": "1"})
    pair.sync()
    pair.keys["databases"] = f"{pair.name}_a"
    assert plan(pair)["left"] == [f"{pair.name}_b"]
    assert apply(pair).output["left"] == [f"{pair.name}_b"]
    assert plan(pair, "--drop-left")["drops"] == [f"{pair.name}_b", f"{pair.name}_b.u"]
    assert apply(pair).output["dropped"] == [f"{pair.name}_b"]
    assert not pair.replica("b").exists()


def test_an_apply_that_was_killed_is_completed_by_applying_again(pair: Lab) -> None:
    plan(pair)
    arguments = ["--config", str(pair.config()), "apply", str(pair.here / "plan.json")]
    assert run_with(Fault("after", "thrift", "create table"), arguments).killed
    assert apply(pair).code == 0
    pair.are_same()
    again, lines = command_in_lines("--config", str(pair.config()), "apply", str(pair.here / "plan.json"))
    assert again.output["status"] == "nothing" and {each["command"] for each in lines} == {"apply"}


def test_no_plan_is_said_to_be_none(pair: Lab) -> None:
    (pair.here / "plan.json").write_text("{}")
    assert apply(pair).error == "FormatError"
    (pair.here / "plan.json").unlink()
    assert apply(pair).error == "FormatError"


# ---- lag and history ----------------------------------------------------------------------------------------------


def test_lag_is_told_per_policy_database_and_table(pair: Lab) -> None:
    answer = run(pair, "lag", pair.name)
    assert (answer.code, answer.output["status"]) == (0, "none")
    pair.sync()
    assert run(pair, "lag", pair.name).output["status"] == "current"
    pair.db("a").alter("t", round="1")
    pair.db("a").table("u", {"file": "4444"})
    output = run(pair, "lag", pair.name).output
    assert (output["status"], output["events"], output["bytes"]) == ("behind", 2, 0)
    assert {each["table"]: each["events"] for each in output["tables"]} == {f"{pair.name}_a.{name}": 1 for name in "tu"}
    answer = command("capture", "--source", pair.source_uri, "--cmroot", str(pair.here / "cmroot"), "--engine", "local")
    assert answer.code == 0
    output = run(pair, "status", pair.name).output
    assert (output["events"], output["bytes"]) == (2, 4)
    assert output["databases"][0]["bytes"] == 4
    assert output["headroom_seconds"] == output["kept_seconds"] > 0 and output["reaches_back_seconds"] is not None


def test_lag_beyond_the_goal_is_late_and_a_failed_run_is_what_blocks(pair: Lab) -> None:
    pair.sync()
    pair.keys["max_lag"] = "1ms"
    pair.db("a").table("u", {"file": "1"})
    eventually(lambda: run(pair, "lag", pair.name).output["status"] == "late")
    pair.replica("a").table("u", {"file": "mine"})
    assert run(pair, "sync", pair.name).code == 6
    output = run(pair, "lag", pair.name).output
    assert output["status"] == "blocked" and "not created by replication" in output["blocks"][0]
    runs = run(pair, "history", pair.name).output["runs"]
    assert [each["status"] for each in runs] == ["failed", "done"]
