"""Retention of Hive tables' partitions on a real metastore: what goes, what stays, and a run that is killed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import gobblin_examples as examples
import msgspec
import pytest
from config_store import write_store
from faults import Fault, run_with
from names import unique
from plain_tables import PlainDatabase, text_storage

from cmroot.lease import acquire
from cmroot.root import create_or_open
from replicator.cli.main import run as command
from replicator.core.model import EXTERNAL, Column, Partition, Storage, Table
from replicator.lifecycle.removal import job
from replicator.lifecycle.retention.datasets import parse_names, tables_of
from replicator.metastore.thrift import ThriftMetastore

DELETES = "gobblin.retention.hive.shouldDeleteData=true"


class Dated(PlainDatabase):
    """Tables with partitions by `datepartition`, each with a file."""

    def __init__(self, metastore: ThriftMetastore, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(metastore, unique("dated"), place / "warehouse")
        self.place, self.cmroot, self.capsys = place, create_or_open(str(place / "cm")).place, capsys
        self.create()

    def dated(self, name: str, *ages: float, key: str = "datepartition", **more: Any) -> list[str]:
        """A table with partitions that are so many days old, in Los Angeles; their values, youngest first."""
        self.metastore.create_table(
            Table(db=self.name, name=name, storage=self.storage(name), partition_keys=(Column(key, "string"),), **more)
        )
        now = datetime.now(ZoneInfo("America/Los_Angeles"))
        values = [(now - timedelta(days=age)).strftime("%Y-%m-%d-%H") for age in ages]
        for value in values:
            self.partition(name, value, key=key)
        return values

    def partition(self, name: str, value: str, *, place: str = "", key: str = "datepartition") -> None:
        place = place or f"{name}/{key}={value}"
        self.write(place, {"part-0": value})
        self.metastore.add_partitions(self.name, name, [Partition(values=(value,), storage=self.storage(place))])

    def storage(self, place: str) -> Storage:
        return text_storage(self.home / place)

    def values(self, name: str) -> set[str]:
        return {each.partition("=")[2] for each in self.metastore.partition_names(self.name, name)}

    def files(self, name: str) -> set[str]:
        """Values of the partitions that have a file."""
        return {path.read_text() for path in (self.home / name).rglob("part-*")}

    def arguments(self, *more: str, config: Mapping[str, str] | None = None) -> list[str]:
        job = self.place / "job.conf"
        job.write_text(
            examples.HIVE
            + f"hive.dataset.whitelist = {self.name}\n"
            + "\n".join(f"{key} = {value}" for key, value in (config or {}).items())
        )
        return ["retention", "run", str(job), "--metastore", self.metastore.uri, "--cmroot", self.cmroot, *more]

    def run(self, *more: str, code: int = 0, config: Mapping[str, str] | None = None) -> dict[str, Any]:
        found = command([*self.arguments(*more, config=config), "--json"])
        answer: dict[str, Any] = json.loads(self.capsys.readouterr().out)
        assert found == code, json.dumps(answer, indent=1)
        return answer

    def put_back(self, run: str) -> None:
        assert command(["audit", "restore", "--cmroot", self.cmroot, "--run", run, "--json"]) == 0
        self.capsys.readouterr()

    def audit(self, *more: str) -> list[dict[str, Any]]:
        assert command(["audit", "ls", "--cmroot", self.cmroot, "--job", "retention", *more, "--json"]) == 0
        return list(json.loads(self.capsys.readouterr().out)["rows"])


@pytest.fixture
def db(metastore: ThriftMetastore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Dated:
    return Dated(metastore, tmp_path, capsys)


def test_sample_5_drops_partitions_and_leaves_their_data_unless_told_otherwise(db: Dated) -> None:
    values = db.dated("orders", 1, 2.9, 3.1, 30)
    plan = db.run("--dry-run")
    assert {each["partition"].partition("=")[2] for each in plan["items"]} == set(values[2:])
    assert all("+ 3d =" in each["reason"] and each["keeps_data"] for each in plan["items"])
    assert db.values("orders") == set(values)
    (db.place / "more.properties").write_text(examples.HIVE_JOB)
    done = db.run()
    assert (done["dropped"], done["removed"], done["versions"]) == (2, 0, 4)
    assert db.values("orders") == set(values[:2]) and db.files("orders") == set(values)
    assert any("America/Los_Angeles" in each for each in done["warnings"])
    rows = db.audit("--object", f"{db.name}.orders")
    assert {(row["outcome"], row["what"]) for row in rows} == {("done", "partition")} and len(rows) == 2


def test_tables_whose_own_log_says_which_files_count_are_named_and_left_alone(db: Dated) -> None:
    values = db.dated("events", 1, 4, 5, parameters={"table_type": "ICEBERG"})
    db.dated("orders", 1, 4)
    for options in (["--dry-run"], []):
        done = db.run("--set", DELETES, *options, code=3)
        assert [(each["what"], "an Iceberg table" in each["why"]) for each in done["failed"]] == [
            (f"{db.name}.events", True)
        ]
    assert db.values("events") == db.files("events") == set(values)
    assert len(db.values("orders")) == 1


def test_with_its_data_a_partition_goes_to_cmroot_and_its_files_can_be_put_back(db: Dated) -> None:
    values = db.dated("orders", 1, 4, 5)
    done = db.run("--set", DELETES)
    assert (done["dropped"], done["removed"], done["files"]) == (2, 2, 2)
    assert db.values("orders") == db.files("orders") == {values[0]}
    assert not (db.home / "orders" / f"datepartition={values[1]}").exists()
    db.put_back(done["run"])
    assert db.files("orders") == set(values)
    assert db.run("--set", DELETES)["dropped"] == 0


def test_what_cannot_be_read_stays_and_one_wrong_table_stops_no_other(db: Dated) -> None:
    old = db.dated("good", 9)
    for value in ("soon", "__HIVE_DEFAULT_PARTITION__", "2016-03-13-02"):
        db.partition("good", value)
    db.dated("other_key", 9, key="day")
    db.table("flat", {"f": "x"})
    done = db.run(code=3)
    assert (done["dropped"], done["ignored"]) == (1, 3) and old[0] not in db.values("good")
    assert {each["what"].partition(".")[2] for each in done["failed"]} == {"other_key", "flat"}
    output = "\n".join(done["warnings"])
    assert "'soon' is shorter" in output and "has no value" in output and "skip this hour" in output


def test_data_that_something_else_refers_to_stays_and_so_does_its_partition(db: Dated) -> None:
    values = db.dated("orders", 4, 5, 6)
    place = f"orders/datepartition={values[0]}"
    shared = Table(db=db.name, name="shared", kind=EXTERNAL, storage=db.storage(place), parameters={"EXTERNAL": "TRUE"})
    db.metastore.create_table(shared)
    inside = Table(
        db=db.name,
        name="inside",
        kind=EXTERNAL,
        storage=db.storage(f"orders/datepartition={values[1]}/x"),
        parameters={"EXTERNAL": "TRUE"},
    )
    db.metastore.create_table(inside)
    config = {"hive.dataset.blacklist": f'"{db.name}.shared|inside"'}
    done = db.run("--set", DELETES, config=config, code=3)
    assert {each["object"].partition("=")[2] for each in done["refused"]} == set(values[:2])
    assert all(each["why"].startswith("in use: ") for each in done["refused"])
    assert db.values("orders") == db.files("orders") == set(values[:2])
    assert {row["outcome"] for row in db.audit("--outcome", "refused")} == {"refused"}


def test_a_legal_hold_keeps_partition_and_metadata(db: Dated) -> None:
    values = db.dated("orders", 4, 5)
    hold = [
        "legal-hold",
        "add",
        "case",
        "--cmroot",
        db.cmroot,
        "--reason",
        "case 17",
        "--on",
        f"{db.name}.orders/datepartition={values[0]}",
    ]
    assert command(hold) == 0
    db.capsys.readouterr()
    for deletes in ("false", "true"):
        done = db.run("--set", f"gobblin.retention.hive.shouldDeleteData={deletes}", code=3)
        assert ["case 17" in each["why"] for each in done["refused"]] == [True]
        assert db.values("orders") == {values[0]}
    assert values[0] in db.files("orders")


def test_a_replica_is_left_to_its_primary(db: Dated) -> None:
    values = db.dated("orders", 4)
    database = db.metastore.database(db.name)
    roles = {"replicator.role": "replica", "replicator.epoch": "2"}
    db.metastore.alter_database(db.name, msgspec.structs.replace(database, parameters=roles))
    done = db.run(code=3)
    assert (done["failed"][0]["what"], db.values("orders")) == (db.name, set(values))
    assert "at its primary" in done["failed"][0]["why"]


def test_empty_directories_between_a_table_and_its_partitions_go(db: Dated) -> None:
    keys = (Column("country", "string"), Column("datepartition", "string"))
    db.metastore.create_table(Table(db=db.name, name="deep", storage=db.storage("deep"), partition_keys=keys))
    for country in ("de", "fr"):
        for value in ("2020-01-01-00", *(["2999-01-01-00"] if country == "fr" else [])):
            place = f"deep/country={country}/datepartition={value}"
            db.write(place, {"part-0": value})
            partition = Partition(values=(country, value), storage=db.storage(place))
            db.metastore.add_partitions(db.name, "deep", [partition])
    db.write("outside/x", {"part-0": "y"})
    outside = Partition(values=("it", "2020-01-01-00"), storage=db.storage("outside/x"))
    db.metastore.add_partitions(db.name, "deep", [outside])
    assert db.run("--set", DELETES)["dropped"] == 3
    assert [path.name for path in (db.home / "deep").iterdir()] == ["country=fr"]
    assert (db.home / "outside").exists() and not (db.home / "outside" / "x").exists()


def test_a_table_takes_its_settings_from_the_store_when_that_is_enabled(db: Dated) -> None:
    db.dated("orders", 4, 5)
    db.dated("clicks", 4, 5)
    db.dated("wrong", 4, 5)
    uri = write_store(
        db.place / "store",
        {
            "hive/includes.conf": "tags/hive",
            "tags/hive/main.conf": examples.HIVE,
            f"hive/{db.name}/clicks/main.conf": "gobblin.retention.selection.timeBased.lookbackTime = 4d12h",
            f"hive/{db.name}/orders/main.conf": "gobblin.retention.is.blacklisted = true",
            f"hive/{db.name}/wrong/main.conf": "gobblin.retention.selection.timeBased.lookbackTime = 0d",
        },
    )
    config = {"gobblin.config.management.store.uri": f'"{uri}"', "gobblin.config.management.store.enabled": "true"}
    done = db.run(config=config, code=3)
    assert [len(db.values(name)) for name in ("orders", "clicks", "wrong")] == [2, 1, 2]
    assert f"hive/{db.name}/wrong/main.conf:1" in done["failed"][0]["why"]


def test_partitions_by_modification_time_and_replacements(db: Dated) -> None:
    values = db.dated("live", 1, 2)
    db.dated("snapshot", 1)
    db.partition("snapshot", values[1])
    old = db.home / "live" / f"datepartition={values[1]}"
    os.utime(old, (0, 0))
    config = {
        "gobblin.retention.version.finder.class": "HdfsModifiedTimeHiveVersionFinder",
        "hive.dataset.database": db.name,
        "hive.dataset.table.pattern": "live",
        "gobblin.retention.hive": '{ shouldReplacePartition = true, replacementHiveDbName = "$DB", '
        "replacementHiveTableName = snapshot }",
    }
    assert db.run("--set", DELETES, config=config)["dropped"] == 1
    assert not old.exists() and db.values("live") == set(values)
    (batch,) = db.metastore.partitions(db.name, "live", [f"datepartition={values[1]}"])
    assert (batch[0].location or "").endswith(f"snapshot/datepartition={values[1]}")


def test_a_folder_filter_matches_locations_with_and_without_their_scheme(db: Dated) -> None:
    db.dated("live", 1)
    names = parse_names(f"{db.name}.live", "")
    for folder, found in ((f"file:.*{db.name}.*", 1), (f"{db.home}/.*", 1), (f"hdfs:.*{db.name}.*", 0)):
        assert len(list(tables_of(db.metastore, names, folder))) == found, folder


def test_files_in_which_a_table_lies_or_that_lie_in_one_stay(db: Dated) -> None:
    db.table("flat", {"part-0": "x"})
    (db.home / "flat" / "sub").mkdir()
    (db.home / "flat" / "sub" / "part-1").write_text("y")
    (db.home / "free").mkdir()
    config = (
        f'gobblin.retention {{ dataset {{ pattern = "{db.home.parent}{{,/*,/*/flat}}", '
        "finder.class = GlobCleanableDatasetFinder }, selection.policy.class = SelectAllPolicy\n"
        "version.finder.class = GlobModTimeDatasetVersionFinder }"
    )
    (db.place / "files.conf").write_text(config)
    arguments = [
        "retention",
        "run",
        str(db.place / "files.conf"),
        "--metastore",
        db.metastore.uri,
        "--cmroot",
        db.cmroot,
    ]
    assert command([*arguments, "--json"]) == 3
    done = json.loads(db.capsys.readouterr().out)
    assert {Path(each["path"]).name for each in done["refused"]} == {f"{db.name}.db", "flat", "sub", "part-0"}
    assert all(each["why"].startswith("in use: ") for each in done["refused"])
    assert not (db.home / "free").exists() and (db.home / "flat" / "sub" / "part-1").exists()


@pytest.mark.parametrize(
    "fault",
    [
        Fault("after", "rename", "incoming/recycle-"),
        Fault("before", "thrift", "drop"),
        Fault("after", "thrift", "drop"),
    ],
    ids=str,
)
def test_a_killed_run_is_completed_by_the_next_one(db: Dated, fault: Fault) -> None:
    values = db.dated("orders", 1, 4, 5)
    arguments = db.arguments("--set", DELETES)
    assert run_with(fault, arguments).killed
    done = db.run("--set", DELETES)
    assert done["status"] == "done"
    assert db.values("orders") == db.files("orders") == {values[0]}
    assert not list((Path(db.cmroot) / "retention").glob("dropping-*"))
    run = [row["run"] for row in db.audit("--outcome", "removed") if row["what"] == "file"]
    for each in set(run):
        db.put_back(each)
    assert db.files("orders") == set(values)


def test_a_run_with_nothing_to_remove_records_the_files_of_a_killed_one(db: Dated) -> None:
    values = db.dated("orders", 1, 4)
    assert run_with(Fault("after", "rename", "incoming/recycle-"), db.arguments("--set", DELETES)).killed
    (killed,) = {row["run"] for row in db.audit()}
    assert not [row for row in db.audit("--outcome", "removed") if row["what"] == "file"]
    done = db.run("--set", DELETES)
    assert (done["selected"], done["dropped"]) == (0, 1)
    assert [row["path"] for row in db.audit("--run", killed, "--outcome", "removed")] == [
        str(db.home / "orders" / f"datepartition={values[1]}" / "part-0")
    ]
    db.put_back(killed)
    assert db.files("orders") == set(values)


def test_a_root_at_work_is_named_where_a_killed_run_may_have_taken_files(
    db: Dated, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.dated("orders", 1, 4)
    assert run_with(Fault("after", "rename", "incoming/recycle-"), db.arguments("--set", DELETES)).killed
    (killed,) = {row["run"] for row in db.audit()}
    monkeypatch.setattr(job, "PATIENCE", timedelta(0))
    with acquire(db.cmroot, "load"):
        busy = db.run("--set", DELETES)
    assert busy["dropped"] == 1 and any("a killed run may have moved" in each for each in busy["warnings"])
    assert not [row for row in db.audit("--outcome", "removed") if row["what"] == "file"]
    after = db.run("--set", DELETES)
    assert not any("a killed run" in each for each in after["warnings"])
    assert len(db.audit("--run", killed, "--outcome", "removed")) == 1


def test_a_partition_of_which_a_killed_run_removed_a_part_is_as_old_as_it_was(db: Dated, other_device: Path) -> None:
    """By its directory's time, with `$cmroot` on another device."""
    db.cmroot = create_or_open(f"{other_device}/cm").place
    values = db.dated("orders", 1, 5)
    old = db.home / "orders" / f"datepartition={values[1]}"
    (old / "part-1").write_text(values[1])
    os.utime(old, (0, 0))
    config = {
        "gobblin.retention.version.finder.class": "HdfsModifiedTimeHiveVersionFinder",
        "hive.dataset.database": db.name,
        "hive.dataset.table.pattern": "orders",
    }
    arguments = db.arguments("--set", DELETES, config=config)
    assert run_with(Fault("after", "unlink", r"/orders/.*/part-"), arguments).killed
    assert len(list(old.iterdir())) == 1 and old.stat().st_mtime > 0
    assert db.run("--set", DELETES, config=config)["dropped"] == 1
    assert not old.exists() and db.values("orders") == db.files("orders") == {values[0]}
    assert not list((Path(db.cmroot) / "retention").glob("*ing-*"))


def test_a_partition_that_moves_while_the_run_is_planned_is_left_alone(db: Dated) -> None:
    values = db.dated("orders", 4, 5)
    note = {
        "dataset": "x",
        "removal": {
            "path": f"file:{db.home}/orders/datepartition={values[0]}",
            "what": "partition",
            "reason": "an earlier run",
            "object": f"{db.name}.orders",
            "partition": f"datepartition={values[0]}",
            "drops": True,
        },
        "drops": True,
    }
    (Path(db.cmroot) / "retention").mkdir()
    (Path(db.cmroot) / "retention" / "dropping-1").write_text(json.dumps([note]))
    db.write("elsewhere", {"part-0": values[0]})
    (batch,) = db.metastore.partitions(db.name, "orders", [f"datepartition={values[0]}"])
    moved = msgspec.structs.replace(batch[0], storage=db.storage("elsewhere"))
    db.metastore.alter_partitions(db.name, "orders", [moved])
    (db.home / "orders" / f"datepartition={values[0]}" / "part-0").unlink()
    later = {"gobblin.retention.selection.timeBased.lookbackTime": "100d"}
    assert db.run("--set", DELETES, config=later)["dropped"] == 0
    assert db.values("orders") == set(values)
