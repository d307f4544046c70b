"""`ingest request`, `ls`, `show`, `stats`, `cancel`, `take` and `drop-zone`: requests for landings, and the jobs that
they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from replicator.commands.asset import AsRequester
from replicator.commands.base import Options, verb
from replicator.commands.ranges import Between, Natural, Positive
from replicator.errors import Refused, UsageError
from replicator.ingestion.adapters.ingestion_shown import (
    DropZone,
    IngestionJobs,
    IngestionJobShown,
    IngestionRequested,
    IngestionStats,
    RequestsTaken,
)
from replicator.ingestion.adapters.intake import READERS, accept, opened_store
from replicator.ingestion.adapters.request_directory import drop_zone_sql, take_directory, take_table
from replicator.ingestion.ingestion_request import Format, JobFilter, Mode, Request, SchemaPolicy, Split, State
from replicator.ingestion.job_queries import most
from replicator.ingestion.notices import Outbox


@dataclass(frozen=True, kw_only=True)
class IngestRequestOptions(AsRequester):
    """Arguments:

    table: what is landed, "SOURCE:SCHEMA.TABLE".
    asset: for which asset.
    mode: "overwrite": all rows, instead of those that are there; "append": rows whose watermark is greater than all
      that were landed; "merge": such rows, or all, instead of rows with the same key.
    watermark: a column that only grows. key: the columns that tell rows apart.
    split_column: by which the table is read in ranges; None: the first one of the primary key.
    readers: connections at a time; None: as the source says.
    format: "parquet" or "orc".
    schema_policy: where columns have changed: "fail", "recreate" or "add_columns".
    note: for people.
    """

    table: str = field(kw_only=False)
    asset: str
    mode: Mode = "overwrite"
    watermark: str | None = None
    key: str | Sequence[str] = ()
    split_column: str | None = None
    readers: Annotated[int, Between(1, READERS)] | None = None
    format: Format = "parquet"
    schema_policy: SchemaPolicy = "fail"
    note: str = ""

    @property
    def request(self) -> Request:
        """Raises UsageError for a table that is none."""
        source, colon, table = self.table.partition(":")
        schema, dot, name = table.partition(".")
        if not (source and colon and schema and dot and name):
            raise UsageError(f"{self.table!r} is no table of a source", hint="write SOURCE:SCHEMA.TABLE")
        return Request(
            asset=self.asset,
            source=source,
            schema=schema,
            table=name,
            mode=self.mode,
            watermark=self.watermark,
            key=(self.key,) if isinstance(self.key, str) else tuple(self.key),
            split=Split(column=self.split_column, readers=self.readers),
            format=self.format,
            schema_policy=self.schema_policy,
            note=self.note,
        )


@verb(IngestRequestOptions)
def ingest_request(options: IngestRequestOptions) -> IngestionRequested:
    """Requests that a table is landed: a controller does it later. It takes the place of a request for the same table
    that waits or has failed; while one is worked on, it follows.

        replicator.ingest_request("crm:public.orders", asset="crm").job

    Raises UsageError for what cannot be, such as a column that the source does not have, ObjectNotFound for an unknown
    asset, Refused for one that nobody has approved, and for who is neither its owner nor a producer; nothing is queued
    then. A source that does not answer refuses nothing: the report's `unchecked` says why it was not asked."""
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
    """Arguments:

    asset: only jobs of this asset.
    from_source: only those that read this source.
    table: only those that land in this table, "db.table".
    who: only those that this user requested.
    state: only those in this state, or in one of several.
    before: only jobs with a lower number.
    limit: at most so many.
    """

    asset: str = ""
    from_source: str = ""
    table: str = ""
    who: str = ""
    state: State | Sequence[State] = ()
    before: Natural = 0
    limit: Annotated[int, Between(1, 10_000)] = 50


@verb(IngestLsOptions)
def ingest_ls(options: IngestLsOptions) -> IngestionJobs:
    """Lists jobs, newest first. Changes nothing.

        replicator.ingest_ls(asset="crm", state=["failed", "failed_user"]).to_arrow()

    Raises UsageError for a state that is none."""
    states = (options.state,) if isinstance(options.state, str) else tuple(options.state)
    wanted = JobFilter(options.asset, options.from_source, options.table, options.who, states)
    with opened_store(options.settings) as store:
        found = store.jobs(wanted, before=options.before, limit=options.limit)
    return IngestionJobs("shown", found)


