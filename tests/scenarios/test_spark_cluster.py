"""Commands whose work runs on a Spark standalone cluster: its nodes have Python with pyarrow, and nothing of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import psycopg
import pyarrow.dataset as ds
import pytest
from gobblin_examples import TIME_BASED
from housekeeping import EXPIRED
from lab import Lab
from postgres import Postgres
from purges import DESCRIPTOR
from spark_cluster import HOME, SparkCluster
from waiting import eventually

import replicator
import replicator.__main__ as program
from cmroot.root import create_or_open
from replicator.cli.main import cli
from replicator.core.config import parse_config
from replicator.core.engine import AutoEngine
from replicator.core.spark import hive_settings
from replicator.errors import Error
from replicator.metastore.embedded.running import Running
from replicator.metastore.java import find_java, spark_environment
from replicator.metastore.thrift import connect

pytestmark = pytest.mark.spark_cluster

ON_SPARK = {"spark.sql.shuffle.partitions": "2"}
COMMANDS = {
    *("capture", "dump", "dumps verify", "load", "verify", "repair", "restore", "cm ls", "cm check", "cm expire"),
    *("plan", "apply", "sync", "switchover", "failover", "failback"),
    *("housekeeping run", "retention run", "purge run", "purge retain", "purge certify", "ingest run"),
    *("ingest watch", "ingest request", "ingest verify"),
}
used: set[str] = set()
"""Commands that have run a job."""


@pytest.fixture(autouse=True)
def nothing_used() -> None:
    used.clear()


@pytest.fixture
def on_cluster(spark_cluster: SparkCluster) -> Iterator[Callable[..., Any]]:
    """Calls a command by its name, with executors of the cluster; `used` are those that did."""
    with replicator.engines("spark", spark_cluster.url, ON_SPARK) as engines:
        yield caller(engines)


def caller(engines: AutoEngine) -> Callable[..., Any]:
    def call(name: str, **options: Any) -> Any:
        before = jobs(engines)
        found = getattr(replicator, name.replace(" ", "_"))(engine=engines, **options)
        if jobs(engines) > before:
            used.add(name)
        return found

    return call


def jobs(engines: AutoEngine) -> int:
    context = engines.for_work(1 << 62).context  # type: ignore[attr-defined]
    return len(context.statusTracker().getJobIdsForGroup(None))


def test_a_replication_whose_nodes_have_nothing_but_pyarrow(on_cluster: Callable[..., Any], fixture: Lab) -> None:
    source, target = fixture.source, fixture.target
    roots = {"cmroot": str(fixture.cmroot)}
    sides = {"source": fixture.source_uri, "target": fixture.target_uri, "db": fixture.name}
    places = {"warehouse": str(fixture.warehouse), "target": fixture.target_uri}
    source.partitioned("parts", {f"{number}": {"f": f"{number}\tx\n" * 100} for number in range(9)})
    source.table("plain", {"f": "1\tone\n"})
    first, second = str(fixture.here / "first"), str(fixture.here / "second")
    assert on_cluster("dump", source=fixture.source_uri, **roots, db=fixture.name, out=first).status == "dumped"
    assert on_cluster("load", dump=first, **places).status == "loaded"
    fixture.is_same()

    source.drop("plain")
    source.write("parts/p=3", {"f": "another\n", "g": "new\n"})
    source.drop_partitions("parts", ["5"])
    assert on_cluster("capture", source=fixture.source_uri, **roots, db=fixture.name).status == "captured"
    dumped = on_cluster("dump", source=fixture.source_uri, **roots, db=fixture.name, out=second, since=first)
    assert on_cluster("load", dump=second, **places).status == "loaded"
    fixture.is_same()
    assert on_cluster("verify", **sides, level="checksum").status == "same"

    (target.home / "parts/p=4/f").write_text("spoilt\n")
    assert on_cluster("verify", **sides, level="checksum").status == "different"
    warehouse = str(fixture.warehouse)
    assert on_cluster("repair", **sides, **roots, warehouse=warehouse, level="checksum").status == "repaired"
    fixture.is_same()
    restored = f"{fixture.name}_restored"
    back = on_cluster(
        "restore", **roots, db=fixture.name, to=str(dumped.from_event), target=fixture.target_uri, into=restored
    )
    assert back.status == "restored", back
    assert on_cluster("cm ls", **roots).total["entries"] > 0
    assert on_cluster("cm check", **roots, bytes=True).status == "sound"
    assert on_cluster("cm expire", **roots, older_than=timedelta(0)).status == "expired"
    whole = str(fixture.here / "whole")
    asked = {"source": fixture.source_uri, "db": fixture.name}
    assert on_cluster("dump", **asked, **roots, out=whole, with_data=True).data_files_copied > 0
    assert on_cluster("dumps verify", dump=whole).status == "verified"
    assert used == {
        *("capture", "dump", "dumps verify", "load", "verify", "repair", "restore", "cm ls", "cm check", "cm expire")
    }


@pytest.mark.long
def test_a_policy_and_its_role_changes(on_cluster: Callable[..., Any], pair: Lab) -> None:
    source = pair.db("a")
    source.partitioned("days", {"1": {"x": "one"}, "2": {"y": "two"}})
    policy = {"policy": pair.name, "config": str(pair.config())}
    on_cluster("plan", **policy, out=str(pair.here / "plan"))
    on_cluster("apply", plan=str(pair.here / "plan"), config=policy["config"])
    pair.are_same()
    source.add("days", {"3": {"z": "three"}})
    assert on_cluster("sync", **policy).files_copied == 1
    pair.are_same()
    source.add("days", {"4": {"w": "four"}})
    assert on_cluster("switchover", **policy).status == "done"
    pair.are_same()
    pair.replica().add("days", {"5": {"v": "five"}})
    assert on_cluster("sync", **policy).reverse
    pair.are_same()
    assert on_cluster("failover", **policy, force=True).status == "done"
    pair.db("a").add("days", {"6": {"u": "six"}})
    assert on_cluster("failback", **policy, switch=True).status == "done"
    pair.are_same()
    assert used == {"plan", "apply", "sync", "switchover", "failback"}, "a failover moves no data"


def test_removing_jobs(on_cluster: Callable[..., Any], fixture: Lab, source_metastore: Running, tmp_path: Path) -> None:
    cmroot = str(fixture.cmroot)
    fixture.source.partitioned("p", {"1": {"a": "rows"}})
    fixture.source.alter("p", **EXPIRED | {"beekeeper.expired.data.retention.period": "PT1S"})
    about = {"metastore": source_metastore.uri, "cmroot": cmroot, "db": fixture.name}

    def removes() -> bool:
        done = on_cluster("housekeeping run", **about)
        assert done.status == "done", done
        return done.removed > 0

    eventually(removes)  # the second is over at the latest in the next one
    assert not (fixture.source.home / "p/p=1/a").exists()
    old = tmp_path / "lake/user/gobblin/events/1"
    old.mkdir(parents=True)
    (old / "part-0").write_text("data")
    os.utime(old, (0, 0))
    job = tmp_path / "job.conf"
    job.write_text(TIME_BASED)
    lake = {"root": str(tmp_path / "lake"), "metastore": None}
    assert on_cluster("retention run", job=str(job), cmroot=cmroot, **lake).removed == 1
    assert not old.exists()
    assert used == {"housekeeping run", "retention run"}


def test_an_erasure_and_its_certificate(spark_cluster: SparkCluster, source_metastore: Running, tmp_path: Path) -> None:
    settings = ON_SPARK | hive_settings(source_metastore.uri, str(source_metastore.warehouse))
    with replicator.engines("spark", spark_cluster.url, settings) as engines:
        session = engines.session(hive_settings(source_metastore.uri, str(source_metastore.warehouse)))
        for statement in (
            "CREATE DATABASE erased",
            f"CREATE TABLE erased.t (id BIGINT, v STRING) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
            "INSERT INTO erased.t SELECT id, concat('v', id) FROM range(0, 1000, 1, 2)",
            "CREATE DATABASE gone",
            "CREATE TABLE gone.ids AS SELECT id AS member FROM range(0, 100, 10)",
        ):
            session.sql(statement)
        call = caller(engines)
        about = {"metastore": source_metastore.uri, "cmroot": str(tmp_path / "cmroot")}
        asked = about | {"ids": "gone.ids:member", "whitelist": "erased", "field_path": "privacy.column"}
        done = call("purge run", **asked)
        assert (done.status, done.rows_erased) == ("done", 10), done
        assert call("purge retain", **about, days=timedelta(0), grace=timedelta(0), trash=timedelta(0)).status == "done"
        certified = call("purge certify", **asked, expedite=True, grace=timedelta(0), out=str(tmp_path / "out"))
        assert certified.status == "certified", certified
        session.sql("REFRESH TABLE erased.t")
        assert session.sql("SELECT count(*), count_if(id % 10 = 0 AND id < 100) FROM erased.t").collect() == [(990, 0)]
    assert used >= {"purge run", "purge certify"}


def test_a_landing_whose_executors_read_the_database(
    spark_cluster: SparkCluster, source_metastore: Running, postgres: Postgres, tmp_path: Path
) -> None:
    url = postgres.database()
    server, _, _ = postgres.jdbc()["javax.jdo.option.ConnectionURL"].rpartition("/")
    with psycopg.connect(url, autocommit=True) as source:
        source.execute("CREATE TABLE t AS SELECT i AS id, 'v' || i AS v FROM generate_series(1, 5000) i")
        source.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
        about = {"url": f"{server}/{source.info.dbname}", "user": "postgres", "readers": 2}
        ingestion = {"metastore": source_metastore.uri, "landing": str(tmp_path / "landing"), "sources": {"crm": about}}
        store = f"sqlite:///{tmp_path / 'jobs.sqlite'}"
        config = parse_config({"ingestion": {**ingestion, "store": store}}, "test")
        replicator.asset_create("clustered", owner="ann", producers=["paul"], sources=["crm"], by="ann", config=config)
        replicator.asset_approve("clustered", by="bob", config=config)
        asked = {"table": "crm:public.t", "asset": "clustered", "by": "paul", "config": config}
        replicator.ingest_request(**asked)
        settings = ON_SPARK | hive_settings(source_metastore.uri, str(source_metastore.warehouse))
        with replicator.engines("spark", spark_cluster.url, settings) as engines:
            done = caller(engines)("ingest run", config=config)
            assert caller(engines)("ingest watch", config=config).status == "quiet"
            assert caller(engines)("ingest verify", of="clustered", config=config).status == "same"
            assert caller(engines)("ingest request", dry_run=True, **asked).tables[0].plan
        assert (done.status, done.done, done.rows) == ("done", 1, 5000), done
        with connect(source_metastore.uri) as metastore:
            place = str(metastore.table("clustered_public", "t").location).removeprefix("file:")
        landed = sorted(tuple(row.values()) for row in ds.dataset(place, format="parquet").to_table().to_pylist())
        assert landed == source.execute("SELECT id, v FROM t ORDER BY id").fetchall()
    assert used == {"ingest run", "ingest watch", "ingest verify"}, "the source's catalog tells a rehearsal all"


@pytest.mark.parametrize("how", ["spark-submit", pytest.param("spark-defaults.conf", marks=pytest.mark.long)])
def test_the_master_is_the_one_that_spark_is_given(how: str, spark_cluster: SparkCluster, fixture: Lab) -> None:
    """On executors whose Python comes from Spark's configuration, too."""
    fixture.source.partitioned("p", {"1": {"a": "rows"}})
    python = fixture.here / "python-of-nodes"
    python.write_text(f'#!/bin/sh\necho >>{python}.used\nexec {spark_cluster.python} "$@"\n')
    python.chmod(0o755)
    given = {"spark.pyspark.python": str(python), "spark.master": spark_cluster.url}
    command = [str(Path(sys.executable).with_name("replicator"))]
    env = os.environ | spark_environment(find_java(os.environ))
    env.pop("PYSPARK_PYTHON")
    if how == "spark-submit":
        given["spark.pyspark.driver.python"] = sys.executable
        options = ["--master", given.pop("spark.master")]
        options += [word for key, value in given.items() for word in ("--conf", f"{key}={value}")]
        command = [str(HOME / "bin/spark-submit"), *options, program.__file__]
    else:
        lines = [f"{key} {value}" for key, value in given.items()]
        (fixture.here / "spark-defaults.conf").write_text("\n".join(lines))
        env["SPARK_CONF_DIR"] = str(fixture.here)
    arguments = [each if each != "local" else "spark" for each in fixture.dump_arguments(fixture.here / "dump")]
    done = subprocess.run([*command, *arguments, "--json"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))["status"] == "dumped"
    assert f"Spark runs on {spark_cluster.url}" in done.stdout + done.stderr  # spark-submit makes one of both
    assert Path(f"{python}.used").exists()


