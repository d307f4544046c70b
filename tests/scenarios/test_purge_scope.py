"""What a certificate names besides tables: views, materialized views, and columns whose texts compare otherwise."""

from __future__ import annotations

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

pytestmark = pytest.mark.removals


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
