"""Queries about ingestion: assets, requests and the jobs that they became. Who may not ask about the whole service
sees its own requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from replicator.commands.asset import asset_ls, asset_show
from replicator.commands.ingest import ingest_ls, ingest_show, ingest_stats
from replicator.ingestion.adapters.ingestion_shown import AssetsShown, IngestionStats
from replicator.ingestion.ingestion_job import IngestionJob, JobDetail
from replicator.service.web.permission import require
from replicator.service.web.queries.endpoint import Asking, duration_of

WEEK = "7d"
FILTERS = ("asset", "from_source", "table", "state")


@dataclass(frozen=True)
class IngestionJobList:
    """Requests as the jobs that they became, newest first."""

    jobs: list[IngestionJob]


def assets(asking: Asking) -> AssetsShown:
    return asset_ls(config=asking.serving.config)


def asset(asking: Asking) -> Any:
    return asset_show(asking.values["asset"], config=asking.serving.config).to_dict()


def requests(asking: Asking) -> IngestionJobList:
    given = {name: asking.values[name] for name in FILTERS if asking.values[name] is not None}
    who = asking.values["requested_by"] or ""
    if not asking.who.may("viewer"):
        who = asking.who.name
    before = int(asking.after or 0)
    found = ingest_ls(**given, who=who, before=before, limit=asking.enough, config=asking.serving.config)
    return IngestionJobList(found.jobs)


def key_of_job(row: dict[str, Any]) -> str:
    return str(row["job"])


def request(asking: Asking) -> JobDetail:
    found = ingest_show(asking.values["job"], config=asking.serving.config).detail
    if found.job.requested_by != asking.who.name:
        require(asking.who, "viewer", "")
    return found


def stats(asking: Asking) -> IngestionStats:
    within = duration_of("within", asking.values["within"] or WEEK)
    return ingest_stats(within=within, config=asking.serving.config)
