"""Each method of the metastore's interface, 2.3 to 4.2, and what becomes of its calls. Pure.

A method that deletes tables' files is intercepted (`calls.SHAPES`) or refused. Methods that are listed here pass, and
so does what is named like a read. Any other method is from a server that this release does not know: refused.
"""

from __future__ import annotations

from typing import Literal

from replicator.captures.gateways.calls import SHAPES

Handling = Literal["pass", "intercept", "refuse", "unknown"]

REFUSED = frozenset({"drop_catalog"})
"""They delete directories, and nothing can turn that off: of a catalog, with all that lies in it."""

REMOVING = frozenset({"cm_recycle", "drop_index_by_name", "submit_for_cleanup"})
"""They pass, and files may go: those that the client could remove itself (moved to the server's own `$cmroot`), an
index's, which its table gives again (2.3), and what the server's cleaner would remove by itself (docs/gateway.md)."""

READS = ("get_", "list_", "show_", "find_", "fetch_")

_NAMES = """
abort_Compactions abort_txn abort_txns add_check_constraint add_default_constraint add_dynamic_partitions
add_foreign_key add_index add_master_key add_not_null_constraint add_package add_partition
add_partition_with_environment_context add_partitions add_partitions_pspec add_partitions_req add_primary_key
add_replication_metrics add_runtime_stats add_schema_version add_serde add_token add_unique_constraint
add_write_ids_to_min_history add_write_notification_log add_write_notification_log_in_batch aliveSince
allocate_table_write_ids alter_catalog alter_database alter_database_req alter_dataconnector alter_dataconnector_req
alter_function alter_index alter_ischema alter_partition alter_partition_with_environment_context alter_partitions
alter_partitions_req alter_partitions_with_environment_context alter_resource_plan alter_table alter_table_req
alter_table_with_cascade alter_table_with_environment_context alter_wm_pool alter_wm_trigger append_partition
append_partition_by_name append_partition_by_name_with_environment_context append_partition_req
append_partition_with_environment_context cache_file_metadata cancel_delegation_token check_lock clear_file_metadata
commit_txn compact compact2 create_catalog create_database create_database_req create_dataconnector
create_dataconnector_req create_function create_ischema create_or_drop_wm_trigger_to_pool_mapping
create_or_update_wm_mapping create_resource_plan create_role create_stored_procedure create_table create_table_req
create_table_with_constraints create_table_with_environment_context create_type create_wm_pool create_wm_trigger
delete_column_statistics_req delete_partition_column_statistics delete_table_column_statistics drop_constraint
drop_dataconnector drop_dataconnector_req drop_function drop_ischema drop_package drop_resource_plan drop_role
drop_schema_version drop_stored_procedure drop_type drop_wm_mapping drop_wm_pool drop_wm_trigger exchange_partition
exchange_partitions fire_listener_event flushCache getCounter getCounters getCpuProfile getMetaConf getName getOption
getOptions getStatus getStatusDetails getVersion grant_privileges grant_revoke_privileges grant_revoke_role grant_role
heartbeat heartbeat_lock_materialization_rebuild heartbeat_txn_range isPartitionMarkedForEvent lock
map_schema_version_to_serde mark_cleaned mark_compacted mark_failed mark_refused markPartitionForEvent open_txns
partition_name_has_valid_characters partition_name_to_spec partition_name_to_vals put_file_metadata refresh_privileges
reinitialize remove_compaction_metrics_data remove_master_key remove_token rename_partition rename_partition_req
renew_delegation_token repl_tbl_writeid_state revoke_privileges revoke_role scheduled_query_maintenance
scheduled_query_poll scheduled_query_progress seed_txn_id seed_write_id set_aggr_stats_for set_hadoop_jobid
set_properties set_schema_version_state set_ugi setMetaConf setOption shutdown translate_table_dryrun unlock
update_compaction_metrics_data update_compactor_state update_creation_metadata update_master_key
update_partition_column_statistics update_partition_column_statistics_req update_table_column_statistics
update_table_column_statistics_req update_transaction_statistics validate_resource_plan
"""
PASSED = REMOVING | frozenset(_NAMES.split())
"""Whoever adds a name has read what the server does with files in it."""

HIDDEN = frozenset(SHAPES) | REFUSED
"""Names that no other call may hold as a text, see `extent.MethodNames`."""


def handling(name: str) -> Handling:
    """What becomes of a call, by its method's name."""
    if name in SHAPES:
        return "intercept"
    if name in REFUSED:
        return "refuse"
    return "pass" if name in PASSED or name.startswith(READS) else "unknown"
