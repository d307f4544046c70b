"""Ingestion, whole: tables of a real PostgreSQL landed in a real warehouse, replicated, erased and restored.

What was landed is read with pyarrow from where the metastore says, and compared with what psycopg reads at the source.
"""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from landings import Landing, rows_at, when_claims_have_run_out
from postgres import Postgres
from purges import Warehouse

import replicator
from replicator.core.config import parse_config
from replicator.core.model import Column
from replicator.errors import ObjectNotFound, Refused, UsageError
from replicator.ingestion.ingestion_request import Failure
from replicator.ingestion.landing import landing_steps as steps
from replicator.ingestion.landing.publishing import Landed, Overtaken, publish
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect


def pools_of_stages(session: Any) -> dict[int, str]:
    """The scheduler's pool of each stage that ran, as Spark's own status says."""
    jvm, status = session._jvm, session.sparkContext._jsc.sc().statusStore()
    quantiles = session.sparkContext._gateway.new_array(jvm.double, 0)
    stages = status.stageList(jvm.java.util.ArrayList(), False, False, quantiles, jvm.java.util.ArrayList())
    found = [stages.apply(number) for number in range(stages.size())]
    return {each.stageId(): each.schedulingPool() for each in found if str(each.status()) == "COMPLETE"}


@pytest.fixture
def landing(postgres: Postgres, warehouse: Warehouse, tmp_path: Path) -> Iterator[Landing]:
    made = Landing(postgres, warehouse, tmp_path)
    yield made
    made.source.close()


def test_a_table_is_landed_changed_landed_again_replicated_and_restored(
    landing: Landing, target_metastore: Running, tmp_path: Path
) -> None:
    landing.sql("CREATE TABLE people (id bigint PRIMARY KEY, name text, born date, score numeric(10, 2))")
    landing.sql("INSERT INTO people SELECT n, 'p' || n, date '2000-01-01' + n, n / 4.0 FROM generate_series(1, 1000) n")
    landing.sql("INSERT INTO people VALUES (0, NULL, NULL, NULL), (5000, 'quo''te \"d` ; \\', NULL, 1)")
    landing.create_asset(consumers=["readers", "user:eve"], retention="0s")
    db, uri = f"{landing.asset}_public", landing.warehouse.running.uri
    root, target = str(tmp_path / "cmroot"), target_metastore.uri

    done = landing.land("people")

    assert (done.status, done.done, done.rows) == ("done", 1, 1002), done
    before = landing.at_source("SELECT id, name, born, score FROM people")
    assert landing.rows("people") == before
    metastore = landing.warehouse.metastore
    assert metastore.readers(db, "people") >= {("GROUP", "readers"), ("USER", "eve")}
    (key,) = metastore.constraints(db, ["people"])["people"]
    assert (key.kind, key.columns, key.enable) == ("PRIMARY KEY", ("id",), False)
    first = landing.location("people")
    replicator.load(replicator.dump(source=uri, cmroot=root, db=db, out=str(tmp_path / "d1")).dump, target=target)
    event = metastore.current_event_id()
    landing.sql("DELETE FROM people WHERE id > 500")
    landing.sql("UPDATE people SET name = 'changed' WHERE id = 7")
    landing.request("people")
    changed = {"owner": "ann", "producers": ["paul"], "sources": ["crm"], "consumers": ["readers"], "retention": "0s"}
    replicator.asset_create(landing.asset, config=landing.config, by="ann", overwrite=True, **changed)

    waits = landing.run()

    assert (waits.failed, waits.done) == (1, 0) and "replicator asset approve" in waits.errors[0], waits
    assert landing.rows("people") == before and metastore.readers(db, "people") >= {("USER", "eve")}
    replicator.asset_approve(landing.asset, config=landing.config, by="olaf")
    assert landing.run().rows == 501, "at once"
    (job, _) = replicator.ingest_ls(config=landing.config).jobs
    assert (job.approved_by, job.attempt) == ("olaf", 2)

    after = landing.at_source("SELECT id, name, born, score FROM people")
    assert landing.rows("people") == after
    assert landing.location("people") != first
    assert metastore.readers(db, "people") & {("GROUP", "readers"), ("USER", "eve")} == {("GROUP", "readers")}
    assert Path(first.removeprefix("file:")).is_dir(), "readers in flight keep what they read"
    shown = landing.warehouse.sql(f"SELECT count(*), min(name) FROM {db}.people")
    assert shown == [(501, "changed")]
    dumped = replicator.dump(source=uri, cmroot=root, db=db, since=event, out=str(tmp_path / "d2"))
    replicator.load(dumped.dump, target=target)
    kept = replicator.housekeeping_run(uri, root, db=db, allow_immediate=True)
    assert kept.status == "done" and not Path(first.removeprefix("file:")).exists(), "and it went by its retention"
    replicator.restore(cmroot=root, db=db, to=event, target=target, into=f"{db}_then")
    with connect(target) as replica:
        places = [replica.table(name, "people").location or "" for name in (db, f"{db}_then")]
    assert [rows_at(place, ("id", "name", "born", "score")) for place in places] == [after, before]


