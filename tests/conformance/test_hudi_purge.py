"""Purges of Hudi tables, by the command line in a Spark with Hudi: rows, older slices, log files, indices, and the
bytes of every file below the table; read by Hudi, and by hudi-rs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from command_line import Answer
from hudi_spark import HudiSpark, product_python, product_settings
from iceberg_spark import IcebergSpark
from lab import Lab
from lake_purges import DESCRIPTOR, EVERYONE, GONE, make_ids, purged_everywhere
from lake_purges import holding as files_holding
from lake_purges import purge as purge_by
from plain_tables import PlainDatabase
from purges import Warehouse
from waiting import eventually

from cmroot.root import create_or_open

LEFT = EVERYONE - set(GONE)
INDEXED = {
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.index.bloom.filter.enable": "true",
}

pytestmark = pytest.mark.long


@pytest.fixture
def lake(fixture: Lab) -> Iterator[IcebergSpark]:
    make_ids(fixture)
    create_or_open(str(fixture.cmroot))
    with HudiSpark(fixture.source_uri, fixture.source.home.parent) as spark:
        yield spark


def make(
    spark: IcebergSpark, lab: Lab, name: str, kind: str, db: PlainDatabase | None = None, key: str = "who", **more: str
) -> str:
    """A table with 200 rows of two commits: person-0000 to person-0199. The first erased person is alone in a
    partition, so bounds of columns have it."""
    db = db or lab.source
    table = f"{db.name}.{name}"
    given = {"dataset.descriptor": DESCRIPTOR, "type": kind, "primaryKey": key, "preCombineField": "n", **more}
    text = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    spark(
        f"create table {table} (who string, note string, n bigint, d string) using hudi partitioned by (d)"
        f" location 'file://{db.home}/{name}' tblproperties ({text})"
    )
    for first in (0, 100):
        row = "concat('person-', lpad(id, 4, '0')), concat('about-', lpad(id, 4, '0')), id"
        row += ", if(id = 5, 'alone', concat('p', id % 2))"
        spark(f"insert into {table} select /*+ coalesce(1) */ {row} from range({first}, {first + 100})")
    return table


def change(spark: IcebergSpark, table: str) -> None:
    spark(f"update {table} set note = concat(note, ' changed') where who in ('person-0007', '{GONE[0]}')")
    spark(f"delete from {table} where who = '{GONE[1]}'")


def purge(
    lab: Lab,
    *more: str,
    hudi: bool = True,
    killed: tuple[str, str] | None = None,
    met: tuple[str, str] | None = None,
    db: str = "",
) -> Answer:
    """`purge run` in a Spark with Hudi, or without. No writer of these tests lasts."""
    grace = [] if "--grace" in more else ["--grace", "0s"]
    settings = product_settings() if hudi else ()
    return purge_by(lab, *more, *grace, settings=settings, killed=killed, met=met, db=db, python=product_python())


def people(spark: IcebergSpark, table: str) -> set[str]:
    spark(f"refresh table {table}")
    return {row[0] for row in spark(f"select who from {table}")}


def seen(place: Path) -> set[str]:
    """The people that hudi-rs reads."""
    from hudi import HudiTableBuilder

    found = pa.Table.from_batches(HudiTableBuilder.from_base_uri(str(place)).build().read())
    return set(found["who"].to_pylist())


def holding(place: Path) -> list[str]:
    """Files with the value of an erased row, below the place."""
    return [str(Path(each).relative_to(place)) for each in files_holding(place)]


@pytest.mark.parametrize("kind, version", [("cow", "9"), ("mor", "9"), ("mor", "8"), ("mor", "6")])
def test_rows_go_from_every_slice_and_are_certified(fixture: Lab, lake: IcebergSpark, kind: str, version: str) -> None:
    if version != "9":
        lake(f"set hoodie.write.table.version={version}")
        lake("set hoodie.write.auto.upgrade=false")
    for key, value in INDEXED.items():
        lake(f"set {key}={value}")
    table, place = make(lake, fixture, "t", kind, **{"hoodie.write.table.version": version}), fixture.source.home / "t"
    first = lake(f"select max(_hoodie_commit_time) from {table}")[0][0]
    change(lake, table)
    before = holding(place)
    indexes = {Path(each).parts[2] for each in before if each.startswith(".hoodie/metadata/")}
    assert indexes == {"column_stats", "record_index", *(["partition_stats"] if version != "6" else [])}
    planned = purge(fixture, "--table-whitelist", table, "--dry-run")
    assert planned.code == 0 and planned.output["rows_erased"] == 1, planned
    assert people(lake, table) == EVERYONE - {GONE[1]} and holding(place) == before

    done = purge(fixture, "--table-whitelist", table, "--certify", "--expedite")
    assert done.code == 0 and done.output["rows_erased"] == 1, done
    assert done.output["certificate"]["status"] == "certified", done
    assert people(lake, table) == LEFT == seen(place)
    assert holding(place) == []
    assert lake(f"select note from {table} where who = 'person-0007'") == [["about-0007 changed"]]
    lake(f"refresh table {table}")
    past = {row[0] for row in lake(f"select who from {table} timestamp as of '{first}'")}
    assert past.isdisjoint(GONE)
    again = purge(fixture, "--table-whitelist", table, "--certify")
    assert again.code == 0 and again.output["rows_erased"] == 0, again
    assert f"hoodie.table.version={version}\n" in (place / ".hoodie/hoodie.properties").read_text()

    lake(f"insert into {table} values ('late', 'of a writer', 1000, 'p1')")
    assert people(lake, table) == LEFT | {"late"} and holding(place) == []
    assert "record_index" in (place / ".hoodie/hoodie.properties").read_text()


def test_a_purge_that_is_killed_after_each_step_is_completed(fixture: Lab, lake: IcebergSpark) -> None:
    table, place = make(lake, fixture, "t", "mor", key="n"), fixture.source.home / "t"
    change(lake, table)
    steps = [
        ("_delete", "after"),
        ("_compact", "after"),
        ("_record", "after"),
        ("_clean", "after"),
        ("_drop", "before"),
    ]
    for step, moment in steps:
        purge(fixture, "--table-whitelist", table, killed=(f"hudi:{step}", moment))
        assert holding(place)
    done = purge(fixture, "--table-whitelist", table, "--certify")
    assert done.code == 0 and done.output["resumed"], done
    assert (done.output["rows_erased"], done.output["certificate"]["status"]) == (1, "certified"), done
    assert done.output["certificate"]["contents"] > 2
    assert people(lake, table) == LEFT == seen(place) and holding(place) == []


def test_a_write_that_is_in_flight_and_a_savepoint_are_named(fixture: Lab, lake: IcebergSpark) -> None:
    """As if the newest write were not completed: its last file is away."""
    flying, saved = (make(lake, fixture, name, "cow") for name in ("flying", "saved"))
    home = fixture.source.home
    timeline = home / "flying/.hoodie/timeline"
    newest = max(each for each in timeline.iterdir() if each.suffix == ".commit")
    aside = newest.rename(home / newest.name)
    ((first, last),) = lake(f"select min(_hoodie_commit_time), max(_hoodie_commit_time) from {saved}")
    note = f"kept for {GONE[0]}."
    lake(f"call create_savepoint(table => '{saved}', commit_time => '{last}', comments => '{note}')")

    whitelist = ("--table-whitelist", f"{fixture.source.name}.flying|saved")
    done = purge(fixture, *whitelist, "--grace", "2h")
    assert done.code == 3, done
    units = {each["table"].rpartition(".")[2]: each["units"][0] for each in done.output["tables"]}
    assert {each["state"] for each in units.values()} == {"EXHAUSTED"}, units
    assert f"the instant {newest.name.partition('_')[0]} is in flight" in units["flying"]["reason"], units
    assert f"delete the savepoints {last}" in units["saved"]["reason"], units
    (named,) = (each["reason"] for each in done.output["gaps"] if "of its timeline has an id" in each["reason"])
    assert f"/{last}_" in named and ".savepoint" in named, done.output["gaps"]
    assert people(lake, saved) == LEFT and first < last
    aside.rename(newest)
    assert people(lake, flying) == EVERYONE

    newest.unlink()
    lake(f"call delete_savepoint(table => '{saved}', instant_time => '{last}')")
    done = purge(fixture, *whitelist, "--certify")
    assert [*done.output["gaps"], *done.output["certificate"]["holding"]] == []
    assert done.code == 0 and done.output["certificate"]["status"] == "certified", done
    assert people(lake, saved) == LEFT and people(lake, flying) < LEFT
    assert holding(home / "saved") == [] == holding(home / "flying")


def test_rows_that_a_writer_adds_during_a_purge_are_searched_again(fixture: Lab, lake: IcebergSpark) -> None:
    table, place = make(lake, fixture, "t", "cow"), fixture.source.home / "t"
    without = purge(fixture, "--table-whitelist", table, hudi=False)
    assert without.code == 3 and "hudi-spark3.5-bundle_2.12" in without.output["gaps"][0]["reason"], without
    assert people(lake, table) == EVERYONE
    done = purge(fixture, "--table-whitelist", table, "--certify", met=("hudi:_record", GONE[1]))
    assert done.code == 0 and done.output["certificate"]["status"] == "certified", done
    (unit,) = done.output["tables"][0]["units"]
    assert (unit["state"], unit["attempt"]) == ("DONE", 2)
    assert people(lake, table) == LEFT | {"person-of-the-writer"} and holding(place) == []


def test_a_replica_follows_and_every_copy_is_found(fixture: Lab, lake: IcebergSpark, warehouse: Warehouse) -> None:
    """The certificate is made by the newest Spark, which has no Hudi."""
    source, target = fixture.db(), fixture.replica()
    table = make(lake, fixture, "t", "cow", db=source)
    lake(f"delete from {table} where who = '{GONE[0]}'")
    purged_everywhere(
        fixture, warehouse, lambda: purge(fixture, db=source.name), lambda: seen(target.home / "t") == LEFT
    )


def test_a_delete_that_overlaps_another_write_is_rolled_back_and_repeated(
    fixture: Lab, lake: IcebergSpark, tmp_path: Path
) -> None:
    """The writer commits to the same file group while the delete is in flight. No write is lost."""
    table, place = make(lake, fixture, "t", "cow"), fixture.source.home / "t"
    lake("set hoodie.write.concurrency.mode = optimistic_concurrency_control")
    lake("set hoodie.clean.failed.writes.policy = LAZY")
    lake("set hoodie.write.lock.provider = org.apache.hudi.client.transaction.lock.InProcessLockProvider")
    with ThreadPoolExecutor() as threads:
        met = "hudi:overlaps", str(tmp_path)
        purging = threads.submit(purge, fixture, "--table-whitelist", table, "--certify", met=met)
        eventually(lambda: purging.done() or (tmp_path / "begun").exists())
        lake(f"update {table} set note = 'meanwhile' where who = 'person-0007'")
        (tmp_path / "met").touch()
        done = purging.result()
    assert done.code == 0 and done.output["certificate"]["status"] == "certified", done
    (unit,) = done.output["tables"][0]["units"]
    assert (unit["state"], unit["attempt"]) == ("DONE", 2), done
    assert len(list((place / ".hoodie/timeline").glob("*.rollback"))) == 1
    assert people(lake, table) == LEFT and holding(place) == []
    assert lake(f"select note from {table} where who = 'person-0007'") == [["meanwhile"]]