@dataclass(frozen=True, kw_only=True)
class IngestShowOptions(Options):
    """Arguments:

    job: its number.
    """

    job: Positive = field(kw_only=False)


@verb(IngestShowOptions)
def ingest_show(options: IngestShowOptions) -> IngestionJobShown:
    """Shows a job: its request, its changes, its error in detail, and messages that were not delivered. Changes
    nothing.

        replicator.ingest_show(17).detail.error_detail

    Raises ObjectNotFound when there is none."""
    with opened_store(options.settings) as store:
        return IngestionJobShown("shown", store.detail(options.job), Outbox(store).undelivered(options.job))


LONGEST = timedelta(days=31)
"""Of which changes are read at once."""


@dataclass(frozen=True, kw_only=True)
class IngestStatsOptions(Options):
    """Arguments:

    within: how far back, for what was published: at most 31 days.
    """

    within: timedelta = timedelta(days=7)


@verb(IngestStatsOptions)
def ingest_stats(options: IngestStatsOptions) -> IngestionStats:
    """Says how ingestion does: jobs by state, slots and who waits for them, from request to published in percentiles,
    rows and bytes by day. Changes nothing.

        replicator.ingest_stats(within=timedelta(days=1)).landed.p94

    Raises UsageError for a time that is too long."""
    if not timedelta() < options.within <= LONGEST:
        raise UsageError("--within: between a second and 31 days", hint="[ingestion] log has all changes, as a table")
    ingestion = options.settings.ingestion
    with opened_store(options.settings) as store:
        queue, landed = store.queue(), store.landed(options.within.total_seconds())
    return IngestionStats("shown", ingestion.slots, most(ingestion.slots, ingestion.share), queue, landed)


@dataclass(frozen=True, kw_only=True)
class IngestCancelOptions(AsRequester):
    """Arguments:

    job: its number.
    """

    job: Positive = field(kw_only=False)


@verb(IngestCancelOptions)
def ingest_cancel(options: IngestCancelOptions) -> IngestionJobShown:
    """Cancels a job: at once where it waits; one that runs ends with its controller's next word, and one that may be
    published when a controller has looked, unless it is. May run twice.

        replicator.ingest_cancel(17)

    Raises ObjectNotFound when there is none; Refused for one that is published or has ended, and for who has neither
    requested it nor is the asset's owner or a producer."""
    with opened_store(options.settings) as store:
        job = store.job(options.job)
        asset = store.asset(job.asset)
        if not options.asks.is_one_of((job.requested_by, asset.owner, *asset.producers)):
            raise Refused(
                f"job {job.job} is of asset {asset.name}, of which {options.asks.user} is neither owner nor producer",
                hint=f"ask {job.requested_by}, who requested it, or {asset.owner}",
            )
        done = store.cancel(job.job, options.asks.user)
        status = "cancelled" if done.state == "cancelled" else "cancelling"
        return IngestionJobShown(status, store.detail(job.job))


@dataclass(frozen=True, kw_only=True)
class IngestTakeOptions(Options):
    """Arguments:

    directory: take the requests that are files in it. database: take those that are rows in this source's database.
    """

    directory: str = ""
    database: str = ""


@verb(IngestTakeOptions)
def ingest_take(options: IngestTakeOptions) -> RequestsTaken:
    """Takes requests that stand in a directory, each for the file's owner, or in a table of a source's database, each
    for the database's user. They are checked like all others, and answered where they stood. May run twice, and by
    several at a time: each request is taken once.

        replicator.ingest_take(directory="/srv/requests").requests

    Raises UsageError unless one of both is given, StoreUnreachable where the database does not answer."""
    if bool(options.directory) == bool(options.database):
        raise UsageError("give --directory or --database", hint="one of both")
    with opened_store(options.settings) as store:
        if options.directory:
            return take_directory(store, options.settings.ingestion, Path(options.directory))
        return take_table(store, options.settings.ingestion, options.database)


@dataclass(frozen=True, kw_only=True)
class IngestDropZoneOptions(Options):
    """No arguments of its own."""


@verb(IngestDropZoneOptions)
def ingest_drop_zone(options: IngestDropZoneOptions) -> DropZone:
    """Gives the SQL that makes a request table and the function `replicator.request_ingestion` in a PostgreSQL.

        replicator.ingest_drop_zone().sql

    Raises nothing of its own."""
    return DropZone("shown", drop_zone_sql())
