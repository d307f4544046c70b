"""Purges of Delta tables, by the command line in a Spark with Delta: rows, older versions, deletion vectors, changes,
the log, and the bytes of every file below the table; read by delta-rs, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Answer
from delta_spark import DeltaSpark, delta_settings
from lab import Lab
from lake_purges import DESCRIPTOR, EVERYONE, GONE, holding, make_ids, purged_everywhere
from lake_purges import purge as purge_by
from plain_tables import PlainDatabase
from purges import Warehouse

from cmroot.root import create_or_open

LEFT = EVERYONE - set(GONE)


@pytest.fixture
def lake(fixture: Lab) -> Iterator[DeltaSpark]:
    make_ids(fixture)
    create_or_open(str(fixture.cmroot))
    with DeltaSpark(fixture.source_uri, fixture.source.home.parent) as spark:
        yield spark


def make(
    spark: DeltaSpark, lab: Lab, name: str, more: str = "", db: PlainDatabase | None = None, **properties: str
) -> str:
    """A table with 200 rows in two files: person-0000 to person-0199."""
    db = db or lab.source
    table = f"{db.name}.{name}"
    given = {"dataset.descriptor": DESCRIPTOR, **properties}
    text = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    spark(
        f"create table {table} (who string, note string, n bigint) using delta {more}"
        f" location 'file://{db.home}/{name}' tblproperties ({text})"
    )
    for first in (0, 100):
        row = "concat('person-', lpad(id, 4, '0')), concat('about-', lpad(id, 4, '0')), id"
        spark(f"insert into {table} select /*+ coalesce(1) */ {row} from range({first}, {first + 100})")
    return table


def purge(
    lab: Lab,
    *more: str,
    delta: bool = True,
    killed: tuple[str, str] | None = None,
    met: tuple[str, str] | None = None,
    db: str = "",
) -> Answer:
    """`purge run` in a Spark with Delta, or without. No writer of these tests lasts."""
    grace = [] if "--grace" in more else ["--grace", "0s"]
    return purge_by(lab, *more, *grace, settings=delta_settings() if delta else (), killed=killed, met=met, db=db)


def people(spark: DeltaSpark, table: str) -> set[str]:
    return {row[0] for row in spark(f"select who from {table}")}


def seen(place: Path) -> set[str]:
    """The people that delta-rs reads."""
    return set(deltalake.DeltaTable(str(place)).to_pyarrow_table()["who"].to_pylist())


def test_rows_go_from_every_version_and_are_certified(fixture: Lab, lake: DeltaSpark) -> None:
    table, place = make(lake, fixture, "t"), fixture.source.home / "t"
    assert holding(place)
    planned = purge(fixture, "--dry-run")
    assert planned.code == 0 and planned.output["rows_erased"] == 2, planned
    assert len(people(lake, table)) == 200

    done = purge(fixture, "--certify", "--expedite")
    assert done.code == 0 and done.output["rows_erased"] == 2, done
    assert done.output["certificate"]["status"] == "certified", done
    assert people(lake, table) == LEFT == seen(place)
    assert holding(place) == []
    again = purge(fixture)
    assert again.code == 0 and again.output["rows_erased"] == 0, again


def test_hidden_rows_changes_and_renamed_columns_leave_no_bytes(fixture: Lab, lake: DeltaSpark) -> None:
    """Also where rows were deleted before, and are only in files; and conditions of these deletes, in the log."""
    home = fixture.source.home
    vectors = {"delta.enableDeletionVectors": "true"}
    tables = {
        "vectors": make(lake, fixture, "vectors", **vectors),
        "changes": make(lake, fixture, "changes", **{"delta.enableChangeDataFeed": "true"}),
        "mapped": make(lake, fixture, "mapped", **{"delta.columnMapping.mode": "name"}),
        "parted": make(lake, fixture, "parted", "partitioned by (n)", **{"delta.checkpointInterval": "2"}),
        "vacuumed": make(lake, fixture, "vacuumed", **{"delta.checkpointPolicy": "v2"}),
    }
    lake(f"delete from {tables['vectors']} where who = '{GONE[0]}'")
    lake(f"update {tables['vectors']} set note = 'changed' where n = 7")
    lake(f"update {tables['changes']} set note = 'changed' where who = '{GONE[0]}'")
    lake(f"delete from {tables['changes']} where who = '{GONE[1]}'")
    lake(f"alter table {tables['mapped']} rename column who to email")
    lake(f"alter table {tables['mapped']} drop column note")
    lake(f"insert into {tables['mapped']} values ('{GONE[0]}', 3)")
    lake(
        f"""alter table {tables["mapped"]} set tblproperties"""
        """ ('dataset.descriptor' = '{"privacy": {"column": "email"}}')"""
    )
    lake(f"delete from {tables['vacuumed']} where who in {GONE}")
    lake("set spark.databricks.delta.retentionDurationCheck.enabled = false")
    lake(f"vacuum {tables['vacuumed']} retain 0 hours")
    assert all(holding(home / name) for name in tables)

    done = purge(fixture, "--certify")
    assert done.code == 0 and done.output["certificate"]["status"] == "certified", done
    assert {each["table"].rpartition(".")[2] for each in done.output["tables"]} == tables.keys()
    for name, table in tables.items():
        column = "email" if name == "mapped" else "who"
        assert {row[0] for row in lake(f"select {column} from {table}")} == LEFT, name
        assert holding(home / name) == [], name
    assert lake(f"select note from {tables['vectors']} where n = 7") == [["changed"]]
    assert all(seen(home / name) == LEFT for name in ("changes", "parted"))
    again = purge(fixture)
    assert again.code == 0 and again.output["rows_erased"] == 0, again


def test_the_log_waits_for_writers_that_may_have_begun_before(fixture: Lab, lake: DeltaSpark) -> None:
    table, place = make(lake, fixture, "t"), fixture.source.home / "t"
    lake(f"insert into {table} values ('{GONE[0]}', 'in a file of its own', 0)")
    done = purge(fixture, "--certify", "--grace", "2h")
    assert done.code == 3 and done.output["rows_erased"] == 3, done
    assert "they are removed when they are older than --grace" in done.output["gaps"][0]["reason"], done
    assert done.output["certificate"]["status"] == "remaining", done
    assert people(lake, table) == LEFT
    assert {Path(each).parent.name for each in holding(place)} == {"_delta_log"}

    done = purge(fixture, "--certify")
    assert done.code == 0 and done.output["certificate"]["status"] == "certified", done
    assert holding(place) == [] and seen(place) == LEFT


def test_without_delta_the_table_is_a_gap(fixture: Lab, lake: DeltaSpark) -> None:
    table = make(lake, fixture, "t")
    done = purge(fixture, delta=False)
    assert done.code == 3, done
    assert "io.delta:delta-spark_4.1_2.13" in done.output["gaps"][0]["reason"], done
    assert len(people(lake, table)) == 200


@pytest.mark.parametrize(
    "killed",
    [("_delete", "after"), ("_record", "before"), ("_vacuum", "before"), ("_vacuum", "after"), ("_forget", "after")],
    ids=" ".join,
)
def test_a_killed_purge_is_completed_by_the_same_command(
    fixture: Lab, lake: DeltaSpark, killed: tuple[str, str]
) -> None:
    table, place = make(lake, fixture, "t", **{"delta.enableDeletionVectors": "true"}), fixture.source.home / "t"
    lake(f"delete from {table} where who = '{GONE[1]}'")
    purge(fixture, killed=(f"delta:{killed[0]}", killed[1]))
    assert bool(holding(place)) == (killed != ("_forget", "after"))
    done = purge(fixture, "--certify")
    assert [*done.output["gaps"], *done.output["certificate"]["gaps"]] == []
    assert done.code == 0 and done.output["resumed"], done
    assert (done.output["rows_erased"], done.output["certificate"]["status"]) == (2, "certified"), done
    assert done.output["certificate"]["contents"] > 2
    assert people(lake, table) == LEFT and holding(place) == []


def test_rows_that_a_writer_adds_during_a_purge_are_searched_again(fixture: Lab, lake: DeltaSpark) -> None:
    """A commit after the delete, and before the vacuum."""
    table, place = make(lake, fixture, "t"), fixture.source.home / "t"
    done = purge(fixture, "--certify", met=("delta:_record", GONE[1]))
    assert done.code == 0 and done.output["certificate"]["status"] == "certified", done
    (unit,) = done.output["tables"][0]["units"]
    assert (unit["state"], unit["attempt"]) == ("DONE", 2)
    assert people(lake, table) == LEFT | {"person-of-the-writer"} and holding(place) == []


def test_a_writer_that_began_before_meets_a_conflict(fixture: Lab, lake: DeltaSpark) -> None:
    """Writers of delta-rs, at the version before the purge. The commits that they compare theirs with still exist."""
    table, place = make(lake, fixture, "t"), fixture.source.home / "t"
    appends, deletes = (deltalake.DeltaTable(str(place)) for _ in range(2))
    done = purge(fixture, "--grace", "2h")
    assert done.code == 3 and done.output["rows_erased"] == 2, done
    with pytest.raises(deltalake.exceptions.DeltaError):  # a file that it reads is gone
        deletes.delete("who = 'person-0001'")
    late = pa.table({"who": ["late"], "note": ["of a writer"], "n": pa.array([1000], pa.int64())})
    with pytest.raises(deltalake.exceptions.CommitFailedError):
        deltalake.write_deltalake(appends, late, mode="append")
    appends.update_incremental()
    deltalake.write_deltalake(appends, late, mode="append")
    assert people(lake, table) == LEFT | {"late"} == seen(place)


def test_a_clone_is_purged_first_and_keeps_its_rows(fixture: Lab, lake: DeltaSpark) -> None:
    home, name = fixture.source.home, fixture.source.name
    table = make(lake, fixture, "a")
    lake(f"create table {name}.z shallow clone {table} location 'file://{home}/z'")
    done = purge(fixture)
    assert done.code == 3, done
    units = {each["table"].rpartition(".")[2]: each["units"][0] for each in done.output["tables"]}
    assert (units["a"]["state"], units["z"]["state"]) == ("EXHAUSTED", "DONE"), units
    assert f"{name}.z shows files with rows of ids" in units["a"]["reason"]
    assert people(lake, table) == EVERYONE and people(lake, f"{name}.z") == LEFT

    done = purge(fixture, "--certify")
    assert done.code == 0 and done.output["certificate"]["status"] == "certified", done
    assert people(lake, table) == LEFT == people(lake, f"{name}.z")
    assert holding(home / "a") == [] == holding(home / "z")


def test_what_cannot_be_purged_is_named(fixture: Lab, lake: DeltaSpark) -> None:
    home = fixture.source.home
    tables = {
        "appended": make(lake, fixture, "appended", **{"delta.appendOnly": "true"}),
        "logged": make(lake, fixture, "logged", **{"delta.enableExpiredLogCleanup": "false"}),
        "parted": make(lake, fixture, "parted", "partitioned by (who)"),
        "orphan": make(lake, fixture, "orphan"),
    }
    rows = pa.table({"who": [GONE[0]], "note": ["of no commit"], "n": pa.array([0], pa.int64())})
    pq.write_table(rows, home / "orphan/part-of-a-writer.parquet")
    done = purge(fixture, "--certify")
    assert done.code == 3, done
    reasons = {gap["table"].rpartition(".")[2]: gap["reason"] for gap in done.output["gaps"]}
    assert reasons.keys() == {"logged", "parted", "orphan"}, reasons
    assert "delta.enableExpiredLogCleanup is false" in reasons["logged"]
    assert "names of directories may be ids" in reasons["parted"]
    assert "which the log does not name" in reasons["orphan"] and "part-of-a-writer" in reasons["orphan"]
    units = {each["table"].rpartition(".")[2]: each["units"] for each in done.output["tables"]}
    assert units["appended"][0]["state"] == "EXHAUSTED" and "append" in units["appended"][0]["reason"], units
    assert (home / "orphan/part-of-a-writer.parquet").exists()
    assert people(lake, tables["appended"]) == EVERYONE and people(lake, tables["logged"]) == LEFT
    certificate = done.output["certificate"]
    assert certificate["status"] == "remaining"
    held = {each["object"] for each in certificate["holding"] if each["what"] == "table"}
    assert held >= {f"{fixture.source.name}.{each}" for each in ("appended", "logged", "orphan")}, certificate
    assert f"{fixture.source.name}.parted" in {each["table"] for each in certificate["gaps"]}


def test_a_replica_follows_and_every_copy_is_found(fixture: Lab, lake: DeltaSpark, warehouse: Warehouse) -> None:
    """The certificate is made by the newest Spark, which has no Delta."""
    source, target = fixture.db(), fixture.replica()
    table = make(lake, fixture, "t", db=source)
    lake(f"delete from {table} where who = '{GONE[0]}'")
    purged_everywhere(
        fixture, warehouse, lambda: purge(fixture, db=source.name), lambda: seen(target.home / "t") == LEFT
    )
