"""`ingest`: `request`, `ls`, `show`, `stats`, `cancel`, `take` and `drop-zone` handle requests for landings and their
jobs; `run` is a controller, which executes the jobs; `watch` finds writes by others to landing tables.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import msgspec

from replicator.commands.asset import AsRequester
from replicator.commands.base import Options, verb
from replicator.commands.options import Note
from replicator.core.engine import AutoEngine
from replicator.core.not_replicated import Report
from replicator.core.option import Between, Natural, Positive, arg, opt, python_only
from replicator.core.runtime import Stop
from replicator.core.sending import failure_of
from replicator.core.source_config import IngestionConfig
from replicator.core.spark import hive_settings
from replicator.core.text import parse_duration
from replicator.errors import ConfigError, Refused, UsageError
from replicator.ingestion.controller import Controller, Worked
from replicator.ingestion.ingestion_request import (
    Format,
    JobFilter,
    Mode,
    Request,
    SchemaPolicy,
    Split,
    State,
    beyond_scope,
)
from replicator.ingestion.ingestion_shown import (
    DropZone,
    IngestionJobs,
    IngestionJobShown,
    IngestionRequested,
    IngestionStats,
    RequestsTaken,
)
from replicator.ingestion.intake import READERS, accept, opened_store
from replicator.ingestion.job_queries import most
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.landing.foreign_writes import ForeignWrite, PublishedTable, foreign_writes, published_of
from replicator.ingestion.notices import Courier, Message, Outbox, Send, senders_of
from replicator.ingestion.reading.source_errors import driver_jars, give_drivers
from replicator.ingestion.request_directory import drop_zone_sql, take_directory, take_table
from replicator.lifecycle.purge.run import warehouse_of
from replicator.metastore.client import Metastore
from replicator.metastore.java import find_java


@dataclass(frozen=True, kw_only=True)
class IngestRequestOptions(AsRequester):
    table: Annotated[str, arg('The table to land, as "SOURCE:SCHEMA.TABLE".', "SOURCE:SCHEMA.TABLE")] = field(
        kw_only=False
    )
    asset: Annotated[str, opt("Asset that the table belongs to.", metavar="NAME")]
    mode: Annotated[
        Mode,
        opt(
            "overwrite: all rows, replacing the present ones; append: rows above the watermark, in "
            "addition; merge: rows (above the watermark, if there is one), replacing those with the "
            "same key."
        ),
    ] = "overwrite"
    watermark: Annotated[str | None, opt("Column whose values only grow.", metavar="COLUMN")] = None
    late: Annotated[
        str | None,
        opt(
            "How late a row may become visible after greater values of the watermark: rows of that time are read "
            "again, and land once, by their key; 0s: never. Default: up to the oldest running transaction.",
            metavar="DURATION",
        ),
    ] = None
    key: Annotated[
        str | Sequence[str],
        opt("Column that identifies a row, for merge, or append with --late; repeatable.", metavar="COLUMN"),
    ] = ()
    max_loss: Annotated[
        Annotated[float, Between(0, 1)] | None,
        opt("Share of the landed rows that an overwrite may remove; 1: all. Default: [ingestion] max_loss."),
    ] = None
    split_column: Annotated[
        str | None, opt("Read in ranges of this column; default: the first of the primary key.", metavar="COLUMN")
    ] = None
    readers: Annotated[
        Annotated[int, Between(1, READERS)] | None, opt("Concurrent connections; default: that of the source.")
    ] = None
    format: Annotated[Format, opt("Format of the files.")] = "parquet"
    schema_policy: Annotated[SchemaPolicy, opt("What happens if the table's columns have changed.")] = "fail"
    note: Note = ""

    @property
    def request(self) -> Request:
        """Parses the table's name. Raises UsageError for an invalid one."""
        source, colon, table = self.table.partition(":")
        schema, dot, name = table.partition(".")
        if not (source and colon and schema and dot and name):
            raise UsageError(f"{self.table!r} is not a table of a source", hint="write SOURCE:SCHEMA.TABLE")
        return Request(
            asset=self.asset,
            source=source,
            schema=schema,
            table=name,
            mode=self.mode,
            watermark=self.watermark,
            late=self.late,
            key=(self.key,) if isinstance(self.key, str) else tuple(self.key),
            split=Split(column=self.split_column, readers=self.readers),
            max_loss=self.max_loss,
            format=self.format,
            schema_policy=self.schema_policy,
            note=self.note,
        )


@verb(IngestRequestOptions)
def ingest_request(options: IngestRequestOptions) -> IngestionRequested:
    """Requests the landing of a table, which a controller executes later. The request replaces one for the same table
    that waits or has failed, and waits for one that is running.

        replicator.ingest_request("crm:public.orders", asset="crm").job

    Raises UsageError for an invalid request, such as a column that the source does not have, ObjectNotFound for an
    unknown asset, Refused for an asset that is not approved, and for users other than its owner and producers; then
    nothing is queued. If the source does not answer, the request is queued unchecked, and the report's `unchecked`
    gives the reason."""
    request = options.request
    with opened_store(options.settings) as store:
        queued = accept(store, options.settings.ingestion, request, options.asks)
    return IngestionRequested(
        queued.state,
        queued.job,
        queued.position,
        queued.replaces,
        request.place,
        ".".join(request.target),
        not queued.unchecked,
        queued.unchecked,
    )


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
    """Lists ingestion jobs, newest first. Changes nothing.

        replicator.ingest_ls(asset="crm", state=["failed", "failed_user"]).to_arrow()

    Raises UsageError for an unknown state."""
    states = (options.state,) if isinstance(options.state, str) else tuple(options.state)
    wanted = JobFilter(options.asset, options.from_source, options.table, options.who, states)
    with opened_store(options.settings, new=True) as store:
        found = store.jobs(wanted, before=options.before, limit=options.limit)
    return IngestionJobs("shown", found)


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
        return IngestionJobShown("shown", store.detail(options.job), Outbox(store).undelivered(options.job))


