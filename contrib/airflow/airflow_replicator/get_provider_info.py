"""What Airflow reads of an installed provider."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "airflow-provider-replicator",
        "name": "Replicator",
        "description": "Replication of Hive metastores.",
        "versions": ["0.1.0"],
        "integrations": [
            {
                "integration-name": "Replicator",
                "external-doc-url": "https://github.com/replicator/replicator",
                "tags": ["software"],
            }
        ],
        "hooks": [{"integration-name": "Replicator", "python-modules": ["airflow_replicator.hook"]}],
        "operators": [{"integration-name": "Replicator", "python-modules": ["airflow_replicator.operators"]}],
        "sensors": [{"integration-name": "Replicator", "python-modules": ["airflow_replicator.sensor"]}],
        "triggers": [{"integration-name": "Replicator", "python-modules": ["airflow_replicator.trigger"]}],
        "connection-types": [
            {
                "connection-type": "replicator",
                "hook-class-name": "airflow_replicator.hook.ReplicatorHook",
                "hook-name": "Replicator",
            }
        ],
        "asset-uris": [{"schemes": ["replicator"], "handler": "airflow_replicator.assets.sanitize_uri"}],
    }
