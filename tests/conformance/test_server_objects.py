"""Objects of a metastore that no replica has: each is named by commands about its database, or about all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Answer, command
from counting_proxy import CountingProxy
from hive_metastore import ttypes
from hive_objects import hive_client
from hmsclient import HMSClient
from hmsclient.genthrift.hive_metastore import ttypes as older
from lab import Lab
from metastores import MetastoreFactory, drop_databases
from names import unique
from newer_calls import newer_client
from plain_tables import PlainDatabase
from raw_thrift import RawClient, struct

from replicator.core.formats import FORMATS
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

Hives = Callable[..., Running]
Sides = tuple[Running, Running]
LISTS = {"get_all_resource_plans", "get_dataconnectors", "get_all_stored_procedures", "get_all_packages"}


def names(answer: Answer) -> list[str]:
    """The objects that a command names; exit code 3 if there are any."""
    assert not answer.error, answer
    found = [each["object"] for each in answer.output["not_replicated"]]
    assert answer.code == (3 if found else 0), answer
    return found


def _make(client: Any, db: str) -> None:
    plan = ttypes.WMResourcePlan(name="daily", ns="default")
    client.create_resource_plan(ttypes.WMCreateResourcePlanRequest(resourcePlan=plan))
    procedure = ttypes.StoredProcedure(name="cleanse", dbName=db, catName="hive", ownerName="o", source="begin end")
    client.create_stored_procedure(procedure)
    package = ttypes.AddPackageRequest("hive", db, "tools", "o", "header", "body")
    client.add_package(package)


def _drop(client: Any, db: str) -> None:
    client.drop_resource_plan(ttypes.WMDropResourcePlanRequest(resourcePlanName="daily", ns="default"))
    client.drop_stored_procedure(ttypes.StoredProcedureRequest(catName="hive", dbName=db, procName="cleanse"))
    client.drop_package(ttypes.DropPackageRequest(catName="hive", dbName=db, packageName="tools"))


@pytest.fixture(scope="module")
def alone(metastore_factory: MetastoreFactory) -> Running:
    """A server without other tests' databases: its own objects are named by whatever is about all of them."""
    return metastore_factory("objects", hive="4.2")


@pytest.fixture
def sides(alone: Running, hives: Hives) -> Iterator[Sides]:
    yield alone, hives("4.2", "target")
    drop_databases(alone)


@pytest.mark.timeout(300)
def test_data_connectors_are_named(sides: Sides, tmp_path: Path) -> None:
    """They are in no database: named by whatever is about all databases."""
    source, target = sides
    one, other, both = unique("here"), unique("there"), ["data connector elsewhere"]
    with connect(source.uri) as metastore:
        for name in (one, other):
            database = PlainDatabase(metastore, name, source.warehouse)
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
rename_db = {{ default = "{unique("default")}" }}
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


@pytest.mark.timeout(300)
def test_plans_procedures_and_packages_are_named(sides: Sides, tmp_path: Path) -> None:
    source, target = sides
    pair = Lab(source, target, tmp_path)
    one, other = pair.db("one"), pair.db("other")
    for db in (one, other):
        db.table("t", {"first": "1\x01one\n"})
    own = [f"{one.name}.cleanse (stored procedure)", f"{one.name}.tools (package)"]
    root = ["--source", source.uri, "--cmroot", str(pair.cmroot), "--engine", "local"]
    with newer_client(source.uri) as client:
        _make(client, one.name)

    assert names(command("capture", *root, "--db", other.name)) == []
    whole = command("dump", *root, "--db", one.name, "--db", other.name, "--out", str(tmp_path / "all"))
    assert names(whole) == [*own, "resource plan daily"]
    assert names(command("dump", *root, "--db", one.name, "--out", str(tmp_path / "one"))) == own
    assert names(command("dump", *root, "--db", other.name, "--out", str(tmp_path / "other"))) == []
    load = ["--target", target.uri, "--warehouse", str(pair.warehouse), "--engine", "local"]
    assert names(command("load", str(tmp_path / "all"), *load)) == [*own, "resource plan daily"]
    sides = ["--source", source.uri, "--target", target.uri, "--engine", "local"]
    assert names(command("verify", *sides, "--db", one.name)) == own
    assert names(command("verify", *sides, "--db", one.name, "--db", other.name)) == ["resource plan daily", *own]

    synced = pair.sync()
    assert [each.object for each in synced.not_replicated] == [*own, "resource plan daily"]
    status = command("status", "--target", target.uri, "--db", one.name)
    assert [each["object"] for each in status.output["not_replicated"]] == own

    with newer_client(source.uri) as client:
        _drop(client, one.name)
    assert pair.sync().not_replicated == []
    with CountingProxy(source.uri) as proxy:
        assert names(command("capture", "--source", proxy.uri, *root[2:])) == []
    assert {name: count for name, count in proxy.count().items() if name in LISTS} == dict.fromkeys(LISTS, 1)


