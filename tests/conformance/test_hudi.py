"""Tables of Hudi's own writer, replicated under another database's name, and read and written by Hudi itself with the
source moved away."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from command_line import Answer, command
from hudi_spark import HudiSpark
from lab import Lab

TABLES = {
    "cow": ("cow", "partitioned by (d)", {"hoodie.datasource.write.hive_style_partitioning": "false"}),
    "mor": ("mor", "partitioned by (d)", {}),
}
MAINTAINED = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.cleaner.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.parquet.small.file.limit": "0",
    "hoodie.metadata.compact.max.delta.commits": "4",
}
VERSIONS = [("1.2.0", ""), ("1.2.0", "8"), ("0.15.0", "")]
WRITTEN = {"1.2.0": "9", "0.15.0": "6"}


def create(spark: HudiSpark, db: str, version: str) -> None:
    if version:
        spark("set hoodie.write.auto.upgrade=false")
        spark(f"set hoodie.write.table.version={version}")
    of_version = {"hoodie.write.table.version": version} if version else {}
    for name, (kind, more, properties) in TABLES.items():
        given = {"type": kind, "primaryKey": "id", "preCombineField": "ts"} | properties | of_version
        text = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
        columns = "(id int, name string, ts bigint, d string)"
        spark(f"create table {db}.{name} {columns} using hudi {more} tblproperties ({text})")


def fill(spark: HudiSpark, db: str, ids: range) -> None:
    for name in TABLES:
        rows = ", ".join(f"({id}, 'n{id}', 1, 'p{id % 2}')" for id in ids)
        spark(f"insert into {db}.{name} values {rows}")
        spark(f"update {db}.{name} set name = 'u' where id = {ids[0]}")
        spark(f"delete from {db}.{name} where id = {ids[-1]}")


def maintained(spark: HudiSpark, db: str) -> None:
    """Writes, until tables are compacted, clustered, cleaned and archived, and plans a compaction."""
    for key, value in MAINTAINED.items():
        spark(f"set {key}={value}")
    for start in (20, 30):
        fill(spark, db, range(start, start + 4))
    spark(f"call run_clustering(table => '{db}.cow')")
    spark(f"call run_compaction(op => 'run', table => '{db}.mor')")
    spark(f"call run_clean(table => '{db}.mor')")
    spark(f"call run_compaction(op => 'schedule', table => '{db}.mor')")


def rows(spark: HudiSpark, db: str) -> dict[str, list[list[str]]]:
    found = {}
    for name in (*TABLES, "mor_ro", "mor_rt"):
        spark(f"refresh table {db}.{name}")
        found[name] = spark(f"select id, name, d from {db}.{name} order by id")
    return found


def verified(lab: Lab, *more: str) -> Answer:
    sides = ["--source", lab.source_uri, "--target", lab.target_uri, "--db", lab.name]
    return command("verify", *sides, "--engine", "local", *more)


def names(place: Path, *texts: str) -> list[str]:
    """The files below a directory whose bytes have one of some texts, but for archived instants of version 6, which
    are copied as they are."""
    files = (path for path in place.rglob("*") if path.is_file() and path.parent.name != "archived")
    return [str(path) for path in files if any(text.encode() in path.read_bytes() for text in texts)]


@pytest.mark.long
@pytest.mark.parametrize("release, version", VERSIONS)
def test_a_replica_is_read_and_written_without_its_source(fixture: Lab, release: str, version: str) -> None:
    db, replica = fixture.name, f"{fixture.name}_r"
    renamed = ("--rename-db", f"{db}={replica}")
    with ExitStack() as stack:
        sides = ((fixture.source_uri, fixture.source.home), (fixture.target_uri, fixture.target.home))
        source, target = (stack.enter_context(HudiSpark(uri, Path(home).parent, release)) for uri, home in sides)
        create(source, db, version)
        fill(source, db, range(6))
        dumped = fixture.dump()
        for maintain in (True, False):
            loaded = fixture.load(fixture.last, *renamed)
            found = verified(fixture, *renamed)
            assert (dumped.code, loaded.code, found.code) == (0, 0, 0), (dumped, loaded, found.output["differences"])
            wanted = rows(source, db)
            for name in TABLES:
                text = (fixture.source.home / name / ".hoodie/hoodie.properties").read_text()
                assert f"hoodie.table.version={version or WRITTEN[release]}\n" in text
            with fixture.without_source():
                assert rows(target, replica) == wanted
            assert names(fixture.warehouse / f"{replica}.db", str(fixture.source.home)) == []
            if maintain:
                maintained(source, db)
                dumped = fixture.dump(since=fixture.last)
        with fixture.without_source():
            fill(target, replica, range(100, 104))
            assert [id for id, *_ in rows(target, replica)["mor"]][-3:] == ["100", "101", "102"]
