"""What a certificate names besides tables: views, materialized views, and columns whose texts compare otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hive_metastore import ttypes
from hive_objects import hive_client
from purges import DESCRIPTOR, Warehouse

from replicator.lifecycle.purge.certificate_file import as_text
from replicator.lifecycle.purge.options import PurgeOptions
from replicator.lifecycle.purge.run import derived, materialized_at
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect


def test_views_are_listed_and_materialized_ones_are_gaps(warehouse: Warehouse, source_metastore: Running) -> None:
    warehouse.sql(
        "CREATE DATABASE scope",
        "CREATE DATABASE scope_other",
        f"CREATE TABLE scope.t (id BIGINT, v STRING) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO scope.t SELECT id, 'v' FROM range(0, 50)",
        "CREATE VIEW scope_other.direct AS SELECT id FROM scope.t WHERE v = 'v'",
        "CREATE VIEW scope_other.through AS SELECT count(*) AS n FROM scope_other.direct",
        "CREATE VIEW scope_other.unrelated AS SELECT 1 AS id",
    )
    text = "select id from scope.t"
    with hive_client(source_metastore) as client:
        texts = {"viewOriginalText": text, "viewExpandedText": text}
        client.table("scope_other", "mv", kind="MATERIALIZED_VIEW", **texts)
        texts = dict.fromkeys(texts, "select what is this of scope.t !")
        client.table("scope_other", "odd", kind="VIRTUAL_VIEW", **texts)
    root = warehouse.root("scope")
    assert warehouse.purge(root, warehouse.ids, "scope").rows_erased == 5
    asked = PurgeOptions(warehouse.ids, "scope", "privacy.column")
    found = warehouse.certify(root, asked, expedited=True)
    assert {each["view"]: each.get("unparsed", False) for each in found.views} == {
        "scope_other.direct": False,
        "scope_other.through": False,
        "scope_other.odd": True,
    }
    assert {each["reads"] for each in found.views} == {"scope.t"}
    assert (found.status, [gap["table"] for gap in found.gaps]) == ("gaps", ["scope_other.mv"])
    assert "rebuild it" in found.gaps[0]["reason"]
    assert "scope_other.through reads scope.t: no rows of its own" in as_text(found)
    with hive_client(source_metastore) as client:
        client.drop("scope_other", "mv")
    assert warehouse.certify(root, asked, expedited=True).status == "certified"


@pytest.mark.parametrize("hive", ["3.1", "4.2"])
def test_servers_record_what_a_materialized_view_reads_and_when(
    hives: Callable[..., Running], hive: str, tmp_path: Path
) -> None:
    running = hives(hive)
    metastore = connect(running.uri)
    db = f"scope_{hive.replace('.', '_')}"
    with hive_client(running) as client:
        client.thrift.create_database(ttypes.Database(name=db, locationUri=f"file:{tmp_path}/{db}.db"))
        client.table(db, "t", kind="EXTERNAL_TABLE")
        client.view(db, "view", "t")
        client.materialized_view(db, "mv", "view")
        recorded = client.get(db, "mv").creationMetadata.materializationTime
    found = derived(metastore, [f"{db}.t"])
    assert [(each.name, each.reads, each.is_materialized) for each in found] == [
        (f"{db}.mv", f"{db}.t", True),
        (f"{db}.view", f"{db}.t", False),
    ]
    assert recorded and materialized_at(found[0].view) == recorded / 1000


@pytest.mark.parametrize("stored", ["PARQUET", "ORC", "TEXTFILE", "AVRO"])
def test_padding_of_char_is_no_part_of_an_id(warehouse: Warehouse, stored: str) -> None:
    db = f"padded_{stored}"
    warehouse.sql(
        f"CREATE DATABASE {db}",
        f"CREATE TABLE {db}.t (id CHAR(10), v STRING) PARTITIONED BY (k INT) STORED AS {stored}"
        f" TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO {db}.t VALUES ('ann', 'goes', 1), ('bob', 'stays', 1), ('ann b', 'stays', 1)",
        f"CREATE TABLE {db}.u (id STRING, v STRING) STORED AS {stored} TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO {db}.u VALUES ('ann', 'goes'), ('ann ', 'stays: a blank of a STRING counts')",
        f"CREATE TABLE {db}.gone AS SELECT 'ann' AS member",
        f"CREATE TABLE {db}.gone_padded (member CHAR(12)) STORED AS PARQUET",
        f"INSERT INTO {db}.gone_padded VALUES ('ann')",
    )
    root = warehouse.root(db)
    for ids, table in ((f"{db}.gone:member", "t"), (f"{db}.gone_padded:member", "u")):
        done = warehouse.purge(root, ids, f"{db}.{table}")
        assert (done.status, done.rows_erased, done.ids_never_found) == ("done", 1, 0), done.tables
        assert {row[1][:5] for row in warehouse.rows(f"{db}.{table}")} == {"stays"}
        asked = PurgeOptions(ids, f"{db}.{table}", "privacy.column")
        assert warehouse.certify(root, asked, expedited=True).status == "certified"


def test_a_column_whose_collation_is_not_binary_is_a_gap(warehouse: Warehouse) -> None:
    warehouse.sql(
        "CREATE DATABASE collated",
        f"CREATE TABLE collated.t (id STRING COLLATE UTF8_LCASE, v STRING) USING parquet TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO collated.t VALUES ('Ann', 'v')",
        f"CREATE TABLE collated.b (id STRING COLLATE UTF8_BINARY, v STRING COLLATE UTF8_LCASE) USING parquet"
        f" TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO collated.b VALUES ('ann', 'v'), ('Ann', 'v')",
        "CREATE TABLE collated.gone AS SELECT 'ann' AS member",
    )
    root = warehouse.root("collated")
    done = warehouse.purge(root, "collated.gone:member", "collated.t|b")
    gaps = {gap["table"]: gap["reason"] for gap in done.gaps}
    assert list(gaps) == ["collated.t"] and "UTF8_LCASE" in gaps["collated.t"]
    assert done.rows_erased == 1 and warehouse.rows("collated.b") == [("Ann", "v")]
    asked = PurgeOptions("collated.gone:member", "collated.t|b", "privacy.column")
    found = warehouse.certify(root, asked, expedited=True)
    assert (found.status, [gap["table"] for gap in found.gaps]) == ("gaps", ["collated.t"])


def stated(**more: object) -> str:
    """A descriptor that states that a table holds no persons."""
    said = {"persons": "none", "by": "dpo@example.org", "reason": "a catalogue of products", **more}
    return f"'dataset.descriptor'='{json.dumps(said)}'"


def test_a_table_without_persons_is_no_gap_until_it_gets_another_column(warehouse: Warehouse) -> None:
    columns = ["SKU", "box.width", "box.parts.name", "`a.b`", "day"]
    warehouse.sql(
        "CREATE DATABASE none",
        f"CREATE TABLE none.t (id BIGINT, v STRING) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO none.t SELECT id, 'v' FROM range(0, 50)",
        "CREATE TABLE none.products (sku STRING, box STRUCT<width: INT, parts: ARRAY<STRUCT<name: STRING>>>,"
        f" `a.b` INT) PARTITIONED BY (day STRING) STORED AS PARQUET TBLPROPERTIES ({stated(columns=columns)})",
        f"CREATE TABLE none.own (n INT) USING parquet TBLPROPERTIES ({stated(columns=['n'])})",
    )
    root, asked = warehouse.root("none"), PurgeOptions(warehouse.ids, "none", "privacy.column")
    done = warehouse.purge(root, warehouse.ids, "none")
    assert (done.status, done.rows_erased, done.gaps) == ("done", 5, [])
    statement = {"by": "dpo@example.org", "reason": "a catalogue of products"}
    wanted = [{"table": "none.own", **statement}, {"table": "none.products", **statement}]
    assert done.without_persons == wanted
    found = warehouse.certify(root, asked, expedited=True)
    assert (found.status, found.searched, found.without_persons) == ("certified", ["none.t"], wanted)
    assert "none.own: a catalogue of products (stated by dpo@example.org)" in as_text(found)

    warehouse.sql("ALTER TABLE none.products ADD COLUMNS (buyer STRING, maker STRUCT<mail: STRING>)")
    warehouse.sql("ALTER TABLE none.own ADD COLUMNS (guest STRING)")
    found = warehouse.certify(root, asked)
    assert found.status == "gaps" and not found.without_persons
    reasons = {gap["table"]: gap["reason"] for gap in found.gaps}
    assert "but not of buyer, maker.mail: the statement is void" in reasons["none.products"]
    assert "but not of guest: the statement is void" in reasons["none.own"]
    again = warehouse.purge(root, warehouse.ids, "none").gaps
    assert {gap["table"]: gap["reason"] for gap in again} == reasons


def test_a_statement_about_a_table_with_an_avro_schema_does_not_count(warehouse: Warehouse) -> None:
    schema = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'
    warehouse.sql(
        "CREATE DATABASE by_schema",
        f"CREATE TABLE by_schema.t (id BIGINT) STORED AS AVRO TBLPROPERTIES ({stated(columns=['id'])},"
        f" 'avro.schema.literal'='{schema}')",
        f"CREATE TABLE by_schema.own (id BIGINT) STORED AS AVRO TBLPROPERTIES ({stated(columns=['id'])})",
        f"CREATE TABLE by_schema.u (id BIGINT) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
    )
    done = warehouse.purge(warehouse.root("by_schema"), warehouse.ids, "by_schema", dry_run=True)
    assert [each["table"] for each in done.without_persons] == ["by_schema.own"]
    (gap,) = done.gaps
    assert gap["table"] == "by_schema.t" and "its Avro schema" in gap["reason"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "needs the texts"),
        ({"columns": ["id"], "by": ""}, "needs the texts"),
        ({"columns": "id"}, "needs the texts"),
        ({"columns": ["id"], "ids": {"former": []}}, "contradicts `ids`"),
        ({"columns": ["id"], "privacy": {"column": "id"}}, "and a column at privacy.column"),
    ],
)
def test_an_incomplete_statement_is_invalid(warehouse: Warehouse, said: dict[str, object], why: str) -> None:
    warehouse.sql(
        "CREATE DATABASE IF NOT EXISTS unsure",
        f"CREATE TABLE IF NOT EXISTS unsure.t (id BIGINT) STORED AS PARQUET TBLPROPERTIES ({DESCRIPTOR})",
        "DROP TABLE IF EXISTS unsure.said",
        f"CREATE TABLE unsure.said (id BIGINT) STORED AS PARQUET TBLPROPERTIES ({stated(**said)})",
    )
    (gap,) = warehouse.purge(warehouse.root("unsure"), warehouse.ids, "unsure", dry_run=True).gaps
    assert (gap["table"], gap["invalid"]) == ("unsure.said", True) and why in gap["reason"]
