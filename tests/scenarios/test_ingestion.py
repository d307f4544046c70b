"""Ingestion, whole: tables of a real PostgreSQL landed in a real warehouse, replicated, erased and restored.

What was landed is read with pyarrow from where the metastore says, and compared with what psycopg reads at the source.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pyarrow.dataset as ds
import pytest
from postgres import Postgres
from purges import Warehouse

import replicator
from replicator.core.config import Config, parse_config
from replicator.core.runtime import Runtime
from replicator.ingestion import landing_steps as steps
from replicator.ingestion.controller import Controller
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.reading.drivers import driver_jars, give_drivers
from replicator.metastore.embedded.running import Running
from replicator.metastore.java import find_java
from replicator.metastore.thrift import connect

_numbers = itertools.count(1)


class Landing:
    """A source, an asset `crm` of it, and the warehouse in which its tables land. `replicator` runs in this process."""

    def __init__(self, postgres: Postgres, warehouse: Warehouse, here: Path) -> None:
        self.url, self.warehouse, self.here = postgres.database(), warehouse, here
        self.source = psycopg.connect(self.url, autocommit=True)
        host, _, _ = postgres.jdbc()["javax.jdo.option.ConnectionURL"].rpartition("/")
        self.jdbc = f"{host}/{self.source.info.dbname}"
        self.asset = f"crm{next(_numbers)}"
        self.config = self.configured()

    def configured(self, **more: Any) -> Config:
        return parse_config(
            {
                "ingestion": {
                    "metastore": self.warehouse.running.uri,
                    "landing": str(self.here / "landing"),
                    "store": f"sqlite:///{self.here / 'jobs.sqlite'}",
                    "log": f"{self.asset}.ingestion_log",
                    "sources": {"crm": {"url": self.jdbc, "user": "postgres", "readers": 3}},
                    **more,
                }
            },
            "test",
        )

    def sql(self, text: str) -> None:
        self.source.execute(text)  # type: ignore[call-overload]

    def create_asset(self, **more: Any) -> None:
        given = {"owner": "ann", "producers": ["paul"], "sources": ["crm"], "by": "ann", **more}
        replicator.asset_create(self.asset, config=self.config, **given)
        replicator.asset_approve(self.asset, config=self.config, by="bob")

    def store(self) -> IngestionStore:
        store = IngestionStore(self.config.ingestion.store or "")
        store.prepare()
        return store

    def request(self, table: str, **more: Any) -> int:
        given = {"asset": self.asset, "config": self.config, "by": "paul", **more}
        return replicator.ingest_request(f"crm:public.{table}", **given).job

    def run(self) -> Any:
        return replicator.ingest_run(config=self.config, spark=self.warehouse.session)

    def land(self, table: str, **more: Any) -> Any:
        """One request, worked on to its end."""
        self.request(table, **more)
        return self.run()

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """As they lie, by pyarrow."""
        found = self.warehouse.metastore.table(f"{self.asset}_public", table)
        places = [found.location]
        if found.is_partitioned:
            some = self.warehouse.metastore.all_partitions(found.db, found.name)
            places = [part.location for batch in some for part in batch]
        names = [column.name for column in found.storage.columns]  # type: ignore[union-attr]
        return sorted((row for place in places for row in rows_at(place or "", names)), key=repr)

    def at_source(self, text: str) -> list[tuple[Any, ...]]:
        return sorted(self.source.execute(text).fetchall(), key=repr)  # type: ignore[call-overload]

    def location(self, table: str) -> str:
        place = self.warehouse.metastore.table(f"{self.asset}_public", table).location
        assert place
        return place


def rows_at(place: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows of a directory, by pyarrow."""
    data = ds.dataset(place.removeprefix("file:"), format="parquet").to_table()
    return sorted((tuple(row.get(name) for name in names) for row in data.to_pylist()), key=repr)


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
    landing.create_asset(consumers=["readers", "user:eve"])
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

    assert landing.land("people").rows == 501

    after = landing.at_source("SELECT id, name, born, score FROM people")
    assert landing.rows("people") == after
    assert landing.location("people") != first
    assert Path(first.removeprefix("file:")).is_dir(), "readers in flight keep what they read"
    shown = landing.warehouse.sql(f"SELECT count(*), min(name) FROM {db}.people")
    assert shown == [(501, "changed")]
    dumped = replicator.dump(source=uri, cmroot=root, db=db, since=event, out=str(tmp_path / "d2"))
    replicator.load(dumped.dump, target=target)
    replicator.restore(cmroot=root, db=db, to=event, target=target, into=f"{db}_then")
    with connect(target) as replica:
        places = [replica.table(name, "people").location or "" for name in (db, f"{db}_then")]
    assert [rows_at(place, ("id", "name", "born", "score")) for place in places] == [after, before]


def test_columns_change_by_the_policy_of_the_request(landing: Landing) -> None:
    landing.sql("CREATE TABLE t (id int, a text)")
    landing.sql("INSERT INTO t VALUES (1, 'x')")
    landing.create_asset()
    landing.land("t")
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


