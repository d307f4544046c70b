"""Landing tables compared with their sources, row by row, by SQL of the source and by Spark."""

from __future__ import annotations

import json
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
from replicator.errors import ObjectNotFound
from replicator.ingestion import comparison, comparison_sides

ALL_TYPES = """id bigint PRIMARY KEY, t text, c char(5), n numeric(20, 4), free numeric, b boolean, y bytea, d date,
  ts timestamp, tz timestamptz, f double precision, r real, u uuid, j jsonb, a int[], m money, tm time"""


@pytest.fixture
def landing(postgres: Postgres, warehouse: Warehouse, tmp_path: Path) -> Iterator[Landing]:
    made = Landing(postgres, warehouse, tmp_path)
    made.create_asset()
    yield made
    made.source.close()


def verify(landing: Landing, of: str = "", **more: Any) -> Any:
    of = of or landing.asset
    return replicator.ingest_verify(of, config=landing.config, spark=landing.warehouse.session, **more)


def named(table: Any) -> list[tuple[tuple[str | None, ...], str]]:
    return sorted((row.key, row.kind) for row in table.rows)


def test_rows_that_are_missing_deleted_or_different_are_named_by_their_keys(landing: Landing) -> None:
    """Among so many that ranges are cut, and of every type."""
    landing.sql(f"CREATE TABLE t ({ALL_TYPES})")
    landing.sql(
        "INSERT INTO t SELECT n, 'tä\"x' || n, 'c', n / 7.0, n / 3.0, n % 2 = 0, decode(md5(n::text), 'hex'), "
        "date '2020-02-29' + n, timestamp '2026-03-29 01:30:00.123456' + n * interval '1 hour', "
        "timestamptz '2026-03-29 02:30+02' + n * interval '1 s', n / 3.0, n / 3.0, gen_random_uuid(), "
        "jsonb_build_object('a', n), ARRAY[n, NULL], n::int, time '12:00' FROM generate_series(1, 9000) n"
    )
    landing.sql("INSERT INTO t (id) VALUES (-1)")
    landing.sql(
        "INSERT INTO t (id, d, ts, tz, f, r) VALUES (-2, 'infinity', 'infinity', 'infinity', 'NaN', '-Infinity'),"
        " (-3, '0001-01-01', '0001-01-01', '9999-12-31 00:00+00', -0.0, 1e-30)"
    )
    landing.sql("UPDATE t SET free = round(free, 18)")
    assert landing.land("t").done == 1

    same = verify(landing)

    assert (same.status, same.tables[0].landed, same.tables[0].source_rows) == ("same", 9003, 9003), same
    assert same.tables[0].not_compared == ()
    landing.sql("UPDATE t SET t = 'tä\"x77' WHERE id = 78")
    landing.sql("UPDATE t SET tz = tz + interval '1 microsecond' WHERE id = 5000")
    landing.sql("DELETE FROM t WHERE id IN (8123, -1)")
    landing.sql("INSERT INTO t (id) VALUES (100000), (0)")
    (table,) = verify(landing, "crm:public.t").tables
    assert named(table) == sorted(
        [
            *[(("78",), "different"), (("5000",), "different"), (("8123",), "deleted"), (("-1",), "deleted")],
            *[(("100000",), "missing"), (("0",), "missing")],
        ]
    )
    assert (table.missing, table.deleted, table.different, table.unnamed) == (2, 2, 2, ())


def test_the_status_tells_same_different_and_not_compared_apart(landing: Landing) -> None:
    landing.sql("CREATE TABLE keyed AS SELECT n AS id, 'x' AS v FROM generate_series(1, 10) n")
    landing.sql("ALTER TABLE keyed ADD PRIMARY KEY (id)")
    landing.sql("CREATE TABLE free AS SELECT 1 AS id")
    landing.land("keyed")
    landing.land("free")
    with pytest.raises(ObjectNotFound, match="nothing has landed"):
        verify(landing, "crm:public.nothing")
    assert verify(landing, "crm:public.keyed").status == "same"
    partial = verify(landing)
    assert partial.status == "partial" and "none is known" in partial.tables[0].not_compared[0], partial
    landing.sql("DELETE FROM keyed WHERE id > 5")
    landing.sql("INSERT INTO free VALUES (2)")
    found = verify(landing, limit=3)
    assert found.status == "different"
    free, keyed = found.tables
    assert (free.unnamed[0].landed, free.unnamed[0].source, free.unnamed[0].why) == (1, 2, "no key is known")
    assert (keyed.landed, keyed.source_rows, keyed.deleted, len(keyed.rows)) == (10, 5, 5, 3)