def test_columns_change_by_the_policy_of_the_request(landing: Landing) -> None:
    """Of a table with keys, to which another one refers, too: metastores refuse to alter these."""
    landing.sql("CREATE TABLE t (id int PRIMARY KEY, a text)")
    landing.sql("INSERT INTO t VALUES (1, 'x')")
    landing.sql("CREATE TABLE u (t_id int REFERENCES t (id))")
    landing.create_asset()
    landing.land("t")
    landing.land("u")
    landing.sql("ALTER TABLE t ADD COLUMN b int DEFAULT 5")

    refused = landing.land("t")

    assert refused.failed == 1 and "b int is new" in refused.errors[0]
    assert landing.rows("t") == [(1, "x")], "what was landed stays"
    assert landing.land("t", schema_policy="add_columns").done == 1
    assert landing.rows("t") == [(1, "x", 5)]
    landing.sql("ALTER TABLE t ALTER COLUMN a TYPE int USING 3")
    refused = landing.land("t", schema_policy="add_columns")
    assert "a was string and is int" in refused.errors[0]
    assert landing.land("t", schema_policy="recreate").done == 1
    assert landing.rows("t") == [(1, 3, 5)]
    keys = landing.warehouse.metastore.constraints(f"{landing.asset}_public", ["t", "u"])
    assert [[key.kind for key in keys[name]] for name in ("t", "u")] == [["PRIMARY KEY"], ["FOREIGN KEY"]]


def test_a_source_that_is_suddenly_smaller_replaces_nothing_without_permission(landing: Landing) -> None:
    landing.sql("CREATE TABLE t AS SELECT id FROM generate_series(1, 300) AS id")
    landing.create_asset()
    assert landing.land("t").done == 1
    before = landing.rows("t")
    landing.sql("DELETE FROM t WHERE id > 140")
    smaller = landing.land("t")
    assert smaller.failed == 1 and "has 140 rows, but 300 have landed" in smaller.errors[0]
    assert landing.rows("t") == before, "what was landed stays"
    landing.sql("DELETE FROM t")
    assert "has 0 rows, but 300" in landing.land("t").errors[0]
    landing.sql("INSERT INTO t SELECT id FROM generate_series(1, 160) AS id")
    assert landing.land("t").done == 1, "less than half is gone"
    landing.sql("DELETE FROM t WHERE id > 70")
    assert landing.land("t").done == 1, "a small loss is not judged"
    landing.sql("DELETE FROM t")
    assert landing.land("t").failed == 1
    assert landing.land("t", max_loss=1.0).done == 1 and landing.rows("t") == []
    with pytest.raises(UsageError, match="mode merge removes no rows"):
        landing.request("t", mode="merge", key="id", max_loss=0.5)


def test_new_rows_have_the_rights_of_those_that_they_replace(landing: Landing) -> None:
    landing.sql("CREATE TABLE whole AS SELECT 1 AS id")
    landing.sql("CREATE TABLE log AS SELECT 1 AS id")
    landing.create_asset()
    landing.land("whole")
    landing.land("log", mode="append", watermark="id")
    old, home = Path(landing.location("whole").removeprefix("file:")), landing.location("log").removeprefix("file:")
    for path, mode in {old: 0o2750, **dict.fromkeys(old.glob("part-*"), 0o640), Path(home): 0o2770}.items():
        os.chown(path, 4711, 4712)
        path.chmod(mode)
    landing.sql("INSERT INTO log VALUES (2)")

    landing.request("log", mode="append", watermark="id")
    assert landing.land("whole").status == "done"

    new = Path(landing.location("whole").removeprefix("file:"))
    (file,) = new.glob("part-*")
    day = max(Path(home).iterdir(), key=lambda path: path.stat().st_mtime_ns)
    found = {path: path.stat() for path in (new, file, day)}
    assert new != old and [oct(each.st_mode & 0o7777) for each in found.values()] == ["0o2750", "0o640", "0o2770"]
    assert [(each.st_uid, each.st_gid) for each in found.values()] == [(4711, 4712), (4711, 4712), (0, 4712)]


