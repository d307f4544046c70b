"""Queries about roots: the list of them, their size over time, holds, expiry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cmroot.store.place import as_written
from replicator.commands.asset import asset_ls, asset_show
from replicator.commands.cm import cm_slots
from replicator.commands.ingest import ingest_ls, ingest_show, ingest_stats
from replicator.errors import UsageError
from replicator.ingestion.adapters.ingestion_shown import AssetsShown, IngestionStats
from replicator.ingestion.ingestion_request import IngestionJob, JobDetail
from replicator.replay.restore.pins import PinList
from replicator.service.run_history import iso
from replicator.service.series import RootSample, root_samples
from replicator.service.web.queries.endpoint import Asking, asked_of_command, duration_of, option_of, roots_of
from replicator.service.web.queries.of_policies import moment_of, time_after
from replicator.service.web.serving import require

SLOW = 30.0
"""Seconds for a query that reads a complete log."""


@dataclass(frozen=True)
class RootView:
    """A root. name: the value for `root`. policies: those that use the location, by any of its names."""

    name: str
    place: str
    policies: tuple[str, ...]


@dataclass(frozen=True)
class RootList:
    """Roots of the configuration that may be queried, by name."""

    roots: list[RootView]


def roots(asking: Asking) -> RootList:
    there = [each for each in roots_of(asking.serving.config) if each.may(asking.who)]
    return RootList([RootView(each.name, each.place, each.policies) for each in there])


# ---- size ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SizePoint:
    """The size of a root at a time. at: ISO 8601. entries, bytes: retained; null if they could not be measured: `error`
    contains the reason. shared_bytes: the part that consists of the source's own files and takes no space of its
    own."""

    at: str
    entries: int | None
    bytes: int | None
    shared_bytes: int | None
    error: str

    @classmethod
    def of(cls, found: RootSample) -> SizePoint:
        said = {name: value for name, value in vars(found).items() if name != "root"}
        return cls(**said | {"at": iso(found.at) or ""})


@dataclass(frozen=True)
class SizeSeries:
    """The size of a root over time, oldest first, measured every `service.measure_roots`, retained for
    `service.keep`."""

    root: str
    points: list[SizePoint]


def size(asking: Asking) -> SizeSeries:
    since, after = moment_of(asking, "since"), time_after(asking.after)
    place = asking.root.place
    found = root_samples(asking.serving.store, place, since=since, after=after, limit=asking.limit + 1)
    return SizeSeries(place, [SizePoint.of(each) for each in found])


# ---- slots and holds ----------------------------------------------------------------------------------------------


def slots(asking: Asking) -> PinList:
    """Returns slots without what each holds back, which requires reading the complete log."""
    return cm_slots(cmroot=asking.root.place, held=False, config=asking.serving.config)


@dataclass(frozen=True)
class HoldList:
    """Named recovery points that are held. damaged: files that cannot be parsed."""

    root: str
    holds: list[dict[str, Any]]
    damaged: list[str]


def holds(asking: Asking) -> HoldList:
    found: PinList = cm_slots(cmroot=asking.root.place, held=False, config=asking.serving.config)
    return HoldList(found.root, found.holds, found.damaged)


def expiry(asking: Asking) -> Any:
    """Plans an expiry: without a retention, with that of the job that expires this root."""
    given = asking.values["older_than"] or _retention_of(asking)
    if not given:
        hint = 'give older_than=30d, or configure a job with command = ["cm", "expire", ...]'
        raise UsageError("which retention is meant?", hint=hint)
    duration_of("older_than", given)
    more = (f"--older-than={given}", "--dry-run", "--engine=local")
    return asked_of_command(("cm", "expire"), (), more)(asking)


def _retention_of(asking: Asking) -> str:
    for job in asking.serving.config.service.jobs.values():
        place = option_of(job.command, "--cmroot")
        if job.command[:2] == ("cm", "expire") and place and str(as_written(place)) == asking.root.place:
            return option_of(job.command, "--older-than")
    return ""


# ---- of ingestion ----------------------------------------------------------------------------------------------------
# Queries about ingestion: assets, requests and the jobs that they became. Users who may not query the whole service
# see their own requests.


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
