"""`ingest run`: a controller, which works on the jobs of ingestion."""

from __future__ import annotations

import os
from dataclasses import dataclass
from threading import Event
from typing import Any

from replicator.commands.base import Options, verb
from replicator.core.runtime import Stop
from replicator.core.spark import hive_settings
from replicator.core.text.quantity import parse_duration
from replicator.errors import ConfigError
from replicator.ingestion.controller import Controller, Worked
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.notices import Courier, senders_of
from replicator.ingestion.reading.source_errors import driver_jars, give_drivers
from replicator.lifecycle.purge.run import warehouse_of
from replicator.metastore.java import find_java


@dataclass(frozen=True, kw_only=True)
class IngestRunOptions(Options):
    """Arguments:

    once: until there is nothing to do now; else until `stop` is set.
    stop: says when to end, such as a `threading.Event`: jobs at work end their step, which another controller goes on
      with.
    """

    once: bool = True
    stop: Stop | None = None


@verb(IngestRunOptions)
def ingest_run(options: IngestRunOptions) -> Worked:
    """Works on the jobs of ingestion: claims one after the other, as many at a time as there are slots, and lands
    their tables. Any number of controllers may run, and each may be killed: another one goes on at the step that was
    not done.

        replicator.ingest_run(config="replicator.toml")

    Raises ConfigError without `ingestion.metastore` and `ingestion.landing`. Jobs that fail are the report's `failed`;
    they are tried again by their kind of failure. Messages that a receiver has not got yet are its `undelivered`."""
    ingestion, service = options.settings.ingestion, options.settings.service
    for key in ("metastore", "landing"):
        if not getattr(ingestion, key):
            raise ConfigError(f"ingestion.{key}: is not given", hint="see docs/ingestion.md")
    java = find_java(os.environ)
    jars = driver_jars(ingestion.sources.values(), java, os.environ)
    with (
        IngestionStore(ingestion.store or service.store) as store,
        options.connected(ingestion.metastore) as metastore,
        options.runtime() as runtime,
    ):
        store.prepare()
        known = hive_settings(metastore.config, warehouse_of(metastore), runtime.engines.settings)
        mine = {"spark.jars": ",".join(map(str, jars)), "spark.scheduler.mode": "FAIR"}

        def session() -> Any:
            made = runtime.engines.session({**known, **mine}).newSession()
            give_drivers(made, jars)
            made.sparkContext.setLocalProperty("spark.scheduler.pool", ingestion.pool)  # of this thread, a job's
            return made

        controller = Controller(store, ingestion, metastore, runtime, session, options.stop or Event())
        senders = senders_of(ingestion.notify, options.settings.lineage, metastore.config.uri)
        with Courier(store, senders, parse_duration(ingestion.expire).total_seconds()) as courier:
            worked = controller.run(once=options.once)
        worked.tell_undelivered(courier.outbox.undelivered())
        return worked
