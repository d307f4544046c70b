"""Replication and change management for Hive-metastore warehouses: dump, load, verify.

    import replicator
    replicator.dump(source="thrift://a:9083", cmroot="/w/cmroot", out="/w/dumps/1", db="sales")
    replicator.load("/w/dumps/1", target="thrift://b:9083")

Each command of the command line is a function here, named after it (`replicator cm expire` is `replicator.cm_expire`),
with a class of its options next to it. Locations are local paths or fsspec URLs, metastores thrift URIs or names of
`replicator.toml`. A function returns a report, whose text is the command's JSON. Errors are those of
`replicator.errors`. Nothing is imported before its first use.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

import cmroot as cmroot  # first: on executors of a cluster it leads to the libraries

if TYPE_CHECKING:
    from replicator.commands.asset import AssetApproveOptions as AssetApproveOptions
    from replicator.commands.asset import AssetCreateOptions as AssetCreateOptions
    from replicator.commands.asset import AssetLsOptions as AssetLsOptions
    from replicator.commands.asset import AssetShowOptions as AssetShowOptions
    from replicator.commands.asset import asset_approve as asset_approve
    from replicator.commands.asset import asset_create as asset_create
    from replicator.commands.asset import asset_ls as asset_ls
    from replicator.commands.asset import asset_show as asset_show
    from replicator.commands.base import engines as engines
    from replicator.commands.capture import CaptureOptions as CaptureOptions
    from replicator.commands.capture import GatewayOptions as GatewayOptions
    from replicator.commands.capture import capture as capture
    from replicator.commands.capture import gateway as gateway
    from replicator.commands.cm import CmCheckOptions as CmCheckOptions
    from replicator.commands.cm import CmCompactOptions as CmCompactOptions
    from replicator.commands.cm import CmExpireOptions as CmExpireOptions
    from replicator.commands.cm import CmFindOptions as CmFindOptions
    from replicator.commands.cm import CmGetOptions as CmGetOptions
    from replicator.commands.cm import CmHoldOptions as CmHoldOptions
    from replicator.commands.cm import CmLsOptions as CmLsOptions
    from replicator.commands.cm import CmReleaseOptions as CmReleaseOptions
    from replicator.commands.cm import CmSlotsConfirmOptions as CmSlotsConfirmOptions
    from replicator.commands.cm import CmSlotsCreateOptions as CmSlotsCreateOptions
    from replicator.commands.cm import CmSlotsDropOptions as CmSlotsDropOptions
    from replicator.commands.cm import CmSlotsOptions as CmSlotsOptions
    from replicator.commands.cm import cm_check as cm_check
    from replicator.commands.cm import cm_compact as cm_compact
    from replicator.commands.cm import cm_expire as cm_expire
    from replicator.commands.cm import cm_find as cm_find
    from replicator.commands.cm import cm_get as cm_get
    from replicator.commands.cm import cm_hold as cm_hold
    from replicator.commands.cm import cm_ls as cm_ls
    from replicator.commands.cm import cm_release as cm_release
    from replicator.commands.cm import cm_slots as cm_slots
    from replicator.commands.cm import cm_slots_confirm as cm_slots_confirm
    from replicator.commands.cm import cm_slots_create as cm_slots_create
    from replicator.commands.cm import cm_slots_drop as cm_slots_drop
    from replicator.commands.first_steps import DemoOptions as DemoOptions
    from replicator.commands.first_steps import InitOptions as InitOptions
    from replicator.commands.first_steps import MetastoreStartOptions as MetastoreStartOptions
    from replicator.commands.first_steps import MetastoreStatusOptions as MetastoreStatusOptions
    from replicator.commands.first_steps import MetastoreStopOptions as MetastoreStopOptions
    from replicator.commands.first_steps import demo as demo
    from replicator.commands.first_steps import init as init
    from replicator.commands.first_steps import metastore_start as metastore_start
    from replicator.commands.first_steps import metastore_status as metastore_status
    from replicator.commands.first_steps import metastore_stop as metastore_stop
    from replicator.commands.guard import AuditLsOptions as AuditLsOptions
    from replicator.commands.guard import AuditUndoOptions as AuditUndoOptions
    from replicator.commands.guard import LegalHoldAddOptions as LegalHoldAddOptions
    from replicator.commands.guard import LegalHoldLsOptions as LegalHoldLsOptions
    from replicator.commands.guard import LegalHoldReleaseOptions as LegalHoldReleaseOptions
    from replicator.commands.guard import audit_ls as audit_ls
    from replicator.commands.guard import audit_undo as audit_undo
    from replicator.commands.guard import legal_hold_add as legal_hold_add
    from replicator.commands.guard import legal_hold_ls as legal_hold_ls
    from replicator.commands.guard import legal_hold_release as legal_hold_release
    from replicator.commands.ingest import IngestCancelOptions as IngestCancelOptions
    from replicator.commands.ingest import IngestDropZoneOptions as IngestDropZoneOptions
    from replicator.commands.ingest import IngestLsOptions as IngestLsOptions
    from replicator.commands.ingest import IngestRunOptions as IngestRunOptions
    from replicator.commands.ingest import IngestShowOptions as IngestShowOptions
    from replicator.commands.ingest import IngestStatsOptions as IngestStatsOptions
    from replicator.commands.ingest import IngestTakeOptions as IngestTakeOptions
    from replicator.commands.ingest import ingest_cancel as ingest_cancel
    from replicator.commands.ingest import ingest_drop_zone as ingest_drop_zone
    from replicator.commands.ingest import ingest_ls as ingest_ls
    from replicator.commands.ingest import ingest_run as ingest_run
    from replicator.commands.ingest import ingest_show as ingest_show
    from replicator.commands.ingest import ingest_stats as ingest_stats
    from replicator.commands.ingest import ingest_take as ingest_take
    from replicator.commands.ingest_request import IngestRequestOptions as IngestRequestOptions
    from replicator.commands.ingest_request import ingest_request as ingest_request
    from replicator.commands.landing_tables import IngestMarkOptions as IngestMarkOptions
    from replicator.commands.landing_tables import IngestVerifyOptions as IngestVerifyOptions
    from replicator.commands.landing_tables import IngestWatchOptions as IngestWatchOptions
    from replicator.commands.landing_tables import ingest_mark as ingest_mark
    from replicator.commands.landing_tables import ingest_verify as ingest_verify
    from replicator.commands.landing_tables import ingest_watch as ingest_watch
    from replicator.commands.lifecycle import HousekeepingCancelOptions as HousekeepingCancelOptions
    from replicator.commands.lifecycle import HousekeepingLsOptions as HousekeepingLsOptions
    from replicator.commands.lifecycle import HousekeepingRearmOptions as HousekeepingRearmOptions
    from replicator.commands.lifecycle import HousekeepingRunOptions as HousekeepingRunOptions
    from replicator.commands.lifecycle import HousekeepingVacuumOptions as HousekeepingVacuumOptions
    from replicator.commands.lifecycle import RetentionExplainOptions as RetentionExplainOptions
    from replicator.commands.lifecycle import RetentionRunOptions as RetentionRunOptions
    from replicator.commands.lifecycle import housekeeping_cancel as housekeeping_cancel
    from replicator.commands.lifecycle import housekeeping_ls as housekeeping_ls
    from replicator.commands.lifecycle import housekeeping_rearm as housekeeping_rearm
    from replicator.commands.lifecycle import housekeeping_run as housekeeping_run
    from replicator.commands.lifecycle import housekeeping_vacuum as housekeeping_vacuum
    from replicator.commands.lifecycle import retention_explain as retention_explain
    from replicator.commands.lifecycle import retention_run as retention_run
    from replicator.commands.policies import ApplyOptions as ApplyOptions
    from replicator.commands.policies import CheckOptions as CheckOptions
    from replicator.commands.policies import HistoryOptions as HistoryOptions
    from replicator.commands.policies import LagOptions as LagOptions
    from replicator.commands.policies import PlanOptions as PlanOptions
    from replicator.commands.policies import StatusOptions as StatusOptions
    from replicator.commands.policies import SyncOptions as SyncOptions
    from replicator.commands.policies import WaitOptions as WaitOptions
    from replicator.commands.policies import apply as apply
    from replicator.commands.policies import check as check
    from replicator.commands.policies import history as history
    from replicator.commands.policies import lag as lag
    from replicator.commands.policies import plan as plan
    from replicator.commands.policies import status as status
    from replicator.commands.policies import sync as sync
    from replicator.commands.policies import wait as wait
    from replicator.commands.purge import PurgeBackupsOptions as PurgeBackupsOptions
    from replicator.commands.purge import PurgeCertificateOptions as PurgeCertificateOptions
    from replicator.commands.purge import PurgeCertifyOptions as PurgeCertifyOptions
    from replicator.commands.purge import PurgeRetainOptions as PurgeRetainOptions
    from replicator.commands.purge import PurgeRunOptions as PurgeRunOptions
    from replicator.commands.purge import PurgeUndoOptions as PurgeUndoOptions
    from replicator.commands.purge import purge_backups as purge_backups
    from replicator.commands.purge import purge_certificate as purge_certificate
    from replicator.commands.purge import purge_certify as purge_certify
    from replicator.commands.purge import purge_retain as purge_retain
    from replicator.commands.purge import purge_run as purge_run
    from replicator.commands.purge import purge_undo as purge_undo
    from replicator.commands.replication import DumpOptions as DumpOptions
    from replicator.commands.replication import LoadOptions as LoadOptions
    from replicator.commands.replication import dump as dump
    from replicator.commands.replication import load as load
    from replicator.commands.role_change import DrillOptions as DrillOptions
    from replicator.commands.role_change import FailbackOptions as FailbackOptions
    from replicator.commands.role_change import FailoverOptions as FailoverOptions
    from replicator.commands.role_change import LossOptions as LossOptions
    from replicator.commands.role_change import RoleSetOptions as RoleSetOptions
    from replicator.commands.role_change import RoleShowOptions as RoleShowOptions
    from replicator.commands.role_change import SwitchoverOptions as SwitchoverOptions
    from replicator.commands.role_change import drill as drill
    from replicator.commands.role_change import failback as failback
    from replicator.commands.role_change import failover as failover
    from replicator.commands.role_change import loss as loss
    from replicator.commands.role_change import role_set as role_set
    from replicator.commands.role_change import role_show as role_show
    from replicator.commands.role_change import switchover as switchover
    from replicator.commands.stored_states import DumpsExpireOptions as DumpsExpireOptions
    from replicator.commands.stored_states import DumpsExportOptions as DumpsExportOptions
    from replicator.commands.stored_states import DumpsImportOptions as DumpsImportOptions
    from replicator.commands.stored_states import DumpsLsOptions as DumpsLsOptions
    from replicator.commands.stored_states import DumpsVerifyOptions as DumpsVerifyOptions
    from replicator.commands.stored_states import RestoreOptions as RestoreOptions
    from replicator.commands.stored_states import ShowOptions as ShowOptions
    from replicator.commands.stored_states import dumps_expire as dumps_expire
    from replicator.commands.stored_states import dumps_export as dumps_export
    from replicator.commands.stored_states import dumps_import as dumps_import
    from replicator.commands.stored_states import dumps_ls as dumps_ls
    from replicator.commands.stored_states import dumps_verify as dumps_verify
    from replicator.commands.stored_states import restore as restore
    from replicator.commands.stored_states import show as show
    from replicator.commands.verify import RepairOptions as RepairOptions
    from replicator.commands.verify import VerifyOptions as VerifyOptions
    from replicator.commands.verify import repair as repair
    from replicator.commands.verify import verify as verify
    from replicator.service.diagnosis import DiagnoseOptions as DiagnoseOptions
    from replicator.service.diagnosis import diagnose as diagnose
    from replicator.service.metrics import MetricsOptions as MetricsOptions
    from replicator.service.metrics import metrics as metrics
    from replicator.service.service_process import ServeOptions as ServeOptions
    from replicator.service.service_process import TokenCreateOptions as TokenCreateOptions
    from replicator.service.service_process import TokenLsOptions as TokenLsOptions
    from replicator.service.service_process import TokenRevokeOptions as TokenRevokeOptions
    from replicator.service.service_process import serve as serve
    from replicator.service.service_process import token_create as token_create
    from replicator.service.service_process import token_ls as token_ls
    from replicator.service.service_process import token_revoke as token_revoke

__version__ = "0.1.0"

_COMMANDS = {
    "base": ("engines",),
    "guard": (
        *("audit_ls", "AuditLsOptions"),
        *("audit_undo", "AuditUndoOptions"),
        *("legal_hold_add", "LegalHoldAddOptions"),
        *("legal_hold_ls", "LegalHoldLsOptions"),
        *("legal_hold_release", "LegalHoldReleaseOptions"),
    ),
    "first_steps": (
        *("demo", "DemoOptions"),
        *("metastore_start", "MetastoreStartOptions"),
        *("metastore_status", "MetastoreStatusOptions"),
        *("metastore_stop", "MetastoreStopOptions"),
        *("init", "InitOptions"),
    ),
    "capture": ("gateway", "GatewayOptions", "capture", "CaptureOptions"),
    "policies": (
        *("check", "CheckOptions"),
        *("lag", "LagOptions"),
        *("history", "HistoryOptions"),
        *("status", "StatusOptions"),
        *("wait", "WaitOptions"),
        *("sync", "SyncOptions"),
        *("plan", "PlanOptions"),
        *("apply", "ApplyOptions"),
    ),
    "cm": (
        *("cm_find", "CmFindOptions"),
        *("cm_ls", "CmLsOptions"),
        *("cm_get", "CmGetOptions"),
        *("cm_hold", "CmHoldOptions"),
        *("cm_release", "CmReleaseOptions"),
        *("cm_slots", "CmSlotsOptions"),
        *("cm_slots_confirm", "CmSlotsConfirmOptions"),
        *("cm_slots_create", "CmSlotsCreateOptions"),
        *("cm_slots_drop", "CmSlotsDropOptions"),
        *("cm_check", "CmCheckOptions"),
        *("cm_compact", "CmCompactOptions"),
        *("cm_expire", "CmExpireOptions"),
    ),
    "role_change": (
        *("drill", "DrillOptions"),
        *("role_show", "RoleShowOptions"),
        *("role_set", "RoleSetOptions"),
        *("switchover", "SwitchoverOptions"),
        *("failover", "FailoverOptions"),
        *("failback", "FailbackOptions"),
        *("loss", "LossOptions"),
    ),
    "replication": ("dump", "DumpOptions", "load", "LoadOptions"),
    "stored_states": (
        *("dumps_verify", "DumpsVerifyOptions"),
        *("dumps_ls", "DumpsLsOptions"),
        *("dumps_expire", "DumpsExpireOptions"),
        *("dumps_export", "DumpsExportOptions"),
        *("dumps_import", "DumpsImportOptions"),
        *("restore", "RestoreOptions"),
        *("show", "ShowOptions"),
    ),
    "lifecycle": (
        *("housekeeping_run", "HousekeepingRunOptions"),
        *("housekeeping_vacuum", "HousekeepingVacuumOptions"),
        *("housekeeping_ls", "HousekeepingLsOptions"),
        *("housekeeping_cancel", "HousekeepingCancelOptions"),
        *("housekeeping_rearm", "HousekeepingRearmOptions"),
        *("retention_run", "RetentionRunOptions"),
        *("retention_explain", "RetentionExplainOptions"),
    ),
    "asset": (
        *("asset_approve", "AssetApproveOptions"),
        *("asset_create", "AssetCreateOptions"),
        *("asset_ls", "AssetLsOptions"),
        *("asset_show", "AssetShowOptions"),
    ),
    "ingest": (
        *("ingest_cancel", "IngestCancelOptions"),
        *("ingest_ls", "IngestLsOptions"),
        *("ingest_drop_zone", "IngestDropZoneOptions"),
        *("ingest_take", "IngestTakeOptions"),
        *("ingest_show", "ingest_stats"),
        *("IngestStatsOptions", "IngestShowOptions"),
        *("ingest_run", "IngestRunOptions"),
    ),
    "landing_tables": (
        *("ingest_mark", "IngestMarkOptions"),
        *("ingest_verify", "IngestVerifyOptions"),
        *("ingest_watch", "IngestWatchOptions"),
    ),
    "ingest_request": (*("ingest_request", "IngestRequestOptions"),),
    "purge": (
        *("purge_run", "PurgeRunOptions"),
        *("purge_certify", "PurgeCertifyOptions"),
        *("purge_certificate", "PurgeCertificateOptions"),
        *("purge_backups", "PurgeBackupsOptions"),
        *("purge_undo", "PurgeUndoOptions"),
        *("purge_retain", "PurgeRetainOptions"),
    ),
    "verify": ("repair", "RepairOptions", "verify", "VerifyOptions"),
}
"""Public names by their module in `replicator.commands`."""

_OF_SERVICE = (
    *("serve", "ServeOptions", "token_create", "TokenCreateOptions"),
    *("token_ls", "TokenLsOptions", "token_revoke", "TokenRevokeOptions"),
)
"""Public names of `replicator.service.service_process`."""

_MODULES = {name: f"replicator.commands.{module}" for module, names in _COMMANDS.items() for name in names}
_MODULES |= dict.fromkeys(_OF_SERVICE, "replicator.service.service_process")
_MODULES |= dict.fromkeys(("metrics", "MetricsOptions"), "replicator.service.metrics")
_MODULES |= dict.fromkeys(("diagnose", "DiagnoseOptions"), "replicator.service.diagnosis")


_RENAMED = {
    "cm_restore": "cm_get",
    "CmRestoreOptions": "CmGetOptions",
    "audit_restore": "audit_undo",
    "AuditRestoreOptions": "AuditUndoOptions",
    "purge_restore": "purge_undo",
    "PurgeRestoreOptions": "PurgeUndoOptions",
}
"""Public names by those that they had before, which work and warn."""


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warnings.warn(f"replicator.{name} is now {_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'replicator' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
