"""A source database, an asset of it, and the warehouse in which its tables land."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pyarrow.dataset as ds
import pytest
from names import unique
from postgres import Postgres
from purges import Warehouse

import replicator
from replicator.core.config import Config, parse_config
from replicator.core.runtime import Runtime
from replicator.ingestion.controller import Controller, Worked
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.landing import landing_steps as steps
from replicator.ingestion.reading import source
from replicator.ingestion.reading.source_errors import driver_jars, give_drivers
from replicator.metastore.java import find_java
from replicator.metastore.thrift import connect


def when_claims_have_run_out() -> float:
    """A clock by which claims have run out."""
    return time.time() + 3600


class Killed(BaseException):
    """A controller is gone."""


class Landing:
    """A source, an asset `crm` of it, and the warehouse in which its tables land. `replicator` runs in this process."""

    def __init__(self, postgres: Postgres, warehouse: Warehouse, here: Path) -> None:
        self.url, self.warehouse, self.here = postgres.database(), warehouse, here
        self.source = psycopg.connect(self.url, autocommit=True)
        host, _, _ = postgres.jdbc()["javax.jdo.option.ConnectionURL"].rpartition("/")
        self.jdbc = f"{host}/{self.source.info.dbname}"
        self.asset = unique("crm")
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

    def store(self, clock: Callable[[], float] = time.time) -> IngestionStore:
        store = IngestionStore(self.config.ingestion.store or "", clock)
        store.prepare()
        return store

    def versions(self, table: str) -> list[Path]:
        """All that lies in the landing table's directory."""
        return sorted((self.here / "landing" / self.asset / "public" / table).iterdir())

    def run_killed_in(self, name: str, *, begun: bool = True) -> None:
        """A controller that is gone when a step's work is done, before it could say so. begun: else before the work."""

        def killed(work: Any, facts: Any) -> Any:
            if begun:
                step(work, facts)
            raise Killed

        step = steps.STEPS[name]
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setitem(steps.STEPS, name, killed)  # type: ignore[arg-type]
            self._controlled(time.time)

    def run_later(self) -> Worked:
        """A controller when the claims of others have run out."""
        return self._controlled(when_claims_have_run_out)

    def _controlled(self, clock: Callable[[], float]) -> Worked:
        ingestion, runtime = self.config.ingestion, Runtime(self.warehouse.engines)
        jars = driver_jars(ingestion.sources.values(), find_java(os.environ), os.environ)

        def session() -> Any:
            made = self.warehouse.session.newSession()
            give_drivers(made, jars)
            return made

        with self.store(clock) as store, connect(self.warehouse.running.uri) as metastore:
            return Controller(store, ingestion, metastore, runtime, session, Event()).run()

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


@pytest.fixture
def impatient_landing(
    postgres: Postgres, warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Landing]:
    """A landing that does not wait for running transactions."""
    impatient = source.Patience(open=0)
    monkeypatch.setattr(steps, "opened", lambda *given: source.opened(*given, impatient))
    made = Landing(postgres, warehouse, tmp_path)
    yield made
    made.source.close()


def rows_at(place: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows of a directory, by pyarrow."""
    data = ds.dataset(place.removeprefix("file:"), format="parquet").to_table()
    return sorted((tuple(row.get(name) for name in names) for row in data.to_pylist()), key=repr)