def test_rows_are_appended_by_a_watermark_and_merged_by_a_key(landing: Landing) -> None:
    landing.sql("CREATE TABLE log (id int, at timestamp)")
    landing.sql(
        "INSERT INTO log SELECT n, timestamp '2026-01-01' + n * interval '1 hour' FROM generate_series(1, 10) n"
    )
    landing.sql("CREATE TABLE state (id int PRIMARY KEY, v text)")
    landing.sql("INSERT INTO state SELECT n, 'old' FROM generate_series(1, 5) n")
    landing.create_asset()
    landing.request("log", mode="append", watermark="at")
    landing.request("state", mode="merge", key=("id",))
    assert landing.run().done == 2
    landing.sql("INSERT INTO log VALUES (11, '2026-02-01'), (12, '2026-02-02')")
    landing.sql("DELETE FROM state")
    landing.sql("INSERT INTO state VALUES (4, 'new'), (6, 'new')")

    landing.request("log", mode="append", watermark="at")
    landing.request("state", mode="merge", key=("id",))
    assert landing.run().done == 2

    assert [row[0] for row in landing.rows("log")] == sorted(range(1, 13), key=str) or len(landing.rows("log")) == 12
    parts = landing.warehouse.metastore.partition_names(f"{landing.asset}_public", "log")
    assert len(parts) == 2, "a partition for each job"
    assert landing.rows("state") == [(1, "old"), (2, "old"), (3, "old"), (4, "new"), (5, "old"), (6, "new")]
    landing.sql("INSERT INTO log VALUES (13, NULL)")
    refused = landing.land("log", mode="append", watermark="at")
    assert refused.failed == 1 and "NULL" in refused.errors[0]


def test_erased_people_do_not_come_back(landing: Landing) -> None:
    landing.sql("CREATE TABLE people (id int PRIMARY KEY, name text)")
    landing.sql("INSERT INTO people SELECT n, 'p' || n FROM generate_series(1, 100) n")
    landing.warehouse.sql(
        f"CREATE DATABASE IF NOT EXISTS {landing.asset}_gdpr",
        f"CREATE TABLE {landing.asset}_gdpr.gone AS SELECT * FROM VALUES ('7'), ('9'), ('no id') AS t (member)",
    )
    landing.create_asset(
        classification="personal", erasure_ids=f"{landing.asset}_gdpr.gone:member", erasure_column="id"
    )

    assert landing.land("people").rows == 98

    assert {7, 9}.isdisjoint(row[0] for row in landing.rows("people"))
    ended = landing.warehouse.sql(
        f"REFRESH TABLE {landing.asset}.ingestion_log",
        f"SELECT state, rows, erased_rows FROM {landing.asset}.ingestion_log WHERE state = 'done'",
    )
    assert ended == [("done", 98, 2)], "the log says that the source still has them"


def test_whoever_is_killed_in_a_step_is_followed_by_another(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each controller is gone after a step's work, before it could say so: a claim that nobody renews, and all that
    lies around. Of each job one version is there in the end, and nothing else."""
    landing.sql("CREATE TABLE t (id int PRIMARY KEY)")
    landing.create_asset(erasure_ids=f"{landing.warehouse.ids}", erasure_column="id")
    landing.sql("INSERT INTO t SELECT 100 + generate_series(1, 50)")
    landing.land("t")
    ingestion, runtime = landing.config.ingestion, Runtime(landing.warehouse.engines)
    jars = driver_jars(ingestion.sources.values(), find_java(os.environ), os.environ)

    def session() -> Any:
        made = landing.warehouse.session.newSession()
        give_drivers(made, jars)
        return made

    class Killed(BaseException):
        pass

    url = ingestion.store or ""
    with (
        landing.store() as store,
        IngestionStore(url, clock=lambda: time.time() + 3600) as after,  # when claims have run out
        connect(landing.warehouse.running.uri) as metastore,
    ):
        for number, (name, step) in enumerate(steps.STEPS.items(), 1):
            landing.sql(f"INSERT INTO t VALUES ({1000 + number})")
            job = landing.request("t")

            def killed(work: Any, facts: Any, step: Any = step) -> Any:
                step(work, facts)
                raise Killed

            with monkeypatch.context() as patch:
                patch.setitem(steps.STEPS, name, killed)  # type: ignore[arg-type]
                with pytest.raises(Killed):
                    Controller(store, ingestion, metastore, runtime, session, Event()).run()
            later = Controller(after, ingestion, metastore, runtime, session, Event()).run()

            assert (later.done, later.failed, store.job(job).state) == (1, 0, "done"), later
            assert sorted(landing.rows("t")) == [(100 + n,) for n in range(1, 51)] + [
                (1000 + n,) for n in range(1, number + 1)
            ]
            home = Path(landing.location("t").removeprefix("file:")).parent
            assert len(list(home.iterdir())) == 1 + number, "a version of each job, and nothing else"