def test_a_node_that_cannot_run_tasks_is_named_before_anything_is_changed(
    spark_cluster: SparkCluster, fixture: Lab, tmp_path: Path
) -> None:
    fixture.source.partitioned("p", {"1": {"a": "rows"}})
    empty = tmp_path / "nothing"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", empty], check=True)
    for python, told in ((empty / "bin/python3", "no pyarrow"), (tmp_path / "none", "not have the configured Python")):
        with (
            replicator.engines("spark", spark_cluster.url, {"spark.pyspark.python": str(python)}) as engines,
            pytest.raises(Error, match=told) as raised,
        ):
            replicator.dump(
                source=fixture.source_uri,
                cmroot=str(fixture.cmroot),
                db=fixture.name,
                out=str(tmp_path / "dump"),
                engine=engines,
            )
        assert "PYSPARK_PYTHON" in raised.value.hint
        assert not (tmp_path / "dump").exists()


def test_a_host_that_does_not_see_a_local_place_is_named(
    spark_cluster: SparkCluster, fixture: Lab, tmp_path: Path
) -> None:
    """One of two hosts has empty filesystems there."""
    apart = ["unshare", "-m" if os.geteuid() == 0 else "-rm"]
    if subprocess.run([*apart, "mount", "-t", "tmpfs", "none", "/mnt"], check=False, capture_output=True).returncode:
        pytest.skip("this user may make no mount namespace")
    fixture.source.partitioned("p", {"1": {"a": "rows"}})
    root, home = create_or_open(str(fixture.cmroot)).place, fixture.source.home
    python = tmp_path / "python-of-nodes"
    mounted = " && ".join(f"mount -t tmpfs none {place}" for place in (root, home))
    python.write_text(
        f"#!/bin/sh\ncase $PWD in */127.0.0.2/*)\n"
        f'  exec {" ".join(apart)} sh -c \'{mounted} && exec {spark_cluster.python} "$@"\' sh "$@";;\n'
        f'esac\nexec {spark_cluster.python} "$@"\n'
    )
    python.chmod(0o755)
    asked = {"source": fixture.source_uri, "cmroot": root, "db": fixture.name}
    with replicator.engines("spark", spark_cluster.url, {"spark.pyspark.python": str(python)}) as engines:
        for place, what in ((root, "another"), (str(home / "p"), "no")):
            with pytest.raises(Error, match=f" has {what} directory at {place}") as raised:
                list(engines.for_work(1 << 62).run(len, [place]))
            assert "--engine local" in raised.value.hint
        with pytest.raises(Error, match=f" directory at ({root}|{home})"):
            replicator.capture(**asked, engine=engines)
    assert replicator.capture(**asked, engine="local").files == 1, "nothing was recorded"


def test_these_are_all_commands_that_use_spark() -> None:
    """A command with --engine belongs into a test above."""
    found = set()

    def walk(group: click.Group, words: list[str]) -> None:
        context = click.Context(group)
        for name in group.list_commands(context):
            each = group.get_command(context, name)
            assert each is not None
            if isinstance(each, click.Group):
                walk(each, [*words, name])
            elif any("--engine" in parameter.opts for parameter in each.params):
                found.add(" ".join([*words, name]))

    assert isinstance(cli, click.Group)
    walk(cli, [])
    assert found == COMMANDS
