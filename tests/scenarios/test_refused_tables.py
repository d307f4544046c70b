"""Tables that the metastore does not give, as their metadata is damaged: named, and the rest goes on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import command
from lab import Lab
from metastores import REFUSES_AT_ONCE, MetastoreFactory
from waiting import CEILING

from replicator.lifecycle.purge.options import PurgeOptions, WhiteList
from replicator.lifecycle.purge.run import described
from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.distributions import pyspark_jars
from replicator.metastore.embedded.running import Running
from replicator.metastore.java import find_java
from replicator.policies.run import SyncRun


def without_serde(source: Running, name: str, serde: str) -> None:
    """Sets the id of a table's serde in the database of a metastore that is stopped meanwhile. It has the ids of its
    serdes from the start: the n-th table's is n."""
    embedded.stop(source.directory)
    script = source.directory / "damage.sql"
    where = f"SD_ID = (select SD_ID from APP.TBLS where TBL_NAME = '{name}')"
    script.write_text(
        f"connect 'jdbc:derby:{source.directory / 'metastore_db'}';\n"
        f"update APP.SDS set SERDE_ID = {serde} where {where};\ndisconnect;\n"
    )
    java = [find_java(os.environ).executable, "-cp", f"{pyspark_jars()}/*", "org.apache.derby.tools.ij", script]
    done = subprocess.run(java, cwd=source.directory, capture_output=True, text=True, timeout=CEILING)
    assert "1 row inserted/updated/deleted" in done.stdout, done.stdout
    embedded.start(source.directory, env=os.environ, settings=REFUSES_AT_ONCE)


@pytest.fixture
def damaged(
    metastore_factory: MetastoreFactory, target_metastore: Running, tmp_path: Path
) -> Iterator[tuple[Lab, Running]]:
    source = metastore_factory("damaged", settings=REFUSES_AT_ONCE)
    pair = Lab(source, target_metastore, tmp_path)
    for name in ("one", "bad", "two", "three"):
        pair.db("a").table(name, {"first": "1"})
    yield pair, source
    embedded.stop(source.directory)


def named(run: SyncRun) -> list[str]:
    return [each.name.split(".")[1] for each in run.not_replicated]


def test_a_refused_table_is_named_and_the_others_are_replicated(damaged: tuple[Lab, Running]) -> None:
    pair, source = damaged
    without_serde(source, "bad", "null")
    first = pair.sync()
    assert (first.status, named(first)) == ("incomplete", ["bad"])
    assert "does not give it: table" in first.not_replicated[0].reason
    assert sorted(pair.target.metastore.table_names(pair.replica("a").name)) == ["one", "three", "two"]

    pair.db("a").write("two", {"second": "2"})
    assert named(pair.sync(compare=False)) == ["bad"]  # nobody has asked again
    for words in (["verify", pair.name], ["check", pair.name]):
        answer = command("--config", str(pair.config()), *words)
        assert (answer.code, [each["object"] for each in answer.output["not_replicated"]]) == (
            3,
            [f"{pair.name}_a.bad"],
        )
    pair.keys["exclude"] = ["bad"]
    assert pair.sync().not_replicated == []
    del pair.keys["exclude"]

    without_serde(source, "bad", "(select min(SERDE_ID) from APP.SDS)")
    assert pair.sync().not_replicated == []
    pair.are_same("a")


def test_a_table_that_is_refused_later_keeps_its_replica_and_is_a_gap_of_a_purge(damaged: tuple[Lab, Running]) -> None:
    pair, source = damaged
    pair.db("a").alter("two", **{"dataset.descriptor": '{"privacy": {"column": "b"}}'})
    assert pair.sync().not_replicated == []
    without_serde(source, "bad", "null")
    pair.db("a").table("four", {"first": "4"})
    assert named(pair.sync()) == ["bad"]
    assert sorted(pair.target.metastore.table_names(pair.replica("a").name)) == ["bad", "four", "one", "three", "two"]

    db = pair.db("a").name
    tables, gaps, _ = described(pair.db("a").metastore, WhiteList.parse(f"{db}.(bad|two)"), PurgeOptions(f"{db}.ids:b"))
    assert [each.name for each in tables] == [f"{db}.two"]
    assert [each.table for each in gaps] == [f"{db}.bad"] and "does not give it: table" in gaps[0].reason
