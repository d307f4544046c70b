"""The catalogue of GET endpoints: path, command or function, parameters and response type of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Path

from replicator.commands.audit import AuditLsOptions, audit_ls, legal_hold_ls
from replicator.commands.cm import CmFindOptions, CmLsOptions
from replicator.commands.drill import drill
from replicator.commands.housekeeping import HousekeepingLsOptions
from replicator.commands.ingest import IngestLsOptions
from replicator.commands.status import history, lag
from replicator.ingestion.adapters.ingestion_shown import AssetsShown, IngestionStats
from replicator.ingestion.ingestion_request import Asset, JobDetail
from replicator.lifecycle.purge.certify import Certificate
from replicator.lifecycle.removal.audit import AuditRow, AuditShown
from replicator.lifecycle.removal.removal import LegalHolds
from replicator.lifecycle.retention.datasets import Explained
from replicator.policies.drills.drill_record import ShownDrills
from replicator.policies.lag import Lag
from replicator.policies.memory import ShownHistory
from replicator.replay.restore.kept import KeptList
from replicator.replay.restore.past_files import FoundList
from replicator.replay.restore.pins import PinList
from replicator.replay.restore.upkeep import ExpiryPlanned
from replicator.service.web.queries import of_policies, of_removals, of_roots, of_tables, of_upcoming
from replicator.service.web.queries.endpoint import (
    Asking,
    Endpoint,
    Parameter,
    asked_of_command,
    asked_of_verb,
    of_options,
    text,
)
from replicator.service.web.queries.of_roots import SLOW

_SINCE = text("since", 'Only from this time on: ISO 8601, or back from now: "-1d", "yesterday".')
_UNTIL = text("until", "Only up to this time.")
_PURGE = Parameter("purge", str, "A purge's id, as `purges` lists them.", ..., in_path=True)
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
        "Its lag, measured now, as `replicator lag` gives it.",
        asked_of_verb(lag),
        Lag,
        of="policy",
        instead="GET policies/P has it as it was measured last",
    ),
    Endpoint(
        "policies/{policy}/history",
        "Its runs as the target remembers them, those by hand too, newest first, as `replicator history` gives them.",
        asked_of_verb(history, limited=True),
        ShownHistory,
        of="policy",
        reads="target_cmroot",
        listed="runs",
    ),
    Endpoint(
        "policies/{policy}/lag-history",
        "Its lag over time, oldest first.",
        of_policies.lag_history,
        of_policies.LagSeries,
        of="policy",
        parameters=(_SINCE,),
        listed="points",
        keyed=of_policies.key_of_point,
    ),
    Endpoint(
        "policies/{policy}/verification",
        "Its last comparison of both sides, and how old it is.",
        of_policies.verification,
        of_policies.VerificationView,
        of="policy",
    ),
    Endpoint(
        "policies/{policy}/drills",
        "Its drills, newest first, with measured recovery times, as `replicator drill --list` gives them.",
        asked_of_verb(drill, limited=True, listing=True),
        ShownDrills,
        of="policy",
        reads="target_cmroot",
        listed="drills",
    ),
    Endpoint(
        "policies/{policy}/roles",
        "Roles of its databases on both sides, its slot, and turns that were made.",
        of_policies.roles,
        of_policies.PolicyRoles,
        of="policy",
    ),
    Endpoint(
        "policies/{policy}/restore-points",
        "Moments that `replicator restore --policy` can go back to, newest first.",
        of_policies.restore_points,
        of_policies.RestorePoints,
        of="policy",
        parameters=(_SINCE,),
        listed="points",
    ),
    Endpoint("checks", "What the newest checks of policies have found.", of_policies.checks, of_policies.CheckList),
)

_OF_ROOTS = (
    Endpoint("roots", "The roots that can be asked about.", of_roots.roots, of_roots.RootList),
    Endpoint(
        "cmroot/ls",
        "What it keeps: totals by who needs it, and the largest entries, as `replicator cm ls` gives them.",
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
        "Files of the captured log, as `replicator cm find` finds them; path, table or checksum is needed.",
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
        "Slots, holds and dumps, and how far behind they are, as `replicator cm slots` gives them.",
        of_roots.slots,
        PinList,
        of="root",
    ),
    Endpoint(
        "cmroot/held",
        "The same, with what each slot, hold and dump holds back, for which the whole log is read.",
        asked_of_command(("cm", "slots"), (), ("--engine=local",)),
        PinList,
        of="root",
        process=True,
        seconds=SLOW,
        instead=_as_a_job("cm", "slots"),
    ),
    Endpoint(
        "cmroot/holds", "Named moments that it keeps.", of_roots.holds, of_roots.HoldList, of="root", listed="holds"
    ),
    Endpoint(
        "cmroot/expiry",
        "What an expiry would remove now, and what holds back the rest, as `replicator cm expire --dry-run` says.",
        of_roots.expiry,
        ExpiryPlanned,
        of="root",
        parameters=(text("older_than", "The retention, such as 30d; without it, that of the job that expires it."),),
        process=True,
        seconds=SLOW,
        instead=_as_a_job("cm", "expire", "--dry-run"),
    ),
    Endpoint(
        "cmroot/size",
        "What it kept over time, oldest first.",
        of_roots.size,
        of_roots.SizeSeries,
        of="root",
        parameters=(_SINCE,),
        listed="points",
        keyed=of_policies.key_of_point,
        may_be_none_yet=True,
    ),
    Endpoint(
        "tables/{table}/timeline",
        "A table's life: records, removals, comparisons, runs, dumps and holds, by time.",
        of_tables.timeline,
        of_tables.Timeline,
        of="root",
        parameters=(
            Parameter("table", str, "DB.TABLE, by any name that it had.", ..., in_path=True),
            Parameter("kind", Literal[of_tables.KINDS] | None, "Only entries of this kind."),
            Parameter("order", Literal["oldest", "newest"], "Which come first.", "oldest"),
            _SINCE,
            _UNTIL,
        ),
        listed="entries",
        keyed=of_tables.key_of_entry,
        instead="ask from a later `since` on; `replicator show ROOT --table DB.TABLE` has no time limit",
    ),
)

_OF_REMOVALS = (
    Endpoint(
        "housekeeping/items",
        "What housekeeping is to remove, has removed, and cannot, as `replicator housekeeping ls` gives it.",
        of_removals.items,
        of_removals.ItemList,
        of="root",
        parameters=of_options(HousekeepingLsOptions, *of_removals.FILTERS),
        listed="content",
        pages=True,
    ),
    Endpoint(
        "removals/upcoming",
        "What goes when and why, by day: items of housekeeping, and what rehearsals of retention have planned.",
        of_upcoming.upcoming,
        of_upcoming.UpcomingRemovals,
        listed="removals",
    ),
    Endpoint(
        "removals/items",
        "What goes, one by one and by time, with its bytes, and what `removals:hold` takes to keep it.",
        of_upcoming.upcoming_items,
        of_upcoming.UpcomingItems,
        of="root",
        listed="items",
        pages=True,
    ),
    Endpoint(
        "retention/{job}/explain",
        "The settings of a dataset, each with its file and line, as `replicator retention explain` gives them.",
        of_removals.explained,
        Explained,
        parameters=(
            Parameter("job", str, "A job of the configuration that runs retention.", ..., in_path=True),
            text("path", 'A dataset\'s, as the configuration spells it, or "hive/DB/TABLE".', needed=True),
        ),
        whole=True,
        listed="values",
    ),
    Endpoint(
        "purges",
        "Purges and restores of their backups, newest first.",
        of_removals.purges,
        of_removals.PurgeList,
        of="root",
        listed="purges",
        pages=True,
    ),
    Endpoint(
        "purges/{purge}",
        "One purge, and how far its partitions have come.",
        of_removals.purge,
        of_removals.PurgeDetail,
        of="root",
        parameters=(_PURGE,),
    ),
    Endpoint(
        "purges/{purge}/certificate",
        "The newest certificate of a purge.",
        of_removals.certificate,
        Certificate,
        of="root",
        parameters=(_PURGE,),
    ),
    Endpoint(
        "legal-holds",
        "What no job may remove, as `replicator legal-hold ls` gives it.",
        asked_of_verb(legal_hold_ls),
        LegalHolds,
        of="root",
        listed="holds",
    ),
    Endpoint(
        "audit",
        "What jobs removed and refused, as `replicator audit ls` gives it.",
        _audit,
        AuditList,
        of="root",
        parameters=of_options(AuditLsOptions, *_AUDIT),
        listed="rows",
    ),
)

_OF_INGESTION = (
    Endpoint(
        "assets",
        "Assets, as `replicator asset ls` gives them.",
        of_roots.assets,
        AssetsShown,
        listed="assets",
        whole=True,
    ),
    Endpoint(
        "assets/{asset}",
        "An asset, as `replicator asset show` gives it.",
        of_roots.asset,
        Asset,
        parameters=(Parameter("asset", str, "Its name.", ..., in_path=True),),
        whole=True,
    ),
    Endpoint(
        "ingestion/requests",
        "Requests of ingestion with their jobs, newest first, as `replicator ingest ls` gives them.",
        of_roots.requests,
        of_roots.IngestionJobList,
        parameters=(
            *of_options(IngestLsOptions, *of_roots.FILTERS),
            text("requested_by", "Only those that this user requested."),
        ),
        listed="jobs",
        keyed=of_roots.key_of_job,
    ),
    Endpoint(
        "ingestion/requests/{job}",
        "A request, its job with its error in detail, and its changes, as `replicator ingest show` gives them.",
        of_roots.request,
        JobDetail,
        parameters=(Parameter("job", Annotated[int, Path(ge=1, le=2**53)], "Its job's number.", ..., in_path=True),),
    ),
    Endpoint(
        "ingestion/stats",
        "Who waits for a slot, how soon requests are published, what landed by day, as `replicator ingest stats` says.",
        of_roots.stats,
        IngestionStats,
        parameters=(text("within", "How far back, for what was published, such as 1d: at most 31d; without it, 7d."),),
        whole=True,
    ),
)

ENDPOINTS = _OF_POLICIES + _OF_ROOTS + _OF_REMOVALS + _OF_INGESTION
