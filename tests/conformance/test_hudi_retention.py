"""Retention of Hudi tables: the first instants end, and every other one reads as before, by Hudi and by hudi-rs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from command_line import Answer, command
from delta_versions import arguments, newest, retained
from hudi_spark import HudiSpark, product_python, product_settings
from iceberg_spark import IcebergSpark
from lab import Lab
from plain_tables import PlainDatabase

from cmroot.root import create_or_open
from replicator.core.audit import read_audit

pytestmark = pytest.mark.long


@pytest.fixture
def lake(fixture: Lab) -> Iterator[IcebergSpark]:
    create_or_open(str(fixture.cmroot))
    with HudiSpark(fixture.source_uri, fixture.source.home.parent) as spark:
        spark("set hoodie.clean.automatic = false")
        spark("set hoodie.archive.automatic = false")
        yield spark


def make(
    spark: IcebergSpark, lab: Lab, name: str, kind: str = "cow", db: PlainDatabase | None = None, **more: str
) -> Path:
    """A table of two partitions and nine writes, of which one replaces a partition, and the next one clusters all.
    Returns its location."""
    db = db or lab.source
    table, place = f"{db.name}.{name}", db.home / name
    given = {"type": kind, "primaryKey": "id", "preCombineField": "n", "hoodie.compact.inline": "false", **more}
    text = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    spark(
        f"create table {table} (id bigint, n bigint, d string) using hudi partitioned by (d)"
        f" location 'file://{place}' tblproperties ({text})"
    )
    statements = (
        f"insert into {table} select /*+ coalesce(1) */ id, 0, concat('p', id % 2) from range(20)",
        f"update {table} set n = 1 where id = 4",
        f"insert overwrite {table} partition (d = 'p1') select 101, 3",
        f"call run_clustering(table => '{table}', op => 'scheduleAndExecute')",
        f"insert into {table} select /*+ coalesce(1) */ id, 0, concat('p', id % 2) from range(20, 30)",
        f"update {table} set n = 2 where id % 2 = 0",
        f"delete from {table} where id = 22",
        f"update {table} set n = 4 where id = 101",
        f"update {table} set n = 5 where id = 2",
    )
    for number, statement in enumerate(statements):
        spark(statement)
        if kind == "mor" and number % 3 == 1:
            spark(f"call run_compaction(table => '{table}', op => 'scheduleandexecute')")
    return place


def instants(place: Path, action: str = "commit") -> list[str]:
    """The times of the completed writes on a table's timeline."""
    home = place / ".hoodie"
    found = [*home.glob(f"*{action}"), *(home / "timeline").glob(f"*{action}")]
    return sorted(path.name.partition(".")[0].partition("_")[0] for path in found)


Rows = list[tuple[int, int]]


def rows(spark: IcebergSpark, table: str, instant: str) -> Rows:
    """What Hudi reads as of an instant."""
    found = spark(f"select id, n from {table} timestamp as of '{instant}'")
    return sorted((int(each[0]), int(each[1])) for each in found)


def read(spark: IcebergSpark, table: str, several: Iterable[str]) -> dict[str, Rows]:
    spark(f"refresh table {table}")
    return {each: rows(spark, table, each) for each in several}


def read_by_rust(place: Path, several: Iterable[str]) -> dict[str, Rows]:
    """What hudi-rs reads as of instants."""
    from hudi import HudiReadOptions, HudiTableBuilder

    table, found = HudiTableBuilder.from_base_uri(str(place)).build(), dict[str, Rows]()
    for each in several:
        batches = table.read(HudiReadOptions().with_as_of_timestamp(each))
        data = pa.Table.from_batches(batches)
        found[each] = sorted(zip(data["id"].to_pylist(), data["n"].to_pylist(), strict=True))
    return found


def ended(spark: IcebergSpark, table: str, several: Iterable[str]) -> bool:
    """Hudi reads no state as of these instants."""
    for each in several:
        with pytest.raises(AssertionError, match="Cleaner cleaned up the timestamp of interest"):
            rows(spark, table, each)
    return True


