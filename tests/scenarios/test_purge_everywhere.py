"""Erasure reaches everywhere: a purge is replicated, and the certificate tells of every byte until it is gone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lab import Lab
from purges import DESCRIPTOR, Warehouse

from cmroot.root import open_existing
from replicator.cli.main import run
from replicator.core.model import Partition
from replicator.lifecycle.purge.certificate_file import Certificate
from replicator.lifecycle.purge.certify import Replica
from replicator.lifecycle.purge.options import PurgeOptions, RetainOptions, WhiteList
from replicator.lifecycle.purge.run import described
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

NAME = b"member-of-the-club-40"


def files_with(place: Path, text: bytes) -> set[str]:
    return {str(path) for path in place.rglob("*") if path.is_file() and text in path.read_bytes()}


def test_a_purge_reaches_replicas_and_roots_and_is_certified(
    warehouse: Warehouse, source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    replication = Lab(source_metastore, target_metastore, tmp_path)
    db = f"{replication.name}_a"
    warehouse.sql(
        f"CREATE DATABASE {db} LOCATION '{tmp_path}/source/{db}.db'",
        f"CREATE TABLE {db}.t (id BIGINT, v STRING) PARTITIONED BY (k INT) ROW FORMAT DELIMITED FIELDS"
        f" TERMINATED BY ',' STORED AS TEXTFILE TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO {db}.t SELECT id, concat('member-of-the-club-', id), int(id DIV 100) FROM range(0, 200, 1, 2)",
        f"INSERT INTO {db}.t VALUES (40, 'member-of-the-club-40, who was dropped', 9)",
    )
    replication.sync()
    warehouse.sql(f"ALTER TABLE {db}.t DROP PARTITION (k = 9)")
    replication.sync()
    source, target = tmp_path / "source", tmp_path / "target"
    assert files_with(source, NAME) and files_with(target, NAME) and files_with(tmp_path / "cmroot", NAME)
    root = open_existing(str(tmp_path / "cmroot"))

    done = warehouse.purge(root, warehouse.ids, db)
    assert done.status == "done" and done.rows_erased == 10

    def prove(**options: Any) -> Certificate:
        policy = replication.policy
        replica = Replica(
            policy.name, connect(policy.target), policy.target_cmroot, policy.target_name, lambda *_: True
        )
        asked = PurgeOptions(warehouse.ids, db, "privacy.column")
        return warehouse.certify(root, asked, replica, **options)

    def held(found: Certificate) -> set[str]:
        return {each["what"] for each in found.holding}

    behind = prove()
    assert behind.status == "remaining"
    of_replica = {(bool(each["path"]), each["until"]) for each in behind.holding if each["what"] == "replica"}
    assert of_replica == {(False, "its next run"), (True, "its next run")}
    older = {(each["what"], each["object"]) for each in behind.holding if "older state" in each["why"]}
    assert older == {("$cmroot", f"{db}.t/k=9"), ("replica's $cmroot", f"{db}.t/k=9")}
    newer = {each["what"] for each in behind.holding if "older state" not in each["why"]}
    assert newer == {"backup", "$cmroot", "replica"}

    replication.sync()
    assert not files_with(target / f"{db}.db", NAME)
    asked = PurgeOptions(warehouse.ids, db, "privacy.column")
    tables, gaps, _ = described(replication.target.metastore, WhiteList.parse(db), asked)
    assert not tables and "purge at its primary" in gaps[0].reason
    synced = prove()
    assert held(synced) == {"backup", "$cmroot", "replica's $cmroot"}
    assert all(each["until"] for each in synced.holding)

    expedited = prove(expedited=True)  # the backup goes, and what a capture has seen go
    replication.sync()
    certified = prove(expedited=True)
    assert certified.status == "certified" and certified.searched == [f"{db}.t"], (expedited.holding, certified.holding)
    assert not files_with(source, NAME) and not files_with(tmp_path / "cmroot", NAME) and not files_with(target, NAME)
    of_run = warehouse.certify(root, PurgeOptions(""), run="latest")
    assert of_run.status == "certified" and of_run.runs == [done.run]


def test_bytes_in_directories_that_a_table_had_are_not_certified(warehouse: Warehouse, tmp_path: Path) -> None:
    """Beside it after a purge, hidden ones, those that no partition has any more, and where its database puts it."""
    warehouse.sql(
        f"CREATE DATABASE left LOCATION '{tmp_path}/left.db'",
        f"CREATE TABLE left.flat (id BIGINT, v STRING) STORED AS TEXTFILE TBLPROPERTIES ({DESCRIPTOR})",
        f"CREATE TABLE left.parts (id BIGINT, v STRING) PARTITIONED BY (k INT) STORED AS TEXTFILE"
        f" TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO left.flat SELECT /*+ COALESCE(1) */ id, concat('flat-', id) FROM range(0, 50)",
        "INSERT INTO left.parts SELECT /*+ COALESCE(1) */ id, concat('parts-', id), 1 FROM range(0, 50)",
        f"CREATE TABLE left.apart (id BIGINT, v STRING) STORED AS TEXTFILE LOCATION '{tmp_path}/apart'"
        f" TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO left.apart SELECT /*+ COALESCE(1) */ id, concat('apart-', id) FROM range(0, 50)",
    )
    (flat,) = (tmp_path / "left.db" / "flat").glob("part-*")
    (parts,) = (tmp_path / "left.db" / "parts" / "k=1").glob("part-*")
    (apart,) = (tmp_path / "apart").glob("part-*")
    bytes_before = flat.read_bytes(), parts.read_bytes(), flat.read_bytes(), apart.read_bytes()
    root = warehouse.root("left")
    warehouse.purge(root, warehouse.ids, "left")
    asked = PurgeOptions(warehouse.ids, "left", "privacy.column")
    assert warehouse.certify(root, asked, expedited=True).status == "certified"
    left = [
        tmp_path / "left.db" / "flat" / ".old",
        tmp_path / "left.db" / "parts" / "k=2" / ".aside-1",
        tmp_path / "left.db" / "_purge-1" / "flat" / "old",
        tmp_path / "left.db" / "apart" / "old",
    ]
    for path, body in zip(left, bytes_before, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    found = warehouse.certify(root, asked, expedited=True)
    assert found.status == "remaining" and {each["path"] for each in found.holding} == {str(path) for path in left}
    reported = {(each["why"], each["until"]) for each in found.holding}
    assert reported == {("rows were erased from it", "it is removed by hand")}


def test_a_place_that_a_table_had_is_searched_or_a_gap(
    warehouse: Warehouse, source_metastore: Running, tmp_path: Path
) -> None:
    lab, first, second = Lab(source_metastore, source_metastore, tmp_path), tmp_path / "first", tmp_path / "second"
    db = lab.name
    warehouse.sql(
        f"CREATE DATABASE {db} LOCATION '{tmp_path}/source.db'",
        f"CREATE EXTERNAL TABLE {db}.t (id BIGINT, v STRING) STORED AS TEXTFILE LOCATION '{first}'"
        f" TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO {db}.t SELECT id, 'first' FROM range(0, 50)",
    )
    assert lab.capture().code == 0
    warehouse.sql(
        f"ALTER TABLE {db}.t SET LOCATION '{second}'", f"INSERT INTO {db}.t SELECT id, 'second' FROM range(0, 50)"
    )
    assert lab.capture().code == 0
    root, asked = open_existing(str(lab.cmroot)), PurgeOptions(warehouse.ids, f"{db}.t", "privacy.column")
    assert warehouse.purge(root, warehouse.ids, f"{db}.t").rows_erased == 5
    assert lab.capture().code == 0
    found = warehouse.certify(root, asked, expedited=True)
    held = {(each["what"], each["path"], each["why"]) for each in found.holding}
    older = "an older state of the table, which was not searched"
    assert held == {("table", str(path), older) for path in first.glob("part-*")}, found
    shutil.rmtree(first)
    first.symlink_to(first)
    found = warehouse.certify(root, asked, expedited=True)
    assert (found.status, [gap["table"] for gap in found.gaps]) == ("gaps", [f"{db}.t"]), found
    assert f"not searched: {first}, where it is or was (" in found.gaps[0]["reason"], found
    first.unlink()
    assert warehouse.certify(root, asked, expedited=True).status == "certified"


def test_what_a_snapshot_replaced_on_a_replica_is_not_certified(
    warehouse: Warehouse, source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    lab = Lab(source_metastore, target_metastore, tmp_path, publish="snapshot", publish_delay="1h")
    db = f"{lab.name}_a"
    warehouse.sql(
        f"CREATE DATABASE {db} LOCATION '{tmp_path}/source/{db}.db'",
        f"CREATE TABLE {db}.t (id BIGINT, v STRING) ROW FORMAT DELIMITED FIELDS"
        f" TERMINATED BY ',' STORED AS TEXTFILE TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO {db}.t SELECT id, concat('member-of-the-club-', id) FROM range(0, 100)",
    )
    lab.sync()
    warehouse.sql(f"ALTER TABLE {db}.t RENAME TO {db}.u")
    lab.sync()
    root, asked = open_existing(str(tmp_path / "cmroot")), PurgeOptions(warehouse.ids, db, "privacy.column")
    assert warehouse.purge(root, warehouse.ids, db).rows_erased == 10

    def proved() -> Certificate:
        warehouse.certify(root, asked, Replica.of(lab.policy, connect(lab.policy.target)), expedited=True)
        lab.sync()
        return warehouse.certify(root, asked, Replica.of(lab.policy, connect(lab.policy.target)), expedited=True)

    found, left = proved(), files_with(tmp_path / "target" / f"{db}.db" / ".published", NAME)
    assert left and found.status == "remaining", found
    assert {each["path"] for each in found.holding if each["what"] == "replica"} >= left, found
    lab.keys["publish_delay"] = "1ms"
    lab.sync()
    assert proved().status == "certified"


def test_what_nobody_read_of_a_purged_partition_is_not_certified_until_it_is_gone(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    warehouse.sql(
        f"CREATE DATABASE unread LOCATION '{tmp_path}/unread.db'",
        f"CREATE TABLE unread.t (id BIGINT, v STRING) STORED AS TEXTFILE TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO unread.t SELECT /*+ COALESCE(1) */ id, concat('unread-', id) FROM range(0, 50)",
    )
    home = tmp_path / "unread.db" / "t" / "_temporary"
    home.mkdir()
    (home / "part-0").write_bytes(b"40\x01unread-40, of a job that did not end\n")
    os.utime(home / "part-0", (0, 0))
    (home.parent / ".hive-staging_1").mkdir()
    (home.parent / ".hive-staging_1" / "part-1").write_bytes(b"of a job that may be running")
    root = warehouse.root("unread")
    done = warehouse.purge(root, warehouse.ids, "unread")
    assert [gap["table"] for gap in done.gaps] == ["unread.t"] and done.rows_erased == 5
    assert not home.exists() and (home.parent / ".hive-staging_1" / "part-1").exists()
    everything = RetainOptions(0, timedelta(0), timedelta(0), timedelta(0))
    assert warehouse.retain(root, everything).status == "done"
    asked = PurgeOptions(warehouse.ids, "unread", "privacy.column")
    found = warehouse.certify(root, asked)
    kept = [each for each in found.holding if "has not been searched" in each["why"]]
    assert found.status == "remaining" and [each["what"] for each in kept] == ["$cmroot", "table"]
    assert kept[1]["path"].endswith("/.hive-staging_1/part-1")
    shutil.rmtree(home.parent / ".hive-staging_1")
    assert warehouse.certify(root, asked, expedited=True).status == "certified"
    assert not files_with(Path(root.place), b"unread-40")


def test_gaps_are_not_certified_and_the_certificate_is_written(
    warehouse: Warehouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a table whose partitions have several formats, too."""
    warehouse.sql(
        "CREATE DATABASE gaps",
        f"CREATE TABLE gaps.t (id BIGINT, v STRING) PARTITIONED BY (k INT) STORED AS PARQUET"
        f" TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO gaps.t SELECT id, 'v', 1 FROM range(0, 50)",
        "CREATE TABLE gaps.unknown (id BIGINT, v STRING) STORED AS TEXTFILE",
        "INSERT INTO gaps.unknown SELECT id, 'v' FROM range(0, 50)",
    )
    text = warehouse.metastore.table("gaps", "unknown").storage
    assert text
    storage = msgspec.structs.replace(text, location=f"file:{tmp_path}/k=2")
    shutil.copytree(warehouse.home_of("gaps.unknown"), tmp_path / "k=2")
    warehouse.metastore.add_partitions("gaps", "t", [Partition(values=("2",), storage=storage)])
    root = warehouse.root("gaps")
    done = warehouse.purge(root, warehouse.ids, "gaps")
    assert done.rows_erased == 10 and done.status == "done"
    config, out = tmp_path / "replicator.toml", tmp_path / "certificate.json"
    config.write_text(
        f'[policies.other]\nsource = "{warehouse.running.uri}"\ntarget = "thrift://127.0.0.1:1"\ndatabases = "other"\n'
        f'cmroot = "{root.place}"\ntarget_cmroot = "{tmp_path}/t"\ndumps = "{tmp_path}/d"\n'
    )
    arguments = [
        "--config",
        str(config),
        "purge",
        "certify",
        "--metastore",
        warehouse.running.uri,
        "--cmroot",
        root.place,
        "--ids",
        warehouse.ids,
        "--table-whitelist",
        "gaps",
        "--field-path",
        "privacy.column",
        "--expedite",
        "--grace",
        "0s",
        "--out",
        str(out),
        "--json",
        "--master",
        "local[2]",
    ]
    assert run([*arguments, "--run", "latest", "--max-bytes", "1"]) == 6, "the limits hold for the ids of a run, too"
    assert not out.exists() and json.loads(capsys.readouterr().out)["error"] == "Refused"
    code = run(arguments)
    assert code == 3, capsys.readouterr()
    reported = json.loads(out.read_bytes())
    assert reported == json.loads(capsys.readouterr().out) and reported["status"] == "gaps"
    assert [gap["table"] for gap in reported["gaps"]] == ["gaps.unknown"] and reported["searched"] == ["gaps.t"]
    assert reported["replicas"] == []
    assert run([*arguments, "--allow-gaps"]) == 6, "the file is there"
    assert json.loads(out.read_bytes()) == reported and json.loads(capsys.readouterr().out)["error"] == "Exists"
    assert run([*arguments, "--allow-gaps", "--overwrite"]) == 0
    assert json.loads(out.read_bytes())["status"] == "certified"
    capsys.readouterr()
    for suffix in ("html", "txt", "json"):
        again = ["purge", "certificate", "--cmroot", root.place, "--out", f"{tmp_path}/again.{suffix}", "--json"]
        assert run(again) == 0 and run(again) == 6
    assert json.loads((tmp_path / "again.json").read_bytes()) == json.loads(out.read_bytes())
    for page in ("html", "txt"):
        text = (tmp_path / f"again.{page}").read_text()
        assert "certified: nothing holds the erased data any more" in text and "gaps.t" in text and "10 ids" in text
    assert run(["purge", "certificate", "--cmroot", root.place, "--run", "nosuch"]) == 1


