"""`ingest`: `ls`, `show` and `stats` report about jobs, `cancel` ends one; `take` reads requests from a directory or a
database, for which `drop-zone` returns the SQL; `run` is a controller, which executes the jobs. `ingest request` is in
`ingest_request`; `ingest verify`, `mark` and `watch` are in `landing_tables`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Annotated, Any

from replicator.commands.asset import AsRequester
from replicator.commands.base import Options, verb
from replicator.core.option import Between, Natural, Positive, arg, opt, python_only
from replicator.core.runtime import Runtime, Stop
from replicator.core.source_config import IngestionConfig
from replicator.core.spark import hive_settings
from replicator.core.text import parse_duration
from replicator.errors import ConfigError, Refused, UsageError
from replicator.ingestion.controller import Controller, Worked
from replicator.ingestion.ingestion_request import JobFilter, State
from replicator.ingestion.ingestion_shown import (
    DropZone,
    IngestionJobs,
    IngestionJobShown,
    IngestionStats,
    RequestsTaken,
)
from replicator.ingestion.intake import existing_store, opened_store
from replicator.ingestion.job_queries import most, no_figures
from replicator.ingestion.notices import Courier, Outbox, senders_of
from replicator.ingestion.reading.source_errors import driver_jars, give_drivers
from replicator.ingestion.request_directory import drop_zone_sql, take_directory, take_table
from replicator.metastore.client import warehouse_of
from replicator.metastore.java import find_java
from replicator.metastore.thrift import ThriftMetastore


@dataclass(frozen=True, kw_only=True)
class IngestLsOptions(Options):
    asset: Annotated[str, opt("Only jobs of this asset.", metavar="NAME")] = ""
    from_source: Annotated[str, opt("Only jobs that read this source.", "--source", metavar="NAME")] = ""
    table: Annotated[str, opt("Only jobs that land in this table.", metavar="DB.TABLE")] = ""
    who: Annotated[str, opt("Only jobs that this user requested.", metavar="USER")] = ""
    state: Annotated[State | Sequence[State], opt("Only jobs in this state; repeatable.")] = ()
    before: Annotated[Natural, opt("Only jobs with a lower number.", metavar="JOB")] = 0
    limit: Annotated[Annotated[int, Between(1, 10_000)], opt("Maximum number of jobs.")] = 50


@verb(IngestLsOptions)
def ingest_ls(options: IngestLsOptions) -> IngestionJobs:
    """Lists ingestion jobs, newest first; none without a store. Changes nothing.

        replicator.ingest_ls(asset="crm", state=["failed", "failed_user"]).to_arrow()

    Raises UsageError for an unknown state."""
    states = (options.state,) if isinstance(options.state, str) else tuple(options.state)
    wanted = JobFilter(options.asset, options.from_source, options.table, options.who, states)
    with existing_store(options.settings) as store:
        found = store.jobs(wanted, before=options.before, limit=options.limit) if store else []
    return IngestionJobs("shown", found, single_user=options.settings.ingestion.single_user)


@dataclass(frozen=True, kw_only=True)
class IngestShowOptions(Options):
    job: Annotated[Positive, arg("The job's number.")] = field(kw_only=False)


@verb(IngestShowOptions)
def ingest_show(options: IngestShowOptions) -> IngestionJobShown:
    """Shows a job: its request, its changes, its error in detail, and messages that were not delivered. Changes
    nothing.

        replicator.ingest_show(17).detail.error_detail

    Raises ObjectNotFound if it does not exist."""
    with opened_store(options.settings) as store:
        alone, undelivered = options.settings.ingestion.single_user, Outbox(store).undelivered(options.job)
        return IngestionJobShown("shown", store.detail(options.job), undelivered, single_user=alone)


LONGEST = timedelta(days=31)
"""The longest period of `ingest stats`."""


@dataclass(frozen=True, kw_only=True)
class IngestStatsOptions(Options):
    within: Annotated[timedelta, opt("Period whose publications are evaluated: at most 31d.")] = timedelta(days=7)


@verb(IngestStatsOptions)
def ingest_stats(options: IngestStatsOptions) -> IngestionStats:
    """Measures ingestion: jobs by state, slots and the jobs that wait for them, time from request to publication in
    percentiles, rows and bytes by day. Changes nothing.

        replicator.ingest_stats(within=timedelta(days=1)).landed.p94

    Raises UsageError for a period that is too long."""
    if not timedelta() < options.within <= LONGEST:
        raise UsageError(
            "--within must be between one second and 31 days", hint="[ingestion] log has all changes, as a table"
        )
    ingestion = options.settings.ingestion
    seconds = options.within.total_seconds()
    with existing_store(options.settings) as store:
        queue, landed = (store.queue(), store.landed(seconds)) if store else no_figures(time.time() - seconds)
    cap, alone = most(ingestion.slots, ingestion.share), ingestion.single_user
    return IngestionStats("shown", ingestion.slots, cap, queue, landed, single_user=alone)


@dataclass(frozen=True, kw_only=True)
class IngestCancelOptions(AsRequester):
    job: Annotated[Positive, arg("The job's number.")] = field(kw_only=False)


@verb(IngestCancelOptions)
def ingest_cancel(options: IngestCancelOptions) -> IngestionJobShown:
    """Cancels a job: a waiting one immediately; a running one at its controller's next report; one that may be
    published already once a controller has checked that it is not. May run twice.

        replicator.ingest_cancel(17)

    Raises ObjectNotFound if it does not exist; Refused if it is published or has ended, and for users other than its
    requester and the asset's owner and producers."""
    with opened_store(options.settings) as store:
        job = store.job(options.job)
        asset = store.asset(job.asset)
        if not options.asks.is_one_of((job.requested_by, asset.owner, *asset.producers)):
            raise Refused(
                f"job {job.job} belongs to asset {asset.name}; {options.asks.user} is neither its owner nor a producer",
                hint=f"ask {job.requested_by}, who requested it, or {asset.owner}",
            )
        done = store.cancel(job.job, options.asks.user)
        status = "cancelled" if done.state == "cancelled" else "cancelling"
        alone = options.settings.ingestion.single_user
        return IngestionJobShown(status, store.detail(job.job), single_user=alone)


