"""Data connectors of Hive 4 are in no database: named by whatever is about all databases."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Answer, command
from metastores import MetastoreFactory
from newer_calls import newer_client
from plain_tables import PlainDatabase
from raw_thrift import RawClient, struct

from replicator.metastore.thrift import connect


@pytest.mark.timeout(300)
def test_data_connectors_are_named(metastore_factory: MetastoreFactory, tmp_path: Path) -> None:
    source, target = (metastore_factory(name, hive="4.2") for name in ("connected", "target"))
    with connect(source.uri) as metastore:
        for name in ("here", "there"):
            database = PlainDatabase(metastore, f"connected_{name}", source.warehouse)
            database.create()
            database.table("t", {"first": "1\x01one\n"})
    made = struct({1: "elsewhere", 2: "mysql", 3: "jdbc:mysql://elsewhere/db", 5: "nobody"})
    with RawClient(source.uri) as raw:
        assert not raw.call("create_dataconnector_req", struct({1: made})).failed

    def run(verb: str, *words: object) -> Answer:
        answer = command(verb, *map(str, words), "--engine", "local")
        assert not answer.error, answer
        return answer

    def named(answer: Answer) -> list[str]:
        found = [each["object"] for each in answer.output["not_replicated"]]
        assert answer.code == (3 if found else 0), answer
        return found

    one, other, both = "connected_here", "connected_there", ["data connector elsewhere"]
    root = ["--source", source.uri, "--cmroot", tmp_path / "cmroot"]
    sides = ["--source", source.uri, "--target", target.uri]
    assert named(run("capture", *root, "--db", one)) == []
    dump = run("dump", *root, "--db", one, "--db", other, "--out", tmp_path / "all")
    assert named(dump) == both
    assert named(run("dump", *root, "--db", one, "--out", tmp_path / "one")) == []
    assert named(run("capture", *root)) == both
    assert named(run("load", tmp_path / "all", "--target", target.uri, "--target-cmroot", tmp_path / "replica")) == both
    assert named(run("verify", *sides, "--db", one, "--db", other)) == both
    assert named(run("verify", *sides, "--db", one)) == []

    config = tmp_path / "replicator.toml"
    config.write_text(
        f"""[policies.all]
source = "{source.uri}"
target = "{target.uri}"
databases = [".*"]
rename_db = {{ default = "connected_default" }}
dumps = "{tmp_path}/dumps"
cmroot = "{tmp_path}/cmroot"
target_cmroot = "{tmp_path}/replica"
engine = "local"
"""
    )
    for verb in (["sync"], ["plan", "--out", str(tmp_path / "plan")], ["sync"]):
        assert named(command("--config", str(config), verb[0], "all", *verb[1:])) == both

    with RawClient(source.uri) as raw:
        assert not raw.call("drop_dataconnector_req", struct({1: "elsewhere", 2: True, 3: False})).failed
    with newer_client(source.uri) as client:
        assert client.get_dataconnectors() == []
    captured = run("capture", *root)
    assert (named(captured), captured.output["unknown"]) == ([], [])
    assert named(command("--config", str(config), "sync", "all")) == []
