"""Runs of a policy: whole, then increments, then nothing; and everything that may have happened between two of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from policies import Replication

from cmroot.pins import find_slot
from replicator.metastore.embedded import Running
from replicator.sync.run import Remembering


@pytest.fixture
def pair(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Replication:
    replication = Replication(source_metastore, target_metastore, tmp_path)
    replication.db("a").table("t", {"first": "1"})
    return replication


def test_a_policy_is_whole_first_then_increments_then_nothing_new(pair: Replication) -> None:
    first = pair.sync()
    assert (first.status, first.kind, first.files_copied) == ("synced", "bootstrap", 1)
    assert first.bootstrapped == {f"{pair.name}_a": "the target does not have it"}
    pair.is_same()
    pair.db("a").write("t", {"second": "2"})
    second = pair.sync()
    assert (second.status, second.kind, second.files_copied) == ("synced", "incremental", 1)
    pair.is_same()
    kept = Remembering(pair.policy)
    pair.sync(remembering=kept)
    third = pair.sync(remembering=kept)
    assert (third.status, third.kind, third.dumps, third.lag_seconds) == ("nothing", "nothing", [], 0.0)
    assert third.seconds < 1
    slot = find_slot(str(pair.here / "cmroot"), pair.name)
    assert slot and (slot.position, slot.awaits) == (third.position, "")
    kinds = [run.kind for run in pair.memory.runs().runs]
    assert kinds == ["nothing", "incremental", "bootstrap"]
