"""docs/runbooks/restore-from-dumps.md, command by command, with nothing of the source left."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from lab import Lab
from runbooks import play

from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.running import Running

pytestmark = pytest.mark.own_metastores  # the source's is stopped


def test_the_runbook_restores_a_site_of_which_nothing_is_left(
    source_metastore: Running, target_metastore: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # no configuration of whoever runs the tests
    lab = Lab(source_metastore, target_metastore, tmp_path)
    lab.source.create()
    lab.source.table("orders", {"f1": "one" * 100, "f2": "two" * 100})
    lab.source.partitioned("days", {"a": {"x": "a" * 10}, "b": {"x": "b" * 20}})
    dumps = tmp_path / "backup"
    assert lab.dump("--with-data", out=dumps / "first").code == 0
    lab.source.write("orders", {"f3": "one" * 100, "f4": "four"})
    assert lab.dump("--with-data", out=dumps / "second", since=dumps / "first").code == 0
    shown = lab.source.shown()
    embedded.stop(source_metastore.directory)
    shutil.rmtree(lab.source.home)
    shutil.rmtree(lab.cmroot)

    values = {
        "dumps": dumps,
        "first": dumps / "first",
        "second": dumps / "second",
        "target": target_metastore.uri,
        "warehouse": lab.warehouse,
        "db": lab.name,
        "dir": tmp_path,
    }
    played = play("restore-from-dumps", values)

    assert len(played) == 6
    assert lab.target.shown() == shown