def test_rows_are_appended_by_a_watermark_and_merged_by_a_key(landing: Landing) -> None:
    landing.sql("CREATE TABLE log (id int, at timestamp)")
    landing.sql(
        "INSERT INTO log SELECT n, timestamp '2026-01-01' + n * interval '1 hour' FROM generate_series(1, 10) n"
    )
    landing.sql("CREATE TABLE state (id int PRIMARY KEY, v text)")
    landing.sql("INSERT INTO state SELECT n, 'old' FROM generate_series(1, 5) n")
    landing.sql(
        "CREATE TABLE marked AS SELECT n AS id, 'old' AS v, date '2026-01-01' + n AS at FROM generate_series(1, 3) n"
    )
    landing.create_asset()
    landing.request("log", mode="append", watermark="at")
    landing.request("state", mode="merge", key=("id",))
    landing.request("marked", mode="merge", key=("id",), watermark="at")
    assert landing.run().done == 3
    landing.sql("INSERT INTO log VALUES (11, '2026-02-01'), (12, '2026-02-02')")
    landing.sql("DELETE FROM state")
    landing.sql("INSERT INTO state VALUES (4, 'new'), (6, 'new')")
    landing.sql("UPDATE marked SET v = 'new, at the same time' WHERE id = 3")

    landing.request("log", mode="append", watermark="at")
    landing.request("state", mode="merge", key=("id",))
    landing.request("marked", mode="merge", key=("id",), watermark="at")
    assert landing.run().done == 3

    assert sorted(row[0] for row in landing.rows("log")) == [*range(1, 13)]
    parts = landing.warehouse.metastore.partition_names(f"{landing.asset}_public", "log")
    assert len(parts) == 2, "a partition for each job"
    assert landing.rows("state") == [(1, "old"), (2, "old"), (3, "old"), (4, "new"), (5, "old"), (6, "new")]
    assert landing.rows("marked") == landing.at_source("SELECT * FROM marked")
    landing.sql("INSERT INTO marked VALUES (4, 'new', '2026-02-01')")
    landing.sql("ALTER TABLE marked ADD country text DEFAULT 'CH'")
    done = landing.land("marked", mode="merge", key=("id",), watermark="at", schema_policy="add_columns")
    assert done.done == 1 and landing.rows("marked") == landing.at_source("SELECT * FROM marked")
    landing.sql("INSERT INTO log VALUES (13, NULL)")
    refused = landing.land("log", mode="append", watermark="at")
    assert refused.failed == 1 and "NULL" in refused.errors[0]
    landing.sql("ALTER TABLE state DROP CONSTRAINT state_pkey")
    landing.sql("INSERT INTO state VALUES (6, 'twice')")
    before = landing.versions("state")
    refused = landing.land("state", mode="merge", key=("id",))
    assert "is not unique" in refused.errors[0]
    assert landing.versions("state") == before, "who waits for another request leaves no copies"


def test_erased_people_do_not_come_back(landing: Landing) -> None:
    landing.sql("CREATE TABLE people (id int PRIMARY KEY, name text)")
    landing.sql("INSERT INTO people SELECT n, 'p' || n FROM generate_series(1, 100) n")
    landing.warehouse.sql(
        f"CREATE DATABASE IF NOT EXISTS {landing.asset}_gdpr",
        f"CREATE TABLE {landing.asset}_gdpr.gone AS SELECT * FROM VALUES ('7'), ('9'), ('no id') AS t (member)",
    )
    before = pools_of_stages(landing.warehouse.session)
    landing.create_asset(
        classification="personal", erasure_ids=f"{landing.asset}_gdpr.gone:member", erasure_column="id"
    )

    assert landing.land("people").rows == 98

    ran = pools_of_stages(landing.warehouse.session)
    pools = {pool for stage, pool in ran.items() if stage not in before}
    assert pools == {"ingestion"} != {*before.values()}, "a pool of its own, and nobody else's work is in it"
    assert {7, 9}.isdisjoint(row[0] for row in landing.rows("people"))
    ended = landing.warehouse.sql(
        f"REFRESH TABLE {landing.asset}.ingestion_log",
        f"SELECT state, rows, erased_rows FROM {landing.asset}.ingestion_log WHERE state = 'done'",
    )
    assert ended == [("done", 98, 2)], "the log says that the source still has them"
    landing.warehouse.sql(f"TRUNCATE TABLE {landing.asset}_gdpr.gone")
    refused = landing.land("people")
    assert "had 3 erased data subjects, and has none now" in refused.errors[0]
    assert len(landing.rows("people")) == 98


