"""A dry run before the first run of any job: it makes no root, reads none, and says so."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from command_line import command
from housekeeping import EXPIRED
from names import unique
from plain_tables import PlainDatabase
from purges import DESCRIPTOR, Warehouse

import replicator
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect


@pytest.fixture
def db(source_metastore: Running, tmp_path: Path) -> PlainDatabase:
    found = PlainDatabase(connect(source_metastore.uri), unique("first"), tmp_path / "warehouse")
    found.create()
    found.partitioned("t", {"1": {"a": "x"}})
    found.alter("t", **EXPIRED)
    return found


def job(here: Path) -> str:
    """A job of retention that finds one dataset with a version past its policy."""
    (here / "lake" / "old").mkdir(parents=True)
    text = (
        "gobblin.retention.dataset.finder.class = GlobCleanableDatasetFinder\n"
        f"gobblin.retention.dataset.pattern = {here}/lake\n"
        "gobblin.retention.version.finder.class = GlobModTimeDatasetVersionFinder\n"
        "gobblin.retention.selection.policy.class = SelectAllPolicy\n"
    )
    (here / "job.properties").write_text(text)
    return str(here / "job.properties")


@pytest.mark.parametrize(
    "words",
    [
        "housekeeping run --metastore {uri} --db {db} --engine local",
        "housekeeping vacuum {db}.t --metastore {uri}",
        "retention run {job} --metastore {uri}",
        "purge retain --metastore {uri} --engine local",
        "cm expire --older-than 7d --engine local",
    ],
    ids=lambda words: " ".join(words.split()[:2]),
)
@pytest.mark.parametrize("there", [False, True], ids=["missing", "empty"])
def test_a_dry_run_before_the_first_run_makes_no_root(
    db: PlainDatabase, tmp_path: Path, words: str, there: bool
) -> None:
    place = tmp_path / "cm"
    if there:
        place.mkdir()
    filled = words.format(uri=db.metastore.uri, db=db.name, job=job(tmp_path)).split()
    answer = command(*filled, "--cmroot", str(place), "--dry-run")
    assert (answer.code, answer.output["status"]) == (0, "planned"), answer
    assert answer.output["warnings"][-1] == f"{place}: no $cmroot yet; the first run creates it"
    assert answer.output.get("root", str(place)) == str(place)
    assert list(place.iterdir()) == [] if there else not place.exists()


def test_a_dry_run_of_a_purge_makes_no_root(warehouse: Warehouse, tmp_path: Path) -> None:
    warehouse.sql(
        "CREATE DATABASE first_purge",
        f"CREATE TABLE first_purge.t (id BIGINT) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO first_purge.t SELECT id FROM range(0, 200, 1, 2)",
    )
    answer = command(
        "purge",
        "run",
        "--metastore",
        warehouse.running.uri,
        "--ids",
        warehouse.ids,
        "--table-whitelist",
        "first_purge",
        "--field-path",
        "privacy.column",
        "--master",
        "local[2]",
        "--cmroot",
        str(tmp_path / "cm"),
        "--dry-run",
    )
    assert (answer.code, answer.output["rows_erased"]) == (0, 10), answer
    assert "no $cmroot yet" in answer.output["warnings"][-1] and not (tmp_path / "cm").exists()


def test_a_place_in_use_by_something_else_is_refused_as_the_run_would(db: PlainDatabase, tmp_path: Path) -> None:
    (tmp_path / "cm").mkdir()
    (tmp_path / "cm" / "theirs").write_text("x")
    words = ("housekeeping", "run", "--metastore", db.metastore.uri, "--cmroot", str(tmp_path / "cm"), "--dry-run")
    answer = command(*words)
    assert (answer.code, answer.error) == (1, "NotWritable") and "choose an empty directory" in str(
        answer.output["hint"]
    )


def test_the_functions_do_what_the_commands_do(db: PlainDatabase, tmp_path: Path) -> None:
    place = str(tmp_path / "cm")
    kept = replicator.housekeeping_run(db.metastore.uri, place, db=[db.name], dry_run=True)
    assert (kept.root, kept.status) == (place, "planned") and "no $cmroot yet" in kept.warnings[-1]
    assert "no $cmroot yet" in replicator.retention_run(job(tmp_path), place, metastore=None, dry_run=True).warnings[-1]
    assert replicator.purge_retain(db.metastore.uri, place, dry_run=True).status == "planned"
    assert replicator.cm_expire(cmroot=place, older_than=timedelta(days=1), dry_run=True).root == place
    assert not Path(place).exists()
