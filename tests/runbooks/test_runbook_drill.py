"""docs/runbooks/drill.md, command by command."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import Lab
from runbooks import play

from replicator.metastore.embedded.running import Running


def test_the_runbook_drills_a_replica_and_leaves_it_as_it_was(
    source_metastore: Running, target_metastore: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pair = Lab(source_metastore, target_metastore, tmp_path)
    pair.db("a").table("orders", {"f": "1\x01one\n"})
    pair.db("a").partitioned("days", {"x": {"f": "1\x01one\n"}, "y": {"f": "2\x01two\n"}})
    pair.sync()
    before = pair.replica().everything()
    values = {"config": pair.config(), "policy": pair.name, "db": f"{pair.name}_a", "table": "orders"}
    assert len(play("drill", values)) > 6
    assert pair.replica().everything() == before
