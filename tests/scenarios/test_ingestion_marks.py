"""Watermarks that are shown, set and cleared, rows that are read again, and tables that are rebuilt."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from landings import Landing, impatient_landing, rows_at

import replicator
from replicator.errors import MetastoreUnreachable, Refused, UsageError
from replicator.ingestion.landing import landing_steps
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

APPEND: dict[str, Any] = {"mode": "append", "watermark": "id"}
MERGE: dict[str, Any] = {"mode": "merge", "key": "id", "watermark": "changed"}


landing = impatient_landing


@pytest.fixture(autouse=True)
def asset(landing: Landing) -> None:
    landing.create_asset()


def mark(landing: Landing, of: str, by: str = "paul", **more: Any) -> Any:
    return replicator.ingest_mark(of, config=landing.config, by=by, **more)


def test_a_watermark_is_shown_set_and_cleared_with_a_reason(landing: Landing) -> None:
    landing.sql("CREATE TABLE state (id int PRIMARY KEY, v text, changed timestamp)")
    landing.sql(
        "INSERT INTO state SELECT n, 'x', timestamp '2026-01-01' + n * interval '1 day' FROM generate_series(1, 9) n"
    )
    landing.sql("CREATE TABLE log (id int PRIMARY KEY, v text)")
    landing.sql("INSERT INTO log SELECT n, 'x' FROM generate_series(1, 9) n")
    landing.request("state", **MERGE)
    landing.request("log", **APPEND)
    assert landing.run().done == 2
    shown = mark(landing, landing.asset)
    values = {each.source: (each.column, each.value) for each in shown.marks}
    assert values == {"crm:public.log": ("id", "9"), "crm:public.state": ("changed", "2026-01-10 00:00:00")}
    of_asset = replicator.asset_show(landing.asset, config=landing.config).to_dict()["marks"]
    assert [each["value"] for each in of_asset] == ["9", "2026-01-10 00:00:00"]

    landing.sql("UPDATE state SET v = 'corrected' WHERE id <= 3")  # by a writer that changes no time
    assert landing.land("state", **MERGE).rows == 9 and (1, "x") in [row[:2] for row in landing.rows("state")]
    for wrong, error in (
        ({"value": "2026-01-02"}, UsageError),
        ({"value": "soon", "reason": "x"}, UsageError),
        ({"value": "2026-01-02", "clear": True, "reason": "x"}, UsageError),
        ({"clear": True, "reason": "x", "by": "eve"}, Refused),
    ):
        with pytest.raises(error):
            mark(landing, "crm:public.state", **wrong)
    with pytest.raises(UsageError, match="2 landing tables"):
        mark(landing, landing.asset, clear=True, reason="x")
    done = mark(landing, "crm:public.state", value="2026-01-03", reason="corrected by hand")
    assert (done.status, done.marks[0].value) == ("set", "2026-01-03")

    assert landing.land("state", **MERGE).done == 1

    found = {row[0]: row[1] for row in landing.rows("state")}
    assert (found[1], found[2], found[3], found[9]) == ("x", "corrected", "corrected", "x")
    mark(landing, "crm:public.state", clear=True, reason="all of them")
    changes = replicator.ingest_show(done.marks[0].job, config=landing.config).detail.changes
    told = [(each.actor, each.error_text) for each in changes if each.state == "marked"]
    assert told == [("paul", "watermark changed: 2026-01-10 00:00:00 to 2026-01-03: corrected by hand")]
    assert landing.land("state", **MERGE).done == 1
    assert landing.rows("state") == landing.at_source("SELECT * FROM state")
    assert replicator.ingest_watch(config=landing.config).status == "quiet"
    landing.run()  # the log's table has it, too
    logged = f"SELECT actor FROM {landing.asset}.ingestion_log WHERE state = 'marked'"
    assert landing.warehouse.sql(f"REFRESH TABLE {landing.asset}.ingestion_log", logged) == [("paul",)] * 2
    assert replicator.ingest_stats(config=landing.config).landed.ended == {"done": 5}


def test_the_mark_of_an_appended_table_moves_forward_only(landing: Landing) -> None:
    landing.sql("CREATE TABLE log (id int PRIMARY KEY, v text)")
    landing.sql("INSERT INTO log SELECT n, 'x' FROM generate_series(1, 9) n")
    assert landing.land("log", **APPEND).rows == 9
    for wrong in ({"value": "5"}, {"clear": True}):
        with pytest.raises(Refused, match="would land twice"):
            mark(landing, "crm:public.log", reason="x", **wrong)
    mark(landing, "crm:public.log", value="20", reason="10 to 20 are tests")
    landing.sql("INSERT INTO log SELECT n, 'x' FROM generate_series(10, 25) n")
    assert landing.land("log", **APPEND).rows == 5
    assert [row[0] for row in sorted(landing.rows("log"))] == [*range(1, 10), *range(21, 26)]


def test_a_mark_bounds_rows_that_are_read_again_too(landing: Landing) -> None:
    landing.sql("CREATE TABLE log (id int PRIMARY KEY); INSERT INTO log SELECT generate_series(1, 9)")
    landing.sql("CREATE TABLE state (id int PRIMARY KEY, v text, changed int)")
    landing.sql("INSERT INTO state SELECT n, 'x', n FROM generate_series(1, 9) n")
    for name, asked in (("log", APPEND), ("state", MERGE)):
        assert landing.land(name, late="10m", **asked).rows == 9
    mark(landing, "crm:public.log", value="20", reason="10 to 20 are tests")
    mark(landing, "crm:public.state", value="3", reason="corrected by hand")
    landing.sql("INSERT INTO log SELECT generate_series(10, 25); UPDATE state SET v = 'corrected' WHERE id < 5")
    for more in (5, 0):
        assert landing.land("log", late="10m", **APPEND).rows == more
        landing.land("state", late="10m", **MERGE)
        found = [row[1] for row in sorted(landing.rows("state"))]
        assert found == ["x", "x", "corrected", "corrected", *["x"] * 5]
        landing.sql("DELETE FROM log WHERE id = 12; INSERT INTO log VALUES (12)")
    assert [row[0] for row in sorted(landing.rows("log"))] == [*range(1, 10), *range(21, 26)]


def test_a_mark_that_is_set_while_a_job_publishes_leaves_its_rows(landing: Landing) -> None:
    landing.sql("CREATE TABLE state (id int PRIMARY KEY, v text, changed timestamp DEFAULT '2026-01-01')")
    landing.sql("INSERT INTO state VALUES (1, 'x')")
    assert landing.land("state", **MERGE).rows == 1
    landing.sql("INSERT INTO state VALUES (2, 'x', '2026-01-02')")
    landing.request("state", **MERGE)
    landing.run_killed_in("publish")
    with pytest.raises(Refused, match="may have published it"):
        mark(landing, "crm:public.state", value="2026-01-01", reason="again")
    assert [row[0] for row in landing.rows("state")] == [1, 2]
    assert landing.run_later().done == 1
    assert mark(landing, "crm:public.state", value="2026-01-01", reason="again").status == "set"
    assert [row[0] for row in landing.rows("state")] == [1, 2]


def test_rows_are_read_again_from_a_value_on_and_land_once(landing: Landing) -> None:
    landing.sql("CREATE TABLE log (id int PRIMARY KEY, v text)")
    landing.sql("CREATE TABLE free (id int, v text)")
    landing.sql("INSERT INTO log SELECT n, 'x' FROM generate_series(2, 20, 2) n; INSERT INTO free VALUES (1, 'x')")
    landing.land("free", **APPEND)
    assert landing.land("log", **APPEND).rows == 10
    landing.sql("INSERT INTO log VALUES (5, 'late'), (7, 'late'), (21, 'new')")
    done = landing.land("log", backfill="6", **APPEND)
    assert (done.status, done.rows) == ("done", 2)
    assert [row[0] for row in sorted(landing.rows("log"))] == [2, 4, 6, 7, 8, 10, 12, 14, 16, 18, 20, 21]
    landing.request("log", backfill="0", **APPEND)
    landing.run_killed_in("publish")
    assert landing.run_later().done == 1
    assert landing.rows("log") == landing.at_source("SELECT * FROM log")
    assert mark(landing, "crm:public.log").marks[0].value == "21"
    refused = landing.land("free", backfill="0", **APPEND)
    assert "cannot be recognized" in refused.errors[0], refused
    with pytest.raises(UsageError, match="a backfill needs a value of the watermark"):
        landing.request("log", backfill="1")


def test_appended_and_merged_tables_are_rebuilt_and_their_former_versions_restored(
    landing: Landing, target_metastore: Running, tmp_path: Path
) -> None:
    db, uri, root = f"{landing.asset}_public", landing.warehouse.running.uri, str(tmp_path / "cmroot")
    asked: dict[str, Any] = {"log": APPEND, "state": {"mode": "merge", "key": "id"}}
    for name in asked:
        landing.sql(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        landing.sql(f"INSERT INTO {name} SELECT n, 'old' FROM generate_series(1, 10) n")
        landing.request(name, **asked[name])
    assert landing.run().done == 2
    before = landing.rows("log")
    replicator.dump(source=uri, cmroot=root, db=db, out=str(tmp_path / "d1"))
    event = landing.warehouse.metastore.current_event_id()
    for name in asked:
        landing.sql(f"DELETE FROM {name} WHERE id > 5; UPDATE {name} SET v = 'new'; ALTER TABLE {name} ADD n int")
        landing.request(name, rebuild=True, **asked[name])
        landing.run_killed_in("publish", begun=name == "log")

    done = landing.run_later()

    assert (done.status, done.done) == ("done", 2), done
    for name in asked:
        assert landing.rows(name) == landing.at_source(f"SELECT * FROM {name}"), name
        shown = landing.warehouse.sql(f"REFRESH TABLE {db}.{name}", f"SELECT count(*) FROM {db}.{name}")
        assert shown == [(5,)]
    assert (
        replicator.ingest_verify(landing.asset, config=landing.config, spark=landing.warehouse.session).status == "same"
    )
    assert replicator.ingest_watch(config=landing.config).status == "quiet"
    landing.sql("INSERT INTO log VALUES (11, 'eleven')")
    assert landing.land("log", **APPEND).rows == 1
    replicator.dump(source=uri, cmroot=root, db=db, since=event, out=str(tmp_path / "d2"))
    replicator.restore(cmroot=root, db=db, to=event, target=target_metastore.uri, into=f"{db}_then")
    with connect(target_metastore.uri) as replica:
        for name in asked:
            table = replica.table(f"{db}_then", name)
            places = [table.location or ""]
            if table.is_partitioned:
                places = [part.location or "" for some in replica.all_partitions(table.db, name) for part in some]
            assert sorted(row for place in places for row in rows_at(place, ("id", "v"))) == sorted(before), name


def test_a_rebuild_removes_no_more_rows_than_it_may(landing: Landing) -> None:
    landing.sql("CREATE TABLE log AS SELECT n AS id FROM generate_series(1, 300) n")
    assert landing.land("log", **APPEND).rows == 300
    before = landing.rows("log")
    landing.sql("DELETE FROM log WHERE id > 10")
    refused = landing.land("log", rebuild=True, **APPEND)
    assert "has 10 rows, but 300 have landed" in refused.errors[0], refused
    assert landing.rows("log") == before
    assert landing.land("log", rebuild=True, max_loss=1.0, **APPEND).rows == 10
    assert landing.land("log", **APPEND).rows == 0
    with pytest.raises(UsageError, match="overwrite replaces all rows anyway"):
        landing.request("log", rebuild=True)


@pytest.mark.parametrize("call", ["create_table", "add_partitions"])
def test_a_replaced_table_is_complete_if_its_job_resumes_late(
    landing: Landing, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The table is dropped already, or new and empty, and its rows are to be settled again."""
    landing.sql("CREATE TABLE log (id int PRIMARY KEY, v text)")
    landing.sql("INSERT INTO log SELECT n, 'x' FROM generate_series(1, 5) n")
    assert landing.land("log", **APPEND).rows == 5
    landing.sql("DELETE FROM log WHERE id < 3; ALTER TABLE log DROP v; INSERT INTO log VALUES (6)")

    def away(*_: Any) -> None:
        raise MetastoreUnreachable("away")

    with monkeypatch.context() as patch:
        patch.setattr(type(landing.warehouse.metastore), call, away)
        assert landing.land("log", schema_policy="recreate", **APPEND).failed == 1
    monkeypatch.setattr(landing_steps, "SETTLED", -1.0)
    later = time.time() + 7200
    assert landing._controlled(lambda: later).done == 1
    assert [row[0] for row in landing.rows("log")] == [1, 2, 3, 4, 5, 6]