@dataclass(frozen=True, kw_only=True)
class IngestTakeOptions(Options):
    directory: Annotated[str, opt("Read requests from files in this directory.", metavar="DIR")] = ""
    database: Annotated[str, opt("Read requests from this source's database.", metavar="NAME")] = ""


@verb(IngestTakeOptions)
def ingest_take(options: IngestTakeOptions) -> RequestsTaken:
    """Reads requests from a directory, where the requester is the file's owner, or from a table of a source's database,
    where it is the database's user. They are checked like all others, and answered at their origin. May run twice, and
    concurrently: each request is read once.

        replicator.ingest_take(directory="/srv/requests").requests

    Raises UsageError unless exactly one of the two is given, StoreUnreachable if the database does not answer."""
    if bool(options.directory) == bool(options.database):
        raise UsageError("give --directory or --database", hint="exactly one of the two")
    with opened_store(options.settings) as store:
        if options.directory:
            return take_directory(store, options.settings.ingestion, Path(options.directory))
        return take_table(store, options.settings.ingestion, options.database)


@dataclass(frozen=True, kw_only=True)
class IngestDropZoneOptions(Options):
    """No options of its own."""


@verb(IngestDropZoneOptions)
def ingest_drop_zone(options: IngestDropZoneOptions) -> DropZone:
    """Returns the SQL that creates a request table and the function `replicator.request_ingestion` in PostgreSQL.

        replicator.ingest_drop_zone().sql

    Connects to nothing."""
    return DropZone("shown", drop_zone_sql())


# ---- run and watch ---------------------------------------------------------------------------------------------------


def sessions(ingestion: IngestionConfig, metastore: ThriftMetastore, runtime: Runtime) -> Callable[[], Any]:
    """Returns a function that returns a new Spark session on the landing warehouse, with the drivers of all sources,
    for the thread that calls it."""
    jars = driver_jars(ingestion.sources.values(), find_java(os.environ), os.environ)
    known = hive_settings(metastore.config, warehouse_of(metastore) or "/tmp", runtime.engines.settings)
    mine = {"spark.jars": ",".join(map(str, jars)), "spark.scheduler.mode": "FAIR"}

    def session() -> Any:
        made = runtime.engines.session({**known, **mine}).newSession()
        give_drivers(made, jars)
        made.sparkContext.setLocalProperty("spark.scheduler.pool", ingestion.pool)  # of this thread, a job's
        return made

    return session


@dataclass(frozen=True, kw_only=True)
class IngestRunOptions(Options):
    once: Annotated[bool, opt("Run until no work is left (default), or until stopped.", "--once/--follow")] = True
    stop: Annotated[
        Stop | None,
        python_only(
            "Ends the controller when set, such as a `threading.Event`: running jobs finish their "
            "step, and another controller continues."
        ),
    ] = None


@verb(IngestRunOptions)
def ingest_run(options: IngestRunOptions) -> Worked:
    """Works on the jobs of ingestion: claims one after the other, as many at a time as there are slots, and lands
    their tables. Any number of controllers may run, and each may be killed: another one continues at the step that was
    not done.

        replicator.ingest_run(config="replicator.toml")

    Raises ConfigError without `ingestion.metastore` and `ingestion.landing`. Jobs that fail are the report's `failed`;
    they are tried again by their kind of failure. Messages that a receiver has not got yet are its `undelivered`."""
    ingestion = options.settings.ingestion
    for key in ("metastore", "landing"):
        if not getattr(ingestion, key):
            raise ConfigError(f"ingestion.{key} is not set", hint="see docs/ingestion.md")
    with (
        opened_store(options.settings) as store,
        options.connected(ingestion.metastore) as metastore,
        options.runtime() as runtime,
    ):
        session = sessions(ingestion, metastore, runtime)
        controller = Controller(store, ingestion, metastore, runtime, session, options.stop or Event())
        senders = senders_of(ingestion.notify, options.settings.lineage, metastore.config.uri)
        with Courier(store, senders, parse_duration(ingestion.expire).total_seconds()) as courier:
            worked = controller.run(once=options.once)
        worked.tell_undelivered(courier.outbox.undelivered())
        return worked
