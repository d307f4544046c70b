"""Queries of the ingestion store: assets, jobs, their changes and metrics. Changes nothing."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Connection, func, select

from replicator.core.database import Database
from replicator.errors import Error
from replicator.ingestion import job_queries as figures
from replicator.ingestion import job_queries as queries
from replicator.ingestion import schema as rows
from replicator.ingestion.ingestion_request import (
    Asset,
    Failure,
    IngestionJob,
    JobChange,
    JobDetail,
    JobFilter,
    Kind,
    NotApproved,
    OutOfScope,
    Request,
)
from replicator.ingestion.landing.landing_schema import RowsRefused, SchemaRefused
from replicator.ingestion.landing.publishing import ForeignTable, Overtaken
from replicator.ingestion.reading.source_errors import classify, said
from replicator.ingestion.schema import asset

ALL = JobFilter()


class JobAnswers(Database):
    """A read-only view of the ingestion store. Raises as Database."""

    def __init__(self, url: str, clock: Callable[[], float] = time.time) -> None:
        """Opens no connection before the first query. clock: for SQLite, the clock of this machine, which also has the
        file. Raises ConfigError for a URL of an unknown kind of database."""
        super().__init__(url, "ingestion store", "ingestion.store")
        self._clock = clock

    def asset(self, name: str) -> Asset:
        """Raises ObjectNotFound, whose hint suggests similar names."""
        with self.transaction() as connection:
            return queries.find_asset(connection, name)

    def assets(self) -> list[Asset]:
        """Returns all assets, by name."""
        with self.transaction() as connection:
            return [
                rows.to_asset(dict(row)) for row in connection.execute(select(asset).order_by(asset.c.name)).mappings()
            ]

    def jobs(self, wanted: JobFilter = ALL, *, before: int = 0, limit: int = 50) -> list[IngestionJob]:
        """Returns jobs, newest first. before: only jobs older than this one; 0: all."""
        with self.transaction() as connection:
            return queries.find_jobs(connection, wanted, before, limit)

    def job(self, id: int) -> IngestionJob:
        """Raises ObjectNotFound."""
        with self.transaction() as connection:
            return rows.to_job(queries.find_row(connection, id))

    def kept(self, id: int) -> frozenset[str] | None:
        """Returns the directories of an ended job that may have been published; None: unknown, so all of them count."""
        with self.transaction() as connection:
            return queries.find_kept(connection, id)

    def taken_by_another(self, request: Request) -> str | None:
        """Returns the source of another request with the same landing table; None if there is none."""
        with self.transaction() as connection:
            target = ".".join(request.target)
            return queries.taken_by_another(connection, target, rows.digest(request.identity))

    def last_facts(self, request: Request) -> dict[str, Any]:
        """Returns the facts of the newest published job of a request's identity, and its number as `job`; may be
        empty."""
        with self.transaction() as connection:
            return queries.find_facts(connection, ".".join(request.target), rows.digest(request.identity))

    def published_tables(self, asset: str = "") -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yields, for each landing table (of an asset), the newest published job with its facts, by the table's
        name."""
        after = ""
        while True:
            with self.transaction() as connection:
                found = queries.find_published(connection, after, 200, asset)
            if not found:
                return
            yield from found
            after = found[-1][0]["target"]

    def published_of(self, target: str, since: int) -> Iterator[tuple[int, float, dict[str, Any]]]:
        """Yields published jobs of a landing table, DATABASE.TABLE, starting at job `since`, oldest first: with the
        time of their end or begin, and their facts."""
        with self.transaction() as connection:
            yield from queries.find_published_of(connection, target, since)

    def may_have_published(self, target: str, after: int) -> bool:
        """Returns True if a job later than `after` has published a landing table, DATABASE.TABLE, is about to, or ended
        in an unknown publication state."""
        with self.transaction() as connection:
            return queries.may_have_published(connection, target, after)

    def detail(self, id: int) -> JobDetail:
        """Raises ObjectNotFound."""
        with self.transaction() as connection:
            return queries.find_detail(connection, id)

    def changes_after(self, after: int, limit: int) -> list[JobChange]:
        """Returns changes with a greater id, oldest first. No change below the last returned id is added later."""
        with self.transaction() as connection:
            return queries.find_changes(connection, after, limit)

    def queue(self) -> figures.QueueFigures:
        """Returns metrics of open jobs, and how long they have been waiting."""
        with self.transaction() as connection:
            return figures.find_queue(connection, self._now(connection))

    def landed(self, seconds: float) -> figures.LandingFigures:
        """Returns metrics of the publications of the last `seconds`, and their latency from the request."""
        with self.transaction() as connection:
            return figures.find_landed(connection, self._now(connection) - seconds)

    def now(self) -> float:
        """Returns the time of the store's clock, in seconds since 1970."""
        with self.transaction() as connection:
            return self._now(connection)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _now(self, connection: Connection) -> float:
        if self.file is not None:
            return self._clock()
        return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())


# ---- failing ---------------------------------------------------------------------------------------------------------
# Failures of jobs: their kind determines whether a job is retried automatically.


_OF_THE_USER = (SchemaRefused, RowsRefused, ForeignTable, Overtaken, OutOfScope)
"""Refusals because of the landing table, the rows or the replication scope; `classify` handles errors of the source."""


def failure_of(error: BaseException) -> Failure:
    """Returns the failure for the requester: a short text without a stack trace; the detail is for troubleshooting."""
    detail = "".join(traceback.format_exception(error))[-20_000:]
    kind = _kind_of(error)
    if isinstance(error, Error):
        return Failure(kind, f"{error.message} ({error.hint})" if error.hint else error.message, detail)
    return Failure(kind, said(error), detail)


def _kind_of(error: BaseException) -> Kind:
    if isinstance(error, NotApproved):
        return "lock"  # it continues once the asset is approved
    return "user" if isinstance(error, _OF_THE_USER) else classify(error)
