"""Tables of Delta's own writer with each feature, replicated, and read by Delta itself with the source moved away."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from command_line import Answer, command
from delta_spark import DeltaSpark
from lab import Lab

TABLES = {
    "vectors": ("id int, p string", "partitioned by (p)", {"enableDeletionVectors": "true"}),
    "mapped": ("id int, gone string, old string", "", {"columnMapping.mode": "name"}),
    "changes": ("id int", "", {"enableChangeDataFeed": "true"}),
    "tracked": ("id int", "", {"enableRowTracking": "true"}),
    "widened": ("id int, n byte", "", {"enableTypeWidening": "true"}),
    "variants": ("id int, v variant", "", {}),
    "timed": ("id int", "", {"enableInCommitTimestamps": "true"}),
    "sidecars": ("id int", "", {"checkpointPolicy": "v2", "checkpointInterval": "2"}),
}
FIRST = {
    "vectors": ["insert into {} select id, 'a b' from range(0, 100, 1, 1)", "delete from {} where id < 3"],
    "mapped": [
        "insert into {} values (1, 'x', 'y')",
        "alter table {} rename column old to new",
        "alter table {} drop column gone",
    ],
    "changes": ["insert into {} values (1), (2)", "update {} set id = 3 where id = 2"],
    "tracked": ["insert into {} values (1), (2)", "delete from {} where id = 1"],
    "widened": ["insert into {} values (1, 100)", "alter table {} alter column n type int"],
    "variants": ["""insert into {} select 1, parse_json('{{"a": [1, "x"]}}')"""],
    "timed": ["insert into {} values (1)"],
    "sidecars": [f"insert into {{}} values ({number})" for number in range(5)],
}
THEN = {
    "vectors": ["delete from {} where id < 5", "optimize {}"],
    "mapped": ["insert into {} values (2, 'z')"],
    "changes": ["delete from {} where id = 1"],
    "tracked": ["insert into {} values (7)", "update {} set id = 8 where id = 7"],
    "widened": ["insert into {} values (2, 100000)"],
    "variants": ["insert into {} select 2, parse_json('7')"],
    "timed": ["insert into {} values (2)"],
    "sidecars": [f"insert into {{}} values ({number})" for number in range(10, 13)],
}
CLONES = {"clone": "vectors", "clone_of_sidecars": "sidecars"}
FEATURES = {
    *("deletionVectors", "columnMapping", "changeDataFeed", "rowTracking"),
    *("typeWidening", "variantType", "inCommitTimestamp", "v2Checkpoint"),
}
READ = {
    "vectors": "select count(*), min(id), max(p) from {}",
    "changes": "select * except (_commit_timestamp) from table_changes('{}', 0) order by all",
    "tracked": "select id, _metadata.row_id, _metadata.row_commit_version from {} order by all",
    "variants": "select id, to_json(v) from {} order by id",
    "timed": "select id from {} version as of 1",
}


def write(source: DeltaSpark, lab: Lab, statements: dict[str, list[str]]) -> None:
    for name, some in statements.items():
        for statement in some:
            source(statement.format(f"{lab.name}.{name}"))


def shown(spark: DeltaSpark, lab: Lab) -> dict[str, list[list[str]]]:
    found = {}
    for name in (*TABLES, *CLONES):
        table = f"{lab.name}.{name}"
        found[name] = spark(READ.get(name, "select * from {} order by all").format(table))
        found[f"history of {name}"] = spark(f"describe history {table}")
    return found


def features(home: Path) -> set[str]:
    """The features of the tables of a database, by their logs."""
    lines = (line for path in home.glob("*/_delta_log/*.json") for line in path.read_text().splitlines())
    found = (json.loads(line).get("protocol", {}).get("writerFeatures", ()) for line in lines)
    return {name for some in found for name in some}


def verified(lab: Lab) -> Answer:
    sides = ["--source", lab.source_uri, "--target", lab.target_uri, "--db", lab.name]
    return command("verify", *sides, "--engine", "local")


@pytest.mark.long
def test_a_replica_of_every_feature_reads_as_its_source(fixture: Lab) -> None:
    with ExitStack() as stack:
        sides = ((fixture.source_uri, fixture.source.home), (fixture.target_uri, fixture.target.home))
        source, target = (stack.enter_context(DeltaSpark(uri, Path(home).parent)) for uri, home in sides)
        for name, (columns, more, properties) in TABLES.items():
            given = ", ".join(f"'delta.{key}' = '{value}'" for key, value in properties.items()) or "'x' = 'y'"
            source(f"create table {fixture.name}.{name} ({columns}) using delta {more} tblproperties ({given})")
        write(source, fixture, FIRST)
        for name, of in CLONES.items():
            source(f"create table {fixture.name}.{name} shallow clone {fixture.name}.{of}")
        source(f"delete from {fixture.name}.clone where id < 7")
        for number in range(3):
            source(f"insert into {fixture.name}.clone_of_sidecars values ({100 + number})")
        assert features(fixture.source.home) >= FEATURES
        dumped = fixture.dump()
        for statements in (THEN, {}):
            loaded, found = fixture.load(), verified(fixture)
            assert (dumped.code, loaded.code, found.code) == (0, 0, 0), (dumped, loaded, found)
            wanted = shown(source, fixture)
            with fixture.without_source():
                assert shown(target, fixture) == wanted
                for name in ("sidecars", "clone_of_sidecars"):
                    assert list((fixture.target.home / name / "_delta_log" / "_sidecars").glob("*.parquet"))
            write(source, fixture, statements)
            dumped = fixture.dump(since=fixture.last)