def base_files(place: Path) -> set[str]:
    return {path.name for path in place.glob("d=*/*.parquet")}


def shown(spark: IcebergSpark, table: str, several: Iterable[str]) -> set[str]:
    """The base files that have the rows of states."""
    asked = "select distinct _hoodie_file_name from {} timestamp as of '{}'"
    return {row[0] for each in several for row in spark(asked.format(table, each))}


def run(lab: Lab, keeps: int, killed: tuple[str, str] | None = None, db: PlainDatabase | None = None) -> Answer:
    """A retention in a Spark with Hudi that keeps so many of the newest instants."""
    given = arguments(lab, db=db)
    return retained(given, *newest(keeps), killed=killed, python=product_python(), spark=product_settings())


def whys(answer: Answer) -> str:
    return "; ".join(each["why"] for each in answer.output["failed"])


@pytest.mark.parametrize("kind, version", [("cow", "9"), ("mor", "9"), ("mor", "8"), ("cow", "6")])
def test_the_first_instants_end_and_the_others_read_as_before(
    fixture: Lab, lake: IcebergSpark, kind: str, version: str
) -> None:
    if version != "9":
        lake(f"set hoodie.write.table.version={version}")
    place, table = make(lake, fixture, "t", kind, **{"hoodie.write.table.version": version}), f"{fixture.name}.t"
    times, files = instants(place), base_files(place)
    before, of_state = read(lake, table, times), {each: shown(lake, table, [each]) for each in times}

    planned = command(*arguments(fixture), *newest(4), "--dry-run")
    found = [(each["act"], str(each["snapshot"])) for each in planned.output["items"]]
    assert planned.code == 0 and found == [("expire", each) for each in times[-5 - len(found) : -5]], planned
    assert len(found) == (4 if kind == "cow" else len(found)) > 2, planned
    answer = command(*arguments(fixture), *newest(4))
    assert (answer.code, answer.output["expired"]) == (3, 0) and "org.apache.hudi" in whys(answer), answer
    root, other = ["--cmroot", str(fixture.cmroot)], "t_ro" if kind == "mor" else "t"
    command("legal-hold", "add", "case-17", *root, "--on", f"{fixture.name}.{other}", "--reason", "a case")
    answer = run(fixture, 4)
    assert (answer.code, answer.output["expired"], answer.output["refused_count"]) == (3, 0, len(found)), answer
    command("legal-hold", "release", "case-17", *root)
    assert base_files(place) == files

    for keeps in (4, 2) if kind == "cow" else (4,):
        kept = times[-keeps:]
        answer = run(fixture, keeps)
        assert answer.code == 0 and answer.output["expired"] > 0, answer
        assert read(lake, table, kept) == {each: before[each] for each in kept}
        assert read_by_rust(place, kept[-1:]) == {kept[-1]: before[kept[-1]]}
        assert ended(lake, table, times[:-keeps])
        if kind == "cow":
            assert base_files(place) == set[str]().union(*(of_state[each] for each in times[-keeps - 1 :]))
    assert base_files(place) < files
    again = command(*arguments(fixture), *newest(keeps))
    assert (again.code, again.output["selected"]) == (0, 0), again
    assert f"hoodie.table.version={version}\n" in (place / ".hoodie/hoodie.properties").read_text()

    lake(f"update {table} set n = 9 where id = 101")
    changed = [(id, 9 if id == 101 else n) for id, n in before[times[-1]]]
    assert read(lake, table, instants(place)[-1:]).popitem()[1] == changed


def test_files_of_groups_that_were_replaced_later_are_named(fixture: Lab, lake: IcebergSpark) -> None:
    place, table = make(lake, fixture, "t"), f"{fixture.name}.t"
    times, files = instants(place), base_files(place)
    clustered = instants(place, "replacecommit")[1]
    before = read(lake, table, times)
    answer = run(fixture, 7)
    assert answer.code == 3 and f"replaced later stay until the instant {clustered} ends" in whys(answer), answer
    assert read(lake, table, times) == before and base_files(place) == files


