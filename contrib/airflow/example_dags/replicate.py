"""Replicates the policy `west`, waits until it is close, proves it, rehearses a failover, and erases persons. The same
again over HTTP, where the service runs jobs of its configuration. `scripts/airflow_provider` runs these DAGs."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from airflow_replicator.assets import replica_asset
from airflow_replicator.operators import (
    ReplicatorDrillOperator,
    ReplicatorOperator,
    ReplicatorPurgeOperator,
    ReplicatorSyncOperator,
    ReplicatorVerifyOperator,
)
from airflow_replicator.sensor import ReplicatorLagSensor

CLI = {"replicator_conn_id": "replicator_cli", "policy": "west"}
HTTP = {"replicator_conn_id": "replicator_http", "policy": "west"}

with DAG("replicate_by_command_line", schedule=None):
    (
        ReplicatorSyncOperator(task_id="sync", **CLI)
        >> ReplicatorLagSensor(task_id="close", max_seconds=60, poke_interval=2, timeout=120, **CLI)
        >> ReplicatorVerifyOperator(task_id="verify", **CLI)
        >> ReplicatorDrillOperator(task_id="drill", queries=["SELECT count(*) FROM sales.orders"], **CLI)
        >> ReplicatorPurgeOperator(task_id="purge", ids="sales.requests:a", tables="sales.orders", **CLI)
        >> ReplicatorSyncOperator(task_id="sync_again", **CLI)
    )

with DAG("replicate_over_http", schedule=[replica_asset("west", "replicator_cli")]):
    (
        ReplicatorSyncOperator(task_id="sync", **HTTP)
        >> ReplicatorLagSensor(task_id="close", max_events=0, poke_interval=2, timeout=120, deferrable=False, **HTTP)
        >> ReplicatorVerifyOperator(task_id="verify", job="verify-west", **HTTP)
    )

with DAG("kill_a_command", schedule=None):
    ReplicatorOperator(
        task_id="follow",
        replicator_conn_id="replicator_cli",
        arguments=["sync", "west", "--follow", "--interval", "2s"],
        execution_timeout=timedelta(seconds=15),
    )

with DAG("kill_a_run", schedule=None):
    ReplicatorDrillOperator(task_id="slow", job="slow-drill", execution_timeout=timedelta(seconds=20), **HTTP)
