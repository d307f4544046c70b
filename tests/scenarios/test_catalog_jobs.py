"""What removes, in one catalog of Hive 4: a database of the same name in another one stays as it was."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import gobblin_examples as examples
import msgspec
import pytest
from catalogs import Hives, in_catalog
from hive_metastore import ttypes
from hive_objects import hive_client
from housekeeping import EXPIRED, UNREFERENCED, LifecycleFixture
from plain_tables import KEYS, PlainDatabase, text_storage

import replicator
from cmroot.root import create_or_open
from replicator.captures.gateways.server import opened
from replicator.core.connections import MetastoreConfig
from replicator.core.model import EXTERNAL, Table
from replicator.core.roles import RoleMark
from replicator.errors import Refused, UsageError
from replicator.lifecycle.purge.options import PurgeGap, PurgeOptions, WhiteList
from replicator.lifecycle.purge.run import described
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.replay.apply.load import Loaded
from replicator.replay.neighbours import Neighbours
from replicator.replay.placement import noted

OLD = "{}__t_backup_1600000000000"
DESCRIBED = {"dataset.descriptor": '{"privacy": {"column": "b"}}'}


class Catalogs:
    """`ours`: a database in a catalog; `theirs`: one of its name in the default one; root: of the catalog."""

    def __init__(self, hives: Hives, here: Path) -> None:
        self.uri = hives("4.2").uri
        name = f"db_{uuid.uuid4().hex[:8]}"
        self.bound = in_catalog(hives("4.2"), here)
        self.ours = LifecycleFixture(self.bound, name, here / "ours")
        self.theirs = PlainDatabase(connect(self.uri), name, here / "theirs")
        self.theirs.create()
        self.root, self.name = self.ours.root.place, name
        self.where: dict[str, Any] = {"metastore": self.uri, "catalog": self.bound.catalog, "cmroot": self.root}

    @property
    def config(self) -> MetastoreConfig:
        return MetastoreConfig(self.uri, catalog=self.bound.catalog)

    @property
    def both(self) -> tuple[PlainDatabase, PlainDatabase]:
        return self.ours.db, self.theirs

    def shown_by_them(self, table: str, place: Path) -> None:
        """A table in the default catalog whose data is ours."""
        made = Table(db=self.name, name=table, storage=text_storage(place), kind=EXTERNAL)
        self.theirs.metastore.create_table(msgspec.structs.replace(made, parameters={"EXTERNAL": "TRUE"}))

    def untouched(self) -> dict[str, Any]:
        return self.theirs.everything()


@pytest.fixture
def two(hives: Hives, tmp_path: Path) -> Catalogs:
    return Catalogs(hives, tmp_path)


def test_housekeeping_and_vacuum(two: Catalogs) -> None:
    for each in two.both:
        each.partitioned("p", {})
        each.alter("p", **EXPIRED)
        each.add("p", {"1": {"a": "rows"}})
        each.table("moved", {"a": "left"})
        each.alter("moved", **UNREFERENCED)
        each.table("shown", {"a": "left and shown"})
        each.alter("shown", **UNREFERENCED)
    two.shown_by_them("elsewhere", two.ours.place("shown"))
    before = two.untouched()
    replicator.housekeeping_run(db=two.name, engine="local", **two.where)
    for name in ("moved", "shown"):
        two.ours.relocate(name, two.ours.write(f"{name}_to"))
    replicator.housekeeping_run(engine="local", **two.where)
    two.ours.write("p/p=9", "left long ago")
    vacuumed = replicator.housekeeping_vacuum(f"{two.name}.p", **two.where)
    assert vacuumed.paths == [str(two.ours.place("p/p=9"))]
    two.ours.run(31)
    assert two.ours.values("p") == [] and not two.ours.place("moved").exists()
    assert (two.ours.place("shown") / "a").read_text() == "left and shown"
    assert two.untouched() == before
    with pytest.raises(Refused, match="is the root of catalog"):
        replicator.housekeeping_vacuum(f"{two.name}.p", metastore=two.uri, cmroot=two.root)


def test_retention_of_partitions(two: Catalogs, tmp_path: Path) -> None:
    for each in two.both:
        each.partitioned("orders", {f"2020-01-0{day}-00": {"a": f"{day}"} for day in (1, 2)})
    two.shown_by_them("elsewhere", two.ours.place("orders/p=2020-01-02-00"))
    job = tmp_path / "job.conf"
    keys = ("gobblin.retention.hive.partition.key.name = p", "gobblin.retention.hive.shouldDeleteData = true")
    job.write_text("\n".join((examples.HIVE, f"hive.dataset.whitelist = {two.name}", *keys)))
    before = two.untouched()
    for expected in (1, 0):  # the root is of the catalog from the first run on
        done = replicator.retention_run(str(job), engine="local", **two.where)
        assert done.removed == expected
    assert not two.ours.place("orders/p=2020-01-01-00").exists() and two.ours.place("orders/p=2020-01-02-00").exists()
    assert two.untouched() == before
    with pytest.raises(Refused, match="is the root of catalog"):
        replicator.retention_run(str(job), two.root, metastore=two.uri, engine="local")


def test_backups_of_the_old_tool(two: Catalogs) -> None:
    old = OLD.format(two.name)
    for each in two.both:
        each.table(old, {"a": "rows"})
        each.table(f"{old[:-1]}1", {"a": "rows"})
    two.shown_by_them("elsewhere", two.ours.place(f"{old[:-1]}1"))
    before = two.untouched()
    none = timedelta(0)
    done = replicator.purge_retain(**two.where, versions=0, days=none, grace=none, engine="local")
    assert [each["object"] for each in done.removed] == [f"{two.name}.{old}"] and len(done.refused) == 1
    assert two.bound.table_names(two.name) == [f"{old[:-1]}1"]
    assert two.untouched() == before
    with pytest.raises(Refused, match="is the root of catalog"):
        replicator.purge_undo(two.uri, two.root, f"{two.name}.t")


def test_what_reads_with_spark_is_refused_and_names_what_it_does_not_reach(two: Catalogs) -> None:
    for each in two.both:
        each.table("people", {"a": "1\x01somebody\n"})
        each.alter("people", **DESCRIBED)
    two.ours.db.table("orders", {"a": "2\x01somebody\n"})
    two.ours.db.alter("orders", **{"dataset.descriptor": "no JSON"})
    before = two.untouched(), two.ours.db.everything()
    ids = f"{two.name}.gone:b"
    for call in (replicator.purge_run, replicator.purge_certify):
        with pytest.raises(Refused, match="cannot be read with Spark"):
            call(two.config, two.root, ids, whitelist=two.name)
    assert (two.untouched(), two.ours.db.everything()) == before
    tables, gaps, _ = described(two.theirs.metastore, WhiteList.parse(two.name), PurgeOptions(ids))
    assert [each.name for each in tables] == [f"{two.name}.people"]
    there = f"@{two.bound.catalog}#{two.name}"
    assert gaps == [PurgeGap(f"{there}.{name}", "in another catalog") for name in ("orders", "people")]


def test_a_gateway_protects_the_default_catalog_only(two: Catalogs) -> None:
    with (
        pytest.raises(UsageError, match="protects the server's default catalog hive"),
        opened(two.bound, create_or_open(two.root), "127.0.0.1:0"),
    ):
        pass


def test_a_partition_that_another_catalogs_table_of_the_name_published(two: Catalogs) -> None:
    """Its table says that all of its partitions lie by their names, so they are asked for, not read."""
    place = two.ours.db.home / ".published" / "load" / f"{two.name}.t" / "p=1"
    table = Table(db=two.name, name="t", storage=text_storage(two.ours.place("t")), partition_keys=KEYS)
    two.bound.create_table(noted(table, RoleMark()))
    two.bound.add_partitions(two.name, "t", [two.ours.db.partition("1", place)])
    two.theirs.partitioned("t", {"1": {"a": "rows"}})
    found = Neighbours(two.theirs.metastore).others([str(place)])[str(place)]
    assert [str(each) for each in found] == [f"@{two.bound.catalog}#{two.name}.t/p=1"]


@pytest.mark.parametrize("into_default", [False, True])
def test_materialized_views_name_no_catalog_of_the_source(hives: Hives, tmp_path: Path, into_default: bool) -> None:
    source, target = in_catalog(hives("4.2"), tmp_path), in_catalog(hives("4.2", "target"), tmp_path)
    name, copy = f"db_{uuid.uuid4().hex[:8]}", f"copy_{uuid.uuid4().hex[:8]}"
    catalog = "hive" if into_default else target.catalog
    db = PlainDatabase(source, name, tmp_path / "warehouse")
    db.create()
    db.table("t", {"first": "1"}, kind=EXTERNAL)
    here = {"source": hives("4.2").uri, "catalog": source.catalog, "db": name}
    there = {"target": hives("4.2", "target").uri, "target_catalog": None if into_default else catalog}
    renamed = {"rename_db": {name: copy}}

    def replicate(out: str, **since: str) -> Loaded:
        replicator.dump(out=str(tmp_path / out), cmroot=str(tmp_path / "cm"), engine="local", **since, **here)
        more = {"warehouse": str(tmp_path / "copy"), "engine": "local"}
        return replicator.load(dump=str(tmp_path / out), **more, **renamed, **there)

    replicate("first")
    materialized_view(hives("4.2"), source.catalog, name)
    assert replicate("second", since=str(tmp_path / "first")).not_replicated == []
    with hive_client(hives("4.2", "target")) as client:
        view = client.thrift.get_table_req(ttypes.GetTableRequest(catName=catalog, dbName=copy, tblName="mv")).table
    made = view.creationMetadata
    assert (view.catName, made.catName, made.tablesUsed) == (catalog, catalog, {f"{copy}.t"})
    assert {each.table.catName for each in made.sourceTables} == {catalog}
    assert replicator.verify(**here, **there, **renamed, engine="local").status == "same"


def materialized_view(running: Running, catalog: str, db: str) -> None:
    """`mv` of `t`, whose tables are named with their catalog, as HiveServer2 does."""
    text = f"select a from {db}.t"
    with hive_client(running) as client:
        read = client.thrift.get_table_req(ttypes.GetTableRequest(catName=catalog, dbName=db, tblName="t")).table
        made = ttypes.CreationMetadata(
            *(catalog, db, "mv"), tablesUsed={f"{catalog}.{db}.t"}, sourceTables=[ttypes.SourceTable(read, 0, 0, 0)]
        )
        kind = {"kind": "MATERIALIZED_VIEW", "viewOriginalText": text, "viewExpandedText": text}
        client.table(db, "mv", creationMetadata=made, catName=catalog, **kind)