def test_a_landed_column_that_the_source_has_dropped_is_named(landing: Landing) -> None:
    landing.sql("CREATE TABLE t (id int PRIMARY KEY, a text, b text)")
    landing.sql("INSERT INTO t VALUES (1, 'x', 'y')")
    landing.land("t")
    landing.sql("ALTER TABLE t DROP a, ADD c text")
    found = verify(landing)
    assert found.status == "partial" and not found.tables[0].differs, found
    assert [each.split(":")[0] for each in found.tables[0].not_compared] == ["column c", "column a"], found


def test_an_increment_is_compared_up_to_its_watermark(landing: Landing) -> None:
    landing.sql("CREATE TABLE log (id int PRIMARY KEY, v text)")
    landing.sql("CREATE TABLE state (id text PRIMARY KEY, v text, changed int)")
    landing.sql("INSERT INTO log SELECT n, 'x' FROM generate_series(1, 2500) n")
    landing.sql("INSERT INTO state SELECT 'k''' || n, 'x', n FROM generate_series(1, 2500) n")
    landing.request("log", mode="append", watermark="id")
    landing.request("state", mode="merge", key="id", watermark="changed")
    assert landing.run().done == 2
    landing.sql("INSERT INTO log VALUES (2600, 'new')")
    landing.sql("UPDATE state SET v = 'y', changed = 3000 WHERE id IN ('k''7', 'k''2000')")
    landing.sql("INSERT INTO state VALUES ('new', 'y', 3001)")
    found = verify(landing)
    assert found.status == "same", found
    log, state = found.tables
    assert (log.until, state.until, state.waiting) == ("2500", "2500", 2)
    landing.sql("DELETE FROM state WHERE id = 'k''1'")
    landing.sql("INSERT INTO log VALUES (0, 'late')")
    log, state = verify(landing).tables
    assert named(log) == [(("0",), "missing")] and named(state) == [(("k'1",), "deleted")]


def test_rows_of_erased_people_are_not_missing(landing: Landing) -> None:
    landing.sql("CREATE TABLE people (id int PRIMARY KEY, name text)")
    landing.sql("INSERT INTO people SELECT n, 'p' || n FROM generate_series(0, 100) n")
    given = {"owner": "ann", "producers": ["paul"], "sources": ["crm"], "by": "ann", "overwrite": True}
    given |= {"erasure_ids": landing.warehouse.ids, "erasure_column": "id"}
    replicator.asset_create(landing.asset, config=landing.config, **given)
    replicator.asset_approve(landing.asset, config=landing.config, by="bob")
    assert landing.land("people").rows == 91
    found = verify(landing)
    assert (found.status, found.tables[0].erased) == ("same", 10), found
    landing.sql("INSERT INTO people VALUES (101, 'new')")
    assert named(verify(landing).tables[0]) == [(("101",), "missing")]


def test_erased_people_are_recognized_as_when_they_land(landing: Landing) -> None:
    """By a list of numbers, of people whose ids are texts; and without the list, other tables are compared."""
    db = f"{landing.asset}_gdpr"
    landing.warehouse.sql(f"CREATE DATABASE {db}", f"CREATE TABLE {db}.gone AS SELECT CAST(7 AS double) AS id")
    given = {"owner": "ann", "producers": ["paul"], "sources": ["crm"], "by": "ann", "overwrite": True}
    replicator.asset_create(
        landing.asset, config=landing.config, erasure_ids=f"{db}.gone:id", erasure_column="id", **given
    )
    replicator.asset_approve(landing.asset, config=landing.config, by="bob")
    for name in ("texts", "others"):
        landing.sql(f"CREATE TABLE {name} (id text PRIMARY KEY); INSERT INTO {name} VALUES ('7'), ('8')")
        assert landing.land(name).rows == 1
    found = verify(landing)
    assert (found.status, [each.erased for each in found.tables]) == ("same", [1, 1]), found
    landing.warehouse.sql(f"DROP TABLE {db}.gone")
    tables = verify(landing).tables
    assert [(each.missing, f"{db}.gone of erased" in each.not_compared[0]) for each in tables] == [(1, True)] * 2


