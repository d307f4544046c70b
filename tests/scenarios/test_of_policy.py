"""Commands that take what they need from a policy, in the direction in which it runs, unless an option says it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from command_line import Answer, command
from lab import Lab

import replicator
from replicator.captures.dumps.layout import DumpReader
from replicator.errors import UsageError
from replicator.metastore.embedded.running import Running


@pytest.fixture
def pair(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Lab:
    """Two databases; one has another name on the target and one filtered table."""
    pair = Lab(source_metastore, target_metastore, tmp_path)
    pair.keys["rename_db"] = {f"{pair.name}_b": f"{pair.name}_copy"}
    pair.keys["partitions"] = {f"{pair.name}_a.days": "p >= 'b'"}
    pair.db("a").table("t", {"first": "1"})
    pair.db("a").partitioned("days", {"a": {"x": "old"}, "b": {"x": "new"}})
    pair.db("b").table("t", {"first": "1"})
    pair.sync()
    return pair


def by_policy(pair: Lab, verb: str, *more: str, defaults: str = "") -> Answer:
    path = pair.config()
    path.write_text(path.read_text() + defaults)
    return command("--config", str(path), *verb.split(), *more)


def databases_of(dumped: Answer) -> list[str]:
    return list(DumpReader(str(dumped.output["dump"])).metadata.scope.databases)


def test_verify_and_repair_know_both_sides_names_and_filters(pair: Lab) -> None:
    assert by_policy(pair, "verify", pair.name).code == 0
    for name in ("a", "copy"):
        (pair.replica(name).home / "t" / "first").write_text("changed")
    found = by_policy(pair, "verify", pair.name)
    assert (found.code, found.output["differing"]) == (4, [f"{pair.name}_a.t", f"{pair.name}_b.t"])
    planned = by_policy(pair, "repair", pair.name, "--dry-run").output
    assert [each["files_to_copy"] for each in planned["databases"]] == [1, 1] and planned["status"] == "planned"
    repaired = by_policy(pair, "repair", pair.name)
    assert (repaired.code, repaired.output["status"]) == (0, "repaired")
    one = by_policy(pair, "repair", pair.name, "--table", "t")
    assert one.code == 2 and f"{pair.name}_a, {pair.name}_b" in one.output["hint"]
    assert by_policy(pair, "verify", pair.name).code == 0
    assert list(pair.target.metastore.partition_names(f"{pair.name}_a", "days")) == ["p=b"]


def test_a_repair_of_several_databases_repairs_those_that_it_can(pair: Lab) -> None:
    for copy in ("a", "copy"):
        (pair.replica(copy).home / "t/first").write_text("another")
    broken = pair.replica("a")
    there = broken.metastore.database(broken.name)
    kept = {key: value for key, value in there.parameters.items() if key != "replicator.position"}
    broken.metastore.alter_database(broken.name, msgspec.structs.replace(there, parameters=kept))
    answer = by_policy(pair, "repair", pair.name)
    (failed,), (done,) = answer.output["failed"], answer.output["databases"]
    assert (answer.code, answer.output["status"]) == (5, "failed"), answer
    assert (failed["db"], failed["error"], failed["exit_code"]) == (f"{pair.name}_a", "BootstrapNeeded", 5)
    assert (done["db"], done["status"]) == (f"{pair.name}_b", "repaired")
    assert (pair.replica("copy").home / "t/first").read_text() == "1"


def test_waiting_for_several_databases_reports_each(pair: Lab) -> None:
    goal = ("--until-lag", "1d", "--timeout", "0s")
    reached = by_policy(pair, "wait", pair.name, *goal)
    names = [f"{pair.name}_a", f"{pair.name}_copy"]
    assert (reached.code, reached.output["status"]) == (0, "reached")
    assert [each["db"] for each in reached.output["databases"]] == names
    late = by_policy(pair, "wait", pair.name, "--until-event", "999999999", "--timeout", "0s")
    assert (late.code, late.output["error"], late.output["reached"]) == (75, "NotReached", [])
    assert [each["db"] for each in late.output["not_reached"]] == names
    one = by_policy(pair, "wait", pair.name, *goal, "--db", f"{pair.name}_a")
    assert (one.code, one.output["db"]) == (0, f"{pair.name}_a")


def test_a_policy_in_reverse_repairs_the_side_that_is_the_replica(pair: Lab) -> None:
    pair.turn("a")
    pair.turn("b", "copy")
    pair.sync()
    (pair.db("a").home / "t" / "first").write_text("changed")
    found = by_policy(pair, "verify", pair.name)
    assert (found.code, found.output["differing"]) == (4, [f"{pair.name}_a.t"])
    assert by_policy(pair, "repair", pair.name).code == 0
    assert (pair.db("a").home / "t" / "first").read_text() == "1"
    dumped = by_policy(pair, "dump", pair.name, "--out", str(pair.here / "back"), "--no-capture")
    assert databases_of(dumped) == [f"{pair.name}_a", f"{pair.name}_copy"]
    one = by_policy(pair, "restore", pair.name, "--db", f"{pair.name}_copy", "--to", str(dumped.output["to_event"]))
    assert one.output["target"] == pair.target_uri


def test_an_option_counts_before_the_policy_and_the_policy_before_defaults(pair: Lab) -> None:
    elsewhere = '[defaults]\nsource = "thrift://127.0.0.1:1"\ncmroot = "/nowhere/cm"\ntarget_cmroot = "/nowhere/cm"\n'
    assert by_policy(pair, "verify", pair.name, defaults=elsewhere).code == 0
    assert by_policy(pair, "capture", pair.name, defaults=elsewhere).output["root"] == pair.keys["cmroot"]
    one = by_policy(pair, "verify", pair.name, "--db", f"{pair.name}_b", "--exclude", "t")
    assert (one.output["databases"], one.output["objects"]) == ([f"{pair.name}_b"], 1)
    own = by_policy(pair, "capture", pair.name, "--cmroot", str(pair.here / "own"), "--keeper", "copy")
    assert own.output["root"] == str(pair.here / "own") and own.output["keeper"] == "copy"


def test_a_dump_is_made_loaded_waited_for_and_restored_by_the_policys_name(pair: Lab) -> None:
    begin, out = pair.sync().to_event, str(pair.here / "one")
    pair.db("b").table("u", {"first": "2"})
    made = by_policy(pair, "dump", pair.name, "--out", out, "--since", str(begin))
    assert databases_of(made) == [f"{pair.name}_a", f"{pair.name}_b"]
    assert by_policy(pair, "load", out, "--policy", pair.name).code == 0
    event = str(made.output["to_event"])
    waited = by_policy(pair, "wait", pair.name, "--until-event", event, "--timeout", "0s")
    assert waited.code == 0, waited
    assert [each["db"] for each in waited.output["databases"]] == [f"{pair.name}_a", f"{pair.name}_copy"]
    several = by_policy(pair, "restore", pair.name, "--to", event)
    assert several.code == 2 and f"{pair.name}_a, {pair.name}_b" in several.output["hint"]
    restored = by_policy(pair, "restore", pair.name, "--db", f"{pair.name}_b", "--to", event)
    assert (restored.code, restored.output["target"]) == (0, pair.source_uri)


@pytest.mark.parametrize(
    "verb, more",
    [
        ("cm ls", "{policy}"),
        ("cm check", "{policy}"),
        ("cm expire", "{policy} --older-than 7d"),
        ("cm slots", "--policy {policy}"),
        ("cm slots create", "other --policy {policy}"),
        ("cm hold", "now --policy {policy}"),
        ("audit ls", "{policy}"),
        ("legal-hold add", "case --policy {policy} --on a.b --reason r"),
        ("legal-hold ls", "{policy}"),
        ("housekeeping run", "{policy} --dry-run"),
        ("housekeeping vacuum", "{policy}_a.days --policy {policy} --dry-run"),
        ("purge backups", "{policy}"),
        ("purge retain", "{policy} --dry-run"),
    ],
)
def test_commands_of_a_root_take_that_of_the_policys_source(pair: Lab, verb: str, more: str) -> None:
    answer = by_policy(pair, verb, *more.format(policy=pair.name).split())
    assert answer.code == 0, answer.output
    root = {answer.output.get(name) for name in ("root", "cmroot")} - {None}
    assert root <= {pair.keys["cmroot"]}


def test_what_is_no_policy_is_answered_with_those_that_are_like_it(pair: Lab) -> None:
    wrong = by_policy(pair, "verify", pair.name + "x")
    assert (wrong.code, wrong.output["error"]) == (2, "UsageError") and "no policy " in wrong.output["message"]
    assert f"did you mean {pair.name}?" in wrong.output["hint"]
    missing = by_policy(pair, "verify")
    assert missing.code == 2 and missing.output["message"] == "Missing option '--source'."
    assert pair.name in missing.output["hint"]
    with pytest.raises(UsageError, match="--cmroot"):
        replicator.cm_ls(config=pair.config())


def test_python_takes_a_policy_as_the_command_line_does(pair: Lab) -> None:
    path = pair.config()
    assert replicator.verify(pair.name, config=path).status == "same"
    plans = replicator.repair(pair.name, dry_run=True, config=path)
    assert [each["db"] for each in plans.rows()] == [f"{pair.name}_a", f"{pair.name}_b"]
    lag = timedelta(days=1)
    assert replicator.wait(pair.name, until_lag=lag, timeout=timedelta(0), config=path).status == "reached"
    assert replicator.cm_slots(policy=pair.name, held=False, config=path).root == pair.keys["cmroot"]
