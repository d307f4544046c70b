"""Failbacks: the old primary comes back, its own changes are kept and listed, and only the difference is copied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import command, command_in_lines
from faults import Fault, run_with
from lab import Lab
from lost_primary import nobody

from cmroot.pins import find_slot, read_pins
from replicator.core.roles import Role, RoleMark
from replicator.errors import Refused
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore
from replicator.policies.role_changes.failback import FailbackSettings, failback
from replicator.policies.role_changes.failover import FailoverSettings, failover
from replicator.policies.role_changes.role_change import RoleChanged
from replicator.policies.roles import read_role, set_role

BIG = "x" * 10_000


@pytest.fixture
def pair(pair: Lab) -> Lab:
    """Two databases, one of them called otherwise on the target; a failover has made the target the primary, while the
    source had changes that were never replicated."""
    pair.keys["rename_db"] = {f"{pair.name}_b": f"{pair.name}_renamed"}
    pair.db("a").table("t", {"first": BIG, "shared": "1"})
    pair.db("a").partitioned("days", {"1": {"x": BIG}, "2": {"x": "two"}})
    pair.db("b").table("u", {"first": BIG})
    pair.sync()
    pair.db("a").write("t", {"own": "mine"})
    pair.db("a").add("days", {"own": {"x": "mine, too"}})
    pair.db("b").table("own", {"f": "all mine"})
    fail_over(pair)
    return pair


def fail_over(pair: Lab) -> RoleChanged:
    """The source's metastore does not answer meanwhile."""
    with ThriftMetastore(nobody(), retries=0) as gone:
        return failover(replace(pair.sides(), source=gone), (gone, pair.target.metastore), FailoverSettings(force=True))


def come_back(pair: Lab, **more: Any) -> RoleChanged:
    return failback(pair.sides(), FailbackSettings(patience=pair.policy.schedule * 0), **more)


def sources(pair: Lab) -> set[str]:
    return {str(read_role(pair.source.metastore, f"{pair.name}_{name}")) for name in ("a", "b")}


def primaries(pair: Lab) -> set[str]:
    return {str(read_role(pair.target.metastore, f"{pair.name}_{name}")) for name in ("a", "renamed")}


def same(pair: Lab) -> None:
    pair.are_same("a")
    assert pair.replica("renamed").shown() == pair.db("b").shown()


def test_only_the_difference_is_copied_and_own_changes_are_listed_kept_and_held(pair: Lab) -> None:
    assert (sources(pair), primaries(pair)) == ({"primary at epoch 1"}, {"primary at epoch 3"})
    with pytest.raises(Refused):
        pair.sync()
    pair.replica("a").write("t", {"there": "12345"})
    pair.replica("a").drop_partitions("days", ["2"])
    reported = come_back(pair, dry_run=True)
    assert reported.status == "ready" and reported.own and reported.own["not_captured"] == 2
    assert sources(pair) == {"primary at epoch 1"}
    done = come_back(pair)
    assert (done.status, done.primary) == ("done", "target")
    assert (done.files_copied, done.bytes_copied) == (1, 5)
    assert done.own and {each["table"]: (each["files"], each["bytes"]) for each in done.own["tables"]} == {
        f"{pair.name}_a.t": (1, 4),
        f"{pair.name}_a.days": (1, 9),
        f"{pair.name}_b.own": (1, 8),
    }
    assert done.own["unknown"] == []
    same(pair)
    assert (sources(pair), primaries(pair)) == ({"replica at epoch 3"}, {"primary at epoch 3"})
    kept = {path.read_text() for path in (pair.here / "cmroot/files").rglob("xxh3_128-*")}
    assert {"mine", "mine, too", "all mine"} <= kept
    assert [each.name for each in read_pins(str(pair.here / "cmroot")).holds] == [done.own["hold"]]
    assert find_slot(str(pair.here / "cmroot"), pair.name) is None
    pair.replica("a").write("t", {"more": "1"})
    run = pair.sync()
    assert (run.reverse, run.kind, run.files_copied) == (True, "incremental", 1)
    newest, *_, first = command("--config", str(pair.config()), "history", pair.name).output["runs"]
    assert (newest["events_of"], first["events_of"]) == (pair.target_uri, pair.source_uri)
    same(pair)
    assert come_back(pair).status == "nothing"
    answer = command("--config", str(pair.config()), "switchover", pair.name)
    assert (answer.code, answer.output["primary"]) == (0, "source")
    assert sources(pair) == {"primary at epoch 5"}
    same(pair)


