"""The catalogue of GET endpoints: path, command or function, parameters and response type of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Path

from replicator.commands.asset import asset_ls, asset_show
from replicator.commands.cm import CmFindOptions, CmLsOptions
from replicator.commands.guard import AuditLsOptions, audit_ls, legal_hold_ls
from replicator.commands.ingest import IngestLsOptions, ingest_ls, ingest_show, ingest_stats
from replicator.commands.lifecycle import HousekeepingLsOptions
from replicator.commands.policies import history, lag
from replicator.commands.role_change import drill
from replicator.core.audit import AuditRow, AuditShown
from replicator.ingestion.ingestion_request import Asset, IngestionJob, JobDetail
from replicator.ingestion.ingestion_shown import AssetsShown, IngestionStats
from replicator.lifecycle.purge.certificate_file import Certificate
from replicator.lifecycle.removal.removal import LegalHolds
from replicator.lifecycle.retention.datasets import Explained
from replicator.policies.drill_record import ShownDrills
from replicator.policies.lag import Lag
from replicator.policies.memory import ShownHistory
from replicator.replay.restore.kept import KeptList, PinList
from replicator.replay.restore.restore import FoundList
from replicator.replay.restore.upkeep import ExpiryPlanned
from replicator.service.web import moment_queries, policy_queries, removals, roots, table_list, upcoming_removals
from replicator.service.web.endpoint import (
    Asking,
    Endpoint,
    Parameter,
    asked_of_command,
    asked_of_verb,
    duration_of,
    of_options,
    text,
)
from replicator.service.web.roots import SLOW
from replicator.service.web.serving import require

# ---- ingestion ----------------------------------------------------------------------------------------------------
# Queries about ingestion: assets, requests and the jobs that they became. Users who may not query the whole service
# see their own requests.


WEEK = "7d"
_REQUESTS = ("asset", "from_source", "table", "state")


@dataclass(frozen=True)
class IngestionJobList:
    """Requests as the jobs that they became, newest first."""

    jobs: list[IngestionJob]


def assets(asking: Asking) -> AssetsShown:
    return asset_ls(config=asking.serving.config)


def asset(asking: Asking) -> Any:
    return asset_show(asking.values["asset"], config=asking.serving.config).to_dict()


def requests(asking: Asking) -> IngestionJobList:
    given = {name: asking.values[name] for name in _REQUESTS if asking.values[name] is not None}
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


# ---- endpoints -------------------------------------------------------------------------------------------------------


_SINCE = text("since", 'Only from this time on: ISO 8601, or relative to now: "-1d", "yesterday".')
_UNTIL = text("until", "Only up to this time.")
_PURGE = Parameter("purge", str, "A purge's id, as listed by `purges`.", ..., in_path=True)
_LS, _FIND = ("table", "needed_by"), ("path", "table", "checksum")
_AUDIT = ("job", "run", "object", "path", "outcome", "since")


def _as_a_job(*command: str) -> str:
    words = ", ".join(f'"{each}"' for each in command)
    return f"run it as a job: [service.jobs.NAME] command = [{words}, ...], then GET runs/RUN/answer"


def _audit(asking: Asking) -> AuditList:
    found = asked_of_verb(audit_ls, _AUDIT, limited=True)(asking)
    assert isinstance(found, AuditShown)
    return AuditList(found.root, found.found)


@dataclass(frozen=True)
class AuditList:
    """Rows of the audit, by job, run and time."""

    root: str
    rows: list[AuditRow]


_OF_POLICIES = (
    Endpoint(
        "policies/{policy}/lag",
        "The policy's lag, measured now, as in `replicator lag`.",
        asked_of_verb(lag),
        Lag,
        of="policy",
        instead="GET policies/P returns the last measurement",
    ),
    Endpoint(
        "policies/{policy}/history",
        "The policy's runs as recorded at the target, including manual ones, newest first, as in `replicator history`.",
        asked_of_verb(history, limited=True),
        ShownHistory,
        of="policy",
        reads="target_cmroot",
        listed="runs",
    ),
    Endpoint(
        "policies/{policy}/lag-history",
        "The policy's lag over time, oldest first.",
        policy_queries.lag_history,
        policy_queries.LagSeries,
        of="policy",
        parameters=(_SINCE,),
        listed="points",
        keyed=policy_queries.key_of_point,
    ),
    Endpoint(
        "policies/{policy}/verification",
        "The policy's last comparison of both sides, and its age.",
        policy_queries.verification,
        policy_queries.VerificationView,
        of="policy",
    ),
    Endpoint(
        "policies/{policy}/drills",
        "The policy's drills, newest first, with measured recovery times, as in `replicator drill --list`.",
        asked_of_verb(drill, limited=True, listing=True),
        ShownDrills,
        of="policy",
        reads="target_cmroot",
        listed="drills",
    ),
    Endpoint(
        "policies/{policy}/roles",
        "Roles of the policy's databases on both sides, its slot, and its role changes.",
        policy_queries.roles,
        policy_queries.PolicyRoles,
        of="policy",
    ),
    Endpoint(
        "policies/{policy}/restore-points",
        "Recovery points for `replicator restore --policy`, newest first.",
        policy_queries.restore_points,
        policy_queries.RestorePoints,
        of="policy",
        parameters=(_SINCE,),
        listed="points",
    ),
    Endpoint(
        "policies/{policy}/restore-points/tables",
        "State of each table at a recovery point in the terms of its format: version, snapshot, write ids.",
        moment_queries.point_tables,
        moment_queries.PointTables,
        of="policy",
        parameters=(Parameter("at", str, "@POSITION, an event id or a time.", ...),),
        listed="tables",
        seconds=SLOW,
        instead="`replicator restore POLICY --db DB --to @POSITION --dry-run` has no time limit",
    ),
    Endpoint(
        "tables",
        "Tables of policies by name: format, size, state on the target, and how far they are replicated and compared.",
        table_list.tables,
        table_list.TableList,
        parameters=(
            text("policy", "Only tables of this policy."),
            text("table", "Only this table: DB.TABLE."),
            text("search", "Only tables whose name, DB.TABLE, contains this text."),
            Parameter("state", Literal[table_list.STATES] | None, "Only tables in this state."),
            Parameter("format", Literal[table_list.FORMATS] | None, "Only tables in this format; `plain`: Hive's."),
        ),
        listed="tables",
        keyed=table_list.key_of_table,
    ),
    Endpoint(
        "tables/totals",
        "Tables and bytes of each policy, its last comparison, and what is not replicated, by reason.",
        table_list.totals,
        table_list.TotalsList,
        parameters=(text("policy", "Only this policy."),),
        listed="totals",
    ),
    Endpoint("checks", "Findings of the newest checks of policies.", policy_queries.checks, policy_queries.CheckList),
)

_OF_ROOTS = (
    Endpoint("roots", "The roots that can be queried.", roots.roots, roots.RootList),
    Endpoint(
        "cmroot/ls",
        "Contents of the root: totals by need, and the largest entries, as in `replicator cm ls`.",
        asked_of_command(("cm", "ls"), _LS, ("--engine=local",), limited=True),
        KeptList,
        of="root",
        parameters=of_options(CmLsOptions, *_LS),
        listed="entries",
        process=True,
        seconds=SLOW,
        instead=_as_a_job("cm", "ls"),
    ),
    Endpoint(
        "cmroot/find",
        "Files in the captured log, as in `replicator cm find`; requires path, table or checksum.",
        asked_of_command(("cm", "find"), _FIND, limited=True),
        FoundList,
        of="root",
        parameters=of_options(CmFindOptions, *_FIND),
        listed="entries",
        process=True,
        seconds=SLOW,
        instead=_as_a_job("cm", "find"),
    ),
    Endpoint(
        "cmroot/slots",
        "Slots, holds and dumps, and how far behind they are, as in `replicator cm slots`.",
        roots.slots,
        PinList,
        of="root",
    ),
    Endpoint(
        "cmroot/held",
        "Slots, holds and dumps, with the contents that each holds back; reads the entire log.",
        asked_of_command(("cm", "slots"), (), ("--engine=local",)),
        PinList,
        of="root",
        process=True,
        seconds=SLOW,
        instead=_as_a_job("cm", "slots"),
    ),
    Endpoint(
        "cmroot/holds",
        "Named recovery points that the root keeps.",
        roots.holds,
        roots.HoldList,
        of="root",
        listed="holds",
    ),
    Endpoint(
        "cmroot/expiry",
        "What an expiry would remove now, and what holds back the rest, as in `replicator cm expire --dry-run`.",
        roots.expiry,
        ExpiryPlanned,
        of="root",
        parameters=(text("older_than", "The retention, such as 30d; default: that of the job that expires the root."),),
        process=True,
        seconds=SLOW,
        instead=_as_a_job("cm", "expire", "--dry-run"),
    ),
    Endpoint(
        "cmroot/size",
        "Size of the root over time, oldest first.",
        roots.size,
        roots.SizeSeries,
        of="root",
        parameters=(_SINCE,),
        listed="points",
        keyed=policy_queries.key_of_point,
        may_be_none_yet=True,
    ),
    Endpoint(
        "tables/{table}/timeline",
        "A table's timeline: records, removals, comparisons, runs, dumps and holds.",
        roots.timeline,
        roots.Timeline,
        of="root",
        parameters=(
            Parameter("table", str, "DB.TABLE, by any name that the table had.", ..., in_path=True),
            Parameter("kind", Literal[roots.KINDS] | None, "Only entries of this kind."),
            Parameter("order", Literal["oldest", "newest"], "Which entries come first.", "oldest"),
            _SINCE,
            _UNTIL,
        ),
        listed="entries",
        keyed=roots.key_of_entry,
        instead="use a later `since`; `replicator show ROOT --table DB.TABLE` has no time limit",
    ),
)

_OF_REMOVALS = (
    Endpoint(
        "housekeeping/items",
        "Items that housekeeping will remove, has removed, or cannot remove, as in `replicator housekeeping ls`.",
        removals.items,
        removals.ItemList,
        of="root",
        parameters=of_options(HousekeepingLsOptions, *removals.FILTERS),
        listed="content",
        pages=True,
    ),
    Endpoint(
        "removals/upcoming",
        "Pending removals by day, with reasons: items of housekeeping, and removals planned by dry runs of retention.",
        upcoming_removals.upcoming,
        upcoming_removals.UpcomingRemovals,
        listed="removals",
    ),
    Endpoint(
        "removals/items",
        "Pending removals one by one, by time, with their bytes, and the `on` of a `removals:hold` that keeps them.",
        upcoming_removals.upcoming_items,
        upcoming_removals.UpcomingItems,
        of="root",
        listed="items",
        pages=True,
    ),
    Endpoint(
        "retention/{job}/explain",
        "The settings of a dataset, each with its file and line, as in `replicator retention explain`.",
        removals.explained,
        Explained,
        parameters=(
            Parameter("job", str, "A job of the configuration that runs retention.", ..., in_path=True),
            text("path", 'The path of a dataset, as in the configuration, or "hive/DB/TABLE".', needed=True),
        ),
        whole=True,
        listed="values",
    ),
    Endpoint(
        "purges",
        "Purges and restores of their backups, newest first.",
        removals.purges,
        removals.PurgeList,
        of="root",
        listed="purges",
        pages=True,
    ),
    Endpoint(
        "purges/{purge}",
        "One purge, and the progress of its partitions.",
        removals.purge,
        removals.PurgeDetail,
        of="root",
        parameters=(_PURGE,),
    ),
    Endpoint(
        "purges/{purge}/certificate",
        "The newest certificate of a purge.",
        removals.certificate,
        Certificate,
        of="root",
        parameters=(_PURGE,),
    ),
    Endpoint(
        "legal-holds",
        "Objects that no job may remove, as in `replicator legal-hold ls`.",
        asked_of_verb(legal_hold_ls),
        LegalHolds,
        of="root",
        listed="holds",
    ),
    Endpoint(
        "audit",
        "Removals by jobs, and refusals, as in `replicator audit ls`.",
        _audit,
        AuditList,
        of="root",
        parameters=of_options(AuditLsOptions, *_AUDIT),
        listed="rows",
    ),
)

_OF_INGESTION = (
    Endpoint("assets", "Assets, as in `replicator asset ls`.", assets, AssetsShown, listed="assets", whole=True),
    Endpoint(
        "assets/{asset}",
        "An asset, as in `replicator asset show`.",
        asset,
        Asset,
        parameters=(Parameter("asset", str, "The asset's name.", ..., in_path=True),),
        whole=True,
    ),
    Endpoint(
        "ingestion/requests",
        "Requests of ingestion with their jobs, newest first, as in `replicator ingest ls`.",
        requests,
        IngestionJobList,
        parameters=(*of_options(IngestLsOptions, *_REQUESTS), text("requested_by", "Only requests of this user.")),
        listed="jobs",
        keyed=key_of_job,
    ),
    Endpoint(
        "ingestion/requests/{job}",
        "A request, its job with its error in detail, and its changes, as in `replicator ingest show`.",
        request,
        JobDetail,
        parameters=(Parameter("job", Annotated[int, Path(ge=1, le=2**53)], "The job's number.", ..., in_path=True),),
    ),
    Endpoint(
        "ingestion/stats",
        "The queue for slots, time from request to publication, and landings by day, as in `replicator ingest stats`.",
        stats,
        IngestionStats,
        parameters=(
            text("within", "The period of the figures about published requests, such as 1d: at most 31d; default: 7d."),
        ),
        whole=True,
    ),
)

ENDPOINTS = _OF_POLICIES + _OF_ROOTS + _OF_REMOVALS + _OF_INGESTION
