"""docs/runbooks: catch-up, switch-over, fail-over and fail-back, command by command."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from faults import Fault, run_with
from lab import Lab
from lost_primary import captured
from metastores import MetastoreFactory
from runbooks import play

from cmroot.pins import read_pins
from replicator.metastore.embedded.running import Running
from replicator.policies.role_changes.failover import last_failover


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)


def values(pair: Lab) -> dict[str, object]:
    return {
        "config": pair.config(),
        "policy": pair.name,
        "source": pair.source.metastore.uri,
        "target": pair.target.metastore.uri,
        "db": f"{pair.name}_a",
        "dir": pair.here,
        "cmroot": pair.here / "cmroot",
    }


def test_the_runbook_switches_over_and_back_and_takes_one_back(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    pair = Lab(source_metastore, target_metastore, tmp_path)
    pair.db("a").table("t", {"first": "1"})
    pair.sync()
    arguments = ["--config", str(pair.config()), "switchover", pair.name]

    def interrupt() -> None:
        assert run_with(Fault("before", "rename", "turn.json", 4), arguments).killed

    assert len(play("catch-up", values(pair))) == 5
    played = play("switch-over", values(pair), before={8: interrupt})

    assert len(played) == 10
    pair.are_same("a")


def test_the_runbooks_fail_over_and_fail_back(
    metastore_factory: MetastoreFactory, target_metastore: Running, tmp_path: Path
) -> None:
    running = metastore_factory("dying")
    pair = Lab(running, target_metastore, tmp_path)
    pair.db("a").partitioned("days", {"1": {"x": "one"}})
    pair.sync()
    pair.db("a").add("days", {"2": {"x": "twice"}})
    captured(pair)
    os.kill(running.pid, signal.SIGKILL)

    assert len(play("fail-over", values(pair))) == 9

    pair.replica("a").add("days", {"3": {"x": "at the new."}})
    metastore_factory(directory=running.directory)
    loss = last_failover(pair.policy).loss
    found: dict[str, object] = {}

    def held() -> None:
        (hold,) = read_pins(str(pair.here / "cmroot")).holds
        found.update(event=hold.event, hold=hold.name)

    played = play("fail-back", _Growing(values(pair), found), before={5: held})

    assert len(played) == 10 and loss
    assert set(pair.source.metastore.database_names()) == {"default", f"{pair.name}_a", "rescued"}
    assert pair.source.metastore.partition_names("rescued", "days") == ["p=1", "p=2"]
    assert pair.source.metastore.partition_names(f"{pair.name}_a", "days") == ["p=1", "p=3"]
    pair.are_same("a")


class _Growing(dict[str, object]):
    """Values of a page, of which some are known only when its commands have run."""

    def __init__(self, known: dict[str, object], later: dict[str, object]) -> None:
        super().__init__(known)
        self._later = later

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._later

    def __missing__(self, key: str) -> object:
        return self._later[key]