def test_failback_with_switch_makes_the_old_primary_the_primary_again(pair: Lab) -> None:
    pair.replica("a").write("t", {"there": "12345"})
    answer, lines = command_in_lines("--config", str(pair.config()), "failback", pair.name, "--switch")
    ended = [each["step"] for each in lines if each["line"] == "step" and each["state"] == "ended"]
    assert ended[-1] == "failback" and {"fence", "promote"} <= set(ended)
    assert {each["line"] for each in lines} >= {"step", "progress", "event"}
    assert (answer.code, answer.output["verb"], answer.output["primary"]) == (0, "switchover", "source")
    assert answer.output["bytes_copied"] == 5 and answer.output["own"]["files"] == 3
    same(pair)
    pair.db("a").write("t", {"home": "1"})
    assert pair.sync().reverse is False
    same(pair)


def test_a_failback_killed_at_every_step_is_completed_by_running_it_again(pair: Lab) -> None:
    """After the second to fifth mark of a step or change of a database: a load repeats some of its changes."""
    pair.replica("a").write("t", {"there": "12345"})
    arguments = ["--config", str(pair.config()), "failback", pair.name]
    deaths = 0
    fault = r"turn\.json|alter database"
    while (ended := run_with(Fault("after", "any", fault, 2 + deaths % 4), arguments, must=False)).killed:
        deaths += 1
        assert deaths < 30
        assert sources(pair) | primaries(pair) != {"primary at epoch 3"}
    assert ended.code == 0 and deaths > 5
    same(pair)
    assert sources(pair) == {"replica at epoch 3"}
    assert len(read_pins(str(pair.here / "cmroot")).holds) == 1
    assert pair.sync().status == "nothing"


def test_a_database_that_only_the_old_primary_has_stays_and_is_nobodys(pair: Lab) -> None:
    pair.db("c").table("mine", {"f": "only here"})
    done = come_back(pair)
    assert any(f"{pair.name}_c exists only at" in text for text in done.warnings)
    assert done.own and f"{pair.name}_c.mine" in [each["table"] for each in done.own["tables"]]
    assert read_role(pair.source.metastore, f"{pair.name}_c").role is Role.NONE
    assert pair.db("c").shown()["mine"]["files"]
    assert command("--config", str(pair.config()), "switchover", pair.name).code == 0
    pair.sync()
    pair.are_same("a", "c")


def test_an_epoch_that_was_raised_by_hand_at_the_lost_side_does_not_make_it_right(pair: Lab) -> None:
    for name in ("a", "b"):
        mark = read_role(pair.source.metastore, f"{pair.name}_{name}")
        set_role(pair.source.metastore, f"{pair.name}_{name}", RoleMark(Role.FENCED, 6), expect=mark)
    done = come_back(pair)
    assert (
        done.status == "done" and primaries(pair) == {"primary at epoch 7"} and sources(pair) == {"replica at epoch 7"}
    )
    same(pair)


def test_two_primaries_whose_order_contradicts_the_failover_are_left_to_a_person(pair: Lab) -> None:
    for name in ("a", "b"):
        mark = read_role(pair.source.metastore, f"{pair.name}_{name}")
        set_role(pair.source.metastore, f"{pair.name}_{name}", RoleMark(Role.PRIMARY, 6), expect=mark)
    with pytest.raises(Refused, match="last failover"):
        come_back(pair)
    assert sources(pair) == {"primary at epoch 6"}


def test_there_is_nothing_to_fail_back_where_there_was_no_failover(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    pair = Lab(source_metastore, target_metastore, tmp_path)
    pair.db("a").table("t", {"first": "1"})
    pair.sync()
    assert come_back(pair).status == "nothing"


def test_what_the_failover_remembered_may_be_lost(pair: Lab) -> None:
    (pair.here / "target/.cmroot/policies").rename(pair.here / "lost")
    done = come_back(pair)
    assert done.status == "done" and done.own and done.own["hold"]
    assert sorted(done.own["unknown"]) == [f"{pair.name}_a", f"{pair.name}_b"]
    assert len(done.warnings) >= 2
    same(pair)
