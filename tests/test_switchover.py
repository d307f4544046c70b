"""Switchovers: planned, without loss, in both directions; interrupted, taken back, and refused."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from faults import Fault, run_with
from policies import Replication, local_engine
from story import command

from cmroot.pins import find_slot
from replicator.errors import LeaseHeld, NotReached, Refused
from replicator.metastore.embedded import Running
from replicator.progress import Silent
from replicator.roles import Role, RoleMark
from replicator.sync.roles import read_role, set_role
from replicator.sync.switchover import Sides, SwitchoverOptions, abort, switchover
from replicator.sync.turn import StepTold, Turned

NAMES = ("check", "catch up", "fence", "drain", "verify", "promote", "demote", "late", "slots")


@pytest.fixture
def pair(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Replication:
    """Two databases, one of them called otherwise on the target."""
    replication = Replication(source_metastore, target_metastore, tmp_path)
    replication.keys["rename_db"] = {f"{replication.name}_b": f"{replication.name}_renamed"}
    replication.db("a").table("t", {"first": "1"})
    replication.db("a").partitioned("days", {"1": {"x": "one"}})
    replication.db("b").table("u", {"first": "1"})
    replication.sync()
    return replication


def sides(pair: Replication, **more: Any) -> Sides:
    return Sides(pair.policy, pair.source, pair.target, local_engine(), Silent(), **more)


def turn(pair: Replication, **more: Any) -> Turned:
    return switchover(sides(pair, **more), SwitchoverOptions(patience=pair.policy.schedule * 0))


def roles(pair: Replication) -> dict[str, str]:
    """All roles, by side and name."""
    return {
        "a": str(read_role(pair.source, f"{pair.name}_a")), "b": str(read_role(pair.source, f"{pair.name}_b")),
        "replica a": str(read_role(pair.target, f"{pair.name}_a")),
        "replica b": str(read_role(pair.target, f"{pair.name}_renamed")),
    }  # fmt: skip


def are(source: str, target: str) -> dict[str, str]:
    return {"a": source, "b": source, "replica a": target, "replica b": target}


def same(pair: Replication) -> None:
    pair.is_same("a")
    assert pair.replica("renamed").exists()
    shown, wanted = pair.replica("renamed").shown(), pair.db("b").shown()
    assert shown == wanted


def test_roles_turn_and_turn_back_and_nothing_is_lost(pair: Replication) -> None:
    pair.db("a").write("t", {"second": "2"})
    pair.db("b").table("late", {"first": "1"})
    done = turn(pair)
    assert (done.status, done.primary, done.uri, done.epoch) == ("done", "target", pair.target.uri, 3)
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
