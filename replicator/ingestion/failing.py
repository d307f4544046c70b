"""Failures of jobs: whose fault they are decides whether a job is tried again by itself."""

from __future__ import annotations

import traceback

from replicator.errors import Error
from replicator.ingestion.ingestion_job import Failure, Kind
from replicator.ingestion.ingestion_request import NotApproved
from replicator.ingestion.landing.landing_schema import RowsRefused, SchemaRefused
from replicator.ingestion.landing.publishing import ForeignTable, Overtaken
from replicator.ingestion.reading.source_errors import classify, said
from replicator.ingestion.replication_scope import OutOfScope

_OF_THE_USER = (SchemaRefused, RowsRefused, ForeignTable, Overtaken, OutOfScope)
"""What the landing table, the rows or the replication scope refuse; `classify` judges errors of the source."""


def failure_of(error: BaseException) -> Failure:
    """For the one who asked: a short text without a stack trace; the detail is for who looks deeper."""
    detail = "".join(traceback.format_exception(error))[-20_000:]
    kind = _kind_of(error)
    if isinstance(error, Error):
        return Failure(kind, f"{error.message} ({error.hint})" if error.hint else error.message, detail)
    return Failure(kind, said(error), detail)


def _kind_of(error: BaseException) -> Kind:
    if isinstance(error, NotApproved):
        return "lock"  # it goes on once somebody has approved the asset
    return "user" if isinstance(error, _OF_THE_USER) else classify(error)
