"""Switchovers: planned, without loss, in both directions; interrupted, taken back, and refused."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import command
from faults import Fault, run_with
from following import Following
from lab import Lab
from waiting import Clock, eventually

from cmroot.pins import find_slot
from replicator.core.roles import Role, RoleMark
from replicator.errors import LeaseHeld, NotReached, Refused
from replicator.metastore.embedded.running import Running
from replicator.policies.role_changes.role_change import Reporter, RoleChanged, StepReport, ignore
from replicator.policies.role_changes.switchover import abort, switchover
from replicator.policies.role_changes.switchover_steps import SwitchoverSettings
from replicator.policies.roles import read_role, set_role

NAMES = ("check", "catch up", "fence", "drain", "verify", "promote", "demote", "late", "slots")
SECONDS = {name: 10.0**number for number, name in enumerate(NAMES)}
"""That pass after each step, where a test moves the clock."""


@pytest.fixture
def pair(two_databases: Lab) -> Lab:
    return two_databases


def turn(pair: Lab, reported: Reporter = ignore, **more: Any) -> RoleChanged:
    return switchover(pair.sides(**more), SwitchoverSettings(patience=pair.policy.schedule * 0, reported=reported))


def roles(pair: Lab) -> dict[str, str]:
    """All roles, by side and name."""
    return {
        "a": str(read_role(pair.source.metastore, f"{pair.name}_a")),
        "b": str(read_role(pair.source.metastore, f"{pair.name}_b")),
        "replica a": str(read_role(pair.target.metastore, f"{pair.name}_a")),
        "replica b": str(read_role(pair.target.metastore, f"{pair.name}_renamed")),
    }


def are(source: str, target: str) -> dict[str, str]:
    return {"a": source, "b": source, "replica a": target, "replica b": target}


def same(pair: Lab) -> None:
    pair.are_same("a")
    assert pair.replica("renamed").exists()
    shown, wanted = pair.replica("renamed").shown(), pair.db("b").shown()
    assert shown == wanted


def test_roles_turn_and_turn_back_and_nothing_is_lost(pair: Lab) -> None:
    pair.db("a").write("t", {"second": "2"})
    pair.db("b").table("late", {"first": "1"})
    done = turn(pair)
    assert (done.status, done.primary, done.uri, done.epoch) == ("done", "target", pair.target.metastore.uri, 3)
    assert tuple(step.name for step in done.steps) == NAMES
    assert roles(pair) == are("replica at epoch 3", "primary at epoch 3")
    assert done.downtime_seconds is not None and done.downtime_seconds > 0
    same(pair)
    slots = [find_slot(str(pair.here / place), pair.name) for place in ("cmroot", "target/.cmroot")]
    assert slots[0] is None and slots[1] and slots[1].awaits
    pair.replica("a").write("t", {"written there": "3"})
    run = pair.sync()
    assert (run.reverse, run.files_copied) == (True, 1)
    pair.replica("a").write("t", {"and more": "4"})
    back = turn(pair)
    assert (back.primary, back.epoch) == ("source", 5)
    assert roles(pair) == are("primary at epoch 5", "replica at epoch 5")
    same(pair)
    pair.db("a").write("t", {"home": "5"})
    run = pair.sync()
    assert (run.reverse, run.files_copied) == (False, 1)
    same(pair)


def test_a_writer_at_the_primary_loses_nothing_and_the_downtime_is_told(pair: Lab) -> None:
    stop, acknowledged = threading.Event(), []
    source = pair.db("a")

    def write() -> None:
        while not stop.is_set():
            name = f"w{len(acknowledged)}"
            source.add("days", {name: {"x": name * 10}})
            source.write("t", {name: name})
            acknowledged.append(name)

    writer, clock = threading.Thread(target=write), Clock(time.time())

    def reported(step: StepReport) -> None:
        clock.advance(SECONDS[step.name])
        if step.name == "fence":  # as the runbook says
            stop.set()
            writer.join()

    writer.start()
    try:
        eventually(lambda: len(acknowledged) > 3)
        done = turn(pair, reported=reported, clock=clock)
    finally:
        stop.set()
        writer.join()
    shown = pair.replica("a").shown()
    assert [name for name in acknowledged if f"days/p={name}" not in shown or name not in shown["t"]["files"]] == []
    same(pair)
    steps = {step.name: step for step in done.steps}
    assert done.downtime_seconds == sum(SECONDS[name] for name in ("fence", "drain", "verify"))
    assert steps["drain"].detail["rounds"] >= 2 and steps["late"].detail["changes"] == 0


def test_writers_that_go_on_after_the_drain_are_kept_listed_and_taken_away(pair: Lab) -> None:
    def reported(step: StepReport) -> None:
        if step.name == "promote":
            pair.db("a").write("t", {"too late": "lost?"})
            pair.db("a").add("days", {"late": {"x": "late"}})

    done = turn(pair, reported=reported)
    late = next(step.detail for step in done.steps if step.name == "late")
    assert (late["files"], late["bytes"]) == (2, 9)
    assert [(each["table"], each["names"]) for each in late["tables"]] == [
        (f"{pair.name}_a.t", []),
        (f"{pair.name}_a.days", ["p=late"]),
    ]
    assert any("too late" not in text and "days" in text for text in done.warnings)
    run = pair.sync()
    assert (run.reverse, run.files_copied) == (True, 0)
    same(pair)
    kept = [path.read_text() for path in (pair.here / "cmroot/files").rglob("xxh3_128-*")]
    assert "lost?" in kept and "late" in kept


def test_a_dry_run_checks_and_changes_nothing(pair: Lab) -> None:
    before = pair.db("a").everything(), pair.replica("a").everything(), roles(pair)
    pair.db("a").write("t", {"second": "2"})
    answer = command("--config", str(pair.config()), "switchover", pair.name, "--dry-run")
    assert (answer.code, answer.output["status"], answer.output["primary"]) == (0, "ready", "target")
    assert pair.replica("a").everything() == before[1] and roles(pair) == before[2]
    assert pair.memory.read_role_change() is None
    mark = read_role(pair.target.metastore, f"{pair.name}_a")
    set_role(pair.target.metastore, f"{pair.name}_a", RoleMark(Role.FENCED, 1), expect=mark)
    answer = command("--config", str(pair.config()), "switchover", pair.name, "--dry-run")
    assert answer.code == 6 and "not the replica" in answer.output["problems"][0]
    with pytest.raises(Refused, match="not the replica"):
        turn(pair)
    assert pair.memory.read_role_change() is None


def test_a_policy_that_was_never_run_cannot_be_switched_over(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    fresh = Lab(source_metastore, target_metastore, tmp_path)
    fresh.db("a").table("t", {"first": "1"})
    with pytest.raises(Refused, match="not replicated yet"):
        turn(fresh)


def test_tables_that_differed_in_their_last_comparison_are_repaired_first(pair: Lab) -> None:
    from replicator.compare.sampling import TableMemory, VerifiedTables, write_memory

    place = str(pair.here / "target/.cmroot/verified")
    write_memory(place, f"{pair.name}_a", VerifiedTables({"t": TableMemory(verified=1.0, outcome="different")}))
    with pytest.raises(Refused, match="repair it first"):
        turn(pair)
    done = switchover(pair.sides(), SwitchoverSettings(anyway=True))
    assert any("repair it first" in text for text in done.warnings)


def test_a_switchover_killed_at_every_step_is_completed_by_running_it_again(pair: Lab) -> None:
    """After each mark of a step and after each change of a database, one further each time."""
    pair.db("a").write("t", {"second": "2"})
    pair.sync()  # else each attempt dies in the same load, which marks its database again each time
    arguments = ["--config", str(pair.config()), "switchover", pair.name, "--to", "target"]
    refused = deaths = 0
    while run_with(Fault("after", "any", r"turn\.json|alter database", 2), arguments, must=False).killed:
        deaths += 1
        assert not set(roles(pair).values()) >= {"primary at epoch 1", "primary at epoch 3"}
        if pair.memory.unfinished_role_change() is not None:
            with pytest.raises(Refused, match="switchover was begun"):
                pair.sync()
            refused += 1
        assert deaths < 60
    assert refused >= 1 + 7 + 8  # the list, the steps, the databases' changes
    assert roles(pair) == are("replica at epoch 3", "primary at epoch 3")
    same(pair)
    answer = command(*arguments)
    assert (answer.code, answer.output["status"]) == (0, "nothing")


def test_it_is_taken_back_before_the_flip_and_not_after(pair: Lab) -> None:
    arguments = ["--config", str(pair.config()), "switchover", pair.name]
    pair.db("a").write("t", {"second": "2"})
    assert run_with(Fault("before", "rename", "turn.json", 4), arguments).killed  # drained
    assert roles(pair)["a"] == "fenced at epoch 2"
    answer = command(*arguments, "--to", "source")
    assert answer.code == 6 and "other side" in answer.message
    answer = command(*arguments, "--abort")
    assert (answer.code, answer.output["status"]) == (0, "aborted")
    assert {roles(pair)[db] for db in ("a", "b")} == {"primary at epoch 3"}
    assert command(*arguments, "--abort").code == 6  # there is none any more
    pair.db("a").write("t", {"third": "3"})
    assert pair.sync().files_copied == 1
    while not roles(pair)["replica b"].startswith("primary"):  # newer servers tell the fence by events: a load is first
        assert run_with(Fault("after", "thrift", "alter database .*renamed"), arguments).killed
    answer = command(*arguments, "--abort")
    assert answer.code == 6 and "too late" in answer.message
    assert command(*arguments).code == 0
    assert roles(pair) == are("replica at epoch 5", "primary at epoch 5")


def test_taking_back_that_was_killed_is_completed_and_nothing_else_goes_on(pair: Lab) -> None:
    arguments = ["--config", str(pair.config()), "switchover", pair.name]
    assert run_with(Fault("before", "rename", "turn.json", 4), arguments).killed
    assert run_with(Fault("after", "thrift", "alter database"), [*arguments, "--abort"]).killed
    assert {roles(pair)[db] for db in ("a", "b")} == {"primary at epoch 3", "fenced at epoch 2"}
    answer = command(*arguments)
    assert answer.code == 6 and "aborted" in answer.message
    assert command(*arguments, "--abort").code == 0
    assert {roles(pair)[db] for db in ("a", "b")} == {"primary at epoch 3"}


def test_a_drain_that_finds_no_end_can_be_run_again_or_taken_back(pair: Lab) -> None:
    numbers = iter(range(1000))

    class Busy:
        """The source, with somebody who writes each time it is asked for its newest event."""

        def __getattr__(self, name: str) -> Any:
            if name == "current_event_id":
                pair.db("a").write("t", {f"f{next(numbers)}": "x"})
            return getattr(pair.source.metastore, name)

    busy = replace(pair.sides(), source=Busy())  # type: ignore[arg-type]
    with pytest.raises(NotReached, match="still being written to") as raised:
        switchover(busy, SwitchoverSettings(drain=pair.policy.schedule * 0))
    assert "--abort" in raised.value.hint and raised.value.exit_code == 75
    assert roles(pair)["a"] == "fenced at epoch 2"
    assert abort(pair.sides()).status == "aborted"
    assert pair.sync().files_copied >= 0
    same(pair)


def test_a_second_operator_meets_the_lease(pair: Lab) -> None:
    with pair.memory.lease("switchover"), pytest.raises(LeaseHeld):
        turn(pair)


def test_one_that_follows_the_policy_turns_with_it_and_back(pair: Lab) -> None:
    with Following(pair) as following:
        for to, writer, reader in (
            ("target", pair.replica("a"), pair.db("a")),
            ("source", pair.db("a"), pair.replica("a")),
        ):
            answer = command("--config", str(pair.config()), "switchover", pair.name, "--to", to, "--wait", "4m")
            assert (answer.code, answer.output["primary"]) == (0, to), following.reported()
            writer.write("t", {f"by {to}": to})
            eventually((reader.home / "t" / f"by {to}").exists, following.reported)
        following.end()
    same(pair)


def test_external_tables_whose_data_stay_where_they_are_survive_turns(pair: Lab) -> None:
    """The policy replicates their metadata alone: both sides name the same files."""
    pair.keys["external"] = "metadata"
    pair.db("a").table("outside", {"x": "1"}, kind="EXTERNAL_TABLE")
    pair.sync()
    assert turn(pair).primary == "target"
    pair.sync()
    place = pair.db("a").home / "outside"
    assert (place / "x").read_text() == "1"
    (place / "y").write_text("2")
    pair.replica("a").write("t", {"more": "1"})
    pair.sync()
    assert turn(pair).primary == "source"
    pair.sync()
    assert {path.name: path.read_text() for path in place.iterdir()} == {"x": "1", "y": "2"}


def test_clocks_that_are_ten_minutes_off_change_nothing(pair: Lab) -> None:
    pair.db("a").write("t", {"second": "2"})
    for off, primary in ((-600.0, "target"), (600.0, "source")):
        done = turn(pair, clock=Clock(time.time() + off))
        assert done.primary == primary
        assert done.lag_seconds is not None and done.lag_seconds >= 0
        assert done.downtime_seconds == 0
    same(pair)


def test_somebody_who_changes_a_role_in_the_middle_is_noticed(pair: Lab) -> None:
    def reported(step: StepReport) -> None:
        if step.name == "drain":
            mark = read_role(pair.source.metastore, f"{pair.name}_a")
            set_role(pair.source.metastore, f"{pair.name}_a", RoleMark(Role.PRIMARY, 7), expect=mark, force=True)

    with pytest.raises(Refused, match="not fenced"):
        turn(pair, reported=reported)
    assert read_role(pair.target.metastore, f"{pair.name}_a") != RoleMark(Role.PRIMARY, 3)


def test_a_primary_that_only_the_target_has_turns_no_first_run(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    """Of another policy: both have the target, and patterns that match the database."""
    own = Lab(source_metastore, target_metastore, tmp_path)
    own.db("a").table("t", {"first": "1"})
    other = own.replica("other")
    other.create()
    other.table("t", {"first": "theirs"})
    set_role(own.target.metastore, other.name, RoleMark(Role.PRIMARY, 2), expect=RoleMark(), settle=timedelta(0))
    assert own.sync().reverse is False
    own.are_same("a")
    assert other.name not in own.source.metastore.database_names()
    assert own.sync().status == "nothing"