def test_erased_people_are_recognized_by_the_rules_of_their_asset(landing: Landing) -> None:
    db = f"{landing.asset}_gdpr"
    gone = "VALUES ('ANN@x.org '), ('007'), ('STRASSE'), (' 9'), ('.5')"
    landing.warehouse.sql(f"CREATE DATABASE {db}", f"CREATE TABLE {db}.gone AS SELECT * FROM {gone} AS t (id)")
    given: dict[str, Any] = {"owner": "ann", "producers": ["paul"], "sources": ["crm"], "by": "ann", "overwrite": True}
    given |= {"erasure_ids": f"{db}.gone:id", "erasure_column": "id", "erasure_match": ["trim", "casefold"]}
    shown = replicator.asset_create(landing.asset, config=landing.config, **given)
    assert list(shown.to_dict()["erasure_match"]) == ["trim", "casefold"]
    replicator.asset_approve(landing.asset, config=landing.config, by="bob")
    landing.sql("CREATE TABLE texts (id text PRIMARY KEY); CREATE TABLE numbers (id int PRIMARY KEY)")
    landing.sql("CREATE TABLE halves (id double precision PRIMARY KEY); INSERT INTO halves VALUES (0.5), (1.5), (9)")
    landing.sql("INSERT INTO texts VALUES ('ann@x.org'), ('ann@x.com'), ('straße'), ('7')")
    landing.sql("INSERT INTO numbers VALUES (7), (8)")
    assert landing.land("texts").rows == 2 and landing.land("numbers").rows == 1
    assert landing.rows("texts") == [("7",), ("ann@x.com",)] and landing.rows("numbers") == [(8,)]
    found = verify(landing)
    assert (found.status, sorted(each.erased for each in found.tables)) == ("same", [1, 2]), found
    assert landing.land("halves").rows == 1, "what is equal without rules is equal with them"
    table = landing.warehouse.metastore.table(f"{landing.asset}_public", "texts")
    assert json.loads(table.parameters["dataset.descriptor"])["ids"] == {"match": ["trim", "casefold"]}


def test_mariadb_is_compared_too(landing: Landing, mariadb_server: MariaDb, monkeypatch: pytest.MonkeyPatch) -> None:
    db = mariadb_server.database()
    monkeypatch.setenv("REPLICATOR_TEST_MARIADB", mariadb.PASSWORD)
    given = {"url": mariadb_server.url(db), "user": mariadb_server.user, "password": "env:REPLICATOR_TEST_MARIADB"}
    landing.config = landing.configured(sources={"crm": given})
    columns = """id varchar(20) CHARACTER SET latin1 PRIMARY KEY, n decimal(20, 4), u bigint unsigned,
      z int(8) zerofill, y year, b bit(1), bb bit(64), d date, dt datetime(6), ts timestamp NULL, bin varbinary(10),
      t text, tm time, f double"""
    mariadb_server.sql(f"CREATE TABLE t ({columns}) CHARACTER SET utf8mb4", db)
    row = "NULLIF(seq, 5) / 7, 18446744073709551615, seq, 2020, seq % 2, 1, '2020-02-29', '2020-01-01 00:00:00.123456'"
    mariadb_server.sql(
        f"INSERT INTO t SELECT CONCAT('ä', seq), {row}, '2026-01-01', x'00ff', '€', '12:00', 0.1 FROM seq_1_to_3000", db
    )
    replicator.ingest_request(f"crm:{db}.t", asset=landing.asset, config=landing.config, by="paul")
    done = landing.run()
    assert done.done == 1, done
    found = verify(landing)
    assert found.status == "partial" and "column f (double)" in found.tables[0].not_compared[0], found
    assert not found.tables[0].differs, found
    mariadb_server.sql("UPDATE t SET dt = '2020-01-01 00:00:00.123457' WHERE id = 'ä9'", db)
    mariadb_server.sql("DELETE FROM t WHERE id = 'ä2999'", db)
    totals = comparison_sides.AtSource.totals

    def changed(side: Any, ranges: Any) -> Any:
        found = totals(side, ranges)
        mariadb_server.sql("UPDATE t SET t = CONCAT(t, 'x')", db)
        return found

    isolation = "SET GLOBAL TRANSACTION ISOLATION LEVEL"
    mariadb_server.sql(f"{isolation} READ COMMITTED")
    try:
        monkeypatch.setattr(comparison_sides.AtSource, "totals", changed)
        assert named(verify(landing).tables[0]) == [(("ä2999",), "deleted"), (("ä9",), "different")], "of one moment"
    finally:
        mariadb_server.sql(f"{isolation} REPEATABLE READ")


def test_many_differing_rows_are_counted_and_some_are_named(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "FEW", 50)
    monkeypatch.setattr(comparison_sides, "FEW", 50)
    monkeypatch.setattr(comparison, "COUNTED", 60)
    landing.sql("CREATE TABLE t AS SELECT n AS id FROM generate_series(1, 300) n")
    landing.sql("ALTER TABLE t ADD PRIMARY KEY (id)")
    landing.land("t")
    landing.sql("INSERT INTO t SELECT generate_series(301, 2000)")
    (table,) = verify(landing, limit=60).tables
    assert 60 <= table.missing < 1700 and len(table.rows) == 60
    assert table.missing + sum(each.source - each.landed for each in table.unnamed) == 1700, table
