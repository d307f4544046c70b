"""Catalogs of Hive 3 and 4: one is replicated, and one database name in two of them is never mixed."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path
from typing import Any

import pytest
from catalogs import Hives, in_catalog
from engines import local_runtime
from lab import Lab
from plain_tables import PlainDatabase

import replicator
from replicator import capture, dump, verify
from replicator.core.config import read_config
from replicator.core.connections import MetastoreConfig
from replicator.core.policy import parse_policy
from replicator.errors import ObjectNotFound, Refused
from replicator.lifecycle.removal.live import LiveLocations
from replicator.metastore.embedded.running import Running
from replicator.metastore.events.scope import refuse_other_catalog
from replicator.metastore.thrift import connect
from replicator.policies.direction import Sides
from replicator.policies.roles import read_role
from replicator.policies.run import sync_once
from replicator.policies.steps import SyncSettings
from replicator.replay.neighbours import Neighbours


@pytest.mark.parametrize("version", ["3.1", "4.2"])
def test_every_call_is_about_the_handles_catalog(version: str, hives: Hives, tmp_path: Path) -> None:
    running = hives(version)
    own, other = connect(running.uri), in_catalog(running, tmp_path)
    name = f"db_{uuid.uuid4().hex[:8]}"
    here, there = PlainDatabase(own, name, tmp_path / "own"), PlainDatabase(other, name, tmp_path / "other")
    before = other.current_event_id()
    for each in (here, there):
        each.create()
        each.table("t", {"first": each.metastore.catalog})
        each.partitioned("p", {"1": {"x": each.metastore.catalog}})
    assert own.table_names(name) == other.table_names(name) == ["p", "t"]
    assert other.table(name, "t").location != own.table(name, "t").location
    assert other.partition_names(name, "p") == own.partition_names(name, "p")
    (mine,), (theirs,) = (list(each.partitions(name, "p", each.partition_names(name, "p"))) for each in (own, other))
    assert [each.location for each in mine] != [each.location for each in theirs]
    assert own.table(name, "t").extra.get("17") == other.table(name, "t").extra.get("17")
    mine_only = [event for event in own.next_events(before) if event.catalog is None and event.db == name]
    theirs_only = [event for event in other.next_events(before) if event.catalog is None and event.db == name]
    assert len(mine_only) == len(theirs_only) > 0
    assert not {event.id for event in mine_only} & {event.id for event in theirs_only}

    place = theirs[0].location or ""
    assert {each.db for each in Neighbours(own).touching(place)} == {f"@{other.catalog}#{name}"}
    with LiveLocations(own) as live:
        assert {each.db for each in live.references(place)} == {f"@{other.catalog}#{name}"}
        there.table("u", {"first": "1"})
        live.refresh()
        assert [each.object for each in live.references(other.table(name, "u").location or "")] == [
            f"@{other.catalog}#{name}.u"
        ]
        later = PlainDatabase(in_catalog(running, tmp_path), name, tmp_path / "later")
        later.create()
        made = later.table("t", {"first": "1"})
        live.refresh()
        assert [each.db for each in live.references(made.location or "")] == [f"@{later.metastore.catalog}#{name}"]
    for table in ("t", "p", "u"):
        other.drop_table(name, table)
    other.drop_database(name)
    assert own.table_names(name) == ["p", "t"] and name not in other.database_names()


def test_a_server_without_the_catalog_is_refused(source_metastore: Running, hives: Hives) -> None:
    for uri in (source_metastore.uri, hives("4.2").uri):
        with connect(MetastoreConfig(uri, catalog="elsewhere")) as metastore:
            with pytest.raises(ObjectNotFound, match="has no catalog elsewhere"):
                metastore.database_names()
            with pytest.raises(ObjectNotFound, match="has no catalog elsewhere"):
                metastore.drop_database("default")


def test_a_policy_replicates_one_catalog_into_another(hives: Hives, tmp_path: Path) -> None:
    source, target = hives("4.2"), hives("4.2", "target")
    here, there = in_catalog(source, tmp_path / "one"), in_catalog(target, tmp_path / "two")
    pair = Lab(source, target, tmp_path, catalog=here.catalog, target_catalog=there.catalog)
    name = f"{pair.name}_a"
    beside = PlainDatabase(pair.source.metastore, name, tmp_path / "beside")
    replica_beside = PlainDatabase(pair.target.metastore, name, tmp_path / "replica_beside")
    for each in (beside, replica_beside):
        each.create()
        each.table("t", {"first": "another"})
        each.table("only_here", {"first": "another"})
    pair.source.metastore, pair.target.metastore = here, there
    pair.db("a").table("t", {"first": "1"})
    pair.db("a").partitioned("days", {"1": {"x": "one"}, "2": {"x": "two"}})
    assert pair.sync().records > 0
    pair.are_same()
    pair.db("a").write("t", {"second": "2"})
    pair.db("a").table("u", {"third": "3"})
    here.drop_partitions(name, "days", ["p=1"])
    beside.metastore.drop_table(name, "only_here")  # of the other catalog: it concerns nobody
    untouched = [each.everything() for each in (beside, replica_beside)]
    pair.sync()
    pair.are_same()
    assert there.partition_names(name, "days") == ["p=2"]
    assert "only_here" not in there.table_names(name)
    assert [beside.everything(), replica_beside.everything()] == untouched
    compared = verify(pair.name, config=str(pair.config()), engine="local")
    assert compared.status == "same"
    for unbound, root in (
        (beside.metastore, pair.keys["cmroot"]),
        (replica_beside.metastore, pair.keys["target_cmroot"]),
    ):
        with pytest.raises(Refused, match="is the root of catalog c"):
            refuse_other_catalog(root, unbound)
    with pytest.raises(Refused, match="is the root of catalog"):
        capture(source=source.uri, cmroot=pair.keys["cmroot"], engine="local")


def test_a_root_is_of_one_catalog(hives: Hives, tmp_path: Path) -> None:
    source = hives("4.2")
    other = in_catalog(source, tmp_path)
    name = f"db_{uuid.uuid4().hex[:8]}"
    own = PlainDatabase(connect(source.uri), name, tmp_path / "own")
    own.create()
    own.table("t", {"first": "1"})
    theirs = PlainDatabase(other, name, tmp_path / "theirs")
    theirs.create()
    theirs.table("u", {"first": "1"})
    roots = [str(tmp_path / each) for each in ("own_root", "their_root")]
    capture(source=source.uri, cmroot=roots[0], db=[name], engine="local")
    capture(source=source.uri, catalog=other.catalog, cmroot=roots[1], db=[name], engine="local")
    dumps = [str(tmp_path / each) for each in ("own_dump", "their_dump")]
    dump(out=dumps[0], source=source.uri, cmroot=roots[0], db=[name], engine="local")
    dump(out=dumps[1], source=source.uri, catalog=other.catalog, cmroot=roots[1], db=[name], engine="local")
    for root, catalog in ((roots[0], other.catalog), (roots[1], None)):
        with pytest.raises(Refused, match="is the root of catalog"):
            capture(source=source.uri, catalog=catalog, cmroot=root, engine="local")


class TwoCatalogs(Lab):
    """A policy between catalogs. same_names: the databases of the same name in both default catalogs."""

    same_names: list[PlainDatabase]

    def untouched(self) -> list[dict[str, Any]]:
        return [each.everything() for each in self.same_names]


@pytest.fixture
def two(hives: Hives, tmp_path: Path) -> TwoCatalogs:
    pair = TwoCatalogs(hives("4.2"), hives("4.2", "target"), tmp_path)
    defaults = {"source": pair.source.metastore, "target": pair.target.metastore}
    pair.same_names = [
        PlainDatabase(each, f"{pair.name}_a", tmp_path / f"its_{side}") for side, each in defaults.items()
    ]
    pair.source.metastore, pair.target.metastore = (
        in_catalog(hives("4.2"), tmp_path),
        in_catalog(hives("4.2", "target"), tmp_path),
    )
    pair.keys |= {"catalog": pair.source.metastore.catalog, "target_catalog": pair.target.metastore.catalog}
    for each in pair.same_names:
        each.create()
        each.table("t", {"first": "another"})
        each.partitioned("days", {"1": {"x": "another"}})
    pair.db("a").table("t", {"first": "1"})
    pair.db("a").partitioned("days", {"1": {"x": "one"}})
    return pair


def test_replicas_of_one_name_in_two_catalogs_share_no_directory(two: TwoCatalogs, tmp_path: Path) -> None:
    two.sync()
    before = two.replica("a").everything()
    db, target = f"{two.name}_a", two.same_names[1].metastore
    for name in target.table_names(db):
        target.drop_table(db, name)
    target.drop_database(db)
    places = {key: str(tmp_path / f"other_{key}") for key in ("cmroot", "target_cmroot", "dumps")}
    default = {key: value for key, value in two.keys.items() if "catalog" not in key}
    other = parse_policy("other", {**default, **places}, MetastoreConfig)
    with pytest.raises(Refused, match=rf"would be stored at .*, where @{two.target.metastore.catalog}#{db}"):
        sync_once(Sides(other, two.same_names[0].metastore, target, local_runtime()), SyncSettings())
    assert two.replica("a").everything() == before


def closed() -> str:
    """A metastore that is not there."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return f"thrift://127.0.0.1:{server.getsockname()[1]}"


