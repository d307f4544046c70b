"""Replicas of Iceberg tables, read by Iceberg itself while the source is away: each snapshot, the files that it names,
and writers of the replica, which must not reach the source."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from command_line import command
from iceberg_spark import IcebergSpark
from iceberg_tables import is_same, naming_source, replicated, verified
from lab import Lab

DAY, TIME = "date '2026-01-0{}'", "timestamp '2026-01-01 00:00:00'"
VERSIONS = (1, 2, 3)


def insert(table: str, first: int, day: int) -> str:
    values = f"id + {first}, concat('n', id), {DAY.format(day)}, cast(id as decimal(10, 2)), {TIME}"
    return f"insert into {table} select {values} from range(6)"


def write(source: IcebergSpark, lab: Lab, version: int) -> str:
    """A table of a version of the specification with all that it has: deletes by row, branches, tags, statistics."""
    table = f"c.{lab.name}.v{version}"
    properties = {"format-version": version, "commit.manifest.min-count-to-merge": 3}
    if version > 1:
        properties |= {"write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read"}  # type: ignore[dict-item]
    text = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    columns = "id bigint, name string, d date, m decimal(10, 2), at timestamp"
    source(
        f"create table {table} ({columns}) using iceberg partitioned by (d, bucket(2, id))"
        f" location 'file://{lab.source.home}/v{version}' tblproperties ({text})"
    )
    for number in range(4):
        source(insert(table, 10 * number, number + 1))
    if version > 1:
        source(f"delete from {table} where id in (1, 12)")
        source(f"update {table} set name = 'x' where id = 23")
        source(f"alter table {table} create tag kept")
        source(f"alter table {table} create branch other")
        source(insert(f"{table}.branch_other", 900, 1))
    source(f"call c.system.compute_table_stats(table => '{lab.name}.v{version}')")
    return table


def shown(spark: IcebergSpark, table: str) -> dict[str, list[list[str]]]:
    """The rows of each snapshot, branch and tag, and the numbers of files."""
    snapshots = [row[0] for row in spark(f"select snapshot_id from {table}.snapshots order by committed_at")]
    found = {each: spark(f"select * from {table} version as of {each} order by id") for each in snapshots}
    refs = [row[0] for row in spark(f"select name from {table}.refs order by name")]
    found |= {each: spark(f"select * from {table} version as of '{each}' order by id") for each in refs}
    files = [f"select count(*) from {table}.{each}" for each in ("all_data_files", "all_delete_files", "all_manifests")]
    return found | {"files": [row for each in files for row in spark(each)]}


def compare(source: IcebergSpark, target: IcebergSpark, lab: Lab, tables: list[str]) -> None:
    wanted = {table: shown(source, table) for table in tables}
    with lab.without_source():
        assert {table: shown(target, table) for table in tables} == wanted
        for table in tables:
            files = target(f"select file_path from {table}.all_files union select path from {table}.all_manifests")
            assert files and all(f"{lab.target.home}/" in row[0] for row in files)
    assert naming_source(lab) == []
    is_same(lab)


def test_each_snapshot_is_the_sources_and_a_replica_works_without_it(fixture: Lab) -> None:
    with (
        IcebergSpark(fixture.source_uri, fixture.source.home.parent) as source,
        IcebergSpark(fixture.target_uri, fixture.target.home.parent) as target,
    ):
        tables = [write(source, fixture, version) for version in VERSIONS]
        replicated(fixture)
        compare(source, target, fixture, tables)

        for version, table in zip(VERSIONS, tables, strict=True):
            if version > 1:
                source(f"delete from {table} where id = 22")
                source(f"call c.system.rewrite_data_files(table => '{fixture.name}.v{version}')")
            source(f"call c.system.rewrite_manifests('{fixture.name}.v{version}')")
            source(f"alter table {table} add column more string")
            source(f"insert into {table} select 77, 'p', {DAY.format(9)}, 1.0, {TIME}, 'm'")
        replicated(fixture)
        compare(source, target, fixture, tables)

        for version in VERSIONS:
            older = "older_than => timestamp '2100-01-01 00:00:00', retain_last => 1"
            source(f"call c.system.expire_snapshots(table => '{fixture.name}.v{version}', {older})")
        replicated(fixture)
        compare(source, target, fixture, tables)

        counts = [source(f"select count(*) from {table}") for table in tables]
        for version, table in zip(VERSIONS, tables, strict=True):
            target(f"delete from {table} where id = 77")
            target(f"call c.system.rewrite_data_files(table => '{fixture.name}.v{version}')")
            target(f"drop table {table} purge")
        assert [source(f"select count(*) from {table}") for table in tables] == counts


def test_files_outside_of_a_tables_location_are_its_replicas_own(fixture: Lab) -> None:
    """Files of `add_files`, data, deletes and deletion vectors of writers that write elsewhere."""
    outside, away = fixture.here / "outside", fixture.here / "away"
    outside.mkdir()
    listed = ("--iceberg-outside", str(outside))
    with (
        IcebergSpark(fixture.source_uri, fixture.source.home.parent) as source,
        IcebergSpark(fixture.target_uri, fixture.target.home.parent) as target,
    ):
        tables = [f"c.{fixture.name}.v{version}" for version in (2, 3)]
        for version, table in zip((2, 3), tables, strict=True):
            data = f"'write.data.path' = 'file://{outside}/v{version}', 'write.delete.mode' = 'merge-on-read'"
            source(
                f"create table {table} (id bigint, name string) using iceberg tblproperties ('format-version' ="
                f" {version}, {data}) location 'file://{fixture.source.home}/v{version}'"
            )
            source(f"insert into {table} select id, concat('n', id) from range(6)")
            source(
                f"insert overwrite directory 'file://{outside}/p{version}' using parquet select 7L as id, 'p' as name"
            )
            files = f"source_table => '`parquet`.`file://{outside}/p{version}`'"
            source(f"call c.system.add_files(table => '{fixture.name}.v{version}', {files})")
            source(f"delete from {table} where id in (1, 7)")

        def compare(since: Path | None) -> None:
            for answer in (fixture.dump(*listed, since=since), fixture.load()):
                assert answer.code == 0, answer
            wanted = {table: shown(source, table) for table in tables}
            outside.rename(away)
            with fixture.without_source():
                assert {table: shown(target, table) for table in tables} == wanted
            away.rename(outside)
            assert naming_source(fixture, None, outside) == []
            found = verified(fixture)
            assert (found.code, found.output["status"]) == (0, "same"), found

        compare(None)
        older = "older_than => timestamp '2100-01-01 00:00:00', retain_last => 1"
        for version, table in zip((2, 3), tables, strict=True):
            source(f"delete from {table} where id = 2")
            source(f"call c.system.rewrite_data_files(table => '{fixture.name}.v{version}')")
            source(f"call c.system.expire_snapshots(table => '{fixture.name}.v{version}', {older})")
        compare(fixture.last)
        assert not list(fixture.target.home.rglob("outside/file/**/p2/*")) and not list(outside.glob("p2/*.parquet"))

        counts = [source(f"select count(*) from {table}") for table in tables]
        for version, table in zip((2, 3), tables, strict=True):
            before = target(f"select * from {table} order by id")
            old = "older_than => timestamp '2020-01-01 00:00:00'"
            target(f"call c.system.remove_orphan_files(table => '{fixture.name}.v{version}', {old})")
            target(f"insert into {table} values (8, 'own')")
            target(f"call c.system.rewrite_data_files(table => '{fixture.name}.v{version}')")
            target(f"call c.system.expire_snapshots(table => '{fixture.name}.v{version}', {older})")
            assert target(f"select * from {table} order by id") == [*before, ["8", "own"]]
            target(f"drop table {table} purge")
        assert [source(f"select count(*) from {table}") for table in tables] == counts
        assert not list(fixture.target.home.rglob("*.parquet"))


@pytest.mark.parametrize("renamed", [False, True], ids=["same name", "another name"])
def test_views_show_the_replicas_rows(fixture: Lab, renamed: bool) -> None:
    name, there = fixture.name, f"{fixture.name}_copy" if renamed else fixture.name
    rename = ("--rename-db", f"{name}={there}") if renamed else ()
    with (
        IcebergSpark(fixture.source_uri, fixture.source.home.parent) as source,
        IcebergSpark(fixture.target_uri, fixture.target.home.parent) as target,
    ):
        source(f"create table c.{name}.t (id bigint, s string) using iceberg location 'file://{fixture.source.home}/t'")
        source(f"insert into c.{name}.t values (1, 'a'), (2, 'b')")
        source(f"use c.{name}")
        source(f"create view whole as select id from {name}.t")
        source("create view short (x comment 'c') tblproperties ('a' = 'b') as select id from t where id > 1")

        def replicate(since: Path | None) -> None:
            for answer in (fixture.dump(since=since), fixture.load(fixture.last, *rename)):
                assert answer.code == 0, answer
            sides = ["--source", fixture.source_uri, "--target", fixture.target_uri, "--db", name]
            found = command("verify", *sides, "--engine", "local", *rename)
            assert (found.code, found.output["status"]) == (0, "same"), found

        replicate(None)
        with fixture.without_source():
            assert target(f"select * from c.{there}.whole order by id") == [["1"], ["2"]]
            assert target(f"select x from c.{there}.short") == [["2"]]
        source(f"create or replace view whole as select s from {name}.t")
        source("drop view short")
        source(f"insert into c.{name}.t values (3, 'c')")
        replicate(fixture.last)
        with fixture.without_source():
            assert target(f"select * from c.{there}.whole order by s") == [["a"], ["b"], ["c"]]
        assert [row[1] for row in target(f"show views in c.{there}")] == ["whole"]
        source_home = fixture.source.home
        assert f"{source_home}/".encode() not in gzip.decompress(view_file(fixture, there, "whole").read_bytes())
        target(f"alter view c.{there}.whole set tblproperties ('of' = 'the replica')")
        own = view_file(fixture, there, "whole")
        assert own.is_relative_to(fixture.warehouse / f"{there}.db/whole")
        assert target(f"select * from c.{there}.whole order by s") == [["a"], ["b"], ["c"]]


def view_file(lab: Lab, db: str, name: str) -> Path:
    return Path(
        lab.target.metastore.table(db, name).parameters["metadata_location"].removeprefix("file:").replace("///", "/")
    )