def test_whoever_is_killed_in_a_step_is_followed_by_another(landing: Landing) -> None:
    """Each controller is gone after a step's work, before it could say so: a claim that nobody renews, and all that
    lies around. Of each job one version is there in the end, and nothing else."""
    landing.sql("CREATE TABLE t (id int PRIMARY KEY)")
    landing.create_asset(erasure_ids=f"{landing.warehouse.ids}", erasure_column="id")
    landing.sql("INSERT INTO t SELECT 100 + generate_series(1, 50)")
    landing.land("t")
    for number, name in enumerate(steps.STEPS, 1):
        landing.sql(f"INSERT INTO t VALUES ({1000 + number})")
        job = landing.request("t")

        landing.run_killed_in(name)
        later = landing.run_later()

        assert (later.done, later.failed, replicator.ingest_show(job, config=landing.config).detail.job.state) == (
            1,
            0,
            "done",
        ), later
        assert sorted(landing.rows("t")) == [(100 + n,) for n in range(1, 51)] + [
            (1000 + n,) for n in range(1, number + 1)
        ]
        assert len(landing.versions("t")) == 1 + number, "a version of each job, and nothing else"


@pytest.mark.parametrize("value", ["9999-12-31", "infinity"])
def test_a_watermark_in_the_future_is_refused_and_the_mark_stays(landing: Landing, value: str) -> None:
    landing.sql("CREATE TABLE log (id int, at timestamp)")
    landing.sql("INSERT INTO log VALUES (1, '2026-01-01')")
    landing.create_asset()
    assert landing.land("log", mode="append", watermark="at").done == 1
    landing.sql(f"INSERT INTO log VALUES (2, '{value}'), (3, '2026-01-02')")
    refused = landing.land("log", mode="append", watermark="at")
    assert refused.failed == 1 and "the greatest watermark at" in refused.errors[0], refused.errors
    landing.sql("DELETE FROM log WHERE id = 2")
    assert landing.land("log", mode="append", watermark="at").rows == 1
    assert sorted(row[0] for row in landing.rows("log")) == [1, 3]


def test_rows_of_a_job_that_could_not_say_that_it_had_published_are_not_appended_twice(landing: Landing) -> None:
    """Nor do copies of jobs that ended before stay when the next one has landed."""
    landing.sql("CREATE TABLE log (id int)")
    landing.sql("INSERT INTO log SELECT generate_series(1, 5)")
    landing.create_asset(consumers=["readers"])
    landing.request("log", mode="append", watermark="id")
    landing.run_killed_in("publish")
    with landing.store(when_claims_have_run_out) as later:
        lost = later.claim("another", 60, 4, 0.5)
        assert lost is not None
        later.fail(lost, Failure("component", "the metastore is away"))  # and another request takes its place
    landing.sql("INSERT INTO log VALUES (6)")
    abandoned = landing.request("log", mode="append", watermark="id")
    landing.run_killed_in("copy")
    with landing.store(when_claims_have_run_out) as later:
        later.cancel(abandoned, "paul")
    assert len(landing.versions("log")) == 2

    assert landing.land("log", mode="append", watermark="id").rows == 1

    assert landing.rows("log") == [(n,) for n in range(1, 7)]
    assert len(landing.versions("log")) == 2, "of what was published"
    landing.sql("ALTER TABLE log ADD COLUMN at timestamp DEFAULT now()")
    refused = landing.land("log", mode="append", watermark="at", schema_policy="add_columns")
    assert "by watermark id, not " in refused.errors[0]
    for mode in ("append", "overwrite"):
        more = {"watermark": "id"} if mode == "append" else {}
        landing.sql(f"CREATE TABLE cancelled_{mode} AS SELECT 1 AS id")
        job = landing.request(f"cancelled_{mode}", mode=mode, **more)
        landing.run_killed_in("publish")
        with landing.store(when_claims_have_run_out) as later:
            assert later.cancel(job, "paul").state == "running"
        assert landing.run_later().done == 1, "readers see it: a cancelled job would say nothing of it"
        assert ("GROUP", "readers") in landing.warehouse.metastore.readers(
            f"{landing.asset}_public", f"cancelled_{mode}"
        )