def test_role_changes_drills_and_restores_are_about_the_policys_catalogs(two: TwoCatalogs) -> None:
    name, db = two.name, f"{two.name}_a"
    untouched = two.untouched()
    two.sync()

    def config() -> dict[str, Any]:
        return {"config": str(two.config())}

    assert replicator.switchover(name, to="target", **config()).primary == "target"
    two.replica("a").write("t", {"written there": "2"})
    assert two.sync().reverse
    assert replicator.switchover(name, to="source", **config()).primary == "source"
    two.are_same()
    point = two.db("a").metastore.current_event_id()
    two.db("a").write("t", {"more": "3"})
    two.sync()
    beside = two.same_names[0]
    beside.alter("t", another="1")  # its event is nobody's backlog
    beside.alter("t", another="2")
    untouched = two.untouched()
    assert replicator.status(name, **config()).seconds == 0
    found = {(each.name, each.health) for each in replicator.check(name, **config()).findings}
    assert found >= {("catalog", "ok")} and not [each for each in found if each[1] == "critical"], found
    (two.replica("a").home / "t" / "first").unlink()
    assert replicator.verify(name, engine="local", **config()).status == "different"
    assert replicator.repair(name, db=db, engine="local", **config()).status == "repaired"
    assert replicator.verify(name, engine="local", **config()).status == "same"
    by_hand = {"source": two.source_uri, "target": two.target_uri, "db": db, "cmroot": two.keys["cmroot"]}
    catalogs = {"catalog": two.source.metastore.catalog, "target_catalog": two.target.metastore.catalog}
    assert replicator.status(**by_hand, **catalogs).status == "current"
    assert replicator.status(target=two.target_uri, db=db).status == "no replica"

    with pytest.raises(Refused, match="cannot be read with Spark"):
        replicator.drill(name, **config())
    assert replicator.drill(name, sample=0, **config()).status == "done"

    into = replicator.restore(name, db=db, to=point, into=f"{db}_then", **config())
    assert into.into == f"{db}_then" and f"{db}_then" not in two.same_names[0].metastore.database_names()
    assert two.db("a_then").shown().keys() == two.db("a").shown().keys()
    with pytest.raises(Refused, match="is the root of catalog"):
        root = two.keys["cmroot"]
        replicator.restore(cmroot=root, db=db, to=point, target=two.source_uri, into=db, force=True)
    assert two.untouched() == untouched

    here, two.keys["source"] = two.keys["source"], closed()
    assert replicator.failover(name, force=True, **config()).primary == "target"
    two.keys["source"] = here
    two.replica("a").write("t", {"after": "4"})
    assert replicator.failback(name, switch=True, **config()).primary == "source"
    two.are_same()
    written = {key: two.keys.pop(key) for key in ("catalog", "target_catalog")}
    found = [each for each in replicator.check(name, **config()).findings if each.name == "catalog"]
    assert [(each.health, "is the root of catalog" in each.text) for each in found] == [("critical", True)] * 2
    two.keys |= written
    two.db("gone").table("t", {"first": "1"})
    two.sync()
    two.keys["databases"] = db
    assert two.sync(drop_left=True).dropped == [f"{db}_then", f"{name}_gone"] and not two.replica("gone").exists()
    roles = replicator.role_show(metastore=two.source_uri, catalog=two.source.metastore.catalog, db=db)
    assert [each.role for each in roles.databases] == ["primary"]
    assert [each.role for each in replicator.role_show(metastore=two.source_uri, db=db).databases] == ["none"]
    assert two.untouched() == untouched


def test_role_set_and_init_are_about_one_catalog(two: TwoCatalogs, tmp_path: Path) -> None:
    untouched = two.untouched()
    replicator.role_set(
        metastore=two.source_uri, catalog=two.source.metastore.catalog, db=f"{two.name}_a", role="fenced", force=True
    )
    assert "fenced" in str(read_role(two.source.metastore, f"{two.name}_a"))
    assert two.untouched() == untouched
    catalogs = {"catalog": two.source.metastore.catalog, "target_catalog": two.target.metastore.catalog}
    places = {key: two.keys[key] for key in ("cmroot", "target_cmroot", "dumps")}
    file = tmp_path / "first.toml"
    replicator.init(source=two.source_uri, target=two.target_uri, file=file, check=False, **catalogs, **places)
    policy = read_config(file).policy("main")
    assert [policy.source_metastore.catalog, policy.target_metastore.catalog] == list(catalogs.values())
