"""Requests that select columns and rows, mask values, and demand something of the rows before they are published."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mariadb
import pytest
from landings import Landing
from mariadb import MariaDb
from postgres import Postgres
from purges import Warehouse

import replicator
from replicator.errors import UsageError
from replicator.ingestion.reading.source import SourceDatabase


@pytest.fixture
def landing(postgres: Postgres, warehouse: Warehouse, tmp_path: Path) -> Iterator[Landing]:
    made = Landing(postgres, warehouse, tmp_path)
    made.create_asset()
    yield made
    made.source.close()


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_selected_columns_and_rows_land_and_masked_values_do_not(landing: Landing) -> None:
    landing.sql(
        'CREATE TABLE t (id int PRIMARY KEY, "Name" text, mail text, born date, pin bytea, zip text, note text)'
    )
    landing.sql(
        "INSERT INTO t VALUES (1, 'ann', 'ann@x.org', '1970-01-31', 'a', '80331', 'it''s'), "
        "(2, 'bob', NULL, '1980-01-31', 'b', NULL, 'x'), (3, 'eve', 'eve@x.org', NULL, NULL, '1', 'it''s')"
    )
    asked: dict[str, Any] = {
        "columns": ("id", "name", "mail", "born", "pin", "zip"),
        "where": "(\"Name\" <> 'bob' OR mail IS NOT NULL) AND note = 'it''s' AND id IN (1, 2, 3)",
        "masks": {"mail": "hash", "born": "first:4", "pin": "null", "zip": "text:x'".removesuffix("'")},
    }
    given = {"asset": landing.asset, "config": landing.config, "by": "paul", "spark": landing.warehouse.session}
    (planned,) = replicator.ingest_request("crm:public.t", dry_run=True, **given, **asked).tables
    assert planned.status == "planned" and planned.plan and (planned.plan.rows, planned.plan.exact) == (2, True), (
        planned
    )
    assert [each.type for each in planned.plan.columns] == ["int", "string", "string", "string", "binary", "string"]
    done = landing.land("t", **asked)
    assert (done.status, done.rows) == ("done", 2), done
    assert landing.rows("t") == [
        (1, "ann", digest("ann@x.org"), "1970", None, "x"),
        (3, "eve", digest("eve@x.org"), None, None, "x"),
    ]
    verified = replicator.ingest_verify("crm:public.t", config=landing.config, spark=landing.warehouse.session)
    assert verified.status == "same" and verified.tables[0].source_rows == 2, verified
    landing.sql("UPDATE t SET mail = 'other' WHERE id = 3")
    (table,) = replicator.ingest_verify("crm:public.t", config=landing.config, spark=landing.warehouse.session).tables
    assert [(row.key, row.kind) for row in table.rows] == [(("3",), "different")]
    assert "mail was string and is" not in str(landing.land("t", **asked)), "its columns are the same"


def test_values_of_a_hidden_key_are_not_sampled_to_split_a_table(
    landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing.sql("CREATE TABLE t AS SELECT n AS id, 'x' AS v FROM generate_series(1, 30000) n")
    landing.sql("ALTER TABLE t ADD PRIMARY KEY (id)")
    sampled, sample = list[str](), SourceDatabase._sample

    def watched(database: SourceDatabase, table: Any, column: Any, where: str) -> Any:
        sampled.append(column.name)
        return sample(database, table, column, where)

    monkeypatch.setattr(SourceDatabase, "_sample", watched)
    assert landing.land("t").done == 1 and sampled == ["id"]
    for hidden in ({"columns": "v"}, {"masks": {"id": "hash"}}):
        assert landing.land("t", schema_policy="recreate", **hidden).rows == 30000
    assert sampled == ["id"]


def test_an_increment_has_the_selected_rows_only(landing: Landing) -> None:
    landing.sql("CREATE TABLE log (id int, kind text, v text)")
    landing.sql(
        "INSERT INTO log SELECT n, CASE WHEN n % 2 = 0 THEN 'a' ELSE 'b' END, 'x' FROM generate_series(1, 10) n"
    )
    landing.sql("INSERT INTO log VALUES (NULL, 'b', 'no mark')")
    asked: dict[str, Any] = {"mode": "append", "watermark": "id", "columns": ("id", "kind"), "where": "kind = 'a'"}
    assert landing.land("log", **asked).rows == 5
    landing.sql("INSERT INTO log VALUES (11, 'a', 'y'), (12, 'b', 'y')")
    done = landing.land("log", **asked)
    assert (done.status, done.rows) == ("done", 1), done
    assert [row[0] for row in sorted(landing.rows("log"))] == [2, 4, 6, 8, 10, 11]


HOSTILE = (
    "id > 0) OR (1 = 1",
    "1 = 1; DROP TABLE t",
    "id = 1 -- x",
    "id = 1 /* x */",
    "id = 1 # x",
    "v = 'x\\' OR 1 = 1",
    "v = 'x",
    "pg_sleep(9) IS NULL",
    "DATE(v) > DATE '2026-01-01'",
    "timestamp (v) IS NULL",
    "date v IS NULL",
    "id = \u0661",
    "id IN (SELECT id FROM secret)",
    "v = $$x$$",
    "v = E'x'",
    "id = 1 UNION ALL SELECT 1",
    "id = ${id}",
    "v = 'x' || v",
    "(id = 1",
    "",
)


@pytest.mark.parametrize("condition", HOSTILE)
def test_a_condition_is_nothing_but_a_condition(landing: Landing, condition: str) -> None:
    landing.sql("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE secret (id int)")
    with pytest.raises(UsageError):
        landing.request("t", where=condition)


def test_a_column_may_have_the_name_of_a_type_and_errors_name_no_hidden_value(landing: Landing) -> None:
    landing.sql('CREATE TABLE t (id int PRIMARY KEY, "Date" date, timestamp text)')
    landing.sql("INSERT INTO t VALUES (1, '2026-02-01', 'ann@x.org'), (2, '2026-03-01', 'ann@x.org')")
    asked: dict[str, Any] = {"where": "date < DATE '2026-02-02'", "masks": {"timestamp": "hash"}}
    assert landing.land("t", **asked).rows == 1
    landing.sql("CREATE VIEW v AS SELECT id, timestamp::int AS n FROM t")
    (told,) = landing.land("v", masks={"n": "hash"}).errors
    assert "invalid input syntax for type integer" in told and "ann" not in told, told
    (job, *_) = replicator.ingest_ls(config=landing.config).jobs
    assert "ann@" not in str(replicator.ingest_show(job.job, config=landing.config).to_dict())
    given = {"asset": landing.asset, "config": landing.config, "by": "paul", "spark": landing.warehouse.session}
    (plan,) = replicator.ingest_request("crm:public.v", dry_run=True, masks={"n": "hash"}, **given).tables
    assert "ann" not in plan.error, plan


def test_what_a_request_cannot_select_is_refused_at_once(landing: Landing) -> None:
    landing.sql("CREATE TABLE t (id int PRIMARY KEY, v text, at int)")
    for wrong, told in (
        ({"columns": "nothing"}, "column nothing, its selected column, does not exist"),
        ({"where": "nothing = 1"}, "column nothing"),
        ({"masks": {"v": "rot13"}}, "is not a mask of column v"),
        ({"columns": "v", "mode": "merge", "key": "id"}, "column id, its key, is not selected"),
        ({"masks": {"id": "hash"}, "mode": "merge", "key": "id"}, "column id, its key, cannot be masked"),
        ({"columns": "v", "split_column": "id"}, "column id, its split column, is not selected"),
        ({"masks": {"id": "hash"}, "split_column": "ID"}, "column id, its split column, cannot be masked"),
        ({"not_null": "nothing"}, "column nothing, its demanded column"),
        ({"least_rows": 0}, "is not in the range"),
    ):
        with pytest.raises(UsageError, match=told):
            landing.request("t", **wrong)


def test_an_asset_that_gets_an_erasure_column_later_lands_no_rows_without_it(landing: Landing) -> None:
    landing.sql("CREATE TABLE t (id int PRIMARY KEY, v text)")
    landing.sql("INSERT INTO t VALUES (10, 'a'), (11, 'b')")
    for number, (asked, told, step) in enumerate(
        (
            ({"masks": {"id": "hash"}}, "column id, its erasure column, cannot be masked", "describe"),
            ({"masks": {"id": "hash"}}, "column id, its erasure column, cannot be masked", "settle"),
            ({"columns": "v"}, "column id, its erasure column, is not selected", "copy"),
        )
    ):
        landing.create_asset(overwrite=bool(number))
        job = landing.request("t", **asked)
        landing.run_killed_in(step, begun=False)
        landing.create_asset(erasure_ids=landing.warehouse.ids, erasure_column="id", overwrite=True)
        (error,) = landing.run_later().errors
        assert told in error, error
        assert replicator.ingest_show(job, config=landing.config).detail.job.state == "failed_user"
    assert f"{landing.asset}_public" not in landing.warehouse.metastore.database_names()


def test_mariadb_selects_and_masks_too(
    landing: Landing, mariadb_server: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = mariadb_server.database()
    monkeypatch.setenv("REPLICATOR_TEST_MARIADB", mariadb.PASSWORD)
    given = {"url": mariadb_server.url(db), "user": mariadb_server.user, "password": "env:REPLICATOR_TEST_MARIADB"}
    landing.config = landing.configured(sources={"crm": given})
    mariadb_server.sql("CREATE TABLE t (id int PRIMARY KEY, a varchar(20), b int, c datetime, d varchar(20))", db)
    mariadb_server.sql(
        "INSERT INTO t VALUES (1, 'é', 10, '2026-01-01', 'x'), (2, NULL, 20, NULL, 'ß'), (3, 'z', 1, NULL, 'x')", db
    )
    masks = {"a": "hash", "b": "null", "c": "first:7", "d": "text:ä, *"}
    replicator.ingest_request(
        f"crm:{db}.t",
        asset=landing.asset,
        config=landing.config,
        by="paul",
        masks=masks,
        where="id < 3 AND (d = 'ß' OR d LIKE 'x%') AND (c >= TIMESTAMP '2026-01-01 00:00:00' OR c IS NULL)",
    )
    done = landing.run()
    assert done.rows == 2, done
    found = landing.warehouse.sql(f"SELECT * FROM {landing.asset}_{db}.t ORDER BY id")
    assert found == [(1, digest("é"), None, "2026-01", "ä, *"), (2, None, None, None, "ä, *")]


def test_rows_that_are_not_as_demanded_are_not_published(landing: Landing) -> None:
    landing.sql("CREATE TABLE t (id int, v text)")
    landing.sql("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (NULL, NULL), (NULL, NULL)")
    assert landing.land("t", least_rows=4, unique=("id", "id,v")).done == 1, "NULL equals nothing"
    before, versions = landing.rows("t"), landing.versions("t")
    landing.sql("INSERT INTO t VALUES (2, 'c')")
    for demand, told in (
        ({"least_rows": 6}, "would have 5 rows, and must have 6 at least"),
        ({"not_null": "ID"}, "2 rows of crm:public.t have NULL in id"),
        ({"unique": "id"}, "2 rows of"),
    ):
        refused = landing.land("t", **demand)
        assert refused.failed == 1 and told in refused.errors[0], refused
        assert landing.rows("t") == before and landing.versions("t") == versions
    assert landing.land("t", unique="id,v").done == 1


def test_appended_rows_are_judged_with_those_that_have_landed(landing: Landing) -> None:
    landing.sql("CREATE TABLE log (at int, id int)")
    landing.sql("INSERT INTO log VALUES (1, 1), (2, 2)")
    asked: dict[str, Any] = {"mode": "append", "watermark": "at", "unique": "id"}
    assert landing.land("log", **asked, least_rows=2).done == 1
    landing.sql("INSERT INTO log VALUES (3, 1)")
    refused = landing.land("log", **asked)
    assert refused.failed == 1 and "2 rows of" in refused.errors[0], refused
    assert "would share 1 value of id, which must be unique" in refused.errors[0], "not the value: it may be personal"
    assert len(landing.rows("log")) == 2
    landing.sql("UPDATE log SET id = 3 WHERE at = 3")
    assert landing.land("log", **asked, least_rows=3).rows == 1
