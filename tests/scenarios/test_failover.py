"""Failovers: the primary is gone. What is reported, what is promoted, and what is in the way."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import command
from faults import Fault, run_with
from lab import Lab
from lost_primary import captured, lose, nobody
from metastores import MetastoreFactory
from waiting import CEILING

from replicator.errors import LeaseHeld, MetastoreUnreachable, Refused
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.policies.role_changes.failover import FailoverSettings, failover, last_failover
from replicator.policies.role_changes.role_change import RoleChanged
from replicator.policies.roles import read_role


@pytest.fixture
def pair(two_databases: Lab) -> Lab:
    return two_databases


@pytest.fixture
def closed() -> str:
    return nobody()


def turn(pair: Lab, *, seconds: float = CEILING, clock: Callable[[], float] = time.time, **options: Any) -> RoleChanged:
    with (
        ThriftMetastore(pair.source.metastore.uri, timeout=seconds, retries=0) as one,
        ThriftMetastore(pair.target.metastore.uri, timeout=CEILING, retries=0) as other,
    ):
        return failover(pair.sides(clock=clock), (one, other), FailoverSettings(**options))


def interrupt(pair: Lab, fault: Fault) -> None:
    """A run that is killed in its load."""
    assert run_with(fault, ["--config", str(pair.config()), "sync", pair.name]).killed
    assert "replicator.loading" in pair.target.metastore.database(f"{pair.name}_a").parameters


def replicas(pair: Lab) -> set[str]:
    return {str(read_role(pair.target.metastore, f"{pair.name}_{name}")) for name in ("a", "renamed")}


def tables(loss: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    """Table -> (partitions, files, bytes)."""
    return {each["table"]: (each["partitions"], each["files"], each["bytes"]) for each in loss["tables"]}


def test_after_a_kill_the_loss_report_is_what_was_really_lost(
    metastore_factory: MetastoreFactory, target_metastore: Running, tmp_path: Path
) -> None:
    running = metastore_factory("dying")
    pair = Lab(running, target_metastore, tmp_path)
    pair.keys["rename_db"] = {f"{pair.name}_b": f"{pair.name}_renamed"}
    pair.db("a").table("t", {"first": "1"})
    pair.db("a").partitioned("days", {"1": {"x": "one"}})
    pair.db("b").table("u", {"first": "1"})
    last = pair.sync()
    pair.db("a").write("t", {"second": "22"})
    pair.db("a").add("days", {"2": {"x": "two", "y": "too"}, "3": {"x": "three"}})
    pair.db("b").table("made", {"f": "4444"})
    pair.db("b").drop("u")
    captured(pair)
    held = pair.replica("a").shown()
    pair.db("a").add("days", {"4": {"x": "never captured"}})
    pair.db("a").write("t", {"third": "333", "_SUCCESS": "", "empty": ""})
    os.kill(running.pid, signal.SIGKILL)
    arguments = ["--config", str(pair.config()), "failover", pair.name, "--answer-timeout", "4m"]
    answer = command(*arguments)
    loss = answer.output["loss"]
    assert (answer.code, answer.output["status"]) == (6, "refused")
    assert tables(loss) == {
        f"{pair.name}_a.days": (2, 3, 11),
        f"{pair.name}_a.t": (0, 1, 2),
        f"{pair.name}_b.made": (0, 1, 4),
        f"{pair.name}_b.u": (0, 0, 0),
    }
    assert sorted(loss["tables"][0]["names"]) == ["p=2", "p=3"]
    assert (loss["files"], loss["bytes"], loss["table_count"], loss["not_captured"]) == (5, 17, 4, 0)
    assert {each["event"] for each in loss["databases"]} == {last.to_event}
    assert "no longer queried" in loss["metastore"] and loss["log"] == ""
    assert loss["unknown_after_event"] > last.to_event and loss["unknown_seconds"] >= 0
    assert loss["unseen"] is None
    looked = command(*arguments, "--look").output["loss"]
    assert (looked["unseen_files"], looked["unseen_bytes"]) == (2, 17)
    assert {each["table"]: [Path(place).name for place in each["directories"]] for each in looked["unseen"]} == {
        f"{pair.name}_a.days": ["p=4"],
        f"{pair.name}_a.t": ["t"],
    }
    assert pair.memory.read_role_change() is None and replicas(pair) == {"replica at epoch 1"}
    answer = command(*arguments, "--force")
    assert (answer.code, answer.output["status"], answer.output["primary"]) == (0, "done", "target")
    assert replicas(pair) == {"primary at epoch 3"}
    assert pair.replica("a").shown() == held
    assert tables(answer.output["loss"]) == tables(loss)
    shown = command("--config", str(pair.config()), "loss", pair.name)
    assert tables(shown.output) == tables(loss)
    answer = command(*arguments, "--force")
    assert answer.code == 6 and "primary already" in answer.message
    metastore_factory(directory=running.directory)  # it comes back, and believes to be the primary
    with pytest.raises(Refused, match="is the primary"):
        pair.sync()


def test_a_metastore_that_hangs_is_not_waited_for(pair: Lab, silent: str) -> None:
    lose(pair, silent)
    done = turn(pair, seconds=0.5, force=True)
    assert done.status == "done" and done.loss and "no answer within" in done.loss["metastore"]
    assert replicas(pair) == {"primary at epoch 3"}


def test_a_primary_that_answers_is_fenced_and_what_it_announced_is_told(pair: Lab) -> None:
    pair.db("a").add("days", {"2": {"x": "two"}})
    done = turn(pair, force=True)
    assert done.loss and done.loss["not_captured"] == 1 and tables(done.loss) == {f"{pair.name}_a.days": (1, 0, 0)}
    assert any("a switchover would lose nothing" in text for text in done.warnings)
    assert str(read_role(pair.source.metastore, f"{pair.name}_b")) == "fenced at epoch 2"
    with pytest.raises(Refused):
        pair.sync()


def test_partitions_that_the_policy_does_not_replicate_are_no_loss(pair: Lab) -> None:
    pair.keys["partitions"] = {f"{pair.name}_a.days": "p < '5'"}
    pair.sync()
    pair.db("a").add("days", {"7": {"x": "not wanted"}})
    pair.db("a").add("days", {"2": {"x": "two"}, "8": {"x": "not wanted"}})
    captured(pair)
    loss = turn(pair).loss
    assert loss and tables(loss) == {f"{pair.name}_a.days": (1, 1, 3)} and loss["changes"] == 1


def test_where_nothing_of_the_source_answers_the_rest_is_unknown_after_an_event(pair: Lab, closed: str) -> None:
    last = pair.memory.runs().last_done
    assert last
    lose(pair, closed, root=True)
    loss = turn(pair).loss
    assert loss and loss["unknown_after_event"] == last.to_event and loss["unknown_seconds"] >= 0
    assert loss["changes"] == 0 and "cmroot" in loss["log"] and loss["metastore"]
    assert loss["unknown_after_time"]
    done = turn(pair, force=True)
    assert done.status == "done" and replicas(pair) == {"primary at epoch 3"}


def test_an_interrupted_load_is_completed_first(pair: Lab, closed: str) -> None:
    pair.db("a").write("t", {"second": "22"})
    pair.db("a").table("made", {"f": "x"})
    pair.db("b").write("u", {"second": "22"})
    wanted = pair.db("a").shown()
    interrupt(pair, Fault("before", "thrift", "create table"))
    lose(pair, closed)
    loss = turn(pair).loss
    assert loss and loss["changes"] == 0 and {each["completes"] for each in loss["databases"]} == {True}
    done = turn(pair, force=True)
    assert done.loss and done.loss["changes"] == 0 and done.loss["between"] == []
    assert pair.replica("a").shown() == wanted
    assert "replicator.loading" not in pair.target.metastore.database(f"{pair.name}_a").parameters


def test_a_load_that_cannot_be_completed_is_told_table_by_table_and_needs_consent(pair: Lab, closed: str) -> None:
    pair.db("a").write("t", {"second": "22"})
    pair.db("a").table("made", {"f": "x"})
    interrupt(pair, Fault("before", "rename", "/second$"))
    lose(pair, closed, root=True)
    shutil.rmtree(pair.here / "source")
    with pytest.raises(Refused, match="between two states") as raised:
        turn(pair, force=True)
    between = {each["table"]: each["state"] for each in raised.value.details["between"]}  # type: ignore[attr-defined]
    assert between == {f"{pair.name}_a.t": "between", f"{pair.name}_a.made": "missing"}
    assert replicas(pair) == {"replica at epoch 1"}
    done = turn(pair, force=True, accept_partial=True)
    assert done.status == "done" and done.loss and len(done.loss["between"]) == 2
    assert replicas(pair) == {"primary at epoch 3"}


def test_a_failover_killed_at_every_step_is_completed_by_running_it_again(pair: Lab, closed: str) -> None:
    """After each mark of a step and after each change of a database, one further each time."""
    lose(pair, closed)
    arguments = ["--config", str(pair.config()), "failover", pair.name, "--force", "--answer-timeout", "4m"]
    deaths = 0
    while run_with(Fault("after", "any", r"turn\.json|alter database", 2), arguments, must=False).killed:
        deaths += 1
        assert deaths < 20
        assert pair.memory.unfinished_role_change()
    assert deaths >= 1 + 5 + 4  # the list, the steps, the databases' changes
    assert replicas(pair) == {"primary at epoch 3"}
    assert pair.memory.unfinished_role_change() is None


def test_of_two_operators_at_once_one_wins(pair: Lab, closed: str) -> None:
    lose(pair, closed)
    codes: list[int] = []
    arguments = ["--config", str(pair.config()), "failover", pair.name, "--force", "--answer-timeout", "4m"]
    both = [threading.Thread(target=lambda: codes.append(run_with(None, arguments).code)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sorted(codes)[0] == 0 and sorted(codes)[1] in (6, 7)
    assert replicas(pair) == {"primary at epoch 3"}
    with pair.memory.lease("failover"), pytest.raises(LeaseHeld):
        turn(pair, force=True)


def test_a_switchover_whose_source_died_is_taken_over(pair: Lab, closed: str) -> None:
    arguments = ["--config", str(pair.config()), "switchover", pair.name]
    assert run_with(Fault("before", "rename", "turn.json", 4), arguments).killed  # fenced, at epoch 2
    lose(pair, closed)
    done = turn(pair, force=True)
    assert done.epoch == 5 and replicas(pair) == {"primary at epoch 5"}
    assert [each.verb for each in pair.memory.role_changes()] == ["failover", "switchover"]


def test_the_source_is_promoted_when_the_policy_ran_backwards(pair: Lab, closed: str) -> None:
    assert command("--config", str(pair.config()), "switchover", pair.name).code == 0
    pair.replica("a").write("t", {"there": "1"})
    pair.sync()
    target, pair.target.metastore, pair.keys["target"] = pair.target.metastore, connect(closed), closed
    done = turn(pair, force=True)
    assert (done.primary, done.epoch) == ("source", 5)
    assert str(read_role(pair.source.metastore, f"{pair.name}_a")) == "primary at epoch 5"
    assert "there" in pair.db("a").shown()["t"]["files"]
    pair.target.metastore, pair.keys["target"] = target, target.uri


def test_a_memory_that_was_lost_with_the_primary_is_kept_by_the_survivor(pair: Lab, closed: str) -> None:
    assert command("--config", str(pair.config()), "switchover", pair.name).code == 0
    pair.replica("a").write("t", {"there": "1"})
    pair.sync()
    pair.replica("a").write("t", {"lost": "22"})
    root, target = pair.here / "target/.cmroot", pair.target.metastore
    root.rename(pair.here / "unmounted")
    pair.target.metastore, pair.keys["target"] = connect(closed), closed
    assert turn(pair, force=True).primary == "source"
    assert not root.exists()
    with pytest.raises(Refused, match="primary already"):
        turn(pair, force=True)
    (pair.here / "unmounted").rename(root)
    pair.target.metastore, pair.keys["target"] = target, target.uri
    assert last_failover(pair.policy).reverse
    answer = command("--config", str(pair.config()), "failback", pair.name)
    assert (answer.code, answer.output["primary"], answer.output["own"]["bytes"]) == (0, "source", 2)
    pair.are_same("a")
    assert pair.sync().status == "nothing"


class Stalling:
    """A relay to a metastore that stops answering after so many bytes."""

    def __init__(self, uri: str, limit: int) -> None:
        host, _, port = uri.removeprefix("thrift://").partition(":")
        self._server = socket.create_server(("127.0.0.1", 0))
        self._behind, self._left = (host, int(port)), limit
        self.uri = f"thrift://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            one, _ = self._server.accept()
            other = socket.create_connection(self._behind)
            threading.Thread(target=self._pass, args=(one, other, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(other, one, True), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, answers: bool) -> None:
        while data := one.recv(65536):
            if answers:
                self._left -= len(data)
                if self._left < 0:
                    continue
            other.sendall(data)


@pytest.mark.parametrize("limit", [100, 700])
def test_a_metastore_that_stops_answering_in_the_middle_is_not_waited_for(pair: Lab, limit: int) -> None:
    stalling = Stalling(pair.source.metastore.uri, limit)
    lose(pair, stalling.uri)
    assert turn(pair, seconds=0.5, force=True).status == "done"
    assert replicas(pair) == {"primary at epoch 3"}


def test_when_the_survivor_does_not_answer_nothing_is_done(pair: Lab, closed: str) -> None:
    pair.target.metastore, pair.keys["target"] = connect(closed), closed
    with pytest.raises(Refused, match="primary already"):
        turn(pair, force=True)
    lose(pair, nobody(2))
    with pytest.raises(MetastoreUnreachable):
        turn(pair, force=True)


def test_clocks_that_are_ten_minutes_off_tell_no_negative_loss(pair: Lab) -> None:
    pair.db("a").write("t", {"second": "22"})
    captured(pair)
    for off in (-600.0, 600.0):
        loss = turn(pair, clock=lambda off=off: time.time() + off).loss
        assert loss and loss["unknown_seconds"] >= 0 and loss["seconds"] >= 0 and loss["files"] == 1
