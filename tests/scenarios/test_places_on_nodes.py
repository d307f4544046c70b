"""Tables at local locations of a warehouse on HDFS: directories of the cluster's nodes. A capture reads no directory of
its own host instead: whoever may create a table could otherwise have any of them copied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Answer, command
from engines import local_engine
from gateways import guarded
from hadoop import Cluster
from hdfs_path import HdfsPath
from lab import Lab
from metastores import MetastoreFactory
from plain_tables import PlainDatabase, text_storage

from cmroot.root import create_or_open
from replicator.captures.gateways.messages import Drop
from replicator.captures.gateways.targets import find_targets
from replicator.core.audit import Removal, begin_audit
from replicator.core.model import EXTERNAL, Function, Table
from replicator.core.named_files import ON_NODES
from replicator.core.text import Period
from replicator.errors import Refused
from replicator.lifecycle.housekeeping.schedule import vacuum
from replicator.lifecycle.removal.job import Remover, measured
from replicator.lifecycle.removal.live import LiveLocations
from replicator.lifecycle.removal.removal import Limits
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

pytestmark = pytest.mark.hdfs


@pytest.fixture
def pair(on_hdfs: Callable[[str], Running], hdfs: Cluster, tmp_path: Path) -> Lab:
    """A database on HDFS, with a table; and a directory `secret` of this host."""
    place: Any = HdfsPath(hdfs, f"/{tmp_path.name}")
    found = Lab(on_hdfs("source"), on_hdfs("target"), place, warehouse=place / "replica")
    found.source = PlainDatabase(connect(found.source_uri), found.name, place / "warehouse")
    found.source.create()
    found.source.table("plain", {"f": "1\tone\n"})
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("of this host\n")
    return found


def test_a_table_and_a_partition_at_local_locations_are_named_and_not_read(pair: Lab, tmp_path: Path) -> None:
    db, secret = pair.source, tmp_path / "secret"
    at_secret(db, "table", secret)
    db.partitioned("parts", {"x": {"f": "1\tx\n"}})
    db.metastore.add_partitions(db.name, "parts", [db.partition("y", secret)])
    wanted = [(f"{db.name}.parts", "p=y"), (f"{db.name}.table", "")]

    for number in range(2):
        dumped = pair.dump(since=pair.last if number else None)
        assert (dumped.code, named(dumped)) == (3, wanted), dumped
        loaded = pair.load()
        assert (loaded.code, named(loaded)) == (3, wanted), loaded
        verified = verify(pair)
        assert (verified.code, verified.output["difference_count"], named(verified)) == (3, 0, wanted), verified
    kept = [path.read_bytes() for path in (pair.cmroot / "files").rglob("*")]
    assert kept and b"of this host\n" not in kept
    shown = pair.target.shown()
    assert shown["parts/p=x"]["files"] and not shown["parts/p=y"]["files"] and not shown["table"]["files"]


def test_the_warehouse_counts_where_the_database_itself_is_local(
    metastore_factory: MetastoreFactory, hdfs: Cluster, tmp_path: Path
) -> None:
    """Who may create a database chooses its location."""
    warehouse = f"{hdfs.url}/{tmp_path.name}/warehouse"
    server = metastore_factory("nodes", settings={"fs.defaultFS": hdfs.url, "hive.metastore.warehouse.dir": warehouse})
    found = Lab(server, server, tmp_path)
    found.source = PlainDatabase(found.source.metastore, found.name, tmp_path)
    found.source.create()
    found.source.table("t", {"f": "of this host\n"})
    (tmp_path / "f.jar").write_text("of this host\n")
    resources = (("JAR", f"file:{tmp_path}/f.jar"),)
    function = Function(found.name, "f", "org.example.F", owner="me", owner_type="USER", resources=resources)
    found.source.metastore.create_function(function)
    captured = found.capture()
    assert captured.code == 3 and named(captured) == [(f"{found.name}.t", "")], captured
    assert not any(path.is_file() for path in (found.cmroot / "files").rglob("*"))


@pytest.fixture
def nodes(metastore_factory: MetastoreFactory, hdfs: Cluster, tmp_path: Path) -> Running:
    """A server with a warehouse on HDFS. Databases that tests make there are local."""
    warehouse = f"{hdfs.url}/{tmp_path.name}/warehouse"
    return metastore_factory("nodes", settings={"fs.defaultFS": hdfs.url, "hive.metastore.warehouse.dir": warehouse})


def test_a_gateway_neither_keeps_nor_removes_them(nodes: Running, tmp_path: Path) -> None:
    with guarded(nodes, tmp_path) as guard:
        guard.database.table("t", {"f": "of this host\n"})
        guard.database.partitioned("parts", {"x": {"f": "of this host\n"}})
        truncation: Any = (guard.direct, Drop("truncate_table", "truncate", guard.db, "t"))  # not known to this server
        with pytest.raises(Refused, match=ON_NODES):
            find_targets(*truncation)
        guard.call("drop_partition", guard.db, "parts", ["x"], True)
        for table in ("t", "parts"):
            guard.call("drop_table", guard.db, table, True)
        assert guard.direct.table_names(guard.db) == []
        assert {path.name for path in guard.database.home.rglob("*") if path.is_file()} == {"f"}
        assert (guard.place("t") / "f").exists() and (guard.place("parts") / "p=x/f").exists()
        assert guard.entries() == [] and guard.is_settled()
        assert not any(path.is_file() for path in (tmp_path / "cmroot/files").rglob("*"))


def test_jobs_that_remove_leave_and_name_them(nodes: Running, tmp_path: Path) -> None:
    found = Lab(nodes, nodes, tmp_path)
    found.source = PlainDatabase(found.source.metastore, found.name, tmp_path)
    found.source.create()
    found.source.partitioned("t", {"x": {"f": "of this host\n"}})
    place, root = tmp_path / f"{found.name}.db/t/p=x", create_or_open(str(tmp_path / "cmroot"))
    removal = Removal(
        path=f"file:{place}", what="partition", reason="test", object=f"{found.name}.t", partition="p=x", drops=True
    )
    engine = local_engine()
    with LiveLocations(found.source.metastore) as live:
        removed = Remover(root.place, begin_audit(root.place, "test"), live, Limits(), engine).remove([removal])
        assert [each.why for each in removed.refused] == [ON_NODES] and not removed.removals
        assert [(each.files, each.bytes) for each in measured([removal], engine, live)] == [(0, 0)]
    assert (place / "f").exists()
    asked: Any = (found.source.metastore, None, found.name, "t", Period("P1D", days=1))  # no items are read
    with pytest.raises(Refused, match=ON_NODES):
        vacuum(*asked)


def test_a_purge_reads_none_of_them_and_purges_the_other_tables(pair: Lab, tmp_path: Path) -> None:
    db, secret = pair.source, tmp_path / "secret"
    (secret / "key").write_text("1\x01of this host\n")
    at_secret(db, "whole", secret)
    db.partitioned("parts", {"x": {"f": "1\x01x\n"}})
    db.metastore.add_partitions(db.name, "parts", [db.partition("y", secret)])
    db.table("fine", {"f": "1\x01erased\n2\x01stays\n"})
    db.table("ids", {"f": "1\x01\n"})
    for name in ("whole", "parts", "fine"):
        db.alter(name, **{"dataset.descriptor": '{"privacy": {"column": "a"}}'})
    common = ("--metastore", pair.source_uri, "--cmroot", str(tmp_path / "root"))
    asked = ("--ids", f"{db.name}.ids:a", "--table-whitelist", f"{db.name}.whole|parts|fine")
    purged = command("purge", "run", *common, *asked)
    assert (purged.code, purged.output["rows_erased"]) == (3, 1), purged
    assert [(each["table"], each["reason"]) for each in purged.output["gaps"]] == [(f"{db.name}.whole", ON_NODES)]
    errors = {each["table"]: each["error"] for each in purged.output["tables"]}
    assert errors == {f"{db.name}.fine": "", f"{db.name}.parts": f"partition p=y: {ON_NODES}"}
    assert (secret / "key").read_text() == "1\x01of this host\n" and len(list(secret.iterdir())) == 1

    certified = command("purge", "certify", *common, "--run", "latest", "--expedite", "--grace", "0s")
    assert (certified.code, certified.output["status"]) == (3, "gaps"), certified
    assert {each["table"] for each in certified.output["gaps"]} == {f"{db.name}.whole", f"{db.name}.parts"}


def test_a_check_names_them(nodes: Running, target_metastore: Running, tmp_path: Path) -> None:
    found = Lab(nodes, target_metastore, tmp_path)
    found.db().table("t", {"f": "of this host\n"})
    checked = command("--config", str(found.config()), "check", found.name)
    (finding,) = [each for each in checked.output["findings"] if each["name"] == "locations"]
    assert finding["health"] == "warning" and f"{found.name}_a.t: {ON_NODES}" in finding["text"], finding
    assert not [each for each in checked.output["findings"] if each["name"].startswith("keeper /")]


def at_secret(db: PlainDatabase, name: str, place: Path) -> None:
    parameters = {"EXTERNAL": "TRUE"}
    table = Table(db=db.name, name=name, kind=EXTERNAL, storage=text_storage(place), parameters=parameters)
    db.metastore.create_table(table)


def named(answer: Answer) -> list[tuple[str, str]]:
    return [
        (each["object"], each.get("partition") or "")
        for each in answer.output["not_replicated"]
        if each["reason"] == ON_NODES
    ]


def verify(pair: Lab) -> Answer:
    sides = ("--source", pair.source_uri, "--target", pair.target_uri)
    return command("verify", *sides, "--db", pair.name, "--engine", "local")