def test_a_controller_that_wakes_up_before_it_publishes_appends_nothing_that_a_later_job_has(landing: Landing) -> None:
    landing.sql("CREATE TABLE log (id int)")
    landing.sql("INSERT INTO log SELECT generate_series(1, 5)")
    landing.create_asset()
    job = landing.request("log", mode="append", watermark="id")
    landing.run_killed_in("settle")
    (copied,) = landing.versions("log")
    with landing.store(when_claims_have_run_out) as later:
        later.cancel(job, "paul")
        asset, asked = later.asset(landing.asset), later.detail(job).request
    landing.land("log", mode="append", watermark="id")

    late = Landed(job, 1, (Column("id", "int"),), str(copied), str(copied.parent), rows=5, files=1, bytes=1)
    with pytest.raises(Overtaken, match="landed="):
        publish(landing.warehouse.metastore, asset, asked, late)

    assert landing.rows("log") == [(n,) for n in range(1, 6)]


def test_an_increment_to_a_table_that_is_gone_is_copied_again(
    landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it was to be merged into is there yet."""
    landing.sql("CREATE TABLE log AS SELECT n AS id FROM generate_series(1, 5) n")
    landing.sql("CREATE TABLE state AS SELECT n AS id, 'old' AS v, n AS changed FROM generate_series(1, 5) n")
    landing.create_asset()
    asked = {
        "log": {"mode": "append", "watermark": "id"},
        "state": {"mode": "merge", "key": "id", "watermark": "changed"},
    }
    for table, how in asked.items():
        landing.request(table, **how)
    assert landing.run().done == 2
    landing.sql("INSERT INTO log VALUES (6)")
    landing.sql("DELETE FROM state WHERE id = 1")
    landing.sql("INSERT INTO state VALUES (6, 'new', 6)")
    for table, how in asked.items():
        landing.request(table, **how)
        landing.run_killed_in("publish", begun=False)
        landing.warehouse.metastore.drop_table(f"{landing.asset}_public", table)

    monkeypatch.setattr(steps, "SETTLED", -1.0)
    assert landing.run_later().done == 2

    assert landing.rows("log") == landing.at_source("SELECT id FROM log")
    assert landing.rows("state") == [(1, "old", 1), *landing.at_source("SELECT id, v, changed FROM state")]
    assert {path.name[:2] for path in landing.versions("state")} == {"v-"}, "copies are gone"


def test_a_copy_that_differs_is_made_again(landing: Landing) -> None:
    landing.sql("CREATE TABLE t (id int PRIMARY KEY)")
    landing.sql("INSERT INTO t SELECT generate_series(1, 50)")
    landing.create_asset()
    landing.request("t")
    landing.run_killed_in("verify")
    (copied,) = landing.versions("t")
    for file in copied.glob("part-*"):
        file.unlink()
    assert landing.run_later().done == 1
    assert len(landing.rows("t")) == 50 and not copied.exists()
    (published,) = landing.versions("t")
    late = published.with_name(f"{published.name.rpartition('-')[0]}-99999")
    late.mkdir()
    (late / "part-0.parquet").write_bytes(b"of a controller that woke up when the job was done")
    assert landing.land("t").done == 1
    assert published in landing.versions("t") and late not in landing.versions("t")


def test_a_value_that_fits_no_type_is_named_and_ends_the_copy(landing: Landing) -> None:
    landing.sql("CREATE TABLE t AS SELECT n AS id, n::numeric AS price FROM generate_series(1, 3000) n")
    landing.sql("INSERT INTO t VALUES (0, 'NaN')")
    landing.create_asset()
    (text,) = landing.land("t", split_column="id").errors
    assert "column price (numeric) has values that do not fit decimal(38,18), such as NaN" in text
    (job,) = replicator.ingest_ls(config=landing.config).jobs
    assert (job.state, landing.versions("t")) == ("failed_type", [])


def test_who_is_configured_is_told_of_tables_schemas_and_failures(landing: Landing, tmp_path: Path) -> None:
    def heard(name: str) -> list[Any]:
        return [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]

    names = ("publications", "failures", "schemas")
    tees = {name: {"command": ["tee", "-a", str(tmp_path / name)]} for name in names}
    landing.config = landing.configured(notify={"commands": tees, **{name: [f"commands.{name}"] for name in names}})
    landing.sql("CREATE TABLE t (id int PRIMARY KEY)")
    landing.sql("INSERT INTO t VALUES (1), (2)")
    landing.sql("CREATE TABLE none (id int)")
    landing.create_asset()
    done, wrong = landing.request("t"), landing.request("none")
    landing.sql("DROP TABLE none")

    worked = landing.run()

    assert (worked.done, worked.failed, worked.undelivered) == (1, 1, 0), worked
    (told,), (failed,), (schema,) = map(heard, names)
    assert (told["job"], told["rows"], told["state"], told["target"]) == (done, 2, "done", f"{landing.asset}_public.t")
    assert (failed["job"], failed["state"]) == (wrong, "failed_user") and "none" in failed["error_text"]
    assert schema["columns"] == [["id", "int"]]
    assert Path(landing.location("t").removeprefix("file:")).parent == Path(schema["location"].removeprefix("file:"))
    assert replicator.ingest_show(done, config=landing.config).undelivered == []


def test_what_others_write_to_landing_tables_is_told_with_who_it_was(
    landing: Landing, target_metastore: Running, tmp_path: Path
) -> None:
    landing.sql("CREATE TABLE t AS SELECT n AS id, 'v' || n AS v FROM generate_series(1, 100) n")
    landing.sql("CREATE TABLE log AS SELECT n AS id FROM generate_series(1, 10) n")
    told = tmp_path / "told"
    notify = {"failures": ["commands.note"], "commands": {"note": {"command": ["sh", "-c", f"cat >>{told}"]}}}
    landing.config = landing.configured(notify=notify)
    landing.create_asset(consumers=["readers"], retention="0s")
    db, engines = f"{landing.asset}_public", landing.warehouse.engines

    def watched() -> dict[str, Any]:
        done = replicator.ingest_watch(config=landing.config, engine=engines)
        assert (done.status, done.tables, done.untold) == ("foreign" if done.found else "quiet", 2, [])
        return {each.table.partition(".")[2]: each for each in done.found}

    landing.land("t")
    landing.land("log", mode="append", watermark="id")
    landing.sql("INSERT INTO log VALUES (11)")
    landing.land("log", mode="append", watermark="id")
    landing.land("t")
    removed = replicator.housekeeping_run(
        landing.warehouse.running.uri, str(tmp_path / "cmroot"), db=db, allow_immediate=True
    )
    assert removed.status == "done" and watched() == {}, "publications, grants and housekeeping are ours"
    landing.warehouse.sql(
        f"INSERT INTO {db}.t VALUES (7, 'foreign')", f"ALTER TABLE {db}.log ADD PARTITION (landed=99)"
    )
    landing.request("t")  # which waits, and has changed nothing
    found = watched()
    me = pwd.getpwuid(os.getuid()).pw_name
    assert found["log"].what == ("partition 99 was added",) and any(
        "ADD_PARTITION" in each for each in found["log"].events
    )
    assert len(found["t"].what) == 1 and "were published; newer: part-" in found["t"].what[0] and found["t"].by == (me,)
    assert [json.loads(each)["table"] for each in told.read_text().replace("}{", "}\n{").splitlines()] == [
        f"{db}.log",
        f"{db}.t",
    ]
    landing.warehouse.sql(
        f"ALTER TABLE {db}.t ADD COLUMNS (more INT)", f"ALTER TABLE {db}.log DROP PARTITION (landed=99)"
    )
    assert any(each == "its columns changed: more" for each in watched()["t"].what)
    landing.warehouse.sql(
        f"ALTER TABLE {db}.log DROP PARTITION (landed=2)",
        f"ALTER TABLE {db}.log SET TBLPROPERTIES ('beekeeper.remove.unreferenced.data' = 'false')",
    )
    assert set(watched()["log"].what) == {
        "partition 2 no longer exists",
        "properties that identify it to purge and housekeeping changed",
    }
    landing.warehouse.sql(f"DROP TABLE {db}.log")
    landing.sql("INSERT INTO log VALUES (12)")
    landing.land("log", mode="append", watermark="id")
    landing.land("t", schema_policy="recreate")
    assert watched() == {}, "what ingestion publishes is its own again"
    _beyond_scope(landing, target_metastore.uri, told)
    landing.warehouse.sql(f"DROP TABLE {db}.t")
    assert watched()["t"].what == ("the table no longer exists",)
    landing.warehouse.sql(f"DROP DATABASE {db} CASCADE")
    assert set(watched()) == {"log", "t"}


def _beyond_scope(landing: Landing, target: str, told: Path) -> None:
    """A policy that begins to replicate what its classification does not let it."""
    source, db, places = landing.warehouse.running.uri, f"{landing.asset}_public", ("cmroot", "target_cmroot", "dumps")
    policy = {"source": source, "target": target, "databases": [db], "include": ["t"]}
    values = msgspec.to_builtins(landing.config)["ingestion"] | {"classes": {"internal": {"policies": []}}}
    values.pop("replicating")
    waiting = landing.request("t")
    before = landing.config
    landing.config = parse_config(
        {"ingestion": values, "policies": {"late": {**policy, **{each: f"/{each}" for each in places}}}}, "test"
    )
    landing.run()
    shown = replicator.ingest_show(waiting, config=landing.config).detail.job
    assert shown.state == "failed_user" and "policy late would replicate" in shown.error_text, shown
    watched = replicator.ingest_watch(config=landing.config, engine=landing.warehouse.engines)
    assert watched.beyond == {"late": [f"{db}.t"]}
    assert '"state":"beyond_scope","policy":"late"' in told.read_text()
    replicator.ingest_cancel(waiting, by="paul", config=landing.config)
    landing.config = before


def test_a_purge_is_no_foreign_write(landing: Landing) -> None:
    landing.sql("CREATE TABLE people AS SELECT n AS id, 'p' || n AS name FROM generate_series(1, 100) n")
    gone, db = f"{landing.asset}_gdpr.gone", f"{landing.asset}_public"
    landing.warehouse.sql(
        f"CREATE DATABASE {landing.asset}_gdpr", f"CREATE TABLE {gone} AS SELECT * FROM VALUES (7) AS t (member)"
    )
    landing.create_asset(classification="personal", erasure_ids=f"{gone}:member", erasure_column="id")
    assert landing.land("people").rows == 99
    place = Path(landing.location("people").removeprefix("file:"))
    (place / "_SUCCESS").touch()
    landing.warehouse.sql(f"INSERT INTO {gone} VALUES (9)")
    root = landing.warehouse.root(landing.asset)

    def watched(cmroot: str | None = None) -> tuple[str, list[Any]]:
        done = replicator.ingest_watch(config=landing.config, engine=landing.warehouse.engines, cmroot=cmroot)
        return done.status, done.found

    assert landing.warehouse.purge(root, f"{gone}:member", db).rows_erased == 1
    assert len(landing.rows("people")) == 98 and watched() == watched(root.place) == ("quiet", [])
    files = [each.name for each in place.iterdir() if each.name[0] not in "_."]
    counted = landing.warehouse.metastore.table(db, "people").parameters["numFiles"]
    assert counted == str(len(files)), "without _SUCCESS"
    landing.warehouse.sql(f"INSERT INTO {db}.people VALUES (500, 'foreign')")
    assert watched()[0] == "foreign"
    sizes = [each.stat().st_size for each in place.iterdir() if each.name[0] not in "_."]
    forged = f"{len(sizes)} files, {sum(sizes)} bytes, purged"
    landing.warehouse.sql(f"ALTER TABLE {db}.people SET TBLPROPERTIES ('replicator.ingestion.written' = '{forged}')")
    assert watched()[0] == "quiet" and watched(root.place)[0] == "foreign", "any writer can set a property"


def test_what_a_table_names_stays_though_a_new_store_numbers_its_jobs_as_an_old_one_did(landing: Landing) -> None:
    landing.sql("CREATE TABLE log AS SELECT n AS id FROM generate_series(1, 10) n")
    landing.create_asset()
    landing.land("log", mode="append", watermark="id")
    (landing.here / "jobs.sqlite").unlink()
    landing.create_asset()
    landing.land("log")
    (job,) = replicator.ingest_ls(config=landing.config).jobs
    assert (job.job, job.state) == (1, "failed_user"), "a number that was given before"
    landing.land("log", mode="append", watermark="id")
    assert landing.rows("log") == landing.at_source("SELECT id FROM log")


def asked(landing: Landing, *tables: str, **more: Any) -> Any:
    given = {"asset": landing.asset, "config": landing.config, "by": "paul", "spark": landing.warehouse.session, **more}
    return replicator.ingest_request([f"crm:{table}" for table in tables], **given)


def everything(landing: Landing) -> tuple[Any, ...]:
    """All that a request could write."""
    with landing.store() as store:
        jobs = store.jobs()
    files = sorted(str(path) for path in (landing.here / "landing").rglob("*"))
    metastore = landing.warehouse.metastore
    dbs = [name for name in metastore.database_names() if name.startswith(landing.asset)]
    return jobs, files, {db: metastore.table_names(db) for db in dbs}


def test_a_dry_run_shows_columns_rows_and_ranges_and_what_would_be_refused(landing: Landing) -> None:
    landing.sql('CREATE TABLE orders (id bigint PRIMARY KEY, "Item" text, at timestamptz, price numeric(9, 2))')
    landing.sql("INSERT INTO orders SELECT n, 'i', now(), n FROM generate_series(1, 5000) n")
    landing.sql(
        "CREATE TABLE large (id int, n numeric(50, 2), m numeric(60)); CREATE VIEW seen AS SELECT * FROM orders"
    )
    landing.create_asset()
    before = everything(landing)

    done = asked(landing, "public.orders", "public.seen", "public.large", "public.order", dry_run=True)

    orders, seen, large, wrong = done.tables
    assert (done.status, done.job, orders.status, orders.target) == (
        "partial",
        0,
        "planned",
        f"{landing.asset}_public.orders",
    )
    assert [(each.source, each.source_type, each.name, each.type) for each in orders.plan.columns] == [
        ("id", "bigint", "id", "bigint"),
        ("Item", "text", "item", "string"),
        ("at", "timestamp with time zone", "at", "timestamp"),
        ("price", "numeric(9,2)", "price", "decimal(9,2)"),
    ]
    assert (orders.plan.rows, orders.plan.exact, orders.plan.readers, orders.plan.split) == (5000, True, 3, "id")
    assert seen.status == "planned" and not seen.plan.exact and seen.plan.rows > 1000 and seen.plan.readers == 1
    assert (
        large.status == "refused"
        and "n has the type numeric(50,2)" in large.error
        and "; column m has" in large.error
        and "a view" in large.hint
    )
    assert wrong.status == "refused" and "did you mean orders?" in wrong.hint
    assert everything(landing) == before

    assert landing.land("orders").done == 1
    landing.sql("DELETE FROM orders WHERE id > 100")
    (fewer,) = asked(landing, "public.orders", dry_run=True).tables
    assert fewer.status == "refused" and "5,000 have landed" in fewer.error
    landing.sql("ALTER TABLE orders ADD new int")
    before = everything(landing)
    done = asked(landing, "public.orders", dry_run=True)
    assert (
        done.status == "refused" and "new int is new" in done.tables[0].error and "add_columns" in done.tables[0].hint
    )
    assert everything(landing) == before


def test_a_dry_run_makes_no_store(landing: Landing) -> None:
    with pytest.raises(ObjectNotFound, match=f"asset '{landing.asset}' does not exist"):
        asked(landing, "public.orders", dry_run=True)
    assert list(landing.here.iterdir()) == []


def test_tables_and_patterns_of_one_request_have_an_outcome_each(landing: Landing) -> None:
    for name in ("orders", "orders_old", "people", "logs"):
        landing.sql(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    landing.sql(
        "CREATE TABLE parted (id int) PARTITION BY LIST (id); CREATE TABLE part PARTITION OF parted FOR VALUES IN (1)"
    )
    landing.sql('CREATE TABLE "not-landable" (id int)')
    landing.create_asset()

    done = asked(landing, "public.people", "public.poeple")
    assert (done.status, done.job, [each.job for each in done.tables]) == ("partial", 1, [1, None])
    assert "did you mean people?" in done.tables[1].hint
    done = asked(landing, "public", include=["ORDERS.*", "people"], exclude=[".*_old"])
    assert [(each.table, each.job, each.replaces) for each in done.tables] == [
        ("crm:public.orders", 2, None),
        ("crm:public.people", 3, 1),
    ]
    done = asked(landing, "public")
    assert {each.table: each.status for each in done.tables} == {
        "crm:public.logs": "queued",
        "crm:public.not-landable": "refused",
        "crm:public.orders": "queued",
        "crm:public.orders_old": "queued",
        "crm:public.parted": "queued",
        "crm:public.people": "queued",
    }
    with pytest.raises(UsageError, match="no table matches order") as none:
        asked(landing, "public", include=["order"])
    assert "did you mean orders" in none.value.hint
    with pytest.raises(UsageError, match="select tables of a schema"):
        asked(landing, "public.orders", include=["o.*"])
    with pytest.raises(Refused, match="eve is neither"):
        asked(landing, "public", by="eve")