LONGEST = timedelta(days=31)
"""Sources whose changes are read immediately."""


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
    with opened_store(options.settings, new=True) as store:
        queue, landed = store.queue(), store.landed(options.within.total_seconds())
    return IngestionStats("shown", ingestion.slots, most(ingestion.slots, ingestion.share), queue, landed)


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
        return IngestionJobShown(status, store.detail(job.job))


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
    java = find_java(os.environ)
    jars = driver_jars(ingestion.sources.values(), java, os.environ)
    with (
        opened_store(options.settings) as store,
        options.connected(ingestion.metastore) as metastore,
        options.runtime() as runtime,
    ):
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


# ---- ingest watch ----------------------------------------------------------------------------------------------------
# `ingest watch`: finds writes to landing tables that no job made.


@dataclass
class Watched(Report):
    """The report of a watch. status: "quiet"; "foreign" if another writer has changed a table; "beyond" if policies
    replicate tables that their classification excludes; "partial" if the state of tables is uncertain. tables:
    compared. found: changed by another writer. unsure: tables that differ while a job is publishing, or after a job
    whose publication is unknown. beyond: by policy, tables that it replicates although their classification excludes
    them. untold: receivers that were not notified."""

    status: str = "quiet"
    tables: int = 0
    found: list[ForeignWrite] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    beyond: dict[str, list[str]] = field(default_factory=dict)
    untold: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class IngestWatchOptions(Options):
    """No options of its own."""


@verb(IngestWatchOptions)
def ingest_watch(options: IngestWatchOptions) -> Watched:
    """Compares each landing table with the last publication: the table, its columns, its partitions, and its files. A
    difference that no job has just published was written by another writer; jobs that wait, copy or have failed have
    changed nothing. Also lists tables that a policy replicates beyond its scope. Receivers of `[ingestion.notify]
    failures` are notified of both in each run, with the same key. Changes nothing.

        replicator.ingest_watch(config="replicator.toml").found

    Raises ConfigError without the key `ingestion.metastore`."""
    ingestion = options.settings.ingestion
    if not ingestion.metastore:
        raise ConfigError("ingestion.metastore is not set", hint="see docs/ingestion.md")
    watched = Watched()
    with (
        opened_store(options.settings) as store,
        options.connected(ingestion.metastore) as metastore,
        options.runtime() as runtime,
    ):
        tables = _published(store)
        watched.tables = len(tables)
        watched.found, unsure = _compared(store, metastore, runtime.engines, tables)
        if unsure:  # a table published during the run is compared with the new publication
            again = [each for each in _published(store) if f"{each.db}.{each.name}" in unsure]
            more, watched.unsure = _compared(store, metastore, runtime.engines, again)
            watched.found += more
        watched.beyond = _beyond(store, ingestion, tables)
        senders = senders_of(ingestion.notify, options.settings.lineage, metastore.config.uri)
    messages = messages_of(watched)
    if messages:
        watched.status = "foreign" if watched.found else "beyond"
        told = {name: send for name, send in senders.items() if name.startswith("failures.")}
        watched.untold = [name for name, send in told.items() if not _tell(send, messages)]
    elif watched.unsure:
        watched.status = "partial"
    return watched


def _published(store: IngestionStore) -> list[PublishedTable]:
    found = [each for job, facts in store.published_tables() for each in published_of(job, facts)]
    return sorted(found, key=lambda each: (each.db, each.name))


def _compared(
    store: IngestionStore, metastore: Metastore, engines: AutoEngine, tables: list[PublishedTable]
) -> tuple[list[ForeignWrite], list[str]]:
    """Returns the tables that another writer has changed, and the names of those that a job may have changed."""
    newest, sure, unsure = {f"{each.db}.{each.name}": each for each in tables}, list[ForeignWrite](), list[str]()
    for found in foreign_writes(metastore, engines, tables, store.published_of):
        of = newest[found.table]
        if store.may_have_published(of.target, of.job):
            unsure.append(found.table)
        else:
            sure.append(found)
    return sure, unsure


def _beyond(store: IngestionStore, ingestion: IngestionConfig, tables: list[PublishedTable]) -> dict[str, list[str]]:
    assets, found = {each.name: each for each in store.assets()}, defaultdict[str, list[str]](list)
    for each in tables:
        for policy in beyond_scope(assets[each.asset], each.db, [each.name], ingestion):
            found[policy].append(f"{each.db}.{each.name}")
    return dict(found)


def messages_of(watched: Watched) -> list[Message]:
    """Returns a message for each foreign write, and for each policy beyond its scope. The key is made of the facts."""
    found = []
    for each in watched.found:
        body = {"state": "foreign_write", **msgspec.to_builtins(each)}
        found.append(_message(f"foreign-{each.table}", each.table, each.job, each.facts, body))
    for policy, tables in watched.beyond.items():
        body = {"state": "beyond_scope", "policy": policy, "tables": tables}
        found.append(_message(f"beyond-{policy}", policy, 0, tables, body))
    return found


def _message(begin: str, about: str, job: int, facts: Sequence[str], body: dict[str, Any]) -> Message:
    key = f"{begin}-{hashlib.blake2s(msgspec.json.encode(facts), digest_size=8).hexdigest()}"
    return Message(about=about, key=key, job=job, at=time.time(), body=msgspec.json.encode(body).decode())


def _tell(send: Send, messages: list[Message]) -> bool:
    return not any(failure_of(lambda message=message: send(message)) for message in messages)  # type: ignore[misc]