def test_a_savepoint_stays_and_a_write_in_flight_holds_what_follows(fixture: Lab, lake: IcebergSpark) -> None:
    place, table = make(lake, fixture, "t"), f"{fixture.name}.t"
    times = instants(place)
    before = read(lake, table, times)
    lake(f"call create_savepoint(table => '{table}', commit_time => '{times[2]}')")

    (done,) = (place / ".hoodie/timeline").glob(f"{times[5]}_*.commit")
    aside = done.rename(place.parent / done.name)
    planned = command(*arguments(fixture), *newest(2), "--dry-run")
    assert planned.code == 3 and f"the write {times[5]} is in flight" in whys(planned), planned
    assert [str(each["snapshot"]) for each in planned.output["items"]] == [times[0], times[1]], planned
    aside.rename(done)

    of_state = {each: shown(lake, table, [each]) for each in times}
    assert run(fixture, 2).code == 0
    assert read(lake, table, times[-2:]) == {each: before[each] for each in times[-2:]}
    left = set[str]().union(*(of_state[each] for each in times[-3:]))
    assert base_files(place) == left | of_state[times[2]]
    lake(f"call delete_savepoint(table => '{table}', instant_time => '{times[2]}')")
    assert run(fixture, 2).code == 0 and base_files(place) == left


@pytest.mark.parametrize("step, moment", [("plan_clean", "after"), ("run_cleans", "after")])
def test_a_killed_run_is_completed_by_the_next_one(fixture: Lab, lake: IcebergSpark, step: str, moment: str) -> None:
    place, table = make(lake, fixture, "t"), f"{fixture.name}.t"
    times = instants(place)
    before, left = read(lake, table, times[-2:]), shown(lake, table, times[-3:])
    run(fixture, 2, killed=(step, moment))
    assert read(lake, table, times[-2:]) == before
    (begun,) = read_audit(str(fixture.cmroot), outcome="intended")
    assert json.loads(begun.detail)["instants"] == [int(each) for each in times[:-3]]
    assert run(fixture, 2).code == 0
    assert read(lake, table, times[-2:]) == before and base_files(place) == left
    assert ended(lake, table, times[:-2])


def test_a_write_that_is_completed_meanwhile_ends_nothing_else(fixture: Lab, lake: IcebergSpark) -> None:
    """Hudi counts the instants to retain when it plans."""
    place, table = make(lake, fixture, "t"), f"{fixture.name}.t"
    times, files = instants(place), base_files(place)
    before = read(lake, table, times)
    answer = run(fixture, 3, killed=("plan_clean", "meets"))
    assert answer.code == 3 and "another write was completed, run again" in whys(answer), answer
    assert read(lake, table, times) == before and files < base_files(place)
    assert list((place / ".hoodie/timeline").glob("*clean*")) == []
    last = instants(place)[-1]
    assert run(fixture, 3).code == 0
    assert read(lake, table, [*times[-2:], last]) == {
        **{each: before[each] for each in times[-2:]},
        last: [*before[times[-1]], (1000, 7)],
    }
    assert ended(lake, table, times[:-2])


def test_a_replica_follows(fixture: Lab, lake: IcebergSpark) -> None:
    source, target = fixture.db(), fixture.replica()
    place, there = make(lake, fixture, "t", db=source), target.home / "t"
    times = instants(place)
    before = read(lake, f"{source.name}.t", times)
    assert fixture.sync().status == "synced"
    assert read_by_rust(there, times[-2:]) == {each: before[each] for each in times[-2:]}
    assert run(fixture, 2, db=source).code == 0
    assert fixture.sync().status == "synced"
    verified = command("--config", str(fixture.config()), "verify", fixture.name, "--engine", "local")
    assert (verified.code, verified.output["status"]) == (0, "same"), verified
    assert base_files(there) == base_files(place)
    assert read_by_rust(there, times[-2:]) == {each: before[each] for each in times[-2:]}