def test_a_run_and_its_certificate_start_one_spark(source_metastore: Running, tmp_path: Path) -> None:
    """Each Java process writes a line; a start of Spark is two of them, a launcher and the driver."""
    lab = Lab(source_metastore, source_metastore, tmp_path)
    db = lab.db()
    db.table("t", {"f": "1\x01goes\n2\x01stays\n"})
    db.table("requests", {"f": "1\x01\n"})
    db.alter("t", **{"dataset.descriptor": '{"privacy": {"column": "a"}}'})
    common = ["--metastore", source_metastore.uri, "--cmroot", str(tmp_path / "root")]
    asked = ["--ids", f"{db.name}.requests:a", "--table-whitelist", f"{db.name}.t"]
    out = tmp_path / "certificate.json"
    certified = ["--certify", "--expedite", "--grace", "0s", "--out", str(out)]
    words = [sys.executable, "-m", "replicator", "purge", "run", *common, *asked, *certified, "--json"]
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": "-Dcounted=true"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("Picked up JAVA_TOOL_OPTIONS")) == (0, 2), done.stderr
    report = json.loads(done.stdout)
    assert (report["rows_erased"], report["certificate"]["status"]) == (1, "certified")
    assert report["certificate"] == json.loads(out.read_bytes()) and report["certificate"]["runs"] == [report["run"]]
    assert (db.home / "t/f").read_text() == "2\x01stays\n"


@pytest.mark.parametrize("more", [["--certify", "--dry-run"], ["--expedite"], ["--out", "certificate.json"]])
def test_options_of_a_certificate_need_one(tmp_path: Path, more: list[str]) -> None:
    words = ["purge", "run", "--metastore", "thrift://nosuch:1", "--cmroot", str(tmp_path), "--ids", "a.b:c", *more]
    assert run(words) == 2