def test_what_a_server_does_not_list_is_named(hives: Hives, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that refuses a list may have objects that nothing else shows."""
    source = hives("4.0")
    pair = Lab(source, hives("4.0", "target"), tmp_path)
    pair.db("a").table("t", {"first": "1"})
    monkeypatch.setattr("replicator.metastore.requests.packages", lambda db: _refused)
    found = pair.sync().not_replicated
    assert [each.object for each in found] == ["all packages"]
    assert found[0].reason.startswith("the metastore does not list packages: ")


def _refused(client: Any) -> Any:
    return client.get_database("a database that does not exist")


def test_an_index_is_named_and_its_table_is_not_loaded(fixture: Lab) -> None:
    """Loaded, it would be a table that nothing updates."""
    fixture.source.table("t", {"first": "1\x01one\n"})
    fixture.bootstrap()
    host, port = fixture.source_uri.removeprefix("thrift://").split(":")
    with HMSClient(host=host, port=int(port)) as client:
        table = client.get_table(fixture.name, "t")
        contents = client.get_table(fixture.name, "t")
        contents.tableName, contents.tableType = "contents", "INDEX_TABLE"
        contents.sd.location = f"file:{fixture.source.home}/contents"
        index = older.Index(
            indexName="i",
            indexHandlerClass="org.apache.hadoop.hive.ql.index.compact.CompactIndexHandler",
            dbName=fixture.name,
            origTableName="t",
            createTime=1,
            lastAccessTime=1,
            indexTableName="contents",
            sd=table.sd,
            parameters={},
            deferredRebuild=True,
        )
        client.add_index(index, contents)
    named = [f"{fixture.name}.contents"]
    assert names(fixture.dump(since=fixture.last)) == named
    loaded = fixture.load()
    assert names(loaded) == named
    assert loaded.output["not_replicated"][0]["reason"] == FORMATS["index"].left_out
    assert fixture.target.metastore.table_names(fixture.name) == ["t"]
    assert names(fixture.dump()) == named


def test_details_of_a_serde_are_replicated_or_named(hives: Hives, tmp_path: Path) -> None:
    source, target = hives("4.2"), hives("4.0", "target")
    newer, lacking = Lab(source, target, tmp_path / "newer"), Lab(source, hives("2.3"), tmp_path / "lacking")
    for pair in (newer, lacking):
        pair.db("a").table("t", {"first": "1"}, kind="EXTERNAL_TABLE")
        with hive_client(source) as client:
            table = client.get(f"{pair.name}_a", "t")
            table.sd.serdeInfo.description = "made by hand"
            client.alter(f"{pair.name}_a", "t", table)
    assert newer.sync().not_replicated == []
    with hive_client(target) as client:
        assert client.get(f"{newer.name}_a", "t").sd.serdeInfo.description == "made by hand"
    for _ in range(2):
        (named,) = lacking.sync().not_replicated
        assert named.object == f"{lacking.name}_a.t" and "serde" in named.reason
