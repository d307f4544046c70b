"""Retention of Iceberg tables: snapshots expire by Iceberg in Spark; what branches and tags name stays."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import gobblin_examples as examples
import msgspec
import pyarrow.parquet as pq
import pytest
from command_line import Answer, command
from iceberg_spark import IcebergSpark, with_product
from iceberg_tables import catalog, make, rows
from lab import Lab

from cmroot.root import create_or_open
from replicator.metastore.java import find_java

ROOT = Path(__file__).parents[2]
NEWEST = "gobblin.retention.selection.policy.class=gobblin.data.management.policy.NewestKSelectionPolicy"
KEEPS = "gobblin.retention.selection.newestK.versionsNotSelected"


@pytest.fixture
def lake(fixture: Lab) -> Iterator[IcebergSpark]:
    create_or_open(str(fixture.cmroot))
    with_product()
    with IcebergSpark(fixture.source_uri, fixture.source.home.parent) as spark:
        yield spark


def arguments(lab: Lab, keeps: int) -> list[str]:
    job = lab.here / "job.conf"
    job.write_text(f"{examples.HIVE}hive.dataset.whitelist = {lab.name}\n")
    given = ["retention", "run", str(job), "--metastore", lab.source_uri, "--cmroot", str(lab.cmroot)]
    return [*given, "--set", NEWEST, "--set", f"{KEEPS}={keeps}"]


def retained(lab: Lab, keeps: int, *more: str) -> Answer:
    """`retention run` in a process of the Spark that has Iceberg; the newest snapshots stay."""
    python, jar = with_product()
    own = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    own |= {"PYTHONPATH": str(ROOT), "JAVA_HOME": str(find_java(os.environ).home)}
    given = [*arguments(lab, keeps), "--master", "local[1]", "--spark-conf", f"spark.jars={jar}", *more, "--json"]
    done = subprocess.run([python, "-m", "replicator", *given], capture_output=True, text=True, env=own)
    assert done.stdout, done.stderr[-3000:]
    return Answer(done.returncode, json.loads(done.stdout))


def test_a_plan_names_snapshots_and_a_spark_without_iceberg_expires_none(fixture: Lab) -> None:
    create_or_open(str(fixture.cmroot))
    table = make(fixture)
    for each in range(5):
        table.append(rows(each))
    ids = [each.snapshot_id for each in table.snapshots()]
    table.manage_snapshots().create_tag(ids[1], "yearly").commit()

    planned = command(*arguments(fixture, 2), "--dry-run")
    found = {each["snapshot"]: each["act"] for each in planned.output["items"]}
    assert (planned.code, planned.output["versions"], found) == (0, 5, {ids[0]: "expire", ids[2]: "expire"}), planned

    answer = command(*arguments(fixture, 2))
    assert (answer.code, answer.output["expired"]) == (3, 0), answer
    assert [each["what"] for each in answer.output["failed"]] == [f"{fixture.name}.t"]
    assert "spark.jars.packages" in answer.output["failed"][0]["why"]
    assert [each.snapshot_id for each in table.refresh().snapshots()] == ids


def test_an_expiry_that_would_delete_files_of_another_table_is_refused(fixture: Lab) -> None:
    create_or_open(str(fixture.cmroot))
    other = Path(urlsplit(str(fixture.source.table("other", {}).location)).path)
    pq.write_table(rows(1), other / "1.parquet")
    table = make(fixture)
    table.add_files([f"file://{other}/1.parquet"])
    table.overwrite(rows(2))
    for keeps in (1, 2):
        answer = command(*arguments(fixture, keeps))
        reasons = [each["why"] for each in answer.output["failed"] if each["what"] == f"{fixture.name}.t"]
        assert (answer.code, answer.output["expired"], len(reasons)) == (3, 0, 1), answer
        assert f"which is data of {fixture.name}.other" in reasons[0], answer
    assert (other / "1.parquet").exists()


@pytest.mark.long
def test_snapshots_expire_by_iceberg_and_what_has_a_name_stays(fixture: Lab, lake: IcebergSpark) -> None:
    name = f"c.{fixture.name}.t"
    lake(f"create table {name} (id bigint) using iceberg location 'file://{fixture.source.home}/t'")
    for each in range(5):
        lake(f"insert overwrite {name} values ({each})")
    ids = [int(row[0]) for row in lake(f"select snapshot_id from {name}.snapshots order by committed_at")]
    lake(f"alter table {name} create tag yearly as of version {ids[1]}")
    data = fixture.source.home / "t/data"
    before = {path.name for path in data.iterdir()}

    root = ["--cmroot", str(fixture.cmroot)]
    held = command("legal-hold", "add", "case-17", *root, "--on", f"{fixture.name}.t", "--reason", "a case")
    assert held.code == 0, held
    answer = retained(fixture, 2)
    assert (answer.code, answer.output["expired"], answer.output["refused_count"]) == (3, 0, 2), answer
    assert command("legal-hold", "release", "case-17", *root).code == 0

    answer = retained(fixture, 2)
    assert (answer.code, answer.output["expired"]) == (0, 2), answer
    left = [int(row[0]) for row in lake(f"select snapshot_id from {name}.snapshots order by committed_at")]
    assert left == [ids[1], ids[3], ids[4]]
    table = catalog(fixture.source_uri).load_table(f"{fixture.name}.t")  # by another reader
    shown = {each: table.scan(snapshot_id=each).to_arrow()["id"].to_pylist() for each in left}
    assert shown == {ids[1]: [1], ids[3]: [3], ids[4]: [4]}
    assert len(before - {path.name for path in data.iterdir()}) >= 2, "files of expired snapshots are gone"
    assert retained(fixture, 2).output["expired"] == 0


def test_tables_with_one_location_and_metadata_of_their_own_are_all_looked_at(fixture: Lab) -> None:
    create_or_open(str(fixture.cmroot))
    table = make(fixture)
    for each in range(3):
        table.append(rows(each))
    metastore = fixture.source.metastore
    metastore.create_table(msgspec.structs.replace(metastore.table(fixture.name, "t"), name="u"))
    planned = command(*arguments(fixture, 1), "--dry-run")
    named = [each["dataset"] for each in planned.output["items"]]
    assert (planned.code, planned.output["versions"]) == (0, 6), planned
    assert sorted(named) == [f"{fixture.name}.t"] * 2 + [f"{fixture.name}.u"] * 2, planned
