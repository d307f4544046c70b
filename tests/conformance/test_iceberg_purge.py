"""Purges of Iceberg tables, by the command line in a Spark with Iceberg: rows, older snapshots, branches, tags, and the
bytes of every file below the table, read without Iceberg."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from command_line import Answer
from iceberg_spark import IcebergSpark, with_product
from iceberg_tables import catalog
from lab import Lab
from lake_purges import DESCRIPTOR, GONE, certified_by, holding, iceberg_settings, make_ids, purged_everywhere
from lake_purges import purge as purge_by
from plain_tables import PlainDatabase
from purges import Warehouse

from cmroot.root import create_or_open, open_existing
from replicator.core.connections import MetastoreConfig
from replicator.lifecycle.purge.options import PurgeOptions
from replicator.metastore.thrift import connect


@pytest.fixture
def lake(fixture: Lab) -> Iterator[IcebergSpark]:
    make_ids(fixture)
    create_or_open(str(fixture.cmroot))
    with_product()
    with IcebergSpark(fixture.source_uri, fixture.source.home.parent) as spark:
        yield spark


def make(
    spark: IcebergSpark,
    lab: Lab,
    name: str,
    version: int = 2,
    mode: str = "copy-on-write",
    more: str = "",
    db: PlainDatabase | None = None,
    properties: str = "",
) -> str:
    """A table with 200 rows in two files: person-0000 to person-0199."""
    db = db or lab.source
    table = f"c.{db.name}.{name}"
    given = {"format-version": version, "dataset.descriptor": DESCRIPTOR}
    if version > 1:
        given |= {f"write.{each}.mode": mode for each in ("delete", "update", "merge")}
    text = ", ".join([*(f"'{key}' = '{value}'" for key, value in given.items()), *filter(None, [properties])])
    spark(
        f"create table {table} (who string, note string, n bigint) using iceberg {more}"
        f" location 'file://{db.home}/{name}' tblproperties ({text})"
    )
    for first in (0, 100):
        row = "concat('person-', lpad(id, 4, '0')), concat('about-', lpad(id, 4, '0')), id"
        spark(f"insert into {table} select {row} from range({first}, {first + 100})")
    return table


def purge(
    lab: Lab,
    *more: str,
    iceberg: bool = True,
    killed: tuple[str, str] | None = None,
    met: tuple[str, str] | None = None,
    db: str = "",
) -> Answer:
    """`purge run` in a Spark with Iceberg, or without."""
    return purge_by(lab, *more, settings=iceberg_settings() if iceberg else (), killed=killed, met=met, db=db)


def people(spark: IcebergSpark, table: str) -> set[str]:
    return {row[0] for row in spark(f"select who from {table}")}


def test_rows_go_from_every_snapshot_and_are_certified(fixture: Lab, lake: IcebergSpark) -> None:
    cow = make(lake, fixture, "cow")
    home = fixture.source.home
    assert holding(home / "cow")
    planned = purge(fixture, "--dry-run")
    assert planned.code == 0 and planned.output["rows_erased"] == 2, planned
    assert len(people(lake, cow)) == 200

    done = purge(fixture, "--certify", "--expedite", "--grace", "0s")
    assert done.code == 0 and done.output["rows_erased"] == 2, done
    assert done.output["certificate"]["status"] == "certified", done
    everyone = {f"person-{each:04}" for each in range(200)}
    assert people(lake, cow) == everyone - set(GONE)
    seen = catalog(fixture.source_uri).load_table(f"{fixture.name}.cow").scan().to_arrow()
    assert set(seen["who"].to_pylist()) == everyone - set(GONE)
    assert holding(home / "cow") == []


def test_deletes_branches_and_older_versions_leave_no_bytes(fixture: Lab, lake: IcebergSpark) -> None:
    """Also where a row was deleted before, and is only in a file."""
    home, everyone = fixture.source.home, {f"person-{each:04}" for each in range(200)}
    tables = {
        "v1": make(lake, fixture, "v1", 1, more="partitioned by (bucket(2, n))"),
        "mor": make(lake, fixture, "mor", 2, "merge-on-read"),
        "v3": make(lake, fixture, "v3", 3, "merge-on-read"),
        "branched": make(lake, fixture, "branched"),
        "bounds": make(lake, fixture, "bounds"),
    }
    lake(f"delete from {tables['bounds']} where who in {GONE}")
    lake(f"insert into {tables['bounds']} values ('{GONE[1]}', 'in a file of its own', 0)")
    lake(f"delete from {tables['bounds']} where who in {GONE}")
    older = "older_than => timestamp '2100-01-01 00:00:00', retain_last => 1"
    lake(f"call c.system.expire_snapshots(table => '{fixture.name}.bounds', {older})")
    for name in ("mor", "v3"):
        lake(f"delete from {tables[name]} where who = '{GONE[0]}'")
        lake(f"update {tables[name]} set note = 'changed' where n = 7")
    lake(f"call c.system.compute_table_stats(table => '{fixture.name}.mor')")
    lake(f"alter table {tables['branched']} create branch other")
    lake(f"insert into {tables['branched']}.branch_other values ('{GONE[0]}', 'of the branch', 1000)")
    lake(f"insert into {tables['branched']}.branch_other values ('person-0999', 'of the branch', 1001)")
    lake(f"alter table {tables['branched']} rename column who to email")
    lake(
        f"""alter table {tables["branched"]} set tblproperties"""
        """ ('dataset.descriptor' = '{"privacy": {"column": "email"}}')"""
    )
    assert all(holding(home / name) for name in tables)

    done = purge(fixture, "--certify")
    assert done.code == 0 and done.output["certificate"]["status"] == "certified", done
    assert {each["table"].rpartition(".")[2] for each in done.output["tables"]} == tables.keys()
    for name, table in tables.items():
        column = "email" if name == "branched" else "who"
        assert {row[0] for row in lake(f"select {column} from {table}")} == everyone - set(GONE), name
        assert holding(home / name) == [], name
    other = {row[0] for row in lake(f"select email from {tables['branched']} version as of 'other'")}
    assert other == everyone - set(GONE) | {"person-0999"}
    assert lake(f"select note from {tables['mor']} where n = 7") == [["changed"]]

    again = purge(fixture)
    assert again.code == 0 and again.output["rows_erased"] == 0, again


def test_a_tag_is_a_gap_until_it_is_dropped(fixture: Lab, lake: IcebergSpark) -> None:
    """An older snapshot without ids stays."""
    table = f"c.{fixture.name}.t"
    lake(
        f"create table {table} (who string, n bigint) using iceberg location 'file://{fixture.source.home}/t'"
        f" tblproperties ('dataset.descriptor' = '{DESCRIPTOR}')"
    )
    lake(f"insert into {table} values ('someone', 1)")
    (first,) = lake(f"select snapshot_id from {table}.snapshots")[0]
    lake(f"insert into {table} values ('{GONE[0]}', 2)")
    lake(f"alter table {table} create tag kept")

    done = purge(fixture, "--certify")
    assert done.code == 3, done
    assert [gap["table"] for gap in done.output["gaps"]] == [f"{fixture.name}.t"]
    assert "the tag kept" in done.output["gaps"][0]["reason"], done
    assert done.output["certificate"]["status"] == "remaining", done
    assert people(lake, table) == {"someone"}
    assert holding(fixture.source.home / "t")

    lake(f"alter table {table} drop tag kept")
    done = purge(fixture, "--certify")
    assert done.output["gaps"] == [] and done.output["certificate"]["gaps"] == [], done
    assert done.code == 0 and done.output["certificate"]["status"] == "certified", done.output["tables"]
    assert holding(fixture.source.home / "t") == []
    assert lake(f"select who from {table} version as of {first}") == [["someone"]]


def test_without_iceberg_the_table_is_a_gap(fixture: Lab, lake: IcebergSpark) -> None:
    table = make(lake, fixture, "t")
    done = purge(fixture, iceberg=False)
    assert done.code == 3, done
    assert "iceberg-spark-runtime-4.1_2.13" in done.output["gaps"][0]["reason"], done
    assert len(people(lake, table)) == 200


@pytest.mark.parametrize(
    "killed",
    [("_delete", "after"), ("_record", "before"), ("_expire", "before"), ("_expire", "halfway"), ("_expire", "after")],
    ids=" ".join,
)
def test_a_killed_purge_is_completed_by_the_same_command(
    fixture: Lab, lake: IcebergSpark, killed: tuple[str, str]
) -> None:
    table = make(lake, fixture, "t", 2, "merge-on-read")
    purge(fixture, killed=killed)
    left = fixture.source.home / "t"
    assert bool(holding(left)) == (killed != ("_expire", "after"))
    done = purge(fixture, "--certify")
    assert [*done.output["gaps"], *done.output["certificate"]["gaps"]] == []
    assert done.code == 0 and done.output["resumed"], done
    assert (done.output["rows_erased"], done.output["certificate"]["status"]) == (2, "certified"), done
    assert done.output["certificate"]["contents"] > 2
    assert len(people(lake, table)) == 198
    assert holding(left) == []


def test_a_replica_follows_and_every_copy_is_found(fixture: Lab, lake: IcebergSpark, warehouse: Warehouse) -> None:
    """The certificate is made by the newest Spark, which has no Iceberg."""
    source, target = fixture.db(), fixture.replica()
    table, everyone = make(lake, fixture, "t", 2, "merge-on-read", db=source), {f"person-{n:04}" for n in range(200)}
    lake(f"delete from {table} where who = '{GONE[0]}'")
    purged_everywhere(
        fixture,
        warehouse,
        lambda: purge(fixture, db=source.name),
        lambda: set(column(fixture.target_uri, target.name)) == everyone - set(GONE),
    )


def test_files_outside_of_the_table_are_purged_at_both_sides(
    fixture: Lab, lake: IcebergSpark, warehouse: Warehouse
) -> None:
    outside = fixture.here / "outside"
    config = MetastoreConfig(fixture.source_uri, iceberg_outside=(str(outside),))
    fixture.source = PlainDatabase(connect(config), fixture.name, fixture.source.home.parent)
    source, target = fixture.db(), fixture.replica()
    path = f"'write.data.path' = 'file://{outside}'"
    table = make(lake, fixture, "t", 2, "merge-on-read", db=source, properties=path)
    lake(f"delete from {table} where who = '{GONE[0]}'")
    assert fixture.sync().status == "synced"
    assert holding(target.home / "t/outside") and holding(outside)
    done = purge(fixture, db=source.name)
    assert done.code == 0 and holding(outside) == [] == holding(source.home), done

    behind = certified_by(fixture, warehouse, source.name)
    assert {each["what"] for each in behind.holding} == {"$cmroot", "replica"}, behind.holding
    fixture.sync()
    assert holding(target.home) == []
    certified_by(fixture, warehouse, source.name, expedited=True)
    fixture.sync()
    certified = certified_by(fixture, warehouse, source.name, expedited=True)
    assert certified.status == "certified", (certified.holding, certified.gaps)
    assert holding(fixture.cmroot / "files") == [] and holding(fixture.target_cmroot / "files") == []


def column(uri: str, db: str) -> list[str]:
    found = catalog(uri).load_table(f"{db}.t").scan().to_arrow()
    return [str(each) for each in found["who"].to_pylist()]


@pytest.mark.long
def test_a_file_that_was_put_back_is_found(fixture: Lab, lake: IcebergSpark, warehouse: Warehouse) -> None:
    """By its rows, and by its checksum."""
    table, home = make(lake, fixture, "t"), fixture.source.home / "t"
    files = {path: path.read_bytes() for path in home.rglob("*.parquet")}
    done = purge(fixture)
    assert done.code == 0, done
    assert len(people(lake, table)) == 198
    (gone, *_) = files.keys() - set(home.rglob("*.parquet"))
    (home / "data/other.parquet").write_bytes(files[gone])
    asked = PurgeOptions(f"{fixture.name}.gone:b", fixture.name, "privacy.column")
    found = warehouse.certify(open_existing(str(fixture.cmroot)), asked)
    assert found.status == "remaining", found
    assert [Path(each["path"]).name for each in found.holding] == ["other.parquet"], found.holding
    assert "which no snapshot names" in found.gaps[0]["reason"], found.gaps


def test_rows_that_a_writer_adds_during_a_purge_are_searched_again(fixture: Lab, lake: IcebergSpark) -> None:
    """A commit after the delete, and before the expiry."""
    table = make(lake, fixture, "t")
    done = purge(fixture, "--certify", met=("_record", GONE[1]))
    assert done.code == 0 and done.output["certificate"]["status"] == "certified", done
    (unit,) = done.output["tables"][0]["units"]
    assert (unit["state"], unit["attempt"]) == ("DONE", 2)
    assert people(lake, table) == {f"person-{each:04}" for each in range(200)} - set(GONE) | {"person-of-the-writer"}
    assert holding(fixture.source.home / "t") == []


def test_what_cannot_be_purged_is_named(fixture: Lab, lake: IcebergSpark) -> None:
    tables = {
        "orc": make(lake, fixture, "orc"),
        "parted": make(lake, fixture, "parted", more="partitioned by (truncate(8, who))"),
        "shared": make(lake, fixture, "shared"),
    }
    own = Path(urlsplit(str(fixture.source.table("own", {}).location)).path)
    path = f"'write.data.path' = 'file://{own}'"
    make(lake, fixture, "borrower", properties=path)  # its files are in the data of another table
    lent = {each.name for each in own.iterdir()}
    lake(f"alter table {tables['orc']} set tblproperties ('write.format.default' = 'orc')")
    lake(f"insert into {tables['orc']} values ('{GONE[0]}', 'in ORC', 0)")
    lake(f"alter table {tables['shared']} set tblproperties ('gc.enabled' = 'false')")

    done = purge(fixture, "--certify")
    assert done.code == 3, done
    reasons = {gap["table"].rpartition(".")[2]: gap["reason"] for gap in done.output["gaps"]}
    assert reasons.keys() - {"own"} == {"orc", "parted"}  # `own` says not which column has ids
    assert "it is in ORC: only Parquet is searched" in reasons["orc"]
    assert "names of directories may be ids" in reasons["parted"]
    units = {each["table"].rpartition(".")[2]: each["units"][0] for each in done.output["tables"]}
    assert units["parted"]["state"] == "DONE" and units["shared"]["state"] == "EXHAUSTED", units
    assert "GC is disabled" in units["shared"]["reason"]
    assert units["borrower"]["state"] == "EXHAUSTED", units
    assert f"which is data of {fixture.name}.own" in units["borrower"]["reason"]
    assert {each.name for each in own.iterdir()} == lent, "nothing was changed"
    assert done.output["certificate"]["status"] == "remaining"
    assert {each["object"] for each in done.output["certificate"]["holding"]} == {
        f"{fixture.name}.{name}" for name in ("shared", "borrower")
    }
    gaps = {gap["table"].rpartition(".")[2] for gap in done.output["certificate"]["gaps"]}
    assert gaps >= {"orc", "parted"}
